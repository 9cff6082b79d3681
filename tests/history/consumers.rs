//! Clients that take messages: they settle them in every way, keep them too long, and ask and do not wait for the answer.

use std::time::Duration;

use fanlog::client::messages_of;
use fanlog::model::{
    AckItem, AckOutcome, AckReply, AckRequest, AckTarget, AckVerb, PopReply, PopRequest, PushItem, PushRequest, SeekRequest,
    SeekTarget, Start, TransactionRequest,
};
use fanlog::record::Message;

use crate::history::{Ack, Call, Claim, Lane, Outcome, Part, Sent, Settled};
use crate::producers::{Load, results};
use crate::recorder::Ended;
use crate::scene::{MOVER, ONCE, PARTITIONS, SEEKING, SHARED, SOURCE, STREAM, TARGETS, content_of, lane};
use crate::worker::Worker;

/// Messages of one partition under a lease, as they came.
#[derive(Debug)]
struct Held {
    lease: String,
    lease_ms: u64,
    partition_id: u32,
    claim: Claim,
}

impl Held {
    fn request(&self, queue: &str, group: &str, items: &[(u64, AckVerb)], delay_ms: u64) -> AckRequest {
        let item = |&(offset, verb): &(u64, AckVerb)| AckItem {
            target: AckTarget::Offset(offset),
            verb,
            reason: String::new(),
            delay_ms: if verb == AckVerb::Retry { delay_ms } else { 0 },
        };
        AckRequest {
            queue: queue.to_owned(),
            partition_id: self.partition_id,
            group: Some(group.to_owned()),
            lease_id: self.lease.clone(),
            items: items.iter().map(item).collect(),
        }
    }

    fn ack(&self, group: usize, items: &[(u64, AckVerb)], reply: Option<&AckReply>) -> Ack {
        let settled = |index: usize| reply.map_or(Settled::Unanswered, |reply| settled(&reply.outcomes[index]));
        Ack {
            group,
            lane: self.claim.lane.clone(),
            lease: self.lease.clone(),
            items: items.iter().enumerate().map(|(index, &(offset, verb))| (offset, verb, settled(index))).collect(),
            next: reply.map(|reply| reply.next),
        }
    }
}

fn settled(outcome: &AckOutcome) -> Settled {
    match outcome {
        AckOutcome { refused: Some(_), .. } => Settled::Refused,
        AckOutcome { is_dead_letter: true, is_noop: false, .. } => Settled::DeadLetter,
        AckOutcome { is_noop: true, .. } => Settled::Before,
        AckOutcome { .. } => Settled::Now,
    }
}

impl Worker {
    /// Keeps a call whose record needs nothing of the answer.
    fn keep<T>(&self, ended: &Ended<T>, call: Call) {
        self.recorder.keep(&self.name, ended.invoked, ended.ended, ended.outcome(), call);
    }

    async fn pop(&mut self, group: usize) -> Vec<Held> {
        let rule = &self.scene.rules[group];
        let messages = if self.calm.is_cancelled() { 500 } else { 20 };
        let mut request = PopRequest::any(rule.queue, 1 + self.random.below(messages) as u32).group(rule.name);
        let lease_ms = 200 + self.random.below(1_300);
        request.lease_ms = Some(lease_ms);
        request.partitions_max = 1 + self.random.below(PARTITIONS.len() as u64) as u32;
        request.auto_ack = group == ONCE;
        let most = u64::from(request.messages_max);
        let wait = Duration::from_millis(self.random.below(150));
        let patience_ms = if self.random.chance(1, 12) { self.random.below(100) } else { 60_000 };
        // Whoever stops to wait does not know.
        let invoked = self.recorder.now();
        let call = self.recorder.timed(self.client.pop(&request, wait));
        let Ok(ended) = tokio::time::timeout(Duration::from_millis(patience_ms), call).await else {
            let outcome = Outcome::Unknown("cancelled".to_owned());
            let pop = Call::Pop { group, most, lease: String::new(), lease_us: 0, claims: Vec::new() };
            self.recorder.keep(&self.name, invoked, self.recorder.now(), outcome, pop);
            return Vec::new();
        };
        let reply = ended.answer.as_ref().ok();
        let held: Vec<_> = reply.map(|reply| held(reply, lease_ms)).unwrap_or_default();
        let pop = Call::Pop {
            group,
            most,
            lease: reply.map(|reply| reply.lease_id.clone()).unwrap_or_default(),
            lease_us: lease_ms * 1_000,
            claims: held.iter().map(|held| held.claim.clone()).collect(),
        };
        self.keep(&ended, pop);
        if held.is_empty() {
            self.pause(5).await;
        }
        held
    }

