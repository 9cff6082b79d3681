//! `POST /push`: items for any queues and partitions; each partition's items are stored together or not at all.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Write as _;
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
use crate::record::{Attributes, DEFAULT_PARTITION, Message, TRANSACTION_ID_BYTES_MAX, check_name, derived_id};

use super::body::Raw;
use super::encryption::Cipher;
use super::error::{ApiError, Result, code_name};
use super::json::{self, write_field};
use super::{Gateway, ids};

/// Attribute of an encrypted payload.
pub(super) const ENCRYPTED: &str = "fanlog.encrypted";
/// Attribute with the trace id of a transaction's push.
pub(super) const TRACE: &str = "fanlog.trace";
/// Attribute with the authenticated producer.
pub(super) const PRODUCER: &str = "fanlog.producer";

/// Larger bodies are read, filtered and compressed on a blocking thread.
const INLINE_BYTES_MAX: usize = 256 * 1024;

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
    partition: Option<Cow<'a, str>>,
    #[serde(borrow)]
    payload: &'a RawValue,
    #[serde(borrow)]
    transaction_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    attributes: Option<&'a RawValue>,
    /// Kept only in a transaction: a plain push drops it, as Queen does.
    #[serde(borrow)]
    trace_id: Option<Cow<'a, str>>,
}

/// The items of one partition, and where their results belong.
pub(super) struct Group {
    pub(super) request: PushRequest,
    pub(super) rows: Vec<Row>,
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
    places: HashMap<(String, String), usize>,
    encrypted: HashMap<String, bool>,
}

impl<'a> Grouping<'a> {
    pub(super) fn new(engine: &'a Engine, cipher: &'a Cipher, body: &'a Bytes, keeps_trace: bool) -> Self {
        Self { engine, cipher, body, keeps_trace, groups: Vec::new(), places: HashMap::new(), encrypted: HashMap::new() }
    }

    /// Adds an item; an error refuses the whole request, before anything is stored.
    pub(super) fn add(&mut self, index: usize, item: Item<'_>) -> Result<()> {
        let named = |error: ApiError| ApiError { text: format!("item {index}: {}", error.text), ..error };
        let partition = item.partition.unwrap_or(Cow::Borrowed(DEFAULT_PARTITION));
        check_name(&item.queue).map_err(|error| named(error.into()))?;
        check_name(&partition).map_err(|error| named(error.into()))?;
        let transaction_id = item.transaction_id.filter(|id| !id.is_empty()).map(Cow::into_owned);
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
        if self.is_encrypted(&item.queue) {
            payload = self.cipher.seal(&payload).map_err(named)?;
            reserve(&mut attributes, ENCRYPTED, "aes-256-gcm").map_err(named)?;
        }
        let message = Message { transaction_id: transaction_id.clone(), attributes, payload };
        self.group(&item.queue, &partition).push(message, Row { index, transaction_id });
        Ok(())
    }

    /// The groups, in order of their first item.
    pub(super) fn finish(self) -> Vec<Group> {
        self.groups
    }

    fn group(&mut self, queue: &str, partition: &str) -> &mut Group {
        // Most requests have one group: look at the last one before hashing.
        let is_last =
            self.groups.last().is_some_and(|group| group.request.queue == queue && group.request.partition == partition);
        let at = if is_last {
            self.groups.len() - 1
        } else {
            let next = self.groups.len();
            *self.places.entry((queue.to_owned(), partition.to_owned())).or_insert(next)
        };
        if at == self.groups.len() {
            let request = PushRequest { queue: queue.to_owned(), partition: partition.to_owned(), ..PushRequest::default() };
            self.groups.push(Group { request, rows: Vec::new() });
        }
        &mut self.groups[at]
    }

    fn is_encrypted(&mut self, queue: &str) -> bool {
        if let Some(&is_encrypted) = self.encrypted.get(queue) {
            return is_encrypted;
        }
        // A queue that does not exist yet is made with default settings: plain.
        let is_encrypted = self.engine.settings(queue).is_ok_and(|(_, settings)| settings.encryption_enabled);
        self.encrypted.insert(queue.to_owned(), is_encrypted);
        is_encrypted
    }
}

impl Group {
    fn push(&mut self, message: Message, row: Row) {
        if let PushItem::Messages(messages) = &mut self.request.items {
            messages.push(message);
        }
        self.rows.push(row);
    }
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
    pub(super) is_duplicate: bool,
}

