//! The HTTP gateway: Queen's routes and those for what Queen lacks, over the engine; metrics and health.
//!
//! A thin layer: it translates bodies and status codes, waits for messages on behalf of clients, encrypts the payloads of queues
//! that ask for it, and keeps a ring of time series for the status routes. Everything else is the engine's. It holds no lock over
//! an await. Pushes, acknowledgements and pops are handed to the engine at once, as the binary protocol does; whatever else may wait
//! for a commit or a disk, or takes long, runs on a blocking thread.

mod ack;
mod analytics;
mod answers;
mod auth;
mod body;
mod budget;
mod counts;
mod cursors;
mod dead_letters;
mod delivery;
mod distributions;
mod encryption;
mod error;
mod fetch;
mod filters;
mod groups;
mod health;
mod ids;
mod json;
mod json_check;
mod lags;
mod lease;
mod messages;
mod messages_out;
mod metrics;
mod openapi;
mod pages;
mod params;
mod pop;
mod process;
mod push;
mod queues;
mod resources;
mod rights;
mod router;
mod series;
mod serve;
mod status;
mod system;
mod time;
mod traces;
mod transaction;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};

use crate::access::Access;
use crate::engine::{Engine, RecoveryReport};
use crate::model::{self, QueueScope};
use crate::tls::TlsServer;

use budget::Budget;
use encryption::Cipher;
use error::{ApiError, Result};
use lags::Lags;
use metrics::Metrics;
use series::Series;

pub use encryption::{EncryptionKey, KEY_VARIABLES};
pub use serve::serve;

/// Sets what is logged, in the syntax of `RUST_LOG`; says why it cannot.
pub type SetLogFilter = Arc<dyn Fn(&str) -> std::result::Result<(), String> + Send + Sync>;

/// Counts the connections of the binary protocol, which somebody else serves.
pub type CountConnections = Arc<dyn Fn() -> usize + Send + Sync>;

/// How the gateway behaves.
#[derive(Clone)]
pub struct HttpOptions {
    /// Decides who clients are, by what they send as `Authorization: Bearer`; by default everybody may do everything.
    pub access: Arc<Access>,
    /// Takes TLS connections, and no others; `None` takes plain ones.
    pub tls: Option<Arc<TlsServer>>,
    /// The key for queues with `encryptionEnabled`; without one such queues take and give nothing over HTTP.
    pub encryption_key: Option<EncryptionKey>,
    /// The largest request body, in bytes.
    pub body_bytes_max: usize,
    /// Bytes that all request bodies may hold together.
    pub body_bytes_total_max: usize,
    /// Bytes that answers may hold together until clients take them; nothing more is read for anybody while it is more.
    pub answer_bytes_total_max: usize,
    /// A client that takes nothing of an answer for so long loses its connection, and what it holds.
    pub send_timeout: Duration,
    /// Connections at a time; more wait to be accepted.
    pub connections_max: usize,
    /// The same from one address, or from one network (a /64) of IPv6; more are told to come back later.
    pub connections_per_address_max: usize,
    /// Nobody but those who are meant to reaches the server, also without tokens and by every name: hosts are not looked at.
    pub is_insecure_bind_allowed: bool,
    /// Pops that may wait at a time; more are refused as busy.
    pub waiting_pops_max: usize,
    /// Time between two samples of the status series.
    pub sample_interval: Duration,
    /// Pairs of queue and group that get metrics of their own; the others are summed.
    pub metrics_groups_max: usize,
    /// Free bytes of the disk below which the server is not ready.
    pub disk_free_bytes_min: u64,
    /// How long connections may finish their requests after the shutdown.
    pub drain: Duration,
    /// What opening the engine found.
    pub recovery: Arc<RecoveryReport>,
    /// Changes the log filter while the server runs.
    pub set_log_filter: Option<SetLogFilter>,
    /// Counts the connections of the binary protocol, for the metrics; `None` counts none.
    pub count_connections: Option<CountConnections>,
}

