//! Retention: moving the oldest offset kept, and giving the bytes back.
//!
//! The rules look at batches in the order of the log. A partition's start moves exactly to the batch, durably, before any segment is
//! unlinked; a segment goes when all its batches lie below their partitions' starts, and one that has to stay gives the room of what is
//! dead in it back. Readers that hold slices keep theirs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::format::control::ControlOp;
use crate::format::holes::Hole;
use crate::format::index::IndexedBatch;
use crate::model::{Now, QueueSettings};
use crate::record::{Offset, PartitionId};
use crate::storage::disk::DiskErrorKind;
use crate::storage::log::{LogError, Segment};

use super::Engine;
use super::group::{Group, Slot};
use super::pop::group_view;
use super::queue::Queue;
use super::read::View;
use super::removed_unread::{RemovedUnread, registered};
use super::state::{HoleTurn, State};

/// Batches that one sweep looks at; the next sweep goes on.
const SWEEP_BATCHES_MAX: usize = 500_000;
/// Segments that one sweep takes something out of: what stays of each is read once.
const SWEEP_HOLES_MAX: usize = 4;
/// Empty partitions that one sweep looks for among so many.
const SWEEP_PARTITIONS_MAX: usize = 50_000;

/// What the rules say of a queue at one moment.
#[derive(Debug, Clone, Copy)]
struct Rules {
    /// Batches stored before this go, read or not.
    expired_before_us: u64,
    /// Batches stored before this go once every group has passed them.
    completed_before_us: u64,
    /// Segments up to this number go, read or not.
    over_size_through: u32,
}

impl Engine {
    /// One retention sweep of a queue.
    pub(super) fn sweep(&self, queue: &Arc<Queue>, now: Now) {
        let settings = Arc::clone(&queue.state().settings);
        if let Some(rules) = rules(queue, &settings, now) {
            // What fails is tried again at the next sweep.
            let window_us = settings.dedup_window_s.saturating_mul(1_000_000);
            let _ = self.apply_rules(queue, rules, window_us, now);
            if !self.shared.common.cannot_punch.load(Ordering::Relaxed) {
                let _ = self.hollow_segments(queue, &settings, now);
            }
        }
        self.release_holes(queue);
        let _ = self.remove_idle_partitions(queue, now);
    }

    /// Gives back what could not be when it was taken out, because somebody read there, or because the process ended. A disk that
    /// cannot do it at all is asked once for the whole data directory; nothing is lost but room.
    fn release_holes(&self, queue: &Queue) {
        let cannot = &self.shared.common.cannot_punch;
        let segments = queue.log.segments();
        for segment in segments.iter().take(segments.len().saturating_sub(1)) {
            if cannot.load(Ordering::Relaxed) {
                return;
            }
            if let Err(LogError::Disk(error)) = segment.release_holes()
                && error.kind == DiskErrorKind::Unsupported
                && !cannot.swap(true, Ordering::Relaxed)
            {
                tracing::warn!(%error, "room inside segments is not given back until the next start");
            }
        }
    }

    fn apply_rules(&self, queue: &Arc<Queue>, rules: Rules, window_us: u64, now: Now) -> super::Result<()> {
        let starts = expired_starts(queue, rules)?;
        if !starts.is_empty() {
            let engine = self.clone();
            let removed = queue.run(now, move |stage| {
                let mut removed = RemovedUnread::default();
                // The groups' positions are read again under the lock under which they move.
                for (id, start, is_completed_rule) in starts {
                    let Some(partition) = stage.state.partitions.get(id) else { continue };
                    let start = if is_completed_rule { start.min(floor(stage.state, id, stage.log)) } else { start };
                    if start > partition.start && start <= partition.end {
                        if !is_completed_rule {
                            removed.note(stage, &engine.shared.cache, id, start);
                        }
                        let mut record = partition.record(id);
                        record.start = start;
                        stage.plan.starts.push((id, start));
                        stage.plan.operations.push(ControlOp::Partition(record));
                        // A lease of nothing but removed messages holds its lane no longer.
                        let groups = stage.state.groups.iter_mut();
                        let leased = groups.filter_map(|(&group, found)| found.existing_active(id).map(|_| (group, id)));
                        stage.plan.freed.extend(leased);
                    }
                }
                Ok(removed)
            })?;
            queue.state().stats.lost_unread += removed.messages();
            removed.warn(&queue.name);
        }
        self.unlink_dead_segments(queue, rules, window_us, now)
    }

