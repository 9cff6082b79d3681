//! Request bodies: bounded in size, in time, and in what all of them hold together.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt;

use super::Gateway;
use super::budget::Share;
use super::error::{ApiError, Result};

/// A body that sends nothing for so long is given up.
const STALL: Duration = Duration::from_secs(30);

/// A whole request body; its share of the budget is held as long as it lives.
#[derive(Debug, Clone)]
pub(super) struct Raw {
    pub(super) bytes: Bytes,
    _share: Arc<Share>,
}

impl<S: Send + Sync> FromRequestParts<S> for Raw {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        parts.extensions.remove::<Self>().ok_or_else(|| ApiError::internal("the body was not read"))
    }
}

/// Reads the body of every request that has a route, wanted or not: one that stays unread would cost the connection.
pub(super) async fn read(State(gateway): State<Arc<Gateway>>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    match Raw::read(&gateway, body).await {
        Ok(raw) => {
            parts.extensions.insert(raw);
            next.run(Request::from_parts(parts, Body::empty())).await
        }
        Err(error) => error.into_response(),
    }
}

impl Raw {
    async fn read(gateway: &Gateway, mut body: Body) -> Result<Self> {
        let bytes_max = gateway.options.body_bytes_max;
        let mut share = gateway.body_budget.share();
        let too_large = || {
            let text = format!("the body is over the limit of {bytes_max} bytes");
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", text)
        };
        if body.size_hint().lower() > bytes_max as u64 {
            return Err(too_large());
        }
        let mut whole = Bytes::new();
        let mut joined = BytesMut::new();
        loop {
            let frame = match tokio::time::timeout(STALL, body.frame()).await {
                Err(_) => return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the body stopped arriving")),
                Ok(None) => break,
                Ok(Some(Err(error))) => return Err(ApiError::bad_request(format!("body does not arrive: {error}"))),
                Ok(Some(Ok(frame))) => frame,
            };
            let Ok(data) = frame.into_data() else { continue };
            // Checked again against what came: a chunked body announces nothing.
            if whole.len() + joined.len() + data.len() > bytes_max {
                return Err(too_large());
            }
            if !share.grow(data.len()) {
                let text = "request bodies hold too much memory; try again";
                return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "busy", text));
            }
            if whole.is_empty() && joined.is_empty() {
                whole = data;
            } else {
                joined.extend_from_slice(&std::mem::take(&mut whole));
                joined.extend_from_slice(&data);
            }
        }
        let bytes = if joined.is_empty() { whole } else { joined.freeze() };
        Ok(Self { bytes, _share: Arc::new(share) })
    }
}
