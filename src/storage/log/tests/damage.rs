//! A small log is damaged from outside in every way: never a panic, never a wrong message, and every batch is served or its range is
//! reported.

use super::*;
use crate::format::segment::SEGMENT_HEADER_BYTES;
use crate::record::padded;
use crate::storage::disk::sim::Random;

/// A log of two segments, and what was put into it.
struct Subject {
    disk: SimDisk,
    /// Segment, position, length, base offset of every batch.
    batches: Vec<(u32, u32, u32, Offset)>,
    /// Where the log ends.
    end: Lsn,
    /// The address at which half of it was there.
    middle: Lsn,
    /// The last segment as it was then.
    older: Vec<u8>,
}

impl Subject {
    fn new() -> Self {
        let disk = SimDisk::new(1);
        let mut writer = open(&disk.root(), &OPTIONS, &mut |_| {}).unwrap().writer;
        (0..3).for_each(|number| commit(&mut writer, vec![batch(0, number, 1, 40)]).unwrap());
        writer.ensure_room(255 << 10, 256 << 10, false, 1).unwrap();
        (3..5).for_each(|number| commit(&mut writer, vec![batch(0, number, 1, 40)]).unwrap());
        let (middle, older) = (writer.end(), disk.read_file(&names::segment(2)).unwrap());
        (5..8).for_each(|number| commit(&mut writer, vec![batch(0, number, 1, 40)]).unwrap());
        writer.mark_frontier(1).unwrap();
        writer.sync().unwrap();
        let mut batches = Vec::new();
        writer
            .log()
            .visit(0, 0, None, 0, &mut |segment, entry| {
                batches.push((segment.number(), entry.position, entry.length, entry.base_offset));
                true
            })
            .unwrap();
        assert_eq!(batches.len(), 8);
        Self { disk, batches, end: writer.end(), middle, older }
    }

    /// Opens a damaged copy twice (what was found must still be known the second time), checks the rules, and returns the findings of
    /// the first time with the offsets served.
    fn check(&self, damaged: &SimDisk, checkpoint: Lsn, what: &str) -> (Vec<LogFinding>, Vec<Offset>) {
        let options = OpenLog { checkpoint, ..OPTIONS };
        let open = || open(&damaged.root(), &options, &mut |_| {}).unwrap_or_else(|error| panic!("{what}: {error}"));
        let opened = open();
        let served = served(opened.writer.log(), what);
        for &(segment, position, length, offset) in &self.batches {
            let is_reported = opened.findings.iter().any(|finding| covers(finding, segment, position, length));
            // Zeros to the end behind the last known frontier cannot be told from a log that never went on.
            let is_erased = damaged.read_file(&names::segment(segment)).is_some_and(|bytes| {
                checkpoint <= crate::format::lsn(segment, position)
                    && bytes[(position as usize).min(bytes.len())..].iter().all(|&byte| byte == 0)
            });
            assert!(
                served.contains(&offset) || is_reported || is_erased,
                "{what}: {offset} is gone in silence, {:?}",
                opened.findings
            );
        }
        let log = Arc::clone(opened.writer.log());
        drop(opened.writer);
        let again = open();
        assert_eq!(self::served(again.writer.log(), what), served, "{what}: opened again");
        drop(log);
        (opened.findings, served)
    }
}

/// The offsets that are served, each with the payload it was given.
fn served(log: &Log, what: &str) -> Vec<Offset> {
    let mut offsets = Vec::new();
    for (_, offset, payload) in contents(log, 1) {
        assert!(payload.starts_with(format!("0/{offset}/").as_bytes()), "{what}: a wrong message at {offset}");
        assert!(offsets.last().is_none_or(|&last| last < offset), "{what}: offset {offset} out of order");
        offsets.push(offset);
    }
    offsets
}

/// Whether a finding says that the bytes of a batch are lost.
fn covers(finding: &LogFinding, segment: u32, position: u32, length: u32) -> bool {
    let is_before =
        |end: Lsn| lsn_segment(end) < segment || (lsn_segment(end) == segment && lsn_position(end) < position + length);
    match *finding {
        LogFinding::Damaged { segment: found, start, end } => found == segment && start < position + length && position < end,
        LogFinding::TornTail { segment: found, position: end, .. } => is_before(crate::format::lsn(found, end)),
        LogFinding::MissingSegments { first, last } => (first..=last).contains(&segment),
        LogFinding::EndsBeforeCheckpoint { end, .. } => is_before(end),
        _ => false,
    }
}

