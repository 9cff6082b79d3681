//! Proof that nothing acknowledged is lost, whatever breaks: the real engine on the simulated disk, held against a model.
//!
//! - `power`: the power fails at any call of the disk, with every legal outcome for what was not synced, also during recovery.
//! - `faults`: every call of the disk fails, once or for ever, with each kind of error.
//! - `holes`: the power fails, and calls fail, while room is given back inside segments.
//! - `damage`: every byte of a data directory is spoilt, files are cut, emptied, removed, exchanged and put back as they were earlier.
//!
//! All of it is short by default. `FANLOG_CRASH_SEEDS=n` runs n random histories, `FANLOG_CRASH_FIRST=x` from that seed on,
//! `FANLOG_CRASH_SEED=x` one of them; `FANLOG_CRASH_ALL=1` leaves no case out.

mod damage;
mod faults;
mod holes;
mod power;
#[path = "../proof/mod.rs"]
mod proof;
#[path = "../engine/support.rs"]
#[allow(dead_code)]
mod support;

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Whether no case is to be left out.
fn wants_all() -> bool {
    number("FANLOG_CRASH_ALL").is_some_and(|all| all > 0)
}
