//! Model values as JSON: the shapes that scripts rely on. Tables take their columns from the same fields.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use fanlog::model::{
    CursorProgress, DeadLetter, GroupInfo, GroupProgress, GroupState, MessageView, PartitionInfo, Promise, PushReply, PushResult,
    QueueInfo, QueueStats, SeekPreview, ServerStats, Start, StoredMessage, TraceEvent,
};
use fanlog::record::Attributes;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::settings;
use super::time::{show_span, show_time};

/// Columns of a table of queues.
pub const QUEUE_COLUMNS: &[&str] = &["name", "partitions", "groups", "messages", "dead_letters", "log_bytes", "durability"];
/// Columns of a table of groups.
pub const GROUP_COLUMNS: &[&str] =
    &["queue", "group", "state", "filter", "lag", "lag_time", "partitions_with_lag", "cursors", "leases"];
/// Columns of a table of cursors.
pub const CURSOR_COLUMNS: &[&str] =
    &["partition", "next", "start", "end", "lag", "lag_time", "in_flight", "lease_expires_at", "total_consumed"];
/// Columns of a table of seeks.
pub const SEEK_COLUMNS: &[&str] = &["partition", "before", "after", "shift", "start", "end"];
/// Columns of a table of dead letters.
pub const DEAD_LETTER_COLUMNS: &[&str] =
    &["id", "queue", "partition", "offset", "group", "delivery_count", "failed_at", "reason", "payload"];
/// Columns of a table of traces.
pub const TRACE_COLUMNS: &[&str] =
    &["created_at", "queue", "partition_id", "transaction_id", "group", "event_type", "names", "data"];
/// Columns of a table of pushed messages.
pub const RECEIPT_COLUMNS: &[&str] = &["partition", "offset", "result"];

/// A queue in a list.
pub fn queue_row(queue: &QueueInfo) -> Value {
    let stats = &queue.stats;
    json!({
        "name": queue.name,
        "partitions": stats.partitions,
        "groups": stats.groups,
        "messages": stats.messages,
        "messages_pushed": stats.messages_pushed,
        "dead_letters": stats.dead_letters,
        "log_bytes": stats.log_bytes,
        "durability": settings::show_durability(queue.settings.durability),
        "created_at": show_time(queue.created_at_us),
    })
}

/// A queue with everything.
pub fn queue(queue: &QueueInfo) -> Value {
    json!({
        "name": queue.name,
        "incarnation": format!("{:016x}", queue.incarnation),
        "created_at": show_time(queue.created_at_us),
        "settings": settings::to_json(&queue.settings),
        "stats": queue_stats(&queue.stats),
    })
}

fn queue_stats(stats: &QueueStats) -> Value {
    json!({
        "partitions": stats.partitions,
        "groups": stats.groups,
        "messages": stats.messages,
        "messages_pushed": stats.messages_pushed,
        "messages_dropped": stats.messages_dropped,
        "duplicates": stats.duplicates,
        "messages_popped": stats.messages_popped,
        "messages_acked": stats.messages_acked,
        "messages_lost_unread": stats.messages_lost_unread,
        "dead_letters": stats.dead_letters,
        "log_bytes": stats.log_bytes,
        "segments": stats.segments,
        "commits": stats.commits,
        "bytes_written": stats.bytes_written,
        "syncs": stats.syncs,
        "sync_time_us": stats.sync_time_us,
        "is_poisoned": stats.is_poisoned,
    })
}

/// The server's counters.
pub fn server_stats(stats: &ServerStats) -> Value {
    json!({
        "queues": stats.queues,
        "start_number": stats.start_number,
        "pending_bytes": stats.pending_bytes,
        "disk_free_bytes": stats.disk_free_bytes,
        "waiting_pops": stats.waiting_pops,
        "total": queue_stats(&stats.total),
    })
}

/// A partition.
pub fn partition(partition: &PartitionInfo) -> Value {
    json!({
        "partition": partition.name,
        "partition_id": partition.id,
        "start": partition.start,
        "end": partition.end,
        "newest_at": show_time(partition.newest_at_us),
    })
}

/// A group without its progress.
pub fn group(group: &GroupInfo) -> Value {
    Value::Object(group_fields(group))
}

