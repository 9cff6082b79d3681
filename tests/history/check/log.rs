//! What lies in the log: only what was pushed, once, at one place for ever, in order, whole.

use std::collections::BTreeSet;

use crate::history::{Call, Event, History, Stored};

use super::sightings::{Pushed, Sighting, Sightings};
use super::{Rule, Violation, violation};

pub fn check(history: &History, sightings: &Sightings<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for sighting in &sightings.all {
        found.extend(was_pushed(history, sightings, sighting));
    }
    places(sightings, &mut found);
    push_order(history, sightings, &mut found);
    lost(history, sightings, &mut found);
    whole(history, sightings, &mut found);
    dropped(history, &mut found);
    found
}

fn was_pushed(history: &History, sightings: &Sightings<'_>, sighting: &Sighting) -> Option<Violation> {
    let Sighting { place, content, event, at } = sighting;
    let wrong = |rule, attempts: &[usize], says: &str| {
        let events: Vec<_> = attempts.iter().copied().chain([*event]).collect();
        Some(violation(rule, events, format!("{content:?} at {place:?} {says}")))
    };
    let Some(pushed) = sightings.pushed.get(&content.id) else {
        return wrong(Rule::OnlyWhatWasPushed, &[], "was never pushed");
    };
    let Pushed { attempts, .. } = pushed;
    if pushed.sent.content != *content {
        wrong(Rule::OnlyWhatWasPushed, attempts, "is not what was pushed")
    } else if *pushed.lane != place.lane {
        wrong(Rule::OnlyWhatWasPushed, attempts, "was pushed elsewhere")
    } else if pushed.invoked > *at {
        wrong(Rule::OnlyWhatWasPushed, attempts, "was pushed later")
    } else if attempts.iter().all(|attempt| !history.events[*attempt].may_have_happened()) {
        wrong(Rule::RefusedIsAbsent, attempts, "was refused")
    } else if pushed.sent.takers.is_empty() {
        wrong(Rule::DroppedOrStored, attempts, "is stored, and no group takes it")
    } else {
        None
    }
}

/// Each contradiction once: with the first sighting.
fn places(sightings: &Sightings<'_>, found: &mut Vec<Violation>) {
    let mut told = BTreeSet::new();
    for sighting in &sightings.all {
        let first = &sightings.lanes[&sighting.place.lane][&sighting.place.offset];
        if first.content != sighting.content && told.insert((&sighting.place, sighting.content.id)) {
            let says = format!("{:?} has {:?} and {:?}", sighting.place, first.content, sighting.content);
            found.push(violation(Rule::OneMessageAtAnOffset, [first.event, sighting.event], says));
        }
        let first = &sightings.messages[&sighting.content.id];
        if first.place != sighting.place && told.insert((&sighting.place, sighting.content.id)) {
            let says = format!("{:?} lies at {:?} and {:?}", sighting.content, first.place, sighting.place);
            found.push(violation(Rule::StoredOnce, [first.event, sighting.event], says));
        }
    }
}

