//! Seeking: moving a group's cursors.

use crate::record::Offset;

/// Where to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTarget {
    /// The oldest message kept.
    Beginning,
    /// After the newest message.
    End,
    /// This offset, which must lie between start and end (inclusive) in each partition.
    Offset(Offset),
    /// The first message stored at or after this time, microseconds since the Unix epoch; else the end.
    Time(u64),
    /// So many messages forward or back, stopping at start and end.
    Shift(i64),
}

/// Moves a group's cursors in one partition or in all of a queue: releases leases, resets counts, wakes waiting pops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeekRequest {
    /// The queue.
    pub queue: String,
    /// The group; `None` is the primary group.
    pub group: Option<String>,
    /// One partition; `None` is all.
    pub partition: Option<String>,
    /// Where to.
    pub target: SeekTarget,
    /// Only tell what would move.
    pub is_preview: bool,
}

/// One cursor before and after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeekPreview {
    /// The partition's name.
    pub partition: String,
    /// The next offset wanted before.
    pub before: Offset,
    /// The next offset wanted after.
    pub after: Offset,
    /// The oldest offset kept.
    pub start: Offset,
    /// The offset after the newest message.
    pub end: Offset,
}
