//! One claim: which of its messages are settled, and what may be told to the server now. Bookkeeping without I/O.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use crate::model::{AckItem, AckOutcome, AckReply, AckTarget, AckVerb, ErrorCode};
use crate::record::Offset;

use super::super::admin::milliseconds;
use super::super::{Error, ErrorKind, Result};
use super::delivery::{ClaimInfo, Verdict};

/// Messages that one acknowledgement request may name.
const ITEMS_MAX: usize = 1_000;

type Reply = Option<oneshot::Sender<Result<AckOutcome>>>;

/// The state of a claim.
#[derive(Debug)]
pub struct Claim {
    pub info: Arc<ClaimInfo>,
    /// Each message is settled by itself (shared mode).
    is_shared: bool,
    /// Messages of which nothing was told to the server, in order of offset.
    slots: VecDeque<Slot>,
    /// Messages that the application holds, or that wait for it.
    open: usize,
    /// An acknowledgement is under way: who waits for each of its items.
    under_way: Option<Vec<Reply>>,
    /// The server knows that the lease of this claim is over.
    is_released: bool,
    /// A message was given up while closing.
    has_abandoned: bool,
}

#[derive(Debug)]
struct Slot {
    offset: Offset,
    settled: Option<(Verdict, Reply)>,
}

impl Claim {
    /// A claim whose messages have just come.
    pub fn new(info: Arc<ClaimInfo>, is_shared: bool, offsets: impl Iterator<Item = Offset>) -> Self {
        let slots: VecDeque<Slot> = offsets.map(|offset| Slot { offset, settled: None }).collect();
        let open = slots.len();
        // A claim without messages only tells of losses: nothing is held by it.
        let is_released = slots.is_empty();
        Self { info, is_shared, slots, open, under_way: None, is_released, has_abandoned: false }
    }

    /// Whether nothing is held, waiting or under way.
    pub fn is_done(&self) -> bool {
        self.open == 0 && self.under_way.is_none() && (self.is_lost() || self.has_abandoned || self.slots.is_empty())
    }

    /// Whether the server still holds the claim for this consumer, as far as is known.
    pub fn is_held(&self) -> bool {
        !self.is_released && !self.is_lost() && !self.info.lease_id.is_empty()
    }

    /// Whether the lease is known to be over.
    pub fn is_lost(&self) -> bool {
        self.info.is_lost.load(Ordering::Relaxed)
    }

    /// Notes a verdict.
    pub fn settle(&mut self, offset: Offset, verdict: Verdict, reply: Reply) {
        let Ok(index) = self.slots.binary_search_by_key(&offset, |slot| slot.offset) else {
            // Its slot went when the lease was lost.
            self.open = self.open.saturating_sub(1);
            return answer(reply, Err(lost()));
        };
        let Some(slot) = self.slots.get_mut(index) else { return };
        if slot.settled.is_none() {
            self.open = self.open.saturating_sub(1);
            slot.settled = Some((verdict, reply));
        }
        if self.is_lost() {
            self.lose();
        } else if self.info.lease_id.is_empty() {
            self.settle_without_lease(index);
        }
    }

    /// Auto-ack: the server counted the message as done when it sent it.
    fn settle_without_lease(&mut self, index: usize) {
        if let Some(Slot { settled: Some((_, reply)), .. }) = self.slots.remove(index) {
            answer(reply, Ok(AckOutcome { refused: None, is_noop: true, is_dead_letter: false }));
        }
    }

    /// Notes that a message was given up while closing: nothing is said of it.
    pub fn abandon(&mut self, offset: Offset) {
        self.open = self.open.saturating_sub(1);
        self.has_abandoned = true;
        if self.is_shared
            && let Ok(index) = self.slots.binary_search_by_key(&offset, |slot| slot.offset)
        {
            self.slots.remove(index);
        }
    }

    /// The lease is over: whoever waits hears of it, and what is still held will.
    pub fn lose(&mut self) {
        self.info.is_lost.store(true, Ordering::Relaxed);
        for slot in std::mem::take(&mut self.slots) {
            if let Some((_, reply)) = slot.settled {
                answer(reply, Err(lost()));
            }
        }
    }

    /// What may be told to the server now, if nothing is under way.
    pub fn take_items(&mut self) -> Option<Vec<AckItem>> {
        if self.under_way.is_some() || self.is_lost() || self.info.lease_id.is_empty() {
            return None;
        }
        let (items, replies) = if self.is_shared { self.take_settled() } else { self.take_settled_prefix() };
        if items.is_empty() {
            return None;
        }
        self.under_way = Some(replies);
        Some(items)
    }

    /// Ordered mode: the settled messages at the front, up to the first one that is not completed, since what comes after that is
    /// delivered again.
    fn take_settled_prefix(&mut self) -> (Vec<AckItem>, Vec<Reply>) {
        let (mut items, mut replies) = (Vec::new(), Vec::new());
        while items.len() < ITEMS_MAX && self.slots.front().is_some_and(|slot| slot.settled.is_some()) {
            let Some(Slot { offset, settled: Some((verdict, reply)) }) = self.slots.pop_front() else { break };
            let is_completed = verdict.verb == AckVerb::Completed;
            items.push(item(offset, verdict));
            replies.push(reply);
            if !is_completed {
                break;
            }
        }
        (items, replies)
    }

    /// Shared mode: any settled messages.
    fn take_settled(&mut self) -> (Vec<AckItem>, Vec<Reply>) {
        let (mut items, mut replies) = (Vec::new(), Vec::new());
        self.slots.retain_mut(|slot| {
            if items.len() == ITEMS_MAX {
                return true;
            }
            let Some((verdict, reply)) = slot.settled.take() else { return true };
            items.push(item(slot.offset, verdict));
            replies.push(reply);
            false
        });
        (items, replies)
    }

    /// Notes the server's answer.
    pub fn answer(&mut self, result: Result<AckReply>) {
        let Some(waiting) = self.under_way.take() else { return };
        match result {
            Ok(reply) => {
                let is_refused =
                    |outcome: &AckOutcome| outcome.refused.as_ref().is_some_and(|error| error.code == ErrorCode::LeaseLost);
                let is_lost = reply.outcomes.iter().any(is_refused);
                self.is_released = reply.is_lease_released;
                for (index, waiting) in waiting.into_iter().enumerate() {
                    answer(waiting, outcome(reply.outcomes.get(index)));
                }
                // Released with messages left: a failed or retried one came first, and they will be delivered again.
                if is_lost || (self.is_released && (self.open > 0 || !self.slots.is_empty())) {
                    self.lose();
                }
            }
            Err(error) => {
                waiting.into_iter().for_each(|reply| answer(reply, Err(error.clone())));
                self.lose();
            }
        }
    }
}

fn item(offset: Offset, verdict: Verdict) -> AckItem {
    AckItem {
        target: AckTarget::Offset(offset),
        verb: verdict.verb,
        reason: verdict.reason,
        delay_ms: u64::from(milliseconds(verdict.delay)),
    }
}

fn outcome(outcome: Option<&AckOutcome>) -> Result<AckOutcome> {
    match outcome {
        Some(AckOutcome { refused: Some(error), .. }) => Err(error.clone().into()),
        Some(outcome) => Ok(outcome.clone()),
        None => Err(Error::new(ErrorKind::Protocol, "server answered for fewer messages than were named")),
    }
}

fn lost() -> Error {
    Error::lease_lost("the lease is over; the message will be delivered again")
}

/// Nobody need be waiting.
fn answer(reply: Reply, result: Result<AckOutcome>) {
    if let Some(reply) = reply {
        let _ = reply.send(result);
    }
}
