//! Runs operations on an engine and on the model, and compares every answer.

use std::collections::BTreeMap;
use std::result::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fanlog::engine::{Engine, EngineOptions, RecoveryReport, Watch};

use fanlog::model::*;
use fanlog::record::{Attributes, Message, StoredBatch, derived_id};
use fanlog::storage::disk::sim::{Random, SimDisk};

use super::model::{GroupModel, Item, Model, Outcome, QueueModel};
use super::view::{self, content_of, content_of_message, filter_text, payload};

/// Of one namespace.
pub const QUEUES: [&str; 2] = ["n.a", "n.b"];
const NAMESPACE: &str = "n";
pub const LANES: [&str; 3] = ["x", "y", "z"];
/// The first is the primary group, the last a work queue.
pub const GROUPS: [&str; 4] = [PRIMARY_GROUP, "g", "h", "s"];

/// An operation. Numbers choose among what is there, so that an operation means something after others were taken out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Push {
        queue: usize,
        lane: usize,
        items: Vec<Item>,
        is_numbered: bool,
    },
    Resend {
        queue: usize,
        lane: usize,
    },
    /// A numbered push that leaves a number out.
    Gap {
        queue: usize,
        lane: usize,
    },
    Pop {
        queue: usize,
        lane: Option<usize>,
        group: usize,
        max: u32,
        partitions: u32,
        lease_ms: Option<u64>,
        auto_ack: bool,
    },
    /// A pop that says where the group starts if it is its first.
    PopFrom {
        queue: usize,
        group: usize,
        from: Target,
    },
    /// A pop from any queue of the namespace.
    Discover {
        group: usize,
        max: u32,
        partitions: u32,
    },
    Ack {
        choice: u64,
        style: AckStyle,
    },
    Unfenced {
        queue: usize,
        lane: usize,
        group: usize,
        choice: u64,
        verb: AckVerb,
    },
    Extend {
        choice: u64,
    },
    Release {
        choice: u64,
    },
    Transact {
        pushes: Vec<(usize, usize, Item)>,
        acks: Vec<u64>,
    },
    Seek {
        queue: usize,
        group: usize,
        lane: Option<usize>,
        target: Target,
    },
    Declare {
        queue: usize,
        group: usize,
        filter: Option<char>,
        is_earlier: bool,
    },
    Update {
        queue: usize,
        group: usize,
        change: Change,
    },
    Remove {
        queue: usize,
        group: usize,
    },
    RemoveEverywhere {
        group: usize,
    },
    Create {
        queue: usize,
        has_retention: bool,
    },
    Settings {
        queue: usize,
        lease_s: u32,
    },
    Set {
        queue: usize,
        rule: Rule,
    },
    Delete {
        queue: usize,
    },
    Replay {
        queue: usize,
    },
    DropLetter {
        queue: usize,
    },
    Pass {
        is_long: bool,
    },
    /// The wall clock goes back; the steady one does not.
    ClockBack {
        seconds: u64,
    },
    Restart,
    Kill,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckStyle {
    All,
    First,
    Fail,
    Retry,
    RetryLater,
    RejectLast,
    Mixed(u64),
    Stale,
    Beyond,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Beginning,
    End,
    Back(u64),
    Offset(u64),
    /// So many seconds ago.
    Ago(u64),
}

/// A setting that changes what is handed out, kept or given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    DelayedProcessing(u32),
    WindowBuffer(u32),
    RetryLimit(u32),
    DeadLetters(bool),
    NamedGroups(bool),
    Retention(u64),
    MaxWait(u64),
    CompletedRetention(u64),
    RetentionBytes(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Filter(Option<char>),
    Enable(bool),
    Pause(bool),
    Limit(Option<u32>),
}

/// What an operation came to when the power went off, or a call of the disk failed, during it: one of these holds.
pub type Candidates = Vec<Model>;

pub enum Step {
    Done,
    Failed(Candidates, Error),
}

/// A lease that the driver got, live or not.
#[derive(Debug, Clone)]
struct Held {
    queue: usize,
    group: usize,
    lane: String,
    partition_id: u32,
    /// Of the queue when it was taken.
    incarnation: u64,
    lease: String,
    offsets: Vec<u64>,
}

/// What a pop asks for.
#[derive(Debug, Clone, Copy)]
struct Wish {
    /// None is any queue of the namespace.
    queue: Option<usize>,
    lane: Option<usize>,
    group: usize,
    max: u32,
    partitions: u32,
    lease_ms: Option<u64>,
    auto_ack: bool,
    from: Option<Target>,
}

/// A pop that waits: it has to be woken by whatever makes something claimable.
struct Waiter {
    queue: usize,
    group: usize,
    is_woken: Arc<AtomicBool>,
    steps: u32,
    _watch: Watch,
}

pub struct Driver {
    pub disk: SimDisk,
    pub engine: Option<Engine>,
    pub model: Model,
    pub now: Now,
    pub report: RecoveryReport,
    held: Vec<Held>,
    /// Delivery counts may be forgotten by a kill.
    are_counts_known: bool,
    /// A call of the disk is to fail: a pop gives what it could read until then.
    pub may_fall_short: bool,
    /// No other state than the model's looks like what was found.
    pub is_sure: bool,
    /// Whether somebody waits all the time; on a disk that fails nobody does.
    has_waiter: bool,
    waiter: Option<Waiter>,
    waiters: usize,
}

pub fn options() -> EngineOptions {
    // With a sweep at every tick it is known what is there.
    EngineOptions { default_start: Start::Beginning, retention_interval_ms: 1, ..EngineOptions::default() }
}

pub fn settings(has_retention: bool) -> SettingsPatch {
    SettingsPatch {
        compression: Some(Compression::None),
        segment_bytes_max: Some(1 << 20),
        retention_enabled: has_retention.then_some(true),
        retention_s: has_retention.then_some(RETENTION_S),
        ..SettingsPatch::default()
    }
}

/// Between a short pass and a long one.
const RETENTION_S: u64 = 100;

type Check = Result<(), String>;

macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}

impl Driver {
    pub fn new(disk: SimDisk) -> Result<Self, String> {
        let now = Now { wall_us: 1_700_000_000_000_000, steady_us: 1_000_000_000 };
        Self::open(disk, Model::default(), now)
    }

    /// Opens what is on a disk that should hold what the model says.
    pub fn open(disk: SimDisk, model: Model, now: Now) -> Result<Self, String> {
        let (engine, report) =
            Engine::open(disk.root(), options(), now).map_err(|error| format!("engine does not open: {error}"))?;
        let mut driver = Self {
            disk,
            engine: Some(engine),
            model,
            now,
            report,
            held: Vec::new(),
            are_counts_known: false,
            may_fall_short: false,
            is_sure: true,
            has_waiter: false,
            waiter: None,
            waiters: 0,
        };
        driver.model.restart();
        Ok(driver)
    }

    /// For a fresh disk, or one that was closed: delivery counts are what the model says.
    pub fn with_known_counts(mut self) -> Self {
        self.are_counts_known = true;
        self
    }

    /// Somebody waits for messages, of one queue and group after the other.
    pub fn with_waiter(mut self) -> Self {
        self.has_waiter = true;
        self
    }

