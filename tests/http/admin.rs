//! Queues, messages, dead letters, traces, status and metrics.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use fanlog::http::HttpOptions;
use serde_json::{Value, json};

use crate::inside::Inside;
use crate::program::eventually;
use crate::server::{Server, ack, pop, push, unique};

#[test]
fn configure_makes_a_queue_and_then_changes_only_what_is_sent() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("configure");
    let made = client.post("/api/v1/configure", &json!({ "queue": queue, "task": "t", "options": { "ttl": 4242 } })).expect(200);
    assert_eq!((&made["configured"], &made["task"], &made["namespace"]), (&json!(true), &json!("t"), &json!("")));
    assert_eq!((&made["options"]["ttl"], &made["options"]["leaseTime"]), (&json!(4242), &json!(300)));
    let body = json!({ "queue": queue, "options": { "leaseTime": 7, "minPopWaitTime": 90_000, "novel": 1 } });
    let changed = client.post("/api/v1/configure", &body).expect(200);
    assert_eq!((&changed["options"]["ttl"], &changed["options"]["leaseTime"]), (&json!(4242), &json!(7)));
    assert_eq!((&changed["options"]["minPopWaitTime"], &changed["ignored"]), (&json!(60_000), &json!(["novel"])));
    assert_eq!(changed["queueId"], made["queueId"]);
    let replaced = client.post("/api/v1/configure", &json!({ "queue": queue, "mode": "replace" })).expect(200);
    assert_eq!((&replaced["options"]["ttl"], &replaced["options"]["leaseTime"]), (&json!(3600), &json!(300)));
    for bad in [
        json!({}),
        json!({ "queue": "" }),
        json!({ "queue": queue, "options": { "leaseTime": "long" } }),
        json!({ "queue": queue, "options": [] }),
        json!({ "queue": queue, "mode": "merge-ish" }),
        json!({ "queue": "a\u{7}b" }),
    ] {
        assert_eq!(client.post("/api/v1/configure", &bad).status, 400, "{bad}");
    }
    let deleted = client.delete(&format!("/api/v1/resources/queues/{queue}")).expect(200);
    assert_eq!((&deleted["deleted"], &deleted["existed"]), (&json!(true), &json!(true)));
    let again = client.delete(&format!("/api/v1/resources/queues/{queue}")).expect(200);
    assert_eq!((&again["deleted"], &again["existed"]), (&json!(false), &json!(false)));
    assert_eq!(client.get(&format!("/api/v1/resources/queues/{queue}")).status, 404);
}

#[test]
fn messages_are_listed_and_one_shows_the_progress_of_every_group() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("messages");
    push(&mut client, &queue, &[json!(0), json!(1), json!(2)]);
    let first = pop(&mut client, &queue, "a", 1);
    ack(&mut client, &first[0], "completed");
    pop(&mut client, &queue, "b", 1);
    let path =
        format!("/api/v1/messages/{}/{}", first[0]["partitionId"].as_str().unwrap(), first[0]["transactionId"].as_str().unwrap());
    let detail = client.get(&path).expect(200);
    assert_eq!((&detail["status"], &detail["data"], &detail["payload"]), (&json!("processing"), &json!(0), &json!(0)));
    let consumed: Vec<_> = detail["consumerGroups"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|group| group["name"] != "__QUEUE_MODE__")
        .map(|group| (group["name"].clone(), group["consumed"].clone()))
        .collect();
    assert_eq!(consumed, [(json!("a"), json!(true)), (json!("b"), json!(false))]);
    let listed = client.get(&format!("/api/v1/messages?queue={queue}&limit=2")).expect(200);
    let offsets: Vec<_> = listed["messages"].as_array().unwrap().iter().map(|message| message["offset"].clone()).collect();
    assert_eq!((offsets, &listed["total"]), (vec![json!(2), json!(1)], &json!(2)));
    let pending = client.get(&format!("/api/v1/messages?queue={queue}&status=pending")).expect(200);
    assert_eq!(pending["total"], 2, "{pending}");
    assert_eq!(client.get(&format!("/api/v1/messages?queue={queue}&to=2000-01-01")).expect(200)["total"], 0);
    assert_eq!(client.get("/api/v1/messages?queue=nowhere").expect(200)["total"], 0);
    for missing in ["nonsense/x", "ffff-0/x", &format!("{}/x", first[0]["partitionId"].as_str().unwrap())] {
        assert_eq!(client.get(&format!("/api/v1/messages/{missing}")).expect(404)["error"], "Message not found");
    }
}

