//! Acknowledgement in ordered mode: one cursor, one lease.

use crate::model::{AckVerb, Now, OffsetRange};
use crate::record::Offset;

use super::ack::{AckDecision, AckLimits, Step, Verdict, beyond_end, delay_end, lease_lost, not_leased};
use super::state::Delivery;
use super::token::LeaseToken;

/// Messages that may be done above the cursor in ordered mode. With more, a final verdict has to wait until its elders are
/// done, and counts as a retry until then.
const HOLES_MAX: usize = 1_024;

/// Messages whose failures are kept in ordered mode. Only the lowest one of a call is charged, so more than a few take a
/// consumer that fails them from the top down.
const NOTES_MAX: usize = 64;

/// What the verdicts of one call come to.
#[derive(Default)]
struct Walk {
    /// The highest completed offset below the stop.
    completed_to: Option<Offset>,
    /// Dead or dropped.
    ended: Vec<Offset>,
    /// Whether a message was handed back: nothing above it counts.
    has_stopped: bool,
    /// Whether a failure was charged.
    has_charged: bool,
    /// Whether a reason was kept.
    has_noted: bool,
    /// When a delayed retry ends, and which message asked for it.
    delay: Option<(Offset, u64)>,
}

impl Delivery {
    /// See the module's rules. Returns the items that were in play.
    pub(super) fn ack_ordered(
        &mut self,
        token: Option<LeaseToken>,
        verdicts: &[Verdict<'_>],
        limits: AckLimits,
        end: Offset,
        now: Now,
        decision: &mut AckDecision,
    ) -> Vec<Step> {
        let live = self.leases.first_key_value().filter(|&(&live, _)| token.is_none_or(|token| token == live));
        let plan = self.plan(verdicts, decision, |offset| match (live, token) {
            (Some((_, lease)), _) => {
                let is_held = lease.outstanding.contains(offset) || self.staged.is_done(offset);
                if is_held { Ok(()) } else { Err(not_leased(offset)) }
            }
            (None, Some(token)) => Err(lease_lost(token)),
            (None, None) => {
                if offset < end {
                    Ok(())
                } else {
                    Err(beyond_end(offset, end))
                }
            }
        });
        let live = live.map(|(&live, _)| live);
        if plan.is_empty() {
            return plan;
        }
        let walk = self.walk(&plan, verdicts, limits, now, decision);
        let before = self.staged.next;
        decision.consumed = match live {
            Some(live) => self.settle_lease(live, &walk),
            None => self.settle_unleased(&walk),
        };
        if let Some((offset, until_us)) = walk.delay {
            self.delays.set(offset, until_us);
        }
        self.forget_below_next();
        let is_finished = live.is_some_and(|live| self.leases.get(&live).is_some_and(|lease| lease.outstanding.is_empty()));
        if let Some(live) = live
            && (is_finished || walk.has_stopped || walk.has_charged)
        {
            self.end_lease(live);
            decision.is_lease_released = true;
        }
        if self.leases.is_empty() {
            decision.claimable_at_us = Some(walk.delay.map_or(now.steady_us, |(_, until_us)| until_us));
        }
        if decision.consumed > 0 || self.staged.next != before || walk.has_charged || walk.has_noted {
            self.touch();
        }
        plan
    }

    /// Takes the verdicts in order of offset up to the first message that is handed back.
    fn walk(&mut self, plan: &[Step], verdicts: &[Verdict<'_>], limits: AckLimits, now: Now, decision: &mut AckDecision) -> Walk {
        let mut walk = Walk::default();
        let room = HOLES_MAX.saturating_sub(self.staged.done.run_count());
        // The strongest verdict of each offset comes first in the plan.
        for group in plan.chunk_by(|a, b| a.offset == b.offset) {
            let verdict = &verdicts[group[0].index];
            let has_room = walk.ended.len() < room;
            let is_final = match verdict.verb {
                AckVerb::Completed => {
                    walk.completed_to = Some(verdict.offset);
                    continue;
                }
                AckVerb::Reject => has_room,
                AckVerb::Failed if walk.has_charged => false,
                AckVerb::Failed => {
                    walk.has_charged = true;
                    let is_last = self.charge(verdict, limits);
                    self.staged.notes.limit(NOTES_MAX, verdict.offset);
                    is_last && has_room
                }
                AckVerb::Retry => {
                    if verdict.delay_ms > 0 {
                        walk.delay = Some((verdict.offset, delay_end(verdict, now)));
                    }
                    if !verdict.reason.is_empty() {
                        self.staged.notes.hand_back(verdict.offset, verdict.reason, false);
                        self.staged.notes.limit(NOTES_MAX, verdict.offset);
                        walk.has_noted = true;
                    }
                    false
                }
            };
            if !is_final {
                walk.has_stopped = true;
                break;
            }
            if verdict.verb == AckVerb::Reject || limits.is_dead_letter {
                decision.dead_letters.push(self.dead_letter(verdict));
            } else {
                decision.dropped.push(verdict.offset);
            }
            walk.ended.push(verdict.offset);
        }
        walk
    }

    /// Moves the cursor to the first message of the lease that is not finished, or past all that the claim looked at. Returns
    /// how many messages are done by it.
    fn settle_lease(&mut self, token: LeaseToken, walk: &Walk) -> u64 {
        let Some(lease) = self.leases.get_mut(&token) else { return 0 };
        let mut consumed = 0;
        for &offset in &walk.ended {
            consumed += u64::from(lease.outstanding.remove(offset));
            self.staged.mark_done(OffsetRange { first: offset, last: offset });
        }
        if let Some(completed_to) = walk.completed_to {
            consumed += lease.outstanding.clear_below(completed_to.saturating_add(1));
        }
        let target = lease.outstanding.first().unwrap_or(lease.through.saturating_add(1));
        self.staged.pass_to(target);
        consumed
    }

    /// The same without a lease: only the cursor says what is done.
    fn settle_unleased(&mut self, walk: &Walk) -> u64 {
        let mut consumed = walk.ended.len() as u64;
        for &offset in &walk.ended {
            self.staged.mark_done(OffsetRange { first: offset, last: offset });
            self.delays.remove(offset);
        }
        let next = self.staged.next;
        let target = walk.completed_to.map_or(next, |completed_to| completed_to.saturating_add(1));
        let done_before = self.staged.done.count_below(target);
        consumed += (target - next).saturating_sub(done_before);
        self.staged.pass_to(target);
        consumed
    }
}
