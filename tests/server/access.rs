//! Who may do what, through the socket.

#[allow(dead_code)]
#[path = "../wire/samples.rs"]
mod samples;

use std::path::Path;

use fanlog::access::{NewToken, Role, TOKEN_FILE, TokenId, create_token, revoke_token};
use fanlog::client::Client;
use fanlog::model::{
    AckItem, AckRequest, AckTarget, AckVerb, Compression, DeadLetterQuery, ErrorCode, Now, PopRequest, PopSource, PushItem,
    PushRequest, SettingsPatch, Start, TransactionRequest,
};
use fanlog::protocol::{
    ErrorReply, FrameKind, GroupDelete, GroupList, Hello, Operation, Ping, Pop, QueueDelete, QueueGet, QueueList, Release,
    Request, Stats, Subscribe, Wire,
};
use fanlog::record::{BatchBuilder, Message};
use serde_json::json;

use tokio::net::TcpSocket;

use crate::harness::{Raw, Running, eventually, push_of, random_bytes};

/// A token with its text.
fn token(directory: &Path, role: Role, prefixes: &[&str]) -> (TokenId, String) {
    let queue_prefixes = prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
    let new = NewToken { name: format!("a {role}"), role, queue_prefixes, expires_at_us: None };
    let (token, text) = create_token(directory, new, Now::read().wall_us).unwrap();
    (token.id, text)
}

/// A server over this data directory, which has tokens.
fn start(directory: &Path) -> Running {
    Running::start_with(|launch| launch.data(directory))
}

async fn enter(server: &Running, token: &str) -> Raw {
    let mut raw = server.stranger().await;
    raw.call(&Hello::new("test", token)).await.unwrap();
    raw
}

async fn refusal(server: &Running, token: &str) -> ErrorReply {
    let mut raw = server.stranger().await;
    raw.send(&Hello::new("test", token)).await;
    raw.last_error().await
}

/// Who may do an operation, said here once more.
fn holders(operation: Operation, is_transaction_with_acks: bool) -> &'static [Role] {
    use Operation::*;
    const ALL: &[Role] = &Role::ALL;
    const ADMIN: &[Role] = &[Role::Admin];
    const READERS: &[Role] = &[Role::Admin, Role::ReadWrite, Role::ReadOnly];
    const PRODUCERS: &[Role] = &[Role::Admin, Role::ReadWrite, Role::WriteOnly];
    const WORKERS: &[Role] = &[Role::Admin, Role::ReadWrite];
    match operation {
        Hello | Ping => ALL,
        QueueDelete | GroupDelete => ADMIN,
        Transaction if is_transaction_with_acks => WORKERS,
        Push | Transaction => PRODUCERS,
        Pop | Ack | Extend | Release | Subscribe | Credit | Unsubscribe | Seek | TraceWrite => WORKERS,
        QueueCreate | QueueUpdate | GroupDeclare | GroupUpdate | GroupStart | DeadLetterReplay | DeadLetterDelete => WORKERS,
        _ => READERS,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_role_may_do_what_is_its_own_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = Role::ALL.map(|role| (role, token(directory.path(), role, &[]).1));
    let server = start(directory.path());
    let mut refused = 0;
    for (role, token) in &tokens {
        for (name, request) in samples::requests() {
            let operation = request.operation();
            let mut with_acks = false;
            let request = match request {
                Request::Hello(_) => continue,
                Request::Pop(pop) => Request::Pop(Pop { wait_ms: 0, ..pop }),
                Request::Fetch(fetch) => Request::Fetch(fanlog::protocol::Fetch { wait_ms: 0, ..fetch }),
                Request::Transaction(transaction) => {
                    with_acks = !transaction.acks.is_empty() || !transaction.required_leases.is_empty();
                    Request::Transaction(transaction)
                }
                request => request,
            };
            let mut raw = enter(&server, token).await;
            raw.write(&request.encode(9).into_bytes()).await;
            let frame = raw.frame().await.expect("an answer");
            assert_eq!(frame.correlation_id, 9);
            let error = (frame.kind == FrameKind::Error).then(|| ErrorReply::from_body(&frame.body).unwrap());
            let is_refused = error.as_ref().is_some_and(|error| error.code() == Some(ErrorCode::Unauthorized));
            assert_eq!(is_refused, !holders(operation, with_acks).contains(role), "{role}: {name}: {error:?}");
            if let Some(error) = error.filter(|_| is_refused) {
                refused += 1;
                assert!(error.text.contains(role.name()) && error.text.contains(operation.name()), "{}", error.text);
                assert!(!error.is_retryable);
            }
        }
    }
    assert!(refused > 40, "{refused} refusals");
    server.stop().await;
}

