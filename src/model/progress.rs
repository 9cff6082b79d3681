//! Reading progress: lag of groups, state of one message. One definition, used everywhere:
//! lag of a cursor = messages that the group takes between max(next, start) and end.

use crate::record::{Offset, PartitionId};

use super::{GroupInfo, StoredMessage};

/// One cursor.
#[derive(Debug, Clone, PartialEq)]
pub struct CursorProgress {
    /// The partition's name.
    pub partition: String,
    /// The partition's number.
    pub partition_id: PartitionId,
    /// The next offset wanted: everything below is done.
    pub next: Offset,
    /// The oldest offset kept.
    pub start: Offset,
    /// The offset after the newest committed message.
    pub end: Offset,
    /// Messages that the group takes and has not done.
    pub lag: u64,
    /// Age of the oldest of them, in microseconds; 0 without lag.
    pub lag_time_us: u64,
    /// When the oldest of them was stored; `None` without lag.
    pub oldest_at_us: Option<u64>,
    /// Messages handed out and not acknowledged.
    pub in_flight: u64,
    /// When the lease ends, microseconds since the Unix epoch; `None` if there is none.
    pub lease_expires_at_us: Option<u64>,
    /// The lease's id; empty if there is none.
    pub lease_id: String,
    /// Messages acknowledged since the cursor was made.
    pub total_consumed: u64,
    /// When a message was last acknowledged; `None` if never.
    pub last_consumed_at_us: Option<u64>,
}

/// One group in one queue.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupProgress {
    /// The group.
    pub group: GroupInfo,
    /// Cursors that exist.
    pub cursors: u64,
    /// Partitions with lag.
    pub partitions_with_lag: u64,
    /// Messages of lag over all partitions.
    pub lag: u64,
    /// Age of the oldest unread message, in microseconds.
    pub lag_time_us: u64,
    /// Live leases.
    pub leases: u64,
}

/// How far a group is with one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageProgress {
    /// The group's name.
    pub name: String,
    /// Whether its cursor has passed the message (or its filter refused it).
    pub is_consumed: bool,
    /// Whether the group takes the message.
    pub is_taken: bool,
    /// When the lease that holds the message ends, microseconds since the Unix epoch.
    pub lease_expires_at_us: Option<u64>,
}

/// One message with the progress of every group.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageView {
    /// The queue.
    pub queue: String,
    /// The partition's name.
    pub partition: String,
    /// The partition's number.
    pub partition_id: PartitionId,
    /// The message.
    pub message: StoredMessage,
    /// Its id: the producer's own or the derived one.
    pub transaction_id: String,
    /// `completed` only when every named group has passed it; `processing` under a live lease, `dead_letter`, else `pending`.
    pub status: &'static str,
    /// Each group's progress.
    pub groups: Vec<MessageProgress>,
}