    /// Unlinks the oldest segments as long as all their batches lie below their partitions' starts. What a damaged range held is not
    /// known, nor whether anybody has read it: it goes when everything of its time goes, read or not, and stays else. So does a segment
    /// with transaction ids that a push may still repeat, unless the log is to be smaller.
    fn unlink_dead_segments(&self, queue: &Arc<Queue>, rules: Rules, window_us: u64, now: Now) -> super::Result<()> {
        let segments = queue.log.segments();
        let Some((_, sealed)) = segments.split_last() else { return Ok(()) };
        let mut first = None;
        for (at, segment) in sealed.iter().enumerate() {
            // What follows a segment is younger than anything in it.
            let youngest_us = segments.get(at + 1).map_or(0, |next| next.newest_at_us());
            let is_over = segment.number() <= rules.over_size_through || (1..rules.expired_before_us).contains(&youngest_us);
            if !is_over && !segment.damage()?.is_empty() {
                break;
            }
            let may_be_repeated = segment.newest_at_us() >= now.wall_us.saturating_sub(window_us) && segment.has_ids()?;
            if may_be_repeated && segment.number() > rules.over_size_through {
                break;
            }
            let batches = segment.all_batches()?;
            let state = queue.state();
            if !batches.iter().all(|batch| is_dead(&state, batch)) {
                break;
            }
            first = Some(segment.number() + 1);
        }
        let Some(first) = first else { return Ok(()) };
        queue.run(now, move |stage| {
            let mut counters = stage.state.counters();
            counters.first_segment = counters.first_segment.max(first);
            stage.plan.operations.push(ControlOp::Counters(counters));
            Ok(())
        })?;
        // A start must know that these segments went before it looks for them, and must not want to replay them.
        self.checkpoint(queue, now)?;
        queue.log.remove_before(first)?;
        Ok(())
    }

    /// Gives back the room of what is dead in segments that have to stay for something in them.
    fn hollow_segments(&self, queue: &Arc<Queue>, settings: &QueueSettings, now: Now) -> super::Result<()> {
        let plans = plan_holes(queue, settings, now)?;
        if plans.is_empty() {
            return Ok(());
        }
        // A start must not want to replay what goes, and must not take it for kept.
        let mut outcome = self.checkpoint(queue, now);
        for (segment, holes) in plans {
            outcome = outcome.and_then(|()| Ok(queue.log.make_holes(&segment, holes)?));
            self.shared.cache.forget_segment(queue.incarnation, segment.number());
        }
        if outcome.is_err() {
            // What was planned is planned again.
            queue.state().holes = HoleTurn::default();
        }
        outcome
    }

    /// Partitions that are empty and have been idle for long go, with their cursors.
    fn remove_idle_partitions(&self, queue: &Arc<Queue>, now: Now) -> super::Result<()> {
        let idle_us = u64::from(self.shared.options.partition_cleanup_days) * 86_400 * 1_000_000;
        let candidates: Vec<PartitionId> = {
            let mut state = queue.state();
            let from = state.cleanup_from;
            let looked_at: Vec<_> = state.partitions.iter_from(from).take(SWEEP_PARTITIONS_MAX).collect();
            let next = looked_at.last().map_or(0, |(id, _)| id + 1);
            let idle = |partition: &super::partition::Partition| {
                partition.length() == 0
                    && partition.newest_at_us > 0
                    && partition.newest_at_us.saturating_add(idle_us) < now.wall_us
            };
            let found = looked_at.iter().filter(|(_, partition)| idle(partition)).map(|&(id, _)| id).collect();
            state.cleanup_from = next;
            found
        };
        if candidates.is_empty() {
            return Ok(());
        }
        queue.run(now, move |stage| {
            for id in candidates {
                let is_empty = stage.state.partitions.get(id).is_some_and(|partition| partition.length() == 0);
                let is_leased = stage.state.groups.values_mut().any(|group| {
                    group.existing_active(id).is_some_and(|active| active.delivery.leases(stage.now).next().is_some())
                });
                let has_letters = stage.state.dead_letters.has_partition(id);
                if is_empty && !is_leased && !has_letters {
                    stage.plan.operations.push(ControlOp::PartitionRemoved(id));
                }
            }
            Ok(())
        })
    }
}

