//! Pushing: what a producer sends and what it hears.

use bytes::Bytes;

use crate::record::{Message, Offset};

use super::{AckRequest, Durability};

/// A push into one partition of one queue: all of it is stored or none.
#[derive(Debug, Clone, Default)]
pub struct PushRequest {
    /// The queue; made with default settings if it does not exist.
    pub queue: String,
    /// The partition; made if it does not exist.
    pub partition: String,
    /// The messages.
    pub items: PushItem,
    /// Identity of the producer for resends: (producer id, epoch, sequence of this push in the partition, counted from 0 by one
    /// for each push). 0 as producer id means none. A resend of a stored sequence is answered with the original offsets.
    pub producer: Option<(u64, u32, u32)>,
}

/// The messages of a push.
#[derive(Debug, Clone)]
pub enum PushItem {
    /// The server packs them.
    Messages(Vec<Message>),
    /// The client packed and compressed them; the server verifies.
    Packed(PackedBatch),
}

impl Default for PushItem {
    fn default() -> Self {
        Self::Messages(Vec::new())
    }
}

/// A finished batch: message index and bodies, perhaps compressed, as they will lie on disk. See `storage-format.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedBatch {
    /// Number of messages, at least 1.
    pub count: u32,
    /// Bytes of the message index at the front of the uncompressed block.
    pub index_length: u32,
    /// Bytes of the uncompressed block (index and bodies).
    pub uncompressed_length: u32,
    /// 0 = plain, 1 = zstd.
    pub codec: u8,
    /// CRC-32 of `payload`.
    pub payload_crc: u32,
    /// The block, as `codec` says.
    pub payload: Bytes,
}

/// What the reply promises of what it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// On disk: `fdatasync` returned.
    Durable,
    /// Written to the operating system; on disk within the queue's interval.
    Interval,
    /// Written to the operating system.
    Written,
}

impl From<Durability> for Promise {
    fn from(durability: Durability) -> Self {
        match durability {
            Durability::Sync => Self::Durable,
            Durability::Interval { .. } => Self::Interval,
            Durability::Os => Self::Written,
        }
    }
}

/// What became of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushResult {
    /// Stored at this offset.
    Stored(Offset),
    /// Its transaction id was stored before, at this offset; nothing was written.
    Duplicate(Offset),
    /// No enabled group takes it; it was not stored.
    Dropped,
}

/// The reply to a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushReply {
    /// What the reply promises.
    pub promise: Promise,
    /// The partition's number.
    pub partition_id: u32,
    /// When the log stored it, microseconds since the Unix epoch.
    pub created_at_us: u64,
    /// What became of the messages.
    pub results: PushResults,
}

/// Results of a push, short when nothing special happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PushResults {
    /// All `count` messages were stored at consecutive offsets from `base`.
    Range {
        /// The first one's offset.
        base: Offset,
        /// How many.
        count: u32,
    },
    /// One result for each message, in order.
    Each(Vec<PushResult>),
}

impl PushResults {
    /// The result of the message at `index` of the push.
    pub fn get(&self, index: usize) -> Option<PushResult> {
        match self {
            Self::Range { base, count } => {
                let index = u32::try_from(index).ok()?;
                (index < *count).then(|| PushResult::Stored(base + u64::from(index)))
            }
            Self::Each(results) => results.get(index).copied(),
        }
    }

    /// How many results there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Range { count, .. } => *count as usize,
            Self::Each(results) => results.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Pushes and acknowledgements that happen all or not at all.
#[derive(Debug, Clone, Default)]
pub struct TransactionRequest {
    /// Pushes to any queues.
    pub pushes: Vec<PushRequest>,
    /// Acknowledgements in any queues.
    pub acks: Vec<AckRequest>,
    /// Lease ids that must be live, else nothing happens.
    pub required_leases: Vec<String>,
}

/// The reply to a transaction that happened. One that did not happen is an [`Error`](super::Error) with `Duplicate` or `AckRejected`.
#[derive(Debug, Clone)]
pub struct TransactionReply {
    /// One for each push, in order.
    pub pushes: Vec<PushReply>,
    /// One for each acknowledgement request, in order.
    pub acks: Vec<super::AckReply>,
}