/// The outcome of the item in `row`, the `position`th of its push.
pub(super) fn outcome(incarnation: u64, reply: &PushReply, position: usize, row: &Row) -> Outcome {
    let (offset, is_duplicate) = match reply.results.get(position) {
        Some(PushResult::Stored(offset)) => (Some(offset), false),
        Some(PushResult::Duplicate(offset)) => (Some(offset), true),
        Some(PushResult::Dropped) | None => (None, false),
    };
    // A message that no group takes has no place to make an id from, but the client is still given one.
    let message_id = match offset {
        Some(offset) => derived_id(incarnation, reply.partition_id, offset),
        None => uuid::Uuid::now_v7().to_string(),
    };
    let transaction_id = row.transaction_id.clone().unwrap_or_else(|| message_id.clone());
    Outcome { message_id, transaction_id, offset, is_duplicate }
}

/// The incarnation of a queue that was just pushed to.
pub(super) fn incarnation(engine: &Engine, queue: &str) -> u64 {
    engine.settings(queue).map_or(0, |(incarnation, _)| incarnation)
}

type Pending = (Group, oneshot::Receiver<model::Result<PushReply>>);

/// `POST /api/v1/push`
pub(super) async fn push(State(gateway): State<Arc<Gateway>>, body: Raw) -> Result<Response> {
    let pending = if body.bytes.len() <= INLINE_BYTES_MAX {
        submit(&gateway, &body.bytes)?
    } else {
        let (gateway, bytes) = (gateway.clone(), body.bytes.clone());
        let submitting = gateway.clone();
        gateway.blocking(move || submit(&submitting, &bytes)).await?
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
    /// Begins a row.
    fn begin(&mut self, index: usize) -> &mut Vec<u8> {
        self.begins.push((index, self.text.len()));
        // Writing into a vector cannot fail.
        let _ = write!(self.text, "{{\"index\":{index},");
        &mut self.text
    }

    /// The array, in the order of the items.
    fn finish(self) -> Vec<u8> {
        let ends = self.begins.iter().skip(1).map(|&(_, begin)| begin).chain([self.text.len()]);
        let mut rows: Vec<_> = self.begins.iter().zip(ends).map(|(&(index, begin), end)| (index, begin..end)).collect();
        rows.sort_unstable_by_key(|&(index, _)| index);
        let mut out = Vec::with_capacity(self.text.len() + rows.len() + 2);
        out.push(b'[');
        for (position, (_, row)) in rows.into_iter().enumerate() {
            if position > 0 {
                out.push(b',');
            }
            out.extend_from_slice(&self.text[row]);
        }
        out.push(b']');
        out
    }
}

fn submit(gateway: &Gateway, body: &Bytes) -> Result<Vec<Pending>> {
    let parsed: Body<'_> = json::parse(body)?;
    let mut grouping = Grouping::new(&gateway.engine, &gateway.cipher, body, false);
    for (index, item) in parsed.items.into_iter().enumerate() {
        grouping.add(index, item)?;
    }
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
    Ok(grouping.finish().into_iter().map(send).collect())
}

fn render(engine: &Engine, group: &Group, answer: &model::Result<PushReply>, rows: &mut Rows) {
    let mut queue = Vec::new();
    write_field(&mut queue, "queueName", &group.request.queue);
    match answer {
        Ok(reply) => {
            let incarnation = incarnation(engine, &group.request.queue);
            let partition_id = ids::partition_id(incarnation, reply.partition_id);
            for (position, row) in group.rows.iter().enumerate() {
                let outcome = outcome(incarnation, reply, position, row);
                let status = if outcome.is_duplicate { "duplicate" } else { "queued" };
                let out = rows.begin(row.index);
                write_field(out, "message_id", &outcome.message_id);
                out.push(b',');
                write_field(out, "transaction_id", &outcome.transaction_id);
                out.push(b',');
                out.extend_from_slice(&queue);
                // Writing into a vector cannot fail. Dropped is not a status of its own: Queen's clients refuse words that they do
                // not know.
                let _ = match outcome.offset {
                    Some(offset) => {
                        write!(out, ",\"status\":\"{status}\",\"offset\":{offset},\"partitionId\":\"{partition_id}\"}}")
                    }
                    None => write!(out, ",\"status\":\"{status}\",\"dropped\":true}}"),
                };
            }
        }
        Err(error) => {
            let mut reason = Vec::new();
            write_field(&mut reason, "error", &error.text);
            reason.push(b',');
            write_field(&mut reason, "code", &code_name(error.code));
            for row in &group.rows {
                let out = rows.begin(row.index);
                write_field(out, "message_id", "");
                out.push(b',');
                write_field(out, "transaction_id", row.transaction_id.as_deref().unwrap_or_default());
                for part in [&b","[..], &queue, b",\"status\":\"error\",", &reason, b"}"] {
                    out.extend_from_slice(part);
                }
            }
        }
    }
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
        assert!(duplicate.is_duplicate);
        assert_eq!((duplicate.message_id, duplicate.transaction_id.as_str()), (derived_id(7, 3, 4), "mine"));
        assert_eq!(outcome(7, &reply, 2, &row(Some("mine"))).offset, None);
    }
}
