//! What retention takes from groups that have not acknowledged it.

use std::collections::BTreeMap;

use crate::record::{Offset, PartitionId};

use super::cache::BatchCache;
use super::group::{Group, PRIMARY};
use super::pop::group_view;
use super::stage::Stage;
use super::unread::Unread;

/// What one group lost in one sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Loss {
    pub messages: u64,
    pub partitions: u64,
}

/// What a sweep removes unread, by the name of the group.
#[derive(Debug, Default)]
pub(super) struct RemovedUnread {
    by_group: BTreeMap<String, Loss>,
}

impl RemovedUnread {
    /// Notes what goes when a partition's start moves to `start`: for each group the messages that it takes and has not acknowledged.
    /// What went before was noted then, also if the group has not heard of it yet.
    pub fn note(&mut self, stage: &Stage<'_>, cache: &BatchCache, id: PartitionId, start: Offset) {
        let Some(partition) = stage.state.partitions.get(id) else { return };
        for group in registered(stage.state.groups.values()) {
            let unread = Unread::of(stage.state, group, id, partition, stage.log, start);
            // What cannot be read may have been for the group.
            let counted = unread.count(stage.log, cache, &group_view(group), group.is_unfiltered());
            let messages = counted.unwrap_or_else(|_| unread.offsets());
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