/// Two queues of one namespace, one of them in reach.
async fn two_queues(server: &Running, admin: &str) {
    let client = Client::builder(server.address.to_string()).token(admin).connect().await.unwrap();
    for queue in ["ours.a", "theirs.a"] {
        let settings = SettingsPatch { namespace: Some("shared".into()), ..SettingsPatch::default() };
        client.create_queue(queue, settings).await.unwrap();
        client.push(&push_of(queue, "p", ["one", "two"])).await.unwrap();
    }
    client.close().await;
}

fn pop(source: PopSource) -> Pop {
    Pop { request: PopRequest { source, partitions_max: 64, ..PopRequest::any("", 100) }, wait_ms: 0 }
}

fn queue(name: &str) -> PopSource {
    PopSource::Queue(name.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_with_a_prefix_reaches_and_sees_no_other_queues() {
    let directory = tempfile::tempdir().unwrap();
    let (_, bound) = token(directory.path(), Role::Admin, &["ours.", "mine"]);
    let (_, free) = token(directory.path(), Role::Admin, &[]);
    let server = start(directory.path());
    two_queues(&server, &free).await;
    let (mut raw, mut admin) = (enter(&server, &bound).await, enter(&server, &free).await);
    let unauthorized = |error: ErrorReply, operation: &str| {
        assert_eq!(error.code(), Some(ErrorCode::Unauthorized), "{}", error.text);
        assert!(error.text.starts_with(operation) && error.text.contains("role admin"), "{}", error.text);
        assert!(error.text.ends_with("only queues that begin with \"ours.\" or \"mine\""), "{}", error.text);
    };

    // By name, whether the queue exists or not.
    for theirs in ["theirs.a", "nothing", "ours"] {
        unauthorized(raw.call(&push_of(theirs, "p", ["x"])).await.unwrap_err(), "Push");
        unauthorized(raw.call(&pop(queue(theirs))).await.unwrap_err(), "Pop");
        unauthorized(raw.call(&QueueGet { queue: theirs.into() }).await.unwrap_err(), "QueueGet");
        unauthorized(raw.call(&QueueDelete { queue: theirs.into() }).await.unwrap_err(), "QueueDelete");
    }
    let subscribe = Subscribe { request: PopRequest::any("theirs.a", 1), credit_messages: 1, credit_bytes: 1 };
    let mut subscriber = enter(&server, &bound).await;
    subscriber.call(&subscribe).await.unwrap();
    unauthorized(subscriber.reply::<Subscribe>().await.1.unwrap_err(), "Subscribe");

    // In listings and counters.
    let names = |page: fanlog::protocol::QueuePage| page.queues.into_iter().map(|queue| queue.name).collect::<Vec<_>>();
    assert_eq!(names(raw.call(&QueueList { after: None, limit: 10 }).await.unwrap()), ["ours.a"]);
    assert_eq!(names(admin.call(&QueueList { after: None, limit: 10 }).await.unwrap()), ["ours.a", "theirs.a"]);
    assert_eq!(raw.call(&Stats {}).await.unwrap().total.messages_pushed, 2);
    assert_eq!(raw.call(&DeadLetterQuery { limit: 10, ..DeadLetterQuery::default() }).await.unwrap().total, 0);

    // A lease that reaches into another queue is not theirs to keep or to end.
    let everywhere = || pop(PopSource::Discover { namespace: Some("shared".into()), task: None });
    let both = admin.call(&everywhere()).await.unwrap();
    assert_eq!(both.claims.len(), 2);
    assert_eq!(raw.call(&Release { lease_id: both.lease_id.clone() }).await.unwrap().partitions, 0);
    let renew = fanlog::protocol::Extend { lease_id: both.lease_id.clone(), lease_ms: Some(60_000) };
    assert_eq!(raw.call(&renew).await.unwrap().renewed, 0);
    let transaction = TransactionRequest { required_leases: vec![both.lease_id.clone()], ..TransactionRequest::default() };
    let pushing = TransactionRequest { pushes: vec![push_of("ours.a", "p", ["x"])], ..transaction };
    assert_eq!(raw.call(&pushing).await.unwrap_err().code(), Some(ErrorCode::LeaseLost));
    assert_eq!(admin.call(&Release { lease_id: both.lease_id }).await.unwrap().partitions, 2);

    // Pops over a namespace take from what is in reach.
    let taken = raw.call(&everywhere()).await.unwrap();
    assert_eq!(taken.claims.iter().map(|claim| claim.queue.as_str()).collect::<Vec<_>>(), ["ours.a"]);

    // A transaction happens as a whole or not at all.
    let ack = AckRequest {
        queue: "theirs.a".into(),
        partition_id: 0,
        group: None,
        lease_id: String::new(),
        items: vec![AckItem { target: AckTarget::Offset(0), verb: AckVerb::Completed, reason: String::new(), delay_ms: 0 }],
    };
    let pushes = vec![push_of("ours.a", "p", ["three"])];
    let reaching = TransactionRequest { pushes: pushes.clone(), acks: vec![ack], required_leases: Vec::new() };
    unauthorized(raw.call(&reaching).await.unwrap_err(), "Transaction");
    let pushing = TransactionRequest { pushes: [pushes, vec![push_of("theirs.a", "p", ["x"])]].concat(), ..Default::default() };
    unauthorized(raw.call(&pushing).await.unwrap_err(), "Transaction");
    assert_eq!(admin.call(&Stats {}).await.unwrap().total.messages_pushed, 4);
    // Nor is a queue made for one that does not happen.
    let pushes = vec![push_of("ours.new", "p", ["x"]), push_of("theirs.a", "p", ["x"])];
    let half = TransactionRequest { pushes, ..Default::default() };
    unauthorized(raw.call(&half).await.unwrap_err(), "Transaction");
    assert_eq!(names(raw.call(&QueueList { after: None, limit: 10 }).await.unwrap()), ["ours.a"]);

    // A group goes from what is in reach only.
    for name in ["ours.a", "theirs.a"] {
        let request = Pop { request: PopRequest::any(name, 1).group("both"), wait_ms: 0 };
        admin.call(&request).await.unwrap();
    }
    assert_eq!(raw.call(&GroupDelete { group: "both".into(), queue: None, expected_version: None }).await.unwrap().queues, 1);
    let all = GroupList { queue: None, group: Some("both".into()), lag_min_s: None };
    assert_eq!(admin.call(&all).await.unwrap().groups.len(), 1);
    assert!(raw.call(&all).await.unwrap().groups.is_empty());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_ends_its_sessions_and_no_others() {
    let directory = tempfile::tempdir().unwrap();
    let (id, gone) = token(directory.path(), Role::ReadWrite, &[]);
    let (_, kept) = token(directory.path(), Role::ReadWrite, &[]);
    let (_, admin) = token(directory.path(), Role::Admin, &[]);
    let server = start(directory.path());
    let (mut idle, mut waiting) = (enter(&server, &gone).await, enter(&server, &gone).await);
    let mut bystander = enter(&server, &kept).await;
    two_queues(&server, &admin).await;
    let patient = Pop { request: PopRequest::any("ours.a", 10).group("late"), wait_ms: 60_000 };
    waiting.send(&patient).await;
    assert!(revoke_token(directory.path(), &id).unwrap());
    for raw in [&mut idle, &mut waiting] {
        let error = raw.last_error().await;
        assert_eq!((error.code(), error.text.as_str()), (Some(ErrorCode::Unauthorized), "token is no longer valid"));
    }
    assert_eq!(refusal(&server, &gone).await.text, "token is wrong");
    assert_eq!(bystander.call(&Ping { nonce: 4 }).await.unwrap().nonce, 4);
    // One that is made while the server runs is known soon.
    let (_, fresh) = token(directory.path(), Role::ReadOnly, &[]);
    eventually(async || {
        let mut raw = server.stranger().await;
        raw.call(&Hello::new("test", &*fresh)).await.ok()
    })
    .await;
    // A file that is damaged meanwhile shuts nobody out and lets nobody in.
    std::fs::write(directory.path().join(TOKEN_FILE), "[]").unwrap();
    eventually(async || server.program().words().contains("the tokens that were known stay as they were").then_some(())).await;
    assert_eq!(bystander.call(&Ping { nonce: 5 }).await.unwrap().nonce, 5);
    assert_eq!(refusal(&server, "").await.text, "server asks for a token");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_expires_ends_its_sessions() {
    let directory = tempfile::tempdir().unwrap();
    token(directory.path(), Role::Admin, &[]);
    let server = start(directory.path());
    let until_us = Now::read().wall_us + 1_500_000;
    let new = NewToken { name: "brief".into(), role: Role::Admin, queue_prefixes: Vec::new(), expires_at_us: Some(until_us) };
    let (_, text) = create_token(directory.path(), new, 0).unwrap();
    server.program().hang_up("tokens and certificates are read again");
    let mut raw = enter(&server, &text).await;
    assert_eq!(raw.last_error().await.text, "token has expired");
    assert!(Now::read().wall_us >= until_us);
    assert_eq!(refusal(&server, &text).await.text, "token has expired");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_tokens_are_limited_and_who_has_one_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let (_, text) = token(directory.path(), Role::ReadWrite, &[]);
    let server = Running::start_with(|launch| launch.data(directory.path()).setting("FANLOG_TOKEN", "secret"));
    let mut friend = enter(&server, "secret").await;
    for _ in 0..10 {
        assert_eq!(refusal(&server, "guess").await.code(), Some(ErrorCode::Unauthorized));
    }
    for guess in ["guess", "secret"] {
        let error = refusal(&server, guess).await;
        assert_eq!(error.code(), Some(ErrorCode::Busy), "{guess}");
        assert!(error.retry_after_ms > 0 && error.text.starts_with("too many failed attempts"), "{}", error.text);
    }
    friend.call(&Ping { nonce: 1 }).await.unwrap();
    enter(&server, &text).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_a_hello_leave_room_for_those_with_one() {
    let server = Running::start_with(|launch| launch.setting("FANLOG_HANDSHAKES_MAX", 2));
    let mut old = server.raw().await;
    let silent = [server.stranger().await, server.stranger().await];
    // Those two are accepted when a third is turned away.
    let error = eventually(async || {
        let mut third = server.stranger().await;
        third.send(&Hello::new("third", "")).await;
        let frame = third.frame().await?;
        (frame.kind == FrameKind::Error).then(|| ErrorReply::from_body(&frame.body).unwrap())
    })
    .await;
    assert_eq!(error.code(), Some(ErrorCode::Busy), "{}", error.text);
    old.call(&Ping { nonce: 1 }).await.unwrap();
    drop(silent);
    eventually(async || {
        let mut next = server.stranger().await;
        next.send(&Hello::new("next", "")).await;
        next.frame().await.filter(|frame| frame.kind != FrameKind::Error)
    })
    .await;
    server.stop().await;
}

/// One address used to have all places of those who have not said hello.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_without_hellos_leaves_room_for_others() {
    let server = Running::start_with(|launch| launch.setting("FANLOG_HANDSHAKES_MAX", 8));
    let mut silent = Vec::new();
    for _ in 0..8 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        silent.push(socket.connect(server.address).await.unwrap());
    }
    // All of them were let in or turned away before.
    server.raw().await.call(&Ping { nonce: 1 }).await.unwrap();
    drop(silent);
    server.stop().await;
}

/// A session that was over used to go on consuming while its client took what was written slowly enough.
#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_does_not_consume_on_however_slowly_its_client_reads() {
    let directory = tempfile::tempdir().unwrap();
    let (id, gone) = token(directory.path(), Role::ReadWrite, &[]);
    let (_, admin) = token(directory.path(), Role::Admin, &[]);
    let server = start(directory.path());
    let mut operator = enter(&server, &admin).await;
    for seed in 0..50 {
        operator.call(&push_of("q", "p", [random_bytes(100_000, seed)])).await.unwrap();
    }
    let sockets = || {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", server.program().pid())).unwrap();
        let targets = entries.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
        targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
    };
    let before = sockets();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut slow = server.stranger_on(socket.connect(server.address).await.unwrap());
    slow.call(&Hello::new("slow", &*gone)).await.unwrap();
    let request = PopRequest { auto_ack: true, start: Some(Start::Beginning), ..PopRequest::any("q", 1).group("slow") };
    slow.send(&Subscribe { request, credit_messages: 100_000, credit_bytes: 1 << 31 }).await;
    let popped = async |raw: &mut Raw| raw.call(&Stats {}).await.unwrap().total.messages_popped;
    eventually(async || (popped(&mut operator).await > 0).then_some(())).await;
    let started = std::time::Instant::now();
    assert!(revoke_token(directory.path(), &id).unwrap());
    eventually(async || (sockets() == before).then_some(())).await;
    assert!(started.elapsed() < std::time::Duration::from_secs(15), "{:?}", started.elapsed());
    server.stop().await;
}

/// Who produced a message is what a door has found out, and not what a client writes, packed or plain.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_does_not_write_who_produced_a_message() {
    let server = Running::start();
    let mut raw = server.raw().await;
    let message = |key: &str, value: &str| {
        let mut message = Message::new("x");
        message.attributes.insert(key, value).unwrap();
        message
    };
    let packed = |message: &Message| {
        let mut builder = BatchBuilder::with_capacity(1, 1);
        builder.push(message);
        PushItem::Packed(builder.finish(Compression::default()))
    };
    let push = |items| PushRequest { items, ..push_of("q", "p", ["x"]) };
    let forged = message("fanlog.producer", "forged");
    for items in [PushItem::Messages(vec![forged.clone()]), packed(&forged)] {
        let error = raw.call(&push(items.clone())).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::BadAttribute), "{}", error.text);
        let transaction = TransactionRequest { pushes: vec![push(items)], ..TransactionRequest::default() };
        assert_eq!(raw.call(&transaction).await.unwrap_err().code(), Some(ErrorCode::BadAttribute));
    }
    let innocent = message("about", "fanlog.producer");
    for items in [PushItem::Messages(vec![innocent.clone()]), packed(&innocent)] {
        raw.call(&push(items)).await.unwrap();
    }
    assert_eq!(raw.call(&Stats {}).await.unwrap().total.messages_pushed, 2);
    server.stop().await;
}

