//! Producers: batches, order, repeats, bounds.

use std::time::Duration;

use tokio::task::JoinHandle;

use crate::model::{Compression, ErrorCode, Promise, PushItem, PushReply, PushRequest, PushResult, PushResults};
use crate::protocol::{Request, Response};
use crate::record::Message;

use super::super::{ErrorKind, Producer, Receipt, Result};
use super::peer::{Peer, Server, kind_of};

/// (epoch, sequence) and the payloads.
type Push = ((u32, u32), Vec<String>);

async fn push(peer: &mut Peer) -> (u32, Push) {
    match peer.request().await {
        (id, Request::Push(request)) => (id, contents(&request)),
        other => panic!("{other:?}"),
    }
}

fn contents(request: &PushRequest) -> Push {
    let PushItem::Messages(messages) = &request.items else { panic!("packed") };
    let (_, epoch, sequence) = request.producer.unwrap();
    ((epoch, sequence), messages.iter().map(|message| String::from_utf8(message.payload.to_vec()).unwrap()).collect())
}

fn stored(base: u64, count: u32) -> Response {
    let results = PushResults::Range { base, count };
    Response::Push(PushReply { promise: Promise::Durable, partition_id: 5, created_at_us: 1, results })
}

fn send(producer: &Producer, payload: &'static str) -> JoinHandle<Result<Receipt>> {
    let receipt = producer.try_send(Message::new(payload)).unwrap();
    tokio::spawn(receipt)
}

fn offset(receipt: Result<Receipt>) -> u64 {
    receipt.unwrap().offset().unwrap()
}

#[tokio::test(start_paused = true)]
async fn messages_that_linger_go_together_and_each_has_its_receipt() {
    let (_server, mut peer, client) = Server::connected().await;
    let producer = client.producer("orders").linger(Duration::from_millis(5)).build();
    let receipts = ["a", "b", "c", "d"].map(|payload| send(&producer, payload));
    let (id, (mark, payloads)) = push(&mut peer).await;
    assert_eq!((mark, payloads), ((0, 0), ["a", "b", "c", "d"].map(str::to_owned).to_vec()));
    let results =
        PushResults::Each(vec![PushResult::Stored(7), PushResult::Duplicate(3), PushResult::Dropped, PushResult::Stored(8)]);
    peer.reply(id, Response::Push(PushReply { promise: Promise::Written, partition_id: 5, created_at_us: 1, results })).await;
    let mut outcomes = Vec::new();
    for receipt in receipts {
        let receipt = receipt.await.unwrap().unwrap();
        outcomes.push((receipt.offset(), receipt.is_duplicate(), receipt.is_dropped(), receipt.promise));
    }
    let promise = Promise::Written;
    let expected = [(Some(7), false, false), (Some(3), true, false), (None, false, true), (Some(8), false, false)];
    assert_eq!(outcomes, expected.map(|(offset, duplicate, dropped)| (offset, duplicate, dropped, promise)));
}

