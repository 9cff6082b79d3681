//! Where the claims of each lease are, for whoever names the lease alone: extension, hand-back, transactions.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, PoisonError};

use crate::record::{GroupId, PartitionId};

use super::delivery::LeaseToken;
use super::distributions::Recorders;

/// One claim of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub incarnation: u64,
    pub group: GroupId,
    pub partition: PartitionId,
}

#[derive(Debug)]
struct Entry {
    until_us: u64,
    places: Vec<Place>,
}

/// What all queues of an engine share.
#[derive(Debug, Default)]
pub(super) struct Common {
    /// Bytes that wait for a commit.
    pub pending_bytes: AtomicUsize,
    pub leases: Leases,
    /// How long things take and how large they are.
    pub recorders: Recorders,
}

/// The leases that were given out and may be live. One that ended by time is forgotten at the next sweep.
#[derive(Debug, Default)]
pub(super) struct Leases {
    map: Mutex<HashMap<LeaseToken, Entry, rapidhash::fast::RandomState>>,
}

impl Leases {
    /// Adds a claim.
    pub fn add(&self, token: LeaseToken, until_us: u64, incarnation: u64, group: GroupId, partition: PartitionId) {
        let mut map = self.lock();
        let entry = map.entry(token).or_insert_with(|| Entry { until_us, places: Vec::with_capacity(1) });
        entry.until_us = entry.until_us.max(until_us);
        entry.places.push(Place { incarnation, group, partition });
    }

    /// The claims of a lease.
    pub fn places(&self, token: LeaseToken) -> Vec<Place> {
        self.lock().get(&token).map(|entry| entry.places.clone()).unwrap_or_default()
    }

    /// Notes that a lease lasts longer.
    pub fn extend(&self, token: LeaseToken, until_us: u64) {
        if let Some(entry) = self.lock().get_mut(&token) {
            entry.until_us = entry.until_us.max(until_us);
        }
    }

    /// Forgets one claim of a lease, and the lease with its last one.
    pub fn remove_place(&self, token: LeaseToken, place: Place) {
        let mut map = self.lock();
        let Some(entry) = map.get_mut(&token) else { return };
        entry.places.retain(|other| *other != place);
        if entry.places.is_empty() {
            map.remove(&token);
        }
    }

    /// Forgets a lease.
    pub fn remove(&self, token: LeaseToken) {
        self.lock().remove(&token);
    }

    /// Forgets leases that ended by time.
    pub fn sweep(&self, now_us: u64) {
        self.lock().retain(|_, entry| entry.until_us > now_us);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<LeaseToken, Entry, rapidhash::fast::RandomState>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
