//! The engine: queues, partitions, groups, leases, dead letters, transactions, filters. The library for embedding.
//!
//! Synchronous: a call returns when what its reply says is so. Time is an argument. Any number of threads may share an [`Engine`]
//! (it is cheap to clone); a server adds threads that commit and keep time with [`Engine::start_threads`], an embedding program may
//! do without and call [`Engine::tick`] now and then.
//!
//! A request that changes something is put in line at its queue and committed together with others (see `queue`); replies come
//! after the commit is what the queue's durability mode calls committed. Pops lease in memory and write nothing.

mod acknowledge;
mod answers;
mod bits;
mod cache;
mod checkpoint;
mod completion;
pub mod delivery;
mod distributions;
mod error;
mod filters;
mod group;
mod groups;
mod leases;
mod letter_index;
mod letters;
mod line;
mod messages;
mod open;
mod partition;
mod pop;
mod prepare;
mod producers;
mod progress;
mod queue;
mod queue_map;
mod queues;
mod read;
mod records;
mod removed_unread;
mod retention;
mod rows;
mod seek;
mod stage;
mod start;
mod state;
mod threads;
mod timer;
mod traces;
mod transaction;
mod unread;
mod watch;

use std::sync::{Arc, PoisonError};

use crate::model::{
    AckReply, AckRequest, Error, ErrorCode, ExtendReply, FetchReply, FetchRequest, Now, PopReply, PopRequest, PopSource,
    PushItem, PushReply, PushRequest, PushResults, QueueScope, Start,
};
use crate::record::check_name;
use crate::storage::disk::Dir;
use crate::storage::lock::DirectoryLock;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, RwLock};

use acknowledge::ResolvedAck;
use cache::BatchCache;
use completion::{Completion, Done};
use delivery::LeaseToken;
pub use distributions::{DISTRIBUTION_BUCKETS, Distribution, Distributions};
pub use group::Wake;
use leases::Common;
pub use leases::{LeaseEnd, LeaseListener};
use line::Job;
pub use open::{Finding, RecoveryReport};
use pop::withhold_lost;
use prepare::{PushLimits, prepare};
use queue::Queue;
use queue_map::QueueMap;
use threads::Scheduler;
pub use watch::Watch;

type Result<T> = std::result::Result<T, Error>;

/// How an engine behaves.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Where a named group starts if its first pop does not say.
    pub default_start: Start,
    /// Bytes that may wait for a commit over all queues; more are refused as `Busy`.
    pub pending_bytes_max: usize,
    /// The largest message (payload, attributes and id).
    pub message_bytes_max: usize,
    /// The largest push.
    pub push_bytes_max: usize,
    /// Messages in one push at most.
    pub push_messages_max: usize,
    /// Queues at most.
    pub queues_max: usize,
    /// Groups of one queue at most.
    pub groups_max: usize,
    /// Days that an empty partition must be idle before it goes.
    pub partition_cleanup_days: u32,
    /// Milliseconds between retention sweeps.
    pub retention_interval_ms: u64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            default_start: Start::New,
            pending_bytes_max: 256 << 20,
            message_bytes_max: 16 << 20,
            push_bytes_max: 32 << 20,
            push_messages_max: 1 << 20,
            queues_max: 10_000,
            groups_max: 1_000,
            partition_cleanup_days: 30,
            retention_interval_ms: 5_000,
        }
    }
}

/// A data directory that is open. Clones are one engine.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
    /// Whether pushes through this handle may set attributes with reserved keys.
    may_mark: bool,
    /// The queues that this handle may use; `None` is all.
    scope: Option<QueueScope>,
}

struct Shared {
    options: EngineOptions,
    dir: Arc<dyn Dir>,
    queues: RwLock<QueueMap>,
    /// Held while a queue is made or deleted, so that a name is made once.
    making: Mutex<()>,
    cache: BatchCache,
    common: Arc<Common>,
    start_number: u64,
    token_counter: AtomicU64,
    watch_counter: AtomicU64,
    makers: Arc<watch::Makers>,
    waiting: Arc<AtomicU64>,
    rotation: AtomicUsize,
    scheduler: Scheduler,
    timing: Mutex<timer::Timing>,
    is_closed: AtomicBool,
    _lock: DirectoryLock,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Engine").field("dir", &self.shared.dir.describe()).finish_non_exhaustive()
    }
}

impl Engine {
    /// The same engine for the gateway, which keeps marks of its own in attributes whose keys are reserved.
    #[cfg(feature = "http")]
    pub(crate) fn with_marks(&self) -> Self {
        Self { may_mark: true, ..self.clone() }
    }

