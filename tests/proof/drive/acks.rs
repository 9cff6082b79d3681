//! What becomes of messages that were taken: acknowledgements, leases, transactions.

use super::*;

impl Driver {
    pub(super) fn choose(&self, choice: u64, is_live: bool) -> Option<Held> {
        let fits = |held: &&Held| {
            let queue = self.model.queues.get(QUEUES[held.queue]);
            let cursor = queue.and_then(|queue| queue.groups.get(GROUPS[held.group])?.cursors.get(&held.lane));
            let lives = cursor.is_some_and(|cursor| cursor.leases.contains_key(&held.lease));
            let start = queue.map_or(0, |queue| queue.lanes[&held.lane].start);
            let lease = cursor.and_then(|cursor| cursor.leases.get(&held.lease));
            let is_hollow = lease.is_some_and(|lease| lease.outstanding.range(start..).next().is_none());
            lives == is_live && cursor.is_some() && !is_hollow
        };
        let found: Vec<&Held> = self.held.iter().rev().take(20).filter(fits).collect();
        found.get(choice.checked_rem(found.len() as u64)? as usize).copied().cloned()
    }

    pub(super) fn ack(&mut self, choice: u64, style: AckStyle) -> Result<(), Stop> {
        let Some(held) = self.choose(choice, style != AckStyle::Stale) else { return Ok(()) };
        let queue = QUEUES[held.queue];
        let lane = &self.model.queues[queue].lanes[&held.lane];
        let (start, end) = (lane.start, lane.end);
        let cursor = self.model.queue(queue).cursor(GROUPS[held.group], &held.lane);
        let outstanding: Vec<u64> = match cursor.leases.get(&held.lease) {
            Some(lease) => lease.outstanding.iter().copied().collect(),
            None => held.offsets.clone(),
        };
        if outstanding.first().is_none_or(|&first| first < start) {
            return Ok(());
        }
        // A group of the same name that was made later may not take them, and may have passed them or not.
        let found = &self.model.queues[queue];
        let messages = &found.lanes[&held.lane].messages;
        if !outstanding.iter().all(|offset| found.takes(GROUPS[held.group], &messages[offset])) {
            return Ok(());
        }
        let items = items_of(style, &outstanding, end);
        self.submit_ack(&held, &held.lease, &items)
    }

    pub(super) fn submit_ack(&mut self, held: &Held, lease: &str, items: &[(u64, AckVerb, u64)]) -> Result<(), Stop> {
        let request = ack_request(held, lease, items);
        let mut after = self.model.clone();
        let now = (self.now.wall_us, self.now.steady_us);
        let expected = after.queue(QUEUES[held.queue]).ack(GROUPS[held.group], &held.lane, lease, items, now);
        let reply = self.engine().ack(request, self.now);
        let reply = self.settle(reply, Vec::new(), after)?;
        let found: Vec<Outcome> = reply.outcomes.iter().map(outcome_of).collect();
        right(found == expected, || format!("{items:?}: outcomes {found:?}, expected {expected:?}: {:?}", reply.outcomes))
    }

    pub(super) fn unfenced(&mut self, queue: usize, lane: usize, group: usize, choice: u64, verb: AckVerb) -> Result<(), Stop> {
        let Some(found) = self.model.queues.get(QUEUES[queue]) else { return Ok(()) };
        let Some(known) = found.groups.get(GROUPS[group]) else { return Ok(()) };
        let Some(messages) = found.lanes.get(LANES[lane]) else { return Ok(()) };
        if known.start.is_none() || messages.end == messages.start {
            return Ok(());
        }
        let offset = messages.start + choice % (messages.end - messages.start + 1);
        // Whether it has been here decides where it stands if its start is not there yet.
        let is_ahead = matches!(known.start, Some(Start::Offset(_) | Start::Time(_))) && !known.cursors.contains_key(LANES[lane]);
        if is_ahead {
            return Ok(());
        }
        // The cursor may or may not have passed what the group does not take.
        if messages.messages.get(&offset).is_some_and(|kept| !found.takes(GROUPS[group], kept)) {
            return Ok(());
        }
        let info = self.engine().partition(QUEUES[queue], LANES[lane]).map_err(|error| Stop::Wrong(error.to_string()))?;
        let incarnation = self.engine().queue(QUEUES[queue]).map_err(|error| Stop::Wrong(error.to_string()))?.incarnation;
        let (lane, lease, offsets) = (LANES[lane].to_owned(), String::new(), Vec::new());
        let held = Held { queue, group, lane, partition_id: info.id, incarnation, lease, offsets };
        self.submit_ack(&held, "", &[(offset, verb, 0)])
    }

