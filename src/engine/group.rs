//! One group of a queue in memory: its record, its cursors, and which partitions may have something for it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::filter::Filter;
use crate::format::control::GroupRecord;
use crate::model::{GroupInfo, GroupState, OffsetRange, PRIMARY_GROUP, Start};
use crate::record::{GroupId, Offset, PartitionId};
use crate::storage::log::Log;

use super::bits::Bits;
use super::delivery::{Cursor, Delivery, Mode, OffsetSet, PlainCursor};
use super::partition::{Partition, Partitions};

/// The number of the primary group in every queue.
pub(super) const PRIMARY: GroupId = 0;

/// Called when messages may have become claimable.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Where a group stands in one partition.
#[derive(Debug)]
pub(super) enum Slot {
    /// It has not been there yet.
    Unseeded,
    /// Nothing is in flight.
    Plain {
        /// No message that it still wants lies in an older segment.
        hint: u32,
        cursor: PlainCursor,
    },
    /// Something is, or has been lately.
    Active(Box<Active>),
    /// Its cursor file cannot be read: it is held until an operator seeks it.
    Held(Box<str>),
}

/// A cursor with something in flight.
#[derive(Debug)]
pub(super) struct Active {
    pub hint: u32,
    pub delivery: Delivery,
}

/// A group.
pub(super) struct Group {
    pub record: GroupRecord,
    pub filter: Filter,
    /// Judges batches from before the group was made, if it was given an earlier start and a filter.
    pub first_filter: Option<Arc<Filter>>,
    slots: Vec<Slot>,
    /// Partitions that may have something to hand out, the one waiting longest first.
    ready: VecDeque<PartitionId>,
    queued: Bits,
    /// Partitions that a pop is reading right now.
    reserved: Bits,
    /// Activity of the queue that was looked at.
    seen: u64,
    dirty: Vec<PartitionId>,
    dirty_bits: Bits,
    waiters: VecDeque<(u64, Wake)>,
    /// Offsets that retention or damage took before the group read them, until a claim tells.
    lost: HashMap<PartitionId, OffsetRange>,
    /// Offsets found damaged since start, so that each is counted once however often it is come to.
    damaged: HashMap<PartitionId, OffsetSet>,
    pub popped: u64,
    pub acked: u64,
}

impl Group {
    /// A group as its record says. The filters were checked when the record was made; text that does not parse takes nothing less
    /// than everything away from nobody: it is refused at creation, so it cannot be here.
    pub fn new(record: GroupRecord) -> Self {
        let filter = Filter::parse(&record.filter).unwrap_or_else(|_| Filter::everything());
        let first = Filter::parse(&record.first_filter).unwrap_or_else(|_| Filter::everything());
        Self {
            filter,
            first_filter: (!first.is_everything()).then(|| Arc::new(first)),
            record,
            slots: Vec::new(),
            ready: VecDeque::new(),
            queued: Bits::default(),
            reserved: Bits::default(),
            seen: 0,
            dirty: Vec::new(),
            dirty_bits: Bits::default(),
            waiters: VecDeque::new(),
            lost: HashMap::new(),
            damaged: HashMap::new(),
            popped: 0,
            acked: 0,
        }
    }

    /// Takes a new version of the record.
    pub fn update(&mut self, record: GroupRecord) {
        self.filter = Filter::parse(&record.filter).unwrap_or_else(|_| Filter::everything());
        self.record = record;
    }

    /// The name that users see.
    pub fn name(&self) -> &str {
        &self.record.name
    }

    /// Whether it has taken every message since it was made, and what was there before: no match table names it.
    pub fn is_unfiltered(&self) -> bool {
        let record = &self.record;
        let was_so = record.is_unfiltered || record.version == 1;
        was_so && record.is_enabled && record.filter.is_empty() && self.first_filter.is_none()
    }

    /// Whether it is the primary group.
    pub fn is_primary(&self) -> bool {
        self.record.id == PRIMARY
    }

    /// Whether every message is for it, whatever match tables say of others.
    pub fn mode(&self) -> Mode {
        if self.record.shared { Mode::Shared } else { Mode::Ordered }
    }

