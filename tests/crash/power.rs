//! The power fails.

use std::time::Instant;

use fanlog::model::{AckVerb, Now};
use fanlog::storage::disk::sim::{CrashModel, Random, SimDisk};

use crate::proof::drive::{AckStyle, Candidates, Change, Driver, Maker, Op, Step, Target};
use crate::proof::model::{Item, Model};
use crate::proof::view;
use crate::{number, wants_all};

/// Outcomes looked at for one cut at most, when all are counted through.
const OUTCOMES_MAX: usize = 48;

#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    states: u64,
    double: u64,
    cuts: u64,
}

/// A disk that was closed, and what should be on it.
pub struct Base {
    pub disk: SimDisk,
    pub model: Model,
    pub now: Now,
}

pub fn item(tag: u64, size: usize, key: char) -> Item {
    Item { tag, size, key, id: None }
}

pub fn push(queue: usize, lane: usize, items: Vec<Item>) -> Op {
    Op::Push { queue, lane, items, is_numbered: false }
}

pub fn pop(queue: usize, lane: Option<usize>, group: usize, max: u32) -> Op {
    Op::Pop { queue, lane, group, max, partitions: 1, lease_ms: None, auto_ack: false }
}

impl Base {
    /// Two queues with a little of everything in them.
    pub fn new() -> Self {
        let mut driver = Driver::new(SimDisk::new(1)).unwrap();
        let ops = [
            Op::Create { queue: 0, has_retention: false },
            Op::Create { queue: 1, has_retention: true },
            Op::Declare { queue: 0, group: 1, filter: None, is_earlier: false },
            Op::Update { queue: 0, group: 1, change: Change::Limit(Some(1)) },
            push(0, 0, (1..=4).map(|tag| item(tag, 30, 'a')).collect()),
            push(0, 1, vec![item(5, 50, 'b')]),
            push(1, 0, vec![item(6, 40, 'a'), item(7, 10, 'b')]),
            Op::Push { queue: 0, lane: 0, items: vec![item(8, 5, 'b')], is_numbered: true },
            pop(0, Some(0), 1, 2),
            Op::Ack { choice: 0, style: AckStyle::RejectLast },
            pop(0, Some(0), 3, 2),
            Op::Ack { choice: 0, style: AckStyle::First },
            pop(1, Some(0), 2, 1),
            Op::Ack { choice: 0, style: AckStyle::All },
        ];
        for op in &ops {
            done(driver.step(op).unwrap(), op);
        }
        done(driver.step(&Op::Restart).unwrap(), &Op::Restart);
        driver.check().unwrap();
        driver.engine().close(driver.now).unwrap();
        driver.engine = None;
        Self { disk: driver.disk.crash_drop_unsynced(), model: driver.model.clone(), now: driver.now }
    }

    fn empty() -> Self {
        let driver = Driver::new(SimDisk::new(1)).unwrap();
        driver.engine().close(driver.now).unwrap();
        Self { disk: driver.disk.crash_drop_unsynced(), model: Model::default(), now: driver.now }
    }

    pub fn open(&self) -> Result<Driver, String> {
        Driver::open(self.disk.crash_keep_all(), self.model.clone(), self.now)
    }
}

fn done(step: Step, op: &Op) {
    if let Step::Failed(_, error) = step {
        panic!("{op:?} failed: {error}");
    }
}

