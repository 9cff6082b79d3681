//! Messages that come twice are stored once: by their transaction id, or by the number that their producer gave the push.

use fanlog::model::*;
use fanlog::record::Message;

use crate::support::*;

use PushResult::{Duplicate, Stored};

async fn push(server: &Server, partition: &str, ids: &[&str]) -> Vec<PushResult> {
    server.push_messages("q", partition, ids.iter().map(|id| with_id(id)).collect()).await
}

#[tokio::test]
async fn an_id_is_stored_once_in_its_partition_and_a_duplicate_has_the_original_offset_also_after_sigkill() {
    let server = Server::start().await;
    assert_eq!(push(&server, "a", &["x", "x", "y"]).await, [Stored(0), Duplicate(0), Stored(1)]);
    assert_eq!(push(&server, "b", &["x"]).await, [Stored(0)], "another partition has ids of its own");
    assert_eq!(push(&server, "a", &["z", "y"]).await, [Stored(2), Duplicate(1)], "new ones of the same push are stored");
    let server = server.killed_and_started().await;
    assert_eq!(push(&server, "a", &["x", "z", "new"]).await, [Duplicate(0), Duplicate(2), Stored(3)]);
    assert_eq!(server.bounds("q", "a").await, (0, 4));
    assert_eq!(server.drain("q", "g").await.len(), 5);
}

#[tokio::test]
async fn the_window_is_3600_seconds_unless_the_queue_says_otherwise_and_0_is_off() {
    let server = Server::start().await;
    push(&server, "a", &["x"]).await;
    assert_eq!(server.client.queue("q").await.unwrap().settings.dedup_window_s, 3_600);
    let window = |seconds| SettingsPatch { dedup_window_s: Some(seconds), ..SettingsPatch::default() };
    server.client.update_queue("q", window(1)).await.unwrap();
    let stored_us = now_us();
    assert_eq!(push(&server, "b", &["x"]).await, [Stored(0)]);
    let again = push(&server, "b", &["x"]).await;
    assert!(again == [Duplicate(0)] || now_us() > stored_us + 1_000_000, "{again:?}");
    clock_passes(now_us() + 1_100_000).await;
    assert!(matches!(push(&server, "b", &["x"]).await[0], Stored(_)), "the window is over");
    server.client.update_queue("q", window(0)).await.unwrap();
    assert_eq!(push(&server, "c", &["x"]).await, [Stored(0)]);
    assert_eq!(push(&server, "c", &["x"]).await, [Stored(1)]);
}

/// Off was off between pushes only: of two messages with one id in one push the second was answered as a duplicate and not stored.
#[tokio::test]
async fn without_a_window_equal_ids_of_one_push_are_stored_as_well() {
    let server = Server::start().await;
    server.create("q", SettingsPatch { dedup_window_s: Some(0), ..SettingsPatch::default() }).await;
    assert_eq!(push(&server, "a", &["x", "y", "x"]).await, [Stored(0), Stored(1), Stored(2)]);
    let server = server.killed_and_started().await;
    assert_eq!(push(&server, "a", &["x"]).await, [Stored(3)]);
    assert_eq!(server.drain("q", "g").await, ["x", "y", "x", "x"]);
}

#[tokio::test]
async fn many_clients_that_push_the_same_ids_at_once_store_each_id_once() {
    const IDS: usize = 60;
    let server = Server::start().await;
    let mut pushing = Vec::new();
    for _ in 0..4 {
        let client = server.other_client().await;
        pushing.push(tokio::spawn(async move {
            let mut results = Vec::new();
            for id in 0..IDS {
                let items = PushItem::Messages(vec![with_id(&format!("id-{id}"))]);
                let request = PushRequest { items, ..push_of("q", "a", &[]) };
                results.extend(results_of(&client.push(&request).await.unwrap()));
            }
            results
        }));
    }
    let mut offsets = vec![Vec::new(); IDS];
    let mut stored = 0;
    for task in pushing {
        for (id, result) in task.await.unwrap().into_iter().enumerate() {
            match result {
                Stored(offset) => {
                    stored += 1;
                    offsets[id].push(offset);
                }
                Duplicate(offset) => offsets[id].push(offset),
                PushResult::Dropped => panic!("dropped"),
            }
        }
    }
    assert_eq!((stored, server.bounds("q", "a").await), (IDS, (0, IDS as u64)));
    assert!(offsets.iter().all(|offsets| offsets.windows(2).all(|pair| pair[0] == pair[1])), "{offsets:?}");
}

#[tokio::test]
async fn an_id_made_by_the_server_names_its_message_and_is_known_after_sigkill() {
    let server = Server::start().await;
    server.push("q", "a", &["0", "1"]).await;
    let view = server.message("q", "a", 1).await;
    let server = server.killed_and_started().await;
    let taken = server.pop("q", "g", 2).await;
    let mut ack = taken.ack_of(&[(0, AckVerb::Completed)]);
    ack.items[0].target = AckTarget::TransactionId(view.transaction_id);
    assert_eq!(server.client.ack(&ack).await.unwrap().next, 2);
}

#[tokio::test]
async fn a_numbered_push_sent_again_is_stored_once_without_ids_and_a_gap_is_refused() {
    let server = Server::start().await;
    let push = async |server: &Server, epoch, sequence| {
        let request = PushRequest { producer: Some((9, epoch, sequence)), ..push_of("q", "a", &["m", "n"]) };
        server.client.push(&request).await.map(|reply| results_of(&reply))
    };
    assert_eq!(push(&server, 0, 0).await.unwrap(), [Stored(0), Stored(1)]);
    assert_eq!(push(&server, 0, 0).await.unwrap(), [Duplicate(0), Duplicate(1)]);
    assert_eq!(push(&server, 0, 1).await.unwrap(), [Stored(2), Stored(3)]);
    let server = server.killed_and_started().await;
    assert_eq!(push(&server, 0, 1).await.unwrap(), [Duplicate(2), Duplicate(3)]);
    assert_eq!(refused(push(&server, 0, 3).await), ErrorCode::OutOfSequence);
    assert_eq!(push(&server, 0, 2).await.unwrap(), [Stored(4), Stored(5)]);
    assert_eq!(server.bounds("q", "a").await, (0, 6));
}

#[tokio::test]
async fn messages_without_ids_cost_nothing_to_remember_and_are_all_stored() {
    let server = Server::start().await;
    let same = vec![Message::new("same"); 10];
    assert_eq!(server.push_messages("q", "a", same).await.len(), 10);
    assert_eq!((server.bounds("q", "a").await, server.stats("q").await.duplicates), ((0, 10), 0));
}