    /// Pushes, and returns when it is committed. Makes the queue (with default settings) and the partition if they do not exist.
    ///
    /// # Errors
    ///
    /// All of the push is refused or none: `BadName`, `BadAttribute`, `TooLarge`, `BadBatch`, `OutOfSequence`, `DiskFull`, `Busy`,
    /// `Poisoned`, `Io`. After `Io` or `Poisoned` it is not known whether it is stored.
    pub fn push(&self, request: PushRequest, now: Now) -> Result<PushReply> {
        let queue = self.queue_for_push(&request.queue, now)?;
        let (completion, done) = Completion::new();
        self.submit_push_to(&queue, request, now, done);
        queue.drive(completion)
    }

    /// As [`Engine::push`], but returns at once; `done` is called when the push is committed or refused, from the thread that
    /// commits it (or from this one, if it is refused at once). Checks, filters and compresses on this thread. Needs
    /// [`Engine::start_threads`].
    pub fn submit_push(&self, request: PushRequest, now: Now, done: Box<dyn FnOnce(Result<PushReply>) + Send>) {
        match self.queue_for_push(&request.queue, now) {
            Ok(queue) => {
                self.submit_push_to(&queue, request, now, done);
                self.shared.scheduler.schedule(&queue);
            }
            Err(error) => done(Err(error)),
        }
    }

    fn submit_push_to(&self, queue: &Queue, request: PushRequest, now: Now, done: Done<PushReply>) {
        let is_empty = match &request.items {
            PushItem::Messages(messages) => messages.is_empty(),
            PushItem::Packed(_) => false,
        };
        if is_empty {
            return done(self.empty_push(queue));
        }
        let pending = self.shared.common.pending_bytes.load(Ordering::Relaxed);
        if pending > self.shared.options.pending_bytes_max {
            let text = format!("{pending} bytes wait to be committed; try again after a pause");
            return done(Err(Error::new(ErrorCode::Busy, text)));
        }
        let compression = queue.state().settings.compression;
        match prepare(request, &queue.filters(), compression, self.push_limits()) {
            Ok(prepared) => queue.submit(Job::Push(Box::new(prepared), done), now),
            Err(error) => done(Err(error)),
        }
    }

    fn push_limits(&self) -> PushLimits {
        let options = &self.shared.options;
        PushLimits {
            message_bytes_max: options.message_bytes_max,
            push_bytes_max: options.push_bytes_max,
            messages_max: options.push_messages_max,
            may_mark: self.may_mark,
        }
    }

    fn empty_push(&self, queue: &Queue) -> Result<PushReply> {
        let promise = queue.state().settings.durability.into();
        Ok(PushReply { promise, partition_id: 0, created_at_us: 0, results: PushResults::Each(Vec::new()) })
    }

    /// Acknowledges, and returns when it is committed.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`, `UnknownPartition`, `UnknownGroup`, or that the commit failed. What is refused of single messages stands in
    /// the reply.
    pub fn ack(&self, request: AckRequest, now: Now) -> Result<AckReply> {
        let queue = self.find_queue(&request.queue)?;
        let ack = ResolvedAck::resolve(&queue, request)?;
        let (completion, done) = Completion::new();
        queue.submit(Job::Ack(Box::new(ack), done), now);
        queue.drive(completion)
    }

    /// As [`Engine::ack`], but returns at once; `done` is called when it is committed or refused. Needs [`Engine::start_threads`].
    pub fn submit_ack(&self, request: AckRequest, now: Now, done: Box<dyn FnOnce(Result<AckReply>) + Send>) {
        let resolved =
            self.find_queue(&request.queue).and_then(|queue| Ok((Arc::clone(&queue), ResolvedAck::resolve(&queue, request)?)));
        match resolved {
            Ok((queue, ack)) => {
                queue.submit(Job::Ack(Box::new(ack), done), now);
                self.shared.scheduler.schedule(&queue);
            }
            Err(error) => done(Err(error)),
        }
    }

    /// Takes messages for a group under a lease. Never waits for messages: with nothing ready the reply has no claims. It waits for a
    /// commit when it registers a group, and with `auto_ack`.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`, `BadRequest`, `GroupInactive`, `GroupsDisabled`, `Corrupt` for a cursor that cannot be read, or that a commit
    /// failed.
    pub fn pop(&self, request: &PopRequest, now: Now) -> Result<PopReply> {
        let (mut reply, acks) = self.pop_claims(request, now)?;
        for ack in acks {
            let place = ack.place();
            let (completion, done) = Completion::new();
            let queue = ack.submit(now, done);
            let acked = queue.drive(completion)?;
            withhold_lost(&mut reply, place, &acked);
        }
        Ok(reply)
    }

