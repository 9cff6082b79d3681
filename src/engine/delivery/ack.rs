//! Acknowledgement: the vocabulary of both policies, and the part that they share.

use crate::model::{AckOutcome, AckVerb, Error, ErrorCode, Now};
use crate::record::Offset;

use super::notes::ERROR_BYTES_MAX;
use super::state::{Delivery, Mode};
use super::token::LeaseToken;

/// What is said of one message, its offset known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict<'a> {
    /// The message.
    pub offset: Offset,
    /// What is said.
    pub verb: AckVerb,
    /// Why; kept with the message, at most [`ERROR_BYTES_MAX`] bytes.
    pub reason: &'a str,
    /// With `Retry`: milliseconds before it is handed out again.
    pub delay_ms: u64,
}

/// When a message has failed often enough, and what becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckLimits {
    /// The charged failure with this number is the last; 0 is never. A queue's `retryLimit` of 3 allows three retries, so that the
    /// fourth failure is the last (as in Queen): 4 here. A group's delivery limit of 3 is 3.
    pub failures_max: u32,
    /// Whether such a message becomes a dead letter; otherwise it is dropped.
    pub is_dead_letter: bool,
}

/// A message to copy to the dead letters, in the same commit as the change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterStep {
    /// The message.
    pub offset: Offset,
    /// Why: what this acknowledgement said, or else the last reason known. At most [`ERROR_BYTES_MAX`] bytes.
    pub reason: String,
    /// Failures charged to it.
    pub failures: u32,
    /// How often it was handed out.
    pub delivery_count: u32,
}

/// What became of an acknowledgement. It is staged; it holds once [`Delivery::visible`] has reached `version`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckDecision {
    /// One for each item, in order.
    pub outcomes: Vec<AckOutcome>,
    /// The next offset wanted now.
    pub next: Offset,
    /// Whether the lease that the call names is over, by this call or before it; without a name, whether the call ended one.
    pub is_lease_released: bool,
    /// Messages to copy to the dead letters.
    pub dead_letters: Vec<DeadLetterStep>,
    /// Messages over the limit that are gone without a copy.
    pub dropped: Vec<Offset>,
    /// Messages that the group is done with by this call: acknowledged, dead or dropped.
    pub consumed: u64,
    /// When messages may be claimable that were not before (steady clock); `None` if the call freed nothing.
    pub claimable_at_us: Option<u64>,
    /// The reply may go out when the visible version is at least this.
    pub version: u64,
}

