//! Checkpoints: the state of a queue in its table and cursor files, so that a start replays little of the log.
//!
//! Order: the log is synced; the logs of queues for which it holds parts of transactions are synced, which have those parts, too;
//! cursor files are written and synced; the table gets one block that names the log address. Only then may the log before it be let
//! go. So each queue's checkpoint needs no other queue's: two that decide for each other cannot wait in a circle.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::format::control::{ControlOp, JumpRecord, key};
use crate::format::names;
use crate::model::{Error, ErrorCode, Now};
use crate::record::{GroupId, PartitionId};
use crate::storage::disk::Dir;
use crate::storage::slots::{SlotIdentity, Slots};
use crate::storage::table::{Entry, Key, Table};

use super::group::Slot;
use super::queue::{Committer, Queue};
use super::rows::Rows;
use super::state::{State, halves};
use super::{Engine, Result};

/// Cursor files of one queue at most; cursors beyond live in the table. Files are for lanes with work left: an idle lane keeps none.
const CURSOR_FILES_MAX: usize = 1024;

/// A cursor to be written.
struct DirtyCursor {
    group: GroupId,
    partition: PartitionId,
    /// Whether messages are left for it to read.
    is_behind: bool,
}

/// What writes checkpoints.
pub(super) struct Checkpointer {
    pub table: Table,
    /// Bytes of the table when it was last written anew.
    table_base: u64,
    /// The next checkpoint writes it anew whatever its size.
    is_unproven: bool,
    /// Cursors that live in files of their own.
    cursor_files: BTreeSet<(GroupId, PartitionId)>,
}

impl Checkpointer {
    pub fn new(table: Table, cursor_files: BTreeSet<(GroupId, PartitionId)>) -> Self {
        Self { table_base: table.file_bytes(), is_unproven: false, table, cursor_files }
    }

    /// Says that the last run did not close the table: its last block may be in the page cache alone, and after a sync that failed it
    /// stays there, taken for clean. Nothing that only it makes superfluous goes before it was written anew.
    pub fn distrust_table(&mut self) {
        self.is_unproven = true;
    }

    /// Whether the table has doubled since it was last written anew.
    fn is_grown(&self) -> bool {
        const GROWTH_MIN: u64 = 1 << 20;
        self.table.file_bytes() > self.table_base * 2 + GROWTH_MIN
    }

    /// Writes the table anew. The state is that of the moment in which the checkpoint was collected: a later one would be replayed onto.
    fn rewrite(&mut self, at: u64, rows: &Rows) -> Result<()> {
        let cursor_files = &self.cursor_files;
        let entries = rows.entries().map(|entry| match entry.key {
            Key { kind: key::CURSOR, a, b } if cursor_files.contains(&(a, b)) => in_file(a, b),
            _ => entry,
        });
        self.table.rewrite(at, entries)?;
        self.table_base = self.table.file_bytes();
        self.is_unproven = false;
        Ok(())
    }
}

impl Committer {
    /// Whether a checkpoint is due: so much log, or a segment, has come since the last.
    pub fn wants_checkpoint(&self, bytes: u64) -> bool {
        let has_rolled = crate::format::lsn_segment(self.writer.end()) > self.checkpoint_segment;
        self.bytes_since_checkpoint >= bytes || (has_rolled && self.bytes_since_checkpoint > 0)
    }
}

impl Engine {
    /// Takes a checkpoint of a queue. What its log holds for other queues is on the disk in their own logs before.
    pub(super) fn checkpoint(&self, queue: &Arc<Queue>, now: Now) -> Result<()> {
        self.finish_owed(queue, now)?;
        write_checkpoint(queue, |others| {
            let others = others.iter().filter_map(|&incarnation| self.queue_by_incarnation(incarnation));
            others.into_iter().try_for_each(|other| other.sync_log())
        })
    }
}

