//! Producers and consumers that go on over the deaths of their server, and tell the record what they hear.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fanlog::client::{Client, Error, ErrorKind, messages_of};
use fanlog::model::{
    AckItem, AckRequest, AckTarget, AckVerb, Claim, Compression, ErrorCode, PopRequest, PushItem, PushRequest, PushResult, Start,
    TransactionRequest,
};
use fanlog::record::Message;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::random::Random;
use crate::record::{Identity, Place, Record};

/// Partitions of the source queue.
pub const PARTITIONS: u64 = 6;
/// A group that pops and acknowledges parts of what it has.
pub const ORDERED: &str = "ordered";
/// A group that is a subscription.
pub const STREAM: &str = "stream";
/// A work queue with two workers.
pub const SHARED: &str = "shared";
/// A group that acknowledges and pushes into two other queues in one transaction.
pub const MOVER: &str = "mover";
/// All of them.
pub const GROUPS: [&str; 4] = [ORDERED, STREAM, SHARED, MOVER];

const LEASE_MS: u64 = 3_000;

/// What one generation of queues is called.
#[derive(Debug, Clone)]
pub struct Queues {
    pub source: String,
    pub targets: [String; 2],
}

impl Queues {
    pub fn of(generation: u64) -> Self {
        Self { source: format!("source-{generation}"), targets: [format!("first-{generation}"), format!("second-{generation}")] }
    }

    pub fn all(&self) -> [&str; 3] {
        [&self.source, &self.targets[0], &self.targets[1]]
    }
}

/// What all tasks share.
#[derive(Debug, Clone)]
pub struct Scene {
    pub client: Client,
    pub record: Arc<Record>,
    pub queues: Queues,
    pub stopping: CancellationToken,
}

impl Scene {
    /// Starts the producers; they end when `stopping` is cancelled and everything they sent is answered.
    pub fn start_producers(&self, tasks: &mut JoinSet<()>, random: &mut Random) {
        tasks.spawn(steady_producer(self.clone(), 1, None, Random::new(random.number())));
        tasks.spawn(steady_producer(self.clone(), 2, Some(Compression::Zstd { level: 1 }), Random::new(random.number())));
        tasks.spawn(plain_producer(self.clone(), 3, Random::new(random.number())));
    }

    /// Starts the consumers; they end when `stopping` is cancelled.
    pub fn start_consumers(&self, tasks: &mut JoinSet<()>, random: &mut Random) {
        tasks.spawn(ordered_consumer(self.clone(), Random::new(random.number())));
        tasks.spawn(stream_consumer(self.clone()));
        tasks.spawn(shared_consumer(self.clone(), Random::new(random.number())));
        tasks.spawn(shared_consumer(self.clone(), Random::new(random.number())));
        tasks.spawn(mover(self.clone()));
    }

    fn place(&self, partition: &str, offset: u64) -> Place {
        Place { queue: self.queues.source.clone(), partition: partition.to_owned(), offset }
    }

    /// Waits, unless everything ends.
    async fn pause(&self, milliseconds: u64) -> bool {
        tokio::select! {
            () = self.stopping.cancelled() => false,
            () = tokio::time::sleep(Duration::from_millis(milliseconds)) => true,
        }
    }

    /// Takes messages for a group. None, after a pause, if there are none or the server is not there.
    async fn pop(&self, group: &'static str, random: &mut Random) -> (String, Vec<(Claim, Vec<(u64, Identity)>)>) {
        let mut request = PopRequest::any(self.queues.source.as_str(), 1 + random.below(40) as u32).group(group);
        request.start = Some(Start::Beginning);
        request.lease_ms = Some(LEASE_MS);
        request.partitions_max = 1 + random.below(3) as u32;
        request.shared = group == SHARED;
        let asked = self.record.now();
        let Some(reply) = survived(self.client.pop(&request, Duration::from_millis(100))).await else {
            self.pause(5).await;
            return Default::default();
        };
        let mut claims = Vec::new();
        for mut claim in reply.claims {
            let messages = messages_of(std::mem::take(&mut claim.batches)).unwrap();
            let messages: Vec<_> = messages.iter().map(|message| (message.offset, Identity::of(&message.payload))).collect();
            for &(offset, identity) in &messages {
                self.record.delivered(group, self.place(&claim.partition, offset), identity, asked);
            }
            claims.push((claim, messages));
        }
        (reply.lease_id, claims)
    }

