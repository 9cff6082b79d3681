//! Breaks things, at random.

use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};

use crate::program::{Launch, Program};
use crate::proxy::Proxy;
use crate::random::Random;
use crate::recorder::Recorder;

/// Longer than most leases.
const LONG_STOP_MS: u64 = 1_800;

/// What it has done.
#[derive(Debug, Default, Clone, Copy)]
pub struct Deeds {
    pub kills: u64,
    pub stops: u64,
    pub harms: u64,
    pub shortages: u64,
}

/// Does something to the server or to its connections, and returns the server that runs then.
pub async fn act(
    mut program: Program,
    launch: &Launch,
    proxy: &Proxy,
    recorder: &Recorder,
    random: &mut Random,
    deeds: &mut Deeds,
) -> Program {
    match random.below(10) {
        0..=2 => {
            program = kill(program, launch, recorder);
            deeds.kills += 1;
            while random.chance(1, 4) {
                // Again, while it is starting or right after that.
                tokio::time::sleep(Duration::from_millis(random.below(60))).await;
                program = kill(program, launch, recorder);
                deeds.kills += 1;
            }
        }
        3 => {
            program.signal(Signal::STOP);
            let stop_ms = if random.chance(1, 2) { LONG_STOP_MS } else { 200 };
            tokio::time::sleep(Duration::from_millis(random.below(stop_ms))).await;
            program.signal(Signal::CONT);
            deeds.stops += 1;
        }
        4 => {
            let enough = limit_files(&program, random.below(20));
            tokio::time::sleep(Duration::from_millis(random.below(400))).await;
            limit_files(&program, enough);
            deeds.shortages += 1;
        }
        _ => {
            proxy.harm(random);
            deeds.harms += 1;
        }
    }
    program
}

/// Kills it and starts it again.
pub fn kill(program: Program, launch: &Launch, recorder: &Recorder) -> Program {
    let before = recorder.now();
    program.kill();
    recorder.killed(before);
    launch.start()
}

/// How many files it may open from now on; returns how many it could open until now.
fn limit_files(program: &Program, files: u64) -> u64 {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", program.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let mut numbers = line.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
    let (before, most) = (numbers.next().unwrap(), numbers.next());
    let pid = Pid::from_raw(i32::try_from(program.pid()).unwrap());
    prlimit(pid, Resource::Nofile, Rlimit { current: Some(files), maximum: most }).unwrap();
    before
}
