//! Which partitions a pop takes from, and how long it waits.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fanlog::model::*;

use crate::support::*;

fn discover(group: &str, namespace: Option<&str>, task: Option<&str>) -> PopRequest {
    let source = PopSource::Discover { namespace: namespace.map(str::to_owned), task: task.map(str::to_owned) };
    PopRequest { source, ..pop_of("", group, 100) }
}

#[tokio::test]
async fn a_pop_takes_from_one_partition_any_of_a_queue_or_any_of_a_namespace_or_task() {
    let server = Server::start().await;
    for queue in ["shop.mail.eu", "shop.bill", "bank.mail", "plain"] {
        server.push(queue, "a", &[queue]).await;
    }
    for (group, namespace, task, expected) in [
        ("g", Some("shop"), None, ["shop.bill", "shop.mail.eu"].as_slice()),
        ("h", None, Some("mail"), &["bank.mail", "shop.mail.eu"]),
        ("i", Some("shop"), Some("mail"), &["shop.mail.eu"]),
        ("j", Some("nobody"), None, &[]),
    ] {
        let found = server.pop_as(&discover(group, namespace, task)).await.payloads().into_iter().collect::<BTreeSet<_>>();
        assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), expected, "{namespace:?} {task:?}");
    }
    let neither = server.client.pop(&discover("g", None, None), Duration::ZERO).await;
    assert_eq!(refused(neither), ErrorCode::BadRequest);
    server.push("plain", "b", &["other"]).await;
    assert_eq!(server.pop_as(&pinned_pop_of("plain", "b", "g", 10)).await.payloads(), ["other"]);
    assert_eq!(server.pop("plain", "g", 10).await.payloads(), ["plain"]);
}

#[tokio::test]
async fn one_pop_takes_from_up_to_64_partitions_under_one_lease_and_one_budget() {
    let server = Server::start().await;
    for lane in 0..66 {
        server.push("q", &format!("lane-{lane}"), &["0", "1"]).await;
    }
    let taken = server.pop("q", "g", 1_000).await;
    assert_eq!((taken.reply.claims.len(), taken.payloads().len()), (64, 128));
    let extended = server.client.extend(taken.lease(), Some(Duration::from_secs(120))).await.unwrap();
    assert_eq!(extended.renewed, 64, "an extension is for all of them");
    assert_eq!(server.pop("q", "g", 1_000).await.reply.claims.len(), 2);
    assert_eq!(server.client.release(taken.lease()).await.unwrap(), 64);
    assert_eq!(server.pop("q", "g", 5).await.payloads().len(), 5, "the number of messages is for all partitions together");
    for partitions_max in [0, 65, u32::MAX] {
        let request = PopRequest { partitions_max, ..pop_of("q", "g", 1) };
        assert_eq!(refused(server.client.pop(&request, Duration::ZERO).await), ErrorCode::BadRequest);
    }
}

#[tokio::test]
async fn no_partition_starves_behind_one_that_is_filled_again_and_again() {
    let server = Server::start().await;
    for lane in ["busy", "b", "c", "d"] {
        server.push("q", lane, &[lane]).await;
    }
    let mut seen = BTreeSet::new();
    for _ in 0..4 {
        server.push("q", "busy", &["busy", "busy"]).await;
        let one = PopRequest { partitions_max: 1, auto_ack: true, ..pop_of("q", "g", 1) };
        seen.extend(server.pop_as(&one).await.payloads());
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
}

#[tokio::test]
async fn at_most_once_moves_the_cursor_before_the_messages_leave_and_gives_no_lease() {
    let server = Server::start().await;
    server.push("q", "a", &["0", "1"]).await;
    let taken = server.pop_as(&PopRequest { auto_ack: true, ..pop_of("q", "g", 10) }).await;
    assert_eq!((taken.payloads().len(), taken.lease()), (2, ""));
    let server = server.killed_and_started().await;
    assert!(server.pop("q", "g", 10).await.is_empty());
    assert_eq!(server.cursor("q", "g", "a").await.next, 2);
}

#[tokio::test]
async fn a_long_poll_is_answered_by_a_push_and_empty_when_its_time_is_over() {
    let server = Server::start().await;
    server.create("q", SettingsPatch::default()).await;
    let start = Instant::now();
    let wait = Duration::from_millis(150);
    assert!(taken(&server.client, &pop_of("q", "g", 1), wait).await.is_empty());
    assert!(start.elapsed() >= wait, "it came after {:?}", start.elapsed());
    let waiting = server.waiting(&pop_of("q", "g", 1)).await;
    server.push("q", "a", &["0"]).await;
    assert_eq!(waiting.woken().await.claims[0].partition, "a");
}

#[tokio::test]
async fn a_message_wakes_one_consumer_of_each_group() {
    let server = Server::start().await;
    server.create("q", SettingsPatch::default()).await;
    let mut waiting = Vec::new();
    for group in ["g", "h"] {
        for _ in 0..2 {
            waiting.push((group, server.waiting(&pop_of("q", group, 1)).await));
        }
    }
    server.push("q", "a", &["0"]).await;
    // The other consumer of each group is still waiting for something of its own.
    eventually(async || (server.client.stats().await.unwrap().waiting_pops == 2).then_some(())).await;
    server.push("q", "b", &["1"]).await;
    let mut partitions = Vec::new();
    for (group, waiting) in waiting {
        partitions.push((group, waiting.woken().await.claims[0].partition.clone()));
    }
    partitions.sort();
    let expected = [("g", "a"), ("g", "b"), ("h", "a"), ("h", "b")].map(|(group, lane)| (group, lane.to_owned()));
    assert_eq!(partitions, expected);
}

#[tokio::test]
async fn a_paused_group_goes_on_taking_messages_and_hands_none_out_until_it_is_resumed() {
    let server = Server::start().await;
    server.push("q", "a", &["0"]).await;
    assert_eq!(server.take("q", "g", 1).await, ["0"]);
    let paused = |is_paused| GroupPatch { is_paused: Some(is_paused), ..GroupPatch::default() };
    assert_eq!(server.update("q", "g", paused(true)).await.state, GroupState::Paused);
    server.push("q", "a", &["1"]).await;
    let server = server.killed_and_started().await;
    assert!(server.pop("q", "g", 10).await.is_empty());
    assert_eq!(server.lag("q", "g").await, 1);
    assert_eq!(server.update("q", "g", paused(false)).await.state, GroupState::Active);
    assert_eq!(server.drain("q", "g").await, ["1"]);
}
