//! The HTTP gateway beside the server.

use std::net::SocketAddr;

use anyhow::Result;
use fanlog::engine::Engine;
use tokio_util::sync::CancellationToken;

/// A gateway that may be off.
pub struct Gateway {
    address: Option<SocketAddr>,
}

impl Gateway {
    /// Listens, if there is an address.
    pub async fn bind(address: Option<SocketAddr>, _engine: &Engine) -> Result<Self> {
        if let Some(address) = address {
            eprintln!("http: {address} is accepted, but this build has no gateway");
        }
        Ok(Self { address: None })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Serves until `stopping`.
    pub async fn serve(self, _stopping: CancellationToken) {}
}