/// The segments that are mostly dead, as far as this sweep looks, with what is to be taken out of them. Younger ones than the window of
/// deduplication stay whole: their transaction ids are asked for.
fn plan_holes(queue: &Queue, settings: &QueueSettings, now: Now) -> super::Result<Vec<(Arc<Segment>, Vec<Hole>)>> {
    let mut turn = {
        let state = queue.state();
        let mut turn = state.holes;
        if turn.next == 0 {
            turn.began_at = state.removals;
            if turn.done_at == Some(state.removals) {
                if turn.young == 0 {
                    return Ok(Vec::new());
                }
                turn.next = turn.young;
            }
        }
        turn
    };
    let young_us = now.wall_us.saturating_sub(settings.dedup_window_s.saturating_mul(1_000_000));
    let segments = queue.log.segments();
    let sealed = segments.split_last().map_or(&[][..], |(_, sealed)| sealed);
    let mut plans = Vec::new();
    let mut looked_at = 0;
    let mut rest = sealed.iter().filter(|segment| segment.number() >= turn.next).peekable();
    while let Some(segment) = rest.next_if(|segment| segment.newest_at_us() < young_us) {
        if looked_at >= SWEEP_BATCHES_MAX || plans.len() >= SWEEP_HOLES_MAX {
            turn.next = segment.number();
            queue.state().holes = turn;
            return Ok(plans);
        }
        let mut batches = segment.all_batches()?;
        looked_at += batches.len();
        {
            let state = queue.state();
            batches.retain(|batch| !is_dead(&state, batch));
        }
        if let Some(holes) = segment.plan_holes(&batches)? {
            plans.push((Arc::clone(segment), holes));
        }
    }
    turn.done_at = Some(turn.began_at);
    turn.young = rest.peek().map_or(0, |segment| segment.number());
    turn.next = 0;
    queue.state().holes = turn;
    Ok(plans)
}

/// Whether nobody may read the batch any more. One of a partition that is not known is, as the partition was removed, unless its record
/// is lost.
fn is_dead(state: &State, batch: &IndexedBatch) -> bool {
    match state.partitions.get(batch.partition) {
        Some(partition) => batch.next_offset() <= partition.start,
        None => !state.lost.contains(&batch.partition),
    }
}

fn rules(queue: &Queue, settings: &QueueSettings, now: Now) -> Option<Rules> {
    let before = |seconds: u64| now.wall_us.saturating_sub(seconds.saturating_mul(1_000_000));
    let mut rules = Rules { expired_before_us: 0, completed_before_us: 0, over_size_through: 0 };
    if settings.retention_enabled && settings.retention_s > 0 {
        rules.expired_before_us = before(settings.retention_s);
    }
    if settings.max_wait_time_s > 0 {
        rules.expired_before_us = rules.expired_before_us.max(before(settings.max_wait_time_s));
    }
    if settings.retention_enabled && settings.completed_retention_s > 0 {
        rules.completed_before_us = before(settings.completed_retention_s);
    }
    if settings.retention_bytes > 0 {
        let segments = queue.log.segments();
        let mut bytes: u64 = segments.iter().map(|segment| segment.disk_bytes()).sum();
        for segment in segments.iter().take(segments.len().saturating_sub(1)) {
            if bytes <= settings.retention_bytes {
                break;
            }
            bytes = bytes.saturating_sub(segment.disk_bytes());
            rules.over_size_through = segment.number();
        }
    }
    let is_any = rules.expired_before_us > 0 || rules.completed_before_us > 0 || rules.over_size_through > 0;
    is_any.then_some(rules)
}

