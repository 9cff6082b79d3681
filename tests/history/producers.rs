//! Clients that push: plainly, numbered, with ids, in transactions, and through a producer of the client library.

use std::collections::HashMap;
use std::time::Duration;

use fanlog::model::{PushItem, PushReply, PushRequest, PushResult, TransactionRequest};
use fanlog::record::Message;

use crate::history::{Call, Lane, Outcome, Part, Sent, Stored};
use crate::scene::{PARTITIONS, SOURCE, TARGETS, lane};
use crate::worker::Worker;

/// How often a push without an answer is sent again.
const SENDS: u32 = 6;

/// Messages for one partition.
#[derive(Debug, Clone)]
pub struct Load {
    lane: Lane,
    messages: Vec<Message>,
    sent: Vec<Sent>,
}

impl Load {
    pub fn new(worker: &mut Worker, queue: &str, count: u64, is_named: bool) -> Self {
        let lane = lane(queue, PARTITIONS[worker.random.index(PARTITIONS.len())]);
        let (messages, sent) = (0..count).map(|_| worker.scene.message(queue, is_named, &mut worker.random)).unzip();
        Self { lane, messages, sent }
    }

    pub fn request(&self, producer: Option<(u64, u32, u32)>) -> PushRequest {
        let Lane { queue, partition } = self.lane.clone();
        PushRequest { queue, partition, items: PushItem::Messages(self.messages.clone()), producer }
    }

    pub fn part(&self, reply: Option<&PushReply>) -> Part {
        Part { lane: self.lane.clone(), sent: self.sent.clone(), results: reply.map(results).unwrap_or_default() }
    }
}

/// What a reply says of each message.
pub fn results(reply: &PushReply) -> Vec<Stored> {
    let results = (0..reply.results.len()).filter_map(|index| reply.results.get(index));
    results.map(stored).collect()
}

fn stored(result: PushResult) -> Stored {
    match result {
        PushResult::Stored(offset) => Stored::At(offset),
        PushResult::Duplicate(offset) => Stored::Already(offset),
        PushResult::Dropped => Stored::Dropped,
    }
}

/// Sends each push once: what is not answered may be there or not.
pub async fn plain(mut worker: Worker) {
    while worker.pause(8).await {
        let count = if worker.random.chance(1, 2) { 1 } else { 1 + worker.random.below(8) };
        let load = Load::new(&mut worker, SOURCE, count, false);
        push(&worker, &load, None).await;
    }
}

/// Sends again under the same number, and goes on with a greater epoch when that does not help.
pub async fn numbered(mut worker: Worker) {
    let producer = 1 + worker.random.number() / 2;
    let (mut epoch, mut sequences) = (0, HashMap::new());
    while worker.pause(8).await {
        let count = 1 + worker.random.below(4);
        let load = Load::new(&mut worker, SOURCE, count, false);
        let sequence = sequences.entry(load.lane.clone()).or_insert(0);
        if send_until_answered(&mut worker, &load, Some((producer, epoch, *sequence))).await {
            *sequence += 1;
        } else {
            epoch += 1;
            sequences.clear();
        }
    }
}

/// Sends again with the same ids.
pub async fn named(mut worker: Worker) {
    while worker.pause(8).await {
        let count = 1 + worker.random.below(4);
        let load = Load::new(&mut worker, SOURCE, count, true);
        send_until_answered(&mut worker, &load, None).await;
        if worker.random.chance(1, 8) {
            push(&worker, &load, None).await;
        }
    }
}

async fn send_until_answered(worker: &mut Worker, load: &Load, producer: Option<(u64, u32, u32)>) -> bool {
    for _ in 0..SENDS {
        match push(worker, load, producer).await {
            Outcome::Done => return true,
            Outcome::Refused(_) => return false,
            Outcome::Unknown(_) => worker.idle(20).await,
        }
    }
    false
}

async fn push(worker: &Worker, load: &Load, producer: Option<(u64, u32, u32)>) -> Outcome {
    let request = load.request(producer);
    let call = worker.recorder.timed(worker.client.push(&request)).await;
    let write = Call::Write { parts: vec![load.part(call.answer.as_ref().ok())], acks: Vec::new() };
    let outcome = call.outcome();
    worker.recorder.keep(&worker.name, call.invoked, call.ended, outcome.clone(), write);
    outcome
}

/// Pushes into two queues or three at once; with ids again and again until there is an answer, without them once.
pub async fn transactions(mut worker: Worker) {
    while worker.pause(20).await {
        let is_named = worker.random.chance(1, 2);
        let mut loads = Vec::new();
        for queue in [TARGETS[0], TARGETS[1], SOURCE] {
            let count = 1 + worker.random.below(3);
            if queue != SOURCE || worker.random.chance(1, 3) {
                loads.push(Load::new(&mut worker, queue, count, is_named));
            }
        }
        let request =
            TransactionRequest { pushes: loads.iter().map(|load| load.request(None)).collect(), ..TransactionRequest::default() };
        for _ in 0..if is_named { SENDS } else { 1 } {
            let call = worker.recorder.timed(worker.client.transact(&request)).await;
            let replies = call.answer.as_ref().ok().map(|reply| &reply.pushes);
            let part = |(index, load): (usize, &Load)| load.part(replies.map(|replies| &replies[index]));
            let parts = loads.iter().enumerate().map(part).collect();
            let outcome = call.outcome();
            let write = Call::Write { parts, acks: Vec::new() };
            worker.recorder.keep(&worker.name, call.invoked, call.ended, outcome.clone(), write);
            if !matches!(outcome, Outcome::Unknown(_)) {
                break;
            }
            worker.idle(20).await;
        }
    }
}

/// Sends through a producer, which batches and repeats by itself.
pub async fn steady(mut worker: Worker) {
    let producer = worker.client.producer(SOURCE).linger(Duration::from_millis(1)).max_in_flight(3).build();
    while worker.pause(12).await {
        let count = 1 + worker.random.below(10);
        let load = Load::new(&mut worker, SOURCE, count, false);
        let mut receipts = Vec::new();
        for message in &load.messages {
            receipts.push((worker.recorder.now(), producer.enqueue_to(&load.lane.partition, message.clone()).await));
        }
        for ((invoked, receipt), sent) in receipts.into_iter().zip(&load.sent) {
            let call = worker.recorder.timed(async { receipt?.await }).await;
            let result = call.answer.as_ref().ok().map(|receipt| match receipt.offset() {
                Some(offset) if receipt.is_duplicate() => Stored::Already(offset),
                Some(offset) => Stored::At(offset),
                None => Stored::Dropped,
            });
            let part = Part { lane: load.lane.clone(), sent: vec![sent.clone()], results: result.into_iter().collect() };
            let write = Call::Write { parts: vec![part], acks: Vec::new() };
            worker.recorder.keep(&worker.name, invoked, call.ended, call.outcome(), write);
        }
    }
    drop(producer);
}
