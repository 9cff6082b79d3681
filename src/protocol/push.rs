//! Pushes and transactions. The requests and replies are the model's own.

use crate::model::{
    AckReply, AckRequest, PackedBatch, Promise, PushItem, PushReply, PushRequest, PushResult, PushResults, TransactionReply,
    TransactionRequest,
};
use crate::record::{Attributes, Message};

use bytes::Bytes;

use super::wire::{Wire, bad_value, wire_enum, wire_struct};
use super::{Chunks, Input, ProtocolError};

wire_struct!(Message { transaction_id: Option<String>, attributes: Attributes, payload: Bytes });

wire_struct!(PackedBatch {
    count: u32,
    index_length: u32,
    uncompressed_length: u32,
    codec: u8,
    payload_crc: u32,
    payload: Bytes,
});

impl Wire for PushItem {
    const BYTES_MIN: usize = 1;

    fn encode(&self, out: &mut Chunks) {
        match self {
            Self::Messages(messages) => {
                0u8.encode(out);
                messages.encode(out);
            }
            Self::Packed(batch) => {
                1u8.encode(out);
                batch.encode(out);
            }
        }
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        match u8::decode(input)? {
            0 => Ok(Self::Messages(Vec::decode(input)?)),
            1 => Ok(Self::Packed(PackedBatch::decode(input)?)),
            kind => Err(bad_value("the kind of a push", kind)),
        }
    }
}

wire_struct!(PushRequest {
    queue: String,
    partition: String,
    producer: Option<(u64, u32, u32)>,
    items: PushItem,
});

wire_enum!(Promise, "a promise" { 0 => Durable, 1 => Interval, 2 => Written });

impl Wire for PushResult {
    const BYTES_MIN: usize = 1;

    fn encode(&self, out: &mut Chunks) {
        match self {
            Self::Stored(offset) => {
                0u8.encode(out);
                offset.encode(out);
            }
            Self::Duplicate(offset) => {
                1u8.encode(out);
                offset.encode(out);
            }
            Self::Dropped => 2u8.encode(out),
        }
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        match u8::decode(input)? {
            0 => Ok(Self::Stored(u64::decode(input)?)),
            1 => Ok(Self::Duplicate(u64::decode(input)?)),
            2 => Ok(Self::Dropped),
            kind => Err(bad_value("the result of a push", kind)),
        }
    }
}

impl Wire for PushResults {
    const BYTES_MIN: usize = 1;

    fn encode(&self, out: &mut Chunks) {
        match self {
            Self::Range { base, count } => {
                0u8.encode(out);
                base.encode(out);
                count.encode(out);
            }
            Self::Each(results) => {
                1u8.encode(out);
                results.encode(out);
            }
        }
    }

    /// A range may not run past the last offset, so that adding an index to its base never overflows.
    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        match u8::decode(input)? {
            0 => {
                let (base, count) = (u64::decode(input)?, u32::decode(input)?);
                match base.checked_add(u64::from(count)) {
                    Some(_) => Ok(Self::Range { base, count }),
                    None => Err(bad_value("the base of a range", base)),
                }
            }
            1 => Ok(Self::Each(Vec::decode(input)?)),
            kind => Err(bad_value("the kind of push results", kind)),
        }
    }
}

wire_struct!(PushReply { promise: Promise, partition_id: u32, created_at_us: u64, results: PushResults });

wire_struct!(TransactionRequest { pushes: Vec<PushRequest>, acks: Vec<AckRequest>, required_leases: Vec<String> });

wire_struct!(TransactionReply { pushes: Vec<PushReply>, acks: Vec<AckReply> });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_past_the_last_offset_is_refused() {
        let results = PushResults::Range { base: u64::MAX, count: 1 };
        let body = results.to_chunks().into_bytes();
        assert_eq!(PushResults::from_body(&body), Err(bad_value("the base of a range", u64::MAX)));
    }
}
