//! A request and a response of each operation, with every variant of what they hold.

use bytes::Bytes;
use fanlog::model::*;
use fanlog::protocol::*;
use fanlog::record::{Attributes, Message, Number};

fn text(value: &str) -> String {
    value.to_owned()
}

fn some(value: &str) -> Option<String> {
    Some(text(value))
}

fn attributes() -> Attributes {
    let mut attributes = Attributes::new();
    attributes.insert("region", "eu").unwrap();
    attributes.insert("age", "40.5".parse::<Number>().unwrap()).unwrap();
    attributes
}

fn plain_push() -> PushRequest {
    let named = Message { transaction_id: some("t-1"), attributes: attributes(), payload: Bytes::from_static(b"one") };
    PushRequest {
        queue: text("orders"),
        partition: text("u42"),
        items: PushItem::Messages(vec![named, Message::new(Bytes::new())]),
        producer: Some((0x1122_3344_5566_7788, 3, 9)),
    }
}

fn packed_push() -> PushRequest {
    let batch = PackedBatch {
        count: 2,
        index_length: 10,
        uncompressed_length: 100,
        codec: 1,
        payload_crc: 0xdead_beef,
        payload: Bytes::from_static(b"zzz"),
    };
    PushRequest { queue: text("orders"), partition: text("Default"), items: PushItem::Packed(batch), producer: None }
}

fn pop_request() -> PopRequest {
    PopRequest {
        source: PopSource::Partition { queue: text("orders"), partition: text("u42") },
        lease_ms: Some(30_000),
        start: Some(Start::Time(1_700_000_000_000_000)),
        shared: true,
        ..PopRequest::any("orders", 100).group("billing")
    }
}

fn ack_request() -> AckRequest {
    let item = |target, verb, reason: &str, delay_ms| AckItem { target, verb, reason: text(reason), delay_ms };
    AckRequest {
        queue: text("orders"),
        partition_id: 5,
        group: some("billing"),
        lease_id: text("1-2"),
        items: vec![
            item(AckTarget::Offset(10), AckVerb::Completed, "", 0),
            item(AckTarget::TransactionId(text("t-1")), AckVerb::Failed, "no stock", 0),
            item(AckTarget::Offset(12), AckVerb::Retry, "", 5000),
            item(AckTarget::Offset(13), AckVerb::Reject, "bad", 0),
        ],
    }
}

fn seek(target: SeekTarget) -> Request {
    let request = SeekRequest { queue: text("orders"), group: some("billing"), partition: None, target, is_preview: true };
    Request::Seek(Seek { request, limit: 100 })
}

fn patch() -> SettingsPatch {
    SettingsPatch {
        durability: Some(Durability::Interval { milliseconds: 20 }),
        compression: Some(Compression::None),
        priority: Some(-1),
        ..SettingsPatch::default()
    }
}

fn trace() -> TraceEvent {
    TraceEvent {
        partition_id: 5,
        transaction_id: text("t-1"),
        group: text("billing"),
        names: vec![text("order-42")],
        event_type: text("info"),
        data: Bytes::from_static(b"{}"),
        worker_id: text("w1"),
        created_at_us: 3,
    }
}

