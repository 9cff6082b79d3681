//! The end that listens.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::{Result, certificates, private_key, provider, roots, unusable};

/// The first byte of every TLS connection: a handshake record.
const HANDSHAKE: u8 = 0x16;

/// Where a server's certificates are.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The server's certificate and those above it, PEM.
    pub certificate: PathBuf,
    /// The key of the certificate, PEM.
    pub key: PathBuf,
    /// Whose certificates clients must have, PEM; `None` asks for none.
    pub client_ca: Option<PathBuf>,
}

/// Takes TLS connections.
#[derive(Debug)]
pub struct TlsServer {
    files: TlsFiles,
    config: RwLock<Arc<ServerConfig>>,
}

/// Why a connection is not taken.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The client does not speak TLS; it can be told so in its own words.
    #[error("client does not speak TLS, this port does")]
    Plain(TcpStream),
    /// The client and the server do not agree, or the client went away.
    #[error("TLS handshake failed: {0}")]
    Failed(#[from] io::Error),
    /// The client took too long.
    #[error("TLS handshake took too long")]
    Slow,
}

impl TlsServer {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// If one of them cannot be read, or the key is not that of the certificate.
    pub fn open(files: TlsFiles) -> Result<Self> {
        Ok(Self { config: RwLock::new(read(&files)?), files })
    }

    /// Reads the files again, for connections that are made from now on.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); what was read before stays in use.
    pub fn reload(&self) -> Result<()> {
        let config = read(&self.files)?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Shakes hands with a client that has connected, within `limit`.
    ///
    /// # Errors
    ///
    /// If it does not speak TLS, has no certificate that is asked for, or takes too long.
    pub async fn accept(&self, stream: TcpStream, limit: Duration) -> std::result::Result<TlsStream<TcpStream>, Refused> {
        let shake_hands = async {
            let mut first = [0];
            if stream.peek(&mut first).await? > 0 && first != [HANDSHAKE] {
                return Err(Refused::Plain(stream));
            }
            let config = self.config.read().unwrap_or_else(PoisonError::into_inner).clone();
            Ok(TlsAcceptor::from(config).accept(stream).await?)
        };
        timeout(limit, shake_hands).await.unwrap_or(Err(Refused::Slow))
    }
}

fn read(files: &TlsFiles) -> Result<Arc<ServerConfig>> {
    let chain = certificates("certificate", &files.certificate)?;
    let key = private_key(&files.key)?;
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().map_err(unusable)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = Arc::new(roots("client CA", path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build().map_err(unusable)?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(unusable)?;
    if files.client_ca.is_some() {
        // A session that is taken up again is as it was: nobody would look whether the client's certificate still holds.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(Arc::new(config))
}
