//! Acknowledgements: from a request to decisions of the state machine, dead letters included.

use crate::format::control::ControlOp;
use crate::model::{AckItem, AckOutcome, AckReply, AckRequest, AckTarget, Error, ErrorCode};
use crate::record::{Offset, PartitionId, parse_derived_id};

use super::delivery::{AckDecision, AckLimits, DeadLetterStep, LeaseToken, Verdict};
use super::queue::Queue;
use super::records::DeadLetterRecord;
use super::stage::Stage;

/// Bytes of a reason that are kept with a message.
const REASON_BYTES_MAX: usize = 4096;

/// An acknowledgement whose messages are known by offset.
#[derive(Debug)]
pub(super) struct ResolvedAck {
    pub partition: PartitionId,
    pub group: Option<String>,
    pub lease: Lease,
    pub items: Vec<ResolvedItem>,
}

/// Which lease an acknowledgement names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lease {
    /// None: unfenced.
    None,
    /// One of this server's.
    Token(LeaseToken),
    /// Something that never was a lease.
    Foreign,
}

/// One item, its offset known or not to be found.
#[derive(Debug)]
pub(super) struct ResolvedItem {
    pub offset: Option<Offset>,
    pub item: AckItem,
}

impl ResolvedAck {
    /// Looks up the offsets of transaction ids.
    pub fn resolve(queue: &Queue, request: AckRequest) -> Result<Self, Error> {
        let lease = match request.lease_id.as_str() {
            "" => Lease::None,
            text => LeaseToken::parse(text).map_or(Lease::Foreign, Lease::Token),
        };
        let mut items = Vec::with_capacity(request.items.len());
        for item in request.items {
            let offset = match &item.target {
                AckTarget::Offset(offset) => Some(*offset),
                AckTarget::TransactionId(id) => find_offset(queue, request.partition_id, id)?,
            };
            items.push(ResolvedItem { offset, item });
        }
        Ok(Self { partition: request.partition_id, group: request.group, lease, items })
    }

    /// Bytes that it holds while it waits.
    pub fn bytes(&self) -> usize {
        64 + self.items.iter().map(|item| 64 + item.item.reason.len()).sum::<usize>()
    }
}

/// The offset of a message by its transaction id, the producer's own or the derived one.
pub(super) fn find_offset(queue: &Queue, partition: PartitionId, id: &str) -> Result<Option<Offset>, Error> {
    if let Some((derived, offset)) = parse_derived_id(queue.incarnation, id) {
        return Ok((derived == partition).then_some(offset));
    }
    Ok(queue.log.find_id(partition, id, 0)?)
}

