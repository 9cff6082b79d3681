//! An engine on a simulated disk, with a clock that the test moves.

use std::sync::Arc;

use fanlog::engine::{Engine, EngineOptions, RecoveryReport};
use fanlog::model::*;
use fanlog::record::Message;
use fanlog::storage::disk::sim::SimDisk;

/// A disk, an engine on it, and the time.
pub struct World {
    pub disk: SimDisk,
    pub engine: Engine,
    pub report: RecoveryReport,
    pub now: Now,
    pub options: EngineOptions,
}

impl World {
    pub fn new(seed: u64) -> Self {
        Self::on(SimDisk::new(seed), Now { wall_us: 1_700_000_000_000_000, steady_us: 1_000_000_000 })
    }

    pub fn on(disk: SimDisk, now: Now) -> Self {
        let options = EngineOptions { default_start: Start::Beginning, ..EngineOptions::default() };
        Self::with_options(disk, now, options)
    }

    pub fn with_options(disk: SimDisk, now: Now, options: EngineOptions) -> Self {
        let (engine, report) = Engine::open(disk.root(), options.clone(), now).unwrap();
        Self { disk, engine, report, now, options }
    }

    /// Lets time pass and does what it makes due.
    pub fn pass(&mut self, milliseconds: u64) {
        self.now.wall_us += milliseconds * 1000;
        self.now.steady_us += milliseconds * 1000;
        self.engine.tick(self.now);
    }

    /// Closes the engine and opens it again.
    pub fn restart(self) -> Self {
        self.engine.close(self.now).unwrap();
        let Self { disk, engine, now, options, .. } = self;
        drop(engine);
        Self::with_options(disk, now, options)
    }

    /// Kills the process: what was written stays, nothing is closed.
    pub fn kill(self) -> Self {
        let Self { disk, engine, now, options, .. } = self;
        let after = disk.crash_keep_all();
        drop(engine);
        Self::with_options(after, now, options)
    }

    /// Cuts the power: what was not synced is gone.
    pub fn power_loss(self) -> Self {
        let Self { disk, engine, now, options, .. } = self;
        let after = disk.crash_drop_unsynced();
        drop(engine);
        Self::with_options(after, now, options)
    }

    pub fn push(&self, queue: &str, partition: &str, payloads: &[&str]) -> PushReply {
        self.engine.push(push_of(queue, partition, payloads), self.now).unwrap()
    }

    pub fn pop(&self, queue: &str, group: &str, count: u32) -> PopReply {
        self.engine.pop(&PopRequest::any(queue, count).group(group), self.now).unwrap()
    }

    pub fn ack(&self, claim: &Claim, group: &str, lease: &str, items: &[(u64, AckVerb)]) -> AckReply {
        self.engine.ack(ack_of(claim, group, lease, items), self.now).unwrap()
    }

    /// Pops once and completes everything; the payloads by partition and offset.
    pub fn take(&self, queue: &str, group: &str, count: u32) -> Vec<(String, u64, String)> {
        let reply = self.pop(queue, group, count);
        let mut taken = Vec::new();
        for claim in &reply.claims {
            let messages = messages_of(claim);
            let items: Vec<_> = messages.iter().map(|message| (message.offset, AckVerb::Completed)).collect();
            let reply = self.ack(claim, group, &reply.lease_id, &items);
            assert!(reply.outcomes.iter().all(|outcome| outcome.refused.is_none()), "{reply:?}");
            taken.extend(messages.into_iter().map(|message| (claim.partition.clone(), message.offset, text(&message))));
        }
        taken
    }

    /// Makes a queue with settings of its own.
    pub fn create(&self, queue: &str, patch: SettingsPatch) {
        self.engine.create_queue(queue, &patch, self.now).unwrap();
    }

    /// Pops as told.
    pub fn pop_as(&self, request: &PopRequest) -> PopReply {
        self.engine.pop(request, self.now).unwrap()
    }

