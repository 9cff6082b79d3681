//! Pushes: new ones, those sent again, and those that leave a number out.

use super::*;

impl Driver {
    pub(super) fn push(&mut self, queue: &str, lane: &str, items: &[Item], is_numbered: bool) -> Result<(), Stop> {
        let producer = is_numbered.then(|| {
            let sender = self.model.queues.get(queue).and_then(|found| found.senders.get(&(lane.to_owned(), 7)));
            (7, 0, sender.map_or(0, |sender| sender.sequence + 1))
        });
        let request = request(queue, lane, items, producer);
        let mut intermediate = Vec::new();
        let mut after = self.model.clone();
        if !after.queues.contains_key(queue) {
            after.queues.insert(queue.to_owned(), QueueModel::default());
            intermediate.push(after.clone());
        }
        let before = after.clone();
        let expected = after.queue(queue).push(lane, items, producer, self.now.wall_us);
        // What is not messages comes first: the partition, and the count of dropped ones.
        let mut half = before;
        half.queue(queue).lanes.entry(lane.to_owned()).or_default();
        half.queue(queue).dropped = after.queue(queue).dropped;
        intermediate.push(half);
        let reply = self.engine().push(request, self.now);
        let reply = self.settle(reply, intermediate, after)?;
        self.compare_results(queue, lane, &reply, &expected)
    }

    pub(super) fn compare_results(
        &mut self,
        queue: &str,
        lane: &str,
        reply: &PushReply,
        expected: &[PushResult],
    ) -> Result<(), Stop> {
        let found: Vec<PushResult> = (0..reply.results.len()).filter_map(|index| reply.results.get(index)).collect();
        right(found == expected, || format!("results {found:?}, expected {expected:?}"))?;
        let is_right = self.model.queue(queue).stamp(lane, expected, reply.created_at_us);
        right(is_right, || format!("stored at {}, which is too early", reply.created_at_us))
    }

    pub(super) fn resend(&mut self, queue: &str, lane: &str) -> Result<(), Stop> {
        let Some(found) = self.model.queues.get(queue) else { return Ok(()) };
        let Some(sender) = found.senders.get(&(lane.to_owned(), 7)).cloned() else { return Ok(()) };
        let items: Vec<Item> = sender.last.iter().map(|_| Item { tag: 1, size: 1, key: 'a', id: None }).collect();
        // A resend carries what was sent; what it carries is not looked at, except for drops, so only pushes without drops are resent.
        if sender.last.iter().any(|result| !matches!(result, PushResult::Stored(_))) {
            return Ok(());
        }
        let reply = self.engine().push(request(queue, lane, &items, Some((7, sender.epoch, sender.sequence))), self.now);
        let reply = self.settle(reply, Vec::new(), self.model.clone())?;
        let expected: Vec<PushResult> = sender
            .last
            .iter()
            .map(|result| match *result {
                PushResult::Stored(offset) => PushResult::Duplicate(offset),
                other => other,
            })
            .collect();
        self.compare_results(queue, lane, &reply, &expected)
    }

    pub(super) fn gap(&mut self, queue: &str, lane: &str) -> Result<(), Stop> {
        let Some(found) = self.model.queues.get(queue) else { return Ok(()) };
        let Some(sender) = found.senders.get(&(lane.to_owned(), 7)) else { return Ok(()) };
        let items = [Item { tag: 2, size: 1, key: 'a', id: None }];
        let outcome = self.engine().push(request(queue, lane, &items, Some((7, sender.epoch, sender.sequence + 2))), self.now);
        self.refused(outcome.map(drop), &[ErrorCode::OutOfSequence])
    }
}

pub fn request(queue: &str, lane: &str, items: &[Item], producer: Option<(u64, u32, u32)>) -> PushRequest {
    PushRequest {
        queue: queue.to_owned(),
        partition: lane.to_owned(),
        items: PushItem::Messages(items.iter().map(message_of).collect()),
        producer,
    }
}

pub(super) fn message_of(item: &Item) -> Message {
    let mut attributes = Attributes::new();
    attributes.insert("k", item.key.to_string()).expect("a short attribute");
    Message { transaction_id: item.id.clone(), attributes, ..Message::new(payload(item)) }
}
