//! Recognising resends: the last pushes of each producer in each partition.

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::format::control::ControlOp;
use crate::record::{Offset, PartitionId};

/// How many pushes back a resend is recognised; a producer may have so many under way in one partition.
const PUSHES_KEPT: usize = 8;
/// Producers (in a partition) that are remembered; the one longest without a push goes first.
const PRODUCERS_MAX: usize = 262_144;

/// What became of a push before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Past {
    pub sequence: u32,
    /// Offset of its first stored message.
    pub base: Offset,
    /// Messages stored.
    pub count: u32,
}

/// Whether a push may be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is the next one.
    New,
    /// It was stored before.
    Resent(Past),
    /// It neither follows the last one nor is it one of the last; the number is the one expected.
    OutOfSequence(u32),
}

#[derive(Debug, Default)]
struct Producer {
    epoch: u32,
    pushes: VecDeque<Past>,
    used: u64,
}

/// The producers of a queue.
#[derive(Debug, Default)]
pub(super) struct Producers {
    map: HashMap<(PartitionId, u64), Producer, rapidhash::fast::RandomState>,
    clock: u64,
    /// Those that the next checkpoint must write, by partition and folded id.
    dirty: BTreeSet<(PartitionId, u32)>,
    /// Which producers fold to the same number.
    folded: HashMap<(PartitionId, u32), Vec<u64>, rapidhash::fast::RandomState>,
}

impl Producers {
    /// Judges a push.
    pub fn check(&self, partition: PartitionId, producer_id: u64, epoch: u32, sequence: u32) -> Verdict {
        let Some(producer) = self.map.get(&(partition, producer_id)) else { return Verdict::New };
        if epoch > producer.epoch {
            return Verdict::New;
        }
        let Some(last) = producer.pushes.back() else { return Verdict::New };
        let expected = last.sequence.wrapping_add(1);
        if epoch == producer.epoch && sequence == expected {
            return Verdict::New;
        }
        let past = producer.pushes.iter().rev().find(|past| past.sequence == sequence);
        match past {
            Some(&past) if epoch == producer.epoch => Verdict::Resent(past),
            _ => Verdict::OutOfSequence(expected),
        }
    }

    /// Remembers a push.
    pub fn record(&mut self, partition: PartitionId, producer_id: u64, epoch: u32, past: Past) {
        self.clock += 1;
        if self.map.len() >= PRODUCERS_MAX && !self.map.contains_key(&(partition, producer_id)) {
            self.forget_oldest();
        }
        let at = (partition, fold(producer_id));
        self.dirty.insert(at);
        let same = self.folded.entry(at).or_default();
        if !same.contains(&producer_id) {
            same.push(producer_id);
        }
        let producer = self.map.entry((partition, producer_id)).or_default();
        if epoch < producer.epoch {
            return;
        }
        if epoch != producer.epoch {
            *producer = Producer { epoch, ..Producer::default() };
        }
        producer.used = self.clock;
        match producer.pushes.iter_mut().find(|known| known.sequence == past.sequence) {
            // A push that had stored nothing was repeated, and this time it did.
            Some(known) if known.count == 0 => *known = past,
            // A push may lie in several batches. What a replay meets again changes nothing.
            Some(known) if past.base == known.base + u64::from(known.count) => known.count += past.count,
            Some(_) => {}
            None => producer.pushes.push_back(past),
        }
        if producer.pushes.len() > PUSHES_KEPT {
            producer.pushes.pop_front();
        }
    }

    /// Half of them at once, so that the cost of finding the oldest is spread over many pushes.
    fn forget_oldest(&mut self) {
        let mut used: Vec<u64> = self.map.values().map(|producer| producer.used).collect();
        let middle = used.len() / 2;
        let (_, &mut median, _) = used.select_nth_unstable(middle);
        let gone: Vec<_> = self.map.iter().filter(|(_, producer)| producer.used <= median).map(|(&key, _)| key).collect();
        gone.into_iter().for_each(|(partition, id)| self.forget(partition, id));
    }

    fn forget(&mut self, partition: PartitionId, id: u64) {
        self.map.remove(&(partition, id));
        let at = (partition, fold(id));
        self.dirty.insert(at);
        if let Some(same) = self.folded.get_mut(&at) {
            same.retain(|&other| other != id);
            if same.is_empty() {
                self.folded.remove(&at);
            }
        }
    }

    /// Forgets the producers of a partition that is gone.
    pub fn remove_partition(&mut self, partition: PartitionId) {
        let gone: Vec<_> = self.map.keys().filter(|key| key.0 == partition).copied().collect();
        gone.into_iter().for_each(|(partition, id)| self.forget(partition, id));
    }

    /// Takes what the checkpoint says of a producer.
    pub fn restore(&mut self, partition: PartitionId, producer_id: u64, epoch: u32, pushes: &[(u32, Offset, u32)]) {
        for &(sequence, base, count) in pushes {
            self.record(partition, producer_id, epoch, Past { sequence, base, count });
        }
    }

