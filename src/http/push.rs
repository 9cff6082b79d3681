//! `POST /push`: items for any queues and partitions; each partition's items are stored together or not at all.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::engine::Engine;
use crate::model::{self, Now, PushItem, PushReply, PushRequest, PushResult};
use crate::record::{Attributes, DEFAULT_PARTITION, DerivedId, Message, TRANSACTION_ID_BYTES_MAX, check_name, derived_id};

use super::auth::Caller;
use super::body::Raw;
use super::encryption::Cipher;
use super::error::{ApiError, Result, code_name};
use super::json::{self, Text, write_field, write_number};
use super::{Gateway, ids};

/// Attribute of an encrypted payload.
pub(super) const ENCRYPTED: &str = "fanlog.encrypted";
/// Attribute with the trace id of a transaction's push.
pub(super) const TRACE: &str = "fanlog.trace";
/// Attribute with the authenticated producer.
pub(super) const PRODUCER: &str = "fanlog.producer";

/// Larger bodies are read, filtered and compressed on a blocking thread.
const INLINE_BYTES_MAX: usize = 256 * 1024;

/// About as many bytes as a row of an answer has beside the queue's name.
const ROW_BYTES: usize = 200;

const QUEUED: &[u8] = b",\"status\":\"queued\"";
const DUPLICATE: &[u8] = b",\"status\":\"duplicate\"";

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    items: Vec<Item<'a>>,
}

/// One message as clients write it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Item<'a> {
    #[serde(borrow)]
    queue: Cow<'a, str>,
    #[serde(borrow)]
    partition: Option<Text<'a>>,
    #[serde(borrow)]
    payload: &'a RawValue,
    #[serde(borrow)]
    transaction_id: Option<Text<'a>>,
    #[serde(borrow)]
    attributes: Option<&'a RawValue>,
    /// Kept only in a transaction: a plain push drops it, as Queen does.
    #[serde(borrow)]
    trace_id: Option<Text<'a>>,
}

/// The items of one partition, and where their results belong.
pub(super) struct Group {
    pub(super) request: PushRequest,
    pub(super) rows: Vec<Row>,
    is_encrypted: bool,
}

/// Where the result of an item belongs.
pub(super) struct Row {
    pub(super) index: usize,
    pub(super) transaction_id: Option<String>,
}

/// Sorts items into one push for each partition.
pub(super) struct Grouping<'a> {
    engine: &'a Engine,
    cipher: &'a Cipher,
    /// The request's body, which the payloads share.
    body: &'a Bytes,
    keeps_trace: bool,
    groups: Vec<Group>,
    /// Where the group of a queue's partition is.
    places: HashMap<String, HashMap<String, usize>>,
}

impl<'a> Grouping<'a> {
    pub(super) fn new(engine: &'a Engine, cipher: &'a Cipher, body: &'a Bytes, keeps_trace: bool) -> Self {
        Self { engine, cipher, body, keeps_trace, groups: Vec::new(), places: HashMap::new() }
    }

    /// Adds an item; an error refuses the whole request, before anything is stored.
    pub(super) fn add(&mut self, index: usize, item: Item<'_>) -> Result<()> {
        let named = |error: ApiError| ApiError { text: format!("item {index}: {}", error.text), ..error };
        let partition = item.partition.as_deref().unwrap_or(DEFAULT_PARTITION);
        let at = self.place(&item.queue, partition).map_err(named)?;
        let transaction_id = item.transaction_id.as_deref().filter(|id| !id.is_empty()).map(str::to_owned);
        if let Some(length) = transaction_id.as_ref().map(String::len).filter(|&length| length > TRANSACTION_ID_BYTES_MAX) {
            return Err(ApiError::bad_request(format!(
                "item {index}: transactionId is {length} bytes long, at most {TRANSACTION_ID_BYTES_MAX} are allowed"
            )));
        }
        let mut attributes = item.attributes.map(json::attributes).transpose().map_err(named)?.unwrap_or_default();
        if let Some(trace) = item.trace_id.filter(|trace| self.keeps_trace && !trace.is_empty()) {
            reserve(&mut attributes, TRACE, &trace).map_err(named)?;
        }
        let mut payload = self.body.slice_ref(item.payload.get().as_bytes());
        let group = &mut self.groups[at];
        if group.is_encrypted {
            payload = self.cipher.seal(&payload).map_err(named)?;
            reserve(&mut attributes, ENCRYPTED, "aes-256-gcm").map_err(named)?;
        }
        let message = Message { transaction_id: transaction_id.clone(), attributes, payload };
        group.push(message, Row { index, transaction_id });
        Ok(())
    }

