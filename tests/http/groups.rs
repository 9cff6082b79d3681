//! Declared groups, filters, seeking, and Queen's consumer-group routes.

use serde_json::{Value, json};

use crate::server::{Server, ack, pop, push, unique};

#[test]
fn a_declared_group_is_made_shown_changed_and_deleted() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("declared");
    client.post("/api/v1/configure", &json!({ "queue": queue })).expect(200);
    let groups = format!("/api/v1/queues/{queue}/groups");
    let group = format!("{groups}/eu");
    let declaration = json!({ "name": "eu", "filter": ":region = \"eu\"", "maxDeliveries": 5, "displayName": "Europe" });
    let made = client.post(&groups, &declaration).expect(201);
    assert_eq!((&made["filter"], &made["state"], &made["declared"]), (&declaration["filter"], &json!("active"), &json!(true)));
    assert_eq!(client.post(&groups, &declaration).expect(409)["code"], "group_exists");
    let shown = client.get(&group).expect(200);
    assert_eq!(shown, made);
    let change = json!({ "version": shown["version"], "filter": ":region = \"us\"", "maxDeliveries": null });
    let changed = client.send("PATCH", &group, Some(change.to_string().as_bytes())).expect(200);
    assert_eq!((&changed["filter"], &changed["maxDeliveries"]), (&json!(":region = \"us\""), &Value::Null));
    assert_eq!(changed["displayName"], "Europe");
    let conflict = client.send("PATCH", &group, Some(change.to_string().as_bytes())).expect(409);
    assert_eq!(conflict["code"], "version_conflict");
    assert_eq!(client.post(&format!("{group}/disable"), &Value::Null).expect(200)["state"], "inactive");
    let inactive = client.get(&format!("/api/v1/pop/queue/{queue}?consumerGroup=eu")).expect(409);
    assert_eq!(inactive["code"], "group_inactive");
    assert_eq!(client.post(&format!("{group}/enable"), &Value::Null).expect(200)["enabled"], true);
    assert_eq!(client.post(&format!("{group}/pause"), &Value::Null).expect(200)["state"], "paused");
    assert_eq!(client.post(&format!("{group}/resume"), &Value::Null).expect(200)["state"], "active");
    let names: Vec<_> = client.get(&groups).expect(200)["groups"].as_array().unwrap().iter().map(|g| g["name"].clone()).collect();
    assert!(names.contains(&json!("eu")) && names.contains(&json!("__QUEUE_MODE__")), "{names:?}");
    assert_eq!(client.delete(&group).expect(200)["success"], true);
    assert_eq!(client.get(&group).expect(404)["code"], "unknown_group");
    assert_eq!(client.delete(&group).status, 404);
    assert_eq!(client.delete(&format!("{groups}/__QUEUE_MODE__")).expect(409)["code"], "primary_group");
    assert_eq!(client.get("/api/v1/queues/nowhere/groups").expect(404)["code"], "unknown_queue");
}

#[test]
fn an_earlier_start_says_who_judges_and_every_change_may_name_its_version() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("earlier");
    push(&mut client, &queue, &[json!("old")]);
    let groups = format!("/api/v1/queues/{queue}/groups");
    let declaration = json!({ "name": "g", "filter": "NOT :a", "start": "beginning" });
    assert_eq!(client.post(&groups, &declaration).expect(201)["judgesEarlier"], true);
    let late = json!({ "name": "late", "filter": "NOT :a" });
    assert_eq!(client.post(&groups, &late).expect(201)["judgesEarlier"], false);
    let change = json!({ "filter": ":a", "version": 1 }).to_string();
    assert_eq!(client.send("PATCH", &format!("{groups}/g"), Some(change.as_bytes())).expect(200)["version"], 2);
    assert_eq!(pop(&mut client, &queue, "g", 10).len(), 1);
    for verb in ["enable", "disable", "pause", "resume"] {
        let stale = client.post(&format!("{groups}/g/{verb}?version=1"), &Value::Null).expect(409);
        assert_eq!(stale["code"], "version_conflict", "{verb}");
    }
    assert_eq!(client.delete(&format!("{groups}/g?version=1")).expect(409)["code"], "version_conflict");
    assert_eq!(client.post(&format!("{groups}/g/disable?version=2"), &Value::Null).expect(200)["version"], 3);
    assert_eq!(client.delete(&format!("{groups}/g?version=3")).expect(200)["success"], true);
    let primary = format!("{groups}/__QUEUE_MODE__");
    let filter = json!({ "filter": ":a" }).to_string();
    assert_eq!(client.send("PATCH", &primary, Some(filter.as_bytes())).expect(409)["code"], "primary_group");
    assert_eq!(client.post(&format!("{primary}/disable"), &Value::Null).expect(200)["state"], "inactive");
}

#[test]
fn a_bad_filter_is_refused_with_its_place_and_changes_nothing() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("bad-filter");
    client.post("/api/v1/configure", &json!({ "queue": queue })).expect(200);
    let groups = format!("/api/v1/queues/{queue}/groups");
    client.post(&groups, &json!({ "name": "g", "filter": ":a = 1" })).expect(201);
    let bad = json!({ "name": "h", "filter": ":a = 'x'" });
    assert_eq!(client.post(&groups, &bad).expect(400)["code"], "bad_filter");
    assert_eq!(client.get(&format!("{groups}/h")).status, 404);
    let patch = json!({ "filter": "nonsense" }).to_string();
    assert_eq!(client.send("PATCH", &format!("{groups}/g"), Some(patch.as_bytes())).status, 400);
    assert_eq!(client.get(&format!("{groups}/g")).expect(200)["filter"], ":a = 1");
    let tested = client.post("/api/v1/filters/test", &json!({ "filter": ":a = 'x'" })).expect(400);
    assert_eq!((&tested["code"], &tested["position"]), (&json!("bad_filter"), &json!(5)));
    assert!(tested["caret"].as_str().unwrap().ends_with('^'));
}

