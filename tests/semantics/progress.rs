//! How far groups are: lag of all, of one, of those behind, and one message with everybody's progress.

use std::time::Duration;

use fanlog::model::*;
use fanlog::protocol::PartitionSelector;
use fanlog::record::Message;

use crate::support::*;

use AckVerb::{Completed, Reject};

#[tokio::test]
async fn all_groups_are_listed_with_their_lag_for_each_queue_in_messages_and_in_seconds() {
    let server = Server::start().await;
    let pushed_us = now_us();
    server.push("p", "a", &["0", "1"]).await;
    server.push("p", "b", &["2"]).await;
    server.push("q", "a", &["3"]).await;
    assert_eq!(server.take("p", "g", 1).await.len(), 1);
    assert_eq!(server.drain("q", "g").await.len(), 1);
    assert_eq!(server.drain("p", "h").await.len(), 3);
    clock_passes(pushed_us + 50_000).await;
    let lags = async |server: &Server| {
        let groups = server.client.groups(None).await.unwrap();
        let named = groups.into_iter().filter(|found| found.group.name != PRIMARY_GROUP);
        named.map(|found| (found.group.queue, found.group.name, found.lag, found.partitions_with_lag)).collect::<Vec<_>>()
    };
    let row = |queue: &str, group: &str, lag, partitions| (queue.to_owned(), group.to_owned(), lag, partitions);
    let expected = [row("p", "g", 2, 2), row("p", "h", 0, 0), row("q", "g", 0, 0)];
    assert_eq!(lags(&server).await, expected);
    let server = server.killed_and_started().await;
    assert_eq!(lags(&server).await, expected);
    let group = server.client.group("p", Some("g")).await.unwrap();
    assert!(group.lag_time_us >= 50_000 && group.lag_time_us <= now_us() - pushed_us, "{}", group.lag_time_us);
    let cursors = server.client.progress("p", Some("g"), None, 10).await.unwrap();
    assert_eq!(cursors.iter().map(|cursor| cursor.lag).sum::<u64>(), group.lag, "one definition");
    assert_eq!(cursors.iter().map(|cursor| cursor.lag_time_us).max().unwrap() / 10_000_000, group.lag_time_us / 10_000_000);
    server.drain("p", "g").await;
    let done = server.client.group("p", Some("g")).await.unwrap();
    assert_eq!((done.lag, done.lag_time_us, done.partitions_with_lag), (0, 0, 0));
}

#[tokio::test]
async fn one_group_is_shown_in_all_queues_that_have_it() {
    let server = Server::start().await;
    for queue in ["p", "q", "r"] {
        server.push(queue, "a", &["0"]).await;
    }
    for queue in ["p", "q"] {
        server.pop(queue, "g", 1).await;
    }
    let found = server.client.group_everywhere("g").await.unwrap();
    let rows: Vec<_> = found.iter().map(|found| (found.group.queue.as_str(), found.lag, found.leases)).collect();
    assert_eq!(rows, [("p", 1, 1), ("q", 1, 1)]);
    assert!(server.client.group_everywhere("nobody").await.unwrap().is_empty());
}

#[tokio::test]
async fn only_groups_that_are_behind_are_listed_when_asked_by_default_those_an_hour_behind() {
    let server = Server::start().await;
    let pushed_us = now_us();
    server.push("q", "a", &["0"]).await;
    server.pop("q", "behind", 1).await;
    server.drain("q", "done").await;
    clock_passes(pushed_us + 1_100_000).await;
    let names = async |seconds| {
        let groups = server.client.lagging_groups(None, Duration::from_secs(seconds)).await.unwrap();
        groups.into_iter().map(|found| found.group.name).filter(|name| name != PRIMARY_GROUP).collect::<Vec<_>>()
    };
    assert_eq!((names(1).await, names(3_600).await), (vec!["behind".to_owned()], vec![]));
    let listed = |arguments: &[&str]| server.json(&[&["group", "lagging"], arguments].concat());
    assert!(listed(&[]).as_array().unwrap().is_empty(), "an hour");
    let behind = listed(&["--min-seconds", "1"]);
    assert!(behind.as_array().unwrap().iter().any(|row| row["group"] == "behind"), "{behind}");
}

