//! Operations on groups, their filters and their cursors.

use serde_json::json;

use super::{Answer, Operation};

const TAG: &str = "groups";

const GROUP: &str = "queue:string name:string filter:string state:string enabled:boolean paused:boolean maxDeliveries:integer? \
                     displayName:string version:integer primary:boolean declared:boolean createdAt:string \
                     judgesEarlier:boolean";

const VERSION: &[(&str, &str, &str)] = &[("version", "integer", "Only if this is still the group's version")];

const SOUGHT: &str =
    "success:boolean consumerGroup:string queueName:string partitionsUpdated:integer preview:boolean partitions:array";

pub(super) fn operations() -> Vec<Operation> {
    let seek = json!({ "timestamp": "2026-01-01T00:00:00Z", "preview": true });
    let switch = |path, summary| Operation::new("post", path, TAG, summary).query(VERSION).object(GROUP);
    vec![
        Operation::new("get", "/api/v1/queues/{queue}/groups", TAG, "List the groups of a queue").object("groups:array"),
        Operation::new("post", "/api/v1/queues/{queue}/groups", TAG, "Declare a group with its filter")
            .body(json!({
                "name": "europe", "filter": ":region = \"eu\" AND :amount > 10", "enabled": true, "maxDeliveries": 5,
                "displayName": "European orders", "start": "new",
            }))
            .answers(201, Answer::Object(GROUP)),
        Operation::new("get", "/api/v1/queues/{queue}/groups/{group}", TAG, "One group").object(GROUP),
        Operation::new(
            "patch",
            "/api/v1/queues/{queue}/groups/{group}",
            TAG,
            "Change a group, for all pushes that start afterwards",
        )
        .body(json!({ "filter": ":region = \"us\"", "maxDeliveries": null }))
        .object(GROUP),
        Operation::new("delete", "/api/v1/queues/{queue}/groups/{group}", TAG, "Delete a group of a queue")
            .query(VERSION)
            .object("success:boolean queue:string name:string deletedPartitions:integer"),
        switch("/api/v1/queues/{queue}/groups/{group}/enable", "Take and hand out messages again"),
        switch("/api/v1/queues/{queue}/groups/{group}/disable", "Take nothing and hand out nothing; keep what it holds"),
        switch("/api/v1/queues/{queue}/groups/{group}/pause", "Hand out nothing, go on taking"),
        switch("/api/v1/queues/{queue}/groups/{group}/resume", "Hand out again"),
        Operation::new("post", "/api/v1/filters/test", TAG, "Try a filter on attributes, or on a partition's last messages")
            .body(json!({ "filter": ":region = \"eu\"", "attributes": { "region": "eu" } }))
            .object("filter:string parsed:string matches:boolean why:array"),
        Operation::new("get", "/api/v1/consumer-groups", TAG, "Every group in every queue with its lag").answers(
            200,
            Answer::Rows(
                "name:string topics:array queueName:string members:integer totalLag:integer maxTimeLag:integer state:string \
                 subscriptionMode:string? conflation:boolean",
            ),
        ),
        Operation::new("get", "/api/v1/consumer-groups/lagging", TAG, "Cursors that are behind")
            .query(&[("minLagSeconds", "integer", "By so many seconds; default 3600")])
            .answers(
                200,
                Answer::Rows(
                    "consumer_group:string queue_name:string partition_name:string partition_id:string offset_lag:integer",
                ),
            ),
        Operation::new("get", "/api/v1/consumer-groups/{group}", TAG, "A group's cursors, by queue").answers(200, Answer::Any),
        Operation::new("delete", "/api/v1/consumer-groups/{group}", TAG, "Delete a group in all queues")
            .query(&[("deleteMetadata", "boolean", "Accepted; its registration always goes too")])
            .object("success:boolean consumerGroup:string deletedPartitions:integer metadataDeleted:boolean"),
        Operation::new("delete", "/api/v1/consumer-groups/{group}/queues/{queue}", TAG, "Delete a group in one queue")
            .query(&[("deleteMetadata", "boolean", "Accepted; its registration always goes too")])
            .object("success:boolean consumerGroup:string queueName:string deletedPartitions:integer metadataDeleted:boolean"),
        Operation::new(
            "post",
            "/api/v1/consumer-groups/{group}/subscription",
            TAG,
            "Where the group starts in partitions that are new to it",
        )
        .body(json!({ "subscriptionTimestamp": "2026-01-01T00:00:00Z" }))
        .object("success:boolean consumerGroup:string newTimestamp:string rowsUpdated:integer"),
        Operation::new(
            "post",
            "/api/v1/consumer-groups/{group}/queues/{queue}/seek",
            TAG,
            "Move a group's cursors, or show what would move",
        )
        .body(seek.clone())
        .object(SOUGHT),
        Operation::new(
            "post",
            "/api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek",
            TAG,
            "The same in one partition",
        )
        .body(json!({ "offset": 0 }))
        .object(SOUGHT),
    ]
}
