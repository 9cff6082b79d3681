//! What groups get: all that they take and nothing else, in order, and not again when it is settled.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fanlog::model::AckVerb;

use crate::history::{Ack, Call, Content, Event, History, Kind, Lane, Place, Settled, Time};

use super::sightings::Sightings;
use super::{Rule, Violation, violation};

/// A message that a pop returned.
#[derive(Debug)]
struct Delivery {
    place: Place,
    content: Content,
    event: usize,
    invoked: Time,
    ended: Time,
}

/// A group was told that it is done with something.
#[derive(Debug)]
struct Settlement {
    event: usize,
    invoked: Time,
    /// From when on it holds for sure.
    ended: Time,
    /// All below it is done.
    next: u64,
    /// So are these.
    offsets: BTreeSet<u64>,
}

pub fn check(history: &History, sightings: &Sightings<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let letters = letters(history);
    filter_decisions_of_letters(history, sightings, &mut found);
    for (group, described) in history.groups.iter().enumerate() {
        let deliveries = deliveries(history, group);
        for delivery in &deliveries {
            if let Some(pushed) = sightings.pushed.get(&delivery.content.id)
                && !pushed.sent.takers.contains(&group)
            {
                let says = format!("{} got {:?}, which it does not take", described.name, delivery.content);
                found.push(violation(Rule::FilterDecision, [pushed.attempts[0], delivery.event], says));
            }
        }
        let wanted = sightings.messages.values().filter(|seen| {
            let pushed = sightings.pushed.get(&seen.content.id);
            pushed.is_some_and(|pushed| pushed.sent.takers.contains(&group))
        });
        let wanted: BTreeMap<&Place, (usize, Content)> = wanted.map(|seen| (&seen.place, (seen.event, seen.content))).collect();
        let of_group = Of { history, group, name: described.name, deliveries: &deliveries, wanted: &wanted };
        match described.kind {
            Kind::AtMostOnce => of_group.at_most_once(&mut found),
            Kind::Ordered | Kind::Shared => {
                of_group.delivered(&letters, &mut found);
                of_group.not_after_settled(sightings, &mut found);
            }
        }
        if described.kind == Kind::Ordered {
            of_group.order(&mut found);
        }
        if described.is_mover {
            of_group.moved_once(sightings, &letters, &mut found);
        }
    }
    found
}

/// One group's part of a history.
struct Of<'a> {
    history: &'a History,
    group: usize,
    name: &'static str,
    deliveries: &'a [Delivery],
    /// What it must get, with an event that shows that it is there.
    wanted: &'a BTreeMap<&'a Place, (usize, Content)>,
}