#[tokio::test]
async fn a_message_shows_who_consumed_it_and_is_completed_when_every_named_group_has_passed_it() {
    let server = Server::start().await;
    server.push_messages("q", "a", vec![with_id("order-1"), Message::new("1")]).await;
    let view = async |server: &Server| {
        let target = AckTarget::TransactionId("order-1".to_owned());
        server.client.message("q", PartitionSelector::Name("a".to_owned()), target).await.unwrap()
    };
    let consumed = |view: &MessageView| {
        let groups = view.groups.iter().filter(|group| group.name != PRIMARY_GROUP);
        groups.map(|group| (group.name.clone(), group.is_consumed, group.lease_expires_at_us.is_some())).collect::<Vec<_>>()
    };
    let row = |name: &str, is_consumed, is_leased| (name.to_owned(), is_consumed, is_leased);
    assert_eq!((view(&server).await.message.offset, view(&server).await.status), (0, "pending"));

    let held = server.pop("q", "billing", 1).await;
    let leased = view(&server).await;
    assert_eq!((leased.status, consumed(&leased)), ("processing", vec![row("billing", false, true)]));
    // Leases run on the steady clock; the time of day that they end at is worked out for each answer.
    let ends_at_us = leased.groups[0].lease_expires_at_us.unwrap();
    assert!(ends_at_us.abs_diff(held.reply.lease_expires_at_us) < 10_000, "{ends_at_us}");
    server.ack(&held, &[(0, Completed)]).await;
    assert_eq!(view(&server).await.status, "completed");

    let short = PopRequest { lease_ms: Some(1), ..pop_of("q", "analytics", 1) };
    server.pop_as(&short).await;
    let expired = eventually(async || Some(view(&server).await).filter(|view| view.status == "pending")).await;
    assert_eq!(consumed(&expired), [row("billing", true, false), row("analytics", false, false)]);
    let again = taken(&server.client, &pop_of("q", "analytics", 1), Duration::from_secs(20)).await;
    server.ack(&again, &[(0, Completed)]).await;
    // The primary group does not count where there are named ones.
    assert_eq!(server.pop("q", PRIMARY_GROUP, 1).await.payloads(), ["order-1"]);
    assert_eq!(view(&server).await.status, "completed");
    let server = server.killed_and_started().await;
    assert_eq!(view(&server).await.status, "completed");

    let rejected = server.pop("q", "billing", 1).await;
    server.ack(&rejected, &[(1, Reject)]).await;
    assert_eq!(server.message("q", "a", 1).await.status, "dead_letter");
}

#[cfg(feature = "http")]
#[tokio::test]
async fn the_same_is_said_over_http() {
    let server = Server::start().await;
    let item = r#"{"items":[{"queue":"q","partition":"a","payload":0,"transactionId":"t"}]}"#;
    assert_eq!(server.http("POST", "/api/v1/push", item).await.0, 201);
    let (_, popped) = server.http("GET", "/api/v1/pop/queue/q?consumerGroup=billing&subscriptionMode=all", "").await;
    let popped: serde_json::Value = serde_json::from_str(&popped).unwrap();
    for path in ["/api/v1/consumer-groups", "/api/v1/consumer-groups/billing", "/api/v1/consumer-groups/lagging?minLagSeconds=0"]
    {
        let (status, groups) = server.http("GET", path, "").await;
        assert!(status == 200 && groups.contains("\"q\""), "{path}: {status} {groups}");
    }
    let partition = popped["messages"][0]["partitionId"].as_str().unwrap();
    let (status, text) = server.http("GET", &format!("/api/v1/messages/{partition}/t"), "").await;
    assert_eq!(status, 200, "{text}");
    let message: serde_json::Value = serde_json::from_str(&text).unwrap();
    let group = message["consumerGroups"].as_array().unwrap().iter().find(|group| group["name"] == "billing").unwrap();
    assert_eq!((&message["status"], &group["consumed"]), (&"processing".into(), &false.into()));
    assert!(group["leaseExpiresAt"].is_string(), "{group}");
}
