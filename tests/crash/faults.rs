//! Calls of the disk fail.
//!
//! One workload that does a little of everything runs once for each call of the disk that it makes, from the opening on; there the
//! fault strikes, once, or for ever at every call, or for ever at every call that changes something. The process lives, what is
//! answered is so, reads go on while reading works, and a start without the fault has everything that was acknowledged.

use std::time::Instant;

use fanlog::model::{AckVerb, ErrorCode, Now};
use fanlog::storage::disk::sim::{Fault, Operation, SimDisk, Times};
use rustix::io::Errno;

use crate::power::{Base, item, pop, prefix, push, recover, recover_and_go_on};
use crate::proof::drive::{AckStyle, Candidates, Change, Driver, Op, QUEUES, Step, Target};
use crate::proof::model::{Item, Model};
use crate::proof::view;
use crate::{number, wants_all};

/// What a disk answers. `EINTR` is not among them: a call that it meets is made again.
const ERRNOS: [Errno; 6] = [Errno::IO, Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::MFILE, Errno::NOMEM];

/// Which calls fail from the chosen one on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    One,
    All,
    Changes,
}

#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    faults: u64,
    /// Faults at which the engine did not open.
    closed: u64,
    /// Faults that an operation answered with an error.
    refused: u64,
    /// Faults of which no operation told.
    absorbed: u64,
    recoveries: u64,
}

pub fn workload() -> Vec<Op> {
    let big = |tag: u64| (tag..tag + 5).map(|tag| item(tag, 60_000, 'a')).collect::<Vec<_>>();
    let with_id = Item { id: Some("id".to_owned()), ..item(200, 20, 'a') };
    let mut ops = prefix();
    ops.extend([
        push(0, 0, vec![item(201, 30, 'a'), item(202, 700, 'b')]),
        push(0, 2, vec![item(203, 30, 'b'), with_id]),
        push(0, 0, big(210)),
        Op::Ack { choice: 0, style: AckStyle::All },
        Op::Ack { choice: 0, style: AckStyle::Fail },
        Op::Pass { is_long: false },
        pop(0, None, 0, 8),
        Op::Ack { choice: 0, style: AckStyle::RejectLast },
        pop(0, None, 2, 4),
        Op::Transact { pushes: vec![(0, 0, item(220, 30, 'a')), (1, 2, item(221, 30, 'b'))], acks: vec![0] },
        Op::Unfenced { queue: 0, lane: 0, group: 3, choice: 3, verb: AckVerb::Completed },
        Op::Seek { queue: 0, group: 1, lane: None, target: Target::Beginning },
        Op::Update { queue: 0, group: 1, change: Change::Filter(Some('b')) },
        push(1, 1, big(230)),
        Op::Replay { queue: 0 },
        Op::DropLetter { queue: 0 },
        Op::Pass { is_long: true },
        push(0, 1, big(240)),
        Op::Settings { queue: 0, lease_s: 33 },
        Op::Remove { queue: 0, group: 1 },
        Op::Delete { queue: 1 },
        Op::Create { queue: 1, has_retention: true },
        push(1, 1, vec![item(250, 30, 'b')]),
        Op::Pass { is_long: false },
        Op::Restart,
        pop(0, None, 0, 8),
    ]);
    ops
}

/// The operation that met the fault.
struct Struck {
    op: Option<Op>,
    /// What a start may find.
    candidates: Candidates,
    /// What it was answered, if that was an error.
    code: Option<ErrorCode>,
}

/// Runs the workload until an operation fails or `stop` says so behind one.
fn run(driver: &mut Driver, mut stop: impl FnMut(&SimDisk) -> bool) -> Result<Option<Struck>, String> {
    for op in workload() {
        let before = driver.model.clone();
        let step = match driver.step(&op) {
            // A queue that does not open is reported; a start without the fault has to find it whole.
            Err(_) if op == Op::Restart && stop(&driver.disk) => {
                return Ok(Some(Struck { op: Some(op), candidates: vec![before], code: None }));
            }
            step => step?,
        };
        if let Step::Failed(candidates, error) = step {
            return Ok(Some(Struck { op: Some(op), candidates, code: Some(error.code) }));
        }
        if stop(&driver.disk) {
            // Maintenance answers nobody: what a fault left out of it is done later.
            let mut candidates = vec![driver.model.clone()];
            if matches!(op, Op::Pass { .. }) {
                candidates.extend(partly_swept(&before, driver.now));
            }
            return Ok(Some(Struck { op: Some(op), candidates, code: None }));
        }
    }
    Ok(None)
}

