//! What all clients share.

use std::sync::Arc;
use std::time::Duration;

use fanlog::client::Client;
use tokio_util::sync::CancellationToken;

use crate::random::Random;
use crate::recorder::Recorder;
use crate::scene::Scene;

/// A client at work: one connection, one call at a time.
#[derive(Debug)]
pub struct Worker {
    pub name: String,
    pub client: Client,
    pub scene: Arc<Scene>,
    pub recorder: Arc<Recorder>,
    pub random: Random,
    /// Whether it is to end.
    pub stopping: CancellationToken,
    /// Whether faults are over, and everything is to be settled.
    pub calm: CancellationToken,
}

impl Worker {
    /// Waits for less than so many milliseconds; whether to go on.
    pub async fn pause(&mut self, below: u64) -> bool {
        let milliseconds = self.random.below(below);
        tokio::select! {
            () = self.stopping.cancelled() => false,
            () = tokio::time::sleep(Duration::from_millis(milliseconds)) => true,
        }
    }

    /// Waits for less than so many milliseconds, and not at all when faults are over.
    pub async fn idle(&mut self, below: u64) {
        let milliseconds = self.random.below(below);
        tokio::select! {
            () = self.calm.cancelled() => {}
            () = tokio::time::sleep(Duration::from_millis(milliseconds)) => {}
        }
    }
}
