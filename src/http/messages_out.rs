//! Writing the messages of a pop: by hand, since this is the way of every message that leaves over HTTP.

use std::borrow::Cow;

use bytes::Bytes;

use crate::model::{BatchSlice, Claim, PopReply, StoredMessage};
use crate::record::{Attributes, DerivedId, Offset, StoredBatch, ValueRef};

use super::encryption::Cipher;
use super::error::{ApiError, Result};
use super::json::{Payload, Visible, write_field, write_key, write_number, write_optional};
use super::push::{ENCRYPTED, PRODUCER, TRACE};
use super::{ids, time};

/// About as many bytes as a message of an answer has beside its payload and what all messages of its claim share.
const MESSAGE_BYTES: usize = 240;

/// What a pop took, and for whom.
pub(super) struct Delivered<'a> {
    pub(super) reply: &'a PopReply,
    pub(super) group: &'a str,
    pub(super) cipher: &'a Cipher,
}

/// Writes the answer up to its last brace, which is the caller's. How many messages it has.
pub(super) fn write_pop(out: &mut Vec<u8>, delivered: &Delivered<'_>) -> Result<u64> {
    let reply = delivered.reply;
    let first = reply.claims.first();
    let (queue, partition) = first.map_or(("", ""), |claim| (claim.queue.as_str(), claim.partition.as_str()));
    let partition_id = first.map_or_else(String::new, |claim| ids::partition_id(claim.incarnation, claim.partition_id));
    out.extend_from_slice(b"{\"success\":true,");
    for (key, text) in [("queue", queue), ("partition", partition), ("partitionId", &partition_id), ("leaseId", &reply.lease_id)]
    {
        write_field(out, key, text);
        out.push(b',');
    }
    if !reply.lease_id.is_empty() {
        write_field(out, "leaseExpiresAt", &time::iso(reply.lease_expires_at_us));
        out.push(b',');
    }
    write_field(out, "consumerGroup", delivered.group);
    out.extend_from_slice(b",\"messages\":[");
    let mut written = 0;
    for claim in &reply.claims {
        let mut writer = Writer::new(out, claim, delivered);
        for batch in &claim.batches {
            written = writer.batch(batch, written)?;
        }
    }
    out.extend_from_slice(b"],\"partitionsClaimed\":");
    write_number(out, reply.claims.len() as u64);
    write_notices(out, &reply.claims);
    Ok(written)
}

/// The offsets of a claim's messages, in order.
pub(super) fn offsets(claim: &Claim) -> Result<Vec<Offset>> {
    let mut offsets = Vec::new();
    for batch in &claim.batches {
        offsets.extend(messages(batch)?.iter().map(|message| message.offset));
    }
    Ok(offsets)
}

/// The messages of a batch, unpacked if it came whole.
pub(super) fn messages(batch: &BatchSlice) -> Result<Cow<'_, [StoredMessage]>> {
    match batch {
        BatchSlice::Messages(messages) => Ok(Cow::Borrowed(messages)),
        BatchSlice::Whole(bytes) => {
            StoredBatch::parse(bytes.clone()).and_then(|batch| batch.messages()).map(Cow::Owned).map_err(|error| damaged(&error))
        }
    }
}

fn damaged(error: &dyn std::fmt::Display) -> ApiError {
    ApiError::internal(format!("a stored batch does not decode: {error}"))
}

/// The payload as its producer gave it, and whether it was stored encrypted.
pub(super) fn plain(message: &StoredMessage, cipher: &Cipher) -> Result<(Bytes, bool)> {
    match is_encrypted(&message.attributes) {
        true => Ok((cipher.open(&message.payload)?, true)),
        false => Ok((message.payload.clone(), false)),
    }
}

fn is_encrypted(attributes: &Attributes) -> bool {
    !attributes.is_empty() && attributes.get(ENCRYPTED).is_some()
}

/// A text that the gateway keeps in an attribute of its own.
pub(super) fn reserved<'a>(message: &'a StoredMessage, key: &str) -> Option<&'a str> {
    text_of(&message.attributes, key)
}

fn text_of<'a>(attributes: &'a Attributes, key: &str) -> Option<&'a str> {
    match attributes.get(key) {
        Some(ValueRef::String(text)) => Some(text),
        _ => None,
    }
}

/// A message as it is about to be written.
struct Shown<'a> {
    offset: Offset,
    created_at_us: u64,
    transaction_id: Option<&'a str>,
    attributes: Cow<'a, Attributes>,
    payload: &'a [u8],
    delivery_count: u32,
}

