//! Pushing.

use serde_json::{Value, json};

use crate::server::{Server, pop, push, unique};

#[test]
fn results_come_in_the_order_of_the_items_over_queues_and_partitions() {
    let server = Server::start();
    let mut client = server.client();
    let (a, b) = (unique("a"), unique("b"));
    let items: Vec<_> = (0..9)
        .map(|n| json!({ "queue": if n % 2 == 0 { &a } else { &b }, "partition": format!("p{}", n % 3), "payload": n }))
        .collect();
    let rows = client.post("/api/v1/push", &json!({ "items": items })).expect(201);
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 9);
    for (index, row) in rows.iter().enumerate() {
        assert_eq!((&row["index"], &row["status"]), (&json!(index), &json!("queued")), "{row}");
        assert_eq!(row["queueName"], items[index]["queue"]);
        assert_eq!(row["message_id"], row["transaction_id"]);
    }
    let got = pop(&mut client, &a, "g", 10);
    assert_eq!(got.len(), 5);
    for message in &got {
        let row = &rows[usize::try_from(message["data"].as_u64().unwrap()).unwrap()];
        assert_eq!((&message["id"], &message["offset"]), (&row["message_id"], &row["offset"]));
        assert_eq!(message["partitionId"], row["partitionId"]);
    }
}

#[test]
fn a_repeated_transaction_id_is_answered_with_the_original() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("dedup");
    let item = json!({ "queue": queue, "payload": 1, "transactionId": "mine" });
    let first = client.post("/api/v1/push", &json!({ "items": [item, item] })).expect(201);
    assert_eq!((&first[0]["status"], &first[1]["status"]), (&json!("queued"), &json!("duplicate")));
    let second = client.post("/api/v1/push", &json!({ "items": [item, { "queue": queue, "payload": 2 }] })).expect(201);
    assert_eq!((&second[0]["status"], &second[1]["status"]), (&json!("duplicate"), &json!("queued")));
    for row in [&first[1], &second[0]] {
        assert_eq!((&row["message_id"], &row["transaction_id"]), (&first[0]["message_id"], &json!("mine")));
        assert_ne!(row["message_id"], row["transaction_id"]);
    }
    assert_eq!(pop(&mut client, &queue, "g", 10).len(), 2);
}

#[test]
fn payloads_come_back_as_the_bytes_that_were_sent() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("bytes");
    let payloads = [
        "9007199254740993",
        "1.10",
        "-0",
        "1e400",
        r#"{"b":1,  "a":[1.0,2],"é":"\u00e9 \ud83d\udc1d"}"#,
        "null",
        "\"\"",
        "true",
        "[ ]",
    ];
    for payload in payloads {
        let body = format!(r#"{{"items":[{{"queue":"{queue}","payload": {payload} }}]}}"#);
        assert_eq!(client.send("POST", "/api/v1/push", Some(body.as_bytes())).status, 201);
    }
    let answer = client.get(&format!("/api/v1/pop/queue/{queue}?batch=100"));
    for payload in payloads {
        assert!(answer.text.contains(&format!("\"data\":{payload},\"producerSub\"")), "{payload} in {}", answer.text);
    }
}

#[test]
fn a_request_with_one_bad_item_stores_nothing() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("bad");
    let good = json!({ "queue": queue, "payload": 1 });
    for bad in [
        json!({ "queue": queue }),
        json!({ "payload": 1 }),
        json!({ "queue": "", "payload": 1 }),
        json!({ "queue": "a\nb", "payload": 1 }),
        json!({ "queue": queue, "partition": "x".repeat(256), "payload": 1 }),
        json!({ "queue": queue, "partition": 7, "payload": 1 }),
        json!({ "queue": queue, "payload": 1, "transactionId": "t".repeat(65_536) }),
        json!({ "queue": queue, "payload": 1, "attributes": { "a": [1] } }),
        json!({ "queue": queue, "payload": 1, "attributes": { "fanlog.trace": "x" } }),
        json!([]),
    ] {
        let answer = client.post("/api/v1/push", &json!({ "items": [good, bad] }));
        assert_eq!(answer.status, 400, "{bad}: {}", answer.text);
        let body = answer.json();
        assert!(body["error"].is_string() && body["code"].is_string(), "{body}");
    }
    for body in ["", "{", "[]", "{}", "null", r#"{"items":{}}"#, "\u{0}"] {
        assert_eq!(client.send("POST", "/api/v1/push", Some(body.as_bytes())).status, 400, "{body}");
    }
    assert_eq!(client.post("/api/v1/push", &json!({ "items": [] })).expect(201), json!([]));
    assert!(pop(&mut client, &queue, "g", 10).is_empty());
}

#[test]
fn attributes_travel_exactly_and_filters_drop_what_no_group_takes() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("attributes");
    client.post("/api/v1/configure", &json!({ "queue": queue })).expect(200);
    let groups = format!("/api/v1/queues/{queue}/groups");
    client.post(&groups, &json!({ "name": "eu", "filter": ":region = \"eu\"" })).expect(201);
    client.post(&format!("{groups}/__QUEUE_MODE__/disable"), &Value::Null).expect(200);
    let body = format!(
        r#"{{"items":[{{"queue":"{queue}","payload":1,"attributes":{{"region":"eu","n":12345678901234567890.10}}}},
            {{"queue":"{queue}","payload":2,"attributes":{{"region":"us"}}}}]}}"#
    );
    let rows = client.send("POST", "/api/v1/push", Some(body.as_bytes())).expect(201);
    assert_eq!((&rows[0]["dropped"], &rows[1]["dropped"]), (&Value::Null, &json!(true)), "{rows}");
    assert!(rows[1]["offset"].is_null() && rows[1]["message_id"].as_str().is_some_and(|id| !id.is_empty()));
    let answer = client.get(&format!("/api/v1/pop/queue/{queue}?consumerGroup=eu"));
    assert!(answer.text.contains(r#""attributes":{"n":12345678901234567890.10,"region":"eu"}"#), "{}", answer.text);
    let inactive = client.get(&format!("/api/v1/pop/queue/{queue}")).expect(409);
    assert_eq!(inactive["code"], "group_inactive");
    let detail = client.get(&format!("/api/v1/resources/queues/{queue}")).expect(200);
    assert_eq!(detail["dropped"], 1);
    let metrics = client.get("/metrics/prometheus").text;
    let line = format!("fanlog_dropped_messages_total{{queue=\"{queue}\"}} 1.0");
    assert!(metrics.contains(&line), "{line} is missing in\n{metrics}");
}

#[test]
fn a_big_batch_goes_through() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("big");
    let payloads: Vec<_> = (0..2_000).map(|n| json!({ "n": n, "text": "x".repeat(500) })).collect();
    assert_eq!(push(&mut client, &queue, &payloads).len(), 2_000);
    let mut seen = 0;
    while seen < 2_000 {
        let messages = pop(&mut client, &queue, "g", 700);
        assert!(!messages.is_empty());
        for message in &messages {
            assert_eq!(message["data"]["n"], seen);
            seen += 1;
        }
        let last = crate::server::ack(&mut client, messages.last().unwrap(), "completed");
        assert_eq!(last["success"], true, "{last}");
    }
}
