//! Reading without a group: ranges of offsets, and one message with the progress of every group.

use crate::model::{
    AckTarget, BatchSlice, Error, ErrorCode, FetchReply, FetchRequest, MessageProgress, MessageView, Now, PRIMARY_GROUP,
    StoredMessage,
};
use crate::record::{Offset, PartitionId, derived_id};
use crate::storage::log::LogError;

use super::acknowledge::find_offset;
use super::cache::BatchCache;
use super::delivery::OffsetSet;
use super::group::{Group, PRIMARY, Slot};
use super::pop::group_view;
use super::queue::Queue;
use super::read::{count_taken, open_batch};
use super::{Engine, Result};

/// Reads a range of offsets.
pub(super) fn fetch(queue: &Queue, _cache: &BatchCache, request: &FetchRequest) -> Result<FetchReply> {
    let (id, start, end, hint) = {
        let state = queue.state();
        let id = state.require_partition(&request.partition)?;
        let found = state.partitions.get(id).map(|partition| (partition.start, partition.end, partition.first_segment));
        let (start, end, hint) = found.unwrap_or_default();
        (id, start, end, hint)
    };
    if request.from < start {
        return Err(removed(request.from, start, &request.partition));
    }
    if request.from > end {
        let text = format!("offset {} lies beyond the end {end} of partition {:?}", request.from, request.partition);
        return Err(Error::new(ErrorCode::BeyondEnd, text));
    }
    let to = request.to.unwrap_or(end).min(end);
    let mut reply = FetchReply {
        incarnation: queue.incarnation,
        partition_id: id,
        start,
        end,
        next: to.max(request.from),
        batches: Vec::new(),
    };
    let (mut count, mut bytes) = (0u64, 0usize);
    let (mut expected, mut previous) = (request.from, crate::format::lsn(hint, 0));
    let (mut failure, mut is_cut) = (None, false);
    let start_now = || queue.state().partitions.get(id).map_or(0, |partition| partition.start);
    let visited = queue.log.visit(id, request.from, None, hint, &mut |segment, batch| {
        let is_full =
            count >= u64::from(request.messages_max) || (count > 0 && bytes + batch.length as usize > request.bytes_max as usize);
        let at = segment.lsn(batch.position);
        // Retention may have gone on since the start was looked at: what it took is told, and not skipped.
        let is_missing = expected < batch.base_offset.min(to);
        if is_missing && (expected < start_now() || queue.log.has_damage_between(previous, at).unwrap_or(false)) {
            failure = Some((expected, corrupt(expected, batch.base_offset, &request.partition)));
            return false;
        }
        if batch.base_offset >= to {
            expected = to;
            return false;
        }
        if is_full {
            reply.next = expected;
            is_cut = true;
            return false;
        }
        match segment.batch(&batch) {
            Ok(stored) => {
                count += u64::from(batch.count);
                bytes += stored.len();
                reply.batches.push(BatchSlice::Whole(stored));
            }
            Err(LogError::Damaged { .. }) => {
                failure = Some((batch.base_offset, corrupt(batch.base_offset, batch.next_offset(), &request.partition)));
                return false;
            }
            Err(LogError::Removed { .. }) => {
                let end = start_now().max(batch.next_offset());
                failure = Some((batch.base_offset, removed(batch.base_offset, end, &request.partition)));
                return false;
            }
            Err(error) => {
                failure = Some((batch.base_offset, error.into()));
                return false;
            }
        }
        expected = batch.next_offset();
        previous = at;
        true
    });
    if let Err(error) = visited {
        failure = Some((expected, error.into()));
    }
    let is_missing_at_end = failure.is_none() && !is_cut && expected < to;
    if is_missing_at_end && (expected < start_now() || queue.log.has_damage_between(previous, queue.log.end())?) {
        failure = Some((expected, corrupt(expected, to, &request.partition)));
    }
    if let Some((at, error)) = failure {
        if reply.batches.is_empty() {
            let start = start_now();
            return Err(if at < start { removed(at, start, &request.partition) } else { error });
        }
        reply.next = at;
    }
    reply.next = reply.next.max(request.from);
    Ok(reply)
}

fn removed(first: Offset, end: Offset, partition: &str) -> Error {
    Error::new(ErrorCode::RangeRemoved, format!("offsets [{first}, {end}) of partition {partition:?} were removed"))
}

fn corrupt(first: Offset, end: Offset, partition: &str) -> Error {
    Error::new(ErrorCode::Corrupt, format!("offsets [{first}, {end}) of partition {partition:?} are damaged"))
}

