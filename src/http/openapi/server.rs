//! Operations on the server: health, metrics, status.

use serde_json::json;

use super::{Answer, Operation};

const TAG: &str = "server";

const WINDOW: &[(&str, &str, &str)] = &[
    ("from", "string", "Begin of the window; default an hour ago"),
    ("to", "string", "End of the window; default now"),
    ("interval", "string", "minute, hour, day, or seconds"),
];

const SERIES: &str = "timeRange:object bucketMinutes:integer pointCount:integer";

pub(super) fn operations() -> Vec<Operation> {
    let get = |path, summary| Operation::new("get", path, TAG, summary);
    let series = |path, summary| Operation::new("get", path, TAG, summary).query(WINDOW);
    let maintenance = "maintenanceMode:boolean popMaintenanceMode:boolean bufferedMessages:integer";
    vec![
        get("/health", "Whether the server works").object("status:string database:string engine:string version:string"),
        get("/healthz", "Whether the process lives").object("status:string"),
        get("/readyz", "Whether the server is ready: recovered, disk fine, not stopping")
            .object("ready:boolean reasons:array diskFreeBytes:integer recovery:object"),
        get("/version", "Name and version").object("name:string version:string"),
        get("/metrics", "Metrics as JSON").object("cpu:object memory:object messages:object requests:object uptime:number"),
        get("/metrics/prometheus", "Metrics for Prometheus").answers(200, Answer::Text("application/openmetrics-text")),
        get("/openapi.json", "This document").object("openapi:string info:object paths:object"),
        series("/api/v1/status", "Totals and throughput").object(
            "timeRange:object bucketMinutes:integer pointCount:integer statsAge:integer throughput:array workers:array \
             queues:object messages:object leases:object deadLetterQueue:object errors:object",
        ),
        get("/api/v1/status/queues", "Every queue with its numbers")
            .query(&[("limit", "integer", "Rows at most"), ("offset", "integer", "Rows to skip")])
            .object("queues:array pagination:object"),
        series("/api/v1/status/queues/{queue}", "One queue with its numbers")
            .object("queue:object partitions:array consumerGroups:array totals:object throughput:array"),
        series("/api/v1/status/analytics", "Throughput over time").object("interval:string from:string to:string dataPoints:array"),
        series("/api/v1/analytics/system-metrics", "Processor, memory and disk over time")
            .object("timeRange:object replicas:array bucketMinutes:integer pointCount:integer"),
        series("/api/v1/analytics/worker-metrics", "The server's work over time").object(
            "timeRange:object bucketMinutes:integer pointCount:integer summary:object timeSeries:array workers:array queues:array",
        ),
        series("/api/v1/analytics/queue-lag", "Lag of each queue over time").object(SERIES),
        series("/api/v1/analytics/queue-ops", "Work of each queue over time").object(SERIES),
        series("/api/v1/analytics/queue-parked-replicas", "Waiting pops over time").object(SERIES),
        series("/api/v1/analytics/retention", "What retention removed and what is kept").object(SERIES),
        get("/api/v1/analytics/postgres-stats", "The log's numbers, where Queen has a database").object("available:boolean storage:string"),
        Operation::new("post", "/api/v1/stats/refresh", TAG, "Take a sample now").object("success:boolean timestamp:string"),
        get("/api/v1/system/maintenance", "Always off").object(maintenance),
        get("/api/v1/system/maintenance/pop", "Always off").object(maintenance),
        Operation::new("post", "/api/v1/system/maintenance", TAG, "Switching on is refused")
            .body(json!({ "enabled": false }))
            .object(maintenance),
        Operation::new("post", "/api/v1/system/maintenance/pop", TAG, "Switching on is refused")
            .body(json!({ "enabled": false }))
            .object(maintenance),
        Operation::new("put", "/api/v1/system/log-filter", TAG, "What is logged from now on")
            .body(json!({ "filter": "info,fanlog=debug" }))
            .object("success:boolean filter:string"),
    ]
}
