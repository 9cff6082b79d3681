//! Popping: which partition is next, what of it may be handed out, and the lease on it.
//!
//! A pop reserves a partition, reads without holding any lock, and then claims what it read. A claim that something came between is
//! given up and looked for again.

use crate::model::{
    AckItem, AckReply, AckTarget, AckVerb, BatchSlice, Claim, Error, ErrorCode, GroupState, Now, OffsetRange, PopReply,
    PopRequest, PopSource,
};
use crate::record::{GroupId, Offset, PartitionId, check_name};

use super::Engine;
use super::acknowledge::{Lease, ResolvedAck, ResolvedItem};
use super::delivery::{LeaseToken, Mode, Runs};
use super::group::{PRIMARY, Slot};
use super::line::Job;
use super::queue::Queue;
use super::read::{ReadLimits, ReadPlan, Taken, View, read};
use super::state::State;
use super::timer::expire;

/// Stretches of free offsets that one read looks at in a group that has holes.
const RANGES_MAX: usize = 256;
/// How often a pop looks again after something came between, before it says that there is nothing.
const TRIES_MAX: usize = 1000;

/// A partition that a pop has to itself while it reads.
struct Candidate {
    group: GroupId,
    partition: PartitionId,
    name: String,
    mode: Mode,
    ranges: Vec<OffsetRange>,
    view: View,
    hint: u32,
    /// How often messages of the ranges were delivered before.
    deliveries: Runs<u32>,
}

/// What is left to take.
struct Budget {
    messages: u32,
    bytes: usize,
    partitions: u32,
}

