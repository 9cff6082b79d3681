//! Which dead letters a queue has, and what they are found by. What is in them lies in the checkpoint, or waits to be written there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::record::{Offset, PartitionId};

use super::records::DeadLetterRecord;

/// What is known of a dead letter without reading it.
#[derive(Debug, Clone)]
pub(super) struct Letter {
    pub partition: PartitionId,
    pub offset: Offset,
    pub group: Arc<str>,
    pub failed_at_us: u64,
}

/// The dead letters of a queue: about 150 bytes of memory each, whatever their size.
#[derive(Debug, Default)]
pub(super) struct Letters {
    by_number: BTreeMap<u64, Letter>,
    by_time: BTreeSet<(u64, u64)>,
    by_message: BTreeSet<(PartitionId, Offset, u64)>,
}

impl Letters {
    /// Puts one in, or another in its place.
    pub fn insert(&mut self, id: u64, record: &DeadLetterRecord) {
        self.remove(id);
        // Letters come in rows of one group: its name is kept once for a row.
        let newest = self.by_number.last_key_value().map(|(_, letter)| &letter.group);
        let group = newest.filter(|group| ***group == *record.group).map_or_else(|| record.group.as_str().into(), Arc::clone);
        self.by_time.insert((record.failed_at_us, id));
        self.by_message.insert((record.partition, record.offset, id));
        let DeadLetterRecord { partition, offset, failed_at_us, .. } = *record;
        self.by_number.insert(id, Letter { partition, offset, group, failed_at_us });
    }

    /// Takes one out.
    pub fn remove(&mut self, id: u64) {
        if let Some(letter) = self.by_number.remove(&id) {
            self.by_time.remove(&(letter.failed_at_us, id));
            self.by_message.remove(&(letter.partition, letter.offset, id));
        }
    }

    /// Whether there is one of this number.
    pub fn contains(&self, id: u64) -> bool {
        self.by_number.contains_key(&id)
    }

    /// How many there are, of one group or in all.
    pub fn count(&self, group: Option<&str>) -> u64 {
        match group {
            None => self.by_number.len() as u64,
            Some(group) => self.by_number.values().filter(|letter| *letter.group == *group).count() as u64,
        }
    }

    /// Whether there is one of a message of the partition.
    pub fn has_partition(&self, partition: PartitionId) -> bool {
        self.by_message.range((partition, 0, 0)..=(partition, Offset::MAX, u64::MAX)).next().is_some()
    }

    /// The newest one of a message.
    pub fn of_message(&self, partition: PartitionId, offset: Offset) -> Option<u64> {
        self.by_message.range((partition, offset, 0)..=(partition, offset, u64::MAX)).next_back().map(|found| found.2)
    }

    /// When they failed and their numbers, newest first, of one group or all.
    pub fn newest_first<'a>(&'a self, group: Option<&'a str>) -> impl Iterator<Item = (u64, u64)> + 'a {
        let is_of_group =
            move |id: &u64| group.is_none_or(|group| self.by_number.get(id).is_some_and(|letter| *letter.group == *group));
        self.by_time.iter().rev().copied().filter(move |(_, id)| is_of_group(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(group: &str, partition: PartitionId, offset: Offset, failed_at_us: u64) -> DeadLetterRecord {
        DeadLetterRecord {
            partition,
            partition_name: String::new(),
            offset,
            group: group.to_owned(),
            reason: String::new(),
            delivery_count: 1,
            created_at_us: 0,
            failed_at_us,
            transaction_id: None,
            attributes: crate::record::Attributes::new(),
            payload: bytes::Bytes::new(),
        }
    }

    #[test]
    fn letters_are_found_by_number_time_group_and_message_until_they_are_removed() {
        let mut letters = Letters::default();
        letters.insert(1, &record("a", 3, 10, 50));
        letters.insert(2, &record("b", 3, 10, 70));
        letters.insert(3, &record("b", 4, 0, 60));
        letters.insert(1, &record("a", 3, 10, 80));
        assert_eq!(letters.newest_first(None).collect::<Vec<_>>(), [(80, 1), (70, 2), (60, 3)]);
        assert_eq!(letters.newest_first(Some("b")).collect::<Vec<_>>(), [(70, 2), (60, 3)]);
        assert_eq!((letters.count(None), letters.count(Some("b")), letters.count(Some("c"))), (3, 2, 0));
        assert_eq!((letters.of_message(3, 10), letters.of_message(3, 11), letters.of_message(4, 0)), (Some(2), None, Some(3)));
        letters.remove(2);
        letters.remove(3);
        letters.remove(3);
        assert_eq!((letters.of_message(3, 10), letters.has_partition(3), letters.has_partition(4)), (Some(1), true, false));
        assert!(letters.contains(1) && !letters.contains(2));
    }
}
