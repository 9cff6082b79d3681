//! Who may do what, over HTTP.

use std::time::{Duration, Instant};

use fanlog::access::{NewToken, Role, TokenId, create_token, revoke_token};
use fanlog::model::Now;
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::program::{Launch, contents, eventually};
use crate::server::{Server, metric, push};

/// A server that knows the tokens of a directory.
struct Guarded {
    server: Server,
}

impl Guarded {
    fn start() -> Self {
        Self { server: Server::start_with(|launch| launch.setting("FANLOG_TOKEN", "secret")) }
    }

    fn token(&self, role: Role, prefixes: &[&str]) -> (TokenId, String) {
        let queue_prefixes = prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
        let new = NewToken { name: "test".into(), role, queue_prefixes, expires_at_us: None };
        let (token, text) = create_token(&self.server.data(), new, 0).unwrap();
        self.server.reload();
        (token.id, text)
    }
}

fn send(client: &mut Client, token: &str, method: &str, path: &str, body: &Value) -> Answer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.raw(format!("{head}{body}").as_bytes());
    client.answer()
}

/// Who may call a route, said here once more.
fn holders(method: &str, path: &str) -> &'static [Role] {
    const ADMIN: &[Role] = &[Role::Admin];
    const READERS: &[Role] = &[Role::Admin, Role::ReadWrite, Role::ReadOnly];
    const PRODUCERS: &[Role] = &[Role::Admin, Role::ReadWrite, Role::WriteOnly];
    const WORKERS: &[Role] = &[Role::Admin, Role::ReadWrite];
    match (method, path) {
        ("get", "/health" | "/healthz" | "/readyz" | "/version" | "/openapi.json") => &Role::ALL,
        ("post", "/api/v1/push" | "/api/v1/transaction") => PRODUCERS,
        ("post", "/api/v1/filters/test") => READERS,
        ("get", path) if path.starts_with("/api/v1/pop") => WORKERS,
        ("get", _) => READERS,
        ("put", _) => ADMIN,
        ("post", path) if path.starts_with("/api/v1/system/") => ADMIN,
        ("delete", path) if path.contains("/dlq/") || path.contains("/messages/") => WORKERS,
        ("delete", _) => ADMIN,
        _ => WORKERS,
    }
}

#[test]
fn every_role_may_call_what_is_its_own_and_nothing_else() {
    let guarded = Guarded::start();
    let tokens = Role::ALL.map(|role| (role, guarded.token(role, &[]).1));
    let mut client = guarded.server.client();
    let document = send(&mut client, "secret", "GET", "/openapi.json", &Value::Null).expect(200);
    let mut refused = 0;
    for (role, token) in &tokens {
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys() {
                let concrete = path.replace(['{', '}'], "x");
                let answer = send(&mut client, token, &method.to_uppercase(), &concrete, &json!({}));
                let is_refused = answer.status == 403;
                assert_ne!(answer.status, 401, "{role}: {method} {path}");
                assert_eq!(is_refused, !holders(method, path).contains(role), "{role}: {method} {path}: {}", answer.text);
                if is_refused {
                    refused += 1;
                    let body = answer.json();
                    assert_eq!(body["code"], "unauthorized");
                    let text = body["error"].as_str().unwrap();
                    let named = format!("role {role} does not allow {} {path}, it needs ", method.to_uppercase());
                    assert!(text.starts_with(&named), "{text}");
                }
            }
        }
    }
    assert!(refused > 90, "{refused} refusals");
}

#[test]
fn a_transaction_that_acknowledges_needs_more_than_one_that_pushes() {
    let guarded = Guarded::start();
    let (_, writer) = guarded.token(Role::WriteOnly, &[]);
    let mut client = guarded.server.client();
    let pushing = json!({ "operations": [{ "type": "push", "items": [{ "queue": "q", "payload": 1 }] }] });
    assert_eq!(send(&mut client, &writer, "POST", "/api/v1/transaction", &pushing).expect(200)["success"], true);
    let ack = json!({ "type": "ack", "transactionId": "t", "partitionId": "p", "status": "completed" });
    for refused in [json!({ "operations": [ack] }), json!({ "operations": [], "requiredLeases": ["1-1"] })] {
        let answer = send(&mut client, &writer, "POST", "/api/v1/transaction", &refused).expect(403);
        assert!(answer["error"].as_str().unwrap().starts_with("role write-only does not allow acknowledgements"), "{answer}");
    }
}

