//! Opening a data directory: recovery of every queue, and what was found.
//!
//! One queue that cannot be opened does not keep the others from being served; its directory is left as it is and named in the report.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, RwLock};

use crate::codec::Reader;
use crate::format::control::{ControlOp, JumpRecord, key};
use crate::format::{Lsn, lsn_segment, names};
use crate::model::{Durability, Error, ErrorCode, Now};
use crate::record::{GroupId, PartitionId, RecordKind, StoredBatch};
use crate::storage::disk::{Dir, RealDir};
use crate::storage::lock::DirectoryLock;
use crate::storage::log::scan::Record;
use crate::storage::log::{self, LogFinding, OpenLog};
use crate::storage::slots::{SlotIdentity, Slots};
use crate::storage::table::{Entry, Key, Table};

use super::cache::BatchCache;
use super::leases::Common;
use super::producers::Past;
use super::queue::Queue;
use super::start::{START_FILE, StartRecord, boot_id, is_our_file};
use super::state::State;
use super::threads::Scheduler;
use super::timer::Timing;
use super::{Engine, EngineOptions, Result, Shared};

/// What opening found; `serve`, `verify` and tests share it.
#[derive(Debug, Clone, Default)]
pub struct RecoveryReport {
    /// Whether the last run closed the directory.
    pub was_clean: bool,
    /// Queues that are served.
    pub queues: u64,
    /// Their partitions.
    pub partitions: u64,
    /// Their messages.
    pub messages: u64,
    /// Log records behind the checkpoints.
    pub records_replayed: u64,
    /// One for each thing that was not as a clean stop leaves it.
    pub findings: Vec<Finding>,
}

/// One thing that recovery found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Whether acknowledged data is lost or cannot be served.
    pub is_loss: bool,
    /// The queue's name, if it concerns one.
    pub queue: Option<String>,
    /// One line for people.
    pub text: String,
}

/// What opening a queue needs to know of the run.
struct Context {
    start_number: u64,
    /// The machine went down under the last run: what was written and not synced may be gone.
    has_lost_power: bool,
    common: Arc<Common>,
    now: Now,
}

/// A queue that was opened, and what it owes to others.
struct Opened {
    queue: Arc<Queue>,
    /// Operations on other queues: (incarnation, operation).
    foreign: Vec<(u64, ControlOp)>,
    /// Pushes into other queues: (transaction, target, push).
    redo: Vec<(u64, u64, Vec<u8>)>,
}

impl Engine {
    /// Opens a data directory, or makes one.
    ///
    /// # Errors
    ///
    /// `DirectoryInUse` names the process that has it open; `NewerFormat`, `BadDirectory` and `Io` name the file.
    pub fn open_path(path: &Path, options: EngineOptions, now: Now) -> Result<(Self, RecoveryReport)> {
        let dir = RealDir::open_or_create(path)?;
        Self::open(Arc::new(dir), options, now)
    }

    /// Opens a data directory behind any door to files.
    ///
    /// # Errors
    ///
    /// As [`Engine::open_path`].
    pub fn open(dir: Arc<dyn Dir>, options: EngineOptions, now: Now) -> Result<(Self, RecoveryReport)> {
        let lock = DirectoryLock::acquire(dir.as_ref(), &format!("since {} ms of the epoch", now.wall_us / 1000))?;
        let mut report = RecoveryReport::default();
        let before = match StartRecord::read(dir.as_ref()) {
            Ok(before) => before,
            Err(error) if error.code == ErrorCode::BadDirectory => {
                report.finding(true, None, format!("{}; start numbers go on from the clock", error.text));
                Some(StartRecord { number: now.wall_us / 1_000_000, ..StartRecord::default() })
            }
            Err(error) => return Err(error),
        };
        report.was_clean = before.is_none_or(|before| before.is_clean);
        let number = before.map_or(0, |before| before.number) + 1;
        let has_lost_power = before.is_some_and(|before| !before.is_clean && before.boot_id != boot_id());
        StartRecord { number, is_clean: false, boot_id: boot_id() }.write(&dir)?;
        let incarnations = list_queues(&dir, &mut report)?;
        if before.is_none() && !incarnations.is_empty() {
            report.finding(true, None, format!("the file {START_FILE} is missing beside queues"));
        }
        let common = Arc::<Common>::default();
        let context = Context { start_number: number, has_lost_power, common: Arc::clone(&common), now };
        let mut opened = Vec::new();
        for incarnation in incarnations {
            match open_queue(&dir, incarnation, &context, &mut report) {
                Ok(queue) => opened.push(queue),
                Err(error) if error.code == ErrorCode::NewerFormat => return Err(error),
                Err(error) => {
                    let directory = names::queue_dir(incarnation);
                    report.finding(true, None, format!("{directory} is not served: {}", error.text));
                }
            }
        }
        let mut queues = HashMap::new();
        for found in &opened {
            let queue = &found.queue;
            if queues.insert(queue.name.clone(), Arc::clone(queue)).is_some() {
                report.finding(
                    true,
                    Some(&queue.name),
                    "two directories hold a queue of this name; one is not served".to_owned(),
                );
            }
            let state = queue.state();
            report.queues += 1;
            report.partitions += state.partitions.count();
            report.messages += state.stats.messages;
        }
        let engine = Self {
            shared: Arc::new(Shared {
                options,
                dir,
                queues: RwLock::new(queues),
                making: Mutex::new(()),
                cache: BatchCache::default(),
                common,
                start_number: number,
                token_counter: AtomicU64::new(1),
                watch_counter: AtomicU64::new(1),
                rotation: AtomicUsize::new(0),
                scheduler: Scheduler::default(),
                timing: Mutex::new(Timing::default()),
                is_closed: AtomicBool::new(false),
                _lock: lock,
            }),
        };
        engine.finish_transactions(opened, now, &mut report)?;
        Ok((engine, report))
    }

