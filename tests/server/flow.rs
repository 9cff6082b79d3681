//! Bounds: connections, bytes in flight, bytes that wait for a client, waiting requests.

use std::time::Duration;

use fanlog::model::{ErrorCode, FetchRequest, PopRequest, PushRequest};
use fanlog::protocol::{Fetch, Hello, Ping, Pop};
use tokio::io::AsyncWriteExt;

use crate::harness::{Running, decode, eventually, push_of, random_bytes, within};

#[tokio::test(flavor = "multi_thread")]
async fn connections_over_the_bound_are_told_so_and_room_comes_back() {
    let server = Running::start_with(|launch| launch.setting("FANLOG_CONNECTIONS_MAX", 2));
    let (first, _second) = (server.raw().await, server.raw().await);
    let mut third = server.stranger().await;
    let error = third.last_error().await;
    assert_eq!((error.code(), error.is_retryable), (Some(ErrorCode::Busy), true));
    drop(first);
    eventually(async || {
        let mut raw = server.stranger().await;
        raw.send(&Hello::new("x", "")).await;
        decode::<Hello>(&raw.frame().await?).ok()
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_over_the_budget_wait_and_none_is_refused() {
    let server = Running::inside(|options| {
        options.in_flight_bytes_max = 64 << 10;
        options.connection_in_flight_bytes_max = 16 << 10;
    })
    .await;
    let mut raw = server.raw().await;
    for index in 0..200 {
        // Every tenth one is larger than all budgets together.
        let bytes = if index % 10 == 0 { 100 << 10 } else { 1 << 10 };
        raw.send(&push_of("q", "p", [vec![index as u8; bytes]])).await;
    }
    for _ in 0..200 {
        raw.reply::<PushRequest>().await.1.unwrap();
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_reads_is_closed_and_others_go_on() {
    let server = Running::inside(|options| {
        options.write_stall = Duration::from_millis(300);
        options.connection_out_bytes_max = 1 << 20;
    })
    .await;
    let mut raw = server.raw().await;
    raw.call(&push_of("q", "p", [random_bytes(1 << 20, 1)])).await.unwrap();
    let mut deaf = server.raw().await;
    let request =
        FetchRequest { queue: "q".into(), partition: "p".into(), from: 0, to: None, messages_max: 1, bytes_max: 4 << 20 };
    let fetch = fanlog::protocol::encode_call(&Fetch { request, wait_ms: 0 }, 9).into_bytes();
    let closed = async {
        // Requests without end; the server stops taking them, then closes.
        while deaf.stream.write_all(&fetch).await.is_ok() {}
    };
    within(closed).await;
    raw.call(&Ping { nonce: 1 }).await.unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_requests_are_bounded_and_their_places_come_back() {
    let server = Running::inside(|options| options.connection_waiting_max = 3).await;
    let mut raw = server.raw().await;
    raw.call(&push_of("q", "p", ["m"])).await.unwrap();
    let wait = |wait_ms| Pop { request: PopRequest::any("q", 1).group("late"), wait_ms };
    for _ in 0..3 {
        raw.send(&wait(200)).await;
    }
    let refused = raw.send(&wait(200)).await;
    let (id, reply) = raw.reply::<Pop>().await;
    assert_eq!((id, reply.unwrap_err().code()), (refused, Some(ErrorCode::Busy)));
    for _ in 0..3 {
        assert!(raw.reply::<Pop>().await.1.unwrap().claims.is_empty());
    }
    assert!(raw.call(&wait(1)).await.unwrap().claims.is_empty());
    server.stop().await;
}
