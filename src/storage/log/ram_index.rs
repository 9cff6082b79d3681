//! The index of a segment that still grows, in memory; its sealed twin is [`crate::format::index`].

use std::collections::{BTreeMap, HashMap};

use crate::format::index::{Damage, IndexContent, IndexedBatch, IndexedId};
use crate::record::{GroupId, Matches, Offset, PartitionId};

/// Which batches of which partition lie where in a growing segment.
#[derive(Debug, Default)]
pub struct RamIndex {
    batches: Vec<IndexedBatch>,
    runs: HashMap<PartitionId, Run, rapidhash::fast::RandomState>,
    groups: BTreeMap<GroupId, Vec<u64>>,
    ids: Vec<ChainedId>,
    newest_id: HashMap<u64, u32, rapidhash::fast::RandomState>,
    damage: Vec<Damage>,
}

/// A partition's batches, as indexes into the list; most partitions of a busy queue have one in a segment.
#[derive(Debug)]
enum Run {
    One(u32),
    Many(Vec<u32>),
}

impl Run {
    fn as_slice(&self) -> &[u32] {
        match self {
            Self::One(at) => std::slice::from_ref(at),
            Self::Many(list) => list,
        }
    }

    fn push(&mut self, at: u32) {
        match self {
            Self::One(first) => *self = Self::Many(vec![*first, at]),
            Self::Many(list) => list.push(at),
        }
    }
}

#[derive(Debug)]
struct ChainedId {
    id: IndexedId,
    previous: Option<u32>,
}

impl RamIndex {
    /// Appends a batch: what each named group takes of it, and the hashes of its own transaction ids with their message's index.
    pub fn push(&mut self, batch: IndexedBatch, matches: &[(GroupId, Matches)], ids: &[(u64, u32)]) {
        let at = self.batches.len() as u32;
        self.batches.push(batch);
        self.runs.entry(batch.partition).and_modify(|run| run.push(at)).or_insert(Run::One(at));
        self.push_matches(at as usize, matches);
        for &(hash, message) in ids {
            let previous = self.newest_id.insert(hash, self.ids.len() as u32);
            self.ids.push(ChainedId { id: IndexedId { hash, batch: at, message }, previous });
        }
    }

    /// A group that no batch before has named took everything of those; one that this batch does not name takes all of it.
    fn push_matches(&mut self, at: usize, matches: &[(GroupId, Matches)]) {
        for &(group, _) in matches {
            self.groups.entry(group).or_insert_with(|| vec![u64::MAX; at / 64 + 1]);
        }
        let (word, bit) = (at / 64, 1u64 << (at % 64));
        for (group, bits) in &mut self.groups {
            bits.resize((word + 1).max(bits.len()), 0);
            let takes_nothing =
                matches.binary_search_by_key(group, |entry| entry.0).is_ok_and(|found| matches[found].1 == Matches::None);
            if takes_nothing {
                bits[word] &= !bit;
            } else {
                bits[word] |= bit;
            }
        }
    }

    /// Remembers a damaged range.
    pub fn push_damage(&mut self, damage: Damage) {
        self.damage.push(damage);
    }

    /// Damaged ranges.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// How many batches there are.
    pub fn batch_count(&self) -> usize {
        self.batches.len()
    }

    /// The batch at `at`, in order of the log.
    pub fn batch(&self, at: u32) -> Option<IndexedBatch> {
        self.batches.get(at as usize).copied()
    }

    /// Visits, in order, the partition's batches that end behind `from` and of which the group takes something, until the visitor
    /// says no. Returns whether it may go on in the next segment.
    pub fn visit(
        &self,
        partition: PartitionId,
        from: Offset,
        group: Option<GroupId>,
        visit: &mut dyn FnMut(IndexedBatch) -> bool,
    ) -> bool {
        let Some(run) = self.runs.get(&partition) else { return true };
        let run = run.as_slice();
        let bits = group.and_then(|group| self.groups.get(&group));
        let first = run.partition_point(|&at| self.batches[at as usize].next_offset() <= from);
        for &at in &run[first..] {
            let is_taken = bits.is_none_or(|bits| bits[at as usize / 64] & (1 << (at % 64)) != 0);
            if is_taken && !visit(self.batches[at as usize]) {
                return false;
            }
        }
        true
    }

