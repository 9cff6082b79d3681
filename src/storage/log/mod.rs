//! The log of one queue: segments, their indexes, the writer, recovery.
//!
//! One [`LogWriter`] appends; any number of readers share a [`Log`]. What the writer has appended becomes visible to readers when it
//! is published, and not before; what was published is never written again. Records are opaque here, but for what the index needs.

mod holes;
mod ram_index;
mod recovery;
pub mod scan;
pub mod segment;
mod writer;

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::format::index::{IndexedBatch, id_hash};
use crate::format::{Lsn, lsn_position, lsn_segment, names};
use crate::record::{GroupId, Offset, PartitionId};
use crate::storage::disk::{Dir, DiskError};
use crate::sync::RwLock;

pub(in crate::storage) use holes::read_holes;
pub(in crate::storage) use ram_index::RamIndex;
pub use recovery::{LogFinding, LogRecovery, OpenLog, check_format, open};
pub(in crate::storage) use recovery::{Role, is_spoilt, missing, proven_damage, read_header, sealed_end};
pub use segment::Segment;
pub(in crate::storage) use segment::index_record;
pub(crate) use segment::replace_file;
pub use writer::{Appended, LogWriter, OutBatch, OutBody, OutRecord, SpareMaker};

/// Why a log cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// A position that is not published.
    #[error("position {position} of segment {segment:08x} lies beyond its end")]
    BeyondEnd {
        /// The segment.
        segment: u32,
        /// The position.
        position: u32,
    },
    /// Bytes that were stored are not as they were.
    #[error("segment {segment:08x} is damaged at position {position}: {reason}")]
    Damaged {
        /// The segment.
        segment: u32,
        /// Where.
        position: u32,
        /// How it shows.
        reason: String,
    },
    /// A sync failed earlier; nothing is written until the log is opened again.
    #[error("a sync failed ({0}); the log takes no writes until restart")]
    Poisoned(DiskError),
    /// A record or the block of a batch is over the limit, so that no reader would take it; nothing was written.
    #[error("{what} of {bytes} bytes is over the limit of {limit}")]
    TooLarge {
        /// "record" or "block".
        what: &'static str,
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u32,
    },
    /// What lay there was let go, and its room given back.
    #[error("what lay at position {position} of segment {segment:08x} was removed")]
    Removed {
        /// The segment.
        segment: u32,
        /// Where.
        position: u32,
    },
    /// The log has used up its segment numbers and takes no more writes.
    #[error("the log has used up its segment numbers: none comes after ffffffff.segment, which was perhaps put there by hand")]
    NumbersUsedUp,
    /// The log was written by a newer format.
    #[error(transparent)]
    Format(#[from] crate::format::FormatError),
    /// The disk refuses.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// A log as its readers share it.
#[derive(Debug)]
pub struct Log {
    dir: Arc<dyn Dir>,
    incarnation: u64,
    segments: RwLock<Arc<Vec<Arc<Segment>>>>,
    /// Segments that should be there and are not.
    missing: Vec<RangeInclusive<u32>>,
}

impl Log {
    fn new(dir: Arc<dyn Dir>, incarnation: u64, segments: Vec<Arc<Segment>>, missing: Vec<RangeInclusive<u32>>) -> Self {
        Self { dir, incarnation, segments: RwLock::new(Arc::new(segments)), missing }
    }

    /// The segments, oldest first. A snapshot: a segment that is removed meanwhile stays readable through it.
    pub fn segments(&self) -> Arc<Vec<Arc<Segment>>> {
        Arc::clone(&self.segments.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn replace_segments(&self, change: impl FnOnce(&mut Vec<Arc<Segment>>)) {
        let mut slot = self.segments.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut list = slot.as_ref().clone();
        change(&mut list);
        *slot = Arc::new(list);
    }

    /// The address behind the last published record.
    pub fn end(&self) -> Lsn {
        self.segments().last().map_or(0, |segment| segment.lsn(segment.end()))
    }

    /// Visits, in order, the partition's batches that end behind `from` and of which the group takes something, beginning in segment
    /// `hint` (or the oldest, if that is gone), until the visitor says no.
    pub fn visit(
        &self,
        partition: PartitionId,
        from: Offset,
        group: Option<GroupId>,
        hint: u32,
        visit: &mut dyn FnMut(&Arc<Segment>, IndexedBatch) -> bool,
    ) -> Result<(), LogError> {
        let segments = self.segments();
        let first = segments.partition_point(|segment| segment.number() < hint);
        for segment in &segments[first..] {
            if !segment.visit(partition, from, group, &mut |batch| visit(segment, batch))? {
                break;
            }
        }
        Ok(())
    }

    /// The first batch of the partition that ends behind `from`.
    pub fn find(
        &self,
        partition: PartitionId,
        from: Offset,
        hint: u32,
    ) -> Result<Option<(Arc<Segment>, IndexedBatch)>, LogError> {
        let mut found = None;
        self.visit(partition, from, None, hint, &mut |segment, batch| {
            found = Some((Arc::clone(segment), batch));
            false
        })?;
        Ok(found)
    }

    /// The offset of the newest message of the partition with this transaction id of its own, stored at or after `not_before_us`.
    pub fn find_id(&self, partition: PartitionId, id: &str, not_before_us: u64) -> Result<Option<Offset>, LogError> {
        let hash = id_hash(partition, id.as_bytes());
        for segment in self.segments().iter().rev() {
            // A segment that has no record yet knows no time.
            let newest_at_us = segment.newest_at_us();
            if newest_at_us != 0 && newest_at_us < not_before_us {
                break;
            }
            for (batch, message) in segment.ids(hash)? {
                if batch.partition != partition || batch.created_at_us < not_before_us {
                    continue;
                }
                let stored = match segment.stored_batch(&batch) {
                    // Forgotten, as with a segment that went.
                    Err(LogError::Removed { .. }) => continue,
                    outcome => outcome?,
                };
                let open = stored.open().map_err(|error| LogError::Damaged {
                    segment: segment.number(),
                    position: batch.position,
                    reason: error.to_string(),
                })?;
                let entry = open.entries().ok().and_then(|mut entries| entries.nth(message as usize));
                if let Some(Ok(entry)) = entry
                    && entry.transaction_id == Some(id)
                {
                    return Ok(Some(batch.base_offset + u64::from(message)));
                }
            }
        }
        Ok(None)
    }

    /// Whether a damaged range or a missing segment lies between two addresses.
    pub fn has_damage_between(&self, from: Lsn, to: Lsn) -> Result<bool, LogError> {
        if self.missing.iter().any(|gone| *gone.end() >= lsn_segment(from) && *gone.start() <= lsn_segment(to)) {
            return Ok(true);
        }
        for segment in self.segments().iter() {
            if segment.number() < lsn_segment(from) || segment.number() > lsn_segment(to) {
                continue;
            }
            for damage in segment.damage()? {
                let start = segment.lsn(damage.start);
                if start >= from && start < to {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Writes index files of sealed segments that have none, and lets go of maps that nobody used lately.
    pub fn maintain(&self) -> Result<(), LogError> {
        let segments = self.segments();
        let Some((_, sealed)) = segments.split_last() else { return Ok(()) };
        for segment in sealed {
            segment.seal_index()?;
            segment.release_unused();
        }
        Ok(())
    }

    /// Removes all segments with a number below `first`, oldest first. Readers that hold a snapshot go on reading theirs. Durable when
    /// it returns.
    pub fn remove_before(&self, first: u32) -> Result<u64, LogError> {
        let gone: Vec<_> = self.segments().iter().filter(|segment| segment.number() < first).cloned().collect();
        if gone.is_empty() {
            return Ok(0);
        }
        self.replace_segments(|list| list.retain(|segment| segment.number() >= first));
        for segment in &gone {
            self.remove(&names::segment(segment.number()))?;
        }
        self.dir.sync()?;
        // After the segments: one that a crash brings back still has what tells its holes from damage.
        for segment in &gone {
            self.remove(&names::index(segment.number()))?;
            self.remove(&names::holes(segment.number()))?;
        }
        Ok(gone.iter().map(|segment| segment.disk_bytes()).sum())
    }

    fn remove(&self, name: &str) -> Result<(), LogError> {
        match self.dir.remove(name) {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Bytes that all segment files take on the disk.
    pub fn bytes(&self) -> u64 {
        self.segments().iter().map(|segment| segment.disk_bytes()).sum()
    }

    /// The queue's incarnation.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }
}

/// The position of an address that must lie in segment `number`.
fn position_in(address: Lsn, number: u32) -> Option<u32> {
    (lsn_segment(address) == number).then(|| lsn_position(address))
}

#[cfg(test)]
mod tests;
