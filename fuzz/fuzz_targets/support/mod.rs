//! Checksums made right, so that the fuzzer gets behind them.

#![allow(dead_code, reason = "each target uses a part")]

/// The incarnation of everything that targets make.
pub const INCARNATION: u64 = 7;

/// Writes the CRC of a range at a position, if both lie inside.
pub fn put_crc(bytes: &mut [u8], covered: std::ops::Range<usize>, at: usize) {
    let Some(crc) = bytes.get(covered).map(crc32fast::hash) else { return };
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&crc.to_le_bytes());
    }
}

/// Writes bytes at a position, as far as they lie inside.
pub fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

/// A number of four bytes.
pub fn number(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// Makes the checksums of the record at the front right, as far as its lengths allow.
pub fn seal_record(record: &mut [u8]) {
    let header = if record.get(16) == Some(&1) { 128 } else { 64 };
    let length = number(record, 8) as usize;
    put_crc(record, header..length, 12);
    put_crc(record, 8..header, 4);
}
