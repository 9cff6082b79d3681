//! The bytes of a slot. See `storage-format.md`, "Slots".

use std::fmt;

use super::{SlotIdentity, SlotValue, SlotsError};
use crate::codec::{Put, Reader, UnexpectedEnd};

/// The first bytes of a slot; never zero, so that empty space is no slot.
const MAGIC: [u8; 4] = *b"FLCS";

/// The version that this program writes, and the only one it reads.
const VERSION: u16 = 1;

/// Bytes of a slot before its content.
const HEADER_BYTES: usize = 56;

/// The unit of slot sizes: a sector, so that no sector has bytes of both slots.
const SECTOR_BYTES: usize = 512;

/// The largest slot.
pub(super) const SLOT_BYTES_MAX: usize = 64 << 10;

/// The highest sequence; a slot with a higher one is none, so that the next can always be given.
const SEQUENCE_MAX: u64 = u64::MAX / 2;
/// The longest content of a slot, in bytes.
pub const BODY_BYTES_MAX: usize = SLOT_BYTES_MAX - HEADER_BYTES;

/// What is wrong with a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotFault {
    /// Its space is not all there.
    Short,
    /// It has no mark, or sizes that cannot be.
    NotASlot,
    /// Its checksum is wrong: torn by a power loss, or damaged.
    Checksum,
    /// It is whole, and belongs to another cursor or to the other place in the file.
    Foreign,
    /// It is whole, and of a format that this program does not know.
    Newer {
        /// The version.
        version: u16,
        /// The incompatible features.
        features: u16,
    },
}

impl fmt::Display for SlotFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => formatter.write_str("is cut short"),
            Self::NotASlot => formatter.write_str("does not begin as a slot does"),
            Self::Checksum => formatter.write_str("has a wrong checksum"),
            Self::Foreign => formatter.write_str("belongs to another cursor"),
            Self::Newer { version, .. } => write!(formatter, "has the unknown version {version}"),
        }
    }
}

/// A whole slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slot {
    /// 0 or 1.
    pub index: usize,
    pub slot_bytes: usize,
    pub sequence: u64,
    pub lsn: u64,
    pub body: Vec<u8>,
}

/// Bytes of the slots of a file for a content of this length: the smallest power of two of sectors that holds it, which
/// leaves room to grow.
pub(super) fn slot_bytes_for(body_length: usize) -> Result<usize, SlotsError> {
    if body_length > BODY_BYTES_MAX {
        return Err(SlotsError::TooLarge { bytes: body_length, limit: BODY_BYTES_MAX });
    }
    Ok((HEADER_BYTES + body_length).next_power_of_two().max(SECTOR_BYTES))
}