    /// As [`Engine::pop`], but an `auto_ack` does not wait here for its commit: `done` is called when the messages may be handed on.
    /// Needs [`Engine::start_threads`].
    pub fn submit_pop(&self, request: &PopRequest, now: Now, done: Box<dyn FnOnce(Result<PopReply>) + Send>) {
        match self.pop_claims(request, now) {
            Ok((reply, acks)) if acks.is_empty() => done(Ok(reply)),
            Ok((reply, acks)) => {
                let waiting = Arc::new(Mutex::new((acks.len(), None::<Error>, Some((reply, done)))));
                for ack in acks {
                    let waiting = Arc::clone(&waiting);
                    let place = ack.place();
                    let committed: Done<AckReply> = Box::new(move |outcome| {
                        let mut slot = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                        slot.0 -= 1;
                        match outcome {
                            Err(error) => slot.1 = Some(error),
                            Ok(acked) => {
                                slot.2.as_mut().into_iter().for_each(|(reply, _)| withhold_lost(reply, place, &acked));
                            }
                        }
                        if slot.0 == 0
                            && let Some((reply, done)) = slot.2.take()
                        {
                            let outcome = slot.1.take().map_or(Ok(reply), Err);
                            drop(slot);
                            done(outcome);
                        }
                    });
                    let queue = ack.submit(now, committed);
                    self.shared.scheduler.schedule(&queue);
                }
            }
            Err(error) => done(Err(error)),
        }
    }

    /// Reads a range of offsets without a group, a lease or a cursor.
    ///
    /// # Errors
    ///
    /// `RangeRemoved` names what retention took below the start, `BeyondEnd` an offset behind the end, `Corrupt` a damaged range at
    /// the front.
    pub fn fetch(&self, request: &FetchRequest, _now: Now) -> Result<FetchReply> {
        let queue = self.find_queue(&request.queue)?;
        queue.told(messages::fetch(&queue, &self.shared.cache, request))
    }

    /// Renews every partition of a lease until so many milliseconds from now; never shortens. `renewed` is 0 if the lease is lost.
    ///
    /// # Errors
    ///
    /// None today; a lost lease is no error.
    pub fn extend(&self, lease_id: &str, milliseconds: u64, now: Now) -> Result<ExtendReply> {
        self.renew(lease_id, Some(milliseconds), now)
    }

    /// As [`Engine::extend`], in each queue by that queue's own lease time.
    ///
    /// # Errors
    ///
    /// None today; a lost lease is no error.
    pub fn extend_by_lease_time(&self, lease_id: &str, now: Now) -> Result<ExtendReply> {
        self.renew(lease_id, None, now)
    }

    fn renew(&self, lease_id: &str, milliseconds: Option<u64>, now: Now) -> Result<ExtendReply> {
        let mut reply = ExtendReply { renewed: 0, expires_at_us: now.wall_us };
        let Some(token) = LeaseToken::parse(lease_id) else { return Ok(reply) };
        let mut earliest = u64::MAX;
        for place in self.places_in_scope(token) {
            let Some(queue) = self.queue_by_incarnation(place.incarnation) else { continue };
            let mut state = queue.state();
            let milliseconds = milliseconds.unwrap_or_else(|| u64::from(state.settings.lease_time_s.max(1)) * 1000);
            let until_us = now.steady_us.saturating_add(milliseconds.saturating_mul(1000));
            let active = state.groups.get_mut(&place.group).and_then(|group| group.existing_active(place.partition));
            let Some(until_us) = active.and_then(|active| active.delivery.extend(token, until_us, now)) else { continue };
            state.timers.set(until_us, place.group, place.partition);
            earliest = earliest.min(until_us);
            reply.renewed += 1;
        }
        if reply.renewed > 0 {
            self.shared.common.leases.extend(token, earliest);
            reply.expires_at_us = now.wall_us.saturating_add(earliest.saturating_sub(now.steady_us));
        }
        Ok(reply)
    }

    /// `listener` hears of each claim of the lease that ends from now on before its messages are acknowledged: when its time is over (told
    /// by [`Engine::tick`], within a second), at a seek, when its group or queue is gone. It is not told of what is given back with
    /// [`Engine::release`]. False if the lease is over already, and then it is never called.
    pub fn watch_lease(&self, lease_id: &str, listener: LeaseListener) -> bool {
        LeaseToken::parse(lease_id).is_some_and(|token| self.shared.common.leases.listen(token, listener))
    }

