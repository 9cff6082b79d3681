//! A disk that is full, and one that fails, as HTTP clients see them.

use fanlog::storage::disk::sim::{Fault, Operation, Random, SimDisk, Times};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::client::Client;
use crate::inside::Inside;
use crate::server::{ack, pop, push, unique};

/// A queue with small segments.
fn configure(client: &mut Client) -> String {
    let queue = unique("disk");
    client.post("/api/v1/configure", &json!({ "queue": queue, "options": { "segmentBytes": 1 << 20 } })).expect(200);
    queue
}

fn item(queue: &str, payload: Value) -> Value {
    json!({ "items": [{ "queue": queue, "payload": payload }] })
}

#[test]
fn a_full_disk_is_507_while_reading_goes_on_and_pushes_go_on_when_there_is_room() {
    let disk = SimDisk::new(1);
    let server = Inside::start_on(&disk);
    let mut client = server.client();
    let queue = configure(&mut client);
    push(&mut client, &queue, &[json!(1), json!(2)]);
    disk.set_capacity(Some(8 << 20));
    // Random text, so that it does not compress.
    let mut random = Random::new(1);
    let mut noise = || json!((0..8_000).map(|_| format!("{:016x}", random.number())).collect::<String>());
    let refused = (0..1_000).find_map(|_| {
        let answer = client.post("/api/v1/push", &item(&queue, noise()));
        (answer.status != 201).then_some(answer)
    });
    let refused = refused.expect("the disk has room for ever").expect(507);
    assert_eq!((&refused["success"], &refused["code"]), (&json!(false), &json!("disk_full")));
    let messages = pop(&mut client, &queue, "g", 2);
    assert_eq!((&messages[0]["data"], messages.len()), (&json!(1), 2));
    disk.set_capacity(None);
    assert_eq!(ack(&mut client, &messages[1], "completed")["success"], true);
    assert_eq!(client.post("/api/v1/push", &item(&queue, json!("room"))).status, 201);
    assert_eq!(client.get("/readyz").status, 200);
}

#[test]
fn a_failed_sync_stops_writing_and_readiness_names_the_queue() {
    let disk = SimDisk::new(2);
    let server = Inside::start_on(&disk);
    let mut client = server.client();
    let (sick, well) = (configure(&mut client), configure(&mut client));
    push(&mut client, &sick, &[json!("before")]);
    disk.fail(Fault::new(Errno::IO).on(Operation::Sync).times(Times::Once));
    let failed = client.post("/api/v1/push", &item(&sick, json!("lost?")));
    assert!(failed.status >= 500 && failed.json()["success"] == false, "{failed:?}");
    let refused = client.post("/api/v1/push", &item(&sick, json!("refused")));
    assert_eq!((refused.status, &refused.json()["code"]), (503, &json!("poisoned")));
    let ready = client.get("/readyz").expect(503);
    assert_eq!(ready["reasons"], json!([format!("queue {sick} takes no writes after a failed sync")]));
    let text = client.get("/metrics/prometheus").text;
    assert!(text.contains(&format!("fanlog_poisoned{{queue=\"{sick}\"}} 1.0")), "{text}");
    assert_eq!(client.get("/healthz").status, 200);
    push(&mut client, &well, &[json!("others go on")]);
    assert_eq!(pop(&mut client, &well, "g", 1)[0]["data"], "others go on");
}
