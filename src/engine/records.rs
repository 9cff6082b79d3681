//! Bytes of the engine's own records inside control operations: dead letters and traces. See "Control record" in
//! `storage-format.md`.

use bytes::Bytes;

use crate::codec::{Put, Reader, UnexpectedEnd};
use crate::model::TraceEvent;
use crate::record::{Attributes, Offset, PartitionId};

/// A dead letter as it is stored; the names that change are looked up when it is shown.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DeadLetterRecord {
    pub partition: PartitionId,
    pub partition_name: String,
    pub offset: Offset,
    pub group: String,
    pub reason: String,
    pub delivery_count: u32,
    pub created_at_us: u64,
    pub failed_at_us: u64,
    pub transaction_id: Option<String>,
    pub attributes: Attributes,
    pub payload: Bytes,
}

impl DeadLetterRecord {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.payload.len() + 128);
        bytes.put_varint(u64::from(self.partition));
        bytes.put_sized(self.partition_name.as_bytes());
        bytes.put_varint(self.offset);
        bytes.put_sized(self.group.as_bytes());
        bytes.put_sized(self.reason.as_bytes());
        bytes.put_varint(u64::from(self.delivery_count));
        bytes.put_varint(self.created_at_us);
        bytes.put_varint(self.failed_at_us);
        put_optional(&mut bytes, self.transaction_id.as_deref());
        bytes.put_sized(self.attributes.as_bytes());
        bytes.put_sized(&self.payload);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, UnexpectedEnd> {
        let mut reader = Reader::new(bytes);
        let record = Self {
            partition: small(&mut reader)?,
            partition_name: text(&mut reader)?,
            offset: reader.varint()?,
            group: text(&mut reader)?,
            reason: text(&mut reader)?,
            delivery_count: small(&mut reader)?,
            created_at_us: reader.varint()?,
            failed_at_us: reader.varint()?,
            transaction_id: optional(&mut reader)?,
            attributes: Attributes::decode(reader.sized()?).map_err(|_| UnexpectedEnd)?,
            payload: Bytes::copy_from_slice(reader.sized()?),
        };
        if reader.is_empty() { Ok(record) } else { Err(UnexpectedEnd) }
    }
}

/// Encodes a trace.
pub(super) fn encode_trace(event: &TraceEvent) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(event.data.len() + 128);
    bytes.put_varint(u64::from(event.partition_id));
    bytes.put_sized(event.transaction_id.as_bytes());
    bytes.put_sized(event.group.as_bytes());
    bytes.put_varint(event.names.len() as u64);
    for name in &event.names {
        bytes.put_sized(name.as_bytes());
    }
    bytes.put_sized(event.event_type.as_bytes());
    bytes.put_sized(&event.data);
    bytes.put_sized(event.worker_id.as_bytes());
    bytes.put_varint(event.created_at_us);
    bytes
}

/// Decodes a trace.
pub(super) fn decode_trace(bytes: &[u8]) -> Result<TraceEvent, UnexpectedEnd> {
    let mut reader = Reader::new(bytes);
    let partition_id = small(&mut reader)?;
    let transaction_id = text(&mut reader)?;
    let group = text(&mut reader)?;
    let mut names = Vec::new();
    for _ in 0..reader.length()? {
        names.push(text(&mut reader)?);
    }
    let event = TraceEvent {
        partition_id,
        transaction_id,
        group,
        names,
        event_type: text(&mut reader)?,
        data: Bytes::copy_from_slice(reader.sized()?),
        worker_id: text(&mut reader)?,
        created_at_us: reader.varint()?,
    };
    if reader.is_empty() { Ok(event) } else { Err(UnexpectedEnd) }
}

fn put_optional(bytes: &mut Vec<u8>, text: Option<&str>) {
    bytes.put_u8(u8::from(text.is_some()));
    bytes.put_sized(text.unwrap_or_default().as_bytes());
}

fn optional(reader: &mut Reader<'_>) -> Result<Option<String>, UnexpectedEnd> {
    let is_there = reader.u8()? != 0;
    let value = text(reader)?;
    Ok(is_there.then_some(value))
}

fn small(reader: &mut Reader<'_>) -> Result<u32, UnexpectedEnd> {
    u32::try_from(reader.varint()?).map_err(|_| UnexpectedEnd)
}

fn text(reader: &mut Reader<'_>) -> Result<String, UnexpectedEnd> {
    std::str::from_utf8(reader.sized()?).map(str::to_owned).map_err(|_| UnexpectedEnd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_letters_round_trip_and_every_shorter_input_is_refused() {
        let mut attributes = Attributes::new();
        attributes.insert("region", "us").unwrap();
        let record = DeadLetterRecord {
            partition: 3,
            partition_name: "p".to_owned(),
            offset: 4,
            group: "g".to_owned(),
            reason: "r".to_owned(),
            delivery_count: 5,
            created_at_us: 6,
            failed_at_us: 7,
            transaction_id: Some(String::new()),
            attributes,
            payload: Bytes::from_static(b"payload"),
        };
        let bytes = record.encode();
        assert_eq!(DeadLetterRecord::decode(&bytes), Ok(record));
        for cut in 0..bytes.len() {
            assert!(DeadLetterRecord::decode(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn traces_round_trip_and_every_shorter_input_is_refused() {
        let event = TraceEvent {
            partition_id: 1,
            transaction_id: "t".to_owned(),
            group: "g".to_owned(),
            names: vec!["a".to_owned(), "b".to_owned()],
            event_type: "info".to_owned(),
            data: Bytes::from_static(b"{}"),
            worker_id: "w".to_owned(),
            created_at_us: 9,
        };
        let bytes = encode_trace(&event);
        assert_eq!(decode_trace(&bytes), Ok(event));
        for cut in 0..bytes.len() {
            assert!(decode_trace(&bytes[..cut]).is_err());
        }
    }
}