fn push_order(history: &History, sightings: &Sightings<'_>, found: &mut Vec<Violation>) {
    for lane in sightings.lanes.values() {
        let stored: Vec<(u64, &Pushed<'_>)> =
            lane.iter().filter_map(|(offset, seen)| Some((*offset, sightings.pushed.get(&seen.content.id)?))).collect();
        // From the last offset down: nothing above may have been done before this one was begun.
        let mut done_first: Option<(u64, &Pushed<'_>)> = None;
        for &(offset, pushed) in stored.iter().rev() {
            if let Some((above, other)) = done_first
                && other.done < Some(pushed.invoked)
            {
                let says = format!("a push that was done before another began lies at {above}, the later one at {offset}");
                let events: Vec<_> = other.attempts.iter().chain(&pushed.attempts).copied().collect();
                found.push(violation(Rule::PushOrder, events, says));
            }
            if pushed.done.is_some() && done_first.is_none_or(|(_, other)| pushed.done < other.done) {
                done_first = Some((offset, pushed));
            }
        }
    }
    for (index, event) in history.events.iter().enumerate() {
        for part in event.parts() {
            let places = part.sent.iter().filter_map(|sent| sightings.messages.get(&sent.content.id));
            if !places.map(|seen| seen.place.offset).is_sorted() {
                let says = format!("the messages of a push to {:?} are out of order", part.lane);
                found.push(violation(Rule::PushOrder, [index], says));
            }
        }
    }
}

fn lost(history: &History, sightings: &Sightings<'_>, found: &mut Vec<Violation>) {
    for (index, event) in history.events.iter().enumerate() {
        let Call::Read { lane, from, next, messages, .. } = &event.call else { continue };
        if !event.is_done() || from > next {
            continue;
        }
        let read: BTreeSet<u64> = messages.iter().map(|(offset, _)| *offset).collect();
        let seen = sightings.lanes.get(lane).into_iter().flat_map(|lane| lane.range(from..next));
        for (offset, first) in seen.filter(|(offset, first)| first.at < event.invoked && !read.contains(offset)) {
            let says = format!("{:?} was at {offset} of {lane:?} and is not any more", first.content);
            found.push(violation(Rule::NothingLost, [first.event, index], says));
        }
    }
    // A read up to the end ends behind everything that was there before.
    for (index, event) in history.events.iter().enumerate() {
        let Call::Read { lane, next, is_to_end: true, .. } = &event.call else { continue };
        let beyond = sightings.lanes.get(lane).into_iter().flat_map(|lane| lane.range(next..));
        for (offset, first) in beyond.filter(|(_, first)| event.is_done() && first.at < event.invoked) {
            let says = format!("{:?} was at {offset} of {lane:?}, which ends at {next} now", first.content);
            found.push(violation(Rule::NothingLost, [first.event, index], says));
        }
    }
}

fn whole(history: &History, sightings: &Sightings<'_>, found: &mut Vec<Violation>) {
    for (index, event) in history.events.iter().enumerate() {
        let stored = || {
            let parts = event.parts().iter();
            parts
                .flat_map(|part| part.sent.iter().map(move |sent| (&part.lane, sent)))
                .filter(|(_, sent)| !sent.takers.is_empty())
        };
        let first = stored().filter_map(|(_, sent)| sightings.messages.get(&sent.content.id)).min_by_key(|seen| seen.at);
        let Some(first) = first else { continue };
        for (lane, sent) in stored().filter(|(_, sent)| !sightings.messages.contains_key(&sent.content.id)) {
            let is_absent = |event: &Event| {
                event.is_done()
                    && event.invoked > first.at
                    && matches!(&event.call, Call::Read { lane: of, from: 0, is_to_end: true, .. } if of == lane)
            };
            if let Some(read) = history.events.iter().position(is_absent) {
                let says = format!("{:?} of the same push is there, {:?} is not in {lane:?}", first.content, sent.content);
                found.push(violation(Rule::AllOrNothing, [index, first.event, read], says));
            }
        }
    }
}

/// What answers say of messages that no group takes, and of others.
fn dropped(history: &History, found: &mut Vec<Violation>) {
    for (index, event) in history.events.iter().enumerate().filter(|(_, event)| event.is_done()) {
        for part in event.parts() {
            for (sent, result) in part.sent.iter().zip(&part.results) {
                if (*result == Stored::Dropped) != sent.takers.is_empty() {
                    let says = format!("{:?} is taken by {:?} and the answer was {result:?}", sent.content, sent.takers);
                    found.push(violation(Rule::DroppedOrStored, [index], says));
                }
            }
            if part.sent.len() != part.results.len() {
                let says = format!("{} messages and {} results", part.sent.len(), part.results.len());
                found.push(violation(Rule::DroppedOrStored, [index], says));
            }
        }
    }
}
