//! The opaque ids that clients are given and send back: of queues, partitions and dead letters.
//!
//! Each begins with the queue's incarnation, so an id of a deleted queue never means something in its successor.

use crate::record::PartitionId;

/// The id of a queue: its incarnation in hexadecimal digits.
pub(super) fn queue_id(incarnation: u64) -> String {
    format!("{incarnation:x}")
}

/// The id of a partition.
pub(super) fn partition_id(incarnation: u64, partition: PartitionId) -> String {
    format!("{incarnation:x}-{partition}")
}

/// The incarnation and the partition that an id names, if it is one of ours.
pub(super) fn parse_partition_id(id: &str) -> Option<(u64, PartitionId)> {
    let (incarnation, partition) = id.split_once('-')?;
    let parsed = (u64::from_str_radix(incarnation, 16).ok()?, partition.parse().ok()?);
    // One spelling for each partition: no signs, no leading zeros, no capitals.
    (partition_id(parsed.0, parsed.1) == id).then_some(parsed)
}

/// The id of a dead letter.
pub(super) fn dead_letter_id(incarnation: u64, number: u64) -> String {
    format!("{incarnation:x}-d{number}")
}

/// The incarnation and the number that an id names, if it is one of ours.
pub(super) fn parse_dead_letter_id(id: &str) -> Option<(u64, u64)> {
    let (incarnation, number) = id.split_once("-d")?;
    let parsed = (u64::from_str_radix(incarnation, 16).ok()?, number.parse().ok()?);
    (dead_letter_id(parsed.0, parsed.1) == id).then_some(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_what_they_were_made_of_and_nothing_else_parses() {
        for (incarnation, number) in [(0, 0), (0xabc, 7), (u64::MAX, u32::MAX)] {
            assert_eq!(parse_partition_id(&partition_id(incarnation, number)), Some((incarnation, number)));
            let letter = dead_letter_id(incarnation, u64::from(number));
            assert_eq!(parse_dead_letter_id(&letter), Some((incarnation, u64::from(number))));
            assert_eq!(parse_partition_id(&letter), None);
        }
        for bad in ["", "-", "a", "a-", "-1", "a-1-2", "A-1", "a-01", "+a-1", "a-+1", "a-4294967296", "fffffffffffffffff-1"] {
            assert_eq!(parse_partition_id(bad), None, "{bad}");
        }
        assert_eq!(parse_partition_id("00000000-0000-7000-8000-000000000000"), None);
        assert_eq!(parse_dead_letter_id("a-1"), None);
    }
}
