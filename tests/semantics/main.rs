//! What groups, leases, acknowledgements, seeks, retention, dead letters, transactions and filters promise, held against the real
//! binary: a process of its own, real sockets, real files, SIGKILL where something has to last.
//!
//! Each module is a subject and each test a promise; read their names first. Nothing here looks into the engine.

mod acks;
mod attributes;
#[path = "../support/cases.rs"]
mod cases;
mod cursors;
mod decisions;
mod earlier_start;
mod groups;
mod ids;
mod language;
mod leases;
mod letters;
mod pops;
#[allow(dead_code, reason = "other programs use the rest")]
#[path = "../support/program.rs"]
mod program;
mod progress;
mod refusals;
mod removal;
mod retention;
mod seeks;
mod settings;
mod shared;
mod starts;
mod support;
mod transactions;
mod trials;
mod wakes;
