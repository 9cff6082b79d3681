//! Dead letters: listed, replayed, deleted; by their own id, or by the message that they were.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

use crate::engine::Engine;
use crate::model::{self, DeadLetter, DeadLetterQuery, ErrorCode, Now, PushReply, PushResult};
use crate::record::{PartitionId, derived_id};

use super::error::{ApiError, Result};
use super::json::{Payload, Visible};
use super::params::{Names, Params};
use super::push::{ENCRYPTED, PRODUCER};
use super::{Gateway, group_option, ids, json, time};

const LIMIT_DEFAULT: u64 = 100;
const LIMIT_MAX: u64 = 1_000;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    id: String,
    transaction_id: &'a str,
    partition_id: String,
    partition: &'a str,
    queue: &'a str,
    consumer_group: &'a str,
    data: Payload<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_encoding: Option<&'static str>,
    attributes: Visible<'a>,
    producer_sub: Option<&'a str>,
    error_message: &'a str,
    retry_count: u32,
    offset: u64,
    created_at: String,
    failed_at: String,
}

#[derive(Serialize)]
struct Listing<'a> {
    messages: Vec<Row<'a>>,
    total: usize,
    pagination: Value,
}

/// `GET /api/v1/dlq`: newest first; `total` counts the page, as Queen's does, `pagination.available` all of them.
pub(super) async fn list(State(gateway): State<Arc<Gateway>>, params: Params) -> Result<Response> {
    let limit = params.number_in("limit", LIMIT_DEFAULT, 1..=LIMIT_MAX)?;
    let skip = params.number_in("offset", 0, 0..=u64::from(u32::MAX))?;
    let query = DeadLetterQuery {
        queue: params.owned("queue"),
        group: params.text("consumerGroup").map(|name| group_option(Some(name)).unwrap_or(model::PRIMARY_GROUP.to_owned())),
        limit: u32::try_from(limit).unwrap_or(u32::MAX),
        skip: u32::try_from(skip).unwrap_or(u32::MAX),
    };
    let shared = gateway.clone();
    gateway
        .blocking(move || {
            let (letters, available) = match shared.engine.dead_letters(&query) {
                Ok(found) => found,
                // A filter that matches nothing is an empty list.
                Err(error) if error.code == ErrorCode::UnknownQueue => (Vec::new(), 0),
                Err(error) => return Err(error.into()),
            };
            let mut opened = Vec::new();
            for letter in &letters {
                let incarnation = shared.engine.settings(&letter.queue).map_or(0, |(incarnation, _)| incarnation);
                opened.push((letter, incarnation, plain(&shared, letter)?));
            }
            let messages: Vec<_> =
                opened.iter().map(|(letter, incarnation, payload)| row(letter, *incarnation, payload)).collect();
            let pagination = json!({ "limit": limit, "offset": skip, "available": available });
            Ok(json::ok(&Listing { total: messages.len(), messages, pagination }))
        })
        .await
}

fn plain(gateway: &Gateway, letter: &DeadLetter) -> Result<Bytes> {
    match letter.attributes.get(ENCRYPTED) {
        Some(_) => gateway.cipher.open(&letter.payload),
        None => Ok(letter.payload.clone()),
    }
}

fn row<'a>(letter: &'a DeadLetter, incarnation: u64, payload: &'a Bytes) -> Row<'a> {
    let data = Payload::of(payload);
    let producer = match letter.attributes.get(PRODUCER) {
        Some(crate::record::ValueRef::String(text)) => Some(text),
        _ => None,
    };
    Row {
        id: ids::dead_letter_id(incarnation, letter.id),
        transaction_id: &letter.transaction_id,
        partition_id: ids::partition_id(incarnation, letter.partition_id),
        partition: &letter.partition,
        queue: &letter.queue,
        consumer_group: &letter.group,
        data_encoding: data.encoding(),
        data,
        attributes: Visible(&letter.attributes),
        producer_sub: producer,
        error_message: &letter.reason,
        retry_count: letter.delivery_count,
        offset: letter.offset,
        created_at: time::iso(letter.created_at_us),
        failed_at: time::iso(letter.failed_at_us),
    }
}

/// The newest dead letter that was the message.
pub(super) fn find(engine: &Engine, queue: &str, partition: PartitionId, transaction_id: &str) -> Result<Option<DeadLetter>> {
    let found = engine.dead_letter_of_id(queue, partition, transaction_id)?;
    if found.is_some() {
        return Ok(found);
    }
    // Retention may have taken the message, and the letter is all that knows its id; or an earlier message had the same one.
    const PAGE: u32 = 1_000;
    let mut skip = 0u32;
    loop {
        let query = DeadLetterQuery { queue: Some(queue.to_owned()), group: None, limit: PAGE, skip };
        let (page, _) = engine.dead_letters(&query)?;
        let count = u32::try_from(page.len()).unwrap_or(u32::MAX);
        let found = page.into_iter().find(|letter| letter.partition_id == partition && letter.transaction_id == transaction_id);
        match (found, skip.checked_add(PAGE)) {
            (Some(letter), _) => return Ok(Some(letter)),
            (None, Some(next)) if count == PAGE => skip = next,
            _ => return Ok(None),
        }
    }
}

