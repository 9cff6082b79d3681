//! Dead letters: kept apart, with everything that was known of them, until somebody replays or deletes them.

use fanlog::model::*;
use fanlog::record::Message;

use crate::support::*;

use AckVerb::{Completed, Reject};

/// Messages x, y and z, of which the group gave up x and y.
async fn with_letters() -> Server {
    let server = Server::start().await;
    let mut x = with_id("x");
    x.attributes.insert("region", "eu").unwrap();
    server.push_messages("q", "a", vec![x, with_id("y"), Message::new("z")]).await;
    let taken = server.pop("q", "g", 3).await;
    let mut reject = taken.ack_of(&[(0, Reject), (1, Reject)]);
    reject.items[0].reason = "no such customer".to_owned();
    server.client.ack(&reject).await.unwrap();
    server
}

#[tokio::test]
async fn a_dead_letter_has_the_message_the_group_the_reason_the_count_and_the_times_also_after_sigkill() {
    let before_us = now_us();
    let server = with_letters().await.killed_and_started().await;
    assert_eq!(server.cursor("q", "g", "a").await.next, 2, "letters and cursor are of one step");
    let letters = server.letters("q").await;
    assert_eq!(letters.len(), 2);
    let letter = &letters[0];
    assert_eq!((letter.queue.as_str(), letter.partition.as_str(), letter.offset, letter.group.as_str()), ("q", "a", 0, "g"));
    assert_eq!((letter.reason.as_str(), letter.delivery_count, letter.transaction_id.as_str()), ("no such customer", 1, "x"));
    assert_eq!((&letter.payload[..], letter.attributes.len()), (b"x".as_slice(), 1));
    assert!(before_us <= letter.created_at_us && letter.created_at_us <= letter.failed_at_us && letter.failed_at_us <= now_us());
    assert_eq!(server.client.dead_letter("q", letter.id).await.unwrap(), *letter);
}

#[tokio::test]
async fn letters_are_listed_by_queue_group_and_page_with_their_total() {
    let server = with_letters().await;
    let list = async |group: Option<&str>, limit, skip| {
        let query = DeadLetterQuery { queue: Some("q".into()), group: group.map(str::to_owned), limit, skip };
        let page = server.client.dead_letters(&query).await.unwrap();
        (page.letters.iter().map(|letter| letter.offset).collect::<Vec<_>>(), page.total)
    };
    assert_eq!(list(None, 10, 0).await, (vec![1, 0], 2), "the newest first");
    assert_eq!(list(Some("g"), 1, 1).await, (vec![0], 2));
    assert_eq!(list(Some("nobody"), 10, 0).await, (vec![], 0));
    assert_eq!(server.stats("q").await.dead_letters, 2);
}

#[tokio::test]
async fn a_letter_is_replayed_once_and_deleted_once() {
    let server = with_letters().await;
    let ids: Vec<u64> = server.letters("q").await.iter().map(|letter| letter.id).collect();
    let replayed = server.client.replay_dead_letter("q", ids[0]).await.unwrap();
    assert_eq!(results_of(&replayed), [PushResult::Stored(3)]);
    assert_eq!(refused(server.client.replay_dead_letter("q", ids[0]).await), ErrorCode::UnknownDeadLetter);
    assert!(server.client.delete_dead_letter("q", ids[1]).await.unwrap());
    assert!(!server.client.delete_dead_letter("q", ids[1]).await.unwrap());
    let server = server.killed_and_started().await;
    assert!(server.letters("q").await.is_empty());
    assert_eq!(refused(server.client.dead_letter("q", ids[0]).await), ErrorCode::UnknownDeadLetter);
    // A replay that was repeated after a lost reply has stored nothing twice: it has an id of its own.
    let again = server.push_messages("q", "a", vec![with_id(&format!("dlq:{}", ids[0]))]).await;
    assert_eq!(again, [PushResult::Duplicate(3)]);
    assert_eq!(server.drain("q", "g").await, ["z", "x"]);
}

#[tokio::test]
async fn a_replay_that_nobody_takes_keeps_the_letter() {
    let server = with_letters().await;
    let id = server.letters("q").await[0].id;
    for group in ["g", PRIMARY_GROUP] {
        server.set_enabled("q", group, false).await;
    }
    let dropped = server.client.replay_dead_letter("q", id).await.unwrap();
    assert_eq!((results_of(&dropped), server.letters("q").await.len()), (vec![PushResult::Dropped], 2));
    server.set_enabled("q", "g", true).await;
    let stored = server.client.replay_dead_letter("q", id).await.unwrap();
    assert_eq!((results_of(&stored), server.letters("q").await.len()), (vec![PushResult::Stored(3)], 1));
}

/// The letter and the step of the cursor are one record: whenever the server is killed, both are there or none.
#[tokio::test]
async fn a_letter_and_the_step_of_its_cursor_are_one_whenever_the_server_is_killed() {
    let mut server = Server::start().await;
    server.push("q", "a", &["0", "1", "2", "3", "4", "5"]).await;
    for _ in 0..6 {
        let taken = server.pop("q", "g", 1).await;
        if taken.is_empty() {
            break;
        }
        let offset = taken.offsets()[0];
        let (client, reject) = (server.client.clone(), taken.ack_of(&[(offset, Reject)]));
        let acking = tokio::spawn(async move { client.ack(&reject).await });
        tokio::task::yield_now().await;
        server = server.killed_and_started().await;
        let was_answered = acking.await.unwrap().is_ok();
        let next = server.cursor("q", "g", "a").await.next;
        let letters: Vec<u64> = server.letters("q").await.iter().map(|letter| letter.offset).collect();
        assert_eq!(letters, (0..next).collect::<Vec<_>>());
        assert!(next > offset || !was_answered);
    }
}

#[tokio::test]
async fn retention_never_touches_dead_letters() {
    let server = Server::start_sweeping().await;
    let settings = SettingsPatch {
        retention_enabled: Some(true),
        retention_s: Some(1),
        completed_retention_s: Some(1),
        ..SettingsPatch::default()
    };
    server.create("q", settings).await;
    server.push("q", "a", &["bad", "good"]).await;
    let taken = server.pop("q", "g", 2).await;
    server.ack(&taken, &[(0, Reject), (1, Completed)]).await;
    eventually(async || (server.bounds("q", "a").await == (2, 2)).then_some(())).await;
    let server = server.killed_and_started().await;
    let letters = server.letters("q").await;
    assert_eq!((letters.len(), &letters[0].payload[..]), (1, b"bad".as_slice()));
    let replayed = server.client.replay_dead_letter("q", letters[0].id).await.unwrap();
    assert_eq!(results_of(&replayed), [PushResult::Stored(2)]);
}
