//! The log when the disk refuses: nothing acknowledged is lost, and what cannot be read is not taken for an end.

use super::*;
use crate::record::{BLOCK_BYTES_MAX, RECORD_BYTES_MAX};
use crate::storage::disk::Errno;
use crate::storage::disk::sim::{Fault, Operation, Times};

fn offsets(log: &Log) -> Vec<Offset> {
    contents(log, 1).into_iter().map(|entry| entry.1).collect()
}

/// The new segment had its name and the sync of the directory failed. A commit small enough for the old segment went there, was
/// synced and acknowledged, and lay behind the end that the new segment's header gave the old one.
#[test]
fn a_roll_that_fails_half_way_takes_no_more_writes() {
    for (operation, suffix) in [(Operation::SyncDir, ""), (Operation::Rename, ".segment-new")] {
        let disk = SimDisk::new(1);
        let mut writer = open(&disk.root(), &OPTIONS, &mut |_| {}).unwrap().writer;
        commit(&mut writer, vec![batch(0, 0, 1, 100)]).unwrap();
        disk.fail(Fault::new(Errno::IO).on(operation).suffix(suffix));
        commit(&mut writer, vec![batch(0, 1, 1, 300_000)]).unwrap_err();
        let mut acknowledged = vec![0];
        if commit(&mut writer, vec![batch(0, 1, 1, 100)]).is_ok() {
            acknowledged.push(1);
        }
        drop(writer);
        let kept = disk.crash_keep_all();
        let opened = open(&kept.root(), &OPTIONS, &mut |_| {}).unwrap();
        assert_eq!(opened.findings, vec![]);
        assert_eq!(offsets(opened.writer.log()), acknowledged, "{operation:?}");
    }
}

/// A sync failed and the process started again on the same machine: the bytes are in the page cache, marked clean. Readers saw
/// them, the power went, and they had never been on the disk.
#[test]
fn what_is_read_after_a_failed_sync_and_a_restart_survives_a_power_loss() {
    for seed in 0..20 {
        let disk = SimDisk::new(seed);
        let mut writer = open(&disk.root(), &OPTIONS, &mut |_| {}).unwrap().writer;
        commit(&mut writer, vec![batch(0, 0, 1, 2000)]).unwrap();
        disk.fail(Fault::new(Errno::IO).on(Operation::Sync));
        assert!(matches!(commit(&mut writer, vec![batch(0, 1, 1, 2000)]), Err(LogError::Poisoned(_))));
        assert!(matches!(commit(&mut writer, vec![batch(0, 1, 1, 2000)]), Err(LogError::Poisoned(_))));
        drop(writer);
        let restarted = disk.crash_keep_all();
        let seen = offsets(open(&restarted.root(), &OPTIONS, &mut |_| {}).unwrap().writer.log());
        assert_eq!(seen, [0, 1]);
        let after = restarted.crash(seed);
        assert_eq!(offsets(open(&after.root(), &OPTIONS, &mut |_| {}).unwrap().writer.log()), seen, "seed {seed}");
    }
}

/// A page of the tail could not be read, the map showed zeros, and the log went on over acknowledged records.
#[test]
fn an_unreadable_tail_is_an_error_and_not_an_end() {
    let disk = SimDisk::new(1);
    let mut writer = open(&disk.root(), &OPTIONS, &mut |_| {}).unwrap().writer;
    (0..4).for_each(|number| commit(&mut writer, vec![batch(0, number, 1, 2000)]).unwrap());
    drop(writer);
    for skip in 0..40 {
        for times in [Times::Once, Times::Forever] {
            disk.clear_faults();
            disk.fail(Fault::new(Errno::IO).on(Operation::ReadMap).skip(skip).times(times));
            match open(&disk.root(), &OPTIONS, &mut |_| {}) {
                Err(LogError::Disk(error)) => assert_eq!(error.errno, Some(Errno::IO.raw_os_error())),
                Err(error) => panic!("{error}"),
                Ok(opened) => {
                    disk.clear_faults();
                    assert_eq!(opened.findings, vec![], "skip {skip}");
                    assert_eq!(offsets(opened.writer.log()), vec![0, 1, 2, 3], "skip {skip}");
                }
            }
        }
    }
    disk.clear_faults();
    let opened = open(&disk.root(), &OPTIONS, &mut |_| {}).unwrap();
    assert_eq!((opened.findings.as_slice(), offsets(opened.writer.log())), ([].as_slice(), vec![0, 1, 2, 3]));
}

