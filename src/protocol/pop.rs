//! Pop and fetch: how messages travel to a reader. Stored batches go out as they lie on disk.

use bytes::Bytes;

use crate::model::{
    BatchSlice, Claim, FetchReply, FetchRequest, OffsetRange, PopReply, PopRequest, PopSource, Start, StoredMessage,
};
use crate::record::Attributes;

use super::wire::{Wire, bad_value, wire_struct, wire_type};
use super::{Chunks, Input, ProtocolError};

wire_type!(
    /// Takes messages for a group; waits for some if there are none.
    Pop {
        /// What to take.
        request: PopRequest,
        /// Milliseconds that the server may hold the answer while nothing is ready; 0 answers at once.
        wait_ms: u32,
    }
);

wire_type!(
    /// Reads a range without a group; waits for more at the end.
    Fetch {
        /// What to read.
        request: FetchRequest,
        /// Milliseconds that the server may hold the answer while there is nothing at `from`; 0 answers at once.
        wait_ms: u32,
    }
);

impl Wire for Start {
    const BYTES_MIN: usize = 1;

    fn encode(&self, out: &mut Chunks) {
        match self {
            Self::Beginning => 0u8.encode(out),
            Self::New => 1u8.encode(out),
            Self::Time(time_us) => {
                2u8.encode(out);
                time_us.encode(out);
            }
            Self::Offset(offset) => {
                3u8.encode(out);
                offset.encode(out);
            }
        }
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        match u8::decode(input)? {
            0 => Ok(Self::Beginning),
            1 => Ok(Self::New),
            2 => Ok(Self::Time(u64::decode(input)?)),
            3 => Ok(Self::Offset(u64::decode(input)?)),
            kind => Err(bad_value("a start", kind)),
        }
    }
}

impl Wire for PopSource {
    const BYTES_MIN: usize = 1;

    fn encode(&self, out: &mut Chunks) {
        match self {
            Self::Partition { queue, partition } => {
                0u8.encode(out);
                queue.encode(out);
                partition.encode(out);
            }
            Self::Queue(queue) => {
                1u8.encode(out);
                queue.encode(out);
            }
            Self::Discover { namespace, task } => {
                2u8.encode(out);
                namespace.encode(out);
                task.encode(out);
            }
        }
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        match u8::decode(input)? {
            0 => Ok(Self::Partition { queue: String::decode(input)?, partition: String::decode(input)? }),
            1 => Ok(Self::Queue(String::decode(input)?)),
            2 => Ok(Self::Discover { namespace: Option::decode(input)?, task: Option::decode(input)? }),
            kind => Err(bad_value("the source of a pop", kind)),
        }
    }
}

wire_struct!(PopRequest {
    source: PopSource,
    group: Option<String>,
    messages_max: u32,
    bytes_max: u32,
    partitions_max: u32,
    lease_ms: Option<u64>,
    auto_ack: bool,
    start: Option<Start>,
    shared: bool,
});

impl Wire for OffsetRange {
    const BYTES_MIN: usize = 16;

    fn encode(&self, out: &mut Chunks) {
        self.first.encode(out);
        self.last.encode(out);
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        let (first, last) = (u64::decode(input)?, u64::decode(input)?);
        if first > last {
            return Err(bad_value("the last offset of a range", last));
        }
        Ok(Self { first, last })
    }
}

wire_struct!(StoredMessage {
    offset: u64,
    created_at_us: u64,
    transaction_id: Option<String>,
    attributes: Attributes,
    payload: Bytes,
    delivery_count: u32,
});

impl Wire for BatchSlice {
    const BYTES_MIN: usize = 5;

    fn encode(&self, out: &mut Chunks) {
        match self {
            Self::Whole(record) => {
                0u8.encode(out);
                record.encode(out);
            }
            Self::Messages(messages) => {
                1u8.encode(out);
                messages.encode(out);
            }
        }
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        match u8::decode(input)? {
            0 => Ok(Self::Whole(Bytes::decode(input)?)),
            1 => Ok(Self::Messages(Vec::decode(input)?)),
            kind => Err(bad_value("the kind of a batch", kind)),
        }
    }
}

wire_struct!(Claim {
    queue: String,
    partition: String,
    partition_id: u32,
    incarnation: u64,
    range: OffsetRange,
    delivery_count: u32,
    last_error: String,
    lost: Option<OffsetRange>,
    batches: Vec<BatchSlice>,
});

wire_struct!(PopReply { lease_id: String, lease_expires_at_us: u64, claims: Vec<Claim> });

wire_struct!(FetchRequest {
    queue: String,
    partition: String,
    from: u64,
    to: Option<u64>,
    messages_max: u32,
    bytes_max: u32,
});

wire_struct!(FetchReply {
    incarnation: u64,
    partition_id: u32,
    start: u64,
    end: u64,
    next: u64,
    batches: Vec<BatchSlice>,
});