pub fn requests() -> Vec<(&'static str, Request)> {
    let queue = || text("orders");
    let group = || some("billing");
    let fetch = FetchRequest { queue: queue(), partition: text("u42"), from: 7, to: Some(9), messages_max: 10, bytes_max: 1000 };
    let discover = PopRequest { source: PopSource::Discover { namespace: some("shop"), task: None }, ..PopRequest::any("", 1) };
    let declaration = GroupDeclaration {
        filter: text("region = \"eu\""),
        is_disabled: true,
        delivery_limit: Some(5),
        display_name: text("Billing"),
        start: Some(Start::Offset(4)),
        shared: true,
    };
    let group_patch = GroupPatch {
        expected_version: Some(2),
        filter: some(""),
        is_enabled: Some(true),
        delivery_limit: Some(None),
        display_name: None,
        is_paused: Some(false),
    };
    vec![
        ("hello", Request::Hello(Hello::new("orders-service", "secret"))),
        ("ping", Request::Ping(Ping { nonce: 1 })),
        ("push of messages", Request::Push(plain_push())),
        ("push of a packed batch", Request::Push(packed_push())),
        (
            "transaction",
            Request::Transaction(TransactionRequest {
                pushes: vec![plain_push(), packed_push()],
                acks: vec![ack_request()],
                required_leases: vec![text("1-2")],
            }),
        ),
        ("fetch", Request::Fetch(Fetch { request: fetch, wait_ms: 5000 })),
        ("pop of a partition", Request::Pop(Pop { request: pop_request(), wait_ms: 0 })),
        ("pop of a queue", Request::Pop(Pop { request: PopRequest::any("orders", 1), wait_ms: 100 })),
        ("pop of a namespace", Request::Pop(Pop { request: discover, wait_ms: 0 })),
        ("ack", Request::Ack(ack_request())),
        ("extend", Request::Extend(Extend { lease_id: text("1-2"), lease_ms: Some(60_000) })),
        ("release", Request::Release(Release { lease_id: text("1-2") })),
        ("subscribe", Request::Subscribe(Subscribe { request: pop_request(), credit_messages: 512, credit_bytes: 1 << 20 })),
        ("credit", Request::Credit(Credit { subscription: 9, messages: 256, bytes: 1024 })),
        ("unsubscribe", Request::Unsubscribe(Unsubscribe { subscription: 9 })),
        ("queue create", Request::QueueCreate(QueueCreate { queue: queue(), settings: patch() })),
        ("queue get", Request::QueueGet(QueueGet { queue: queue() })),
        ("queue list", Request::QueueList(QueueList { after: some("a"), limit: 100 })),
        (
            "queue update",
            Request::QueueUpdate(QueueUpdate { queue: queue(), settings: SettingsPatch::of(&QueueSettings::default()) }),
        ),
        ("queue delete", Request::QueueDelete(QueueDelete { queue: queue() })),
        ("partition list", Request::PartitionList(PartitionList { queue: queue(), after: Some(3), limit: 10 })),
        ("partition get", Request::PartitionGet(PartitionGet { queue: queue(), partition: text("u42") })),
        ("group declare", Request::GroupDeclare(GroupDeclare { queue: queue(), group: text("billing"), declaration })),
        ("group get", Request::GroupGet(GroupGet { queue: queue(), group: group() })),
        ("group list", Request::GroupList(GroupList { queue: None, group: group(), lag_min_s: Some(3600) })),
        ("group update", Request::GroupUpdate(GroupUpdate { queue: queue(), group: None, patch: group_patch })),
        (
            "group delete",
            Request::GroupDelete(GroupDelete { queue: some("orders"), group: text("billing"), expected_version: Some(7) }),
        ),
        ("group start", Request::GroupStart(GroupStart { group: text("billing"), start: Start::Time(8) })),
        ("progress", Request::Progress(Progress { queue: queue(), group: group(), after: None, limit: 100 })),
        ("seek to the beginning", seek(SeekTarget::Beginning)),
        ("seek to the end", seek(SeekTarget::End)),
        ("seek to an offset", seek(SeekTarget::Offset(5))),
        ("seek to a time", seek(SeekTarget::Time(6))),
        ("seek by a shift", seek(SeekTarget::Shift(-7))),
        (
            "message get by offset",
            Request::MessageGet(MessageGet {
                queue: queue(),
                partition: PartitionSelector::Id(5),
                target: AckTarget::Offset(10),
            }),
        ),
        (
            "message get by id",
            Request::MessageGet(MessageGet {
                queue: queue(),
                partition: PartitionSelector::Name(text("u42")),
                target: AckTarget::TransactionId(text("t-1")),
            }),
        ),
        (
            "dead letter list",
            Request::DeadLetterList(DeadLetterQuery { queue: some("orders"), group: None, limit: 10, skip: 20 }),
        ),
        ("dead letter get", Request::DeadLetterGet(DeadLetterGet { queue: queue(), id: 4 })),
        ("dead letter replay", Request::DeadLetterReplay(DeadLetterReplay { queue: queue(), id: 4 })),
        ("dead letter delete", Request::DeadLetterDelete(DeadLetterDelete { queue: queue(), id: 4 })),
        ("trace write", Request::TraceWrite(TraceWrite { queue: queue(), event: trace() })),
        ("trace by name", Request::TraceByName(TraceByName { queue: None, name: text("order-42"), limit: 10, skip: 0 })),
        (
            "trace by message",
            Request::TraceByMessage(TraceByMessage { queue: queue(), partition_id: 5, transaction_id: text("t-1") }),
        ),
        ("trace names", Request::TraceNames(TraceNames {})),
        ("stats", Request::Stats(Stats {})),
        ("losses get", Request::LossesGet(LossesGet { queue: Some("q".into()) })),
        ("filter test", Request::FilterTest(FilterTest { filter: text("NOT a"), attributes: attributes() })),
    ]
}

