//! Pops, waiting ones among them, and what they register.

use super::*;

impl Driver {
    pub(super) fn pop(&mut self, wish: Wish) -> Result<(), Stop> {
        let group_name = GROUPS[wish.group];
        let request = self.pop_request(wish);
        let start = request.start;
        if let Some(queue) = wish.queue
            && let Some(code) = self.refusal(QUEUES[queue], group_name)
        {
            let refused = self.engine().pop(&request, self.now);
            return self.refused(refused.map(drop), &[code]);
        }
        let queues: Vec<usize> = (0..QUEUES.len()).filter(|&queue| wish.queue.is_none_or(|wanted| wanted == queue)).collect();
        let queues: Vec<usize> = queues.into_iter().filter(|&queue| self.refusal(QUEUES[queue], group_name).is_none()).collect();
        // The group is registered in one queue after the other.
        let mut candidates = vec![self.model.clone()];
        for &queue in &queues {
            for mut registered in candidates.clone() {
                register(registered.queue(QUEUES[queue]), group_name, start, wish.group == 3);
                candidates.push(registered);
            }
        }
        let reply = match self.engine().pop(&request, self.now) {
            Ok(reply) => reply,
            Err(error) => {
                if let (Some(queue), true) = (wish.queue, wish.auto_ack) {
                    let registered = candidates.last().cloned().unwrap_or_default();
                    candidates.extend(self.auto_acked(&registered, QUEUES[queue], wish));
                }
                return Err(Stop::Failed(candidates, error));
            }
        };
        if wish.queue.is_none() && self.disk.is_off() {
            // A pop of a namespace passes over a queue in which the group could not be registered.
            return Err(Stop::Failed(candidates, cut()));
        }
        for &queue in &queues {
            // A pop that has all it wants does not look into further queues.
            let is_known =
                wish.queue.is_some() || self.engine().group(QUEUES[queue], group_name).is_ok_and(|group| group.start.is_some());
            if is_known {
                register(self.model.queue(QUEUES[queue]), group_name, start, wish.group == 3);
            }
        }
        let mut left = wish.max as usize;
        let mut claimed = Vec::new();
        for claim in &reply.claims {
            let queue = queues.iter().copied().find(|&queue| QUEUES[queue] == claim.queue);
            let is_wanted = wish.lane.is_none_or(|lane| LANES[lane] == claim.partition);
            let place = (claim.queue.clone(), claim.partition.clone());
            let Some(queue) = queue.filter(|_| is_wanted && !claimed.contains(&place)) else {
                return Err(Stop::Wrong(format!("claim of {place:?}")));
            };
            left -= self.take(queue, wish, claim, &reply.lease_id, left)?;
            claimed.push(place);
        }
        let now_us = self.now.wall_us;
        let is_missed = |queue: &&str, lane: &&str| {
            let found = &self.model.queues[*queue];
            let is_registered = found.groups.contains_key(group_name);
            let is_claimed = claimed.contains(&((*queue).to_owned(), (*lane).to_owned()));
            let is_wanted = wish.lane.is_none_or(|wanted| LANES[wanted] == *lane);
            is_wanted && !is_claimed && (!is_registered || !found.available(group_name, lane, now_us).is_empty())
        };
        let missed = queues.iter().map(|&queue| QUEUES[queue]).find_map(|queue| {
            let lane = LANES.iter().find(|lane| is_missed(&queue, lane))?;
            Some((queue, *lane))
        });
        let is_complete = self.may_fall_short || left == 0 || claimed.len() >= wish.partitions as usize || missed.is_none();
        right(is_complete, || {
            let seen = missed.map(|(queue, lane)| self.explain(queue, group_name, lane)).unwrap_or_default();
            format!("{missed:?} has messages that were not handed out: {seen}")
        })
    }

    /// What decides whether a group gets something of a lane, for people.
    pub(super) fn explain(&self, queue: &str, group: &str, lane: &str) -> String {
        let Some(found) = self.model.queues.get(queue) else { return String::new() };
        let (delay_s, window_s, now) = (found.delay_s, found.window_s, self.now);
        let group = found.groups.get(group);
        let cursor = group.and_then(|group| group.cursors.get(lane));
        let start = group.map(|group| (group.start, group.filter, group.first_filter, group.is_enabled, group.is_paused));
        let batches = found.lanes.get(lane).map(|lane| (lane.start, &lane.batches));
        format!("{now:?}, delay {delay_s} s, window {window_s} s, {start:?}, {cursor:?}, {batches:?}")
    }

    /// Why a pop of this queue would be refused.
    pub(super) fn refusal(&self, queue: &str, group: &str) -> Option<ErrorCode> {
        let Some(found) = self.model.queues.get(queue) else { return Some(ErrorCode::UnknownQueue) };
        if group != PRIMARY_GROUP && !found.has_groups {
            return Some(ErrorCode::GroupsDisabled);
        }
        found.groups.get(group).is_some_and(|found| !found.is_enabled).then_some(ErrorCode::GroupInactive)
    }

