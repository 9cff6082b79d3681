//! Each kind of loss occurs for some seed, and never to what was synced.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;

const SEEDS: u64 = 300;

/// A disk with a durable, empty file `a`.
fn disk_with_file() -> (SimDisk, Arc<dyn File>) {
    let disk = SimDisk::new(1);
    let file = disk.root().create("a").unwrap();
    file.sync_data().unwrap();
    disk.root().sync().unwrap();
    (disk, file)
}

/// What `look` sees over many crashes.
fn outcomes<T: Ord>(disk: &SimDisk, look: impl Fn(&SimDisk) -> T) -> BTreeSet<T> {
    (0..SEEDS).map(|seed| look(&disk.crash(seed))).collect()
}

fn content(disk: &SimDisk) -> Option<Vec<u8>> {
    disk.read_file("a")
}

#[test]
fn a_seed_decides_the_crash() {
    let (disk, file) = disk_with_file();
    file.write_at(&[1; 30_000], 0).unwrap();
    disk.root().create("b").unwrap();
    for seed in 0..50 {
        let (first, second) = (disk.crash(seed), disk.crash(seed));
        assert_eq!(first.paths(), second.paths());
        assert_eq!(content(&first), content(&second));
    }
}

#[test]
fn what_was_synced_is_there_after_every_crash() {
    let (disk, file) = disk_with_file();
    let dir = disk.root();
    dir.create_dir("d").unwrap();
    let inner = dir.dir("d").unwrap();
    inner.create("old").unwrap().write_at(b"inner", 0).unwrap();
    inner.open("old", Access::Read).unwrap().sync_data().unwrap();
    inner.rename("old", "new").unwrap();
    inner.sync().unwrap();
    file.allocate(0, 100_000).unwrap();
    file.write_at(&[7; 30_000], 100).unwrap();
    file.write_at(&[8; 100], 50).unwrap();
    file.punch_hole(10_000, 5_000).unwrap();
    file.sync_data().unwrap();
    dir.remove("a").unwrap();
    dir.create("a2").unwrap();
    dir.remove("a2").unwrap();
    let kept = disk.root().create("a").unwrap();
    kept.write_at(b"synced", 0).unwrap();
    kept.sync_data().unwrap();
    dir.sync().unwrap();
    disk.set_crash_model(CrashModel { tears_sectors: true, leaves_garbage: true });
    for seed in 0..SEEDS {
        let after = disk.crash(seed);
        assert_eq!(after.paths(), ["a", "d/new"], "seed {seed}");
        assert_eq!(content(&after).unwrap(), b"synced", "seed {seed}");
        assert_eq!(after.read_file("d/new").unwrap(), b"inner", "seed {seed}");
    }
    assert_eq!(disk.crash_states().count(), 1);
}

#[test]
fn an_unsynced_write_vanishes_or_stays() {
    let (disk, file) = disk_with_file();
    file.allocate(0, 512).unwrap();
    file.sync_data().unwrap();
    file.write_at(b"x", 0).unwrap();
    let seen = outcomes(&disk, |disk| content(disk).unwrap()[0]);
    assert_eq!(seen, BTreeSet::from([0, b'x']));
}

#[test]
fn a_write_tears_between_sectors() {
    let (disk, file) = disk_with_file();
    file.allocate(0, 1536).unwrap();
    file.sync_data().unwrap();
    file.write_at(&[1; 1536], 0).unwrap();
    let seen = outcomes(&disk, |disk| {
        let bytes = content(disk).unwrap();
        for sector in bytes.chunks(512) {
            assert!(sector.iter().all(|&byte| byte == sector[0]), "a sector tore");
        }
        (bytes[0], bytes[512], bytes[1024])
    });
    assert_eq!(seen.len(), 8, "{seen:?}");
}

#[test]
fn a_sector_tears_only_when_asked() {
    let (disk, file) = disk_with_file();
    file.allocate(0, 512).unwrap();
    file.sync_data().unwrap();
    file.write_at(&[1; 512], 0).unwrap();
    let ones = |disk: &SimDisk| content(disk).unwrap().iter().filter(|&&byte| byte == 1).count();
    assert_eq!(outcomes(&disk, ones), BTreeSet::from([0, 512]));
    disk.set_crash_model(CrashModel { tears_sectors: true, ..CrashModel::default() });
    assert!(outcomes(&disk, ones).len() > 10);
    let first = |disk: &SimDisk| content(disk).unwrap()[0];
    assert_eq!(outcomes(&disk, first), BTreeSet::from([0, 1]));
}

