//! The engine on the simulated disk, by behaviour.

mod basics;
mod delays;
mod over_queues;
mod support;
