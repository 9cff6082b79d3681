//! The engine itself, run through many orders of events by the `shuttle` scheduler.
//!
//! A model is a few threads that use one engine on a simulated disk, and what must hold whatever order their steps come in. The
//! scheduler chooses which thread goes on wherever a lock is taken, an atomic touched or the disk called; half of the orders are random
//! choices, half let one thread run ahead and change their minds a few times. A thread that waits for ever is found, too.

mod explore;
mod groups;
mod leases;
mod publish;
mod retention;
#[allow(dead_code, reason = "shared with tests/engine")]
#[path = "../engine/support.rs"]
mod support;
mod wakes;