#[test]
fn writes_reach_the_disk_out_of_order() {
    let (disk, file) = disk_with_file();
    file.allocate(0, 8192).unwrap();
    file.sync_data().unwrap();
    file.write_at(&[1; 512], 0).unwrap();
    file.write_at(&[2; 512], 4096).unwrap();
    let seen = outcomes(&disk, |disk| (content(disk).unwrap()[0], content(disk).unwrap()[4096]));
    assert_eq!(seen, BTreeSet::from([(0, 0), (0, 2), (1, 0), (1, 2)]));
}

#[test]
fn a_sector_never_has_a_write_without_the_one_before_it() {
    let (disk, file) = disk_with_file();
    file.allocate(0, 512).unwrap();
    file.sync_data().unwrap();
    file.write_at(b"1", 0).unwrap();
    file.write_at(b"2", 1).unwrap();
    let seen = outcomes(&disk, |disk| content(disk).unwrap()[..2].to_vec());
    assert_eq!(seen, BTreeSet::from([vec![0, 0], vec![b'1', 0], vec![b'1', b'2']]));
}

#[test]
fn an_extension_is_lost_or_stays_without_its_bytes() {
    let (disk, file) = disk_with_file();
    file.write_at(b"abc", 0).unwrap();
    let seen = outcomes(&disk, |disk| content(disk).unwrap());
    assert_eq!(seen, BTreeSet::from([vec![], vec![0, 0, 0], b"abc".to_vec()]));
}

#[test]
fn an_extension_holds_garbage_only_when_asked() {
    let (disk, file) = disk_with_file();
    file.write_at(b"a", 0).unwrap();
    disk.set_crash_model(CrashModel { leaves_garbage: true, ..CrashModel::default() });
    assert!(outcomes(&disk, |disk| content(disk).unwrap()).len() > 5);
}

#[test]
fn a_cut_is_lost_or_stays() {
    let (disk, file) = disk_with_file();
    file.write_at(b"abcdef", 0).unwrap();
    file.sync_data().unwrap();
    file.set_length(3).unwrap();
    let seen = outcomes(&disk, |disk| content(disk).unwrap());
    assert!(seen.contains(b"abc".as_slice()) && seen.contains(b"abcdef".as_slice()), "{seen:?}");
    file.sync_data().unwrap();
    assert_eq!(outcomes(&disk, |disk| content(disk).unwrap()), BTreeSet::from([b"abc".to_vec()]));
}

#[test]
fn a_created_entry_is_lost_until_its_directory_is_synced() {
    let disk = SimDisk::new(1);
    let file = disk.root().create("a").unwrap();
    file.write_at(b"abc", 0).unwrap();
    file.sync_data().unwrap();
    assert_eq!(outcomes(&disk, content), BTreeSet::from([None, Some(b"abc".to_vec())]));
    disk.root().sync().unwrap();
    assert_eq!(outcomes(&disk, content), BTreeSet::from([Some(b"abc".to_vec())]));
}

#[test]
fn a_directory_is_lost_with_all_that_is_in_it() {
    let disk = SimDisk::new(1);
    disk.root().create_dir("d").unwrap();
    let inner = disk.root().dir("d").unwrap();
    inner.create("a").unwrap();
    inner.sync().unwrap();
    let seen = outcomes(&disk, SimDisk::paths);
    assert_eq!(seen, BTreeSet::from([vec![], vec!["d/a".to_owned()]]));
}

#[test]
fn a_removed_entry_comes_back_until_its_directory_is_synced() {
    let (disk, file) = disk_with_file();
    file.write_at(b"abc", 0).unwrap();
    file.sync_data().unwrap();
    disk.root().remove("a").unwrap();
    assert_eq!(outcomes(&disk, content), BTreeSet::from([None, Some(b"abc".to_vec())]));
    disk.root().sync().unwrap();
    assert_eq!(outcomes(&disk, content), BTreeSet::from([None]));
}

