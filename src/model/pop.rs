//! Popping and fetching: how messages leave the log.

use bytes::Bytes;

use crate::record::{Attributes, Offset, PartitionId};

/// Where a group starts reading when it is first seen. Never used again for a group that has a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At the oldest message kept.
    Beginning,
    /// After the newest message at that moment.
    New,
    /// At the first message stored at or after this time, microseconds since the Unix epoch.
    Time(u64),
    /// At this offset in every partition.
    Offset(Offset),
}

/// Which partitions a pop may take from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PopSource {
    /// One partition of a queue.
    Partition {
        /// The queue.
        queue: String,
        /// The partition's name.
        partition: String,
    },
    /// Any partition of a queue.
    Queue(String),
    /// Any partition of any queue of a namespace and task; an absent one admits all. At least one is there.
    Discover {
        /// The namespace.
        namespace: Option<String>,
        /// The task.
        task: Option<String>,
    },
}

/// Takes messages for a group under a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PopRequest {
    /// Where from.
    pub source: PopSource,
    /// The group; `None` is the primary group.
    pub group: Option<String>,
    /// Messages at most, over all partitions; at least 1.
    pub messages_max: u32,
    /// Payload bytes at most, as stored; the first message or batch comes whatever its size.
    pub bytes_max: u32,
    /// Partitions at most, 1 to 64.
    pub partitions_max: u32,
    /// Lease in milliseconds; `None` is the queue's lease time.
    pub lease_ms: Option<u64>,
    /// Move the cursor on delivery and give no lease: at most once.
    pub auto_ack: bool,
    /// Where the group starts if this is its first pop; `None` is the server's default for named groups.
    pub start: Option<Start>,
    /// Make the group a work queue (shared mode) if this is its first pop: many consumers hold messages of one partition.
    pub shared: bool,
}

impl PopRequest {
    /// A pop of up to `messages_max` messages from any partition of `queue`, for the primary group.
    pub fn any(queue: impl Into<String>, messages_max: u32) -> Self {
        Self {
            source: PopSource::Queue(queue.into()),
            group: None,
            messages_max,
            bytes_max: 4 << 20,
            partitions_max: 1,
            lease_ms: None,
            auto_ack: false,
            start: None,
            shared: false,
        }
    }

    /// The same for a named group.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }
}

/// An inclusive range of offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffsetRange {
    /// The first offset.
    pub first: Offset,
    /// The last offset, at least `first`.
    pub last: Offset,
}

/// What a pop took: one claim for each partition.
#[derive(Debug, Clone, Default)]
pub struct PopReply {
    /// The lease's id, shared by all claims; empty with auto-ack and when no claim has messages.
    pub lease_id: String,
    /// When the lease ends, microseconds since the Unix epoch (for people; the server counts on its steady clock).
    pub lease_expires_at_us: u64,
    /// The claims; none when nothing was ready.
    pub claims: Vec<Claim>,
}

/// Messages of one partition that a pop took, or only word of those that are lost: the claim then has no messages and no lease.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The queue.
    pub queue: String,
    /// The partition's name.
    pub partition: String,
    /// The partition's number.
    pub partition_id: PartitionId,
    /// The queue's incarnation: changes when a queue is deleted and made again.
    pub incarnation: u64,
    /// The inclusive range of offsets that the lease covers, matching or not.
    pub range: OffsetRange,
    /// Which delivery of the first message this is, from 1; 0 without messages.
    pub delivery_count: u32,
    /// Why the last delivery of the first message failed; empty if none did.
    pub last_error: String,
    /// Offsets that retention or damage removed before the claim, if the group had not read them: a notice, given once.
    pub lost: Option<OffsetRange>,
    /// The messages, in order of offset; none if what was left for the group is lost.
    pub batches: Vec<BatchSlice>,
}

/// Messages of one stored batch.
#[derive(Debug, Clone)]
pub enum BatchSlice {
    /// The batch as it lies on disk (record header, match table, payload); every message of it belongs to the reader.
    Whole(Bytes),
    /// Only the messages that belong to the reader.
    Messages(Vec<StoredMessage>),
}

/// One message as it leaves the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    /// Its offset.
    pub offset: Offset,
    /// When the log stored it, microseconds since the Unix epoch.
    pub created_at_us: u64,
    /// The producer's own id, if it gave one.
    pub transaction_id: Option<String>,
    /// Its attributes.
    pub attributes: Attributes,
    /// Its payload.
    pub payload: Bytes,
    /// Deliveries so far, this one included; 0 where a reader without a group took it.
    pub delivery_count: u32,
}

/// Reads a range of offsets of one partition without a group, a lease or a cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchRequest {
    /// The queue.
    pub queue: String,
    /// The partition's name.
    pub partition: String,
    /// The first offset wanted. An offset below the start is an error that names the range removed; one at the end is an empty reply.
    pub from: Offset,
    /// The first offset not wanted; `None` is the end.
    pub to: Option<Offset>,
    /// Messages at most.
    pub messages_max: u32,
    /// Payload bytes at most; the first batch comes whatever its size.
    pub bytes_max: u32,
}

/// What a fetch read.
#[derive(Debug, Clone)]
pub struct FetchReply {
    /// The queue's incarnation.
    pub incarnation: u64,
    /// The partition's number.
    pub partition_id: PartitionId,
    /// The oldest offset kept.
    pub start: Offset,
    /// The offset after the newest committed message.
    pub end: Offset,
    /// The offset to go on from.
    pub next: Offset,
    /// The batches. A whole batch may begin before `from` or end after `to`: the reader drops what it did not ask for.
    pub batches: Vec<BatchSlice>,
}