    async fn settle(&self, group: usize, held: &Held, items: &[(u64, AckVerb)], delay_ms: u64) {
        let rule = &self.scene.rules[group];
        let request = held.request(rule.queue, rule.name, items, delay_ms);
        let ended = self.recorder.timed(self.client.ack(&request)).await;
        self.keep(&ended, Call::Ack(held.ack(group, items, ended.answer.as_ref().ok())));
    }

    /// Settles and pushes in one transaction: sometimes what was pushed before, so that it is refused.
    async fn settle_and_push(&mut self, group: usize, held: &Held, items: &[(u64, AckVerb)], pushed: &mut Option<Load>) {
        let known = pushed.take().filter(|_| self.random.chance(1, 2));
        let load = known.unwrap_or_else(|| Load::new(self, TARGETS[1], 1, true));
        let rule = &self.scene.rules[group];
        let request = TransactionRequest {
            pushes: vec![load.request(None)],
            acks: vec![held.request(rule.queue, rule.name, items, 0)],
            required_leases: Vec::new(),
        };
        let ended = self.recorder.timed(self.client.transact(&request)).await;
        let reply = ended.answer.as_ref().ok();
        let parts = vec![load.part(reply.map(|reply| &reply.pushes[0]))];
        let acks = vec![held.ack(group, items, reply.map(|reply| &reply.acks[0]))];
        self.keep(&ended, Call::Write { parts, acks });
        *pushed = reply.is_some().then_some(load);
    }

    async fn extend(&mut self, held: &Held) {
        let lease_ms = 200 + self.random.below(1_000);
        let ended = self.recorder.timed(self.client.extend(&held.lease, Some(Duration::from_millis(lease_ms)))).await;
        let renewed = ended.answer.as_ref().map_or(0, |reply| reply.renewed as usize);
        self.keep(&ended, Call::Extend { lease: held.lease.clone(), lease_us: lease_ms * 1_000, renewed });
    }

    async fn release(&self, lease: &str) {
        let ended = self.recorder.timed(self.client.release(lease)).await;
        self.keep(&ended, Call::Release { lease: lease.to_owned() });
    }

    /// Keeps what it holds for a while: mostly shorter than the lease, sometimes much longer.
    async fn handle(&mut self, held: &Held) {
        if self.calm.is_cancelled() {
            return;
        }
        match self.random.below(10) {
            0 => {
                self.extend(held).await;
                self.idle(held.lease_ms).await;
            }
            1 => self.idle(held.lease_ms * 2).await,
            _ => self.idle(10).await,
        }
    }
}

fn held(reply: &PopReply, lease_ms: u64) -> Vec<Held> {
    let claims = reply.claims.iter().map(|claim| {
        assert!(claim.lost.is_none(), "{claim:?}");
        let messages = messages_of(claim.batches.clone()).unwrap();
        let messages = messages.iter().map(|message| (message.offset, content_of(message))).collect();
        let claim_of_it = Claim { lane: lane(&claim.queue, &claim.partition), messages };
        Held { lease: reply.lease_id.clone(), lease_ms, partition_id: claim.partition_id, claim: claim_of_it }
    });
    claims.collect()
}

/// Pops and settles in every way.
pub async fn popping(mut worker: Worker, group: usize) {
    let mut pushed = None;
    while !worker.stopping.is_cancelled() {
        let all = worker.pop(group).await;
        for held in all.iter().filter(|_| group != ONCE) {
            worker.handle(held).await;
            let offsets = held.claim.messages.iter().map(|(offset, _)| *offset);
            let mut items: Vec<_> = offsets.map(|offset| (offset, AckVerb::Completed)).collect();
            if !worker.calm.is_cancelled() {
                items.truncate(1 + worker.random.index(items.len()));
                let last = items.len() - 1;
                match worker.random.below(12) {
                    0 => continue,
                    1 | 2 => items[last].1 = AckVerb::Failed,
                    3 | 4 => items[last].1 = AckVerb::Retry,
                    5 => items[last].1 = AckVerb::Reject,
                    _ => {}
                }
            }
            if group == SHARED && worker.random.chance(1, 3) {
                worker.settle_and_push(group, held, &items, &mut pushed).await;
            } else {
                let delay_ms = worker.random.below(60);
                worker.settle(group, held, &items, delay_ms).await;
            }
        }
        if let Some(held) = all.first()
            && !held.lease.is_empty()
            && (worker.calm.is_cancelled() || worker.random.chance(1, 3))
        {
            worker.release(&held.lease).await;
        }
    }
}

