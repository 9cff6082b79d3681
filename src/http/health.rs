//! Whether the server lives, is ready, and what it is.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use crate::engine::Engine;

use super::auth::Caller;
use super::error::Result;
use super::{Gateway, json};

pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// `GET /health`, as Queen's clients ask for it: 503 while the server stops.
pub(super) async fn health(State(gateway): State<Arc<Gateway>>) -> Response {
    let is_up = !gateway.is_draining();
    let body = json!({
        "status": if is_up { "healthy" } else { "stopping" }, "database": if is_up { "connected" } else { "closing" },
        "engine": "fanlog", "version": VERSION, "uptimeSeconds": gateway.started.elapsed().as_secs(),
    });
    json::answer(if is_up { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, &body)
}

/// `GET /healthz`: the process answers.
pub(super) async fn live() -> Response {
    json::ok(&json!({ "status": "alive" }))
}

/// `GET /readyz`: recovered, disk fine, writing, not stopping. 503 with the reasons if it is not. Who is bound to some queues learns
/// of those and no others.
pub(super) async fn ready(State(gateway): State<Arc<Gateway>>, caller: Caller) -> Result<Response> {
    let (is_draining, min) = (gateway.is_draining(), gateway.options.disk_free_bytes_min);
    let (free, poisoned) = gateway.call(|engine| Ok(disk(engine))).await?;
    let reasons = reasons(is_draining, free, min, &poisoned);
    let status = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({
        "ready": reasons.is_empty(), "reasons": reasons, "diskFreeBytes": free,
        "recovery": recovery_json(&gateway, caller.is_bound()),
    });
    Ok(json::answer(status, &body))
}

/// Free bytes, and the queues that take no writes any more.
fn disk(engine: &Engine) -> (u64, Vec<String>) {
    let stats = engine.stats();
    // Only looked for if there is one.
    let poisoned = match stats.total.is_poisoned {
        true => engine.queues().into_iter().filter(|queue| queue.stats.is_poisoned).map(|queue| queue.name).collect(),
        false => Vec::new(),
    };
    (stats.disk_free_bytes, poisoned)
}

fn reasons(is_draining: bool, free: u64, min: u64, poisoned: &[String]) -> Vec<String> {
    let mut reasons = Vec::new();
    if is_draining {
        reasons.push("the server is stopping".to_owned());
    }
    if free < min {
        reasons.push(format!("the disk has {free} free bytes, less than {min}"));
    }
    reasons.extend(poisoned.iter().map(|queue| format!("queue {queue} takes no writes after a failed sync")));
    reasons
}

fn recovery_json(gateway: &Gateway, is_bound: bool) -> Value {
    let report = &*gateway.options.recovery;
    let is_shown = |queue: Option<&String>| queue.map_or(!is_bound, |queue| gateway.engine.is_in_scope(queue));
    let findings: Vec<_> = report
        .findings
        .iter()
        .filter(|finding| is_shown(finding.queue.as_ref()))
        .map(|finding| json!({ "isLoss": finding.is_loss, "queue": finding.queue, "text": finding.text }))
        .collect();
    if is_bound {
        return json!({ "wasClean": report.was_clean, "findings": findings });
    }
    json!({
        "wasClean": report.was_clean, "queues": report.queues, "partitions": report.partitions, "messages": report.messages,
        "recordsReplayed": report.records_replayed, "findings": findings,
    })
}

/// `GET /version`
pub(super) async fn version() -> Response {
    json::ok(&json!({ "name": "fanlog", "version": VERSION }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_alone_makes_the_server_unready() {
        assert!(reasons(false, 10, 10, &[]).is_empty());
        assert_eq!(reasons(true, 10, 10, &[]).len(), 1);
        assert_eq!(reasons(false, 9, 10, &[]).len(), 1);
        assert_eq!(reasons(false, 10, 10, &["q".to_owned()]), ["queue q takes no writes after a failed sync"]);
    }
}
