//! Acknowledgement in shared mode: each message for itself.

use crate::model::{AckVerb, Now, OffsetRange};
use crate::record::Offset;

use super::ack::{AckDecision, AckLimits, Step, Verdict, beyond_end, delay_end, lease_lost, not_leased};
use super::cursor::WINDOW;
use super::state::Delivery;
use super::token::LeaseToken;

impl Delivery {
    /// See the module's rules. Returns the items that were in play.
    pub(super) fn ack_shared(
        &mut self,
        token: Option<LeaseToken>,
        verdicts: &[Verdict<'_>],
        limits: AckLimits,
        end: Offset,
        now: Now,
        decision: &mut AckDecision,
    ) -> Vec<Step> {
        let limit = end.min(self.staged.next.saturating_add(WINDOW));
        let plan = self.plan(verdicts, decision, |offset| match token {
            Some(token) => match self.leases.get(&token) {
                Some(lease) if lease.outstanding.contains(offset) || self.staged.is_done(offset) => Ok(()),
                Some(_) => Err(not_leased(offset)),
                None => Err(lease_lost(token)),
            },
            None if offset < limit => Ok(()),
            None if offset < end => Err(not_leased(offset)),
            None => Err(beyond_end(offset, end)),
        });
        if plan.is_empty() {
            return plan;
        }
        let mut is_durable = false;
        // The strongest verdict of each offset comes first in the plan.
        for group in plan.chunk_by(|a, b| a.offset == b.offset) {
            let verdict = &verdicts[group[0].index];
            let holder = token.or_else(|| self.holder_of(verdict.offset));
            let is_dead = match verdict.verb {
                AckVerb::Completed => false,
                AckVerb::Reject => true,
                AckVerb::Failed => {
                    is_durable = true;
                    let is_last = self.charge(verdict, limits);
                    if !is_last {
                        self.hand_back(verdict, holder, now, decision);
                        continue;
                    }
                    limits.is_dead_letter
                }
                AckVerb::Retry => {
                    if !verdict.reason.is_empty() {
                        is_durable = true;
                        self.staged.notes.hand_back(verdict.offset, verdict.reason, false);
                    }
                    self.hand_back(verdict, holder, now, decision);
                    continue;
                }
            };
            is_durable = true;
            if is_dead {
                decision.dead_letters.push(self.dead_letter(verdict));
            } else if verdict.verb == AckVerb::Failed {
                decision.dropped.push(verdict.offset);
            }
            self.finish(verdict.offset, holder);
            decision.consumed += 1;
        }
        let before = self.staged.next;
        self.staged.pass_to(before);
        self.forget_below_next();
        if self.staged.next != before {
            // The window moved.
            decision.claimable_at_us = Some(now.steady_us);
        }
        if is_durable {
            self.touch();
        }
        plan
    }

    /// Who holds a message. Only an unfenced acknowledgement has to ask.
    fn holder_of(&self, offset: Offset) -> Option<LeaseToken> {
        self.leases.iter().find(|(_, lease)| lease.outstanding.contains(offset)).map(|(&token, _)| token)
    }

    /// Takes a message out of its lease, and the lease away if that was its last.
    fn take_from(&mut self, holder: Option<LeaseToken>, offset: Offset) {
        let Some(holder) = holder else { return };
        let Some(lease) = self.leases.get_mut(&holder) else { return };
        lease.outstanding.remove(offset);
        if lease.outstanding.is_empty() {
            self.end_lease(holder);
        }
    }

    /// Marks a message done.
    fn finish(&mut self, offset: Offset, holder: Option<LeaseToken>) {
        self.take_from(holder, offset);
        self.delays.remove(offset);
        self.staged.mark_done(OffsetRange { first: offset, last: offset });
        self.busy.insert(offset);
    }

    /// Gives a message back, at once or after a delay. `failed` has no delay, as in Queen.
    fn hand_back(&mut self, verdict: &Verdict<'_>, holder: Option<LeaseToken>, now: Now, decision: &mut AckDecision) {
        let offset = verdict.offset;
        self.take_from(holder, offset);
        let mut at_us = now.steady_us;
        if verdict.verb == AckVerb::Retry && verdict.delay_ms > 0 {
            at_us = delay_end(verdict, now);
            self.delays.set(offset, at_us);
            self.busy.insert(offset);
        } else {
            self.delays.remove(offset);
            self.busy.remove(offset);
        }
        decision.claimable_at_us = Some(decision.claimable_at_us.map_or(at_us, |other| other.min(at_us)));
    }
}
