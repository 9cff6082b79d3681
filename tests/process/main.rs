//! The real binary over real sockets and real files: killed, starved, cut short and lied to.
//!
//! Linux only, since it reads `/proc`.

mod decisions;
mod directory;
mod disk_full;
#[cfg(feature = "http")]
mod gateway;
mod hostile;
mod kill;
mod limits;
#[allow(dead_code, reason = "other programs use the rest")]
#[path = "../support/program.rs"]
mod program;
mod random;
mod record;
mod signals;
#[cfg(feature = "http")]
mod strangers;
mod traffic;