    /// Unread messages of a group.
    pub fn lag(&self, queue: &str, group: &str) -> u64 {
        let progress = self.engine.progress(queue, self.now).unwrap();
        progress.iter().find(|progress| progress.group.name == group).unwrap().lag
    }

    /// The cursor of a group in the partition of this name.
    pub fn cursor(&self, queue: &str, group: &str, partition: &str) -> CursorProgress {
        let cursors = self.engine.cursors(queue, group, 0, usize::MAX, self.now).unwrap();
        cursors.into_iter().find(|cursor| cursor.partition == partition).unwrap()
    }

    pub fn letters(&self, queue: &str) -> Vec<DeadLetter> {
        let query = DeadLetterQuery { queue: Some(queue.to_owned()), limit: 100, ..DeadLetterQuery::default() };
        self.engine.dead_letters(&query).unwrap().0
    }

    /// Moves a group in all partitions.
    pub fn seek(&self, queue: &str, group: &str, target: SeekTarget) -> Vec<SeekPreview> {
        self.engine.seek(&seek_of(queue, group, target), self.now).unwrap()
    }

    /// Takes until nothing is left.
    pub fn drain(&self, queue: &str, group: &str) -> Vec<(String, u64, String)> {
        let mut all = Vec::new();
        loop {
            let taken = self.take(queue, group, 100);
            if taken.is_empty() {
                return all;
            }
            all.extend(taken);
        }
    }
}

pub fn push_of(queue: &str, partition: &str, payloads: &[&str]) -> PushRequest {
    let messages = payloads.iter().map(|payload| Message::new(payload.as_bytes().to_vec())).collect();
    PushRequest { queue: queue.to_owned(), partition: partition.to_owned(), items: PushItem::Messages(messages), producer: None }
}

pub fn seek_of(queue: &str, group: &str, target: SeekTarget) -> SeekRequest {
    SeekRequest { queue: queue.to_owned(), group: Some(group.to_owned()), partition: None, target, is_preview: false }
}

/// The payloads of what was taken.
pub fn texts(taken: &[(String, u64, String)]) -> Vec<&str> {
    taken.iter().map(|entry| entry.2.as_str()).collect()
}

/// The payloads of a pop.
pub fn popped(reply: &PopReply) -> Vec<String> {
    reply.claims.iter().flat_map(messages_of).map(|message| text(&message)).collect()
}

/// The codes with which the items of an acknowledgement were refused.
pub fn refusals(reply: &AckReply) -> Vec<Option<ErrorCode>> {
    reply.outcomes.iter().map(|outcome| outcome.refused.as_ref().map(|error| error.code)).collect()
}

pub fn ack_of(claim: &Claim, group: &str, lease: &str, items: &[(u64, AckVerb)]) -> AckRequest {
    AckRequest {
        queue: claim.queue.clone(),
        partition_id: claim.partition_id,
        group: Some(group.to_owned()),
        lease_id: lease.to_owned(),
        items: items
            .iter()
            .map(|&(offset, verb)| AckItem { target: AckTarget::Offset(offset), verb, reason: String::new(), delay_ms: 0 })
            .collect(),
    }
}

pub fn messages_of(claim: &Claim) -> Vec<StoredMessage> {
    messages_in(&claim.batches)
}

pub fn messages_in(batches: &[BatchSlice]) -> Vec<StoredMessage> {
    let mut messages = Vec::new();
    for slice in batches {
        match slice {
            BatchSlice::Whole(bytes) => {
                messages.extend(fanlog::record::StoredBatch::parse(bytes.clone()).unwrap().messages().unwrap());
            }
            BatchSlice::Messages(found) => messages.extend(found.iter().cloned()),
        }
    }
    messages
}

pub fn text(message: &StoredMessage) -> String {
    String::from_utf8(message.payload.to_vec()).unwrap()
}

#[allow(dead_code)]
pub fn shared(value: impl Fn() + Send + Sync + 'static) -> Arc<dyn Fn() + Send + Sync> {
    Arc::new(value)
}
