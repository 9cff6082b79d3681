//! What a server is told at its start.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::access::{Access, SECRET_BYTES_MIN};
use crate::net::ReadPace;
use crate::protocol::FRAME_BYTES_MAX;
use crate::tls::TlsServer;

/// How a server behaves. Every bound on memory stands here.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// The address to listen on; port 0 lets the operating system choose.
    pub listen: SocketAddr,
    /// Decides who clients are; by default everybody may do everything.
    pub access: Arc<Access>,
    /// Takes TLS connections, and no others; `None` takes plain ones.
    pub tls: Option<Arc<TlsServer>>,
    /// Listens beyond loopback even if no client must prove who it is.
    pub is_insecure_bind_allowed: bool,
    /// Connections at most.
    pub connections_max: usize,
    /// Connections at most from one address, or from one network (a /64) of IPv6.
    pub connections_per_address_max: usize,
    /// Connections at most whose hello has not been answered yet; one address has a quarter of them.
    pub handshakes_max: usize,
    /// Bytes of a frame at most, after its length field.
    pub frame_bytes_max: usize,
    /// Bytes of a message at most, as clients are told; the engine enforces its own limit.
    pub message_bytes_max: usize,
    /// Bytes of requests in flight over all connections; a connection that finds them used up is not read until there is room.
    pub in_flight_bytes_max: usize,
    /// The same for each connection.
    pub connection_in_flight_bytes_max: usize,
    /// Bytes of replies that may wait for a client before its requests are no longer read. One reply may go over it.
    pub connection_out_bytes_max: usize,
    /// The same over all connections; readers are told to come back later when it is used up.
    pub out_bytes_max: usize,
    /// Waiting pops, waiting fetches and subscriptions at most.
    pub waiting_max: usize,
    /// The same for each connection.
    pub connection_waiting_max: usize,
    /// Time for the hello to come and be answered; before it, the same again for the handshake of TLS.
    pub handshake_timeout: Duration,
    /// How fast a frame must follow its first byte.
    pub read_pace: ReadPace,
    /// A client that takes no byte for so long is given up.
    pub write_stall: Duration,
    /// A subscription that has nothing to send says so this often.
    pub heartbeat: Duration,
    /// How long a stop waits for connections to finish.
    pub drain_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 6633)),
            access: Arc::default(),
            tls: None,
            is_insecure_bind_allowed: false,
            connections_max: 4096,
            connections_per_address_max: 1024,
            handshakes_max: 1024,
            frame_bytes_max: FRAME_BYTES_MAX,
            message_bytes_max: 16 << 20,
            in_flight_bytes_max: 256 << 20,
            connection_in_flight_bytes_max: 16 << 20,
            connection_out_bytes_max: 8 << 20,
            out_bytes_max: 512 << 20,
            waiting_max: 65_536,
            connection_waiting_max: 1024,
            handshake_timeout: Duration::from_secs(5),
            read_pace: ReadPace::default(),
            write_stall: Duration::from_secs(30),
            heartbeat: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Anybody who reaches the address could read and write everything.
    #[error(
        "refusing to listen on {address} without a token: set or create one, listen on 127.0.0.1, or allow it with --insecure-bind"
    )]
    NoToken {
        /// The address.
        address: SocketAddr,
    },
    /// The secret can be guessed by whoever reaches the address.
    #[error(
        "refusing to listen on {address}: the token that was set has under {SECRET_BYTES_MIN} bytes and may be guessed; make one with \
        \"openssl rand -hex 32\", or use \"fanlog token create\""
    )]
    WeakSecret {
        /// The address.
        address: SocketAddr,
    },
    /// The operating system refuses the address.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
}

impl ServerOptions {
    /// Refuses an address that others can reach unless clients must prove themselves or the risk was taken by name.
    pub fn check_exposure(&self, address: SocketAddr) -> Result<(), BindError> {
        if address.ip().is_loopback() || self.is_insecure_bind_allowed {
            return Ok(());
        }
        if self.access.has_weak_secret() {
            return Err(BindError::WeakSecret { address });
        }
        if self.access.is_required() { Ok(()) } else { Err(BindError::NoToken { address }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_beyond_loopback_needs_a_token_or_the_word_for_it() {
        let mut options = ServerOptions::default();
        let (inside, outside) = ("127.0.0.1:1".parse().unwrap(), "0.0.0.0:1".parse().unwrap());
        assert!(options.check_exposure(inside).is_ok());
        assert!(options.check_exposure("[::1]:1".parse().unwrap()).is_ok());
        assert!(matches!(options.check_exposure(outside), Err(BindError::NoToken { .. })));
        options.is_insecure_bind_allowed = true;
        assert!(options.check_exposure(outside).is_ok());
        options.is_insecure_bind_allowed = false;
        options.access = Arc::new(Access::with_secret("a secret of 16 b"));
        assert!(options.check_exposure(outside).is_ok());
        options.access = Arc::new(Access::with_secret("a secret of 15b"));
        assert!(matches!(options.check_exposure(outside), Err(BindError::WeakSecret { .. })));
        assert!(options.check_exposure(inside).is_ok());
    }
}