/// A page under a map could not be read once; the batch in it was taken for damaged, and the group went on behind it.
#[test]
fn what_a_map_cannot_show_once_is_read_from_the_file() {
    let disk = SimDisk::new(1);
    let mut writer = open(&disk.root(), &OPTIONS, &mut |_| {}).unwrap().writer;
    (0..4).for_each(|number| commit(&mut writer, vec![batch(0, number, 1, 2000)]).unwrap());
    let segment = Arc::clone(&writer.log().segments()[0]);
    for entry in segment.all_batches().unwrap() {
        let good = segment.batch(&entry).unwrap();
        disk.fail(Fault::new(Errno::IO).on(Operation::ReadMap));
        assert_eq!(segment.batch(&entry).unwrap(), good);
        disk.fail(Fault::new(Errno::IO).on(Operation::ReadMap));
        disk.fail(Fault::new(Errno::IO).on(Operation::Read));
        match segment.batch(&entry) {
            Err(LogError::Disk(error)) => assert_eq!(error.errno, Some(Errno::IO.raw_os_error())),
            other => panic!("{other:?}"),
        }
    }
}

/// A page of an index file could not be read, and the index said that a partition has nothing.
#[test]
fn an_index_that_cannot_be_read_is_an_error_and_says_nothing() {
    let disk = SimDisk::new(1);
    let mut writer = open(&disk.root(), &OPTIONS, &mut |_| {}).unwrap().writer;
    for number in 0..12 {
        commit(&mut writer, vec![batch(0, number, 1, 30_000)]).unwrap();
    }
    let log = writer.log();
    log.maintain().unwrap();
    let before = offsets(log);
    assert_eq!(before.len(), 12);
    for skip in 0..8 {
        log.segments()[0].release_unused();
        log.segments()[0].release_unused();
        disk.fail(Fault::new(Errno::IO).on(Operation::ReadMap).suffix(".index").skip(skip));
        let mut seen = Vec::new();
        match log.visit(0, 0, None, 0, &mut |_, entry| {
            seen.push(entry.base_offset);
            true
        }) {
            Err(LogError::Disk(_)) => {}
            Err(error) => panic!("{error}"),
            Ok(_) => assert_eq!(seen, before, "skip {skip}"),
        }
        disk.clear_faults();
        assert_eq!(offsets(log), before, "skip {skip}");
    }
}

/// Every call while a log is opened fails in turn, once or for ever; an opening without faults then finds everything.
#[test]
fn a_refused_call_while_opening_loses_nothing() {
    let disk = SimDisk::new(2);
    let mut writer = open(&disk.root(), &OPTIONS, &mut |_| {}).unwrap().writer;
    for number in 0..12 {
        commit(&mut writer, vec![batch(0, number, 1, 30_000)]).unwrap();
    }
    let mut parts = vec![batch(0, 12, 1, 100)];
    parts[0].goes_on = true;
    commit(&mut writer, parts).unwrap();
    drop(writer);
    let calls = {
        let kept = disk.crash_keep_all();
        open(&kept.root(), &OPTIONS, &mut |_| {}).unwrap();
        kept.calls()
    };
    for call in 0..calls {
        for (errno, times) in [(Errno::IO, Times::Once), (Errno::NOSPC, Times::Once), (Errno::MFILE, Times::Forever)] {
            let kept = disk.crash_keep_all();
            kept.fail_call(call, errno, times);
            let _ = open(&kept.root(), &OPTIONS, &mut |_| {});
            kept.clear_faults();
            let kept = kept.crash_keep_all();
            let opened = open(&kept.root(), &OPTIONS, &mut |_| {}).unwrap();
            assert_eq!(offsets(opened.writer.log()), (0..12).collect::<Vec<_>>(), "call {call} {errno:?} {times:?}");
        }
    }
}

/// The bytes of a torn tail stay in their segment, so a disk without room for a copy opens all the same.
#[test]
fn a_full_disk_is_no_reason_to_keep_a_torn_log_closed() {
    let disk = SimDisk::new(3);
    let mut writer = open(&disk.root(), &OPTIONS, &mut |_| {}).unwrap().writer;
    commit(&mut writer, vec![batch(0, 0, 1, 100)]).unwrap();
    let mut parts = vec![batch(0, 1, 1, 60_000)];
    parts[0].goes_on = true;
    commit(&mut writer, parts).unwrap();
    drop(writer);
    // Room for the header and the first page of the next segment, and for nothing more.
    disk.set_capacity(Some((256 << 10) + 8192));
    let opened = open(&disk.root(), &OPTIONS, &mut |_| {}).unwrap();
    assert!(matches!(opened.findings[..], [LogFinding::TornTail { .. }]));
    assert_eq!(offsets(opened.writer.log()), [0]);
    assert!(!disk.paths().iter().any(|path| path.contains(".kept")), "{:?}", disk.paths());
}