/// New starts of partitions: (partition, start, whether only because every group has passed).
fn expired_starts(queue: &Queue, rules: Rules) -> super::Result<Vec<(PartitionId, Offset, bool)>> {
    let mut starts: HashMap<PartitionId, (Offset, bool)> = HashMap::new();
    let mut floors: HashMap<PartitionId, Offset> = HashMap::new();
    let mut blocked: HashSet<PartitionId> = HashSet::new();
    let mut looked_at = 0;
    for segment in queue.log.segments().iter() {
        let mut batches = segment.all_batches()?;
        batches.sort_unstable_by_key(|batch| batch.position);
        looked_at += batches.len();
        let mut is_young = false;
        for batch in &batches {
            let is_expired = batch.created_at_us < rules.expired_before_us || segment.number() <= rules.over_size_through;
            let may_be_completed = batch.created_at_us < rules.completed_before_us;
            if !is_expired && !may_be_completed {
                is_young = true;
                break;
            }
            judge(queue, batch, is_expired, &mut starts, &mut floors, &mut blocked);
        }
        if is_young || looked_at > SWEEP_BATCHES_MAX {
            break;
        }
    }
    Ok(starts.into_iter().map(|(id, (start, is_completed))| (id, start, is_completed)).collect())
}

fn judge(
    queue: &Queue,
    batch: &IndexedBatch,
    is_expired: bool,
    starts: &mut HashMap<PartitionId, (Offset, bool)>,
    floors: &mut HashMap<PartitionId, Offset>,
    blocked: &mut HashSet<PartitionId>,
) {
    let id = batch.partition;
    if blocked.contains(&id) {
        return;
    }
    let next = batch.next_offset();
    if is_expired {
        starts.insert(id, (next, false));
        return;
    }
    let floor = *floors.entry(id).or_insert_with(|| floor(&queue.state(), id, &queue.log));
    if next <= floor {
        let is_completed_rule = starts.get(&id).is_none_or(|known| known.1);
        starts.insert(id, (next, is_completed_rule));
    } else {
        blocked.insert(id);
    }
}

/// The lowest next offset that any group wants in a partition; 0 where no group has a cursor: nothing is consumed there.
fn floor(state: &State, id: PartitionId, log: &crate::storage::log::Log) -> Offset {
    let Some(partition) = state.partitions.get(id) else { return 0 };
    let mut lowest = None;
    for group in registered(state.groups.values()) {
        let next = first_open(group, id, group.next(id, partition, log).max(partition.start), partition.end);
        let wanted = first_wanted(log, id, &group_view(group), next, partition).unwrap_or(partition.end);
        lowest = Some(lowest.map_or(wanted, |lowest: Offset| lowest.min(wanted)));
    }
    lowest.unwrap_or(0)
}

/// The first offset from `from` on that the group has not done.
fn first_open(group: &Group, id: PartitionId, from: Offset, end: Offset) -> Offset {
    match group.slot(id) {
        Some(Slot::Active(active)) => {
            active.delivery.visible().done_above().gaps(from, end).next().map_or(end, |free| free.first)
        }
        _ => from,
    }
}

/// The first offset from `next` on in a batch of which the group takes something: what its filter refused does not hold anything back.
fn first_wanted(
    log: &crate::storage::log::Log,
    id: PartitionId,
    view: &View,
    next: Offset,
    partition: &super::partition::Partition,
) -> Option<Offset> {
    if next >= partition.end {
        return None;
    }
    let mut wanted = None;
    log.visit(id, next, view.group, partition.first_segment, &mut |_, batch| {
        wanted = Some(batch.base_offset.max(next));
        false
    })
    .ok()?;
    wanted
}
