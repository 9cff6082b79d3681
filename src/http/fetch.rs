//! Reading without a group: partitions of a queue, and messages by offset.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use serde_json::{Value, json};

use crate::engine::Engine;
use crate::model::{FetchReply, FetchRequest, StoredMessage};
use crate::record::{PartitionId, derived_id};

use super::error::Result;
use super::json::{Payload, Visible};
use super::params::{Names, Params};
use super::push::{PRODUCER, TRACE};
use super::{Gateway, ids, json, messages_out, time};

const LIMIT_DEFAULT: u64 = 100;
const LIMIT_MAX: u64 = 10_000;

/// Payload bytes of one answer, as stored.
const BYTES_MAX: u32 = 16 << 20;

/// A message that was read without a group.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    offset: u64,
    id: &'a str,
    transaction_id: &'a str,
    created_at: String,
    data: Payload<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_encoding: Option<&'static str>,
    attributes: Visible<'a>,
    trace_id: Option<&'a str>,
    producer_sub: Option<&'a str>,
    is_encrypted: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Page<'a> {
    queue: &'a str,
    partition: &'a str,
    partition_id: String,
    start: u64,
    end: u64,
    next: u64,
    messages: Vec<Row<'a>>,
}

/// Reads what a request asks for and nothing around it.
pub(super) fn read(engine: &Engine, request: &FetchRequest) -> Result<(FetchReply, Vec<StoredMessage>)> {
    let reply = engine.fetch(request, crate::model::Now::read())?;
    let mut messages = Vec::new();
    for batch in &reply.batches {
        let batch = messages_out::messages(batch)?;
        // A whole batch may begin before the range or end after it.
        let wanted = batch.iter().filter(|message| {
            message.offset >= request.from && message.offset < reply.next && request.to.is_none_or(|to| message.offset < to)
        });
        messages.extend(wanted.cloned());
    }
    Ok((reply, messages))
}

/// `GET /api/v1/queues/{queue}/partitions/{partition}/messages`: a range of offsets, without a lease or a cursor.
pub(super) async fn messages(
    State(gateway): State<Arc<Gateway>>,
    Names((queue, partition)): Names<(String, String)>,
    params: Params,
) -> Result<Response> {
    let from = params.number("from")?;
    let to = params.number("to")?;
    let limit = params.number_in("limit", LIMIT_DEFAULT, 1..=LIMIT_MAX)?;
    let shared = gateway.clone();
    gateway
        .blocking(move || {
            let from = match from {
                Some(from) => from,
                None => shared.engine.partition(&queue, &partition)?.start,
            };
            let messages_max = u32::try_from(limit).unwrap_or(u32::MAX);
            let request = FetchRequest { queue, partition, from, to, messages_max, bytes_max: BYTES_MAX };
            page(&shared, &request)
        })
        .await
}

fn page(gateway: &Gateway, request: &FetchRequest) -> Result<Response> {
    let (reply, messages) = read(&gateway.engine, request)?;
    let mut opened = Vec::with_capacity(messages.len());
    for message in &messages {
        let id = derived_id(reply.incarnation, reply.partition_id, message.offset);
        opened.push((message, id, messages_out::plain(message, &gateway.cipher)?));
    }
    let rows = opened.iter().map(|(message, id, (payload, is_encrypted))| {
        let data = Payload::of(payload);
        Row {
            offset: message.offset,
            id,
            transaction_id: message.transaction_id.as_deref().unwrap_or(id),
            created_at: time::iso(message.created_at_us),
            data_encoding: data.encoding(),
            data,
            attributes: Visible(&message.attributes),
            trace_id: messages_out::reserved(message, TRACE),
            producer_sub: messages_out::reserved(message, PRODUCER),
            is_encrypted: *is_encrypted,
        }
    });
    Ok(json::ok(&Page {
        queue: &request.queue,
        partition: &request.partition,
        partition_id: ids::partition_id(reply.incarnation, reply.partition_id),
        start: reply.start,
        end: reply.end,
        next: reply.next,
        messages: rows.collect(),
    }))
}

/// `GET /api/v1/queues/{queue}/partitions`: in order of their making, page by page.
pub(super) async fn partitions(
    State(gateway): State<Arc<Gateway>>,
    Names(queue): Names<String>,
    params: Params,
) -> Result<Response> {
    let from = PartitionId::try_from(params.number("from")?.unwrap_or(0)).unwrap_or(PartitionId::MAX);
    let limit = usize::try_from(params.number_in("limit", 1_000, 1..=LIMIT_MAX)?).unwrap_or(usize::MAX);
    let answer = gateway
        .call(move |engine| {
            let (incarnation, _) = engine.settings(&queue)?;
            let page = engine.partitions(&queue, from, limit)?;
            let next = page.last().filter(|_| page.len() == limit).and_then(|last| last.id.checked_add(1));
            let rows: Vec<Value> = page
                .iter()
                .map(|partition| {
                    json!({
                        "id": ids::partition_id(incarnation, partition.id), "number": partition.id, "name": partition.name,
                        "start": partition.start, "end": partition.end,
                        "newestAt": time::iso_option(Some(partition.newest_at_us).filter(|&at| at > 0)),
                    })
                })
                .collect();
            Ok(json!({ "queue": queue, "partitions": rows, "next": next }))
        })
        .await?;
    Ok(json::ok(&answer))
}