#[test]
fn a_token_with_a_prefix_reaches_and_sees_no_other_queues() {
    let guarded = Guarded::start();
    let (_, bound) = guarded.token(Role::Admin, &["ours."]);
    let mut client = guarded.server.client();
    for queue in ["ours.a", "theirs.a"] {
        let configure = json!({ "queue": queue, "namespace": "shared", "task": "t" });
        send(&mut client, "secret", "POST", "/api/v1/configure", &configure).expect(200);
        let body = json!({ "items": [{ "queue": queue, "payload": 1 }] });
        send(&mut client, "secret", "POST", "/api/v1/push", &body).expect(201);
        let taken = send(&mut client, "secret", "GET", &format!("/api/v1/pop/queue/{queue}?consumerGroup=theirs"), &Value::Null);
        assert!([200, 204].contains(&taken.status), "{}", taken.text);
        // There is something in the series.
        send(&mut client, "secret", "POST", "/api/v1/stats/refresh", &Value::Null).expect(200);
    }

    let refused = [
        ("POST", "/api/v1/push", json!({ "items": [{ "queue": "theirs.a", "payload": 1 }] })),
        ("POST", "/api/v1/push", json!({ "items": [{ "queue": "nothing", "payload": 1 }] })),
        ("GET", "/api/v1/pop/queue/theirs.a", Value::Null),
        ("POST", "/api/v1/configure", json!({ "queue": "theirs.b" })),
        ("GET", "/api/v1/resources/queues/theirs.a", Value::Null),
        ("GET", "/api/v1/status/queues/theirs.a", Value::Null),
        ("DELETE", "/api/v1/resources/queues/theirs.a", Value::Null),
        ("GET", "/api/v1/queues/theirs.a/partitions/Default/messages", Value::Null),
        ("POST", "/api/v1/queues/theirs.a/groups", json!({ "name": "g" })),
        (
            "POST",
            "/api/v1/transaction",
            json!({ "operations": [
                { "type": "push", "items": [{ "queue": "ours.a", "payload": 2 }, { "queue": "theirs.a", "payload": 2 }] },
            ] }),
        ),
    ];
    for (method, path, body) in &refused {
        let answer = send(&mut client, &bound, method, path, body);
        assert_eq!(answer.status, 403, "{method} {path}: {}", answer.text);
        assert!(answer.text.contains("role admin may not use queue"), "{}", answer.text);
    }
    // Nobody who is bound changes the server.
    let filter = json!({ "filter": "info" });
    assert_eq!(send(&mut client, &bound, "PUT", "/api/v1/system/log-filter", &filter).status, 403);

    let document = send(&mut client, "secret", "GET", "/openapi.json", &Value::Null).expect(200);
    let mut looked = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        if methods.get("get").is_some() && !path.contains('{') && path != "/openapi.json" {
            let query = if path == "/api/v1/pop" { "?namespace=shared" } else { "" };
            let answer = send(&mut client, &bound, "GET", &format!("{path}{query}"), &Value::Null);
            assert!(!answer.text.contains("theirs.a"), "{path} shows what it must not: {}", answer.text);
            looked += 1;
        }
    }
    assert!(looked > 20, "{looked} routes");
    let listed = send(&mut client, &bound, "GET", "/api/v1/resources/queues", &Value::Null).expect(200);
    assert!(listed.to_string().contains("ours.a"), "{listed}");
    let all = send(&mut client, "secret", "GET", "/api/v1/resources/queues", &Value::Null).expect(200);
    assert!(all.to_string().contains("theirs.a"), "{all}");

    // Part of a push is in reach: that part is stored, the other says why not.
    let both = json!({ "items": [{ "queue": "ours.a", "payload": 1 }, { "queue": "theirs.a", "payload": 1 }] });
    let rows = send(&mut client, &bound, "POST", "/api/v1/push", &both).expect(201);
    assert_eq!((rows[0]["status"].as_str(), rows[1]["code"].as_str()), (Some("queued"), Some("unauthorized")), "{rows}");
    let theirs = send(&mut client, "secret", "GET", "/api/v1/queues/theirs.a/partitions", &Value::Null).expect(200);
    assert_eq!(theirs["partitions"][0]["end"], 1, "{theirs}");
}