/// Moves each message into both other queues and settles it, in one transaction.
pub async fn moving(mut worker: Worker) {
    while !worker.stopping.is_cancelled() {
        let all = worker.pop(MOVER).await;
        for held in &all {
            worker.handle(held).await;
            let mut pushes = Vec::new();
            let mut parts = Vec::new();
            for queue in TARGETS {
                let moved = held.claim.messages.iter().map(|_| worker.scene.message(queue, false, &mut worker.random));
                let (messages, sent): (Vec<Message>, Vec<Sent>) = moved.unzip();
                let Lane { partition, .. } = held.claim.lane.clone();
                parts.push(Part { lane: lane(queue, &partition), sent, results: Vec::new() });
                pushes.push(PushRequest {
                    queue: queue.to_owned(),
                    partition,
                    items: PushItem::Messages(messages),
                    producer: None,
                });
            }
            let items: Vec<_> = held.claim.messages.iter().map(|&(offset, _)| (offset, AckVerb::Completed)).collect();
            let acks = vec![held.request(SOURCE, worker.scene.rules[MOVER].name, &items, 0)];
            let request = TransactionRequest { pushes, acks, required_leases: vec![held.lease.clone()] };
            let ended = worker.recorder.timed(worker.client.transact(&request)).await;
            let reply = ended.answer.as_ref().ok();
            for (index, part) in parts.iter_mut().enumerate() {
                part.results = reply.map(|reply| results(&reply.pushes[index])).unwrap_or_default();
            }
            let acks = vec![held.ack(MOVER, &items, reply.map(|reply| &reply.acks[0]))];
            worker.keep(&ended, Call::Write { parts, acks });
        }
    }
}

/// Moves a group here and there.
pub async fn seeking(mut worker: Worker) {
    loop {
        worker.idle(700).await;
        if worker.calm.is_cancelled() {
            return;
        }
        let target = match worker.random.below(4) {
            0 => SeekTarget::Beginning,
            1 => SeekTarget::End,
            2 => SeekTarget::Shift(-(worker.random.below(100) as i64)),
            _ => SeekTarget::Shift(worker.random.below(50) as i64),
        };
        let partition = worker.random.chance(1, 2).then(|| PARTITIONS[worker.random.index(PARTITIONS.len())].to_owned());
        seek(&worker, target, partition).await;
    }
}

/// One move of the group that is moved.
pub async fn seek(worker: &Worker, target: SeekTarget, partition: Option<String>) -> Outcome {
    let request = SeekRequest {
        queue: SOURCE.to_owned(),
        group: Some(worker.scene.rules[SEEKING].name.to_owned()),
        partition: partition.clone(),
        target,
        is_preview: false,
    };
    let ended = worker.recorder.timed(worker.client.seek(request, 10)).await;
    let is_to_beginning = target == SeekTarget::Beginning;
    worker.keep(&ended, Call::Seek { group: SEEKING, partition, is_to_beginning });
    ended.outcome()
}

/// A subscription. When the server decided to send a message is not known, only that it was after the subscription began.
pub async fn streaming(worker: Worker) {
    let rule = &worker.scene.rules[STREAM];
    let began = worker.recorder.now();
    let builder = worker.client.consumer(rule.queue).group(rule.name).start(Start::Beginning).prefetch(100);
    let mut consumer = builder.lease(Duration::from_secs(1)).build().await.unwrap();
    loop {
        let delivery = tokio::select! {
            () = worker.stopping.cancelled() => break,
            delivery = consumer.next() => delivery.expect("it does not end by itself"),
        };
        // What it says of its connection is no end of it.
        let Ok(delivery) = delivery else { continue };
        let message = (delivery.offset(), content_of(delivery.message()));
        let claims = vec![Claim { lane: lane(delivery.queue(), delivery.partition()), messages: vec![message] }];
        let pop = Call::Pop { group: STREAM, most: 1, lease: String::new(), lease_us: 0, claims };
        worker.recorder.keep(&worker.name, began, worker.recorder.now(), Outcome::Done, pop);
        // What is not settled because of a fault comes again.
        drop(delivery.ack());
    }
    consumer.close(Duration::from_secs(1)).await;
}
