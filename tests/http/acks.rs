//! Acknowledging.

use serde_json::{Value, json};

use crate::server::{Server, ack, ack_of, pop, push, unique};

#[test]
fn the_status_is_always_200_and_each_item_has_its_verdict() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("acks");
    push(&mut client, &queue, &[json!(1), json!(2), json!(3)]);
    let messages = pop(&mut client, &queue, "g", 3);
    let mut ghost = ack_of(&messages[0], "completed");
    ghost["transactionId"] = json!("never-pushed");
    let mut no_partition = ack_of(&messages[0], "completed");
    no_partition["partitionId"] = Value::Null;
    let mut foreign = ack_of(&messages[0], "completed");
    foreign["partitionId"] = json!("00000000-0000-7000-8000-000000000000");
    let batch = json!({ "acknowledgments": [ack_of(&messages[0], "completed"), ghost, no_partition, foreign] });
    let verdicts = client.post("/api/v1/ack/batch", &batch).expect(200);
    let verdicts = verdicts.as_array().unwrap();
    assert_eq!(verdicts.iter().map(|verdict| verdict["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(verdicts.iter().map(|verdict| verdict["success"] == true).collect::<Vec<_>>(), [true, false, false, false]);
    assert!(verdicts[1]["error"].as_str().unwrap().contains("unresolv"), "{}", verdicts[1]);
    assert!(verdicts[2]["error"].as_str().unwrap().contains("partitionId"));
    assert!(verdicts[3]["error"].as_str().unwrap().contains("unresolv"));
    for bad in ["", "{}", r#"{"acknowledgments":7}"#] {
        assert_eq!(client.send("POST", "/api/v1/ack/batch", Some(bad.as_bytes())).status, 400);
    }
    assert_eq!(client.post("/api/v1/ack/batch", &json!({ "acknowledgments": [] })).expect(200), json!([]));
}

#[test]
fn a_repeated_acknowledgement_is_a_success_without_effect() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("again");
    push(&mut client, &queue, &[json!(1), json!(2), json!(3)]);
    let messages = pop(&mut client, &queue, "g", 3);
    assert_eq!(ack(&mut client, &messages[1], "completed")["noop"], false);
    let again = ack(&mut client, &messages[0], "completed");
    assert_eq!((&again["success"], &again["noop"]), (&json!(true), &json!(true)));
    let late = ack(&mut client, &messages[0], "failed");
    assert_eq!(late["success"], false);
    assert!(late["error"].as_str().unwrap().contains("committed"), "{late}");
    let last = ack(&mut client, &messages[2], "completed");
    assert_eq!((&last["success"], &last["leaseReleased"]), (&json!(true), &json!(true)));
}

#[test]
fn a_failure_is_never_skipped_and_ends_as_a_dead_letter() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("fail");
    client.post("/api/v1/configure", &json!({ "queue": queue, "options": { "retryLimit": 2 } })).expect(200);
    push(&mut client, &queue, &[json!(1), json!(2), json!(3)]);
    let messages = pop(&mut client, &queue, "g", 3);
    let acks: Vec<_> =
        messages.iter().zip(["completed", "failed", "completed"]).map(|(message, status)| ack_of(message, status)).collect();
    client.post("/api/v1/ack/batch", &json!({ "acknowledgments": acks })).expect(200);
    let mut failures = 1;
    let dead = loop {
        let again = pop(&mut client, &queue, "g", 10);
        assert_eq!(again[0]["data"], 2);
        failures += 1;
        let verdict = ack(&mut client, &again[0], "failed");
        if verdict["dlq"] == true {
            break again[0].clone();
        }
        assert!(failures < 6);
    };
    assert_eq!(pop(&mut client, &queue, "g", 10)[0]["data"], 3);
    let letters = client.get(&format!("/api/v1/dlq?queue={queue}&consumerGroup=g")).expect(200);
    assert_eq!(letters["total"], 1);
    let letter = &letters["messages"][0];
    assert_eq!((&letter["data"], &letter["errorMessage"]), (&json!(2), &json!("because")));
    assert_eq!((&letter["transactionId"], &letter["partitionId"]), (&dead["transactionId"], &dead["partitionId"]));
    assert!(letter["retryCount"].as_u64().is_some_and(|count| count >= 2), "{letter}");
}

#[test]
fn an_acknowledgement_without_a_lease_moves_the_cursor_and_a_wrong_lease_does_not() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("lease");
    push(&mut client, &queue, &[json!(1), json!(2)]);
    let messages = pop(&mut client, &queue, "g", 1);
    let mut wrong = ack_of(&messages[0], "completed");
    wrong["leaseId"] = json!("1-999999");
    let verdict = client.post("/api/v1/ack", &wrong).expect(200);
    assert_eq!(verdict[0]["success"], false);
    assert!(verdict[0]["error"].as_str().unwrap().contains("invalid or expired lease"), "{verdict}");
    let mut unfenced = ack_of(&messages[0], "completed");
    unfenced["leaseId"] = Value::Null;
    assert_eq!(client.post("/api/v1/ack", &unfenced).expect(200)[0]["success"], true);
    assert_eq!(pop(&mut client, &queue, "g", 10)[0]["data"], 2);
}