    pub(super) fn extend(&mut self, choice: u64) -> Result<(), Stop> {
        let Some(held) = self.choose(choice, true) else { return Ok(()) };
        let until_us = self.now.steady_us + 30_000_000;
        let reply = self.engine().extend(&held.lease, 30_000, self.now).map_err(|error| Stop::Wrong(error.to_string()))?;
        let (mut least, mut most) = (0, 0);
        for queue in self.model.queues.values_mut() {
            for (lane, cursor) in queue.groups.values_mut().flat_map(|group| group.cursors.iter_mut()) {
                if let Some(lease) = cursor.leases.get_mut(&held.lease) {
                    lease.until_us = lease.until_us.max(until_us);
                    least += u32::from(lease.outstanding.range(queue.lanes[lane].start..).next().is_some());
                    most += 1;
                }
            }
        }
        let is_right = (least..=most).contains(&reply.renewed);
        right(is_right, || format!("renewed {}, expected {least} to {most}", reply.renewed))
    }

    pub(super) fn release(&mut self, choice: u64) -> Result<(), Stop> {
        let Some(held) = self.choose(choice, true) else { return Ok(()) };
        let released = self.engine().release(&held.lease, self.now).map_err(|error| Stop::Wrong(error.to_string()))?;
        let (mut least, mut most) = (0, 0);
        for queue in self.model.queues.values_mut() {
            let held = queue.release(&held.lease);
            (least, most) = (least + held.0, most + held.1);
        }
        right((least..=most).contains(&released), || format!("released {released}, expected {least} to {most}"))
    }

    pub(super) fn transact(&mut self, pushes: &[(usize, usize, Item)], acks: &[u64]) -> Result<(), Stop> {
        let mut request = TransactionRequest::default();
        let mut after = self.model.clone();
        let mut candidates = Vec::new();
        let mut expected = Vec::new();
        let mut is_refused = false;
        for (queue, lane, item) in pushes {
            request.pushes.push(self::request(QUEUES[*queue], LANES[*lane], std::slice::from_ref(item), None));
            if !after.queues.contains_key(QUEUES[*queue]) {
                after.queues.insert(QUEUES[*queue].to_owned(), QueueModel::default());
                candidates.push(after.clone());
            }
        }
        // Queues are made before anything is decided, and stay if it is refused.
        let made = after.clone();
        let mut chosen: Vec<Held> = Vec::new();
        for &choice in acks {
            let Some(held) = self.choose(choice, true) else { continue };
            if !chosen.iter().any(|other| (other.queue, other.group, &other.lane) == (held.queue, held.group, &held.lane)) {
                chosen.push(held);
            }
        }
        let mut pushed = Vec::new();
        for (queue, lane, item) in pushes {
            let results = after.queue(QUEUES[*queue]).push(LANES[*lane], std::slice::from_ref(item), None, self.now.wall_us);
            is_refused |= results.iter().any(|result| matches!(result, PushResult::Duplicate(_)));
            if results.iter().any(|result| matches!(result, PushResult::Stored(_))) {
                let is_joined = pushed.contains(&(*queue, *lane));
                let batch = after.queue(QUEUES[*queue]).lanes.get_mut(LANES[*lane]).and_then(|lane| lane.batches.last_mut());
                batch.into_iter().for_each(|batch| batch.is_joined = is_joined);
                pushed.push((*queue, *lane));
            }
            expected.push(results);
        }
        for held in chosen {
            let start = after.queues[QUEUES[held.queue]].lanes[&held.lane].start;
            let cursor = after.queue(QUEUES[held.queue]).cursor(GROUPS[held.group], &held.lane);
            let outstanding: Vec<u64> = cursor.leases[&held.lease].outstanding.iter().copied().collect();
            if outstanding.first().is_none_or(|&first| first < start) {
                continue;
            }
            let items = items_of(AckStyle::All, &outstanding, 0);
            request.acks.push(ack_request(&held, &held.lease, &items));
            let now = (self.now.wall_us, self.now.steady_us);
            after.queue(QUEUES[held.queue]).ack(GROUPS[held.group], &held.lane, &held.lease, &items, now);
        }
        let reply = self.engine().transact(request, self.now);
        if is_refused {
            return match reply {
                Err(error) if error.code == ErrorCode::Duplicate => {
                    self.model = made;
                    Ok(())
                }
                Err(error) => Err(Stop::Failed(candidates, error)),
                Ok(_) => Err(Stop::Wrong("a transaction with a duplicate happened".to_owned())),
            };
        }
        let reply = self.settle(reply, candidates, after)?;
        for ((reply, expected), (queue, lane, _)) in reply.pushes.iter().zip(&expected).zip(pushes) {
            self.compare_results(QUEUES[*queue], LANES[*lane], reply, expected)?;
        }
        Ok(())
    }
}

