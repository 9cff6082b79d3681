//! The log on the simulated disk: what was synced is there after any crash, and nothing is invented.

use crate::format::segment::SegmentHeader;
use crate::model::Compression;
use crate::record::{Annex, BatchBuilder, Message, RecordKind};
use crate::storage::disk::sim::SimDisk;

use super::*;

mod damage;
mod faults;
mod holes;

const OPTIONS: OpenLog =
    OpenLog { incarnation: 7, epoch: 1, checkpoint: 0, first_segment: 1, segment_bytes_max: 1 << 20, now_us: 1 };

fn batch(partition: PartitionId, base_offset: Offset, count: u32, size: usize) -> OutRecord {
    let mut builder = BatchBuilder::new();
    for number in 0..count {
        let text = format!("{partition}/{}/", base_offset + u64::from(number));
        builder.push(&Message::new(text.repeat(size / text.len() + 1)));
    }
    let packed = builder.finish(Compression::None);
    OutRecord {
        body: OutBody::Batch(OutBatch { partition, base_offset, packed, annex: Annex::default(), ids: Vec::new() }),
        goes_on: false,
    }
}

fn size_of(records: &[OutRecord]) -> u64 {
    records
        .iter()
        .map(|record| match &record.body {
            OutBody::Batch(batch) => 136 + batch.packed.payload.len() as u64,
            OutBody::Control(bytes) => 72 + bytes.len() as u64,
        })
        .sum()
}

fn commit(writer: &mut LogWriter, records: Vec<OutRecord>) -> Result<(), LogError> {
    writer.ensure_room(size_of(&records), OPTIONS.segment_bytes_max, false, 1)?;
    let appended = writer.append(records, 1)?;
    writer.sync()?;
    writer.publish(appended);
    Ok(())
}

/// (partition, base offset, first payload) of every batch that a reader finds.
fn contents(log: &Log, partitions: u32) -> Vec<(PartitionId, Offset, Vec<u8>)> {
    let mut found = Vec::new();
    for partition in 0..partitions {
        log.visit(partition, 0, None, 0, &mut |segment, entry| {
            let messages = segment.stored_batch(&entry).unwrap().messages().unwrap();
            found.extend(messages.into_iter().map(|message| (partition, message.offset, message.payload.to_vec())));
            true
        })
        .unwrap();
    }
    found
}

#[test]
fn what_was_appended_is_read_back_across_segments_and_a_restart() {
    let disk = SimDisk::new(1);
    let dir = disk.root();
    let opened = open(&dir, &OPTIONS, &mut |_| {}).unwrap();
    let mut writer = opened.writer;
    for number in 0..60u64 {
        commit(&mut writer, vec![batch(0, number * 10, 10, 1000), batch(1, number, 1, 100)]).unwrap();
    }
    let before = contents(writer.log(), 2);
    assert_eq!(before.len(), 660);
    assert!(writer.log().segments().len() > 1, "the test crosses a roll");
    writer.log().maintain().unwrap();
    assert_eq!(contents(writer.log(), 2), before);
    drop(writer);
    let mut replayed = 0;
    let opened = open(&dir, &OPTIONS, &mut |record| replayed += u32::from(record.header.kind == RecordKind::Batch)).unwrap();
    assert_eq!(opened.findings, vec![]);
    assert_eq!(replayed, 120);
    assert_eq!(contents(opened.writer.log(), 2), before);
}

