//! Dead letters and traces: listing, replay, removal.

use crate::format::control::ControlOp;
use crate::model::{
    DeadLetter, DeadLetterQuery, Error, ErrorCode, Now, PushItem, PushReply, PushRequest, PushResult, TraceEvent,
};
use crate::record::{Message, PartitionId, derived_id};

use super::queue::Queue;
use super::records::{DeadLetterRecord, encode_trace};
use super::{Engine, Result};

/// The largest trace.
const TRACE_BYTES_MAX: usize = 64 << 10;

impl Engine {
    /// Dead letters, newest first, with how many there are in all that fit the query.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`.
    pub fn dead_letters(&self, query: &DeadLetterQuery) -> Result<(Vec<DeadLetter>, u64)> {
        let queues = match &query.queue {
            Some(name) => vec![self.find_queue(name)?],
            None => self.all_queues(),
        };
        let mut found = Vec::new();
        for queue in queues {
            let state = queue.state();
            let fits =
                state.dead_letters.iter().filter(|(_, record)| query.group.as_ref().is_none_or(|group| *group == record.group));
            found.extend(fits.map(|(&id, record)| show(&queue, id, record)));
        }
        let total = found.len() as u64;
        found.sort_by_key(|letter| std::cmp::Reverse((letter.failed_at_us, letter.id)));
        let page = found.into_iter().skip(query.skip as usize).take(query.limit as usize).collect();
        Ok((page, total))
    }

    /// Pushes a dead letter back into its partition, with the transaction id `dlq:` and its number (so that doing it twice stores it
    /// once), and removes it: both in one commit. If no enabled group takes the message it is not stored, and the letter stays.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`, `UnknownDeadLetter`, or that the commit failed.
    pub fn replay_dead_letter(&self, queue: &str, id: u64, now: Now) -> Result<PushReply> {
        let queue = self.find_queue(queue)?;
        let unknown = || Error::new(ErrorCode::UnknownDeadLetter, format!("queue {:?} has no dead letter {id}", queue.name));
        let record = queue.state().dead_letters.get(&id).cloned().ok_or_else(unknown)?;
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
            if !stage.state.dead_letters.contains_key(&id) {
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
            let exists = stage.state.dead_letters.contains_key(&id);
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
        let of_message = |event: &&TraceEvent| event.partition_id == partition && event.transaction_id == transaction_id;
        Ok(state.traces.values().filter(of_message).cloned().collect())
    }

    /// Remarks under a name over all queues, newest first: (queue, remark).
    pub fn traces_by_name(&self, name: &str, limit: usize) -> Vec<(String, TraceEvent)> {
        let mut found = Vec::new();
        for queue in self.all_queues() {
            let state = queue.state();
            let named = state.traces.values().filter(|event| event.names.iter().any(|other| other == name));
            found.extend(named.map(|event| (queue.name.clone(), event.clone())));
        }
        found.sort_by_key(|(_, event)| std::cmp::Reverse(event.created_at_us));
        found.truncate(limit);
        found
    }

    /// The names that remarks can be found by, with how many each has, over all queues.
    pub fn trace_names(&self) -> Vec<(String, u64)> {
        let mut names = std::collections::BTreeMap::new();
        for queue in self.all_queues() {
            for name in queue.state().traces.values().flat_map(|event| &event.names) {
                *names.entry(name.clone()).or_insert(0u64) += 1;
            }
        }
        names.into_iter().collect()
    }
}

fn show(queue: &Queue, id: u64, record: &DeadLetterRecord) -> DeadLetter {
    DeadLetter {
        id,
        queue: queue.name.clone(),
        partition: record.partition_name.clone(),
        partition_id: record.partition,
        offset: record.offset,
        group: record.group.clone(),
        reason: record.reason.clone(),
        delivery_count: record.delivery_count,
        created_at_us: record.created_at_us,
        failed_at_us: record.failed_at_us,
        transaction_id: record
            .transaction_id
            .clone()
            .unwrap_or_else(|| derived_id(queue.incarnation, record.partition, record.offset)),
        attributes: record.attributes.clone(),
        payload: record.payload.clone(),
    }
}
