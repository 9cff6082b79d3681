//! Consumers: settling, credit, leases, reconnects, closing.

use std::time::Duration;

use crate::model::{
    AckItem, AckOutcome, AckReply, AckRequest, AckTarget, AckVerb, ErrorCode, ExtendReply, GroupInfo, GroupProgress, GroupState,
    OffsetRange, Promise,
};
use crate::protocol::*;

use super::super::{Client, Consumer, ConsumerBuilder, Delivery, ErrorKind, Event, Settled};
use super::peer::{Peer, Server, claim, delivery, kind_of};

/// A consumer of the group `billing` with its subscription's id.
async fn open(peer: &mut Peer, builder: ConsumerBuilder) -> (Consumer, u32) {
    let build = tokio::spawn(builder.build());
    let (id, request) = peer.request().await;
    assert!(matches!(request, Request::Subscribe(_)), "{request:?}");
    peer.reply_more(id, Response::Subscribe(Subscribed { heartbeat_ms: 10_000 })).await;
    (build.await.unwrap().unwrap(), id)
}

fn billing(client: &Client) -> ConsumerBuilder {
    client.consumer("orders").group("billing")
}

async fn take(consumer: &mut Consumer) -> Delivery {
    consumer.next().await.unwrap().unwrap()
}

async fn ack(peer: &mut Peer) -> (u32, AckRequest) {
    match peer.essential_request().await {
        (id, Request::Ack(request)) => (id, request),
        other => panic!("{other:?}"),
    }
}

fn said(request: &AckRequest) -> Vec<(u64, AckVerb)> {
    let offset = |item: &AckItem| match item.target {
        AckTarget::Offset(offset) => (offset, item.verb),
        AckTarget::TransactionId(_) => panic!("by id"),
    };
    request.items.iter().map(offset).collect()
}

fn acked(count: usize, next: u64, is_lease_released: bool) -> Response {
    let outcomes = vec![AckOutcome { refused: None, is_noop: false, is_dead_letter: false }; count];
    Response::Ack(AckReply { promise: Promise::Durable, next, is_lease_released, outcomes })
}

