//! One queue: its log, its state, and the group commit that moves both.
//!
//! Requests are put in line and committed together by whoever comes to it first: a caller that waits, or a committer thread. Locks
//! are taken in the order checkpointer, committer, state, line; none is held while another queue's is taken, but for transactions, which take
//! committers in the order of incarnations.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use crate::format::control::ControlOp;
use crate::model::{Durability, Error, ErrorCode, Now, Promise};
use crate::record::{GroupId, PartitionId};
use crate::storage::disk::{Dir, DiskErrorKind};
use crate::storage::log::{Log, LogError, LogWriter, SpareMaker};
use crate::storage::table::Table;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};

use super::answers::Answers;
use super::checkpoint::Checkpointer;
use super::completion::Completion;
use super::filters::FilterSet;
use super::group::Wake;
use super::leases::{Common, Ends, Place};
use super::line::{Decision, Finish, Job, Line};
use super::stage::{Plan, Stage};
use super::state::State;
use super::transaction::Owed;

/// Room that a commit asks for beyond its pushes, for acknowledgements beside them.
const ACK_ROOM_BYTES: u64 = 64 << 10;

/// A queue.
pub(super) struct Queue {
    pub incarnation: u64,
    pub name: String,
    pub dir: Arc<dyn Dir>,
    pub log: Arc<Log>,
    pub spares: Arc<SpareMaker>,
    committer: Mutex<Committer>,
    checkpointer: Mutex<Checkpointer>,
    state: Mutex<State>,
    line: Mutex<Line>,
    /// As many requests are in line as [`Queue::gather`] waits for.
    gathered: Condvar,
    common: Arc<Common>,
    filters: Mutex<Arc<FilterSet>>,
    pub is_scheduled: AtomicBool,
    is_deleted: AtomicBool,
    /// Its files may be gone: it is being deleted, or was.
    is_leaving: AtomicBool,
    /// Grows with each commit that stored messages, for readers without a group.
    commits: AtomicU64,
    watchers: Mutex<Vec<(u64, Wake)>>,
}

/// What only the committing thread touches.
pub(super) struct Committer {
    pub writer: LogWriter,
    /// Bytes written to the log since the last checkpoint began.
    pub bytes_since_checkpoint: u64,
    /// The segment in which the last checkpoint began.
    pub checkpoint_segment: u32,
    /// Steady time of the first write that no sync has followed.
    pub unsynced_since_us: Option<u64>,
    /// Whether a record behind the last commit says how far the log is durable.
    pub is_frontier_marked: bool,
    pub last_commit_us: u64,
    /// Queues that got parts of transactions which this log decided: their logs are synced before this one's checkpoint.
    pub foreign: BTreeSet<u64>,
    /// Parts that could not be written there, oldest first. They are written before anything else is decided here.
    pub owed: VecDeque<Owed>,
}

/// The right to commit. When it is given up, the next one that waits is asked to go on.
pub(super) struct CommitterGuard<'a> {
    // Dropped in this order: the right is given up before anyone is asked to take it.
    guard: MutexGuard<'a, Committer>,
    _hand_on: HandOn<'a>,
}

struct HandOn<'a>(&'a Queue);

impl std::ops::Deref for CommitterGuard<'_> {
    type Target = Committer;

    fn deref(&self) -> &Committer {
        &self.guard
    }
}

impl std::ops::DerefMut for CommitterGuard<'_> {
    fn deref_mut(&mut self) -> &mut Committer {
        &mut self.guard
    }
}

impl Drop for HandOn<'_> {
    fn drop(&mut self) {
        self.0.hand_on();
    }
}

