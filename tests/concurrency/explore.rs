//! Running a model through many schedules, and one of them again.

use std::sync::Mutex;

use fanlog::engine::Engine;
use fanlog::model::*;
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler};
use shuttle::{Config, Runner};

use crate::support::{World, messages_of};

/// Schedules of each model, if `FANLOG_SCHEDULES` does not say.
const SCHEDULES: usize = 200;
/// How often a schedule that lets one thread run ahead changes its mind.
const CHANGES: usize = 3;
/// Compression and the engine's own frames need more than the scheduler gives by itself.
const STACK_BYTES: usize = 1 << 20;

/// Runs the model through schedules: as many as `FANLOG_SCHEDULES` says, beginning with the seed in `FANLOG_SCHEDULE_SEED`, or the one
/// that `FANLOG_SCHEDULE` holds, as a failure printed it.
pub fn explore(model: impl Fn() + Send + Sync + Copy + 'static) {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.silence_warnings = true;
    if let Ok(schedule) = std::env::var("FANLOG_SCHEDULE") {
        Runner::new(ReplayScheduler::new_from_encoded(&schedule), config).run(model);
        return;
    }
    let count = number("FANLOG_SCHEDULES").unwrap_or(SCHEDULES as u64) as usize;
    let seed = number("FANLOG_SCHEDULE_SEED").unwrap_or(1);
    println!("{count} schedules from seed {seed}");
    let start = std::time::Instant::now();
    Runner::new(RandomScheduler::new_from_seed(seed, count.div_ceil(2)), config.clone()).run(model);
    Runner::new(PctScheduler::new_from_seed(seed, CHANGES, count.div_ceil(2)), config).run(model);
    println!("{:.0} schedules/s", count as f64 / start.elapsed().as_secs_f64());
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// What threads of a model note for each other. No other thread goes on while it is looked at, so noting takes no part in the schedule.
#[derive(Default)]
pub struct Notes<T>(Mutex<Vec<T>>);

impl<T: Clone> Notes<T> {
    pub fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    pub fn add(&self, note: T) {
        self.0.lock().unwrap().push(note);
    }

    pub fn all(&self) -> Vec<T> {
        self.0.lock().unwrap().clone()
    }
}

/// The time after so many milliseconds.
pub fn after(now: Now, milliseconds: u64) -> Now {
    Now { wall_us: now.wall_us + milliseconds * 1000, steady_us: now.steady_us + milliseconds * 1000 }
}

/// Does what is due after so many milliseconds.
pub fn tick(world: &World, milliseconds: u64) {
    world.engine.tick(after(world.now, milliseconds));
}

/// Offsets and payloads of a claim.
pub fn contents(claim: &Claim) -> Vec<(u64, Vec<u8>)> {
    messages_of(claim).iter().map(|message| (message.offset, message.payload.to_vec())).collect()
}

/// Everything of a partition as a reader without a group finds it.
pub fn fetch(engine: &Engine, partition: &str, from: u64, now: Now) -> Result<FetchReply> {
    let partition = partition.to_owned();
    engine.fetch(&FetchRequest { queue: "q".into(), partition, from, to: None, messages_max: 1000, bytes_max: 16 << 20 }, now)
}

/// What a loss of power right now would leave, opened. The engine of `world` goes on.
pub fn after_power_loss(world: &World, now: Now) -> World {
    World::with_options(world.disk.crash_drop_unsynced(), now, world.options.clone())
}