/// Writes the messages of a claim.
struct Writer<'a> {
    out: &'a mut Vec<u8>,
    claim: &'a Claim,
    cipher: &'a Cipher,
    /// The end of every message, which is the same for all of them.
    tail: Vec<u8>,
    /// The last time that was written, and how: messages of a batch share it.
    created_at: (u64, String),
}

impl<'a> Writer<'a> {
    fn new(out: &'a mut Vec<u8>, claim: &'a Claim, delivered: &'a Delivered<'_>) -> Self {
        let mut tail = Vec::new();
        let partition_id = ids::partition_id(claim.incarnation, claim.partition_id);
        let fields = [
            ("queue", claim.queue.as_str()),
            ("partitionId", &partition_id),
            ("partition", &claim.partition),
            ("leaseId", &delivered.reply.lease_id),
            ("consumerGroup", delivered.group),
        ];
        for (key, text) in fields {
            tail.push(b',');
            write_field(&mut tail, key, text);
        }
        tail.push(b'}');
        Self { out, claim, cipher: delivered.cipher, tail, created_at: (0, time::iso(0)) }
    }

    /// Writes a batch after `written` messages; how many it is then. A batch that came whole is unpacked on the way.
    fn batch(&mut self, batch: &BatchSlice, mut written: u64) -> Result<u64> {
        let bytes = match batch {
            BatchSlice::Whole(bytes) => bytes,
            BatchSlice::Messages(messages) => {
                for message in messages {
                    self.message(
                        &Shown {
                            offset: message.offset,
                            created_at_us: message.created_at_us,
                            transaction_id: message.transaction_id.as_deref(),
                            attributes: Cow::Borrowed(&message.attributes),
                            payload: &message.payload,
                            delivery_count: message.delivery_count,
                        },
                        written > 0,
                    )?;
                    written += 1;
                }
                return Ok(written);
            }
        };
        let batch = StoredBatch::parse(bytes.clone()).and_then(|batch| batch.open()).map_err(|error| damaged(&error))?;
        let (base, created_at_us, count) = (batch.batch().base_offset, batch.created_at_us(), batch.batch().count);
        self.out.reserve(batch.block_bytes() + count as usize * (MESSAGE_BYTES + self.tail.len()));
        for (entry, offset) in batch.entries().map_err(|error| damaged(&error))?.zip(base..) {
            let entry = entry.map_err(|error| damaged(&error))?;
            let attributes = match entry.attributes {
                [] => Attributes::default(),
                encoded => Attributes::decode(encoded).map_err(|error| damaged(&error))?,
            };
            self.message(
                &Shown {
                    offset,
                    created_at_us,
                    transaction_id: entry.transaction_id,
                    attributes: Cow::Owned(attributes),
                    payload: batch.payload(&entry),
                    delivery_count: 0,
                },
                written > 0,
            )?;
            written += 1;
        }
        Ok(written)
    }

    fn message(&mut self, message: &Shown<'_>, has_others: bool) -> Result<()> {
        let attributes: &Attributes = &message.attributes;
        let opened;
        let payload = match is_encrypted(attributes) {
            true => {
                opened = self.cipher.open(message.payload)?;
                Payload::of(&opened)
            }
            false => Payload::of(message.payload),
        };
        if self.created_at.0 != message.created_at_us {
            self.created_at = (message.created_at_us, time::iso(message.created_at_us));
        }
        let id = DerivedId::new(self.claim.incarnation, self.claim.partition_id, message.offset);
        let out = &mut *self.out;
        out.extend_from_slice(if has_others { b",{" } else { b"{" });
        write_field(out, "id", id.as_str());
        out.push(b',');
        write_field(out, "transactionId", message.transaction_id.unwrap_or(id.as_str()));
        out.push(b',');
        write_optional(out, "traceId", text_of(attributes, TRACE));
        out.extend_from_slice(b",\"data\":");
        payload.write(out);
        if let Some(encoding) = payload.encoding() {
            out.push(b',');
            write_field(out, "dataEncoding", encoding);
        }
        let visible = Visible(attributes);
        if !visible.is_empty() {
            out.extend_from_slice(b",\"attributes\":");
            serde_json::to_writer(&mut *out, &visible).map_err(|error| ApiError::internal(error.to_string()))?;
        }
        out.push(b',');
        write_optional(out, "producerSub", text_of(attributes, PRODUCER));
        out.push(b',');
        write_field(out, "createdAt", &self.created_at.1);
        out.extend_from_slice(b",\"offset\":");
        write_number(out, message.offset);
        out.extend_from_slice(b",\"deliveryAttempt\":");
        write_number(out, message.delivery_count.max(self.claim.delivery_count).into());
        out.extend_from_slice(&self.tail);
        Ok(())
    }
}

