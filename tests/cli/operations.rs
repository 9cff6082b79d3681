//! Every operation of the protocol from the command line.

use serde_json::{Value, json};

use super::program::json_of;
use super::{Server, code, stderr};

fn rows(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn payloads(taken: &Value) -> Vec<&str> {
    rows(taken).iter().map(|row| row["payload"].as_str().unwrap()).collect()
}

/// What a command prints that must fail.
fn refused(server: &Server, arguments: &[&str]) -> String {
    let output = server.run(arguments);
    assert_eq!(code(&output), 1, "{arguments:?}: {}", stderr(&output));
    stderr(&output)
}

#[test]
fn messages_are_held_acknowledged_retried_extended_and_given_back() {
    let server = Server::start();
    server.json(&["push", "q", "0", "1", "2", "--partition", "p"]);
    let pop = ["pop", "q", "--group", "g", "--from", "beginning", "-n", "3", "--ack", "none", "--lease", "5m"];
    let held = server.json(&pop);
    assert_eq!(payloads(&held), ["0", "1", "2"]);
    assert!(rows(&server.json(&pop)).is_empty());
    let lease = held[0]["lease_id"].as_str().unwrap();
    assert_eq!(server.json(&["lease", "extend", lease, "--for", "10m"])["partitions"], 1);
    let ack = ["ack", "q", "--partition", "p", "--group", "g", "--lease", lease];
    let done = server.json(&[&ack[..], &["--offset", "0"]].concat());
    assert_eq!((&done["next"], &done["lease_released"]), (&json!(1), &json!(false)));
    let failed = server.json(&[&ack[..], &["--offset", "1", "--as", "failed", "--reason", "no paper"]].concat());
    assert_eq!((&failed["next"], &failed["lease_released"]), (&json!(1), &json!(true)));
    assert!(refused(&server, &[&ack[..], &["--offset", "1"]].concat()).contains("lease"));
    assert!(refused(&server, &["lease", "extend", lease]).contains("is over"));

    let again = server.json(&pop);
    assert_eq!((payloads(&again), &again[0]["last_error"]), (vec!["1", "2"], &json!("no paper")));
    assert_eq!(again[0]["delivery_count"], 2);
    let lease = again[0]["lease_id"].as_str().unwrap();
    assert_eq!(server.json(&["lease", "release", lease])["partitions"], 1);
    assert!(refused(&server, &["lease", "release", lease]).contains("is over"));
    assert_eq!(payloads(&server.json(&["pop", "q", "--group", "g", "-n", "9", "--ack", "once"])), ["1", "2"]);
    assert!(
        refused(&server, &["ack", "q", "--partition", "p", "--group", "g", "--transaction-id", "none"]).contains("no message")
    );
}

#[test]
fn a_transaction_is_done_whole_or_not_at_all() {
    let server = Server::start();
    server.json(&["push", "in", "job", "--partition", "p"]);
    let held = server.json(&["pop", "in", "--group", "g", "--from", "beginning", "--ack", "none"]);
    let transaction = |id: &str| {
        let ack = json!({ "queue": "in", "partition": "p", "group": "g", "lease_id": held[0]["lease_id"], "offsets": [0] });
        json!({ "push": [{ "queue": "out", "payload": "result", "transaction_id": id }], "ack": [ack] }).to_string()
    };
    let done = json_of(&server.run_with_input(&["transaction", "-"], transaction("one").as_bytes()));
    assert_eq!((&done["push"][0]["offset"], &done["ack"][0]["next"]), (&json!(0), &json!(1)));
    let again = server.run_with_input(&["transaction", "-"], transaction("one").as_bytes());
    assert!(code(&again) == 1 && stderr(&again).contains("duplicate"), "{}", stderr(&again));
    let bad = server.run_with_input(&["transaction", "-"], b"{\"pushes\":[]}");
    assert_eq!(code(&bad), 1, "{}", stderr(&bad));
    assert_eq!(payloads(&server.json(&["pop", "out", "-n", "9"])), ["result"]);
}

#[test]
fn queues_of_a_namespace_or_task_are_read_together() {
    let server = Server::start();
    for queue in ["shop.mail", "shop.bill", "bank.mail"] {
        server.json(&["push", queue, queue]);
    }
    let pop = |group: &str, arguments: &[&str]| {
        let taken = server.json(&[&["pop", "--group", group, "--from", "beginning", "-n", "9"], arguments].concat());
        let mut found: Vec<String> = payloads(&taken).into_iter().map(str::to_owned).collect();
        found.sort();
        found
    };
    assert_eq!(pop("a", &["--namespace", "shop"]), ["shop.bill", "shop.mail"]);
    assert_eq!(pop("b", &["--task", "mail"]), ["bank.mail", "shop.mail"]);
    assert_eq!(pop("c", &["--namespace", "shop", "--task", "mail"]), ["shop.mail"]);
    assert!(pop("a", &["--namespace", "shop"]).is_empty(), "they were acknowledged");
    assert_eq!(code(&server.run(&["pop", "--group", "a"])), 1);
}

#[test]
fn dead_letters_are_listed_shown_replayed_and_deleted() {
    let server = Server::start();
    server.json(&["push", "q", "bad", "worse", "--partition", "p"]);
    let held = server.json(&["pop", "q", "--group", "g", "--from", "beginning", "-n", "2", "--ack", "none"]);
    let lease = held[0]["lease_id"].as_str().unwrap();
    let reject = ["--as", "reject", "--reason", "no such customer", "--offset", "0", "--offset", "1"];
    let ack = server.json(&[&["ack", "q", "--partition", "p", "--group", "g", "--lease", lease], &reject[..]].concat());
    assert!(ack["outcomes"].as_array().unwrap().iter().all(|outcome| outcome["dead_letter"] == true), "{ack}");
    let letters = server.json(&["dlq", "list", "q", "--group", "g"]);
    assert_eq!(
        (rows(&letters).len(), &letters[1]["payload"], &letters[1]["reason"]),
        (2, &json!("bad"), &json!("no such customer"))
    );
    assert!(rows(&server.json(&["dlq", "list", "q", "--group", "other"])).is_empty());
    let [worse, bad] = [0, 1].map(|index| letters[index]["id"].to_string());
    assert_eq!(server.json(&["dlq", "show", "q", &bad])["payload"], "bad");
    assert_eq!(server.json(&["dlq", "replay", "q", &bad])[0]["offset"], 2);
    refused(&server, &["dlq", "replay", "q", &bad]);
    assert_eq!(server.json(&["dlq", "delete", "q", &worse])[0]["deleted"], true);
    refused(&server, &["dlq", "delete", "q", &worse]);
    assert!(rows(&server.json(&["dlq", "list"])).is_empty());
    assert_eq!(payloads(&server.json(&["pop", "q", "--group", "g", "-n", "9"])), ["bad"]);
}

#[test]
fn remarks_are_written_and_found_by_name_and_by_message() {
    let server = Server::start();
    server.json(&["push", "q", "m", "--partition", "p"]);
    let message = ["q", "--partition", "p", "--offset", "0"];
    let write = ["--name", "tour", "--type", "step", "--data", "{\"n\":1}", "--group", "g"];
    server.json(&[&["trace", "write"], &message[..], &write[..]].concat());
    for found in [server.json(&["trace", "show", "tour"]), server.json(&[&["trace", "message"], &message[..]].concat())] {
        assert_eq!((rows(&found).len(), &found[0]["event_type"], &found[0]["data"]["n"]), (1, &json!("step"), &json!(1)));
    }
    assert!(rows(&server.json(&["trace", "show", "other"])).is_empty());
    assert_eq!(server.json(&["trace", "names"]), json!([{ "name": "tour", "count": 1 }]));
    refused(&server, &["trace", "write", "q", "--partition", "p", "--offset", "7"]);
}

#[test]
fn groups_are_paused_started_elsewhere_found_behind_and_removed() {
    let server = Server::start();
    for queue in ["p", "q"] {
        server.json(&["push", queue, "0", "1", "--partition", "a"]);
        server.json(&["pop", queue, "--group", "g", "--from", "beginning"]);
    }
    assert_eq!(server.json(&["group", "pause", "q", "g"])["state"], "paused");
    assert!(rows(&server.json(&["pop", "q", "--group", "g"])).is_empty());
    assert_eq!(server.json(&["group", "resume", "q", "g"])["state"], "active");
    assert_eq!(server.json(&["group", "start", "g", "--from", "new"])["queues"], 2);
    assert_eq!(server.json(&["group", "show", "q", "g"])["start"], "new");
    assert!(rows(&server.json(&["group", "lagging"])).is_empty(), "nothing is an hour old");
    let behind = server.json(&["group", "lagging", "--min-seconds", "0"]);
    assert_eq!(rows(&behind).iter().filter(|row| row["group"] == "g" && row["lag"] == 1).count(), 2);
    let message = server.json(&["message", "show", "q", "--partition", "a", "--offset", "1"]);
    assert_eq!((&message["status"], &message["groups"][0]["consumed"]), (&json!("pending"), &json!(false)));
    let removed = server.json(&["group", "delete", "q", "g"]);
    assert_eq!((&removed["queues"], &removed["deleted_partitions"]), (&json!(1), &json!(1)));
    refused(&server, &["group", "show", "q", "g"]);
    assert_eq!(payloads(&server.json(&["pop", "q", "--group", "g", "--from", "beginning", "-n", "9"])), ["0", "1"]);
    let removed = server.json(&["group", "delete", "g", "--everywhere"]);
    assert_eq!((&removed["queues"], &removed["deleted_partitions"]), (&json!(2), &json!(2)));
    refused(&server, &["group", "start", "g", "--from", "new"]);
    refused(&server, &["group", "delete", "q", "__QUEUE_MODE__"]);
}

/// One after the other: each changes itself and nothing else, and is there after a kill.
#[test]
fn every_setting_is_changed_alone_and_survives_a_kill() {
    let server = Server::start();
    let changes = [
        ("durability", "interval:50"),
        ("compression", "zstd:3"),
        ("namespace", "shop"),
        ("task", "mail"),
        ("consumerGroups", "false"),
        ("priority", "-7"),
        ("leaseTime", "300"),
        ("retryLimit", "9"),
        ("retryDelay", "77"),
        ("maxSize", "1234"),
        ("ttl", "99"),
        ("deadLetterQueue", "false"),
        ("dlqAfterMaxRetries", "false"),
        ("delayedProcessing", "5"),
        ("windowBuffer", "6"),
        ("retentionSeconds", "86400"),
        ("completedRetentionSeconds", "3600"),
        ("retentionEnabled", "true"),
        ("retentionBytes", "1073741824"),
        ("encryptionEnabled", "true"),
        ("maxWaitTimeSeconds", "604800"),
        ("minPopWaitTime", "12"),
        ("dedupWindowSeconds", "60"),
        ("segmentBytes", "2097152"),
    ];
    let mut settings = server.json(&["queue", "create", "q"])["settings"].clone();
    assert_eq!(settings.as_object().unwrap().len(), changes.len(), "every setting is tried");
    for (key, value) in changes {
        let changed = server.json(&["queue", "update", "q", "--set", &format!("{key}={value}")])["settings"].clone();
        assert_ne!(changed[key], settings[key], "{key}");
        let shown = changed[key].as_str().map_or_else(|| changed[key].to_string(), str::to_owned);
        assert_eq!(shown, value, "{key}");
        settings[key] = changed[key].clone();
        assert_eq!(changed, settings, "{key} changed another one");
    }
    for bad in ["leaseTime=0", "retryLimit=-1", "segmentBytes=1", "dedupWindowSeconds=99999999999999999999", "ttl=soon"] {
        refused(&server, &["queue", "update", "q", "--set", "priority=1", "--set", bad]);
    }
    let server = Server::start_in(server.kill());
    assert_eq!(server.json(&["queue", "show", "q"])["settings"], settings);
}