/// What an exhaustive workload is made of.
fn alphabet() -> Vec<Op> {
    let big = |tag: u64| (tag..tag + 5).map(|tag| item(tag, 60_000, 'a')).collect::<Vec<_>>();
    let with_id = Item { id: Some("id".to_owned()), ..item(100, 20, 'a') };
    vec![
        push(0, 0, vec![item(101, 30, 'a'), item(102, 700, 'b')]),
        push(0, 2, vec![item(103, 30, 'b')]),
        push(0, 1, vec![with_id.clone(), with_id]),
        Op::Push { queue: 0, lane: 0, items: vec![item(104, 10, 'a')], is_numbered: true },
        push(0, 0, big(110)),
        push(1, 1, big(120)),
        pop(0, None, 0, 3),
        Op::Pop { queue: 0, lane: None, group: 2, max: 4, partitions: 3, lease_ms: None, auto_ack: true },
        Op::Ack { choice: 0, style: AckStyle::All },
        Op::Ack { choice: 0, style: AckStyle::Fail },
        Op::Ack { choice: 1, style: AckStyle::RejectLast },
        Op::Unfenced { queue: 0, lane: 0, group: 3, choice: 3, verb: AckVerb::Completed },
        Op::Transact { pushes: vec![(1, 0, item(130, 30, 'a'))], acks: vec![0] },
        Op::Transact { pushes: vec![(0, 0, item(131, 30, 'a')), (1, 2, item(132, 30, 'b'))], acks: vec![1] },
        Op::Seek { queue: 0, group: 1, lane: None, target: Target::Beginning },
        Op::Seek { queue: 0, group: 3, lane: Some(0), target: Target::End },
        Op::Declare { queue: 0, group: 2, filter: Some('b'), is_earlier: true },
        Op::Update { queue: 0, group: 0, change: Change::Enable(false) },
        Op::Update { queue: 0, group: 1, change: Change::Filter(Some('b')) },
        Op::Remove { queue: 0, group: 1 },
        Op::Settings { queue: 0, lease_s: 33 },
        Op::Delete { queue: 0 },
        Op::Delete { queue: 1 },
        Op::Create { queue: 1, has_retention: true },
        Op::Replay { queue: 0 },
        Op::DropLetter { queue: 0 },
        Op::Pass { is_long: false },
        Op::Pass { is_long: true },
        Op::Restart,
    ]
}

/// Runs `ops` on a fresh copy of the base; the last one with the power failing after so many mutations of it. `None` if it ended first.
fn run_cut(base: &Base, ops: &[Op], cut: u64, seed: u64) -> Result<Option<(Driver, Candidates)>, String> {
    let mut driver = base.open()?;
    driver.disk.set_short_writes(seed.is_multiple_of(3));
    driver.disk.set_crash_model(CrashModel { tears_sectors: seed.is_multiple_of(2), leaves_garbage: false });
    let Some((last, first)) = ops.split_last() else { return Ok(None) };
    for op in first {
        if let Step::Failed(_, error) = driver.step(op)? {
            return Err(format!("{op:?} failed without a fault: {error}"));
        }
    }
    let before = driver.disk.mutations();
    driver.disk.power_off_after(before + cut);
    match driver.step(last)? {
        Step::Failed(candidates, _) if driver.disk.is_off() => Ok(Some((driver, candidates))),
        Step::Failed(_, error) => Err(format!("{last:?} failed with the power on: {error}")),
        Step::Done => Ok(None),
    }
}

/// Opens what a crash left and looks whether it is one of what it may be. With a number, the power fails again after so many mutations of
/// the recovery.
pub fn recover(
    disk: SimDisk,
    candidates: &Candidates,
    now: Now,
    second_cut: Option<(u64, u64)>,
) -> Result<(Driver, bool), String> {
    let mut disk = disk;
    let mut was_cut = false;
    if let Some((cut, seed)) = second_cut {
        disk.power_off_after(cut);
        let opened = Driver::open(disk.clone(), Model::default(), now);
        was_cut = disk.is_off();
        if !was_cut {
            opened.map(drop)?;
        }
        disk = if was_cut { disk.crash(seed) } else { disk.crash_keep_all() };
    }
    let mut driver = Driver::open(disk, Model::default(), now)?;
    let losses: Vec<_> = driver.report.findings.iter().filter(|finding| finding.is_loss).collect();
    if !losses.is_empty() {
        return Err(format!("recovery reports a loss: {losses:?}"));
    }
    let found = view::of_engine(driver.engine(), now)?;
    let mut closest: Option<String> = None;
    let mut matching: Vec<Model> = Vec::new();
    for candidate in candidates {
        let mut candidate = candidate.clone();
        candidate.forget_deliveries();
        candidate.restart();
        let expected = view::of_model(&candidate);
        if expected == found {
            if !matching.contains(&candidate) {
                matching.push(candidate);
            }
            continue;
        }
        let difference = view::difference(&expected, &found);
        if closest.as_ref().is_none_or(|closest| difference.lines().count() < closest.lines().count()) {
            closest = Some(difference);
        }
    }
    driver.is_sure = matching.len() == 1;
    if let Some(first) = matching.into_iter().next() {
        driver.model = first;
        return Ok((driver, was_cut));
    }
    let closest = closest.unwrap_or_default();
    Err(format!("what is there is none of the {} states that may be; the closest differs by\n{closest}", candidates.len()))
}