    pub fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("the engine is open")
    }

    /// Compares everything that can be seen with the model.
    pub fn check(&self) -> Check {
        let found = view::of_engine(self.engine(), self.now)?;
        let expected = view::of_model(&self.model);
        ensure!(found == expected, "the engine differs from the model:\n{}", view::difference(&expected, &found));
        Ok(())
    }

    pub fn step(&mut self, op: &Op) -> Result<Step, String> {
        let before = self.model.clone();
        let outcome = self.run(op);
        if matches!(op, Op::Delete { .. } | Op::Remove { .. } | Op::RemoveEverywhere { .. } | Op::Restart | Op::Kill) {
            self.waiter = None;
        }
        match outcome {
            Ok(()) if self.disk.is_off() && self.engine.is_some() => Ok(Step::Failed(vec![self.model.clone()], cut())),
            Ok(()) => match self.look_after_waiter() {
                Ok(()) => Ok(Step::Done),
                Err(text) => Err(format!("{op:?}: {text}")),
            },
            Err(Stop::Wrong(text)) => Err(format!("{op:?}: {text}")),
            Err(Stop::Failed(mut candidates, error)) => {
                candidates.insert(0, before);
                Ok(Step::Failed(candidates, error))
            }
        }
    }

    fn run(&mut self, op: &Op) -> Result<(), Stop> {
        match op {
            Op::Push { queue, lane, items, is_numbered } => self.push(QUEUES[*queue], LANES[*lane], items, *is_numbered),
            Op::Resend { queue, lane } => self.resend(QUEUES[*queue], LANES[*lane]),
            Op::Gap { queue, lane } => self.gap(QUEUES[*queue], LANES[*lane]),
            &Op::Pop { queue, lane, group, max, partitions, lease_ms, auto_ack } => {
                let queue = Some(queue);
                self.pop(Wish { queue, lane, group, max, partitions, lease_ms, auto_ack, from: None })
            }
            &Op::PopFrom { queue, group, from } => self.pop(Wish { queue: Some(queue), from: Some(from), ..Wish::small(group) }),
            &Op::Discover { group, max, partitions } => self.pop(Wish { max, partitions, ..Wish::small(group) }),
            Op::Ack { choice, style } => self.ack(*choice, *style),
            Op::Unfenced { queue, lane, group, choice, verb } => self.unfenced(*queue, *lane, *group, *choice, *verb),
            Op::Extend { choice } => self.extend(*choice),
            Op::Release { choice } => self.release(*choice),
            Op::Transact { pushes, acks } => self.transact(pushes, acks),
            Op::Seek { queue, group, lane, target } => self.seek(*queue, *group, *lane, *target),
            Op::Declare { queue, group, filter, is_earlier } => self.declare(*queue, *group, *filter, *is_earlier),
            Op::Update { queue, group, change } => self.update(*queue, *group, *change),
            Op::Remove { queue, group } => self.remove(*queue, *group),
            Op::RemoveEverywhere { group } => self.remove_everywhere(*group),
            Op::Create { queue, has_retention } => self.create(QUEUES[*queue], *has_retention),
            Op::Settings { queue, lease_s } => self.change_settings(QUEUES[*queue], *lease_s),
            Op::Set { queue, rule } => self.set(QUEUES[*queue], *rule),
            Op::Delete { queue } => self.delete(QUEUES[*queue]),
            Op::Replay { queue } => self.letter(QUEUES[*queue], true),
            Op::DropLetter { queue } => self.letter(QUEUES[*queue], false),
            Op::Pass { is_long } => self.pass(*is_long),
            Op::ClockBack { seconds } => self.clock_back(*seconds),
            Op::Restart => self.restart(),
            Op::Kill => self.kill(),
        }
    }

    fn push(&mut self, queue: &str, lane: &str, items: &[Item], is_numbered: bool) -> Result<(), Stop> {
        let producer = is_numbered.then(|| {
            let sender = self.model.queues.get(queue).and_then(|found| found.senders.get(&(lane.to_owned(), 7)));
            (7, 0, sender.map_or(0, |sender| sender.sequence + 1))
        });
        let request = request(queue, lane, items, producer);
        let mut intermediate = Vec::new();
        let mut after = self.model.clone();
        if !after.queues.contains_key(queue) {
            after.queues.insert(queue.to_owned(), QueueModel::default());
            intermediate.push(after.clone());
        }
        let before = after.clone();
        let expected = after.queue(queue).push(lane, items, producer, self.now.wall_us);
        // What is not messages comes first: the partition, and the count of dropped ones.
        let mut half = before;
        half.queue(queue).lanes.entry(lane.to_owned()).or_default();
        half.queue(queue).dropped = after.queue(queue).dropped;
        intermediate.push(half);
        let reply = self.engine().push(request, self.now);
        let reply = self.settle(reply, intermediate, after)?;
        self.compare_results(queue, lane, &reply, &expected)
    }

    fn compare_results(&mut self, queue: &str, lane: &str, reply: &PushReply, expected: &[PushResult]) -> Result<(), Stop> {
        let found: Vec<PushResult> = (0..reply.results.len()).filter_map(|index| reply.results.get(index)).collect();
        right(found == expected, || format!("results {found:?}, expected {expected:?}"))?;
        let is_right = self.model.queue(queue).stamp(lane, expected, reply.created_at_us);
        right(is_right, || format!("stored at {}, which is too early", reply.created_at_us))
    }

    fn resend(&mut self, queue: &str, lane: &str) -> Result<(), Stop> {
        let Some(found) = self.model.queues.get(queue) else { return Ok(()) };
        let Some(sender) = found.senders.get(&(lane.to_owned(), 7)).cloned() else { return Ok(()) };
        let items: Vec<Item> = sender.last.iter().map(|_| Item { tag: 1, size: 1, key: 'a', id: None }).collect();
        // A resend carries what was sent; what it carries is not looked at, except for drops, so only pushes without drops are resent.
        if sender.last.iter().any(|result| !matches!(result, PushResult::Stored(_))) {
            return Ok(());
        }
        let reply = self.engine().push(request(queue, lane, &items, Some((7, sender.epoch, sender.sequence))), self.now);
        let reply = self.settle(reply, Vec::new(), self.model.clone())?;
        let expected: Vec<PushResult> = sender
            .last
            .iter()
            .map(|result| match *result {
                PushResult::Stored(offset) => PushResult::Duplicate(offset),
                other => other,
            })
            .collect();
        self.compare_results(queue, lane, &reply, &expected)
    }

    fn gap(&mut self, queue: &str, lane: &str) -> Result<(), Stop> {
        let Some(found) = self.model.queues.get(queue) else { return Ok(()) };
        let Some(sender) = found.senders.get(&(lane.to_owned(), 7)) else { return Ok(()) };
        let items = [Item { tag: 2, size: 1, key: 'a', id: None }];
        let outcome = self.engine().push(request(queue, lane, &items, Some((7, sender.epoch, sender.sequence + 2))), self.now);
        self.refused(outcome.map(drop), &[ErrorCode::OutOfSequence])
    }

    fn pop(&mut self, wish: Wish) -> Result<(), Stop> {
        let group_name = GROUPS[wish.group];
        let request = self.pop_request(wish);
        let start = request.start;
        if let Some(queue) = wish.queue
            && let Some(code) = self.refusal(QUEUES[queue], group_name)
        {
            let refused = self.engine().pop(&request, self.now);
            return self.refused(refused.map(drop), &[code]);
        }
        let queues: Vec<usize> = (0..QUEUES.len()).filter(|&queue| wish.queue.is_none_or(|wanted| wanted == queue)).collect();
        let queues: Vec<usize> = queues.into_iter().filter(|&queue| self.refusal(QUEUES[queue], group_name).is_none()).collect();
        // The group is registered in one queue after the other.
        let mut candidates = vec![self.model.clone()];
        for &queue in &queues {
            for mut registered in candidates.clone() {
                register(registered.queue(QUEUES[queue]), group_name, start, wish.group == 3);
                candidates.push(registered);
            }
        }
        let reply = match self.engine().pop(&request, self.now) {
            Ok(reply) => reply,
            Err(error) => {
                if let (Some(queue), true) = (wish.queue, wish.auto_ack) {
                    let registered = candidates.last().cloned().unwrap_or_default();
                    candidates.extend(self.auto_acked(&registered, QUEUES[queue], wish));
                }
                return Err(Stop::Failed(candidates, error));
            }
        };
        if wish.queue.is_none() && self.disk.is_off() {
            // A pop of a namespace passes over a queue in which the group could not be registered.
            return Err(Stop::Failed(candidates, cut()));
        }
        for &queue in &queues {
            // A pop that has all it wants does not look into further queues.
            let is_known =
                wish.queue.is_some() || self.engine().group(QUEUES[queue], group_name).is_ok_and(|group| group.start.is_some());
            if is_known {
                register(self.model.queue(QUEUES[queue]), group_name, start, wish.group == 3);
            }
        }
        let mut left = wish.max as usize;
        let mut claimed = Vec::new();
        for claim in &reply.claims {
            let queue = queues.iter().copied().find(|&queue| QUEUES[queue] == claim.queue);
            let is_wanted = wish.lane.is_none_or(|lane| LANES[lane] == claim.partition);
            let place = (claim.queue.clone(), claim.partition.clone());
            let Some(queue) = queue.filter(|_| is_wanted && !claimed.contains(&place)) else {
                return Err(Stop::Wrong(format!("claim of {place:?}")));
            };
            left -= self.take(queue, wish, claim, &reply.lease_id, left)?;
            claimed.push(place);
        }
        let now_us = self.now.wall_us;
        let is_missed = |queue: &&str, lane: &&str| {
            let found = &self.model.queues[*queue];
            let is_registered = found.groups.contains_key(group_name);
            let is_claimed = claimed.contains(&((*queue).to_owned(), (*lane).to_owned()));
            let is_wanted = wish.lane.is_none_or(|wanted| LANES[wanted] == *lane);
            is_wanted && !is_claimed && (!is_registered || !found.available(group_name, lane, now_us).is_empty())
        };
        let missed = queues.iter().map(|&queue| QUEUES[queue]).find_map(|queue| {
            let lane = LANES.iter().find(|lane| is_missed(&queue, lane))?;
            Some((queue, *lane))
        });
        let is_complete = self.may_fall_short || left == 0 || claimed.len() >= wish.partitions as usize || missed.is_none();
        right(is_complete, || {
            let seen = missed.map(|(queue, lane)| self.explain(queue, group_name, lane)).unwrap_or_default();
            format!("{missed:?} has messages that were not handed out: {seen}")
        })
    }

    /// What decides whether a group gets something of a lane, for people.
    fn explain(&self, queue: &str, group: &str, lane: &str) -> String {
        let Some(found) = self.model.queues.get(queue) else { return String::new() };
        let (delay_s, window_s, now) = (found.delay_s, found.window_s, self.now);
        let group = found.groups.get(group);
        let cursor = group.and_then(|group| group.cursors.get(lane));
        let start = group.map(|group| (group.start, group.filter, group.first_filter, group.is_enabled, group.is_paused));
        let batches = found.lanes.get(lane).map(|lane| (lane.start, &lane.batches));
        format!("{now:?}, delay {delay_s} s, window {window_s} s, {start:?}, {cursor:?}, {batches:?}")
    }

    /// Why a pop of this queue would be refused.
    fn refusal(&self, queue: &str, group: &str) -> Option<ErrorCode> {
        let Some(found) = self.model.queues.get(queue) else { return Some(ErrorCode::UnknownQueue) };
        if group != PRIMARY_GROUP && !found.has_groups {
            return Some(ErrorCode::GroupsDisabled);
        }
        found.groups.get(group).is_some_and(|found| !found.is_enabled).then_some(ErrorCode::GroupInactive)
    }

    fn pop_request(&self, wish: Wish) -> PopRequest {
        let mut request = PopRequest::any(QUEUES[wish.queue.unwrap_or(0)], wish.max);
        match (wish.queue, wish.lane) {
            (Some(queue), Some(lane)) => {
                request.source = PopSource::Partition { queue: QUEUES[queue].to_owned(), partition: LANES[lane].to_owned() };
            }
            (Some(_), None) => {}
            (None, _) => request.source = PopSource::Discover { namespace: Some(NAMESPACE.to_owned()), task: None },
        }
        request.group = (wish.group > 0).then(|| GROUPS[wish.group].to_owned());
        request.partitions_max = wish.partitions;
        request.bytes_max = 1 << 30;
        request.lease_ms = wish.lease_ms;
        request.auto_ack = wish.auto_ack;
        request.shared = wish.group == 3;
        request.start = wish.from.and_then(|from| match from {
            Target::Beginning => Some(Start::Beginning),
            Target::End => Some(Start::New),
            Target::Offset(offset) => Some(Start::Offset(offset)),
            Target::Ago(seconds) => Some(Start::Time(self.now.wall_us.saturating_sub(seconds * 1_000_000))),
            Target::Back(_) => None,
        });
        request
    }

    /// Compares a claim with what should be claimed, and takes it over. Returns how many messages it has.
    fn take(&mut self, queue: usize, wish: Wish, claim: &Claim, lease: &str, left: usize) -> Result<usize, Stop> {
        let (name, group_name, lane) = (QUEUES[queue], GROUPS[wish.group], claim.partition.as_str());
        let now = (self.now.wall_us, self.now.steady_us);
        let model = self.model.queue(name);
        let lease_us = wish.lease_ms.map_or(u64::from(model.lease_s) * 1_000_000, |milliseconds| milliseconds * 1000);
        let expected: Vec<u64> = model.available(group_name, lane, now.0).into_iter().take(left).collect();
        let messages = messages_of(claim);
        let found: Vec<u64> = messages.iter().map(|message| message.offset).collect();
        let is_right = found == expected || (self.may_fall_short && expected.starts_with(&found));
        let is_right = !found.is_empty() && is_right;
        right(is_right, || {
            let cursor = model.groups[group_name].cursors.get(lane);
            format!("claim of {lane} has {found:?}, expected {expected:?} with {cursor:?}")
        })?;
        for message in &messages {
            let wanted = content_of(&model.lanes[lane].messages[&message.offset].item);
            let got = content_of_message(message);
            right(wanted == got, || format!("message {} of {lane} is {got}, expected {wanted}", message.offset))?;
        }
        let had_lost = model.cursor(group_name, lane).has_lost;
        let start = model.lanes[lane].start;
        right(!had_lost || claim.lost.is_some(), || format!("claim of {lane} tells of no loss"))?;
        right(claim.lost.is_none_or(|lost| lost.last < start), || format!("loss {:?} is not below {start}", claim.lost))?;
        model.claim(group_name, lane, &found, lease, now.1 + lease_us);
        let count = model.cursor(group_name, lane).deliveries[&found[0]];
        let is_right = !self.are_counts_known || claim.delivery_count == count;
        right(is_right, || format!("delivery count of {} in {lane} is {}, not {count}", found[0], claim.delivery_count))?;
        let count = found.len();
        if wish.auto_ack {
            let items: Vec<_> = found.iter().map(|&offset| (offset, AckVerb::Completed, 0)).collect();
            model.ack(group_name, lane, lease, &items, now);
        } else {
            let (group, partition_id, incarnation) = (wish.group, claim.partition_id, claim.incarnation);
            let (lane, lease) = (lane.to_owned(), lease.to_owned());
            self.held.push(Held { queue, group, lane, partition_id, incarnation, lease, offsets: found });
        }
        Ok(count)
    }

    /// Who waits is woken when something is claimable that was not before. Awake and with nothing to take, it waits again.
    fn look_after_waiter(&mut self) -> Check {
        if !self.has_waiter {
            return Ok(());
        }
        if self.waiter.as_ref().is_some_and(|waiter| waiter.steps > 25) {
            self.waiter = None;
        }
        if self.waiter.is_none() {
            self.waiters += 1;
            let (queue, group) = (self.waiters % QUEUES.len(), self.waiters / QUEUES.len() % GROUPS.len());
            let known = self.model.queues.get(QUEUES[queue]).and_then(|found| found.groups.get(GROUPS[group]));
            if known.is_none_or(|group| group.start.is_none()) {
                return Ok(());
            }
            let request = self.pop_request(Wish { queue: Some(queue), ..Wish::small(group) });
            let is_woken = Arc::new(AtomicBool::new(true));
            let flag = Arc::clone(&is_woken);
            let wake = Arc::new(move || flag.store(true, Ordering::Relaxed));
            let watch = self.engine().watch(&request, wake).map_err(|error| error.to_string())?;
            self.waiter = Some(Waiter { queue, group, is_woken, steps: 0, _watch: watch });
        }
        let Some(waiter) = &mut self.waiter else { return Ok(()) };
        waiter.steps += 1;
        let (queue, group, now_us) = (waiter.queue, waiter.group, self.now.wall_us);
        let is_woken = waiter.is_woken.load(Ordering::Relaxed);
        let found = &self.model.queues[QUEUES[queue]];
        let ready = LANES.iter().find(|lane| !found.available(GROUPS[group], lane, now_us).is_empty());
        match ready {
            Some(lane) => {
                ensure!(is_woken, "a pop of {}/{lane} by {:?} waits on, with messages to take", QUEUES[queue], GROUPS[group]);
            }
            None if is_woken => {
                waiter.is_woken.store(false, Ordering::Relaxed);
                let request = self.pop_request(Wish { queue: Some(queue), ..Wish::small(group) });
                if let Ok(reply) = self.engine().pop(&request, self.now)
                    && let Some(claim) = reply.claims.first()
                {
                    let seen = self.explain(QUEUES[queue], GROUPS[group], &claim.partition);
                    let (group, range) = (GROUPS[group], claim.range);
                    return Err(format!("the waiting pop of {group:?} got {range:?} of {}: {seen}", claim.partition));
                }
            }
            None => {}
        }
        Ok(())
    }

    /// What an at-most-once pop may have acknowledged before it failed: any of its lanes.
    fn auto_acked(&self, model: &Model, queue: &str, wish: Wish) -> Candidates {
        let group = GROUPS[wish.group];
        let lanes: Vec<&str> = match wish.lane {
            Some(lane) => vec![LANES[lane]],
            None => LANES.to_vec(),
        };
        let mut all = Vec::new();
        for order in permutations(&lanes) {
            let mut acked = model.clone();
            let mut left = wish.max as usize;
            let mut count = 0;
            for lane in order {
                let available = acked.queues[queue].available(group, lane, self.now.wall_us);
                let offsets: Vec<u64> = available.into_iter().take(left).collect();
                if offsets.is_empty() || count == wish.partitions {
                    continue;
                }
                count += 1;
                left -= offsets.len();
                let items: Vec<_> = offsets.iter().map(|&offset| (offset, AckVerb::Completed, 0)).collect();
                let found = acked.queue(queue);
                found.claim(group, lane, &offsets, "auto", u64::MAX);
                found.ack(group, lane, "auto", &items, (self.now.wall_us, self.now.steady_us));
                all.push(acked.clone());
            }
        }
        all
    }

    fn choose(&self, choice: u64, is_live: bool) -> Option<Held> {
        let fits = |held: &&Held| {
            let queue = self.model.queues.get(QUEUES[held.queue]);
            let cursor = queue.and_then(|queue| queue.groups.get(GROUPS[held.group])?.cursors.get(&held.lane));
            let lives = cursor.is_some_and(|cursor| cursor.leases.contains_key(&held.lease));
            let start = queue.map_or(0, |queue| queue.lanes[&held.lane].start);
            let lease = cursor.and_then(|cursor| cursor.leases.get(&held.lease));
            let is_hollow = lease.is_some_and(|lease| lease.outstanding.range(start..).next().is_none());
            lives == is_live && cursor.is_some() && !is_hollow
        };
        let found: Vec<&Held> = self.held.iter().rev().take(20).filter(fits).collect();
        found.get(choice.checked_rem(found.len() as u64)? as usize).copied().cloned()
    }

    fn ack(&mut self, choice: u64, style: AckStyle) -> Result<(), Stop> {
        let Some(held) = self.choose(choice, style != AckStyle::Stale) else { return Ok(()) };
        let queue = QUEUES[held.queue];
        let lane = &self.model.queues[queue].lanes[&held.lane];
        let (start, end) = (lane.start, lane.end);
        let cursor = self.model.queue(queue).cursor(GROUPS[held.group], &held.lane);
        let outstanding: Vec<u64> = match cursor.leases.get(&held.lease) {
            Some(lease) => lease.outstanding.iter().copied().collect(),
            None => held.offsets.clone(),
        };
        if outstanding.first().is_none_or(|&first| first < start) {
            return Ok(());
        }
        // A group of the same name that was made later may not take them, and may have passed them or not.
        let found = &self.model.queues[queue];
        let messages = &found.lanes[&held.lane].messages;
        if !outstanding.iter().all(|offset| found.takes(GROUPS[held.group], &messages[offset])) {
            return Ok(());
        }
        let items = items_of(style, &outstanding, end);
        self.submit_ack(&held, &held.lease, &items)
    }

    fn submit_ack(&mut self, held: &Held, lease: &str, items: &[(u64, AckVerb, u64)]) -> Result<(), Stop> {
        let request = ack_request(held, lease, items);
        let mut after = self.model.clone();
        let now = (self.now.wall_us, self.now.steady_us);
        let expected = after.queue(QUEUES[held.queue]).ack(GROUPS[held.group], &held.lane, lease, items, now);
        let reply = self.engine().ack(request, self.now);
        let reply = self.settle(reply, Vec::new(), after)?;
        let found: Vec<Outcome> = reply.outcomes.iter().map(outcome_of).collect();
        right(found == expected, || format!("{items:?}: outcomes {found:?}, expected {expected:?}: {:?}", reply.outcomes))
    }

    fn unfenced(&mut self, queue: usize, lane: usize, group: usize, choice: u64, verb: AckVerb) -> Result<(), Stop> {
        let Some(found) = self.model.queues.get(QUEUES[queue]) else { return Ok(()) };
        let Some(known) = found.groups.get(GROUPS[group]) else { return Ok(()) };
        let Some(messages) = found.lanes.get(LANES[lane]) else { return Ok(()) };
        if known.start.is_none() || messages.end == messages.start {
            return Ok(());
        }
        let offset = messages.start + choice % (messages.end - messages.start + 1);
        // Whether it has been here decides where it stands if its start is not there yet.
        let is_ahead = matches!(known.start, Some(Start::Offset(_) | Start::Time(_))) && !known.cursors.contains_key(LANES[lane]);
        if is_ahead {
            return Ok(());
        }
        // The cursor may or may not have passed what the group does not take.
        if messages.messages.get(&offset).is_some_and(|kept| !found.takes(GROUPS[group], kept)) {
            return Ok(());
        }
        let info = self.engine().partition(QUEUES[queue], LANES[lane]).map_err(|error| Stop::Wrong(error.to_string()))?;
        let incarnation = self.engine().queue(QUEUES[queue]).map_err(|error| Stop::Wrong(error.to_string()))?.incarnation;
        let (lane, lease, offsets) = (LANES[lane].to_owned(), String::new(), Vec::new());
        let held = Held { queue, group, lane, partition_id: info.id, incarnation, lease, offsets };
        self.submit_ack(&held, "", &[(offset, verb, 0)])
    }

    fn extend(&mut self, choice: u64) -> Result<(), Stop> {
        let Some(held) = self.choose(choice, true) else { return Ok(()) };
        let until_us = self.now.steady_us + 30_000_000;
        let reply = self.engine().extend(&held.lease, 30_000, self.now).map_err(|error| Stop::Wrong(error.to_string()))?;
        let (mut least, mut most) = (0, 0);
        for queue in self.model.queues.values_mut() {
            for (lane, cursor) in queue.groups.values_mut().flat_map(|group| group.cursors.iter_mut()) {
                if let Some(lease) = cursor.leases.get_mut(&held.lease) {
                    lease.until_us = lease.until_us.max(until_us);
                    least += u32::from(lease.outstanding.range(queue.lanes[lane].start..).next().is_some());
                    most += 1;
                }
            }
        }
        let is_right = (least..=most).contains(&reply.renewed);
        right(is_right, || format!("renewed {}, expected {least} to {most}", reply.renewed))
    }

    fn release(&mut self, choice: u64) -> Result<(), Stop> {
        let Some(held) = self.choose(choice, true) else { return Ok(()) };
        let released = self.engine().release(&held.lease, self.now).map_err(|error| Stop::Wrong(error.to_string()))?;
        let (mut least, mut most) = (0, 0);
        for queue in self.model.queues.values_mut() {
            let held = queue.release(&held.lease);
            (least, most) = (least + held.0, most + held.1);
        }
        right((least..=most).contains(&released), || format!("released {released}, expected {least} to {most}"))
    }

    fn transact(&mut self, pushes: &[(usize, usize, Item)], acks: &[u64]) -> Result<(), Stop> {
        let mut request = TransactionRequest::default();
        let mut after = self.model.clone();
        let mut candidates = Vec::new();
        let mut expected = Vec::new();
        let mut is_refused = false;
        for (queue, lane, item) in pushes {
            request.pushes.push(self::request(QUEUES[*queue], LANES[*lane], std::slice::from_ref(item), None));
            if !after.queues.contains_key(QUEUES[*queue]) {
                after.queues.insert(QUEUES[*queue].to_owned(), QueueModel::default());
                candidates.push(after.clone());
            }
        }
        // Queues are made before anything is decided, and stay if it is refused.
        let made = after.clone();
        let mut chosen: Vec<Held> = Vec::new();
        for &choice in acks {
            let Some(held) = self.choose(choice, true) else { continue };
            if !chosen.iter().any(|other| (other.queue, other.group, &other.lane) == (held.queue, held.group, &held.lane)) {
                chosen.push(held);
            }
        }
        let mut pushed = Vec::new();
        for (queue, lane, item) in pushes {
            let results = after.queue(QUEUES[*queue]).push(LANES[*lane], std::slice::from_ref(item), None, self.now.wall_us);
            is_refused |= results.iter().any(|result| matches!(result, PushResult::Duplicate(_)));
            if results.iter().any(|result| matches!(result, PushResult::Stored(_))) {
                let is_joined = pushed.contains(&(*queue, *lane));
                let batch = after.queue(QUEUES[*queue]).lanes.get_mut(LANES[*lane]).and_then(|lane| lane.batches.last_mut());
                batch.into_iter().for_each(|batch| batch.is_joined = is_joined);
                pushed.push((*queue, *lane));
            }
            expected.push(results);
        }
        for held in chosen {
            let start = after.queues[QUEUES[held.queue]].lanes[&held.lane].start;
            let cursor = after.queue(QUEUES[held.queue]).cursor(GROUPS[held.group], &held.lane);
            let outstanding: Vec<u64> = cursor.leases[&held.lease].outstanding.iter().copied().collect();
            if outstanding.first().is_none_or(|&first| first < start) {
                continue;
            }
            let items = items_of(AckStyle::All, &outstanding, 0);
            request.acks.push(ack_request(&held, &held.lease, &items));
            let now = (self.now.wall_us, self.now.steady_us);
            after.queue(QUEUES[held.queue]).ack(GROUPS[held.group], &held.lane, &held.lease, &items, now);
        }
        let reply = self.engine().transact(request, self.now);
        if is_refused {
            return match reply {
                Err(error) if error.code == ErrorCode::Duplicate => {
                    self.model = made;
                    Ok(())
                }
                Err(error) => Err(Stop::Failed(candidates, error)),
                Ok(_) => Err(Stop::Wrong("a transaction with a duplicate happened".to_owned())),
            };
        }
        let reply = self.settle(reply, candidates, after)?;
        for ((reply, expected), (queue, lane, _)) in reply.pushes.iter().zip(&expected).zip(pushes) {
            self.compare_results(QUEUES[*queue], LANES[*lane], reply, expected)?;
        }
        Ok(())
    }

    fn seek(&mut self, queue: usize, group: usize, lane: Option<usize>, target: Target) -> Result<(), Stop> {
        let (name, group_name) = (QUEUES[queue], GROUPS[group]);
        let Some(found) = self.model.queues.get(name) else { return Ok(()) };
        let Some(known) = found.groups.get(group_name) else { return Ok(()) };
        if known.start.is_none() || lane.is_some_and(|lane| !found.lanes.contains_key(LANES[lane])) {
            return Ok(());
        }
        let mut after = self.model.clone();
        let lanes: Vec<String> = match lane {
            Some(lane) => vec![LANES[lane].to_owned()],
            None => found.lanes.keys().cloned().collect(),
        };
        let mut refused = false;
        for lane in &lanes {
            let bounds = &found.lanes[lane];
            let place = match target {
                Target::Beginning => bounds.start,
                Target::End => bounds.end,
                Target::Back(by) => bounds.end.saturating_sub(by).max(bounds.start),
                Target::Offset(offset) => offset,
                Target::Ago(seconds) => found.first_at_or_after(lane, self.now.wall_us.saturating_sub(seconds * 1_000_000)),
            };
            refused |= place < bounds.start || place > bounds.end;
            after.queue(name).seek(group_name, lane, place);
        }
        let model_target = match target {
            Target::Beginning => SeekTarget::Beginning,
            Target::End => SeekTarget::End,
            Target::Offset(offset) => SeekTarget::Offset(offset),
            Target::Ago(seconds) => SeekTarget::Time(self.now.wall_us.saturating_sub(seconds * 1_000_000)),
            // Relative to the cursor, which is not modelled to the offset: so to the end first.
            Target::Back(_) => SeekTarget::End,
        };
        let request = SeekRequest {
            queue: name.to_owned(),
            group: Some(group_name.to_owned()),
            partition: lane.map(|lane| LANES[lane].to_owned()),
            target: model_target,
            is_preview: false,
        };
        if refused {
            let outcome = self.engine().seek(&request, self.now);
            return self.refused(outcome.map(drop), &[ErrorCode::BeyondEnd, ErrorCode::RangeRemoved]);
        }
        let mut candidates = Vec::new();
        if let Target::Back(by) = target {
            let mut at_end = self.model.clone();
            for lane in &lanes {
                let end = found.lanes[lane].end;
                at_end.queue(name).seek(group_name, lane, end);
            }
            let moved = self.engine().seek(&request, self.now);
            self.settle(moved, Vec::new(), at_end.clone())?;
            candidates.push(at_end);
            let back = SeekRequest { target: SeekTarget::Shift(-(by as i64)), ..request };
            let moved = self.engine().seek(&back, self.now);
            self.settle(moved, candidates, after)?;
            return Ok(());
        }
        let shown = self.engine().seek(&SeekRequest { is_preview: true, ..request.clone() }, self.now);
        let moved = self.engine().seek(&request, self.now);
        let moved = self.settle(moved, candidates, after)?;
        right(shown.as_ref() == Ok(&moved), || format!("the preview said {shown:?}, and {moved:?} was done"))
    }

    fn declare(&mut self, queue: usize, group: usize, filter: Option<char>, is_earlier: bool) -> Result<(), Stop> {
        let (name, group_name) = (QUEUES[queue], GROUPS[group]);
        let start = if is_earlier { Start::Beginning } else { Start::New };
        let declaration = GroupDeclaration {
            filter: filter_text(filter),
            start: Some(start),
            shared: group == 3,
            ..GroupDeclaration::default()
        };
        let Some(found) = self.model.queues.get(name) else { return Ok(()) };
        if group == 0 {
            return Ok(());
        }
        let outcome = self.engine().declare_group(name, group_name, &declaration, self.now);
        if !found.has_groups {
            return self.refused(outcome.map(drop), &[ErrorCode::GroupsDisabled]);
        }
        if found.groups.contains_key(group_name) {
            return self.refused(outcome.map(drop), &[ErrorCode::GroupExists]);
        }
        let mut after = self.model.clone();
        after.queue(name).add_group(group_name, GroupModel::new(filter, Some(start), group == 3));
        self.settle(outcome, Vec::new(), after).map(drop)
    }

    fn update(&mut self, queue: usize, group: usize, change: Change) -> Result<(), Stop> {
        let (name, group_name) = (QUEUES[queue], GROUPS[group]);
        let Some(found) = self.model.queues.get(name) else { return Ok(()) };
        let Some(known) = found.groups.get(group_name) else { return Ok(()) };
        let is_refused = group == 0 && matches!(change, Change::Filter(Some(_)) | Change::Limit(Some(_)));
        let mut patch = GroupPatch { expected_version: Some(known.version), ..GroupPatch::default() };
        let mut after = self.model.clone();
        if let Some(known) = after.queue(name).groups.get_mut(group_name) {
            known.version += 1;
            match change {
                Change::Filter(filter) => {
                    known.filter = filter;
                    patch.filter = Some(filter_text(filter));
                }
                Change::Enable(is_enabled) => {
                    known.is_enabled = is_enabled;
                    patch.is_enabled = Some(is_enabled);
                }
                Change::Pause(is_paused) => {
                    known.is_paused = is_paused;
                    patch.is_paused = Some(is_paused);
                }
                Change::Limit(limit) => {
                    known.limit = limit;
                    patch.delivery_limit = Some(limit);
                }
            }
        }
        let outcome = self.engine().update_group(name, group_name, &patch, self.now);
        if is_refused {
            return self.refused(outcome.map(drop), &[ErrorCode::PrimaryGroup]);
        }
        self.settle(outcome, Vec::new(), after).map(drop)
    }

    fn remove(&mut self, queue: usize, group: usize) -> Result<(), Stop> {
        let (name, group_name) = (QUEUES[queue], GROUPS[group]);
        if group == 0 || !self.model.queues.contains_key(name) {
            return Ok(());
        }
        let mut after = self.model.clone();
        let existed = after.queue(name).groups.contains_key(group_name);
        after.queue(name).remove_group(group_name);
        let outcome = self.engine().delete_group(group_name, Some(name), self.now);
        let removed = self.settle(outcome, Vec::new(), after)?;
        right(removed.queues == u32::from(existed), || format!("removed from {} queues", removed.queues))
    }

    fn remove_everywhere(&mut self, group: usize) -> Result<(), Stop> {
        if group == 0 {
            return Ok(());
        }
        let mut candidates = vec![self.model.clone()];
        let mut expected = 0;
        for name in QUEUES {
            if !self.model.queues.get(name).is_some_and(|queue| queue.groups.contains_key(GROUPS[group])) {
                continue;
            }
            expected += 1;
            for mut removed in candidates.clone() {
                removed.queue(name).remove_group(GROUPS[group]);
                candidates.push(removed);
            }
        }
        let after = candidates.pop().unwrap_or_default();
        let outcome = self.engine().delete_group(GROUPS[group], None, self.now);
        let removed = self.settle(outcome, candidates, after)?;
        right(removed.queues == expected, || format!("removed from {} queues, not {expected}", removed.queues))
    }

    fn create(&mut self, queue: &str, has_retention: bool) -> Result<(), Stop> {
        let outcome = self.engine().create_queue(queue, &settings(has_retention), self.now);
        if self.model.queues.contains_key(queue) {
            return self.refused(outcome.map(drop), &[ErrorCode::QueueExists]);
        }
        let mut after = self.model.clone();
        let retention_s = if has_retention { RETENTION_S } else { 0 };
        after.queues.insert(queue.to_owned(), QueueModel { retention_s, ..QueueModel::default() });
        self.settle(outcome, Vec::new(), after).map(drop)
    }

    fn change_settings(&mut self, queue: &str, lease_s: u32) -> Result<(), Stop> {
        if !self.model.queues.contains_key(queue) {
            return Ok(());
        }
        let mut after = self.model.clone();
        after.queue(queue).lease_s = lease_s;
        let patch = SettingsPatch { lease_time_s: Some(lease_s), ..SettingsPatch::default() };
        let outcome = self.engine().update_queue(queue, &patch, self.now);
        self.settle(outcome, Vec::new(), after).map(drop)
    }

    fn set(&mut self, queue: &str, rule: Rule) -> Result<(), Stop> {
        if !self.model.queues.contains_key(queue) {
            return Ok(());
        }
        let mut after = self.model.clone();
        let model = after.queue(queue);
        let mut patch = SettingsPatch::default();
        match rule {
            Rule::DelayedProcessing(seconds) => {
                (model.delay_s, patch.delayed_processing_s) = (seconds.into(), Some(seconds));
            }
            Rule::WindowBuffer(seconds) => (model.window_s, patch.window_buffer_s) = (seconds.into(), Some(seconds)),
            Rule::RetryLimit(limit) => (model.retry_limit, patch.retry_limit) = (limit, Some(limit)),
            Rule::DeadLetters(is_on) => {
                (model.has_letters, patch.dead_letter_queue) = (is_on, Some(is_on));
                patch.dlq_after_max_retries = Some(is_on);
            }
            Rule::NamedGroups(is_on) => (model.has_groups, patch.consumer_groups) = (is_on, Some(is_on)),
            Rule::Retention(seconds) => {
                (model.retention_s, patch.retention_s) = (seconds, Some(seconds));
                patch.retention_enabled = Some(true);
            }
            Rule::MaxWait(seconds) => (model.max_wait_s, patch.max_wait_time_s) = (seconds, Some(seconds)),
            Rule::CompletedRetention(seconds) => {
                (model.completed_s, patch.completed_retention_s) = (seconds, Some(seconds));
                patch.retention_enabled = Some(true);
            }
            Rule::RetentionBytes(bytes) => (model.retention_bytes, patch.retention_bytes) = (bytes, Some(bytes)),
        }
        let outcome = self.engine().update_queue(queue, &patch, self.now);
        self.settle(outcome, Vec::new(), after).map(drop)
    }

    fn delete(&mut self, queue: &str) -> Result<(), Stop> {
        let mut after = self.model.clone();
        let existed = after.queues.remove(queue).is_some();
        let outcome = self.engine().delete_queue(queue, self.now);
        let deleted = self.settle(outcome, Vec::new(), after)?;
        self.held.retain(|held| QUEUES[held.queue] != queue);
        right(deleted == existed, || format!("deleted {deleted}"))
    }

    fn letter(&mut self, queue: &str, is_replay: bool) -> Result<(), Stop> {
        let Some(found) = self.model.queues.get(queue) else { return Ok(()) };
        let Some(letter) = found.letters.values().find(|letter| letter.key != ' ').cloned() else { return Ok(()) };
        let mut after = self.model.clone();
        let model = after.queue(queue);
        model.letters.remove(&letter.id);
        if !is_replay {
            let outcome = self.engine().delete_dead_letter(queue, letter.id, self.now);
            return self.settle(outcome, Vec::new(), after).map(drop);
        }
        let item = Item { tag: letter.tag, size: letter.size, key: letter.key, id: Some(format!("dlq:{}", letter.id)) };
        let expected = model.push(&letter.partition, &[item], None, self.now.wall_us);
        if expected == [PushResult::Dropped] {
            model.letters.insert(letter.id, letter.clone());
        }
        let outcome = self.engine().replay_dead_letter(queue, letter.id, self.now);
        let reply = self.settle(outcome, Vec::new(), after)?;
        self.compare_results(queue, &letter.partition, &reply, &expected)
    }

    fn pass(&mut self, is_long: bool) -> Result<(), Stop> {
        let time_us = if is_long { 2 * RETENTION_S * 1_000_000 } else { 2_000_000 };
        self.now.wall_us += time_us;
        self.now.steady_us += time_us;
        self.model.expire(self.now.steady_us);
        let before = self.model.clone();
        self.engine().tick(self.now);
        if self.disk.is_off() {
            // Any of the queues may have been swept.
            let mut candidates = vec![before];
            for name in QUEUES {
                for candidate in candidates.clone() {
                    let swept = candidate.queues.get(name).map(|queue| queue.sweeps(self.now.wall_us)).unwrap_or_default();
                    candidates.extend(swept.into_iter().map(|queue| {
                        let mut after = candidate.clone();
                        after.queues.insert(name.to_owned(), queue);
                        after
                    }));
                }
            }
            return Err(Stop::Failed(candidates, cut()));
        }
        for name in QUEUES {
            self.take_starts(name)?;
        }
        Ok(())
    }

    /// Looks whether a sweep left what it may leave, and takes it over.
    fn take_starts(&mut self, name: &str) -> Result<(), Stop> {
        if !self.model.queues.contains_key(name) {
            return Ok(());
        }
        let wrong = |error: Error| Stop::Wrong(error.to_string());
        let lanes = self.engine().partitions(name, 0, usize::MAX).map_err(wrong)?;
        let starts: BTreeMap<String, u64> = lanes.into_iter().map(|lane| (lane.name, lane.start)).collect();
        let queue = &self.model.queues[name];
        // A sweep that the disk refuses is done later.
        let is_put_off = self.may_fall_short && starts.iter().all(|(lane, &start)| start == queue.lanes[lane].start);
        right(is_put_off || queue.is_legal_sweep(&starts, self.now.wall_us), || {
            let cursors = |group: &String| {
                let cursors = self.engine().cursors(name, group, 0, usize::MAX, self.now).unwrap_or_default();
                let places: Vec<_> = cursors.into_iter().map(|cursor| (cursor.partition, cursor.next, cursor.lag)).collect();
                format!("{group} at {places:?}, {:?}", queue.groups[group].start)
            };
            let seen: Vec<_> = queue.groups.keys().map(cursors).collect();
            let (ages, bounds) = ((queue.retention_s, queue.max_wait_s, queue.completed_s), queue.sweep_bounds(self.now.wall_us));
            format!("a sweep of {name} left {starts:?}, not {bounds:?}, by {ages:?}: {}", seen.join("; "))
        })?;
        let stats = self.engine().queue(name).map_err(wrong)?.stats;
        let is_small =
            self.may_fall_short || queue.retention_bytes == 0 || stats.log_bytes <= queue.retention_bytes || stats.segments <= 1;
        right(is_small, || format!("{name} keeps {} bytes of log, the limit is {}", stats.log_bytes, queue.retention_bytes))?;
        self.model.queue(name).move_starts(&starts);
        Ok(())
    }

    /// Leases do not care. Where messages are held back by the wall clock their timers would be late, as they may be; and what time a
    /// message has after a crash is not known.
    fn clock_back(&mut self, seconds: u64) -> Result<(), Stop> {
        if self.has_waiter && self.model.queues.values().all(|queue| queue.delay_s == 0 && queue.window_s == 0) {
            self.now.wall_us -= seconds * 1_000_000;
        }
        Ok(())
    }

    fn restart(&mut self) -> Result<(), Stop> {
        if let Err(error) = self.engine().close(self.now) {
            return Err(Stop::Failed(Vec::new(), error));
        }
        if self.disk.is_off() {
            return Err(Stop::Failed(Vec::new(), cut()));
        }
        self.engine = None;
        self.reopen(self.disk.clone())
    }

    fn kill(&mut self) -> Result<(), Stop> {
        self.are_counts_known = false;
        self.model.forget_deliveries();
        let disk = self.disk.crash_keep_all();
        self.engine = None;
        self.reopen(disk)
    }

    fn reopen(&mut self, disk: SimDisk) -> Result<(), Stop> {
        self.disk = disk;
        self.model.restart();
        let (engine, report) = match Engine::open(self.disk.root(), options(), self.now) {
            Ok(opened) => opened,
            Err(error) => return Err(Stop::Failed(Vec::new(), error)),
        };
        self.engine = Some(engine);
        self.report = report;
        if self.disk.is_off() {
            return Err(Stop::Failed(Vec::new(), cut()));
        }
        let losses: Vec<_> = self.report.findings.iter().filter(|finding| finding.is_loss).collect();
        right(losses.is_empty(), || format!("recovery reports a loss: {losses:?}"))
    }

    /// Takes the model's next state if the operation went well.
    fn settle<T>(&mut self, outcome: Result<T, Error>, mut intermediate: Candidates, after: Model) -> Result<T, Stop> {
        match outcome {
            Ok(reply) => {
                self.model = after;
                Ok(reply)
            }
            Err(error) => {
                intermediate.push(after);
                Err(Stop::Failed(intermediate, error))
            }
        }
    }

    /// For an operation that must be refused and change nothing.
    fn refused(&self, outcome: Result<(), Error>, codes: &[ErrorCode]) -> Result<(), Stop> {
        match outcome {
            Err(error) if codes.contains(&error.code) => Ok(()),
            Err(error) => Err(Stop::Failed(Vec::new(), error)),
            Ok(()) => Err(Stop::Wrong(format!("it was not refused with {codes:?}"))),
        }
    }

    /// Whatever can be done still has to go right: everything is handed out once, resends are known, pushes get the next offsets.
    pub fn epilogue(&mut self) -> Check {
        let mut ops = Vec::new();
        for queue in 0..QUEUES.len() {
            for lane in 0..LANES.len() {
                ops.push(Op::Resend { queue, lane });
            }
        }
        let names: Vec<String> = self.model.queues.keys().cloned().collect();
        for (tag, name) in (1u64 << 40..).zip(names) {
            let queue = QUEUES.iter().position(|other| *other == name).unwrap_or(0);
            let ids: Vec<_> = self.model.queues[&name].ids.keys().cloned().collect();
            for (lane, id) in ids.into_iter().take(3) {
                let lane = LANES.iter().position(|other| *other == lane).unwrap_or(0);
                let items = vec![Item { tag, size: 10, key: 'a', id: Some(id) }];
                // Retention by bytes, which only queue b has, takes ids along.
                if queue == 0 {
                    ops.push(Op::Push { queue, lane, items, is_numbered: false });
                }
            }
            for lane in 0..LANES.len() {
                let items = vec![Item { tag: tag + 1 + lane as u64, size: 20, key: 'b', id: None }];
                ops.push(Op::Push { queue, lane, items, is_numbered: lane == 0 });
            }
            for group in 0..GROUPS.len() {
                for _ in 0..2 * LANES.len() {
                    ops.push(Op::Pop { queue, lane: None, group, max: 1000, partitions: 1, lease_ms: None, auto_ack: true });
                }
            }
        }
        for op in &ops {
            match self.step(op)? {
                Step::Done => {}
                Step::Failed(_, error) => return Err(format!("{op:?} after recovery: {error}")),
            }
        }
        self.check()
    }
}

