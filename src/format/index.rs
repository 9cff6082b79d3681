//! The index of a segment: which batches of which partition lie where, which groups take something of them, and where own
//! transaction ids are. See "Segment index" in `storage-format.md`.
//!
//! An index is a cache: it can always be made again from its segment.

use bytes::Bytes;

use crate::codec::{Put, Reader};
use crate::record::{GroupId, Offset, PartitionId};

use super::{COMPATIBLE_FLAGS, FormatError, INCOMPATIBLE_FLAGS, VERSION, check_flags};

const WHAT: &str = "segment index";
/// First bytes of an index file.
pub const INDEX_MAGIC: [u8; 8] = *b"FANLOGix";
/// Bytes of the header of an index file.
pub const INDEX_HEADER_BYTES: usize = 80;
const PARTITION_BYTES: usize = 8;
const ENTRY_BYTES: usize = 32;
const ID_BYTES: usize = 16;
const DAMAGE_BYTES: usize = 8;

/// Where one batch lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexedBatch {
    /// Offset of its first message.
    pub base_offset: Offset,
    /// When it was stored, microseconds since the Unix epoch.
    pub created_at_us: u64,
    /// Position of its record in the segment.
    pub position: u32,
    /// Bytes of its record, without padding.
    pub length: u32,
    /// Messages.
    pub count: u32,
    /// Its partition.
    pub partition: PartitionId,
}

impl IndexedBatch {
    /// The offset after its last message.
    pub fn next_offset(&self) -> Offset {
        self.base_offset.saturating_add(u64::from(self.count))
    }
}

/// Where a message with an own transaction id lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct IndexedId {
    /// [`id_hash`] of partition and id.
    pub hash: u64,
    /// Index of the batch among the index's batches.
    pub batch: u32,
    /// Index of the message in the batch.
    pub message: u32,
}

/// A damaged range of positions, end exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage {
    /// First damaged position.
    pub start: u32,
    /// First position behind the damage.
    pub end: u32,
}

/// What an index file holds, before it is written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IndexContent {
    /// The queue's incarnation.
    pub incarnation: u64,
    /// The segment's number.
    pub segment: u32,
    /// Where the segment's records end.
    pub end: u32,
    /// Header CRC of the segment's last record.
    pub last_crc: u32,
    /// Time of its newest record, microseconds since the Unix epoch.
    pub newest_at_us: u64,
    /// Its batches, sorted by partition and offset.
    pub batches: Vec<IndexedBatch>,
    /// For each group that a match table names: a bit for each batch, set if the group takes something of it.
    pub groups: Vec<(GroupId, Vec<u64>)>,
    /// Messages with own ids, sorted.
    pub ids: Vec<IndexedId>,
    /// Damaged ranges.
    pub damage: Vec<Damage>,
}

/// The hash of an own transaction id in its partition: FNV-1a over the partition's four bytes and the id's, then mixed so that
/// every bit depends on every byte. Stable: it is stored.
pub fn id_hash(partition: PartitionId, id: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for &byte in partition.to_le_bytes().iter().chain(id) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

impl IndexContent {
    /// The bytes of the index file.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(self.batches.len() * (ENTRY_BYTES + 4));
        let mut partitions = 0u32;
        let mut previous = None;
        for (at, batch) in (0u32..).zip(&self.batches) {
            if previous != Some(batch.partition) {
                body.put_u32(batch.partition);
                body.put_u32(at);
                partitions += 1;
                previous = Some(batch.partition);
            }
        }
        for batch in &self.batches {
            body.put_u64(batch.base_offset);
            body.put_u64(batch.created_at_us);
            body.put_u32(batch.position);
            body.put_u32(batch.length);
            body.put_u32(batch.count);
            body.put_u32(batch.partition);
        }
        for (group, _) in &self.groups {
            body.put_u32(*group);
        }
        let words = self.batches.len().div_ceil(64);
        for (_, bits) in &self.groups {
            for word in 0..words {
                body.put_u64(bits.get(word).copied().unwrap_or(0));
            }
        }
        for id in &self.ids {
            body.put_u64(id.hash);
            body.put_u32(id.batch);
            body.put_u32(id.message);
        }
        for damage in &self.damage {
            body.put_u32(damage.start);
            body.put_u32(damage.end);
        }
        let mut bytes = Vec::with_capacity(INDEX_HEADER_BYTES + body.len());
        bytes.put_bytes(&INDEX_MAGIC);
        bytes.put_u16(VERSION);
        bytes.put_u16(0);
        bytes.put_u32(COMPATIBLE_FLAGS);
        bytes.put_u32(INCOMPATIBLE_FLAGS);
        bytes.put_u64(self.incarnation);
        bytes.put_u32(self.segment);
        bytes.put_u32(self.end);
        bytes.put_u32(self.last_crc);
        bytes.put_u64(self.newest_at_us);
        bytes.put_u32(partitions);
        bytes.put_u32(self.batches.len() as u32);
        bytes.put_u32(self.groups.len() as u32);
        bytes.put_u32(self.ids.len() as u32);
        bytes.put_u32(self.damage.len() as u32);
        bytes.put_u32(crc32fast::hash(&body));
        bytes.resize(INDEX_HEADER_BYTES - 4, 0);
        let crc = crc32fast::hash(&bytes);
        bytes.put_u32(crc);
        bytes.put_bytes(&body);
        bytes
    }
}

