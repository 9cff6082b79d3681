//! Record header and batch header: see "Record header" and "Batch record" in `storage-format.md`.
//!
//! Every record of a log starts with a record header; a batch record goes on with a batch header. Both carry what proves that the
//! bytes belong where they were found. Stored batches travel to consumers as they lie on disk, so these layouts are also on the wire.

use crc32fast::Hasher;

use crate::codec::{Put, Reader, UnexpectedEnd};

use super::{Offset, PartitionId};

/// First bytes of every record: `FLR1`. Not zero, so that preallocated space is never a record.
pub const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"FLR1");
/// Bytes of a record header.
pub const RECORD_HEADER_BYTES: usize = 64;
/// Bytes of a record header and a batch header.
pub const BATCH_HEADER_BYTES: usize = 128;
/// Records start at positions that this divides.
pub const RECORD_ALIGNMENT: usize = 8;
/// The largest record, header included.
pub const RECORD_BYTES_MAX: u32 = 128 << 20;

/// What a record holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// Messages of one partition.
    Batch = 1,
    /// Operations on the queue's state: cursors, groups, settings.
    Control = 2,
    /// Nothing but a durable frontier, written when the log falls idle.
    Frontier = 3,
}

impl RecordKind {
    fn from_number(number: u8) -> Option<Self> {
        [Self::Batch, Self::Control, Self::Frontier].into_iter().find(|&kind| kind as u8 == number)
    }

    fn header_bytes(self) -> usize {
        if self == Self::Batch { BATCH_HEADER_BYTES } else { RECORD_HEADER_BYTES }
    }
}

/// Flag: the record is part of a transaction that goes on in the next record; it counts only if the last part is there.
pub const FLAG_TRANSACTION_GOES_ON: u8 = 1;

/// What every record starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// What the record holds.
    pub kind: RecordKind,
    /// `FLAG_…` bits; unknown bits are refused.
    pub flags: u8,
    /// Bytes of the whole record, header included, padding excluded.
    pub length: u32,
    /// CRC-32 of everything behind the header.
    pub body_crc: u32,
    /// Epoch of the log: grows by one with each start of the server.
    pub epoch: u32,
    /// The queue's incarnation.
    pub incarnation: u64,
    /// Where the record lies: segment number in the upper half, position in the file in the lower.
    pub lsn: u64,
    /// Everything before this address was durable when the record was written.
    pub durable_lsn: u64,
    /// Time of the commit, microseconds since the Unix epoch; `created_at` of a batch's messages.
    pub created_at_us: u64,
    /// Header CRC of the record before it in this log, 0 for the first of a log.
    pub previous_crc: u32,
}

/// What a batch record's header holds beyond the record header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeader {
    /// The partition.
    pub partition: PartitionId,
    /// Messages, at least 1; their offsets are consecutive.
    pub count: u32,
    /// Offset of the first message.
    pub base_offset: Offset,
    /// Bytes of the annex (producers and match table) behind the header.
    pub annex_length: u32,
    /// Bytes of the message index at the front of the uncompressed block.
    pub index_length: u32,
    /// Bytes of the uncompressed block.
    pub uncompressed_length: u32,
    /// 0 = plain, 1 = zstd.
    pub codec: u8,
    /// Whether a message of it has a transaction id of its own.
    pub has_ids: bool,
}

impl BatchHeader {
    /// Offset of the last message.
    pub fn last_offset(&self) -> Offset {
        self.base_offset + u64::from(self.count) - 1
    }
}

/// Why bytes are not a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The bytes end before the header does.
    #[error("record header is cut short")]
    Short,
    /// The first bytes are not a record's.
    #[error("no record starts here")]
    Magic,
    /// The header's checksum does not fit.
    #[error("checksum of the record header is wrong")]
    Checksum,
    /// A field has a value that no writer of this format gives it.
    #[error("record header has an impossible {0}")]
    Field(&'static str),
}

