//! Bad input and clients that misbehave.

use std::time::{Duration, Instant};

use fanlog::http::HttpOptions;
use serde_json::{Value, json};

use crate::client::Client;
use crate::inside::Inside;
use crate::program::eventually;
use crate::server::{Server, push, unique};

#[test]
fn unknown_routes_and_methods_are_json_errors() {
    let server = Server::start();
    let mut client = server.client();
    for path in ["/api/v1/nothing", "/api/v2/push", "/nothing", "/", "/api/v1/queues/x/clear"] {
        let body = client.get(path).expect(404);
        assert_eq!(body, json!({ "error": "Not Found", "code": "no_such_route" }), "{path}");
    }
    for (method, path) in
        [("GET", "/api/v1/push"), ("DELETE", "/api/v1/pop"), ("BREW", "/health"), ("POST", "/api/v1/consumer-groups")]
    {
        let body = client.send(method, path, None).expect(405);
        assert_eq!(body["code"], "method_not_allowed", "{method} {path}");
    }
}

#[test]
fn a_body_over_the_limit_is_413_in_plain_text_and_is_not_waited_for() {
    let server = Server::start();
    let mut client = server.client();
    client.raw(b"POST /api/v1/push HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000000\r\n\r\n");
    let answer = client.answer();
    assert_eq!(answer.status, 413);
    assert!(answer.head.contains("text/plain") && answer.text.contains(&(64 << 20).to_string()), "{answer:?}");
    let mut client = server.client();
    client.raw(b"POST /api/v1/push HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n");
    let chunk = format!("{:x}\r\n{}\r\n", 1 << 20, "x".repeat(1 << 20));
    for _ in 0..65 {
        client.raw(chunk.as_bytes());
    }
    client.raw(b"0\r\n\r\n");
    assert_eq!(client.answer().status, 413);
    let queue = unique("fits");
    push(&mut server.client(), &queue, &[json!("x".repeat(90_000))]);
}

#[test]
fn a_message_over_the_engines_limit_is_refused() {
    let server = Server::start();
    let mut client = server.client();
    let body = json!({ "items": [{ "queue": unique("huge"), "payload": "x".repeat(17 << 20) }] });
    assert_eq!(client.post("/api/v1/push", &body).status, 413);
    assert_eq!(client.get("/health").status, 200);
}

#[test]
fn bodies_over_the_memory_budget_are_refused_as_busy() {
    let server = Inside::start(HttpOptions { body_bytes_total_max: 50_000, ..HttpOptions::default() });
    let mut client = server.client();
    let body = json!({ "items": [{ "queue": unique("budget"), "payload": "x".repeat(30_000) }] });
    let deadline = Instant::now() + Duration::from_secs(10);
    let holder = loop {
        let mut holder = server.client();
        holder.raw(b"POST /api/v1/push HTTP/1.1\r\nhost: localhost\r\ncontent-length: 60000\r\n\r\n");
        holder.raw("x".repeat(40_000).as_bytes());
        let answer = client.post("/api/v1/push", &body);
        if answer.status == 429 {
            assert_eq!(answer.json()["code"], "busy");
            assert!(answer.head.contains("retry-after"));
            break holder;
        }
        // The first one's bytes were read behind these, and it may be the one that was refused: once more with another.
        assert!(Instant::now() < deadline, "{answer:?}");
    };
    drop(holder);
    let mut client = server.client();
    while client.post("/api/v1/push", &body).status != 201 {
        assert!(Instant::now() < deadline);
    }
}

#[test]
fn connections_over_the_limit_wait_for_a_place() {
    let server = Server::start_with(|launch| launch.setting("FANLOG_CONNECTIONS_MAX", 2));
    let mut first = server.client();
    assert_eq!(first.get("/health").status, 200);
    let mut second = server.client();
    assert_eq!(second.get("/health").status, 200);
    let mut third = server.client();
    third.request("GET", "/health", None);
    drop(first);
    assert_eq!(third.answer().status, 200);
}

