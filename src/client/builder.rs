//! How a client is made.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::tls::TlsClient;

use super::link::{Dial, Link, LinkOptions};
use super::{Client, Error, ErrorKind, Result};

/// The port of an address that names none.
pub const DEFAULT_PORT: u16 = 6633;

/// Makes a [`Client`].
#[derive(Debug, Clone)]
pub struct ClientBuilder {
    address: String,
    options: LinkOptions,
    request_timeout: Duration,
    ca: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
}

/// How an address says that TLS is spoken.
const TLS_SCHEME: &str = "fanlog+tls://";

impl ClientBuilder {
    pub(super) fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            options: LinkOptions::default(),
            request_timeout: Duration::from_secs(30),
            ca: None,
            identity: None,
        }
    }

    /// The secret that the server asks for.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.options.token = token.into();
        self
    }

    /// The client's name, for the server's logs and listings.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options.name = name.into();
        self
    }

    /// Time for a connection to stand, handshake included. 10 seconds by default.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.options.connect_timeout = timeout;
        self
    }

    /// Time for an answer, reconnecting included. 30 seconds by default. A wait that the request asks for comes on top.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// How long the server may be silent before it is asked whether it is alive; after three times that, the connection is given
    /// up and made again. 10 seconds by default.
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.options.heartbeat = interval;
        self
    }

    /// The file with the certificates, PEM, that the server's must come from, for an address that begins with `fanlog+tls://`.
    /// Without it those of the system.
    pub fn ca(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(path.into());
        self
    }

    /// The files with the client's certificate and its key, PEM, for a server that asks for one.
    pub fn identity(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.identity = Some((certificate.into(), key.into()));
        self
    }

    /// Connects. Tries once; a connection that is lost later is made again for as long as the client lives.
    ///
    /// Fails with `BadAddress`, `Connect`, or what the server refuses the hello with.
    pub async fn connect(self) -> Result<Client> {
        let dial = self.dial()?;
        self.connect_by(dial).await
    }

    fn dial(&self) -> Result<Dial> {
        let bad = |reason: &str| Error::new(ErrorKind::BadAddress, format!("address {:?} {reason}", self.address));
        let Some(rest) = self.address.strip_prefix(TLS_SCHEME) else {
            if self.ca.is_some() || self.identity.is_some() {
                return Err(bad("must begin with \"fanlog+tls://\", since certificates are given"));
            }
            return Ok(Dial::Tcp(parse_address(&self.address)?.into()));
        };
        let address = parse_address(&format!("fanlog://{rest}"))?;
        let identity = self.identity.as_ref().map(|(certificate, key)| (certificate.as_path(), key.as_path()));
        let tls = TlsClient::new(self.ca.as_deref(), identity).map_err(|error| bad(&format!("cannot be used: {error}")))?;
        Ok(Dial::Tls(address.into(), tls))
    }

    pub(super) async fn connect_by(self, dial: Dial) -> Result<Client> {
        let link = Link::open(dial, self.options).await?;
        Ok(Client { link: Arc::new(link), request_timeout: self.request_timeout })
    }
}

/// `host:port` of `fanlog://host:port`, `host:port` or `host`. Fails with `BadAddress`.
pub fn parse_address(address: &str) -> Result<String> {
    let bad = |reason: &str| Error::new(ErrorKind::BadAddress, format!("address {address:?} {reason}"));
    let rest = match address.split_once("://") {
        Some(("fanlog", rest)) => rest.trim_end_matches('/'),
        Some((scheme, _)) => return Err(bad(&format!("has the scheme {scheme:?}, which is not \"fanlog\""))),
        None => address,
    };
    let has_brackets = rest.starts_with('[');
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !has_brackets || host.ends_with(']') => (host, Some(port)),
        _ => (rest, None),
    };
    if host.is_empty() || host.contains(['/', '@', ' ']) || (host.contains(':') && !has_brackets) {
        return Err(bad("has no usable host"));
    }
    match port.map(str::parse::<u16>) {
        Some(Err(_)) => Err(bad("has no usable port")),
        Some(Ok(port)) => Ok(format!("{host}:{port}")),
        None => Ok(format!("{host}:{DEFAULT_PORT}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_an_optional_scheme_and_port() {
        for (address, expected) in [
            ("fanlog://127.0.0.1:6633", "127.0.0.1:6633"),
            ("fanlog://host/", "host:6633"),
            ("localhost:1", "localhost:1"),
            ("host", "host:6633"),
            ("[::1]:7", "[::1]:7"),
            ("fanlog://[::1]", "[::1]:6633"),
        ] {
            assert_eq!(parse_address(address).unwrap(), expected);
        }
        for address in ["", "http://host", "host:port", ":1", "fanlog://", "::1", "host:70000", "a b", "fanlog+tls://host"] {
            assert_eq!(parse_address(address).unwrap_err().kind(), ErrorKind::BadAddress, "{address}");
        }
    }
}