#[test]
fn a_rename_is_lost_or_half_but_never_loses_the_file() {
    let (disk, _file) = disk_with_file();
    disk.write_file("b", b"replaced");
    disk.root().rename("a", "b").unwrap();
    let state = |disk: &SimDisk| (disk.read_file("a"), disk.read_file("b"));
    let (new, old) = (Some(vec![]), Some(b"replaced".to_vec()));
    let seen = outcomes(&disk, state);
    assert_eq!(seen, BTreeSet::from([(None, new.clone()), (new.clone(), old), (new.clone(), new.clone())]));
    disk.root().sync().unwrap();
    assert_eq!(outcomes(&disk, state), BTreeSet::from([(None, new)]));
}

#[test]
fn a_chain_of_renames_never_loses_the_file() {
    let (disk, file) = disk_with_file();
    file.write_at(b"x", 0).unwrap();
    file.sync_data().unwrap();
    for (from, to) in [("a", "b"), ("b", "c"), ("c", "a"), ("a", "d")] {
        disk.root().rename(from, to).unwrap();
    }
    for seed in 0..SEEDS {
        let after = disk.crash(seed);
        assert!(after.paths().iter().any(|path| after.read_file(path).unwrap() == b"x"), "seed {seed}");
    }
}

#[test]
fn a_renamed_directory_has_one_name() {
    let disk = SimDisk::new(1);
    disk.root().create_dir("d").unwrap();
    let inner = disk.root().dir("d").unwrap();
    inner.create("a").unwrap();
    inner.sync().unwrap();
    disk.root().sync().unwrap();
    disk.root().rename("d", "e").unwrap();
    let seen = outcomes(&disk, SimDisk::paths);
    assert_eq!(seen, BTreeSet::from([vec!["d/a".to_owned()], vec!["e/a".to_owned()]]));
}

#[test]
fn a_renamed_file_may_lack_its_unsynced_bytes() {
    let disk = SimDisk::new(1);
    let file = disk.root().create("tmp").unwrap();
    file.write_at(b"abc", 0).unwrap();
    disk.root().rename("tmp", "a").unwrap();
    disk.root().sync().unwrap();
    assert_eq!(outcomes(&disk, |disk| content(disk).unwrap().len()), BTreeSet::from([0, 3]));
}

#[test]
fn every_outcome_is_counted_once() {
    let (disk, file) = disk_with_file();
    file.allocate(0, 1024).unwrap();
    file.sync_data().unwrap();
    file.write_at(&[1; 1024], 0).unwrap();
    file.write_at(&[2; 512], 0).unwrap();
    disk.root().create("b").unwrap();
    let states: Vec<_> = disk.crash_states().map(|disk| (disk.paths(), content(&disk))).collect();
    assert_eq!(states.len(), 3 * 2 * 2);
    assert_eq!(states.into_iter().collect::<BTreeSet<_>>().len(), 12);
}

#[test]
fn a_killed_process_loses_nothing_and_makes_nothing_durable() {
    let (disk, file) = disk_with_file();
    file.write_at(b"abc", 0).unwrap();
    let killed = disk.crash_keep_all();
    assert_eq!(content(&killed).unwrap(), b"abc");
    assert_eq!(content(&killed.crash_drop_unsynced()).unwrap(), b"");
    killed.root().open("a", Access::Read).unwrap().sync_data().unwrap();
    assert_eq!(content(&killed.crash_drop_unsynced()).unwrap(), b"abc");
    assert_eq!(content(&disk.crash_drop_unsynced()).unwrap(), b"");
}

