//! Stops: gracefully, at once, and for a while.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use fanlog::client::{Client, messages_of};
use fanlog::model::{AckItem, AckRequest, AckTarget, AckVerb, ErrorCode, PopRequest, PushRequest, PushResult, Start};
use fanlog::protocol::Fetch;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, openat};
use rustix::process::Signal;

use crate::hostile::{Peer, fetch_of, push_of};
use crate::program::{Launch, eventually, lasting_port};
use crate::random::Random;

#[tokio::test]
async fn sigterm_answers_what_is_in_flight_and_ends_well() {
    let directory = tempfile::tempdir().unwrap();
    let launch = Launch::in_directory(directory.path());
    let program = launch.start();
    let mut peer = Peer::greeted(&program.address).await;
    const PUSHES: u32 = 300;
    for number in 0..PUSHES {
        peer.send(&push_of("q", "p", vec![number.to_le_bytes().to_vec()]), number).await;
    }
    let mut stored = std::collections::BTreeMap::new();
    let mut answered = 0;
    let mut is_told = false;
    while let Some(frame) = peer.frame().await {
        if !is_told {
            program.signal(Signal::TERM);
            is_told = true;
        }
        if frame.correlation_id >= PUSHES {
            continue;
        }
        answered += 1;
        match Peer::decode::<PushRequest>(&frame) {
            Ok(reply) => {
                let Some(PushResult::Stored(offset)) = reply.results.get(0) else { panic!("{:?}", reply.results) };
                stored.insert(offset, frame.correlation_id);
            }
            Err(error) => assert_eq!(error.code(), Some(ErrorCode::ShuttingDown)),
        }
    }
    let status = program.wait();
    assert!(status.success(), "{status}");
    assert!(!stored.is_empty());
    assert!(answered >= stored.len());
    let program = launch.start();
    let mut reader = program.client().await.reader("q", "p").build().await.unwrap();
    let mut found = std::collections::BTreeMap::new();
    while let Some(message) = reader.next().await.unwrap() {
        found.insert(message.offset, u32::from_le_bytes(message.payload[..].try_into().unwrap()));
    }
    for (offset, number) in stored {
        assert_eq!(found.get(&offset), Some(&number), "offset {offset}");
    }
    program.stop();
}

#[tokio::test]
async fn a_second_sigterm_ends_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let launch = Launch::in_directory(directory.path()).setting("FANLOG_DRAIN_TIMEOUT", "60s");
    let program = launch.start();
    let client = program.client().await;
    let mut random = Random::new(1);
    let payload = (0..1 << 20).flat_map(|_| random.number().to_le_bytes()).collect();
    client.push(&push_of("q", "p", vec![payload])).await.unwrap();
    // A client that asks and never reads keeps the drain waiting.
    let mut deaf = Peer::greeted(&program.address).await;
    for number in 0..20 {
        deaf.send(&Fetch { request: fetch_of("q", "p"), wait_ms: 0 }, number).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let started = Instant::now();
    program.signal(Signal::TERM);
    tokio::time::sleep(Duration::from_millis(500)).await;
    program.signal(Signal::TERM);
    let status = program.wait();
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!(status.code(), Some(2), "it had ended by itself");
    println!("the second SIGTERM ended it: {status} after {:?}", started.elapsed());
    let program = launch.start();
    assert_eq!(program.client().await.partition("q", "p").await.unwrap().end, 1);
    program.stop();
}

#[tokio::test]
async fn a_lease_runs_out_while_the_process_stands_still() {
    let directory = tempfile::tempdir().unwrap();
    let program = Launch::in_directory(directory.path()).start();
    let client = program.client().await;
    client.push(&push_of("q", "p", vec![b"m".to_vec()])).await.unwrap();
    let mut request = PopRequest::any("q", 1).group("g");
    (request.start, request.lease_ms) = (Some(Start::Beginning), Some(1_000));
    let first = client.pop(&request, Duration::ZERO).await.unwrap();
    assert_eq!(first.claims.len(), 1);
    assert!(client.pop(&request, Duration::ZERO).await.unwrap().claims.is_empty(), "it is leased");
    program.signal(Signal::STOP);
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    program.signal(Signal::CONT);
    let second = client.pop(&request, Duration::from_secs(10)).await.unwrap();
    assert_eq!(second.claims.len(), 1, "the lease ran out");
    assert_eq!(second.claims[0].delivery_count, 2);
    let ack = |lease_id: &str| AckRequest {
        queue: "q".into(),
        partition_id: first.claims[0].partition_id,
        group: Some("g".into()),
        lease_id: lease_id.to_owned(),
        items: vec![AckItem { target: AckTarget::Offset(0), verb: AckVerb::Completed, reason: String::new(), delay_ms: 0 }],
    };
    let late = client.ack(&ack(&first.lease_id)).await;
    let code = match late {
        Ok(reply) => reply.outcomes[0].refused.as_ref().map(|error| error.code),
        Err(error) => error.code(),
    };
    assert_eq!(code, Some(ErrorCode::LeaseLost), "the old lease is over");
    let reply = client.ack(&ack(&second.lease_id)).await.unwrap();
    assert_eq!((reply.next, reply.outcomes[0].refused.is_none()), (1, true));
    assert_eq!(messages_of(second.claims[0].batches.clone()).unwrap()[0].payload, "m");
    program.stop();
}

/// A hangup ended a server that was not ready yet: it listened for one only after it had written its ports.
#[tokio::test]
async fn a_hangup_before_the_server_is_ready_is_heard_when_it_is() {
    let directory = tempfile::tempdir().unwrap();
    // The server waits here until somebody reads.
    let pipe = directory.path().join("ports.json.new");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let launch = Launch::in_directory(directory.path()).port(lasting_port(6_633));
    let starting = launch.spawn();
    eventually(|| TcpStream::connect(&launch.listen).is_ok());
    starting.signal(Signal::HUP);
    let _reader = openat(CWD, &pipe, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
    let said = "tokens and certificates are read again";
    eventually(|| std::fs::read_to_string(launch.words_file()).unwrap().contains(said));
    Client::builder(launch.listen.clone()).connect().await.unwrap().ping().await.unwrap();
    starting.signal(Signal::TERM);
    assert!(starting.wait().success());
}