/// Every used byte of both segments, flipped in two ways, with the checkpoint at the start and in the middle: what is lost is the batch
/// that was hit and nothing else, and it is damage, since all of it was durable and the log says so.
#[test]
fn every_flipped_byte_costs_at_most_its_own_batch_and_is_called_damage() {
    let subject = Subject::new();
    for number in [1, 2] {
        let name = names::segment(number);
        let good = subject.disk.read_file(&name).unwrap();
        let used = if number == 2 { lsn_position(subject.end) as usize } else { 5200 };
        let positions = (0..80).chain(SEGMENT_HEADER_BYTES as usize..used);
        for position in positions {
            for (flip, checkpoint) in [(0x01, 0), (0xff, subject.middle)] {
                let what = format!("segment {number} byte {position} flip {flip:#x}");
                let mut bad = good.clone();
                bad[position] ^= flip;
                let disk = subject.disk.crash_keep_all();
                disk.write_file(&name, &bad);
                let (findings, served) = subject.check(&disk, checkpoint, &what);
                let hit: Vec<_> = (subject.batches.iter())
                    .filter(|batch| batch.0 == number && (batch.1 as usize..(batch.1 + batch.2) as usize).contains(&position))
                    .map(|batch| batch.3)
                    .collect();
                let lost: Vec<_> = (0..8).filter(|offset| !served.contains(offset)).collect();
                assert_eq!(lost, hit, "{what}: {findings:?}");
                // The frontier record at the end is all that may be taken for a torn tail: nobody waited for it.
                let last = subject.batches[7];
                let behind = (last.1 + padded(last.2) as u32) as usize;
                let is_torn = findings.iter().any(|finding| matches!(finding, LogFinding::TornTail { .. }));
                assert!(!is_torn || (number == 2 && position >= behind), "{what}: {findings:?}");
            }
        }
    }
}

/// A crash spoils no header and shortens no file, so what is behind a bad record there is no torn tail: whole records behind it are
/// served, at once and when it is opened again.
#[test]
fn behind_a_spoilt_header_or_in_a_shortened_file_a_flipped_byte_costs_its_own_batch() {
    let subject = Subject::new();
    let name = names::segment(2);
    let good = subject.disk.read_file(&name).unwrap();
    let used = lsn_position(subject.end) as usize;
    for position in SEGMENT_HEADER_BYTES as usize..used {
        for spoil_header in [true, false] {
            let what = format!("byte {position}, {}", if spoil_header { "bad header" } else { "short file" });
            let mut bad = good.clone();
            bad[position] ^= 1;
            if spoil_header {
                bad[0] ^= 1;
            } else {
                bad.truncate(used);
            }
            let disk = subject.disk.crash_keep_all();
            disk.write_file(&name, &bad);
            let (findings, served) = subject.check(&disk, 0, &what);
            let hit: Vec<_> = (subject.batches.iter())
                .filter(|batch| batch.0 == 2 && (batch.1 as usize..(batch.1 + batch.2) as usize).contains(&position))
                .map(|batch| batch.3)
                .collect();
            let lost: Vec<_> = (0..8).filter(|offset| !served.contains(offset)).collect();
            assert_eq!(lost, hit, "{what}: {findings:?}");
        }
    }
}

#[test]
fn a_file_cut_short_at_any_length_is_reported() {
    let subject = Subject::new();
    for number in [1, 2] {
        let name = names::segment(number);
        let good = subject.disk.read_file(&name).unwrap();
        let used = if number == 2 { lsn_position(subject.end) as usize } else { 5200 };
        for length in (0..80).chain(SEGMENT_HEADER_BYTES as usize - 2..used + 20).chain([good.len() - 1]) {
            let disk = subject.disk.crash_keep_all();
            disk.write_file(&name, &good[..length]);
            let what = format!("segment {number} cut at {length}");
            let (findings, served) = subject.check(&disk, if length % 2 == 0 { 0 } else { subject.middle }, &what);
            let whole: Vec<_> = (subject.batches.iter())
                .filter(|batch| batch.0 != number || (batch.1 + batch.2) as usize <= length)
                .map(|batch| batch.3)
                .collect();
            assert_eq!(served, whole, "{what}");
            assert!(number == 1 || !findings.is_empty(), "{what}");
        }
    }
}