    /// What is known of it.
    pub fn info(&self, queue: &str) -> GroupInfo {
        let record = &self.record;
        GroupInfo {
            queue: queue.to_owned(),
            name: if self.is_primary() { PRIMARY_GROUP.to_owned() } else { record.name.clone() },
            id: record.id,
            is_declared: record.is_declared,
            filter: record.filter.clone(),
            state: match (record.is_enabled, record.is_paused) {
                (false, _) => GroupState::Inactive,
                (true, true) => GroupState::Paused,
                (true, false) => GroupState::Active,
            },
            delivery_limit: record.delivery_limit,
            display_name: record.display_name.clone(),
            shared: record.shared,
            version: record.version,
            start: record.start,
            created_at_us: record.created_at_us,
            updated_at_us: record.updated_at_us,
            judges_earlier: self.first_filter.is_some() && !matches!(record.start, None | Some(Start::New)),
        }
    }

    /// The slot of a partition, if the group has been there.
    pub fn slot(&self, partition: PartitionId) -> Option<&Slot> {
        self.slots.get(partition as usize).filter(|slot| !matches!(slot, Slot::Unseeded))
    }

    /// The next offset wanted, as far as it is durable; what it will be seeded with if the group has not been there.
    pub fn next(&self, id: PartitionId, partition: &Partition, log: &Log) -> Offset {
        match self.slot(id) {
            Some(Slot::Plain { cursor, .. }) => cursor.next,
            Some(Slot::Active(active)) => active.delivery.visible().next(),
            Some(Slot::Held(_)) => partition.start,
            Some(Slot::Unseeded) | None => self.seed(id, partition, log),
        }
    }

    /// Where the group starts in a partition that it has not been in.
    fn seed(&self, id: PartitionId, partition: &Partition, log: &Log) -> Offset {
        match self.record.start {
            // A partition that was there when the group registered as `new` was seeded then; this one was made later.
            None | Some(Start::Beginning | Start::New) => partition.start,
            Some(Start::Offset(offset)) => offset.clamp(partition.start, partition.end),
            Some(Start::Time(time)) => first_at_or_after(log, id, partition, time),
        }
    }