impl Wish {
    fn small(group: usize) -> Self {
        Self { queue: None, lane: None, group, max: 3, partitions: 1, lease_ms: None, auto_ack: false, from: None }
    }
}

/// A first pop registers the group.
fn register(queue: &mut QueueModel, group: &str, start: Option<Start>, shared: bool) {
    // The primary group always starts at the beginning, and so does by these options who does not say where.
    let start = if group == PRIMARY_GROUP { Start::Beginning } else { start.unwrap_or(Start::Beginning) };
    match queue.groups.get_mut(group) {
        Some(found) if found.start.is_none() => found.start = Some(start),
        Some(_) => {}
        None => queue.add_group(group, GroupModel::new(None, Some(start), shared)),
    }
}

pub enum Stop {
    Wrong(String),
    Failed(Candidates, Error),
}

fn cut() -> Error {
    Error::new(ErrorCode::Io, "the power is off")
}

fn right(condition: bool, text: impl FnOnce() -> String) -> Result<(), Stop> {
    if condition { Ok(()) } else { Err(Stop::Wrong(text())) }
}

fn permutations<'a>(lanes: &[&'a str]) -> Vec<Vec<&'a str>> {
    if lanes.len() <= 1 {
        return vec![lanes.to_vec()];
    }
    let mut all = Vec::new();
    for (at, &first) in lanes.iter().enumerate() {
        let rest: Vec<&str> = lanes.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, &lane)| lane).collect();
        all.extend(permutations(&rest).into_iter().map(|mut order| {
            order.insert(0, first);
            order
        }));
    }
    all
}

