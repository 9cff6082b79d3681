//! How long things take and how large they are, counted in buckets for whoever watches the engine.
//!
//! Recording is two additions to atomics: no lock and no allocation on the way of a message.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Engine;

/// Buckets of a distribution.
pub const DISTRIBUTION_BUCKETS: usize = 32;

/// How often values of each size came, since the start. Bucket `i` has values up to two to the power of `i`, without those that
/// belong in a bucket before it; the last one has all that are larger than the bound before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Distribution {
    /// Values in each bucket.
    pub counts: [u64; DISTRIBUTION_BUCKETS],
    /// Sum of all values.
    pub sum: u64,
}

impl Distribution {
    /// The largest value that a bucket has; `None` for the last one, which has no bound.
    pub fn bound(bucket: usize) -> Option<u64> {
        (bucket + 1 < DISTRIBUTION_BUCKETS).then(|| 1 << bucket)
    }

    /// Values in all buckets.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// The distributions of an engine, over all its queues, since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Distributions {
    /// Microseconds of each sync of a log, of commits and of the interval mode.
    pub sync_us: Distribution,
    /// Bytes that each group commit wrote.
    pub commit_bytes: Distribution,
    /// Microseconds from taking a push to its answer; pushes inside transactions and refused ones are not counted.
    pub push_us: Distribution,
    /// Microseconds from a message's commit to its first delivery to a group; one value for each claim, that of its first message.
    pub delivery_us: Distribution,
}

/// A distribution that is being counted.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    counts: [AtomicU64; DISTRIBUTION_BUCKETS],
    sum: AtomicU64,
}

impl Recorder {
    /// Counts a value.
    pub fn record(&self, value: u64) {
        if let Some(count) = self.counts.get(bucket_of(value)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Counts a time, in microseconds.
    pub fn record_time(&self, time: Duration) {
        self.record(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    fn read(&self) -> Distribution {
        Distribution {
            counts: std::array::from_fn(|bucket| self.counts[bucket].load(Ordering::Relaxed)),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

/// The first bucket whose bound is not below the value.
fn bucket_of(value: u64) -> usize {
    let bits = u64::BITS - value.saturating_sub(1).leading_zeros();
    (bits as usize).min(DISTRIBUTION_BUCKETS - 1)
}

/// What all queues of an engine record.
#[derive(Debug, Default)]
pub(super) struct Recorders {
    pub sync: Recorder,
    pub commit_bytes: Recorder,
    pub push: Recorder,
    pub delivery: Recorder,
}

impl Recorders {
    /// Runs a sync and counts its time if it succeeds; the time in microseconds comes with what it returned.
    pub fn time_sync<T, E>(&self, sync: impl FnOnce() -> Result<T, E>) -> Result<(T, u64), E> {
        let before = Instant::now();
        let value = sync()?;
        let time = before.elapsed();
        self.sync.record_time(time);
        Ok((value, u64::try_from(time.as_micros()).unwrap_or(u64::MAX)))
    }
}

impl Engine {
    /// How long syncs, pushes and deliveries took and how large commits were, since the start. Values that are being recorded may
    /// be missing in part.
    pub fn distributions(&self) -> Distributions {
        let recorders = &self.shared.common.recorders;
        Distributions {
            sync_us: recorders.sync.read(),
            commit_bytes: recorders.commit_bytes.read(),
            push_us: recorders.push.read(),
            delivery_us: recorders.delivery.read(),
        }
    }

    /// Files that this process has mapped for reading now: one for each open segment and table, and those that readers still hold.
    pub fn open_maps(&self) -> usize {
        crate::storage::map::open_maps()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_the_bucket_whose_bound_is_the_next_power_of_two() {
        for (value, bucket) in
            [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1 << 30, 30), ((1 << 30) + 1, 31), (u64::MAX, 31)]
        {
            assert_eq!(bucket_of(value), bucket, "{value}");
            assert!(Distribution::bound(bucket).is_none_or(|bound| value <= bound));
            assert!(bucket == 0 || Distribution::bound(bucket - 1).is_some_and(|bound| value > bound));
        }
        assert_eq!((Distribution::bound(30), Distribution::bound(31)), (Some(1 << 30), None));
    }

    #[test]
    fn threads_lose_no_value() {
        let recorder = Recorder::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (1..=1000).for_each(|value| recorder.record(value)));
            }
        });
        let found = recorder.read();
        assert_eq!((found.count(), found.sum), (4 * 1000, 4 * 500_500));
        assert_eq!((found.counts[0], found.counts[1], found.counts[2], found.counts[10]), (4, 4, 8, 4 * (1000 - 512)));
    }

    #[test]
    fn a_sync_that_fails_is_not_counted() {
        let recorders = Recorders::default();
        assert_eq!(recorders.time_sync(|| Err::<(), _>("bad")), Err("bad"));
        assert_eq!(recorders.sync.read().count(), 0);
        recorders.time_sync(|| Ok::<_, &str>(())).unwrap();
        assert_eq!(recorders.sync.read().count(), 1);
    }
}