/// What the header of an index file says.
#[derive(Debug, Clone, Copy)]
pub struct IndexSummary {
    /// The queue's incarnation.
    pub incarnation: u64,
    /// The segment's number.
    pub segment: u32,
    /// Where the segment's records end.
    pub end: u32,
    /// Header CRC of the segment's last record.
    pub last_crc: u32,
    /// Time of its newest record, microseconds since the Unix epoch.
    pub newest_at_us: u64,
    partitions: usize,
    batches: usize,
    groups: usize,
    ids: usize,
    damage: usize,
    body_crc: u32,
}

impl IndexSummary {
    /// Decodes and checks the header at the front of an index file.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let header = bytes.get(..INDEX_HEADER_BYTES).ok_or(FormatError::Short(WHAT))?;
        let short = |_| FormatError::Short(WHAT);
        let mut reader = Reader::new(header);
        if reader.array().map_err(short)? != INDEX_MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        let crc = header.last_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        if crc32fast::hash(&header[..INDEX_HEADER_BYTES - 4]) != crc {
            return Err(FormatError::Checksum(WHAT));
        }
        let version = reader.u16().map_err(short)?;
        reader.u16().map_err(short)?;
        reader.u32().map_err(short)?;
        check_flags(WHAT, version, reader.u32().map_err(short)?)?;
        Ok(Self {
            incarnation: reader.u64().map_err(short)?,
            segment: reader.u32().map_err(short)?,
            end: reader.u32().map_err(short)?,
            last_crc: reader.u32().map_err(short)?,
            newest_at_us: reader.u64().map_err(short)?,
            partitions: reader.u32().map_err(short)? as usize,
            batches: reader.u32().map_err(short)? as usize,
            groups: reader.u32().map_err(short)? as usize,
            ids: reader.u32().map_err(short)? as usize,
            damage: reader.u32().map_err(short)? as usize,
            body_crc: reader.u32().map_err(short)?,
        })
    }
}

/// An index file's bytes, verified; lookups read them in place.
#[derive(Debug, Clone)]
pub struct SealedIndex {
    bytes: Bytes,
    segment: u32,
    end: u32,
    last_crc: u32,
    newest_at_us: u64,
    partitions: usize,
    batches: usize,
    groups: usize,
    ids: usize,
    damage: usize,
}

impl SealedIndex {
    /// Takes a whole index file and verifies header, length and checksum.
    pub fn parse(bytes: Bytes, incarnation: u64) -> Result<Self, FormatError> {
        let header = IndexSummary::decode(&bytes)?;
        if header.incarnation != incarnation {
            return Err(FormatError::Field { what: WHAT, field: "incarnation" });
        }
        let IndexSummary { partitions, batches, groups, ids, damage, .. } = header;
        // Counts are of 32 bits and sizes of at most 32, so that nothing here overflows 64 bits.
        let words = batches.div_ceil(64);
        let body = partitions * PARTITION_BYTES
            + batches * ENTRY_BYTES
            + groups * 4
            + groups * words * 8
            + ids * ID_BYTES
            + damage * DAMAGE_BYTES;
        if bytes.len() != INDEX_HEADER_BYTES + body {
            return Err(FormatError::Short(WHAT));
        }
        if crc32fast::hash(&bytes[INDEX_HEADER_BYTES..]) != header.body_crc {
            return Err(FormatError::Checksum(WHAT));
        }
        let IndexSummary { segment, end, last_crc, newest_at_us, .. } = header;
        Ok(Self { segment, end, last_crc, newest_at_us, partitions, batches, groups, ids, damage, bytes })
    }