fn stored(offset: u64) -> StoredMessage {
    StoredMessage {
        offset,
        created_at_us: 1_700_000_000_000_000,
        transaction_id: some("t-1"),
        attributes: attributes(),
        payload: Bytes::from_static(b"one"),
        delivery_count: 2,
    }
}

fn batches() -> Vec<BatchSlice> {
    vec![BatchSlice::Whole(Bytes::from_static(b"record")), BatchSlice::Messages(vec![stored(7), stored(9)])]
}

fn pop_reply() -> PopReply {
    let claim = Claim {
        queue: text("orders"),
        partition: text("u42"),
        partition_id: 5,
        incarnation: 77,
        range: OffsetRange { first: 3, last: 9 },
        delivery_count: 2,
        last_error: text("no stock"),
        lost: Some(OffsetRange { first: 0, last: 2 }),
        batches: batches(),
    };
    PopReply { lease_id: text("1-2"), lease_expires_at_us: 1_700_000_030_000_000, claims: vec![claim] }
}

fn push_reply(results: PushResults) -> PushReply {
    PushReply { promise: Promise::Durable, partition_id: 5, created_at_us: 1_700_000_000_000_000, results }
}

fn each() -> PushResults {
    PushResults::Each(vec![PushResult::Stored(4), PushResult::Duplicate(1), PushResult::Dropped])
}

fn ack_reply() -> AckReply {
    let refused = AckOutcome {
        refused: Some(Error::new(ErrorCode::NotLeased, "offset 12 was never handed out")),
        is_noop: false,
        is_dead_letter: false,
    };
    let outcomes = vec![AckOutcome { refused: None, is_noop: true, is_dead_letter: false }, refused];
    AckReply { promise: Promise::Written, next: 11, is_lease_released: true, outcomes }
}

fn queue_stats() -> QueueStats {
    QueueStats { partitions: 2, messages_pushed: 5, is_poisoned: true, ..QueueStats::default() }
}

fn queue_info() -> QueueInfo {
    QueueInfo {
        name: text("orders"),
        incarnation: 77,
        created_at_us: 3,
        settings: QueueSettings::default(),
        stats: queue_stats(),
    }
}

fn group_info() -> GroupInfo {
    GroupInfo {
        queue: text("orders"),
        name: text("billing"),
        id: 1,
        is_declared: true,
        filter: text("a"),
        state: GroupState::Paused,
        delivery_limit: None,
        display_name: String::new(),
        shared: false,
        version: 2,
        start: Some(Start::New),
        created_at_us: 3,
        updated_at_us: 4,
        judges_earlier: false,
    }
}

fn group_progress() -> GroupProgress {
    GroupProgress { group: group_info(), cursors: 3, partitions_with_lag: 2, lag: 40, lag_time_us: 5, leases: 1 }
}

fn cursor() -> CursorProgress {
    CursorProgress {
        partition: text("u42"),
        partition_id: 5,
        next: 6,
        start: 1,
        end: 9,
        lag: 3,
        lag_time_us: 100,
        oldest_at_us: Some(7),
        in_flight: 2,
        lease_expires_at_us: Some(8),
        lease_id: text("1-2"),
        total_consumed: 6,
        last_consumed_at_us: None,
    }
}

fn dead_letter() -> DeadLetter {
    DeadLetter {
        id: 4,
        queue: text("orders"),
        partition: text("u42"),
        partition_id: 5,
        offset: 6,
        group: text("billing"),
        reason: text("bad"),
        delivery_count: 3,
        created_at_us: 1,
        failed_at_us: 2,
        transaction_id: text("t-1"),
        attributes: attributes(),
        payload: Bytes::from_static(b"one"),
    }
}

