//! The log of one queue.
mod ram_index;
pub mod scan;
pub mod segment;
use crate::storage::disk::DiskError;

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
    /// The disk refuses.
    #[error(transparent)]
    Disk(#[from] DiskError),
}
