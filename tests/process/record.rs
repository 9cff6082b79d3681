//! What the test knows, apart from the server: which message lies where, and who was told that it is done with which.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;

use crate::random::Random;

/// Which message this is: its producer, and the producer's own count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    pub producer: u32,
    pub sequence: u64,
}

impl Identity {
    /// The payload of this message and of no other: from 12 bytes to some hundreds, half of it compressible.
    pub fn payload(self) -> Bytes {
        let mut random = Random::new(self.sequence << 20 | u64::from(self.producer));
        let mut payload = [&self.producer.to_le_bytes()[..], &self.sequence.to_le_bytes()].concat();
        for _ in 0..random.below(40) {
            payload.extend_from_slice(&random.number().to_le_bytes());
            payload.extend_from_slice(b"the same");
        }
        payload.into()
    }

    /// The message of a payload, which must be whole.
    pub fn of(payload: &Bytes) -> Self {
        let producer = u32::from_le_bytes(payload[..4].try_into().expect("a payload of ours"));
        let sequence = u64::from_le_bytes(payload[4..12].try_into().expect("a payload of ours"));
        let identity = Self { producer, sequence };
        assert_eq!(*payload, identity.payload(), "the payload of {identity:?} came back changed");
        identity
    }
}

/// Where a message lies.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub queue: String,
    pub partition: String,
    pub offset: u64,
}

/// A moment, by the order of events in this process.
pub type Stamp = u64;

/// What was told to a client. Panics at the first contradiction.
#[derive(Debug, Default)]
pub struct Record {
    clock: AtomicU64,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Every place that a receipt, a delivery or a reader named.
    messages: HashMap<Place, Identity>,
    places: HashMap<(String, Identity), Place>,
    /// Places that a group was told are done, and when.
    done: HashMap<(&'static str, Place), Stamp>,
    delivered: HashSet<(&'static str, Place)>,
    receipts: u64,
    acknowledgements: u64,
}

/// How much was recorded.
#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    pub receipts: u64,
    pub acknowledgements: u64,
    pub messages: u64,
}

impl Record {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("no contradiction before")
    }

    /// This moment.
    pub fn now(&self) -> Stamp {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Somebody was told that the message lies there.
    pub fn saw(&self, place: Place, identity: Identity) {
        let mut known = self.known();
        if let Some(other) = known.messages.insert(place.clone(), identity) {
            assert_eq!(other, identity, "two messages at {place:?}");
            return;
        }
        if let Some(other) = known.places.insert((place.queue.clone(), identity), place.clone()) {
            panic!("{identity:?} lies at {other:?} and at {place:?}");
        }
    }

    /// A producer was told so.
    pub fn received(&self, place: Place, identity: Identity) {
        self.saw(place, identity);
        self.known().receipts += 1;
    }

    /// A group got a message from a request that was sent at `asked`.
    pub fn delivered(&self, group: &'static str, place: Place, identity: Identity, asked: Stamp) {
        self.saw(place.clone(), identity);
        let mut known = self.known();
        let key = (group, place);
        if let Some(&done) = known.done.get(&key) {
            assert!(done >= asked, "group {group} got {:?} at {asked}, which was acknowledged at {done}", key.1);
        }
        known.delivered.insert(key);
    }

    /// A group was told that it is done with a message.
    pub fn done(&self, group: &'static str, place: Place) {
        let stamp = self.now();
        let mut known = self.known();
        known.done.entry((group, place)).or_insert(stamp);
        known.acknowledgements += 1;
    }

    /// What lies in a queue, as far as anybody was told.
    pub fn messages_of(&self, queue: &str) -> BTreeMap<Place, Identity> {
        let known = self.known();
        known.messages.iter().filter(|(place, _)| place.queue == queue).map(|(place, id)| (place.clone(), *id)).collect()
    }

    /// For each partition the offset after the last one that the group was told is done; of use in ordered groups.
    pub fn cursors(&self, group: &'static str, queue: &str) -> BTreeMap<String, u64> {
        let mut cursors = BTreeMap::new();
        for (_, place) in self.known().done.keys().filter(|(of, place)| *of == group && place.queue == queue) {
            let next: &mut u64 = cursors.entry(place.partition.clone()).or_default();
            *next = (*next).max(place.offset + 1);
        }
        cursors
    }

    /// Whether a group has got a message.
    pub fn was_delivered(&self, group: &'static str, place: &Place) -> bool {
        self.known().delivered.contains(&(group, place.clone()))
    }

    pub fn totals(&self) -> Totals {
        let known = self.known();
        Totals { receipts: known.receipts, acknowledgements: known.acknowledgements, messages: known.messages.len() as u64 }
    }
}