    /// Whether there are own ids.
    pub fn has_ids(&self) -> bool {
        !self.ids.is_empty()
    }

    /// Batches and message indexes of own ids that hash to `hash`, newest first.
    pub fn ids(&self, hash: u64) -> impl Iterator<Item = (IndexedBatch, u32)> + '_ {
        let mut next = self.newest_id.get(&hash).copied();
        std::iter::from_fn(move || {
            let chained = &self.ids[next? as usize];
            next = chained.previous;
            Some((self.batches[chained.id.batch as usize], chained.id.message))
        })
    }

    /// The content of the index file for this segment.
    pub fn content(&self, incarnation: u64, segment: u32, end: u32, last_crc: u32, newest_at_us: u64) -> IndexContent {
        let mut order: Vec<u32> = (0..self.batches.len() as u32).collect();
        order.sort_unstable_by_key(|&at| (self.batches[at as usize].partition, at));
        let mut place = vec![0u32; order.len()];
        for (new, &old) in (0u32..).zip(&order) {
            place[old as usize] = new;
        }
        let groups = self.groups.iter().map(|(&group, bits)| (group, reorder(bits, &order))).collect();
        let mut ids: Vec<IndexedId> =
            self.ids.iter().map(|chained| IndexedId { batch: place[chained.id.batch as usize], ..chained.id }).collect();
        ids.sort_unstable();
        IndexContent {
            incarnation,
            segment,
            end,
            last_crc,
            newest_at_us,
            batches: order.iter().map(|&at| self.batches[at as usize]).collect(),
            groups,
            ids,
            damage: self.damage.clone(),
        }
    }
}

fn reorder(bits: &[u64], order: &[u32]) -> Vec<u64> {
    let mut sorted = vec![0u64; order.len().div_ceil(64)];
    for (new, &old) in order.iter().enumerate() {
        if bits[old as usize / 64] & (1 << (old % 64)) != 0 {
            sorted[new / 64] |= 1 << (new % 64);
        }
    }
    sorted
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::format::index::{SealedIndex, id_hash};

    /// The growing index and the sealed one made of it give the same answers.
    #[test]
    fn sealed_and_growing_agree() {
        let mut index = RamIndex::default();
        let mut next = [0u64; 3];
        for number in 0..200u32 {
            let partition = number * 7 % 3;
            let batch = IndexedBatch {
                base_offset: next[partition as usize],
                created_at_us: u64::from(number),
                position: 4096 + number * 200,
                length: 190,
                count: 1 + number % 4,
                partition,
            };
            next[partition as usize] = batch.next_offset();
            let matches = match number {
                0..50 => vec![],
                _ if number % 5 == 0 => vec![(1, Matches::All), (9, Matches::None)],
                _ => vec![(1, Matches::None)],
            };
            index.push(batch, &matches, &[(id_hash(partition, &number.to_le_bytes()), 0)]);
        }
        let sealed = SealedIndex::parse(Bytes::from(index.content(1, 2, 3, 4, 5).encode()), 1).unwrap();
        for partition in 0..4 {
            for group in [None, Some(1), Some(9), Some(77)] {
                for from in [0, 1, 40, 1000] {
                    let mut growing = Vec::new();
                    index.visit(partition, from, group, &mut |batch| {
                        growing.push(batch);
                        true
                    });
                    let mut found = Vec::new();
                    let mut range = sealed.find(partition, from);
                    let named = group.and_then(|group| sealed.group(group));
                    while let Some(at) = match named {
                        Some(named) => sealed.next_taken(named, range.clone()),
                        None => (!range.is_empty()).then_some(range.start),
                    } {
                        found.push(sealed.batch(at));
                        range.start = at + 1;
                    }
                    assert_eq!(growing, found, "partition {partition} group {group:?} from {from}");
                }
            }
        }
        for number in 0..200u32 {
            let hash = id_hash(number * 7 % 3, &number.to_le_bytes());
            let growing: Vec<_> = index.ids(hash).map(|(batch, _)| batch.position).collect();
            let found: Vec<_> = sealed.ids(hash).map(|id| sealed.batch(id.batch as usize).position).collect();
            assert_eq!((growing.len(), growing), (1, found));
        }
    }
}
