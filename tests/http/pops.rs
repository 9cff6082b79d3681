//! Popping, waiting, leases, and clients that go away.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::program::eventually;
use crate::server::{Server, ack, pop, push, unique};

#[test]
fn an_empty_pop_has_no_body_and_an_unknown_queue_is_empty() {
    let server = Server::start();
    let mut client = server.client();
    let answer = client.get("/api/v1/pop/queue/nobody-pushed-here");
    assert_eq!((answer.status, answer.text.as_str()), (204, ""));
    assert_eq!(client.get("/api/v1/pop/queue/x/partition/y?consumerGroup=g").status, 204);
    let neither = client.get("/api/v1/pop").expect(400);
    assert_eq!((&neither["success"], &neither["messages"]), (&json!(false), &json!([])));
    // The connection is still good after an answer without a body.
    assert_eq!(client.get("/health").status, 200);
}

#[test]
fn a_message_has_queens_fields() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("shape");
    push(&mut client, &queue, &[json!({ "n": 1 })]);
    let answer = client.get(&format!("/api/v1/pop/queue/{queue}")).expect(200);
    let message = &answer["messages"][0];
    for key in ["partitionId", "leaseId", "consumerGroup", "partition"] {
        assert_eq!(answer[key], message[key], "{answer}");
        assert!(message[key].as_str().is_some_and(|text| !text.is_empty()), "{key} in {message}");
    }
    assert_eq!(message["consumerGroup"], "__QUEUE_MODE__");
    assert!(message["traceId"].is_null() && message["producerSub"].is_null());
    let created = message["createdAt"].as_str().unwrap();
    assert!(created.len() == 27 && created.ends_with('Z'), "{created}");
    assert_eq!((&answer["partitionsClaimed"], &message["deliveryAttempt"]), (&json!(1), &json!(1)));
}

