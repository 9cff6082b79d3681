//! A connection that reads for a group, checks what comes, and acknowledges it.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use anyhow::{Result, bail};
use fanlog::model::{AckItem, AckReply, AckRequest, AckTarget, AckVerb, BatchSlice, Claim, PopReply, PopRequest, PopSource};
use fanlog::protocol::{Credit, Delivery, Frame, Operation, Pop, Subscribe, Wire, encode_call};
use fanlog::record::{RecordHeader, StoredBatch};

use super::super::exit::ServerFault;
use super::check::{GroupWatch, Layout, Noted, Order};
use super::drive::{Actor, Next, Run, Tally};
use super::link::{Link, refuse_error};
use super::stock::{partition_number, put_correlation_id};

/// How long the server may hold a pop while nothing is there.
const POP_WAIT_MS: u32 = 1000;
/// The correlation id of a subscription.
const SUBSCRIPTION: u32 = 1;
/// Messages that a subscription may be ahead of its reader.
const CREDIT_MESSAGES: u32 = 1 << 20;

/// How messages come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// One request for each answer
    Pop,
    /// The server sends as messages come
    Subscription,
}

/// What is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum AckMode {
    /// The last message of what came together, and with it all before
    Last,
    /// Each message by a request of its own
    Each,
    /// Nothing: the server moves the cursor as it hands out (at most once)
    Auto,
}

/// What a latency is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clocking {
    /// From a pop to its answer, or from an acknowledgement to its own where each message has one.
    Requests,
    /// From the time that a message was pushed, or should have been.
    Messages,
}

/// How a connection reads.
#[derive(Debug, Clone)]
pub struct ConsumePlan {
    /// The queue.
    pub queue: String,
    /// How messages come.
    pub way: Way,
    /// What is acknowledged.
    pub ack: AckMode,
    /// Leave batches as they are, and check their headers only.
    pub is_raw: bool,
    /// Whether the group takes every message and all of them come here, so that offsets have no gaps.
    pub is_dense: bool,
    /// Bytes of an answer at most.
    pub bytes_max: u32,
    /// Messages of an answer at most.
    pub messages_max: u32,
    /// Partitions of an answer at most.
    pub partitions_max: u32,
    /// Pops that wait for their answer at most.
    pub in_flight: usize,
    /// Bytes of a payload.
    pub size: usize,
    /// What a latency is.
    pub clocking: Clocking,
}

/// A connection that reads for a group.
pub struct Consumer {
    link: Link,
    plan: ConsumePlan,
    run: Arc<Run>,
    group: Arc<GroupWatch>,
    pop_frame: Vec<u8>,
    /// When each request without an answer was sent.
    pops: HashMap<u32, Instant>,
    acks: HashMap<u32, Instant>,
    next_id: u32,
    is_subscribed: bool,
    /// With automatic acknowledgements a group's deliveries come over its connections in no common order.
    own_order: Option<Order>,
    /// The offset after the last one of each partition, where batches are not opened.
    next_offsets: HashMap<u32, u64>,
}

impl Consumer {
    /// A connection that has read nothing.
    pub fn new(link: Link, plan: ConsumePlan, run: &Arc<Run>, group: &Arc<GroupWatch>, layout: Layout) -> Self {
        let request = pop_request(&plan, &group.name);
        let pop_frame = Vec::from(encode_call(&Pop { request, wait_ms: POP_WAIT_MS }, 0).into_bytes());
        let own_order = (plan.ack == AckMode::Auto).then(|| Order::new(layout));
        Self {
            link,
            plan,
            run: Arc::clone(run),
            group: Arc::clone(group),
            pop_frame,
            pops: HashMap::new(),
            acks: HashMap::new(),
            next_id: SUBSCRIPTION,
            is_subscribed: false,
            own_order,
            next_offsets: HashMap::new(),
        }
    }

    fn next_id(&mut self) -> u32 {
        self.next_id = self.next_id.checked_add(1).unwrap_or(SUBSCRIPTION + 1);
        self.next_id
    }

    fn take_reply(&mut self, reply: PopReply, tally: &mut Tally) -> Result<u32> {
        let mut messages = 0;
        for claim in reply.claims {
            let last = self.take_claim(&claim, tally, &mut messages)?;
            if let Some(last) = last {
                self.acknowledge(&claim, &reply.lease_id, last)?;
            }
        }
        Ok(messages)
    }

