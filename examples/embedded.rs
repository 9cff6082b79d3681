//! The engine inside a program of your own: no socket, no server, no runtime.
//!
//! Run it with `cargo run --example embedded`. It keeps its data in a directory that goes away at the end.

use fanlog::engine::{Engine, EngineOptions};
use fanlog::model::{
    AckItem, AckRequest, AckTarget, AckVerb, BatchSlice, Now, PopRequest, PushItem, PushRequest, Start, StoredMessage,
};
use fanlog::record::{Message, StoredBatch};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let directory = std::env::temp_dir().join(format!("fanlog-embedded-{}", std::process::id()));
    let outcome = fan_out(&directory);
    std::fs::remove_dir_all(&directory)?;
    outcome
}

fn fan_out(directory: &std::path::Path) -> Outcome<()> {
    // Opening recovers what an earlier run left; the report says what was found.
    let (engine, report) = Engine::open_path(directory, EngineOptions::default(), Now::read())?;
    println!("opened: {} queues, {} messages", report.queues, report.messages);
    // Committer threads make pushes durable together; the caller's thread waits for the one that its push is in.
    engine.start_threads(1)?;

    for order in 1..=3 {
        let message = Message::new(format!("order {order}"));
        let request = PushRequest {
            queue: "orders".into(),
            partition: "customer-42".into(),
            items: PushItem::Messages(vec![message]),
            producer: None,
        };
        let reply = engine.push(request, Now::read())?;
        println!("pushed: {:?}, promised as {:?}", reply.results, reply.promise);
    }

    // Two groups read the same messages, each at its own pace. Naming a group makes it.
    for (group, count) in [("billing", 3), ("shipping", 1)] {
        let pop = PopRequest { start: Some(Start::Beginning), ..PopRequest::any("orders", count).group(group) };
        let reply = engine.pop(&pop, Now::read())?;
        for claim in &reply.claims {
            let messages = messages(&claim.batches)?;
            for message in &messages {
                println!("{group} took {}: {}", message.offset, String::from_utf8_lossy(&message.payload));
            }
            let Some(last) = messages.last() else { continue };
            let done =
                AckItem { target: AckTarget::Offset(last.offset), verb: AckVerb::Completed, reason: String::new(), delay_ms: 0 };
            let ack = AckRequest {
                queue: claim.queue.clone(),
                partition_id: claim.partition_id,
                group: Some(group.into()),
                lease_id: reply.lease_id.clone(),
                items: vec![done],
            };
            engine.ack(ack, Now::read())?;
        }
    }
    for progress in engine.progress("orders", Now::read())? {
        println!("{}: {} messages behind", progress.group.name, progress.lag);
    }
    engine.close(Now::read())?;
    Ok(())
}

/// A claim holds stored batches as they lie on disk where all of a batch goes to the group, and single messages where not.
fn messages(batches: &[BatchSlice]) -> Outcome<Vec<StoredMessage>> {
    let mut messages = Vec::new();
    for batch in batches {
        match batch {
            BatchSlice::Whole(record) => messages.extend(StoredBatch::parse(record.clone())?.messages()?),
            BatchSlice::Messages(some) => messages.extend(some.iter().cloned()),
        }
    }
    Ok(messages)
}