    /// Cursors that stand in other queues' logs are handed to their queues, and pushes that a decided transaction still owes are done.
    fn finish_transactions(&self, opened: Vec<Opened>, now: Now, report: &mut RecoveryReport) -> Result<()> {
        for found in &opened {
            for (incarnation, operation) in &found.foreign {
                if let Some(target) = self.queue_by_incarnation(*incarnation) {
                    target.apply_recovered(operation);
                    found.queue.committer().foreign.push(*incarnation);
                }
            }
        }
        for found in &opened {
            for (transaction, target, push) in &found.redo {
                let Some(target) = self.queue_by_incarnation(*target) else { continue };
                let is_done = self.redo_push(found.queue.incarnation, *transaction, &target, push, now)?;
                if is_done {
                    let text = format!("transaction {transaction} was decided before the stop; its push was done now");
                    report.finding(false, Some(&target.name), text);
                }
            }
        }
        Ok(())
    }

    /// Checkpoints, marks the directory clean and refuses everything afterwards. Threads end first.
    ///
    /// # Errors
    ///
    /// If a queue cannot be checkpointed; the next start then recovers as after a crash.
    pub fn close(&self, now: Now) -> Result<()> {
        self.shared.is_closed.store(true, std::sync::atomic::Ordering::Release);
        self.shared.scheduler.stop();
        let mut outcome = Ok(());
        for queue in self.all_queues() {
            {
                let mut committer = queue.committer();
                while queue.commit_once(&mut committer) {}
            }
            let closed = self.keep_delivery_counts(&queue, now).and_then(|()| self.checkpoint(&queue, now));
            if closed.is_err() {
                outcome = closed;
            }
        }
        if outcome.is_ok() {
            let record = StartRecord { number: self.shared.start_number, is_clean: true, boot_id: boot_id() };
            record.write(&self.shared.dir)?;
        }
        outcome
    }

    /// Delivery counts that no record holds yet.
    fn keep_delivery_counts(&self, queue: &Queue, now: Now) -> Result<()> {
        queue.run(now, |stage| {
            for (&id, group) in &stage.state.groups {
                for (partition, slot) in group.slots_from(0) {
                    if let super::group::Slot::Active(active) = slot
                        && active.delivery.has_change().0
                    {
                        stage.plan.touched.push((id, partition));
                    }
                }
            }
            Ok(())
        })
    }
}

impl RecoveryReport {
    fn finding(&mut self, is_loss: bool, queue: Option<&str>, text: String) {
        self.findings.push(Finding { is_loss, queue: queue.map(str::to_owned), text });
    }
}

/// Incarnations of the queues in a data directory. What a crash left of queues being made or deleted is removed.
fn list_queues(dir: &Arc<dyn Dir>, report: &mut RecoveryReport) -> Result<Vec<u64>> {
    let mut incarnations = Vec::new();
    for entry in dir.list()? {
        let name = entry.name.as_str();
        if let Some(incarnation) = names::parse_queue_dir(name).filter(|_| entry.is_directory) {
            incarnations.push(incarnation);
        } else if names::parse_leftover_dir(name).is_some() && entry.is_directory {
            super::queues::remove_tree(dir, name)?;
        } else if !is_our_file(name) {
            report.finding(false, None, format!("{name} is none of ours; it is left alone"));
        }
    }
    incarnations.sort_unstable();
    Ok(incarnations)
}

