//! Looking at stored messages: the listing, newest first, and one message with the progress of every group.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

use crate::engine::Engine;
use crate::model::{
    AckTarget, DeadLetter, ErrorCode, FetchRequest, MessageProgress, MessageView, Now, PRIMARY_GROUP, QueueInfo, StoredMessage,
};
use crate::record::derived_id;

use super::error::{ApiError, Result};
use super::json::{Payload, Visible};
use super::params::{Names, Params};
use super::push::{PRODUCER, TRACE};
use super::{Gateway, dead_letters, fetch, ids, json, messages_out, queues, time};

const LIMIT_DEFAULT: u64 = 200;
const LIMIT_MAX: u64 = 1_000;
const WINDOW_DEFAULT_US: u64 = 3_600 * 1_000_000;

/// Partitions and messages that one listing looks at; the newest ones.
const PARTITIONS_MAX: usize = 1_000;
const LOOKED_AT_MAX: usize = 10_000;

/// A message as the listing and the detail show it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    id: &'a str,
    transaction_id: &'a str,
    txn_hash: String,
    partition_id: String,
    queue_path: String,
    queue: &'a str,
    partition: &'a str,
    namespace: &'a str,
    task: &'a str,
    status: &'a str,
    queue_status: &'static str,
    bus_status: BusStatus,
    data: Payload<'a>,
    payload: Payload<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_encoding: Option<&'static str>,
    attributes: Visible<'a>,
    trace_id: Option<&'a str>,
    producer_sub: Option<&'a str>,
    created_at: String,
    lease_expires_at: Option<String>,
    is_encrypted: bool,
    offset: u64,
    /// Messages do not belong to a segment that a client could name.
    segment: Option<u64>,
    retry_count: u32,
    error_message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_config: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    consumer_groups: Option<Vec<GroupRow<'a>>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BusStatus {
    consumed_by: usize,
    total_groups: usize,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GroupRow<'a> {
    name: &'a str,
    consumed: bool,
    taken: bool,
    lease_expires_at: Option<String>,
}

#[derive(Serialize)]
struct Listing<'a> {
    messages: Vec<Row<'a>>,
    mode: Value,
    total: usize,
}

/// A message with everything that its row needs.
struct Found {
    view: MessageView,
    queue: Arc<QueueInfo>,
    id: String,
    payload: Bytes,
    is_encrypted: bool,
    letter: Option<DeadLetter>,
}

impl Found {
    fn new(gateway: &Gateway, queue: Arc<QueueInfo>, view: MessageView, letter: Option<DeadLetter>) -> Result<Self> {
        let id = derived_id(queue.incarnation, view.partition_id, view.message.offset);
        let (payload, is_encrypted) = messages_out::plain(&view.message, &gateway.cipher)?;
        Ok(Self { view, queue, id, payload, is_encrypted, letter })
    }

    fn row(&self, is_detail: bool) -> Row<'_> {
        let view = &self.view;
        let named: Vec<_> = view.groups.iter().filter(|group| group.name != PRIMARY_GROUP).collect();
        let primary = view.groups.iter().find(|group| group.name == PRIMARY_GROUP);
        let data = Payload::of(&self.payload);
        Row {
            id: &self.id,
            transaction_id: &view.transaction_id,
            txn_hash: format!("{:016x}", rapidhash::v3::rapidhash_v3(view.transaction_id.as_bytes())),
            partition_id: ids::partition_id(self.queue.incarnation, view.partition_id),
            queue_path: format!("{}/{}", view.queue, view.partition),
            queue: &view.queue,
            partition: &view.partition,
            namespace: &self.queue.settings.namespace,
            task: &self.queue.settings.task,
            status: view.status,
            queue_status: status_of(primary),
            bus_status: BusStatus {
                consumed_by: named.iter().filter(|group| group.is_consumed).count(),
                total_groups: named.len(),
            },
            payload: data.clone(),
            data_encoding: data.encoding(),
            data,
            attributes: Visible(&view.message.attributes),
            trace_id: messages_out::reserved(&view.message, TRACE),
            producer_sub: messages_out::reserved(&view.message, PRODUCER),
            created_at: time::iso(view.message.created_at_us),
            lease_expires_at: time::iso_option(view.groups.iter().filter_map(|group| group.lease_expires_at_us).max()),
            is_encrypted: self.is_encrypted,
            offset: view.message.offset,
            segment: None,
            retry_count: self.letter.as_ref().map_or(0, |letter| letter.delivery_count),
            error_message: self.letter.as_ref().map(|letter| letter.reason.as_str()),
            queue_config: is_detail.then(|| queues::options_json(&self.queue.settings).into()),
            consumer_groups: is_detail.then(|| view.groups.iter().map(group_row).collect()),
        }
    }
}

