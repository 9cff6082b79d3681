//! The HTTP gateway over a real socket: Queen's contract, the routes beyond it, bad input, and clients that go away.
#![cfg(feature = "http")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod acks;
mod admin;
mod client;
mod disk;
mod encryption;
mod groups;
mod limits;
mod mixed;
mod openapi;
mod ops;
mod pops;
mod pushes;
mod server;
mod tls;
mod transactions;
