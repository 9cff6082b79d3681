//! Subscriptions: credit, heartbeats, end.

use std::time::Duration;

use fanlog::client::messages_of;
use fanlog::model::{AckRequest, ErrorCode, PopReply, PopRequest, SeekRequest, SeekTarget, Start};
use fanlog::protocol::{
    Credit, Delivery, Frame, FrameKind, GroupDelete, LeaseEnded, Operation, Ping, Response, Seek, Subscribe, Subscribed,
    Unsubscribe, Wire, encode_call,
};

use crate::harness::{Raw, Running, completed, eventually, push_of, random_bytes};

fn subscribe(group: &str, credit_messages: u32) -> Subscribe {
    let request = PopRequest { start: Some(Start::Beginning), auto_ack: true, ..PopRequest::any("q", 100).group(group) };
    Subscribe { request, credit_messages, credit_bytes: 1 << 20 }
}

fn delivered(frame: &Frame) -> Option<PopReply> {
    match Response::decode(frame.operation, &frame.body).unwrap() {
        Response::Delivery(Delivery(reply)) => Some(reply),
        _ => None,
    }
}

fn count(reply: &PopReply) -> usize {
    messages_of(reply.claims.iter().flat_map(|claim| claim.batches.clone()).collect()).unwrap().len()
}

