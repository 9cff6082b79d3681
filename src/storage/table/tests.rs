//! The table against a map, on a disk that loses power at every call, and against damaged bytes.

use std::collections::BTreeMap;

use super::super::disk::sim::{CrashModel, Fault, Operation, Random, SimDisk, Times};
use super::super::disk::{Errno, RealDir};
use super::*;

const INCARNATION: u64 = 0x1234_5678_9abc_def0;
const NAME: &str = "checkpoint.table";

/// The live entries and the mark: all that a table is for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Model {
    live: BTreeMap<Key, Vec<u8>>,
    lsn: u64,
}

impl Model {
    fn apply(&mut self, entry: Entry<'_>) {
        match entry.value {
            Some(value) => self.live.insert(entry.key, value.to_vec()),
            None => self.live.remove(&entry.key),
        };
    }

    fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.live.iter().map(|(&key, value)| Entry { key, value: Some(value) })
    }
}

fn key(a: u32) -> Key {
    Key { kind: 1, a, b: 2 }
}

fn load(dir: &Arc<dyn Dir>) -> Result<(Table, TableReport, Model), TableError> {
    let mut model = Model::default();
    let (table, report) = Table::open(dir, NAME, INCARNATION, |entry| model.apply(entry))?;
    model.lsn = table.lsn();
    Ok((table, report, model))
}

/// One step of a workload.
#[derive(Debug, Clone)]
enum Step {
    Append(Vec<(Key, Option<Vec<u8>>)>),
    Rewrite,
}

fn random_steps(random: &mut Random, count: usize) -> Vec<Step> {
    let append = |random: &mut Random| {
        let entries = (0..random.below(6)).map(|_| {
            let length = if random.chance(1, 10) { random.index(6000) } else { random.index(300) };
            let value = random.chance(4, 5).then(|| vec![random.number() as u8; length]);
            (key(random.below(8) as u32), value)
        });
        Step::Append(entries.collect())
    };
    (0..count).map(|_| if random.chance(1, 5) { Step::Rewrite } else { append(random) }).collect()
}

/// Runs a step on the table; the model becomes what the table should hold if it succeeds.
fn run(step: &Step, table: &mut Table, model: &mut Model) -> Result<(), TableError> {
    model.lsn += 1;
    match step {
        Step::Append(entries) => {
            let entries = || entries.iter().map(|(key, value)| Entry { key: *key, value: value.as_deref() });
            entries().for_each(|entry| model.apply(entry));
            table.append(model.lsn, entries())
        }
        Step::Rewrite => table.rewrite(model.lsn, model.entries()),
    }
}

#[test]
fn a_table_keeps_its_entries_on_a_real_disk() {
    let temporary = tempfile::tempdir().unwrap();
    let dir: Arc<dyn Dir> = Arc::new(RealDir::open(temporary.path()).unwrap());
    let mut table = Table::create(&dir, NAME, INCARNATION).unwrap();
    let mut model = Model::default();
    for step in random_steps(&mut Random::new(1), 30) {
        run(&step, &mut table, &mut model).unwrap();
        let (_, report, loaded) = load(&dir).unwrap();
        assert_eq!(loaded, model);
        assert_eq!((report.torn_tail, report.damage), (None, vec![]));
    }
    let file_length = dir.list().unwrap()[0].length;
    assert_eq!(table.file_bytes(), file_length);
}

#[test]
fn a_new_table_is_empty_and_is_not_made_twice() {
    let dir = SimDisk::new(1).root();
    Table::create(&dir, NAME, INCARNATION).unwrap();
    let (table, report, model) = load(&dir).unwrap();
    assert_eq!((model, report, table.lsn()), (Model::default(), TableReport::default(), 0));
    let error = Table::create(&dir, NAME, INCARNATION).unwrap_err();
    assert!(matches!(error, TableError::Disk(error) if error.kind == DiskErrorKind::AlreadyExists));
}

