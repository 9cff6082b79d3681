//! A server over a directory of its own, and shorthands for what most tests do.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fanlog::engine::{Engine, EngineOptions};
use fanlog::http::{HttpOptions, serve};
use fanlog::model::Now;
use fanlog::storage::disk::sim::SimDisk;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::client::Client;

/// A running server; stops when dropped.
pub struct Server {
    pub address: SocketAddr,
    pub engine: Engine,
    stop: Option<oneshot::Sender<()>>,
    served: Option<tokio::task::JoinHandle<()>>,
    runtime: Option<Runtime>,
    _directory: Option<tempfile::TempDir>,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(HttpOptions { sample_interval: Duration::from_secs(3600), ..HttpOptions::default() })
    }

    pub fn start_with(options: HttpOptions) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (engine, _) = Engine::open_path(directory.path(), EngineOptions::default(), Now::read()).unwrap();
        Self::serve(engine, options, Some(directory))
    }

    /// A server on a disk of the test's.
    pub fn start_on(disk: &SimDisk) -> Self {
        let (engine, _) = Engine::open(disk.root(), EngineOptions::default(), Now::read()).unwrap();
        let options =
            HttpOptions { sample_interval: Duration::from_secs(3600), disk_free_bytes_min: 1, ..HttpOptions::default() };
        Self::serve(engine, options, None)
    }

    fn serve(engine: Engine, options: HttpOptions, directory: Option<tempfile::TempDir>) -> Self {
        engine.start_threads(2).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = engine.clone();
        let served = runtime.spawn(serve(listener, serving, options, async move {
            let _ = stopped.await;
        }));
        Self { address, engine, stop: Some(stop), served: Some(served), runtime: Some(runtime), _directory: directory }
    }

    /// Where the server runs.
    pub fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().unwrap()
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Asks the server to stop and says how long it took.
    pub fn stop(&mut self) -> Duration {
        let started = Instant::now();
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let (Some(runtime), Some(served)) = (&self.runtime, self.served.take()) {
            runtime.block_on(served).unwrap();
        }
        started.elapsed()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
        let _ = self.engine.close(Now::read());
    }
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