async fn take(raw: &mut Raw, wanted: usize) {
    let mut taken = 0;
    while taken < wanted {
        taken += delivered(&raw.frame().await.unwrap()).map_or(0, |reply| count(&reply));
    }
    assert_eq!(taken, wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn credit_is_what_comes_and_no_more() {
    let server = Running::inside(|options| options.heartbeat = Duration::from_millis(50)).await;
    let mut pusher = server.raw().await;
    pusher.call(&push_of("q", "p", (0..100).map(|index| format!("{index}")))).await.unwrap();
    let mut raw = server.raw().await;
    let id = raw.send(&subscribe("g", 30)).await;
    let first = raw.frame().await.unwrap();
    assert_eq!((first.correlation_id, first.kind), (id, FrameKind::Response { more: true }));
    assert_eq!(Subscribed::from_body(&first.body).unwrap().heartbeat_ms, 50);
    take(&mut raw, 30).await;
    let silent = raw.frame().await.unwrap();
    assert_eq!(silent.operation, Operation::Heartbeat.number(), "nothing comes without credit but signs of life");
    raw.send(&Credit { subscription: id, messages: 50, bytes: 1 << 20 }).await;
    take(&mut raw, 50).await;
    raw.send(&Credit { subscription: id, messages: 1_000, bytes: 1 << 20 }).await;
    take(&mut raw, 20).await;
    pusher.call(&push_of("q", "p", ["later"])).await.unwrap();
    take(&mut raw, 1).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unsubscription_is_the_end_of_the_stream_and_then_answered() {
    let server = Running::start();
    let mut raw = server.raw().await;
    raw.call(&push_of("q", "p", ["m"])).await.unwrap();
    let subscription = raw.send(&subscribe("g", 10)).await;
    raw.frame().await.unwrap();
    take(&mut raw, 1).await;
    raw.write(&encode_call(&subscribe("g", 10), subscription).into_bytes()).await;
    let again = raw.frame().await.unwrap();
    assert_eq!(again.kind, FrameKind::Error, "the same id twice");
    let asked = raw.send(&Unsubscribe { subscription }).await;
    let end = raw.frame().await.unwrap();
    assert_eq!((end.correlation_id, end.operation), (subscription, Operation::SubscriptionEnd.number()));
    assert_eq!(end.kind, FrameKind::Response { more: false });
    let done = raw.frame().await.unwrap();
    assert_eq!((done.correlation_id, done.kind), (asked, FrameKind::Response { more: false }));
    for unknown in [subscription, 77] {
        let error = raw.call(&Unsubscribe { subscription: unknown }).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::BadRequest));
    }
    raw.call(&Ping { nonce: 1 }).await.unwrap();
    server.stop().await;
}

fn lease_ended(frame: &Frame) -> Option<LeaseEnded> {
    match Response::decode(frame.operation, &frame.body).unwrap() {
        Response::LeaseEnded(ended) => Some(ended),
        _ => None,
    }
}

/// The next delivery, or the next notice of an ended lease, whatever else comes before.
async fn next<T>(raw: &mut Raw, wanted: impl Fn(&Frame) -> Option<T>) -> T {
    loop {
        if let Some(found) = wanted(&raw.frame().await.unwrap()) {
            return found;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_hears_of_leases_that_end_unacknowledged() {
    let server = Running::start();
    let mut other = server.raw().await;
    for partition in ["a", "b"] {
        other.call(&push_of("q", partition, ["m"])).await.unwrap();
    }
    let start = |group: &str, lease_ms| {
        let request = PopRequest { start: Some(Start::Beginning), lease_ms, ..PopRequest::any("q", 1).group(group) };
        Subscribe { request, credit_messages: 100, credit_bytes: 1 << 20 }
    };
    // By time.
    let mut raw = server.raw().await;
    let subscription = raw.send(&start("by-time", Some(300))).await;
    let mut known = vec![next(&mut raw, delivered).await];
    let ended = loop {
        let frame = raw.frame().await.unwrap();
        if let Some(ended) = lease_ended(&frame) {
            assert!(known.iter().any(|reply| reply.lease_id == ended.lease_id), "a notice comes behind its delivery");
            if ended.lease_id == known[0].lease_id {
                break ended;
            }
        }
        known.extend(delivered(&frame));
    };
    let partition = ended.partition.unwrap();
    assert_eq!((partition.queue.as_str(), partition.partition_id), ("q", known[0].claims[0].partition_id));
    assert_eq!(ended.reason, ErrorCode::LeaseLost.number());
    while !known.iter().any(|reply| reply.claims[0].delivery_count > 1) {
        known.push(next(&mut raw, delivered).await);
    }
    raw.send(&Unsubscribe { subscription }).await;
    // By a seek of one partition, and by the removal of the group; what was acknowledged is not told of.
    let mut raw = server.raw().await;
    raw.send(&start("moved", Some(600_000))).await;
    let replies = [next(&mut raw, delivered).await, next(&mut raw, delivered).await];
    let of = |name: &str| replies.iter().find(|reply| reply.claims[0].partition == name).unwrap();
    let seek = SeekRequest {
        queue: "q".into(),
        group: Some("moved".into()),
        partition: Some("a".into()),
        target: SeekTarget::End,
        is_preview: false,
    };
    other.call(&Seek { request: seek, limit: 10 }).await.unwrap();
    let ended = next(&mut raw, lease_ended).await;
    assert_eq!((&ended.lease_id, ended.partition.unwrap().partition_id), (&of("a").lease_id, of("a").claims[0].partition_id));
    let acked = AckRequest {
        queue: "q".into(),
        partition_id: of("b").claims[0].partition_id,
        group: Some("moved".into()),
        lease_id: of("b").lease_id.clone(),
        items: vec![completed(0)],
    };
    other.call(&acked).await.unwrap();
    other.call(&push_of("q", "a", ["later"])).await.unwrap();
    let later = next(&mut raw, |frame| {
        assert!(lease_ended(frame).is_none(), "what was acknowledged did not end otherwise");
        delivered(frame)
    })
    .await;
    other.call(&GroupDelete { group: "moved".into(), queue: Some("q".into()), expected_version: None }).await.unwrap();
    let ended = next(&mut raw, lease_ended).await;
    assert_eq!((ended.lease_id, ended.reason), (later.lease_id, ErrorCode::UnknownGroup.number()));
    server.stop().await;
}

/// A subscriber went away with deliveries that it could not read. They are for the next one at once.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_written_goes_to_the_next_subscriber() {
    let server = Running::inside(|options| {
        options.connection_out_bytes_max = 4 << 20;
        options.write_stall = Duration::from_millis(200);
    })
    .await;
    let mut pusher = server.raw().await;
    for lane in 0..40 {
        pusher.call(&push_of("q", &format!("lane-{lane}"), [random_bytes(512 << 10, lane)])).await.unwrap();
    }
    let mut deaf = server.raw().await;
    let request = PopRequest { start: Some(Start::Beginning), ..PopRequest::any("q", 1).group("g") };
    deaf.send(&Subscribe { request: request.clone(), credit_messages: 1_000, credit_bytes: u32::MAX }).await;
    let mut other = server.raw().await;
    // The deaf one keeps what the operating systems hold for it; lanes beyond that come back when it is closed.
    let reply = eventually(async || {
        let pop = fanlog::protocol::Pop { request: request.clone(), wait_ms: 100 };
        let reply = other.call(&pop).await.unwrap();
        (!reply.claims.is_empty()).then_some(reply)
    })
    .await;
    assert_eq!(reply.claims[0].delivery_count, 1);
    server.stop().await;
}