/// Name, response, and whether it leaves its subscription open.
pub fn responses() -> Vec<(&'static str, Response, bool)> {
    let hello = HelloReply {
        version: 1,
        server_name: text("fanlog 0.1.0"),
        capabilities: 0,
        limits: Limits { frame_bytes: 64 << 20, message_bytes: 1 << 20, in_flight: 1024 },
        node_id: 0,
        start_number: 12,
        epoch: 0,
    };
    let view = MessageView {
        queue: text("orders"),
        partition: text("u42"),
        partition_id: 5,
        message: stored(7),
        transaction_id: text("t-1"),
        status: "dead_letter",
        groups: vec![MessageProgress { name: text("billing"), is_consumed: true, is_taken: true, lease_expires_at_us: None }],
    };
    let fetched = FetchReply { incarnation: 77, partition_id: 5, start: 1, end: 10, next: 10, batches: batches() };
    let partition = || PartitionInfo { name: text("u42"), id: 5, start: 1, end: 10, newest_at_us: 3 };
    let traces = || TracePage { traces: vec![TraceRecord { queue: text("orders"), event: trace() }] };
    let preview = SeekPreview { partition: text("u42"), before: 9, after: 5, start: 1, end: 10 };
    let ended = LeaseEnded {
        partition: Some(LeasedPartition { queue: text("orders"), partition_id: 5 }),
        ..LeaseEnded::of("1-2", ErrorCode::LeaseLost)
    };
    let last = |name, response| (name, response, false);
    vec![
        last("hello", Response::Hello(hello)),
        last("ping", Response::Ping(Pong { nonce: 1, time_us: 2 })),
        last("push, all stored", Response::Push(push_reply(PushResults::Range { base: 4, count: 2 }))),
        last("push, one by one", Response::Push(push_reply(each()))),
        last(
            "transaction",
            Response::Transaction(TransactionReply { pushes: vec![push_reply(each())], acks: vec![ack_reply()] }),
        ),
        last("fetch", Response::Fetch(fetched)),
        last("pop", Response::Pop(pop_reply())),
        last("ack", Response::Ack(ack_reply())),
        last("extend", Response::Extend(ExtendReply { renewed: 1, expires_at_us: 2 })),
        last("release", Response::Release(Released { partitions: 1 })),
        ("subscribe", Response::Subscribe(Subscribed { heartbeat_ms: 10_000 }), true),
        last("credit", Response::Credit(Done {})),
        last("unsubscribe", Response::Unsubscribe(Done {})),
        ("delivery", Response::Delivery(Delivery(pop_reply())), true),
        ("heartbeat", Response::Heartbeat(Heartbeat { time_us: 2 }), true),
        ("lease ended", Response::LeaseEnded(ended), true),
        last("subscription end", Response::SubscriptionEnd(SubscriptionEnd {})),
        last("queue create", Response::QueueCreate(queue_info())),
        last("queue get", Response::QueueGet(queue_info())),
        last("queue list", Response::QueueList(QueuePage { queues: vec![queue_info()] })),
        last("queue update", Response::QueueUpdate(queue_info())),
        last("queue delete", Response::QueueDelete(Deleted { existed: true })),
        last("partition list", Response::PartitionList(PartitionPage { partitions: vec![partition()] })),
        last("partition get", Response::PartitionGet(partition())),
        last("group declare", Response::GroupDeclare(group_info())),
        last("group get", Response::GroupGet(group_progress())),
        last("group list", Response::GroupList(GroupPage { groups: vec![group_progress()] })),
        last("group update", Response::GroupUpdate(group_info())),
        last("group delete", Response::GroupDelete(RemovedGroup { queues: 1, deleted_partitions: 3 })),
        last("group start", Response::GroupStart(GroupStarted { queues: 2 })),
        last("progress", Response::Progress(ProgressPage { cursors: vec![cursor()] })),
        last("seek", Response::Seek(SeekReply { total: 1, cursors: vec![preview] })),
        last("message get", Response::MessageGet(view)),
        last("dead letter list", Response::DeadLetterList(DeadLetterPage { total: 1, letters: vec![dead_letter()] })),
        last("dead letter get", Response::DeadLetterGet(dead_letter())),
        last("dead letter replay", Response::DeadLetterReplay(push_reply(PushResults::Range { base: 4, count: 1 }))),
        last("dead letter delete", Response::DeadLetterDelete(Deleted { existed: false })),
        last("trace write", Response::TraceWrite(Done {})),
        last("trace by name", Response::TraceByName(traces())),
        last("trace by message", Response::TraceByMessage(traces())),
        last("trace names", Response::TraceNames(TraceNamePage { names: vec![TraceName { name: text("order-42"), count: 2 }] })),
        last("losses", Response::LossesGet(Losses { unread: 3, damaged: 2 })),
        last("stats", Response::Stats(ServerStats { queues: 1, total: queue_stats(), ..ServerStats::default() })),
        last("filter test", Response::FilterTest(FilterResult { is_match: true })),
    ]
}
