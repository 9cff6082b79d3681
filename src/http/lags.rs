//! How far groups are, for those who ask again and again: the sampler and the metrics.
//!
//! Reading the progress of a queue costs time with its partitions. So what was read is good for a while that grows with what reading
//! it cost: however many partitions there are, asking takes a small share of one processor.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::model::{GroupProgress, Now, QueueInfo};

use super::counts;

/// What was read is good for so many times the time that reading took.
const GOOD_FOR: u32 = 20;

/// The progress of queues, by incarnation.
#[derive(Default)]
pub(super) struct Lags {
    entries: Mutex<HashMap<u64, Entry>>,
}

struct Entry {
    read_at: Instant,
    cost: Duration,
    groups: Arc<Vec<GroupProgress>>,
}

impl Lags {
    /// The groups of a queue whose lag says something, as of now or a little earlier.
    pub(super) fn of(&self, engine: &Engine, queue: &QueueInfo) -> Arc<Vec<GroupProgress>> {
        let started = Instant::now();
        if let Some(entry) = self.entries().get(&queue.incarnation)
            && started < entry.read_at + entry.cost * GOOD_FOR
        {
            return entry.groups.clone();
        }
        // Two that ask at once may both read; that costs less than a lock held while reading.
        let groups = Arc::new(counts::counted(engine.progress(&queue.name, Now::read()).unwrap_or_default()));
        let read_at = Instant::now();
        let entry = Entry { read_at, cost: read_at - started, groups: groups.clone() };
        self.entries().insert(queue.incarnation, entry);
        groups
    }

    /// Forgets queues that are gone.
    pub(super) fn keep_only(&self, queues: &[QueueInfo]) {
        let mut entries = self.entries();
        if entries.len() > queues.len() {
            entries.retain(|incarnation, _| queues.iter().any(|queue| queue.incarnation == *incarnation));
        }
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Entry>> {
        // Entries are whole or not there: a panic elsewhere leaves nothing half done.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