#[test]
fn zeroed_ranges_and_noise_are_reported() {
    let subject = Subject::new();
    let mut random = Random::new(7);
    for round in 0..1500 {
        let disk = subject.disk.crash_keep_all();
        let number = 1 + random.index(2) as u32;
        let name = names::segment(number);
        let mut bytes = subject.disk.read_file(&name).unwrap();
        for _ in 0..1 + random.index(3) {
            let start = if random.index(6) == 0 { random.index(80) } else { 4096 + random.index(1500) };
            let length = 1 + random.index(600);
            let is_noise = random.index(2) == 0;
            for byte in &mut bytes[start..start + length] {
                *byte = if is_noise { random.index(256) as u8 } else { 0 };
            }
        }
        disk.write_file(&name, &bytes);
        subject.check(&disk, if round % 2 == 0 { 0 } else { subject.middle }, &format!("round {round}"));
    }
}

#[test]
fn swapped_missing_and_older_files_are_reported() {
    let subject = Subject::new();
    let (first, second) = (names::segment(1), names::segment(2));
    let bytes = |name: &str| subject.disk.read_file(name).unwrap();
    for checkpoint in [0, subject.middle, subject.end] {
        let swapped = subject.disk.crash_keep_all();
        swapped.write_file(&first, &bytes(&second));
        swapped.write_file(&second, &bytes(&first));
        assert_eq!(subject.check(&swapped, checkpoint, "swapped").1, [0; 0]);
        let doubled = subject.disk.crash_keep_all();
        doubled.write_file(&second, &bytes(&first));
        assert_eq!(subject.check(&doubled, checkpoint, "doubled").1, [0, 1, 2]);
        let gone = subject.disk.crash_keep_all();
        gone.remove_file(&first);
        assert_eq!(subject.check(&gone, checkpoint, "first gone").1, [3, 4, 5, 6, 7]);
    }
    // An older copy of the last segment, or none, is a shorter log that nothing in it contradicts: the checkpoint does.
    let older = subject.disk.crash_keep_all();
    older.write_file(&second, &subject.older);
    let (findings, served) = subject.check(&older, subject.end, "older");
    assert_eq!(served, [0, 1, 2, 3, 4]);
    let lost = LogFinding::Damaged { segment: 2, start: lsn_position(subject.middle), end: lsn_position(subject.end) };
    assert!(findings.contains(&lost), "{findings:?}");
    let gone = subject.disk.crash_keep_all();
    gone.remove_file(&second);
    assert_eq!(subject.check(&gone, subject.end, "last gone").1, [0, 1, 2]);
}

/// A file with a number far away made the log list four thousand million missing segments, one by one.
#[test]
fn a_stray_segment_number_costs_nothing_and_cannot_overflow() {
    for number in [77, u32::MAX - 1, u32::MAX] {
        let subject = Subject::new();
        let disk = subject.disk.crash_keep_all();
        disk.write_file(&names::segment(number), b"stray");
        let opened = open(&disk.root(), &OPTIONS, &mut |_| {});
        if number == u32::MAX {
            assert_eq!(opened.unwrap_err(), LogError::NumbersUsedUp);
            continue;
        }
        let opened = opened.unwrap();
        assert!(opened.findings.contains(&LogFinding::MissingSegments { first: 3, last: number - 1 }), "{:?}", opened.findings);
        assert_eq!(served(opened.writer.log(), "stray"), (0..8).collect::<Vec<_>>());
    }
}

/// Positions have 32 bits: a record that lies 4 GiB behind its own address was taken for the one there.
#[test]
fn a_file_longer_than_positions_reach_is_read_as_far_as_they_do() {
    let subject = Subject::new();
    let disk = subject.disk.crash_keep_all();
    let file = disk.root().open(&names::segment(2), crate::storage::disk::Access::ReadWrite).unwrap();
    file.set_length(5 << 30).unwrap();
    let mut opened = open(&disk.root(), &OpenLog { segment_bytes_max: u64::MAX, ..OPTIONS }, &mut |_| {}).unwrap();
    assert_eq!(served(opened.writer.log(), "long"), (0..8).collect::<Vec<_>>());
    opened.writer.ensure_room(2 << 30, u64::MAX, true, 1).unwrap_err();
}

#[test]
fn missing_numbers_are_ranges() {
    use super::recovery::missing;
    let none: [std::ops::RangeInclusive<u32>; 0] = [];
    assert_eq!(missing(&[1, 2, 3], 1, 0), none);
    assert_eq!(missing(&[2, 5, 6], 1, 0), [1..=1, 3..=4]);
    assert_eq!(missing(&[2, 3], 2, crate::format::lsn(5, 0)), [4..=5]);
    assert_eq!(missing(&[1, 2, 7], 2, 0), [3..=6]);
    assert_eq!(missing(&[3], 9, 0), none);
    assert_eq!(missing(&[], 2, crate::format::lsn(3, 0)), [2..=3]);
    assert_eq!(missing(&[u32::MAX], 1, 0), [1..=u32::MAX - 1]);
}