    /// Makes sure that the group has a cursor in the partition.
    pub fn slot_mut(&mut self, id: PartitionId, partition: &Partition, log: &Log) -> &mut Slot {
        let at = id as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || Slot::Unseeded);
        }
        if matches!(self.slots[at], Slot::Unseeded) {
            let next = self.seed(id, partition, log);
            self.slots[at] = Slot::Plain { hint: partition.first_segment, cursor: PlainCursor { next, ..Default::default() } };
            self.mark_dirty(id);
        }
        &mut self.slots[at]
    }

    /// The cursor of a partition with its state machine.
    pub fn active_mut(&mut self, id: PartitionId, partition: &Partition, log: &Log) -> Result<&mut Active, String> {
        let mode = self.mode();
        let slot = self.slot_mut(id, partition, log);
        if let Slot::Plain { hint, cursor } = *slot {
            *slot = Slot::Active(Box::new(Active { hint, delivery: Delivery::new(mode, cursor.into()) }));
        }
        match slot {
            Slot::Active(active) => Ok(active),
            Slot::Held(reason) => Err(reason.to_string()),
            Slot::Unseeded | Slot::Plain { .. } => Err("cursor is not there".to_owned()),
        }
    }

    /// The state machine of a partition, if there is one.
    pub fn existing_active(&mut self, id: PartitionId) -> Option<&mut Active> {
        match self.slots.get_mut(id as usize) {
            Some(Slot::Active(active)) => Some(active),
            _ => None,
        }
    }

    /// Makes a cursor small again if nothing is in flight or may be repeated.
    pub fn settle(&mut self, id: PartitionId) {
        if let Some(slot) = self.slots.get_mut(id as usize)
            && let Slot::Active(active) = slot
            && active.delivery.remembers_until().is_none()
            && let Some(cursor) = active.delivery.plain()
        {
            *slot = Slot::Plain { hint: active.hint, cursor };
        }
    }

    /// Puts a cursor in place as the log or the checkpoint has it, unless a newer one is there.
    pub fn restore(&mut self, id: PartitionId, cursor: Cursor) {
        let at = id as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || Slot::Unseeded);
        }
        let version = match &self.slots[at] {
            Slot::Unseeded | Slot::Held(_) => None,
            Slot::Plain { cursor, .. } => Some(cursor.version),
            Slot::Active(active) => Some(active.delivery.visible().version()),
        };
        // The same cursor again must not take its leases away.
        if version.is_some_and(|version| version >= cursor.version()) {
            return;
        }
        let mode = self.mode();
        self.slots[at] = match cursor.plain() {
            Some(plain) => Slot::Plain { hint: 0, cursor: plain },
            None => Slot::Active(Box::new(Active { hint: 0, delivery: Delivery::new(mode, cursor) })),
        };
        self.mark_dirty(id);
    }

    /// Holds a cursor that cannot be read.
    pub fn hold(&mut self, id: PartitionId, reason: &str) {
        let at = id as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || Slot::Unseeded);
        }
        self.slots[at] = Slot::Held(reason.into());
    }

    /// Lets a held cursor be moved by an operator's seek.
    pub fn release_hold(&mut self, id: PartitionId) {
        if let Some(slot) = self.slots.get_mut(id as usize)
            && matches!(slot, Slot::Held(_))
        {
            *slot = Slot::Unseeded;
        }
    }

    /// Seeds every partition at its end: the group starts with what is pushed from now on.
    pub fn seed_at_ends(&mut self, partitions: &Partitions) {
        for (id, partition) in partitions.iter_from(0) {
            let at = id as usize;
            if self.slots.len() <= at {
                self.slots.resize_with(at + 1, || Slot::Unseeded);
            }
            let cursor = PlainCursor { next: partition.end, ..PlainCursor::default() };
            self.slots[at] = Slot::Plain { hint: partition.last_segment, cursor };
            self.mark_dirty(id);
        }
        self.seen = partitions.activity();
    }

    /// Forgets a partition.
    pub fn remove_partition(&mut self, id: PartitionId) {
        if let Some(slot) = self.slots.get_mut(id as usize) {
            *slot = Slot::Unseeded;
        }
        self.queued.remove(id);
        self.damaged.remove(&id);
    }

    /// Cursors that exist.
    pub fn cursor_count(&self) -> u64 {
        self.slots.iter().filter(|slot| !matches!(slot, Slot::Unseeded)).count() as u64
    }

    /// Every partition with a cursor, from one on.
    pub fn slots_from(&self, from: PartitionId) -> impl Iterator<Item = (PartitionId, &Slot)> {
        let rest = self.slots.get(from as usize..).unwrap_or_default();
        (from..).zip(rest).filter(|(_, slot)| !matches!(slot, Slot::Unseeded))
    }

    /// Notes that the cursor of a partition must be in the next checkpoint.
    pub fn mark_dirty(&mut self, id: PartitionId) {
        if self.dirty_bits.insert(id) {
            self.dirty.push(id);
        }
    }

    /// Takes the list of cursors to checkpoint.
    pub fn take_dirty(&mut self) -> Vec<PartitionId> {
        let dirty = std::mem::take(&mut self.dirty);
        for &id in &dirty {
            self.dirty_bits.remove(id);
        }
        dirty
    }

    /// Notes that a partition may have something to hand out.
    pub fn push_ready(&mut self, id: PartitionId) {
        if self.queued.insert(id) {
            self.ready.push_back(id);
        }
    }

    /// As [`Group::push_ready`], for one that should come next.
    pub fn push_ready_first(&mut self, id: PartitionId) {
        if self.queued.insert(id) {
            self.ready.push_front(id);
        }
    }

    /// The partition that has waited longest among those that may have something.
    pub fn pop_ready(&mut self, partitions: &Partitions) -> Option<PartitionId> {
        self.look_at_activity(partitions);
        let id = self.ready.pop_front()?;
        self.queued.remove(id);
        Some(id)
    }

    /// Whether some partition may have something.
    pub fn has_ready(&mut self, partitions: &Partitions) -> bool {
        self.look_at_activity(partitions);
        !self.ready.is_empty()
    }

    /// Takes in the partitions that were pushed to since the last look. So a push costs nothing for a group that does not read, and
    /// a look costs what was pushed since.
    fn look_at_activity(&mut self, partitions: &Partitions) {
        if self.seen == partitions.activity() {
            return;
        }
        for id in partitions.active_since(self.seen) {
            let is_caught_up = match (self.slot(id), partitions.get(id)) {
                (Some(Slot::Plain { cursor, .. }), Some(partition)) => cursor.next >= partition.end,
                _ => false,
            };
            if !is_caught_up {
                self.push_ready(id);
            }
        }
        self.seen = partitions.activity();
    }

    /// Looks at all partitions again, as after a seek of the whole queue.
    pub fn look_again(&mut self) {
        self.seen = 0;
    }

    /// Keeps other pops away from a partition while one reads it; whether it was free.
    pub fn reserve(&mut self, id: PartitionId) -> bool {
        self.reserved.insert(id)
    }

    /// Ends [`Group::reserve`].
    pub fn unreserve(&mut self, id: PartitionId) {
        self.reserved.remove(id);
    }

    /// Notes that offsets were lost to the group; the next claim in the partition tells its consumer.
    pub fn note_lost(&mut self, id: PartitionId, lost: Option<OffsetRange>) {
        let Some(lost) = lost else { return };
        let known = self.lost.entry(id).or_insert(lost);
        known.first = known.first.min(lost.first);
        known.last = known.last.max(lost.last);
    }

    /// What was lost since the last claim.
    pub fn take_lost(&mut self, id: PartitionId) -> Option<OffsetRange> {
        self.lost.remove(&id)
    }

    /// Notes that a range is damaged; the part of it that was not noted before.
    pub fn note_damaged(&mut self, id: PartitionId, range: OffsetRange) -> Vec<OffsetRange> {
        let known = self.damaged.entry(id).or_default();
        let new = known.gaps(range.first, range.last.saturating_add(1)).collect();
        known.set(range, ());
        new
    }

    /// Registers a waiting pop.
    pub fn add_waiter(&mut self, id: u64, wake: Wake) {
        self.waiters.push_back((id, wake));
    }

    /// Takes a waiting pop out.
    pub fn remove_waiter(&mut self, id: u64) {
        self.waiters.retain(|waiter| waiter.0 != id);
    }

    /// How many pops wait.
    pub fn waiter_count(&self) -> usize {
        self.waiters.len()
    }

    /// Those to wake when `count` partitions may have something: the first in line, who go to its end.
    pub fn wake(&mut self, count: usize, woken: &mut Vec<Wake>) {
        for _ in 0..count.min(self.waiters.len()) {
            if let Some(waiter) = self.waiters.pop_front() {
                woken.push(Arc::clone(&waiter.1));
                self.waiters.push_back(waiter);
            }
        }
    }

    /// All who wait.
    pub fn wake_all(&mut self, woken: &mut Vec<Wake>) {
        woken.extend(self.waiters.iter().map(|waiter| Arc::clone(&waiter.1)));
    }
}