/// Power is cut at every call that changes the disk, with several outcomes each; then again while recovering.
#[test]
fn after_a_power_loss_at_any_call_synced_batches_are_there_and_others_whole_or_absent() {
    let total = {
        let disk = SimDisk::new(1);
        run_until_off(&disk);
        disk.mutations()
    };
    assert!(total > 20);
    for cut in 0..=total {
        for seed in 0..6 {
            let disk = SimDisk::new(seed);
            disk.power_off_after(cut);
            let acknowledged = run_until_off(&disk);
            let mut after = disk.crash(seed * 1000 + cut);
            if seed % 2 == 1 {
                // The power goes again while recovery runs.
                after.power_off_after(seed);
                let _ = open(&after.root(), &OPTIONS, &mut |_| {});
                after = after.crash(seed);
            }
            let opened =
                open(&after.root(), &OPTIONS, &mut |_| {}).unwrap_or_else(|error| panic!("cut {cut} seed {seed}: {error}"));
            let losses: Vec<_> =
                opened.findings.iter().filter(|finding| !matches!(finding, LogFinding::TornTail { .. })).collect();
            assert!(losses.is_empty(), "cut {cut} seed {seed}: {losses:?}");
            let found = contents(opened.writer.log(), 1);
            assert!(found.len() as u64 >= acknowledged * 3, "cut {cut} seed {seed}: lost acknowledged batches");
            assert_eq!(found.len() % 3, 0, "cut {cut} seed {seed}: half a batch");
            for (number, (_, offset, payload)) in (0u64..).zip(&found) {
                assert_eq!(*offset, number);
                assert!(payload.starts_with(format!("0/{number}/").as_bytes()), "cut {cut} seed {seed}");
            }
            // What comes next takes the next offset and survives.
            let mut writer = opened.writer;
            let next = found.len() as u64;
            commit(&mut writer, vec![batch(0, next, 3, 50)]).unwrap();
            drop(writer);
            let again = open(&after.root(), &OPTIONS, &mut |_| {}).unwrap();
            assert_eq!(contents(again.writer.log(), 1).len() as u64, next + 3, "cut {cut} seed {seed}");
        }
    }
}

/// Commits batches of three until the power goes; returns how many were acknowledged.
fn run_until_off(disk: &SimDisk) -> u64 {
    let Ok(opened) = open(&disk.root(), &OPTIONS, &mut |_| {}) else { return 0 };
    let mut writer = opened.writer;
    for number in 0..12 {
        if commit(&mut writer, vec![batch(0, number * 3, 3, 12_000)]).is_err() {
            return number;
        }
    }
    12
}

#[test]
fn damage_before_the_durable_frontier_is_reported_and_the_rest_is_served() {
    let disk = SimDisk::new(3);
    let opened = open(&disk.root(), &OPTIONS, &mut |_| {}).unwrap();
    let mut writer = opened.writer;
    for number in 0..5 {
        commit(&mut writer, vec![batch(0, number, 1, 100)]).unwrap();
    }
    let mut entries = Vec::new();
    writer
        .log()
        .visit(0, 0, None, 0, &mut |_, entry| {
            entries.push(entry);
            true
        })
        .unwrap();
    drop(writer);
    let path = disk.paths().into_iter().find(|path| path.ends_with(".segment")).unwrap();
    let good = disk.read_file(&path).unwrap();
    for (what, position) in [("header", entries[2].position), ("magic", entries[2].position), ("body", entries[2].position + 140)]
    {
        let mut bad = good.clone();
        let length = if what == "magic" { 64 } else { 1 };
        for byte in &mut bad[position as usize + 9..position as usize + 9 + length] {
            *byte ^= 0x55;
        }
        disk.write_file(&path, &bad);
        let opened = open(&disk.root(), &OPTIONS, &mut |_| {}).unwrap();
        let end = entries[3].position;
        assert_eq!(opened.findings, vec![LogFinding::Damaged { segment: 1, start: entries[2].position, end }], "{what}");
        let offsets: Vec<_> = contents(opened.writer.log(), 1).into_iter().map(|entry| entry.1).collect();
        assert_eq!(offsets, [0, 1, 3, 4], "{what}");
        let log = opened.writer.log();
        assert_eq!(log.has_damage_between(lsn_of(1, entries[1].position), lsn_of(1, entries[3].position)), Ok(true));
        assert_eq!(log.has_damage_between(lsn_of(1, entries[3].position), lsn_of(1, entries[4].position)), Ok(false));
    }
}