/// A JSON web token signed with a secret.
fn hs256(secret: &[u8], claims: &serde_json::Value) -> String {
    use base64::Engine as _;
    let encode = |bytes: &[u8]| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes);
    let message = format!("{}.{}", encode(b"{\"alg\":\"HS256\"}"), encode(claims.to_string().as_bytes()));
    let signature = ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret), message.as_bytes());
    format!("{message}.{}", encode(signature.as_ref()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_json_web_token_is_a_token_too() {
    const SECRET: &[u8] = b"a secret that nobody guesses soon";
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("jwt.key");
    std::fs::write(&key, SECRET).unwrap();
    let server = Running::start_with(|launch| launch.flag("--jwt-algorithm", "HS256").flag("--jwt-key-file", &key));
    assert_eq!(refusal(&server, "").await.text, "server asks for a token");
    let exp = Now::read().wall_us / 1_000_000 + 600;
    let claims = json!({ "sub": "shop", "role": "read-only", "queue_prefixes": ["ours."], "exp": exp });
    two_queues(&server, &hs256(SECRET, &json!({ "role": "admin", "exp": exp }))).await;
    let mut raw = enter(&server, &hs256(SECRET, &claims)).await;
    assert_eq!(raw.call(&QueueList { after: None, limit: 10 }).await.unwrap().queues.len(), 1);
    let error = raw.call(&push_of("ours.a", "p", ["x"])).await.unwrap_err();
    assert_eq!(error.text, "role read-only does not allow Push, it needs admin or read-write or write-only");
    let past = json!({ "role": "admin", "exp": exp - 1200 });
    assert_eq!(refusal(&server, &hs256(SECRET, &past)).await.text, "JWT is refused: ExpiredSignature");
    assert_eq!(refusal(&server, &hs256(b"another", &claims)).await.code(), Some(ErrorCode::Unauthorized));
    server.stop().await;
}
