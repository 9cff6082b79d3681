//! The server, asked through the client and through raw bytes.

mod access;
mod administration;
mod contract;
mod drain;
mod flow;
mod harness;
mod hostile;
mod messages;
mod subscriptions;
mod tls;
