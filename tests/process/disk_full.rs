//! A disk that fills up and gets room again, over and over. `FANLOG_FULL_CYCLES` says how often (10 without it).

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use fanlog::client::{Client, messages_of};
use fanlog::model::{
    AckItem, AckRequest, AckTarget, AckVerb, Compression, ErrorCode, PopRequest, PushItem, PushRequest, PushResult,
    SettingsPatch, Start,
};
use fanlog::record::Message;

use crate::directory::Mount;
use crate::program::{Launch, PATIENCE};
use crate::record::Identity;

const QUEUE: &str = "kept";

/// What was promised.
#[derive(Default)]
struct Promised {
    messages: BTreeMap<u64, Identity>,
    next_sequence: u64,
    acknowledged: u64,
}

impl Promised {
    /// Pushes one message; whether there was room.
    async fn push(&mut self, client: &Client) -> bool {
        let identity = Identity { producer: 1, sequence: self.next_sequence };
        self.next_sequence += 1;
        match client.push(&push_of(QUEUE, vec![identity.payload()])).await {
            Ok(reply) => {
                let Some(PushResult::Stored(offset)) = reply.results.get(0) else { panic!("{:?}", reply.results) };
                assert_eq!(self.messages.insert(offset, identity), None, "offset {offset} was given out before");
                true
            }
            Err(error) => {
                assert_eq!(error.code(), Some(ErrorCode::DiskFull), "{error}");
                assert!(error.is_retryable());
                false
            }
        }
    }

    /// Takes and acknowledges up to 20 messages, which must be those behind the cursor. Whether the acknowledgement had room.
    async fn consume(&mut self, client: &Client) -> bool {
        let mut request = PopRequest::any(QUEUE, 20).group("g");
        request.start = Some(Start::Beginning);
        let reply = client.pop(&request, Duration::ZERO).await.unwrap();
        let Some(claim) = reply.claims.into_iter().next() else { return true };
        let messages = messages_of(claim.batches).unwrap();
        assert!(messages[0].offset >= self.acknowledged, "{} was acknowledged", messages[0].offset);
        for message in &messages {
            let identity = Identity::of(&message.payload);
            assert_eq!(self.messages.get(&message.offset), Some(&identity));
        }
        let item =
            |offset| AckItem { target: AckTarget::Offset(offset), verb: AckVerb::Completed, reason: String::new(), delay_ms: 0 };
        let request = AckRequest {
            queue: QUEUE.into(),
            partition_id: claim.partition_id,
            group: Some("g".into()),
            lease_id: reply.lease_id.clone(),
            items: messages.iter().map(|message| item(message.offset)).collect(),
        };
        match client.ack(&request).await {
            Ok(acked) => {
                assert!(acked.outcomes.iter().all(|outcome| outcome.refused.is_none()), "{acked:?}");
                self.acknowledged = acked.next;
                true
            }
            Err(error) => {
                assert_eq!(error.code(), Some(ErrorCode::DiskFull), "{error}");
                let _ = client.release(&reply.lease_id).await;
                false
            }
        }
    }

    async fn check(&self, client: &Client) {
        let mut reader = client.reader(QUEUE, "p").build().await.unwrap();
        let mut found = BTreeMap::new();
        while let Some(message) = reader.next().await.unwrap() {
            found.insert(message.offset, Identity::of(&message.payload));
        }
        assert_eq!(found, self.messages);
    }
}

fn push_of(queue: &str, payloads: Vec<bytes::Bytes>) -> PushRequest {
    let items = PushItem::Messages(payloads.into_iter().map(Message::new).collect());
    PushRequest { queue: queue.into(), partition: "p".into(), items, producer: None }
}

/// Fills what is left of the disk from outside.
fn take_all_room(directory: &Path) -> std::path::PathBuf {
    let path = directory.join("ballast");
    let file = std::fs::File::create(&path).unwrap();
    loop {
        let free = rustix::fs::statvfs(directory).unwrap();
        let bytes = free.f_bavail * free.f_frsize;
        if bytes == 0 {
            return path;
        }
        match rustix::fs::fallocate(file.as_fd(), rustix::fs::FallocateFlags::empty(), 0, bytes) {
            Ok(()) => return path,
            // The server made a segment between the two calls.
            Err(rustix::io::Errno::NOSPC) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn pushes_wait_for_room_and_everything_else_goes_on() {
    let cycles: u64 = std::env::var("FANLOG_FULL_CYCLES").ok().map_or(10, |text| text.parse().expect("a number"));
    let Some(mount) = Mount::tmpfs("48m") else { return };
    let beside = tempfile::tempdir().unwrap();
    let launch = Launch::in_directory(beside.path()).data(mount.path().join("data"));
    let mut program = launch.start();
    let mut promised = Promised::default();
    let mut slowest = Duration::ZERO;
    let settings = SettingsPatch { segment_bytes_max: Some(1 << 20), ..SettingsPatch::default() };
    program.client().await.create_queue(QUEUE, settings).await.unwrap();
    for cycle in 0..cycles {
        let mut client = program.client().await;
        while promised.messages.len() < 50 + 40 * cycle as usize {
            assert!(promised.push(&client).await, "there is room");
        }
        let is_own_log = cycle % 2 == 0;
        let ballast = if is_own_log {
            fill_with_a_queue(&client).await;
            None
        } else {
            Some(take_all_room(mount.path()))
        };
        if cycle % 3 == 2 {
            // It starts while the disk is full, after a kill or a stop.
            if cycle % 2 == 0 {
                program.kill()
            } else {
                program.stop_any()
            }
            program = launch.start();
            client = program.client().await;
        }
        // A segment that is there already may take a little more; then there is no room.
        for _ in 0..30 {
            promised.push(&client).await;
            let is_acknowledged = promised.consume(&client).await;
            assert!(is_acknowledged || !is_own_log, "acknowledgements have a reserve");
        }
        promised.check(&client).await;
        match ballast {
            Some(path) => std::fs::remove_file(path).unwrap(),
            None => assert!(client.delete_queue("filler").await.unwrap()),
        }
        let freed = Instant::now();
        while !promised.push(&client).await {
            assert!(freed.elapsed() < PATIENCE, "it does not recover");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        slowest = slowest.max(freed.elapsed());
    }
    let client = program.client().await;
    let started = Instant::now();
    while promised.acknowledged <= *promised.messages.keys().last().unwrap() {
        promised.consume(&client).await;
        assert!(started.elapsed() < PATIENCE, "the group does not reach the end");
    }
    promised.check(&client).await;
    println!("{cycles} cycles, {} messages; slowest recovery {slowest:?}", promised.messages.len());
    program.stop();
}

/// Pushes into another queue until the disk is full.
async fn fill_with_a_queue(client: &Client) {
    let settings =
        SettingsPatch { segment_bytes_max: Some(2 << 20), compression: Some(Compression::None), ..SettingsPatch::default() };
    client.create_queue("filler", settings).await.unwrap();
    let started = Instant::now();
    loop {
        match client.push(&push_of("filler", vec![vec![7u8; 300 << 10].into()])).await {
            Ok(_) => assert!(started.elapsed() < PATIENCE, "the disk does not become full"),
            Err(error) => {
                assert_eq!(error.code(), Some(ErrorCode::DiskFull), "{error}");
                return;
            }
        }
    }
}
