//! Every place at which somebody was shown a message, and every message that was pushed.

use std::collections::{BTreeMap, HashMap};

use crate::history::{Call, Content, Event, History, Lane, Part, Place, Sent, Stored, Time};

/// A message that was given to one push or, sent again, to several.
#[derive(Debug)]
pub struct Pushed<'a> {
    pub lane: &'a Lane,
    pub sent: &'a Sent,
    /// The calls.
    pub attempts: Vec<usize>,
    /// When the first call began.
    pub invoked: Time,
    /// When the first call that was done ended.
    pub done: Option<Time>,
}

/// Somebody was told that a message lies there.
#[derive(Debug, Clone)]
pub struct Sighting {
    pub place: Place,
    pub content: Content,
    pub event: usize,
    /// When the call that showed it ended.
    pub at: Time,
}

#[derive(Debug)]
pub struct Sightings<'a> {
    pub pushed: HashMap<u64, Pushed<'a>>,
    /// In the order in which calls ended.
    pub all: Vec<Sighting>,
    /// The first sighting of each offset.
    pub lanes: BTreeMap<Lane, BTreeMap<u64, Sighting>>,
    /// The first sighting of each message.
    pub messages: HashMap<u64, Sighting>,
}

impl<'a> Sightings<'a> {
    pub fn of(history: &'a History) -> Self {
        let mut pushed: HashMap<u64, Pushed<'a>> = HashMap::new();
        let mut all = Vec::new();
        for (index, event) in history.events.iter().enumerate() {
            for part in event.parts() {
                for sent in &part.sent {
                    let known = pushed.entry(sent.content.id).or_insert_with(|| Pushed {
                        lane: &part.lane,
                        sent,
                        attempts: Vec::new(),
                        invoked: Time::MAX,
                        done: None,
                    });
                    known.attempts.push(index);
                    known.invoked = known.invoked.min(event.invoked);
                    if event.is_done() {
                        known.done = Some(known.done.unwrap_or(Time::MAX).min(event.ended));
                    }
                }
            }
            all.extend(seen_by(event).into_iter().map(|(place, content)| Sighting {
                place,
                content,
                event: index,
                at: event.ended,
            }));
        }
        all.sort_by_key(|sighting| sighting.at);
        let mut lanes: BTreeMap<Lane, BTreeMap<u64, Sighting>> = BTreeMap::new();
        let mut messages = HashMap::new();
        for sighting in &all {
            let lane = lanes.entry(sighting.place.lane.clone()).or_default();
            lane.entry(sighting.place.offset).or_insert_with(|| sighting.clone());
            messages.entry(sighting.content.id).or_insert_with(|| sighting.clone());
        }
        Self { pushed, all, lanes, messages }
    }
}

fn seen_by(event: &Event) -> Vec<(Place, Content)> {
    if !event.is_done() {
        return Vec::new();
    }
    let places = |lane: &Lane, messages: &[(u64, Content)]| -> Vec<_> {
        messages.iter().map(|&(offset, content)| (Place { lane: lane.clone(), offset }, content)).collect()
    };
    match &event.call {
        Call::Write { parts, .. } => parts.iter().flat_map(|part| places(&part.lane, &stored(part))).collect(),
        Call::Pop { claims, .. } => claims.iter().flat_map(|claim| places(&claim.lane, &claim.messages)).collect(),
        Call::Read { lane, messages, .. } => places(lane, messages),
        Call::Letters(letters) => letters.iter().map(|(_, place, content)| (place.clone(), *content)).collect(),
        Call::Ack(_) | Call::Extend { .. } | Call::Release { .. } | Call::Seek { .. } => Vec::new(),
    }
}

fn stored(part: &Part) -> Vec<(u64, Content)> {
    let stored = part.sent.iter().zip(&part.results).filter_map(|(sent, result)| match result {
        Stored::At(offset) | Stored::Already(offset) => Some((*offset, sent.content)),
        Stored::Dropped => None,
    });
    stored.collect()
}
