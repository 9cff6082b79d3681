//! Proof that what came out is what went in: every message once, in order, unchanged, where it belongs.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use serde::Serialize;

use super::payload::{Reading, Stamp};

/// Who pushes where. With at least as many partitions as connections each partition has one connection, else each connection has
/// one partition; so a connection and a partition always make one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Connections that push.
    pub connections: u32,
    /// Partitions that they push to.
    pub partitions: u32,
}

impl Layout {
    /// The partitions that a connection pushes to, one push each in turn.
    pub fn partitions_of(self, connection: u32) -> Vec<u32> {
        if self.partitions >= self.connections {
            (connection..self.partitions).step_by(self.connections as usize).collect()
        } else {
            vec![connection % self.partitions]
        }
    }

    /// The sequence that a connection's messages in a partition make; `None` if that connection does not push there.
    fn sequence(self, connection: u32, partition: u32) -> Option<usize> {
        if connection >= self.connections || partition >= self.partitions {
            return None;
        }
        if self.partitions >= self.connections {
            (partition % self.connections == connection).then_some(partition as usize)
        } else {
            (connection % self.partitions == partition).then_some(connection as usize)
        }
    }

    fn sequences(self) -> usize {
        self.partitions.max(self.connections) as usize
    }
}

/// A set of small numbers.
#[derive(Debug, Clone, Default)]
pub struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// Adds a number; whether it is new.
    pub fn add(&mut self, number: u32) -> bool {
        let (word, bit) = (number as usize / 64, 1u64 << (number % 64));
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let is_new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        is_new
    }

    /// Whether a number is in it.
    pub fn has(&self, number: u32) -> bool {
        self.words.get(number as usize / 64).is_some_and(|word| word & (1 << (number % 64)) != 0)
    }
}

/// What a connection pushed.
#[derive(Debug, Clone, Default)]
pub struct Pushed {
    /// Messages that were answered: sequence numbers below this.
    pub count: u32,
    /// Those of them that no group wanted, and that were not stored.
    pub dropped: Bits,
}

/// Which of each connection's messages a group takes, by place in its stock; `None` is all.
pub type Takes = Option<Vec<Vec<bool>>>;

fn takes(takes: &Takes, connection: u32, sequence: u32) -> bool {
    match takes {
        None => true,
        Some(takes) => takes
            .get(connection as usize)
            .and_then(|slots| slots.get(sequence as usize % slots.len().max(1)))
            .copied()
            .unwrap_or(false),
    }
}

/// What went wrong, by number of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Faults {
    /// Answered for, and never delivered.
    pub lost: u64,
    /// Delivered more than once.
    pub repeated: u64,
    /// Delivered after a later one of the same connection and partition.
    pub out_of_order: u64,
    /// Not the bytes that were pushed.
    pub altered: u64,
    /// In a partition that they were not pushed to, or never pushed.
    pub misplaced: u64,
    /// Delivered to a group whose filter does not take them.
    pub unexpected: u64,
    /// Acknowledgements that the server refused.
    pub refused: u64,
}

impl Faults {
    /// Whether nothing went wrong.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Sums.
    pub fn add(&mut self, other: &Self) {
        self.lost += other.lost;
        self.repeated += other.repeated;
        self.out_of_order += other.out_of_order;
        self.altered += other.altered;
        self.misplaced += other.misplaced;
        self.unexpected += other.unexpected;
        self.refused += other.refused;
    }
}

/// The last message of each sequence, where deliveries must come in order.
#[derive(Debug)]
pub struct Order {
    /// The next sequence number at least.
    next: Vec<u32>,
}

impl Order {
    /// Nothing has come.
    pub fn new(layout: Layout) -> Self {
        Self { next: vec![0; layout.sequences()] }
    }

    fn take(&mut self, sequence: usize, number: u32) -> bool {
        let is_later = number >= self.next[sequence];
        self.next[sequence] = number.saturating_add(1).max(self.next[sequence]);
        is_later
    }
}

/// What a message that came is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noted {
    /// One of this run, where it belongs.
    Ours(Stamp),
    /// One that was changed, or that came from where it was not pushed to.
    Faulty,
    /// Somebody else's.
    Foreign,
}

