//! What can be seen of an engine, and what the model says should be seen: flat facts that compare and print well.

use std::collections::BTreeMap;

use fanlog::engine::Engine;
use std::result::Result;

use fanlog::model::*;
use fanlog::record::{Attributes, StoredBatch, ValueRef};

use super::model::{GroupModel, Item, Model, QueueModel};

pub type View = BTreeMap<String, String>;

/// The payload of an item: as long as it says and different from every other one.
pub fn payload(item: &Item) -> Vec<u8> {
    let mut state = item.tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(item.size + 8);
    while bytes.len() < item.size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(item.size);
    bytes
}

fn content(bytes: &[u8], key: &str, id: Option<&str>) -> String {
    format!("{:08x}+{} {key} {}", crc32fast::hash(bytes), bytes.len(), id.unwrap_or("-"))
}

pub fn content_of(item: &Item) -> String {
    content(&payload(item), &item.key.to_string(), item.id.as_deref())
}

pub fn content_of_message(message: &StoredMessage) -> String {
    content(&message.payload, &key_of(&message.attributes), message.transaction_id.as_deref())
}

fn key_of(attributes: &Attributes) -> String {
    match attributes.iter().next() {
        Some((_, ValueRef::String(value))) => value.to_owned(),
        _ => String::new(),
    }
}

fn group_text(filter: &str, state: GroupState, version: u64, shared: bool, limit: Option<u32>, start: Option<Start>) -> String {
    format!("{filter:?} {state:?} v{version} shared={shared} limit={limit:?} start={start:?}")
}

pub fn filter_text(filter: Option<char>) -> String {
    filter.map(|key| format!(":k = \"{key}\"")).unwrap_or_default()
}

fn model_group_text(group: &GroupModel) -> String {
    let state = match (group.is_enabled, group.is_paused) {
        (false, _) => GroupState::Inactive,
        (true, true) => GroupState::Paused,
        (true, false) => GroupState::Active,
    };
    group_text(&filter_text(group.filter), state, group.version, group.shared, group.limit, group.start)
}

/// The settings that change.
fn settings_text(settings: &QueueSettings) -> String {
    let QueueSettings { lease_time_s, retry_limit, retention_s, max_wait_time_s, completed_retention_s, .. } = settings;
    let QueueSettings { retention_bytes, delayed_processing_s, window_buffer_s, consumer_groups, .. } = settings;
    format!(
        "lease={lease_time_s} retries={retry_limit} retention={retention_s},{completed_retention_s},{max_wait_time_s},\
         {retention_bytes} delay={delayed_processing_s} window={window_buffer_s} letters={} groups={consumer_groups}",
        settings.dead_letter_queue || settings.dlq_after_max_retries
    )
}

fn model_settings_text(queue: &QueueModel) -> String {
    settings_text(&QueueSettings {
        lease_time_s: queue.lease_s,
        retry_limit: queue.retry_limit,
        retention_s: queue.retention_s,
        max_wait_time_s: queue.max_wait_s,
        completed_retention_s: queue.completed_s,
        retention_bytes: queue.retention_bytes,
        delayed_processing_s: queue.delay_s as u32,
        window_buffer_s: queue.window_s as u32,
        consumer_groups: queue.has_groups,
        dead_letter_queue: queue.has_letters,
        dlq_after_max_retries: queue.has_letters,
        ..QueueSettings::default()
    })
}

/// What should be seen.
pub fn of_model(model: &Model) -> View {
    let mut view = View::new();
    for (name, queue) in &model.queues {
        let mut put = |path: String, value: String| view.insert(format!("{name}{path}"), value);
        put(String::new(), model_settings_text(queue));
        put(" dropped".to_owned(), queue.dropped.to_string());
        put(" pushed".to_owned(), queue.pushed.to_string());
        let kept: u64 = queue.lanes.values().map(|lane| lane.end - lane.start).sum();
        put(" kept".to_owned(), kept.to_string());
        for (group, found) in &queue.groups {
            put(format!(" group {group}"), model_group_text(found));
        }
        for (lane, found) in &queue.lanes {
            put(format!(" lane {lane}"), format!("[{}, {})", found.start, found.end));
            for (&offset, kept) in found.messages.range(found.start..) {
                put(format!(" lane {lane} {offset}"), content_of(&kept.item));
                for group in queue.groups.iter().filter(|(_, found)| found.start.is_some()).map(|(group, _)| group) {
                    let is_unread = queue.takes(group, kept) && !queue.is_done(group, lane, offset);
                    put(format!(" lane {lane} {offset} {group}"), if is_unread { "unread" } else { "done" }.to_owned());
                }
            }
            for (group, _) in queue.groups.iter().filter(|(_, found)| found.start.is_some()) {
                put(format!(" lag {group} {lane}"), queue.unread(group, lane).len().to_string());
            }
        }
        for letter in queue.letters.values() {
            let text = match letter.key {
                ' ' => "gone".to_owned(),
                key => content(&payload(&Item { tag: letter.tag, size: letter.size, key, id: None }), &key.to_string(), None),
            };
            put(format!(" letter {}", letter.id), format!("{} {} {} {text}", letter.group, letter.partition, letter.offset));
        }
    }
    view
}