    /// The groups, in order of their first item.
    pub(super) fn finish(self) -> Vec<Group> {
        self.groups
    }

    /// The index of the group of a partition, which is made if it is new.
    fn place(&mut self, queue: &str, partition: &str) -> Result<usize> {
        // Most requests have one group: look at the last one before hashing.
        let is_last = self.groups.last().is_some_and(|group| group.is_for(queue, partition));
        if is_last {
            return Ok(self.groups.len() - 1);
        }
        if let Some(&at) = self.places.get(queue).and_then(|partitions| partitions.get(partition)) {
            return Ok(at);
        }
        check_name(queue)?;
        check_name(partition)?;
        let request = PushRequest { queue: queue.to_owned(), partition: partition.to_owned(), ..PushRequest::default() };
        // A queue that does not exist yet is made with default settings: plain.
        let is_encrypted = self.engine.settings(queue).is_ok_and(|(_, settings)| settings.encryption_enabled);
        let at = self.groups.len();
        self.groups.push(Group { request, rows: Vec::new(), is_encrypted });
        self.places.entry(queue.to_owned()).or_default().insert(partition.to_owned(), at);
        Ok(at)
    }
}

impl Group {
    fn is_for(&self, queue: &str, partition: &str) -> bool {
        self.request.queue == queue && self.request.partition == partition
    }

    fn push(&mut self, message: Message, row: Row) {
        if let PushItem::Messages(messages) = &mut self.request.items {
            messages.push(message);
        }
        self.rows.push(row);
    }
}

/// Writes the subject of the caller's JWT on what is pushed: the only way that a message gets a producer.
pub(super) fn stamp(groups: &mut [Group], caller: &Caller) -> Result<()> {
    let Some(subject) = caller.subject() else { return Ok(()) };
    for group in groups {
        if let PushItem::Messages(messages) = &mut group.request.items {
            for message in messages {
                reserve(&mut message.attributes, PRODUCER, subject)?;
            }
        }
    }
    Ok(())
}

fn reserve(attributes: &mut Attributes, key: &str, value: &str) -> Result<()> {
    attributes.insert(key, value).map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, "bad_attribute", error.to_string()))
}

/// What became of an item, ready to be written.
pub(super) struct Outcome {
    pub(super) message_id: String,
    pub(super) transaction_id: String,
    /// `None` if it was dropped.
    pub(super) offset: Option<u64>,
}

/// The outcome of the item in `row`, the `position`th of its push.
pub(super) fn outcome(incarnation: u64, reply: &PushReply, position: usize, row: &Row) -> Outcome {
    let (offset, _) = stored(reply.results.get(position));
    // A message that no group takes has no place to make an id from, but the client is still given one.
    let message_id = match offset {
        Some(offset) => derived_id(incarnation, reply.partition_id, offset),
        None => uuid::Uuid::now_v7().to_string(),
    };
    let transaction_id = row.transaction_id.clone().unwrap_or_else(|| message_id.clone());
    Outcome { message_id, transaction_id, offset }
}

/// Where a message is stored, if it is, and whether it was before.
fn stored(result: Option<PushResult>) -> (Option<u64>, bool) {
    match result {
        Some(PushResult::Stored(offset)) => (Some(offset), false),
        Some(PushResult::Duplicate(offset)) => (Some(offset), true),
        Some(PushResult::Dropped) | None => (None, false),
    }
}

/// The incarnation of a queue that was just pushed to.
pub(super) fn incarnation(engine: &Engine, queue: &str) -> u64 {
    engine.settings(queue).map_or(0, |(incarnation, _)| incarnation)
}

type Pending = (Group, oneshot::Receiver<model::Result<PushReply>>);