/// As [`recover`], and then does whatever can be done. States that look the same may go on differently: one of them has to be right.
pub fn recover_and_go_on(
    disk: SimDisk,
    candidates: &Candidates,
    now: Now,
    second_cut: Option<(u64, u64)>,
) -> Result<(Driver, bool), String> {
    let mut left = candidates.clone();
    let mut wrong = None;
    loop {
        let (mut driver, was_cut) = match recover(disk.crash_keep_all(), &left, now, second_cut) {
            Ok(recovered) => recovered,
            Err(text) => return Err(wrong.unwrap_or(text)),
        };
        let found = driver.model.clone();
        match driver.epilogue() {
            Ok(()) => return Ok((driver, was_cut)),
            Err(text) => wrong = wrong.or(Some(text)),
        }
        left.retain(|candidate| {
            let mut candidate = candidate.clone();
            candidate.forget_deliveries();
            candidate.restart();
            candidate != found
        });
    }
}

/// Looks at several outcomes of one cut.
fn look_at_outcomes(
    driver: &Driver,
    candidates: &Candidates,
    outcomes: usize,
    seed: u64,
    has_epilogue: bool,
    tally: &mut Tally,
) -> Result<Option<Driver>, String> {
    tally.cuts += 1;
    let mut last = None;
    let mut random = Random::new(seed);
    for outcome in 0..outcomes {
        let (disk, name) = match outcome {
            0 => (driver.disk.crash_drop_unsynced(), "all lost".to_owned()),
            1 => (driver.disk.crash_keep_all(), "all kept".to_owned()),
            _ => {
                let seed = random.number();
                (driver.disk.crash(seed), format!("crash {seed}"))
            }
        };
        let second_cut = random.chance(1, 5).then(|| (random.below(30), random.number()));
        let goes_on = has_epilogue && outcome + 1 == outcomes;
        let look = if goes_on { recover_and_go_on } else { recover };
        let recovered = look(disk, candidates, driver.now, second_cut);
        let (recovered, was_cut) = recovered.map_err(|text| format!("{name}, second cut {second_cut:?}: {text}"))?;
        tally.states += 1;
        tally.double += u64::from(was_cut);
        if !goes_on && recovered.is_sure {
            last = Some(recovered);
        }
    }
    Ok(last)
}

/// Every cut of the last operation.
fn every_cut(base: &Base, ops: &[Op], outcomes: usize, seed: u64, tally: &mut Tally) -> Result<(), String> {
    for cut in 0.. {
        let seed = seed.wrapping_mul(31).wrapping_add(cut);
        let Some((driver, candidates)) = run_cut(base, ops, cut, seed)? else { return Ok(()) };
        look_at_outcomes(&driver, &candidates, outcomes, seed, true, tally).map_err(|text| format!("cut {cut}: {text}"))?;
    }
    Ok(())
}

pub fn prefix() -> Vec<Op> {
    vec![pop(0, Some(0), 1, 2), pop(0, Some(0), 3, 2)]
}

#[test]
fn every_operation_is_whole_or_absent_at_every_cut_and_outcome() {
    let started = Instant::now();
    let mut tally = Tally::default();
    let base = Base::new();
    for op in alphabet() {
        let ops: Vec<Op> = prefix().into_iter().chain([op]).collect();
        let limit = if wants_all() { 100_000 } else { OUTCOMES_MAX };
        for cut in 0.. {
            let run = run_cut(&base, &ops, cut, cut).unwrap();
            let Some((driver, candidates)) = run else { break };
            for (outcome, disk) in driver.disk.crash_states().take(limit).enumerate() {
                tally.states += 1;
                if let Err(text) = recover(disk, &candidates, driver.now, None) {
                    panic!("{:?}, cut {cut}, outcome {outcome}: {text}", ops.last());
                }
            }
            tally.cuts += 1;
        }
        // Behind its answer it is there, whatever was not synced.
        let mut driver = base.open().unwrap();
        for op in &ops {
            done(driver.step(op).unwrap(), op);
        }
        let candidates = vec![driver.model.clone()];
        for (outcome, disk) in driver.disk.crash_states().take(limit).enumerate() {
            tally.states += 1;
            if let Err(text) = recover(disk, &candidates, driver.now, None) {
                panic!("{:?}, answered, outcome {outcome}: {text}", ops.last());
            }
        }
    }
    println!("{tally:?} in {:?}", started.elapsed());
}