impl Delivery {
    /// Decides an acknowledgement of messages below `end` (the partition's end, exclusive), under a lease or (`None`) unfenced.
    ///
    /// Nothing here is an error of the call: each item has its own outcome, with `LeaseLost` or `NotLeased` where it is refused.
    pub fn ack(
        &mut self,
        token: Option<LeaseToken>,
        verdicts: &[Verdict<'_>],
        limits: AckLimits,
        end: Offset,
        now: Now,
    ) -> AckDecision {
        self.expire(now);
        let mut decision = AckDecision {
            outcomes: vec![AckOutcome { refused: None, is_noop: false, is_dead_letter: false }; verdicts.len()],
            next: self.staged.next,
            is_lease_released: false,
            dead_letters: Vec::new(),
            dropped: Vec::new(),
            consumed: 0,
            claimable_at_us: None,
            version: self.decided,
        };
        if let Some(token) = token
            && let Some(dead) = self.recent.find(token, verdicts)
        {
            for (outcome, verdict) in decision.outcomes.iter_mut().zip(verdicts) {
                outcome.is_noop = true;
                outcome.is_dead_letter = dead.contains(&verdict.offset);
            }
            decision.is_lease_released = !self.leases.contains_key(&token);
            return decision;
        }
        let plan = match self.mode {
            Mode::Ordered => self.ack_ordered(token, verdicts, limits, end, now, &mut decision),
            Mode::Shared => self.ack_shared(token, verdicts, limits, end, now, &mut decision),
        };
        if decision.consumed > 0 {
            self.staged.total_consumed = self.staged.total_consumed.saturating_add(decision.consumed);
            self.staged.last_consumed_at_us = now.wall_us;
        }
        let dead: Vec<Offset> = decision.dead_letters.iter().map(|step| step.offset).collect();
        for step in &plan {
            let outcome = &mut decision.outcomes[step.index];
            outcome.is_dead_letter = outcome.refused.is_none() && dead.contains(&step.offset);
        }
        if let Some(token) = token
            && !plan.is_empty()
            && decision.outcomes.iter().all(|outcome| outcome.refused.is_none())
        {
            self.recent.remember(token, verdicts, dead, now);
        }
        decision.is_lease_released |= token.is_some_and(|token| !self.leases.contains_key(&token));
        decision.next = self.staged.next;
        decision.version = self.decided;
        decision
    }

    /// Answers the items that can have no effect, and gives the others by offset, the strongest first.
    pub(super) fn plan(
        &self,
        verdicts: &[Verdict<'_>],
        decision: &mut AckDecision,
        admit: impl Fn(Offset) -> Result<(), Error>,
    ) -> Vec<Step> {
        let mut plan = Vec::with_capacity(verdicts.len());
        for (index, (verdict, outcome)) in verdicts.iter().zip(&mut decision.outcomes).enumerate() {
            let offset = verdict.offset;
            let is_done = self.staged.is_done(offset);
            if is_done && verdict.verb == AckVerb::Completed {
                outcome.is_noop = true;
            } else {
                match admit(offset) {
                    Ok(()) if is_done => outcome.refused = Some(already_committed(offset)),
                    Ok(()) => plan.push(Step { offset, verb: verdict.verb, index }),
                    Err(error) => outcome.refused = Some(error),
                }
            }
        }
        plan.sort_unstable_by_key(|step| (step.offset, rank(step.verb), step.index));
        plan
    }

    /// Charges a failure; returns whether it was the last one allowed.
    pub(super) fn charge(&mut self, verdict: &Verdict<'_>, limits: AckLimits) -> bool {
        let failures = self.staged.notes.hand_back(verdict.offset, verdict.reason, true);
        limits.failures_max > 0 && failures >= limits.failures_max
    }

    /// The dead letter of a message, taken before the cursor forgets what it knows of it.
    pub(super) fn dead_letter(&self, verdict: &Verdict<'_>) -> DeadLetterStep {
        let Verdict { offset, reason, .. } = *verdict;
        let reason = if reason.is_empty() { self.staged.last_error(offset) } else { reason };
        DeadLetterStep {
            offset,
            reason: reason[..reason.floor_char_boundary(ERROR_BYTES_MAX)].to_owned(),
            failures: self.staged.failures(offset),
            delivery_count: self.staged.delivery_count(offset),
        }
    }
}

/// One item that may take effect.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) offset: Offset,
    pub(super) verb: AckVerb,
    /// Its place in the call.
    pub(super) index: usize,
}

/// The strongest of several verdicts on one message comes first.
fn rank(verb: AckVerb) -> u8 {
    match verb {
        AckVerb::Reject => 0,
        AckVerb::Failed => 1,
        AckVerb::Retry => 2,
        AckVerb::Completed => 3,
    }
}

/// When a message that is handed back now may be claimed: a delay too long for the clock is as long as the clock.
pub(super) fn delay_end(verdict: &Verdict<'_>, now: Now) -> u64 {
    now.steady_us.saturating_add(verdict.delay_ms.saturating_mul(1_000))
}

pub(super) fn already_committed(offset: Offset) -> Error {
    Error::new(ErrorCode::NotLeased, format!("offset {offset} is already committed"))
}

pub(super) fn lease_lost(token: LeaseToken) -> Error {
    Error::new(ErrorCode::LeaseLost, format!("invalid or expired lease {token}"))
}

pub(super) fn not_leased(offset: Offset) -> Error {
    Error::new(ErrorCode::NotLeased, format!("offset {offset} was not handed out under this lease"))
}

pub(super) fn beyond_end(offset: Offset, end: Offset) -> Error {
    Error::new(ErrorCode::NotLeased, format!("offset {offset} lies beyond the end, {end}"))
}
