//! The remarks that a queue keeps, found by name and by message.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::model::TraceEvent;
use crate::record::PartitionId;

/// Traces that a queue keeps; the oldest go.
const TRACES_MAX: usize = 10_000;

/// The remarks of a queue.
#[derive(Debug, Default)]
pub(super) struct Traces {
    by_number: BTreeMap<u64, TraceEvent>,
    by_name: BTreeMap<String, BTreeSet<u64>>,
    by_message: HashMap<(PartitionId, String), BTreeSet<u64>>,
}

impl Traces {
    /// Puts one in, or another in its place; those that go for it.
    pub fn insert(&mut self, id: u64, event: TraceEvent) -> Vec<u64> {
        self.remove(id);
        for name in &event.names {
            self.by_name.entry(name.clone()).or_default().insert(id);
        }
        self.by_message.entry((event.partition_id, event.transaction_id.clone())).or_default().insert(id);
        self.by_number.insert(id, event);
        let mut gone = Vec::new();
        while self.by_number.len() > TRACES_MAX
            && let Some((&oldest, _)) = self.by_number.first_key_value()
        {
            self.remove(oldest);
            gone.push(oldest);
        }
        gone
    }

    /// Takes one out.
    pub fn remove(&mut self, id: u64) {
        let Some(event) = self.by_number.remove(&id) else { return };
        for name in &event.names {
            if let Some(ids) = self.by_name.get_mut(name) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.by_name.remove(name);
                }
            }
        }
        let message = (event.partition_id, event.transaction_id);
        if let Some(ids) = self.by_message.get_mut(&message) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_message.remove(&message);
            }
        }
    }

    /// All of them by number.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &TraceEvent)> {
        self.by_number.iter().map(|(&id, event)| (id, event))
    }

    /// Those under a name, newest first.
    pub fn named(&self, name: &str) -> impl Iterator<Item = &TraceEvent> {
        let ids = self.by_name.get(name).into_iter().flat_map(|ids| ids.iter().rev());
        ids.filter_map(|id| self.by_number.get(id))
    }

    /// Those on a message, oldest first.
    pub fn of_message(&self, partition: PartitionId, transaction_id: &str) -> impl Iterator<Item = &TraceEvent> {
        let ids = self.by_message.get(&(partition, transaction_id.to_owned()));
        ids.into_iter().flatten().filter_map(|id| self.by_number.get(id))
    }

    /// The names, with how many each has.
    pub fn names(&self) -> impl Iterator<Item = (&str, u64)> {
        self.by_name.iter().map(|(name, ids)| (name.as_str(), ids.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(partition_id: PartitionId, id: &str, names: &[&str]) -> TraceEvent {
        TraceEvent {
            partition_id,
            transaction_id: id.to_owned(),
            group: String::new(),
            names: names.iter().map(|&name| name.to_owned()).collect(),
            event_type: String::new(),
            data: bytes::Bytes::new(),
            worker_id: String::new(),
            created_at_us: 0,
        }
    }

    #[test]
    fn remarks_are_found_by_name_and_message_until_they_go() {
        let mut traces = Traces::default();
        assert!(traces.insert(1, event(0, "a", &["x", "y"])).is_empty());
        traces.insert(2, event(0, "b", &["x", "x"]));
        traces.insert(3, event(1, "a", &[]));
        assert_eq!(traces.named("x").map(|found| found.transaction_id.as_str()).collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!(
            (traces.of_message(0, "a").count(), traces.of_message(1, "a").count(), traces.of_message(2, "a").count()),
            (1, 1, 0)
        );
        assert_eq!(traces.names().collect::<Vec<_>>(), [("x", 2), ("y", 1)]);
        traces.remove(1);
        traces.remove(1);
        assert_eq!((traces.named("y").count(), traces.named("x").count(), traces.of_message(0, "a").count()), (0, 1, 0));
        assert_eq!((traces.by_name.len(), traces.by_message.len()), (1, 2));
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let mut traces = Traces::default();
        for id in 0..TRACES_MAX as u64 {
            assert!(traces.insert(id, event(0, &id.to_string(), &["all"])).is_empty());
        }
        assert_eq!(traces.insert(TRACES_MAX as u64, event(0, "last", &["all"])), [0]);
        assert_eq!(
            (traces.iter().count(), traces.named("all").count(), traces.of_message(0, "0").count()),
            (TRACES_MAX, TRACES_MAX, 0)
        );
    }
}