    /// What changed since the last call: (partition, folded id, what the checkpoint keeps of the producers with that number).
    pub fn take_dirty(&mut self) -> Vec<(PartitionId, u32, Option<Vec<ControlOp>>)> {
        let dirty = std::mem::take(&mut self.dirty);
        dirty.into_iter().map(|(partition, folded)| (partition, folded, self.senders(partition, folded))).collect()
    }

    /// All that the checkpoint keeps.
    pub fn all(&self) -> Vec<(PartitionId, u32, Vec<ControlOp>)> {
        let places = self.folded.keys();
        places.filter_map(|&(partition, folded)| Some((partition, folded, self.senders(partition, folded)?))).collect()
    }

    /// Puts back what a failed checkpoint took.
    pub fn mark_dirty(&mut self, partition: PartitionId, folded: u32) {
        self.dirty.insert((partition, folded));
    }

    fn senders(&self, partition: PartitionId, folded: u32) -> Option<Vec<ControlOp>> {
        let ids = self.folded.get(&(partition, folded))?;
        let sender = |&producer_id: &u64| {
            let producer = self.map.get(&(partition, producer_id))?;
            let pushes = producer.pushes.iter().map(|past| (past.sequence, past.base, past.count)).collect();
            Some(ControlOp::Sender { partition, producer_id, epoch: producer.epoch, pushes })
        };
        Some(ids.iter().filter_map(sender).collect())
    }
}

/// The halves of a producer's id, as the key of a checkpoint has room for.
fn fold(producer_id: u64) -> u32 {
    (producer_id >> 32) as u32 ^ producer_id as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A checkpoint that is written while pushes go on may be followed by a replay of what it has already.
    #[test]
    fn what_is_recorded_again_changes_nothing_and_the_checkpoint_gives_all_back() {
        let mut producers = Producers::default();
        // These two fold to the same number.
        for id in [1 << 32, 1] {
            producers.record(3, id, 1, Past { sequence: 4, base: 10, count: 2 });
            producers.record(3, id, 1, Past { sequence: 4, base: 12, count: 1 });
            producers.record(3, id, 1, Past { sequence: 5, base: 13, count: 1 });
            producers.record(3, id, 1, Past { sequence: 4, base: 10, count: 2 });
            producers.record(3, id, 0, Past { sequence: 9, base: 1, count: 1 });
        }
        let dirty = producers.take_dirty();
        assert_eq!((dirty.len(), producers.take_dirty().len(), producers.all().len()), (1, 0, 1));
        let mut restored = Producers::default();
        for operation in dirty.into_iter().flat_map(|(.., operations)| operations.unwrap_or_default()) {
            if let ControlOp::Sender { partition, producer_id, epoch, pushes } = operation {
                restored.restore(partition, producer_id, epoch, &pushes);
            }
        }
        for id in [1 << 32, 1] {
            let past = Past { sequence: 4, base: 10, count: 3 };
            assert_eq!(restored.check(3, id, 1, 4), Verdict::Resent(past));
            assert_eq!(restored.check(3, id, 1, 6), Verdict::New);
        }
        restored.take_dirty();
        restored.remove_partition(3);
        let gone = restored.take_dirty();
        assert!(gone.iter().all(|(.., senders)| senders.is_none()) && gone.len() == 1);
        assert_eq!(restored.check(3, 1, 1, 0), Verdict::New);
    }

    /// A push of which everything was dropped was repeated under its number and answered from a record without offsets.
    #[test]
    fn what_a_repeated_empty_push_stores_is_its_record() {
        let mut producers = Producers::default();
        producers.record(1, 9, 0, Past { sequence: 3, base: 0, count: 0 });
        let stored = Past { sequence: 3, base: 70, count: 2 };
        producers.record(1, 9, 0, stored);
        assert_eq!(producers.check(1, 9, 0, 3), Verdict::Resent(stored));
    }

    #[test]
    fn the_next_push_is_new_a_past_one_resent_and_a_gap_refused() {
        let mut producers = Producers::default();
        assert_eq!(producers.check(1, 9, 0, 5), Verdict::New);
        for sequence in 5..20 {
            let past = Past { sequence, base: u64::from(sequence) * 10, count: 10 };
            assert_eq!(producers.check(1, 9, 0, sequence), Verdict::New);
            producers.record(1, 9, 0, past);
            assert_eq!(producers.check(1, 9, 0, sequence), Verdict::Resent(past));
        }
        assert_eq!(producers.check(1, 9, 0, 5), Verdict::OutOfSequence(20));
        assert_eq!(producers.check(1, 9, 0, 21), Verdict::OutOfSequence(20));
        assert_eq!(producers.check(2, 9, 0, 5), Verdict::New);
        assert_eq!(producers.check(1, 9, 1, 0), Verdict::New);
        producers.record(1, 9, 1, Past { sequence: 0, base: 0, count: 1 });
        assert_eq!(producers.check(1, 9, 0, 20), Verdict::OutOfSequence(1));
    }
}
