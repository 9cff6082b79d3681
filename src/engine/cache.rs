//! Opened batches that several readers share, so that groups reading the same backlog decompress each batch once.

use std::collections::{HashMap, VecDeque};
use std::sync::PoisonError;

use crate::format::{Lsn, lsn_segment};
use crate::record::OpenBatch;
use crate::sync::Mutex;

/// Bytes of uncompressed blocks that are kept.
const CACHE_BYTES: usize = 16 << 20;

/// Opened batches, by queue and address; the oldest goes when there are too many bytes.
#[derive(Debug, Default)]
pub(super) struct BatchCache {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    batches: HashMap<(u64, Lsn), OpenBatch, rapidhash::fast::RandomState>,
    order: VecDeque<(u64, Lsn)>,
    bytes: usize,
}

impl BatchCache {
    /// The batch at an address, opened by `open` if it is not here.
    pub fn get<E>(&self, incarnation: u64, at: Lsn, open: impl FnOnce() -> Result<OpenBatch, E>) -> Result<OpenBatch, E> {
        let key = (incarnation, at);
        if let Some(found) = self.lock().batches.get(&key) {
            return Ok(found.clone());
        }
        let batch = open()?;
        let bytes = batch.block_bytes();
        if bytes <= CACHE_BYTES / 4 {
            let mut inner = self.lock();
            if inner.batches.insert(key, batch.clone()).is_none() {
                inner.order.push_back(key);
                inner.bytes += bytes;
            }
            while inner.bytes > CACHE_BYTES
                && let Some(oldest) = inner.order.pop_front()
            {
                let freed = inner.batches.remove(&oldest).map_or(0, |batch| batch.block_bytes());
                inner.bytes -= freed.min(inner.bytes);
            }
        }
        Ok(batch)
    }

    /// Lets go of the batches of a segment.
    pub fn forget_segment(&self, incarnation: u64, segment: u32) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let is_of_segment = |key: &(u64, Lsn)| key.0 == incarnation && lsn_segment(key.1) == segment;
        inner.order.retain(|key| !is_of_segment(key));
        inner.batches.retain(|key, _| !is_of_segment(key));
        inner.bytes = inner.batches.values().map(OpenBatch::block_bytes).sum();
    }

    fn lock(&self) -> crate::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
