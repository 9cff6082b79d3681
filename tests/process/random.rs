//! Random numbers that a seed repeats.

pub use fanlog::storage::disk::sim::Random;

/// The seed of `FANLOG_SEED`, or one of the clock; printed, so that a failure can be repeated.
pub fn random_from_environment() -> (u64, Random) {
    let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = std::env::var("FANLOG_SEED").ok().map_or_else(clock, |text| text.parse().expect("FANLOG_SEED is a number"));
    println!("FANLOG_SEED={seed}");
    (seed, Random::new(seed))
}