impl Engine {
    /// Pops; see [`Engine::pop`]. Claims of an at-most-once pop are acknowledged in the same step and wait for their commit in `acks`.
    pub(super) fn pop_claims(&self, request: &PopRequest, now: Now) -> Result<(PopReply, Vec<PendingAck>), Error> {
        check_request(request)?;
        let mut budget =
            Budget { messages: request.messages_max, bytes: request.bytes_max as usize, partitions: request.partitions_max };
        let token = self.next_token();
        let mut reply = PopReply::default();
        let mut notices = Vec::new();
        let mut acks = Vec::new();
        let mut until_us = 0;
        for queue in self.sources(&request.source)? {
            let group = match self.ensure_group(&queue, request, now) {
                Ok(group) => group,
                // Other queues of the namespace may still have something.
                Err(_) if matches!(request.source, PopSource::Discover { .. }) => continue,
                Err(error) => return Err(error),
            };
            let lease_us = lease_us(request, &queue);
            until_us = now.steady_us.saturating_add(lease_us);
            self.pop_queue(&queue, group, request, (token, until_us), now, &mut budget, &mut reply, &mut notices, &mut acks)?;
            if budget.messages == 0 || budget.partitions == 0 {
                break;
            }
        }
        if !reply.claims.is_empty() && !request.auto_ack {
            reply.lease_id = token.to_string();
            reply.lease_expires_at_us = now.wall_us.saturating_add(until_us.saturating_sub(now.steady_us));
        }
        // Behind the messages: who looks at the first claim only looks at one that has some.
        reply.claims.append(&mut notices);
        Ok((reply, acks))
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one loop, used once")]
    fn pop_queue(
        &self,
        queue: &std::sync::Arc<Queue>,
        group: GroupId,
        request: &PopRequest,
        (token, until_us): (LeaseToken, u64),
        now: Now,
        budget: &mut Budget,
        reply: &mut PopReply,
        notices: &mut Vec<Claim>,
        acks: &mut Vec<PendingAck>,
    ) -> Result<(), Error> {
        let pinned = match &request.source {
            PopSource::Partition { partition, .. } => Some(partition.as_str()),
            _ => None,
        };
        // A lease that ran out since the last tick holds its partition no longer.
        let is_due = queue.state().timers.next_us().is_some_and(|due_us| due_us <= now.steady_us);
        if is_due {
            expire(queue, now);
        }
        for _ in 0..TRIES_MAX {
            if budget.messages == 0 || budget.partitions == 0 {
                return Ok(());
            }
            let Some(candidate) = next_candidate(&mut queue.state(), queue, group, pinned, now)? else { return Ok(()) };
            let plan = ReadPlan {
                partition: candidate.partition,
                ranges: &candidate.ranges,
                view: &candidate.view,
                limits: ReadLimits { messages_max: budget.messages, bytes_max: budget.bytes },
                hint: candidate.hint,
                deliveries: &candidate.deliveries,
            };
            let taken = read(&queue.log, &self.shared.cache, &plan);
            let mut state = queue.state();
            if let Some(found) = state.groups.get_mut(&group) {
                found.unreserve(candidate.partition);
            }
            if is_overtaken(&state, &candidate) {
                if let Some(found) = state.groups.get_mut(&group) {
                    found.push_ready(candidate.partition);
                }
                continue;
            }
            let taken = queue.told(taken)?;
            let claim = match claim(&mut state, queue, &candidate, taken, (token, until_us), now) {
                Outcome::Claimed(claim) => *claim,
                Outcome::Notice(notice) => {
                    notices.push(*notice);
                    if pinned.is_some() {
                        return Ok(());
                    }
                    continue;
                }
                Outcome::Nothing if pinned.is_some() => return Ok(()),
                Outcome::Nothing | Outcome::LookAgain => continue,
            };
            budget.messages -= claim.count.min(budget.messages);
            budget.bytes = budget.bytes.saturating_sub(claim.bytes);
            budget.partitions -= 1;
            if let Some(stored_at_us) = first_delivery_of(&claim.claim) {
                self.shared.common.recorders.delivery.record(now.wall_us.saturating_sub(stored_at_us));
            }
            if request.auto_ack {
                acks.push(acknowledge_at_once(queue, &candidate, &claim, token, &state));
            } else {
                self.shared.common.leases.add(token, until_us, queue.incarnation, group, candidate.partition);
                state.timers.set(until_us, group, candidate.partition);
            }
            reply.claims.push(claim.claim);
            if pinned.is_some() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Registers the group if this is its first pop: durably, before anything is handed out.
    fn ensure_group(&self, queue: &Queue, request: &PopRequest, now: Now) -> Result<GroupId, Error> {
        let name = request.group.as_deref();
        {
            let state = queue.state();
            if let Some(id) = state.group_id(name)
                && let Some(group) = state.groups.get(&id)
            {
                let is_named = id != PRIMARY;
                if is_named && !state.settings.consumer_groups {
                    return Err(groups_disabled(&queue.name));
                }
                if group.info("").state == GroupState::Inactive {
                    let text = format!("group {:?} of queue {:?} is inactive", group.name(), queue.name);
                    return Err(Error::new(ErrorCode::GroupInactive, text));
                }
                if group.record.start.is_some() {
                    return Ok(id);
                }
            } else if !state.settings.consumer_groups {
                return Err(groups_disabled(&queue.name));
            }
        }
        self.register_group(queue, name, request.start, request.shared, now)
    }
}

/// A claim of an at-most-once pop, waiting for its commit.
pub(super) struct PendingAck {
    pub queue: std::sync::Arc<Queue>,
    pub ack: ResolvedAck,
}

impl PendingAck {
    /// The queue's incarnation and the partition.
    pub fn place(&self) -> (u64, PartitionId) {
        (self.queue.incarnation, self.ack.partition)
    }

    /// Puts the acknowledgement in line.
    pub fn submit(self, now: Now, done: super::completion::Done<AckReply>) -> std::sync::Arc<Queue> {
        self.queue.submit(Job::Ack(Box::new(self.ack), done), now);
        self.queue
    }
}

/// Takes a claim out of the reply of an at-most-once pop if its lease was over before its acknowledgement came to its turn: the messages
/// go to the next one who asks, or went there already. A notice of damage, which has no messages, stays.
pub(super) fn withhold_lost(reply: &mut PopReply, (incarnation, partition): (u64, PartitionId), acked: &AckReply) {
    if acked.outcomes.iter().any(|outcome| outcome.refused.is_some() || outcome.is_noop) {
        let is_other = |claim: &Claim| (claim.incarnation, claim.partition_id) != (incarnation, partition);
        reply.claims.retain(|claim| claim.batches.is_empty() || is_other(claim));
    }
}

/// What came of trying to claim what was read.
enum Outcome {
    Claimed(Box<Claimed>),
    /// All that is left for the group is damaged: a claim without messages or a lease tells so.
    Notice(Box<Claim>),
    /// Nothing is there for the group now.
    Nothing,
    /// The cursor moved, or something came between: there may be more.
    LookAgain,
}

struct Claimed {
    claim: Claim,
    count: u32,
    bytes: usize,
    messages: super::delivery::OffsetSet,
}

/// For delivery at most once: the acknowledgement of all that was claimed, to be committed before the messages leave.
fn acknowledge_at_once(
    queue: &std::sync::Arc<Queue>,
    candidate: &Candidate,
    claim: &Claimed,
    token: LeaseToken,
    state: &State,
) -> PendingAck {
    let offsets: Vec<Offset> = match candidate.mode {
        // The last one completes all before it.
        Mode::Ordered => claim.messages.last().into_iter().collect(),
        Mode::Shared => claim.messages.iter().flat_map(|(range, ())| range.first..=range.last).collect(),
    };
    let items = offsets
        .into_iter()
        .map(|offset| ResolvedItem {
            offset: Some(offset),
            item: AckItem { target: AckTarget::Offset(offset), verb: AckVerb::Completed, reason: String::new(), delay_ms: 0 },
        })
        .collect();
    let group = state.groups.get(&candidate.group).map(|group| group.name().to_owned());
    let ack = ResolvedAck { partition: candidate.partition, group, lease: Lease::Token(token), items };
    PendingAck { queue: std::sync::Arc::clone(queue), ack }
}

fn groups_disabled(queue: &str) -> Error {
    Error::new(ErrorCode::GroupsDisabled, format!("queue {queue:?} has its consumer groups switched off"))
}

fn check_request(request: &PopRequest) -> Result<(), Error> {
    if request.messages_max == 0 {
        return Err(Error::new(ErrorCode::BadRequest, "a pop takes at least 1 message"));
    }
    if !(1..=64).contains(&request.partitions_max) {
        let text = format!("a pop takes from 1 to 64 partitions, not {}", request.partitions_max);
        return Err(Error::new(ErrorCode::BadRequest, text));
    }
    if request.lease_ms == Some(0) {
        return Err(Error::new(ErrorCode::BadRequest, "a lease lasts at least 1 millisecond"));
    }
    if let Some(group) = &request.group {
        check_name(group)?;
    }
    Ok(())
}

fn lease_us(request: &PopRequest, queue: &Queue) -> u64 {
    match request.lease_ms {
        Some(milliseconds) => milliseconds.saturating_mul(1000),
        None => u64::from(queue.state().settings.lease_time_s.max(1)) * 1_000_000,
    }
}

/// Reserves the next partition that has something for the group.
fn next_candidate(
    state: &mut State,
    queue: &Queue,
    group_id: GroupId,
    pinned: Option<&str>,
    now: Now,
) -> Result<Option<Candidate>, Error> {
    let pinned = match pinned {
        Some(name) => match state.partitions.find(name) {
            Some(id) => Some(id),
            None => return Ok(None),
        },
        None => None,
    };
    let State { partitions, groups, settings, timers, .. } = state;
    let Some(group) = groups.get_mut(&group_id) else {
        return Err(Error::new(ErrorCode::UnknownGroup, "the group is gone"));
    };
    if group.record.is_paused {
        return Ok(None);
    }
    loop {
        let id = match pinned {
            Some(id) => id,
            None => match group.pop_ready(partitions) {
                Some(id) => id,
                None => return Ok(None),
            },
        };
        let give_up = |error: Option<Error>| match (pinned, error) {
            (Some(_), Some(error)) => Some(Err(error)),
            (Some(_), None) => Some(Ok(None)),
            (None, _) => None,
        };
        let Some(partition) = partitions.get(id) else {
            match give_up(None) {
                Some(outcome) => return outcome,
                None => continue,
            }
        };
        if let Some(opens_us) = opens_at(settings, partition, now) {
            timers.set(opens_us, group_id, id);
            match give_up(None) {
                Some(outcome) => return outcome,
                None => continue,
            }
        }
        let mode = group.mode();
        let Free { ranges, hint, deliveries, lost } = match free_ranges(group, id, partition, queue, settings, mode, now) {
            Ok(found) => found,
            Err(reason) => match give_up(Some(Error::new(ErrorCode::Corrupt, format!("cursor is held: {reason}")))) {
                Some(outcome) => return outcome,
                None => continue,
            },
        };
        if let Some(lost) = lost {
            group.note_lost(id, Some(lost));
        }
        if ranges.is_empty() || !group.reserve(id) {
            match give_up(None) {
                Some(outcome) => return outcome,
                None => continue,
            }
        }
        let view = group_view(group);
        let name = partition.name().to_owned();
        return Ok(Some(Candidate { group: group_id, partition: id, name, mode, ranges, view, hint, deliveries }));
    }
}

/// How a group looks at messages.
pub(super) fn group_view(group: &super::group::Group) -> View {
    View { group: Some(group.record.id), first_filter: group.first_filter.clone(), created_lsn: group.record.created_lsn }
}

/// What a group may take of a partition.
#[derive(Default)]
struct Free {
    ranges: Vec<OffsetRange>,
    hint: u32,
    deliveries: Runs<u32>,
    /// What retention took before the group came to it.
    lost: Option<OffsetRange>,
}

fn free_ranges(
    group: &mut super::group::Group,
    id: PartitionId,
    partition: &super::partition::Partition,
    queue: &Queue,
    settings: &crate::model::QueueSettings,
    mode: Mode,
    now: Now,
) -> Result<Free, String> {
    let (start, end) = (partition.start, partition.end);
    // A start that is not there yet stays open: put at the end, the cursor would take what comes before it.
    if group.slot(id).is_none() && group.next(id, partition, &queue.log) >= end {
        return Ok(Free::default());
    }
    if let Slot::Plain { hint, cursor } = group.slot_mut(id, partition, &queue.log) {
        if cursor.next >= end {
            return Ok(Free::default());
        }
        let is_simple = cursor.next >= start && mode == Mode::Ordered && settings.delayed_processing_s == 0;
        if is_simple {
            let ranges = vec![OffsetRange { first: cursor.next, last: end - 1 }];
            return Ok(Free { ranges, hint: (*hint).max(partition.first_segment), ..Free::default() });
        }
    }
    let active = group.active_mut(id, partition, &queue.log)?;
    let lost = active.delivery.skip_to(start);
    let ranges = active.delivery.ready(end, RANGES_MAX, now);
    let deliveries = active.delivery.staged().deliveries().clone();
    Ok(Free { ranges, hint: active.hint.max(partition.first_segment), deliveries, lost })
}

/// When a partition with a window buffer or delayed processing may be handed out, if that is not yet. Steady microseconds.
fn opens_at(settings: &crate::model::QueueSettings, partition: &super::partition::Partition, now: Now) -> Option<u64> {
    let window_us = u64::from(settings.window_buffer_s) * 1_000_000;
    let opens_wall_us = partition.newest_at_us.saturating_add(window_us);
    (window_us > 0 && opens_wall_us > now.wall_us).then(|| now.steady_us + (opens_wall_us - now.wall_us))
}

/// Whether retention took something of it since it was reserved: what was read is looked at again, and what is lost is told.
fn is_overtaken(state: &State, candidate: &Candidate) -> bool {
    let first = candidate.ranges.first().map_or(0, |range| range.first);
    state.partitions.get(candidate.partition).is_some_and(|partition| first < partition.start)
}

/// Leases what was read.
fn claim(
    state: &mut State,
    queue: &Queue,
    candidate: &Candidate,
    mut taken: Taken,
    (token, until_us): (LeaseToken, u64),
    now: Now,
) -> Outcome {
    let young = hold_back_delayed(state, candidate, &mut taken, now);
    count_damage(state, candidate, &taken.damaged);
    let State { partitions, groups, stats, .. } = state;
    let id = candidate.partition;
    let (Some(group), Some(partition)) = (groups.get_mut(&candidate.group), partitions.get(id)) else {
        return Outcome::Nothing;
    };
    group.note_lost(id, taken.lost);
    let Some(first) = candidate.ranges.first().map(|range| range.first) else { return Outcome::Nothing };
    let end = partition.end;
    let Ok(active) = group.active_mut(id, partition, &queue.log) else { return Outcome::Nothing };
    // In a work queue what comes before may be leased now and free again later.
    if first == active.delivery.staged().next() {
        active.hint = active.hint.max(taken.hint);
    }
    if taken.count == 0 {
        // Nothing here is for the group: the cursor moves over it, and what follows may be.
        // Unless the first message is only too young: then there is nothing to move over, not even offset 0.
        let is_progress = taken.through >= first && taken.through < end && young.is_none_or(|young| young > first);
        let passed = OffsetRange { first, last: taken.through };
        let is_damaged = is_progress && !taken.damaged.is_empty();
        if is_damaged {
            active.delivery.pass_lost(passed);
        } else if is_progress {
            active.delivery.pass_over(passed);
        }
        let has_more = is_progress && taken.through + 1 < end;
        group.mark_dirty(id);
        group.settle(id);
        if has_more {
            group.push_ready(id);
        }
        if has_more {
            return Outcome::LookAgain;
        }
        // No claim may ever follow that could tell.
        if is_damaged {
            let lost = group.take_lost(id);
            return Outcome::Notice(Box::new(Claim { lost, ..claim_of(queue, candidate, passed) }));
        }
        return Outcome::Nothing;
    }
    let messages = taken.messages.clone();
    let Ok(claimed) = active.delivery.claim(token, until_us, first, taken.through, taken.messages, now) else {
        group.settle(id);
        group.push_ready(id);
        return Outcome::LookAgain;
    };
    for slice in &mut taken.slices {
        if let BatchSlice::Messages(found) = slice {
            for message in found {
                message.delivery_count = active.delivery.staged().delivery_count(message.offset).max(1);
            }
        }
    }
    group.mark_dirty(id);
    if candidate.mode == Mode::Shared {
        group.push_ready(id);
    }
    group.popped += u64::from(taken.count);
    stats.popped += u64::from(taken.count);
    let claim = Claim {
        delivery_count: claimed.delivery_count,
        last_error: claimed.last_error,
        lost: group.take_lost(id),
        batches: taken.slices,
        ..claim_of(queue, candidate, OffsetRange { first, last: taken.through })
    };
    Outcome::Claimed(Box::new(Claimed { claim, count: taken.count, bytes: taken.bytes, messages }))
}

/// A claim on a candidate that has no messages yet.
fn claim_of(queue: &Queue, candidate: &Candidate, range: OffsetRange) -> Claim {
    Claim {
        queue: queue.name.clone(),
        partition: candidate.name.clone(),
        partition_id: candidate.partition,
        incarnation: queue.incarnation,
        range,
        delivery_count: 0,
        last_error: String::new(),
        lost: None,
        batches: Vec::new(),
    }
}

/// Counts the messages that were found damaged, each once for each group. An offset that nobody ever had is no message.
fn count_damage(state: &mut State, candidate: &Candidate, damaged: &[OffsetRange]) {
    for &range in damaged {
        let Some(group) = state.groups.get_mut(&candidate.group) else { return };
        let new = group.note_damaged(candidate.partition, range);
        let count_of = |part: &OffsetRange| {
            let end = part.last.saturating_add(1);
            (end - part.first).saturating_sub(state.gap_between(candidate.partition, part.first, end))
        };
        state.stats.lost_damaged += new.iter().map(count_of).sum::<u64>();
    }
}

/// When the first message of a batch was stored, and its offset.
fn first_message(slice: &BatchSlice) -> Option<(u64, Offset)> {
    match slice {
        BatchSlice::Whole(bytes) => match crate::record::RecordHeader::decode(bytes) {
            Ok((header, Some(batch), _)) => Some((header.created_at_us, batch.base_offset)),
            _ => None,
        },
        BatchSlice::Messages(messages) => messages.first().map(|message| (message.created_at_us, message.offset)),
    }
}

/// When the first message of a claim was stored, if the claim delivers it for the first time.
fn first_delivery_of(claim: &Claim) -> Option<u64> {
    let slice = claim.batches.first().filter(|_| claim.delivery_count <= 1)?;
    match slice {
        BatchSlice::Messages(messages) if messages.first().is_some_and(|message| message.delivery_count > 1) => None,
        slice => first_message(slice).map(|(stored_at_us, _)| stored_at_us),
    }
}

/// With delayed processing, messages that are too young stay behind; the offset of the first of them.
fn hold_back_delayed(state: &mut State, candidate: &Candidate, taken: &mut Taken, now: Now) -> Option<Offset> {
    let delay_us = u64::from(state.settings.delayed_processing_s) * 1_000_000;
    if delay_us == 0 {
        return None;
    }
    let mut opens_us = None;
    taken.slices.retain(|slice| {
        let Some((created_at_us, first)) = first_message(slice) else { return false };
        let due_wall_us = created_at_us.saturating_add(delay_us);
        if due_wall_us <= now.wall_us && opens_us.is_none() {
            return true;
        }
        opens_us.get_or_insert((now.steady_us + due_wall_us.saturating_sub(now.wall_us), first));
        false
    });
    let (time, first) = opens_us?;
    state.timers.set(time, candidate.group, candidate.partition);
    let young = OffsetRange { first, last: Offset::MAX };
    let count = taken.messages.clear(young);
    taken.count -= (count as u32).min(taken.count);
    taken.through = first.saturating_sub(1);
    if taken.count == 0 {
        taken.slices.clear();
    }
    Some(first)
}
