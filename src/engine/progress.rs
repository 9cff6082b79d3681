//! Reading progress: the lag of groups and cursors, which is what is [`Unread`] up to the end of a partition.

use std::sync::Arc;

use crate::model::{CursorProgress, Error, ErrorCode, GroupProgress, Now};
use crate::record::{GroupId, Offset, PartitionId};

use super::group::{Group, PRIMARY, Slot};
use super::pop::group_view;
use super::queue::Queue;
use super::read::View;
use super::unread::Unread;
use super::{Engine, Result};

/// What is looked at of one cursor while the state is held.
struct Glance {
    id: PartitionId,
    name: String,
    next: Offset,
    start: Offset,
    end: Offset,
    unread: Unread,
    in_flight: u64,
    lease: Option<(u64, String)>,
    total_consumed: u64,
    last_consumed_at_us: Option<u64>,
}

impl Engine {
    /// Every group of a queue with its lag.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`, `Io`.
    pub fn progress(&self, queue: &str, now: Now) -> Result<Vec<GroupProgress>> {
        let queue = self.find_queue(queue)?;
        let ids: Vec<_> = queue.state().groups.keys().copied().collect();
        // One that was removed meanwhile is left out.
        ids.into_iter().filter_map(|id| self.progress_of_group(&queue, id, now).transpose()).collect()
    }

    /// One group of a queue with its lag.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`, `UnknownGroup`, `Io`.
    pub fn group_progress(&self, queue: &str, group: &str, now: Now) -> Result<GroupProgress> {
        let queue = self.find_queue(queue)?;
        let id = queue.state().require_group(Some(group))?;
        let found = self.progress_of_group(&queue, id, now)?;
        found.ok_or_else(|| Error::new(ErrorCode::UnknownGroup, format!("queue {:?} has no group {group:?}", queue.name)))
    }

    fn progress_of_group(&self, queue: &Arc<Queue>, id: GroupId, now: Now) -> Result<Option<GroupProgress>> {
        let mut idle = 0;
        let (info, view, is_unfiltered, glances) = {
            let state = queue.state();
            let Some(group) = state.groups.get(&id) else { return Ok(None) };
            if id == PRIMARY && group.record.start.is_none() {
                // Nobody has read as the primary group: it holds nothing back and is listed without cursors.
                let group = group.info(&queue.name);
                let progress = GroupProgress { group, cursors: 0, partitions_with_lag: 0, lag: 0, lag_time_us: 0, leases: 0 };
                return Ok(Some(progress));
            }
            // A queue may have a million partitions, most of them read to their end: those are counted and not looked at.
            let busy = state.partitions.iter_from(0).filter(|&(id, found)| {
                let is_idle = !matches!(group.slot(id), Some(Slot::Active(_)))
                    && group.next(id, found, &queue.log).max(found.start) >= found.end;
                idle += u64::from(is_idle);
                !is_idle
            });
            let glances: Vec<_> = busy.map(|(id, found)| glance(&state, group, id, found, queue, now)).collect();
            (group.info(&queue.name), group_view(group), group.is_unfiltered(), glances)
        };
        let mut progress =
            GroupProgress { group: info, cursors: idle, partitions_with_lag: 0, lag: 0, lag_time_us: 0, leases: 0 };
        for found in glances {
            progress.cursors += 1;
            progress.leases += u64::from(found.lease.is_some());
            let lag = found.unread.count(&queue.log, &self.shared.cache, &view, is_unfiltered)?;
            if lag > 0 {
                progress.partitions_with_lag += 1;
                progress.lag += lag;
                let oldest = oldest_unread(queue, &view, &found.unread)?;
                progress.lag_time_us = progress.lag_time_us.max(oldest.map_or(0, |at| now.wall_us.saturating_sub(at)));
            }
        }
        Ok(Some(progress))
    }

    /// Cursors of a group in partitions with a number of at least `from`.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`, `UnknownGroup`, `Io`.
    pub fn cursors(&self, queue: &str, group: &str, from: PartitionId, limit: usize, now: Now) -> Result<Vec<CursorProgress>> {
        let queue = self.find_queue(queue)?;
        let (view, is_unfiltered, glances) = {
            let state = queue.state();
            let id = state.require_group(Some(group))?;
            let Some(group) = state.groups.get(&id) else { return Ok(Vec::new()) };
            let partitions = state.partitions.iter_from(from).take(limit);
            let glances: Vec<_> = partitions.map(|(id, found)| glance(&state, group, id, found, &queue, now)).collect();
            (group_view(group), group.is_unfiltered(), glances)
        };
        glances
            .into_iter()
            .map(|found| {
                let lag = found.unread.count(&queue.log, &self.shared.cache, &view, is_unfiltered)?;
                let oldest_at_us = if lag > 0 { oldest_unread(&queue, &view, &found.unread)? } else { None };
                Ok(CursorProgress {
                    partition: found.name,
                    partition_id: found.id,
                    next: found.next,
                    start: found.start,
                    end: found.end,
                    lag,
                    lag_time_us: oldest_at_us.map_or(0, |at| now.wall_us.saturating_sub(at)),
                    oldest_at_us,
                    in_flight: found.in_flight,
                    lease_expires_at_us: found.lease.as_ref().map(|lease| lease.0),
                    lease_id: found.lease.map(|lease| lease.1).unwrap_or_default(),
                    total_consumed: found.total_consumed,
                    last_consumed_at_us: found.last_consumed_at_us,
                })
            })
            .collect()
    }
}

fn glance(
    state: &super::state::State,
    group: &Group,
    id: PartitionId,
    partition: &super::partition::Partition,
    queue: &Arc<Queue>,
    now: Now,
) -> Glance {
    let mut found = Glance {
        id,
        name: partition.name().to_owned(),
        next: group.next(id, partition, &queue.log),
        start: partition.start,
        end: partition.end,
        unread: Unread::of(state, group, id, partition, &queue.log, partition.end),
        in_flight: 0,
        lease: None,
        total_consumed: 0,
        last_consumed_at_us: None,
    };
    match group.slot(id) {
        Some(Slot::Plain { cursor, .. }) => {
            found.total_consumed = cursor.total_consumed;
            found.last_consumed_at_us = (cursor.last_consumed_at_us > 0).then_some(cursor.last_consumed_at_us);
        }
        Some(Slot::Active(active)) => {
            let visible = active.delivery.visible();
            found.in_flight = active.delivery.in_flight(now);
            found.total_consumed = visible.total_consumed();
            found.last_consumed_at_us = visible.last_consumed_at_us();
            found.lease = active.delivery.leases(now).next().map(|lease| {
                let until = now.wall_us.saturating_add(lease.until_us.saturating_sub(now.steady_us));
                (until, lease.token.to_string())
            });
        }
        _ => {}
    }
    found
}

/// When the oldest message that the group still wants was stored.
fn oldest_unread(queue: &Queue, view: &View, unread: &Unread) -> Result<Option<u64>> {
    let mut oldest = None;
    queue.log.visit(unread.partition, unread.from, view.group, unread.hint, &mut |_, batch| {
        oldest = Some(batch.created_at_us);
        false
    })?;
    Ok(oldest)
}
