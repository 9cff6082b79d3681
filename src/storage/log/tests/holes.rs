//! Room given back under readers, on a real disk: its maps show what happens to the file.

use crate::storage::disk::RealDir;

use super::*;

#[test]
fn a_slice_in_somebodys_hands_keeps_its_bytes_and_nobody_gets_a_new_one() {
    let place = tempfile::tempdir().unwrap();
    let dir: Arc<dyn Dir> = Arc::new(RealDir::open_or_create(place.path()).unwrap());
    let mut writer = open(&dir, &OPTIONS, &mut |_| {}).unwrap().writer;
    for number in 0..8u64 {
        commit(&mut writer, vec![batch(0, number, 1, 40_000), batch(1, number, 1, 100)]).unwrap();
    }
    let log = Arc::clone(writer.log());
    assert!(log.segments().len() > 1, "the test needs a sealed segment");
    let segment = Arc::clone(&log.segments()[0]);
    let before = contents(&log, 2);
    let all = segment.all_batches().unwrap();
    let dead = *all.iter().find(|batch| batch.partition == 0).unwrap();
    let slice = segment.batch(&dead).unwrap();
    let copy = slice.to_vec();
    let live: Vec<_> = all.iter().copied().filter(|batch| batch.partition == 1).collect();
    assert_eq!(segment.plan_holes(&all).unwrap(), None, "nothing is dead");
    let holes = segment.plan_holes(&live).unwrap().unwrap();
    log.make_holes(&segment, holes).unwrap();
    assert!(matches!(segment.batch(&dead), Err(LogError::Removed { segment: 1, .. })));
    assert!(!segment.release_holes().unwrap(), "somebody holds a slice");
    assert_eq!(slice, copy);
    assert_eq!(segment.disk_bytes(), segment.capacity());
    // A map that was let go of while a slice of it is out counts, too.
    let kept = segment.batch(&live[0]).unwrap();
    segment.release_unused();
    segment.release_unused();
    drop(slice);
    assert!(!segment.release_holes().unwrap());
    drop(kept);
    assert!(segment.release_holes().unwrap());
    assert!(segment.disk_bytes() < segment.capacity() / 2);
    assert_eq!(segment.plan_holes(&live).unwrap(), None, "it is done");
    let file = dir.open(&names::segment(1), crate::storage::disk::Access::Read).unwrap();
    let mut bytes = vec![1; dead.length as usize];
    file.read_exact_at(&mut bytes, u64::from(dead.position)).unwrap();
    assert!(bytes[8192..16_384].iter().all(|&byte| byte == 0), "the blocks are gone");
    let rest = contents(&log, 2);
    let expected: Vec<_> =
        before.iter().filter(|(partition, offset, _)| *partition == 1 || rest_has(&rest, *offset)).cloned().collect();
    assert_eq!(rest, expected);
    assert_eq!(rest.iter().filter(|entry| entry.0 == 1).count(), 8);
    assert!(rest.len() < before.len());
    // A start that has no index reads around the holes, in the middle and at the end.
    drop((writer, log, segment));
    std::fs::remove_file(place.path().join(names::index(1))).unwrap();
    let checkpoint = crate::format::lsn(2, 4096);
    let opened = open(&dir, &OpenLog { checkpoint, epoch: 2, ..OPTIONS }, &mut |_| {}).unwrap();
    assert_eq!(opened.findings, vec![LogFinding::IndexRebuilt(1)]);
    assert_eq!(contents(opened.writer.log(), 2), rest);
    // A checkpoint that is older than the hole is not the newest there was.
    drop(opened);
    let opened = open(&dir, &OpenLog { epoch: 3, ..OPTIONS }, &mut |_| {}).unwrap();
    assert!(opened.findings.iter().all(LogFinding::is_loss) && !opened.findings.is_empty(), "{:?}", opened.findings);
}

fn rest_has(rest: &[(PartitionId, Offset, Vec<u8>)], offset: Offset) -> bool {
    rest.iter().any(|entry| entry.0 == 0 && entry.1 == offset)
}

/// When all segments behind a hollow one are lost, it is the last one, and its end is looked for.
#[test]
fn a_hollow_segment_may_be_the_last_one_left() {
    let disk = SimDisk::new(1);
    let dir = disk.root();
    let mut writer = open(&dir, &OPTIONS, &mut |_| {}).unwrap().writer;
    for number in 0..12u64 {
        commit(&mut writer, vec![batch(0, number, 1, 40_000), batch(1, number, 1, 100)]).unwrap();
    }
    let log = Arc::clone(writer.log());
    let segment = Arc::clone(&log.segments()[0]);
    let live: Vec<_> = segment.all_batches().unwrap().into_iter().filter(|batch| batch.partition == 1).collect();
    log.make_holes(&segment, segment.plan_holes(&live).unwrap().unwrap()).unwrap();
    assert!(segment.release_holes().unwrap());
    let (kept, end) = (live.len(), segment.end());
    drop((writer, log, segment));
    for path in disk.paths().iter().filter(|path| path.ends_with(".segment") && !path.ends_with("00000001.segment")) {
        disk.remove_file(path);
    }
    let checkpoint = crate::format::lsn(2, 4096);
    let opened = open(&dir, &OpenLog { checkpoint, epoch: 2, ..OPTIONS }, &mut |_| {}).unwrap();
    // The checkpoint goes beyond this segment, so what follows its last record in it is not known to be nothing.
    let unexpected = |finding: &&LogFinding| match **finding {
        LogFinding::Damaged { start, .. } => start < end,
        LogFinding::MissingSegments { .. } | LogFinding::EndsBeforeCheckpoint { .. } => false,
        _ => true,
    };
    assert_eq!(opened.findings.iter().find(unexpected), None);
    assert_eq!(contents(opened.writer.log(), 2).len(), kept);
}
