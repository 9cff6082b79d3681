//! Queen's analytics routes, from the gateway's own series.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use crate::model::Now;

use super::error::Result;
use super::params::Params;
use super::series::{self, Point};
use super::status::{Window, throughput};
use super::{Gateway, cursors, health, json, time};

fn window(params: &Params) -> Result<Window> {
    Window::read(params, Now::read().wall_us)
}

/// The frame that all series share.
fn framed(window: Window, count: usize, mut body: Value) -> Response {
    body["timeRange"] = window.range_json();
    body["bucketMinutes"] = window.bucket_minutes().into();
    body["pointCount"] = count.into();
    json::ok(&body)
}

/// `GET /api/v1/analytics/system-metrics`
pub(super) async fn system(State(gateway): State<Arc<Gateway>>, params: Params) -> Result<Response> {
    let window = window(&params)?;
    let points: Vec<_> = window.points(&gateway).iter().map(system_point).collect();
    let replica = json!({ "hostname": "localhost", "version": health::VERSION, "timeSeries": points });
    Ok(framed(window, points.len(), json!({ "replicas": [replica] })))
}

fn system_point(point: &Point) -> Value {
    let last = &point.last;
    json!({
        "timestamp": time::iso(last.at_us), "cpuPercent": point.rate(point.cpu_us) / 1e4, "memoryBytes": last.memory_bytes,
        "diskFreeBytes": last.disk_free_bytes, "logBytes": last.stats.log_bytes, "pendingBytes": last.pending_bytes,
        "bytesWrittenPerSecond": point.rate(point.bytes_written), "commits": point.commits, "syncs": point.syncs,
        "syncMicroseconds": point.sync_time_us.checked_div(point.syncs).unwrap_or(0), "connections": last.connections,
        "waitingPops": last.waiting_pops,
    })
}

/// `GET /api/v1/analytics/worker-metrics`: the server is its only worker.
pub(super) async fn workers(State(gateway): State<Arc<Gateway>>, params: Params) -> Result<Response> {
    let window = window(&params)?;
    let points = window.points(&gateway);
    let sum = |count: fn(&Point) -> u64| points.iter().map(count).sum::<u64>();
    let summary = json!({
        "pushed": sum(|point| point.pushed), "popped": sum(|point| point.popped), "acked": sum(|point| point.acked),
        "dropped": sum(|point| point.dropped), "errors": sum(|point| point.errors),
        "uptimeSeconds": gateway.started.elapsed().as_secs(),
    });
    let queues: Vec<_> = queue_series(&gateway, window, throughput);
    let series: Vec<_> = points.iter().map(throughput).collect();
    let worker = json!({ "id": 0, "hostname": "localhost", "summary": summary });
    let body = json!({ "timeSeries": series, "workers": [worker], "queues": queues, "summary": summary });
    Ok(framed(window, points.len(), body))
}

fn queue_series(gateway: &Gateway, window: Window, row: impl Fn(&Point) -> Value) -> Vec<Value> {
    let queues = gateway.series.queues(window.from_us, window.to_us, window.bucket_us);
    queues
        .into_iter()
        .filter(|(name, _)| gateway.engine.is_in_scope(name))
        .map(|(name, points)| json!({ "queue": name, "timeSeries": points.iter().map(&row).collect::<Vec<_>>() }))
        .collect()
}

/// `GET /api/v1/analytics/queue-lag`
pub(super) async fn queue_lag(State(gateway): State<Arc<Gateway>>, params: Params) -> Result<Response> {
    let window = window(&params)?;
    let queues = queue_series(&gateway, window, |point| {
        json!({
            "timestamp": time::iso(point.last.at_us), "lag": point.last.lag, "lagSeconds": point.last.lag_time_us / 1_000_000,
        })
    });
    Ok(framed(window, queues.len(), json!({ "queues": queues })))
}

/// `GET /api/v1/analytics/queue-ops`
pub(super) async fn queue_operations(State(gateway): State<Arc<Gateway>>, params: Params) -> Result<Response> {
    let window = window(&params)?;
    let queues = queue_series(&gateway, window, throughput);
    Ok(framed(window, queues.len(), json!({ "queues": queues })))
}

/// `GET /api/v1/analytics/queue-parked-replicas`: pops that wait.
pub(super) async fn parked(State(gateway): State<Arc<Gateway>>, params: Params) -> Result<Response> {
    let window = window(&params)?;
    let points: Vec<_> = window
        .points(&gateway)
        .iter()
        .map(|point| json!({ "timestamp": time::iso(point.last.at_us), "parked": point.last.waiting_pops }))
        .collect();
    let now = gateway.call(|engine| Ok(engine.stats().waiting_pops)).await?;
    Ok(framed(window, points.len(), json!({ "parked": now, "timeSeries": points })))
}

/// `GET /api/v1/analytics/retention`
pub(super) async fn retention(State(gateway): State<Arc<Gateway>>, params: Params) -> Result<Response> {
    let window = window(&params)?;
    let points: Vec<_> = window
        .points(&gateway)
        .iter()
        .map(|point| {
            json!({
                "timestamp": time::iso(point.last.at_us), "lostUnread": point.lost_unread, "messages": point.last.stats.messages,
                "logBytes": point.last.stats.log_bytes, "segments": point.last.stats.segments,
            })
        })
        .collect();
    Ok(framed(window, points.len(), json!({ "timeSeries": points })))
}

/// `GET /api/v1/analytics/postgres-stats`: there is no database; the log's numbers stand in its place.
pub(super) async fn database(State(gateway): State<Arc<Gateway>>) -> Result<Response> {
    let stats = gateway.call(|engine| Ok(engine.stats())).await?;
    Ok(json::ok(&json!({
        "available": false, "storage": "log", "logBytes": stats.total.log_bytes, "segments": stats.total.segments,
        "commits": stats.total.commits, "syncs": stats.total.syncs, "diskFreeBytes": stats.disk_free_bytes,
    })))
}

/// `POST /api/v1/stats/refresh`: takes a sample now; everything else is counted when it is asked for.
pub(super) async fn refresh(State(gateway): State<Arc<Gateway>>) -> Result<Response> {
    series::take(&gateway).await;
    let groups = gateway.call(|engine| Ok(cursors::progress(engine).len())).await?;
    Ok(json::ok(&json!({ "success": true, "groups": groups, "timestamp": time::iso(Now::read().wall_us) })))
}
