//! The header of a segment file: see "Segment" in `storage-format.md`.

use crate::codec::{Put, Reader};

use super::{COMPATIBLE_FLAGS, FormatError, INCOMPATIBLE_FLAGS, Lsn, VERSION, check_flags};

const WHAT: &str = "segment header";
/// First bytes of a segment.
pub const SEGMENT_MAGIC: [u8; 8] = *b"FANLOGsg";
/// Where the first record of a segment starts: behind the page that holds the header.
pub const SEGMENT_HEADER_BYTES: u32 = 4096;
const ENCODED_BYTES: usize = 72;
/// The longest segment file; positions in it fit 32 bits with room to spare.
pub const SEGMENT_BYTES_LIMIT: u64 = 2 << 30;

/// The header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The queue's incarnation.
    pub incarnation: u64,
    /// The segment's number; they grow by one.
    pub number: u32,
    /// Epoch of the log when the segment was made.
    pub epoch: u32,
    /// Where the log ended before this segment: what lies behind it in the segment before does not count. 0 in a first segment.
    pub previous_end: Lsn,
    /// Header CRC of the last record before this segment.
    pub previous_crc: u32,
    /// When the segment was made, microseconds since the Unix epoch.
    pub created_at_us: u64,
    /// Bytes of its file, reserved before it got its name: a shorter file was cut short.
    pub capacity: u32,
}

impl SegmentHeader {
    /// The encoded header, without the padding to [`SEGMENT_HEADER_BYTES`].
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ENCODED_BYTES);
        bytes.put_bytes(&SEGMENT_MAGIC);
        bytes.put_u16(VERSION);
        bytes.put_u16(0);
        bytes.put_u32(COMPATIBLE_FLAGS);
        bytes.put_u32(INCOMPATIBLE_FLAGS);
        bytes.put_u64(self.incarnation);
        bytes.put_u32(self.number);
        bytes.put_u32(self.epoch);
        bytes.put_u64(self.previous_end);
        bytes.put_u32(self.previous_crc);
        bytes.put_u64(self.created_at_us);
        bytes.put_u32(self.capacity);
        bytes.resize(ENCODED_BYTES - 4, 0);
        let crc = crc32fast::hash(&bytes);
        bytes.put_u32(crc);
        bytes
    }

    /// Decodes the header at the front of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let bytes = bytes.get(..ENCODED_BYTES).ok_or(FormatError::Short(WHAT))?;
        let mut reader = Reader::new(bytes);
        let short = |_| FormatError::Short(WHAT);
        if reader.array().map_err(short)? != SEGMENT_MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        let crc = u32::from_le_bytes(bytes[ENCODED_BYTES - 4..].try_into().map_err(|_| FormatError::Short(WHAT))?);
        if crc32fast::hash(&bytes[..ENCODED_BYTES - 4]) != crc {
            return Err(FormatError::Checksum(WHAT));
        }
        let version = reader.u16().map_err(short)?;
        reader.u16().map_err(short)?;
        reader.u32().map_err(short)?;
        check_flags(WHAT, version, reader.u32().map_err(short)?)?;
        Ok(Self {
            incarnation: reader.u64().map_err(short)?,
            number: reader.u32().map_err(short)?,
            epoch: reader.u32().map_err(short)?,
            previous_end: reader.u64().map_err(short)?,
            previous_crc: reader.u32().map_err(short)?,
            created_at_us: reader.u64().map_err(short)?,
            capacity: reader.u32().map_err(short)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader {
            incarnation: 1,
            number: 2,
            epoch: 3,
            previous_end: 1 << 32 | 5000,
            previous_crc: 4,
            created_at_us: 5,
            capacity: 1 << 20,
        }
    }

    #[test]
    fn a_header_round_trips_and_every_damage_is_refused() {
        let bytes = header().encode();
        assert_eq!(SegmentHeader::decode(&bytes), Ok(header()));
        for cut in 0..bytes.len() {
            assert!(SegmentHeader::decode(&bytes[..cut]).is_err());
        }
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&bad).is_err());
        }
    }

    #[test]
    fn a_newer_incompatible_header_is_named_as_such() {
        let mut bytes = header().encode();
        bytes[16] = 1;
        let end = bytes.len() - 4;
        let crc = crc32fast::hash(&bytes[..end]);
        bytes[end..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(SegmentHeader::decode(&bytes), Err(FormatError::Newer { what: WHAT, version: VERSION, flags: 1 }));
    }
}