/// A sample that a bound token asked for used to have its queues only: the history of the others was gone.
#[test]
fn a_token_with_a_prefix_leaves_the_history_of_others_as_it_was() {
    let guarded = Guarded::start();
    let (_, bound) = guarded.token(Role::ReadWrite, &["ours."]);
    let mut client = guarded.server.client();
    for queue in ["ours.a", "theirs.a"] {
        let body = json!({ "items": [{ "queue": queue, "payload": 1 }] });
        send(&mut client, "secret", "POST", "/api/v1/push", &body).expect(201);
    }
    for token in ["secret", &bound] {
        send(&mut client, token, "POST", "/api/v1/stats/refresh", &Value::Null).expect(200);
        let path = "/api/v1/analytics/queue-ops?interval=1";
        let body = send(&mut client, "secret", "GET", path, &Value::Null).expect(200);
        let names: Vec<_> = body["queues"].as_array().unwrap().iter().map(|queue| &queue["queue"]).collect();
        assert_eq!(names, ["ours.a", "theirs.a"]);
        let path = "/api/v1/analytics/retention?interval=1";
        let body = send(&mut client, "secret", "GET", path, &Value::Null).expect(200);
        assert_eq!(body["timeSeries"].as_array().unwrap().last().unwrap()["messages"], 2, "{body}");
    }
}

#[test]
fn a_token_with_a_prefix_learns_of_the_recovery_of_its_own_queues() {
    let directory = tempfile::tempdir().unwrap();
    let start = |directory| Server::start_in(directory, |launch| launch.setting("FANLOG_TOKEN", "secret"));
    let (data, beside) = (directory.path().join("data"), directory.path().to_owned());
    let program = Launch::in_directory(&beside).http().setting("FANLOG_TOKEN", "secret").start();
    let mut client = Client::connect(program.http.as_ref().unwrap().parse().unwrap());
    for queue in ["ours.a", "theirs.a"] {
        let body = json!({ "items": [{ "queue": queue, "payload": 1 }] });
        send(&mut client, "secret", "POST", "/api/v1/push", &body).expect(201);
    }
    program.stop();
    // Each queue loses what it had.
    for path in contents(&data).keys().filter(|path| path.extension().is_some_and(|extension| extension == "segment")) {
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(72).unwrap();
    }
    let server = start(directory);
    let new = NewToken { name: "test".into(), role: Role::WriteOnly, queue_prefixes: vec!["ours.".into()], expires_at_us: None };
    let (_, bound) = create_token(&data, new, 0).unwrap();
    server.reload();
    let mut client = server.client();
    let whole = send(&mut client, "secret", "GET", "/readyz", &Value::Null).json()["recovery"].clone();
    let queues = |recovery: &Value| -> Vec<Value> {
        recovery["findings"].as_array().unwrap().iter().map(|finding| finding["queue"].clone()).collect()
    };
    assert!(queues(&whole).contains(&json!("theirs.a")) && whole["partitions"] == 2, "{whole}");
    let part = send(&mut client, &bound, "GET", "/readyz", &Value::Null).json()["recovery"].clone();
    assert!(!queues(&part).is_empty() && queues(&part).iter().all(|queue| queue == "ours.a"), "{part}");
    assert!(part["partitions"].is_null() && part["messages"].is_null() && !part.to_string().contains("theirs"), "{part}");
}

