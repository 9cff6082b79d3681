//! The server of the binary protocol, on tokio.
//!
//! Owns connections and their memory: every bound stands in [`ServerOptions`], and where one is reached the server stops reading
//! or says `Busy`; it never grows. What operations mean is left to the [engine](crate::engine). Bytes from a peer affect its own
//! connection and no other.

mod accept;
mod admin;
mod budget;
mod handler;
mod lease;
mod options;
mod outbox;
mod session;
mod shared_writer;
mod subscription;
mod waiting;

pub use options::{BindError, ServerOptions};

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;

use accept::{Door, Pause};
use budget::ServerBudget;
use outbox::OutgoingBytes;

/// A server that listens and does not serve yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
    door: Door,
}

/// What all connections share.
struct Shared {
    engine: Engine,
    options: ServerOptions,
    budget: ServerBudget,
    outgoing: Arc<OutgoingBytes>,
    /// Places for waiting requests and subscriptions.
    waits: Arc<Semaphore>,
    /// Number of this run, part of every hello.
    start_number: u64,
    stopping: CancellationToken,
}

impl Server {
    /// Listens. Clients may connect from here on; they are served by [`serve`](Self::serve).
    pub async fn bind(options: ServerOptions, engine: Engine) -> Result<Self, BindError> {
        options.check_exposure(options.listen)?;
        let refused = |source| BindError::Listen { address: options.listen, source };
        let listener = TcpListener::bind(options.listen).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let shared = Shared {
            budget: ServerBudget::new(&options),
            outgoing: Arc::new(OutgoingBytes::new(options.out_bytes_max)),
            waits: Arc::new(Semaphore::new(options.waiting_max)),
            start_number: engine.stats().start_number,
            stopping: CancellationToken::new(),
            engine,
            options,
        };
        let door = Door::new(&shared.options);
        Ok(Self { listener, address, shared: Arc::new(shared), door })
    }

    /// The address that it listens on, with the port that the operating system chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Counts the open connections, also while it serves.
    pub fn connection_counter(&self) -> impl Fn() -> usize + Send + Sync + use<> {
        self.door.counter()
    }

    /// Serves until `shutdown`, then takes no more connections, refuses new requests with `ShuttingDown`, answers those in
    /// flight, ends subscriptions and returns when all connections are closed, at the latest after
    /// [`drain_timeout`](ServerOptions::drain_timeout). Leaves the engine open.
    pub async fn serve(self, shutdown: CancellationToken) {
        let mut connections = JoinSet::new();
        let mut pause = Pause::default();
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(ended) = connections.join_next() => log_fault(ended),
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        pause.reset();
                        self.admit(stream, peer, &mut connections);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        sleep(pause.after(&error)).await;
                    }
                }
            }
        }
        drop(self.listener);
        self.shared.stopping.cancel();
        let drained = async {
            while let Some(ended) = connections.join_next().await {
                log_fault(ended);
            }
        };
        if timeout(self.shared.options.drain_timeout, drained).await.is_err() {
            tracing::warn!(connections = connections.len(), "connections did not end in time and are cut off");
            connections.shutdown().await;
        }
    }

    fn admit(&self, stream: TcpStream, peer: SocketAddr, connections: &mut JoinSet<()>) {
        let permit = match self.door.enter(peer.ip()) {
            Ok(permit) => permit,
            Err(error) => {
                tracing::debug!(%peer, %error, "a connection is turned away");
                // Who speaks TLS would not understand it.
                if self.shared.options.tls.is_none() {
                    accept::turn_away(&stream, error);
                }
                return;
            }
        };
        if let Err(error) = accept::prepare(&stream) {
            return tracing::debug!(%peer, %error, "a connection was lost at once");
        }
        let shared = self.shared.clone();
        connections.spawn(async move {
            session::serve_connection(shared, stream, permit).await;
        });
    }
}

fn log_fault(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection ended in a fault of the server");
    }
}
