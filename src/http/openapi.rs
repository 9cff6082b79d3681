pub(super) async fn serve() -> axum::response::Response { super::json::ok(&serde_json::json!({})) }