#[test]
fn a_range_of_offsets_is_read_without_a_group() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("fetch");
    let payloads: Vec<_> = (0..30).map(|n| json!(n)).collect();
    push(&mut client, &queue, &payloads);
    push(&mut client, &queue, &payloads);
    let path = format!("/api/v1/queues/{queue}/partitions/Default/messages");
    let read = client.get(&format!("{path}?from=10&to=45&limit=100")).expect(200);
    let offsets: Vec<_> =
        read["messages"].as_array().unwrap().iter().map(|message| message["offset"].as_u64().unwrap()).collect();
    assert_eq!(offsets, (10..45).collect::<Vec<_>>());
    assert_eq!((&read["start"], &read["end"]), (&json!(0), &json!(60)));
    let mut from = 0;
    let mut all = Vec::new();
    while from < 60 {
        let page = client.get(&format!("{path}?from={from}&limit=7")).expect(200);
        all.extend(page["messages"].as_array().unwrap().iter().map(|message| message["offset"].as_u64().unwrap()));
        assert!(page["next"].as_u64().unwrap() > from);
        from = page["next"].as_u64().unwrap();
    }
    assert_eq!(all, (0..60).collect::<Vec<_>>());
    assert_eq!(client.get(&format!("{path}?from=60")).expect(200)["messages"], json!([]));
    assert_eq!(client.get(&format!("{path}?from=61")).expect(400)["code"], "beyond_end");
    let partitions = client.get(&format!("/api/v1/queues/{queue}/partitions")).expect(200);
    assert_eq!((&partitions["partitions"][0]["name"], &partitions["partitions"][0]["end"]), (&json!("Default"), &json!(60)));
}

#[test]
fn dead_letters_are_replayed_once_and_deleted() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("dead");
    push(&mut client, &queue, &[json!("a"), json!("b")]);
    for _ in 0..2 {
        let message = pop(&mut client, &queue, "g", 1).remove(0);
        assert_eq!(ack(&mut client, &message, "dlq")["dlq"], true);
    }
    let letters = client.get(&format!("/api/v1/dlq?queue={queue}&limit=1")).expect(200);
    assert_eq!((&letters["total"], &letters["pagination"]["available"]), (&json!(1), &json!(2)));
    let letter = letters["messages"][0].clone();
    let id = letter["id"].as_str().unwrap();
    assert_eq!(client.post(&format!("/api/v1/dlq/{id}/replay"), &Value::Null).expect(200)["success"], true);
    let replayed = pop(&mut client, &queue, "g", 1).remove(0);
    assert_eq!(replayed["data"], letter["data"]);
    assert_eq!(client.post(&format!("/api/v1/dlq/{id}/replay"), &Value::Null).status, 404);
    let other = client.get(&format!("/api/v1/dlq?queue={queue}")).expect(200)["messages"][0].clone();
    let other_id = other["id"].as_str().unwrap();
    assert_eq!(client.delete(&format!("/api/v1/dlq/{other_id}")).expect(200)["deleted"], true);
    assert_eq!(client.delete(&format!("/api/v1/dlq/{other_id}")).expect(404)["code"], "unknown_dead_letter");
    assert_eq!(client.get(&format!("/api/v1/dlq?queue={queue}")).expect(200)["total"], 0);
    assert_eq!(client.get("/api/v1/dlq?queue=nowhere").expect(200)["messages"], json!([]));
    let live =
        format!("/api/v1/messages/{}/{}", replayed["partitionId"].as_str().unwrap(), replayed["transactionId"].as_str().unwrap());
    assert_eq!(client.delete(&live).status, 404);
    assert_eq!(client.post(&format!("{live}/retry"), &Value::Null).status, 404);
}

#[test]
fn traces_are_found_by_message_and_by_name() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("traces");
    push(&mut client, &queue, &[json!(1)]);
    let message = pop(&mut client, &queue, "g", 1).remove(0);
    let body = json!({
        "transactionId": message["transactionId"], "partitionId": message["partitionId"], "consumerGroup": "g",
        "traceNames": ["checkout"], "eventType": "step", "data": { "step": 1.0 },
    });
    let made = client.post("/api/v1/traces", &body).expect(201);
    assert_eq!(made["success"], true);
    let path =
        format!("/api/v1/traces/{}/{}", message["partitionId"].as_str().unwrap(), message["transactionId"].as_str().unwrap());
    for found in [client.get(&path).expect(200), client.get("/api/v1/traces/by-name/checkout").expect(200)] {
        assert_eq!((&found["total"], &found["traces"][0]["event_type"]), (&json!(1), &json!("step")));
        assert_eq!(found["traces"][0]["data"], json!({ "step": 1.0 }));
        assert_eq!(found["traces"][0]["partition_id"], message["partitionId"]);
    }
    let names = client.get("/api/v1/traces/names").expect(200);
    assert_eq!(
        (&names["trace_names"][0]["trace_name"], &names["trace_names"][0]["message_count"]),
        (&json!("checkout"), &json!(1))
    );
    let mut foreign = body;
    foreign["partitionId"] = json!("nowhere");
    assert_eq!(client.post("/api/v1/traces", &foreign).status, 404);
}

