//! Ids for messages whose producer gave none: made from the message's place, so that they cost nothing to store.

use super::{Offset, PartitionId};

/// The id of a message without one of its own: shaped like a UUID of version 8, unique over all queues of a data directory as far
/// as 28 bits of the incarnation tell them apart.
pub fn derived_id(incarnation: u64, partition: PartitionId, offset: Offset) -> String {
    let salt = incarnation & 0x0fff_ffff;
    let partition = u64::from(partition);
    // 28 bits of incarnation, 32 of partition, 60 of offset; the version and variant digits are fixed.
    let offset = offset & 0x0fff_ffff_ffff_ffff;
    format!("{:08x}-{:04x}-8{:03x}-8{:03x}-{:012x}", partition, salt >> 12, salt & 0xfff, offset >> 48, offset & 0xffff_ffff_ffff)
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
    (derived_id(incarnation, partition, offset) == id).then_some((partition, offset))
}

#[cfg(test)]
mod tests {
    use super::*;

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
