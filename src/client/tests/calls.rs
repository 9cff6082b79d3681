//! Calls, and the connection under them.

use std::time::Duration;

use crate::model::{ErrorCode, PopRequest, PushRequest, ServerStats};
use crate::protocol::*;

use super::super::{Client, ErrorKind, Event};
use super::peer::{Server, claim, kind_of};

fn stats(queues: u64) -> Response {
    Response::Stats(ServerStats { queues, ..ServerStats::default() })
}

#[tokio::test(start_paused = true)]
async fn the_hello_carries_name_and_token_and_the_reply_is_known() {
    let (_server, peer, client) = Server::connected().await;
    assert_eq!((&*peer.hello.client_name, &*peer.hello.token), ("test", "secret"));
    assert_eq!(client.server().unwrap().server_name, "peer");
}

#[tokio::test(start_paused = true)]
async fn replies_find_their_callers_in_any_order() {
    let (_server, mut peer, client) = Server::connected().await;
    let call = |client: Client| tokio::spawn(async move { client.stats().await.unwrap().queues });
    let first = call(client.clone());
    let (first_id, _) = peer.request().await;
    let second = call(client.clone());
    let (second_id, _) = peer.request().await;
    peer.reply(second_id, stats(2)).await;
    assert_eq!(second.await.unwrap(), 2);
    peer.reply(first_id, stats(1)).await;
    assert_eq!(first.await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_reads_is_repeated_after_a_lost_connection_and_what_writes_is_not() {
    let (mut server, mut peer, client) = Server::connected().await;
    let (reading, writing) = (client.clone(), client.clone());
    let read = tokio::spawn(async move { reading.stats().await });
    peer.request().await;
    let write = tokio::spawn(async move { writing.push(&PushRequest::default()).await });
    peer.request().await;
    let mut events = client.events();
    drop(peer);
    let error = write.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Disconnected);
    assert!(error.is_retryable());
    let mut peer = server.accept().await;
    let (id, request) = peer.request().await;
    assert!(matches!(request, Request::Stats(_)));
    peer.reply(id, stats(3)).await;
    assert_eq!(read.await.unwrap().unwrap().queues, 3);
    assert!(matches!(events.next().await, Some(Event::Disconnected { .. })));
    assert!(matches!(events.next().await, Some(Event::Connected { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_its_answer_until_the_timeout() {
    let (_server, mut peer, client) = Server::connected().await;
    let call = tokio::spawn(async move { client.queue("orders").await });
    peer.request().await;
    tokio::spawn(async move { peer.request().await });
    assert_eq!(kind_of(call.await.unwrap()), ErrorKind::Timeout);
}

#[tokio::test(start_paused = true)]
async fn messages_for_a_caller_who_went_away_are_given_back() {
    let (_server, mut peer, client) = Server::connected().await;
    let popping = client.clone();
    let pop = tokio::spawn(async move { popping.pop(&PopRequest::any("orders", 1), Duration::ZERO).await });
    let (id, _) = peer.request().await;
    pop.abort();
    pop.await.unwrap_err();
    let reply = crate::model::PopReply { lease_id: "1-1".to_owned(), lease_expires_at_us: 0, claims: vec![claim(5, 0, &["a"])] };
    peer.reply(id, Response::Pop(reply)).await;
    assert!(matches!(peer.request().await.1, Request::Release(release) if release.lease_id == "1-1"));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_carries_its_code() {
    let (_server, mut peer, client) = Server::connected().await;
    let call = tokio::spawn(async move { client.queue("orders").await });
    let (id, _) = peer.request().await;
    peer.refuse(id, ErrorCode::UnknownQueue).await;
    let error = call.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Refused, Some(ErrorCode::UnknownQueue)));
    assert!(!error.is_retryable());
}

#[tokio::test(start_paused = true)]
async fn a_refused_hello_fails_the_connect_and_ends_a_client_that_was_connected() {
    let mut server = Server::new();
    let connect = tokio::spawn(Client::builder("peer").connect_by(server.dial.clone()));
    server.refuse(ErrorCode::Unauthorized).await;
    assert_eq!(connect.await.unwrap().unwrap_err().code(), Some(ErrorCode::Unauthorized));

    let (mut server, peer, client) = Server::connected().await;
    drop(peer);
    server.refuse(ErrorCode::Busy).await;
    server.refuse(ErrorCode::Unauthorized).await;
    let error = client.stats().await.unwrap_err();
    assert!([Some(ErrorCode::Unauthorized), None].contains(&error.code()), "{error:?}");
    assert_eq!(kind_of(client.stats().await), ErrorKind::Closed);
    assert_eq!(client.stats().await.unwrap_err().code(), Some(ErrorCode::Unauthorized), "it says why");
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_given_up_and_an_idle_one_is_kept() {
    let (mut server, mut peer, client) = Server::connected().await;
    let mut events = client.events();
    // Pings are answered while a request is awaited, so an hour of idleness is no silence.
    let idle = tokio::time::timeout(Duration::from_secs(3600), peer.request()).await;
    assert!(idle.is_err());
    assert!(client.server().is_some());
    // From here on nobody answers.
    assert_eq!(events.next().await, Some(Event::Stalled { what: "server".to_owned() }));
    assert!(matches!(events.next().await, Some(Event::Disconnected { .. })));
    server.accept().await;
    assert!(matches!(events.next().await, Some(Event::Connected { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_the_hello_is_given_up() {
    let mut server = Server::new();
    let connect = tokio::spawn(Client::builder("peer").connect_by(server.dial.clone()));
    let _peer = server.accept_without_hello().await;
    assert_eq!(kind_of(connect.await.unwrap()), ErrorKind::Connect);
}

#[tokio::test(start_paused = true)]
async fn bytes_that_do_not_decode_cost_the_connection_and_nothing_else() {
    let (mut server, mut peer, client) = Server::connected().await;
    let call = tokio::spawn(async move { client.stats().await });
    let (id, _) = peer.request().await;
    peer.reply(0, Response::Credit(Done {})).await;
    peer.refuse(0, ErrorCode::ShuttingDown).await;
    let mut peer = server.accept().await;
    assert_eq!(peer.request().await.0, id);
    // A reply of another operation fails the call; its connection stays.
    peer.reply(id, Response::Credit(Done {})).await;
    assert_eq!(kind_of(call.await.unwrap()), ErrorKind::Protocol);
}

#[tokio::test(start_paused = true)]
async fn closing_fails_what_is_unanswered_and_ends_the_connection() {
    let (_server, mut peer, client) = Server::connected().await;
    let closing = client.clone();
    let call = tokio::spawn(async move { client.stats().await });
    peer.request().await;
    closing.close().await;
    assert_eq!(kind_of(call.await.unwrap()), ErrorKind::Closed);
    assert_eq!(kind_of(closing.stats().await), ErrorKind::Closed);
    assert!(peer.is_closed().await);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_client_ends_the_connection() {
    let (_server, mut peer, client) = Server::connected().await;
    let clone = client.clone();
    drop(client);
    assert!(clone.server().is_some());
    drop(clone);
    assert!(peer.is_closed().await);
}

#[tokio::test]
async fn a_client_speaks_over_tcp() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let (read, write) = stream.into_split();
        let mut reader = crate::net::FrameReader::new(read, crate::net::ReadPace::default());
        let mut writer = crate::net::FrameWriter::new(write, Duration::from_secs(5));
        reader.read().await.unwrap().unwrap();
        let limits = Limits { frame_bytes: 4096, message_bytes: 1, in_flight: 1 };
        let (server_name, capabilities) = ("tcp".to_owned(), 0);
        let hello = HelloReply { version: 1, server_name, capabilities, limits, node_id: 0, start_number: 1, epoch: 0 };
        writer.send(Response::Hello(hello).encode(1, false)).await.unwrap();
        let ping = reader.read().await.unwrap().unwrap();
        writer.send(Response::Ping(Pong { nonce: 1, time_us: 0 }).encode(ping.correlation_id, false)).await.unwrap();
        assert!(reader.read().await.unwrap().is_none());
    });
    let client = Client::builder(format!("fanlog://{address}")).connect().await.unwrap();
    client.ping().await.unwrap();
    client.close().await;
    server.await.unwrap();
}

#[tokio::test]
async fn a_refused_connection_names_the_address() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = Client::builder(address.to_string()).connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connect);
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_request_over_the_servers_limit_is_not_sent() {
    let (_server, _peer, client) = Server::connected().await;
    assert_eq!(kind_of(client.queue(&"x".repeat(2 << 20)).await), ErrorKind::TooLarge);
}