    /// Checks the messages of a claim; the offset of the last one.
    fn take_claim(&mut self, claim: &Claim, tally: &mut Tally, messages: &mut u32) -> Result<Option<u64>> {
        let now = Instant::now();
        let is_measured = now >= self.run.measure_from;
        let (mut ours, mut last) = (0u64, None);
        if let Some(lost) = claim.lost {
            bail!(ServerFault(format!("the server lost offsets {} to {} before they were read", lost.first, lost.last)));
        }
        let partition = partition_number(&claim.partition);
        if self.plan.is_raw {
            for batch in &claim.batches {
                let (count, end) = self.take_raw(claim, batch)?;
                ours += count;
                *messages += u32::try_from(count).unwrap_or(u32::MAX);
                last = Some(end);
            }
        } else {
            let (now_ns, measured_from) = (self.run.nanoseconds(now), self.run.nanoseconds(self.run.measure_from));
            let mut ledger = self.group.ledger.lock().unwrap_or_else(PoisonError::into_inner);
            for batch in &claim.batches {
                each_message(batch, |offset, payload| {
                    last = Some(offset);
                    *messages += 1;
                    let noted = ledger.note(partition, payload, self.own_order.as_mut());
                    ours += u64::from(noted != Noted::Foreign);
                    if let Noted::Ours(stamp) = noted
                        && self.plan.clocking == Clocking::Messages
                        && stamp.sent_ns >= measured_from
                    {
                        tally.latency.saturating_record(now_ns.saturating_sub(stamp.sent_ns).max(1));
                    }
                })?;
            }
        }
        self.group.receive(ours, now);
        if is_measured {
            tally.messages += ours;
            tally.bytes += ours * self.plan.size as u64;
            tally.stored_bytes += claim.batches.iter().map(stored_bytes).sum::<u64>();
            tally.last = Some(now);
        }
        Ok(last)
    }

    /// Checks the header and the place of a batch; its messages and its last offset.
    fn take_raw(&mut self, claim: &Claim, batch: &BatchSlice) -> Result<(u64, u64)> {
        let (first, last, count) = match batch {
            BatchSlice::Whole(record) => match RecordHeader::decode(record) {
                Ok((header, Some(batch), _)) if header.length as usize == record.len() => {
                    (batch.base_offset, batch.last_offset(), u64::from(batch.count))
                }
                Ok(_) => bail!(ServerFault("the server sent a batch of another length than its header says".to_owned())),
                Err(error) => bail!(ServerFault(format!("the server sent a batch that does not decode: {error}"))),
            },
            BatchSlice::Messages(messages) => match (messages.first(), messages.last()) {
                (Some(first), Some(last)) => (first.offset, last.offset, messages.len() as u64),
                _ => bail!(ServerFault("the server sent a batch without messages".to_owned())),
            },
        };
        let next = self.next_offsets.entry(claim.partition_id).or_insert(first);
        if first < *next || (self.plan.is_dense && first != *next) {
            let text = format!("partition {:?}: offset {first} came where {next} was next", claim.partition);
            bail!(ServerFault(text));
        }
        *next = last + 1;
        Ok((count, last))
    }

    fn acknowledge(&mut self, claim: &Claim, lease_id: &str, last: u64) -> Result<()> {
        match self.plan.ack {
            AckMode::Auto => Ok(()),
            AckMode::Last => {
                self.send_ack(claim, lease_id, last);
                Ok(())
            }
            AckMode::Each => {
                for batch in &claim.batches {
                    let mut offsets = Vec::new();
                    each_message(batch, |offset, _| offsets.push(offset))?;
                    offsets.into_iter().for_each(|offset| self.send_ack(claim, lease_id, offset));
                }
                Ok(())
            }
        }
    }

    fn send_ack(&mut self, claim: &Claim, lease_id: &str, offset: u64) {
        let item = AckItem { target: AckTarget::Offset(offset), verb: AckVerb::Completed, reason: String::new(), delay_ms: 0 };
        let request = AckRequest {
            queue: claim.queue.clone(),
            partition_id: claim.partition_id,
            group: Some(self.group.name.clone()),
            lease_id: lease_id.to_owned(),
            items: vec![item],
        };
        let id = self.next_id();
        self.acks.insert(id, Instant::now());
        for piece in encode_call(&request, id).into_pieces() {
            self.link.queue(&piece);
        }
    }

    fn take_ack(&mut self, frame: &Frame, tally: &mut Tally) -> Result<()> {
        let Some(sent) = self.acks.remove(&frame.correlation_id) else {
            bail!(ServerFault("the server answered an acknowledgement that was not sent".to_owned()));
        };
        let now = Instant::now();
        let reply = AckReply::from_body(&frame.body)?;
        if !matches!(reply.outcomes.as_slice(), [outcome] if outcome.refused.is_none()) {
            self.group.ledger.lock().unwrap_or_else(PoisonError::into_inner).note_refused();
        }
        if self.plan.ack == AckMode::Each && sent >= self.run.measure_from {
            tally.requests += 1;
            if self.plan.clocking == Clocking::Requests {
                tally.record(now.saturating_duration_since(sent));
            }
            tally.last = Some(now);
        }
        Ok(())
    }

    fn subscribe(&mut self) {
        self.is_subscribed = true;
        let request = pop_request(&self.plan, &self.group.name);
        let subscribe = Subscribe { request, credit_messages: CREDIT_MESSAGES, credit_bytes: credit_bytes(&self.plan) };
        self.link.queue(&encode_call(&subscribe, SUBSCRIPTION).into_bytes());
    }

