//! Stopping: what is in flight is answered, what is new is refused, everything ends.

use fanlog::client::{Client, ErrorKind};
use fanlog::model::{ErrorCode, PopRequest, PushRequest};
use fanlog::protocol::{FrameKind, Pop, Subscribe};

use crate::harness::{Running, decode, push_of};

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_answers_everything_and_leaves_what_was_pushed() {
    let server = Running::start();
    let mut raw = server.raw().await;
    raw.call(&push_of("q", "p", ["seed"])).await.unwrap();
    raw.call(&push_of("quiet", "p", ["seed"])).await.unwrap();
    let mut waiting = server.raw().await;
    waiting.send(&Pop { request: PopRequest::any("quiet", 1).group("late"), wait_ms: 20_000 }).await;
    let mut subscribed = server.raw().await;
    let subscribe = Subscribe { request: PopRequest::any("q", 1).group("later"), credit_messages: 10, credit_bytes: 1 << 20 };
    subscribed.call(&subscribe).await.unwrap();
    for index in 0..50 {
        raw.send(&push_of("q", "p", [format!("{index}")])).await;
    }
    // The first answer shows that the pushes have reached the server.
    raw.reply::<PushRequest>().await.1.unwrap();
    let address = server.address;
    let stopping = tokio::spawn(server.stop());

    let mut answered = 1;
    while let Some(frame) = raw.frame().await {
        match decode::<PushRequest>(&frame) {
            Ok(_) => answered += 1,
            Err(error) => assert_eq!(error.code(), Some(ErrorCode::ShuttingDown)),
        }
    }
    assert!(answered >= 1);
    assert_eq!(waiting.reply::<Pop>().await.1.unwrap_err().code(), Some(ErrorCode::ShuttingDown));
    assert!(waiting.is_closed().await);
    let end = loop {
        let frame = subscribed.frame().await.unwrap();
        if frame.kind == FrameKind::Error {
            break decode::<Subscribe>(&frame).unwrap_err();
        }
    };
    assert_eq!(end.code(), Some(ErrorCode::ShuttingDown));
    stopping.await.unwrap();
    let refused = Client::builder(address.to_string()).connect().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Connect);
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_and_strangers_do_not_hold_up_a_stop() {
    let server = Running::start();
    let mut idle = server.raw().await;
    let _stranger = server.stranger().await;
    let start = std::time::Instant::now();
    server.stop().await;
    assert!(start.elapsed() < std::time::Duration::from_secs(3), "{:?}", start.elapsed());
    assert!(idle.is_closed().await);
}
