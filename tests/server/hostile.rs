//! Bytes that no client of ours sends: each affects its own connection and no other.

use std::time::Duration;

use fanlog::model::ErrorCode;
use fanlog::net::ReadPace;
use fanlog::protocol::{Frame, FrameKind, Hello, Operation, Ping, QueueList, encode_call};
use fanlog::storage::disk::sim::Random;

use crate::harness::{Running, decode, push_of};

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_is_told_what_is_wrong_and_closed() {
    let server = Running::start();
    let mut bystander = server.raw().await;

    let mut wrong_magic = encode_call(&Hello::new("x", ""), 1).into_bytes().to_vec();
    wrong_magic[12] = b'X';
    let mut newer = Hello::new("x", "");
    (newer.version_min, newer.version_max) = (7, 9);
    let cases: [(Vec<u8>, ErrorCode); 5] = [
        (wrong_magic, ErrorCode::BadRequest),
        (encode_call(&newer, 1).into_bytes().to_vec(), ErrorCode::UnsupportedVersion),
        (encode_call(&Ping { nonce: 1 }, 1).into_bytes().to_vec(), ErrorCode::BadRequest),
        (encode_call(&Hello::new("x".repeat(5000), ""), 1).into_bytes().to_vec(), ErrorCode::TooLarge),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(), ErrorCode::TooLarge),
    ];
    for (bytes, code) in cases {
        let mut stranger = server.stranger().await;
        stranger.write(&bytes).await;
        assert_eq!(stranger.last_error().await.code(), Some(code));
    }
    bystander.call(&Ping { nonce: 1 }).await.unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_and_half_frames_have_deadlines_and_idleness_has_none() {
    let server = Running::inside(|options| {
        options.handshake_timeout = Duration::from_millis(50);
        options.read_pace = ReadPace { grace: Duration::from_millis(50), bytes_per_second: 1 << 30 };
    })
    .await;
    let mut idle = server.raw().await;
    let mut silent = server.stranger().await;
    assert_eq!(silent.last_error().await.code(), Some(ErrorCode::Timeout));
    let mut half = server.raw().await;
    half.write(&encode_call(&Ping { nonce: 1 }, 9).into_bytes()[..7]).await;
    assert_eq!(half.last_error().await.code(), Some(ErrorCode::Timeout));
    idle.call(&Ping { nonce: 2 }).await.unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_request_is_refused_alone_and_a_wrong_frame_ends_the_connection() {
    let server = Running::start();
    let mut raw = server.raw().await;

    raw.write(&Frame::encode(0x7777, FrameKind::Request, 5, |_| {}).into_bytes()).await;
    let frame = raw.frame().await.unwrap();
    assert_eq!(frame.correlation_id, 5);
    assert_eq!(decode::<Ping>(&frame).unwrap_err().code(), Some(ErrorCode::UnknownOperation));

    raw.write(&Frame::encode(Operation::Push.number(), FrameKind::Request, 6, |_| {}).into_bytes()).await;
    let frame = raw.frame().await.unwrap();
    assert_eq!(decode::<Ping>(&frame).unwrap_err().code(), Some(ErrorCode::BadRequest));

    assert_eq!(raw.call(&Hello::new("again", "")).await.unwrap_err().code(), Some(ErrorCode::BadRequest));
    raw.call(&Ping { nonce: 3 }).await.unwrap();

    let response = Frame::encode(Operation::Ping.number(), FrameKind::Response { more: false }, 7, |_| {});
    raw.write(&response.into_bytes()).await;
    assert_eq!(raw.last_error().await.code(), Some(ErrorCode::BadRequest));

    for length in [3u32, u32::MAX, 65 << 20] {
        let mut raw = server.raw().await;
        raw.write(&length.to_le_bytes()).await;
        assert!(raw.last_error().await.code().is_some(), "length {length}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_sizes_out_of_bounds_are_refused_and_nothing_is_made() {
    let server = Running::start();
    let mut raw = server.raw().await;
    let long = "x".repeat(256);
    for name in ["", "a\nb", "a\0b", long.as_str()] {
        let error = raw.call(&push_of(name, "p", ["m"])).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::BadName), "queue {name:?}");
        // No name is the default partition.
        if !name.is_empty() {
            let error = raw.call(&push_of("q", name, ["m"])).await.unwrap_err();
            assert_eq!(error.code(), Some(ErrorCode::BadName), "partition {name:?}");
        }
    }
    let large = vec![0u8; (16 << 20) + 1];
    assert_eq!(raw.call(&push_of("q", "p", [large])).await.unwrap_err().code(), Some(ErrorCode::TooLarge));
    let queues = raw.call(&QueueList { after: None, limit: 10 }).await.unwrap().queues;
    assert_eq!(queues.iter().map(|queue| queue.stats.messages_pushed).sum::<u64>(), 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_asked_for() {
    let server = Running::start_with(|launch| launch.setting("FANLOG_TOKEN", "secret"));
    for token in ["", "secre", "secret "] {
        let mut stranger = server.stranger().await;
        stranger.send(&Hello::new("x", token)).await;
        assert_eq!(stranger.last_error().await.code(), Some(ErrorCode::Unauthorized), "{token:?}");
    }
    let mut friend = server.stranger().await;
    friend.call(&Hello::new("x", "secret")).await.unwrap();
    server.stop().await;
}

/// Flips and cuts the frames of a good conversation. The server may refuse or close; it must go on for others.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_conversations_hurt_nobody_else() {
    let server = Running::start();
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_u64);
    println!("SEED={seed}");
    let mut random = Random::new(seed);
    let good: Vec<u8> = [
        encode_call(&Hello::new("x", ""), 1).into_bytes(),
        encode_call(&push_of("hostile", "p", ["one", "two"]), 2).into_bytes(),
        encode_call(&Ping { nonce: 1 }, 3).into_bytes(),
    ]
    .concat();
    for _ in 0..200 {
        let mut bytes = good.clone();
        for _ in 0..=random.index(3) {
            let at = random.index(bytes.len());
            bytes[at] ^= 1 << random.below(8);
        }
        bytes.truncate(1 + random.index(bytes.len()));
        let mut stranger = server.stranger().await;
        stranger.write(&bytes).await;
        drop(stranger);
    }
    let mut raw = server.raw().await;
    raw.call(&Ping { nonce: 1 }).await.unwrap();
    raw.call(&push_of("after", "p", ["m"])).await.unwrap();
    server.stop().await;
}
