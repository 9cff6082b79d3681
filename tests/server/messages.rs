//! Pushing, popping, fetching, acknowledging over the wire.

use std::time::Duration;

use fanlog::client::messages_of;
use fanlog::model::{AckRequest, ErrorCode, FetchRequest, PopReply, PopRequest, PushResults, SettingsPatch, Start};
use fanlog::protocol::{Extend, Fetch, Pop, Release};
use fanlog::record::Message;
use tokio::io::AsyncWriteExt;

use crate::harness::{Running, completed, eventually, push_of, within};

fn payloads(reply: &PopReply) -> Vec<Vec<u8>> {
    let batches = reply.claims.iter().flat_map(|claim| claim.batches.clone()).collect();
    messages_of(batches).unwrap().into_iter().map(|message| message.payload.to_vec()).collect()
}

fn pop(queue: &str, group: &str, count: u32, wait_ms: u32) -> Pop {
    let request = PopRequest { start: Some(Start::Beginning), ..PopRequest::any(queue, count).group(group) };
    Pop { request, wait_ms }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_pushed_comes_out_byte_for_byte_in_every_group() {
    let server = Running::start();
    let client = server.client().await;
    let producer = client.producer("q").build();
    let sent: Vec<Vec<u8>> = vec![Vec::new(), vec![0], (0..=255).collect(), vec![7; 100_000], b"text".to_vec()];
    for payload in &sent {
        producer.send_to("p", Message::new(payload.clone())).await.unwrap();
    }
    for group in ["one", "two"] {
        let mut received = Vec::new();
        while received.len() < sent.len() {
            let reply = client.pop(&pop("q", group, 3, 0).request, Duration::ZERO).await.unwrap();
            let claim = &reply.claims[0];
            received.extend(payloads(&reply));
            let ack = AckRequest {
                queue: "q".into(),
                partition_id: claim.partition_id,
                group: Some(group.into()),
                lease_id: reply.lease_id.clone(),
                items: vec![completed(claim.range.last)],
            };
            let acked = client.ack(&ack).await.unwrap();
            assert!(acked.outcomes.iter().all(|outcome| outcome.refused.is_none()));
        }
        assert_eq!(received, sent);
    }
    client.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelined_pushes_keep_their_order() {
    let server = Running::start();
    let mut raw = server.raw().await;
    let ids: Vec<u32> = {
        let mut ids = Vec::new();
        for index in 0..500 {
            ids.push(raw.send(&push_of("q", "p", [format!("{index}")])).await);
        }
        ids
    };
    let mut offsets = std::collections::HashMap::new();
    for _ in &ids {
        let (id, reply) = raw.reply::<fanlog::model::PushRequest>().await;
        let PushResults::Range { base, count: 1 } = reply.unwrap().results else { panic!("one stored message") };
        offsets.insert(id, base);
    }
    let offsets: Vec<u64> = ids.iter().map(|id| offsets[id]).collect();
    assert!(offsets.is_sorted_by(|first, second| first < second), "{offsets:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_pop_and_fetch_are_answered_by_a_push_and_else_when_their_time_is_over() {
    let server = Running::start();
    let mut raw = server.raw().await;
    raw.call(&push_of("q", "p", ["first"])).await.unwrap();
    assert_eq!(payloads(&raw.call(&pop("q", "g", 10, 0)).await.unwrap()), [b"first".to_vec()]);
    let empty = raw.call(&pop("other", "g", 10, 30)).await;
    assert!(empty.is_err_and(|error| error.code() == Some(ErrorCode::UnknownQueue)) || empty_reply(&mut raw).await);

    let fetch =
        FetchRequest { queue: "q".into(), partition: "p".into(), from: 1, to: None, messages_max: 10, bytes_max: 1 << 20 };
    let popping = raw.send(&pop("q", "h", 10, 20_000)).await;
    let (id, first) = raw.reply::<Pop>().await;
    assert_eq!((id, payloads(&first.unwrap())), (popping, vec![b"first".to_vec()]));
    let mut waiting = server.raw().await;
    let fetching = waiting.send(&Fetch { request: fetch.clone(), wait_ms: 20_000 }).await;
    let mut other = server.raw().await;
    other.call(&push_of("q", "p", ["second"])).await.unwrap();
    let (id, reply) = waiting.reply::<Fetch>().await;
    assert_eq!(id, fetching);
    let messages = messages_of(reply.unwrap().batches).unwrap();
    assert_eq!(messages.last().unwrap().payload, "second");

    let over = Fetch { request: FetchRequest { from: 2, ..fetch }, wait_ms: 30 };
    assert!(raw.call(&over).await.unwrap().batches.is_empty());
    server.stop().await;
}

/// A pop of a queue that is not there may also be a wait for it to be made.
async fn empty_reply(raw: &mut crate::harness::Raw) -> bool {
    raw.call(&pop("other", "g", 10, 0)).await.is_ok_and(|reply| reply.claims.is_empty())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_pop_wakes_for_its_own_group_only_once() {
    let server = Running::start();
    let mut pusher = server.raw().await;
    pusher.call(&push_of("q", "p", ["seed"])).await.unwrap();
    let mut consumers = Vec::new();
    for _ in 0..4 {
        let mut consumer = server.raw().await;
        consumer.send(&pop("q", "g", 1, 10_000)).await;
        consumers.push(consumer);
    }
    // One of the four holds the lane; the next message is for it, or for nobody until the lease is over.
    let mut answered = 0;
    for consumer in &mut consumers {
        if tokio::time::timeout(Duration::from_millis(300), consumer.frame()).await.is_ok() {
            answered += 1;
        }
    }
    assert_eq!(answered, 1);
    server.stop().await;
}

/// A client asked for messages and went away before it could read them. Its claim must not hold the lane until the lease ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_before_its_reply_gives_the_claim_back_uncharged() {
    let server = Running::start();
    let mut pusher = server.raw().await;
    pusher.call(&push_of("q", "p", ["m"])).await.unwrap();
    for _ in 0..20 {
        let mut hasty = server.raw().await;
        hasty.send(&pop("q", "g", 1, 0)).await;
        drop(hasty);
    }
    // Waiting pops of clients that are gone take nothing either.
    let mut gone = server.raw().await;
    gone.send(&pop("q2", "g", 1, 10_000)).await;
    drop(gone);
    let mut patient = server.raw().await;
    let reply = eventually(async || {
        let reply = patient.call(&pop("q", "g", 1, 0)).await.unwrap();
        (!reply.claims.is_empty()).then_some(reply)
    })
    .await;
    assert_eq!(payloads(&reply), [b"m".to_vec()]);
    server.stop().await;
}

/// A client that closed its sending side still reads. What was taken for it at most once was acknowledged, and the reply was dropped
/// with whatever else waited.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_has_said_all_hears_what_was_taken_for_it_at_most_once() {
    let server = Running::start();
    let mut pusher = server.raw().await;
    for number in 0..20 {
        let payload = number.to_string();
        pusher.call(&push_of("q", "p", [payload.clone()])).await.unwrap();
        let mut raw = server.raw().await;
        let pop = pop("q", "g", 1, 0);
        raw.send(&Pop { request: PopRequest { auto_ack: true, ..pop.request }, ..pop }).await;
        raw.stream.shutdown().await.unwrap();
        assert_eq!(payloads(&raw.reply::<Pop>().await.1.unwrap()), [payload.into_bytes()]);
        assert!(raw.is_closed().await);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_extended_released_and_lost() {
    let server = Running::start();
    let mut raw = server.raw().await;
    raw.call(&push_of("q", "p", ["m"])).await.unwrap();
    let reply = raw.call(&pop("q", "g", 1, 0)).await.unwrap();
    let extend = Extend { lease_id: reply.lease_id.clone(), lease_ms: Some(120_000) };
    let extended = raw.call(&extend).await.unwrap();
    assert_eq!(extended.renewed, 1);
    let shorter = raw.call(&Extend { lease_ms: None, ..extend }).await.unwrap();
    assert_eq!(shorter.renewed, 1);
    assert!(shorter.expires_at_us + 1_000_000 >= extended.expires_at_us, "an extension never shortens");
    assert!(raw.call(&pop("q", "g", 1, 0)).await.unwrap().claims.is_empty(), "the lane is held");
    assert_eq!(raw.call(&Release { lease_id: reply.lease_id.clone() }).await.unwrap().partitions, 1);
    let again = raw.call(&pop("q", "g", 1, 0)).await.unwrap();
    assert_eq!(again.claims[0].delivery_count, reply.claims[0].delivery_count, "a release is not charged");
    let late = AckRequest {
        queue: "q".into(),
        partition_id: reply.claims[0].partition_id,
        group: Some("g".into()),
        lease_id: reply.lease_id,
        items: vec![completed(reply.claims[0].range.last)],
    };
    let refused = match raw.call(&late).await {
        Ok(acked) => acked.outcomes[0].refused.as_ref().map(|error| error.code),
        Err(error) => error.code(),
    };
    assert_eq!(refused, Some(ErrorCode::LeaseLost));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn four_producers_and_two_groups_see_every_message_once_and_in_order() {
    const LANES: u64 = 4;
    const MESSAGES: u64 = 2_000;
    let server = Running::start();
    server.client().await.create_queue("q", SettingsPatch::default()).await.unwrap();
    let mut producers = Vec::new();
    for lane in 0..LANES {
        let client = server.client().await;
        producers.push(tokio::spawn(async move {
            let producer = client.producer("q").linger(Duration::from_millis(1)).build();
            for number in 0..MESSAGES {
                let message = Message::new(format!("{lane}:{number}"));
                drop(producer.enqueue_to(&format!("lane-{lane}"), message).await.unwrap());
            }
            producer.close().await.unwrap();
        }));
    }
    let mut groups = Vec::new();
    for group in ["fast", "slow"] {
        let client = server.client().await;
        groups.push(tokio::spawn(async move {
            let mut consumer =
                client.consumer("q").group(group).start(Start::Beginning).partitions_of_a_delivery(4).build().await.unwrap();
            let mut next = [0; LANES as usize];
            for _ in 0..LANES * MESSAGES {
                let delivery = consumer.next().await.unwrap().unwrap();
                let text = String::from_utf8(delivery.payload().to_vec()).unwrap();
                let (lane, number) = text.split_once(':').unwrap();
                let lane: usize = lane.parse().unwrap();
                assert_eq!(number.parse::<u64>().unwrap(), next[lane], "group {group}, lane {lane}");
                next[lane] += 1;
                drop(delivery.ack());
            }
            assert!(consumer.close(Duration::from_secs(10)).await);
        }));
    }
    for task in producers.into_iter().chain(groups) {
        within(task).await.unwrap();
    }
    let progress = server.client().await.groups(Some("q")).await.unwrap();
    for group in progress.iter().filter(|progress| progress.group.name != fanlog::model::PRIMARY_GROUP) {
        assert_eq!(group.lag, 0, "{}", group.group.name);
    }
    server.stop().await;
}