#[test]
fn a_filter_can_be_tried_on_attributes_and_on_stored_messages() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("try");
    let body = json!({ "filter": ":n > 9007199254740992", "attributes": { "n": 9007199254740993u64 } });
    let tried = client.post("/api/v1/filters/test", &body).expect(200);
    assert_eq!(tried["matches"], true, "{tried}");
    assert!(!tried["why"].as_array().unwrap().is_empty());
    let items: Vec<_> = (0..20).map(|n| json!({ "queue": queue, "payload": n, "attributes": { "n": n } })).collect();
    client.post("/api/v1/push", &json!({ "items": items })).expect(201);
    let body = json!({ "filter": ":n >= 15", "queue": queue, "last": 10 });
    let tried = client.post("/api/v1/filters/test", &body).expect(200);
    assert_eq!((&tried["tested"], &tried["matched"], &tried["offsets"][0]), (&json!(10), &json!(5), &json!(15)));
}

#[test]
fn groups_are_listed_with_their_lag_and_can_be_removed() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("lag");
    push(&mut client, &queue, &[json!(1), json!(2), json!(3)]);
    let messages = pop(&mut client, &queue, "reader", 1);
    ack(&mut client, &messages[0], "completed");
    let rows = client.get("/api/v1/consumer-groups").expect(200);
    let row = rows.as_array().unwrap().iter().find(|row| row["name"] == "reader").unwrap();
    assert_eq!((&row["queueName"], &row["totalLag"], &row["state"]), (&json!(queue), &json!(2), &json!("Stable")));
    assert!(!rows.as_array().unwrap().iter().any(|row| row["name"] == "__QUEUE_MODE__"), "an unused primary group shows: {rows}");
    let detail = client.get("/api/v1/consumer-groups/reader").expect(200);
    let cursor = &detail[&queue]["partitions"][0];
    assert_eq!((&cursor["partition"], &cursor["offsetLag"], &cursor["totalConsumed"]), (&json!("Default"), &json!(2), &json!(1)));
    assert_eq!(client.get("/api/v1/consumer-groups/nobody").expect(200), json!({}));
    let lagging = client.get("/api/v1/consumer-groups/lagging?minLagSeconds=0").expect(200);
    assert_eq!(lagging.as_array().unwrap().len(), 1, "{lagging}");
    assert_eq!((&lagging[0]["consumer_group"], &lagging[0]["offset_lag"]), (&json!("reader"), &json!(2)));
    assert_eq!(client.get("/api/v1/consumer-groups/lagging").expect(200), json!([]));
    let depth = client.get(&format!("/api/v1/resources/queues/{queue}/depth?group=reader")).expect(200);
    assert_eq!(depth["pending"], 2);
    let removed = client.delete(&format!("/api/v1/consumer-groups/reader/queues/{queue}?deleteMetadata=true")).expect(200);
    assert_eq!(
        (&removed["success"], &removed["deletedPartitions"], &removed["queueName"]),
        (&json!(true), &json!(1), &json!(queue))
    );
    assert_eq!(pop(&mut client, &queue, "reader", 10).len(), 3);
    let removed = client.delete("/api/v1/consumer-groups/reader").expect(200);
    assert_eq!((&removed["metadataDeleted"], removed.get("queueName")), (&json!(true), None));
    assert_eq!(client.delete("/api/v1/consumer-groups/reader").expect(200)["deletedPartitions"], 0);
}

#[test]
fn a_seek_shows_what_would_move_and_then_moves_it() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("seek");
    push(&mut client, &queue, &[json!(0), json!(1), json!(2), json!(3)]);
    let messages = pop(&mut client, &queue, "g", 4);
    ack(&mut client, &messages[3], "completed");
    let path = format!("/api/v1/consumer-groups/g/queues/{queue}/seek");
    let preview = client.post(&path, &json!({ "offset": 1, "preview": true })).expect(200);
    assert_eq!(preview["partitions"], json!([{ "partition": "Default", "before": 4, "after": 1, "start": 0, "end": 4 }]));
    assert_eq!(preview["partitionsUpdated"], 0);
    assert!(pop(&mut client, &queue, "g", 10).is_empty());
    assert_eq!(client.post(&path, &json!({ "offset": 1 })).expect(200)["partitionsUpdated"], 1);
    assert_eq!(pop(&mut client, &queue, "g", 10)[0]["data"], 1);
    client.post(&path, &json!({ "timestamp": "1970-01-01T00:00:00Z" })).expect(200);
    assert_eq!(pop(&mut client, &queue, "g", 10).len(), 4);
    let partition = format!("/api/v1/consumer-groups/g/queues/{queue}/partitions/Default/seek");
    client.post(&partition, &json!({ "shift": -1 })).expect(200);
    client.post(&partition, &json!({ "toEnd": true })).expect(200);
    assert!(pop(&mut client, &queue, "g", 10).is_empty());
    for bad in [json!({}), json!({ "position": "earliest" }), json!({ "offset": 1, "toEnd": true })] {
        assert_eq!(client.post(&path, &bad).status, 400, "{bad}");
    }
    assert_eq!(client.post("/api/v1/consumer-groups/g/queues/nowhere/seek", &json!({ "toEnd": true })).status, 404);
}
