//! Ids for messages whose producer gave none: made from the message's place, so that they cost nothing to store.

use super::{Offset, PartitionId};

/// The id of a message without one of its own: shaped like a UUID of version 8, unique over all queues of a data directory as far
/// as 28 bits of the incarnation tell them apart. Making one allocates nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DerivedId([u8; 36]);

impl DerivedId {
    /// The id of a message at its place.
    pub fn new(incarnation: u64, partition: PartitionId, offset: Offset) -> Self {
        let salt = incarnation & 0x0fff_ffff;
        // 28 bits of incarnation, 32 of partition, 60 of offset; the version and variant digits are fixed.
        let mut text = *b"00000000-0000-8000-8000-000000000000";
        put_digits(&mut text[..8], u64::from(partition));
        put_digits(&mut text[9..13], salt >> 12);
        put_digits(&mut text[15..18], salt);
        put_digits(&mut text[20..23], offset >> 48);
        put_digits(&mut text[24..], offset);
        Self(text)
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        // All of it is digits and dashes.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Fills `target` with the last hexadecimal digits of a number.
fn put_digits(target: &mut [u8], mut number: u64) {
    for digit in target.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number & 15) as usize];
        number >>= 4;
    }
}

/// A [`DerivedId`] as a string of its own.
pub fn derived_id(incarnation: u64, partition: PartitionId, offset: Offset) -> String {
    DerivedId::new(incarnation, partition, offset).as_str().to_owned()
}

/// The place that a derived id names, if it is one of this incarnation.
pub fn parse_derived_id(incarnation: u64, id: &str) -> Option<(PartitionId, Offset)> {
    if id.len() != 36 || !id.is_ascii() {
        return None;
    }
    let partition = u32::from_str_radix(id.get(..8)?, 16).ok()?;
    let high = u64::from_str_radix(id.get(20..23)?, 16).ok()?;
    let low = u64::from_str_radix(id.get(24..)?, 16).ok()?;
    let offset = high << 48 | low;
    // Making the id again checks every fixed digit at once.
    (DerivedId::new(incarnation, partition, offset).as_str() == id).then_some((partition, offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_id_has_known_digits() {
        assert_eq!(derived_id(0, 0, 0), "00000000-0000-8000-8000-000000000000");
        assert_eq!(derived_id(0xffff_ffff_f123_4567, 0x89ab_cdef, 0xfedc_ba98_7654_3210), "89abcdef-1234-8567-8edc-ba9876543210");
    }

    #[test]
    fn a_derived_id_names_its_place() {
        for (partition, offset) in [(0, 0), (7, 1 << 50), (u32::MAX, (1 << 60) - 1)] {
            let id = derived_id(0xabcdef, partition, offset);
            assert_eq!(id.len(), 36);
            assert_eq!(parse_derived_id(0xabcdef, &id), Some((partition, offset)));
            assert_eq!(parse_derived_id(0xabcdee, &id), None);
        }
        assert_eq!(parse_derived_id(1, "order-1"), None);
    }
}
