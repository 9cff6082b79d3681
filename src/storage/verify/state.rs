//! What a queue's checkpoint and the log behind it say, as far as it can be held against the log.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::codec::Reader;
use crate::format::control::{ControlOp, key};
use crate::format::cursor::CursorFront;
use crate::format::{Lsn, names};
use crate::record::{GroupId, Offset, PartitionId};
use crate::storage::disk::Dir;
use crate::storage::table::{Entry, Table, TableReport};

use super::{Notes, Severity};

/// Reads of a table that a running server may be writing.
const ATTEMPTS: usize = 3;

/// The oldest offset kept and the next to give.
#[derive(Debug, Clone, Copy, Default)]
struct Bounds {
    start: Offset,
    next: Offset,
}

/// The state of a queue.
#[derive(Debug)]
pub(super) struct State {
    name: String,
    /// Everything before this address is in the checkpoint.
    pub checkpoint: Lsn,
    /// The oldest segment that retention has left.
    pub first_segment: u32,
    partitions: HashMap<PartitionId, Bounds>,
    cursors: HashMap<(GroupId, PartitionId), CursorFront>,
    /// Cursors that live in files of their own.
    pub in_files: BTreeSet<(GroupId, PartitionId)>,
    gaps: HashMap<PartitionId, Vec<(Offset, Offset)>>,
    /// Where the batches of each partition end in the log.
    ends: HashMap<PartitionId, Offset>,
    undecodable: u64,
}

impl State {
    fn new() -> Self {
        Self {
            name: String::new(),
            checkpoint: 0,
            first_segment: 1,
            partitions: HashMap::new(),
            cursors: HashMap::new(),
            in_files: BTreeSet::new(),
            gaps: HashMap::new(),
            ends: HashMap::new(),
            undecodable: 0,
        }
    }

    fn apply_entry(&mut self, entry: Entry<'_>) {
        let (a, b) = (entry.key.a, entry.key.b);
        match (entry.key.kind, entry.value) {
            (key::CURSOR_IN_FILE, Some(_)) => {
                self.in_files.insert((a, b));
            }
            (key::CURSOR_IN_FILE, None) => {
                self.in_files.remove(&(a, b));
            }
            (key::CURSOR, None) => {
                self.cursors.remove(&(a, b));
            }
            (_, Some(value)) => match ControlOp::decode(&mut Reader::new(value)) {
                Ok(operation) => self.apply(&operation),
                Err(_) => self.undecodable += 1,
            },
            (key::PARTITION, None) => self.apply(&ControlOp::PartitionRemoved(a)),
            (key::GROUP, None) => self.apply(&ControlOp::GroupRemoved(a)),
            (_, None) => {}
        }
    }

    /// Applies one operation of the log; in the order of the log.
    pub fn apply(&mut self, operation: &ControlOp) {
        match operation {
            ControlOp::Queue(record) => self.name.clone_from(&record.name),
            ControlOp::Partition(record) => {
                let bounds = self.partitions.entry(record.id).or_default();
                *bounds = Bounds { start: record.start, next: bounds.next.max(record.next) };
            }
            ControlOp::PartitionRemoved(id) => {
                self.partitions.remove(id);
                self.cursors.retain(|place, _| place.1 != *id);
            }
            ControlOp::GroupRemoved(id) => self.cursors.retain(|place, _| place.0 != *id),
            ControlOp::Cursor { group, partition, state } => match CursorFront::decode(state) {
                Ok(front) => self.put_cursor((*group, *partition), front),
                Err(_) => self.undecodable += 1,
            },
            ControlOp::Counters(counters) => self.first_segment = self.first_segment.max(counters.first_segment),
            ControlOp::Gap { partition, first, last } => self.gaps.entry(*partition).or_default().push((*first, *last)),
            _ => {}
        }
    }

    /// Of two cursors of one place the later one counts, wherever it stood.
    pub fn put_cursor(&mut self, place: (GroupId, PartitionId), front: CursorFront) {
        let known = self.cursors.entry(place).or_insert(front);
        if front.version > known.version {
            *known = front;
        }
    }

    /// Takes note of a batch, in the order of the log; why it cannot be, if offsets run against it.
    pub fn put_batch(&mut self, partition: PartitionId, base_offset: Offset, count: u32, is_replayed: bool) -> Option<String> {
        let next = base_offset.saturating_add(u64::from(count));
        let end = self.ends.entry(partition).or_insert(base_offset);
        let overlap = (base_offset < *end).then(|| {
            format!("offsets {base_offset} to {} of partition {partition} were given before, up to {}", next - 1, *end - 1)
        });
        *end = (*end).max(next);
        if is_replayed && let Some(bounds) = self.partitions.get_mut(&partition) {
            bounds.next = bounds.next.max(next);
        }
        overlap
    }