#[test]
fn the_power_goes_off_during_a_call() {
    let (disk, file) = disk_with_file();
    file.allocate(0, 1024).unwrap();
    file.sync_data().unwrap();
    disk.power_off_after(disk.mutations() + 1);
    file.write_at(&[1; 512], 0).unwrap();
    assert!(!disk.is_off());
    assert_eq!(file.write_at(&[2; 512], 512).unwrap_err().errno, Some(Errno::IO.raw_os_error()));
    assert!(disk.is_off());
    let count = disk.mutations();
    assert!(file.sync_data().is_err());
    assert!(file.read_at(&mut [0], 0).is_err());
    assert!(disk.root().list().is_err());
    assert_eq!(disk.mutations(), count);
    let seen = outcomes(&disk, |disk| (content(disk).unwrap()[0], content(disk).unwrap()[512]));
    assert_eq!(seen, BTreeSet::from([(0, 0), (0, 2), (1, 0), (1, 2)]));
    assert!(disk.crash(1).root().list().is_ok());
}

#[test]
fn a_sync_cut_by_the_power_promises_nothing() {
    let (disk, file) = disk_with_file();
    file.write_at(b"abc", 0).unwrap();
    disk.power_off_after(disk.mutations());
    assert!(file.sync_data().is_err());
    assert_eq!(content(&disk.crash_drop_unsynced()).unwrap(), b"");
}

#[test]
fn faults_strike_by_operation_suffix_and_number() {
    let (disk, file) = disk_with_file();
    let dir = disk.root();
    disk.fail(Fault::new(Errno::NOSPC).on(Operation::Create).suffix(".log").skip(1));
    dir.create("0.log").unwrap();
    dir.create("b").unwrap();
    assert_eq!(dir.create("1.log").unwrap_err().kind, super::super::DiskErrorKind::Full);
    dir.create("1.log").unwrap();
    disk.fail(Fault::new(Errno::IO).on(Operation::Sync).times(Times::Forever));
    assert!(file.sync_data().is_err() && file.sync_data().is_err());
    disk.clear_faults();
    file.sync_data().unwrap();
    disk.fail_call(disk.calls() + 1, Errno::MFILE, Times::Once);
    file.length().unwrap();
    assert_eq!(dir.open("a", Access::Read).unwrap_err().kind, super::super::DiskErrorKind::TooManyFiles);
    dir.open("a", Access::Read).unwrap();
}

#[test]
fn every_operation_can_be_refused() {
    for &operation in Operation::ALL {
        let (disk, file) = disk_with_file();
        let dir = disk.root();
        dir.create_dir("d").unwrap();
        file.write_at(b"abc", 0).unwrap();
        let map = file.map(3).unwrap();
        disk.fail(Fault::new(Errno::IO).on(operation));
        let refused = match operation {
            Operation::Create => dir.create("x").is_err(),
            Operation::Open => dir.open("a", Access::Read).is_err(),
            Operation::Rename => dir.rename("a", "x").is_err(),
            Operation::Remove => dir.remove("a").is_err(),
            Operation::List => dir.list().is_err(),
            Operation::CreateDir => dir.create_dir("x").is_err(),
            Operation::RemoveDir => dir.remove_dir("d").is_err(),
            Operation::SyncDir => dir.sync().is_err(),
            Operation::Measure => file.length().is_err(),
            Operation::Lock => dir.lock_file("x").is_err(),
            Operation::Read => file.read_at(&mut [0], 0).is_err(),
            Operation::Write => file.write_at(b"x", 0).is_err(),
            Operation::Allocate => file.allocate(0, 100).is_err(),
            Operation::SetLength => file.set_length(0).is_err(),
            Operation::Sync => file.sync_data().is_err(),
            Operation::Map => file.map(3).is_err(),
            Operation::ReadMap => map.slice(0..3).is_some_and(|bytes| bytes == [0; 3][..]) && map.is_faulted(),
            Operation::PunchHole => file.punch_hole(0, 1).is_err(),
        };
        assert!(refused, "{operation:?}");
        assert_eq!(disk.paths(), ["a"], "{operation:?}");
    }
}

#[test]
fn a_call_that_is_interrupted_is_tried_again() {
    for operation in [Operation::Write, Operation::Sync, Operation::SyncDir, Operation::Read, Operation::Allocate] {
        let (disk, file) = disk_with_file();
        disk.fail(Fault::new(Errno::INTR).on(operation));
        file.allocate(0, 3).unwrap();
        file.write_at(b"abc", 0).unwrap();
        file.sync_data().unwrap();
        disk.root().sync().unwrap();
        file.read_exact_at(&mut [0; 3], 0).unwrap();
        assert_eq!(content(&disk.crash_drop_unsynced()).unwrap(), b"abc");
    }
}

