//! Operations on messages.

use serde_json::json;

use super::{Answer, Operation};

const TAG: &str = "messages";

const POP: &[(&str, &str, &str)] = &[
    ("batch", "integer", "Messages at most, over all partitions; default 200"),
    ("partitions", "integer", "Partitions at most, 1 to 64; default 1"),
    ("wait", "boolean", "Wait for messages"),
    ("timeout", "integer", "Milliseconds to wait; default 30000"),
    ("consumerGroup", "string", "The group; absent is the primary group"),
    ("autoAck", "boolean", "Move the cursor on delivery, without a lease"),
    ("leaseSeconds", "integer", "Lease time in place of the queue's"),
    ("subscriptionMode", "string", "Where a new group starts: all or new"),
    ("subscriptionFrom", "string", "Where a new group starts: now or a time"),
    ("conflation", "boolean", "Only the newest message of each partition; its acknowledgement covers all before it"),
    ("autopilot", "boolean", "Let the server choose batch and partitions where they are absent"),
];

const DISCOVER: &[(&str, &str, &str)] = &[
    ("namespace", "string", "The namespace"),
    ("task", "string", "The task"),
    ("batch", "integer", "Messages at most, over all partitions; default 200"),
    ("partitions", "integer", "Partitions at most, 1 to 64; default 1"),
    ("wait", "boolean", "Wait for messages"),
    ("timeout", "integer", "Milliseconds to wait; default 30000"),
    ("consumerGroup", "string", "The group; absent is the primary group"),
    ("autoAck", "boolean", "Move the cursor on delivery, without a lease"),
    ("leaseSeconds", "integer", "Lease time in place of the queue's"),
];

const POPPED: &str = "success:boolean queue:string partition:string partitionId:string leaseId:string consumerGroup:string \
                      messages:array partitionsClaimed:integer";

const VERDICT: &str =
    "index:integer transactionId:string success:boolean error:string? leaseReleased:boolean dlq:boolean noop:boolean";

const PAGE: &[(&str, &str, &str)] = &[("limit", "integer", "Rows at most"), ("offset", "integer", "Rows to skip")];

pub(super) fn operations() -> Vec<Operation> {
    let ack = json!({ "transactionId": "", "partitionId": "", "leaseId": "", "consumerGroup": "billing", "status": "completed" });
    vec![
        Operation::new("post", "/api/v1/push", TAG, "Push messages to any queues and partitions")
            .body(json!({ "items": [{
                "queue": "orders", "partition": "customer-42", "payload": { "total": 19.99 }, "transactionId": "order-1",
                "attributes": { "region": "eu", "amount": 19.99 },
            }] }))
            .answers(201, Answer::Rows("index:integer message_id:string transaction_id:string queueName:string status:string")),
        pop("/api/v1/pop/queue/{queue}", "Pop from any partition of a queue").query(POP),
        pop("/api/v1/pop/queue/{queue}/partition/{partition}", "Pop from one partition").query(POP),
        pop("/api/v1/pop", "Pop from any queue of a namespace or task").query(DISCOVER),
        Operation::new("post", "/api/v1/ack", TAG, "Acknowledge a message: completed, failed, retry or dlq")
            .body(ack.clone())
            .answers(200, Answer::Rows(VERDICT)),
        Operation::new("post", "/api/v1/ack/batch", TAG, "Acknowledge messages, each with a verdict of its own")
            .body(json!({ "acknowledgments": [ack.clone()], "consumerGroup": "billing" }))
            .answers(200, Answer::Rows(VERDICT)),
        Operation::new("post", "/api/v1/lease/{lease}/extend", TAG, "Extend a lease; success is false if it is lost")
            .body(json!({ "seconds": 60 }))
            .object("leaseId:string success:boolean renewed:integer newExpiresAt:string? expiresAt:string? lease_expires_at:string?"),
        Operation::new("post", "/api/v1/lease/{lease}/release", TAG, "Give all messages of a lease back, uncharged")
            .object("leaseId:string success:boolean released:integer"),
        Operation::new("post", "/api/v1/transaction", TAG, "Push and acknowledge, all or nothing")
            .body(json!({ "operations": [
                { "type": "push", "items": [{ "queue": "orders", "payload": { "step": 2 } }] },
                { "type": "ack", "transactionId": "", "partitionId": "", "leaseId": "", "consumerGroup": "billing" },
            ] }))
            .object("transactionId:string success:boolean results:array"),
        Operation::new("get", "/api/v1/messages", TAG, "List stored messages, newest first")
            .query(&[
                ("queue", "string", "Only of this queue"),
                ("partition", "string", "Only of this partition"),
                ("namespace", "string", "Only of this namespace"),
                ("task", "string", "Only of this task"),
                ("status", "string", "pending, processing, completed or dead_letter"),
                ("from", "string", "Stored at this time or later; default an hour ago"),
                ("to", "string", "Stored at this time or earlier"),
                ("limit", "integer", "Rows at most; default 200"),
                ("offset", "integer", "Rows to skip"),
            ])
            .object("messages:array mode:object total:integer"),
        Operation::new("get", "/api/v1/messages/{partition_id}/{transaction_id}", TAG, "One message with the progress of every group")
            .object(
                "id:string transactionId:string partitionId:string queue:string partition:string status:string createdAt:string \
                 consumerGroups:array queueConfig:object retryCount:integer errorMessage:string?",
            ),
        Operation::new("delete", "/api/v1/messages/{partition_id}/{transaction_id}", "dead letters", "Delete a dead letter by its message")
            .object("success:boolean partitionId:string transactionId:string"),
        Operation::new("post", "/api/v1/messages/{partition_id}/{transaction_id}/retry", "dead letters", "Replay a dead letter by its message")
            .object("success:boolean partitionId:string transactionId:string"),
        Operation::new("get", "/api/v1/dlq", "dead letters", "List dead letters, newest first")
            .query(&[
                ("queue", "string", "Only of this queue"),
                ("consumerGroup", "string", "Only of this group"),
                ("limit", "integer", "Rows at most; default 100"),
                ("offset", "integer", "Rows to skip"),
            ])
            .object("messages:array total:integer pagination:object"),
        Operation::new("delete", "/api/v1/dlq/{id}", "dead letters", "Delete a dead letter").object("success:boolean id:string"),
        Operation::new("post", "/api/v1/dlq/{id}/replay", "dead letters", "Push a dead letter again, once")
            .object("success:boolean queue:string offset:integer? duplicate:boolean"),
        Operation::new("post", "/api/v1/traces", "traces", "Write a remark on a message's way")
            .body(json!({
                "transactionId": "", "partitionId": "", "consumerGroup": "billing", "traceNames": ["checkout"], "eventType": "info",
                "data": { "step": "started" },
            }))
            .answers(201, Answer::Object("success:boolean traceId:string")),
        Operation::new("get", "/api/v1/traces/names", "traces", "Names that remarks are found by")
            .query(PAGE)
            .object("trace_names:array total:integer pagination:object"),
        Operation::new("get", "/api/v1/traces/by-name/{name}", "traces", "Remarks by name")
            .query(PAGE)
            .object("traces:array total:integer pagination:object"),
        Operation::new("get", "/api/v1/traces/{partition_id}/{transaction_id}", "traces", "Remarks on a message")
            .object("traces:array total:integer pagination:object"),
    ]
}

fn pop(path: &'static str, summary: &'static str) -> Operation {
    Operation::new("get", path, TAG, summary).answers(200, Answer::Object(POPPED)).answers(204, Answer::Nothing)
}
