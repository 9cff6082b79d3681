//! Slots on a disk that loses power at every call, and against damaged bytes.

use super::super::disk::sim::{CrashModel, Fault, Operation, Random, SimDisk, Times};
use super::super::disk::{DiskErrorKind, Errno, RealDir};
use super::*;

const IDENTITY: SlotIdentity = SlotIdentity { incarnation: 0x1234_5678_9abc_def0, partition: 3, group: 4 };
const NAME: &str = "3-4.cursor";

type Value = (u64, Vec<u8>);

fn load(dir: &Arc<dyn Dir>) -> Result<(Slots, Value, Option<SlotFault>), SlotsError> {
    let (slots, value, fault) = Slots::open(dir, NAME, IDENTITY)?;
    Ok((slots, (value.lsn, value.body), fault))
}

/// Values of which some need larger slots than those before.
fn random_values(random: &mut Random, count: u64) -> Vec<Value> {
    let length = |random: &mut Random| if random.chance(1, 4) { random.index(9000) } else { random.index(400) };
    (1..=count).map(|lsn| (lsn, vec![random.number() as u8 | 1; length(random)])).collect()
}

#[test]
fn values_follow_each_other_on_a_real_disk() {
    let temporary = tempfile::tempdir().unwrap();
    let dir: Arc<dyn Dir> = Arc::new(RealDir::open(temporary.path()).unwrap());
    let mut slots = Slots::create(&dir, NAME, IDENTITY, 0, b"first").unwrap();
    assert_eq!(load(&dir).unwrap().1, (0, b"first".to_vec()));
    let mut last = 0;
    for (lsn, body) in random_values(&mut Random::new(1), 30) {
        slots.write(lsn, &body).unwrap();
        let (value, fault) = Slots::read(&*dir, NAME, IDENTITY).unwrap();
        assert_eq!((value.lsn, value.body, fault), (lsn, body, None));
        assert!(value.sequence > last);
        last = value.sequence;
    }
    assert_eq!(dir.list().unwrap().len(), 1);
}

#[test]
fn a_file_is_not_made_twice_and_a_missing_one_is_not_found() {
    let dir = SimDisk::new(1).root();
    assert!(matches!(load(&dir), Err(SlotsError::Disk(error)) if error.is_not_found()));
    Slots::create(&dir, NAME, IDENTITY, 0, b"first").unwrap();
    let error = Slots::create(&dir, NAME, IDENTITY, 0, b"second").unwrap_err();
    assert!(matches!(error, SlotsError::Disk(error) if error.kind == DiskErrorKind::AlreadyExists));
    assert_eq!(load(&dir).unwrap().1, (0, b"first".to_vec()));
}

#[test]
fn the_largest_value_fits_and_a_larger_one_changes_nothing() {
    let dir = SimDisk::new(1).root();
    let mut slots = Slots::create(&dir, NAME, IDENTITY, 0, b"first").unwrap();
    assert!(matches!(slots.write(1, &vec![1; BODY_BYTES_MAX + 1]), Err(SlotsError::TooLarge { .. })));
    assert_eq!(load(&dir).unwrap().1, (0, b"first".to_vec()));
    slots.write(1, &vec![1; BODY_BYTES_MAX]).unwrap();
    slots.write(2, &vec![2; BODY_BYTES_MAX]).unwrap();
    assert_eq!(load(&dir).unwrap().1, (2, vec![2; BODY_BYTES_MAX]));
}

/// Runs a workload with the power cut at every mutation, and for each cut looks at several outcomes: the file then holds the
/// acknowledged value or the one that was being written. Then it takes a write, with a second cut at each of its calls.
#[test]
fn a_power_cut_at_any_call_leaves_the_old_or_the_new_value() {
    let mut states = 0;
    for seed in 0..12 {
        let values = random_values(&mut Random::new(seed), 10);
        for cut in 0.. {
            let disk = SimDisk::new(seed);
            disk.set_crash_model(CrashModel { tears_sectors: seed % 2 == 0, leaves_garbage: seed % 3 == 0 });
            disk.set_short_writes(seed % 4 == 0);
            disk.power_off_after(cut);
            let allowed = run_until_cut(&disk, &values);
            for crash in 0..6 {
                let after = disk.crash(crash);
                let context = format!("seed {seed}, cut {cut}, crash {crash}");
                if let Some(found) = check(&after, &allowed, &context) {
                    go_on(&after, found, crash, &context);
                    states += 1;
                }
            }
            if !disk.is_off() {
                break;
            }
        }
    }
    assert!(states > 2000, "only {states} states");
}

/// The values that a restart may find, the acknowledged one first; `None` for no file at all.
fn run_until_cut(disk: &SimDisk, values: &[Value]) -> Vec<Option<Value>> {
    let first = Some((0, b"first".to_vec()));
    let Ok(mut slots) = Slots::create(&disk.root(), NAME, IDENTITY, 0, b"first") else { return vec![None, first] };
    let mut old = first;
    for value in values {
        if slots.write(value.0, &value.1).is_err() {
            return vec![old, Some(value.clone())];
        }
        old = Some(value.clone());
    }
    vec![old]
}