fn lsn_of(segment: u32, position: u32) -> Lsn {
    crate::format::lsn(segment, position)
}

/// A transaction whose last record did not reach the disk did not happen.
#[test]
fn an_unfinished_transaction_is_cut_whole() {
    let disk = SimDisk::new(4);
    let opened = open(&disk.root(), &OPTIONS, &mut |_| {}).unwrap();
    let mut writer = opened.writer;
    commit(&mut writer, vec![batch(0, 0, 1, 100)]).unwrap();
    let mut parts = vec![batch(0, 1, 1, 100), batch(1, 0, 1, 100)];
    parts.iter_mut().for_each(|part| part.goes_on = true);
    commit(&mut writer, parts).unwrap();
    drop(writer);
    let mut replayed = Vec::new();
    let opened = open(&disk.root(), &OPTIONS, &mut |record| replayed.push(record.position)).unwrap();
    assert_eq!(replayed.len(), 1);
    assert!(matches!(opened.findings[..], [LogFinding::TornTail { .. }]));
    assert_eq!(contents(opened.writer.log(), 2).len(), 1);
}

#[test]
fn an_unfinished_transaction_in_a_file_cut_inside_its_padding_is_cut_whole() {
    let disk = SimDisk::new(4);
    let opened = open(&disk.root(), &OPTIONS, &mut |_| {}).unwrap();
    let mut writer = opened.writer;
    commit(&mut writer, vec![batch(0, 0, 1, 100)]).unwrap();
    let whole = lsn_position(writer.end()) as usize;
    let mut part = batch(0, 1, 1, 100);
    part.goes_on = true;
    let mut end = whole + size_of(std::slice::from_ref(&part)) as usize;
    commit(&mut writer, vec![part]).unwrap();
    drop(writer);
    let name = names::segment(1);
    let good = disk.read_file(&name).unwrap();
    while good[end - 1] == 0 {
        end -= 1;
    }
    assert_ne!(end % 8, 0, "the record has padding");
    for cut in end - 8..=end.next_multiple_of(8) {
        let disk = disk.crash_keep_all();
        let header = SegmentHeader { capacity: cut as u32, ..SegmentHeader::decode(&good).unwrap() }.encode();
        disk.write_file(&name, &[&header, &good[header.len()..cut]].concat());
        let opened = open(&disk.root(), &OPTIONS, &mut |_| {}).unwrap();
        let torn = opened.findings.iter().any(|finding| matches!(finding, LogFinding::TornTail { .. }));
        assert!(torn, "cut at {cut}: {:?}", opened.findings);
        assert_eq!(contents(opened.writer.log(), 1).len(), 1, "cut at {cut}");
    }
}

#[test]
fn a_missing_or_shortened_segment_is_named() {
    let disk = SimDisk::new(5);
    let opened = open(&disk.root(), &OPTIONS, &mut |_| {}).unwrap();
    let mut writer = opened.writer;
    for number in 0..200 {
        commit(&mut writer, vec![batch(0, number, 1, 12_000)]).unwrap();
    }
    writer.log().maintain().unwrap();
    let checkpoint = writer.end();
    drop(writer);
    let options = OpenLog { checkpoint, ..OPTIONS };
    let kept = disk.crash_keep_all();
    kept.remove_file(&names::segment(2));
    let opened = open(&kept.root(), &options, &mut |_| {}).unwrap();
    assert_eq!(opened.findings, vec![LogFinding::MissingSegments { first: 2, last: 2 }]);
    let kept = disk.crash_keep_all();
    let last = disk.paths().into_iter().filter(|path| path.ends_with(".segment")).max().unwrap();
    kept.remove_file(&last);
    let opened = open(&kept.root(), &options, &mut |_| {}).unwrap();
    assert!(opened.findings.iter().any(|finding| matches!(finding, LogFinding::MissingSegments { .. })), "{:?}", opened.findings);
    assert!(opened.writer.end() > checkpoint, "no address is given twice");
}
