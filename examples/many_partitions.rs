//! One queue with very many partitions, one for each customer: pushes to all of them, reads all of them in several groups, lists lag,
//! and says what each of that costs.
//!
//! ```text
//! fanlog serve &
//! cargo run --release --example many_partitions -- 127.0.0.1:6633 100000 3
//! ```
//!
//! Run again with another number to compare: the cost of an operation should not grow with the partitions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fanlog::client::{Client, Error, messages_of};
use fanlog::model::{AckItem, AckRequest, AckTarget, AckVerb, PopRequest, PushItem, PushRequest, Start};
use fanlog::record::Message;

/// Requests under way at the same time.
const LANES: u64 = 256;
/// Pushes and reads of the part that measures a queue which is full of idle partitions.
const BUSY: u64 = 10_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:6633".to_owned());
    let partitions: u64 = arguments.next().map_or(Ok(100_000), |text| text.parse())?;
    let groups: u64 = arguments.next().map_or(Ok(3), |text| text.parse())?;
    let client = Client::builder(address).request_timeout(Duration::from_secs(120)).connect().await?;
    let queue = format!("customers-{partitions}");

    let time = push(&client, &queue, 0, 1, partitions).await?;
    report("push, each the first of its partition", partitions, time);
    for group in 0..groups {
        let (count, time) = drain(&client, &queue, &format!("group-{group}"), 64).await?;
        assert_eq!(count, partitions, "every partition has one message");
        report("pop any (64 partitions) and ack", partitions, time);
    }
    let started = Instant::now();
    let listed = client.groups(Some(&queue)).await?;
    assert!(listed.iter().all(|group| group.lag == 0 || group.group.name == fanlog::model::PRIMARY_GROUP));
    report("group list", 1, started.elapsed());

    // Now most partitions are idle, and a few have work.
    let step = (partitions / BUSY).max(1);
    let time = push(&client, &queue, 1, step, BUSY.min(partitions)).await?;
    report("push, into partitions that were idle", BUSY.min(partitions), time);
    let started = Instant::now();
    let lag: u64 = client.group(&queue, Some("group-0")).await?.lag;
    assert_eq!(lag, BUSY.min(partitions));
    report("lag of a group", 1, started.elapsed());
    let (count, time) = drain(&client, &queue, "group-0", 1).await?;
    assert_eq!(count, BUSY.min(partitions));
    report("pop any (one partition) and ack", count, time);
    let started = Instant::now();
    let page = client.progress(&queue, Some("group-0"), None, 1_000).await?;
    report("first 1000 cursors", page.len() as u64, started.elapsed());
    Ok(())
}

fn report(what: &str, count: u64, time: Duration) {
    let each = time.as_secs_f64() * 1e6 / count.max(1) as f64;
    println!("{what}: {count} in {:.3} s, {each:.1} us each", time.as_secs_f64());
}

/// One message into every `step`th partition, `count` of them.
async fn push(client: &Client, queue: &str, round: u64, step: u64, count: u64) -> Result<Duration, Error> {
    let next = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let lanes: Vec<_> = (0..LANES)
        .map(|_| {
            let (client, queue, next) = (client.clone(), queue.to_owned(), Arc::clone(&next));
            tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return Ok::<_, Error>(());
                    }
                    let partition = format!("customer-{}", number * step);
                    let message = Message::new(format!("{round} {partition}"));
                    let items = PushItem::Messages(vec![message]);
                    client.push(&PushRequest { queue: queue.clone(), partition, items, producer: None }).await?;
                }
            })
        })
        .collect();
    for lane in lanes {
        lane.await.expect("a lane does not panic")?;
    }
    Ok(started.elapsed())
}

/// Reads and acknowledges until nothing is left. Returns how many messages that was, and how long it took.
async fn drain(client: &Client, queue: &str, group: &str, partitions_max: u32) -> Result<(u64, Duration), Error> {
    let mut request = PopRequest::any(queue, 1_000).group(group);
    (request.partitions_max, request.start) = (partitions_max, Some(Start::Beginning));
    let started = Instant::now();
    let lanes: Vec<_> = (0..16)
        .map(|_| {
            let (client, request, group) = (client.clone(), request.clone(), group.to_owned());
            tokio::spawn(async move {
                let mut count = 0;
                loop {
                    let reply = client.pop(&request, Duration::ZERO).await?;
                    if reply.claims.is_empty() {
                        return Ok::<_, Error>(count);
                    }
                    let acks = reply.claims.into_iter().map(|claim| {
                        let messages = messages_of(claim.batches)?;
                        count += messages.len() as u64;
                        let item = |offset| AckItem {
                            target: AckTarget::Offset(offset),
                            verb: AckVerb::Completed,
                            reason: String::new(),
                            delay_ms: 0,
                        };
                        let request = AckRequest {
                            queue: claim.queue,
                            partition_id: claim.partition_id,
                            group: Some(group.clone()),
                            lease_id: reply.lease_id.clone(),
                            items: messages.last().map(|message| item(message.offset)).into_iter().collect(),
                        };
                        let client = client.clone();
                        Ok(tokio::spawn(async move { client.ack(&request).await }))
                    });
                    let acks: Vec<_> = acks.collect::<Result<_, Error>>()?;
                    for ack in acks {
                        ack.await.expect("an acknowledgement does not panic")?;
                    }
                }
            })
        })
        .collect();
    let mut count = 0;
    for lane in lanes {
        count += lane.await.expect("a lane does not panic")?;
    }
    Ok((count, started.elapsed()))
}