fn check(disk: &SimDisk, allowed: &[Option<Value>], context: &str) -> Option<Value> {
    let found = match load(&disk.root()) {
        Ok((_, value, _)) => Some(value),
        Err(SlotsError::Disk(error)) if error.is_not_found() => None,
        Err(error) => panic!("{context}: {error}"),
    };
    assert!(allowed.contains(&found), "{context}: {found:?} is none of {allowed:?}");
    found
}

fn go_on(disk: &SimDisk, old: Value, seed: u64, context: &str) {
    let (_, body) = random_values(&mut Random::new(seed), 1).remove(0);
    for cut in 0.. {
        let disk = disk.crash_keep_all();
        let (mut slots, ..) = load(&disk.root()).unwrap();
        disk.power_off_after(cut);
        let new = Some((99, body.clone()));
        let allowed = match slots.write(99, &body) {
            Ok(()) => vec![new],
            Err(_) => vec![Some(old.clone()), new],
        };
        check(&disk.crash(seed), &allowed, &format!("{context}, second cut {cut}"));
        if !disk.is_off() {
            break;
        }
    }
}

#[test]
fn every_outcome_of_a_cut_write_is_old_or_new() {
    let disk = SimDisk::new(1);
    let old = (0, vec![1; 4000]);
    let mut slots = Slots::create(&disk.root(), NAME, IDENTITY, old.0, &old.1).unwrap();
    disk.fail(Fault::new(Errno::IO).on(Operation::Sync));
    let new = (1, vec![2; 4000]);
    assert!(slots.write(new.0, &new.1).is_err());
    let mut seen = [0, 0];
    for state in disk.crash_states() {
        let found = check(&state, &[Some(old.clone()), Some(new.clone())], "exhaustive");
        seen[usize::from(found == Some(new.clone()))] += 1;
    }
    assert_eq!(seen, [255, 1]);
}

#[test]
fn a_failed_sync_poisons_and_a_failed_write_does_not() {
    let disk = SimDisk::new(1);
    let mut slots = Slots::create(&disk.root(), NAME, IDENTITY, 0, b"first").unwrap();
    let mut allowed = vec![Some((0, b"first".to_vec()))];
    for value in [(1, vec![1; 10]), (2, vec![2; 5000])] {
        disk.fail(Fault::new(Errno::NOSPC).on(Operation::Write));
        let error = slots.write(value.0, &value.1).unwrap_err();
        assert!(matches!(error, SlotsError::Disk(error) if error.kind == DiskErrorKind::Full));
        allowed.push(Some(value));
        check(&disk, &allowed, "after a full disk");
    }
    slots.write(3, b"third").unwrap();
    check(&disk.crash(1), &[Some((3, b"third".to_vec()))], "after the disk has room");
    disk.fail(Fault::new(Errno::IO).on(Operation::Sync));
    assert!(slots.write(4, b"fourth").is_err());
    assert_eq!(slots.write(5, b"fifth"), Err(SlotsError::Poisoned { path: NAME.to_owned() }));
    assert_eq!(slots.write(5, &[1; 5000]), Err(SlotsError::Poisoned { path: NAME.to_owned() }));
}

#[test]
fn a_fault_at_any_call_leaves_the_acknowledged_value() {
    for errno in [Errno::IO, Errno::NOSPC, Errno::ROFS, Errno::MFILE] {
        for times in [Times::Once, Times::Forever] {
            for seed in 0..4 {
                for call in 0.. {
                    let disk = SimDisk::new(seed);
                    disk.fail_call(call, errno, times);
                    check_with_faults(&disk, seed, &format!("{errno}, {times:?}, seed {seed}, call {call}"));
                    if disk.calls() <= call {
                        break;
                    }
                }
            }
        }
    }
}

fn check_with_faults(disk: &SimDisk, seed: u64, context: &str) {
    let Ok(mut slots) = Slots::create(&disk.root(), NAME, IDENTITY, 0, b"first") else { return };
    let mut allowed = vec![Some((0, b"first".to_vec()))];
    for value in random_values(&mut Random::new(seed), 8) {
        match slots.write(value.0, &value.1) {
            Ok(()) => allowed = vec![Some(value)],
            Err(_) => allowed.push(Some(value)),
        }
    }
    for crash in 0..4 {
        check(&disk.crash(crash), &allowed, &format!("{context}, crash {crash}"));
    }
}

/// A larger file whose last sync fails may be undone by a power loss: the next write would go to one that is not found again.
#[test]
fn a_larger_file_that_may_not_last_takes_no_writes() {
    for operation in [Operation::Rename, Operation::SyncDir] {
        let (disk, ..) = sample();
        let (mut slots, ..) = load(&disk.root()).unwrap();
        disk.fail(Fault::new(Errno::IO).on(operation));
        assert!(matches!(slots.write(8, &[8; 5000]), Err(SlotsError::Disk(_))), "{operation:?}");
        assert_eq!(slots.write(9, b"x"), Err(SlotsError::Poisoned { path: NAME.to_owned() }), "{operation:?}");
    }
}