fn open_queue(root: &Arc<dyn Dir>, incarnation: u64, context: &Context, report: &mut RecoveryReport) -> Result<Opened> {
    let dir = root.dir(&names::queue_dir(incarnation))?;
    let mut state = State::new("");
    let mut cursor_files = BTreeSet::new();
    let mut is_decodable = true;
    let (mut table, table_report) = Table::open(&dir, names::TABLE, incarnation, |entry| {
        is_decodable &= apply_entry(&mut state, &mut cursor_files, entry);
    })?;
    let name = state.name.clone();
    if name.is_empty() {
        return Err(Error::new(ErrorCode::BadDirectory, format!("{} names no queue", dir.describe())));
    }
    if !is_decodable {
        report.finding(true, Some(&name), "an entry of the checkpoint does not decode".to_owned());
    }
    let is_table_damaged = !table_report.damage.is_empty();
    for damage in &table_report.damage {
        let text = format!("the checkpoint is damaged from position {} to {}", damage.start, damage.end);
        report.finding(true, Some(&name), text);
    }
    read_cursor_files(&dir, incarnation, &mut state, &mut cursor_files, &name, report)?;
    let epoch = u32::try_from(context.start_number).unwrap_or(u32::MAX);
    let options = OpenLog {
        incarnation,
        epoch,
        checkpoint: table.lsn(),
        first_segment: state.counters.first_segment,
        segment_bytes_max: state.settings.segment_bytes_max,
        now_us: context.now.wall_us,
    };
    let mut replay = Replay { state: &mut state, foreign: Vec::new(), redo: Vec::new(), undecodable: 0 };
    let recovery = log::open(&dir, &options, &mut |record| replay.record(record))?;
    let Replay { foreign, redo, undecodable, .. } = replay;
    if undecodable > 0 {
        report.finding(true, Some(&name), format!("{undecodable} records do not decode"));
    }
    report.records_replayed += recovery.replayed;
    let mut jump = jump_after(&recovery.findings, &recovery.writer, table.lsn());
    if context.has_lost_power && state.settings.durability != Durability::Sync {
        // Offsets that were told before they were durable may be gone with their messages; they are not given again.
        let known = jump.get_or_insert(JumpRecord { segment: lsn_segment(recovery.writer.end()), offsets: 0 });
        known.offsets = known.offsets.saturating_add(1 << 32);
    }
    for finding in &recovery.findings {
        report.finding(finding.is_loss(), Some(&name), finding.to_string());
    }
    if let Some(jump) = jump {
        let known = state.jump.unwrap_or_default();
        let offsets = known.offsets.saturating_add(jump.offsets);
        state.apply(&ControlOp::Jump(JumpRecord { segment: jump.segment.max(known.segment), offsets }), true);
    }
    state.note_activity();
    state.newest_at_us = state.partitions.iter_from(0).map(|(_, partition)| partition.newest_at_us).max().unwrap_or(0);
    if is_table_damaged {
        // Appends are refused to a damaged table; writing it anew keeps the damaged one aside.
        let live = super::checkpoint::all_entries(&state, &cursor_files);
        let at = table.lsn();
        table.rewrite(at, live.iter().map(|(key, value)| Entry { key: *key, value: Some(value) }))?;
    }
    let queue = Queue::new(incarnation, dir, recovery.writer, table, state, Arc::clone(&context.common), cursor_files);
    if jump.is_some() {
        // The jump must outlive this run before an offset is given out.
        super::checkpoint::write_checkpoint(&queue)?;
    }
    Ok(Opened { queue: Arc::new(queue), foreign, redo })
}

/// Applies an entry of the table; the last one of a key counts, so they are applied in the order of the file. Whether it decodes.
fn apply_entry(state: &mut State, cursor_files: &mut BTreeSet<(GroupId, PartitionId)>, entry: Entry<'_>) -> bool {
    let Key { kind, a, b } = entry.key;
    let id = u64::from(a) << 32 | u64::from(b);
    match (kind, entry.value) {
        (key::CURSOR_IN_FILE, Some(_)) => {
            cursor_files.insert((a, b));
        }
        (key::CURSOR_IN_FILE, None) => {
            cursor_files.remove(&(a, b));
        }
        (_, Some(value)) => match ControlOp::decode(&mut Reader::new(value)) {
            Ok(operation) => state.apply(&operation, false),
            Err(_) => return false,
        },
        (key::PARTITION, None) => state.apply(&ControlOp::PartitionRemoved(a), false),
        (key::GROUP, None) => state.apply(&ControlOp::GroupRemoved(a), false),
        (key::DEAD_LETTER, None) => state.apply(&ControlOp::DeadLetterRemoved(id), false),
        (key::TRACE, None) => {
            state.traces.remove(&id);
        }
        (key::APPLIED, None) => state.applied.retain(|&(_, transaction), ()| transaction as u32 != a),
        // A cursor that moved to its file, or whose group is gone.
        (_, None) => {}
    }
    true
}

