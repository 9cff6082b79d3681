//! TLS on the port of the binary protocol.

#[allow(dead_code)]
#[path = "../support/certificates.rs"]
mod certificates;

use std::path::Path;
use std::time::{Duration, Instant};

use fanlog::client::{Client, ClientBuilder, ErrorKind};
use fanlog::model::ErrorCode;
use fanlog::protocol::{Hello, Ping, QueueList};
use fanlog::tls::{TlsFiles, TlsServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{Running, within};
use certificates::Authority;

/// A server with a certificate of this authority, which lies in the directory.
fn start(authority: &Authority, directory: &Path, client_ca: Option<&Authority>) -> Running {
    let (certificate, key) = authority.server(&["localhost"], directory);
    Running::start_with(|launch| {
        let launch = launch.flag("--tls-cert", certificate).flag("--tls-key", key);
        client_ca.map_or(launch.clone(), |authority| launch.flag("--tls-client-ca", authority.ca()))
    })
}

fn builder(server: &Running) -> ClientBuilder {
    Client::builder(format!("fanlog+tls://localhost:{}", server.address.port())).name("test")
}

async fn refusal(builder: ClientBuilder) -> String {
    let error = builder.connect().await.unwrap_err();
    assert!([ErrorKind::Connect, ErrorKind::Disconnected].contains(&error.kind()), "{error}");
    error.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_trusts_the_authority_works_as_without_tls() {
    let (authority, directory) = (Authority::new(), tempfile::tempdir().unwrap());
    let server = start(&authority, directory.path(), None);
    let client = builder(&server).ca(authority.ca()).connect().await.unwrap();
    let producer = client.producer("q").build();
    // More than a record of TLS and than a socket's buffer holds.
    let large: Vec<u8> = (0..4u32 << 20).map(|index| (index % 251) as u8).collect();
    producer.send_to("p", fanlog::record::Message::new(large.clone())).await.unwrap();
    let mut consumer = client.consumer("q").build().await.unwrap();
    let delivery = consumer.next().await.unwrap().unwrap();
    assert!(delivery.payload()[..] == large[..], "the payload is another one");
    delivery.ack().await.unwrap();
    drop((producer, consumer));
    client.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_another_authority_or_name_is_refused() {
    let (authority, other, directory) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    let server = start(&authority, directory.path(), None);
    assert!(refusal(builder(&server).ca(other.ca())).await.contains("certificate"));
    let by_address = Client::builder(format!("fanlog+tls://{}", server.address)).ca(authority.ca());
    assert!(refusal(by_address).await.contains("certificate"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_show_a_certificate_where_one_is_asked_for() {
    let (authority, of_clients, directory) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    let server = start(&authority, directory.path(), Some(&of_clients));
    let trusting = || builder(&server).ca(authority.ca());
    refusal(trusting()).await;
    let (mine, foreign) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (certificate, key) = authority.client(foreign.path());
    refusal(trusting().identity(certificate, key)).await;
    let (certificate, key) = of_clients.client(mine.path());
    let client = trusting().identity(certificate, key).connect().await.unwrap();
    client.call(&Ping { nonce: 3 }).await.unwrap();
    client.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_and_tls_do_not_mix_and_both_ends_say_so() {
    let (authority, directory) = (Authority::new(), tempfile::tempdir().unwrap());
    let server = start(&authority, directory.path(), None);
    let error = Client::builder(server.address.to_string()).connect().await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::BadRequest));
    assert_eq!(error.to_string(), "this port speaks TLS: connect to fanlog+tls://");
    let mut raw = server.stranger().await;
    raw.send(&Hello::new("plain", "")).await;
    assert_eq!(raw.last_error().await.code(), Some(ErrorCode::BadRequest));
    server.stop().await;

    let plain = Running::start();
    assert!(refusal(builder(&plain).ca(authority.ca())).await.ends_with("server does not speak TLS on this port"));
    let misled = Client::builder(plain.address.to_string()).ca(authority.ca()).connect().await.unwrap_err();
    assert_eq!(misled.kind(), ErrorKind::BadAddress, "{misled}");
    plain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_read_again_without_a_restart() {
    let (old, new, directory) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    let server = start(&old, directory.path(), None);
    let before = builder(&server).ca(old.ca()).connect().await.unwrap();
    // Half of a change is refused, and what was read before stays in use.
    let (_, key) = new.server(&["localhost"], directory.path());
    std::fs::write(&key, "nothing").unwrap();
    server.program().hang_up("not reloaded, what was read before stays in use: private key ");
    builder(&server).ca(old.ca()).connect().await.unwrap().close().await;
    new.server(&["localhost"], directory.path());
    server.program().hang_up("tokens and certificates are read again");
    let after = builder(&server).ca(new.ca()).connect().await.unwrap();
    refusal(builder(&server).ca(old.ca())).await;
    for client in [before, after] {
        client.call(&QueueList { after: None, limit: 1 }).await.unwrap();
        client.close().await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_that_does_not_go_on_ends_and_holds_up_nobody() {
    let (authority, directory) = (Authority::new(), tempfile::tempdir().unwrap());
    let server = start(&authority, directory.path(), None);
    let client = builder(&server).ca(authority.ca()).connect().await.unwrap();
    let (mut silent, mut half) = (server.stranger().await, server.stranger().await);
    // The head of a record that never comes.
    half.write(&[0x16, 3, 1, 2, 0, 1]).await;
    let started = Instant::now();
    client.call(&Ping { nonce: 1 }).await.unwrap();
    assert!(silent.is_closed().await && half.is_closed().await);
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    // Garbage after the first byte is no handshake either.
    let mut garbage = server.stranger().await;
    garbage.stream.write_all(&[0x16; 600]).await.unwrap();
    let _alert = within(garbage.stream.read_to_end(&mut Vec::new())).await;
    client.call(&Ping { nonce: 2 }).await.unwrap();
    client.close().await;
    server.stop().await;
}

#[test]
fn files_that_are_no_certificates_are_refused_by_name() {
    let (authority, directory) = (Authority::new(), tempfile::tempdir().unwrap());
    let (certificate, key) = authority.server(&["localhost"], directory.path());
    let other = tempfile::tempdir().unwrap();
    let (_, other_key) = authority.server(&["localhost"], other.path());
    let empty = directory.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let open = |certificate: &Path, key: &Path, client_ca: Option<&Path>| {
        let client_ca = client_ca.map(Path::to_owned);
        let opened = TlsServer::open(TlsFiles { certificate: certificate.to_owned(), key: key.to_owned(), client_ca });
        opened.map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(open(&certificate, &key, Some(&authority.ca())), Ok(()));
    assert!(open(Path::new("/nowhere"), &key, None).unwrap_err().starts_with("certificate /nowhere: "));
    assert!(open(&empty, &key, None).unwrap_err().ends_with("empty.pem: it holds no certificate"));
    assert!(open(&certificate, &empty, None).unwrap_err().starts_with("private key "));
    assert!(open(&certificate, &other_key, None).unwrap_err().starts_with("TLS cannot be set up"));
    assert!(open(&certificate, &key, Some(&empty)).unwrap_err().starts_with("client CA "));
}