#[tokio::test(start_paused = true)]
async fn batches_are_bounded_in_count_and_bytes_and_partitions_do_not_mix() {
    let (_server, mut peer, client) = Server::connected().await;
    let producer = client.producer("orders").linger(Duration::from_secs(1)).max_batch_count(2).max_batch_bytes(1000).build();
    for payload in ["a", "b", "c"] {
        send(&producer, payload);
    }
    assert_eq!(push(&mut peer).await.1, ((0, 0), vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(push(&mut peer).await.1, ((0, 1), vec!["c".to_owned()]));
    let large = "x".repeat(3000);
    let _receipt = producer.try_send_to("other", Message::new(large.clone())).unwrap();
    assert_eq!(push(&mut peer).await.1, ((0, 0), vec![large]));
}

#[tokio::test(start_paused = true)]
async fn unanswered_pushes_are_sent_again_in_order_with_the_same_sequences() {
    let (mut server, mut peer, client) = Server::connected().await;
    let producer = client.producer("orders").max_batch_count(1).build();
    let receipts = ["a", "b", "c"].map(|payload| send(&producer, payload));
    let mut first = Vec::new();
    for _ in 0..3 {
        first.push(push(&mut peer).await.1);
    }
    drop(peer);
    let mut peer = server.accept().await;
    for (index, before) in first.iter().enumerate() {
        let (id, again) = push(&mut peer).await;
        assert_eq!(&again, before);
        peer.reply(id, stored(10 + index as u64, 1)).await;
    }
    for (index, receipt) in receipts.into_iter().enumerate() {
        assert_eq!(offset(receipt.await.unwrap()), 10 + index as u64);
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_gets_all_that_followed_again_in_order() {
    let (_server, mut peer, client) = Server::connected().await;
    let producer = client.producer("orders").max_batch_count(1).build();
    let receipts = ["a", "b", "c"].map(|payload| send(&producer, payload));
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(push(&mut peer).await.0);
    }
    peer.refuse(ids[0], ErrorCode::Busy).await;
    peer.refuse(ids[1], ErrorCode::OutOfSequence).await;
    peer.refuse(ids[2], ErrorCode::OutOfSequence).await;
    for (sequence, payload) in ["a", "b", "c"].into_iter().enumerate() {
        let (id, again) = push(&mut peer).await;
        assert_eq!(again, ((0, sequence as u32), vec![payload.to_owned()]));
        peer.reply(id, stored(sequence as u64, 1)).await;
    }
    for (index, receipt) in receipts.into_iter().enumerate() {
        assert_eq!(offset(receipt.await.unwrap()), index as u64);
    }
}

#[tokio::test(start_paused = true)]
async fn what_follows_a_refused_push_starts_a_new_epoch() {
    let (_server, mut peer, client) = Server::connected().await;
    let producer = client.producer("orders").max_batch_count(1).build();
    let [refused, next] = ["a", "b"].map(|payload| send(&producer, payload));
    let (first_id, _) = push(&mut peer).await;
    let (second_id, _) = push(&mut peer).await;
    peer.refuse(first_id, ErrorCode::TooLarge).await;
    peer.refuse(second_id, ErrorCode::OutOfSequence).await;
    assert_eq!(kind_of(refused.await.unwrap()), ErrorKind::TooLarge);
    let (id, again) = push(&mut peer).await;
    assert_eq!(again, ((1, 0), vec!["b".to_owned()]));
    peer.reply(id, stored(0, 1)).await;
    assert_eq!(offset(next.await.unwrap()), 0);
    let last = send(&producer, "c");
    let (id, third) = push(&mut peer).await;
    assert_eq!(third, ((1, 1), vec!["c".to_owned()]));
    peer.reply(id, stored(1, 1)).await;
    assert_eq!(offset(last.await.unwrap()), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_forgot_the_producer_is_given_a_new_epoch_unless_that_might_store_twice() {
    let (mut server, mut peer, client) = Server::connected().await;
    let producer = client.producer("orders").build();
    let receipt = send(&producer, "a");
    let (id, _) = push(&mut peer).await;
    peer.refuse(id, ErrorCode::OutOfSequence).await;
    let (id, again) = push(&mut peer).await;
    assert_eq!(again.0, (1, 0));
    peer.reply(id, stored(0, 1)).await;
    assert_eq!(offset(receipt.await.unwrap()), 0);

    // The answer to the first try is lost: it may have been stored, so a server that does not know it is no reason to repeat.
    let receipt = send(&producer, "b");
    push(&mut peer).await;
    drop(peer);
    let mut peer = server.accept().await;
    let (id, _) = push(&mut peer).await;
    peer.refuse(id, ErrorCode::OutOfSequence).await;
    assert_eq!(receipt.await.unwrap().unwrap_err().code(), Some(ErrorCode::OutOfSequence));
}

#[tokio::test(start_paused = true)]
async fn the_buffer_is_bounded() {
    let (_server, mut peer, client) = Server::connected().await;
    let producer = client.producer("orders").max_buffer_bytes(300).build();
    let first = producer.try_send(Message::new("a")).unwrap();
    let _second = producer.try_send(Message::new("b")).unwrap();
    let error = producer.try_send(Message::new("c")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.is_retryable());
    let waiting = producer.clone();
    let third = tokio::spawn(async move { waiting.enqueue(Message::new("c")).await.unwrap().await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!third.is_finished());
    let (id, _) = push(&mut peer).await;
    peer.reply(id, stored(0, 1)).await;
    first.await.unwrap();
    let (id, _) = push(&mut peer).await;
    peer.reply(id, stored(1, 1)).await;
    let (id, _) = push(&mut peer).await;
    peer.reply(id, stored(2, 1)).await;
    assert_eq!(offset(third.await.unwrap()), 2);
}

#[tokio::test(start_paused = true)]
async fn a_message_larger_than_the_buffer_goes_alone() {
    let (_server, mut peer, client) = Server::connected().await;
    let producer = client.producer("orders").max_buffer_bytes(300).build();
    let _receipt = producer.try_send(Message::new("x".repeat(1000))).unwrap();
    assert_eq!(kind_of(producer.try_send(Message::new("a"))), ErrorKind::Full);
    assert_eq!(push(&mut peer).await.1.1[0].len(), 1000);
}

#[tokio::test(start_paused = true)]
async fn pushes_under_way_are_bounded_and_the_rest_fills_batches() {
    let (_server, mut peer, client) = Server::connected().await;
    let producer = client.producer("orders").max_in_flight(1).build();
    send(&producer, "a");
    let (id, first) = push(&mut peer).await;
    assert_eq!(first.1, ["a"]);
    send(&producer, "b");
    send(&producer, "c");
    let _elsewhere = producer.try_send_to("other", Message::new("d")).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    peer.reply(id, stored(0, 1)).await;
    let (id, second) = push(&mut peer).await;
    assert_eq!(second.1, ["b", "c"]);
    peer.reply(id, stored(1, 2)).await;
    assert_eq!(push(&mut peer).await.1.1, ["d"]);
}

#[tokio::test(start_paused = true)]
async fn flush_waits_for_what_was_given_before_it_and_not_for_more() {
    let (_server, mut peer, client) = Server::connected().await;
    let producer = client.producer("orders").linger(Duration::from_secs(3600)).build();
    send(&producer, "a");
    let flushing = producer.clone();
    let flush = tokio::spawn(async move { flushing.flush().await });
    let (id, first) = push(&mut peer).await;
    assert_eq!(first.1, ["a"]);
    send(&producer, "b");
    assert_eq!(push(&mut peer).await.1.1, ["b"]);
    assert!(!flush.is_finished());
    peer.reply(id, stored(0, 1)).await;
    flush.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn close_drains_and_takes_no_more() {
    let (_server, mut peer, client) = Server::connected().await;
    let producer = client.producer("orders").linger(Duration::from_secs(3600)).build();
    let receipt = send(&producer, "a");
    let closing = producer.clone();
    let close = tokio::spawn(async move { closing.close().await });
    let (id, _) = push(&mut peer).await;
    peer.reply(id, stored(0, 1)).await;
    close.await.unwrap().unwrap();
    assert_eq!(offset(receipt.await.unwrap()), 0);
    assert_eq!(kind_of(producer.send(Message::new("b")).await), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn what_a_dropped_producer_holds_is_still_sent_also_over_a_lost_connection() {
    let (mut server, mut peer, client) = Server::connected().await;
    let producer = client.producer("orders").linger(Duration::from_secs(3600)).build();
    let receipt = send(&producer, "a");
    drop((producer, client));
    push(&mut peer).await;
    drop(peer);
    let mut peer = server.accept().await;
    let (id, again) = push(&mut peer).await;
    assert_eq!(again.1, ["a"]);
    peer.reply(id, stored(0, 1)).await;
    assert_eq!(offset(receipt.await.unwrap()), 0);
    assert!(peer.is_closed().await);
}

#[tokio::test(start_paused = true)]
async fn a_message_is_given_up_at_its_deadline_and_the_next_starts_a_new_epoch() {
    let (_server, mut peer, client) = Server::connected().await;
    let producer = client.producer("orders").delivery_timeout(Duration::from_secs(5)).build();
    let receipt = send(&producer, "a");
    assert_eq!(push(&mut peer).await.1.0, (0, 0));
    assert_eq!(kind_of(receipt.await.unwrap()), ErrorKind::Timeout);
    send(&producer, "b");
    assert_eq!(push(&mut peer).await.1, ((1, 0), vec!["b".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn batches_are_packed_here_if_asked() {
    let (_server, mut peer, client) = Server::connected().await;
    let producer = client.producer("orders").linger(Duration::from_millis(1)).pack(Compression::Zstd { level: 1 }).build();
    let text: &'static str = "a text that repeats itself, a text that repeats itself, a text that repeats itself";
    for _ in 0..10 {
        send(&producer, text);
    }
    let (_, Request::Push(request)) = peer.request().await else { panic!("no push") };
    let PushItem::Packed(batch) = request.items else { panic!("not packed") };
    assert_eq!((batch.count, batch.codec), (10, 1));
    assert!(batch.payload.len() < text.len() * 3);
    batch.verify().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_partition_needs_a_name() {
    let (_server, _peer, client) = Server::connected().await;
    let producer = client.producer("orders").build();
    let error = producer.send_to("", Message::new("a")).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::BadName));
}