impl HttpOptions {
    fn binary_connections(&self) -> usize {
        self.count_connections.as_ref().map_or(0, |count| count())
    }
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            access: Arc::default(),
            tls: None,
            encryption_key: None,
            body_bytes_max: 64 << 20,
            body_bytes_total_max: 512 << 20,
            answer_bytes_total_max: 512 << 20,
            send_timeout: Duration::from_secs(60),
            connections_max: 4096,
            connections_per_address_max: 1024,
            is_insecure_bind_allowed: false,
            waiting_pops_max: 10_000,
            sample_interval: Duration::from_secs(10),
            metrics_groups_max: 1_000,
            disk_free_bytes_min: 256 << 20,
            drain: Duration::from_secs(10),
            recovery: Arc::default(),
            set_log_filter: None,
            count_connections: None,
        }
    }
}

/// What handlers work with: the engine as a caller may use it, and what all callers share.
pub(crate) struct Gateway {
    engine: Engine,
    common: Arc<Common>,
}

/// What all handlers share.
pub(crate) struct Common {
    options: HttpOptions,
    /// All queues, whoever asks.
    whole: Engine,
    /// Only this machine reaches the server, as far as it was told.
    is_local: bool,
    cipher: Cipher,
    body_budget: Arc<Budget>,
    answer_budget: Arc<Budget>,
    waiting: Arc<Semaphore>,
    metrics: Metrics,
    series: Series,
    lags: Lags,
    started: Instant,
    /// Whether the gateway only finishes what it has begun.
    draining: watch::Sender<bool>,
}

impl std::ops::Deref for Gateway {
    type Target = Common;

    fn deref(&self) -> &Common {
        &self.common
    }
}

impl Gateway {
    fn new(engine: Engine, options: HttpOptions, address: Option<SocketAddr>) -> Arc<Self> {
        let engine = engine.with_marks();
        let common = Common {
            whole: engine.clone(),
            is_local: !options.is_insecure_bind_allowed && address.is_some_and(|address| address.ip().is_loopback()),
            cipher: Cipher::new(options.encryption_key.as_ref()),
            body_budget: Budget::new(options.body_bytes_total_max),
            answer_budget: Budget::new(options.answer_bytes_total_max),
            waiting: Arc::new(Semaphore::new(options.waiting_pops_max)),
            metrics: Metrics::new(),
            series: Series::new(),
            lags: Lags::default(),
            started: Instant::now(),
            draining: watch::Sender::new(false),
            options,
        };
        Arc::new(Self { engine, common: Arc::new(common) })
    }

    /// The same for a caller who may use some queues only.
    fn within(&self, scope: QueueScope) -> Arc<Self> {
        Arc::new(Self { engine: self.engine.within(scope), common: self.common.clone() })
    }

    /// Calls the engine from a thread that may wait.
    async fn call<T: Send + 'static>(&self, work: impl FnOnce(&Engine) -> model::Result<T> + Send + 'static) -> Result<T> {
        let engine = self.engine.clone();
        self.blocking(move || work(&engine).map_err(ApiError::from)).await
    }

    /// Runs work that may wait or takes long.
    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result,
            Err(error) => Err(ApiError::internal(format!("request failed inside the server: {error}"))),
        }
    }

    /// The queue that a partition's id belongs to, and the partition's number.
    fn place(&self, partition_id: &str) -> Option<(String, crate::record::PartitionId)> {
        let (incarnation, partition) = ids::parse_partition_id(partition_id)?;
        Some((self.engine.queue_of_incarnation(incarnation)?, partition))
    }

    fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }
}

/// Ready when draining begins.
async fn until_draining(mut draining: watch::Receiver<bool>) {
    // An error means that the gateway is gone, which is no less an end.
    let _ = draining.wait_for(|is_draining| *is_draining).await;
}

/// The primary group's name stands for no name, here as in the engine.
fn group_name(name: Option<&str>) -> Option<&str> {
    name.filter(|name| !name.is_empty() && *name != model::PRIMARY_GROUP)
}

/// As [`group_name`], with a text of its own.
fn group_option(name: Option<&str>) -> Option<String> {
    group_name(name).map(str::to_owned)
}
