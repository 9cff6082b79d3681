//! Bytes that requests or answers of all connections hold together, and how many they may.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that are held, and their bound.
#[derive(Debug)]
pub(super) struct Budget {
    held: AtomicUsize,
    bytes_max: usize,
}

impl Budget {
    pub(super) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { held: AtomicUsize::new(0), bytes_max })
    }

    /// Bytes held now.
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether all of it is taken.
    pub(super) fn is_used_up(&self) -> bool {
        self.held() >= self.bytes_max
    }

    /// A share without bytes.
    pub(super) fn share(self: &Arc<Self>) -> Share {
        Share { budget: self.clone(), bytes: 0 }
    }
}

/// A share of a budget, given back when dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Share {
    /// Takes more bytes, over the bound if need be; whether it was kept.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        let before = self.budget.held.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        before.saturating_add(bytes) <= self.budget.bytes_max
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_tell_when_the_bound_is_passed_and_are_given_back() {
        let budget = Budget::new(10);
        let mut first = budget.share();
        assert!(first.grow(8) && !budget.is_used_up());
        let mut second = budget.share();
        assert!(!second.grow(3) && budget.is_used_up());
        drop(second);
        assert_eq!(budget.held(), 8);
        assert!(first.grow(2) && budget.is_used_up());
        drop(first);
        assert_eq!(budget.held(), 0);
    }
}