/// What one reader, or one group, has seen.
#[derive(Debug)]
pub struct Ledger {
    run: u32,
    layout: Layout,
    takes: Takes,
    /// Whether all messages of the queue must be ours.
    is_alone: bool,
    seen: Vec<Bits>,
    order: Order,
    faults: Faults,
    checked: u64,
}

impl Ledger {
    /// Nothing seen.
    pub fn new(run: u32, layout: Layout, takes: Takes, is_alone: bool) -> Self {
        let seen = vec![Bits::default(); layout.connections as usize];
        Self { run, layout, takes, is_alone, seen, order: Order::new(layout), faults: Faults::default(), checked: 0 }
    }

    /// Checks a message that came from a partition. `order` is used instead of the ledger's own where the group's deliveries come over
    /// several connections in no order.
    pub fn note(&mut self, partition: Option<u32>, payload: &[u8], order: Option<&mut Order>) -> Noted {
        let stamp = match Stamp::read(payload) {
            Reading::Whole(stamp) if stamp.run == self.run => stamp,
            _ if self.is_alone => {
                self.faults.altered += 1;
                return Noted::Faulty;
            }
            _ => return Noted::Foreign,
        };
        self.checked += 1;
        let connection = u32::from(stamp.connection);
        let Some(sequence) = partition.and_then(|partition| self.layout.sequence(connection, partition)) else {
            self.faults.misplaced += 1;
            return Noted::Faulty;
        };
        if !self.seen[connection as usize].add(stamp.sequence) {
            self.faults.repeated += 1;
        } else if !order.unwrap_or(&mut self.order).take(sequence, stamp.sequence) {
            self.faults.out_of_order += 1;
        }
        if !takes(&self.takes, connection, stamp.sequence) {
            self.faults.unexpected += 1;
        }
        Noted::Ours(stamp)
    }

    /// Notes an acknowledgement that was refused.
    pub fn note_refused(&mut self) {
        self.faults.refused += 1;
    }

    /// Messages of this run that came.
    pub fn checked(&self) -> u64 {
        self.checked
    }

    /// What went wrong, when nothing more will come. Counts as lost what was pushed, is taken and never came; as misplaced what came
    /// and was never answered for.
    pub fn faults(&self, pushed: &[Pushed]) -> Faults {
        let mut faults = self.faults;
        for ((pushed, seen), connection) in pushed.iter().zip(&self.seen).zip(0u32..) {
            let wanted = |sequence: &u32| takes(&self.takes, connection, *sequence) && !pushed.dropped.has(*sequence);
            faults.lost += (0..pushed.count).filter(wanted).filter(|&sequence| !seen.has(sequence)).count() as u64;
            let end = u32::try_from(seen.words.len() * 64).unwrap_or(u32::MAX);
            faults.misplaced += (pushed.count..end).filter(|&sequence| seen.has(sequence)).count() as u64;
        }
        faults
    }
}

/// How many messages of what was pushed a group takes.
pub fn count_taken(group: &Takes, pushed: &[Pushed]) -> u64 {
    let of = |(pushed, connection): (&Pushed, u32)| {
        (0..pushed.count).filter(|&sequence| takes(group, connection, sequence) && !pushed.dropped.has(sequence)).count() as u64
    };
    pushed.iter().zip(0u32..).map(of).sum()
}

/// A group that is being read.
#[derive(Debug)]
pub struct GroupWatch {
    /// Its name.
    pub name: String,
    /// What it has seen.
    pub ledger: Mutex<Ledger>,
    /// Messages that came.
    pub received: AtomicU64,
    /// Messages that must come; more than will ever be while that is not known.
    pub expected: AtomicU64,
    /// When the last of them came.
    pub completed_at: OnceLock<Instant>,
}

impl GroupWatch {
    /// A group of which nothing has come.
    pub fn new(name: String, ledger: Ledger, expected: u64) -> Self {
        Self {
            name,
            ledger: Mutex::new(ledger),
            received: AtomicU64::new(0),
            expected: AtomicU64::new(expected),
            completed_at: OnceLock::new(),
        }
    }

    /// Takes note of messages that came.
    pub fn receive(&self, count: u64, now: Instant) {
        self.received.fetch_add(count, Relaxed);
        if self.is_complete() {
            self.completed_at.get_or_init(|| now);
        }
    }

