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

macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}

mod acks;
mod groups;
mod operation;
mod pops;
mod pushes;
mod queues;
mod time;

pub use operation::{AckStyle, Change, Maker, Op, Rule, Target};
pub use pushes::request;

/// Of one namespace.
pub const QUEUES: [&str; 2] = ["n.a", "n.b"];
const NAMESPACE: &str = "n";
pub const LANES: [&str; 3] = ["x", "y", "z"];
/// The first is the primary group, the last a work queue.
pub const GROUPS: [&str; 4] = [PRIMARY_GROUP, "g", "h", "s"];

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