#[test]
fn a_rewrite_of_nothing_keeps_the_mark() {
    let dir = SimDisk::new(1).root();
    let mut table = Table::create(&dir, NAME, INCARNATION).unwrap();
    table.rewrite(9, std::iter::empty()).unwrap();
    assert_eq!(load(&dir).unwrap().2, Model { lsn: 9, ..Model::default() });
}

#[test]
fn a_large_rewrite_goes_in_several_blocks() {
    let dir = SimDisk::new(1).root();
    let mut table = Table::create(&dir, NAME, INCARNATION).unwrap();
    let live = (0..5).map(|a| (key(a), vec![a as u8; 3 << 20])).collect();
    let mut model = Model { live, lsn: 5 };
    table.rewrite(5, model.entries()).unwrap();
    let (_, report, loaded) = load(&dir).unwrap();
    assert!(loaded == model && report.blocks == 3, "{report:?}");
    run(&Step::Append(vec![(key(0), None)]), &mut table, &mut model).unwrap();
    assert!(load(&dir).unwrap().2 == model);
}

#[test]
fn rewriting_pays_when_half_is_garbage() {
    let dir = SimDisk::new(1).root();
    let mut table = Table::create(&dir, NAME, INCARNATION).unwrap();
    let value = vec![1; 700_000];
    let live = entry_bytes(value.len());
    for lsn in 1..=3 {
        assert!(!table.is_worth_rewriting(live));
        table.append(lsn, [Entry { key: key(1), value: Some(&value) }]).unwrap();
    }
    assert!(table.is_worth_rewriting(live));
    table.rewrite(3, [Entry { key: key(1), value: Some(&value) }]).unwrap();
    assert!(!table.is_worth_rewriting(live));
}

/// Runs a workload with the power cut at every mutation, and for each cut looks at several outcomes: the table then holds
/// what was acknowledged, with or without the step that was cut. Then it goes on, with a second cut in its first step.
#[test]
fn a_power_cut_at_any_call_leaves_the_old_or_the_new_state() {
    let mut states = 0;
    for seed in 0..12 {
        let steps = random_steps(&mut Random::new(seed), 8);
        for cut in 0.. {
            let disk = SimDisk::new(seed);
            disk.set_crash_model(CrashModel { tears_sectors: seed % 2 == 0, leaves_garbage: seed % 3 == 0 });
            disk.set_short_writes(seed % 4 == 0);
            disk.power_off_after(cut);
            let (old, new) = run_until_cut(&disk, &steps);
            for crash in 0..6 {
                let after = disk.crash(crash);
                let context = format!("seed {seed}, cut {cut}, crash {crash}");
                let Some(found) = check(&after, &old, &new, &context) else { continue };
                go_on(&after, found, crash, &context);
                states += 1;
            }
            if !disk.is_off() {
                break;
            }
        }
    }
    assert!(states > 2000, "only {states} states");
}

/// The last acknowledged state (`None` before there is a table) and the one that was being made.
fn run_until_cut(disk: &SimDisk, steps: &[Step]) -> (Option<Model>, Model) {
    let mut new = Model::default();
    let Ok(mut table) = Table::create(&disk.root(), NAME, INCARNATION) else { return (None, new) };
    let mut old = new.clone();
    for step in steps {
        if run(step, &mut table, &mut new).is_err() {
            break;
        }
        old = new.clone();
    }
    (Some(old), new)
}

fn check(disk: &SimDisk, old: &Option<Model>, new: &Model, context: &str) -> Option<Model> {
    match load(&disk.root()) {
        Ok((_, report, found)) => {
            assert!(report.damage.is_empty(), "{context}: {report:?}");
            assert!(Some(&found) == old.as_ref() || found == *new, "{context}: {found:?} is neither {old:?} nor {new:?}");
            Some(found)
        }
        Err(TableError::Disk(error)) if error.is_not_found() && old.is_none() => None,
        Err(error) => panic!("{context}: {error}"),
    }
}

