//! fanlog: a single-node log engine for fan-out.
#![deny(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod access;
pub mod client;
pub mod codec;
pub mod engine;
pub mod filter;
pub mod format;
#[cfg(feature = "http")]
pub mod http;
pub mod model;
pub mod net;
pub mod protocol;
pub mod record;
pub mod server;
pub mod storage;
mod sync;
pub mod tls;