/// Cursors that live in files of their own. One that cannot be read holds its group there; it is never taken for a new one.
fn read_cursor_files(
    dir: &Arc<dyn Dir>,
    incarnation: u64,
    state: &mut State,
    places: &mut BTreeSet<(GroupId, PartitionId)>,
    name: &str,
    report: &mut RecoveryReport,
) -> Result<()> {
    if places.is_empty() {
        return Ok(());
    }
    places.retain(|(group, _)| state.groups.contains_key(group));
    let files = dir.dir(names::CURSORS);
    for &(group, partition) in places.iter() {
        let identity = SlotIdentity { incarnation, partition, group };
        let read = match &files {
            Ok(files) => {
                Slots::read(files.as_ref(), &names::cursor(group, partition), identity).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        match read {
            Ok((value, _)) => {
                state.apply(&ControlOp::Cursor { group, partition, state: value.body }, false);
            }
            Err(reason) => {
                report.finding(true, Some(name), format!("cursor of group {group} in partition {partition} is held: {reason}"));
                if let Some(found) = state.groups.get_mut(&group) {
                    found.hold(partition, &reason);
                }
            }
        }
    }
    Ok(())
}

/// Applies the records behind the checkpoint.
struct Replay<'a> {
    state: &'a mut State,
    foreign: Vec<(u64, ControlOp)>,
    redo: Vec<(u64, u64, Vec<u8>)>,
    undecodable: u64,
}

impl Replay<'_> {
    fn record(&mut self, record: &Record) {
        match record.header.kind {
            RecordKind::Batch => self.batch(record),
            RecordKind::Control => match ControlOp::decode_all(&record.body()) {
                Ok(operations) => operations.into_iter().for_each(|operation| self.operation(operation)),
                Err(_) => self.undecodable += 1,
            },
            RecordKind::Frontier => {}
        }
    }

    fn operation(&mut self, operation: ControlOp) {
        match operation {
            ControlOp::Foreign { incarnation, operation } => match ControlOp::decode(&mut Reader::new(&operation)) {
                Ok(operation) => self.foreign.push((incarnation, operation)),
                Err(_) => self.undecodable += 1,
            },
            ControlOp::Redo { transaction, target, push } => self.redo.push((transaction, target, push)),
            other => self.state.apply(&other, true),
        }
    }

    fn batch(&mut self, record: &Record) {
        let Some(batch) = record.batch else { return };
        let segment = lsn_segment(record.header.lsn);
        let annex = StoredBatch::parse(record.bytes.clone()).ok().and_then(|stored| stored.annex().ok()).unwrap_or_default();
        for mark in &annex.producers {
            let base = batch.base_offset + u64::from(mark.first_index);
            let past = Past { sequence: mark.sequence, base, count: mark.count };
            self.state.producers.record(batch.partition, mark.producer_id, mark.epoch, past);
        }
        let Some(partition) = self.state.partitions.change(batch.partition) else {
            // Its partition was removed, or the record that made it is damaged; the bytes stay.
            self.undecodable += 1;
            return;
        };
        let next = batch.base_offset + u64::from(batch.count);
        if next > partition.end {
            if partition.length() == 0 {
                partition.first_segment = segment;
            }
            partition.end = next;
            partition.newest_at_us = partition.newest_at_us.max(record.header.created_at_us);
            partition.last_segment = segment;
            self.state.counters.pushed += u64::from(batch.count);
            self.state.stats.messages += u64::from(batch.count);
        }
    }
}

/// How far offsets must jump so that none that the damage may have hidden is given again: no batch is shorter than its header, and
/// none has more messages than its block has bytes for.
fn jump_after(findings: &[LogFinding], writer: &log::LogWriter, checkpoint: Lsn) -> Option<JumpRecord> {
    const MESSAGES_MAX: u64 = (crate::record::BLOCK_BYTES_MAX / 2) as u64;
    let mut offsets = 0u64;
    for finding in findings {
        let bytes = match *finding {
            LogFinding::Damaged { segment, start, end } if crate::format::lsn(segment, end) > checkpoint => {
                u64::from(end - start)
            }
            LogFinding::MissingSegments { first, last } if last >= lsn_segment(checkpoint) => {
                u64::from(last - first.max(lsn_segment(checkpoint)) + 1) << 30
            }
            LogFinding::EndsBeforeCheckpoint { .. } => 1 << 20,
            _ => continue,
        };
        let batches = bytes / crate::record::BATCH_HEADER_BYTES as u64 + 1;
        offsets = offsets.saturating_add(batches.saturating_mul(MESSAGES_MAX));
    }
    (offsets > 0).then(|| JumpRecord { segment: lsn_segment(writer.end()), offsets: offsets.min(1 << 48) })
}
