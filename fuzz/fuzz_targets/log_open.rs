//! Any bytes behind the header of a log's only segment, the header good or bad: opening never panics, what is served verifies, and
//! opening again serves the same.
#![no_main]

mod support;

use std::sync::Arc;

use fanlog::format::names;
use fanlog::format::segment::{SEGMENT_HEADER_BYTES, SegmentHeader};
use fanlog::storage::disk::Dir;
use fanlog::storage::disk::sim::SimDisk;
use fanlog::storage::log::{self, Log, OpenLog};
use libfuzzer_sys::fuzz_target;
use support::INCARNATION;

/// Longer files take longer and show nothing new.
const BYTES_MAX: usize = 1 << 16;

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    if bytes.len() > BYTES_MAX {
        return;
    }
    let start = SEGMENT_HEADER_BYTES as usize;
    let header = SegmentHeader {
        incarnation: INCARNATION,
        number: 1,
        epoch: 1,
        previous_end: 0,
        previous_crc: 0,
        created_at_us: 1,
        capacity: (start + bytes.len()) as u32,
    };
    let mut file = header.encode();
    file.resize(start, 0);
    file.extend_from_slice(bytes);
    if choice & 1 != 0 {
        seal(&mut file, start);
    }
    if choice & 2 != 0 {
        file[0] ^= 1;
    }
    let disk = SimDisk::new(1);
    disk.write_file(&names::segment(1), &file);
    let checkpoint = if choice & 4 != 0 { fanlog::format::lsn(1, start as u32 + u32::from(choice) * 8) } else { 0 };
    let first = open(&disk, checkpoint);
    assert_eq!(open(&disk, checkpoint), first);
});

/// Makes the records that stand one behind the other belong there.
fn seal(file: &mut [u8], start: usize) {
    let mut position = start;
    let mut previous = 0u32;
    while file.get(position..).is_some_and(|rest| rest.starts_with(b"FLR1")) {
        let record = &mut file[position..];
        let length = support::number(record, 8) as usize;
        support::put(record, 24, &INCARNATION.to_le_bytes());
        support::put(record, 32, &fanlog::format::lsn(1, position as u32).to_le_bytes());
        support::put(record, 56, &previous.to_le_bytes());
        support::seal_record(record);
        previous = support::number(record, 4);
        let Some(next) = position.checked_add(length.next_multiple_of(8)).filter(|&next| next > position) else { break };
        position = next;
    }
}

/// What is served: partition, base offset and messages of each batch.
fn open(disk: &SimDisk, checkpoint: u64) -> Vec<(u32, u64, u32)> {
    let dir: Arc<dyn Dir> = disk.root();
    let options =
        OpenLog { incarnation: INCARNATION, epoch: 2, checkpoint, first_segment: 1, segment_bytes_max: 1 << 20, now_us: 2 };
    let opened = log::open(&dir, &options, &mut |_| {}).expect("damage is a finding");
    for finding in &opened.findings {
        assert!(!finding.to_string().is_empty());
    }
    served(opened.writer.log())
}

fn served(log: &Log) -> Vec<(u32, u64, u32)> {
    let mut found = Vec::new();
    for segment in log.segments().iter() {
        for entry in segment.all_batches().expect("an index can be made") {
            let batch = segment.stored_batch(&entry).expect("what the index names verifies");
            assert_eq!((batch.base_offset(), batch.count()), (entry.base_offset, entry.count));
            let _ = batch.annex();
            let _ = batch.messages();
            found.push((entry.partition, entry.base_offset, entry.count));
        }
    }
    found.sort_unstable();
    found
}
