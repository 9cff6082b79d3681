//! TLS on the gateway's port.

#[allow(dead_code)]
#[path = "../support/certificates.rs"]
mod certificates;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned};

use crate::server::Server;
use certificates::Authority;

/// What a server answers over TLS, or why there is no answer.
fn ask(
    address: SocketAddr,
    authority: &Authority,
    identity: Option<(&std::path::Path, &std::path::Path)>,
    request: &str,
) -> Result<String, String> {
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config(authority, identity)), name).unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut stream = StreamOwned::new(connection, stream);
    let mut answer = String::new();
    let asked = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
    asked.map(|_| answer).map_err(|error| error.to_string())
}

fn config(authority: &Authority, identity: Option<(&std::path::Path, &std::path::Path)>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.ca()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    match identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => builder
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_file(certificate).unwrap()],
                PrivateKeyDer::from_pem_file(key).unwrap(),
            )
            .unwrap(),
    }
}

fn start(authority: &Authority, client_ca: Option<&Authority>) -> (Server, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) = authority.server(&["localhost"], directory.path());
    let server = Server::start_with(|launch| {
        let launch = launch.setting("FANLOG_TOKEN", "secret").flag("--tls-cert", certificate).flag("--tls-key", key);
        client_ca.map_or(launch.clone(), |authority| launch.flag("--tls-client-ca", authority.ca()))
    });
    (server, directory)
}

/// A session that was taken up again was as it had been, also when the client's certificate was over.
#[test]
fn who_needs_a_certificate_shows_it_each_time() {
    let (authority, of_clients, mine) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    let (certificate, key) = of_clients.client(mine.path());
    for (client_ca, expected) in [(None, HandshakeKind::Resumed), (Some(&of_clients), HandshakeKind::Full)] {
        let (server, _directory) = start(&authority, client_ca);
        let config = Arc::new(config(&authority, Some((&certificate, &key))));
        let mut last = None;
        for _ in 0..2 {
            let connection = ClientConnection::new(config.clone(), ServerName::try_from("localhost").unwrap()).unwrap();
            let mut stream = StreamOwned::new(connection, TcpStream::connect(server.address).unwrap());
            stream.write_all(STATUS.as_bytes()).unwrap();
            stream.read_to_string(&mut String::new()).unwrap();
            last = stream.conn.handshake_kind();
        }
        assert_eq!(last, Some(expected));
    }
}

const STATUS: &str =
    "GET /api/v1/status HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer secret\r\n\r\n";

#[test]
fn requests_are_answered_over_tls_and_tokens_are_asked_for() {
    let authority = Authority::new();
    let (server, _directory) = start(&authority, None);
    assert!(ask(server.address, &authority, None, STATUS).unwrap().starts_with("HTTP/1.1 200"));
    let nobody = STATUS.replace("Bearer secret", "Bearer guess");
    assert!(ask(server.address, &authority, None, &nobody).unwrap().starts_with("HTTP/1.1 401"));
    assert!(ask(server.address, &Authority::new(), None, STATUS).is_err(), "another authority is not trusted");
}

#[test]
fn clients_show_a_certificate_where_one_is_asked_for() {
    let (authority, of_clients) = (Authority::new(), Authority::new());
    let (server, _directory) = start(&authority, Some(&of_clients));
    assert!(ask(server.address, &authority, None, STATUS).is_err());
    let mine = tempfile::tempdir().unwrap();
    let (certificate, key) = of_clients.client(mine.path());
    assert!(ask(server.address, &authority, Some((&certificate, &key)), STATUS).unwrap().starts_with("HTTP/1.1 200"));
}

#[test]
fn plain_http_is_told_to_use_https() {
    let authority = Authority::new();
    let (server, _directory) = start(&authority, None);
    let answer = server.client().get("/health");
    assert_eq!((answer.status, answer.text.as_str()), (400, "this port speaks TLS: connect to https\n"));
    let plain = Server::start();
    assert!(ask(plain.address, &authority, None, STATUS).is_err());
    assert_eq!(plain.client().get("/health").status, 200);
}