#[test]
fn pairs_of_operations_survive_every_cut() {
    let started = Instant::now();
    let mut tally = Tally::default();
    let bases = [Base::new(), Base::empty()];
    let alphabet = alphabet();
    let seed = number("FANLOG_CRASH_SEED").unwrap_or(1);
    let mut random = Random::new(seed);
    for (at, base) in bases.iter().enumerate() {
        for first in &alphabet {
            for second in &alphabet {
                if !wants_all() && !random.chance(1, 12) {
                    continue;
                }
                let mut ops = if at == 0 { prefix() } else { vec![push(0, 0, vec![item(90, 10, 'a')]), pop(0, Some(0), 1, 2)] };
                ops.extend([first.clone(), second.clone()]);
                let outcomes = if wants_all() { 6 } else { 3 };
                if let Err(text) = every_cut(base, &ops, outcomes, random.number(), &mut tally) {
                    panic!("{first:?}, {second:?} on base {at}: {text}");
                }
            }
        }
    }
    println!("seed {seed}: {tally:?} in {:?}", started.elapsed());
}

/// A random history with several crashes. Returns the operations since the last recovery, with the error.
fn history(seed: u64, tally: &mut Tally) -> Result<(), (Vec<Op>, String)> {
    let mut random = Random::new(seed);
    let size_max = if random.chance(1, 3) { 60_000 } else { 300 };
    let mut maker = Maker::new(random.number(), size_max);
    let fresh = Driver::new(SimDisk::new(seed)).map_err(|text| (Vec::new(), text))?;
    let mut driver = fresh;
    let mut done: Vec<Op> = Vec::new();
    for _ in 0..4 {
        driver.disk.set_short_writes(random.chance(1, 3));
        driver.disk.set_crash_model(CrashModel { tears_sectors: random.chance(1, 2), leaves_garbage: random.chance(1, 4) });
        let steps = 1 + random.below(40);
        let mut crashed = None;
        for step in 0..=steps {
            if step == steps {
                let before = driver.disk.mutations();
                driver.disk.power_off_after(before + random.below(12));
            }
            // The last operation may be several, until the power fails.
            loop {
                let op = maker.op();
                if step == steps && matches!(op, Op::Kill) {
                    continue;
                }
                done.push(op.clone());
                match driver.step(&op) {
                    Err(text) => return Err((done, text)),
                    Ok(Step::Done) => {}
                    Ok(Step::Failed(candidates, _)) if driver.disk.is_off() => {
                        crashed = Some(candidates);
                        break;
                    }
                    Ok(Step::Failed(_, error)) => return Err((done, format!("failed with the power on: {error}"))),
                }
                if step < steps {
                    break;
                }
            }
        }
        let Some(candidates) = crashed else { continue };
        let recovered = look_at_outcomes(&driver, &candidates, 5, random.number(), true, tally);
        match recovered {
            Ok(Some(recovered)) => driver = recovered,
            Ok(None) => return Ok(()),
            Err(text) => return Err((done, text)),
        }
        done.push(Op::Kill);
    }
    Ok(())
}

/// Leaves operations out of a failing history as long as some cut of its last one still fails.
fn shrink(ops: Vec<Op>) -> (Vec<Op>, String) {
    let base = Base::empty();
    let fails = |ops: &[Op]| every_cut(&base, ops, 5, 7, &mut Tally::default()).err();
    let mut ops = ops;
    let Some(mut text) = fails(&ops) else { return (ops, "it does not fail from an empty directory alone".to_owned()) };
    let mut at = ops.len().saturating_sub(1);
    while at > 0 {
        at -= 1;
        let mut fewer = ops.clone();
        fewer.remove(at);
        if let Some(found) = fails(&fewer) {
            (ops, text) = (fewer, found);
        }
    }
    (ops, text)
}

#[test]
fn random_histories_survive_crashes() {
    let started = Instant::now();
    let mut tally = Tally::default();
    let one = number("FANLOG_CRASH_SEED");
    let first = one.or(number("FANLOG_CRASH_FIRST")).unwrap_or(1);
    let count = if one.is_some() { 1 } else { number("FANLOG_CRASH_SEEDS").unwrap_or(250) };
    for seed in first..first + count {
        if let Err((ops, text)) = history(seed, &mut tally) {
            let (ops, shrunk) = shrink(ops);
            panic!("FANLOG_CRASH_SEED={seed}: {text}\nshrunk to {} operations: {ops:#?}\n{shrunk}", ops.len());
        }
    }
    let rate = tally.states as f64 / started.elapsed().as_secs_f64();
    println!("seeds from {first}, {count} histories: {tally:?}, {rate:.0} states a second");
}