/// Retention may have come to some queues and not to others.
fn partly_swept(before: &Model, now: Now) -> Candidates {
    let mut candidates = vec![before.clone()];
    candidates[0].expire(now.steady_us);
    for name in before.queues.keys() {
        for candidate in candidates.clone() {
            for swept in candidate.queues[name].sweeps(now.wall_us) {
                let mut after = candidate.clone();
                after.queues.insert(name.clone(), swept);
                candidates.push(after);
            }
        }
    }
    candidates
}

/// The living engine shows one of the candidates, if it can be read.
fn check_living(driver: &Driver, struck: &Struck, must_read: bool) -> Result<(), String> {
    let found = match view::of_engine(driver.engine(), driver.now) {
        Ok(found) => found,
        Err(text) if must_read => return Err(format!("reading does not go on: {text}")),
        Err(_) => return Ok(()),
    };
    let mut shown = struck.candidates.clone();
    if matches!(struck.op, Some(Op::Transact { .. })) {
        // The part of a queue whose disk refuses it is done at the next start: until then the other parts can be seen alone.
        for one in &struck.candidates {
            for other in &struck.candidates {
                let mut mixed = one.clone();
                mixed.queues.remove(QUEUES[1]);
                mixed.queues.extend(other.queues.get_key_value(QUEUES[1]).map(|(name, queue)| (name.clone(), queue.clone())));
                shown.push(mixed);
            }
        }
    }
    let views: Vec<_> = shown.iter().map(view::of_model).collect();
    if !views.contains(&found) {
        let differences = views.iter().map(|expected| view::difference(expected, &found));
        let closest = differences.min_by_key(|text| text.lines().count()).unwrap_or_default();
        return Err(format!("the living engine shows none of {} states; the closest differs by\n{closest}", views.len()));
    }
    Ok(())
}

/// Pushes once more into each queue that all candidates have: what is answered with offsets has to be there later.
fn push_on(driver: &mut Driver, candidates: Candidates, errno: Errno) -> Result<Candidates, String> {
    let mut candidates = candidates;
    for (tag, queue) in [(900, QUEUES[0]), (901, QUEUES[1])] {
        if !candidates.iter().all(|candidate| candidate.queues.contains_key(queue)) {
            continue;
        }
        let items = [item(tag, 40, 'b')];
        let reply = driver.engine().push(crate::proof::drive::request(queue, "x", &items, None), driver.now);
        let is_acknowledged = match &reply {
            Ok(_) => true,
            Err(error) if is_of_the_disk(error.code, errno) => false,
            Err(error) => return Err(format!("a push behind the fault was refused with {error:?}")),
        };
        let pushed = candidates.iter().filter_map(|candidate| {
            let mut candidate = candidate.clone();
            let expected = candidate.queue(queue).push("x", &items, None, driver.now.wall_us);
            let is_right = reply.as_ref().map_or(true, |reply| reply.results.get(0) == expected.first().copied());
            is_right.then_some(candidate)
        });
        let pushed: Candidates = pushed.collect();
        if is_acknowledged && pushed.is_empty() {
            return Err(format!("a push behind the fault got {reply:?}"));
        }
        if is_acknowledged {
            candidates = pushed;
        } else {
            // The partition may have been made and the push not.
            let made = candidates.clone().into_iter().map(|mut candidate| {
                candidate.queue(queue).lanes.entry("x".to_owned()).or_default();
                candidate
            });
            let made: Candidates = made.collect();
            candidates.extend(pushed);
            candidates.extend(made);
        }
    }
    Ok(candidates)
}

/// Codes that say that a disk refused something, and not the request.
fn is_of_the_disk(code: ErrorCode, errno: Errno) -> bool {
    match code {
        ErrorCode::Io | ErrorCode::DiskFull | ErrorCode::Poisoned => true,
        // Files come back: that may be tried again.
        ErrorCode::Busy => errno == Errno::MFILE,
        _ => false,
    }
}

fn arm(disk: &SimDisk, call: u64, errno: Errno, extent: Extent) {
    match extent {
        Extent::One => disk.fail_call(call, errno, Times::Once),
        Extent::All => disk.fail_call(call, errno, Times::Forever),
        Extent::Changes => {
            for &operation in Operation::ALL.iter().filter(|operation| operation.is_mutation()) {
                disk.fail(Fault::new(errno).on(operation).from_call(call).times(Times::Forever));
            }
        }
    }
}

