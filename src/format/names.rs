//! Names of files and directories, built and parsed in one place. See "Directory" in `storage-format.md`.
//!
//! No name comes from a user: queues are named by incarnation, segments by number, cursor files by numbers.

/// Directory of the queue with this incarnation.
pub fn queue_dir(incarnation: u64) -> String {
    format!("queue-{incarnation:016x}")
}

/// The incarnation of a queue directory's name.
pub fn parse_queue_dir(name: &str) -> Option<u64> {
    parse_hex(name.strip_prefix("queue-")?)
}

/// A queue directory that is being made; ignored and removed at open.
pub fn new_queue_dir(incarnation: u64) -> String {
    format!("new-{incarnation:016x}")
}

/// A queue directory that is being removed; its removal goes on at open.
pub fn deleted_queue_dir(incarnation: u64) -> String {
    format!("deleted-{incarnation:016x}")
}

/// The incarnation of a directory that is being made or removed.
pub fn parse_leftover_dir(name: &str) -> Option<u64> {
    parse_hex(name.strip_prefix("new-").or_else(|| name.strip_prefix("deleted-"))?)
}

/// A segment's file.
pub fn segment(number: u32) -> String {
    format!("{number:08x}.segment")
}

/// The number of a segment's file name.
pub fn parse_segment(name: &str) -> Option<u32> {
    parse_number(name.strip_suffix(".segment")?)
}

/// A segment that is being prepared; no record lies in it.
pub fn new_segment(number: u32) -> String {
    format!("{number:08x}.segment-new")
}

/// A segment file made ahead of need, with the lowest number that it may get. It has a name of its own because it is made while the
/// writer may be preparing a segment of the same number.
pub fn spare_segment(number: u32) -> String {
    format!("{number:08x}.segment-spare")
}

/// The number of a segment file that is being prepared or is a spare: no record lies in it.
pub fn parse_unused_segment(name: &str) -> Option<u32> {
    parse_number(name.strip_suffix(".segment-new").or_else(|| name.strip_suffix(".segment-spare"))?)
}

/// A sealed segment's index.
pub fn index(number: u32) -> String {
    format!("{number:08x}.index")
}

/// The number of an index file's name.
pub fn parse_index(name: &str) -> Option<u32> {
    parse_number(name.strip_suffix(".index")?)
}

/// The list of what was taken out of a sealed segment.
pub fn holes(number: u32) -> String {
    format!("{number:08x}.holes")
}

/// The number of a list of holes' file name.
pub fn parse_holes(name: &str) -> Option<u32> {
    parse_number(name.strip_suffix(".holes")?)
}

/// The file of access tokens in a data directory; the engine does not read it.
pub const TOKEN_FILE: &str = "tokens.json";

/// A file that replaces `name` when it is whole.
pub fn temporary(name: &str) -> String {
    format!("{name}.tmp")
}

/// Bytes of a segment that recovery kept aside.
pub fn kept_aside(number: u32, position: u32) -> String {
    format!("{number:08x}-{position:08x}.kept")
}

/// Whether a name is one of bytes kept aside.
pub fn is_kept_aside(name: &str) -> bool {
    name.strip_suffix(".kept")
        .and_then(|stem| stem.split_once('-'))
        .is_some_and(|(number, position)| parse_number(number).is_some() && parse_number(position).is_some())
}

/// The checkpoint of a queue.
pub const TABLE: &str = "table";
/// Whether a name is that of a copy of a damaged checkpoint.
pub fn is_damaged_table(name: &str) -> bool {
    name.strip_prefix(TABLE)
        .and_then(|rest| rest.strip_prefix(".damaged-"))
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Directory of a queue's cursor files.
pub const CURSORS: &str = "cursors";

/// The cursor file of one partition and group.
pub fn cursor(group: u32, partition: u32) -> String {
    format!("{group:08x}-{partition:08x}.cursor")
}

/// The group and partition of a cursor file's name.
pub fn parse_cursor(name: &str) -> Option<(u32, u32)> {
    let (group, partition) = name.strip_suffix(".cursor")?.split_once('-')?;
    Some((parse_number(group)?, parse_number(partition)?))
}

fn parse_number(text: &str) -> Option<u32> {
    u32::try_from(parse_digits(text, 8)?).ok()
}

fn parse_hex(text: &str) -> Option<u64> {
    parse_digits(text, 16)
}

fn parse_digits(text: &str, length: usize) -> Option<u64> {
    let is_canonical = text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_canonical { u64::from_str_radix(text, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_to_what_they_were_built_from() {
        assert_eq!(parse_queue_dir(&queue_dir(0xab)), Some(0xab));
        assert_eq!(parse_leftover_dir(&new_queue_dir(7)), Some(7));
        assert_eq!(parse_leftover_dir(&deleted_queue_dir(7)), Some(7));
        assert_eq!(parse_segment(&segment(u32::MAX)), Some(u32::MAX));
        assert_eq!(parse_unused_segment(&new_segment(2)), Some(2));
        assert_eq!(parse_unused_segment(&spare_segment(3)), Some(3));
        assert_eq!(parse_index(&index(5)), Some(5));
        assert_eq!(parse_holes(&holes(6)), Some(6));
        assert_eq!(parse_cursor(&cursor(1, 2)), Some((1, 2)));
        assert!(is_kept_aside(&kept_aside(1, 2)));
        assert!(is_damaged_table("table.damaged-12"));
        assert!(!is_damaged_table("table.damaged-"));
    }

    #[test]
    fn other_names_are_nobodys() {
        for name in
            ["", ".segment", "1.segment", "0000000G.segment", "0000000A.segment", "00000001.segment.tmp", "../00000001.segment"]
        {
            assert_eq!(parse_segment(name), None);
        }
        assert_eq!(parse_queue_dir("queue-1"), None);
    }
}
