//! The real binary with both of its ports over a directory of its own, and shorthands for what most tests do.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fanlog::client::Client as BinaryClient;
use serde_json::{Value, json};

use crate::client::Client;
use crate::program::{Launch, Program, eventually};

/// A running server; stops when dropped, which must end well.
pub struct Server {
    /// The gateway's address.
    pub address: SocketAddr,
    program: Option<Program>,
    directory: tempfile::TempDir,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(|launch| launch)
    }

    pub fn start_with(change: impl FnOnce(Launch) -> Launch) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), change)
    }

    /// The same over a directory in which something is already.
    pub fn start_in(directory: tempfile::TempDir, change: impl FnOnce(Launch) -> Launch) -> Self {
        let program = change(Launch::in_directory(directory.path()).http()).start();
        let address = program.http.as_ref().unwrap().parse().unwrap();
        Self { address, program: Some(program), directory }
    }

    /// The process.
    pub fn program(&self) -> &Program {
        self.program.as_ref().unwrap()
    }

    /// The data directory.
    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Speaks the binary protocol for a moment.
    pub fn over_tcp<T>(&self, work: impl AsyncFnOnce(BinaryClient) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { work(self.program().client().await).await })
    }

    /// Waits until so many pops wait for messages.
    #[track_caller]
    pub fn await_waiting_pops(&self, count: u64) {
        let mut client = self.client();
        eventually(|| metric(&client.get("/metrics/prometheus").text, "fanlog_waiting_pops") == count as f64);
    }

    /// Asks the server to stop and says how long it took.
    pub fn stop(mut self) -> Duration {
        let started = Instant::now();
        self.program.take().unwrap().stop();
        started.elapsed()
    }

    /// Reads tokens and certificates again.
    pub fn reload(&self) {
        self.program().hang_up("tokens and certificates are read again");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(program) = self.program.take()
            && !std::thread::panicking()
        {
            program.stop();
        }
    }
}

/// The value of a metric without labels.
pub fn metric(text: &str, name: &str) -> f64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
}

/// A queue name of its own.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{prefix}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Pushes payloads into the default partition and gives the rows.
pub fn push(client: &mut Client, queue: &str, payloads: &[Value]) -> Vec<Value> {
    let items: Vec<_> = payloads.iter().map(|payload| json!({ "queue": queue, "payload": payload })).collect();
    let rows = client.post("/api/v1/push", &json!({ "items": items })).expect(201);
    rows.as_array().unwrap().clone()
}

/// Pops for a group that starts at the beginning; nothing is an empty list.
pub fn pop(client: &mut Client, queue: &str, group: &str, batch: usize) -> Vec<Value> {
    let path = format!("/api/v1/pop/queue/{queue}?consumerGroup={group}&subscriptionMode=all&batch={batch}&partitions=64");
    let answer = client.get(&path);
    if answer.status == 204 {
        assert!(answer.text.is_empty());
        return Vec::new();
    }
    answer.expect(200)["messages"].as_array().unwrap().clone()
}

/// What acknowledges a message.
pub fn ack_of(message: &Value, status: &str) -> Value {
    json!({
        "transactionId": message["transactionId"], "partitionId": message["partitionId"], "leaseId": message["leaseId"],
        "consumerGroup": message["consumerGroup"], "status": status, "error": "because",
    })
}

/// Acknowledges one message and gives the verdict.
pub fn ack(client: &mut Client, message: &Value, status: &str) -> Value {
    client.post("/api/v1/ack", &ack_of(message, status)).expect(200)[0].clone()
}