#[test]
fn pages_of_others_reach_nothing_without_tokens() {
    let server = Server::start();
    let mut client = server.client();
    let host = server.address.to_string();
    let body = json!({ "items": [{ "queue": "bank", "payload": 1 }] }).to_string();
    let mut ask = |method: &str, path: &str, host: &str, more: &str, body: &str| {
        let length = body.len();
        client
            .raw(format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{more}content-length: {length}\r\n\r\n{body}").as_bytes());
        client.answer()
    };
    let foreign = "origin: https://evil.example\r\ncontent-type: text/plain\r\n";
    for (host, more) in [
        (host.as_str(), foreign),
        (&host, "sec-fetch-site: cross-site\r\n"),
        // A name of somebody's that was pointed to this machine.
        ("evil.example:6632", ""),
        ("evil.example:6632", "origin: http://evil.example:6632\r\nsec-fetch-site: same-origin\r\n"),
    ] {
        for (method, path) in
            [("POST", "/api/v1/push"), ("GET", "/api/v1/pop/queue/bank"), ("GET", "/metrics"), ("GET", "/nothing")]
        {
            let refused = ask(method, path, host, more, &body).expect(403);
            assert_eq!(refused["code"], "foreign_page", "{method} {path} {more}");
        }
        assert_eq!(ask("GET", "/healthz", host, more, "").status, 200);
    }
    let own = format!("origin: http://{host}\r\nsec-fetch-site: same-origin\r\n");
    for (host, more) in [(host.as_str(), own.as_str()), ("localhost", ""), ("[::1]:6632", "")] {
        assert_eq!(ask("POST", "/api/v1/push", host, more, &body).status, 201, "{host} {more}");
    }
    // No page makes a browser send a token.
    let guarded = Guarded::start();
    let mut client = guarded.server.client();
    client.raw(
        b"GET /api/v1/status HTTP/1.1\r\nhost: logs.example\r\norigin: https://app.example\r\nauthorization: bearer secret\r\n\r\n",
    );
    assert_eq!(client.answer().status, 200);
}

#[test]
fn probes_fail_no_attempts_and_a_long_secret_is_never_locked() {
    let long = "x".repeat(32);
    let server = Server::start_with(|launch| launch.setting("FANLOG_TOKEN", &long));
    let mut client = server.client();
    for path in ["/health", "/healthz", "/version"].iter().cycle().take(30) {
        send(&mut client, "guess", "GET", path, &Value::Null).expect(200);
    }
    for _ in 0..10 {
        send(&mut client, "guess", "GET", "/api/v1/status", &Value::Null).expect(401);
    }
    send(&mut client, "guess", "GET", "/api/v1/status", &Value::Null).expect(429);
    send(&mut client, &long, "GET", "/api/v1/status", &Value::Null).expect(200);
}

#[test]
fn a_revoked_token_is_refused_at_once_and_its_waiting_pop_too() {
    let guarded = Guarded::start();
    let (id, text) = guarded.token(Role::ReadWrite, &[]);
    let mut client = guarded.server.client();
    send(&mut client, "secret", "POST", "/api/v1/configure", &json!({ "queue": "q" })).expect(200);
    let head = format!(
        "GET /api/v1/pop/queue/q?wait=true&timeout=25000 HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {text}\r\n\r\n"
    );
    client.raw(head.as_bytes());
    let mut operator = guarded.server.client();
    eventually(|| {
        let text = send(&mut operator, "secret", "GET", "/metrics/prometheus", &Value::Null).text;
        metric(&text, "fanlog_waiting_pops") == 1.0
    });
    let started = Instant::now();
    revoke_token(&guarded.server.data(), &id).unwrap();
    guarded.server.reload();
    assert_eq!(client.answer().expect(401)["error"], "token is no longer valid");
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(send(&mut client, &text, "GET", "/api/v1/status", &Value::Null).expect(401)["error"], "token is wrong");
}

#[test]
fn wrong_tokens_are_limited() {
    let guarded = Guarded::start();
    let (_, text) = guarded.token(Role::ReadOnly, &[]);
    let mut client = guarded.server.client();
    for _ in 0..10 {
        send(&mut client, "guess", "GET", "/api/v1/status", &Value::Null).expect(401);
    }
    for guess in ["guess", "secret"] {
        let answer = send(&mut client, guess, "GET", "/api/v1/status", &Value::Null);
        assert!(answer.head.contains("retry-after"), "{}", answer.head);
        assert_eq!(answer.expect(429)["code"], "busy");
    }
    send(&mut client, &text, "GET", "/api/v1/status", &Value::Null).expect(200);
    assert_eq!(client.get("/health").status, 200);
}

#[test]
fn who_does_not_prove_who_they_are_does_not_keep_a_connection() {
    let guarded = Guarded::start();
    let (mut stranger, mut friend) = (guarded.server.client(), guarded.server.client());
    send(&mut friend, "secret", "GET", "/api/v1/status", &Value::Null).expect(200);
    assert_eq!(stranger.get("/health").status, 200);
    stranger.raw(b"GET /health HTTP/1.1\r\n");
    let started = Instant::now();
    assert!(stranger.is_closed());
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    send(&mut friend, "secret", "GET", "/api/v1/status", &Value::Null).expect(200);
}

/// A message has a producer only if a validated JWT says so.
#[test]
fn a_producer_is_never_taken_from_the_body() {
    let server = Server::start();
    let mut client = server.client();
    push(&mut client, "q", &[json!(1)]);
    let forged = json!({ "items": [{ "queue": "q", "payload": 2, "producerSub": "forged" }] });
    client.post("/api/v1/push", &forged).expect(201);
    let messages = client.get("/api/v1/pop/queue/q?batch=10").expect(200);
    assert_eq!(messages["messages"].as_array().unwrap().len(), 2);
    assert!(messages["messages"].as_array().unwrap().iter().all(|message| message["producerSub"].is_null()), "{messages}");
}

/// A JSON web token signed with a secret.
fn hs256(secret: &[u8], claims: &Value) -> String {
    use base64::Engine as _;
    let encode = |bytes: &[u8]| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes);
    let message = format!("{}.{}", encode(b"{\"alg\":\"HS256\"}"), encode(claims.to_string().as_bytes()));
    let signature = ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret), message.as_bytes());
    format!("{message}.{}", encode(signature.as_ref()))
}

