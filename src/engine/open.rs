//! Opening a data directory: recovery of every queue, and what was found.
//!
//! One queue that cannot be opened does not keep the others from being served; its directory is left as it is and named in the report.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

use crate::codec::Reader;
use crate::format::control::{ControlOp, JumpRecord, key};
use crate::format::{Lsn, lsn_segment, names};
use crate::model::{Durability, Error, ErrorCode, Now};
use crate::record::{GroupId, PartitionId, RecordKind, StoredBatch};
use crate::storage::disk::{Dir, DiskErrorKind, RealDir};
use crate::storage::lock::DirectoryLock;
use crate::storage::log::scan::Record;
use crate::storage::log::{self, LogError, LogFinding, OpenLog};
use crate::storage::slots::{SlotIdentity, Slots};
use crate::storage::table::{Entry, Key, Table};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use crate::sync::{Mutex, RwLock};

use super::cache::BatchCache;
use super::leases::Common;
use super::producers::Past;
use super::queue::Queue;
use super::queue_map::QueueMap;
use super::start::{START_FILE, StartRecord, boot_id, is_our_file};
use super::state::State;
use super::threads::Scheduler;
use super::timer::Timing;
use super::transaction::Owed;
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
    /// Parts of transactions that this queue's log decided for others, which may have them.
    owed: VecDeque<Owed>,
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
        let since = jiff::Timestamp::from_millisecond((now.wall_us / 1000) as i64).unwrap_or_default();
        let lock = DirectoryLock::acquire(dir.as_ref(), &format!("since {since}"))?;
        let mut report = RecoveryReport::default();
        let before = match StartRecord::read(dir.as_ref()) {
            Ok(before) => before,
            Err(error) if error.code == ErrorCode::BadDirectory => {
                // Nothing is lost by it, and a full disk at the last stop or start can be the reason.
                report.finding(false, None, format!("{}; start numbers go on from the clock", error.text));
                Some(StartRecord { number: now.wall_us / 1_000_000, ..StartRecord::default() })
            }
            Err(error) => return Err(error),
        };
        check_formats(&dir)?;
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
        let mut queues = QueueMap::default();
        for found in &opened {
            let queue = &found.queue;
            if let Some(known) = queues.get(&queue.name) {
                // The older one was deleted, or was not made whole, and could not be taken out of the way then.
                report.finding(
                    true,
                    Some(&queue.name),
                    "two directories hold a queue of this name; the older one is left alone and not served".to_owned(),
                );
                if known.age_key() > queue.age_key() {
                    continue;
                }
            }
            queues.insert(Arc::clone(queue));
        }
        for queue in queues.values() {
            let state = queue.state();
            report.queues += 1;
            report.partitions += state.partitions.count();
            report.messages += state.stats.messages;
        }
        let engine = Self {
            may_mark: false,
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
                makers: Arc::default(),
                waiting: Arc::default(),
                rotation: AtomicUsize::new(0),
                scheduler: Scheduler::default(),
                timing: Mutex::new(Timing::default()),
                is_closed: AtomicBool::new(false),
                _lock: lock,
            }),
            scope: None,
        };
        engine.finish_transactions(opened, now, &mut report);
        Ok((engine, report))
    }

    /// Does the parts of decided transactions that their queues do not have. What cannot be written now (the disk may be full) stays
    /// owed; its cursors are visible all the same.
    fn finish_transactions(&self, opened: Vec<Opened>, now: Now, report: &mut RecoveryReport) {
        for Opened { queue, mut owed } in opened {
            owed.retain(|part| self.queue_by_incarnation(part.target).is_some_and(|target| !target.has_part(&queue, part)));
            if owed.is_empty() {
                continue;
            }
            let text = format!("{} parts of transactions that were decided before the stop are done now", owed.len());
            report.finding(false, Some(&queue.name), text);
            for part in &owed {
                if let Some(target) = self.queue_by_incarnation(part.target) {
                    part.operations.iter().for_each(|operation| target.apply_recovered(operation));
                }
            }
            queue.committer().owed = owed;
            if let Err(error) = self.finish_owed(&queue, now) {
                report.finding(false, Some(&queue.name), format!("not all of them can be written yet: {}", error.text));
            }
        }
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
            let kept = if queue.is_shut() { Ok(()) } else { self.keep_delivery_counts(&queue, now) };
            // Nothing is answered any more that the checkpoint does not have.
            queue.shut();
            {
                let mut committer = queue.committer();
                while queue.commit_once(&mut committer) {}
            }
            let closed = kept.and_then(|()| self.checkpoint(&queue, now));
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

/// Refuses the directory if any queue is of a newer format, before anything in it is changed. A queue that cannot be read is left for
/// its opening to report.
fn check_formats(dir: &Arc<dyn Dir>) -> Result<()> {
    for entry in dir.list()?.iter().filter(|entry| entry.is_directory) {
        let Some(incarnation) = names::parse_queue_dir(&entry.name) else { continue };
        let Ok(queue) = dir.dir(&entry.name) else { continue };
        let table = Table::check_format(queue.as_ref(), names::TABLE, incarnation).map_err(Error::from);
        let log = log::check_format(queue.as_ref(), incarnation).map_err(Error::from);
        for checked in [table, log] {
            if let Err(error) = checked
                && error.code == ErrorCode::NewerFormat
            {
                return Err(Error::new(error.code, format!("{}: {}", entry.name, error.text)));
            }
        }
    }
    Ok(())
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
    let mut removed = BTreeSet::new();
    let (mut table, table_report) = Table::open_with(&dir, names::TABLE, incarnation, Some(key::DEAD_LETTER), |entry| {
        if entry.key.kind == key::PARTITION && entry.value.is_none() {
            removed.insert(entry.key.a);
        }
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
    let mut replay = Replay { state: &mut state, owed: VecDeque::new(), removed, undecodable: 0 };
    let mut recovery = log::open(&dir, &options, &mut |record| replay.record(record))?;
    let Replay { owed, removed, undecodable, .. } = replay;
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
    let has_loss = is_table_damaged || !is_decodable || undecodable > 0 || recovery.findings.iter().any(LogFinding::is_loss);
    if has_loss {
        let lost = lost_partitions(recovery.writer.log(), &state, &removed)?;
        if !lost.is_empty() {
            let text = format!("the records of {} partitions are lost; what the log has of them is kept: {lost:?}", lost.len());
            report.finding(true, Some(&name), text);
        }
        lost.into_iter().for_each(|id| state.apply(&ControlOp::PartitionLost(id), true));
    }
    let jump = jump.map(|jump| {
        let known = state.jump.unwrap_or_default();
        let offsets = known.offsets.saturating_add(jump.offsets);
        JumpRecord { segment: jump.segment.max(known.segment), offsets }
    });
    if let Some(jump) = jump {
        // Partitions jump once: until they have messages in a segment behind this one.
        match recovery.writer.roll_away(table.lsn(), state.settings.segment_bytes_max, context.now.wall_us) {
            // They jump more often then.
            Err(LogError::Disk(error)) if error.kind == DiskErrorKind::Full => {}
            outcome => outcome?,
        }
        state.apply(&ControlOp::Jump(jump), true);
    }
    state.note_activity();
    state.newest_at_us = state.partitions.iter_from(0).map(|(_, partition)| partition.newest_at_us).max().unwrap_or(0);
    if is_table_damaged {
        // Appends are refused to a damaged table; writing it anew keeps the damaged one aside.
        let live = super::checkpoint::all_entries(&state, &cursor_files);
        let at = table.lsn();
        table.rewrite(at, live.entries())?;
    }
    let queue = Queue::new(incarnation, dir, recovery.writer, table, state, Arc::clone(&context.common), cursor_files);
    if !report.was_clean {
        queue.checkpointer().distrust_table();
    }
    if let Some(jump) = jump {
        // The jump must outlive this run before an offset is given out.
        super::checkpoint::write_jump(&queue, jump)?;
    }
    Ok(Opened { queue: Arc::new(queue), owed })
}

/// Partitions that the log has batches of, and that are neither known nor known to be removed. When something is lost, their records may
/// be among it; else they were removed long ago.
fn lost_partitions(log: &log::Log, state: &State, removed: &BTreeSet<PartitionId>) -> Result<BTreeSet<PartitionId>> {
    let mut lost = BTreeSet::new();
    for segment in log.segments().iter() {
        let unknown = segment.all_batches()?.into_iter().map(|batch| batch.partition);
        lost.extend(
            unknown.filter(|id| state.partitions.get(*id).is_none() && !removed.contains(id) && !state.lost.contains(id)),
        );
    }
    Ok(lost)
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
        (_, Some(value)) => match ControlOp::decode_all(value) {
            Ok(operations) => operations.iter().for_each(|operation| state.apply(operation, false)),
            Err(_) => return false,
        },
        (key::PARTITION, None) => state.apply(&ControlOp::PartitionRemoved(a), false),
        (key::GROUP, None) => state.apply(&ControlOp::GroupRemoved(a), false),
        (key::DEAD_LETTER, None) => state.apply(&ControlOp::DeadLetterRemoved(id), false),
        (key::TRACE, None) => {
            state.traces.remove(id);
        }
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
    owed: VecDeque<Owed>,
    /// Partitions that the checkpoint or the log says are gone.
    removed: BTreeSet<PartitionId>,
    undecodable: u64,
}

impl Replay<'_> {
    fn record(&mut self, record: &Record) {
        match record.header.kind {
            RecordKind::Batch => self.batch(record),
            RecordKind::Control => match ControlOp::decode_all(&record.body()) {
                Ok(operations) => self.operations(operations),
                Err(_) => self.undecodable += 1,
            },
            RecordKind::Frontier => {}
        }
    }

    fn operations(&mut self, operations: Vec<ControlOp>) {
        let mut foreign: HashMap<u64, Vec<ControlOp>> = HashMap::new();
        for operation in operations {
            match operation {
                ControlOp::Foreign { incarnation, operation } => match ControlOp::decode(&mut Reader::new(&operation)) {
                    Ok(operation) => foreign.entry(incarnation).or_default().push(operation),
                    Err(_) => self.undecodable += 1,
                },
                ControlOp::Redo { transaction, target, push } => {
                    let operations = foreign.remove(&target).unwrap_or_default();
                    self.owed.push_back(Owed { transaction, target, operations, push });
                }
                other => {
                    if let ControlOp::PartitionRemoved(id) = other {
                        self.removed.insert(id);
                    }
                    self.state.apply(&other, true);
                }
            }
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