    /// Gives everything of a lease back, uncharged, as if it had never been handed out. Says how many partitions it was.
    ///
    /// # Errors
    ///
    /// None today; a lease that is over gives 0.
    pub fn release(&self, lease_id: &str, now: Now) -> Result<u32> {
        let Some(token) = LeaseToken::parse(lease_id) else { return Ok(0) };
        let mut released = 0;
        let places = self.places_in_scope(token);
        if places.is_empty() {
            return Ok(0);
        }
        for place in places {
            let Some(queue) = self.queue_by_incarnation(place.incarnation) else { continue };
            let mut woken = Vec::new();
            {
                let mut state = queue.state();
                let Some(group) = state.groups.get_mut(&place.group) else { continue };
                let Some(active) = group.existing_active(place.partition) else { continue };
                if !active.delivery.release(token, now) {
                    continue;
                }
                group.mark_dirty(place.partition);
                group.push_ready_first(place.partition);
                group.wake(1, &mut woken);
                released += 1;
            }
            woken.iter().for_each(|wake| wake());
        }
        self.shared.common.leases.remove(token);
        Ok(released)
    }

    fn next_token(&self) -> LeaseToken {
        let counter = self.shared.token_counter.fetch_add(1, Ordering::Relaxed);
        LeaseToken { start_number: self.shared.start_number, counter }
    }

    /// The same engine for a caller who may use some queues only: the others are refused by name with `Unauthorized`, are in no
    /// listing and in no pop, and leases that hold any of them are as if they were over.
    pub fn within(&self, scope: QueueScope) -> Self {
        Self { scope: Some(scope), ..self.clone() }
    }

    /// Whether this handle may use a queue of this name.
    pub fn is_in_scope(&self, queue: &str) -> bool {
        self.scope.as_ref().is_none_or(|scope| scope.contains(queue))
    }

    fn check_scope(&self, queue: &str) -> Result<()> {
        self.scope.as_ref().map_or(Ok(()), |scope| scope.check(queue))
    }

    /// What a lease holds; nothing if a part of it is out of scope.
    fn places_in_scope(&self, token: LeaseToken) -> Vec<leases::Place> {
        let places = self.shared.common.leases.places(token);
        let is_foreign = |place: &leases::Place| {
            self.queue_by_incarnation(place.incarnation).is_some_and(|queue| !self.is_in_scope(&queue.name))
        };
        if self.scope.is_some() && places.iter().any(is_foreign) { Vec::new() } else { places }
    }

    /// The queue of a name, made if it does not exist.
    fn queue_for_push(&self, name: &str, now: Now) -> Result<Arc<Queue>> {
        self.check_open()?;
        self.check_scope(name)?;
        if let Some(queue) = self.queues_map().get(name) {
            return Ok(Arc::clone(queue));
        }
        check_name(name)?;
        self.make_queue(name, &crate::model::SettingsPatch::default(), now, false)
    }

    /// The queue of a name.
    fn find_queue(&self, name: &str) -> Result<Arc<Queue>> {
        self.check_open()?;
        self.check_scope(name)?;
        let found = self.queues_map().get(name).cloned();
        found.ok_or_else(|| Error::new(ErrorCode::UnknownQueue, format!("there is no queue {name:?}")))
    }

    /// In scope or not: what the engine does for its own sake knows no scope.
    fn queue_by_incarnation(&self, incarnation: u64) -> Option<Arc<Queue>> {
        self.queues_map().of_incarnation(incarnation).cloned()
    }

    fn queues_map(&self) -> crate::sync::RwLockReadGuard<'_, QueueMap> {
        self.shared.queues.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// All queues in scope.
    fn all_queues(&self) -> Vec<Arc<Queue>> {
        self.queues_map().values().filter(|queue| self.is_in_scope(&queue.name)).cloned().collect()
    }

    fn check_open(&self) -> Result<()> {
        if self.shared.is_closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        Ok(())
    }

    /// The queues that a pop may take from; those of a namespace in turn.
    fn sources(&self, source: &PopSource) -> Result<Vec<Arc<Queue>>> {
        match source {
            PopSource::Partition { queue, .. } | PopSource::Queue(queue) => Ok(vec![self.find_queue(queue)?]),
            PopSource::Discover { namespace: None, task: None } => {
                Err(Error::new(ErrorCode::BadRequest, "a pop without a queue names a namespace or a task"))
            }
            PopSource::Discover { namespace, task } => {
                self.check_open()?;
                let mut found: Vec<_> = self
                    .all_queues()
                    .into_iter()
                    .filter(|queue| {
                        let settings = Arc::clone(&queue.state().settings);
                        namespace.as_ref().is_none_or(|wanted| *wanted == settings.namespace)
                            && task.as_ref().is_none_or(|wanted| *wanted == settings.task)
                    })
                    .collect();
                found.sort_by_key(|queue| queue.incarnation);
                let turn = self.shared.rotation.fetch_add(1, Ordering::Relaxed);
                let middle = if found.is_empty() { 0 } else { turn % found.len() };
                found.rotate_left(middle);
                Ok(found)
            }
        }
    }
}

/// The error of a call that came too late.
fn closed() -> Error {
    Error::new(ErrorCode::ShuttingDown, "the engine is closed")
}
