//! Appending, reading and acknowledging through the engine on the real disk, without a socket.
//!
//! `cargo bench --bench engine [-- FILTER]` prints one line for each case. Absolute figures belong to the machine; compare lines of
//! one run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fanlog::engine::{Engine, EngineOptions};
use fanlog::model::*;
use fanlog::record::{BatchBuilder, Message};

struct Case {
    name: &'static str,
    size: usize,
    batch: usize,
    threads: usize,
    patch: SettingsPatch,
    packed: bool,
}

fn main() {
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with("--")).unwrap_or_default();
    let plain = |durability| SettingsPatch {
        durability: Some(durability),
        compression: Some(Compression::None),
        ..SettingsPatch::default()
    };
    let zstd = |durability| SettingsPatch { durability: Some(durability), ..SettingsPatch::default() };
    let cases = [
        Case { name: "sync/100B/batch100/4", size: 100, batch: 100, threads: 4, patch: plain(Durability::Sync), packed: false },
        Case { name: "sync/1K/batch100/4", size: 1024, batch: 100, threads: 4, patch: plain(Durability::Sync), packed: false },
        Case {
            name: "sync/1K/batch100/4/zstd",
            size: 1024,
            batch: 100,
            threads: 4,
            patch: zstd(Durability::Sync),
            packed: false,
        },
        Case { name: "sync/100B/single/1", size: 100, batch: 1, threads: 1, patch: plain(Durability::Sync), packed: false },
        Case { name: "sync/100B/single/64", size: 100, batch: 1, threads: 64, patch: plain(Durability::Sync), packed: false },
        Case { name: "os/1K/batch100/4", size: 1024, batch: 100, threads: 4, patch: plain(Durability::Os), packed: false },
        Case { name: "os/1K/batch100/4/packed", size: 1024, batch: 100, threads: 4, patch: plain(Durability::Os), packed: true },
        Case { name: "os/100B/batch100/4", size: 100, batch: 100, threads: 4, patch: plain(Durability::Os), packed: false },
        Case { name: "os/1K/batch100/4/zstd", size: 1024, batch: 100, threads: 4, patch: zstd(Durability::Os), packed: false },
    ];
    for case in cases.iter().filter(|case| case.name.contains(&filter)) {
        run(case);
    }
}

fn run(case: &Case) {
    let dir = tempfile::tempdir_in(std::env::var("FANLOG_BENCH_DIR").unwrap_or_else(|_| ".".to_owned())).expect("a directory");
    let (engine, _) = Engine::open_path(dir.path(), EngineOptions::default(), Now::read()).expect("open");
    engine.start_threads(1).expect("threads");
    engine.create_queue("q", &case.patch, Now::read()).expect("queue");
    let payloads: Vec<Vec<u8>> = (0..case.batch).map(|number| payload(case.size, number)).collect();
    let messages: Arc<Vec<Message>> = Arc::new(payloads.into_iter().map(Message::new).collect());
    let start = Instant::now();
    let threads: Vec<_> = (0..case.threads)
        .map(|number| {
            let (engine, messages, packed) = (engine.clone(), Arc::clone(&messages), case.packed);
            std::thread::spawn(move || {
                let mut count = 0u64;
                let partition = format!("p{number}");
                while start.elapsed() < Duration::from_secs(2) {
                    let items = if packed {
                        let mut builder = BatchBuilder::new();
                        messages.iter().for_each(|message| builder.push(message));
                        PushItem::Packed(builder.finish(Compression::None))
                    } else {
                        PushItem::Messages(messages.to_vec())
                    };
                    let request = PushRequest { queue: "q".to_owned(), partition: partition.clone(), items, producer: None };
                    engine.push(request, Now::read()).expect("push");
                    count += messages.len() as u64;
                }
                count
            })
        })
        .collect();
    let count: u64 = threads.into_iter().map(|thread| thread.join().expect("thread")).sum();
    let seconds = start.elapsed().as_secs_f64();
    let stats = engine.queue("q").expect("queue").stats;
    println!(
        "push {:<26} {:>10.0} messages/s {:>8.1} MB/s  {:>6} commits, {:.0} us a sync",
        case.name,
        count as f64 / seconds,
        count as f64 * case.size as f64 / seconds / 1e6,
        stats.commits,
        stats.sync_time_us as f64 / stats.syncs.max(1) as f64,
    );
    let start = Instant::now();
    let mut popped = 0u64;
    let mut bytes = 0usize;
    loop {
        let mut request = PopRequest::any("q", 10_000).group("g");
        request.start = Some(Start::Beginning);
        let reply = engine.pop(&request, Now::read()).expect("pop");
        if reply.claims.is_empty() {
            break;
        }
        for claim in &reply.claims {
            for slice in &claim.batches {
                if let BatchSlice::Whole(slice) = slice {
                    bytes += slice.len();
                }
            }
            popped += claim.range.last - claim.range.first + 1;
            let item = AckItem {
                target: AckTarget::Offset(claim.range.last),
                verb: AckVerb::Completed,
                reason: String::new(),
                delay_ms: 0,
            };
            let ack = AckRequest {
                queue: "q".to_owned(),
                partition_id: claim.partition_id,
                group: Some("g".to_owned()),
                lease_id: reply.lease_id.clone(),
                items: vec![item],
            };
            engine.ack(ack, Now::read()).expect("ack");
        }
    }
    assert_eq!(popped, count, "every message once");
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "pop  {:<26} {:>10.0} messages/s {:>8.1} MB/s stored",
        case.name,
        popped as f64 / seconds,
        bytes as f64 / seconds / 1e6
    );
    engine.close(Now::read()).expect("close");
}

fn payload(size: usize, number: usize) -> Vec<u8> {
    let text = format!("{{\"order\":{number},\"customer\":\"c{}\",\"amount\":{},\"note\":\"", number * 7919 % 1000, number * 31);
    let mut bytes = text.into_bytes();
    let mut state = number as u64 + 1;
    while bytes.len() < size.saturating_sub(2) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.push(b"abcdefghijklmnopqrstuvwxyz     "[(state >> 33) as usize % 31]);
    }
    bytes.extend_from_slice(b"\"}");
    bytes.truncate(size);
    bytes
}