/// A file whose first slot holds the older value and whose second the newer, of 512 bytes each.
fn sample() -> (SimDisk, Value, Value) {
    let disk = SimDisk::new(1);
    let mut slots = Slots::create(&disk.root(), NAME, IDENTITY, 0, b"first").unwrap();
    slots.write(1, b"older").unwrap();
    slots.write(2, b"newer").unwrap();
    (disk, (1, b"older".to_vec()), (2, b"newer".to_vec()))
}

#[test]
fn one_bad_slot_is_reported_and_repaired_by_the_next_write() {
    let (disk, older, newer) = sample();
    let bytes = disk.read_file(NAME).unwrap();
    for index in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[index] ^= 0x10;
        disk.write_file(NAME, &damaged);
        let (mut slots, value, fault) = load(&disk.root()).unwrap();
        assert_eq!(&value, if index < 512 { &newer } else { &older }, "byte {index}");
        assert!(matches!(fault, Some(SlotFault::Checksum | SlotFault::NotASlot | SlotFault::Short)), "byte {index}: {fault:?}");
        slots.write(9, b"next").unwrap();
        let (_, value, fault) = load(&disk.root()).unwrap();
        assert_eq!((value, fault), ((9, b"next".to_vec()), None), "byte {index}");
    }
}

#[test]
fn two_bad_slots_are_an_error_and_never_an_empty_cursor() {
    let (disk, ..) = sample();
    let bytes = disk.read_file(NAME).unwrap();
    let mut both = bytes.clone();
    both[100] ^= 1;
    both[700] ^= 1;
    for (damaged, first, second) in [
        (both, SlotFault::Checksum, SlotFault::Checksum),
        (vec![], SlotFault::Short, SlotFault::Short),
        (vec![0; 1024], SlotFault::NotASlot, SlotFault::NotASlot),
        (bytes[..511].to_vec(), SlotFault::Short, SlotFault::NotASlot),
    ] {
        disk.write_file(NAME, &damaged);
        let error = load(&disk.root()).unwrap_err();
        assert_eq!(error, SlotsError::BothSlotsBad { path: NAME.to_owned(), first, second });
        assert_eq!(disk.read_file(NAME).unwrap(), damaged);
    }
    let text =
        SlotsError::BothSlotsBad { path: "x".to_owned(), first: SlotFault::Checksum, second: SlotFault::Short }.to_string();
    assert_eq!(text, "x has no readable slot: the first has a wrong checksum, the second is cut short");
}

#[test]
fn a_file_cut_at_any_length_keeps_what_is_whole() {
    let (disk, older, _) = sample();
    let bytes = disk.read_file(NAME).unwrap();
    for cut in 0..bytes.len() {
        disk.write_file(NAME, &bytes[..cut]);
        match load(&disk.root()) {
            Ok((_, value, fault)) => assert_eq!((value, fault), (older.clone(), Some(SlotFault::Short)), "cut {cut}"),
            Err(error) => assert!(cut < 512 && matches!(error, SlotsError::BothSlotsBad { .. }), "cut {cut}: {error}"),
        }
    }
}

#[test]
fn the_file_of_another_cursor_is_refused() {
    let (disk, ..) = sample();
    let other = SlotIdentity { group: 5, ..IDENTITY };
    let error = Slots::read(&*disk.root(), NAME, other).unwrap_err();
    let (first, second) = (SlotFault::Foreign, SlotFault::Foreign);
    assert_eq!(error, SlotsError::BothSlotsBad { path: NAME.to_owned(), first, second });
}

#[test]
fn a_newer_format_in_either_slot_is_refused_untouched() {
    let (disk, ..) = sample();
    let bytes = disk.read_file(NAME).unwrap();
    for slot in [0, 512] {
        for (at, value, version, features) in [(8, 2, 2, 0), (12, 0x40, 1, 0x40)] {
            let mut newer = bytes.clone();
            newer[slot + at] = value;
            let checksum = crc32fast::hash(&newer[slot + 8..slot + 512]).to_le_bytes();
            newer[slot + 4..slot + 8].copy_from_slice(&checksum);
            disk.write_file(NAME, &newer);
            let before = disk.mutations();
            let error = load(&disk.root()).unwrap_err();
            assert_eq!(error, SlotsError::NewerFormat { path: NAME.to_owned(), version, features });
            assert_eq!(disk.mutations(), before);
        }
    }
}

#[test]
fn an_unreadable_file_is_neither_bad_nor_missing() {
    let (disk, ..) = sample();
    for (operation, errno) in [(Operation::Read, Errno::IO), (Operation::Open, Errno::ACCESS), (Operation::Open, Errno::MFILE)] {
        disk.fail(Fault::new(errno).on(operation));
        assert!(matches!(load(&disk.root()), Err(SlotsError::Disk(error)) if !error.is_not_found()));
    }
    disk.fail(Fault::new(Errno::ACCESS).on(Operation::Open));
    assert!(Slots::create(&disk.root(), NAME, IDENTITY, 0, b"").is_err());
    assert_eq!(load(&disk.root()).unwrap().1.0, 2);
}
