//! The state of a queue in memory: what the log and the checkpoint say, applied.
//!
//! [`State::apply`] is the one way in which control operations change it, live and in recovery. Nothing here touches files.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;

use crate::format::control::{ControlOp, Counters, GroupRecord, JumpRecord, QueueRecord};
use crate::model::{Error, ErrorCode, PRIMARY_GROUP, QueueSettings, Start};
use crate::record::{GroupId, Offset, PartitionId};
use crate::storage::table::Key;

use super::delivery::Cursor;
use super::filters::FilterSet;
use super::group::{Group, PRIMARY};
use super::letter_index::Letters;
use super::partition::Partitions;
use super::producers::Producers;
use super::records::{DeadLetterRecord, decode_trace};
use super::traces::Traces;

/// The state of a queue.
pub(super) struct State {
    pub settings: Arc<QueueSettings>,
    pub created_at_us: u64,
    pub name: String,
    pub partitions: Partitions,
    pub groups: BTreeMap<GroupId, Group>,
    group_ids: HashMap<String, GroupId>,
    pub next_group_id: GroupId,
    pub filters: Arc<FilterSet>,
    pub counters: Counters,
    pub producers: Producers,
    pub dead_letters: Letters,
    pub next_dead_letter: u64,
    pub traces: Traces,
    pub next_trace: u64,
    /// Offsets that no message has, by partition.
    pub gaps: HashMap<PartitionId, Vec<(Offset, Offset)>>,
    pub jump: Option<JumpRecord>,
    /// Partitions whose record was lost with damage: what the log has of them is not known to be dead.
    pub lost: BTreeSet<PartitionId>,
    /// For each queue that decided transactions, the newest one of which this queue has its part; it has all before, too.
    pub applied: BTreeMap<u64, u64>,
    pub timers: Timers,
    /// Table entries other than partitions and cursors that the next checkpoint must write; `None` removes.
    pub dirty: BTreeMap<Key, Option<Vec<u8>>>,
    /// The newest time given to a batch: times of a queue never go back.
    pub newest_at_us: u64,
    pub stats: Counts,
    /// Where the look for idle partitions goes on.
    pub cleanup_from: PartitionId,
    /// How often partitions lost messages to retention, or went.
    pub removals: u64,
    pub holes: HoleTurn,
}

/// When to look at a cursor again: leases and delays that end, windows that close. A cursor has one time at most, the earliest asked
/// for; whoever is told then looks at what is due later. So leases that ended early leave nothing behind.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(u64, GroupId, PartitionId)>>,
    times: HashMap<(GroupId, PartitionId), u64, rapidhash::fast::RandomState>,
}

impl Timers {
    /// Asks for a look at a steady time.
    pub fn set(&mut self, time_us: u64, group: GroupId, partition: PartitionId) {
        let known = self.times.entry((group, partition)).or_insert(u64::MAX);
        if time_us < *known {
            *known = time_us;
            self.heap.push(Reverse((time_us, group, partition)));
        }
    }

    /// The next cursor whose time has come.
    pub fn pop_due(&mut self, now_us: u64) -> Option<(GroupId, PartitionId)> {
        while let Some(&Reverse((time_us, group, partition))) = self.heap.peek() {
            if time_us > now_us {
                return None;
            }
            self.heap.pop();
            // An earlier time that was asked for later has come first.
            if self.times.get(&(group, partition)) == Some(&time_us) {
                self.times.remove(&(group, partition));
                return Some((group, partition));
            }
        }
        None
    }

    /// The earliest time.
    pub fn next_us(&self) -> Option<u64> {
        self.heap.peek().map(|&Reverse((time_us, ..))| time_us)
    }
}

/// Counters since start.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counts {
    pub duplicates: u64,
    pub popped: u64,
    pub acked: u64,
    pub commits: u64,
    pub bytes_written: u64,
    pub syncs: u64,
    pub sync_time_us: u64,
    pub lost_unread: u64,
    pub lost_damaged: u64,
    pub messages: u64,
}

/// How far the look for segments that are mostly dead has come: it goes round over all of them, a part at a time, when something died
/// since the last round.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct HoleTurn {
    /// The segment to go on with; 0 between rounds.
    pub next: u32,
    /// [`State::removals`] when the round began, and when the last whole round did; none yet after a start.
    pub began_at: u64,
    pub done_at: Option<u64>,
    /// The first segment that was too young in that round; 0 if none was.
    pub young: u32,
}

impl State {
    /// The state of a queue without anything.
    pub fn new(name: &str) -> Self {
        let mut state = Self {
            settings: Arc::default(),
            created_at_us: 0,
            name: name.to_owned(),
            partitions: Partitions::default(),
            groups: BTreeMap::new(),
            group_ids: HashMap::new(),
            next_group_id: PRIMARY + 1,
            filters: Arc::default(),
            counters: Counters { first_segment: 1, ..Counters::default() },
            producers: Producers::default(),
            dead_letters: Letters::default(),
            next_dead_letter: 1,
            traces: Traces::default(),
            next_trace: 1,
            gaps: HashMap::new(),
            jump: None,
            lost: BTreeSet::new(),
            applied: BTreeMap::new(),
            timers: Timers::default(),
            dirty: BTreeMap::new(),
            newest_at_us: 0,
            stats: Counts::default(),
            cleanup_from: 0,
            removals: 0,
            holes: HoleTurn::default(),
        };
        state.put_group(primary_record());
        state
    }

