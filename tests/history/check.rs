//! The rules that every history keeps. Nothing here knows the server: only what its clients were promised.

mod groups;
mod leases;
mod log;
mod sightings;

#[cfg(test)]
mod cases;

use crate::history::History;
use sightings::Sightings;

/// Events that contradict a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    pub says: String,
    /// The events, by their index in the history.
    pub events: Vec<usize>,
}

/// What is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// Whatever is there was pushed before, there, and is unchanged.
    OnlyWhatWasPushed,
    /// A push that was refused left nothing.
    RefusedIsAbsent,
    /// An offset has one message for ever.
    OneMessageAtAnOffset,
    /// A message is stored once, however often its push was sent again.
    StoredOnce,
    /// What anybody was shown is in every read that begins later.
    NothingLost,
    /// A push or transaction is there whole or not at all.
    AllOrNothing,
    /// A push that ended before another one began has lower offsets, and the messages of a push have growing ones.
    PushOrder,
    /// Stored if and only if some group takes it.
    DroppedOrStored,
    /// A group gets what its filter takes, and nothing else.
    FilterDecision,
    /// Every message reaches every group that takes it, or is a dead letter there.
    Delivered,
    /// An ordered group gets messages for the first time in their order.
    DeliveryOrder,
    /// What was settled does not come again.
    NotAfterSettled,
    /// An at-most-once group gets nothing twice.
    AtMostOnce,
    /// Each message is settled by one transaction, where only transactions settle.
    MovedOnce,
    /// No two leases of a group hold a message at the same time.
    OneLease,
    /// An acknowledgement under a lease that is over has no effect while another one is live.
    StaleAck,
}

/// What contradicts the rules, by rule and then as it was found.
pub fn check(history: &History) -> Vec<Violation> {
    let sightings = Sightings::of(history);
    let mut violations = log::check(history, &sightings);
    violations.extend(groups::check(history, &sightings));
    violations.extend(leases::check(history));
    violations.sort_by_key(|violation| violation.rule);
    violations
}

fn violation(rule: Rule, events: impl Into<Vec<usize>>, says: String) -> Violation {
    Violation { rule, says, events: events.into() }
}