fn group_row(group: &MessageProgress) -> GroupRow<'_> {
    GroupRow {
        name: &group.name,
        consumed: group.is_consumed,
        taken: group.is_taken,
        lease_expires_at: time::iso_option(group.lease_expires_at_us),
    }
}

fn status_of(group: Option<&MessageProgress>) -> &'static str {
    match group {
        Some(group) if group.is_consumed => "completed",
        Some(group) if group.lease_expires_at_us.is_some() => "processing",
        _ => "pending",
    }
}

/// What a listing asks for.
struct Query {
    queue: Option<String>,
    partition: Option<String>,
    namespace: Option<String>,
    task: Option<String>,
    status: Option<String>,
    from_us: u64,
    to_us: u64,
    limit: usize,
    skip: usize,
}

/// `GET /api/v1/messages`
pub(super) async fn list(State(gateway): State<Arc<Gateway>>, params: Params) -> Result<Response> {
    let now = Now::read().wall_us;
    let whole = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let query = Query {
        queue: params.owned("queue"),
        partition: params.owned("partition"),
        namespace: params.owned("namespace"),
        task: params.owned("task"),
        status: params.owned("status"),
        from_us: params.time("from")?.unwrap_or(now.saturating_sub(WINDOW_DEFAULT_US)),
        to_us: params.time("to")?.unwrap_or(u64::MAX),
        limit: whole(params.number_in("limit", LIMIT_DEFAULT, 1..=LIMIT_MAX)?),
        skip: whole(params.number_in("offset", 0, 0..=LOOKED_AT_MAX as u64)?),
    };
    let shared = gateway.clone();
    gateway
        .blocking(move || {
            let found = search(&shared, &query)?;
            let groups = match &query.queue {
                Some(queue) => shared.engine.groups(queue).unwrap_or_default(),
                None => Vec::new(),
            };
            let named = groups.iter().filter(|group| group.name != PRIMARY_GROUP).count();
            let mode = json!({
                "hasQueueMode": named < groups.len(), "busGroupsCount": named, "type": if named > 0 { "bus" } else { "queue" },
            });
            let messages: Vec<_> = found.iter().map(|found| found.row(false)).collect();
            Ok(json::ok(&Listing { total: messages.len(), messages, mode }))
        })
        .await
}

fn search(gateway: &Gateway, query: &Query) -> Result<Vec<Found>> {
    let engine = &gateway.engine;
    let queues: Vec<QueueInfo> = match &query.queue {
        Some(queue) => engine.queue(queue).into_iter().collect(),
        None => engine.queues(),
    };
    let fits = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
    let mut candidates = Vec::new();
    for queue in queues {
        if fits(&query.namespace, &queue.settings.namespace) && fits(&query.task, &queue.settings.task) {
            let queue = Arc::new(queue);
            for (partition, message) in newest(engine, &queue, query)? {
                candidates.push((queue.clone(), partition, message));
            }
        }
    }
    candidates.sort_by_key(|(_, _, message)| std::cmp::Reverse((message.created_at_us, message.offset)));
    let mut found = Vec::new();
    let mut skipped = 0;
    for (queue, partition, message) in candidates.into_iter().take(LOOKED_AT_MAX) {
        // Removed meanwhile: not an error of a listing.
        let Ok(view) = engine.message(&queue.name, partition, &AckTarget::Offset(message.offset), Now::read()) else { continue };
        if !fits(&query.status, view.status) {
            continue;
        }
        if skipped < query.skip {
            skipped += 1;
            continue;
        }
        found.push(Found::new(gateway, queue, view, None)?);
        if found.len() == query.limit {
            break;
        }
    }
    Ok(found)
}

