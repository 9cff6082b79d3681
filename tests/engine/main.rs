//! The engine on the simulated disk, by behaviour.

mod basics;
mod model;
#[path = "../proof/mod.rs"]
mod proof;
mod support;