fn group_fields(group: &GroupInfo) -> Map<String, Value> {
    let fields = json!({
        "queue": group.queue,
        "group": group.name,
        "state": show_state(group.state),
        "filter": group.filter,
        "is_declared": group.is_declared,
        "delivery_limit": group.delivery_limit,
        "display_name": group.display_name,
        "shared": group.shared,
        "version": group.version,
        "start": group.start.map(show_start),
        "judges_earlier": group.judges_earlier,
        "created_at": show_time(group.created_at_us),
        "updated_at": show_time(group.updated_at_us),
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// A group with its progress.
pub fn group_progress(progress: &GroupProgress) -> Value {
    let mut fields = group_fields(&progress.group);
    fields.insert("lag".into(), progress.lag.into());
    fields.insert("lag_time_us".into(), progress.lag_time_us.into());
    fields.insert("lag_time".into(), show_span(progress.lag_time_us).into());
    fields.insert("partitions_with_lag".into(), progress.partitions_with_lag.into());
    fields.insert("cursors".into(), progress.cursors.into());
    fields.insert("leases".into(), progress.leases.into());
    Value::Object(fields)
}

fn show_state(state: GroupState) -> &'static str {
    match state {
        GroupState::Active => "active",
        GroupState::Inactive => "inactive",
        GroupState::Paused => "paused",
    }
}

fn show_start(start: Start) -> String {
    match start {
        Start::Beginning => "beginning".to_owned(),
        Start::New => "new".to_owned(),
        Start::Time(time_us) => show_time(time_us).unwrap_or_else(|| "1970-01-01T00:00:00Z".to_owned()),
        Start::Offset(offset) => format!("offset:{offset}"),
    }
}

/// A cursor.
pub fn cursor(cursor: &CursorProgress) -> Value {
    json!({
        "partition": cursor.partition,
        "partition_id": cursor.partition_id,
        "next": cursor.next,
        "start": cursor.start,
        "end": cursor.end,
        "lag": cursor.lag,
        "lag_time_us": cursor.lag_time_us,
        "lag_time": show_span(cursor.lag_time_us),
        "oldest_at": cursor.oldest_at_us.and_then(show_time),
        "in_flight": cursor.in_flight,
        "lease_id": (!cursor.lease_id.is_empty()).then_some(&cursor.lease_id),
        "lease_expires_at": cursor.lease_expires_at_us.and_then(show_time),
        "total_consumed": cursor.total_consumed,
        "last_consumed_at": cursor.last_consumed_at_us.and_then(show_time),
    })
}

/// A cursor before and after a seek.
pub fn seek(preview: &SeekPreview) -> Value {
    let shift = i128::from(preview.after) - i128::from(preview.before);
    json!({
        "partition": preview.partition,
        "before": preview.before,
        "after": preview.after,
        "shift": i64::try_from(shift).ok(),
        "start": preview.start,
        "end": preview.end,
    })
}

/// Where a message was read.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The queue.
    pub queue: &'a str,
    /// The partition's name.
    pub partition: &'a str,
    /// The partition's number.
    pub partition_id: u32,
}

/// A message. `fanlog push --ndjson` takes it back. Attributes keep every digit: they never pass through a JSON value.
#[derive(Debug, Clone, Serialize)]
pub struct MessageRow {
    queue: String,
    partition: String,
    partition_id: u32,
    offset: u64,
    created_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transaction_id: Option<String>,
    attributes: Attributes,
    #[serde(flatten)]
    payload: Payload,
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery_count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<Vec<Value>>,
}

/// Text as it is, other bytes in base64 under a name of its own.
#[derive(Debug, Clone, Serialize)]
enum Payload {
    #[serde(rename = "payload")]
    Text(String),
    #[serde(rename = "payload_base64")]
    Bytes(String),
}

impl Payload {
    fn of(payload: &[u8]) -> Self {
        match std::str::from_utf8(payload) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Bytes(BASE64_STANDARD.encode(payload)),
        }
    }
}

impl MessageRow {
    /// A message that was read.
    pub fn new(place: Place<'_>, message: &StoredMessage) -> Self {
        Self {
            queue: place.queue.to_owned(),
            partition: place.partition.to_owned(),
            partition_id: place.partition_id,
            offset: message.offset,
            created_at: show_time(message.created_at_us),
            transaction_id: message.transaction_id.clone(),
            attributes: message.attributes.clone(),
            payload: Payload::of(&message.payload),
            delivery_count: None,
            last_error: None,
            lease_id: None,
            status: None,
            groups: None,
        }
    }

    /// The same, taken for a group; `last_error` says why it failed the last time.
    pub fn leased(mut self, lease_id: &str, delivery_count: u32, last_error: &str) -> Self {
        self.delivery_count = Some(delivery_count);
        self.last_error = (!last_error.is_empty()).then(|| last_error.to_owned());
        self.lease_id = (!lease_id.is_empty()).then(|| lease_id.to_owned());
        self
    }

    /// A message with the progress of every group.
    pub fn of_view(view: &MessageView) -> Self {
        let place = Place { queue: &view.queue, partition: &view.partition, partition_id: view.partition_id };
        let groups = view.groups.iter().map(|group| {
            json!({
                "name": group.name,
                "consumed": group.is_consumed,
                "taken": group.is_taken,
                "lease_expires_at": group.lease_expires_at_us.and_then(show_time),
            })
        });
        Self {
            transaction_id: Some(view.transaction_id.clone()),
            status: Some(view.status),
            groups: Some(groups.collect()),
            ..Self::new(place, &view.message)
        }
    }

