//! Extending and giving back leases.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;

use crate::model::Now;

use super::body::Raw;
use super::error::Result;
use super::params::Names;
use super::{Gateway, json, time};

const SECONDS_DEFAULT: i64 = 60;
const SECONDS_MAX: u64 = 7 * 24 * 3600;

#[derive(Deserialize, Default)]
struct Extension {
    seconds: Option<i64>,
}

/// `POST /api/v1/lease/{lease}/extend`: 200 also for a lease that is lost.
pub(super) async fn extend(State(gateway): State<Arc<Gateway>>, Names(lease): Names<String>, body: Raw) -> Result<Response> {
    let extension: Extension = json::parse_or_default(&body.bytes)?;
    let seconds = u64::try_from(extension.seconds.unwrap_or(SECONDS_DEFAULT)).unwrap_or(0).clamp(1, SECONDS_MAX);
    let id = lease.clone();
    let reply = gateway.call(move |engine| Ok(engine.extend(&id, seconds * 1_000, Now::read()))).await?;
    // A lease that never was and one that is over are the same to a client.
    let (renewed, expires_at) = match reply {
        Ok(reply) if reply.renewed > 0 => (reply.renewed, Some(time::iso(reply.expires_at_us))),
        _ => (0, None),
    };
    Ok(json::ok(&json!({
        "leaseId": lease, "success": renewed > 0, "renewed": renewed,
        "newExpiresAt": expires_at, "expiresAt": expires_at, "lease_expires_at": expires_at,
    })))
}

/// `POST /api/v1/lease/{lease}/release`: gives everything of the lease back, uncharged.
pub(super) async fn release(State(gateway): State<Arc<Gateway>>, Names(lease): Names<String>) -> Result<Response> {
    let id = lease.clone();
    let released = gateway.call(move |engine| Ok(engine.release(&id, Now::read()).unwrap_or(0))).await?;
    Ok(json::ok(&json!({ "leaseId": lease, "success": released > 0, "released": released })))
}