impl Stage<'_> {
    /// Decides an acknowledgement. Only what concerns all of it is an error; each item has its own outcome.
    pub fn ack(&mut self, ack: &ResolvedAck) -> Result<AckReply, Error> {
        let group_id = self.state.require_group(ack.group.as_deref())?;
        let settings = std::sync::Arc::clone(&self.state.settings);
        let partition = self.state.partitions.get(ack.partition).ok_or_else(|| {
            let text = format!("queue {:?} has no partition number {}", self.state.name, ack.partition);
            Error::new(ErrorCode::UnknownPartition, text)
        })?;
        let Some(group) = self.state.groups.get_mut(&group_id) else {
            return Err(Error::new(ErrorCode::UnknownGroup, "the group is gone"));
        };
        let failures_max = match group.record.delivery_limit {
            Some(limit) => limit,
            None => settings.retry_limit.saturating_add(1),
        };
        let is_dead_letter = settings.dead_letter_queue || settings.dlq_after_max_retries;
        let limits = AckLimits { failures_max, is_dead_letter };
        let end = partition.end;
        let group_name = group.name().to_owned();
        let start = partition.start;
        let held = |reason: String| Error::new(ErrorCode::Corrupt, format!("cursor is held: {reason}"));
        // What retention took before the group read it is told at the next claim, also if this acknowledgement passes it.
        let lost = group.active_mut(ack.partition, partition, self.log).map_err(held)?.delivery.skip_to(start);
        group.note_lost(ack.partition, lost);
        let active = group.active_mut(ack.partition, partition, self.log).map_err(held)?;
        let verdicts: Vec<Verdict<'_>> = ack
            .items
            .iter()
            .filter_map(|item| {
                let reason = clip(&item.item.reason);
                Some(Verdict { offset: item.offset?, verb: item.item.verb, reason, delay_ms: item.item.delay_ms })
            })
            .collect();
        let decision = match ack.lease {
            Lease::Foreign => {
                let next = active.delivery.visible().next();
                return Ok(self.foreign(ack, next));
            }
            Lease::None => active.delivery.ack(None, &verdicts, limits, end, self.now),
            Lease::Token(token) => active.delivery.ack(Some(token), &verdicts, limits, end, self.now),
        };
        // Until it has forgotten this call the cursor is not made small.
        self.plan.timers.extend(active.delivery.remembers_until().map(|time| (time, group_id, ack.partition)));
        group.acked += decision.consumed;
        self.state.stats.acked += decision.consumed;
        self.plan.touched.push((group_id, ack.partition));
        if let (true, Lease::Token(token)) = (decision.is_lease_released, ack.lease) {
            let was_over = decision.outcomes.iter().all(|outcome| outcome.refused.is_some());
            if was_over {
                // Nothing of it was acknowledged, and no look at the clock has told so yet.
                self.plan.lost_claims.push((token, group_id, ack.partition, ErrorCode::LeaseLost));
            } else {
                self.plan.ended.push((token, group_id, ack.partition));
            }
        }
        if let Some(time) = decision.claimable_at_us {
            if time <= self.now.steady_us {
                self.plan.freed.push((group_id, ack.partition));
            } else {
                self.plan.timers.push((time, group_id, ack.partition));
            }
        } else if decision.is_lease_released {
            self.plan.freed.push((group_id, ack.partition));
        }
        for step in &decision.dead_letters {
            self.dead_letter(ack.partition, &group_name, step);
        }
        Ok(self.reply(ack, decision))
    }

    fn foreign(&self, ack: &ResolvedAck, next: Offset) -> AckReply {
        let lost = Error::new(ErrorCode::LeaseLost, "invalid or expired lease");
        let outcome = AckOutcome { refused: Some(lost), is_noop: false, is_dead_letter: false };
        AckReply { promise: self.promise, next, is_lease_released: true, outcomes: vec![outcome; ack.items.len()] }
    }

    fn reply(&self, ack: &ResolvedAck, decision: AckDecision) -> AckReply {
        let mut decided = decision.outcomes.into_iter();
        let outcomes = ack
            .items
            .iter()
            .map(|item| match (item.offset, &item.item.target) {
                (Some(_), _) => decided.next().unwrap_or(AckOutcome { refused: None, is_noop: true, is_dead_letter: false }),
                (None, target) => {
                    let id = if let AckTarget::TransactionId(id) = target { id.as_str() } else { "" };
                    let error = Error::new(ErrorCode::UnknownMessage, format!("no message has the transaction id {id:?}"));
                    AckOutcome { refused: Some(error), is_noop: false, is_dead_letter: false }
                }
            })
            .collect();
        AckReply { promise: self.promise, next: decision.next, is_lease_released: decision.is_lease_released, outcomes }
    }

    /// Copies a message to the dead letters, in the same record as the cursor's step. A message that cannot be read any more is filed
    /// without its payload, and says so.
    fn dead_letter(&mut self, partition: PartitionId, group: &str, step: &DeadLetterStep) {
        let (name, hint) = match self.state.partitions.get(partition) {
            Some(found) => (found.name().to_owned(), found.first_segment),
            None => (String::new(), 0),
        };
        let found = self.log.find(partition, step.offset, hint).ok().flatten();
        let message = found.and_then(|(segment, batch)| {
            let open = segment.stored_batch(&batch).ok()?.open().ok()?;
            let index = u32::try_from(step.offset.checked_sub(batch.base_offset)?).ok()?;
            open.messages(|at| at == index).ok()?.pop()
        });
        let mut reason = step.reason.clone();
        if message.is_none() {
            reason.push_str(" (the message could not be read any more)");
        }
        let message = message.unwrap_or_else(|| crate::model::StoredMessage {
            offset: step.offset,
            created_at_us: 0,
            transaction_id: None,
            attributes: crate::record::Attributes::new(),
            payload: bytes::Bytes::new(),
            delivery_count: 0,
        });
        let record = DeadLetterRecord {
            partition,
            partition_name: name,
            offset: step.offset,
            group: group.to_owned(),
            reason,
            delivery_count: step.failures.max(1),
            created_at_us: message.created_at_us,
            failed_at_us: self.now.wall_us,
            transaction_id: message.transaction_id,
            attributes: message.attributes,
            payload: message.payload,
        };
        let id = self.state.next_dead_letter;
        self.state.next_dead_letter += 1;
        self.plan.operations.push(ControlOp::DeadLetter { id, state: record.encode() });
    }
}

fn clip(reason: &str) -> &str {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason.get(..end).unwrap_or_default()
}
