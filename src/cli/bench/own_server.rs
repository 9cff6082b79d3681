//! A server of the measurement's own: a child process with an empty directory, both gone afterwards.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::super::exit::ServerFault;

/// How long it may take to start, or to stop.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server.
#[derive(Debug)]
pub struct OwnServer {
    child: Child,
    directory: PathBuf,
    address: String,
}

impl OwnServer {
    /// Starts one with a directory of its own in `parent`.
    pub fn start(parent: Option<PathBuf>) -> Result<Self> {
        let parent = parent.unwrap_or_else(std::env::temp_dir);
        let directory = parent.join(format!("fanlog-bench-{}", std::process::id()));
        std::fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let ports_file = directory.join("ports.json");
        let fault = || ServerFault("cannot start a server".to_owned());
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--listen", "127.0.0.1:0", "--http", "off", "--data"]).arg(directory.join("data"));
        command.arg("--ports-file").arg(&ports_file).stdin(Stdio::null()).stdout(Stdio::null());
        if std::env::var_os("FANLOG_LOG").is_none() {
            command.env("FANLOG_LOG", "warn");
        }
        let mut server = Self { child: command.spawn().with_context(fault)?, directory, address: String::new() };
        let start = Instant::now();
        while server.address.is_empty() {
            if let Some(status) = server.child.try_wait()? {
                bail!(ServerFault(format!("the server ended at its start: {status}")));
            }
            if start.elapsed() > PATIENCE {
                bail!(ServerFault("the server is not ready".to_owned()));
            }
            match std::fs::read_to_string(&ports_file) {
                Ok(text) => server.address = address(&text).context("the ports file does not parse")?,
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
        Ok(server)
    }

    /// Its address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let start = Instant::now();
        while start.elapsed() < PATIENCE && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Only if it did not stop by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn address(ports: &str) -> Option<String> {
    let ports: Value = serde_json::from_str(ports).ok()?;
    Some(ports.get("tcp")?.as_str()?.to_owned())
}