    fn take_delivery(&mut self, frame: &Frame, tally: &mut Tally) -> Result<()> {
        let Delivery(reply) = Delivery::from_body(&frame.body)?;
        let messages = self.take_reply(reply, tally)?;
        if Instant::now() >= self.run.measure_from && self.plan.ack != AckMode::Each {
            tally.requests += 1;
        }
        let bytes = u32::try_from(frame.body.len()).unwrap_or(u32::MAX);
        let credit = Credit { subscription: SUBSCRIPTION, messages, bytes };
        let id = self.next_id();
        self.link.queue(&encode_call(&credit, id).into_bytes());
        Ok(())
    }
}

impl Actor for Consumer {
    /// What does not come is lost, and the report says so.
    const ENDS_IN_SILENCE: bool = true;

    fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    fn take(&mut self, frame: Frame, tally: &mut Tally) -> Result<bool> {
        refuse_error(&frame)?;
        match Operation::from_number(frame.operation) {
            Some(Operation::Pop) => {
                let Some(sent) = self.pops.remove(&frame.correlation_id) else {
                    bail!(ServerFault("the server answered a pop that was not sent".to_owned()));
                };
                let now = Instant::now();
                let reply = PopReply::from_body(&frame.body)?;
                // Where each message has its own acknowledgement, those are what is counted.
                if !reply.claims.is_empty() && sent >= self.run.measure_from && self.plan.ack != AckMode::Each {
                    tally.requests += 1;
                    if self.plan.clocking == Clocking::Requests {
                        tally.record(now.saturating_duration_since(sent));
                    }
                }
                Ok(self.take_reply(reply, tally)? > 0)
            }
            Some(Operation::Ack) => self.take_ack(&frame, tally).map(|()| true),
            Some(Operation::Delivery) => self.take_delivery(&frame, tally).map(|()| true),
            Some(Operation::Subscribe | Operation::Heartbeat) => Ok(false),
            Some(Operation::LeaseEnded) => bail!(ServerFault("a lease ended while its messages were read".to_owned())),
            _ => bail!(ServerFault(format!("the server sent operation {:#06x} out of turn", frame.operation))),
        }
    }

    fn is_owed(&self) -> bool {
        self.group.expected.load(Relaxed) != u64::MAX
    }

    fn advance(&mut self, now: Instant, _: &mut Tally) -> Result<Next> {
        let is_complete = self.group.is_complete();
        if !is_complete && now >= self.run.start {
            match self.plan.way {
                Way::Pop => {
                    while self.pops.len() < self.plan.in_flight {
                        let id = self.next_id();
                        put_correlation_id(&mut self.pop_frame, id);
                        self.link.queue(&self.pop_frame);
                        self.pops.insert(id, Instant::now());
                    }
                }
                Way::Subscription if !self.is_subscribed => self.subscribe(),
                Way::Subscription => (),
            }
        }
        self.link.flush()?;
        // A pop that is left over finds nothing, and what it would find is nobody's any more.
        Ok(if is_complete && self.acks.is_empty() && self.link.is_clear() { Next::Done } else { Next::Wait })
    }
}

fn pop_request(plan: &ConsumePlan, group: &str) -> PopRequest {
    PopRequest {
        source: PopSource::Queue(plan.queue.clone()),
        group: Some(group.to_owned()),
        messages_max: plan.messages_max,
        bytes_max: plan.bytes_max,
        partitions_max: plan.partitions_max,
        lease_ms: None,
        auto_ack: plan.ack == AckMode::Auto,
        start: None,
        shared: false,
    }
}

/// Two deliveries: one on its way while the other is read.
fn credit_bytes(plan: &ConsumePlan) -> u32 {
    plan.bytes_max.saturating_mul(2)
}

fn stored_bytes(batch: &BatchSlice) -> u64 {
    match batch {
        BatchSlice::Whole(record) => record.len() as u64,
        BatchSlice::Messages(_) => 0,
    }
}

/// Goes through the messages of a batch; what a disk or a network damaged is an error.
pub fn each_message(batch: &BatchSlice, mut each: impl FnMut(u64, &[u8])) -> Result<()> {
    match batch {
        BatchSlice::Messages(messages) => messages.iter().for_each(|message| each(message.offset, &message.payload)),
        BatchSlice::Whole(record) => {
            let fault = |error| ServerFault(format!("the server sent a batch that does not decode: {error}"));
            let open = StoredBatch::parse(record.clone()).and_then(|stored| stored.open()).map_err(fault)?;
            for (entry, offset) in open.entries().map_err(fault)?.zip(open.batch().base_offset..) {
                let entry = entry.map_err(|error| fault(error.into()))?;
                each(offset, &open.body(&entry));
            }
        }
    }
    Ok(())
}
