//! Model values as JSON: the shapes that scripts rely on. Tables take their columns from the same fields.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use fanlog::model::{
    CursorProgress, DeadLetter, GroupInfo, GroupProgress, GroupState, MessageView, PartitionInfo, PushReply, QueueInfo, QueueStats,
    SeekPreview, ServerStats, Start, StoredMessage, TraceEvent,
};
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
/// Columns of a table of messages.
pub const MESSAGE_COLUMNS: &[&str] = &["partition", "offset", "created_at", "attributes", "payload"];
/// Columns of a table of traces.
pub const TRACE_COLUMNS: &[&str] = &["created_at", "queue", "partition_id", "transaction_id", "group", "event_type", "names", "data"];
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

/// A message. `fanlog push --ndjson` takes it back.
pub fn message(place: Place<'_>, message: &StoredMessage) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("queue".into(), place.queue.into());
    fields.insert("partition".into(), place.partition.into());
    fields.insert("partition_id".into(), place.partition_id.into());
    fields.insert("offset".into(), message.offset.into());
    fields.insert("created_at".into(), show_time(message.created_at_us).into());
    if let Some(transaction_id) = &message.transaction_id {
        fields.insert("transaction_id".into(), transaction_id.as_str().into());
    }
    fields.insert("attributes".into(), attributes(&message.attributes));
    insert_payload(&mut fields, &message.payload);
    fields
}

fn attributes(attributes: &fanlog::record::Attributes) -> Value {
    serde_json::from_str(&attributes.to_json()).unwrap_or(Value::Null)
}

/// Text as it is, other bytes in base64 under a name of its own.
fn insert_payload(fields: &mut Map<String, Value>, payload: &[u8]) {
    match std::str::from_utf8(payload) {
        Ok(text) => fields.insert("payload".into(), text.into()),
        Err(_) => fields.insert("payload_base64".into(), BASE64_STANDARD.encode(payload).into()),
    };
}

/// A message in one line for people.
pub fn message_line(fields: &Map<String, Value>) -> String {
    let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
    let attributes = match fields.get("attributes") {
        Some(Value::Object(attributes)) if !attributes.is_empty() => {
            let pairs: Vec<String> = attributes.iter().map(|(key, value)| format!("{key}={value}")).collect();
            format!(" {{{}}}", pairs.join(" "))
        }
        _ => String::new(),
    };
    let payload = match fields.get("payload_base64") {
        Some(encoded) => format!("base64:{}", encoded.as_str().unwrap_or_default()),
        None => text("payload").to_owned(),
    };
    let offset = fields.get("offset").and_then(Value::as_u64).unwrap_or_default();
    format!("{} {} {offset}{attributes} {payload}", text("created_at"), text("partition"))
}

/// One message with the progress of every group.
pub fn message_view(view: &MessageView) -> Value {
    let place = Place { queue: &view.queue, partition: &view.partition, partition_id: view.partition_id };
    let mut fields = message(place, &view.message);
    fields.insert("transaction_id".into(), view.transaction_id.as_str().into());
    fields.insert("status".into(), view.status.into());
    let groups = view.groups.iter().map(|group| {
        json!({
            "name": group.name,
            "consumed": group.is_consumed,
            "taken": group.is_taken,
            "lease_expires_at": group.lease_expires_at_us.and_then(show_time),
        })
    });
    fields.insert("groups".into(), groups.collect());
    Value::Object(fields)
}

/// A dead letter.
pub fn dead_letter(letter: &DeadLetter) -> Value {
    let mut fields = Map::new();
    fields.insert("id".into(), letter.id.into());
    fields.insert("queue".into(), letter.queue.as_str().into());
    fields.insert("partition".into(), letter.partition.as_str().into());
    fields.insert("partition_id".into(), letter.partition_id.into());
    fields.insert("offset".into(), letter.offset.into());
    fields.insert("group".into(), letter.group.as_str().into());
    fields.insert("reason".into(), letter.reason.as_str().into());
    fields.insert("delivery_count".into(), letter.delivery_count.into());
    fields.insert("created_at".into(), show_time(letter.created_at_us).into());
    fields.insert("failed_at".into(), show_time(letter.failed_at_us).into());
    fields.insert("transaction_id".into(), letter.transaction_id.as_str().into());
    fields.insert("attributes".into(), attributes(&letter.attributes));
    insert_payload(&mut fields, &letter.payload);
    Value::Object(fields)
}

/// What became of a push of one message.
pub fn push_reply(partition: &str, reply: &PushReply) -> Value {
    use fanlog::model::PushResult;
    let (offset, result) = match reply.results.get(0) {
        Some(PushResult::Stored(offset)) => (Some(offset), "stored"),
        Some(PushResult::Duplicate(offset)) => (Some(offset), "duplicate"),
        Some(PushResult::Dropped) | None => (None, "dropped"),
    };
    json!({ "partition": partition, "partition_id": reply.partition_id, "offset": offset, "result": result })
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

    fn stored(payload: &'static [u8]) -> StoredMessage {
        StoredMessage {
            offset: 7,
            created_at_us: 1_800_000_000_000_000,
            transaction_id: None,
            attributes: fanlog::record::Attributes::from_json(r#"{"region":"us","age":40}"#).unwrap(),
            payload: payload.into(),
            delivery_count: 1,
        }
    }

    #[test]
    fn text_stays_text_and_other_bytes_are_base64() {
        let place = Place { queue: "q", partition: "lane", partition_id: 3 };
        let fields = message(place, &stored(b"hello"));
        assert_eq!(message_line(&fields), "2027-01-15T08:00:00Z lane 7 {age=40 region=\"us\"} hello");
        let fields = message(place, &stored(&[0xff, 0]));
        assert_eq!(fields.get("payload_base64").unwrap(), "/wA=");
        assert!(!fields.contains_key("payload"));
        assert!(message_line(&fields).ends_with(" base64:/wA="));
    }
}