pub(super) fn outcome_of(outcome: &AckOutcome) -> Outcome {
    match outcome {
        AckOutcome { refused: Some(_), .. } => Outcome::Refused,
        AckOutcome { is_noop: true, .. } => Outcome::Noop,
        AckOutcome { is_dead_letter: true, .. } => Outcome::Dead,
        _ => Outcome::Applied,
    }
}

pub(super) fn items_of(style: AckStyle, outstanding: &[u64], end: u64) -> Vec<(u64, AckVerb, u64)> {
    let all = |verb: AckVerb| outstanding.iter().map(|&offset| (offset, verb, 0)).collect::<Vec<_>>();
    let (first, last) = (outstanding[0], outstanding[outstanding.len() - 1]);
    match style {
        AckStyle::All | AckStyle::Stale => all(AckVerb::Completed),
        AckStyle::First => vec![(first, AckVerb::Completed, 0)],
        AckStyle::Fail => vec![(first, AckVerb::Failed, 0)],
        AckStyle::Retry => vec![(first, AckVerb::Retry, 0)],
        AckStyle::RetryLater => vec![(last, AckVerb::Retry, 3_000)],
        AckStyle::RejectLast => vec![(last, AckVerb::Reject, 0)],
        AckStyle::Beyond => {
            vec![(end, AckVerb::Completed, 0), (end + 1000, AckVerb::Failed, 0), (u64::MAX, AckVerb::Completed, 0)]
        }
        AckStyle::Mixed(seed) => {
            let mut random = Random::new(seed);
            let verbs = [AckVerb::Completed, AckVerb::Completed, AckVerb::Failed, AckVerb::Retry, AckVerb::Reject];
            let mut items = all(AckVerb::Completed);
            items.retain(|_| random.chance(2, 3));
            items.iter_mut().for_each(|item| item.1 = verbs[random.index(verbs.len())]);
            items
        }
    }
}

/// Half of the messages are named by their ids.
pub(super) fn ack_target(held: &Held, offset: u64) -> AckTarget {
    if offset.is_multiple_of(2) || offset >= 1 << 60 {
        return AckTarget::Offset(offset);
    }
    AckTarget::TransactionId(derived_id(held.incarnation, held.partition_id, offset))
}

pub(super) fn ack_request(held: &Held, lease: &str, items: &[(u64, AckVerb, u64)]) -> AckRequest {
    AckRequest {
        queue: QUEUES[held.queue].to_owned(),
        partition_id: held.partition_id,
        group: (held.group > 0).then(|| GROUPS[held.group].to_owned()),
        lease_id: lease.to_owned(),
        items: items
            .iter()
            .map(|&(offset, verb, delay_ms)| AckItem { target: ack_target(held, offset), verb, reason: String::new(), delay_ms })
            .collect(),
    }
}