impl From<UnexpectedEnd> for HeaderError {
    fn from(_: UnexpectedEnd) -> Self {
        Self::Short
    }
}

/// The bytes from one record's start to the next, given its length.
pub fn padded(length: u32) -> u64 {
    u64::from(length).next_multiple_of(RECORD_ALIGNMENT as u64)
}

impl RecordHeader {
    /// Encodes a header of a record that is no batch; returns the header's CRC with it.
    pub fn encode(&self) -> ([u8; RECORD_HEADER_BYTES], u32) {
        let mut bytes = Vec::with_capacity(RECORD_HEADER_BYTES);
        self.put(&mut bytes);
        finish(bytes)
    }

    /// Encodes the header of a batch record; returns the header's CRC with it.
    pub fn encode_batch(&self, batch: &BatchHeader) -> ([u8; BATCH_HEADER_BYTES], u32) {
        let mut bytes = Vec::with_capacity(BATCH_HEADER_BYTES);
        self.put(&mut bytes);
        bytes.put_u32(batch.partition);
        bytes.put_u32(batch.count);
        bytes.put_u64(batch.base_offset);
        bytes.put_u32(batch.annex_length);
        bytes.put_u32(batch.index_length);
        bytes.put_u32(batch.uncompressed_length);
        bytes.put_u8(batch.codec);
        bytes.put_u8(u8::from(batch.has_ids));
        finish(bytes)
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.put_u32(RECORD_MAGIC);
        bytes.put_u32(0);
        bytes.put_u32(self.length);
        bytes.put_u32(self.body_crc);
        bytes.put_u8(self.kind as u8);
        bytes.put_u8(self.flags);
        bytes.put_u16(self.kind.header_bytes() as u16);
        bytes.put_u32(self.epoch);
        bytes.put_u64(self.incarnation);
        bytes.put_u64(self.lsn);
        bytes.put_u64(self.durable_lsn);
        bytes.put_u64(self.created_at_us);
        bytes.put_u32(self.previous_crc);
        bytes.put_u32(0);
    }

    /// Decodes and checks the header at the front of `bytes`; returns its CRC with it. What follows the header is not looked at.
    pub fn decode(bytes: &[u8]) -> Result<(Self, Option<BatchHeader>, u32), HeaderError> {
        let mut reader = Reader::new(bytes);
        if reader.u32()? != RECORD_MAGIC {
            return Err(HeaderError::Magic);
        }
        let crc = reader.u32()?;
        let length = reader.u32()?;
        let body_crc = reader.u32()?;
        let kind = RecordKind::from_number(reader.u8()?).ok_or(HeaderError::Field("kind"))?;
        let flags = reader.u8()?;
        let header_bytes = usize::from(reader.u16()?);
        if header_bytes != kind.header_bytes() {
            return Err(HeaderError::Field("header length"));
        }
        let covered = bytes.get(8..header_bytes).ok_or(HeaderError::Short)?;
        if crc32fast::hash(covered) != crc {
            return Err(HeaderError::Checksum);
        }
        if flags & !FLAG_TRANSACTION_GOES_ON != 0 {
            return Err(HeaderError::Field("flag"));
        }
        if (length as usize) < header_bytes || length > RECORD_BYTES_MAX {
            return Err(HeaderError::Field("length"));
        }
        let header = Self {
            kind,
            flags,
            length,
            body_crc,
            epoch: reader.u32()?,
            incarnation: reader.u64()?,
            lsn: reader.u64()?,
            durable_lsn: reader.u64()?,
            created_at_us: reader.u64()?,
            previous_crc: reader.u32()?,
        };
        reader.u32()?;
        let batch = if kind == RecordKind::Batch { Some(decode_batch(&mut reader, &header)?) } else { None };
        Ok((header, batch, crc))
    }

    /// Bytes behind the header.
    pub fn body_length(&self) -> usize {
        self.length as usize - self.kind.header_bytes()
    }