impl Of<'_> {
    fn at_most_once(&self, found: &mut Vec<Violation>) {
        let mut first: HashMap<&Place, usize> = HashMap::new();
        for delivery in self.deliveries {
            if let Some(before) = first.insert(&delivery.place, delivery.event) {
                let says = format!("{} got {:?} twice", self.name, delivery.place);
                found.push(violation(Rule::AtMostOnce, [before, delivery.event], says));
            }
        }
        let missing: Vec<_> = self.wanted.iter().filter(|(place, _)| !first.contains_key(*place)).collect();
        let unanswered = self.history.events.iter().map(|event| match event.call {
            Call::Pop { group, most, .. } if group == self.group && !event.is_done() => most,
            _ => 0,
        });
        let unanswered: u64 = unanswered.sum();
        if missing.len() as u64 > unanswered {
            let (place, (event, content)) = missing[0];
            let says = format!(
                "{} never got {} messages, {content:?} at {place:?} among them; pops without an answer took {unanswered} at most",
                self.name,
                missing.len()
            );
            found.push(violation(Rule::Delivered, [*event], says));
        }
    }

    /// Seeks that may have moved the group in a lane.
    fn seeks<'b>(&'b self, lane: &'b Lane) -> impl Iterator<Item = (usize, &'b Event)> {
        self.history.events.iter().enumerate().filter(move |(_, event)| match &event.call {
            Call::Seek { group, partition, .. } => {
                *group == self.group
                    && event.may_have_happened()
                    && partition.as_ref().is_none_or(|partition| *partition == lane.partition)
            }
            _ => false,
        })
    }

    fn delivered(&self, letters: &BTreeSet<(usize, Place)>, found: &mut Vec<Violation>) {
        // Whoever is moved to the beginning gets everything from then on.
        let restarts = self.history.events.iter().enumerate().filter(|(_, event)| {
            let is_restart =
                matches!(&event.call, Call::Seek { group, partition: None, is_to_beginning: true } if *group == self.group);
            is_restart && event.is_done()
        });
        let restart = restarts.max_by_key(|(_, event)| event.invoked);
        let since = restart.map_or(0, |(_, event)| event.invoked);
        let got: BTreeSet<&Place> =
            self.deliveries.iter().filter(|delivery| delivery.ended >= since).map(|delivery| &delivery.place).collect();
        for (place, (event, content)) in self.wanted {
            if !got.contains(place) && !letters.contains(&(self.group, (*place).clone())) {
                let says = format!("{} never got {content:?} at {place:?}", self.name);
                let events: Vec<_> = [*event].into_iter().chain(restart.map(|(index, _)| index)).collect();
                found.push(violation(Rule::Delivered, events, says));
            }
        }
    }

    fn order(&self, found: &mut Vec<Violation>) {
        let mut lanes: BTreeMap<&Lane, BTreeMap<u64, &Delivery>> = BTreeMap::new();
        for delivery in self.deliveries {
            let first = lanes.entry(&delivery.place.lane).or_default().entry(delivery.place.offset).or_insert(delivery);
            if delivery.invoked < first.invoked {
                *first = delivery;
            }
        }
        for (lane, first) in lanes {
            if self.seeks(lane).next().is_some() {
                continue;
            }
            let mut ended_first: Option<&Delivery> = None;
            for delivery in first.values().rev() {
                if let Some(above) = ended_first
                    && above.ended < delivery.invoked
                {
                    let says = format!("{} got {:?} before it first got {:?}", self.name, above.place, delivery.place);
                    found.push(violation(Rule::DeliveryOrder, [above.event, delivery.event], says));
                }
                if ended_first.is_none_or(|other| delivery.ended < other.ended) {
                    ended_first = Some(delivery);
                }
            }
        }
        for (index, event) in self.history.events.iter().enumerate() {
            let Call::Pop { group, claims, .. } = &event.call else { continue };
            if *group == self.group && !claims.iter().all(|claim| claim.messages.is_sorted_by(|a, b| a.0 < b.0)) {
                found.push(violation(Rule::DeliveryOrder, [index], format!("{} got messages out of order", self.name)));
            }
        }
    }

    fn not_after_settled(&self, sightings: &Sightings<'_>, found: &mut Vec<Violation>) {
        let is_ordered = self.history.groups[self.group].kind == Kind::Ordered;
        let mut lanes: HashMap<&Lane, Vec<Settlement>> = HashMap::new();
        for (index, event, ended) in happened(self.history, sightings) {
            for ack in event.acks().iter().filter(|ack| ack.group == self.group) {
                lanes.entry(&ack.lane).or_default().push(settlement(ack, is_ordered, index, event, ended));
            }
        }
        for delivery in self.deliveries {
            let Some(settlements) = lanes.get(&delivery.place.lane) else { continue };
            let offset = delivery.place.offset;
            let broken = settlements.iter().find(|settled| {
                let is_settled = settled.ended < delivery.invoked && (offset < settled.next || settled.offsets.contains(&offset));
                // A seek that can have come between the two gives it back.
                is_settled
                    && !self
                        .seeks(&delivery.place.lane)
                        .any(|(_, seek)| seek.invoked < delivery.ended && self.history.latest_effect(seek) > settled.invoked)
            });
            if let Some(settled) = broken {
                let says = format!("{} got {:?} after it had settled it", self.name, delivery.place);
                found.push(violation(Rule::NotAfterSettled, [settled.event, delivery.event], says));
            }
        }
    }

    fn moved_once(&self, sightings: &Sightings<'_>, letters: &BTreeSet<(usize, Place)>, found: &mut Vec<Violation>) {
        let mut moved: HashMap<Place, usize> = HashMap::new();
        for (index, event, _) in happened(self.history, sightings) {
            for ack in event.acks().iter().filter(|ack| ack.group == self.group) {
                for (offset, ..) in ack.items.iter().filter(|(_, verb, _)| *verb == AckVerb::Completed) {
                    let place = Place { lane: ack.lane.clone(), offset: *offset };
                    let says = format!("{} moved {place:?} twice", self.name);
                    if let Some(before) = moved.insert(place, index) {
                        found.push(violation(Rule::MovedOnce, [before, index], says));
                    }
                }
            }
        }
        for (place, (event, content)) in self.wanted {
            if !moved.contains_key(*place) && !letters.contains(&(self.group, (*place).clone())) {
                let says = format!("{} is done with {content:?} at {place:?} and no transaction moved it", self.name);
                found.push(violation(Rule::MovedOnce, [*event], says));
            }
        }
    }
}

