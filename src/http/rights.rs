//! What each route needs.

use axum::http::Method;

use crate::access::Right;

/// What a request to this route needs; `None` if the route has no such method.
///
/// A transaction needs more if it does more than push; its handler asks for that.
pub(super) fn right_of(method: &Method, route: &str) -> Option<Right> {
    let (scope, path) = match route.strip_prefix("/api/v1") {
        Some(path) => ("api", path),
        None => ("server", route),
    };
    let method = if method == Method::HEAD { "GET" } else { method.as_str() };
    match (scope, method, path) {
        ("server", "GET", path) => match path {
            "/health" | "/healthz" | "/readyz" | "/version" | "/openapi.json" => Some(Right::Any),
            "/metrics" | "/metrics/prometheus" => Some(Right::Read),
            _ => None,
        },
        ("api", "GET", path) => match path {
            "/pop" | "/pop/queue/{queue}" | "/pop/queue/{queue}/partition/{partition}" => Some(Right::Work),
            "/messages"
            | "/messages/{partition_id}/{transaction_id}"
            | "/dlq"
            | "/traces/names"
            | "/traces/by-name/{name}"
            | "/traces/{partition_id}/{transaction_id}"
            | "/resources/queues"
            | "/resources/queues/{queue}"
            | "/resources/queues/{queue}/depth"
            | "/resources/namespaces"
            | "/resources/tasks"
            | "/resources/overview"
            | "/resources/partitions"
            | "/queues/{queue}/partitions"
            | "/queues/{queue}/partitions/{partition}/messages"
            | "/queues/{queue}/groups"
            | "/queues/{queue}/groups/{group}"
            | "/consumer-groups"
            | "/consumer-groups/lagging"
            | "/consumer-groups/{group}"
            | "/status"
            | "/status/queues"
            | "/status/queues/{queue}"
            | "/status/analytics"
            | "/analytics/system-metrics"
            | "/analytics/worker-metrics"
            | "/analytics/queue-lag"
            | "/analytics/queue-ops"
            | "/analytics/queue-parked-replicas"
            | "/analytics/retention"
            | "/analytics/postgres-stats"
            | "/system/maintenance"
            | "/system/maintenance/pop" => Some(Right::Read),
            _ => None,
        },
        ("api", "POST", path) => match path {
            "/push" | "/transaction" => Some(Right::Push),
            "/filters/test" => Some(Right::Read),
            "/ack"
            | "/ack/batch"
            | "/lease/{lease}/extend"
            | "/lease/{lease}/release"
            | "/messages/{partition_id}/{transaction_id}/retry"
            | "/dlq/{id}/replay"
            | "/traces"
            | "/configure"
            | "/consumer-groups/{group}/subscription"
            | "/consumer-groups/{group}/queues/{queue}/seek"
            | "/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek"
            | "/queues/{queue}/groups"
            | "/queues/{queue}/groups/{group}/enable"
            | "/queues/{queue}/groups/{group}/disable"
            | "/queues/{queue}/groups/{group}/pause"
            | "/queues/{queue}/groups/{group}/resume"
            | "/stats/refresh" => Some(Right::Work),
            "/system/maintenance" | "/system/maintenance/pop" => Some(Right::Server),
            _ => None,
        },
        ("api", "DELETE", path) => match path {
            "/messages/{partition_id}/{transaction_id}" | "/dlq/{id}" => Some(Right::Work),
            "/resources/queues/{queue}"
            | "/consumer-groups/{group}"
            | "/consumer-groups/{group}/queues/{queue}"
            | "/queues/{queue}/groups/{group}" => Some(Right::Delete),
            _ => None,
        },
        ("api", "PATCH", "/queues/{queue}/groups/{group}") => Some(Right::Work),
        ("api", "PUT", "/system/log-filter") => Some(Right::Server),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi;

    /// The document is checked against a running server elsewhere, so this table knows every route too.
    #[test]
    fn every_documented_operation_has_a_right() {
        let document = openapi::document();
        let mut count = 0;
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys() {
                let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
                assert!(right_of(&method, path).is_some(), "{method} {path} has no right");
                count += 1;
            }
        }
        assert!(count > 70, "{count} operations");
    }

    #[test]
    fn what_is_not_in_the_table_has_no_right() {
        for (method, route) in [("GET", "/api/v1/push"), ("POST", "/health"), ("PATCH", "/api/v1/queues"), ("GET", "/api/v1")] {
            assert_eq!(right_of(&Method::from_bytes(method.as_bytes()).unwrap(), route), None);
        }
        assert_eq!(right_of(&Method::HEAD, "/api/v1/pop"), Some(Right::Work));
    }
}
