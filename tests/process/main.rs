//! The real binary over real sockets and real files: killed, starved, cut short and lied to.
//!
//! Linux only, since it reads `/proc`. `FANLOG_BIN` names another binary than the one that was built for this run.

mod decisions;
mod directory;
mod disk_full;
#[cfg(feature = "http")]
mod gateway;
mod hostile;
mod kill;
mod limits;
mod program;
mod random;
mod record;
mod signals;
mod traffic;
