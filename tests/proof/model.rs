//! The engine as it should be, so simple that it is obviously right: every message, cursor and group in plain maps.
//!
//! The model knows nothing of files, batches in flight or recovery. A start voids leases and delays ([`Model::restart`]); everything
//! else is what was acknowledged. Messages carry one attribute, `k`, a single letter; a filter admits one letter.

use std::collections::{BTreeMap, BTreeSet};

use fanlog::model::{AckVerb, PRIMARY_GROUP, PushResult, Start};

/// A message of the model; the payload is `size` bytes made of `tag`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub tag: u64,
    pub size: usize,
    pub key: char,
    pub id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    pub item: Item,
    pub created_at_us: u64,
    /// Which groups took it when it was pushed; a group that is not in here was not there yet.
    pub taken: BTreeMap<String, bool>,
}

/// A stored batch: retention is exact to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    pub base: u64,
    pub next: u64,
    pub created_at_us: u64,
    /// Its place among all batches of the queue.
    pub sequence: u64,
    /// Whether it may lie in one batch with the one before it: they are of one transaction.
    pub is_joined: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lane {
    pub messages: BTreeMap<u64, Kept>,
    pub batches: Vec<Stored>,
    pub start: u64,
    pub end: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub outstanding: BTreeSet<u64>,
    pub until_us: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CursorModel {
    /// Everything below is done.
    pub below: u64,
    pub done: BTreeSet<u64>,
    pub failures: BTreeMap<u64, u32>,
    pub deliveries: BTreeMap<u64, u32>,
    pub leases: BTreeMap<String, Lease>,
    pub delays: BTreeMap<u64, u64>,
    pub has_lost: bool,
    /// Where it was put when the group first came here; after a seek nowhere.
    pub seed: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupModel {
    pub filter: Option<char>,
    pub first_filter: Option<char>,
    pub is_enabled: bool,
    pub is_paused: bool,
    pub shared: bool,
    pub version: u64,
    pub limit: Option<u32>,
    pub start: Option<Start>,
    pub cursors: BTreeMap<String, CursorModel>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Letter {
    pub id: u64,
    pub group: String,
    pub partition: String,
    pub offset: u64,
    pub tag: u64,
    pub size: usize,
    pub key: char,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sender {
    pub epoch: u32,
    pub sequence: u32,
    pub last: Vec<PushResult>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueModel {
    pub lanes: BTreeMap<String, Lane>,
    pub groups: BTreeMap<String, GroupModel>,
    pub letters: BTreeMap<u64, Letter>,
    pub next_letter: u64,
    pub senders: BTreeMap<(String, u64), Sender>,
    /// Newest message of each own id in each partition: (offset, time).
    pub ids: BTreeMap<(String, String), (u64, u64)>,
    pub dropped: u64,
    pub pushed: u64,
    pub lease_s: u32,
    pub retry_limit: u32,
    /// Whether a message over its limit becomes a dead letter; else it is dropped.
    pub has_letters: bool,
    pub has_groups: bool,
    pub delay_s: u64,
    pub window_s: u64,
    pub retention_s: u64,
    pub max_wait_s: u64,
    pub completed_s: u64,
    pub retention_bytes: u64,
    pub newest_at_us: u64,
    pub batches: u64,
}

/// What became of one item of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Applied,
    Noop,
    Dead,
    Refused,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Model {
    pub queues: BTreeMap<String, QueueModel>,
}

/// Seconds within which an own id is stored once.
pub const WINDOW_S: u64 = 3600;

impl Default for QueueModel {
    fn default() -> Self {
        let primary = GroupModel { start: None, version: 1, ..GroupModel::new(None, None, false) };
        Self {
            lanes: BTreeMap::new(),
            groups: BTreeMap::from([(PRIMARY_GROUP.to_owned(), primary)]),
            letters: BTreeMap::new(),
            next_letter: 1,
            senders: BTreeMap::new(),
            ids: BTreeMap::new(),
            dropped: 0,
            pushed: 0,
            lease_s: 60,
            retry_limit: 3,
            has_letters: true,
            has_groups: true,
            delay_s: 0,
            window_s: 0,
            retention_s: 0,
            max_wait_s: 0,
            completed_s: 0,
            retention_bytes: 0,
            newest_at_us: 0,
            batches: 0,
        }
    }
}

impl GroupModel {
    pub fn new(filter: Option<char>, start: Option<Start>, shared: bool) -> Self {
        Self {
            filter,
            first_filter: filter,
            is_enabled: true,
            is_paused: false,
            shared,
            version: 1,
            limit: None,
            start,
            cursors: BTreeMap::new(),
        }
    }

    fn wants(&self, key: char) -> bool {
        self.is_enabled && self.filter.is_none_or(|filter| filter == key)
    }
}

impl Model {
    pub fn queue(&mut self, name: &str) -> &mut QueueModel {
        self.queues.get_mut(name).expect("the model has the queue")
    }

    /// What a start of the process forgets.
    pub fn restart(&mut self) {
        for queue in self.queues.values_mut() {
            for group in queue.groups.values_mut() {
                for cursor in group.cursors.values_mut() {
                    cursor.leases.clear();
                    cursor.delays.clear();
                    cursor.has_lost = false;
                }
                // A hand-out alone is not remembered over a kill.
                group.cursors.retain(|_, cursor| {
                    let is_new = cursor.below == cursor.seed && cursor.done.is_empty() && cursor.failures.is_empty();
                    !is_new || !cursor.deliveries.is_empty()
                });
            }
        }
    }

    /// What a kill forgets beyond that.
    pub fn forget_deliveries(&mut self) {
        let groups = self.queues.values_mut().flat_map(|queue| queue.groups.values_mut());
        groups.flat_map(|group| group.cursors.values_mut()).for_each(|cursor| cursor.deliveries.clear());
    }

    pub fn expire(&mut self, steady_us: u64) {
        for queue in self.queues.values_mut() {
            for group in queue.groups.values_mut() {
                for cursor in group.cursors.values_mut() {
                    cursor.leases.retain(|_, lease| lease.until_us > steady_us);
                    cursor.delays.retain(|_, until| *until > steady_us);
                }
            }
        }
    }
}

impl QueueModel {
    /// Stores what is not a duplicate and not dropped.
    pub fn push(&mut self, partition: &str, items: &[Item], producer: Option<(u64, u32, u32)>, now_us: u64) -> Vec<PushResult> {
        if let Some((id, epoch, sequence)) = producer
            && let Some(sender) = self.senders.get(&(partition.to_owned(), id))
            && (sender.epoch, sender.sequence) == (epoch, sequence)
        {
            let again = |result: &PushResult| match *result {
                PushResult::Stored(offset) | PushResult::Duplicate(offset) => PushResult::Duplicate(offset),
                PushResult::Dropped => PushResult::Dropped,
            };
            return sender.last.iter().map(again).collect();
        }
        let created_at_us = now_us.max(self.newest_at_us);
        let lane = self.lanes.entry(partition.to_owned()).or_default();
        let base = lane.end;
        let mut results = Vec::new();
        for item in items {
            let taken: BTreeMap<String, bool> =
                self.groups.iter().map(|(name, group)| (name.clone(), group.wants(item.key))).collect();
            if !taken.values().any(|&taken| taken) {
                self.dropped += 1;
                results.push(PushResult::Dropped);
                continue;
            }
            if let Some(id) = &item.id {
                let key = (partition.to_owned(), id.clone());
                let not_before = now_us.saturating_sub(WINDOW_S * 1_000_000);
                if let Some(&(offset, at)) = self.ids.get(&key)
                    && at >= not_before
                {
                    results.push(PushResult::Duplicate(offset));
                    continue;
                }
                self.ids.insert(key, (lane.end, created_at_us));
            }
            lane.messages.insert(lane.end, Kept { item: item.clone(), created_at_us, taken });
            results.push(PushResult::Stored(lane.end));
            lane.end += 1;
        }
        if lane.end > base {
            lane.batches.push(Stored { base, next: lane.end, created_at_us, sequence: self.batches, is_joined: false });
            self.batches += 1;
            self.pushed += lane.end - base;
            self.newest_at_us = created_at_us;
        }
        if let Some((id, epoch, sequence)) = producer {
            self.senders.insert((partition.to_owned(), id), Sender { epoch, sequence, last: results.clone() });
        }
        results
    }

    /// Takes over the time that stored messages were given: that of the clock, or of something newer in the queue if the clock went
    /// back. Whether that may be.
    pub fn stamp(&mut self, partition: &str, results: &[PushResult], created_at_us: u64) -> bool {
        let Some(lane) = self.lanes.get_mut(partition) else { return results.is_empty() };
        for result in results {
            let PushResult::Stored(offset) = *result else { continue };
            if created_at_us < lane.messages[&offset].created_at_us {
                return false;
            }
            lane.messages.entry(offset).and_modify(|kept| kept.created_at_us = created_at_us);
            let batch = lane.batches.iter_mut().rev().find(|batch| batch.base <= offset);
            batch.into_iter().for_each(|batch| batch.created_at_us = created_at_us);
            let of_message = |(key, known): &(&(String, String), &mut (u64, u64))| key.0 == partition && known.0 == offset;
            self.ids.iter_mut().filter(of_message).for_each(|(_, known)| known.1 = created_at_us);
            self.newest_at_us = self.newest_at_us.max(created_at_us);
        }
        true
    }

    pub fn takes(&self, group: &str, kept: &Kept) -> bool {
        match kept.taken.get(group) {
            Some(&taken) => taken,
            None => self.groups[group].first_filter.is_none_or(|filter| filter == kept.item.key),
        }
    }

    /// Adds a group; one that starts with what comes stands at the end of every partition.
    pub fn add_group(&mut self, name: &str, group: GroupModel) {
        self.groups.insert(name.to_owned(), group);
        self.seed(name);
    }

    /// A group that starts with what comes stands at the end of every partition that is there.
    pub fn seed(&mut self, name: &str) {
        let Some(group) = self.groups.get_mut(name) else { return };
        if group.start == Some(Start::New) {
            for (partition, lane) in &self.lanes {
                group.cursors.insert(partition.clone(), CursorModel { below: lane.end, ..CursorModel::default() });
            }
        }
    }

    pub fn remove_group(&mut self, name: &str) {
        self.groups.remove(name);
        for lane in self.lanes.values_mut() {
            for kept in lane.messages.values_mut() {
                kept.taken.remove(name);
            }
        }
    }

    /// Where a group starts in a partition that it has not been in. What is pushed later is younger than any time that has been,
    /// and an offset that is not there yet is waited for.
    pub fn seed_of(&self, group: &str, partition: &str) -> u64 {
        match self.groups[group].start {
            None | Some(Start::Beginning | Start::New) => 0,
            Some(Start::Offset(offset)) => offset,
            Some(Start::Time(time_us)) => self.first_at_or_after(partition, time_us),
        }
    }

    /// The first message kept of the first batch that is not older than a time; the end if all are.
    pub fn first_at_or_after(&self, partition: &str, time_us: u64) -> u64 {
        let Some(lane) = self.lanes.get(partition) else { return 0 };
        let found = lane.batches.iter().find(|batch| batch.next > lane.start && batch.created_at_us >= time_us);
        found.map_or(lane.end, |batch| batch.base.max(lane.start))
    }

    pub fn cursor(&mut self, group: &str, partition: &str) -> &mut CursorModel {
        let seed = self.seed_of(group, partition);
        let group = self.groups.get_mut(group).expect("the model has the group");
        group.cursors.entry(partition.to_owned()).or_insert_with(|| CursorModel { below: seed, seed, ..CursorModel::default() })
    }

    pub fn is_done(&self, group: &str, partition: &str, offset: u64) -> bool {
        match self.groups[group].cursors.get(partition) {
            Some(cursor) => offset < cursor.below || cursor.done.contains(&offset),
            None => offset < self.seed_of(group, partition),
        }
    }

    /// Messages of a partition that the group takes and has not done, in order.
    pub fn unread(&self, group: &str, partition: &str) -> Vec<u64> {
        let Some(lane) = self.lanes.get(partition) else { return Vec::new() };
        let wanted = lane.messages.range(lane.start..).filter(|(_, kept)| self.takes(group, kept));
        wanted.map(|(&offset, _)| offset).filter(|&offset| !self.is_done(group, partition, offset)).collect()
    }

    /// Messages that a pop may hand out now, in order.
    pub fn available(&self, group: &str, partition: &str, now_us: u64) -> Vec<u64> {
        let found = &self.groups[group];
        let is_shut = !self.has_groups && group != PRIMARY_GROUP;
        let Some(lane) = self.lanes.get(partition) else { return Vec::new() };
        // Without a delay it does not matter that the clock went back behind what is there.
        let is_over = |since_us: u64, seconds: u64| seconds == 0 || since_us + seconds * 1_000_000 <= now_us;
        let is_quiet = lane.batches.last().is_none_or(|batch| is_over(batch.created_at_us, self.window_s));
        if found.is_paused || !found.is_enabled || is_shut || !is_quiet {
            return Vec::new();
        }
        let mut unread = self.unread(group, partition);
        unread.retain(|offset| is_over(lane.messages[offset].created_at_us, self.delay_s));
        let Some(cursor) = found.cursors.get(partition) else { return unread };
        if !found.shared {
            // What retention took holds nothing.
            let is_held = |lease: &Lease| lease.outstanding.range(lane.start..).next().is_some();
            let is_busy = cursor.leases.values().any(is_held) || cursor.delays.range(lane.start..).next().is_some();
            return if is_busy { Vec::new() } else { unread };
        }
        let is_free = |offset: &u64| {
            !cursor.delays.contains_key(offset) && !cursor.leases.values().any(|lease| lease.outstanding.contains(offset))
        };
        unread.into_iter().filter(is_free).collect()
    }

    pub fn claim(&mut self, group: &str, partition: &str, offsets: &[u64], lease: &str, until_us: u64) {
        let start = self.lanes[partition].start;
        let cursor = self.cursor(group, partition);
        cursor.skip_to(start);
        for &offset in offsets {
            *cursor.deliveries.entry(offset).or_default() += 1;
        }
        cursor.has_lost = false;
        cursor.leases.insert(lease.to_owned(), Lease { outstanding: offsets.iter().copied().collect(), until_us });
    }

    /// Returns in how many partitions it held something, at least and at most: one of which retention took everything may be over.
    pub fn release(&mut self, lease: &str) -> (u32, u32) {
        let mut released = (0, 0);
        let starts: BTreeMap<String, u64> = self.lanes.iter().map(|(name, lane)| (name.clone(), lane.start)).collect();
        for group in self.groups.values_mut() {
            for (partition, cursor) in &mut group.cursors {
                let Some(held) = cursor.leases.remove(lease) else { continue };
                released.0 += u32::from(held.outstanding.range(starts[partition]..).next().is_some());
                released.1 += 1;
                for offset in held.outstanding {
                    if let Some(count) = cursor.deliveries.get_mut(&offset) {
                        *count -= 1;
                    }
                }
            }
        }
        released
    }

    /// Acknowledges under a lease (an empty one is unfenced). Returns the outcomes, in the order of the items, which name each
    /// offset once.
    pub fn ack(
        &mut self,
        group: &str,
        partition: &str,
        lease: &str,
        items: &[(u64, AckVerb, u64)],
        now_us: (u64, u64),
    ) -> Vec<Outcome> {
        let shared = self.groups[group].shared;
        let failures_max = self.groups[group].limit.unwrap_or(self.retry_limit + 1);
        let has_letters = self.has_letters;
        let end = self.lanes[partition].end;
        let start = self.lanes[partition].start;
        let mut outcomes = vec![Outcome::Refused; items.len()];
        let mut dead = Vec::new();
        let cursor = self.cursor(group, partition);
        cursor.skip_to(start);
        let live = match lease {
            "" if shared => None,
            "" => cursor.leases.keys().next().cloned(),
            lease => Some(lease.to_owned()).filter(|lease| cursor.leases.contains_key(lease)),
        };
        let is_lost = !lease.is_empty() && live.is_none();
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by_key(|&index| items[index].0);
        let mut plan = Vec::new();
        for index in order {
            let (offset, verb, _) = items[index];
            let is_done = offset < cursor.below || cursor.done.contains(&offset);
            let is_held = live.as_ref().is_some_and(|live| cursor.leases[live].outstanding.contains(&offset));
            let is_admitted = !is_lost && if live.is_some() { is_held } else { offset < end };
            outcomes[index] = match (is_done, verb) {
                (true, AckVerb::Completed) => Outcome::Noop,
                (true, _) => Outcome::Refused,
                (false, _) if !is_admitted => Outcome::Refused,
                (false, _) => {
                    plan.push(index);
                    Outcome::Applied
                }
            };
        }
        let (mut has_stopped, mut has_charged) = (false, false);
        for &index in &plan {
            let (offset, verb, delay_ms) = items[index];
            if has_stopped {
                break;
            }
            let holder = match (&live, shared) {
                (Some(live), _) => Some(live.clone()),
                (None, true) => {
                    cursor.leases.iter().find(|(_, lease)| lease.outstanding.contains(&offset)).map(|(id, _)| id.clone())
                }
                (None, false) => None,
            };
            let is_dead = match verb {
                AckVerb::Completed => false,
                AckVerb::Reject => true,
                AckVerb::Failed if !shared && has_charged => {
                    has_stopped = true;
                    continue;
                }
                AckVerb::Failed => {
                    has_charged = true;
                    let failures = cursor.failures.entry(offset).or_default();
                    *failures += 1;
                    let is_last = failures_max > 0 && *failures >= failures_max;
                    if !is_last {
                        has_stopped = !shared;
                        cursor.free(holder.as_deref(), offset, shared);
                        continue;
                    }
                    true
                }
                AckVerb::Retry => {
                    has_stopped = !shared;
                    cursor.free(holder.as_deref(), offset, shared);
                    if delay_ms > 0 {
                        cursor.delays.insert(offset, now_us.1 + delay_ms * 1000);
                    }
                    continue;
                }
            };
            if is_dead {
                let is_dropped = verb == AckVerb::Failed && !has_letters;
                outcomes[index] = if is_dropped { Outcome::Applied } else { Outcome::Dead };
                dead.extend((!is_dropped).then_some(offset));
            }
            if verb == AckVerb::Completed && !shared {
                match &live {
                    Some(live) => {
                        let covered: Vec<u64> = cursor.leases[live].outstanding.range(..=offset).copied().collect();
                        covered.into_iter().for_each(|offset| cursor.finish(Some(live), offset));
                    }
                    None => {
                        cursor.below = cursor.below.max(offset + 1);
                        cursor.failures.retain(|&other, _| other > offset);
                        cursor.deliveries.retain(|&other, _| other > offset);
                        cursor.delays.retain(|&other, _| other > offset);
                    }
                }
            } else {
                cursor.finish(holder.as_deref(), offset);
            }
        }
        if !shared
            && let Some(live) = &live
            && !plan.is_empty()
            && (has_stopped || has_charged)
        {
            cursor.leases.remove(live);
        }
        cursor.leases.retain(|_, lease| !lease.outstanding.is_empty());
        for offset in dead {
            let kept = self.lanes[partition].messages.get(&offset).filter(|_| offset >= start).map(|kept| kept.item.clone());
            let item = kept.unwrap_or(Item { tag: 0, size: 0, key: ' ', id: None });
            let letter = Letter {
                id: self.next_letter,
                group: group.to_owned(),
                partition: partition.to_owned(),
                offset,
                tag: item.tag,
                size: item.size,
                key: item.key,
            };
            self.letters.insert(self.next_letter, letter);
            self.next_letter += 1;
        }
        outcomes
    }

    pub fn seek(&mut self, group: &str, partition: &str, target: u64) {
        *self.cursor(group, partition) = CursorModel { below: target, seed: u64::MAX, ..CursorModel::default() };
    }

    /// The start that the rules of age give a partition: exact to the batch.
    fn expired_start(&self, lane: &Lane, now_us: u64) -> u64 {
        let before = |seconds: u64| if seconds == 0 { 0 } else { now_us.saturating_sub(seconds * 1_000_000) };
        let before_us = before(self.retention_s).max(before(self.max_wait_s));
        let expired = lane.batches.iter().take_while(|batch| batch.created_at_us < before_us).last();
        expired.map_or(lane.start, |batch| batch.next.max(lane.start))
    }

    /// Between which starts the rule of completed messages may leave a partition. What a group does not take may or may not have been
    /// passed by its cursor, so these are two: what all have certainly passed, and what none still wants.
    fn completed_starts(&self, name: &str, start: u64, now_us: u64) -> (u64, u64) {
        let registered: Vec<&String> =
            self.groups.iter().filter(|(_, group)| group.start.is_some()).map(|(name, _)| name).collect();
        if self.completed_s == 0 || registered.is_empty() {
            return (start, start);
        }
        let lane = &self.lanes[name];
        let before_us = now_us.saturating_sub(self.completed_s * 1_000_000);
        let old = || lane.batches.iter().filter(|batch| batch.next > start).take_while(|batch| batch.created_at_us < before_us);
        let holds = |batch: &&Stored, is_passed: &dyn Fn(&str, u64) -> bool| {
            (batch.base.max(start)..batch.next).all(|offset| registered.iter().all(|group| is_passed(group, offset)))
        };
        let is_surely_passed =
            |group: &str, offset: u64| self.takes(group, &lane.messages[&offset]) && self.is_done(group, name, offset);
        let is_unwanted =
            |group: &str, offset: u64| !self.takes(group, &lane.messages[&offset]) || self.is_done(group, name, offset);
        // A batch is left only where no other is joined to it.
        let is_end = |batch: &&Stored| !lane.batches.iter().any(|other| other.base == batch.next && other.is_joined);
        let passed = old().take_while(|batch| holds(batch, &is_surely_passed));
        let must = passed.filter(is_end).last().map_or(start, |batch| batch.next);
        let may = old().take_while(|batch| holds(batch, &is_unwanted)).last().map_or(start, |batch| batch.next);
        (must, may.max(must))
    }

    /// What a sweep may leave: for each partition the lowest and the highest start. With a limit of bytes more may go: see
    /// [`QueueModel::is_legal_sweep`].
    pub fn sweep_bounds(&self, now_us: u64) -> BTreeMap<String, (u64, u64)> {
        let bounds = |(name, lane): (&String, &Lane)| {
            let expired = self.expired_start(lane, now_us);
            (name.clone(), self.completed_starts(name, expired, now_us))
        };
        self.lanes.iter().map(bounds).collect()
    }

    /// Whether a sweep may have left these starts.
    pub fn is_legal_sweep(&self, starts: &BTreeMap<String, u64>, now_us: u64) -> bool {
        let bounds = self.sweep_bounds(now_us);
        let is_boundary = |name: &String, start: u64| {
            let lane = &self.lanes[name];
            start == lane.start || lane.batches.iter().any(|batch| batch.next == start)
        };
        if !starts.iter().all(|(name, &start)| start >= bounds[name].0 && is_boundary(name, start)) {
            return false;
        }
        if self.retention_bytes == 0 {
            return starts.iter().all(|(name, &start)| start <= bounds[name].1);
        }
        // What goes beyond that is the oldest of the queue, whatever its partition.
        let excess = |(name, lane): (&String, &Lane)| {
            let gone = lane.batches.iter().filter(|batch| batch.next > bounds[name].1 && batch.next <= starts[name]);
            gone.map(|batch| batch.sequence).max()
        };
        let Some(last) = self.lanes.iter().filter_map(excess).max() else { return true };
        let kept =
            |(name, lane): (&String, &Lane)| lane.batches.iter().any(|batch| batch.sequence <= last && batch.next > starts[name]);
        !self.lanes.iter().any(kept)
    }

    /// Everything that a sweep may leave.
    pub fn sweeps(&self, now_us: u64) -> Vec<QueueModel> {
        let bounds = self.sweep_bounds(now_us);
        let mut all: Vec<BTreeMap<String, u64>> = vec![BTreeMap::new()];
        for (name, &(must, may)) in &bounds {
            let between = self.lanes[name].batches.iter().map(|batch| batch.next).filter(|next| (must + 1..=may).contains(next));
            let starts: Vec<u64> = std::iter::once(must).chain(between).collect();
            let longer = |known: &BTreeMap<String, u64>| {
                let with = |&start: &u64| known.iter().map(|(name, &start)| (name.clone(), start)).chain([(name.clone(), start)]);
                starts.iter().map(|start| with(start).collect()).collect::<Vec<_>>()
            };
            all = all.iter().flat_map(longer).collect();
        }
        if self.retention_bytes > 0 {
            let mut cuts = Vec::new();
            for starts in &all {
                for last in 0..self.batches {
                    let cut = |(name, &start): (&String, &u64)| {
                        let gone = self.lanes[name].batches.iter().filter(|batch| batch.sequence <= last).map(|batch| batch.next);
                        (name.clone(), gone.max().unwrap_or(0).max(start))
                    };
                    cuts.push(starts.iter().map(cut).collect());
                }
            }
            all.extend(cuts);
            all.sort();
            all.dedup();
        }
        let swept = |starts: &BTreeMap<String, u64>| {
            let mut queue = self.clone();
            queue.move_starts(starts);
            queue
        };
        all.iter().map(swept).collect()
    }

    /// Takes what lies below these starts away.
    pub fn move_starts(&mut self, starts: &BTreeMap<String, u64>) {
        for (name, &start) in starts.iter().filter(|(name, start)| **start > self.lanes[*name].start).collect::<Vec<_>>() {
            let groups: Vec<String> = self.groups.keys().cloned().collect();
            for group in groups {
                let loses = self.unread(&group, name).iter().any(|&offset| offset < start);
                // A group hears of a loss where it has been; elsewhere it starts with what is there.
                if loses && self.groups[&group].cursors.contains_key(name) {
                    self.cursor(&group, name).has_lost = true;
                }
            }
            if let Some(lane) = self.lanes.get_mut(name) {
                lane.start = start;
            }
        }
    }
}

impl CursorModel {
    /// Takes what retention took out of leases, when the group comes here the next time.
    fn skip_to(&mut self, start: u64) {
        for lease in self.leases.values_mut() {
            lease.outstanding.retain(|&offset| offset >= start);
        }
        self.leases.retain(|_, lease| !lease.outstanding.is_empty());
        self.delays.retain(|&offset, _| offset >= start);
    }

    fn take(&mut self, holder: Option<&str>, offset: u64) {
        if let Some(lease) = holder.and_then(|holder| self.leases.get_mut(holder)) {
            lease.outstanding.remove(&offset);
        }
    }

    fn finish(&mut self, holder: Option<&str>, offset: u64) {
        self.take(holder, offset);
        self.delays.remove(&offset);
        self.failures.remove(&offset);
        self.deliveries.remove(&offset);
        self.done.insert(offset);
    }

    /// Hands a message back.
    fn free(&mut self, holder: Option<&str>, offset: u64, shared: bool) {
        if shared {
            self.take(holder, offset);
            self.delays.remove(&offset);
        }
    }
}
