//! A connection that pushes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use fanlog::model::{Promise, PushReply, PushResult, PushResults};
use fanlog::protocol::{Frame, Wire};

use super::super::exit::ServerFault;
use super::check::Pushed;
use super::drive::{Actor, Next, Run, Tally};
use super::link::{Link, refuse_error};
use super::payload::Stamp;
use super::stock::Stock;

/// How a connection pushes.
#[derive(Debug, Clone)]
pub struct PushPlan {
    /// Messages of a push.
    pub batch: u32,
    /// Bytes of a payload.
    pub size: usize,
    /// Pushes that wait for their answer at most.
    pub in_flight: usize,
    /// Messages to push after the warm-up; `None` pushes until the run's end.
    pub count: Option<u64>,
    /// Time between two pushes of this connection; `None` pushes as fast as the answers come.
    pub interval: Option<Duration>,
    /// Time to the first push, so that connections with a fixed rate take turns.
    pub delay: Duration,
    /// What answers must promise.
    pub promise: Promise,
}

/// A push without an answer.
#[derive(Debug, Clone, Copy)]
struct Sent {
    correlation_id: u32,
    /// When it was sent, or should have been.
    due: Instant,
    /// Its place in the turn of partitions.
    turn: usize,
    first: u32,
    count: u32,
}

/// A connection that pushes.
pub struct Pusher {
    link: Link,
    stock: Stock,
    plan: PushPlan,
    run: Arc<Run>,
    connection: u16,
    partitions: Vec<u32>,
    /// The offset of the first message of this run in each of them.
    first_offsets: Vec<Option<u64>>,
    in_flight: VecDeque<Sent>,
    pushes: u64,
    next_sequence: u32,
    left: Option<u64>,
    next_due: Instant,
    pushed: Pushed,
}

impl Pusher {
    /// A connection that has pushed nothing.
    pub fn new(link: Link, stock: Stock, plan: PushPlan, run: &Arc<Run>, connection: u16, partitions: Vec<u32>) -> Self {
        let left = plan.count;
        Self {
            link,
            stock,
            run: Arc::clone(run),
            connection,
            first_offsets: vec![None; partitions.len()],
            partitions,
            in_flight: VecDeque::new(),
            pushes: 0,
            next_sequence: 0,
            left,
            next_due: run.start + plan.delay,
            plan,
            pushed: Pushed::default(),
        }
    }

    /// What was pushed and answered.
    pub fn pushed(&self) -> &Pushed {
        &self.pushed
    }

    /// The connection's number.
    pub fn connection(&self) -> u16 {
        self.connection
    }

    /// The offset of the first message in each partition that was pushed to.
    pub fn first_offsets(&self) -> impl Iterator<Item = (u32, u64)> {
        self.partitions.iter().zip(&self.first_offsets).filter_map(|(partition, offset)| Some((*partition, (*offset)?)))
    }

    /// How many messages the next push has; `None` if there is none. Those of the warm-up do not count.
    fn next_count(&self, due: Instant) -> Option<u32> {
        if self.run.end.is_some_and(|end| due >= end) {
            return None;
        }
        let batch = self.plan.batch;
        match self.left {
            Some(left) if due >= self.run.measure_from => {
                let count = u32::try_from(left).unwrap_or(u32::MAX).min(batch);
                (count > 0).then_some(count)
            }
            _ => Some(batch),
        }
    }

    fn push(&mut self, due: Instant, count: u32) -> Result<()> {
        let turn = (self.pushes % self.partitions.len() as u64) as usize;
        self.pushes += 1;
        let correlation_id = (self.pushes as u32).max(1);
        let first = self.next_sequence;
        let Some(next) = first.checked_add(count) else { bail!("a connection pushes at most {} messages", u32::MAX) };
        self.next_sequence = next;
        let stamp =
            Stamp { run: self.run.number, connection: self.connection, sequence: first, sent_ns: self.run.nanoseconds(due) };
        let frame = self.stock.frame(correlation_id, self.partitions[turn], stamp, count as usize)?;
        self.link.send(frame)?;
        self.in_flight.push_back(Sent { correlation_id, due, turn, first, count });
        if let Some(left) = &mut self.left
            && due >= self.run.measure_from
        {
            *left = left.saturating_sub(count.into());
        }
        Ok(())
    }

    fn note_results(&mut self, sent: &Sent, reply: &PushReply) -> Result<()> {
        if reply.promise != self.plan.promise {
            bail!(ServerFault(format!("a push was answered as {:?}, not {:?}", reply.promise, self.plan.promise)));
        }
        if reply.results.len() != sent.count as usize {
            let text = format!("a push of {} messages was answered for {}", sent.count, reply.results.len());
            bail!(ServerFault(text));
        }
        let base = match &reply.results {
            PushResults::Range { base, .. } => Some(*base),
            PushResults::Each(results) => {
                let mut base = None;
                for (result, sequence) in results.iter().zip(sent.first..) {
                    match result {
                        PushResult::Stored(offset) => {
                            base.get_or_insert(*offset);
                        }
                        PushResult::Dropped => {
                            self.pushed.dropped.add(sequence);
                        }
                        PushResult::Duplicate(offset) => {
                            bail!(ServerFault(format!("a new message was taken for the stored one at offset {offset}")));
                        }
                    }
                }
                base
            }
        };
        if let Some(base) = base {
            let first = self.first_offsets[sent.turn].get_or_insert(base);
            *first = base.min(*first);
        }
        Ok(())
    }
}

impl Actor for Pusher {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    fn take(&mut self, frame: Frame, tally: &mut Tally) -> Result<bool> {
        let now = Instant::now();
        refuse_error(&frame)?;
        let Some(index) = self.in_flight.iter().position(|sent| sent.correlation_id == frame.correlation_id) else {
            bail!(ServerFault("the server answered a push that was not sent, or was answered before".to_owned()));
        };
        let Some(sent) = self.in_flight.remove(index) else { return Ok(false) };
        let reply = PushReply::from_body(&frame.body)?;
        self.note_results(&sent, &reply)?;
        self.pushed.count += sent.count;
        if sent.due >= self.run.measure_from {
            tally.record(now.saturating_duration_since(sent.due));
            tally.messages += u64::from(sent.count);
            tally.bytes += u64::from(sent.count) * self.plan.size as u64;
            tally.requests += 1;
            tally.last = Some(now);
        }
        Ok(true)
    }

    fn advance(&mut self, _: Instant, _: &mut Tally) -> Result<Next> {
        loop {
            if self.in_flight.len() >= self.plan.in_flight || !self.link.is_clear() {
                return Ok(Next::Wait);
            }
            let now = Instant::now();
            let due = if self.plan.interval.is_some() { self.next_due } else { now };
            let Some(count) = self.next_count(due) else {
                return Ok(if self.in_flight.is_empty() { Next::Done } else { Next::Wait });
            };
            if due > now {
                return Ok(Next::At(due));
            }
            self.push(due, count)?;
            if let Some(interval) = self.plan.interval {
                self.next_due += interval;
            }
        }
    }
}
