//! The durable part of a delivery: what log records and cursor files carry of one (partition, group).

use crate::model::OffsetRange;
use crate::record::Offset;

use super::notes::Notes;
use super::runs::{OffsetSet, Runs};

/// How far beyond `next` a shared group may hand out or complete messages: bounds the memory and the encoding of a cursor
/// whose lowest message is stuck.
pub const WINDOW: u64 = 16_384;

/// Position and progress of one group in one partition.
///
/// `version` grows with each change: applying the greatest version seen gives the same cursor, whatever the order and however
/// often records are replayed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cursor {
    /// The next offset wanted: everything below is done.
    pub(super) next: Offset,
    pub(super) version: u64,
    pub(super) total_consumed: u64,
    pub(super) last_consumed_at_us: u64,
    /// Offsets above `next` that are done; never `next` itself.
    pub(super) done: OffsetSet,
    /// Deliveries so far of messages at or above `next`.
    pub(super) deliveries: Runs<u32>,
    /// Messages at or above `next` that were handed back.
    pub(super) notes: Notes,
}

/// A cursor with nothing in flight: all there is to keep of an idle one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlainCursor {
    /// The next offset wanted.
    pub next: Offset,
    /// The cursor's version.
    pub version: u64,
    /// Messages consumed since the cursor was made.
    pub total_consumed: u64,
    /// When one was last consumed, microseconds since the Unix epoch; 0 is never.
    pub last_consumed_at_us: u64,
}

impl From<PlainCursor> for Cursor {
    fn from(plain: PlainCursor) -> Self {
        let PlainCursor { next, version, total_consumed, last_consumed_at_us } = plain;
        Self { next, version, total_consumed, last_consumed_at_us, ..Self::default() }
    }
}

impl Cursor {
    /// A new cursor that wants `next` first.
    pub fn new(next: Offset) -> Self {
        Self { next, ..Self::default() }
    }

    /// The next offset wanted: everything below is done.
    pub fn next(&self) -> Offset {
        self.next
    }

    /// Grows with each change; a replay applies only a greater one.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Messages consumed (acknowledged, dead-lettered or dropped) since the cursor was made. A seek does not reset it.
    pub fn total_consumed(&self) -> u64 {
        self.total_consumed
    }

    /// When a message was last consumed, microseconds since the Unix epoch; `None` if never.
    pub fn last_consumed_at_us(&self) -> Option<u64> {
        (self.last_consumed_at_us > 0).then_some(self.last_consumed_at_us)
    }

    /// Whether the group is done with `offset`.
    pub fn is_done(&self, offset: Offset) -> bool {
        offset < self.next || self.done.contains(offset)
    }

    /// The offsets above `next` that are done. In ordered mode these are dead letters that left before their elders.
    pub fn done_above(&self) -> &OffsetSet {
        &self.done
    }

    /// How often `offset` has been handed out, the present time included; 0 if it is done or never was.
    pub fn delivery_count(&self, offset: Offset) -> u32 {
        self.deliveries.get(offset).unwrap_or(0)
    }

    /// How often messages that are not done were delivered; those never delivered are not there.
    pub fn deliveries(&self) -> &Runs<u32> {
        &self.deliveries
    }

    /// Failures charged to `offset`.
    pub fn failures(&self, offset: Offset) -> u32 {
        self.notes.get(offset).map_or(0, |note| note.failures)
    }

    /// Why `offset` was last handed back; empty if it never was or no reason was given.
    pub fn last_error(&self, offset: Offset) -> &str {
        self.notes.get(offset).map_or("", |note| &note.error)
    }

    /// The cursor in its small form, if nothing is in flight or done above `next`.
    pub fn plain(&self) -> Option<PlainCursor> {
        let &Self { next, version, total_consumed, last_consumed_at_us, .. } = self;
        let is_plain = self.done.is_empty() && self.deliveries.is_empty() && self.notes.is_empty();
        is_plain.then_some(PlainCursor { next, version, total_consumed, last_consumed_at_us })
    }

    /// Moves `next` up to `target` and over what is done there; forgets what is known of messages below.
    pub(super) fn pass_to(&mut self, target: Offset) {
        self.next = self.next.max(target);
        if self.done.contains(self.next) {
            self.next = self.done.gaps(self.next, Offset::MAX).next().map_or(Offset::MAX, |gap| gap.first);
        }
        self.done.clear_below(self.next);
        self.deliveries.clear_below(self.next);
        self.notes.clear_below(self.next);
    }

    /// Marks messages done, whatever lies below them.
    pub(super) fn mark_done(&mut self, range: OffsetRange) {
        self.done.set(range, ());
        self.deliveries.clear(range);
        self.notes.clear(range);
    }

    /// Goes to `target`, forward or back, with nothing in flight.
    pub(super) fn go_to(&mut self, target: Offset) {
        self.next = target;
        self.done = OffsetSet::default();
        self.deliveries = Runs::default();
        self.notes = Notes::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passing_carries_over_what_is_done_and_forgets_what_lies_below() {
        let mut cursor = Cursor::new(300);
        cursor.done.set(OffsetRange { first: 302, last: 303 }, ());
        cursor.done.insert(310);
        cursor.deliveries.set(OffsetRange { first: 300, last: 309 }, 1);
        cursor.notes.hand_back(301, "no", true);
        cursor.pass_to(302);
        assert_eq!((cursor.next(), cursor.failures(301), cursor.delivery_count(301)), (304, 0, 0));
        assert_eq!((cursor.delivery_count(305), cursor.is_done(310), cursor.is_done(309)), (1, true, false));
        cursor.pass_to(310);
        assert_eq!(cursor.next(), 311);
        assert!(cursor.plain().is_some());
    }
}
