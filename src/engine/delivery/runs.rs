//! Offsets by runs: a map from offsets to values that stores neighbours of equal value once.
//!
//! Leases, acknowledged offsets and delivery counts are nearly always long runs, so each operation costs by the runs that it
//! touches and not by the offsets in them.

use std::collections::BTreeMap;

use crate::model::OffsetRange;
use crate::record::Offset;

/// A map from offsets to values; neighbours of equal value are one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runs<V> {
    /// First offset of a run to its last offset and its value. Runs are disjoint; adjacent ones differ in value.
    runs: BTreeMap<Offset, (Offset, V)>,
}

/// A set of offsets.
pub type OffsetSet = Runs<()>;

impl<V> Default for Runs<V> {
    fn default() -> Self {
        Self { runs: BTreeMap::new() }
    }
}

impl<V: Copy + Eq> Runs<V> {
    /// Whether no offset has a value.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many runs there are.
    pub fn run_count(&self) -> usize {
        self.runs.len()
    }

    /// How many offsets have a value.
    pub fn count(&self) -> u64 {
        self.iter().map(|(range, _)| length(range)).sum()
    }

    /// How many offsets below `offset` have a value.
    pub fn count_below(&self, offset: Offset) -> u64 {
        let below = offset.checked_sub(1).map(|last| self.overlapping(OffsetRange { first: 0, last }));
        below.into_iter().flatten().map(|(range, _)| length(range)).sum()
    }

    /// The lowest offset that has a value.
    pub fn first(&self) -> Option<Offset> {
        self.runs.first_key_value().map(|(&first, _)| first)
    }

    /// The highest offset that has a value.
    pub fn last(&self) -> Option<Offset> {
        self.runs.last_key_value().map(|(_, &(last, _))| last)
    }

    /// The value of `offset`.
    pub fn get(&self, offset: Offset) -> Option<V> {
        let (_, &(last, value)) = self.runs.range(..=offset).next_back()?;
        (offset <= last).then_some(value)
    }

    /// Whether `offset` has a value.
    pub fn contains(&self, offset: Offset) -> bool {
        self.get(offset).is_some()
    }

    /// The runs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (OffsetRange, V)> + '_ {
        self.runs.iter().map(|(&first, &(last, value))| (OffsetRange { first, last }, value))
    }

    /// The parts of the runs that lie inside `range`, in ascending order.
    pub fn overlapping(&self, range: OffsetRange) -> impl Iterator<Item = (OffsetRange, V)> + '_ {
        let begin = self.runs.range(..=range.first).next_back().map_or(range.first, |(&first, _)| first);
        // `begin` may lie after the end of an inverted range, which a `BTreeMap` range refuses with a panic.
        let end = range.last.max(begin);
        self.runs.range(begin..=end).filter_map(move |(&first, &(last, value))| {
            let part = OffsetRange { first: first.max(range.first), last: last.min(range.last) };
            (part.first <= part.last).then_some((part, value))
        })
    }

    /// The stretches of `[from, to)` without a value, in ascending order.
    pub fn gaps(&self, from: Offset, to: Offset) -> impl Iterator<Item = OffsetRange> + '_ {
        let mut at = Some(from);
        std::iter::from_fn(move || {
            let mut first = at?;
            // The runs at and after the one that may cover `first`; adjacent runs of other values are stepped over.
            while let Some((_, &(last, _))) = self.runs.range(..=first).next_back()
                && first <= last
            {
                first = last.checked_add(1)?;
            }
            if first >= to {
                at = None;
                return None;
            }
            let next = self.runs.range(first..).next().map_or(to, |(&next, _)| next.min(to));
            at = Some(next);
            Some(OffsetRange { first, last: next - 1 })
        })
    }

    /// Gives every offset of `range` the value. An inverted range changes nothing.
    pub fn set(&mut self, range: OffsetRange, value: V) {
        if range.first > range.last {
            return;
        }
        if self.is_behind_all(range) {
            return self.append(range, value);
        }
        self.clear(range);
        let OffsetRange { mut first, mut last } = range;
        if let Some((&before, &(before_last, before_value))) = self.runs.range(..first).next_back()
            && before_last + 1 == first
            && before_value == value
        {
            first = before;
        }
        if let Some(after) = last.checked_add(1)
            && let Some(&(after_last, after_value)) = self.runs.get(&after)
            && after_value == value
        {
            self.runs.remove(&after);
            last = after_last;
        }
        self.runs.insert(first, (last, value));
    }

    /// Whether no offset at or behind the range's first has a value: as messages are read and claimed, nearly always.
    fn is_behind_all(&self, range: OffsetRange) -> bool {
        self.last().is_none_or(|last| last < range.first)
    }

    /// As [`Runs::set`], for a range that lies behind all others.
    fn append(&mut self, range: OffsetRange, value: V) {
        if let Some(mut newest) = self.runs.last_entry()
            && newest.get().0 + 1 == range.first
            && newest.get().1 == value
        {
            newest.get_mut().0 = range.last;
            return;
        }
        self.runs.insert(range.first, (range.last, value));
    }

    /// Takes the value from every offset of `range`; returns how many had one.
    pub fn clear(&mut self, range: OffsetRange) -> u64 {
        if range.first > range.last {
            return 0;
        }
        let covering = self.runs.range(..range.first).next_back().filter(|&(_, &(last, _))| last >= range.first);
        let begin = covering.map_or(range.first, |(&first, _)| first);
        let touched: Vec<_> = self.runs.range(begin..=range.last).map(|(&first, &(last, value))| (first, last, value)).collect();
        let mut cleared = 0u64;
        for (first, last, value) in touched {
            self.runs.remove(&first);
            let part = OffsetRange { first: first.max(range.first), last: last.min(range.last) };
            cleared = cleared.saturating_add(length(part));
            if first < part.first {
                self.runs.insert(first, (part.first - 1, value));
            }
            if last > part.last {
                self.runs.insert(part.last + 1, (last, value));
            }
        }
        cleared
    }

    /// Takes the value from every offset below `offset`; returns how many had one.
    pub fn clear_below(&mut self, offset: Offset) -> u64 {
        match offset.checked_sub(1) {
            Some(last) => self.clear(OffsetRange { first: 0, last }),
            None => 0,
        }
    }

    /// Takes the value from one offset; returns whether it had one.
    pub fn remove(&mut self, offset: Offset) -> bool {
        self.clear(OffsetRange { first: offset, last: offset }) == 1
    }

    /// Keeps the lowest `runs_max` runs.
    pub fn truncate(&mut self, runs_max: usize) {
        while self.runs.len() > runs_max {
            self.runs.pop_last();
        }
    }
}