/// `POST /api/v1/push`
pub(super) async fn push(State(gateway): State<Arc<Gateway>>, caller: Caller, body: Raw) -> Result<Response> {
    let pending = if body.bytes.len() <= INLINE_BYTES_MAX {
        submit(&gateway, &caller, &body.bytes)?
    } else {
        let (gateway, bytes) = (gateway.clone(), body.bytes.clone());
        let submitting = gateway.clone();
        gateway.blocking(move || submit(&submitting, &caller, &bytes)).await?
    };
    let mut rows = Rows::default();
    let mut error = None;
    let mut is_any_done = pending.is_empty();
    for (group, answer) in pending {
        let answer = answer
            .await
            .unwrap_or_else(|_| Err(model::Error::new(model::ErrorCode::Internal, "the push was given up inside the server")));
        is_any_done |= answer.is_ok();
        render(&gateway.engine, &group, &answer, &mut rows);
        error = error.or(answer.err());
    }
    if let Some(error) = error.filter(|_| !is_any_done) {
        // Nothing was stored: the status says why, and a client may send the whole request again.
        return Err(error.into());
    }
    Ok(json::answer_bytes(StatusCode::CREATED, rows.finish().into()))
}

/// The rows of an answer, written one after the other.
#[derive(Default)]
struct Rows {
    text: Vec<u8>,
    /// Index of each row's item, and where the row begins.
    begins: Vec<(usize, usize)>,
}

impl Rows {
    /// Makes room for so many rows of about so many bytes.
    fn reserve(&mut self, rows: usize, row_bytes: usize) {
        self.text.reserve(rows * row_bytes);
        self.begins.reserve(rows);
    }

    /// Begins a row.
    fn begin(&mut self, index: usize) -> &mut Vec<u8> {
        self.text.push(if self.begins.is_empty() { b'[' } else { b',' });
        self.begins.push((index, self.text.len()));
        self.text.extend_from_slice(b"{\"index\":");
        write_number(&mut self.text, index as u64);
        self.text.push(b',');
        &mut self.text
    }

    /// The array, in the order of the items.
    fn finish(mut self) -> Vec<u8> {
        if self.begins.is_empty() {
            return b"[]".to_vec();
        }
        self.text.push(b']');
        if self.begins.is_sorted() {
            return self.text;
        }
        // The byte behind a row is the comma before the next one, or the end.
        let ends = self.begins.iter().skip(1).map(|&(_, begin)| begin).chain([self.text.len()]).map(|end| end - 1);
        let mut rows: Vec<_> = self.begins.iter().zip(ends).map(|(&(index, begin), end)| (index, begin..end)).collect();
        rows.sort_unstable_by_key(|&(index, _)| index);
        let mut out = Vec::with_capacity(self.text.len());
        for (_, row) in rows {
            out.push(if out.is_empty() { b'[' } else { b',' });
            out.extend_from_slice(&self.text[row]);
        }
        out.push(b']');
        out
    }
}

fn submit(gateway: &Gateway, caller: &Caller, body: &Bytes) -> Result<Vec<Pending>> {
    let parsed: Body<'_> = json::parse(body)?;
    let mut grouping = Grouping::new(&gateway.engine, &gateway.cipher, body, false);
    for (index, item) in parsed.items.into_iter().enumerate() {
        grouping.add(index, item)?;
    }
    let mut groups = grouping.finish();
    stamp(&mut groups, caller)?;
    let now = Now::read();
    let send = |mut group: Group| {
        let (answer, answered) = oneshot::channel();
        let (queue, partition) = (group.request.queue.clone(), group.request.partition.clone());
        let request = std::mem::replace(&mut group.request, PushRequest { queue, partition, ..PushRequest::default() });
        // The client may be gone by then; the push happens all the same.
        let done = move |reply| drop(answer.send(reply));
        gateway.engine.submit_push(request, now, Box::new(done));
        (group, answered)
    };
    Ok(groups.into_iter().map(send).collect())
}