/// What a reader must hear of a claim beyond its messages: why the last delivery failed, and what it will never get.
fn write_notices(out: &mut Vec<u8>, claims: &[Claim]) {
    let mut is_first = true;
    for claim in claims.iter().filter(|claim| claim.lost.is_some() || !claim.last_error.is_empty()) {
        out.extend_from_slice(if std::mem::take(&mut is_first) { b",\"notices\":[{" } else { b",{" });
        write_field(out, "partition", &claim.partition);
        if !claim.last_error.is_empty() {
            out.push(b',');
            write_field(out, "lastError", &claim.last_error);
        }
        if let Some(lost) = claim.lost {
            out.push(b',');
            write_key(out, "lost");
            out.extend_from_slice(format!("{{\"first\":{},\"last\":{}}}", lost.first, lost.last).as_bytes());
        }
        out.push(b'}');
    }
    if !is_first {
        out.push(b']');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::OffsetRange;
    use crate::record::derived_id;
    use serde_json::{Value, json};

    fn claim(messages: Vec<StoredMessage>) -> Claim {
        Claim {
            queue: "q".into(),
            partition: "p \"1\"".into(),
            partition_id: 2,
            incarnation: 0xab,
            range: OffsetRange { first: 5, last: 6 },
            delivery_count: 1,
            last_error: String::new(),
            lost: None,
            batches: vec![BatchSlice::Messages(messages)],
        }
    }

    fn message(payload: &'static [u8]) -> StoredMessage {
        StoredMessage {
            offset: 5,
            created_at_us: 1,
            transaction_id: Some("t".into()),
            attributes: Attributes::default(),
            payload: Bytes::from_static(payload),
            delivery_count: 0,
        }
    }

    fn written(claims: Vec<Claim>) -> String {
        let reply = PopReply { lease_id: "L".into(), lease_expires_at_us: 0, claims };
        let mut out = Vec::new();
        write_pop(&mut out, &Delivered { reply: &reply, group: "g", cipher: &Cipher::new(None) }).unwrap();
        out.push(b'}');
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_pop_has_queens_shape() {
        let text = written(vec![claim(vec![message(b"{\"n\": 1.0}")])]);
        assert!(text.contains(r#""data":{"n": 1.0},"#), "{text}");
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            value,
            json!({
                "success": true, "queue": "q", "partition": "p \"1\"", "partitionId": "ab-2", "leaseId": "L",
                "leaseExpiresAt": "1970-01-01T00:00:00.000000Z", "consumerGroup": "g", "partitionsClaimed": 1,
                "messages": [{
                    "id": derived_id(0xab, 2, 5), "transactionId": "t", "traceId": null, "data": {"n": 1.0}, "producerSub": null,
                    "createdAt": "1970-01-01T00:00:00.000001Z", "offset": 5, "deliveryAttempt": 1, "queue": "q",
                    "partitionId": "ab-2", "partition": "p \"1\"", "leaseId": "L", "consumerGroup": "g",
                }],
            })
        );
    }

    #[test]
    fn other_payloads_attributes_and_notices_are_shown() {
        let mut odd = message(b"\xff\xfe");
        odd.attributes.insert("a", 1).unwrap();
        odd.attributes.insert(TRACE, "trace").unwrap();
        let mut claim = claim(vec![odd]);
        claim.last_error = "boom".into();
        claim.lost = Some(OffsetRange { first: 0, last: 4 });
        let value: Value = serde_json::from_str(&written(vec![claim])).unwrap();
        let message = &value["messages"][0];
        assert_eq!((&message["data"], &message["dataEncoding"]), (&json!("//4="), &json!("base64")));
        assert_eq!((&message["attributes"], &message["traceId"]), (&json!({"a": 1}), &json!("trace")));
        assert_eq!(value["notices"], json!([{"partition": "p \"1\"", "lastError": "boom", "lost": {"first": 0, "last": 4}}]));
    }

    #[test]
    fn an_encrypted_message_without_a_key_is_an_error() {
        let mut sealed = message(b"{}");
        sealed.attributes.insert(ENCRYPTED, "aes-256-gcm").unwrap();
        assert_eq!(plain(&sealed, &Cipher::new(None)).unwrap_err().code, "encryption_key_missing");
    }
}