impl OffsetSet {
    /// The offsets of one range.
    pub fn from_range(range: OffsetRange) -> Self {
        let mut set = Self::default();
        set.set(range, ());
        set
    }

    /// Adds an offset.
    pub fn insert(&mut self, offset: Offset) {
        self.set(OffsetRange { first: offset, last: offset }, ());
    }
}

impl FromIterator<Offset> for OffsetSet {
    fn from_iter<I: IntoIterator<Item = Offset>>(offsets: I) -> Self {
        let mut set = Self::default();
        offsets.into_iter().for_each(|offset| set.insert(offset));
        set
    }
}

impl Runs<u32> {
    /// Adds one to the value of every offset of `range`; no value counts as 0.
    pub fn increment(&mut self, range: OffsetRange) {
        if self.is_behind_all(range) {
            return self.set(range, 1);
        }
        let parts: Vec<_> = self.overlapping(range).collect();
        self.set(range, 1);
        for (part, value) in parts {
            self.set(part, value.saturating_add(1));
        }
    }

    /// Takes one from the value of every offset of `range`; what comes to 0 has no value.
    pub fn decrement(&mut self, range: OffsetRange) {
        let parts: Vec<_> = self.overlapping(range).collect();
        for (part, value) in parts {
            if value > 1 {
                self.set(part, value - 1);
            } else {
                self.clear(part);
            }
        }
    }
}

/// How many offsets a range has.
fn length(range: OffsetRange) -> u64 {
    (range.last - range.first).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: Offset, last: Offset) -> OffsetRange {
        OffsetRange { first, last }
    }

    fn xorshift(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn neighbours_of_equal_value_are_one_run() {
        let mut set: OffsetSet = [1, 3, 2, 7].into_iter().collect();
        assert_eq!(set.iter().map(|(run, ())| run).collect::<Vec<_>>(), [range(1, 3), range(7, 7)]);
        assert_eq!(set.count(), 4);
        assert!(set.remove(2) && !set.remove(2));
        assert_eq!(set.run_count(), 3);
    }

    #[test]
    fn the_ends_of_the_number_line_hold() {
        let mut set = OffsetSet::from_range(range(u64::MAX - 1, u64::MAX));
        set.insert(0);
        assert_eq!(set.gaps(0, u64::MAX).collect::<Vec<_>>(), [range(1, u64::MAX - 2)]);
        set.set(range(0, u64::MAX), ());
        assert_eq!(set.gaps(0, u64::MAX).next(), None);
        assert_eq!(set.clear_below(u64::MAX), u64::MAX);
        assert_eq!((set.first(), set.last()), (Some(u64::MAX), Some(u64::MAX)));
        assert_eq!(set.clear(range(5, 4)), 0);
        assert_eq!(set.overlapping(range(9, 3)).count(), 0);
    }

    /// Every operation against an array of counts.
    #[test]
    fn random_operations_agree_with_an_array() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        println!("seed {state:#x}");
        for _ in 0..200 {
            let (mut runs, mut array) = (Runs::<u32>::default(), [0u32; 40]);
            for _ in 0..60 {
                let first = xorshift(&mut state) % 40;
                let last = (first + xorshift(&mut state) % 12).min(39);
                let slice = &mut array[first as usize..=last as usize];
                match xorshift(&mut state) % 4 {
                    0 => {
                        runs.increment(range(first, last));
                        slice.iter_mut().for_each(|value| *value += 1);
                    }
                    1 => {
                        runs.decrement(range(first, last));
                        slice.iter_mut().for_each(|value| *value = value.saturating_sub(1));
                    }
                    2 => {
                        let had = slice.iter().filter(|&&value| value > 0).count() as u64;
                        assert_eq!(runs.clear(range(first, last)), had);
                        slice.fill(0);
                    }
                    _ => {
                        runs.set(range(first, last), 3);
                        slice.fill(3);
                    }
                }
                for (offset, &value) in array.iter().enumerate() {
                    assert_eq!(runs.get(offset as u64).unwrap_or(0), value);
                }
                let merged = array.chunk_by(|a, b| a == b).filter(|chunk| chunk[0] > 0).count();
                assert_eq!(runs.run_count(), merged);
                let zeros: u64 = array[first as usize..].iter().filter(|&&value| value == 0).count() as u64;
                let gaps: Vec<_> = runs.gaps(first, 40).collect();
                assert_eq!(gaps.iter().map(|&gap| length(gap)).sum::<u64>(), zeros);
                assert!(gaps.iter().all(|gap| (gap.first..=gap.last).all(|offset| array[offset as usize] == 0)));
            }
        }
    }
}
