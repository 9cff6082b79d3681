//! What an administrator sees: queues, dead letters, traces, counters.

use bytes::Bytes;

use crate::record::{Attributes, Offset, PartitionId};

use super::QueueSettings;

/// What is known of a queue.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueInfo {
    /// Its name.
    pub name: String,
    /// Its incarnation.
    pub incarnation: u64,
    /// When it was made, microseconds since the Unix epoch.
    pub created_at_us: u64,
    /// Its settings.
    pub settings: QueueSettings,
    /// Its counters.
    pub stats: QueueStats,
}

/// Counters of a queue. Those marked persistent survive a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueStats {
    /// Partitions.
    pub partitions: u64,
    /// Groups, the primary one included.
    pub groups: u64,
    /// Messages kept (between start and end of each partition).
    pub messages: u64,
    /// Messages ever stored (persistent).
    pub messages_pushed: u64,
    /// Messages that no group took (persistent).
    pub messages_dropped: u64,
    /// Pushes answered with a duplicate, since start.
    pub duplicates: u64,
    /// Messages handed out to groups, since start.
    pub messages_popped: u64,
    /// Messages acknowledged, since start.
    pub messages_acked: u64,
    /// Dead letters kept.
    pub dead_letters: u64,
    /// Bytes of log on disk.
    pub log_bytes: u64,
    /// Segments.
    pub segments: u64,
    /// Group commits, since start.
    pub commits: u64,
    /// Bytes written by commits, since start.
    pub bytes_written: u64,
    /// Syncs, since start.
    pub syncs: u64,
    /// Sum of the time that syncs took, in microseconds, since start.
    pub sync_time_us: u64,
    /// Messages that retention removed before a group that takes them had acknowledged them, for each such group, since start.
    pub messages_lost_unread: u64,
    /// Whether a failed sync stopped writing until restart.
    pub is_poisoned: bool,
}

/// Messages that were lost before a group read them, since start; each counts once for each group that lost it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Losses {
    /// Retention took them.
    pub unread: u64,
    /// Damage took them, as far as a group has come to it.
    pub damaged: u64,
}

/// Counters of the whole engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerStats {
    /// Queues.
    pub queues: u64,
    /// Sums over all queues.
    pub total: QueueStats,
    /// Bytes that wait for a commit.
    pub pending_bytes: u64,
    /// Free bytes of the file system that holds the data.
    pub disk_free_bytes: u64,
    /// Waiting pops.
    pub waiting_pops: u64,
    /// Start number of this run (first part of lease ids).
    pub start_number: u64,
}

/// What is known of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionInfo {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: PartitionId,
    /// The oldest offset kept.
    pub start: Offset,
    /// The offset after the newest committed message.
    pub end: Offset,
    /// When the newest message was stored, microseconds since the Unix epoch; 0 if there never was one.
    pub newest_at_us: u64,
}

/// A message that a group gave up.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadLetter {
    /// Its number in the queue's dead letters.
    pub id: u64,
    /// The queue.
    pub queue: String,
    /// The partition's name.
    pub partition: String,
    /// The partition's number.
    pub partition_id: PartitionId,
    /// The message's offset.
    pub offset: Offset,
    /// The group that gave it up.
    pub group: String,
    /// Why.
    pub reason: String,
    /// Failed deliveries.
    pub delivery_count: u32,
    /// When the message was stored, microseconds since the Unix epoch.
    pub created_at_us: u64,
    /// When it was given up.
    pub failed_at_us: u64,
    /// Its id: the producer's own or the derived one.
    pub transaction_id: String,
    /// Its attributes.
    pub attributes: Attributes,
    /// Its payload.
    pub payload: Bytes,
}

/// Which dead letters to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeadLetterQuery {
    /// Only of this queue; `None` is all queues.
    pub queue: Option<String>,
    /// Only of this group.
    pub group: Option<String>,
    /// At most so many.
    pub limit: u32,
    /// Skip so many.
    pub skip: u32,
}

/// A remark on a message's way, written by a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceEvent {
    /// The message's partition.
    pub partition_id: PartitionId,
    /// The message's transaction id.
    pub transaction_id: String,
    /// The group that it was handled for.
    pub group: String,
    /// Names to find it by.
    pub names: Vec<String>,
    /// A word for its kind, such as `info` or `error`.
    pub event_type: String,
    /// Anything (JSON by convention).
    pub data: Bytes,
    /// Who wrote it.
    pub worker_id: String,
    /// When, microseconds since the Unix epoch; set by the server.
    pub created_at_us: u64,
}