impl Queue {
    pub fn new(
        incarnation: u64,
        dir: Arc<dyn Dir>,
        writer: LogWriter,
        table: Table,
        state: State,
        common: Arc<Common>,
        cursor_files: BTreeSet<(GroupId, PartitionId)>,
    ) -> Self {
        let committer = Committer {
            bytes_since_checkpoint: 0,
            checkpoint_segment: crate::format::lsn_segment(table.lsn()),
            unsynced_since_us: None,
            is_frontier_marked: true,
            last_commit_us: 0,
            foreign: BTreeSet::new(),
            owed: VecDeque::new(),
            writer,
        };
        Self {
            incarnation,
            name: state.name.clone(),
            dir,
            log: Arc::clone(committer.writer.log()),
            spares: Arc::clone(committer.writer.spares()),
            committer: Mutex::new(committer),
            checkpointer: Mutex::new(Checkpointer::new(table, cursor_files)),
            filters: Mutex::new(Arc::clone(&state.filters)),
            state: Mutex::new(state),
            line: Mutex::default(),
            gathered: Condvar::new(),
            common,
            is_scheduled: AtomicBool::new(false),
            is_deleted: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            commits: AtomicU64::new(0),
            watchers: Mutex::default(),
        }
    }

    /// The state; hold it shortly and never while waiting for the disk.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The right to commit.
    pub fn committer(&self) -> CommitterGuard<'_> {
        let guard = self.committer.lock().unwrap_or_else(PoisonError::into_inner);
        CommitterGuard { guard, _hand_on: HandOn(self) }
    }

    /// The right to commit, if nobody has it.
    pub fn try_committer(&self) -> Option<CommitterGuard<'_>> {
        let guard = match self.committer.try_lock() {
            Ok(guard) => guard,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return None,
        };
        Some(CommitterGuard { guard, _hand_on: HandOn(self) })
    }

    /// The right to write a checkpoint; taken before the right to commit.
    pub fn checkpointer(&self) -> MutexGuard<'_, Checkpointer> {
        self.checkpointer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The filters that a push starting now is judged by.
    pub fn filters(&self) -> Arc<FilterSet> {
        Arc::clone(&self.filters.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What tells the newer of two queues of one name.
    pub fn age_key(&self) -> (u64, u64) {
        let state = self.state();
        (state.created_at_us, state.counters.pushed)
    }

    /// Puts a request in line.
    pub fn submit(&self, job: Job, now: Now) {
        if self.is_deleted.load(Ordering::Acquire) {
            return job.refuse(self.gone());
        }
        let mut line = self.line();
        if line.is_shut {
            drop(line);
            return job.refuse(super::closed());
        }
        self.common.pending_bytes.fetch_add(job.bytes(), Ordering::Relaxed);
        if line.push(job, now) {
            self.gathered.notify_one();
        }
    }

    /// Waits for a moment for more requests, if that is worth it.
    pub fn gather(&self) {
        let mut line = self.line();
        while let Some(left) = line.patience(Instant::now()) {
            line = self.gathered.wait_timeout(line, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Refuses what comes from now on; what is in line already is still committed.
    pub fn shut(&self) {
        self.line().is_shut = true;
    }

    /// Whether it was shut.
    pub fn is_shut(&self) -> bool {
        self.line().is_shut
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error of a queue that was deleted.
    pub fn gone(&self) -> Error {
        Error::new(ErrorCode::UnknownQueue, format!("there is no queue {:?}", self.name))
    }

    /// Says that its files are about to go, or that they stay after all.
    pub fn set_leaving(&self, is_leaving: bool) {
        self.is_leaving.store(is_leaving, Ordering::Release);
    }

    /// What a reader is told: a file that is missing because the queue is being deleted is no fault of the disk.
    pub fn told<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        match outcome {
            Err(error) if error.code == ErrorCode::Io && self.is_leaving.load(Ordering::Acquire) => Err(self.gone()),
            outcome => outcome,
        }
    }

    /// Waits until the outcome is there, and commits meanwhile if nobody else does. Whoever commits takes everything that is in line,
    /// and when its own outcome is there asks the next one that waits to go on: waiting for the right to commit itself would have
    /// threads woken one by one only to find that their outcome is there.
    pub fn drive<T: Send + 'static>(&self, completion: Completion<T>) -> Result<T, Error> {
        loop {
            if let Some(mut committer) = self.try_committer() {
                while !completion.is_done() && self.commit_once(&mut committer) {}
            } else {
                self.line().waiting.push_back(Arc::clone(completion.signal()));
                if let Some(mut committer) = self.try_committer() {
                    // The one who committed left between the two looks, and did not see this one waiting.
                    while !completion.is_done() && self.commit_once(&mut committer) {}
                }
            }
            if completion.is_done() || completion.wait() {
                return completion.take();
            }
        }
    }

    /// Asks the next one that waits to commit what is in line.
    fn hand_on(&self) {
        loop {
            let next = {
                let mut line = self.line();
                if line.is_empty() { None } else { line.waiting.pop_front() }
            };
            match next {
                Some(signal) if signal.ask() => return,
                Some(_) => {}
                None => {
                    let mut line = self.line();
                    if line.is_empty() {
                        line.waiting.clear();
                    }
                    return;
                }
            }
        }
    }

    /// Decides with the stage to itself, commits, and returns what was decided.
    pub fn run<T, F>(&self, now: Now, decide: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut Stage<'_>) -> Result<T, Error> + Send + 'static,
    {
        let (completion, done) = Completion::new();
        self.submit(Job::Exclusive(Box::new(Decision { decide, done })), now);
        self.drive(completion)
    }

    /// Refuses everything from now on.
    pub fn mark_deleted(&self) {
        self.is_deleted.store(true, Ordering::Release);
        let jobs = self.line().clear();
        for job in jobs {
            self.common.pending_bytes.fetch_sub(job.bytes(), Ordering::Relaxed);
            job.refuse(self.gone());
        }
        let mut woken = Vec::new();
        for group in self.state().groups.values_mut() {
            group.wake_all(&mut woken);
        }
        self.common.leases.end_queue(self.incarnation).tell();
        woken.iter().for_each(|wake| wake());
    }

    /// Whether the queue was deleted.
    pub fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::Acquire)
    }

    /// Whether anything is in line.
    pub fn has_jobs(&self) -> bool {
        !self.line().is_empty()
    }

    /// One group commit of what is in line; whether there was anything.
    pub fn commit_once(&self, committer: &mut Committer) -> bool {
        self.commit(committer).is_some_and(|answers| {
            answers.send();
            true
        })
    }

    /// One group commit of what is in line. The answers are to be sent, which may be done while the next commit goes on.
    pub fn commit(&self, committer: &mut Committer) -> Option<Answers<'_>> {
        let (jobs, now) = self.line().take()?;
        let (count, bytes) = (jobs.len(), jobs.iter().map(Job::bytes).sum());
        let started = Instant::now();
        let answers = self.commit_jobs(committer, jobs, now);
        self.common.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let ended = Instant::now();
        self.line().expect(count, ended - started, ended);
        Some(answers)
    }

    fn commit_jobs(&self, committer: &mut Committer, jobs: Vec<Job>, now: Now) -> Answers<'_> {
        let mut answers = Answers::new(&self.common.recorders);
        if self.is_deleted() {
            jobs.into_iter().for_each(|job| job.refuse(self.gone()));
            return answers;
        }
        let jobs = self.make_room(committer, jobs, now);
        if jobs.is_empty() {
            return answers;
        }
        let (plan, finishes) = self.decide(committer, jobs, now, &mut answers);
        answers.outcome = self.commit_plan(committer, plan, now);
        for finish in finishes {
            finish(answers.outcome.clone());
        }
        answers
    }

    /// Makes room for the pushes before anything is decided; without it they are refused and the acknowledgements go on.
    fn make_room(&self, committer: &mut Committer, jobs: Vec<Job>, now: Now) -> Vec<Job> {
        let (pushes, bytes) = jobs.iter().fold((0, 0), |(pushes, bytes), job| match job {
            Job::Push(prepared, _) => (pushes + 1, bytes + prepared.bytes as u64 + 256),
            _ => (pushes, bytes),
        });
        if pushes == 0 {
            return jobs;
        }
        let segment_bytes_max = self.state().settings.segment_bytes_max;
        let Err(error) = committer.writer.ensure_room(bytes + ACK_ROOM_BYTES, segment_bytes_max, false, now.wall_us) else {
            return jobs;
        };
        let is_full = matches!(&error, LogError::Disk(error) if error.kind == DiskErrorKind::Full);
        let error = Error::from(error);
        let (refused, rest): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| matches!(job, Job::Push(..)) || !is_full);
        refused.into_iter().for_each(|job| job.refuse(error.clone()));
        rest
    }

    /// Decides on all of them. What it returns beside the plan hears whether the commit went well.
    fn decide(&self, committer: &Committer, jobs: Vec<Job>, now: Now, answers: &mut Answers<'_>) -> (Plan, Vec<Finish>) {
        let mut state = self.state();
        let promise = Promise::from(state.settings.durability);
        let at = committer.writer.end();
        let mut stage = Stage { state: &mut state, log: &self.log, now, promise, at, plan: Plan::default() };
        let mut finishes = Vec::new();
        for job in jobs {
            match job {
                Job::Push(prepared, done) => {
                    let taken_at = prepared.taken_at;
                    answers.pushes.push((done, stage.push(*prepared), taken_at));
                }
                Job::Ack(ack, done) => answers.acks.push((done, stage.ack(&ack))),
                Job::Exclusive(exclusive) => {
                    stage.plan.is_atomic = true;
                    finishes.push(exclusive.decide(&mut stage));
                }
            }
        }
        let mut plan = stage.plan;
        plan.take_cursor_changes(&mut state);
        plan.note_counters(&state);
        (plan, finishes)
    }

    /// Writes a plan, makes it as durable as the queue promises, publishes it and wakes who waits. If it cannot be written, nothing
    /// of it happened.
    pub fn commit_plan(&self, committer: &mut Committer, plan: Plan, now: Now) -> Result<(), Error> {
        let durability = self.state().settings.durability;
        self.commit_plan_as(committer, plan, durability, now)
    }

    /// As [`Queue::commit_plan`], with a durability of its own.
    pub fn commit_plan_as(
        &self,
        committer: &mut Committer,
        mut plan: Plan,
        durability: Durability,
        now: Now,
    ) -> Result<(), Error> {
        let (settings, created_at_us) = {
            let state = self.state();
            (Arc::clone(&state.settings), now.wall_us.max(state.newest_at_us))
        };
        if plan.is_empty() {
            self.publish(committer, plan, created_at_us, now);
            return Ok(());
        }
        let (records, bytes) = plan.take_records(settings.compression);
        let written = committer
            .writer
            .ensure_room(bytes, settings.segment_bytes_max, true, now.wall_us)
            .and_then(|()| committer.writer.append(records, created_at_us));
        let appended = match written {
            Ok(appended) => appended,
            Err(error) => {
                self.abandon(&plan);
                return Err(error.into());
            }
        };
        let mut synced_us = None;
        if durability == Durability::Sync {
            match self.sync_writer(committer) {
                Ok(time_us) => synced_us = Some(time_us),
                Err(error) => {
                    self.abandon(&plan);
                    return Err(error.into());
                }
            }
        } else {
            committer.unsynced_since_us.get_or_insert(now.steady_us);
        }
        let bytes = appended.bytes;
        self.common.recorders.commit_bytes.record(bytes);
        committer.bytes_since_checkpoint += bytes;
        committer.is_frontier_marked = false;
        committer.last_commit_us = now.steady_us;
        committer.writer.publish(appended);
        {
            let mut state = self.state();
            state.stats.commits += 1;
            state.stats.bytes_written += bytes;
            if let Some(time) = synced_us {
                state.stats.syncs += 1;
                state.stats.sync_time_us += time;
            }
        }
        self.publish(committer, plan, created_at_us, now);
        Ok(())
    }

    /// Makes everything in the log durable, and no commit goes on meanwhile. How long it took, in microseconds.
    pub fn sync_writer(&self, committer: &mut Committer) -> Result<u64, LogError> {
        self.common.recorders.time_sync(|| committer.writer.sync()).map(|((), time_us)| time_us)
    }

    /// Makes everything in the log durable; commits go on meanwhile.
    pub fn sync_log(&self) -> Result<(), Error> {
        let (file, end) = {
            let committer = self.committer();
            if let Some(error) = committer.writer.poison() {
                return Err(LogError::Poisoned(error.clone()).into());
            }
            committer.writer.sync_handle()
        };
        let outcome = self.common.recorders.time_sync(|| file.sync_data()).map(|((), _)| ());
        Ok(self.committer().writer.synced(outcome, end)?)
    }

    /// Makes a plan visible and wakes who waits for it.
    pub fn publish(&self, committer: &Committer, plan: Plan, created_at_us: u64, now: Now) {
        let mut woken = Vec::new();
        let mut ends = Ends::default();
        let has_messages = {
            let mut state = self.state();
            let filters = Arc::clone(&state.filters);
            for &(token, group, partition, reason) in &plan.lost_claims {
                let place = Place { incarnation: self.incarnation, group, partition };
                self.common.leases.end_place(token, place, reason, &mut ends);
            }
            for (token, group, partition) in &plan.ended {
                let place = Place { incarnation: self.incarnation, group: *group, partition: *partition };
                self.common.leases.remove_place(*token, place);
            }
            // Pops went on while it was written, so who holds or waits is known only now.
            for operation in &plan.operations {
                if let ControlOp::GroupRemoved(id) = operation
                    && let Some(group) = state.groups.get_mut(id)
                {
                    self.common.leases.end_group(self.incarnation, *id, &mut ends);
                    group.wake_all(&mut woken);
                }
            }
            let freed = plan.freed.clone();
            let timers = plan.timers.clone();
            let touched = plan.publish(&mut state, created_at_us, committer.writer.end());
            if !Arc::ptr_eq(&filters, &state.filters) {
                *self.filters.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&state.filters);
            }
            for (time, group, partition) in timers {
                state.timers.set(time, group, partition);
            }
            wake_for(&mut state, &freed, touched.len(), now, &mut woken);
            !touched.is_empty()
        };
        if has_messages {
            self.commits.fetch_add(1, Ordering::Release);
            let watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
            woken.extend(watchers.iter().map(|watcher| Arc::clone(&watcher.1)));
        }
        ends.tell();
        woken.iter().for_each(|wake| wake());
    }

    /// Takes back what was decided for cursors: their visible state is what is durable. What was settled comes again.
    pub fn abandon(&self, plan: &Plan) {
        let mut state = self.state();
        for &(group, partition, _) in &plan.cursors {
            let Some(group) = state.groups.get_mut(&group) else { continue };
            if let Some(active) = group.existing_active(partition) {
                active.delivery.take_back();
            }
            group.push_ready(partition);
        }
    }

    /// Registers a reader without a group.
    pub fn add_watcher(&self, id: u64, wake: Wake) {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner).push((id, wake));
    }

    /// Takes a reader without a group out.
    pub fn remove_watcher(&self, id: u64) {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner).retain(|watcher| watcher.0 != id);
    }

    /// Applies an operation that recovery found.
    pub fn apply_recovered(&self, operation: &ControlOp) {
        let mut state = self.state();
        state.apply(operation, true);
        *self.filters.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&state.filters);
    }
}

/// Puts freed partitions in line for their groups, and wakes as many waiting pops as there is something new for.
pub(super) fn wake_for(
    state: &mut State,
    freed: &[(GroupId, PartitionId)],
    new_partitions: usize,
    _now: Now,
    woken: &mut Vec<Wake>,
) {
    for &(id, partition) in freed {
        let Some(end) = state.partitions.get(partition).map(|found| found.end) else { continue };
        if let Some(group) = state.groups.get_mut(&id) {
            let has_more = match group.slot(partition) {
                Some(super::group::Slot::Plain { cursor, .. }) => cursor.next < end,
                Some(super::group::Slot::Active(active)) => active.delivery.staged().next() < end,
                _ => true,
            };
            if has_more {
                group.push_ready(partition);
                group.wake(1, woken);
            }
        }
    }
    if new_partitions > 0 {
        for group in state.groups.values_mut().filter(|group| group.waiter_count() > 0) {
            group.wake(new_partitions, woken);
        }
    }
}
