//! The partitions of a queue: names, bounds, and in which order they were last pushed to.
//!
//! A queue may have a million of them, so one costs little: a hundred bytes and its name.

use hashbrown::HashTable;

use crate::format::control::PartitionRecord;
use crate::record::{Offset, PartitionId};

const NOBODY: PartitionId = PartitionId::MAX;

/// A partition.
#[derive(Debug)]
pub(super) struct Partition {
    name: Box<str>,
    /// The oldest offset kept.
    pub start: Offset,
    /// The offset after the newest committed message.
    pub end: Offset,
    /// Time of the newest message, microseconds since the Unix epoch; 0 if there never was one.
    pub newest_at_us: u64,
    /// No kept message lies in an older segment.
    pub first_segment: u32,
    /// The segment of the newest message.
    pub last_segment: u32,
    is_dirty: bool,
    is_removed: bool,
    /// Neighbours in the order of the last push.
    older: PartitionId,
    newer: PartitionId,
    /// When it was last pushed to, as a running number; 0 is never.
    active_at: u64,
}

impl Partition {
    /// The place of a partition that is not there.
    fn absent() -> Self {
        Self {
            name: Box::default(),
            start: 0,
            end: 0,
            newest_at_us: 0,
            first_segment: 0,
            last_segment: 0,
            is_dirty: false,
            is_removed: true,
            older: NOBODY,
            newer: NOBODY,
            active_at: 0,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Messages kept, gaps included.
    pub fn length(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// As the log and the checkpoint keep it.
    pub fn record(&self, id: PartitionId) -> PartitionRecord {
        PartitionRecord {
            id,
            name: self.name.to_string(),
            start: self.start,
            next: self.end,
            newest_at_us: self.newest_at_us,
            first_segment: self.first_segment,
            last_segment: self.last_segment,
        }
    }
}

/// All partitions of a queue.
#[derive(Debug)]
pub(super) struct Partitions {
    list: Vec<Partition>,
    by_name: HashTable<PartitionId>,
    hasher: rapidhash::fast::RandomState,
    newest: PartitionId,
    activity: u64,
    dirty: Vec<PartitionId>,
    live: u64,
}

impl Default for Partitions {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            by_name: HashTable::new(),
            hasher: rapidhash::fast::RandomState::default(),
            newest: NOBODY,
            activity: 0,
            dirty: Vec::new(),
            live: 0,
        }
    }
}

impl Partitions {
    /// How many there are.
    pub fn count(&self) -> u64 {
        self.live
    }

    /// The number that the next new partition takes.
    pub fn next_id(&self) -> PartitionId {
        self.list.len() as PartitionId
    }

    /// Sees to it that no new partition takes a number below `next`.
    pub fn reserve_ids(&mut self, next: PartitionId) {
        while self.list.len() < next as usize {
            self.list.push(Partition::absent());
        }
    }

    /// The partition of a name.
    pub fn find(&self, name: &str) -> Option<PartitionId> {
        use std::hash::BuildHasher;
        let hash = self.hasher.hash_one(name);
        self.by_name.find(hash, |&id| &*self.list[id as usize].name == name).copied()
    }

    /// The partition of a number.
    pub fn get(&self, id: PartitionId) -> Option<&Partition> {
        self.list.get(id as usize).filter(|partition| !partition.is_removed)
    }

    /// The partition of a number, to change; it will be in the next checkpoint.
    pub fn change(&mut self, id: PartitionId) -> Option<&mut Partition> {
        let partition = self.list.get_mut(id as usize).filter(|partition| !partition.is_removed)?;
        if !partition.is_dirty {
            partition.is_dirty = true;
            self.dirty.push(id);
        }
        Some(partition)
    }

    /// All of them in order of number, from one on.
    pub fn iter_from(&self, from: PartitionId) -> impl Iterator<Item = (PartitionId, &Partition)> {
        let rest = self.list.get(from as usize..).unwrap_or_default();
        (from..).zip(rest).filter(|(_, partition)| !partition.is_removed)
    }

    /// Puts in a partition, or moves the bounds of an existing one forward to what the record says: they never go back, so a record
    /// that a replay meets again changes nothing.
    pub fn put(&mut self, record: &PartitionRecord) {
        use std::hash::BuildHasher;
        let at = record.id as usize;
        self.reserve_ids(record.id.saturating_add(1));
        let is_new = self.list[at].is_removed;
        if is_new {
            self.list[at].is_removed = false;
            self.list[at].name = record.name.as_str().into();
            let hash = self.hasher.hash_one(record.name.as_str());
            let (list, hasher) = (&self.list, &self.hasher);
            self.by_name.insert_unique(hash, record.id, |&id| hasher.hash_one(&*list[id as usize].name));
            self.live += 1;
        }
        if let Some(partition) = self.change(record.id) {
            partition.start = partition.start.max(record.start);
            partition.end = partition.end.max(record.next);
            partition.newest_at_us = partition.newest_at_us.max(record.newest_at_us);
            partition.first_segment = partition.first_segment.max(record.first_segment);
            partition.last_segment = partition.last_segment.max(record.last_segment);
        }
    }

