//! Traces: remarks of clients on the way of a message, read by message or by name.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::model::{Now, TraceEvent};

use super::body::Raw;
use super::error::{ApiError, Result};
use super::json::Payload;
use super::params::{Names, Params};
use super::{Gateway, ids, json, time};

const LIMIT_DEFAULT: u64 = 100;
const LIMIT_MAX: u64 = 1_000;

/// Events of a name that its summary counts messages in.
const SUMMARY_MAX: usize = 1_000;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record<'a> {
    transaction_id: String,
    partition_id: String,
    consumer_group: Option<String>,
    trace_names: Option<Vec<String>>,
    event_type: Option<String>,
    worker_id: Option<String>,
    #[serde(borrow)]
    data: &'a RawValue,
}

#[derive(Serialize)]
struct Row<'a> {
    queue: &'a str,
    partition_id: String,
    transaction_id: &'a str,
    consumer_group: &'a str,
    event_type: &'a str,
    worker_id: &'a str,
    trace_names: &'a [String],
    data: Payload<'a>,
    created_at: String,
}

#[derive(Serialize)]
struct Listing<'a> {
    traces: Vec<Row<'a>>,
    total: usize,
    pagination: Value,
}

/// `POST /api/v1/traces`
pub(super) async fn record(State(gateway): State<Arc<Gateway>>, body: Raw) -> Result<Response> {
    let record: Record<'_> = json::parse(&body.bytes)?;
    let Some((queue, partition_id)) = gateway.place(&record.partition_id) else {
        return Err(ApiError::not_found("unknown_partition", format!("no partition has the id {}", record.partition_id)));
    };
    let event = TraceEvent {
        partition_id,
        transaction_id: record.transaction_id,
        group: record.consumer_group.unwrap_or_else(|| crate::model::PRIMARY_GROUP.to_owned()),
        names: record.trace_names.unwrap_or_default(),
        event_type: record.event_type.unwrap_or_else(|| "info".to_owned()),
        data: Bytes::copy_from_slice(record.data.get().as_bytes()),
        worker_id: record.worker_id.unwrap_or_default(),
        created_at_us: 0,
    };
    let id = gateway.call(move |engine| engine.trace(&queue, event, Now::read())).await?;
    Ok(json::answer(StatusCode::CREATED, &json!({ "success": true, "traceId": id.to_string() })))
}

/// `GET /api/v1/traces/names`
pub(super) async fn names(State(gateway): State<Arc<Gateway>>, params: Params) -> Result<Response> {
    let (limit, skip) = page(&params)?;
    let (rows, available) = gateway
        .call(move |engine| {
            let names = engine.trace_names();
            let rows: Vec<_> = names
                .iter()
                .skip(skip)
                .take(limit)
                .map(|(name, count)| {
                    let events = engine.traces_by_name(name, SUMMARY_MAX);
                    let messages: HashSet<_> = events
                        .iter()
                        .map(|(queue, event)| (queue, event.partition_id, &event.transaction_id))
                        .collect();
                    let last = events.iter().map(|(_, event)| event.created_at_us).max();
                    json!({
                        "trace_name": name, "trace_count": count, "message_count": messages.len(), "last_seen": time::iso_option(last),
                    })
                })
                .collect();
            Ok((rows, names.len()))
        })
        .await?;
    let pagination = json!({ "limit": limit, "offset": skip, "available": available });
    Ok(json::ok(&json!({ "total": rows.len(), "trace_names": rows, "pagination": pagination })))
}

/// `GET /api/v1/traces/by-name/{name}`: over all queues, newest first.
pub(super) async fn by_name(State(gateway): State<Arc<Gateway>>, Names(name): Names<String>, params: Params) -> Result<Response> {
    let (limit, skip) = page(&params)?;
    let events = gateway.call(move |engine| Ok(engine.traces_by_name(&name, skip.saturating_add(limit)))).await?;
    let events: Vec<_> = events.into_iter().skip(skip).collect();
    Ok(listing(&gateway, &events, json!({ "limit": limit, "offset": skip })))
}

/// `GET /api/v1/traces/{partition_id}/{transaction_id}`
pub(super) async fn of_message(
    State(gateway): State<Arc<Gateway>>,
    Names((partition_id, transaction_id)): Names<(String, String)>,
) -> Result<Response> {
    let events = match gateway.place(&partition_id) {
        None => Vec::new(),
        Some((queue, partition)) => {
            gateway
                .call(move |engine| {
                    let events = engine.traces_of_message(&queue, partition, &transaction_id)?;
                    Ok(events.into_iter().map(|event| (queue.clone(), event)).collect())
                })
                .await?
        }
    };
    Ok(listing(&gateway, &events, json!({ "limit": events.len(), "offset": 0 })))
}

fn page(params: &Params) -> Result<(usize, usize)> {
    let whole = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    Ok((whole(params.number_in("limit", LIMIT_DEFAULT, 1..=LIMIT_MAX)?), whole(params.number_in("offset", 0, 0..=1_000_000)?)))
}

fn listing(gateway: &Gateway, events: &[(String, TraceEvent)], pagination: Value) -> Response {
    let traces: Vec<_> = events
        .iter()
        .map(|(queue, event)| Row {
            queue,
            partition_id: gateway
                .engine
                .settings(queue)
                .map_or_else(|_| String::new(), |(incarnation, _)| ids::partition_id(incarnation, event.partition_id)),
            transaction_id: &event.transaction_id,
            consumer_group: &event.group,
            event_type: &event.event_type,
            worker_id: &event.worker_id,
            trace_names: &event.names,
            data: Payload::of(&event.data),
            created_at: time::iso(event.created_at_us),
        })
        .collect();
    json::ok(&Listing { total: traces.len(), traces, pagination })
}