#[test]
fn a_waiting_pop_wakes_for_a_push_and_ends_at_its_timeout() {
    let server = Server::start();
    let queue = unique("wait");
    let mut client = server.client();
    client.post("/api/v1/configure", &json!({ "queue": queue })).expect(200);
    let started = Instant::now();
    assert_eq!(client.get(&format!("/api/v1/pop/queue/{queue}?wait=true&timeout=300")).status, 204);
    assert!((300..5_000).contains(&started.elapsed().as_millis()));
    for group in ["", "&consumerGroup=g"] {
        let mut waiting = server.client();
        waiting.request("GET", &format!("/api/v1/pop/queue/{queue}?wait=true&timeout=20000{group}"), None);
        server.await_waiting_pops(1);
        let started = Instant::now();
        push(&mut client, &queue, &[json!("late")]);
        assert_eq!(waiting.answer().expect(200)["messages"][0]["data"], "late");
        assert!(started.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn a_pop_that_waits_for_a_queue_that_does_not_exist_yet_gets_its_first_message() {
    let server = Server::start();
    let queue = unique("unborn");
    let mut waiting = server.client();
    waiting.request("GET", &format!("/api/v1/pop/queue/{queue}?wait=true&timeout=20000"), None);
    // A pop of a queue that is not there counts nowhere. Without the pause this holds as well, and says less.
    std::thread::sleep(Duration::from_millis(100));
    push(&mut server.client(), &queue, &[json!(1)]);
    assert_eq!(waiting.answer().expect(200)["messages"][0]["data"], 1);
}

#[test]
fn a_nack_wakes_a_waiting_pop() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("nack");
    push(&mut client, &queue, &[json!(1)]);
    let messages = pop(&mut client, &queue, "g", 1);
    let mut waiting = server.client();
    waiting.request("GET", &format!("/api/v1/pop/queue/{queue}?consumerGroup=g&wait=true&timeout=20000"), None);
    server.await_waiting_pops(1);
    ack(&mut client, &messages[0], "failed");
    let again = waiting.answer().expect(200);
    assert_eq!(again["messages"][0]["deliveryAttempt"], 2, "{again}");
    assert_eq!(again["notices"][0]["lastError"], "because");
}

/// A client that closed its connection while its pop was waiting used to hold the next message for a whole lease.
#[test]
fn a_waiting_pop_ends_with_its_client_and_takes_nothing_along() {
    let server = Server::start();
    let queue = unique("gone");
    let mut client = server.client();
    client.post("/api/v1/configure", &json!({ "queue": queue, "options": { "leaseTime": 3600 } })).expect(200);
    let mut clients = Vec::new();
    for _ in 0..10 {
        let mut waiting = server.client();
        waiting.request("GET", &format!("/api/v1/pop/queue/{queue}?wait=true&timeout=20000"), None);
        clients.push(waiting);
    }
    server.await_waiting_pops(10);
    drop(clients);
    // The connections are closed; the pops end without anything being pushed.
    server.await_waiting_pops(0);
    push(&mut client, &queue, &[json!(1)]);
    let answer = client.get(&format!("/api/v1/pop/queue/{queue}?wait=true&timeout=5000")).expect(200);
    assert_eq!(answer["messages"][0]["deliveryAttempt"], 1);
}

#[test]
fn an_answer_that_nobody_reads_gives_its_messages_back() {
    let server = Server::start();
    let queue = unique("unread");
    let mut client = server.client();
    client.post("/api/v1/configure", &json!({ "queue": queue, "options": { "leaseTime": 3600 } })).expect(200);
    let payloads: Vec<_> = (0..40).map(|n| json!({ "n": n, "text": format!("{n}").repeat(100_000) })).collect();
    for payload in &payloads {
        push(&mut client, &queue, std::slice::from_ref(payload));
    }
    {
        let mut silent = server.client();
        silent.request("GET", &format!("/api/v1/pop/queue/{queue}?batch=40"), None);
        // Megabytes that the sockets cannot hold; the client reads none of them and goes.
        silent.await_answer();
    }
    let mut first = Value::Null;
    eventually(|| {
        let answer = client.get(&format!("/api/v1/pop/queue/{queue}?batch=1"));
        if answer.status == 200 {
            first = answer.json();
        }
        answer.status == 200
    });
    assert_eq!(first["messages"][0]["data"]["n"], 0);
    assert_eq!(first["messages"][0]["deliveryAttempt"], 1, "a hand-back is not a delivery");
}

#[test]
fn names_are_percent_decoded() {
    let server = Server::start();
    let mut client = server.client();
    let (queue, partition) = ("orders / ü 🐝:1", "lane with space/and-slash");
    client.post("/api/v1/push", &json!({ "items": [{ "queue": queue, "partition": partition, "payload": 1 }] })).expect(201);
    let path = "/api/v1/pop/queue/orders%20%2F%20%C3%BC%20%F0%9F%90%9D%3A1/partition/lane%20with%20space%2Fand-slash";
    let answer = client.get(path).expect(200);
    assert_eq!((&answer["queue"], &answer["partition"]), (&json!(queue), &json!(partition)));
    assert_eq!(client.get("/api/v1/pop/queue/%ff").status, 400);
}

#[test]
fn a_pop_over_partitions_shares_one_lease_and_one_budget() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("lanes");
    for lane in 0..4 {
        let items: Vec<_> = (0..10).map(|n| json!({ "queue": queue, "partition": format!("p{lane}"), "payload": n })).collect();
        client.post("/api/v1/push", &json!({ "items": items })).expect(201);
    }
    let answer = client.get(&format!("/api/v1/pop/queue/{queue}?batch=25&partitions=4")).expect(200);
    let messages = answer["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 25);
    assert!(messages.iter().all(|message| message["leaseId"] == answer["leaseId"]));
    assert_eq!(answer["partitionsClaimed"], 3);
    let lease = answer["leaseId"].as_str().unwrap();
    let extended = client.post(&format!("/api/v1/lease/{lease}/extend"), &json!({ "seconds": 120 })).expect(200);
    assert_eq!((&extended["success"], &extended["renewed"]), (&json!(true), &json!(3)));
    let released = client.post(&format!("/api/v1/lease/{lease}/release"), &Value::Null).expect(200);
    assert_eq!(released["released"], 3);
    let lost = client.post(&format!("/api/v1/lease/{lease}/extend"), &Value::Null).expect(200);
    assert_eq!((&lost["success"], &lost["renewed"], &lost["expiresAt"]), (&json!(false), &json!(0), &Value::Null));
    assert_eq!(pop(&mut client, &queue, "__QUEUE_MODE__", 100).len(), 40);
}

#[test]
fn conflation_hands_out_the_newest_message_only() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("newest");
    let path = format!("/api/v1/pop/queue/{queue}?consumerGroup=g&conflation=true&subscriptionMode=all");
    let empty = client.get(&path).expect(200);
    assert_eq!((&empty["conflation"], &empty["messages"]), (&json!(true), &json!([])));
    let payloads: Vec<_> = (0..500).map(|n| json!(n)).collect();
    push(&mut client, &queue, &payloads);
    let answer = client.get(&path).expect(200);
    assert_eq!(answer["messages"].as_array().unwrap().len(), 1);
    assert_eq!((&answer["messages"][0]["data"], &answer["conflation"]), (&json!(499), &json!(true)));
    assert_eq!(ack(&mut client, &answer["messages"][0], "completed")["success"], true);
    assert_eq!(client.get(&path).expect(200)["messages"], json!([]));
    assert!(pop(&mut client, &queue, "g", 10).is_empty());
    assert_eq!(client.get(&format!("/api/v1/pop/queue/{queue}?conflation=true")).status, 400);
}

#[test]
fn delivery_at_most_once_takes_no_lease() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("auto");
    push(&mut client, &queue, &[json!(1), json!(2)]);
    let answer = client.get(&format!("/api/v1/pop/queue/{queue}?autoAck=true&batch=1")).expect(200);
    assert_eq!((&answer["leaseId"], &answer["messages"][0]["leaseId"]), (&json!(""), &json!("")));
    assert_eq!(client.get(&format!("/api/v1/pop/queue/{queue}?autoAck=true")).expect(200)["messages"][0]["data"], 2);
    assert_eq!(client.get(&format!("/api/v1/pop/queue/{queue}?autoAck=true")).status, 204);
}