/// Keeps offsets from being given out twice, also if the next checkpoint never comes. Where a start begins to replay stays.
pub(super) fn write_jump(queue: &Queue, jump: JumpRecord) -> Result<()> {
    let table = &mut queue.checkpointer().table;
    let value = encoded(&ControlOp::Jump(jump));
    let entry = Entry { key: Key { kind: key::JUMP, a: 0, b: 0 }, value: Some(&value) };
    Ok(table.append(table.lsn(), [entry])?)
}

/// Writes the checkpoint of a queue, after `sync_others` made the logs of these queues durable. Commits go on meanwhile, but for the
/// moment in which the state is collected.
fn write_checkpoint(queue: &Queue, sync_others: impl FnOnce(&BTreeSet<u64>) -> Result<()>) -> Result<()> {
    let mut checkpointer = queue.checkpointer();
    let wants_rewrite = checkpointer.is_unproven || checkpointer.is_grown();
    let (at, bytes, foreign, collected, whole) = {
        let mut committer = queue.committer();
        if !committer.owed.is_empty() {
            // Decided a moment ago: the log that a start would finish it from must stay.
            let text = format!("queue {:?} owes other queues parts of transactions", queue.name);
            return Err(Error::new(ErrorCode::Busy, text));
        }
        queue.sync_writer(&mut committer)?;
        committer.unsynced_since_us = None;
        let at = committer.writer.end();
        committer.checkpoint_segment = crate::format::lsn_segment(at);
        let bytes = std::mem::take(&mut committer.bytes_since_checkpoint);
        let foreign = std::mem::take(&mut committer.foreign);
        let mut state = queue.state();
        let whole = wants_rewrite.then(|| all_entries(&state, &BTreeSet::new()));
        (at, bytes, foreign, Collected::take(&mut state), whole)
    };
    let written = sync_others(&foreign).and_then(|()| collected.write(queue, &mut checkpointer, at)).and_then(|()| match whole {
        Some(rows) => checkpointer.rewrite(at, &rows),
        None => Ok(()),
    });
    if written.is_err() {
        let mut committer = queue.committer();
        committer.bytes_since_checkpoint += bytes.max(1);
        committer.foreign.extend(foreign);
        drop(committer);
        collected.put_back(&mut queue.state());
    }
    written
}

/// What changed since the last checkpoint.
struct Collected {
    entries: Vec<(Key, Option<Vec<u8>>)>,
    rows: Rows,
    partitions: Vec<PartitionId>,
    /// With their encoded states.
    cursors: Rows<DirtyCursor>,
    groups: BTreeSet<GroupId>,
    senders: Vec<(PartitionId, u32)>,
}

impl Collected {
    fn take(state: &mut State) -> Self {
        let mut entries: Vec<(Key, Option<Vec<u8>>)> = std::mem::take(&mut state.dirty).into_iter().collect();
        let mut rows = Rows::default();
        let partitions = state.partitions.take_dirty();
        for &id in &partitions {
            match state.partitions.get(id) {
                Some(partition) => rows.put_operation(&ControlOp::Partition(partition.record(id))),
                None => rows.remove(Key { kind: key::PARTITION, a: id, b: 0 }),
            }
        }
        rows.put_operation(&ControlOp::Counters(state.counters()));
        let mut senders = Vec::new();
        for (partition, folded, operations) in state.producers.take_dirty() {
            let key = Key { kind: key::SENDER, a: partition, b: folded };
            match operations {
                Some(all) => rows.put_all(key, &all),
                None => rows.remove(key),
            }
            senders.push((partition, folded));
        }
        let mut cursors = Rows::default();
        let State { groups, partitions: known, .. } = state;
        for (&id, group) in groups.iter_mut() {
            for partition in group.take_dirty() {
                let end = known.get(partition).map_or(0, |found| found.end);
                let mut put = |cursor: &super::delivery::Cursor| {
                    let dirty = DirtyCursor { group: id, partition, is_behind: cursor.next() < end };
                    cursors.put(dirty, |bytes| cursor.encode(bytes));
                };
                match group.slot(partition) {
                    Some(Slot::Plain { cursor, .. }) => put(&(*cursor).into()),
                    Some(Slot::Active(active)) => put(active.delivery.visible()),
                    Some(Slot::Held(_)) => {}
                    Some(Slot::Unseeded) | None => entries.push((Key { kind: key::CURSOR, a: id, b: partition }, None)),
                }
            }
        }
        let groups = groups.keys().copied().collect();
        Self { entries, rows, partitions, cursors, groups, senders }
    }

