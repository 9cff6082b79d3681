//! Dead letters and traces: listing, replay, removal.

use crate::format::control::{ControlOp, key};
use crate::model::{
    DeadLetter, DeadLetterQuery, Error, ErrorCode, Now, PushItem, PushReply, PushRequest, PushResult, TraceEvent,
};
use crate::record::{Message, Offset, PartitionId, derived_id};
use crate::storage::table::TableError;

use super::acknowledge::find_offset;
use super::queue::Queue;
use super::records::{DeadLetterRecord, encode_trace};
use super::state::halves;
use super::{Engine, Result};

/// The largest trace.
const TRACE_BYTES_MAX: usize = 64 << 10;

impl Engine {
    /// Dead letters, newest first, with how many there are in all that fit the query. Reads those that it returns.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`, `Corrupt` for one that is not as it was stored, `Io`.
    pub fn dead_letters(&self, query: &DeadLetterQuery) -> Result<(Vec<DeadLetter>, u64)> {
        let queues = match &query.queue {
            Some(name) => vec![self.find_queue(name)?],
            None => self.all_queues(),
        };
        let group = query.group.as_deref();
        let wanted = (query.skip as usize).saturating_add(query.limit as usize);
        let mut found = Vec::new();
        let mut total = 0;
        for queue in &queues {
            let state = queue.state();
            total += state.dead_letters.count(group);
            found.extend(state.dead_letters.newest_first(group).take(wanted).map(|(at, id)| (at, id, queue)));
        }
        found.sort_by_key(|&(at, id, _)| std::cmp::Reverse((at, id)));
        let mut page = Vec::new();
        for (_, id, queue) in found.into_iter().skip(query.skip as usize).take(query.limit as usize) {
            // One that was removed meanwhile is left out.
            page.extend(read_letter(queue, id)?.map(|record| show(queue, id, record)));
        }
        Ok((page, total))
    }

    /// One dead letter by its number.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`, `UnknownDeadLetter`, `Corrupt` if it is not as it was stored, `Io`.
    pub fn dead_letter(&self, queue: &str, id: u64) -> Result<DeadLetter> {
        let queue = self.find_queue(queue)?;
        let record = read_letter(&queue, id)?.ok_or_else(|| unknown_letter(&queue, id))?;
        Ok(show(&queue, id, record))
    }

    /// The newest dead letter that was the message of this offset.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`, `Corrupt` if it is not as it was stored, `Io`.
    pub fn dead_letter_of(&self, queue: &str, partition: PartitionId, offset: Offset) -> Result<Option<DeadLetter>> {
        let queue = self.find_queue(queue)?;
        let Some(id) = queue.state().dead_letters.of_message(partition, offset) else { return Ok(None) };
        Ok(read_letter(&queue, id)?.map(|record| show(&queue, id, record)))
    }