#[test]
fn discovery_finds_queues_by_namespace_and_task() {
    let server = Server::start();
    let mut client = server.client();
    push(&mut client, "shop.billing.eu", &[json!("billing")]);
    push(&mut client, "shop.mail.eu", &[json!("mail")]);
    let mail = client.get("/api/v1/pop?namespace=shop&task=mail").expect(200);
    assert_eq!((&mail["messages"][0]["data"], &mail["queue"]), (&json!("mail"), &json!("shop.mail.eu")));
    assert_eq!(client.get("/api/v1/pop?namespace=shop").expect(200)["messages"][0]["data"], "billing");
    assert_eq!(client.get("/api/v1/pop?task=other").status, 204);
}

#[test]
fn payloads_that_are_not_json_come_in_base64() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("binary");
    let message = fanlog::record::Message::new(vec![0xff, 0, 1]);
    let request = fanlog::model::PushRequest {
        queue: queue.clone(),
        partition: "Default".into(),
        items: fanlog::model::PushItem::Messages(vec![message]),
        producer: None,
    };
    server.over_tcp(async |client| client.push(&request).await.unwrap());
    let messages = pop(&mut client, &queue, "g", 1);
    assert_eq!((&messages[0]["data"], &messages[0]["dataEncoding"]), (&json!("/wAB"), &json!("base64")));
}

#[test]
fn a_stop_answers_waiting_pops_and_is_quick() {
    let server = Server::start();
    let queue = unique("stop");
    push(&mut server.client(), &queue, &[json!(1)]);
    let mut waiting = server.client();
    waiting.request(
        "GET",
        &format!("/api/v1/pop/queue/{queue}?consumerGroup=g&subscriptionMode=new&wait=true&timeout=60000"),
        None,
    );
    server.await_waiting_pops(1);
    assert!(server.stop() < Duration::from_secs(5));
    assert_eq!(waiting.answer().status, 204);
}