    fn write(&self, queue: &Queue, checkpointer: &mut Checkpointer, at: u64) -> Result<()> {
        let mut rows = Rows::default();
        let mut files_to_remove = Vec::new();
        // Files of groups that are gone.
        let orphans = checkpointer.cursor_files.iter().filter(|(group, _)| !self.groups.contains(group));
        for &(group, partition) in orphans {
            rows.remove(Key { kind: key::CURSOR_IN_FILE, a: group, b: partition });
            files_to_remove.push((group, partition));
        }
        let needs_dir = !self.cursors.is_empty() || !files_to_remove.is_empty();
        let dir = if needs_dir { Some(cursors_dir(&queue.dir)?) } else { None };
        for (cursor, state) in self.cursors.iter() {
            let state = state.unwrap_or_default();
            let place = (cursor.group, cursor.partition);
            let has_file = checkpointer.cursor_files.contains(&place);
            let wants_file = cursor.is_behind && (has_file || checkpointer.cursor_files.len() < CURSOR_FILES_MAX);
            let in_file = Key { kind: key::CURSOR_IN_FILE, a: cursor.group, b: cursor.partition };
            let in_table = Key { kind: key::CURSOR, a: cursor.group, b: cursor.partition };
            match (&dir, wants_file) {
                (Some(dir), true) => {
                    write_cursor_file(dir, queue.incarnation, cursor, state, has_file, at)?;
                    checkpointer.cursor_files.insert(place);
                    rows.put(in_file, |_| ());
                    rows.remove(in_table);
                }
                _ => {
                    rows.put(in_table, |bytes| ControlOp::encode_cursor(cursor.group, cursor.partition, state, bytes));
                    if has_file {
                        rows.remove(in_file);
                        files_to_remove.push(place);
                    }
                }
            }
        }
        let changed = self.entries.iter().map(|(key, value)| Entry { key: *key, value: value.as_deref() });
        checkpointer.table.append(at, changed.chain(self.rows.entries()).chain(rows.entries()))?;
        if let Some(dir) = dir {
            remove_files(&dir, checkpointer, files_to_remove)?;
        }
        Ok(())
    }

    fn put_back(self, state: &mut State) {
        for (key, value) in self.entries {
            state.dirty.entry(key).or_insert(value);
        }
        for (partition, folded) in self.senders {
            state.producers.mark_dirty(partition, folded);
        }
        for id in self.partitions {
            state.partitions.mark_dirty(id);
        }
        for cursor in self.cursors.into_keys() {
            if let Some(group) = state.groups.get_mut(&cursor.group) {
                group.mark_dirty(cursor.partition);
            }
        }
    }
}

