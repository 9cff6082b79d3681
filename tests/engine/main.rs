//! The engine on the simulated disk, by behaviour.

mod basics;
mod delays;
mod support;
