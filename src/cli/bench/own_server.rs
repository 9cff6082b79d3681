//! A server of the measurement's own: a child process with an empty directory, both gone afterwards.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use super::super::exit::{EXIT_USER, ServerFault};

/// How long it may take to start, or to stop.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server.
#[derive(Debug)]
pub struct OwnServer {
    running: Arc<Mutex<Option<Running>>>,
    pid: u32,
    address: String,
}

/// What has to go afterwards, and goes when this is dropped.
#[derive(Debug)]
struct Running {
    /// `None` until it is started.
    child: Option<Child>,
    directory: PathBuf,
}

impl OwnServer {
    /// Starts one with a directory of its own in `parent`.
    pub fn start(parent: Option<PathBuf>) -> Result<Self> {
        let parent = parent.unwrap_or_else(std::env::temp_dir);
        let directory = parent.join(format!("fanlog-bench-{}", std::process::id()));
        std::fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let running = Arc::new(Mutex::new(Some(Running { child: None, directory: directory.clone() })));
        clean_up_on_signals(Arc::clone(&running))?;
        let ports_file = directory.join("ports.json");
        let fault = || ServerFault("cannot start a server".to_owned());
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--listen", "127.0.0.1:0", "--http", "off", "--data"]).arg(directory.join("data"));
        command.arg("--ports-file").arg(&ports_file).stdin(Stdio::null()).stdout(Stdio::null());
        if std::env::var_os("FANLOG_LOG").is_none() {
            command.env("FANLOG_LOG", "warn");
        }
        let mut server = Self { running, pid: 0, address: String::new() };
        if let Some(running) = &mut *lock(&server.running) {
            let child = command.spawn().with_context(fault)?;
            server.pid = child.id();
            running.child = Some(child);
        }
        let start = Instant::now();
        while server.address.is_empty() {
            let status = match lock(&server.running).as_mut().and_then(|running| running.child.as_mut()) {
                Some(child) => child.try_wait()?,
                None => bail!(ServerFault("the run was ended".to_owned())),
            };
            if let Some(status) = status {
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
        self.pid
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        lock(&self.running).take();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
            let start = Instant::now();
            while start.elapsed() < PATIENCE && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(5));
            }
            // Only if it did not stop by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn lock(running: &Mutex<Option<Running>>) -> MutexGuard<'_, Option<Running>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who ends the run by SIGTERM or SIGINT ends its server too. The lock is kept, so that nothing of either comes back.
fn clean_up_on_signals(running: Arc<Mutex<Option<Running>>>) -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => (),
            _ = terminate.recv() => (),
        }
        let mut running = lock(&running);
        drop(running.take());
        eprintln!("error: ended by a signal");
        std::process::exit(EXIT_USER.into());
    });
    Ok(())
}

fn address(ports: &str) -> Option<String> {
    let ports: Value = serde_json::from_str(ports).ok()?;
    Some(ports.get("tcp")?.as_str()?.to_owned())
}
