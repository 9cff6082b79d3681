//! Random operations on the engine over the simulated disk, beside a model that is a list: what was pushed is there, at its offset,
//! byte for byte, over kills and losses of power.
#![no_main]

use std::collections::BTreeMap;

use fanlog::engine::{Engine, EngineOptions};
use fanlog::model::*;
use fanlog::record::{Message, StoredBatch};
use fanlog::storage::disk::sim::SimDisk;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|operations: &[u8]| {
    let mut disk = SimDisk::new(1);
    let mut now = Now { wall_us: 1_700_000_000_000_000, steady_us: 1_000_000 };
    let mut engine = open(&disk, now);
    let mut model: BTreeMap<u8, Vec<Vec<u8>>> = BTreeMap::new();
    let mut leases = Vec::new();
    for (step, pair) in operations.chunks_exact(2).take(64).enumerate() {
        let (operation, argument) = (pair[0] % 8, pair[1]);
        let partition = argument % 3;
        now.wall_us += 1000;
        now.steady_us += 1000;
        match operation {
            0..=2 => {
                let payload = vec![argument; usize::from(argument) * 8 + step];
                let items = PushItem::Messages(vec![Message::new(payload.clone())]);
                let name = partition.to_string();
                let request = PushRequest { queue: "q".into(), partition: name, items, producer: None };
                let reply = engine.push(request, now).expect("a push");
                let offset = model.get(&partition).map_or(0, Vec::len) as u64;
                assert_eq!(reply.results.get(0), Some(PushResult::Stored(offset)));
                model.entry(partition).or_default().push(payload);
            }
            3 => {
                let request = PopRequest { start: Some(Start::Beginning), ..PopRequest::any("q", 5).group("g") };
                if let Ok(reply) = engine.pop(&request, now) {
                    leases.extend(reply.claims.into_iter().map(|claim| (claim, reply.lease_id.clone())));
                }
            }
            4 => {
                if let Some((claim, lease_id)) = leases.pop() {
                    let verb = if argument & 1 == 0 { AckVerb::Completed } else { AckVerb::Retry };
                    let target = AckTarget::Offset(claim.range.last);
                    let item = AckItem { target, verb, reason: String::new(), delay_ms: 0 };
                    let request = AckRequest {
                        queue: "q".into(),
                        partition_id: claim.partition_id,
                        group: Some("g".into()),
                        lease_id,
                        items: vec![item],
                    };
                    engine.ack(request, now).expect("an acknowledgement");
                }
            }
            5 => {
                now.steady_us += 61_000_000;
                now.wall_us += 61_000_000;
                engine.tick(now);
            }
            _ => {
                disk = if operation == 6 { disk.crash_keep_all() } else { disk.crash(u64::from(argument)) };
                engine = open(&disk, now);
                leases.clear();
            }
        }
    }
    for (partition, payloads) in &model {
        let fetch = FetchRequest {
            queue: "q".into(),
            partition: partition.to_string(),
            from: 0,
            to: None,
            messages_max: u32::MAX,
            bytes_max: u32::MAX,
        };
        let reply = engine.fetch(&fetch, now).expect("a fetch");
        let mut found = Vec::new();
        for slice in reply.batches {
            if let BatchSlice::Whole(bytes) = slice {
                let messages = StoredBatch::parse(bytes).expect("a batch").messages().expect("messages");
                found.extend(messages.into_iter().map(|message| message.payload.to_vec()));
            }
        }
        assert_eq!(&found, payloads, "partition {partition}");
    }
});

fn open(disk: &SimDisk, now: Now) -> Engine {
    Engine::open(disk.root(), EngineOptions::default(), now).expect("it opens").0
}
