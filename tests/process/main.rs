//! The real binary over real sockets and real files: killed, starved, cut short and lied to.
//!
//! Linux only, since it reads `/proc`. `FANLOG_BIN` names another binary than the one that was built for this run.

mod kill;
mod program;
mod random;
mod record;
mod traffic;