fn outcome_of(outcome: &AckOutcome) -> Outcome {
    match outcome {
        AckOutcome { refused: Some(_), .. } => Outcome::Refused,
        AckOutcome { is_noop: true, .. } => Outcome::Noop,
        AckOutcome { is_dead_letter: true, .. } => Outcome::Dead,
        _ => Outcome::Applied,
    }
}

fn items_of(style: AckStyle, outstanding: &[u64], end: u64) -> Vec<(u64, AckVerb, u64)> {
    let all = |verb: AckVerb| outstanding.iter().map(|&offset| (offset, verb, 0)).collect::<Vec<_>>();
    let (first, last) = (outstanding[0], outstanding[outstanding.len() - 1]);
    match style {
        AckStyle::All | AckStyle::Stale => all(AckVerb::Completed),
        AckStyle::First => vec![(first, AckVerb::Completed, 0)],
        AckStyle::Fail => vec![(first, AckVerb::Failed, 0)],
        AckStyle::Retry => vec![(first, AckVerb::Retry, 0)],
        AckStyle::RetryLater => vec![(last, AckVerb::Retry, 3_000)],
        AckStyle::RejectLast => vec![(last, AckVerb::Reject, 0)],
        AckStyle::Beyond => {
            vec![(end, AckVerb::Completed, 0), (end + 1000, AckVerb::Failed, 0), (u64::MAX, AckVerb::Completed, 0)]
        }
        AckStyle::Mixed(seed) => {
            let mut random = Random::new(seed);
            let verbs = [AckVerb::Completed, AckVerb::Completed, AckVerb::Failed, AckVerb::Retry, AckVerb::Reject];
            let mut items = all(AckVerb::Completed);
            items.retain(|_| random.chance(2, 3));
            items.iter_mut().for_each(|item| item.1 = verbs[random.index(verbs.len())]);
            items
        }
    }
}

