//! Removing groups and queues: nothing of them is left, and nothing else is touched.

use fanlog::model::*;

use crate::support::*;

use AckVerb::Completed;

async fn two_queues() -> Server {
    let server = Server::start().await;
    for queue in ["p", "q"] {
        for partition in ["a", "b"] {
            server.push(queue, partition, &["0"]).await;
        }
        for group in ["g", "other"] {
            assert_eq!(server.drain(queue, group).await.len(), 2);
        }
    }
    server
}

#[tokio::test]
async fn a_group_is_removed_from_one_queue_or_everywhere_with_counts_and_starts_again_from_the_beginning() {
    let server = two_queues().await;
    let removed = server.client.delete_group(Some("q"), "g").await.unwrap();
    assert_eq!(removed, RemovedGroup { queues: 1, deleted_partitions: 2 });
    assert_eq!(refused(server.client.group("q", Some("g")).await), ErrorCode::UnknownGroup);
    let server = server.killed_and_started().await;
    assert_eq!(server.drain("q", "g").await.len(), 2, "it starts again, with nothing of before in the way");
    assert!(server.drain("p", "g").await.is_empty());
    let removed = server.client.delete_group(None, "g").await.unwrap();
    assert_eq!(removed, RemovedGroup { queues: 2, deleted_partitions: 4 });
    assert_eq!(server.client.delete_group(None, "g").await.unwrap(), RemovedGroup::default());
    let server = server.killed_and_started().await;
    for queue in ["p", "q"] {
        assert_eq!(server.drain(queue, "g").await.len(), 2);
        assert!(server.drain(queue, "other").await.is_empty(), "no other group is touched");
    }
}

#[cfg(feature = "http")]
#[tokio::test]
async fn both_removals_answer_200_with_the_merged_result_over_http() {
    let server = two_queues().await;
    for (path, partitions) in [("/api/v1/consumer-groups/g/queues/q", 2), ("/api/v1/consumer-groups/g", 2)] {
        let (status, text) = server.http("DELETE", path, "").await;
        assert_eq!(status, 200, "{path}: {text}");
        let result: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(result["deletedPartitions"], partitions, "{path}: {text}");
    }
    assert_eq!(server.drain("p", "g").await.len(), 2);
}

#[tokio::test]
async fn a_lease_of_a_removed_group_does_not_fit_the_group_that_has_its_name_now() {
    let server = Server::start().await;
    server.push("q", "a", &["0", "1"]).await;
    let held = server.pop("q", "g", 1).await;
    server.client.delete_group(Some("q"), "g").await.unwrap();
    assert_eq!(server.pop("q", "g", 2).await.payloads(), ["0", "1"]);
    assert_eq!(refusals(&server.ack(&held, &[(0, Completed)]).await), [Some(ErrorCode::LeaseLost)]);
    assert_eq!(server.cursor("q", "g", "a").await.next, 0);
}

#[tokio::test]
async fn a_queue_deleted_and_made_again_is_a_new_queue() {
    let server = Server::start().await;
    server.push("q", "a", &["0", "1"]).await;
    let held = server.pop("q", "g", 1).await;
    let first = server.client.queue("q").await.unwrap().incarnation;
    assert!(server.client.delete_queue("q").await.unwrap());
    assert!(!server.client.delete_queue("q").await.unwrap());
    assert_eq!(refused(server.client.queue("q").await), ErrorCode::UnknownQueue);
    server.push("q", "a", &["new"]).await;
    assert!(server.client.queue("q").await.unwrap().incarnation != first);
    assert_eq!(refused(server.client.group("q", Some("g")).await), ErrorCode::UnknownGroup);
    let taken = server.pop("q", "g", 10).await;
    assert_eq!((taken.payloads(), taken.offsets()), (vec!["new".to_owned()], vec![0]));
    assert!(taken.claim().incarnation != held.claim().incarnation);
    assert_eq!(refusals(&server.ack(&held, &[(0, Completed)]).await), [Some(ErrorCode::LeaseLost)]);
    assert!(server.client.extend(held.lease(), None).await.is_ok_and(|reply| reply.renewed == 0));
    let server = server.killed_and_started().await;
    assert_eq!(server.drain("q", "g").await, ["new"]);
}

#[tokio::test]
async fn a_deleted_queue_stays_away_over_sigkill_and_takes_its_files_along() {
    let server = Server::start().await;
    server.push("gone", "a", &["0"]).await;
    server.push("kept", "a", &["0"]).await;
    server.client.delete_queue("gone").await.unwrap();
    let server = server.killed_and_started().await;
    let names: Vec<String> = server.client.queues().await.unwrap().into_iter().map(|queue| queue.name).collect();
    assert_eq!(names, ["kept"]);
    let directories = || std::fs::read_dir(server.data().join("queues")).map(|entries| entries.count()).unwrap_or(1);
    eventually(async || (directories() == 1).then_some(())).await;
}