/// Every entry that a table written anew has, but for the dead letters, which the table carries over itself.
pub(super) fn all_entries(state: &State, cursor_files: &BTreeSet<(GroupId, PartitionId)>) -> Rows {
    let mut rows = Rows::default();
    rows.put_operation(&ControlOp::Queue(crate::format::control::QueueRecord {
        name: state.name.clone(),
        created_at_us: state.created_at_us,
        settings: state.settings.as_ref().clone(),
    }));
    rows.put_operation(&ControlOp::Counters(state.counters()));
    for group in state.groups.values() {
        rows.put_operation(&ControlOp::Group(group.record.clone()));
    }
    for (id, partition) in state.partitions.iter_from(0) {
        rows.put_operation(&ControlOp::Partition(partition.record(id)));
    }
    for (id, event) in state.traces.iter() {
        rows.put_operation(&ControlOp::Trace { id, state: super::records::encode_trace(event) });
    }
    state.jump.into_iter().for_each(|jump| rows.put_operation(&ControlOp::Jump(jump)));
    state.lost.iter().for_each(|&partition| rows.put_operation(&ControlOp::PartitionLost(partition)));
    for (&partition, gaps) in &state.gaps {
        for (number, &(first, last)) in (0u32..).zip(gaps) {
            let operation = ControlOp::Gap { partition, first, last };
            rows.put(Key { kind: key::GAP, a: partition, b: number }, |bytes| operation.encode(bytes));
        }
    }
    for (&coordinator, &transaction) in &state.applied {
        let operation = ControlOp::Applied { coordinator, transaction };
        rows.put(halves(key::APPLIED, coordinator), |bytes| operation.encode(bytes));
    }
    for (partition, folded, operations) in state.producers.all() {
        rows.put_all(Key { kind: key::SENDER, a: partition, b: folded }, &operations);
    }
    let mut encoded = Vec::new();
    for (&group, found) in &state.groups {
        for (partition, slot) in found.slots_from(0) {
            if cursor_files.contains(&(group, partition)) {
                rows.put(Key { kind: key::CURSOR_IN_FILE, a: group, b: partition }, |_| ());
                continue;
            }
            encoded.clear();
            match slot {
                Slot::Plain { cursor, .. } => super::delivery::Cursor::from(*cursor).encode(&mut encoded),
                Slot::Active(active) => active.delivery.visible().encode(&mut encoded),
                Slot::Unseeded | Slot::Held(_) => continue,
            }
            let key = Key { kind: key::CURSOR, a: group, b: partition };
            rows.put(key, |bytes| ControlOp::encode_cursor(group, partition, &encoded, bytes));
        }
    }
    rows
}

/// Says that a cursor lies in a file of its own.
fn in_file(group: GroupId, partition: PartitionId) -> Entry<'static> {
    Entry { key: Key { kind: key::CURSOR_IN_FILE, a: group, b: partition }, value: Some(&[]) }
}

fn encoded(operation: &ControlOp) -> Vec<u8> {
    let mut bytes = Vec::new();
    operation.encode(&mut bytes);
    bytes
}

fn cursors_dir(dir: &Arc<dyn Dir>) -> Result<Arc<dyn Dir>> {
    match dir.dir(names::CURSORS) {
        Ok(found) => Ok(found),
        Err(error) if error.is_not_found() => {
            dir.create_dir(names::CURSORS)?;
            dir.sync()?;
            Ok(dir.dir(names::CURSORS)?)
        }
        Err(error) => Err(error.into()),
    }
}

fn write_cursor_file(
    dir: &Arc<dyn Dir>,
    incarnation: u64,
    cursor: &DirtyCursor,
    state: &[u8],
    exists: bool,
    at: u64,
) -> Result<()> {
    let identity = SlotIdentity { incarnation, partition: cursor.partition, group: cursor.group };
    let name = names::cursor(cursor.group, cursor.partition);
    if exists {
        let (mut slots, _, _) = Slots::open(dir, &name, identity).map_err(slots_error)?;
        return slots.write(at, state).map_err(slots_error);
    }
    match dir.remove(&name) {
        Ok(()) => {}
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error.into()),
    }
    Slots::create(dir, &name, identity, at, state).map(drop).map_err(slots_error)
}

fn remove_files(dir: &Arc<dyn Dir>, checkpointer: &mut Checkpointer, places: Vec<(GroupId, PartitionId)>) -> Result<()> {
    if places.is_empty() {
        return Ok(());
    }
    for (group, partition) in places {
        match dir.remove(&names::cursor(group, partition)) {
            Ok(()) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
        checkpointer.cursor_files.remove(&(group, partition));
    }
    Ok(dir.sync()?)
}

/// The error of a cursor file.
pub(super) fn slots_error(error: crate::storage::slots::SlotsError) -> Error {
    match error {
        crate::storage::slots::SlotsError::Disk(error) => error.into(),
        other => Error::new(crate::model::ErrorCode::BadDirectory, other.to_string()),
    }
}