    pub(super) fn pop_request(&self, wish: Wish) -> PopRequest {
        let mut request = PopRequest::any(QUEUES[wish.queue.unwrap_or(0)], wish.max);
        match (wish.queue, wish.lane) {
            (Some(queue), Some(lane)) => {
                request.source = PopSource::Partition { queue: QUEUES[queue].to_owned(), partition: LANES[lane].to_owned() };
            }
            (Some(_), None) => {}
            (None, _) => request.source = PopSource::Discover { namespace: Some(NAMESPACE.to_owned()), task: None },
        }
        request.group = (wish.group > 0).then(|| GROUPS[wish.group].to_owned());
        request.partitions_max = wish.partitions;
        request.bytes_max = 1 << 30;
        request.lease_ms = wish.lease_ms;
        request.auto_ack = wish.auto_ack;
        request.shared = wish.group == 3;
        request.start = wish.from.and_then(|from| match from {
            Target::Beginning => Some(Start::Beginning),
            Target::End => Some(Start::New),
            Target::Offset(offset) => Some(Start::Offset(offset)),
            Target::Ago(seconds) => Some(Start::Time(self.now.wall_us.saturating_sub(seconds * 1_000_000))),
            Target::Back(_) => None,
        });
        request
    }

    /// Compares a claim with what should be claimed, and takes it over. Returns how many messages it has.
    pub(super) fn take(&mut self, queue: usize, wish: Wish, claim: &Claim, lease: &str, left: usize) -> Result<usize, Stop> {
        let (name, group_name, lane) = (QUEUES[queue], GROUPS[wish.group], claim.partition.as_str());
        let now = (self.now.wall_us, self.now.steady_us);
        let model = self.model.queue(name);
        let lease_us = wish.lease_ms.map_or(u64::from(model.lease_s) * 1_000_000, |milliseconds| milliseconds * 1000);
        let expected: Vec<u64> = model.available(group_name, lane, now.0).into_iter().take(left).collect();
        let messages = messages_of(claim);
        let found: Vec<u64> = messages.iter().map(|message| message.offset).collect();
        let is_right = found == expected || (self.may_fall_short && expected.starts_with(&found));
        let is_right = !found.is_empty() && is_right;
        right(is_right, || {
            let cursor = model.groups[group_name].cursors.get(lane);
            format!("claim of {lane} has {found:?}, expected {expected:?} with {cursor:?}")
        })?;
        for message in &messages {
            let wanted = content_of(&model.lanes[lane].messages[&message.offset].item);
            let got = content_of_message(message);
            right(wanted == got, || format!("message {} of {lane} is {got}, expected {wanted}", message.offset))?;
        }
        let had_lost = model.cursor(group_name, lane).has_lost;
        let start = model.lanes[lane].start;
        right(!had_lost || claim.lost.is_some(), || format!("claim of {lane} tells of no loss"))?;
        right(claim.lost.is_none_or(|lost| lost.last < start), || format!("loss {:?} is not below {start}", claim.lost))?;
        model.claim(group_name, lane, &found, lease, now.1 + lease_us);
        let count = model.cursor(group_name, lane).deliveries[&found[0]];
        let is_right = !self.are_counts_known || claim.delivery_count == count;
        right(is_right, || format!("delivery count of {} in {lane} is {}, not {count}", found[0], claim.delivery_count))?;
        let count = found.len();
        if wish.auto_ack {
            let items: Vec<_> = found.iter().map(|&offset| (offset, AckVerb::Completed, 0)).collect();
            model.ack(group_name, lane, lease, &items, now);
        } else {
            let (group, partition_id, incarnation) = (wish.group, claim.partition_id, claim.incarnation);
            let (lane, lease) = (lane.to_owned(), lease.to_owned());
            self.held.push(Held { queue, group, lane, partition_id, incarnation, lease, offsets: found });
        }
        Ok(count)
    }