    /// The segment's number.
    pub fn segment(&self) -> u32 {
        self.segment
    }

    /// Where the segment's records end.
    pub fn end(&self) -> u32 {
        self.end
    }

    /// Header CRC of the segment's last record.
    pub fn last_crc(&self) -> u32 {
        self.last_crc
    }

    /// Time of the segment's newest record.
    pub fn newest_at_us(&self) -> u64 {
        self.newest_at_us
    }

    /// Whether there are own transaction ids.
    pub fn has_ids(&self) -> bool {
        self.ids > 0
    }

    /// How many batches there are.
    pub fn batch_count(&self) -> usize {
        self.batches
    }

    /// Damaged ranges.
    pub fn damage(&self) -> Vec<Damage> {
        let base = self.ids_start() + self.ids * ID_BYTES;
        (0..self.damage)
            .map(|at| Damage { start: self.u32(base + at * DAMAGE_BYTES), end: self.u32(base + at * DAMAGE_BYTES + 4) })
            .collect()
    }

    /// The batch at `at`, in order of partition and offset.
    pub fn batch(&self, at: usize) -> IndexedBatch {
        let base = self.batches_start() + at * ENTRY_BYTES;
        IndexedBatch {
            base_offset: self.u64(base),
            created_at_us: self.u64(base + 8),
            position: self.u32(base + 16),
            length: self.u32(base + 20),
            count: self.u32(base + 24),
            partition: self.u32(base + 28),
        }
    }