/// A segment is made ahead of need while the writer makes one of the same number itself. Under one name, one of the two renamed the
/// other's file, and records went to a file that nobody would find.
#[test]
fn spares_and_the_writer_never_meet() {
    let disk = SimDisk::new(4);
    let options = OpenLog { segment_bytes_max: 256 << 10, ..OPTIONS };
    let mut writer = open(&disk.root(), &options, &mut |_| {}).unwrap().writer;
    let spares = Arc::clone(writer.spares());
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Ends with the sender, also when the other thread fails.
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                spares.make().unwrap();
            }
        });
        let _stop = stop;
        for number in 0..2000 {
            let records = vec![batch(0, number, 1, 40_000)];
            writer.ensure_room(size_of(&records), options.segment_bytes_max, false, 1).unwrap();
            let appended = writer.append(records, 1).unwrap();
            writer.sync().unwrap();
            writer.publish(appended);
        }
    });
    drop(writer);
    let opened = open(&disk.crash_keep_all().root(), &options, &mut |_| {}).unwrap();
    assert_eq!(opened.findings, vec![]);
    assert_eq!(offsets(opened.writer.log()), (0..2000).collect::<Vec<_>>());
}

#[test]
fn what_no_reader_would_take_is_refused_before_anything_is_written() {
    let disk = SimDisk::new(5);
    let mut writer = open(&disk.root(), &OPTIONS, &mut |_| {}).unwrap().writer;
    let body = vec![0; RECORD_BYTES_MAX as usize];
    let record = OutRecord { body: OutBody::Control(body), goes_on: false };
    writer.ensure_room(u64::from(RECORD_BYTES_MAX) + 72, 1 << 20, false, 1).unwrap();
    let end = writer.end();
    let bytes = u64::from(RECORD_BYTES_MAX) + 64;
    let refused = LogError::TooLarge { what: "record", bytes, limit: RECORD_BYTES_MAX };
    assert_eq!(writer.append(vec![record], 1).unwrap_err(), refused);
    let mut huge = batch(0, 0, 1, 100);
    if let OutBody::Batch(batch) = &mut huge.body {
        batch.packed.uncompressed_length = BLOCK_BYTES_MAX + 1;
    }
    assert!(matches!(writer.append(vec![huge], 1), Err(LogError::TooLarge { what: "block", .. })));
    commit(&mut writer, vec![batch(0, 0, 1, 100)]).unwrap();
    assert!(writer.end() > end);
    assert_eq!(offsets(writer.log()), [0]);
}

/// A mark published what had been appended before it and was not synced.
#[test]
fn a_frontier_is_marked_only_behind_what_is_published() {
    let disk = SimDisk::new(6);
    let mut writer = open(&disk.root(), &OPTIONS, &mut |_| {}).unwrap().writer;
    let appended = writer.append(vec![batch(0, 0, 1, 100)], 1).unwrap();
    writer.mark_frontier(1).unwrap();
    assert_eq!((writer.end(), offsets(writer.log())), (appended.end, vec![]));
    writer.sync().unwrap();
    writer.publish(appended);
    let end = writer.end();
    writer.mark_frontier(1).unwrap();
    assert_eq!((writer.end(), offsets(writer.log())), (end + 64, vec![0]));
}

/// Records that were appended before a roll and published after it went into the index of the new segment.
#[test]
fn records_are_published_where_they_lie() {
    let disk = SimDisk::new(7);
    let mut writer = open(&disk.root(), &OPTIONS, &mut |_| {}).unwrap().writer;
    let first = writer.append(vec![batch(0, 0, 1, 100)], 1).unwrap();
    writer.ensure_room(300_000, 1 << 20, false, 1).unwrap();
    let second = writer.append(vec![batch(0, 1, 1, 100)], 1).unwrap();
    writer.publish(first);
    writer.publish(second);
    assert_eq!(offsets(writer.log()), [0, 1]);
}
