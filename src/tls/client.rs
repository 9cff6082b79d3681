//! The end that connects.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Result, TlsError, certificates, private_key, provider, roots, unusable};

/// Makes TLS connections to servers that have a certificate of the roots.
#[derive(Clone)]
pub struct TlsClient {
    connector: TlsConnector,
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TlsClient")
    }
}

impl TlsClient {
    /// Trusts the certificates in the file `ca`, or those of the system without it; shows the certificate and key of `identity` to a
    /// server that asks.
    ///
    /// # Errors
    ///
    /// If a file cannot be used, or the system has no roots.
    pub fn new(ca: Option<&Path>, identity: Option<(&Path, &Path)>) -> Result<Self> {
        let roots = match ca {
            Some(path) => roots("CA", path)?,
            None => system_roots()?,
        };
        let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().map_err(unusable)?;
        let builder = builder.with_root_certificates(roots);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder
                .with_client_auth_cert(certificates("client certificate", certificate)?, private_key(key)?)
                .map_err(unusable)?,
        };
        Ok(Self { connector: TlsConnector::from(Arc::new(config)) })
    }

    /// Shakes hands over a connection to the server `host`, a name or an address.
    ///
    /// # Errors
    ///
    /// If the server does not speak TLS, its certificate is not that of `host` or not of the roots, or the connection fails.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(bare).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        self.connector.connect(name, stream).await.map_err(explain)
    }
}

/// Says it in other words where rustls speaks of what it saw.
fn explain(error: io::Error) -> io::Error {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidMessage(_)) => io::Error::new(error.kind(), "server does not speak TLS on this port"),
        _ => error,
    }
}

fn system_roots() -> Result<RootCertStore> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let reasons: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
        let reasons = if reasons.is_empty() { "there are none".to_owned() } else { reasons.join(", ") };
        return Err(TlsError::NoSystemRoots(reasons));
    }
    Ok(roots)
}