    /// Bytes of the header.
    pub fn header_length(&self) -> usize {
        self.kind.header_bytes()
    }
}

fn decode_batch(reader: &mut Reader<'_>, header: &RecordHeader) -> Result<BatchHeader, HeaderError> {
    let batch = BatchHeader {
        partition: reader.u32()?,
        count: reader.u32()?,
        base_offset: reader.u64()?,
        annex_length: reader.u32()?,
        index_length: reader.u32()?,
        uncompressed_length: reader.u32()?,
        codec: reader.u8()?,
        has_ids: reader.u8()? & 1 != 0,
    };
    if batch.count == 0 {
        return Err(HeaderError::Field("count"));
    }
    if batch.base_offset.checked_add(u64::from(batch.count)).is_none() {
        return Err(HeaderError::Field("base offset"));
    }
    if batch.annex_length as usize > header.body_length() {
        return Err(HeaderError::Field("annex length"));
    }
    if batch.index_length > batch.uncompressed_length {
        return Err(HeaderError::Field("index length"));
    }
    Ok(batch)
}

fn finish<const N: usize>(mut bytes: Vec<u8>) -> ([u8; N], u32) {
    bytes.resize(N, 0);
    let crc = crc32fast::hash(&bytes[8..]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    let mut array = [0; N];
    array.copy_from_slice(&bytes);
    (array, crc)
}

/// CRC-32 of two runs of bytes behind each other, the second one's CRC being known: spares a pass over a large payload.
pub fn crc_of_two(first: &[u8], second_crc: u32, second_length: u64) -> u32 {
    if first.is_empty() {
        return second_crc;
    }
    let mut hasher = Hasher::new();
    hasher.update(first);
    hasher.combine(&Hasher::new_with_initial_len(second_crc, second_length));
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: RecordKind) -> RecordHeader {
        RecordHeader {
            kind,
            flags: 0,
            length: 200,
            body_crc: 7,
            epoch: 3,
            incarnation: 0x0102_0304_0506_0708,
            lsn: 5 << 32 | 4096,
            durable_lsn: 5 << 32,
            created_at_us: 1_700_000_000_000_000,
            previous_crc: 9,
        }
    }

    fn batch() -> BatchHeader {
        BatchHeader {
            partition: 4,
            count: 10,
            base_offset: 90,
            annex_length: 8,
            index_length: 20,
            uncompressed_length: 64,
            codec: 1,
            has_ids: true,
        }
    }

    #[test]
    fn headers_round_trip() {
        let (bytes, crc) = header(RecordKind::Control).encode();
        assert_eq!(RecordHeader::decode(&bytes), Ok((header(RecordKind::Control), None, crc)));
        let (bytes, crc) = header(RecordKind::Batch).encode_batch(&batch());
        assert_eq!(RecordHeader::decode(&bytes), Ok((header(RecordKind::Batch), Some(batch()), crc)));
    }

    #[test]
    fn every_shorter_input_and_every_flipped_bit_is_refused() {
        let (bytes, _) = header(RecordKind::Batch).encode_batch(&batch());
        for cut in 0..bytes.len() {
            assert!(RecordHeader::decode(&bytes[..cut]).is_err());
        }
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(RecordHeader::decode(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn zeros_never_decode() {
        assert_eq!(RecordHeader::decode(&[0; 128]), Err(HeaderError::Magic));
    }

    #[test]
    fn a_combined_crc_is_the_crc_of_the_whole() {
        let (first, second) = (b"annex".as_slice(), b"payload".as_slice());
        let whole = [first, second].concat();
        assert_eq!(crc_of_two(first, crc32fast::hash(second), second.len() as u64), crc32fast::hash(&whole));
        assert_eq!(crc_of_two(&[], crc32fast::hash(second), second.len() as u64), crc32fast::hash(second));
    }
}
