//! Queues, groups, dead letters, traces: each operation through the client.

use std::time::Duration;

use fanlog::model::{
    AckItem, AckRequest, AckTarget, AckVerb, Compression, DeadLetterQuery, ErrorCode, GroupDeclaration, GroupPatch, GroupState,
    PRIMARY_GROUP, PopRequest, PushItem, PushRequest, PushResult, PushResults, SeekRequest, SeekTarget, SettingsPatch, Start,
    TraceEvent, TransactionRequest,
};
use fanlog::protocol::PartitionSelector;
use fanlog::record::{Attributes, BatchBuilder, Message};

use crate::harness::{Running, completed, push_of};

#[tokio::test(flavor = "multi_thread")]
async fn queues_are_made_changed_listed_and_deleted() {
    let server = Running::start();
    let client = server.client().await;
    for index in 0..5 {
        client.create_queue(&format!("q{index}"), SettingsPatch::default()).await.unwrap();
    }
    let exists = client.create_queue("q0", SettingsPatch::default()).await.unwrap_err();
    assert_eq!(exists.code(), Some(ErrorCode::QueueExists));
    let patch = SettingsPatch { retry_limit: Some(9), ..SettingsPatch::default() };
    assert_eq!(client.update_queue("q1", patch).await.unwrap().settings.retry_limit, 9);
    assert_eq!(client.queue("q1").await.unwrap().settings.retry_limit, 9);
    let names: Vec<String> = client.queues().await.unwrap().into_iter().map(|queue| queue.name).collect();
    assert_eq!(names, ["q0", "q1", "q2", "q3", "q4"]);
    let page = client.call(&fanlog::protocol::QueueList { after: Some("q1".into()), limit: 2 }).await.unwrap();
    assert_eq!(page.queues.iter().map(|queue| queue.name.as_str()).collect::<Vec<_>>(), ["q2", "q3"]);
    assert!(client.delete_queue("q2").await.unwrap());
    assert!(!client.delete_queue("q2").await.unwrap());
    assert_eq!(client.queue("q2").await.unwrap_err().code(), Some(ErrorCode::UnknownQueue));
    assert_eq!(client.stats().await.unwrap().queues, 4);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_are_listed_by_pages() {
    let server = Running::start();
    let client = server.client().await;
    for lane in 0..5 {
        client.push(&push_of("q", &format!("lane-{lane}"), ["a", "b"])).await.unwrap();
    }
    let first = client.partitions("q", None, 3).await.unwrap();
    let rest = client.partitions("q", Some(first[2].id), 3).await.unwrap();
    assert_eq!((first.len(), rest.len()), (3, 2));
    assert!(first.iter().chain(&rest).all(|partition| (partition.start, partition.end) == (0, 2)));
    assert_eq!(client.partition("q", "lane-3").await.unwrap().end, 2);
    let unknown = client.partition("q", "nowhere").await.unwrap_err();
    assert_eq!(unknown.code(), Some(ErrorCode::UnknownPartition));
    assert!(client.partitions("q", Some(u32::MAX), 3).await.unwrap().is_empty());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_are_declared_changed_moved_and_deleted() {
    let server = Running::start();
    let client = server.client().await;
    client.create_queue("q", SettingsPatch::default()).await.unwrap();
    let declaration = GroupDeclaration { filter: ":a = 1".into(), ..GroupDeclaration::default() };
    let group = client.declare_group("q", "picky", declaration.clone()).await.unwrap();
    assert_eq!((group.filter.as_str(), group.state), (":a = 1", GroupState::Active));
    let exists = client.declare_group("q", "picky", declaration).await.unwrap_err();
    assert_eq!(exists.code(), Some(ErrorCode::GroupExists));
    let bad = GroupPatch { filter: Some("a ==".into()), ..GroupPatch::default() };
    assert_eq!(client.update_group("q", Some("picky"), bad).await.unwrap_err().code(), Some(ErrorCode::BadFilter));
    let off = GroupPatch { is_enabled: Some(false), expected_version: Some(group.version), ..GroupPatch::default() };
    assert_eq!(client.update_group("q", Some("picky"), off.clone()).await.unwrap().state, GroupState::Inactive);
    let conflict = client.update_group("q", Some("picky"), off).await.unwrap_err();
    assert_eq!(conflict.code(), Some(ErrorCode::VersionConflict));

    client.push(&push_of("q", "p", ["0", "1", "2", "3"])).await.unwrap();
    let pop = PopRequest { start: Some(Start::Beginning), auto_ack: true, ..PopRequest::any("q", 3).group("reader") };
    assert_eq!(client.pop(&pop, Duration::ZERO).await.unwrap().claims.len(), 1);
    let progress = client.group("q", Some("reader")).await.unwrap();
    assert_eq!(progress.lag, 1);
    let cursors = client.progress("q", Some("reader"), None, 10).await.unwrap();
    assert_eq!((cursors[0].next, cursors[0].lag), (3, 1));
    let mut seek = SeekRequest {
        queue: "q".into(),
        group: Some("reader".into()),
        partition: None,
        target: SeekTarget::Shift(-2),
        is_preview: true,
    };
    let preview = client.seek(seek.clone(), 10).await.unwrap();
    assert_eq!((preview.total, preview.cursors[0].before, preview.cursors[0].after), (1, 3, 1));
    assert_eq!(client.group("q", Some("reader")).await.unwrap().lag, 1, "a preview moves nothing");
    seek.is_preview = false;
    client.seek(seek, 10).await.unwrap();
    assert_eq!(client.group("q", Some("reader")).await.unwrap().lag, 3);
    assert_eq!(client.groups(Some("q")).await.unwrap().iter().filter(|group| group.group.name == "reader").count(), 1);
    assert!(client.lagging_groups(Some("q"), Duration::from_secs(3600)).await.unwrap().is_empty());
    assert_eq!(client.delete_group(Some("q"), "reader").await.unwrap().queues, 1);
    assert_eq!(client.group("q", Some("reader")).await.unwrap_err().code(), Some(ErrorCode::UnknownGroup));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn filtered_groups_say_what_they_judge_and_what_was_dropped() {
    let server = Running::start();
    let client = server.client().await;
    client.push(&push_of("q", "p", ["stored before"])).await.unwrap();
    let declaration = GroupDeclaration { filter: "NOT :a".into(), start: Some(Start::Beginning), ..GroupDeclaration::default() };
    let group = client.declare_group("q", "g", declaration).await.unwrap();
    assert!(group.judges_earlier);
    let filter = GroupPatch { filter: Some(":a".into()), ..GroupPatch::default() };
    client.update_group("q", Some("g"), filter.clone()).await.unwrap();
    for name in [None, Some(PRIMARY_GROUP)] {
        let refused = client.update_group("q", name, filter.clone()).await.unwrap_err();
        assert_eq!(refused.code(), Some(ErrorCode::PrimaryGroup));
    }
    let refused = client.delete_group(Some("q"), PRIMARY_GROUP).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::PrimaryGroup));
    let off = GroupPatch { is_enabled: Some(false), ..GroupPatch::default() };
    assert_eq!(client.update_group("q", None, off).await.unwrap().state, GroupState::Inactive);
    let with = |json: &str| Message { attributes: Attributes::from_json(json).unwrap(), ..Message::new(json.to_owned()) };
    let items = PushItem::Messages(vec![with("{}"), with(r#"{"a":1}"#), with("{}")]);
    let reply = client.push(&PushRequest { items, ..push_of("q", "p", [""; 0]) }).await.unwrap();
    use PushResult::{Dropped, Stored};
    assert_eq!(reply.results, PushResults::Each(vec![Dropped, Stored(1), Dropped]));
    assert_eq!(client.queue("q").await.unwrap().stats.messages_dropped, 2);
    let popped = client.pop(&PopRequest::any("q", 10).group("g"), Duration::ZERO).await.unwrap();
    let batches = popped.claims.into_iter().flat_map(|claim| claim.batches).collect();
    let offsets: Vec<_> = fanlog::client::messages_of(batches).unwrap().iter().map(|message| message.offset).collect();
    assert_eq!(offsets, [0, 1], "the first message is judged by the first filter, the second by the one that held");
    let stale = client.delete_group_at("q", "g", 1).await.unwrap_err();
    assert_eq!(stale.code(), Some(ErrorCode::VersionConflict));
    assert_eq!(client.delete_group_at("q", "g", 2).await.unwrap().queues, 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attributes_of_the_server_cannot_be_set_over_a_connection() {
    let server = Running::start();
    let client = server.client().await;
    let mut attributes = Attributes::new();
    attributes.insert("fanlog.encrypted", "aes-256-gcm").unwrap();
    let message = Message { attributes, ..Message::new("forged") };
    let mut builder = BatchBuilder::new();
    builder.push(&message);
    for items in [PushItem::Messages(vec![message]), PushItem::Packed(builder.finish(Compression::None))] {
        let request = PushRequest { items, ..push_of("q", "p", [""; 0]) };
        let refused = client.push(&request).await.unwrap_err();
        assert_eq!(refused.code(), Some(ErrorCode::BadAttribute), "{refused}");
        assert!(refused.to_string().contains("\"fanlog.encrypted\" is reserved"), "{refused}");
        let transaction = TransactionRequest { pushes: vec![request], ..TransactionRequest::default() };
        assert_eq!(client.transact(&transaction).await.unwrap_err().code(), Some(ErrorCode::BadAttribute));
    }
    assert_eq!(client.queue("q").await.unwrap().stats.messages, 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_listed_replayed_and_deleted() {
    let server = Running::start();
    let client = server.client().await;
    client.push(&push_of("q", "p", ["bad", "worse"])).await.unwrap();
    let pop = PopRequest { start: Some(Start::Beginning), ..PopRequest::any("q", 2).group("g") };
    let reply = client.pop(&pop, Duration::ZERO).await.unwrap();
    let reject =
        |offset| AckItem { target: AckTarget::Offset(offset), verb: AckVerb::Reject, reason: "no good".into(), delay_ms: 0 };
    let ack = AckRequest {
        queue: "q".into(),
        partition_id: reply.claims[0].partition_id,
        group: Some("g".into()),
        lease_id: reply.lease_id,
        items: vec![reject(0), reject(1)],
    };
    client.ack(&ack).await.unwrap();
    let page = client.dead_letters(&DeadLetterQuery { limit: 10, ..DeadLetterQuery::default() }).await.unwrap();
    assert_eq!((page.total, page.letters[0].reason.as_str()), (2, "no good"));
    let [newer, older] = [page.letters[0].id, page.letters[1].id];
    assert_eq!(client.dead_letter("q", older).await.unwrap().payload, "bad");
    client.replay_dead_letter("q", older).await.unwrap();
    assert_eq!(client.dead_letter("q", older).await.unwrap_err().code(), Some(ErrorCode::UnknownDeadLetter));
    assert!(client.delete_dead_letter("q", newer).await.unwrap());
    assert!(!client.delete_dead_letter("q", newer).await.unwrap());
    assert_eq!(client.partition("q", "p").await.unwrap().end, 3, "the replayed one was pushed again");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_traces_filters_and_transactions_are_within_reach() {
    let server = Running::start();
    let client = server.client().await;
    client.push(&push_of("q", "p", ["m"])).await.unwrap();
    let name = || PartitionSelector::Name("p".into());
    let message = client.message("q", name(), AckTarget::Offset(0)).await.unwrap();
    assert_eq!((message.message.payload.as_ref(), message.status), (&b"m"[..], "pending"));
    let by_id = AckTarget::TransactionId(message.transaction_id.clone());
    assert_eq!(client.message("q", name(), by_id).await.unwrap().message.offset, 0);
    let beyond = client.message("q", name(), AckTarget::Offset(9)).await.unwrap_err();
    assert!(matches!(beyond.code(), Some(ErrorCode::UnknownMessage | ErrorCode::BeyondEnd)));

    let event = TraceEvent {
        partition_id: message.partition_id,
        transaction_id: message.transaction_id.clone(),
        group: "g".into(),
        names: vec!["tour".into()],
        event_type: "info".into(),
        data: "{}".into(),
        worker_id: "w".into(),
        created_at_us: 0,
    };
    client.write_trace("q", event).await.unwrap();
    assert_eq!(client.traces_by_name(Some("q"), "tour", 10, 0).await.unwrap().len(), 1);
    assert_eq!(client.traces_by_name(Some("other"), "tour", 10, 0).await.unwrap().len(), 0);
    let of_message = client.traces_of_message("q", message.partition_id, &message.transaction_id).await.unwrap();
    assert_eq!(of_message.len(), 1);
    assert_eq!(client.trace_names().await.unwrap()[0].count, 1);

    let attributes = Attributes::from_json(r#"{"a": 1}"#).unwrap();
    assert!(client.test_filter(":a = 1.0", attributes.clone()).await.unwrap());
    assert_eq!(client.test_filter("a ==", attributes).await.unwrap_err().code(), Some(ErrorCode::BadFilter));

    let pop = PopRequest { start: Some(Start::Beginning), ..PopRequest::any("q", 1).group("g") };
    let reply = client.pop(&pop, Duration::ZERO).await.unwrap();
    let ack = AckRequest {
        queue: "q".into(),
        partition_id: message.partition_id,
        group: Some("g".into()),
        lease_id: reply.lease_id.clone(),
        items: vec![completed(0)],
    };
    let transaction = TransactionRequest {
        pushes: vec![push_of("next", "p", ["done"])],
        acks: vec![ack],
        required_leases: vec![reply.lease_id],
    };
    let done = client.transact(&transaction).await.unwrap();
    assert_eq!((done.pushes.len(), done.acks[0].next), (1, 1));
    server.stop().await;
}
