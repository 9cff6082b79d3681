//! Encrypted queues.

use std::time::Duration;

use fanlog::client::messages_of;
use serde_json::json;

use crate::server::{Server, ack, pop, push, unique};

#[test]
fn an_encrypted_queue_round_trips_and_stores_no_plaintext() {
    let server = Server::start_with(|launch| launch.setting("FANLOG_ENCRYPTION_KEY", "a".repeat(64)));
    let mut client = server.client();
    let queue = unique("secret");
    let body = json!({ "queue": queue, "options": { "encryptionEnabled": true, "retryLimit": 0 } });
    client.post("/api/v1/configure", &body).expect(200);
    let secret = json!({ "secret": "hunter2" });
    push(&mut client, &queue, std::slice::from_ref(&secret));
    let request = fanlog::model::FetchRequest {
        queue: queue.clone(),
        partition: "Default".into(),
        from: 0,
        to: None,
        messages_max: 10,
        bytes_max: 1 << 20,
    };
    let stored = server.over_tcp(async |client| client.fetch(&request, Duration::ZERO).await.unwrap());
    let stored = messages_of(stored.batches).unwrap();
    let text = String::from_utf8(stored[0].payload.to_vec()).unwrap();
    assert!(text.contains("authTag") && !text.contains("hunter2"), "{text}");
    let messages = pop(&mut client, &queue, "g", 1);
    assert_eq!(messages[0]["data"], secret);
    let fetched = client.get(&format!("/api/v1/queues/{queue}/partitions/Default/messages")).expect(200);
    assert_eq!((&fetched["messages"][0]["data"], &fetched["messages"][0]["isEncrypted"]), (&secret, &json!(true)));
    ack(&mut client, &messages[0], "dlq");
    assert_eq!(client.get(&format!("/api/v1/dlq?queue={queue}")).expect(200)["messages"][0]["data"], secret);
}

#[test]
fn without_a_key_there_is_an_error_and_never_plaintext() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("keyless");
    let configure = json!({ "queue": queue, "options": { "encryptionEnabled": true } });
    assert_eq!(client.post("/api/v1/configure", &configure).expect(400)["code"], "encryption_key_missing");
    // Another door may have switched it on.
    let patch = fanlog::model::SettingsPatch { encryption_enabled: Some(true), ..Default::default() };
    server.over_tcp(async |client| client.create_queue(&queue, patch).await.unwrap());
    let items = json!({ "items": [{ "queue": queue, "payload": "plain" }] });
    assert_eq!(client.post("/api/v1/push", &items).expect(400)["code"], "encryption_key_missing");
    let operations = json!({ "operations": [{ "type": "push", "queue": queue, "payload": "plain" }] });
    assert_eq!(client.post("/api/v1/transaction", &operations).expect(400)["code"], "encryption_key_missing");
    assert!(pop(&mut client, &queue, "g", 1).is_empty());
}