    fn ack_of(&self, group: &str, lease_id: &str, claim: &Claim, items: impl Iterator<Item = (u64, AckVerb)>) -> AckRequest {
        let items = items
            .map(|(offset, verb)| AckItem { target: AckTarget::Offset(offset), verb, reason: String::new(), delay_ms: 0 })
            .collect();
        AckRequest {
            queue: claim.queue.clone(),
            partition_id: claim.partition_id,
            group: Some(group.to_owned()),
            lease_id: lease_id.to_owned(),
            items,
        }
    }
}

/// What a call returned; none if the server died or will be there later. Anything else is a failure of the test.
async fn survived<T>(call: impl Future<Output = Result<T, Error>>) -> Option<T> {
    match call.await {
        Ok(value) => Some(value),
        Err(error) => {
            let is_death = matches!(error.kind(), ErrorKind::Disconnected | ErrorKind::Closed | ErrorKind::Timeout);
            let is_void_lease =
                matches!(error.code(), Some(ErrorCode::LeaseLost | ErrorCode::AckRejected | ErrorCode::NotLeased));
            assert!(is_death || is_void_lease || error.is_retryable(), "{error} ({error:?})");
            None
        }
    }
}

/// Sends through a [`Producer`](fanlog::client::Producer), which repeats what the death of the server left open.
async fn steady_producer(scene: Scene, number: u32, compression: Option<Compression>, mut random: Random) {
    let mut builder = scene.client.producer(scene.queues.source.as_str()).linger(Duration::from_millis(1)).max_in_flight(4);
    if let Some(compression) = compression {
        builder = builder.pack(compression);
    }
    let producer = builder.build();
    let mut sequence = 0;
    while scene.pause(random.below(4)).await {
        let mut receipts = Vec::new();
        for _ in 0..1 + random.below(20) {
            let (identity, partition) = (Identity { producer: number, sequence }, format!("p{}", random.below(PARTITIONS)));
            let receipt = producer.enqueue_to(&partition, Message::new(identity.payload())).await.unwrap();
            receipts.push((partition, identity, receipt));
            sequence += 1;
        }
        for (partition, identity, receipt) in receipts {
            let receipt = receipt.await.unwrap();
            scene.record.received(scene.place(&partition, receipt.offset().expect("an offset")), identity);
        }
    }
    producer.close().await.unwrap();
}

/// Pushes once and never again: what was not answered may be stored or not.
async fn plain_producer(scene: Scene, number: u32, mut random: Random) {
    let mut sequence = 0;
    while scene.pause(random.below(8)).await {
        let partition = format!("p{}", random.below(PARTITIONS));
        let identities: Vec<_> =
            (0..1 + random.below(10)).map(|step| Identity { producer: number, sequence: sequence + step }).collect();
        sequence += identities.len() as u64;
        let items = PushItem::Messages(identities.iter().map(|identity| Message::new(identity.payload())).collect());
        let request = PushRequest { queue: scene.queues.source.clone(), partition: partition.clone(), items, producer: None };
        let Some(reply) = survived(scene.client.push(&request)).await else { continue };
        for (index, identity) in identities.into_iter().enumerate() {
            let Some(PushResult::Stored(offset)) = reply.results.get(index) else { panic!("{:?}", reply.results) };
            scene.record.received(scene.place(&partition, offset), identity);
        }
    }
}

/// Acknowledges up to some message of each claim, and leaves the rest to the next pop.
async fn ordered_consumer(scene: Scene, mut random: Random) {
    while !scene.stopping.is_cancelled() {
        let (lease_id, claims) = scene.pop(ORDERED, &mut random).await;
        for (claim, messages) in &claims {
            let count = 1 + random.below(messages.len() as u64) as usize;
            let items = messages[..count].iter().map(|&(offset, _)| (offset, AckVerb::Completed));
            let request = scene.ack_of(ORDERED, &lease_id, claim, items);
            let Some(reply) = survived(scene.client.ack(&request)).await else { continue };
            for (outcome, &(offset, _)) in reply.outcomes.iter().zip(messages) {
                if outcome.refused.is_none() {
                    assert!(reply.next > offset, "acknowledged {offset} and the cursor is at {}", reply.next);
                    scene.record.done(ORDERED, scene.place(&claim.partition, offset));
                }
            }
        }
        if !lease_id.is_empty() {
            survived(scene.client.release(&lease_id)).await;
        }
    }
}