/// The offset of the first message stored at or after a time; the end if there is none.
pub(super) fn first_at_or_after(log: &Log, id: PartitionId, partition: &Partition, time_us: u64) -> Offset {
    let mut found = partition.end;
    // A segment that cannot be read hides its messages; the group then starts at the first readable one, and earlier ones are lost
    // to it anyhow.
    let _ = log.visit(id, partition.start, None, partition.first_segment, &mut |_, batch| {
        if batch.created_at_us >= time_us {
            found = batch.base_offset.max(partition.start);
            return false;
        }
        true
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lag of a group that takes everything is a subtraction. What counts is that no match table names it, not how often its record
    /// was changed: a new start or a new name had it counted message by message.
    #[test]
    fn a_group_is_unfiltered_while_it_never_had_a_filter_and_was_never_disabled() {
        let record = |version, is_unfiltered, is_enabled, filter: &str| GroupRecord {
            id: 1,
            name: "g".to_owned(),
            is_declared: true,
            is_enabled,
            is_paused: false,
            is_unfiltered,
            shared: false,
            filter: filter.to_owned(),
            first_filter: String::new(),
            delivery_limit: None,
            display_name: String::new(),
            version,
            start: None,
            created_at_us: 0,
            updated_at_us: 0,
            created_lsn: 0,
        };
        let is_unfiltered = |record| Group::new(record).is_unfiltered();
        assert!(is_unfiltered(record(1, false, true, "")), "a record from before there was the flag");
        assert!(is_unfiltered(record(7, true, true, "")));
        assert!(!is_unfiltered(record(2, false, true, "")), "it may have had a filter");
        assert!(!is_unfiltered(record(1, false, false, "")));
        assert!(!is_unfiltered(record(1, false, true, ":a = \"b\"")));
        let first = GroupRecord { first_filter: ":a = \"b\"".to_owned(), ..record(1, true, true, "") };
        assert!(!is_unfiltered(first));
    }
}