    /// Takes a partition out; its number is not given again.
    pub fn remove(&mut self, id: PartitionId) {
        use std::hash::BuildHasher;
        let Some(partition) = self.list.get(id as usize).filter(|partition| !partition.is_removed) else { return };
        let hash = self.hasher.hash_one(&*partition.name);
        if let Ok(entry) = self.by_name.find_entry(hash, |&other| other == id) {
            entry.remove();
        }
        self.unlink(id);
        let partition = &mut self.list[id as usize];
        partition.is_removed = true;
        partition.name = Box::default();
        partition.active_at = 0;
        if !partition.is_dirty {
            partition.is_dirty = true;
            self.dirty.push(id);
        }
        self.live -= 1;
    }

    /// Notes that the partition has new messages: it is now the newest in the order of activity.
    pub fn touch(&mut self, id: PartitionId) {
        self.unlink(id);
        self.activity += 1;
        let newest = self.newest;
        if let Some(partition) = self.list.get_mut(id as usize) {
            partition.older = newest;
            partition.newer = NOBODY;
            partition.active_at = self.activity;
        }
        if let Some(partition) = self.list.get_mut(newest as usize) {
            partition.newer = id;
        }
        self.newest = id;
    }

    fn unlink(&mut self, id: PartitionId) {
        let Some(partition) = self.list.get(id as usize).filter(|partition| partition.active_at != 0) else { return };
        let (older, newer) = (partition.older, partition.newer);
        if let Some(neighbour) = self.list.get_mut(older as usize) {
            neighbour.newer = newer;
        }
        match self.list.get_mut(newer as usize) {
            Some(neighbour) => neighbour.older = older,
            None => self.newest = older,
        }
    }

    /// The running number of the last activity.
    pub fn activity(&self) -> u64 {
        self.activity
    }

    /// Partitions that were pushed to after the activity numbered `seen`, oldest first. Costs what it returns.
    pub fn active_since(&self, seen: u64) -> Vec<PartitionId> {
        let mut found = Vec::new();
        let mut at = self.newest;
        while let Some(partition) = self.list.get(at as usize).filter(|partition| partition.active_at > seen) {
            found.push(at);
            at = partition.older;
        }
        found.reverse();
        found
    }

    /// Takes the list of those changed or removed since the last call.
    pub fn take_dirty(&mut self) -> Vec<PartitionId> {
        let dirty = std::mem::take(&mut self.dirty);
        for &id in &dirty {
            self.list[id as usize].is_dirty = false;
        }
        dirty
    }

    /// Puts back what a failed checkpoint took.
    pub fn mark_dirty(&mut self, id: PartitionId) {
        if let Some(partition) = self.list.get_mut(id as usize)
            && !partition.is_dirty
        {
            partition.is_dirty = true;
            self.dirty.push(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: PartitionId, name: &str) -> PartitionRecord {
        PartitionRecord { id, name: name.to_owned(), start: 0, next: 0, newest_at_us: 0, first_segment: 0, last_segment: 0 }
    }

    #[test]
    fn partitions_are_found_by_name_until_removed() {
        let mut partitions = Partitions::default();
        partitions.put(&record(0, "a"));
        partitions.put(&record(1, "b"));
        assert_eq!((partitions.find("b"), partitions.count()), (Some(1), 2));
        partitions.remove(1);
        assert_eq!((partitions.find("b"), partitions.count(), partitions.next_id()), (None, 1, 2));
        partitions.put(&record(2, "b"));
        assert_eq!(partitions.find("b"), Some(2));
    }

    #[test]
    fn bounds_never_go_back_and_numbers_are_not_given_twice() {
        let mut partitions = Partitions::default();
        partitions.put(&PartitionRecord { start: 2, next: 9, ..record(0, "a") });
        partitions.put(&record(0, "a"));
        assert_eq!(partitions.get(0).map(|found| (found.start, found.end)), Some((2, 9)));
        partitions.reserve_ids(5);
        assert_eq!((partitions.next_id(), partitions.count()), (5, 1));
        assert!(partitions.get(3).is_none());
    }

    #[test]
    fn activity_is_ordered_by_the_last_push() {
        let mut partitions = Partitions::default();
        for id in 0..4 {
            partitions.put(&record(id, &id.to_string()));
            partitions.touch(id);
        }
        assert_eq!(partitions.active_since(0), [0, 1, 2, 3]);
        let seen = partitions.activity();
        partitions.touch(2);
        partitions.touch(0);
        partitions.touch(2);
        assert_eq!(partitions.active_since(seen), [0, 2]);
        assert_eq!(partitions.active_since(0), [1, 3, 0, 2]);
        partitions.remove(3);
        assert_eq!(partitions.active_since(0), [1, 0, 2]);
    }
}
