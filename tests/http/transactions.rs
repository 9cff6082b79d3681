//! Transactions.

use serde_json::{Value, json};

use crate::server::{Server, ack_of, pop, push, unique};

fn operation(mut ack: Value) -> Value {
    ack["type"] = json!("ack");
    ack
}

#[test]
fn pushes_and_acknowledgements_happen_together() {
    let server = Server::start();
    let mut client = server.client();
    let (from, to) = (unique("from"), unique("to"));
    push(&mut client, &from, &[json!(1)]);
    let messages = pop(&mut client, &from, "g", 1);
    let body = json!({ "operations": [
        operation(ack_of(&messages[0], "completed")),
        { "type": "push", "items": [{ "queue": to, "payload": { "exact": 1.0 }, "traceId": "trace-1" }] },
        { "type": "push", "queue": to, "payload": 2, "transactionId": "flat" },
    ] });
    let answer = client.post("/api/v1/transaction", &body).expect(200);
    assert_eq!(answer["success"], true, "{answer}");
    let kinds: Vec<_> = answer["results"].as_array().unwrap().iter().map(|result| result["type"].clone()).collect();
    assert_eq!(kinds, [json!("ack"), json!("push"), json!("push")]);
    assert!(answer["results"].as_array().unwrap().iter().all(|result| result["success"] == true));
    assert!(pop(&mut client, &from, "g", 1).is_empty());
    let got = pop(&mut client, &to, "g", 10);
    assert_eq!((&got[0]["traceId"], &got[1]["traceId"]), (&json!("trace-1"), &Value::Null));
    assert_eq!(got[1]["transactionId"], "flat");
    assert!(got[0].get("attributes").is_none(), "the gateway's own attributes show: {}", got[0]);
}

#[test]
fn a_bad_part_rolls_everything_back() {
    let server = Server::start();
    let mut client = server.client();
    let (from, to) = (unique("from"), unique("to"));
    push(&mut client, &from, &[json!(1)]);
    let message = pop(&mut client, &from, "g", 1).remove(0);
    push(&mut client, &to, &[json!(0)]);
    client.post("/api/v1/push", &json!({ "items": [{ "queue": to, "payload": 0, "transactionId": "taken" }] })).expect(201);
    let mut foreign = ack_of(&message, "completed");
    foreign["partitionId"] = json!("00000000-0000-7000-8000-000000000000");
    let mut ghost = ack_of(&message, "completed");
    ghost["transactionId"] = json!("never");
    let mut stale = ack_of(&message, "completed");
    stale["leaseId"] = json!("1-99999");
    let spoil = json!({ "type": "push", "items": [{ "queue": to, "payload": "leaked" }] });
    for (bad, reason, word) in [
        (operation(foreign), "ack_rejected", "unresolv"),
        (operation(ghost), "ack_rejected", "never"),
        (operation(stale), "ack_rejected", "lease"),
        (json!({ "type": "push", "queue": to, "payload": 1, "transactionId": "taken" }), "duplicate", ""),
    ] {
        let answer = client.post("/api/v1/transaction", &json!({ "operations": [spoil, bad] })).expect(200);
        assert_eq!((&answer["success"], &answer["reason"]), (&json!(false), &json!(reason)), "{answer}");
        assert!(answer["error"].as_str().unwrap().contains(word), "{answer}");
    }
    let leased = json!({ "operations": [spoil], "requiredLeases": ["1-99999"] });
    assert_eq!(client.post("/api/v1/transaction", &leased).expect(200)["success"], false);
    assert!(pop(&mut client, &to, "g", 10).iter().all(|message| message["data"] != "leaked"));
    assert_eq!(crate::server::ack(&mut client, &message, "completed")["success"], true);
}

#[test]
fn malformed_transactions_are_refused_and_empty_ones_succeed() {
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(client.post("/api/v1/transaction", &json!({ "operations": [] })).expect(200)["success"], true);
    for bad in [
        json!({}),
        json!({ "operations": [{ "type": "fly" }] }),
        json!({ "operations": [{ "queue": "q", "payload": 1 }] }),
        json!({ "operations": [{ "type": "push", "queue": "q" }] }),
        json!({ "operations": [], "kv": [{ "op": "put" }] }),
    ] {
        assert_eq!(client.post("/api/v1/transaction", &bad).status, 400, "{bad}");
    }
}