    /// As [`Engine::dead_letter_of`], of the message with this id, the producer's own or the derived one, if the log still has it.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn dead_letter_of_id(&self, queue: &str, partition: PartitionId, id: &str) -> Result<Option<DeadLetter>> {
        match find_offset(&*self.find_queue(queue)?, partition, id)? {
            Some(offset) => self.dead_letter_of(queue, partition, offset),
            None => Ok(None),
        }
    }

    /// Pushes a dead letter back into its partition, with the transaction id `dlq:` and its number (so that doing it twice stores it
    /// once), and removes it: both in one commit. If no enabled group takes the message it is not stored, and the letter stays.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`, `UnknownDeadLetter`, or that the commit failed.
    pub fn replay_dead_letter(&self, queue: &str, id: u64, now: Now) -> Result<PushReply> {
        let queue = self.find_queue(queue)?;
        let record = read_letter(&queue, id)?.ok_or_else(|| unknown_letter(&queue, id))?;
        let message =
            Message { transaction_id: Some(format!("dlq:{id}")), attributes: record.attributes, payload: record.payload };
        let request = PushRequest {
            queue: queue.name.clone(),
            partition: record.partition_name,
            items: PushItem::Messages(vec![message]),
            producer: None,
        };
        let compression = queue.state().settings.compression;
        // Its attributes were accepted when it was pushed, the gateway's marks among them.
        let limits = super::PushLimits { may_mark: true, ..self.push_limits() };
        let prepared = super::prepare(request, &queue.filters(), compression, limits)?;
        queue.run(now, move |stage| {
            if !stage.state.dead_letters.contains(id) {
                return Err(Error::new(ErrorCode::UnknownDeadLetter, format!("dead letter {id} is gone")));
            }
            let reply = stage.push(prepared)?;
            // A message that no group takes now is not stored: it must not go from here too.
            if reply.results.get(0) != Some(PushResult::Dropped) {
                stage.plan.operations.push(ControlOp::DeadLetterRemoved(id));
            }
            Ok(reply)
        })
    }

    /// Removes a dead letter; whether there was one. Durable when it returns.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`, or that the commit failed.
    pub fn delete_dead_letter(&self, queue: &str, id: u64, now: Now) -> Result<bool> {
        let queue = self.find_queue(queue)?;
        queue.run(now, move |stage| {
            let exists = stage.state.dead_letters.contains(id);
            if exists {
                stage.plan.operations.push(ControlOp::DeadLetterRemoved(id));
            }
            Ok(exists)
        })
    }

    /// Stores a remark on a message's way and returns its number. A queue keeps the newest ten thousand. Durable when it returns.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`, `TooLarge`, or that the commit failed.
    pub fn trace(&self, queue: &str, mut event: TraceEvent, now: Now) -> Result<u64> {
        let queue = self.find_queue(queue)?;
        event.created_at_us = now.wall_us;
        let state = encode_trace(&event);
        if state.len() > TRACE_BYTES_MAX {
            let text = format!("trace has {} bytes, at most {TRACE_BYTES_MAX} are allowed", state.len());
            return Err(Error::new(ErrorCode::TooLarge, text));
        }
        queue.run(now, move |stage| {
            let id = stage.state.next_trace;
            stage.plan.operations.push(ControlOp::Trace { id, state });
            Ok(id)
        })
    }

    /// The remarks on one message, oldest first.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`.
    pub fn traces_of_message(&self, queue: &str, partition: PartitionId, transaction_id: &str) -> Result<Vec<TraceEvent>> {
        let queue = self.find_queue(queue)?;
        let state = queue.state();
        Ok(state.traces.of_message(partition, transaction_id).cloned().collect())
    }

    /// Remarks under a name over all queues, newest first: (queue, remark).
    pub fn traces_by_name(&self, name: &str, limit: usize) -> Vec<(String, TraceEvent)> {
        let mut found = Vec::new();
        for queue in self.all_queues() {
            found.extend(queue.state().traces.named(name).take(limit).map(|event| (queue.name.clone(), event.clone())));
        }
        found.sort_by_key(|(_, event)| std::cmp::Reverse(event.created_at_us));
        found.truncate(limit);
        found
    }

    /// Remarks under a name in one queue, newest first.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`.
    pub fn traces_by_name_in(&self, queue: &str, name: &str, skip: usize, limit: usize) -> Result<Vec<TraceEvent>> {
        let queue = self.find_queue(queue)?;
        let state = queue.state();
        Ok(state.traces.named(name).skip(skip).take(limit).cloned().collect())
    }

    /// The names that remarks can be found by, with how many each has, over all queues.
    pub fn trace_names(&self) -> Vec<(String, u64)> {
        let mut names = std::collections::BTreeMap::new();
        for queue in self.all_queues() {
            for (name, count) in queue.state().traces.names() {
                *names.entry(name.to_owned()).or_insert(0u64) += count;
            }
        }
        names.into_iter().collect()
    }
}

fn unknown_letter(queue: &Queue, id: u64) -> Error {
    Error::new(ErrorCode::UnknownDeadLetter, format!("queue {:?} has no dead letter {id}", queue.name))
}

/// Reads a dead letter: it waits for the next checkpoint, or lies in the last one. `None` if there is none of this number.
fn read_letter(queue: &Queue, id: u64) -> Result<Option<DeadLetterRecord>> {
    // Held from the look into the state to the end of the read, so that no checkpoint moves it from one place to the other.
    let checkpointer = queue.checkpointer();
    let key = halves(key::DEAD_LETTER, id);
    let waiting = {
        let state = queue.state();
        if !state.dead_letters.contains(id) {
            return Ok(None);
        }
        state.dirty.get(&key).cloned().flatten()
    };
    let value = match waiting {
        Some(value) => Some(value),
        None => checkpointer.table.value(key).map_err(|error| match error {
            TableError::Damaged { .. } => Error::new(ErrorCode::Corrupt, format!("dead letter {id}: {error}")),
            error => error.into(),
        })?,
    };
    let record = value.and_then(|value| match ControlOp::decode_all(&value).ok()?.pop()? {
        ControlOp::DeadLetter { state, .. } => DeadLetterRecord::decode(&state).ok(),
        _ => None,
    });
    record.map(Some).ok_or_else(|| Error::new(ErrorCode::Corrupt, format!("dead letter {id} is not in the checkpoint")))
}

fn show(queue: &Queue, id: u64, record: DeadLetterRecord) -> DeadLetter {
    let own = record.transaction_id;
    DeadLetter {
        id,
        queue: queue.name.clone(),
        partition: record.partition_name,
        partition_id: record.partition,
        offset: record.offset,
        group: record.group,
        reason: record.reason,
        delivery_count: record.delivery_count,
        created_at_us: record.created_at_us,
        failed_at_us: record.failed_at_us,
        transaction_id: own.unwrap_or_else(|| derived_id(queue.incarnation, record.partition, record.offset)),
        attributes: record.attributes,
        payload: record.payload,
    }
}