    /// The partitions that have batches here, with the range of their batches.
    pub fn partitions(&self) -> impl Iterator<Item = (PartitionId, std::ops::Range<usize>)> + '_ {
        (0..self.partitions).map(|at| (self.partition_at(at), self.run_at(at)))
    }

    /// The range of a partition's batches; empty if it has none here.
    pub fn run(&self, partition: PartitionId) -> std::ops::Range<usize> {
        let at = partition_point(0..self.partitions, |at| self.partition_at(at) < partition);
        if at < self.partitions && self.partition_at(at) == partition { self.run_at(at) } else { 0..0 }
    }

    /// The first batch of a partition that ends behind `offset`.
    pub fn find(&self, partition: PartitionId, offset: Offset) -> std::ops::Range<usize> {
        let run = self.run(partition);
        let first = partition_point(run.clone(), |at| self.batch(at).next_offset() <= offset);
        first..run.end
    }

    /// Which of the named groups `group` is; `None` if no match table here names it.
    pub fn group(&self, group: GroupId) -> Option<usize> {
        let base = self.groups_start();
        (0..self.groups).find(|&at| self.u32(base + at * 4) == group)
    }

    /// The first batch in `range` of which the named group takes something.
    pub fn next_taken(&self, group: usize, range: std::ops::Range<usize>) -> Option<usize> {
        let words = self.batches.div_ceil(64);
        let base = self.groups_start() + self.groups * 4 + group * words * 8;
        let mut at = range.start;
        while at < range.end {
            let word = self.u64(base + at / 64 * 8) >> (at % 64);
            if word != 0 {
                let found = at + word.trailing_zeros() as usize;
                return (found < range.end).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// Places of messages whose id hashes to `hash`.
    pub fn ids(&self, hash: u64) -> impl Iterator<Item = IndexedId> + '_ {
        let first = partition_point(0..self.ids, |at| self.id_at(at).hash < hash);
        (first..self.ids).map(|at| self.id_at(at)).take_while(move |id| id.hash == hash)
    }

    fn id_at(&self, at: usize) -> IndexedId {
        let base = self.ids_start() + at * ID_BYTES;
        IndexedId { hash: self.u64(base), batch: self.u32(base + 8), message: self.u32(base + 12) }
    }

    fn partition_at(&self, at: usize) -> PartitionId {
        self.u32(INDEX_HEADER_BYTES + at * PARTITION_BYTES)
    }

    fn run_at(&self, at: usize) -> std::ops::Range<usize> {
        let first = self.u32(INDEX_HEADER_BYTES + at * PARTITION_BYTES + 4) as usize;
        let end = if at + 1 < self.partitions {
            self.u32(INDEX_HEADER_BYTES + (at + 1) * PARTITION_BYTES + 4) as usize
        } else {
            self.batches
        };
        first.min(self.batches)..end.min(self.batches)
    }

    fn batches_start(&self) -> usize {
        INDEX_HEADER_BYTES + self.partitions * PARTITION_BYTES
    }

    fn groups_start(&self) -> usize {
        self.batches_start() + self.batches * ENTRY_BYTES
    }

    fn ids_start(&self) -> usize {
        self.groups_start() + self.groups * 4 + self.groups * self.batches.div_ceil(64) * 8
    }

    fn u32(&self, at: usize) -> u32 {
        self.bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    fn u64(&self, at: usize) -> u64 {
        self.bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

/// The first value in `range` for which `is_before` is false; it is true for all before and false for all behind.
fn partition_point(range: std::ops::Range<usize>, is_before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (range.start, range.end);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content() -> IndexContent {
        let batch = |partition, base_offset, position| IndexedBatch {
            base_offset,
            created_at_us: 1000 + base_offset,
            position,
            length: 200,
            count: 10,
            partition,
        };
        let mut ids: Vec<_> = (0..5u32)
            .map(|message| IndexedId { hash: id_hash(3, format!("id-{message}").as_bytes()), batch: 1, message })
            .collect();
        ids.sort();
        IndexContent {
            incarnation: 9,
            segment: 4,
            end: 9000,
            last_crc: 1,
            newest_at_us: 77,
            batches: vec![batch(1, 0, 4096), batch(3, 50, 4300), batch(3, 60, 5000), batch(3, 90, 4600), batch(8, 5, 5300)],
            groups: vec![(2, vec![0b01010])],
            ids,
            damage: vec![Damage { start: 6000, end: 6100 }],
        }
    }

    #[test]
    fn lookups_find_what_was_written() {
        let index = SealedIndex::parse(Bytes::from(content().encode()), 9).unwrap();
        assert_eq!((index.segment(), index.end(), index.last_crc(), index.newest_at_us()), (4, 9000, 1, 77));
        assert_eq!(index.run(3), 1..4);
        assert_eq!(index.run(2), 0..0);
        assert_eq!(index.find(3, 59), 1..4);
        assert_eq!(index.find(3, 60), 2..4);
        assert_eq!(index.find(3, 75), 3..4);
        assert_eq!(index.find(3, 100), 4..4);
        assert_eq!(index.batch(3), content().batches[3]);
        let group = index.group(2).unwrap();
        assert_eq!(index.next_taken(group, 0..5), Some(1));
        assert_eq!(index.next_taken(group, 2..5), Some(3));
        assert_eq!(index.next_taken(group, 4..5), None);
        assert_eq!(index.group(1), None);
        let found: Vec<_> = index.ids(id_hash(3, b"id-2")).collect();
        assert_eq!((found.len(), found[0].message), (1, 2));
        assert_eq!(index.ids(1).count(), 0);
        assert_eq!(index.damage(), content().damage);
        assert_eq!(index.partitions().map(|(partition, _)| partition).collect::<Vec<_>>(), [1, 3, 8]);
    }

    #[test]
    fn damage_and_other_owners_are_refused() {
        let bytes = content().encode();
        assert!(SealedIndex::parse(Bytes::from(bytes.clone()), 8).is_err());
        for cut in 0..bytes.len() {
            assert!(SealedIndex::parse(Bytes::copy_from_slice(&bytes[..cut]), 9).is_err());
        }
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            assert!(SealedIndex::parse(Bytes::from(bad), 9).is_err(), "byte {at}");
        }
    }
}
