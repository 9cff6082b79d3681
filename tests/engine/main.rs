//! The engine on the simulated disk, by behaviour.

mod basics;
mod delays;
mod filtering;
mod model;
mod over_queues;
#[path = "../proof/mod.rs"]
mod proof;
mod support;