/// Acknowledges most messages one by one, and gives some back.
async fn shared_consumer(scene: Scene, mut random: Random) {
    while !scene.stopping.is_cancelled() {
        let (lease_id, claims) = scene.pop(SHARED, &mut random).await;
        for (claim, messages) in &claims {
            let verbs: Vec<_> =
                messages.iter().map(|_| if random.below(10) == 0 { AckVerb::Retry } else { AckVerb::Completed }).collect();
            let items = messages.iter().zip(&verbs).map(|(&(offset, _), &verb)| (offset, verb));
            let request = scene.ack_of(SHARED, &lease_id, claim, items);
            let Some(reply) = survived(scene.client.ack(&request)).await else { continue };
            for ((outcome, &(offset, _)), verb) in reply.outcomes.iter().zip(messages).zip(verbs) {
                if outcome.refused.is_none() && verb == AckVerb::Completed {
                    scene.record.done(SHARED, scene.place(&claim.partition, offset));
                }
            }
        }
    }
}

async fn stream_consumer(scene: Scene) {
    let builder = || scene.client.consumer(scene.queues.source.as_str()).group(STREAM).start(Start::Beginning).prefetch(200);
    let mut consumer = loop {
        if let Some(consumer) = survived(builder().build()).await {
            break consumer;
        }
        if !scene.pause(5).await {
            return;
        }
    };
    loop {
        let delivery = tokio::select! {
            () = scene.stopping.cancelled() => break,
            delivery = consumer.next() => delivery.expect("it does not end by itself"),
        };
        let Some(delivery) = survived(async { delivery }).await else { continue };
        let place = scene.place(delivery.partition(), delivery.offset());
        // A message that is settled is not delivered again, whenever the delivery was made: what is acknowledged here is what
        // came over the connection that stands.
        let asked = scene.record.now();
        scene.record.delivered(STREAM, place.clone(), Identity::of(delivery.payload()), asked);
        let settled = delivery.ack();
        let scene = scene.clone();
        tokio::spawn(async move {
            if survived(settled).await.is_some() {
                scene.record.done(STREAM, place);
            }
        });
    }
    consumer.close(Duration::from_secs(1)).await;
}

/// Moves each message into two other queues, and acknowledges it, in one transaction.
async fn mover(scene: Scene) {
    let mut random = Random::new(7);
    while !scene.stopping.is_cancelled() {
        let (lease_id, claims) = scene.pop(MOVER, &mut random).await;
        for (claim, messages) in &claims {
            let payloads = || messages.iter().map(|(_, identity)| Message::new(identity.payload())).collect();
            let push = |queue: &String| PushRequest {
                queue: queue.clone(),
                partition: claim.partition.clone(),
                items: PushItem::Messages(payloads()),
                producer: None,
            };
            let items = messages.iter().map(|&(offset, _)| (offset, AckVerb::Completed));
            let request = TransactionRequest {
                pushes: scene.queues.targets.iter().map(push).collect(),
                acks: vec![scene.ack_of(MOVER, &lease_id, claim, items)],
                required_leases: vec![lease_id.clone()],
            };
            let Some(reply) = survived(scene.client.transact(&request)).await else { continue };
            for (queue, pushed) in scene.queues.targets.iter().zip(&reply.pushes) {
                for (index, &(_, identity)) in messages.iter().enumerate() {
                    let Some(PushResult::Stored(offset)) = pushed.results.get(index) else { panic!("{:?}", pushed.results) };
                    let place = Place { queue: queue.clone(), partition: claim.partition.clone(), offset };
                    scene.record.received(place, identity);
                }
            }
            for &(offset, _) in messages {
                scene.record.done(MOVER, scene.place(&claim.partition, offset));
            }
        }
    }
}
