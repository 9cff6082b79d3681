//! The HTTP gateway of the real binary over a real socket: Queen's contract, the routes beyond it, bad input, and clients that go away.
#![cfg(feature = "http")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod acks;
mod admin;
mod client;
mod disk;
mod encryption;
mod groups;
mod inside;
mod limits;
mod mixed;
mod openapi;
mod ops;
mod pops;
#[allow(dead_code, reason = "other programs use the rest")]
#[path = "../support/program.rs"]
mod program;
mod pushes;
mod server;
mod tls;
mod transactions;