#[test]
fn resources_and_status_have_real_numbers() {
    let server = Server::start();
    let mut client = server.client();
    let queue = format!("shop.mail.{}", unique("numbers"));
    // A series begins with the first sample: what came before it is not in it.
    client.post("/api/v1/stats/refresh", &Value::Null).expect(200);
    push(&mut client, &queue, &[json!(1), json!(2), json!(3), json!(4)]);
    let messages = pop(&mut client, &queue, "g", 3);
    ack(&mut client, &messages[0], "completed");
    let rows = client.get("/api/v1/resources/queues?search=numbers").expect(200);
    let row = &rows["queues"][0];
    assert_eq!((&row["namespace"], &row["task"], &row["partitions"]), (&json!("shop"), &json!("mail"), &json!(1)));
    assert_eq!(row["messages"]["total"], 4);
    assert_eq!((&row["messages"]["pending"], &row["messages"]["processing"]), (&json!(1), &json!(2)), "{row}");
    let detail = client.get(&format!("/api/v1/resources/queues/{queue}")).expect(200);
    assert_eq!((&detail["totals"]["completed"], &detail["segments"]["messages"]), (&json!(1), &json!(4)));
    assert_eq!(detail["partitions"][0]["stats"]["processing"], 2);
    let partitions = client.get(&format!("/api/v1/resources/partitions?queue={queue}")).expect(200);
    assert_eq!(partitions["partitions"][0]["pending"], 1);
    let namespaces = client.get("/api/v1/resources/namespaces").expect(200);
    assert_eq!(namespaces["namespaces"][0]["namespace"], "shop");
    let overview = client.get("/api/v1/resources/overview").expect(200);
    assert_eq!((&overview["queues"], &overview["messages"]["total"]), (&json!(1), &json!(4)));
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        client.post("/api/v1/stats/refresh", &Value::Null).expect(200);
        let status = client.get("/api/v1/status?interval=1").expect(200);
        let ingested: u64 =
            status["throughput"].as_array().unwrap().iter().map(|point| point["ingested"].as_u64().unwrap()).sum();
        assert!(ingested <= 4 && Instant::now() < deadline, "{status}");
        if ingested == 4 {
            assert!(status["messages"]["total"] == 4 && status["leases"]["active"] == 1, "{status}");
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let detail = client.get(&format!("/api/v1/status/queues/{queue}")).expect(200);
    assert_eq!(detail["queue"]["config"]["leaseTime"], 60);
    let system = client.get("/api/v1/analytics/system-metrics").expect(200);
    assert!(system["replicas"][0]["timeSeries"].as_array().is_some_and(|points| !points.is_empty()), "{system}");
}

#[test]
fn health_readiness_and_metrics_answer() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("metrics");
    push(&mut client, &queue, &[json!(1), json!(2)]);
    let messages = pop(&mut client, &queue, "g", 2);
    ack(&mut client, &messages[0], "completed");
    assert_eq!(client.get("/health").expect(200)["status"], "healthy");
    assert_eq!(client.get("/healthz").expect(200)["status"], "alive");
    let ready = client.get("/readyz").expect(200);
    assert_eq!((&ready["ready"], &ready["reasons"]), (&json!(true), &json!([])));
    let metrics = client.get("/metrics").expect(200);
    assert_eq!(metrics["messages"]["total"], 2);
    let text = server.over_tcp(async |first| {
        let (_second, _third) = (server.program().client().await, server.program().client().await);
        first.ping().await.unwrap();
        client.get("/metrics/prometheus").text
    });
    for line in [
        format!("fanlog_pushed_messages_total{{queue=\"{queue}\"}} 2.0"),
        format!("fanlog_group_lag_messages{{queue=\"{queue}\",group=\"g\"}} 1.0"),
        format!("fanlog_group_leases{{queue=\"{queue}\",group=\"g\"}} 1.0"),
        "fanlog_push_duration_seconds_count 1".to_owned(),
        "fanlog_delivery_duration_seconds_count 1".to_owned(),
        "fanlog_delivery_duration_seconds_bucket{le=\"+Inf\"} 1".to_owned(),
        format!("fanlog_removed_messages_total{{queue=\"{queue}\"}} 0.0"),
        "fanlog_connections 3".to_owned(),
        "fanlog_http_requests_total{method=\"POST\",route=\"/api/v1/push\",status=\"201\"} 1".to_owned(),
        "fanlog_recovery_losses 0".to_owned(),
    ] {
        assert!(text.contains(&line), "{line} is missing in\n{text}");
    }
    for metric in [
        "fanlog_sync_duration_seconds_count",
        "fanlog_commit_size_bytes_sum",
        "fanlog_open_maps",
        "fanlog_max_maps",
        "fanlog_process_open_fds",
        "fanlog_process_max_fds",
    ] {
        let line = text.lines().find_map(|line| line.strip_prefix(metric)).unwrap_or_else(|| panic!("no {metric} in\n{text}"));
        assert!(line.trim().parse::<f64>().unwrap() > 0.0, "{metric}{line}");
    }
    assert!(text.ends_with("# EOF\n"));
    assert!(!text.contains("Default"), "a partition became a label");
}