fn render(engine: &Engine, group: &Group, answer: &model::Result<PushReply>, rows: &mut Rows) {
    let mut queue = Vec::new();
    write_field(&mut queue, "queueName", &group.request.queue);
    match answer {
        Ok(reply) => {
            let incarnation = incarnation(engine, &group.request.queue);
            let partition_id = ids::partition_id(incarnation, reply.partition_id);
            rows.reserve(group.rows.len(), ROW_BYTES + queue.len());
            for (position, row) in group.rows.iter().enumerate() {
                let (offset, is_duplicate) = stored(reply.results.get(position));
                let out = rows.begin(row.index);
                match offset {
                    Some(offset) => {
                        let id = DerivedId::new(incarnation, reply.partition_id, offset);
                        write_ids(out, id.as_str(), row);
                        out.extend_from_slice(&queue);
                        out.extend_from_slice(if is_duplicate { DUPLICATE } else { QUEUED });
                        out.extend_from_slice(b",\"offset\":");
                        write_number(out, offset);
                        out.push(b',');
                        write_field(out, "partitionId", &partition_id);
                    }
                    None => {
                        // A message that no group takes has no place to make an id from, but the client is still given one. Dropped
                        // is not a status of its own: Queen's clients refuse words that they do not know.
                        write_ids(out, &uuid::Uuid::now_v7().to_string(), row);
                        out.extend_from_slice(&queue);
                        out.extend_from_slice(QUEUED);
                        out.extend_from_slice(b",\"dropped\":true");
                    }
                }
                out.push(b'}');
            }
        }
        Err(error) => {
            let mut reason = Vec::new();
            write_field(&mut reason, "error", &error.text);
            reason.push(b',');
            write_field(&mut reason, "code", &code_name(error.code));
            for row in &group.rows {
                let out = rows.begin(row.index);
                write_ids(out, "", row);
                for part in [&queue[..], b",\"status\":\"error\",", &reason, b"}"] {
                    out.extend_from_slice(part);
                }
            }
        }
    }
}

/// Appends a row's ids; a message without one of its own takes that of its place.
fn write_ids(out: &mut Vec<u8>, message_id: &str, row: &Row) {
    write_field(out, "message_id", message_id);
    out.push(b',');
    write_field(out, "transaction_id", row.transaction_id.as_deref().unwrap_or(message_id));
    out.push(b',');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Promise, PushResults};

    #[test]
    fn a_null_payload_is_a_payload_and_a_missing_one_is_an_error() {
        let body: Body<'_> = json::parse(br#"{"items":[{"queue":"q","payload":null,"transactionId":null}]}"#).unwrap();
        assert_eq!(body.items[0].payload.get(), "null");
        assert!(json::parse::<Body<'_>>(br#"{"items":[{"queue":"q"}]}"#).is_err());
        assert!(json::parse::<Body<'_>>(br#"{"items":[{"payload":1}]}"#).is_err());
        assert!(json::parse::<Body<'_>>(br#"{"items":[{"queue":1,"payload":1}]}"#).is_err());
        assert!(json::parse::<Body<'_>>(br#"{}"#).is_err());
        assert!(json::parse::<Body<'_>>(br#"{"items":[]}"#).unwrap().items.is_empty());
    }

    #[test]
    fn payloads_are_the_bytes_that_came() {
        let text = br#"{"items":[{"queue":"a\u0062", "payload": {"n" : 1.10, "big":12345678901234567890123} }]}"#;
        let body: Body<'_> = json::parse(text).unwrap();
        assert_eq!(body.items[0].payload.get(), r#"{"n" : 1.10, "big":12345678901234567890123}"#);
        assert_eq!(body.items[0].queue, "ab");
    }

    #[test]
    fn rows_come_out_in_the_order_of_their_items() {
        let mut rows = Rows::default();
        for index in [2, 0, 1] {
            rows.begin(index).push(b'}');
        }
        assert_eq!(rows.finish(), br#"[{"index":0,},{"index":1,},{"index":2,}]"#);
        let mut rows = Rows::default();
        for index in [0, 1, 7] {
            rows.begin(index).push(b'}');
        }
        assert_eq!(rows.finish(), br#"[{"index":0,},{"index":1,},{"index":7,}]"#);
        assert_eq!(Rows::default().finish(), b"[]");
    }

    #[test]
    fn a_message_without_an_id_of_its_own_takes_the_derived_one() {
        let reply = PushReply {
            promise: Promise::Durable,
            partition_id: 3,
            created_at_us: 0,
            results: PushResults::Each(vec![PushResult::Stored(9), PushResult::Duplicate(4), PushResult::Dropped]),
        };
        let row = |id: Option<&str>| Row { index: 0, transaction_id: id.map(str::to_owned) };
        let stored = outcome(7, &reply, 0, &row(None));
        assert_eq!((stored.message_id.clone(), stored.offset), (derived_id(7, 3, 9), Some(9)));
        assert_eq!(stored.transaction_id, stored.message_id);
        let duplicate = outcome(7, &reply, 1, &row(Some("mine")));
        assert_eq!((duplicate.message_id, duplicate.transaction_id.as_str()), (derived_id(7, 3, 4), "mine"));
        assert_eq!(outcome(7, &reply, 2, &row(Some("mine"))).offset, None);
    }
}
