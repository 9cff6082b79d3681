//! The producer's task: the only one that touches its lanes.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::model::{PushReply, PushRequest};

use super::super::{Client, Error, Result, decode_reply};
use super::ProducerOptions;
use super::batch::{Batch, Entry, Progress};
use super::lane::Lane;

/// Lanes that are remembered though nothing is under way in them. Beyond it, idle lanes are forgotten and the epoch grows, so
/// that a lane that comes back starts anew.
const IDLE_LANES_MAX: usize = 16_384;

/// What the task is told.
#[derive(Debug)]
pub enum Command {
    /// A message for a partition.
    Message(String, Entry),
    /// The answer to a push.
    Answer { partition: Arc<str>, batch: u64, result: Result<PushReply>, sends: u32 },
    /// Send what lingers; tell when all that was given before is answered.
    Flush(oneshot::Sender<()>),
    /// No producer is left: send what there is and end.
    Drain,
}

/// Someone waits until the lanes have answered so many messages.
struct Flush {
    lanes: Vec<(Arc<str>, u64)>,
    done: oneshot::Sender<()>,
}

/// Why a lane is looked at again.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// Its linger or its pause is over.
    Advance,
    /// Its oldest batch may be due to be given up.
    Expire,
}

struct Task {
    client: Client,
    options: ProducerOptions,
    commands: mpsc::UnboundedSender<Command>,
    lanes: HashMap<Arc<str>, Lane>,
    epoch: u32,
    next_batch: u64,
    in_flight: usize,
    timers: BTreeSet<(Instant, Timer, Arc<str>)>,
    /// Partitions that had something to send when there was no room in flight.
    waiting: VecDeque<Arc<str>>,
    flushes: Vec<Flush>,
    is_draining: bool,
}

/// Starts the task.
pub fn start(
    client: Client,
    options: ProducerOptions,
    commands: mpsc::UnboundedSender<Command>,
    receiver: mpsc::UnboundedReceiver<Command>,
) {
    let task = Task {
        client,
        options,
        commands,
        lanes: HashMap::new(),
        epoch: 0,
        next_batch: 0,
        in_flight: 0,
        timers: BTreeSet::new(),
        waiting: VecDeque::new(),
        flushes: Vec::new(),
        is_draining: false,
    };
    tokio::spawn(task.run(receiver));
}

