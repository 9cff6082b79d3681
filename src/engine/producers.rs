//! Recognising resends: the last pushes of each producer in each partition.

use std::collections::{HashMap, VecDeque};

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
        let producer = self.map.entry((partition, producer_id)).or_default();
        if epoch != producer.epoch {
            *producer = Producer { epoch, ..Producer::default() };
        }
        producer.used = self.clock;
        // One push may lie in several batches (when a duplicate inside it was left out): it is one push all the same.
        match producer.pushes.back_mut() {
            Some(last) if last.sequence == past.sequence => last.count += past.count,
            _ => producer.pushes.push_back(past),
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
        self.map.retain(|_, producer| producer.used > median);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
