//! Operations on queues.

use serde_json::json;

use super::Operation;

const TAG: &str = "queues";

const PAGE: &[(&str, &str, &str)] = &[
    ("namespace", "string", "Only of this namespace"),
    ("task", "string", "Only of this task"),
    ("search", "string", "Only names that contain this"),
    ("limit", "integer", "Rows at most"),
    ("offset", "integer", "Rows to skip"),
];

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::new("post", "/api/v1/configure", TAG, "Make a queue or change the options that are sent")
            .body(json!({ "queue": "orders", "options": { "leaseTime": 60, "retryLimit": 5, "durability": "sync" } }))
            .object("configured:boolean queue:string queueId:string namespace:string task:string options:object ignored:array"),
        Operation::new("get", "/api/v1/resources/queues", TAG, "List queues").query(PAGE).object("queues:array"),
        Operation::new("get", "/api/v1/resources/queues/{queue}", TAG, "One queue with its partitions")
            .object("id:string name:string createdAt:string partitions:array totals:object options:object segments:object"),
        Operation::new("delete", "/api/v1/resources/queues/{queue}", TAG, "Delete a queue with everything in it")
            .object("queue:string deleted:boolean existed:boolean"),
        Operation::new("get", "/api/v1/resources/queues/{queue}/depth", TAG, "What a group has before it")
            .query(&[("group", "string", "The group; absent is the primary group")])
            .object(
                "queue:string group:string pending:integer partitions:array partitionsPending:integer effectivePending:integer",
            ),
        Operation::new("get", "/api/v1/resources/namespaces", TAG, "Namespaces with their numbers").object("namespaces:array"),
        Operation::new("get", "/api/v1/resources/tasks", TAG, "Tasks with their numbers").object("tasks:array"),
        Operation::new("get", "/api/v1/resources/overview", TAG, "Totals over everything").object(
            "queues:integer partitions:integer namespaces:integer tasks:integer messages:object lag:object throughput:object",
        ),
        Operation::new("get", "/api/v1/resources/partitions", TAG, "Partitions, those with the most before them first")
            .query(&[
                ("queue", "string", "Only of this queue"),
                ("namespace", "string", "Only of this namespace"),
                ("task", "string", "Only of this task"),
                ("limit", "integer", "Rows at most"),
                ("offset", "integer", "Rows to skip"),
            ])
            .object("partitions:array total:integer"),
        Operation::new("get", "/api/v1/queues/{queue}/partitions", TAG, "Partitions in the order of their making")
            .query(&[
                ("from", "integer", "Number of the first partition"),
                ("limit", "integer", "Partitions at most; default 1000"),
            ])
            .object("queue:string partitions:array next:integer?"),
        Operation::new(
            "get",
            "/api/v1/queues/{queue}/partitions/{partition}/messages",
            TAG,
            "Read a range of offsets, without a group",
        )
        .query(&[
            ("from", "integer", "The first offset; default the oldest one"),
            ("to", "integer", "The first offset not wanted; default the end"),
            ("limit", "integer", "Messages at most; default 100"),
        ])
        .object("queue:string partition:string partitionId:string start:integer end:integer next:integer messages:array"),
    ]
}