fn go_on(disk: &SimDisk, old: Model, seed: u64, context: &str) {
    let steps = random_steps(&mut Random::new(seed), 1);
    for cut in 0.. {
        let disk = disk.crash_keep_all();
        let (mut table, ..) = load(&disk.root()).unwrap();
        disk.power_off_after(cut);
        let mut new = old.clone();
        let outcome = run(&steps[0], &mut table, &mut new);
        let old = if outcome.is_ok() { new.clone() } else { old.clone() };
        check(&disk.crash(seed), &Some(old), &new, &format!("{context}, second cut {cut}"));
        if !disk.is_off() {
            break;
        }
    }
}

#[test]
fn every_outcome_of_a_cut_append_is_old_or_new() {
    let disk = SimDisk::new(1);
    let mut table = Table::create(&disk.root(), NAME, INCARNATION).unwrap();
    let mut new = Model::default();
    run(&Step::Append(vec![(key(1), Some(vec![1; 300]))]), &mut table, &mut new).unwrap();
    let old = new.clone();
    disk.fail(Fault::new(Errno::IO).on(Operation::Sync));
    let entries = vec![(key(1), Some(vec![2; 1500])), (key(2), Some(vec![3; 10]))];
    assert!(run(&Step::Append(entries), &mut table, &mut new).is_err());
    let mut seen = [0, 0];
    for state in disk.crash_states() {
        let found = check(&state, &Some(old.clone()), &new, "exhaustive").unwrap();
        seen[usize::from(found == new)] += 1;
    }
    assert!(seen[0] > 10 && seen[1] > 0, "{seen:?}");
}

#[test]
fn a_failed_sync_poisons_and_a_full_disk_does_not() {
    let disk = SimDisk::new(1);
    let mut table = Table::create(&disk.root(), NAME, INCARNATION).unwrap();
    let mut model = Model::default();
    run(&Step::Append(vec![(key(1), Some(vec![1; 100]))]), &mut table, &mut model).unwrap();
    for failing in [Step::Append(vec![(key(2), Some(vec![2; 9000]))]), Step::Rewrite] {
        disk.fail(Fault::new(Errno::NOSPC).on(Operation::Write));
        let error = run(&failing, &mut table, &mut model.clone()).unwrap_err();
        assert!(matches!(error, TableError::Disk(error) if error.kind == DiskErrorKind::Full));
        assert_eq!(load(&disk.root()).unwrap().2, model);
        run(&Step::Append(vec![(key(3), Some(vec![3; 10]))]), &mut table, &mut model).unwrap();
        let (_, report, loaded) = load(&disk.crash(1).root()).unwrap();
        assert_eq!((loaded, report.torn_tail), (model.clone(), None));
    }
    disk.fail(Fault::new(Errno::IO).on(Operation::Sync));
    assert!(run(&Step::Append(vec![(key(4), None)]), &mut table, &mut model.clone()).is_err());
    for step in [Step::Append(vec![]), Step::Rewrite] {
        let error = run(&step, &mut table, &mut model.clone()).unwrap_err();
        assert_eq!(error, TableError::Poisoned { path: NAME.to_owned() });
    }
}

