//! How many messages of a queue are waiting, being worked on and done, over all its groups: one definition for every route.
//!
//! A message is pending as long as the group that is furthest behind has not done it. The primary group counts only where it is
//! used or nobody else reads, so that one pop without a group does not leave a backlog on the screen for ever.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::engine::Engine;
use crate::model::{CursorProgress, GroupProgress, Now, PRIMARY_GROUP, QueueInfo};
use crate::record::PartitionId;

use super::cursors;

/// Messages by what became of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    pub(super) total: u64,
    pub(super) pending: u64,
    pub(super) processing: u64,
    pub(super) dead_letter: u64,
    /// Age of the oldest message that is not done, in microseconds.
    pub(super) lag_time_us: u64,
}

impl Counts {
    pub(super) fn completed(&self) -> u64 {
        self.total.saturating_sub(self.pending).saturating_sub(self.processing)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "total": self.total, "pending": self.pending, "processing": self.processing, "completed": self.completed(),
            "failed": 0, "deadLetter": self.dead_letter,
        })
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.total += other.total;
        self.pending += other.pending;
        self.processing += other.processing;
        self.dead_letter += other.dead_letter;
        self.lag_time_us = self.lag_time_us.max(other.lag_time_us);
    }

    /// Takes what is in flight out of a lag.
    fn of(total: u64, lag: u64, in_flight: u64) -> Self {
        let processing = in_flight.min(lag);
        Self { total, pending: lag - processing, processing, ..Self::default() }
    }
}

/// The groups of a queue whose lag says something.
pub(super) fn counted(groups: Vec<GroupProgress>) -> Vec<GroupProgress> {
    let is_named = |group: &GroupProgress| group.group.name != PRIMARY_GROUP;
    let has_named = groups.iter().any(is_named);
    groups.into_iter().filter(|group| is_named(group) || group.cursors > 0 || !has_named).collect()
}

/// The counts of a queue.
pub(super) fn of_queue(engine: &Engine, queue: &QueueInfo) -> Counts {
    let groups = counted(engine.progress(&queue.name, Now::read()).unwrap_or_default());
    let behind = groups.iter().max_by_key(|group| group.lag);
    let mut counts = match behind {
        None => Counts::of(queue.stats.messages, queue.stats.messages, 0),
        Some(group) => {
            // Only a group with leases has messages in flight, and only then its cursors are looked at.
            let in_flight = match group.leases {
                0 => 0,
                _ => cursors::cursors(engine, &queue.name, &group.group.name).iter().map(|cursor| cursor.in_flight).sum(),
            };
            Counts::of(queue.stats.messages, group.lag, in_flight)
        }
    };
    counts.dead_letter = queue.stats.dead_letters;
    counts.lag_time_us = groups.iter().map(|group| group.lag_time_us).max().unwrap_or(0);
    counts
}

/// For each partition that a group has a cursor in, the cursor that is furthest behind.
pub(super) fn by_partition(engine: &Engine, queue: &str) -> HashMap<PartitionId, CursorProgress> {
    let mut furthest: HashMap<PartitionId, CursorProgress> = HashMap::new();
    for group in counted(engine.progress(queue, Now::read()).unwrap_or_default()) {
        for cursor in cursors::cursors(engine, queue, &group.group.name) {
            match furthest.get(&cursor.partition_id) {
                Some(other) if other.lag >= cursor.lag => {}
                _ => drop(furthest.insert(cursor.partition_id, cursor)),
            }
        }
    }
    furthest
}

/// The counts of a partition with `messages` messages, given the cursor that is furthest behind.
pub(super) fn of_partition(messages: u64, cursor: Option<&CursorProgress>) -> Counts {
    match cursor {
        None => Counts::of(messages, messages, 0),
        Some(cursor) => Counts { lag_time_us: cursor.lag_time_us, ..Counts::of(messages, cursor.lag, cursor.in_flight) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_in_one_state() {
        for (total, lag, in_flight) in [(10, 4, 1), (10, 0, 0), (10, 10, 12), (3, 5, 0)] {
            let counts = Counts::of(total, lag, in_flight);
            assert_eq!(counts.pending + counts.processing, lag);
            assert_eq!(counts.completed(), total.saturating_sub(lag));
        }
        assert_eq!(of_partition(3, None).pending, 3);
    }
}