/// Half of the messages are named by their ids.
fn ack_target(held: &Held, offset: u64) -> AckTarget {
    if offset.is_multiple_of(2) || offset >= 1 << 60 {
        return AckTarget::Offset(offset);
    }
    AckTarget::TransactionId(derived_id(held.incarnation, held.partition_id, offset))
}

fn ack_request(held: &Held, lease: &str, items: &[(u64, AckVerb, u64)]) -> AckRequest {
    AckRequest {
        queue: QUEUES[held.queue].to_owned(),
        partition_id: held.partition_id,
        group: (held.group > 0).then(|| GROUPS[held.group].to_owned()),
        lease_id: lease.to_owned(),
        items: items
            .iter()
            .map(|&(offset, verb, delay_ms)| AckItem { target: ack_target(held, offset), verb, reason: String::new(), delay_ms })
            .collect(),
    }
}

pub fn request(queue: &str, lane: &str, items: &[Item], producer: Option<(u64, u32, u32)>) -> PushRequest {
    PushRequest {
        queue: queue.to_owned(),
        partition: lane.to_owned(),
        items: PushItem::Messages(items.iter().map(message_of).collect()),
        producer,
    }
}

fn message_of(item: &Item) -> Message {
    let mut attributes = Attributes::new();
    attributes.insert("k", item.key.to_string()).expect("a short attribute");
    Message { transaction_id: item.id.clone(), attributes, ..Message::new(payload(item)) }
}