    fn log_end(&self, id: PartitionId, bounds: Bounds) -> Offset {
        self.ends.get(&id).copied().unwrap_or(0).max(bounds.start)
    }

    /// What a running server's retention took since the checkpoint was read is not missing.
    fn note_removals(&mut self, dir: &Arc<dyn Dir>, incarnation: u64) {
        let mut fresh = Self::new();
        if read(dir, incarnation, &mut fresh).is_err() || fresh.checkpoint <= self.checkpoint {
            return;
        }
        for (id, bounds) in &mut self.partitions {
            let start = fresh.partitions.get(id).map_or(bounds.next, |fresh| fresh.start);
            bounds.start = bounds.start.max(start);
        }
    }

    /// Holds partitions and cursors against the log.
    pub fn check(&mut self, dir: &Arc<dyn Dir>, incarnation: u64, notes: &mut Notes<'_>, first_finding: usize) {
        notes.report.cursors += self.cursors.len() as u64;
        if self.undecodable > 0 {
            notes.add(Severity::Loss, names::TABLE, None, format!("{} values do not decode", self.undecodable));
        }
        // Damage that was found explains what is not there.
        let is_explained = notes.has_loss(first_finding);
        if self.partitions.iter().any(|(id, bounds)| self.log_end(*id, *bounds) < bounds.next) {
            self.note_removals(dir, incarnation);
        }
        let mut partitions: Vec<_> = self.partitions.iter().collect();
        partitions.sort_unstable_by_key(|entry| entry.0);
        for (id, bounds) in partitions {
            let end = self.log_end(*id, *bounds);
            let is_gap = |offset: Offset| {
                self.gaps.get(id).is_some_and(|gaps| gaps.iter().any(|&(first, last)| (first..=last).contains(&offset)))
            };
            if end < bounds.next && !is_gap(end) && !is_explained {
                let text = format!("partition {id} goes up to offset {}, and the log has it up to {end} only", bounds.next);
                notes.add(Severity::Loss, names::TABLE, None, text);
            }
        }
        let mut cursors: Vec<_> = self.cursors.iter().collect();
        cursors.sort_unstable_by_key(|entry| entry.0);
        for (&(group, partition), front) in cursors {
            let Some(bounds) = self.partitions.get(&partition) else { continue };
            let end = bounds.next.max(self.ends.get(&partition).copied().unwrap_or(0));
            if front.next > end {
                let text = format!(
                    "the cursor of group {group} in partition {partition} stands at {}, and the log ends at {end}: newer messages are gone",
                    front.next
                );
                notes.add(Severity::Loss, names::TABLE, None, text);
            }
        }
    }
}

/// Reads the checkpoint of a queue.
pub(super) fn read_checkpoint(dir: &Arc<dyn Dir>, incarnation: u64, notes: &mut Notes<'_>) -> State {
    let mut attempt = 1;
    loop {
        let mut state = State::new();
        match read(dir, incarnation, &mut state) {
            Ok(report) if report.torn_tail.is_some() && attempt < ATTEMPTS => attempt += 1,
            Ok(report) => {
                describe(&report, &mut state, notes);
                return state;
            }
            Err(error) => {
                notes.add(Severity::Loss, names::TABLE, None, error.to_string());
                return state;
            }
        }
    }
}

/// Whether a cursor still lives in its file, now.
pub(super) fn is_in_file(dir: &Arc<dyn Dir>, incarnation: u64, place: (GroupId, PartitionId)) -> bool {
    let mut state = State::new();
    read(dir, incarnation, &mut state).is_ok() && state.in_files.contains(&place)
}

fn read(dir: &Arc<dyn Dir>, incarnation: u64, state: &mut State) -> Result<TableReport, crate::storage::table::TableError> {
    let report = Table::read(dir.as_ref(), names::TABLE, incarnation, |entry| state.apply_entry(entry))?;
    state.checkpoint = report.lsn;
    Ok(report)
}

fn describe(report: &TableReport, state: &mut State, notes: &mut Notes<'_>) {
    if state.name.is_empty() {
        notes.add(Severity::Loss, names::TABLE, None, "it names no queue");
    } else {
        notes.queue.clone_from(&state.name);
    }
    if let Some(tail) = &report.torn_tail {
        let text = format!("the last checkpoint did not finish; {} bytes of it do not count", tail.end - tail.start);
        notes.add(Severity::Warning, names::TABLE, Some(tail.start), text);
    }
    for damage in &report.damage {
        let text = format!("the checkpoint is damaged up to position {}", damage.end);
        notes.add(Severity::Loss, names::TABLE, Some(damage.start), text);
    }
}