/// What is seen; the error says what could not be read.
pub fn of_engine(engine: &Engine, now: Now) -> Result<View, String> {
    let mut view = View::new();
    for info in engine.queues() {
        let name = &info.name;
        let mut put = |path: String, value: String| view.insert(format!("{name}{path}"), value);
        put(String::new(), settings_text(&info.settings));
        put(" dropped".to_owned(), info.stats.messages_dropped.to_string());
        put(" pushed".to_owned(), info.stats.messages_pushed.to_string());
        put(" kept".to_owned(), info.stats.messages.to_string());
        let groups = engine.groups(name).map_err(|error| format!("groups of {name}: {error}"))?;
        for group in &groups {
            let GroupInfo { filter, state, version, shared, delivery_limit, start, .. } = group;
            let text = group_text(filter, *state, *version, *shared, *delivery_limit, *start);
            put(format!(" group {}", group.name), text);
        }
        for lane in engine.partitions(name, 0, usize::MAX).map_err(|error| format!("partitions of {name}: {error}"))? {
            put(format!(" lane {}", lane.name), format!("[{}, {})", lane.start, lane.end));
            let (messages, damaged) = fetch_all(engine, name, &lane, now)?;
            for offset in damaged {
                put(format!(" lane {} {offset} damaged", lane.name), String::new());
            }
            for message in messages {
                let offset = message.offset;
                put(format!(" lane {} {offset}", lane.name), content_of_message(&message));
                let seen = engine
                    .message(name, lane.id, &AckTarget::Offset(offset), now)
                    .map_err(|error| format!("message {offset} of {name}/{}: {error}", lane.name))?;
                for progress in seen.groups {
                    let text = if progress.is_consumed { "done" } else { "unread" };
                    put(format!(" lane {} {offset} {}", lane.name, progress.name), text.to_owned());
                }
            }
        }
        for group in groups.iter().filter(|group| group.start.is_some()) {
            let cursors = engine.cursors(name, &group.name, 0, usize::MAX, now);
            for cursor in cursors.map_err(|error| format!("cursors of {name}: {error}"))? {
                put(format!(" lag {} {}", group.name, cursor.partition), cursor.lag.to_string());
            }
        }
        let query = DeadLetterQuery { queue: Some(name.clone()), limit: u32::MAX, ..DeadLetterQuery::default() };
        let (letters, _) = engine.dead_letters(&query).map_err(|error| format!("letters of {name}: {error}"))?;
        for letter in letters {
            let key = key_of(&letter.attributes);
            let text = if key.is_empty() { "gone".to_owned() } else { content(&letter.payload, &key, None) };
            let group = if letter.group.is_empty() { PRIMARY_GROUP } else { &letter.group };
            put(format!(" letter {}", letter.id), format!("{group} {} {} {text}", letter.partition, letter.offset));
        }
    }
    Ok(view)
}

/// All messages, and the offsets that are told to be damaged.
fn fetch_all(engine: &Engine, queue: &str, lane: &PartitionInfo, now: Now) -> Result<(Vec<StoredMessage>, Vec<u64>), String> {
    let mut damaged = Vec::new();
    let mut messages: Vec<StoredMessage> = Vec::new();
    let mut from = lane.start;
    while from < lane.end {
        let request = FetchRequest {
            queue: queue.to_owned(),
            partition: lane.name.clone(),
            from,
            to: None,
            messages_max: 100,
            bytes_max: 1 << 20,
        };
        let reply = match engine.fetch(&request, now) {
            Ok(reply) => reply,
            Err(error) if error.code == ErrorCode::Corrupt => {
                damaged.push(from);
                from += 1;
                continue;
            }
            Err(error) => return Err(format!("fetch of {queue}/{} from {from}: {error}", lane.name)),
        };
        for slice in reply.batches {
            let found = match slice {
                BatchSlice::Whole(bytes) => StoredBatch::parse(bytes).and_then(|batch| batch.messages()),
                BatchSlice::Messages(found) => Ok(found),
            };
            messages.extend(found.map_err(|error| error.to_string())?.into_iter().filter(|message| message.offset >= from));
        }
        if reply.next <= from {
            return Err(format!("fetch of {queue}/{} from {from} does not move on", lane.name));
        }
        from = reply.next;
    }
    Ok((messages, damaged))
}

/// Where two views differ, for people.
pub fn difference(expected: &View, found: &View) -> String {
    let mut lines = Vec::new();
    for (key, value) in expected {
        match found.get(key) {
            None => lines.push(format!("  missing  {key}: {value}")),
            Some(other) if other != value => lines.push(format!("  differs  {key}: expected {value}, found {other}")),
            _ => {}
        }
    }
    let extra = found.iter().filter(|(key, _)| !expected.contains_key(*key));
    lines.extend(extra.map(|(key, value)| format!("  extra    {key}: {value}")));
    lines.truncate(12);
    lines.join("\n")
}
