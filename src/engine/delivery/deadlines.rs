//! Deadlines by key and by time.

use std::collections::{BTreeMap, BTreeSet};

/// Moments (microseconds of the steady clock) at which something ends, one for each key.
#[derive(Debug, Clone)]
pub(super) struct Deadlines<K> {
    by_key: BTreeMap<K, u64>,
    by_time: BTreeSet<(u64, K)>,
}

impl<K> Default for Deadlines<K> {
    fn default() -> Self {
        Self { by_key: BTreeMap::new(), by_time: BTreeSet::new() }
    }
}

impl<K: Copy + Ord> Deadlines<K> {
    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    pub(super) fn get(&self, key: K) -> Option<u64> {
        self.by_key.get(&key).copied()
    }

    /// The earliest moment.
    pub(super) fn earliest(&self) -> Option<u64> {
        self.by_time.first().map(|&(at, _)| at)
    }

    pub(super) fn set(&mut self, key: K, at: u64) {
        self.remove(key);
        self.by_key.insert(key, at);
        self.by_time.insert((at, key));
    }

    pub(super) fn remove(&mut self, key: K) {
        if let Some(at) = self.by_key.remove(&key) {
            self.by_time.remove(&(at, key));
        }
    }

    /// Takes out one key whose moment has come: a deadline has passed at the very moment that it names.
    pub(super) fn pop_due(&mut self, now_us: u64) -> Option<K> {
        let &(at, key) = self.by_time.first()?;
        if at > now_us {
            return None;
        }
        self.remove(key);
        Some(key)
    }

    pub(super) fn remove_below(&mut self, key: K) {
        while let Some((&lowest, _)) = self.by_key.first_key_value()
            && lowest < key
        {
            self.remove(lowest);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_deadline_counts_once() {
        let mut deadlines = Deadlines::default();
        deadlines.set('a', 10);
        deadlines.set('b', 20);
        deadlines.set('a', 30);
        assert_eq!((deadlines.earliest(), deadlines.get('a')), (Some(20), Some(30)));
        assert_eq!(deadlines.pop_due(19), None);
        assert_eq!(deadlines.pop_due(20), Some('b'));
        assert_eq!(deadlines.pop_due(29), None);
        deadlines.remove('a');
        assert!(deadlines.is_empty() && deadlines.earliest().is_none());
    }
}