fn strike(base: &Base, call: u64, errno: Errno, extent: Extent, tally: &mut Tally) -> Result<(), String> {
    tally.faults += 1;
    let disk = base.disk.crash_keep_all();
    arm(&disk, call, errno, extent);
    let (candidates, left, now) = match Driver::open(disk.clone(), base.model.clone(), base.now) {
        Err(_) => {
            tally.closed += 1;
            disk.clear_faults();
            (vec![base.model.clone()], outcomes(&disk, call), base.now)
        }
        // A queue that cannot be opened stays closed, and is reported; the others are served.
        Ok(driver) if disk.calls() > call && !driver.report.findings.is_empty() => {
            tally.closed += 1;
            disk.clear_faults();
            (vec![base.model.clone()], outcomes(&disk, call), base.now)
        }
        Ok(mut driver) => {
            driver.may_fall_short = true;
            let struck = if disk.calls() > call {
                Some(Struck { op: None, candidates: vec![driver.model.clone()], code: None })
            } else {
                run(&mut driver, |disk| disk.calls() > call)?
            };
            let Some(struck) = struck else { return Err("the fault never struck".to_owned()) };
            match struck.code {
                None => tally.absorbed += 1,
                Some(code) if is_of_the_disk(code, errno) => tally.refused += 1,
                Some(code) => return Err(format!("{:?} was refused with {code:?}", struck.op)),
            }
            let now = driver.now;
            // An engine that was to stop is closed, whatever came of it.
            let candidates = match driver.engine.is_some() && struck.op != Some(Op::Restart) {
                true => {
                    let told = |text| format!("behind {:?}: {text}", struck.op);
                    check_living(&driver, &struck, extent != Extent::All).map_err(told)?;
                    // What is not shown may be on the disk all the same, and be there after a start.
                    push_on(&mut driver, struck.candidates, errno)?
                }
                false => struck.candidates,
            };
            driver.disk.clear_faults();
            let mut left = outcomes(&driver.disk, call);
            if let Some(engine) = driver.engine.take() {
                let _ = engine.close(now);
                left.push(("closed", driver.disk.crash_drop_unsynced()));
            }
            (candidates, left, now)
        }
    };
    for (name, left) in left {
        let look = if name == "all unsynced lost" { recover_and_go_on } else { recover };
        look(left, &candidates, now, None).map_err(|text| format!("{name}: {text}"))?;
        tally.recoveries += 1;
    }
    Ok(())
}

/// What a crash may leave of a disk.
fn outcomes(disk: &SimDisk, seed: u64) -> Vec<(&'static str, SimDisk)> {
    vec![("all kept", disk.crash_keep_all()), ("all unsynced lost", disk.crash_drop_unsynced()), ("some lost", disk.crash(seed))]
}

#[test]
fn every_call_of_the_disk_may_fail() {
    let started = Instant::now();
    let base = Base::new();
    let calls = {
        let mut driver = base.open().unwrap();
        assert!(run(&mut driver, |_| false).unwrap().is_none(), "the workload goes well without a fault");
        driver.disk.calls()
    };
    let mut tally = Tally::default();
    let one = number("FANLOG_CRASH_CALL");
    for call in one.map_or(0..calls, |call| call..call + 1) {
        for (at, &errno) in ERRNOS.iter().enumerate() {
            for (extent_at, extent) in [Extent::One, Extent::All, Extent::Changes].into_iter().enumerate() {
                // Each call gets one kind of fault at least; the kinds take turns.
                let is_turn = (call as usize + 7 * (call as usize / 18)) % 18 == at * 3 + extent_at;
                if (is_turn || wants_all() || one.is_some())
                    && let Err(text) = strike(&base, call, errno, extent, &mut tally)
                {
                    panic!("FANLOG_CRASH_CALL={call}, {errno:?}, {extent:?}: {text}");
                }
            }
        }
    }
    println!("{calls} calls: {tally:?} in {:?}", started.elapsed());
}

/// A call that a signal interrupts is made again; so is one that wrote less than it was given. Nobody hears of either.
#[test]
fn interrupted_calls_and_short_writes_are_not_seen() {
    let base = Base::new();
    let calls = {
        let mut driver = base.open().unwrap();
        driver.disk.set_short_writes(true);
        assert!(run(&mut driver, |_| false).unwrap().is_none());
        driver.check().unwrap();
        driver.disk.calls()
    };
    let step = if wants_all() { 1 } else { 7 };
    for call in (0..calls).step_by(step) {
        let disk = base.disk.crash_keep_all();
        disk.fail_call(call, Errno::INTR, Times::Once);
        let mut driver = Driver::open(disk, base.model.clone(), base.now).unwrap_or_else(|text| panic!("call {call}: {text}"));
        let outcome = run(&mut driver, |_| false).unwrap_or_else(|text| panic!("call {call}: {text}"));
        assert!(outcome.is_none(), "call {call}: {:?}", outcome.and_then(|struck| struck.code));
        driver.check().unwrap_or_else(|text| panic!("call {call}: {text}"));
    }
}
