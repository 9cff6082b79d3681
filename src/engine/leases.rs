//! Where the claims of each lease are, for whoever names the lease alone: extension, hand-back, transactions.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use crate::model::ErrorCode;
use crate::record::{GroupId, PartitionId};
use crate::sync::Mutex;
use crate::sync::atomic::AtomicUsize;

use super::delivery::LeaseToken;
use super::distributions::Recorders;

/// A claim that ended before all of its messages were acknowledged, and not because its holder gave it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseEnd {
    /// The queue's incarnation.
    pub incarnation: u64,
    /// The partition.
    pub partition_id: PartitionId,
    /// Why: `LeaseLost` when its time was over or the group was moved, `UnknownGroup` or `UnknownQueue` when that is gone.
    pub reason: ErrorCode,
}

/// Hears of the end of claims; quick, from any thread.
pub type LeaseListener = Arc<dyn Fn(LeaseEnd) + Send + Sync>;

/// Ends that were found under a lock, to be told when it is free again.
#[derive(Default)]
#[must_use = "listeners hear nothing until told"]
pub(super) struct Ends(Vec<(LeaseListener, LeaseEnd)>);

impl Ends {
    /// Tells the listeners; with no lock held.
    pub fn tell(self) {
        self.0.into_iter().for_each(|(listener, end)| listener(end));
    }

    fn add(&mut self, listener: Option<&LeaseListener>, place: Place, reason: ErrorCode) {
        let Place { incarnation, partition, .. } = place;
        self.0.extend(listener.map(|listener| (Arc::clone(listener), LeaseEnd { incarnation, partition_id: partition, reason })));
    }
}

/// One claim of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub incarnation: u64,
    pub group: GroupId,
    pub partition: PartitionId,
}

struct Entry {
    until_us: u64,
    places: Vec<Place>,
    listener: Option<LeaseListener>,
}

/// What all queues of an engine share.
#[derive(Default)]
pub(super) struct Common {
    /// Bytes that wait for a commit.
    pub pending_bytes: AtomicUsize,
    pub leases: Leases,
    /// How long things take and how large they are.
    pub recorders: Recorders,
    /// The disk refused to give room back inside files, as it will until somebody changes it.
    pub cannot_punch: std::sync::atomic::AtomicBool,
}

/// The leases that were given out and may be live. One that ended by time is forgotten at the next sweep.
#[derive(Default)]
pub(super) struct Leases {
    map: Mutex<HashMap<LeaseToken, Entry, rapidhash::fast::RandomState>>,
}

impl Leases {
    /// Adds a claim.
    pub fn add(&self, token: LeaseToken, until_us: u64, incarnation: u64, group: GroupId, partition: PartitionId) {
        let mut map = self.lock();
        let entry = map.entry(token).or_insert_with(|| Entry { until_us, places: Vec::with_capacity(1), listener: None });
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

    /// Sets who hears of the ends of a lease's claims; whether the lease is known.
    pub fn listen(&self, token: LeaseToken, listener: LeaseListener) -> bool {
        self.lock().get_mut(&token).map(|entry| entry.listener = Some(listener)).is_some()
    }

    /// Forgets one claim of a lease that ended before its messages were acknowledged.
    pub fn end_place(&self, token: LeaseToken, place: Place, reason: ErrorCode, ends: &mut Ends) {
        if let Some(entry) = self.lock().get(&token)
            && entry.places.contains(&place)
        {
            ends.add(entry.listener.as_ref(), place, reason);
        }
        self.remove_place(token, place);
    }

    /// Forgets all claims in a queue that is gone.
    pub fn end_queue(&self, incarnation: u64) -> Ends {
        let mut ends = Ends::default();
        self.end_places(|place| place.incarnation == incarnation, ErrorCode::UnknownQueue, &mut ends);
        ends
    }

    /// Forgets all claims of a group that is gone.
    pub fn end_group(&self, incarnation: u64, group: GroupId, ends: &mut Ends) {
        self.end_places(|place| place.incarnation == incarnation && place.group == group, ErrorCode::UnknownGroup, ends);
    }

    fn end_places(&self, is_over: impl Fn(&Place) -> bool, reason: ErrorCode, ends: &mut Ends) {
        self.lock().retain(|_, entry| {
            for &place in entry.places.iter().filter(|place| is_over(place)) {
                ends.add(entry.listener.as_ref(), place, reason);
            }
            entry.places.retain(|place| !is_over(place));
            !entry.places.is_empty()
        });
    }

    /// Forgets a lease.
    pub fn remove(&self, token: LeaseToken) {
        self.lock().remove(&token);
    }

    /// Forgets leases that ended by time. The claims that they still have were not acknowledged.
    pub fn sweep(&self, now_us: u64) -> Ends {
        let mut ends = Ends::default();
        self.lock().retain(|_, entry| {
            let is_live = entry.until_us > now_us;
            if !is_live {
                entry.places.iter().for_each(|&place| ends.add(entry.listener.as_ref(), place, ErrorCode::LeaseLost));
            }
            is_live
        });
        ends
    }

    fn lock(&self) -> crate::sync::MutexGuard<'_, HashMap<LeaseToken, Entry, rapidhash::fast::RandomState>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_hears_of_claims_that_end_unacknowledged_and_of_each_once() {
        let leases = Leases::default();
        let token = |counter| LeaseToken { start_number: 1, counter };
        let place = |incarnation, partition| Place { incarnation, group: 1, partition };
        let heard = Arc::new(Mutex::new(Vec::new()));
        for counter in 0..3 {
            for (incarnation, partition) in [(7, 0), (7, 1), (8, 2)] {
                leases.add(token(counter), 100 + counter, incarnation, 1, partition);
            }
            let heard = Arc::clone(&heard);
            let listener: LeaseListener = Arc::new(move |end: LeaseEnd| {
                heard.lock().unwrap().push((counter, end.incarnation, end.partition_id, end.reason));
            });
            assert!(leases.listen(token(counter), listener));
        }
        assert!(!leases.listen(token(9), Arc::new(|_| ())));
        let take = |ends: Ends| {
            ends.tell();
            let mut heard = std::mem::take(&mut *heard.lock().unwrap());
            heard.sort_unstable_by_key(|found| (found.0, found.2));
            heard
        };
        let mut ends = Ends::default();
        leases.end_place(token(0), place(7, 1), ErrorCode::LeaseLost, &mut ends);
        leases.end_place(token(0), place(7, 1), ErrorCode::LeaseLost, &mut ends);
        assert_eq!(take(ends), [(0, 7, 1, ErrorCode::LeaseLost)]);
        leases.remove_place(token(0), place(7, 0));
        assert_eq!(take(leases.sweep(100)), [(0, 8, 2, ErrorCode::LeaseLost)], "one was told of, one was acknowledged");
        let gone = ErrorCode::UnknownQueue;
        assert_eq!(take(leases.end_queue(7)), [(1, 7, 0, gone), (1, 7, 1, gone), (2, 7, 0, gone), (2, 7, 1, gone)]);
        leases.remove(token(1));
        assert_eq!(take(leases.sweep(1_000)), [(2, 8, 2, ErrorCode::LeaseLost)], "one was given back");
        assert_eq!(take(leases.sweep(1_000)), []);
    }
}
