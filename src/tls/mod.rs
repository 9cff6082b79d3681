//! TLS, for both doors of a server and for clients: certificates from files, versions 1.2 and 1.3, the algorithms of `ring`.

mod client;
mod server;

pub use client::TlsClient;
pub use server::{Refused, TlsFiles, TlsServer};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or holds nothing of use.
    #[error("{what} {}: {reason}", path.display())]
    File {
        /// What it should hold.
        what: &'static str,
        /// Where it is.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The system's roots cannot be used.
    #[error("no root certificates of the system can be read: {0}")]
    NoSystemRoots(String),
    /// The parts do not fit together.
    #[error("TLS cannot be set up: {0}")]
    Unusable(String),
}

type Result<T> = std::result::Result<T, TlsError>;

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn unusable(error: impl std::fmt::Display) -> TlsError {
    TlsError::Unusable(error.to_string())
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let refused = |reason: String| TlsError::File { what, path: path.to_owned(), reason };
    let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err(refused("it holds no certificate".to_owned())),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(refused(error.to_string())),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| TlsError::File {
        what: "private key",
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

fn roots(what: &'static str, path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(what, path)? {
        let reason = |error: rustls::Error| TlsError::File { what, path: path.to_owned(), reason: error.to_string() };
        roots.add(certificate).map_err(reason)?;
    }
    Ok(roots)
}
