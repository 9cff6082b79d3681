//! The server under test, as a process of its own.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fanlog::model::SettingsPatch;
use fanlog::protocol::{QueueCreate, QueueDelete};

use super::side::BinaryLink;

/// A running server; it and its directory end with the value.
pub struct Server {
    child: Child,
    directory: PathBuf,
    /// The binary protocol's address.
    pub tcp: String,
    /// The gateway's address.
    pub http: String,
}

impl Server {
    /// Starts `program`, or the one that was built with this benchmark.
    pub fn start(program: Option<&str>) -> Self {
        let parent = std::env::var("FANLOG_BENCH_DIR").unwrap_or_else(|_| ".".to_owned());
        let directory = PathBuf::from(parent).join(format!("fanlog-bench-http-{}", std::process::id()));
        std::fs::create_dir(&directory).expect("a directory");
        let ports_file = directory.join("ports.json");
        let mut command = Command::new(program.unwrap_or(env!("CARGO_BIN_EXE_fanlog")));
        command.args(["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data"]).arg(directory.join("data"));
        command.arg("--ports-file").arg(&ports_file).stdin(Stdio::null()).stdout(Stdio::null());
        command.env("FANLOG_LOG", "warn");
        let child = command.spawn().expect("a server");
        let mut server = Self { child, directory, tcp: String::new(), http: String::new() };
        let start = Instant::now();
        let ports: serde_json::Value = loop {
            assert!(start.elapsed() < Duration::from_secs(30), "the server is not ready");
            match std::fs::read_to_string(&ports_file) {
                Ok(text) => break serde_json::from_str(&text).expect("ports"),
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let address = |key: &str| ports[key].as_str().expect("an address").to_owned();
        (server.tcp, server.http) = (address("tcp"), address("http"));
        server
    }

    /// Makes a queue.
    pub fn create_queue(&self, name: &str, settings: SettingsPatch) {
        BinaryLink::connect(&self.tcp).call(&QueueCreate { queue: name.to_owned(), settings });
    }

    /// Deletes a queue.
    pub fn delete_queue(&self, name: &str) {
        BinaryLink::connect(&self.tcp).call(&QueueDelete { queue: name.to_owned() });
    }

    /// Processor time of the server so far, in seconds.
    pub fn cpu(&self) -> f64 {
        cpu(&self.child.id().to_string())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Processor time of a process so far, in seconds: the 12th and 13th field behind its name.
pub fn cpu(process: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("a process");
    let (_, fields) = stat.rsplit_once(')').expect("fields");
    let ticks: u64 = fields.split_ascii_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}
