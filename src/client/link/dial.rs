//! Where a connection comes from.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::tls::TlsClient;

/// The receiving half of any connection.
pub type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;
/// The sending half of any connection.
pub type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;

/// Makes connections.
#[derive(Debug, Clone)]
pub enum Dial {
    /// To this `host:port`.
    Tcp(Arc<str>),
    /// To this `host:port`, with TLS.
    Tls(Arc<str>, TlsClient),
    /// To a peer inside the test.
    #[cfg(test)]
    Memory(tokio::sync::mpsc::UnboundedSender<tokio::io::DuplexStream>),
}

impl Dial {
    /// Where the connections go, for errors.
    pub fn target(&self) -> &str {
        match self {
            Self::Tcp(address) | Self::Tls(address, _) => address,
            #[cfg(test)]
            Self::Memory(_) => "memory",
        }
    }

    /// One connection.
    pub async fn connect(&self) -> io::Result<(ReadHalf, WriteHalf)> {
        match self {
            Self::Tcp(address) => {
                let (read, write) = connect(address).await?.into_split();
                Ok((Box::new(read), Box::new(write)))
            }
            Self::Tls(address, tls) => {
                let host = address.rsplit_once(':').map_or(&**address, |(host, _)| host);
                let stream = tls.connect(host, connect(address).await?).await?;
                let (read, write) = tokio::io::split(stream);
                Ok((Box::new(read), Box::new(write)))
            }
            #[cfg(test)]
            Self::Memory(peer) => {
                let (near, far) = tokio::io::duplex(1 << 16);
                peer.send(far).map_err(|_| io::ErrorKind::ConnectionRefused)?;
                let (read, write) = tokio::io::split(near);
                Ok((Box::new(read), Box::new(write)))
            }
        }
    }
}

async fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