#[test]
fn the_subject_of_a_json_web_token_is_the_producer() {
    const SECRET: &[u8] = b"a secret that nobody guesses soon";
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("jwt.key");
    std::fs::write(&key, SECRET).unwrap();
    let server = Server::start_with(|launch| launch.flag("--jwt-algorithm", "HS256").flag("--jwt-key-file", &key));
    let mut client = server.client();
    let exp = Now::read().wall_us / 1_000_000 + 600;
    let shop = hs256(SECRET, &json!({ "sub": "shop", "role": "read-write", "exp": exp }));
    let nameless = hs256(SECRET, &json!({ "roles": ["read-write"], "exp": exp }));
    let item = |payload: u32| json!({ "queue": "q", "payload": payload, "producerSub": "forged" });
    for (token, payload) in [(&shop, 1), (&nameless, 2)] {
        send(&mut client, token, "POST", "/api/v1/push", &json!({ "items": [item(payload)] })).expect(201);
    }
    let transaction = json!({ "operations": [{ "type": "push", "items": [item(3)] }] });
    assert_eq!(send(&mut client, &shop, "POST", "/api/v1/transaction", &transaction).expect(200)["success"], true);
    let popped = send(&mut client, &shop, "GET", "/api/v1/pop/queue/q?batch=10", &Value::Null).expect(200);
    let producers: Vec<_> = popped["messages"].as_array().unwrap().iter().map(|message| &message["producerSub"]).collect();
    assert_eq!(producers, [&json!("shop"), &Value::Null, &json!("shop")]);
    // Nor by the attribute that carries it.
    let attribute = json!({ "items": [{ "queue": "q", "payload": 1, "attributes": { "fanlog.producer": "forged" } }] });
    assert_eq!(send(&mut client, &shop, "POST", "/api/v1/push", &attribute).status, 400);
    for (token, text) in [
        (hs256(SECRET, &json!({ "role": "admin", "exp": exp - 1200 })), "JWT is refused: ExpiredSignature"),
        (format!("{}.e30.AAAA", "eyJhbGciOiJ4XG4yMDMwIElORk8ifQ"), "JWT is refused: InvalidToken"),
        (hs256(b"guess", &json!({ "role": "admin", "exp": exp })), "JWT is refused: InvalidSignature"),
        (hs256(SECRET, &json!({ "sub": "shop", "exp": exp })), "JWT is refused: its claim \"role\" names no role"),
    ] {
        assert_eq!(send(&mut client, &token, "GET", "/api/v1/status", &Value::Null).expect(401)["error"], text);
    }
}
