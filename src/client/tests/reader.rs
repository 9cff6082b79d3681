//! Readers: ranges, the end, waiting, errors.

use bytes::Bytes;

use crate::model::{BatchSlice, ErrorCode, FetchReply, PartitionInfo};
use crate::protocol::*;

use super::super::{Client, ReaderBuilder};
use super::peer::{Peer, Server, record};

fn payload(text: &str) -> Option<Bytes> {
    Some(Bytes::copy_from_slice(text.as_bytes()))
}

fn reader(client: &Client) -> ReaderBuilder {
    client.reader("orders", "p5")
}

async fn answer_fetch(peer: &mut Peer, from: u64, batches: Vec<BatchSlice>, next: u64, end: u64) -> u32 {
    let (id, request) = peer.request().await;
    let Request::Fetch(fetch) = request else { panic!("{request:?}") };
    assert_eq!(fetch.request.from, from);
    let reply = FetchReply { incarnation: 1, partition_id: 5, start: 0, end, next, batches };
    peer.reply(id, Response::Fetch(reply)).await;
    fetch.wait_ms
}

#[tokio::test(start_paused = true)]
async fn a_range_is_cut_out_of_whole_batches() {
    let (_server, mut peer, client) = Server::connected().await;
    let reading = tokio::spawn(async move {
        let mut reader = reader(&client).from_offset(1).to_offset(4).build().await.unwrap();
        let mut payloads = Vec::new();
        while let Some(message) = reader.next().await.unwrap() {
            payloads.push((message.offset, message.payload));
        }
        (payloads, reader.position())
    });
    let wait = answer_fetch(&mut peer, 1, vec![BatchSlice::Whole(record(0, &["a", "b", "c"]))], 3, 6).await;
    assert_eq!(wait, 0);
    answer_fetch(&mut peer, 3, vec![BatchSlice::Whole(record(3, &["d", "e", "f"]))], 4, 6).await;
    let (payloads, position) = reading.await.unwrap();
    assert_eq!(payloads, [(1, "b".into()), (2, "c".into()), (3, "d".into())]);
    assert_eq!(position, 4);
}

#[tokio::test(start_paused = true)]
async fn a_reader_from_the_beginning_ends_at_the_end_and_a_live_one_waits_there() {
    for live in [false, true] {
        let (_server, mut peer, client) = Server::connected().await;
        let mut reading = tokio::spawn(async move {
            let mut reader = reader(&client).live(live).build().await.unwrap();
            let first = reader.next().await.unwrap().map(|message| message.payload);
            let second = reader.next().await.unwrap().map(|message| message.payload);
            (first, second)
        });
        let (id, request) = peer.request().await;
        assert!(matches!(request, Request::PartitionGet(_)), "{request:?}");
        let info = PartitionInfo { name: "p5".to_owned(), id: 5, start: 2, end: 3, newest_at_us: 0 };
        peer.reply(id, Response::PartitionGet(info)).await;
        answer_fetch(&mut peer, 2, vec![BatchSlice::Whole(record(2, &["a"]))], 3, 3).await;
        let wait = answer_fetch(&mut peer, 3, Vec::new(), 3, 3).await;
        assert_eq!(wait > 0, live);
        if live {
            answer_fetch(&mut peer, 3, vec![BatchSlice::Whole(record(3, &["b"]))], 4, 4).await;
        }
        let second = if live { payload("b") } else { None };
        assert_eq!((&mut reading).await.unwrap(), (payload("a"), second));
    }
}

#[tokio::test(start_paused = true)]
async fn a_removed_range_is_an_error_and_seeking_goes_past_it() {
    let (_server, mut peer, client) = Server::connected().await;
    let reading = tokio::spawn(async move {
        let mut reader = reader(&client).from_offset(0).build().await.unwrap();
        let error = reader.next().await.unwrap_err();
        assert_eq!(reader.position(), 0);
        reader.seek(5);
        (error.code(), reader.next().await.unwrap().map(|message| message.payload))
    });
    let (id, _) = peer.request().await;
    peer.refuse(id, ErrorCode::RangeRemoved).await;
    answer_fetch(&mut peer, 5, vec![BatchSlice::Whole(record(5, &["f"]))], 6, 6).await;
    assert_eq!(reading.await.unwrap(), (Some(ErrorCode::RangeRemoved), payload("f")));
}

#[tokio::test(start_paused = true)]
async fn a_fetch_that_does_not_go_on_is_an_error_and_no_loop() {
    let (_server, mut peer, client) = Server::connected().await;
    let reading = tokio::spawn(async move {
        let mut reader = reader(&client).from_offset(1).build().await.unwrap();
        reader.next().await.unwrap_err().kind()
    });
    answer_fetch(&mut peer, 1, Vec::new(), 1, 6).await;
    assert_eq!(reading.await.unwrap(), super::super::ErrorKind::Protocol);
}
