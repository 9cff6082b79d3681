//! The engine on the simulated disk, by behaviour.

mod acks;
mod basics;
#[path = "../support/cases.rs"]
mod cases;
mod damage;
mod delays;
mod fan_out;
mod filtering;
mod ids;
mod lags;
mod letters;
mod model;
mod over_queues;
mod pops;
mod progress;
#[path = "../proof/mod.rs"]
mod proof;
mod refusals;
mod retention;
mod starts;
mod support;
mod transactions;
mod wakes;