    /// Who waits is woken when something is claimable that was not before. Awake and with nothing to take, it waits again.
    pub(super) fn look_after_waiter(&mut self) -> Check {
        if !self.has_waiter {
            return Ok(());
        }
        if self.waiter.as_ref().is_some_and(|waiter| waiter.steps > 25) {
            self.waiter = None;
        }
        if self.waiter.is_none() {
            self.waiters += 1;
            let (queue, group) = (self.waiters % QUEUES.len(), self.waiters / QUEUES.len() % GROUPS.len());
            let known = self.model.queues.get(QUEUES[queue]).and_then(|found| found.groups.get(GROUPS[group]));
            if known.is_none_or(|group| group.start.is_none()) {
                return Ok(());
            }
            let request = self.pop_request(Wish { queue: Some(queue), ..Wish::small(group) });
            let is_woken = Arc::new(AtomicBool::new(true));
            let flag = Arc::clone(&is_woken);
            let wake = Arc::new(move || flag.store(true, Ordering::Relaxed));
            let watch = self.engine().watch(&request, wake).map_err(|error| error.to_string())?;
            self.waiter = Some(Waiter { queue, group, is_woken, steps: 0, _watch: watch });
        }
        let Some(waiter) = &mut self.waiter else { return Ok(()) };
        waiter.steps += 1;
        let (queue, group, now_us) = (waiter.queue, waiter.group, self.now.wall_us);
        let is_woken = waiter.is_woken.load(Ordering::Relaxed);
        let found = &self.model.queues[QUEUES[queue]];
        let ready = LANES.iter().find(|lane| !found.available(GROUPS[group], lane, now_us).is_empty());
        match ready {
            Some(lane) => {
                ensure!(is_woken, "a pop of {}/{lane} by {:?} waits on, with messages to take", QUEUES[queue], GROUPS[group]);
            }
            None if is_woken => {
                waiter.is_woken.store(false, Ordering::Relaxed);
                let request = self.pop_request(Wish { queue: Some(queue), ..Wish::small(group) });
                if let Ok(reply) = self.engine().pop(&request, self.now)
                    && let Some(claim) = reply.claims.first()
                {
                    let seen = self.explain(QUEUES[queue], GROUPS[group], &claim.partition);
                    let (group, range) = (GROUPS[group], claim.range);
                    return Err(format!("the waiting pop of {group:?} got {range:?} of {}: {seen}", claim.partition));
                }
            }
            None => {}
        }
        Ok(())
    }

    /// What an at-most-once pop may have acknowledged before it failed: any of its lanes.
    pub(super) fn auto_acked(&self, model: &Model, queue: &str, wish: Wish) -> Candidates {
        let group = GROUPS[wish.group];
        let lanes: Vec<&str> = match wish.lane {
            Some(lane) => vec![LANES[lane]],
            None => LANES.to_vec(),
        };
        let mut all = Vec::new();
        for order in permutations(&lanes) {
            let mut acked = model.clone();
            let mut left = wish.max as usize;
            let mut count = 0;
            for lane in order {
                let available = acked.queues[queue].available(group, lane, self.now.wall_us);
                let offsets: Vec<u64> = available.into_iter().take(left).collect();
                if offsets.is_empty() || count == wish.partitions {
                    continue;
                }
                count += 1;
                left -= offsets.len();
                let items: Vec<_> = offsets.iter().map(|&offset| (offset, AckVerb::Completed, 0)).collect();
                let found = acked.queue(queue);
                found.claim(group, lane, &offsets, "auto", u64::MAX);
                found.ack(group, lane, "auto", &items, (self.now.wall_us, self.now.steady_us));
                all.push(acked.clone());
            }
        }
        all
    }
}

impl Wish {
    pub(super) fn small(group: usize) -> Self {
        Self { queue: None, lane: None, group, max: 3, partitions: 1, lease_ms: None, auto_ack: false, from: None }
    }
}

/// A first pop registers the group.
pub(super) fn register(queue: &mut QueueModel, group: &str, start: Option<Start>, shared: bool) {
    // The primary group always starts at the beginning, and so does by these options who does not say where.
    let start = if group == PRIMARY_GROUP { Start::Beginning } else { start.unwrap_or(Start::Beginning) };
    match queue.groups.get_mut(group) {
        Some(found) if found.start.is_none() => found.start = Some(start),
        Some(_) => {}
        None => queue.add_group(group, GroupModel::new(None, Some(start), shared)),
    }
}

pub(super) fn permutations<'a>(lanes: &[&'a str]) -> Vec<Vec<&'a str>> {
    if lanes.len() <= 1 {
        return vec![lanes.to_vec()];
    }
    let mut all = Vec::new();
    for (at, &first) in lanes.iter().enumerate() {
        let rest: Vec<&str> = lanes.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, &lane)| lane).collect();
        all.extend(permutations(&rest).into_iter().map(|mut order| {
            order.insert(0, first);
            order
        }));
    }
    all
}

pub fn messages_of(claim: &Claim) -> Vec<StoredMessage> {
    let mut messages = Vec::new();
    for slice in &claim.batches {
        match slice {
            BatchSlice::Whole(bytes) => messages.extend(
                StoredBatch::parse(bytes.clone()).and_then(|batch| batch.messages()).expect("a handed out batch decodes"),
            ),
            BatchSlice::Messages(found) => messages.extend(found.iter().cloned()),
        }
    }
    messages
}