/// The newest messages of a queue's partitions that lie in the time window.
fn newest(engine: &Engine, queue: &QueueInfo, query: &Query) -> Result<Vec<(u32, StoredMessage)>> {
    let mut partitions = match &query.partition {
        Some(partition) => engine.partition(&queue.name, partition).into_iter().collect(),
        None => all_partitions(engine, &queue.name),
    };
    partitions.retain(|partition| partition.newest_at_us >= query.from_us && partition.end > partition.start);
    partitions.sort_by_key(|partition| std::cmp::Reverse(partition.newest_at_us));
    partitions.truncate(PARTITIONS_MAX);
    // With a status, messages may have to be passed over to find enough.
    let wanted = if query.status.is_some() { LOOKED_AT_MAX } else { query.limit + query.skip };
    let mut newest = Vec::new();
    for partition in partitions {
        let from = partition.end.saturating_sub(wanted as u64).max(partition.start);
        let request = FetchRequest {
            queue: queue.name.clone(),
            partition: partition.name,
            from,
            to: Some(partition.end),
            messages_max: u32::try_from(wanted).unwrap_or(u32::MAX),
            bytes_max: 64 << 20,
        };
        let messages = match fetch::read(engine, &request) {
            Ok((_, messages)) => messages,
            // Retention was faster.
            Err(error) if error.code == "range_removed" => continue,
            Err(error) => return Err(error),
        };
        let inside = messages.into_iter().filter(|message| (query.from_us..=query.to_us).contains(&message.created_at_us));
        newest.extend(inside.map(|message| (partition.id, message)));
        if newest.len() > LOOKED_AT_MAX {
            break;
        }
    }
    Ok(newest)
}

/// All partitions of a queue, as far as one answer goes through them.
pub(super) fn all_partitions(engine: &Engine, queue: &str) -> Vec<crate::model::PartitionInfo> {
    engine.partitions(queue, 0, 100_000).unwrap_or_default()
}

/// `GET /api/v1/messages/{partition_id}/{transaction_id}`
pub(super) async fn detail(
    State(gateway): State<Arc<Gateway>>,
    Names((partition_id, transaction_id)): Names<(String, String)>,
) -> Result<Response> {
    let shared = gateway.clone();
    gateway
        .blocking(move || {
            let missing = || ApiError::not_found("unknown_message", "Message not found");
            let (queue, partition) = shared.place(&partition_id).ok_or_else(missing)?;
            let engine = &shared.engine;
            let info = Arc::new(engine.queue(&queue)?);
            let letter = dead_letters::find(engine, &queue, partition, &transaction_id)?;
            let target = AckTarget::TransactionId(transaction_id);
            let view = match engine.message(&queue, partition, &target, Now::read()) {
                Ok(view) => view,
                // Retention may have taken a message that is kept as a dead letter.
                Err(error) if error.code == ErrorCode::UnknownMessage => dead_view(letter.as_ref().ok_or_else(missing)?),
                Err(error) => return Err(error.into()),
            };
            Ok(json::ok(&Found::new(&shared, info, view, letter)?.row(true)))
        })
        .await
}

fn dead_view(letter: &DeadLetter) -> MessageView {
    MessageView {
        queue: letter.queue.clone(),
        partition: letter.partition.clone(),
        partition_id: letter.partition_id,
        message: StoredMessage {
            offset: letter.offset,
            created_at_us: letter.created_at_us,
            transaction_id: Some(letter.transaction_id.clone()),
            attributes: letter.attributes.clone(),
            payload: letter.payload.clone(),
            delivery_count: letter.delivery_count,
        },
        transaction_id: letter.transaction_id.clone(),
        status: "dead_letter",
        groups: vec![MessageProgress {
            name: letter.group.clone(),
            is_consumed: true,
            is_taken: true,
            lease_expires_at_us: None,
        }],
    }
}
