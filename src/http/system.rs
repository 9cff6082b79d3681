//! Server-wide routes: metrics as JSON, the maintenance switches that this server does not need, the log filter.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;

use super::body::Raw;
use super::error::{ApiError, Result};
use super::{Gateway, health, json, process};

/// `GET /metrics`: Queen's shape.
pub(super) async fn metrics(State(gateway): State<Arc<Gateway>>) -> Result<Response> {
    let uptime = gateway.started.elapsed().as_secs_f64();
    let (requests, errors, connections) = (gateway.metrics.requests(), gateway.metrics.errors(), gateway.metrics.connections());
    let stats = gateway.call(|engine| Ok(engine.stats())).await?;
    let cpu_us = process::cpu_us();
    let rates = gateway.series.last_minute();
    Ok(json::ok(&json!({
        "uptime": uptime, "version": health::VERSION,
        "requests": { "total": requests, "errors": errors, "rate": requests as f64 / uptime.max(1.0) },
        "messages": {
            "total": stats.total.messages_pushed, "stored": stats.total.messages, "popped": stats.total.messages_popped,
            "acked": stats.total.messages_acked, "dropped": stats.total.messages_dropped,
            "deadLetter": stats.total.dead_letters, "rate": rates.pushed,
        },
        "memory": { "rss": process::memory_bytes(), "pendingBytes": stats.pending_bytes, "bodyBytes": gateway.body_budget.held() },
        "cpu": { "user": cpu_us, "system": 0, "seconds": cpu_us as f64 / 1e6 },
        "disk": { "logBytes": stats.total.log_bytes, "freeBytes": stats.disk_free_bytes },
        "connections": connections, "waitingPops": stats.waiting_pops, "queues": stats.queues,
    })))
}

/// `GET /api/v1/system/maintenance`: there is no such mode; nothing is ever buffered aside.
pub(super) async fn maintenance() -> Response {
    json::ok(&json!({
        "maintenanceMode": false, "popMaintenanceMode": false, "bufferedMessages": 0, "bufferHealthy": true,
    }))
}

#[derive(Deserialize)]
struct Switch {
    enabled: bool,
}

/// `POST /api/v1/system/maintenance`: switching off what is off is fine, switching on is refused.
pub(super) async fn set_maintenance(body: Raw) -> Result<Response> {
    let switch: Switch = json::parse(&body.bytes)?;
    if switch.enabled {
        let text = "this server has no maintenance mode: pause or disable groups, or stop the server";
        return Err(ApiError::new(StatusCode::CONFLICT, "unsupported", text));
    }
    Ok(maintenance().await)
}

#[derive(Deserialize)]
struct LogFilter {
    filter: String,
}

/// `PUT /api/v1/system/log-filter`: what is logged from now on, in the syntax of `RUST_LOG`.
pub(super) async fn set_log_filter(State(gateway): State<Arc<Gateway>>, body: Raw) -> Result<Response> {
    let wanted: LogFilter = json::parse(&body.bytes)?;
    let Some(set) = &gateway.options.set_log_filter else {
        return Err(ApiError::new(StatusCode::CONFLICT, "unsupported", "the log filter of this server is fixed"));
    };
    set(&wanted.filter).map_err(ApiError::bad_request)?;
    tracing::info!(filter = wanted.filter, "the log filter was changed");
    Ok(json::ok(&json!({ "success": true, "filter": wanted.filter })))
}