    /// The message in one line for people.
    pub fn line(&self) -> String {
        let created_at = self.created_at.as_deref().unwrap_or("-");
        let attributes = if self.attributes.is_empty() { String::new() } else { format!(" {}", self.attributes.to_json()) };
        let payload = match &self.payload {
            Payload::Text(text) => text.clone(),
            Payload::Bytes(encoded) => format!("base64:{encoded}"),
        };
        format!("{created_at} {} {}{attributes} {payload}", self.partition, self.offset)
    }
}

/// A dead letter.
#[derive(Debug, Clone, Serialize)]
pub struct DeadLetterRow {
    id: u64,
    queue: String,
    partition: String,
    partition_id: u32,
    offset: u64,
    group: String,
    reason: String,
    delivery_count: u32,
    created_at: Option<String>,
    failed_at: Option<String>,
    transaction_id: String,
    attributes: Attributes,
    #[serde(flatten)]
    payload: Payload,
}

impl From<&DeadLetter> for DeadLetterRow {
    fn from(letter: &DeadLetter) -> Self {
        Self {
            id: letter.id,
            queue: letter.queue.clone(),
            partition: letter.partition.clone(),
            partition_id: letter.partition_id,
            offset: letter.offset,
            group: letter.group.clone(),
            reason: letter.reason.clone(),
            delivery_count: letter.delivery_count,
            created_at: show_time(letter.created_at_us),
            failed_at: show_time(letter.failed_at_us),
            transaction_id: letter.transaction_id.clone(),
            attributes: letter.attributes.clone(),
            payload: Payload::of(&letter.payload),
        }
    }
}

/// What became of a push of one message.
pub fn push_reply(partition: &str, reply: &PushReply) -> Value {
    let result = reply.results.get(0).unwrap_or(PushResult::Dropped);
    let offset = match result {
        PushResult::Stored(offset) | PushResult::Duplicate(offset) => Some(offset),
        PushResult::Dropped => None,
    };
    json!({
        "partition": partition,
        "partition_id": reply.partition_id,
        "offset": offset,
        "result": show_push_result(result),
        "promise": show_promise(reply.promise),
    })
}

/// What became of a message, in a word.
pub fn show_push_result(result: PushResult) -> &'static str {
    match result {
        PushResult::Stored(_) => "stored",
        PushResult::Duplicate(_) => "duplicate",
        PushResult::Dropped => "dropped",
    }
}

/// A promise in a word.
pub fn show_promise(promise: Promise) -> &'static str {
    match promise {
        Promise::Durable => "durable",
        Promise::Interval => "interval",
        Promise::Written => "written",
    }
}

/// A trace event.
pub fn trace(queue: &str, event: &TraceEvent) -> Value {
    let data = match serde_json::from_slice::<Value>(&event.data) {
        Ok(data) => data,
        Err(_) => String::from_utf8_lossy(&event.data).into(),
    };
    json!({
        "created_at": show_time(event.created_at_us),
        "queue": queue,
        "partition_id": event.partition_id,
        "transaction_id": event.transaction_id,
        "group": event.group,
        "event_type": event.event_type,
        "names": event.names,
        "worker_id": event.worker_id,
        "data": data,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(payload: &'static [u8]) -> MessageRow {
        let message = StoredMessage {
            offset: 7,
            created_at_us: 1_800_000_000_000_000,
            transaction_id: None,
            attributes: Attributes::from_json(r#"{"region":"us","big":12345678901234567890123456789012345678}"#).unwrap(),
            payload: payload.into(),
            delivery_count: 1,
        };
        MessageRow::new(Place { queue: "q", partition: "lane", partition_id: 3 }, &message)
    }

    #[test]
    fn text_stays_text_and_numbers_keep_their_digits() {
        assert_eq!(
            serde_json::to_string(&row(b"hello")).unwrap(),
            concat!(
                r#"{"queue":"q","partition":"lane","partition_id":3,"offset":7,"created_at":"2027-01-15T08:00:00Z","#,
                r#""attributes":{"big":12345678901234567890123456789012345678,"region":"us"},"payload":"hello"}"#
            )
        );
        assert!(row(b"hello").line().ends_with(r#"5678,"region":"us"} hello"#));
    }

    #[test]
    fn other_bytes_are_base64_under_a_name_of_their_own() {
        let json = serde_json::to_string(&row(&[0xff, 0])).unwrap();
        assert!(json.ends_with(r#","payload_base64":"/wA="}"#), "{json}");
        assert!(row(&[0xff, 0]).line().ends_with(" base64:/wA="));
    }
}