impl Slot {
    /// All bytes of the slot; the content must fit.
    pub(super) fn encode(&self, identity: SlotIdentity) -> Vec<u8> {
        assert!(HEADER_BYTES + self.body.len() <= self.slot_bytes, "the size of a slot was chosen for its content");
        let mut bytes = Vec::with_capacity(self.slot_bytes);
        bytes.put_bytes(&MAGIC);
        bytes.put_u32(0);
        bytes.put_u16(VERSION);
        bytes.put_u16(0);
        bytes.put_u16(0);
        bytes.put_u16(self.index as u16);
        bytes.put_u64(identity.incarnation);
        bytes.put_u32(identity.partition);
        bytes.put_u32(identity.group);
        bytes.put_u64(self.sequence);
        bytes.put_u64(self.lsn);
        bytes.put_u32(self.slot_bytes as u32);
        bytes.put_u32(self.body.len() as u32);
        bytes.put_bytes(&self.body);
        bytes.resize(self.slot_bytes, 0);
        let checksum = crc32fast::hash(bytes.get(8..).unwrap_or_default());
        bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub(super) fn into_value(self) -> SlotValue {
        SlotValue { sequence: self.sequence, lsn: self.lsn, body: self.body }
    }

    /// The slot at the front of `bytes`.
    fn decode(bytes: &[u8], index: usize, identity: SlotIdentity) -> Result<Self, SlotFault> {
        Self::parse(bytes, index, identity).unwrap_or(Err(SlotFault::Short))
    }

    fn parse(bytes: &[u8], index: usize, identity: SlotIdentity) -> Result<Result<Self, SlotFault>, UnexpectedEnd> {
        let mut reader = Reader::new(bytes);
        let magic: [u8; 4] = reader.array()?;
        let checksum = reader.u32()?;
        let version = reader.u16()?;
        // Compatible features may be ignored by a reader that does not know them.
        let _compatible = reader.u16()?;
        let features = reader.u16()?;
        let found_index = usize::from(reader.u16()?);
        let found = SlotIdentity { incarnation: reader.u64()?, partition: reader.u32()?, group: reader.u32()? };
        let (sequence, lsn) = (reader.u64()?, reader.u64()?);
        let slot_bytes = reader.u32()? as usize;
        let body_length = reader.u32()? as usize;
        let is_size = (SECTOR_BYTES..=SLOT_BYTES_MAX).contains(&slot_bytes) && slot_bytes.is_multiple_of(SECTOR_BYTES);
        if magic != MAGIC || !is_size {
            return Ok(Err(SlotFault::NotASlot));
        }
        if crc32fast::hash(Reader::new(bytes).bytes(slot_bytes)?.get(8..).unwrap_or_default()) != checksum {
            return Ok(Err(SlotFault::Checksum));
        }
        if version != VERSION || features != 0 {
            return Ok(Err(SlotFault::Newer { version, features }));
        }
        if found != identity || found_index != index {
            return Ok(Err(SlotFault::Foreign));
        }
        if body_length > slot_bytes - HEADER_BYTES || sequence > SEQUENCE_MAX {
            return Ok(Err(SlotFault::NotASlot));
        }
        let body = reader.bytes(body_length)?.to_vec();
        Ok(Ok(Self { index, slot_bytes, sequence, lsn, body }))
    }
}

/// Both slots of a file. Where the second one begins is said by the first; if that cannot be read, every place is tried.
pub(super) fn decode_both(bytes: &[u8], identity: SlotIdentity) -> [Result<Slot, SlotFault>; 2] {
    let second_at = |start: usize| Slot::decode(bytes.get(start..).unwrap_or_default(), 1, identity);
    let first = Slot::decode(bytes, 0, identity);
    let second = match &first {
        Ok(slot) => second_at(slot.slot_bytes),
        Err(_) => (SECTOR_BYTES..=SLOT_BYTES_MAX)
            .step_by(SECTOR_BYTES)
            .map(|start| (start, second_at(start)))
            .find(|(start, slot)| match slot {
                Ok(slot) => slot.slot_bytes == *start,
                Err(fault) => matches!(fault, SlotFault::Newer { .. }),
            })
            .map_or_else(|| second_at(bytes.len() / 2), |(_, slot)| slot),
    };
    [first, second]
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: SlotIdentity = SlotIdentity { incarnation: 0x0102_0304_0506_0708, partition: 9, group: 10 };

    fn slot(index: usize, sequence: u64) -> Slot {
        Slot { index, slot_bytes: 512, sequence, lsn: 12, body: b"hi".to_vec() }
    }

    #[test]
    fn the_bytes_of_a_slot_are_these() {
        let mut golden = b"FLCS".to_vec();
        golden.extend([0xe5, 0x40, 0xa3, 0x28]);
        golden.extend([1, 0, 0, 0, 0, 0, 1, 0]);
        golden.extend([8, 7, 6, 5, 4, 3, 2, 1, 9, 0, 0, 0, 10, 0, 0, 0]);
        golden.extend([11, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 2, 0, 0, 0]);
        golden.extend(b"hi");
        golden.resize(512, 0);
        assert_eq!(slot(1, 11).encode(IDENTITY), golden);
    }

    #[test]
    fn slots_round_trip_and_every_shorter_or_flipped_input_is_refused() {
        let bytes = slot(0, 11).encode(IDENTITY);
        assert_eq!(Slot::decode(&bytes, 0, IDENTITY), Ok(slot(0, 11)));
        for cut in 0..bytes.len() {
            assert_eq!(Slot::decode(&bytes[..cut], 0, IDENTITY), Err(SlotFault::Short));
        }
        for index in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[index / 8] ^= 1 << (index % 8);
            assert!(Slot::decode(&flipped, 0, IDENTITY).is_err(), "bit {index}");
        }
        assert_eq!(Slot::decode(&[0; 512], 0, IDENTITY), Err(SlotFault::NotASlot));
    }

    #[test]
    fn a_slot_of_another_cursor_or_place_is_foreign() {
        let bytes = slot(0, 11).encode(IDENTITY);
        assert_eq!(Slot::decode(&bytes, 1, IDENTITY), Err(SlotFault::Foreign));
        for other in [
            SlotIdentity { incarnation: 1, ..IDENTITY },
            SlotIdentity { partition: 1, ..IDENTITY },
            SlotIdentity { group: 1, ..IDENTITY },
        ] {
            assert_eq!(Slot::decode(&bytes, 0, other), Err(SlotFault::Foreign));
        }
    }

    #[test]
    fn a_sequence_that_cannot_be_counted_on_is_no_slot() {
        let bytes = slot(0, u64::MAX).encode(IDENTITY);
        assert_eq!(Slot::decode(&bytes, 0, IDENTITY), Err(SlotFault::NotASlot));
    }

    #[test]
    fn sizes_are_powers_of_two_of_sectors() {
        for (body, slot) in [(0, 512), (456, 512), (457, 1024), (968, 1024), (969, 2048), (BODY_BYTES_MAX, 65_536)] {
            assert_eq!(slot_bytes_for(body), Ok(slot));
        }
        let limit = BODY_BYTES_MAX;
        assert_eq!(slot_bytes_for(limit + 1), Err(SlotsError::TooLarge { bytes: limit + 1, limit }));
    }

    #[test]
    fn the_second_slot_is_found_without_the_first() {
        for slot_bytes in [512, 1536, SLOT_BYTES_MAX] {
            let second = Slot { slot_bytes, ..slot(1, 3) };
            let mut bytes = vec![0; slot_bytes];
            bytes.extend(second.encode(IDENTITY));
            assert_eq!(decode_both(&bytes, IDENTITY), [Err(SlotFault::NotASlot), Ok(second)]);
        }
    }
}