    /// Applies an operation. `from_log` tells a replayed or live record from a checkpoint entry: only there does a new group look at
    /// where partitions end.
    pub fn apply(&mut self, operation: &ControlOp, from_log: bool) {
        if from_log {
            self.note_dirty(operation);
        }
        match operation {
            ControlOp::Queue(record) => self.put_queue(record),
            ControlOp::Partition(record) => {
                let known = self.partitions.get(record.id).map_or(0, |partition| partition.length());
                self.partitions.put(record);
                let now = self.partitions.get(record.id).map_or(0, |partition| partition.length());
                self.stats.messages = (self.stats.messages + now).saturating_sub(known);
                self.removals += u64::from(now < known);
            }
            ControlOp::PartitionRemoved(id) => {
                self.removals += 1;
                self.partitions.remove(*id);
                self.producers.remove_partition(*id);
                self.gaps.remove(id);
                for group in self.groups.values_mut() {
                    group.remove_partition(*id);
                }
            }
            ControlOp::Group(record) => {
                let is_new = !self.groups.contains_key(&record.id);
                let is_first_start =
                    self.groups.get(&record.id).is_some_and(|group| group.record.start.is_none() && record.start.is_some());
                self.put_group(record.clone());
                let starts_now = from_log && (is_new || is_first_start) && record.start == Some(Start::New);
                if starts_now && let Some(group) = self.groups.get_mut(&record.id) {
                    group.seed_at_ends(&self.partitions);
                }
            }
            ControlOp::GroupRemoved(id) => {
                if let Some(group) = self.groups.remove(id) {
                    self.group_ids.remove(group.name());
                    for (partition, _) in group.slots_from(0) {
                        self.dirty.insert(Key { kind: crate::format::control::key::CURSOR, a: *id, b: partition }, None);
                    }
                }
                self.renew_filters();
            }
            ControlOp::Cursor { group, partition, state } => self.restore_cursor(*group, *partition, state),
            // Cursors of other queues and pushes into them are handed on by recovery.
            ControlOp::Foreign { .. } | ControlOp::Redo { .. } => {}
            ControlOp::DeadLetter { id, state } => {
                if let Ok(record) = DeadLetterRecord::decode(state) {
                    self.dead_letters.insert(*id, &record);
                    self.next_dead_letter = self.next_dead_letter.max(id + 1);
                }
            }
            ControlOp::DeadLetterRemoved(id) => {
                self.dead_letters.remove(*id);
            }
            ControlOp::Counters(counters) => {
                self.counters = *counters;
                self.partitions.reserve_ids(counters.next_partition);
                self.next_group_id = self.next_group_id.max(counters.next_group);
                self.next_dead_letter = self.next_dead_letter.max(counters.next_dead_letter);
                self.next_trace = self.next_trace.max(counters.next_trace);
            }
            ControlOp::Sender { partition, producer_id, epoch, pushes } => {
                self.producers.restore(*partition, *producer_id, *epoch, pushes);
            }
            ControlOp::Producer { partition, producer_id, epoch, sequence } => {
                let past = super::producers::Past { sequence: *sequence, base: 0, count: 0 };
                self.producers.record(*partition, *producer_id, *epoch, past);
            }
            ControlOp::Applied { coordinator, transaction } => {
                let newest = self.applied.entry(*coordinator).or_default();
                *newest = (*newest).max(*transaction);
            }
            ControlOp::Trace { id, state } => {
                if let Ok(event) = decode_trace(state) {
                    self.next_trace = self.next_trace.max(id + 1);
                    for gone in self.traces.insert(*id, event) {
                        self.dirty.insert(halves(crate::format::control::key::TRACE, gone), None);
                    }
                }
            }
            ControlOp::PartitionLost(id) => {
                self.lost.insert(*id);
            }
            ControlOp::Jump(jump) => self.jump = (jump.offsets > 0).then_some(*jump),
            ControlOp::Gap { partition, first, last } => {
                let gaps = self.gaps.entry(*partition).or_default();
                if !gaps.contains(&(*first, *last)) {
                    gaps.push((*first, *last));
                }
            }
        }
    }

    /// The counters as the log and the checkpoint keep them.
    pub fn counters(&self) -> Counters {
        Counters {
            next_partition: self.partitions.next_id(),
            next_group: self.next_group_id,
            next_dead_letter: self.next_dead_letter,
            next_trace: self.next_trace,
            ..self.counters
        }
    }

    /// After recovery: partitions that have messages count as pushed to, in order of number.
    pub fn note_activity(&mut self) {
        let with_messages: Vec<_> =
            self.partitions.iter_from(0).filter(|(_, partition)| partition.length() > 0).map(|(id, _)| id).collect();
        for id in with_messages {
            self.partitions.touch(id);
        }
    }

