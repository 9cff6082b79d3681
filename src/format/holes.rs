//! The list of what was taken out of a sealed segment: see "Holes" in `storage-format.md`.
//!
//! It is written before the room is given back, so that whoever reads the segment without its index knows zeros there from damage.

use crate::codec::{Put, Reader};

use super::segment::SEGMENT_HEADER_BYTES;
use super::{COMPATIBLE_FLAGS, FormatError, INCOMPATIBLE_FLAGS, VERSION, check_flags};

const WHAT: &str = "list of holes";
/// First bytes of a list of holes.
pub const HOLES_MAGIC: [u8; 8] = *b"FANLOGho";
/// Room is given back in whole blocks of the file system, of so many bytes.
pub const BLOCK_BYTES: u32 = 4096;
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 12;

/// A range of a segment, from the first byte of a record to the end of one, whose records are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hole {
    /// Position of the first record in it.
    pub start: u32,
    /// The position behind the last one.
    pub end: u32,
    /// Header CRC of the last one, for the record behind the hole to follow.
    pub last_crc: u32,
}

impl Hole {
    /// The whole blocks inside; what lies in it around them keeps its room. Empty if there are none.
    pub fn blocks(&self) -> std::ops::Range<u32> {
        let start = self.start.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(u32::MAX);
        let end = self.end - self.end % BLOCK_BYTES;
        start.min(end)..end
    }
}

/// The bytes of the file.
pub fn encode(incarnation: u64, segment: u32, holes: &[Hole]) -> Vec<u8> {
    let mut body = Vec::with_capacity(holes.len() * ENTRY_BYTES);
    for hole in holes {
        body.put_u32(hole.start);
        body.put_u32(hole.end);
        body.put_u32(hole.last_crc);
    }
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.put_bytes(&HOLES_MAGIC);
    bytes.put_u16(VERSION);
    bytes.put_u16(0);
    bytes.put_u32(COMPATIBLE_FLAGS);
    bytes.put_u32(INCOMPATIBLE_FLAGS);
    bytes.put_u64(incarnation);
    bytes.put_u32(segment);
    bytes.put_u32(holes.len() as u32);
    bytes.put_u32(crc32fast::hash(&body));
    bytes.resize(HEADER_BYTES - 4, 0);
    let crc = crc32fast::hash(&bytes);
    bytes.put_u32(crc);
    bytes.put_bytes(&body);
    bytes
}

/// Decodes and checks a whole file: the holes of this segment, in order.
pub fn decode(bytes: &[u8], incarnation: u64, segment: u32) -> Result<Vec<Hole>, FormatError> {
    let short = |_| FormatError::Short(WHAT);
    let (header, body) = bytes.split_at_checked(HEADER_BYTES).ok_or(FormatError::Short(WHAT))?;
    let mut reader = Reader::new(header);
    if reader.array().map_err(short)? != HOLES_MAGIC {
        return Err(FormatError::Magic(WHAT));
    }
    let crc = header.last_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    if crc32fast::hash(&header[..HEADER_BYTES - 4]) != crc {
        return Err(FormatError::Checksum(WHAT));
    }
    let version = reader.u16().map_err(short)?;
    reader.u16().map_err(short)?;
    reader.u32().map_err(short)?;
    check_flags(WHAT, version, reader.u32().map_err(short)?)?;
    if reader.u64().map_err(short)? != incarnation {
        return Err(FormatError::Field { what: WHAT, field: "incarnation" });
    }
    if reader.u32().map_err(short)? != segment {
        return Err(FormatError::Field { what: WHAT, field: "segment" });
    }
    let count = reader.u32().map_err(short)? as usize;
    if body.len() != count.saturating_mul(ENTRY_BYTES) {
        return Err(FormatError::Short(WHAT));
    }
    if crc32fast::hash(body) != reader.u32().map_err(short)? {
        return Err(FormatError::Checksum(WHAT));
    }
    let mut holes = Vec::with_capacity(count);
    let mut reader = Reader::new(body);
    let mut behind = SEGMENT_HEADER_BYTES;
    for _ in 0..count {
        let hole = Hole {
            start: reader.u32().map_err(short)?,
            end: reader.u32().map_err(short)?,
            last_crc: reader.u32().map_err(short)?,
        };
        if hole.start < behind || hole.end <= hole.start {
            return Err(FormatError::Field { what: WHAT, field: "range" });
        }
        behind = hole.end;
        holes.push(hole);
    }
    Ok(holes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLES: [Hole; 2] =
        [Hole { start: 4096, end: 40_968, last_crc: 9 }, Hole { start: 41_000, end: 65_536, last_crc: 0x0102_0304 }];

    #[test]
    fn a_list_round_trips_and_every_shorter_input_and_flipped_byte_is_refused() {
        let bytes = encode(7, 3, &HOLES);
        assert_eq!(decode(&bytes, 7, 3), Ok(HOLES.to_vec()));
        assert_eq!(decode(&encode(7, 3, &[]), 7, 3), Ok(Vec::new()));
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut], 7, 3).is_err(), "cut at {cut}");
        }
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            assert!(decode(&flipped, 7, 3).is_err(), "flipped at {at}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(decode(&longer, 7, 3), Err(FormatError::Short(WHAT)));
    }

    #[test]
    fn golden_bytes() {
        let bytes = encode(0x0102_0304_0506_0708, 3, &HOLES[..1]);
        assert_eq!(&bytes[..36], b"FANLOGho\x01\0\0\0\0\0\0\0\0\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01\x03\0\0\0\x01\0\0\0");
        assert_eq!(&bytes[48..], b"\0\x10\0\0\x08\xa0\0\0\x09\0\0\0");
    }

    #[test]
    fn a_list_of_another_segment_or_out_of_order_is_refused() {
        let bytes = encode(7, 3, &HOLES);
        assert_eq!(decode(&bytes, 8, 3), Err(FormatError::Field { what: WHAT, field: "incarnation" }));
        assert_eq!(decode(&bytes, 7, 4), Err(FormatError::Field { what: WHAT, field: "segment" }));
        for holes in [
            [HOLES[1], HOLES[0]],
            [HOLES[0], HOLES[0]],
            [Hole { start: 0, ..HOLES[0] }, HOLES[1]],
            [HOLES[0], Hole { end: 41_000, ..HOLES[1] }],
        ] {
            let refused = decode(&encode(7, 3, &holes), 7, 3);
            assert_eq!(refused, Err(FormatError::Field { what: WHAT, field: "range" }));
        }
    }

    #[test]
    fn only_whole_blocks_give_their_room_back() {
        let blocks = |start, end| Hole { start, end, last_crc: 0 }.blocks();
        assert_eq!(blocks(4096, 8192), 4096..8192);
        assert_eq!(blocks(4104, 16_000), 8192..12_288);
        assert!(blocks(4104, 8200).is_empty());
        assert!(blocks(4104, 4200).is_empty());
        assert!(blocks(u32::MAX - 7, u32::MAX).is_empty());
    }
}
