//! Giving back the room of what is dead in a sealed segment that has to stay.
//!
//! First the list of holes is made durable, so that zeros are never taken for damage, whenever a crash comes. Then nobody gets a slice
//! of what is in them any more. The blocks go when the last slice that was taken before has been let go of.

use crate::format::holes::{self, Hole};
use crate::format::index::IndexedBatch;
use crate::format::segment::{SEGMENT_BYTES_LIMIT, SEGMENT_HEADER_BYTES};
use crate::format::{FormatError, names};
use crate::record::{RECORD_ALIGNMENT, RecordHeader, padded};
use crate::storage::disk::{Access, Dir};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::segment::replace_file;
use super::{Log, LogError, Segment};

/// Smaller ones are left as they are: a list of many small holes costs more than it gives.
const HOLE_BYTES_MIN: u32 = 16 << 10;

/// What was taken out of a segment, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Holes(Vec<Hole>);

/// Whether the blocks of a segment's holes were given back, and how many bytes they are.
#[derive(Debug, Default)]
pub(super) struct Released {
    is_done: AtomicBool,
    bytes: AtomicU64,
}

impl Released {
    /// Bytes given back.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// The list of a segment's holes as its file has it, and what is wrong with that file, if something is.
pub(in crate::storage) fn read_holes(
    dir: &dyn Dir,
    incarnation: u64,
    number: u32,
) -> Result<(Vec<Hole>, Option<FormatError>), LogError> {
    let file = match dir.open(&names::holes(number), Access::Read) {
        Ok(file) => file,
        Err(error) if error.is_not_found() => return Ok((Vec::new(), None)),
        Err(error) => return Err(error.into()),
    };
    let mut bytes = vec![0; file.length()?.min(SEGMENT_BYTES_LIMIT) as usize];
    let length = file.read_at(&mut bytes, 0)?;
    bytes.truncate(length);
    match holes::decode(&bytes, incarnation, number) {
        Ok(holes) => Ok((holes, None)),
        Err(error @ FormatError::Newer { .. }) => Err(error.into()),
        Err(error) => Ok((Vec::new(), Some(error))),
    }
}

impl Holes {
    /// Reads the list of a segment. A bad one is none: what was taken out then reads as damage.
    pub fn read(dir: &dyn Dir, incarnation: u64, number: u32) -> Result<Self, LogError> {
        Ok(Self(read_holes(dir, incarnation, number)?.0))
    }

    /// Whether a record at this position was taken out.
    pub fn holds(&self, position: u32) -> bool {
        self.around(u64::from(position)).is_some()
    }

    /// The hole that a position lies in.
    pub fn around(&self, position: u64) -> Option<Hole> {
        let at = self.0.partition_point(|hole| u64::from(hole.end) <= position);
        self.0.get(at).copied().filter(|hole| u64::from(hole.start) <= position)
    }

    /// Where the first hole at or behind a position starts; beyond every segment if there is none.
    pub fn next_start(&self, position: u64) -> u64 {
        let at = self.0.partition_point(|hole| u64::from(hole.start) < position);
        self.0.get(at).map_or(u64::MAX, |hole| u64::from(hole.start))
    }

    fn block_bytes(&self) -> u64 {
        self.0.iter().map(|hole| hole.blocks().len() as u64).sum()
    }
}

impl Segment {
    /// The holes to make when these batches, and whatever is damaged, are all that must stay; `None` if they give back less than half
    /// of what the segment takes. So a segment is worked on as many times as its size can be halved, at most.
    pub fn plan_holes(&self, live: &[IndexedBatch]) -> Result<Option<Vec<Hole>>, LogError> {
        let known = self.holes()?;
        let mut kept: Vec<(u32, u32)> = live
            .iter()
            .filter(|batch| !known.holds(batch.position))
            .map(|batch| (batch.position, (u64::from(batch.position) + padded(batch.length)) as u32))
            .chain(self.damage()?.iter().map(|damage| (damage.start, damage.end)))
            .collect();
        kept.sort_unstable();
        kept.push((self.end(), self.end()));
        let mut list = Vec::new();
        let mut start = SEGMENT_HEADER_BYTES;
        for (first, behind) in kept {
            if first > start && first - start >= HOLE_BYTES_MIN {
                list.push(Hole { start, end: first, last_crc: self.crc_before(first)? });
            }
            start = start.max(behind);
        }
        let gain = Holes(list.clone()).block_bytes().saturating_sub(known.block_bytes());
        let taken = u64::from(self.end()).saturating_sub(known.block_bytes());
        Ok((gain > 0 && gain * 2 >= taken).then_some(list))
    }

    /// Header CRC of the record that ends at a position, as the one behind it says; 0 if that one is damaged.
    fn crc_before(&self, position: u32) -> Result<u32, LogError> {
        if position >= self.end() {
            return Ok(self.last_crc());
        }
        let length = (crate::record::BATCH_HEADER_BYTES as u32).min(self.end() - position);
        let header = RecordHeader::decode(&self.bytes(position, length)?);
        Ok(header.map_or(0, |(header, ..)| header.previous_crc))
    }

    /// Gives the blocks of the holes back, unless somebody still looks at bytes from before; does nothing once it is done. Whether it
    /// is.
    pub fn release_holes(&self) -> Result<bool, LogError> {
        if self.released.is_done.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let holes = self.holes()?;
        let bytes = holes.block_bytes();
        if bytes > 0 {
            if self.has_older_maps() {
                return Ok(false);
            }
            let file = self.dir().open(&names::segment(self.number()), Access::ReadWrite)?;
            for blocks in holes.0.iter().map(Hole::blocks).filter(|blocks| !blocks.is_empty()) {
                file.punch_hole(u64::from(blocks.start), blocks.len() as u64)?;
            }
        }
        self.released.bytes.store(bytes, Ordering::Relaxed);
        self.released.is_done.store(true, Ordering::Relaxed);
        Ok(true)
    }
}

impl Log {
    /// Takes what lies in the holes out of a sealed segment, which no reader may want again, and which a durable checkpoint stands for.
    /// The room comes back with [`Segment::release_holes`].
    pub fn make_holes(&self, segment: &Segment, list: Vec<Hole>) -> Result<(), LogError> {
        debug_assert!(list.iter().all(|hole| hole.start % RECORD_ALIGNMENT as u32 == 0), "holes begin at records");
        // The index names what goes; it is made again from what stays.
        self.remove(&names::index(segment.number()))?;
        self.dir.sync()?;
        let bytes = holes::encode(segment.incarnation(), segment.number(), &list);
        replace_file(self.dir.as_ref(), &names::holes(segment.number()), &bytes)?;
        segment.released.is_done.store(false, Ordering::Relaxed);
        segment.put_holes(Holes(list))
    }
}