pub fn messages_of(claim: &Claim) -> Vec<StoredMessage> {
    let mut messages = Vec::new();
    for slice in &claim.batches {
        match slice {
            BatchSlice::Whole(bytes) => messages.extend(
                StoredBatch::parse(bytes.clone()).and_then(|batch| batch.messages()).expect("a handed out batch decodes"),
            ),
            BatchSlice::Messages(found) => messages.extend(found.iter().cloned()),
        }
    }
    messages
}

/// Makes up operations.
pub struct Maker {
    pub random: Random,
    tag: u64,
    /// Bytes of a message at most.
    pub size_max: u64,
}

impl Maker {
    pub fn new(seed: u64, size_max: u64) -> Self {
        Self { random: Random::new(seed), tag: 0, size_max }
    }

    pub fn item(&mut self, has_id: bool) -> Item {
        self.tag += 1;
        let size = self.random.below(self.size_max) as usize;
        let key = if self.random.chance(1, 2) { 'a' } else { 'b' };
        let id = has_id.then(|| format!("id{}", self.random.below(6)));
        Item { tag: self.tag, size, key, id }
    }

    pub fn op(&mut self) -> Op {
        let queue = usize::from(self.random.chance(1, 3));
        let lane = self.random.index(LANES.len());
        let group = self.random.index(GROUPS.len());
        let choice = self.random.number();
        let some_lane = self.random.chance(1, 3).then_some(lane);
        match self.random.below(114) {
            0..=24 => {
                let count = 1 + self.random.index(4);
                // Only queue b has retention by bytes, which takes ids along.
                let has_ids = queue == 0 && self.random.chance(1, 4);
                let items = (0..count).map(|_| self.item(has_ids)).collect();
                Op::Push { queue, lane, items, is_numbered: self.random.chance(1, 3) }
            }
            25..=26 => Op::Resend { queue, lane },
            27..=46 => Op::Pop {
                queue,
                lane: some_lane,
                group,
                max: 1 + self.random.below(6) as u32,
                partitions: 1 + self.random.below(3) as u32,
                lease_ms: self.random.chance(1, 3).then_some(1_500),
                auto_ack: self.random.chance(1, 6),
            },
            47..=64 => {
                let style = match self.random.below(12) {
                    0..=2 => AckStyle::All,
                    3 => AckStyle::First,
                    4..=5 => AckStyle::Fail,
                    6 => AckStyle::Retry,
                    7 => AckStyle::RetryLater,
                    8 => AckStyle::RejectLast,
                    9 => AckStyle::Stale,
                    10 => AckStyle::Beyond,
                    _ => AckStyle::Mixed(self.random.number()),
                };
                Op::Ack { choice, style }
            }
            65..=66 => {
                let verbs = [AckVerb::Completed, AckVerb::Completed, AckVerb::Failed, AckVerb::Reject];
                let verb = verbs[self.random.index(4)];
                Op::Unfenced { queue, lane, group, choice, verb }
            }
            67 => Op::Extend { choice },
            68..=69 => Op::Release { choice },
            70..=75 => {
                let count = self.random.index(4);
                let pushes = (0..count)
                    .map(|_| {
                        let queue = self.random.index(QUEUES.len());
                        let has_id = queue == 0 && self.random.chance(1, 3);
                        (queue, self.random.index(LANES.len()), self.item(has_id))
                    })
                    .collect();
                let acks = (0..self.random.below(3)).map(|_| self.random.number()).collect();
                Op::Transact { pushes, acks }
            }
            76..=79 => {
                let target = match self.random.below(6) {
                    0 => Target::Beginning,
                    1 => Target::End,
                    2 | 3 => Target::Back(self.random.below(5)),
                    4 => Target::Ago(self.random.below(300)),
                    _ => Target::Offset(self.random.below(20)),
                };
                Op::Seek { queue, group, lane: some_lane, target }
            }
            80..=82 => {
                let filter = self.random.chance(1, 2).then_some('b');
                Op::Declare { queue, group, filter, is_earlier: self.random.chance(1, 2) }
            }
            83..=86 => {
                let change = match self.random.below(8) {
                    0 => Change::Filter(Some('a')),
                    1 => Change::Filter(None),
                    2 => Change::Enable(false),
                    3 | 4 => Change::Enable(true),
                    5 => Change::Pause(self.random.chance(1, 2)),
                    6 => Change::Pause(false),
                    _ => Change::Limit(self.random.chance(1, 2).then_some(2)),
                };
                Op::Update { queue, group, change }
            }
            87 => Op::Remove { queue, group },
            88..=89 => Op::Create { queue, has_retention: queue == 1 },
            90 => Op::Settings { queue, lease_s: 20 + self.random.below(30) as u32 },
            91 => Op::Delete { queue },
            92 => Op::Replay { queue },
            93 => Op::DropLetter { queue },
            94..=96 => Op::Pass { is_long: self.random.chance(1, 3) },
            97..=98 => Op::Restart,
            99..=100 => {
                let from = match self.random.below(4) {
                    0 => Target::Beginning,
                    1 => Target::End,
                    2 => Target::Ago(self.random.below(300)),
                    _ => Target::Offset(self.random.below(20)),
                };
                Op::PopFrom { queue, group, from }
            }
            101..=103 => {
                Op::Discover { group, max: 1 + self.random.below(8) as u32, partitions: 1 + self.random.below(5) as u32 }
            }
            104 => Op::RemoveEverywhere { group },
            105 => Op::Gap { queue, lane },
            106 => Op::ClockBack { seconds: self.random.below(30) },
            107..=112 => Op::Set { queue, rule: self.rule(queue) },
            _ => Op::Kill,
        }
    }

    fn rule(&mut self, queue: usize) -> Rule {
        let is_off = self.random.chance(1, 2);
        let or_off = |value: u64| if is_off { 0 } else { value };
        // What takes messages away by a rule is for queue b: retention by bytes takes ids along.
        match self.random.below(if queue == 0 { 5 } else { 9 }) {
            0 => Rule::DelayedProcessing(or_off(3) as u32),
            1 => Rule::WindowBuffer(or_off(3) as u32),
            2 => Rule::RetryLimit(self.random.below(4) as u32),
            3 => Rule::DeadLetters(!is_off),
            4 => Rule::NamedGroups(self.random.chance(3, 4)),
            5 => Rule::Retention(or_off(RETENTION_S)),
            6 => Rule::MaxWait(or_off(150)),
            7 => Rule::CompletedRetention(or_off(1 + self.random.below(60))),
            _ => Rule::RetentionBytes(or_off(2 << 20)),
        }
    }
}