    fn put_queue(&mut self, record: &QueueRecord) {
        self.name.clone_from(&record.name);
        self.created_at_us = record.created_at_us;
        self.settings = Arc::new(record.settings.clone());
    }

    fn put_group(&mut self, record: GroupRecord) {
        self.next_group_id = self.next_group_id.max(record.id + 1);
        self.group_ids.insert(record.name.clone(), record.id);
        match self.groups.get_mut(&record.id) {
            Some(group) => group.update(record),
            None => {
                self.groups.insert(record.id, Group::new(record));
            }
        }
        self.renew_filters();
    }

    fn renew_filters(&mut self) {
        let takes_all = self.groups.values().any(|group| group.record.is_enabled && group.filter.is_everything());
        let groups = self
            .groups
            .values()
            .filter(|group| !group.record.is_enabled || !group.filter.is_everything())
            .map(|group| (group.record.id, group.record.is_enabled.then_some(&group.filter)))
            .collect::<Vec<_>>();
        self.filters = Arc::new(FilterSet::new(self.filters.version + 1, takes_all, &groups));
    }

    fn restore_cursor(&mut self, group: GroupId, partition: PartitionId, state: &[u8]) {
        if let (Some(group), Ok(cursor)) = (self.groups.get_mut(&group), Cursor::decode(state)) {
            group.restore(partition, cursor);
        }
    }

    /// Partitions and cursors keep their own lists of what the next checkpoint must write; the rest is noted here.
    fn note_dirty(&mut self, operation: &ControlOp) {
        use crate::format::control::key;
        let value = |operation: &ControlOp| {
            let mut bytes = Vec::new();
            operation.encode(&mut bytes);
            Some(bytes)
        };
        match operation {
            ControlOp::Queue(_)
            | ControlOp::Group(_)
            | ControlOp::DeadLetter { .. }
            | ControlOp::Counters(_)
            | ControlOp::Trace { .. }
            | ControlOp::PartitionLost(_)
            | ControlOp::Jump(_) => {
                if let Some((kind, a, b)) = operation.key() {
                    self.dirty.insert(Key { kind, a, b }, value(operation));
                }
            }
            ControlOp::GroupRemoved(id) => {
                self.dirty.insert(Key { kind: key::GROUP, a: *id, b: 0 }, None);
            }
            ControlOp::DeadLetterRemoved(id) => {
                self.dirty.insert(halves(key::DEAD_LETTER, *id), None);
            }
            ControlOp::Applied { coordinator, .. } => {
                self.dirty.insert(halves(key::APPLIED, *coordinator), value(operation));
            }
            ControlOp::Gap { partition, .. } => {
                let number = self.gaps.get(partition).map_or(0, Vec::len) as u32;
                self.dirty.insert(Key { kind: key::GAP, a: *partition, b: number }, value(operation));
            }
            _ => {}
        }
    }

    /// The group that a name means; `None` and [`PRIMARY_GROUP`] mean the primary group.
    pub fn group_id(&self, name: Option<&str>) -> Option<GroupId> {
        match name {
            None | Some(PRIMARY_GROUP) => Some(PRIMARY),
            Some(name) => self.group_ids.get(name).copied(),
        }
    }

    /// As [`State::group_id`], or the error that names it.
    pub fn require_group(&self, name: Option<&str>) -> Result<GroupId, Error> {
        self.group_id(name).ok_or_else(|| {
            let name = name.unwrap_or(PRIMARY_GROUP);
            Error::new(ErrorCode::UnknownGroup, format!("queue {:?} has no group {name:?}", self.name))
        })
    }

    /// The partition that a name means, or the error that names it.
    pub fn require_partition(&self, name: &str) -> Result<PartitionId, Error> {
        self.partitions
            .find(name)
            .ok_or_else(|| Error::new(ErrorCode::UnknownPartition, format!("queue {:?} has no partition {name:?}", self.name)))
    }

    /// How many offsets between `from` and `to` were never given to a message.
    pub fn gap_between(&self, partition: PartitionId, from: Offset, to: Offset) -> u64 {
        let Some(gaps) = self.gaps.get(&partition) else { return 0 };
        gaps.iter().map(|&(first, last)| last.saturating_add(1).min(to).saturating_sub(first.max(from))).sum()
    }
}

pub(super) fn halves(kind: u8, id: u64) -> Key {
    Key { kind, a: (id >> 32) as u32, b: id as u32 }
}

/// The primary group as every queue has it from its beginning.
fn primary_record() -> GroupRecord {
    GroupRecord {
        id: PRIMARY,
        name: PRIMARY_GROUP.to_owned(),
        is_declared: false,
        is_enabled: true,
        is_paused: false,
        is_unfiltered: true,
        shared: false,
        filter: String::new(),
        first_filter: String::new(),
        delivery_limit: None,
        display_name: "Primary Consumer Group".to_owned(),
        version: 1,
        start: None,
        created_at_us: 0,
        updated_at_us: 0,
        created_lsn: 0,
    }
}