#[test]
fn a_fault_at_any_call_leaves_the_acknowledged_state() {
    for errno in [Errno::IO, Errno::NOSPC, Errno::ROFS, Errno::MFILE, Errno::NOMEM] {
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
    let Ok(mut table) = Table::create(&disk.root(), NAME, INCARNATION) else { return };
    let (mut old, mut failures) = (Model::default(), vec![]);
    for step in random_steps(&mut Random::new(seed), 8) {
        let mut new = old.clone();
        match run(&step, &mut table, &mut new) {
            Ok(()) => (old, failures) = (new, vec![]),
            Err(_) => failures.push(new),
        }
    }
    for crash in 0..4 {
        let (_, report, found) = load(&disk.crash(crash).root()).unwrap();
        assert!(report.damage.is_empty(), "{context}, crash {crash}: {report:?}");
        assert!(found == old || failures.contains(&found), "{context}, crash {crash}");
    }
}

/// A rewrite whose last sync fails may be undone by a power loss: the next append would go to a file that is not found again.
#[test]
fn a_rewrite_that_may_not_last_takes_no_appends() {
    for operation in [Operation::Rename, Operation::SyncDir] {
        let (disk, models, _) = sample();
        let (mut table, ..) = load(&disk.root()).unwrap();
        disk.fail(Fault::new(Errno::IO).on(operation));
        assert!(matches!(table.rewrite(8, models[3].entries()), Err(TableError::Disk(_))), "{operation:?}");
        let error = table.append(9, std::iter::empty()).unwrap_err();
        assert_eq!(error, TableError::Poisoned { path: NAME.to_owned() }, "{operation:?}");
    }
}

/// A table of three appended blocks behind a rewritten one, and the state after each of the four.
fn sample() -> (SimDisk, Vec<Model>, Vec<u64>) {
    let disk = SimDisk::new(1);
    let mut table = Table::create(&disk.root(), NAME, INCARNATION).unwrap();
    let mut model = Model::default();
    let value = |byte| Some(vec![byte; 20]);
    run(&Step::Append(vec![(key(1), value(1)), (key(2), value(1))]), &mut table, &mut model).unwrap();
    run(&Step::Rewrite, &mut table, &mut model).unwrap();
    let (mut models, mut ends) = (vec![model.clone()], vec![table.file_bytes()]);
    for byte in 2..5 {
        run(&Step::Append(vec![(key(1), value(byte)), (key(u32::from(byte)), value(9))]), &mut table, &mut model).unwrap();
        models.push(model.clone());
        ends.push(table.file_bytes());
    }
    (disk, models, ends)
}

#[test]
fn a_flip_of_any_bit_is_reported() {
    let (disk, models, ends) = sample();
    let bytes = disk.read_file(NAME).unwrap();
    for index in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[index / 8] ^= 1 << (index % 8);
        disk.write_file(NAME, &flipped);
        let at = (index / 8) as u64;
        if at < format::FILE_HEADER_BYTES as u64 {
            assert!(matches!(load(&disk.root()), Err(TableError::BadHeader { .. })), "bit {index}");
            continue;
        }
        let (mut table, report, found) = load(&disk.root()).unwrap();
        if at >= ends[2] {
            assert_eq!(report.torn_tail, Some(ends[2]..ends[3]), "bit {index}");
            assert_eq!((&found, report.damage), (&models[2], vec![]), "bit {index}");
        } else {
            assert_eq!(report.damage.len(), 1, "bit {index}");
            assert!(report.damage[0].contains(&at), "bit {index}");
            let error = table.append(9, std::iter::empty()).unwrap_err();
            assert!(matches!(error, TableError::Damaged { .. }), "bit {index}");
        }
    }
}

/// What was synced before the file was put in place cannot be torn, even if nothing follows it.
#[test]
fn a_flip_in_a_rewritten_file_is_damage_and_no_torn_tail() {
    let (disk, models, _) = sample();
    let (mut table, ..) = load(&disk.root()).unwrap();
    table.rewrite(7, models[3].entries()).unwrap();
    let bytes = disk.read_file(NAME).unwrap();
    for index in format::FILE_HEADER_BYTES..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[index] ^= 1;
        disk.write_file(NAME, &flipped);
        let report = load(&disk.root()).unwrap().1;
        let whole = format::FILE_HEADER_BYTES as u64..bytes.len() as u64;
        assert_eq!((report.damage, report.torn_tail), (vec![whole], None), "byte {index}");
    }
}

