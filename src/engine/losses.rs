//! What retention takes from groups that have not acknowledged it.

use std::collections::BTreeMap;

use crate::record::{Offset, PartitionId};

use super::cache::BatchCache;
use super::group::{Group, PRIMARY, Slot};
use super::pop::group_view;
use super::read::count_taken;
use super::stage::Stage;

/// What one group lost in one sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Loss {
    pub messages: u64,
    pub partitions: u64,
}

/// The losses of a sweep by the name of the group.
#[derive(Debug, Default)]
pub(super) struct Losses {
    by_group: BTreeMap<String, Loss>,
}

impl Losses {
    /// Notes what goes when a partition's start moves to `start`: for each group the messages that it takes and has not acknowledged.
    /// What went before was noted then, also if the group has not heard of it yet.
    pub fn note(&mut self, stage: &Stage<'_>, cache: &BatchCache, id: PartitionId, start: Offset) {
        let Some(partition) = stage.state.partitions.get(id) else { return };
        for group in registered(stage.state.groups.values()) {
            let from = group.next(id, partition, stage.log).max(partition.start);
            if from >= start {
                continue;
            }
            let done = match group.slot(id) {
                Some(Slot::Active(active)) => active.delivery.visible().done_above().clone(),
                _ => Default::default(),
            };
            let messages = if group.is_unfiltered() {
                done.gaps(from, start).map(|free| free.last - free.first + 1).sum()
            } else {
                let view = group_view(group);
                // What cannot be read may have been for the group.
                count_taken(stage.log, cache, id, &view, (from, start), &done, partition.first_segment).unwrap_or(start - from)
            };
            if messages > 0 {
                let loss = self.by_group.entry(group.name().to_owned()).or_default();
                loss.messages += messages;
                loss.partitions += 1;
            }
        }
    }

    /// Messages over all groups.
    pub fn messages(&self) -> u64 {
        self.by_group.values().map(|loss| loss.messages).sum()
    }

    /// Tells the operator, a line for each group.
    pub fn warn(&self, queue: &str) {
        for (group, loss) in &self.by_group {
            let Loss { messages, partitions } = loss;
            tracing::warn!(queue, group, messages, partitions, "retention removed messages that the group had not acknowledged");
        }
    }
}

/// Groups that read the queue: all but a primary group that nobody has popped for.
pub(super) fn registered<'g>(groups: impl Iterator<Item = &'g Group>) -> impl Iterator<Item = &'g Group> {
    groups.filter(|group| group.record.id != PRIMARY || group.record.start.is_some())
}
