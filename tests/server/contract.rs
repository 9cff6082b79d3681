//! The rules of groups over the wire: waiting, lag, pausing, removal, all partitions of a namespace.

use std::time::Duration;

use fanlog::client::messages_of;
use fanlog::model::{
    AckRequest, AckTarget, ErrorCode, GroupPatch, GroupState, Now, PopReply, PopRequest, PopSource, PushReply, PushRequest,
    PushResult, SettingsPatch, Start,
};
use fanlog::protocol::{PartitionSelector, Pop};

use crate::harness::{Running, completed, push_of, within};

fn texts(reply: &PopReply) -> Vec<String> {
    let batches = reply.claims.iter().flat_map(|claim| claim.batches.clone()).collect();
    messages_of(batches).unwrap().into_iter().map(|message| String::from_utf8(message.payload.to_vec()).unwrap()).collect()
}

fn first(queue: &str, group: &str) -> PopRequest {
    PopRequest { start: Some(Start::Beginning), ..PopRequest::any(queue, 10).group(group) }
}

/// The first pop of a group finds a message that is held back: it waits for that, too, and not until its own time is over.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_pop_of_a_group_waits_for_the_end_of_a_delay_and_of_a_window() {
    let server = Running::start();
    let client = server.client().await;
    let delay = SettingsPatch { delayed_processing_s: Some(1), ..SettingsPatch::default() };
    let window = SettingsPatch { window_buffer_s: Some(1), ..SettingsPatch::default() };
    for (queue, patch) in [("delay", delay), ("window", window)] {
        client.create_queue(queue, patch).await.unwrap();
        let mut raw = server.raw().await;
        raw.call(&push_of(queue, "p", ["m"])).await.unwrap();
        let wait_ms = u32::MAX;
        let reply = within(raw.call(&Pop { request: first(queue, "g"), wait_ms })).await.unwrap();
        assert_eq!(texts(&reply), ["m"], "{queue}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_of_a_namespace_waits_for_a_queue_that_is_not_there_yet() {
    let server = Running::start();
    let mut waiting = server.raw().await;
    let source = PopSource::Discover { namespace: Some("shop".into()), task: None };
    let request = PopRequest { source, partitions_max: 64, ..first("", "g") };
    waiting.send(&Pop { request: request.clone(), wait_ms: u32::MAX }).await;
    let mut raw = server.raw().await;
    for queue in ["bank.mail", "shop.mail"] {
        raw.call(&push_of(queue, "p", [queue])).await.unwrap();
    }
    let (_, reply) = within(waiting.reply::<Pop>()).await;
    assert_eq!(texts(&reply.unwrap()), ["shop.mail"]);
    for partitions_max in [0, 65] {
        let refused = raw.call(&Pop { request: PopRequest { partitions_max, ..request.clone() }, wait_ms: 0 }).await.unwrap_err();
        assert_eq!(refused.code(), Some(ErrorCode::BadRequest));
    }
    server.stop().await;
}

/// Given back by its consumer: who waits for it gets it at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_given_back_goes_to_who_waits() {
    let server = Running::start();
    let client = server.client().await;
    client.push(&push_of("q", "p", ["m"])).await.unwrap();
    let held = client.pop(&first("q", "g"), Duration::ZERO).await.unwrap();
    let mut waiting = server.raw().await;
    waiting.send(&Pop { request: first("q", "g"), wait_ms: u32::MAX }).await;
    assert_eq!(client.release(&held.lease_id).await.unwrap(), 1);
    let (_, reply) = within(waiting.reply::<Pop>()).await;
    assert_eq!(texts(&reply.unwrap()), ["m"]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_are_listed_by_their_lag_and_a_message_shows_who_has_read_it() {
    let (server, engine) = Running::inside_with_engine(|_| ()).await;
    let client = server.client().await;
    let now = Now::read();
    let two_hours_ago = Now { wall_us: now.wall_us - 7_200_000_000, ..now };
    for queue in ["p", "q"] {
        engine.push(push_of(queue, "a", ["0"]), two_hours_ago).unwrap();
        engine.pop(&first(queue, "slow"), now).unwrap();
        let fast = PopRequest { auto_ack: true, ..first(queue, "fast") };
        assert_eq!(client.pop(&fast, Duration::ZERO).await.unwrap().claims.len(), 1);
    }
    let everywhere = client.group_everywhere("slow").await.unwrap();
    assert_eq!(everywhere.iter().map(|found| (found.group.queue.as_str(), found.lag)).collect::<Vec<_>>(), [("p", 1), ("q", 1)]);
    for (seconds, expected) in [(3_600, 2), (7_100, 2), (9_000, 0)] {
        let behind = client.lagging_groups(None, Duration::from_secs(seconds)).await.unwrap();
        assert!(behind.iter().all(|found| found.group.name == "slow"));
        assert_eq!(behind.len(), expected, "{seconds} s");
    }
    assert_eq!(client.lagging_groups(Some("q"), Duration::from_secs(3_600)).await.unwrap().len(), 1);

    let partition = || PartitionSelector::Name("a".into());
    let view = client.message("q", partition(), AckTarget::Offset(0)).await.unwrap();
    let progress: Vec<_> =
        view.groups.iter().map(|group| (group.name.as_str(), group.is_consumed, group.lease_expires_at_us.is_some())).collect();
    assert_eq!((view.status, progress), ("processing", vec![("slow", false, true), ("fast", true, false)]));
    let lease_id = client.progress("q", Some("slow"), None, 1).await.unwrap()[0].lease_id.clone();
    let items = vec![completed(0)];
    let ack = AckRequest { queue: "q".into(), partition_id: view.partition_id, group: Some("slow".into()), lease_id, items };
    client.ack(&ack).await.unwrap();
    let by_id = AckTarget::TransactionId(view.transaction_id);
    assert_eq!(client.message("q", partition(), by_id).await.unwrap().status, "completed");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_paused_resumed_started_elsewhere_and_removed_everywhere() {
    let server = Running::start();
    let client = server.client().await;
    for queue in ["p", "q"] {
        client.push(&push_of(queue, "a", ["0"])).await.unwrap();
        let pop = PopRequest { auto_ack: true, ..first(queue, "g") };
        assert_eq!(client.pop(&pop, Duration::ZERO).await.unwrap().claims.len(), 1);
    }
    let pause = |is_paused| GroupPatch { is_paused: Some(is_paused), ..GroupPatch::default() };
    assert_eq!(client.update_group("q", Some("g"), pause(true)).await.unwrap().state, GroupState::Paused);
    client.push(&push_of("q", "a", ["1"])).await.unwrap();
    assert!(client.pop(&first("q", "g"), Duration::ZERO).await.unwrap().claims.is_empty());
    let mut waiting = server.raw().await;
    waiting.send(&Pop { request: first("q", "g"), wait_ms: u32::MAX }).await;
    assert_eq!(client.update_group("q", Some("g"), pause(false)).await.unwrap().state, GroupState::Active);
    let (_, reply) = within(waiting.reply::<Pop>()).await;
    assert_eq!(texts(&reply.unwrap()), ["1"]);

    assert_eq!(client.set_group_start("g", Start::New).await.unwrap(), 2);
    assert_eq!(client.set_group_start("nobody", Start::New).await.unwrap(), 0);
    assert_eq!(client.group("q", Some("g")).await.unwrap().group.start, Some(Start::New));
    let removed = client.delete_group(None, "g").await.unwrap();
    assert_eq!((removed.queues, removed.deleted_partitions), (2, 2));
    assert_eq!(texts(&client.pop(&first("q", "g"), Duration::ZERO).await.unwrap()), ["0", "1"]);
    assert_eq!(client.group("p", Some("g")).await.unwrap_err().code(), Some(ErrorCode::UnknownGroup));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_sent_again_under_its_number_or_id_is_stored_once() {
    let server = Running::start();
    let client = server.client().await;
    let result = |reply: PushReply| reply.results.get(0).unwrap();
    let numbered = |sequence| PushRequest { producer: Some((7, 0, sequence)), ..push_of("q", "a", ["m"]) };
    assert_eq!(result(client.push(&numbered(0)).await.unwrap()), PushResult::Stored(0));
    assert_eq!(result(client.push(&numbered(0)).await.unwrap()), PushResult::Duplicate(0));
    assert_eq!(client.push(&numbered(2)).await.unwrap_err().code(), Some(ErrorCode::OutOfSequence));
    assert_eq!(result(client.push(&numbered(1)).await.unwrap()), PushResult::Stored(1));
    server.stop().await;
}
