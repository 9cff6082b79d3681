//! Random operations on the engine and on a model that is obviously right; every answer is compared.
//!
//! `FANLOG_MODEL_STEPS=n` runs longer, `FANLOG_MODEL_SEED=x` repeats one run.

use fanlog::storage::disk::sim::SimDisk;

use crate::proof::drive::{Driver, Maker, Op, Step};

const STEPS_OF_A_RUN: usize = 400;
const SHOWN_OPERATIONS: usize = 12;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// One run from an empty disk.
fn run(seed: u64) -> Result<(), String> {
    let disk = SimDisk::new(seed);
    let mut driver = Driver::new(disk)?.with_known_counts().with_waiter();
    let mut maker = Maker::new(seed, if seed % 10 == 9 { 60_000 } else { 200 });
    let mut done: Vec<Op> = Vec::new();
    for step in 0..STEPS_OF_A_RUN {
        let op = maker.op();
        done.push(op.clone());
        let mut outcome = driver.step(&op).and_then(|outcome| match outcome {
            Step::Done => Ok(()),
            Step::Failed(_, error) => Err(format!("{op:?}: {error}")),
        });
        if outcome.is_ok() && (step % 8 == 7 || matches!(op, Op::Restart | Op::Kill)) {
            outcome = driver.check();
        }
        if let Err(text) = outcome {
            let last = &done[done.len().saturating_sub(SHOWN_OPERATIONS)..];
            return Err(format!("seed {seed}, step {step}: {text}\nlast operations: {last:#?}"));
        }
    }
    driver.epilogue().map_err(|text| format!("seed {seed}, epilogue: {text}"))
}

#[test]
fn the_engine_does_what_the_model_does() {
    if let Some(seed) = number("FANLOG_MODEL_SEED") {
        return run(seed).unwrap();
    }
    let steps = number("FANLOG_MODEL_STEPS").unwrap_or(20_000) as usize;
    let first = number("FANLOG_MODEL_FIRST").unwrap_or(1);
    for seed in first..first + steps.div_ceil(STEPS_OF_A_RUN) as u64 {
        if let Err(text) = run(seed) {
            panic!("{text}");
        }
    }
    println!("{steps} steps agreed, seeds from {first} on");
}