#[test]
fn a_refused_write_may_leave_a_part() {
    let lengths: BTreeSet<usize> = (0..50)
        .map(|seed| {
            let disk = SimDisk::new(seed);
            let file = disk.root().create("a").unwrap();
            disk.fail(Fault::new(Errno::IO).on(Operation::Write));
            assert!(file.write_at(b"abc", 0).is_err());
            content(&disk).unwrap().len()
        })
        .collect();
    assert_eq!(lengths, BTreeSet::from([0, 1, 2, 3]));
}

/// The kernel marks pages clean when writing them out fails, so that the next sync reports success over lost bytes.
#[test]
fn what_a_failed_sync_was_to_cover_is_not_safe_after_the_next() {
    let (disk, file) = disk_with_file();
    file.allocate(0, 8192).unwrap();
    file.sync_data().unwrap();
    file.write_at(&[1; 512], 0).unwrap();
    file.write_at(&[1; 512], 4096).unwrap();
    disk.fail(Fault::new(Errno::IO).on(Operation::Sync));
    assert!(file.sync_data().is_err());
    file.write_at(&[2; 512], 4096).unwrap();
    file.sync_data().unwrap();
    let seen = outcomes(&disk, |disk| (content(disk).unwrap()[0], content(disk).unwrap()[4096]));
    assert_eq!(seen, BTreeSet::from([(0, 2), (1, 2)]));
}

#[test]
fn a_full_disk_refuses_and_recovers() {
    let disk = SimDisk::new(1);
    disk.set_capacity(Some(4 * 4096));
    let dir = disk.root();
    let file = dir.create("a").unwrap();
    assert_eq!(file.allocate(0, 5 * 4096).unwrap_err().kind, super::super::DiskErrorKind::Full);
    assert_eq!(file.length(), Ok(0));
    file.allocate(0, 3 * 4096).unwrap();
    assert_eq!(dir.free_bytes(), Ok(4096));
    let other = dir.create("b").unwrap();
    assert_eq!(other.write_at(&[1; 5000], 0).unwrap_err().kind, super::super::DiskErrorKind::Full);
    assert_eq!(other.length(), Ok(4096));
    file.write_at(&[1; 3 * 4096], 0).unwrap();
    assert_eq!(dir.free_bytes(), Ok(0));
    file.punch_hole(0, 4096).unwrap();
    assert_eq!(dir.free_bytes(), Ok(4096));
    other.write_at(&[1; 5000], 0).unwrap();
    dir.remove("a").unwrap();
    assert_eq!(dir.free_bytes(), Ok(2 * 4096));
    other.set_length(100).unwrap();
    assert_eq!(dir.free_bytes(), Ok(3 * 4096));
    assert_eq!(disk.crash_keep_all().root().free_bytes(), Ok(3 * 4096));
}

#[test]
fn a_wild_position_is_refused() {
    let (_disk, file) = disk_with_file();
    for position in [1 << 40, u64::MAX - 1, u64::MAX] {
        assert!(file.write_at(b"x", position).is_err());
        assert!(file.allocate(position, 1).is_err());
        assert!(file.punch_hole(position, u64::MAX).is_err());
    }
    assert!(file.set_length(u64::MAX).is_err());
    assert_eq!(file.length(), Ok(0));
}

#[test]
fn damage_is_done_to_the_disk_itself() {
    let (disk, file) = disk_with_file();
    file.write_at(b"unsynced", 0).unwrap();
    disk.root().create_dir("d").unwrap();
    disk.root().sync().unwrap();
    disk.write_file("a", b"damaged");
    disk.write_file("d/b", b"new");
    assert_eq!(disk.paths(), ["a", "d/b"]);
    let after = disk.crash_drop_unsynced();
    assert_eq!(content(&after).unwrap(), b"damaged");
    assert_eq!(after.read_file("d/b").unwrap(), b"new");
    after.remove_file("d/b");
    assert_eq!(after.crash(1).paths(), ["a"]);
    assert_eq!(after.read_file("d"), None);
}