#[test]
fn a_file_cut_at_any_length_is_never_read_as_another_state() {
    let (disk, models, ends) = sample();
    let bytes = disk.read_file(NAME).unwrap();
    for cut in 0..bytes.len() {
        disk.write_file(NAME, &bytes[..cut]);
        let cut = cut as u64;
        if cut < format::FILE_HEADER_BYTES as u64 {
            assert!(matches!(load(&disk.root()), Err(TableError::BadHeader { .. })), "cut {cut}");
            continue;
        }
        let (_, report, found) = load(&disk.root()).unwrap();
        if cut < ends[0] {
            assert_eq!(report.damage, vec![format::FILE_HEADER_BYTES as u64..ends[0]], "cut {cut}");
        } else {
            let whole = ends.iter().rposition(|&end| end <= cut).unwrap();
            assert_eq!(found, models[whole], "cut {cut}");
            let tail = (ends[whole] < cut).then_some(ends[whole]..cut);
            assert_eq!((report.torn_tail, report.damage), (tail, vec![]), "cut {cut}");
        }
    }
}

#[test]
fn zeros_at_the_end_are_a_torn_tail_and_zeros_inside_are_damage() {
    let (disk, models, ends) = sample();
    let mut bytes = disk.read_file(NAME).unwrap();
    bytes.extend([0; 1000]);
    disk.write_file(NAME, &bytes);
    let (mut table, report, found) = load(&disk.root()).unwrap();
    assert_eq!((report.torn_tail, &found), (Some(ends[3]..ends[3] + 1000), &models[3]));
    table.append(50, std::iter::empty()).unwrap();
    assert_eq!(load(&disk.root()).unwrap().1.torn_tail, None);
    bytes[ends[0] as usize..ends[1] as usize].fill(0);
    disk.write_file(NAME, &bytes);
    assert_eq!(load(&disk.root()).unwrap().1.damage, vec![ends[0]..ends[1]]);
}

#[test]
fn a_block_from_elsewhere_is_no_block() {
    let (disk, _, ends) = sample();
    let bytes = disk.read_file(NAME).unwrap();
    let range = |index: usize| ends[index - 1] as usize..ends[index] as usize;
    let mut swapped = bytes.clone();
    swapped[range(1)].copy_from_slice(&bytes[range(2)]);
    disk.write_file(NAME, &swapped);
    assert_eq!(load(&disk.root()).unwrap().1.damage, vec![ends[0]..ends[1]]);
    let mut missing = bytes.clone();
    missing.drain(range(1));
    disk.write_file(NAME, &missing);
    let report = load(&disk.root()).unwrap().1;
    assert_eq!(report.blocks, 1, "{report:?}");
    assert!(report.torn_tail.is_some(), "{report:?}");
}

#[test]
fn a_rewrite_keeps_the_damaged_file_aside() {
    let (disk, models, ends) = sample();
    let mut bytes = disk.read_file(NAME).unwrap();
    bytes[ends[0] as usize] ^= 1;
    disk.write_file(NAME, &bytes);
    for number in 1..3 {
        let (mut table, ..) = load(&disk.root()).unwrap();
        table.rewrite(7, models[3].entries()).unwrap();
        table.append(8, std::iter::empty()).unwrap();
        let after = disk.crash(number);
        assert_eq!(after.read_file(&format!("{NAME}.damaged-{number}")).unwrap(), bytes);
        assert_eq!(load(&after.root()).unwrap().2, Model { lsn: 8, ..models[3].clone() });
        disk.write_file(NAME, &bytes);
    }
}

#[test]
fn foreign_and_newer_tables_are_refused_untouched() {
    let (disk, ..) = sample();
    let dir = disk.root();
    let error = Table::read(&*dir, NAME, 1, |_| {}).unwrap_err();
    assert_eq!(error, TableError::WrongIncarnation { path: NAME.to_owned(), expected: 1, found: INCARNATION });
    for (version, incompatible) in [(2, 0), (0, 0), (1, 0x8000_0000)] {
        let header = FileHeader { version, incompatible, incarnation: INCARNATION, base_length: 64 };
        disk.write_file(NAME, &header.encode());
        let before = disk.mutations();
        let error = load(&dir).unwrap_err();
        let path = NAME.to_owned();
        assert_eq!(error, TableError::NewerFormat { path, version, features: incompatible });
        assert_eq!(disk.mutations(), before);
    }
}

