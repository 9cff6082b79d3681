//! The server of the real binary, asked through the client and through raw bytes.

mod access;
mod administration;
mod contract;
mod drain;
mod flow;
mod harness;
mod hostile;
mod messages;
#[allow(dead_code, reason = "other programs use the rest")]
#[path = "../support/program.rs"]
mod program;
mod subscriptions;
mod tls;
