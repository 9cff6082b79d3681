//! Behaviour: the table of acknowledgement rules, stories of bugs, and random operations against a plain model.

mod limits;
mod model;
mod random;
mod scenarios;
mod table;

use crate::model::{AckOutcome, AckVerb, ErrorCode, Now, OffsetRange};
use crate::record::Offset;

use super::{AckDecision, AckLimits, Change, Claimed, Cursor, Delivery, LeaseToken, Mode, NotClaimable, OffsetSet, Verdict};

use AckVerb::{Completed, Failed, Reject, Retry};

const SECOND: u64 = 1_000_000;
const LEASE: u64 = 60 * SECOND;
/// Queen's default: three retries, then a dead letter.
const LIMITS: AckLimits = AckLimits { failures_max: 4, is_dead_letter: true };

/// A delivery with a clock, a partition's end and a counter of tokens.
#[derive(Clone)]
struct Lane {
    delivery: Delivery,
    now: Now,
    end: Offset,
    start_number: u64,
    counter: u64,
    limits: AckLimits,
}

impl Lane {
    fn new(mode: Mode, end: Offset) -> Self {
        let now = Now { wall_us: 1_000 * SECOND, steady_us: 5 * SECOND };
        Self { delivery: Delivery::new(mode, Cursor::new(0)), now, end, start_number: 1, counter: 0, limits: LIMITS }
    }

    fn ordered(end: Offset) -> Self {
        Self::new(Mode::Ordered, end)
    }

    fn shared(end: Offset) -> Self {
        Self::new(Mode::Shared, end)
    }

    fn wait(&mut self, microseconds: u64) {
        self.now.wall_us += microseconds;
        self.now.steady_us += microseconds;
    }

    fn token(&mut self) -> LeaseToken {
        self.counter += 1;
        LeaseToken { start_number: self.start_number, counter: self.counter }
    }

    fn ready(&mut self) -> Vec<(Offset, Offset)> {
        let ranges = self.delivery.ready(self.end, usize::MAX, self.now);
        ranges.into_iter().map(|range| (range.first, range.last)).collect()
    }

    /// The offsets that a pop of up to `count` would hand out.
    fn free(&mut self, count: usize) -> Vec<Offset> {
        self.ready().into_iter().flat_map(|(first, last)| first..=last).take(count).collect()
    }

    fn claim_as(&mut self, token: LeaseToken, messages: &[Offset]) -> Result<Claimed, NotClaimable> {
        let from = self.delivery.staged().next();
        let through = messages.last().copied().unwrap_or(0);
        let messages: OffsetSet = messages.iter().copied().collect();
        self.delivery.claim(token, self.now.steady_us + LEASE, from, through, messages, self.now)
    }

    /// Pops up to `count` messages; returns the token.
    fn pop(&mut self, count: usize) -> LeaseToken {
        self.pop_counted(count).0
    }

    fn pop_counted(&mut self, count: usize) -> (LeaseToken, Vec<Offset>, Claimed) {
        let (token, messages) = (self.token(), self.free(count));
        let claimed = self.claim_as(token, &messages).expect("free messages can be claimed");
        (token, messages, claimed)
    }

    fn ack(&mut self, token: impl Into<Option<LeaseToken>>, items: &[(Offset, AckVerb)]) -> AckDecision {
        let verdicts: Vec<_> = items.iter().map(|&(offset, verb)| verdict(offset, verb, "", 0)).collect();
        self.ack_verdicts(token, &verdicts)
    }

    fn ack_verdicts(&mut self, token: impl Into<Option<LeaseToken>>, verdicts: &[Verdict<'_>]) -> AckDecision {
        self.delivery.ack(token.into(), verdicts, self.limits, self.end, self.now)
    }

    fn next(&self) -> Offset {
        self.delivery.staged().next()
    }

    /// The log's part: writes what is staged, syncs, publishes.
    fn commit(&mut self) -> Option<Change> {
        let change = self.delivery.take_change()?;
        self.delivery.publish(change.cursor.clone());
        Some(change)
    }

    /// A crash: what is visible comes back from its bytes, leases are void.
    fn crash(&mut self) {
        let mut bytes = Vec::new();
        self.delivery.visible().encode(&mut bytes);
        self.delivery = Delivery::new(self.delivery.mode(), Cursor::decode(&bytes).expect("what was encoded decodes"));
        self.start_number += 1;
        self.counter = 0;
    }
}

fn verdict(offset: Offset, verb: AckVerb, reason: &str, delay_ms: u64) -> Verdict<'_> {
    Verdict { offset, verb, reason, delay_ms }
}

fn range(first: Offset, last: Offset) -> OffsetRange {
    OffsetRange { first, last }
}

fn code(outcome: &AckOutcome) -> Option<ErrorCode> {
    outcome.refused.as_ref().map(|error| error.code)
}

fn is_plain_success(outcome: &AckOutcome) -> bool {
    *outcome == AckOutcome { refused: None, is_noop: false, is_dead_letter: false }
}

fn is_noop(outcome: &AckOutcome) -> bool {
    outcome.refused.is_none() && outcome.is_noop
}

fn dead(decision: &AckDecision) -> Vec<Offset> {
    decision.dead_letters.iter().map(|step| step.offset).collect()
}