#[test]
fn an_address_has_its_share_of_the_connections() {
    let server = Server::start_with(|launch| launch.setting("FANLOG_CONNECTIONS_PER_ADDRESS_MAX", 2));
    let (mut first, mut second) = (server.client(), server.client());
    for client in [&mut first, &mut second] {
        assert_eq!(client.get("/health").status, 200);
    }
    let answer = server.client().answer();
    assert_eq!(answer.status, 429);
    assert!(answer.head.contains("retry-after: 1"), "{}", answer.head);
    assert_eq!(answer.text, "too many connections from this address\n");
    let other = std::net::Ipv4Addr::new(127, 0, 0, 2);
    assert_eq!(Client::connect_from(other.into(), server.address).get("/health").status, 200);
    assert_eq!(first.get("/health").status, 200);
    drop(second);
    // The server may not have noticed yet.
    eventually(|| {
        let mut third = server.client();
        third.request("GET", "/health", None);
        third.try_answer().is_some_and(|answer| answer.status == 200)
    });
}

/// A head that never ended used to take 400 KB for each connection, of whomever.
#[test]
fn a_head_without_end_is_refused_and_large_bodies_are_not() {
    let server = Server::start();
    let mut client = server.client();
    client.raw(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: ");
    client.raw("x".repeat(100 << 10).as_bytes());
    assert_eq!(client.answer().status, 431);
    push(&mut server.client(), &unique("large"), &[json!("x".repeat(5 << 20))]);
}

#[test]
fn too_many_waiting_pops_are_refused() {
    let server = Server::start_with(|launch| launch.setting("FANLOG_WAITING_MAX", 1));
    let queue = unique("crowd");
    let mut client = server.client();
    client.post("/api/v1/configure", &json!({ "queue": queue })).expect(200);
    let path = format!("/api/v1/pop/queue/{queue}?wait=true&timeout=20000");
    let mut waiting = server.client();
    waiting.request("GET", &path, None);
    server.await_waiting_pops(1);
    let refused = client.get(&path).expect(429);
    assert_eq!((&refused["code"], &refused["messages"]), (&json!("busy"), &json!([])));
    push(&mut client, &queue, &[json!(1)]);
    assert_eq!(waiting.answer().status, 200);
}

#[test]
fn garbage_on_the_socket_ends_that_connection_only() {
    let server = Server::start();
    for garbage in [&b"\0\0\0\0"[..], b"GET\r\n\r\n", b"POST /api/v1/push HTTP/9.9\r\n\r\n", &[0xff; 100_000]] {
        let mut client = server.client();
        client.raw(garbage);
        drop(client);
    }
    assert_eq!(server.client().get("/health").status, 200);
}

#[test]
fn the_log_filter_is_set_or_refused() {
    let body = json!({ "filter": "debug" }).to_string();
    let nowhere = Inside::start(HttpOptions::default());
    let refused = nowhere.client().send("PUT", "/api/v1/system/log-filter", Some(body.as_bytes())).expect(409);
    assert_eq!(refused["code"], "unsupported");
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(client.send("PUT", "/api/v1/system/log-filter", Some(body.as_bytes())).expect(200)["success"], true);
    let bad = json!({ "filter": "=,=" }).to_string();
    assert_eq!(client.send("PUT", "/api/v1/system/log-filter", Some(bad.as_bytes())).status, 400);
    assert_eq!(client.post("/api/v1/system/maintenance", &json!({ "enabled": true })).status, 409);
    assert_eq!(
        client.post("/api/v1/system/maintenance", &json!({ "enabled": false })).expect(200)["maintenanceMode"],
        Value::Bool(false)
    );
}

#[test]
fn with_a_token_only_who_has_it_comes_in() {
    let server = Server::start_with(|launch| launch.setting("FANLOG_TOKEN", "secret"));
    let mut client = server.client();
    for path in ["/api/v1/consumer-groups", "/metrics", "/metrics/prometheus", "/openapi.json", "/readyz", "/nothing"] {
        let refused = client.get(path).expect(401);
        assert_eq!(refused["code"], "unauthorized", "{path}");
    }
    assert_eq!(client.get("/health").status, 200);
    for (token, status) in [("secret", 200), ("secreT", 401), ("", 401)] {
        client.raw(
            format!("GET /api/v1/consumer-groups HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n")
                .as_bytes(),
        );
        assert_eq!(client.answer().status, status, "{token}");
    }
}

/// A body that its route does not look at, arriving after the answer was ready, used to end the connection.
#[test]
fn a_body_that_nobody_asked_for_does_not_cost_the_connection() {
    let server = Server::start();
    let mut client = server.client();
    for (method, path) in [("POST", "/api/v1/stats/refresh"), ("DELETE", "/api/v1/resources/queues/none"), ("GET", "/health")] {
        client.raw(format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n").as_bytes());
        std::thread::sleep(Duration::from_millis(50));
        client.raw(" ".repeat(100_000).as_bytes());
        assert_eq!(client.answer().status, 200, "{method} {path}");
    }
}

/// Pops megabytes over a connection and reads nothing of them. Sockets take a few megabytes; the rest stays with the server.
fn stuck(mut client: Client, path: &str) -> Client {
    client.request("GET", path, None);
    client
}

fn push_megabytes(client: &mut Client, queue: &str, count: usize) {
    for n in 0..count {
        push(client, queue, &[json!({ "n": n, "text": "x".repeat(1_000_000) })]);
    }
}

#[test]
fn a_client_that_takes_nothing_loses_its_connection_and_its_lease() {
    let options = HttpOptions { send_timeout: Duration::from_secs(1), ..HttpOptions::default() };
    let server = Inside::start(options);
    let mut client = server.client();
    let queue = unique("stuck");
    client.post("/api/v1/configure", &json!({ "queue": queue, "options": { "leaseTime": 3600 } })).expect(200);
    push_megabytes(&mut client, &queue, 12);
    let _stuck = stuck(server.client(), &format!("/api/v1/pop/queue/{queue}?batch=12"));
    let started = Instant::now();
    let again = loop {
        let answer = client.get(&format!("/api/v1/pop/queue/{queue}?batch=1"));
        if answer.status == 200 && started.elapsed() > Duration::from_millis(500) {
            break answer.json();
        }
        // Whoever was quicker than the stuck client gives the message back.
        if answer.status == 200 {
            let lease = answer.json()["leaseId"].as_str().unwrap().to_owned();
            client.post(&format!("/api/v1/lease/{lease}/release"), &Value::Null).expect(200);
        }
        assert!(started.elapsed() < Duration::from_secs(20), "the stuck client keeps its lease");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!((&again["messages"][0]["data"]["n"], &again["messages"][0]["deliveryAttempt"]), (&json!(0), &json!(1)));
}

#[test]
fn answers_that_nobody_takes_are_bounded_and_writing_goes_on() {
    let server = Server::start_with(|launch| launch.setting("FANLOG_OUT_BYTES_MAX", 4_000_000));
    let mut client = server.client();
    let queue = unique("unread");
    push_megabytes(&mut client, &queue, 12);
    let path = format!("/api/v1/queues/{queue}/partitions/Default/messages?limit=12");
    let stuck: Vec<_> = (0..3).map(|_| stuck(server.client(), &path)).collect();
    let deadline = Instant::now() + Duration::from_secs(20);
    let refused = loop {
        let answer = client.get(&format!("/api/v1/pop/queue/{queue}?consumerGroup=nobody"));
        if answer.status == 429 {
            break answer;
        }
        assert!(Instant::now() < deadline, "answers are not bounded: {}", answer.status);
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(refused.head.contains("retry-after"));
    let refused = refused.json();
    assert_eq!((&refused["code"], &refused["messages"]), (&json!("busy"), &json!([])));
    // Pushes, acknowledgements and the routes for operators answer all the same.
    push(&mut client, &queue, &[json!(1)]);
    assert_eq!(client.post("/api/v1/ack/batch", &json!({ "acknowledgments": [] })).status, 200);
    assert_eq!(client.get("/readyz").status, 200);
    drop(stuck);
    while client.get(&format!("/api/v1/pop/queue/{queue}?consumerGroup=nobody")).status == 429 {
        assert!(Instant::now() < deadline, "what was given up still counts");
        std::thread::sleep(Duration::from_millis(20));
    }
}