#[test]
fn a_full_disk_makes_the_server_unready_but_alive() {
    let server = Inside::start(HttpOptions { disk_free_bytes_min: u64::MAX, ..HttpOptions::default() });
    let mut client = server.client();
    let ready = client.get("/readyz").expect(503);
    assert_eq!(ready["ready"], false);
    assert!(ready["reasons"][0].as_str().unwrap().contains("free bytes"), "{ready}");
    assert_eq!(client.get("/healthz").status, 200);
    assert_eq!(client.get("/health").status, 200);
}

#[test]
fn a_server_that_stops_says_so_to_who_is_still_there() {
    let server = Server::start();
    let mut clients = ["/readyz", "/health"].map(|path| {
        let mut client = server.client();
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n");
        client.raw(head.as_bytes());
        assert_eq!(client.answer().status, 100, "the server waits for the body");
        client
    });
    let address = server.address;
    let stopping = std::thread::spawn(move || server.stop());
    eventually(|| TcpStream::connect(address).is_err());
    clients.iter_mut().for_each(|client| client.raw(b"{}"));
    let [ready, health] = clients.map(|mut client| client.answer().expect(503));
    assert_eq!((&ready["ready"], &ready["reasons"]), (&json!(false), &json!(["the server is stopping"])));
    assert_eq!(health["status"], "stopping");
    assert!(stopping.join().unwrap() < Duration::from_secs(9));
}

#[test]
fn series_show_what_happened() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("series");
    // A series begins with the first sample: what came before it is not in it.
    client.post("/api/v1/stats/refresh", &Value::Null).expect(200);
    push(&mut client, &queue, &[json!(1), json!(2), json!(3)]);
    let messages = pop(&mut client, &queue, "g", 2);
    ack(&mut client, &messages[1], "completed");
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        client.post("/api/v1/stats/refresh", &Value::Null).expect(200);
        let status = client.get("/api/v1/status?interval=1").expect(200);
        let sum = |key: &str| -> u64 {
            status["throughput"].as_array().unwrap().iter().map(|point| point[key].as_u64().unwrap()).sum()
        };
        if sum("ingested") == 3 {
            assert_eq!(sum("delivered"), 2, "{status}");
            assert!((1..=2).contains(&sum("processed")), "{status}");
            break;
        }
        assert!(Instant::now() < deadline, "{status}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let workers = client.get("/api/v1/analytics/worker-metrics?interval=1").expect(200);
    assert_eq!((&workers["summary"]["pushed"], &workers["summary"]["popped"]), (&json!(3), &json!(2)), "{workers}");
    let retention = client.get("/api/v1/analytics/retention?interval=1").expect(200);
    assert_eq!(retention["timeSeries"].as_array().unwrap().last().unwrap()["messages"], 3, "{retention}");
    let log = client.get("/api/v1/analytics/postgres-stats").expect(200);
    assert!(log["commits"].as_u64().unwrap() >= 2 && log["logBytes"].as_u64().unwrap() > 0, "{log}");
    for route in ["queue-ops", "queue-lag"] {
        assert!(client.get(&format!("/api/v1/analytics/{route}")).expect(200)["queues"].is_array(), "{route}");
    }
    assert_eq!(client.get("/api/v1/analytics/queue-parked-replicas").expect(200)["parked"], 0);
}