fn deliveries(history: &History, group: usize) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    for (index, event) in history.events.iter().enumerate().filter(|(_, event)| event.is_done()) {
        let Call::Pop { group: of, claims, .. } = &event.call else { continue };
        for claim in claims.iter().filter(|_| *of == group) {
            deliveries.extend(claim.messages.iter().map(|&(offset, content)| Delivery {
                place: Place { lane: claim.lane.clone(), offset },
                content,
                event: index,
                invoked: event.invoked,
                ended: event.ended,
            }));
        }
    }
    deliveries
}

fn letters(history: &History) -> BTreeSet<(usize, Place)> {
    let lists = history.events.iter().filter_map(|event| match &event.call {
        Call::Letters(letters) if event.is_done() => Some(letters),
        _ => None,
    });
    lists.flatten().map(|(group, place, _)| (*group, place.clone())).collect()
}

fn filter_decisions_of_letters(history: &History, sightings: &Sightings<'_>, found: &mut Vec<Violation>) {
    for (index, event) in history.events.iter().enumerate() {
        let Call::Letters(letters) = &event.call else { continue };
        for (group, place, content) in letters {
            let pushed = sightings.pushed.get(&content.id);
            if pushed.is_some_and(|pushed| !pushed.sent.takers.contains(group)) {
                let says = format!("{} gave up {place:?}, which it does not take", history.groups[*group].name);
                found.push(violation(Rule::FilterDecision, [index], says));
            }
        }
    }
}

/// Calls that happened, and from when on for sure: answered ones, and those whose messages were seen and given to no other call.
fn happened<'a>(history: &'a History, sightings: &Sightings<'_>) -> Vec<(usize, &'a Event, Time)> {
    let times = history.events.iter().enumerate().filter_map(|(index, event)| {
        let ids = event.parts().iter().flat_map(|part| &part.sent).map(|sent| sent.content.id);
        let own = ids.filter(|id| sightings.pushed.get(id).is_some_and(|pushed| pushed.attempts == [index]));
        let seen = own.filter_map(|id| sightings.messages.get(&id)).map(|seen| seen.at).min();
        let ended = if event.is_done() { Some(event.ended) } else { seen.filter(|_| event.may_have_happened()) };
        Some((index, event, ended?))
    });
    times.collect()
}

fn settlement(ack: &Ack, is_ordered: bool, event: usize, of: &Event, ended: Time) -> Settlement {
    let completed = || ack.items.iter().filter(|(_, verb, _)| *verb == AckVerb::Completed).map(|(offset, ..)| *offset);
    let (mut next, mut offsets) = (ack.next.unwrap_or(0), BTreeSet::new());
    if ack.next.is_none() && is_ordered && ack.items.iter().all(|(_, verb, _)| *verb == AckVerb::Completed) {
        next = completed().max().map_or(0, |last| last + 1);
    } else if ack.next.is_none() {
        offsets.extend(completed().filter(|_| !is_ordered));
    }
    for (offset, verb, settled) in &ack.items {
        let is_completed = *verb == AckVerb::Completed && matches!(settled, Settled::Now | Settled::Before) && !is_ordered;
        if is_completed || *settled == Settled::DeadLetter {
            offsets.insert(*offset);
        }
    }
    Settlement { event, invoked: of.invoked, ended, next, offsets }
}
