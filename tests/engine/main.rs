//! The engine on the simulated disk, by behaviour.

mod basics;
mod delays;
mod model;
mod over_queues;
#[path = "../proof/mod.rs"]
mod proof;
mod support;