async fn succeeds(settled: Settled) {
    settled.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn deliveries_come_with_all_that_is_known_and_are_acknowledged() {
    let (_server, mut peer, client) = Server::connected().await;
    let (mut consumer, id) = open(&mut peer, billing(&client)).await;
    let mut one = claim(5, 7, &["a"]);
    (one.delivery_count, one.last_error) = (3, "no stock".to_owned());
    peer.reply_more(id, delivery("1-1", vec![one])).await;
    let message = take(&mut consumer).await;
    assert_eq!((message.queue(), message.partition(), message.partition_id()), ("orders", "p5", 5));
    assert_eq!((message.offset(), &message.payload()[..], message.created_at_us()), (7, &b"a"[..], 7));
    assert_eq!((message.attempt(), message.last_error(), message.lease_id()), (3, "no stock", "1-1"));
    let settled = message.ack();
    let (ack_id, request) = ack(&mut peer).await;
    assert_eq!((request.partition_id, &*request.lease_id, request.group.as_deref()), (5, "1-1", Some("billing")));
    assert_eq!(said(&request), [(7, AckVerb::Completed)]);
    peer.reply(ack_id, acked(1, 8, true)).await;
    succeeds(settled).await;
}

#[tokio::test(start_paused = true)]
async fn acknowledgements_wait_for_the_messages_before_them_and_go_together() {
    let (_server, mut peer, client) = Server::connected().await;
    let (mut consumer, id) = open(&mut peer, billing(&client)).await;
    peer.reply_more(id, delivery("1-1", vec![claim(5, 0, &["a", "b", "c", "d"])])).await;
    let (a, b, c) = (take(&mut consumer).await, take(&mut consumer).await, take(&mut consumer).await);
    let (c, b) = (c.ack(), b.ack());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let a = a.ack();
    let (ack_id, request) = ack(&mut peer).await;
    assert_eq!(said(&request), [0, 1, 2].map(|offset| (offset, AckVerb::Completed)));
    // While that is under way, the next one waits.
    let d = take(&mut consumer).await.ack();
    tokio::time::sleep(Duration::from_secs(1)).await;
    peer.reply(ack_id, acked(3, 3, false)).await;
    for settled in [a, b, c] {
        succeeds(settled).await;
    }
    let (ack_id, request) = ack(&mut peer).await;
    assert_eq!(said(&request), [(3, AckVerb::Completed)]);
    peer.reply(ack_id, acked(1, 4, true)).await;
    succeeds(d).await;
}

#[tokio::test(start_paused = true)]
async fn what_follows_a_retried_message_is_dropped_when_the_lease_is_released() {
    let (_server, mut peer, client) = Server::connected().await;
    let (mut consumer, id) = open(&mut peer, billing(&client)).await;
    peer.reply_more(id, delivery("1-1", vec![claim(5, 0, &["a", "b", "c"]), claim(6, 0, &["x"])])).await;
    let (a, b) = (take(&mut consumer).await, take(&mut consumer).await);
    let b = b.ack();
    let a = a.retry(Duration::from_secs(5));
    let (ack_id, request) = ack(&mut peer).await;
    assert_eq!(said(&request), [(0, AckVerb::Retry)]);
    assert_eq!(request.items[0].delay_ms, 5000);
    peer.reply(ack_id, acked(1, 0, true)).await;
    succeeds(a).await;
    assert_eq!(kind_of(b.await), ErrorKind::LeaseLost);
    // The third message of that partition is gone; the other partition's is not.
    assert_eq!(take(&mut consumer).await.partition_id(), 6);
}

#[tokio::test(start_paused = true)]
async fn failures_and_rejections_carry_their_reasons() {
    let (_server, mut peer, client) = Server::connected().await;
    let (mut consumer, id) = open(&mut peer, billing(&client)).await;
    peer.reply_more(id, delivery("1-1", vec![claim(5, 0, &["a", "b"])])).await;
    let settled = take(&mut consumer).await.reject("bad");
    let (ack_id, request) = ack(&mut peer).await;
    assert_eq!((said(&request), &*request.items[0].reason), (vec![(0, AckVerb::Reject)], "bad"));
    peer.reply(ack_id, acked(1, 1, false)).await;
    succeeds(settled).await;
    let settled = take(&mut consumer).await.fail("broken");
    let (ack_id, request) = ack(&mut peer).await;
    assert_eq!((said(&request), &*request.items[0].reason), (vec![(1, AckVerb::Failed)], "broken"));
    peer.refuse(ack_id, ErrorCode::LeaseLost).await;
    assert_eq!(kind_of(settled.await), ErrorKind::LeaseLost);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_delivery_is_retried_after_a_pause() {
    let (_server, mut peer, client) = Server::connected().await;
    let (mut consumer, id) = open(&mut peer, billing(&client)).await;
    peer.reply_more(id, delivery("1-1", vec![claim(5, 0, &["a"])])).await;
    drop(take(&mut consumer).await);
    let (_, request) = ack(&mut peer).await;
    assert_eq!((said(&request), request.items[0].delay_ms), (vec![(0, AckVerb::Retry)], 1000));
}

#[tokio::test(start_paused = true)]
async fn credit_comes_back_as_messages_are_settled_and_never_more() {
    let (_server, mut peer, client) = Server::connected().await;
    let build = tokio::spawn(billing(&client).prefetch(4).build());
    let (id, Request::Subscribe(subscribe)) = peer.request().await else { panic!("no subscribe") };
    assert_eq!((subscribe.credit_messages, subscribe.request.messages_max), (4, 4));
    peer.reply_more(id, Response::Subscribe(Subscribed { heartbeat_ms: 10_000 })).await;
    let mut consumer = build.await.unwrap().unwrap();
    peer.reply_more(id, delivery("1-1", vec![claim(5, 0, &["a", "b", "c", "d"])])).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(take(&mut consumer).await);
    }
    let mut given = 0;
    let _settled: Vec<Settled> = held.drain(..2).map(Delivery::ack).collect();
    while given < 2 {
        match peer.request().await.1 {
            Request::Credit(credit) => {
                assert_eq!(credit.subscription, id);
                given += credit.messages;
            }
            Request::Ack(_) | Request::Extend(_) => (),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(given, 2);
}

/// Handlers held more than half of the prefetch, the stream had run dry, and what was settled was too little to be told to the
/// server: it waited for credit, and the application for messages.
#[tokio::test(start_paused = true)]
async fn a_stream_that_ran_dry_gets_credit_for_each_message_that_is_settled() {
    let (_server, mut peer, client) = Server::connected().await;
    let (mut consumer, id) = open(&mut peer, billing(&client).prefetch(4)).await;
    peer.reply_more(id, delivery("1-1", vec![claim(5, 0, &["a", "b", "c", "d"])])).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(take(&mut consumer).await);
    }
    let reading = tokio::spawn(async move { consumer.next().await.is_some() });
    tokio::time::sleep(Duration::from_millis(1)).await;
    let _settled = held.remove(0).ack();
    let credit = loop {
        if let (_, Request::Credit(credit)) = peer.request().await {
            break credit;
        }
    };
    assert_eq!(credit.messages, 1);
    peer.reply_more(id, delivery("1-2", vec![claim(6, 0, &["e"])])).await;
    assert!(reading.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn leases_are_extended_while_messages_are_here_and_lost_ones_are_dropped() {
    let (_server, mut peer, client) = Server::connected().await;
    let mut events = client.events();
    let (mut consumer, id) = open(&mut peer, billing(&client).lease(Duration::from_secs(9))).await;
    peer.reply_more(id, delivery("1-1", vec![claim(5, 0, &["a", "b"])])).await;
    let held = take(&mut consumer).await;
    for renewed in [1, 1, 0] {
        let (extend_id, request) = peer.request().await;
        let Request::Extend(extend) = request else { panic!("{request:?}") };
        assert_eq!((&*extend.lease_id, extend.lease_ms), ("1-1", Some(9000)));
        peer.reply(extend_id, Response::Extend(ExtendReply { renewed, expires_at_us: 0 })).await;
    }
    let lost = Event::LeaseLost { queue: "orders".to_owned(), partition: "p5".to_owned(), lease_id: "1-1".to_owned() };
    assert_eq!(events.next().await, Some(lost));
    assert!(held.is_lost());
    assert_eq!(kind_of(held.ack().await), ErrorKind::LeaseLost);
    peer.reply_more(id, delivery("1-2", vec![claim(5, 0, &["a again"])])).await;
    assert_eq!(take(&mut consumer).await.lease_id(), "1-2");
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_extended_by_hand() {
    let (_server, mut peer, client) = Server::connected().await;
    let (mut consumer, id) = open(&mut peer, billing(&client).auto_extend(false)).await;
    peer.reply_more(id, delivery("1-1", vec![claim(5, 0, &["a"])])).await;
    let held = take(&mut consumer).await;
    let extending = tokio::spawn(async move { held.extend(Duration::from_secs(60)).await.map(|()| held) });
    let extend = loop {
        if let (extend_id, Request::Extend(extend)) = peer.request().await {
            peer.reply(extend_id, Response::Extend(ExtendReply { renewed: 1, expires_at_us: 0 })).await;
            break extend;
        }
    };
    assert_eq!(extend.lease_ms, Some(60_000));
    let held = extending.await.unwrap().unwrap();
    assert!(!held.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_the_server_ends_takes_its_buffered_messages_along() {
    let (_server, mut peer, client) = Server::connected().await;
    let (mut consumer, id) = open(&mut peer, billing(&client)).await;
    peer.reply_more(id, delivery("1-1", vec![claim(5, 0, &["a"]), claim(6, 0, &["b"])])).await;
    let partition = Some(LeasedPartition { queue: "orders".to_owned(), partition_id: 5 });
    peer.reply_more(id, Response::LeaseEnded(LeaseEnded { partition, ..LeaseEnded::of("1-1", ErrorCode::LeaseLost) })).await;
    peer.reply_more(id, delivery("1-2", vec![claim(7, 0, &["c"])])).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(take(&mut consumer).await.partition_id(), 6);
    assert_eq!(take(&mut consumer).await.partition_id(), 7);
}

#[tokio::test(start_paused = true)]
async fn messages_that_retention_took_are_told() {
    let (_server, mut peer, client) = Server::connected().await;
    let mut events = client.events();
    let (mut consumer, id) = open(&mut peer, billing(&client)).await;
    let range = OffsetRange { first: 0, last: 4 };
    let mut one = claim(5, 5, &["a"]);
    one.lost = Some(range);
    peer.reply_more(id, delivery("1-1", vec![one])).await;
    take(&mut consumer).await;
    let expected = Event::MessagesLost { queue: "orders".to_owned(), partition: "p5".to_owned(), range };
    assert_eq!(events.next().await, Some(expected));
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_keeps_leases_and_opens_the_subscription_again() {
    let (mut server, mut peer, client) = Server::connected().await;
    let (mut consumer, id) = open(&mut peer, billing(&client).prefetch(10)).await;
    peer.reply_more(id, delivery("1-1", vec![claim(5, 0, &["a", "b"])])).await;
    let held = take(&mut consumer).await;
    drop(peer);
    let mut peer = server.accept().await;
    let mut settled = None;
    let mut held = Some(held);
    let mut has_extended = false;
    loop {
        match peer.request().await {
            (extend_id, Request::Extend(extend)) => {
                assert_eq!(extend.lease_id, "1-1");
                has_extended = true;
                peer.reply(extend_id, Response::Extend(ExtendReply { renewed: 1, expires_at_us: 0 })).await;
            }
            (_, Request::Subscribe(subscribe)) => {
                assert_eq!(subscribe.credit_messages, 8);
                settled = held.take().map(Delivery::ack);
            }
            (ack_id, Request::Ack(request)) => {
                assert_eq!((said(&request), &*request.lease_id), (vec![(0, AckVerb::Completed)], "1-1"));
                peer.reply(ack_id, acked(1, 1, false)).await;
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(has_extended);
    succeeds(settled.unwrap()).await;
    assert_eq!(take(&mut consumer).await.offset(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_the_server_voids_its_leases() {
    let (mut server, mut peer, client) = Server::connected().await;
    let (mut consumer, id) = open(&mut peer, billing(&client)).await;
    peer.reply_more(id, delivery("1-1", vec![claim(5, 0, &["a", "b"])])).await;
    let held = take(&mut consumer).await;
    drop(peer);
    server.start_number = 2;
    let mut peer = server.accept().await;
    let (id, request) = peer.essential_request().await;
    assert!(matches!(request, Request::Subscribe(_)), "{request:?}");
    assert!(held.is_lost());
    assert_eq!(kind_of(held.ack().await), ErrorKind::LeaseLost);
    peer.reply_more(id, Response::Subscribe(Subscribed { heartbeat_ms: 10_000 })).await;
    peer.reply_more(id, delivery("2-1", vec![claim(5, 0, &["a"])])).await;
    assert_eq!(take(&mut consumer).await.lease_id(), "2-1");
}

#[tokio::test(start_paused = true)]
async fn a_subscription_without_heartbeats_is_opened_on_a_new_connection() {
    let (mut server, mut peer, client) = Server::connected().await;
    let mut events = client.events();
    let (_consumer, id) = open(&mut peer, billing(&client)).await;
    // The connection lives (pings are answered), the subscription does not.
    let pings = tokio::spawn(async move { peer.request().await });
    assert_eq!(events.next().await, Some(Event::Stalled { what: format!("subscription {id}") }));
    let mut peer = server.accept().await;
    assert!(matches!(peer.essential_request().await.1, Request::Subscribe(_)));
    pings.abort();
}

#[tokio::test(start_paused = true)]
async fn an_error_that_time_does_not_heal_ends_the_stream_and_others_do_not() {
    let (_server, mut peer, client) = Server::connected().await;
    let (mut consumer, id) = open(&mut peer, billing(&client)).await;
    peer.refuse(id, ErrorCode::Busy).await;
    let (id, request) = peer.essential_request().await;
    assert!(matches!(request, Request::Subscribe(_)), "{request:?}");
    peer.refuse(id, ErrorCode::UnknownQueue).await;
    assert_eq!(consumer.next().await.unwrap().unwrap_err().code(), Some(ErrorCode::UnknownQueue));
    assert!(consumer.next().await.is_none());
    let build = tokio::spawn(billing(&client).build());
    let (id, _) = peer.essential_request().await;
    peer.refuse(id, ErrorCode::GroupsDisabled).await;
    assert_eq!(build.await.unwrap().unwrap_err().code(), Some(ErrorCode::GroupsDisabled));
}

#[tokio::test(start_paused = true)]
async fn close_waits_for_what_is_held_and_gives_back_the_rest() {
    let (_server, mut peer, client) = Server::connected().await;
    let (mut consumer, id) = open(&mut peer, billing(&client)).await;
    peer.reply_more(id, delivery("1-1", vec![claim(5, 0, &["a", "b"])])).await;
    peer.reply_more(id, delivery("1-2", vec![claim(6, 0, &["c"])])).await;
    let held = take(&mut consumer).await;
    let close = tokio::spawn(consumer.close(Duration::from_secs(60)));
    let mut settled = None;
    let mut held = Some(held);
    let mut released = Vec::new();
    while released.len() < 2 {
        match peer.essential_request().await {
            (unsubscribe_id, Request::Unsubscribe(unsubscribe)) => {
                assert_eq!(unsubscribe.subscription, id);
                // Too late to be taken: goes back too.
                peer.reply_more(id, delivery("1-3", vec![claim(7, 0, &["d"])])).await;
                peer.reply(id, Response::SubscriptionEnd(SubscriptionEnd {})).await;
                peer.reply(unsubscribe_id, Response::Unsubscribe(Done {})).await;
            }
            (_, Request::Release(release)) => released.push(release.lease_id),
            other => panic!("{other:?}"),
        }
    }
    released.sort();
    assert_eq!(released, ["1-2", "1-3"]);
    assert!(!close.is_finished());
    settled.replace(held.take().unwrap().ack());
    let (ack_id, request) = ack(&mut peer).await;
    assert_eq!(said(&request), [(0, AckVerb::Completed)]);
    peer.reply(ack_id, acked(1, 1, false)).await;
    assert!(matches!(peer.essential_request().await.1, Request::Release(release) if release.lease_id == "1-1"));
    assert!(close.await.unwrap());
    succeeds(settled.unwrap()).await;
}

#[tokio::test(start_paused = true)]
async fn close_gives_up_at_its_timeout() {
    let (_server, mut peer, client) = Server::connected().await;
    let (mut consumer, id) = open(&mut peer, billing(&client)).await;
    peer.reply_more(id, delivery("1-1", vec![claim(5, 0, &["a"])])).await;
    let held = take(&mut consumer).await;
    assert!(!consumer.close(Duration::from_secs(1)).await);
    assert!(held.is_lost());
    loop {
        if let (_, Request::Release(release)) = peer.request().await {
            assert_eq!(release.lease_id, "1-1");
            break;
        }
    }
    assert_eq!(kind_of(held.ack().await), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_consumer_gives_everything_back() {
    let (_server, mut peer, client) = Server::connected().await;
    let (consumer, id) = open(&mut peer, billing(&client)).await;
    peer.reply_more(id, delivery("1-1", vec![claim(5, 0, &["a", "b"])])).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(consumer);
    assert!(matches!(peer.essential_request().await.1, Request::Unsubscribe(_)));
    assert!(matches!(peer.essential_request().await.1, Request::Release(release) if release.lease_id == "1-1"));
}

fn group(shared: bool) -> Response {
    let group = GroupInfo {
        queue: "orders".to_owned(),
        name: "billing".to_owned(),
        id: 1,
        is_declared: false,
        filter: String::new(),
        state: GroupState::Active,
        delivery_limit: None,
        display_name: String::new(),
        shared,
        version: 1,
        start: None,
        created_at_us: 0,
        updated_at_us: 0,
        judges_earlier: false,
    };
    Response::GroupGet(GroupProgress { group, cursors: 1, partitions_with_lag: 0, lag: 0, lag_time_us: 0, leases: 0 })
}

/// A consumer that asks for shared mode may meet a group that is ordered: settling out of order would then skip messages.
#[tokio::test(start_paused = true)]
async fn only_a_group_that_is_shared_is_settled_out_of_order() {
    for shared in [true, false] {
        let (_server, mut peer, client) = Server::connected().await;
        let (mut consumer, id) = open(&mut peer, billing(&client).shared(true)).await;
        peer.reply_more(id, delivery("1-1", vec![claim(5, 0, &["a", "b"])])).await;
        let (group_id, request) = peer.essential_request().await;
        assert!(matches!(request, Request::GroupGet(_)), "{request:?}");
        peer.reply(group_id, group(shared)).await;
        let (a, b) = (take(&mut consumer).await, take(&mut consumer).await);
        let _b = b.ack();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let _a = a.ack();
        let (_, request) = ack(&mut peer).await;
        let expected = if shared { vec![1] } else { vec![0, 1] };
        assert_eq!(said(&request).iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn with_auto_ack_nothing_is_said_of_messages() {
    let (_server, mut peer, client) = Server::connected().await;
    let (mut consumer, id) = open(&mut peer, billing(&client).auto_ack(true).prefetch(2)).await;
    peer.reply_more(id, delivery("", vec![claim(5, 0, &["a", "b"])])).await;
    succeeds(take(&mut consumer).await.ack()).await;
    drop(take(&mut consumer).await);
    let mut given = 0;
    while given < 2 {
        match peer.request().await.1 {
            Request::Credit(credit) => given += credit.messages,
            other => panic!("{other:?}"),
        }
    }
    let more = tokio::time::timeout(Duration::from_secs(25), peer.request()).await;
    assert!(more.is_err(), "{more:?}");
}

#[tokio::test(start_paused = true)]
async fn a_damaged_batch_is_an_error_and_never_a_message() {
    let (_server, mut peer, client) = Server::connected().await;
    let (mut consumer, id) = open(&mut peer, billing(&client)).await;
    let mut one = claim(5, 0, &["a"]);
    if let crate::model::BatchSlice::Whole(record) = &mut one.batches[0] {
        let mut damaged = record.to_vec();
        *damaged.last_mut().unwrap() ^= 1;
        *record = damaged.into();
    }
    peer.reply_more(id, delivery("1-1", vec![one])).await;
    assert_eq!(kind_of(consumer.next().await.unwrap()), ErrorKind::Protocol);
    assert!(consumer.next().await.is_none());
}
