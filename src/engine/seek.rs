//! Seeking: moving a group's cursors, durably, with a preview that moves nothing.

use crate::model::{Error, ErrorCode, Now, SeekPreview, SeekRequest, SeekTarget};
use crate::record::{Offset, PartitionId};

use super::group::{Group, first_at_or_after};
use super::partition::Partition;
use super::queue::Queue;
use super::stage::Stage;
use super::{Engine, Result};

impl Engine {
    /// Moves a group's cursors in one partition or in all of a queue: ends leases, resets counts, wakes waiting pops; acknowledgements
    /// of before are refused. Durable when it returns. With `is_preview` it only says what would move.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`, `UnknownGroup`, `UnknownPartition`; `BeyondEnd` or `RangeRemoved` for an offset outside a partition, with
    /// nothing moved.
    pub fn seek(&self, request: &SeekRequest, now: Now) -> Result<Vec<SeekPreview>> {
        let queue = self.find_queue(&request.queue)?;
        if request.is_preview {
            return preview(&queue, request);
        }
        let request = request.clone();
        let moved = queue.run(now, move |stage| stage.seek(&request))?;
        Ok(moved)
    }
}

/// The partitions that a seek concerns, with where each cursor is and where it goes.
fn preview(queue: &Queue, request: &SeekRequest) -> Result<Vec<SeekPreview>> {
    let state = queue.state();
    let id = state.require_group(request.group.as_deref())?;
    let group = state.groups.get(&id).ok_or_else(|| Error::new(ErrorCode::UnknownGroup, "the group is gone"))?;
    let only = request.partition.as_deref().map(|name| state.require_partition(name)).transpose()?;
    let mut previews = Vec::new();
    for (id, partition) in state.partitions.iter_from(0) {
        if only.is_none_or(|only| only == id) {
            previews.push(one(queue, group, id, partition, request.target)?);
        }
    }
    Ok(previews)
}

fn one(queue: &Queue, group: &Group, id: PartitionId, partition: &Partition, target: SeekTarget) -> Result<SeekPreview> {
    let before = group.next(id, partition, &queue.log);
    let after = resolve(&queue.log, id, partition, before, target)?;
    let (start, end) = (partition.start, partition.end);
    Ok(SeekPreview { partition: partition.name().to_owned(), before, after, start, end })
}

fn resolve(
    log: &crate::storage::log::Log,
    id: PartitionId,
    partition: &Partition,
    before: Offset,
    target: SeekTarget,
) -> Result<Offset> {
    let (start, end) = (partition.start, partition.end);
    match target {
        SeekTarget::Beginning => Ok(start),
        SeekTarget::End => Ok(end),
        SeekTarget::Time(time_us) => Ok(first_at_or_after(log, id, partition, time_us)),
        SeekTarget::Shift(by) => Ok(before.saturating_add_signed(by).clamp(start, end)),
        SeekTarget::Offset(offset) if offset > end => {
            let text = format!("offset {offset} lies beyond the end {end} of partition {:?}", partition.name());
            Err(Error::new(ErrorCode::BeyondEnd, text))
        }
        SeekTarget::Offset(offset) if offset < start => {
            let text = format!("offsets [{offset}, {start}) of partition {:?} were removed", partition.name());
            Err(Error::new(ErrorCode::RangeRemoved, text))
        }
        SeekTarget::Offset(offset) => Ok(offset),
    }
}

impl Stage<'_> {
    fn seek(&mut self, request: &SeekRequest) -> Result<Vec<SeekPreview>> {
        let group_id = self.state.require_group(request.group.as_deref())?;
        let only = request.partition.as_deref().map(|name| self.state.require_partition(name)).transpose()?;
        let state = &mut *self.state;
        let Some(group) = state.groups.get_mut(&group_id) else {
            return Err(Error::new(ErrorCode::UnknownGroup, "the group is gone"));
        };
        // Where every cursor goes is known before the first one moves.
        let mut moves = Vec::new();
        for (id, partition) in state.partitions.iter_from(0) {
            if only.is_none_or(|only| only == id) {
                let before = group.next(id, partition, self.log);
                moves.push((id, before, resolve(self.log, id, partition, before, request.target)?));
            }
        }
        let mut previews = Vec::with_capacity(moves.len());
        for (id, before, after) in moves {
            let Some(partition) = state.partitions.get(id) else { continue };
            let (start, end) = (partition.start, partition.end);
            group.release_hold(id);
            if let Ok(active) = group.active_mut(id, partition, self.log) {
                let live = active.delivery.leases(self.now).map(|lease| (lease.token, group_id, id, ErrorCode::LeaseLost));
                self.plan.lost_claims.extend(live);
                active.delivery.seek(after);
                active.hint = 0;
                self.plan.touched.push((group_id, id));
                self.plan.freed.push((group_id, id));
            }
            previews.push(SeekPreview { partition: partition.name().to_owned(), before, after, start, end });
        }
        Ok(previews)
    }
}
