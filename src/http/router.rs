//! The routes.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use serde_json::json;

use super::error::ApiError;
use super::{
    Gateway, ack, analytics, answers, auth, body, cursors, dead_letters, fetch, filters, groups, health, json, lease, messages,
    metrics, openapi, pop, push, queues, resources, status, system, traces, transaction,
};

/// All routes with their state.
pub(super) fn router(gateway: Arc<Gateway>) -> Router {
    let routes = message_routes().merge(queue_routes()).merge(group_routes()).merge(status_routes());
    Router::new()
        .merge(server_routes())
        .nest("/api/v1", routes.route_layer(from_fn_with_state(gateway.clone(), answers::hold)))
        .route_layer(from_fn_with_state(gateway.clone(), body::read))
        .fallback(no_such_route)
        .method_not_allowed_fallback(no_such_method)
        .layer(from_fn_with_state(gateway.clone(), auth::authorize))
        .layer(from_fn_with_state(gateway.clone(), observe))
        .with_state(gateway)
}

fn server_routes() -> Router<Arc<Gateway>> {
    Router::new()
        .route("/health", get(health::health))
        .route("/healthz", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/version", get(health::version))
        .route("/metrics", get(system::metrics))
        .route("/metrics/prometheus", get(metrics::prometheus))
        .route("/openapi.json", get(openapi::serve))
}

fn message_routes() -> Router<Arc<Gateway>> {
    Router::new()
        .route("/push", post(push::push))
        .route("/pop", get(pop::discover))
        .route("/pop/queue/{queue}", get(pop::queue))
        .route("/pop/queue/{queue}/partition/{partition}", get(pop::partition))
        .route("/ack", post(ack::one))
        .route("/ack/batch", post(ack::batch))
        .route("/lease/{lease}/extend", post(lease::extend))
        .route("/lease/{lease}/release", post(lease::release))
        .route("/transaction", post(transaction::transact))
        .route("/messages", get(messages::list))
        .route("/messages/{partition_id}/{transaction_id}", get(messages::detail).delete(dead_letters::delete_message))
        .route("/messages/{partition_id}/{transaction_id}/retry", post(dead_letters::retry_message))
        .route("/dlq", get(dead_letters::list))
        .route("/dlq/{id}", delete(dead_letters::delete))
        .route("/dlq/{id}/replay", post(dead_letters::replay))
        .route("/traces", post(traces::record))
        .route("/traces/names", get(traces::names))
        .route("/traces/by-name/{name}", get(traces::by_name))
        .route("/traces/{partition_id}/{transaction_id}", get(traces::of_message))
}

fn queue_routes() -> Router<Arc<Gateway>> {
    Router::new()
        .route("/configure", post(queues::configure))
        .route("/resources/queues", get(resources::queues))
        .route("/resources/queues/{queue}", get(resources::queue).delete(queues::delete))
        .route("/resources/queues/{queue}/depth", get(resources::depth))
        .route("/resources/namespaces", get(resources::namespaces))
        .route("/resources/tasks", get(resources::tasks))
        .route("/resources/overview", get(resources::overview))
        .route("/resources/partitions", get(resources::partitions))
        .route("/queues/{queue}/partitions", get(fetch::partitions))
        .route("/queues/{queue}/partitions/{partition}/messages", get(fetch::messages))
}

fn group_routes() -> Router<Arc<Gateway>> {
    Router::new()
        .route("/consumer-groups", get(cursors::list))
        .route("/consumer-groups/lagging", get(cursors::lagging))
        .route("/consumer-groups/{group}", get(cursors::detail).delete(cursors::delete_everywhere))
        .route("/consumer-groups/{group}/subscription", post(cursors::subscription))
        .route("/consumer-groups/{group}/queues/{queue}", delete(cursors::delete_in_queue))
        .route("/consumer-groups/{group}/queues/{queue}/seek", post(cursors::seek_queue))
        .route("/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek", post(cursors::seek_partition))
        .route("/queues/{queue}/groups", get(groups::list).post(groups::create))
        .route("/queues/{queue}/groups/{group}", get(groups::get).patch(groups::update).delete(groups::delete))
        .route("/queues/{queue}/groups/{group}/enable", post(groups::enable))
        .route("/queues/{queue}/groups/{group}/disable", post(groups::disable))
        .route("/queues/{queue}/groups/{group}/pause", post(groups::pause))
        .route("/queues/{queue}/groups/{group}/resume", post(groups::resume))
        .route("/filters/test", post(filters::test))
}

fn status_routes() -> Router<Arc<Gateway>> {
    Router::new()
        .route("/status", get(status::status))
        .route("/status/queues", get(status::queues))
        .route("/status/queues/{queue}", get(status::queue))
        .route("/status/analytics", get(status::analytics))
        .route("/analytics/system-metrics", get(analytics::system))
        .route("/analytics/worker-metrics", get(analytics::workers))
        .route("/analytics/queue-lag", get(analytics::queue_lag))
        .route("/analytics/queue-ops", get(analytics::queue_operations))
        .route("/analytics/queue-parked-replicas", get(analytics::parked))
        .route("/analytics/retention", get(analytics::retention))
        .route("/analytics/postgres-stats", get(analytics::database))
        .route("/stats/refresh", post(analytics::refresh))
        .route("/system/maintenance", get(system::maintenance).post(system::set_maintenance))
        .route("/system/maintenance/pop", get(system::maintenance).post(system::set_maintenance))
        .route("/system/log-filter", axum::routing::put(system::set_log_filter))
}

/// Queen's answer for what it does not know, on every path.
async fn no_such_route() -> Response {
    json::answer(StatusCode::NOT_FOUND, &json!({ "error": "Not Found", "code": "no_such_route" }))
}

async fn no_such_method(method: Method, uri: Uri) -> ApiError {
    let text = format!("{method} is not a method of {}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", text)
}

/// Counts each request under its route's template, never under its path.
async fn observe(State(gateway): State<Arc<Gateway>>, path: Option<MatchedPath>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = request.method().clone();
    let response = next.run(request).await.into_response();
    let route = path.as_ref().map_or("none", MatchedPath::as_str);
    gateway.metrics.request(&method, route, response.status(), started.elapsed());
    tracing::debug!(%method, route, status = response.status().as_u16(), elapsed = ?started.elapsed(), "request");
    response
}