impl Task {
    async fn run(mut self, mut receiver: mpsc::UnboundedReceiver<Command>) {
        while !(self.is_draining && self.lanes.values().all(Lane::is_idle)) {
            let timer = self.timers.first().map(|(at, ..)| *at);
            tokio::select! {
                biased;
                Some(command) = receiver.recv() => self.handle(command),
                () = sleep_until(timer.unwrap_or_else(Instant::now)), if timer.is_some() => self.fire_timers(),
            }
        }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Message(partition, entry) => self.add(&partition, entry),
            Command::Answer { partition, batch, result, sends } => {
                let is_known = self.lanes.get_mut(&partition).is_some_and(|lane| lane.answer(batch, result, sends));
                self.in_flight -= usize::from(is_known);
                self.advance(&partition);
                self.serve_waiting();
                self.finish_flushes();
            }
            Command::Flush(done) => {
                let lanes = self.lanes.iter().filter(|(_, lane)| !lane.is_idle());
                let lanes = lanes.map(|(partition, lane)| (Arc::clone(partition), lane.entries())).collect();
                self.flushes.push(Flush { lanes, done });
                self.advance_all();
            }
            Command::Drain => {
                self.is_draining = true;
                self.advance_all();
            }
        }
    }

    fn add(&mut self, partition: &str, entry: Entry) {
        let now = Instant::now();
        let partition = match self.lanes.get_key_value(partition) {
            Some((partition, _)) => Arc::clone(partition),
            None => self.add_lane(partition),
        };
        let Some(lane) = self.lanes.get_mut(&partition) else { return };
        if lane.add(entry, now) && !self.options.linger.is_zero() {
            self.timers.insert((now + self.options.linger, Timer::Advance, Arc::clone(&partition)));
        }
        self.advance(&partition);
    }

    fn add_lane(&mut self, partition: &str) -> Arc<str> {
        if self.lanes.len() >= IDLE_LANES_MAX {
            let before = self.lanes.len();
            self.lanes.retain(|_, lane| !lane.is_idle());
            if self.lanes.len() < before {
                self.epoch = self.epoch.saturating_add(1);
            }
        }
        let partition: Arc<str> = partition.into();
        self.lanes.insert(Arc::clone(&partition), Lane::new(self.epoch));
        partition
    }

    fn advance_all(&mut self) {
        let partitions: Vec<_> = self.lanes.keys().cloned().collect();
        partitions.iter().for_each(|partition| self.advance(partition));
        self.finish_flushes();
    }

    fn fire_timers(&mut self) {
        let now = Instant::now();
        while self.timers.first().is_some_and(|(at, ..)| *at <= now) {
            let Some((_, timer, partition)) = self.timers.pop_first() else { break };
            if timer == Timer::Expire {
                self.expire(&partition, now);
            }
            self.advance(&partition);
        }
        self.serve_waiting();
        self.finish_flushes();
    }

    fn expire(&mut self, partition: &Arc<str>, now: Instant) {
        let Some(lane) = self.lanes.get_mut(partition) else { return };
        let (client, in_flight) = (&self.client, &mut self.in_flight);
        lane.expire(now, |batch| {
            if let Progress::Sent(call) = batch.progress {
                client.link.forget(call);
                *in_flight -= 1;
            }
        });
        lane.has_deadline_timer = false;
        set_deadline_timer(&mut self.timers, lane, partition);
    }

    fn serve_waiting(&mut self) {
        // Each is looked at once: one that still has no room puts itself at the back.
        for _ in 0..self.waiting.len() {
            if self.in_flight >= self.options.in_flight_max {
                return;
            }
            let Some(partition) = self.waiting.pop_front() else { return };
            if let Some(lane) = self.lanes.get_mut(&partition) {
                lane.is_waiting = false;
            }
            self.advance(&partition);
        }
    }

    /// Sends what a lane has to send, as far as there is room in flight.
    fn advance(&mut self, partition: &Arc<str>) {
        let now = Instant::now();
        let Some(lane) = self.lanes.get_mut(partition) else { return };
        if let Some(at) = lane.start_pause(now) {
            self.timers.insert((at, Timer::Advance, Arc::clone(partition)));
        }
        if lane.is_ready_to_repeat(now) {
            self.repeat(partition);
        }
        self.send_batches(partition, now);
    }

    /// Sends failed batches again. The bound on what is in flight gives way here: their order matters more.
    fn repeat(&mut self, partition: &Arc<str>) {
        let Some(lane) = self.lanes.get_mut(partition) else { return };
        let mut refused = None;
        for batch in lane.repeat(self.options.producer_id, || next_epoch(&mut self.epoch)) {
            match send(&self.client, &self.commands, partition, batch) {
                Ok(()) => self.in_flight += 1,
                Err(error) => refused = Some(error),
            }
        }
        if let Some(error) = refused {
            self.fail_lane(partition, &error);
        }
    }

    fn send_batches(&mut self, partition: &Arc<str>, now: Instant) {
        let is_flushing = self.is_draining || !self.flushes.is_empty();
        let Some(lane) = self.lanes.get_mut(partition) else { return };
        while lane.is_ready(now, &self.options, is_flushing) {
            if self.in_flight >= self.options.in_flight_max {
                if !lane.is_waiting {
                    lane.is_waiting = true;
                    self.waiting.push_back(Arc::clone(partition));
                }
                return;
            }
            self.next_batch += 1;
            let closed = lane.close_batch(self.next_batch, partition, &self.options, || next_epoch(&mut self.epoch));
            let Some(batch) = closed else { return };
            let number = batch.number;
            match send(&self.client, &self.commands, partition, batch) {
                Ok(()) => self.in_flight += 1,
                Err(error) => drop(lane.answer(number, Err(error), 0)),
            }
            set_deadline_timer(&mut self.timers, lane, partition);
        }
    }

    fn fail_lane(&mut self, partition: &Arc<str>, error: &Error) {
        if let Some(lane) = self.lanes.remove(partition) {
            self.in_flight -= lane.fail_all(error);
        }
        self.epoch = self.epoch.saturating_add(1);
    }

    fn finish_flushes(&mut self) {
        let lanes = &self.lanes;
        for flush in &mut self.flushes {
            flush.lanes.retain(|(partition, entries)| lanes.get(partition).is_some_and(|lane| lane.answered() < *entries));
        }
        let (done, open) = std::mem::take(&mut self.flushes).into_iter().partition(|flush: &Flush| flush.lanes.is_empty());
        self.flushes = open;
        let done: Vec<Flush> = done;
        for flush in done {
            // Nobody need wait for it any more.
            let _ = flush.done.send(());
        }
    }
}

fn next_epoch(epoch: &mut u32) -> u32 {
    *epoch = epoch.saturating_add(1);
    *epoch
}

fn set_deadline_timer(timers: &mut BTreeSet<(Instant, Timer, Arc<str>)>, lane: &mut Lane, partition: &Arc<str>) {
    if lane.has_deadline_timer {
        return;
    }
    if let Some(deadline) = lane.deadline() {
        timers.insert((deadline, Timer::Expire, Arc::clone(partition)));
        lane.has_deadline_timer = true;
    }
}

/// Gives a batch to the link, which sends it as often as it needs to.
fn send(client: &Client, commands: &mpsc::UnboundedSender<Command>, partition: &Arc<str>, batch: &mut Batch) -> Result<()> {
    let (number, partition, commands) = (batch.number, Arc::clone(partition), commands.clone());
    let answer = Box::new(move |frame: Result<_>, sends| {
        let result = frame.and_then(|frame| decode_reply::<PushRequest>(&frame));
        // The task ends only when nothing waits for an answer.
        let _ = commands.send(Command::Answer { partition, batch: number, result, sends });
    });
    batch.progress = Progress::Sent(client.link.call_later(&batch.request, true, answer)?);
    Ok(())
}