fn missing(transaction_id: &str) -> ApiError {
    ApiError::not_found("unknown_dead_letter", format!("no dead letter was the message {transaction_id}"))
}

/// Finds the dead letter of a message and does something with it.
async fn with_message<T: Send + 'static>(
    gateway: &Arc<Gateway>,
    (partition_id, transaction_id): (String, String),
    act: impl FnOnce(&Engine, &DeadLetter) -> Result<T> + Send + 'static,
) -> Result<T> {
    let shared = gateway.clone();
    gateway
        .blocking(move || {
            let (queue, partition) = shared.place(&partition_id).ok_or_else(|| missing(&transaction_id))?;
            let letter = find(&shared.engine, &queue, partition, &transaction_id)?;
            act(&shared.engine, &letter.ok_or_else(|| missing(&transaction_id))?)
        })
        .await
}

/// `DELETE /api/v1/messages/{partition_id}/{transaction_id}`: deletes the dead letter that was the message.
pub(super) async fn delete_message(
    State(gateway): State<Arc<Gateway>>,
    Names(names): Names<(String, String)>,
) -> Result<Response> {
    let (partition_id, transaction_id) = names.clone();
    with_message(&gateway, names, |engine, letter| Ok(engine.delete_dead_letter(&letter.queue, letter.id, Now::read())?)).await?;
    Ok(json::ok(&json!({ "success": true, "partitionId": partition_id, "transactionId": transaction_id, "deleted": true })))
}

/// `POST /api/v1/messages/{partition_id}/{transaction_id}/retry`: replays the dead letter that was the message.
pub(super) async fn retry_message(
    State(gateway): State<Arc<Gateway>>,
    Names(names): Names<(String, String)>,
) -> Result<Response> {
    let (partition_id, transaction_id) = names.clone();
    let mut answer = with_message(&gateway, names, |engine, letter| {
        let reply = engine.replay_dead_letter(&letter.queue, letter.id, Now::read())?;
        Ok(replayed(engine, &letter.queue, &reply))
    })
    .await?;
    answer["partitionId"] = partition_id.into();
    answer["transactionId"] = transaction_id.into();
    Ok(json::ok(&answer))
}

/// What a replay made.
fn replayed(engine: &Engine, queue: &str, reply: &PushReply) -> Value {
    let incarnation = engine.settings(queue).map_or(0, |(incarnation, _)| incarnation);
    let (offset, is_duplicate) = match reply.results.get(0) {
        Some(PushResult::Stored(offset)) => (Some(offset), false),
        Some(PushResult::Duplicate(offset)) => (Some(offset), true),
        _ => (None, false),
    };
    json!({
        "success": true, "queue": queue, "offset": offset, "duplicate": is_duplicate,
        "messageId": offset.map(|offset| derived_id(incarnation, reply.partition_id, offset)),
    })
}

/// `POST /api/v1/dlq/{id}/replay`
pub(super) async fn replay(State(gateway): State<Arc<Gateway>>, Names(id): Names<String>) -> Result<Response> {
    let (queue, number) = place(&gateway, &id)?;
    let answer = gateway
        .call(move |engine| {
            let reply = engine.replay_dead_letter(&queue, number, Now::read())?;
            Ok(replayed(engine, &queue, &reply))
        })
        .await?;
    Ok(json::ok(&answer))
}

/// `DELETE /api/v1/dlq/{id}`
pub(super) async fn delete(State(gateway): State<Arc<Gateway>>, Names(id): Names<String>) -> Result<Response> {
    let (queue, number) = place(&gateway, &id)?;
    let existed = gateway.call(move |engine| engine.delete_dead_letter(&queue, number, Now::read())).await?;
    if !existed {
        return Err(unknown(&id));
    }
    Ok(json::ok(&json!({ "success": true, "id": id, "deleted": true })))
}

fn place(gateway: &Gateway, id: &str) -> Result<(String, u64)> {
    let (incarnation, number) = ids::parse_dead_letter_id(id).ok_or_else(|| unknown(id))?;
    let queue = gateway.engine.queue_of_incarnation(incarnation).ok_or_else(|| unknown(id))?;
    Ok((queue, number))
}

fn unknown(id: &str) -> ApiError {
    ApiError::not_found("unknown_dead_letter", format!("no dead letter has the id {id}"))
}