impl Engine {
    /// One message by offset or transaction id, with the progress of every group.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`, `UnknownPartition`, `UnknownMessage`, `RangeRemoved`, `Corrupt`.
    pub fn message(&self, queue: &str, partition: PartitionId, target: &AckTarget, now: Now) -> Result<MessageView> {
        let queue = self.find_queue(queue)?;
        let unknown = || {
            let what = match target {
                AckTarget::Offset(offset) => format!("offset {offset}"),
                AckTarget::TransactionId(id) => format!("transaction id {id:?}"),
            };
            Error::new(ErrorCode::UnknownMessage, format!("no message has {what}"))
        };
        let offset = match target {
            AckTarget::Offset(offset) => *offset,
            AckTarget::TransactionId(id) => find_offset(&queue, partition, id)?.ok_or_else(unknown)?,
        };
        let (name, hint) = {
            let state = queue.state();
            let Some(found) = state.partitions.get(partition) else {
                let text = format!("queue {:?} has no partition number {partition}", queue.name);
                return Err(Error::new(ErrorCode::UnknownPartition, text));
            };
            if offset < found.start {
                let text = format!("offsets [{offset}, {}) were removed", found.start);
                return Err(Error::new(ErrorCode::RangeRemoved, text));
            }
            if offset >= found.end {
                return Err(unknown());
            }
            (found.name().to_owned(), found.first_segment)
        };
        let message = self.read_message(&queue, partition, offset, hint)?.ok_or_else(unknown)?;
        let groups = self.progress_of(&queue, partition, offset, hint, now)?;
        let transaction_id = message.transaction_id.clone().unwrap_or_else(|| derived_id(queue.incarnation, partition, offset));
        let is_dead = queue.state().dead_letters.of_message(partition, offset).is_some();
        let status = status_of(&groups, is_dead);
        Ok(MessageView {
            queue: queue.name.clone(),
            partition: name,
            partition_id: partition,
            message,
            transaction_id,
            status,
            groups,
        })
    }

    fn read_message(&self, queue: &Queue, partition: PartitionId, offset: Offset, hint: u32) -> Result<Option<StoredMessage>> {
        let Some((segment, batch)) = queue.log.find(partition, offset, hint)? else { return Ok(None) };
        let Some(index) = offset.checked_sub(batch.base_offset).and_then(|index| u32::try_from(index).ok()) else {
            return Ok(None);
        };
        let open = open_batch(&queue.log, &self.shared.cache, &segment, &batch)?;
        Ok(open.messages(|at| at == index)?.pop())
    }

    fn progress_of(
        &self,
        queue: &Queue,
        partition: PartitionId,
        offset: Offset,
        hint: u32,
        now: Now,
    ) -> Result<Vec<MessageProgress>> {
        let views: Vec<_> = {
            let state = queue.state();
            state
                .groups
                .values()
                .filter(|group| group.record.id != PRIMARY || group.record.start.is_some())
                .filter_map(|group| {
                    let known = state.partitions.get(partition)?;
                    let next = group.next(partition, known, &queue.log);
                    let is_past = offset < next || is_done(group, partition, offset);
                    Some((group.info(&queue.name), group_view(group), is_past, lease_end(group, partition, offset, now)))
                })
                .collect()
        };
        views
            .into_iter()
            .map(|(info, view, is_past, lease_expires_at_us)| {
                let range = (offset, offset + 1);
                let is_taken =
                    count_taken(&queue.log, &self.shared.cache, partition, &view, range, &OffsetSet::default(), hint)? > 0;
                let is_consumed = is_past || !is_taken;
                Ok(MessageProgress { name: info.name, is_consumed, is_taken, lease_expires_at_us })
            })
            .collect()
    }
}

fn is_done(group: &Group, partition: PartitionId, offset: Offset) -> bool {
    match group.slot(partition) {
        Some(Slot::Active(active)) => active.delivery.visible().is_done(offset),
        _ => false,
    }
}

/// When the lease that holds the message ends, by the wall clock.
fn lease_end(group: &Group, partition: PartitionId, offset: Offset, now: Now) -> Option<u64> {
    match group.slot(partition) {
        Some(Slot::Active(active)) => active
            .delivery
            .lease_of(offset, now)
            .map(|lease| now.wall_us.saturating_add(lease.until_us.saturating_sub(now.steady_us))),
        _ => None,
    }
}

/// Completed only when every named group has passed the message; the primary group counts only where there is no named one.
fn status_of(groups: &[MessageProgress], is_dead: bool) -> &'static str {
    let has_named = groups.iter().any(|group| group.name != PRIMARY_GROUP);
    let mut counted = groups.iter().filter(|group| !has_named || group.name != PRIMARY_GROUP).peekable();
    if is_dead {
        return "dead_letter";
    }
    let is_completed = counted.peek().is_some() && counted.all(|group| group.is_consumed);
    if is_completed {
        "completed"
    } else if groups.iter().any(|group| group.lease_expires_at_us.is_some()) {
        "processing"
    } else {
        "pending"
    }
}