    /// Whether all has come.
    pub fn is_complete(&self) -> bool {
        self.received.load(Relaxed) >= self.expected.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::payload::{Content, Samples, content_crc};
    use super::*;

    fn message(connection: u16, sequence: u32) -> Vec<u8> {
        let mut payload = Samples::new(1, 100, Content::Json).sample().payload.to_vec();
        Stamp { run: 7, connection, sequence, sent_ns: 1 }.write(content_crc(&payload), &mut payload);
        payload
    }

    fn pushed(counts: [u32; 2]) -> Vec<Pushed> {
        counts.iter().map(|&count| Pushed { count, dropped: Bits::default() }).collect()
    }

    const LAYOUT: Layout = Layout { connections: 2, partitions: 4 };

    fn faults_of(messages: &[(u32, Vec<u8>)], counts: [u32; 2]) -> Faults {
        let mut ledger = Ledger::new(7, LAYOUT, None, true);
        for (partition, message) in messages {
            ledger.note(Some(*partition), message, None);
        }
        ledger.faults(&pushed(counts))
    }

    #[test]
    fn each_fault_is_counted_as_itself() {
        let good = [(0, message(0, 0)), (2, message(0, 1)), (1, message(1, 0)), (0, message(0, 2))];
        assert_eq!(faults_of(&good, [3, 1]), Faults::default());
        assert_eq!(faults_of(&good, [4, 2]), Faults { lost: 2, ..Faults::default() });
        assert_eq!(faults_of(&good, [2, 1]), Faults { misplaced: 1, ..Faults::default() });
        let repeated = [(0, message(0, 0)), (0, message(0, 0)), (1, message(1, 0))];
        assert_eq!(faults_of(&repeated, [1, 1]), Faults { repeated: 1, ..Faults::default() });
        let swapped = [(0, message(0, 1)), (0, message(0, 0)), (1, message(1, 0))];
        assert_eq!(faults_of(&swapped, [2, 1]), Faults { out_of_order: 1, ..Faults::default() });
        let elsewhere = [(1, message(0, 0)), (1, message(1, 0))];
        assert_eq!(faults_of(&elsewhere, [1, 1]), Faults { misplaced: 1, lost: 1, ..Faults::default() });
        let mut bent = message(0, 0);
        bent[80] ^= 1;
        assert_eq!(faults_of(&[(0, bent), (1, message(1, 0))], [1, 1]), Faults { altered: 1, lost: 1, ..Faults::default() });
    }

    #[test]
    fn a_filter_says_what_must_come_and_what_must_not() {
        let takes = Some(vec![vec![true, false], vec![false, true]]);
        let mut ledger = Ledger::new(7, LAYOUT, takes.clone(), true);
        ledger.note(Some(0), &message(0, 0), None);
        ledger.note(Some(1), &message(1, 0), None);
        let faults = ledger.faults(&pushed([2, 2]));
        assert_eq!(faults, Faults { lost: 1, unexpected: 1, ..Faults::default() });
        assert_eq!(count_taken(&takes, &pushed([3, 3])), 3);
        let mut some = pushed([3, 3]);
        some[0].dropped.add(2);
        assert_eq!(count_taken(&takes, &some), 2);
    }

    #[test]
    fn other_messages_of_a_shared_queue_do_not_count() {
        let mut ledger = Ledger::new(8, LAYOUT, None, false);
        assert_eq!(ledger.note(Some(0), &message(0, 0), None), Noted::Foreign);
        assert_eq!(ledger.note(None, b"something else", None), Noted::Foreign);
        assert_eq!((ledger.checked(), ledger.faults(&pushed([0, 0]))), (0, Faults::default()));
    }

    #[test]
    fn every_partition_and_connection_makes_one_sequence() {
        for (connections, partitions) in [(1, 1), (4, 1), (4, 3), (3, 4), (2, 8)] {
            let layout = Layout { connections, partitions };
            let mut sequences: Vec<usize> = (0..connections)
                .flat_map(|connection| layout.partitions_of(connection).into_iter().map(move |partition| (connection, partition)))
                .map(|(connection, partition)| layout.sequence(connection, partition).unwrap())
                .collect();
            sequences.sort_unstable();
            assert_eq!(sequences, (0..layout.sequences()).collect::<Vec<_>>());
        }
    }
}
