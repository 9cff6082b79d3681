//! A gateway inside the test's process, for what no setting of the binary reaches: limits that have none, and disks that are not
//! real.

use std::net::SocketAddr;
use std::time::Duration;

use fanlog::engine::{Engine, EngineOptions};
use fanlog::http::{HttpOptions, serve};
use fanlog::model::Now;
use fanlog::storage::disk::sim::SimDisk;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::client::Client;

/// A gateway that serves; stops when dropped.
pub struct Inside {
    address: SocketAddr,
    engine: Engine,
    stop: Option<oneshot::Sender<()>>,
    served: Option<tokio::task::JoinHandle<()>>,
    runtime: Option<Runtime>,
    _directory: Option<tempfile::TempDir>,
}

impl Inside {
    pub fn start(options: HttpOptions) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (engine, _) = Engine::open_path(directory.path(), EngineOptions::default(), Now::read()).unwrap();
        Self::serve(engine, options, Some(directory))
    }

    /// The same on a disk of the test's.
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

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let (Some(stop), Some(served), Some(runtime)) = (self.stop.take(), self.served.take(), &self.runtime)
            && !std::thread::panicking()
        {
            let _ = stop.send(());
            runtime.block_on(served).unwrap();
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
        let _ = self.engine.close(Now::read());
    }
}
