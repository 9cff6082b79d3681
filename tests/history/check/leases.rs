//! Leases: who holds a message for sure, and from when until when.
//!
//! A lease is live at the latest when its pop has returned, and at least as long after the pop was asked as was agreed, unless
//! something that may end it begins before.

use std::collections::HashMap;

use fanlog::model::AckVerb;

use crate::history::{Ack, Call, Event, History, Kind, Lane, Place, Settled, Time};

use super::{Rule, Violation, violation};

/// By how much the server's clock may be ahead of its own request: one tick and what a loaded machine adds.
const MARGIN_US: Time = 20_000;

/// A message that is held for sure from one time to another.
#[derive(Debug)]
struct Holding<'a> {
    lease: &'a str,
    event: usize,
    from: Time,
    to: Time,
}

pub fn check(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut holdings: HashMap<(usize, Place), Vec<Holding<'_>>> = HashMap::new();
    let mut given: HashMap<&str, usize> = HashMap::new();
    let uses = Uses::of(history);
    for (index, event) in history.events.iter().enumerate().filter(|(_, event)| event.is_done()) {
        let Call::Pop { group, lease, claims, .. } = &event.call else { continue };
        if lease.is_empty() {
            continue;
        }
        if let Some(before) = given.insert(lease, index) {
            found.push(violation(Rule::OneLease, [before, index], format!("the lease {lease} was given twice")));
        }
        for claim in claims {
            let to = uses.lasts_to(event, &claim.lane);
            for (offset, _) in &claim.messages {
                let to = to.min(uses.settled_at(lease, &claim.lane, *offset));
                if event.ended < to {
                    let place = Place { lane: claim.lane.clone(), offset: *offset };
                    holdings.entry((*group, place)).or_default().push(Holding { lease, event: index, from: event.ended, to });
                }
            }
        }
    }
    one_lease(history, &holdings, &mut found);
    stale_acks(history, &holdings, &mut found);
    found
}

fn one_lease(history: &History, holdings: &HashMap<(usize, Place), Vec<Holding<'_>>>, found: &mut Vec<Violation>) {
    for ((group, place), holdings) in holdings {
        for (index, one) in holdings.iter().enumerate() {
            for other in &holdings[..index] {
                if one.from.max(other.from) < one.to.min(other.to) {
                    let name = history.groups[*group].name;
                    let says = format!(
                        "{name} has {place:?} under {} from {} to {} and under {} from {} to {}",
                        other.lease, other.from, other.to, one.lease, one.from, one.to
                    );
                    found.push(violation(Rule::OneLease, [other.event, one.event], says));
                }
            }
        }
    }
}

fn stale_acks(history: &History, holdings: &HashMap<(usize, Place), Vec<Holding<'_>>>, found: &mut Vec<Violation>) {
    for (index, event) in history.events.iter().enumerate().filter(|(_, event)| event.is_done()) {
        for ack in event.acks() {
            for (offset, ..) in ack.items.iter().filter(|item| matches!(item.2, Settled::Now | Settled::DeadLetter)) {
                let place = Place { lane: ack.lane.clone(), offset: *offset };
                let mut others = holdings.get(&(ack.group, place)).into_iter().flatten();
                let holder = others.find(|one| one.lease != ack.lease && one.from < event.invoked && event.ended < one.to);
                if let Some(holder) = holder {
                    let name = history.groups[ack.group].name;
                    let says = format!("{name} settled {offset} under {} while {} holds it", ack.lease, holder.lease);
                    found.push(violation(Rule::StaleAck, [holder.event, index], says));
                }
            }
        }
    }
}

/// Everything that was done with leases, by the lease.
struct Uses<'a> {
    history: &'a History,
    acks: HashMap<&'a str, Vec<(&'a Event, &'a Ack)>>,
    others: HashMap<&'a str, Vec<&'a Event>>,
    seeks: Vec<&'a Event>,
}

impl<'a> Uses<'a> {
    fn of(history: &'a History) -> Self {
        let mut uses = Self { history, acks: HashMap::new(), others: HashMap::new(), seeks: Vec::new() };
        for event in history.events.iter().filter(|event| event.may_have_happened()) {
            for ack in event.acks() {
                uses.acks.entry(&ack.lease).or_default().push((event, ack));
            }
            match &event.call {
                Call::Extend { lease, .. } | Call::Release { lease } => uses.others.entry(lease).or_default().push(event),
                Call::Seek { .. } => uses.seeks.push(event),
                _ => {}
            }
        }
        uses
    }

    /// Until when a pop's lease of a lane lasts for sure, if nothing is settled.
    fn lasts_to(&self, pop: &Event, lane: &Lane) -> Time {
        let Call::Pop { group, lease, lease_us, claims, .. } = &pop.call else { return 0 };
        let mut to = pop.invoked + lease_us;
        let mut ends = Vec::new();
        for event in self.others.get(lease.as_str()).into_iter().flatten() {
            match event.call {
                // One that renewed fewer may have renewed another lane.
                Call::Extend { lease_us, renewed, .. } if event.is_done() && renewed == claims.len() => {
                    to = to.max(event.invoked + lease_us);
                }
                Call::Release { .. } => ends.push(event.invoked),
                _ => {}
            }
        }
        let kills = self.history.kills.iter().filter(|kill| kill.1 >= pop.invoked).map(|kill| kill.0);
        let seeks = self.seeks.iter().filter(|seek| {
            let Call::Seek { group: of, partition, .. } = &seek.call else { return false };
            let is_here = partition.as_ref().is_none_or(|partition| *partition == lane.partition);
            of == group && is_here && self.history.latest_effect(seek) >= pop.invoked
        });
        ends.extend(kills.chain(seeks.map(|seek| seek.invoked)));
        ends.into_iter().chain([to.saturating_sub(MARGIN_US)]).min().unwrap_or(0)
    }

    /// When an acknowledgement under the lease began that may have taken a message out of it.
    fn settled_at(&self, lease: &str, lane: &Lane, offset: u64) -> Time {
        let acks = self.acks.get(lease).into_iter().flatten().filter(|(_, ack)| {
            let is_named = ack.items.iter().any(|(named, ..)| *named == offset);
            let gives_back = ack.items.iter().any(|(_, verb, _)| *verb != AckVerb::Completed);
            let passes = ack.items.iter().any(|(named, ..)| *named >= offset);
            let is_ordered = self.history.groups[ack.group].kind == Kind::Ordered;
            ack.lane == *lane && (is_named || is_ordered && (gives_back || passes))
        });
        acks.map(|(event, _)| event.invoked).min().unwrap_or(Time::MAX)
    }
}