#[test]
fn an_unreadable_table_is_not_an_empty_one() {
    let (disk, ..) = sample();
    disk.fail(Fault::new(Errno::IO).on(Operation::Read).skip(3).times(Times::Forever));
    assert!(matches!(load(&disk.root()), Err(TableError::Disk(error)) if !error.is_not_found()));
    disk.clear_faults();
    disk.fail(Fault::new(Errno::ACCESS).on(Operation::Open));
    assert!(matches!(Table::create(&disk.root(), NAME, INCARNATION), Err(TableError::Disk(_))));
    assert_eq!(disk.paths(), [NAME]);
}

/// Values of one kind are read from the file, wherever appends, removals, rewrites and restarts have put them.
#[test]
fn values_that_their_owner_does_not_keep_are_read_from_the_file() {
    let mut random = Random::new(5);
    let disk = SimDisk::new(5);
    let dir = disk.root();
    drop(Table::create(&dir, NAME, INCARNATION).unwrap());
    let open = || Table::open_with(&dir, NAME, INCARNATION, Some(8), |_| {}).unwrap().0;
    let mut table = open();
    let mut model = std::collections::BTreeMap::new();
    for lsn in 1..200u64 {
        let mut entries = Vec::new();
        for _ in 0..random.below(4) {
            let key = Key { kind: 8, a: 0, b: random.below(20) as u32 };
            let value = random.chance(2, 3).then(|| vec![lsn as u8; random.below(3_000) as usize]);
            model.insert(key, value.clone());
            entries.push((key, value));
        }
        entries.push((Key { kind: 1, a: 1, b: 1 }, Some(b"not of the kind".to_vec())));
        table.append(lsn, entries.iter().map(|(key, value)| Entry { key: *key, value: value.as_deref() })).unwrap();
        match random.below(10) {
            0 => table = open(),
            1 => table.rewrite(lsn, [Entry { key: Key { kind: 2, a: 0, b: 0 }, value: Some(b"whole") }]).unwrap(),
            _ => {}
        }
        for (&key, value) in &model {
            assert_eq!(table.value(key).unwrap(), *value, "at {lsn}, {key:?}");
        }
        assert_eq!(table.value(Key { kind: 1, a: 1, b: 1 }).unwrap(), None);
    }
}

#[test]
fn a_value_that_went_bad_is_told_of_and_a_rewrite_keeps_the_file_aside() {
    let disk = SimDisk::new(6);
    let dir = disk.root();
    drop(Table::create(&dir, NAME, INCARNATION).unwrap());
    let (mut table, _) = Table::open_with(&dir, NAME, INCARNATION, Some(8), |_| {}).unwrap();
    let key = |b| Key { kind: 8, a: 0, b };
    table.append(1, [Entry { key: key(1), value: Some(b"good") }, Entry { key: key(2), value: Some(b"spoilt") }]).unwrap();
    let bytes = disk.read_file(NAME).unwrap();
    let at = bytes.windows(6).position(|window| window == b"spoilt").unwrap();
    dir.open(NAME, Access::ReadWrite).unwrap().write_at(b"S", at as u64).unwrap();
    let bytes = disk.read_file(NAME).unwrap();
    assert!(matches!(table.value(key(2)), Err(TableError::Damaged { position, .. }) if position == at as u64));
    assert_eq!(table.value(key(1)).unwrap().as_deref(), Some(b"good".as_slice()));
    table.rewrite(2, []).unwrap();
    assert_eq!((table.value(key(1)).unwrap().as_deref(), table.value(key(2)).unwrap()), (Some(b"good".as_slice()), None));
    assert_eq!(disk.read_file(&format!("{NAME}.damaged-1")).unwrap(), bytes);
}
