//! Both doors at once: binary clients and HTTP clients on the same queues of one process.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fanlog::client::messages_of;
use fanlog::model::{AckItem, AckRequest, AckTarget, AckVerb, PopRequest, PushItem, PushRequest, Start};
use fanlog::record::{Attributes, Message};
use serde_json::json;

use crate::program::PATIENCE;
use crate::server::{Server, ack, pop, push, unique};

#[test]
fn both_protocols_see_the_same_messages_groups_and_acknowledgements() {
    let server = Server::start();
    let mut http = server.client();
    let queue = unique("mixed");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let tcp = runtime.block_on(server.program().client());

    // One message through each door.
    let attributes = json!({ "region": "eu", "n": 1 });
    let items =
        json!({ "items": [{ "queue": queue, "payload": { "from": "http" }, "transactionId": "a", "attributes": attributes }] });
    http.post("/api/v1/push", &items).expect(201);
    let mut message = Message::new(r#"{"from": "tcp"}"#);
    message.transaction_id = Some("b".to_owned());
    message.attributes = Attributes::from_json(&attributes.to_string()).unwrap();
    let request = PushRequest {
        queue: queue.clone(),
        partition: "Default".into(),
        items: PushItem::Messages(vec![message]),
        producer: None,
    };
    runtime.block_on(tcp.push(&request)).unwrap();

    // Each protocol reads both, for a group of its own.
    let over_http = pop(&mut http, &queue, "over-http", 10);
    let pop_request = PopRequest { start: Some(Start::Beginning), ..PopRequest::any(&queue, 10).group("over-tcp") };
    let reply = runtime.block_on(tcp.pop(&pop_request, Duration::from_secs(5))).unwrap();
    let over_tcp = messages_of(reply.claims[0].batches.clone()).unwrap();
    assert_eq!((over_http.len(), over_tcp.len()), (2, 2));
    for (http_message, tcp_message) in over_http.iter().zip(&over_tcp) {
        assert_eq!(http_message["offset"], tcp_message.offset);
        assert_eq!(http_message["transactionId"].as_str(), tcp_message.transaction_id.as_deref());
        assert_eq!(http_message["data"], serde_json::from_slice::<serde_json::Value>(&tcp_message.payload).unwrap());
        assert_eq!(http_message["attributes"].to_string(), tcp_message.attributes.to_json());
    }

    // A lease taken through one door is acknowledged through the other.
    let ack_request = AckRequest {
        queue: queue.clone(),
        partition_id: reply.claims[0].partition_id,
        group: Some("over-http".into()),
        lease_id: over_http[0]["leaseId"].as_str().unwrap().to_owned(),
        items: vec![AckItem {
            target: AckTarget::TransactionId("b".into()),
            verb: AckVerb::Completed,
            reason: String::new(),
            delay_ms: 0,
        }],
    };
    let acked = runtime.block_on(tcp.ack(&ack_request)).unwrap();
    assert_eq!(acked.outcomes[0].refused, None);
    assert!(pop(&mut http, &queue, "over-http", 10).is_empty());
    let mut theirs = over_http[1].clone();
    theirs["leaseId"] = json!(reply.lease_id);
    theirs["consumerGroup"] = json!("over-tcp");
    assert_eq!(ack(&mut http, &theirs, "completed")["success"], true);
    assert!(runtime.block_on(tcp.pop(&pop_request, Duration::ZERO)).unwrap().claims.is_empty());

    // A push through one door wakes who waits at the other.
    let mut waiting = server.client();
    waiting.request("GET", &format!("/api/v1/pop/queue/{queue}?consumerGroup=over-http&wait=true&timeout=20000"), None);
    let items = PushItem::Messages(vec![Message::new("3")]);
    let request = PushRequest { queue: queue.clone(), partition: "Default".into(), items, producer: None };
    runtime.block_on(tcp.push(&request)).unwrap();
    assert_eq!(waiting.answer().expect(200)["messages"][0]["data"], 3);
}

#[test]
fn producers_and_consumers_of_both_protocols_share_a_group_without_loss_or_repetition() {
    const EACH: u64 = 300;
    let server = Server::start();
    let queue = unique("shared-load");
    let (started, acknowledged) = (Instant::now(), AtomicU64::new(0));
    let is_going_on = || {
        assert!(started.elapsed() < PATIENCE, "{acknowledged:?} of {} messages came", 2 * EACH);
        acknowledged.load(Ordering::Relaxed) < 2 * EACH
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = server.client();
            for n in (0..EACH).step_by(10) {
                let payloads: Vec<_> = (n..n + 10).map(|n| json!(n)).collect();
                push(&mut client, &queue, &payloads);
            }
        });
        scope.spawn(|| {
            server.over_tcp(async |client| {
                for n in EACH..2 * EACH {
                    let items = PushItem::Messages(vec![Message::new(n.to_string())]);
                    let partition = format!("p{}", n % 4);
                    let request = PushRequest { queue: queue.clone(), partition, items, producer: None };
                    client.push(&request).await.unwrap();
                }
            });
        });
        let http = scope.spawn(|| {
            let mut client = server.client();
            let mut seen = Vec::new();
            while is_going_on() {
                for message in &pop(&mut client, &queue, "shared", 7) {
                    seen.push(message["data"].as_u64().unwrap());
                    assert_eq!(ack(&mut client, message, "completed")["success"], true);
                    acknowledged.fetch_add(1, Ordering::Relaxed);
                }
            }
            seen
        });
        let tcp = scope.spawn(|| {
            server.over_tcp(async |client| {
                let start = Some(Start::Beginning);
                let request = PopRequest { start, partitions_max: 8, ..PopRequest::any(&queue, 7).group("shared") };
                let mut seen = Vec::new();
                while is_going_on() {
                    // The queue is made by the first push, which may not have come yet.
                    let reply = client.pop(&request, Duration::ZERO).await.unwrap_or_default();
                    for claim in reply.claims {
                        let messages = messages_of(claim.batches).unwrap();
                        let last = messages.last().unwrap().offset;
                        seen.extend(
                            messages
                                .iter()
                                .map(|message| -> u64 { std::str::from_utf8(&message.payload).unwrap().parse().unwrap() }),
                        );
                        let item = AckItem {
                            target: AckTarget::Offset(last),
                            verb: AckVerb::Completed,
                            reason: String::new(),
                            delay_ms: 0,
                        };
                        let ack = AckRequest {
                            queue: claim.queue,
                            partition_id: claim.partition_id,
                            group: Some("shared".into()),
                            lease_id: reply.lease_id.clone(),
                            items: vec![item],
                        };
                        assert_eq!(client.ack(&ack).await.unwrap().outcomes[0].refused, None);
                        acknowledged.fetch_add(messages.len() as u64, Ordering::Relaxed);
                    }
                }
                seen
            })
        });
        let mut seen = http.join().unwrap();
        seen.extend(tcp.join().unwrap());
        assert_eq!(seen.len() as u64, 2 * EACH, "something came twice or never");
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), (0..2 * EACH).collect());
    });
    assert!(pop(&mut server.client(), &queue, "shared", 1).is_empty(), "something would come again");
}
