//! What broke other log systems, tried on this one. `tests/SCENARIOS.md` lists every scenario with the test that tries it; those that
//! no other program of tests tries are here.

#[path = "../engine/support.rs"]
#[allow(dead_code)]
mod support;

mod cursors;
mod limits;
mod recovery;
mod retention;

use fanlog::model::{Compression, FetchRequest, SeekRequest, SeekTarget, SettingsPatch};
use fanlog::record::StoredBatch;

use support::World;

/// Segments as small as they get, and payloads stored as they are.
pub fn small_segments() -> SettingsPatch {
    SettingsPatch { segment_bytes_max: Some(1 << 20), compression: Some(Compression::None), ..SettingsPatch::default() }
}

pub fn fetch_of(queue: &str, partition: &str, from: u64) -> FetchRequest {
    FetchRequest { queue: queue.into(), partition: partition.into(), from, to: None, messages_max: 1_000_000, bytes_max: 1 << 20 }
}

/// Every message from an offset to the end: offset and payload.
pub fn read_all(world: &World, queue: &str, partition: &str, from: u64) -> Vec<(u64, String)> {
    let mut found = Vec::new();
    let mut next = from;
    loop {
        let reply = world.engine.fetch(&fetch_of(queue, partition, next), world.now).unwrap();
        for slice in &reply.batches {
            let fanlog::model::BatchSlice::Whole(bytes) = slice else { panic!("a fetch gives whole batches") };
            let messages = StoredBatch::parse(bytes.clone()).unwrap().messages().unwrap();
            let wanted = messages.iter().filter(|message| message.offset >= from);
            found.extend(wanted.map(|message| (message.offset, support::text(message))));
        }
        if reply.next >= reply.end {
            return found;
        }
        assert!(reply.next > next, "a fetch goes on");
        next = reply.next;
    }
}

pub fn seek_of(queue: &str, group: &str, target: SeekTarget) -> SeekRequest {
    SeekRequest { queue: queue.into(), group: Some(group.into()), partition: None, target, is_preview: false }
}

/// The path of the queue's files with this ending, in order.
pub fn paths(world: &World, ending: &str) -> Vec<String> {
    world.disk.paths().into_iter().filter(|path| path.ends_with(ending)).collect()
}
