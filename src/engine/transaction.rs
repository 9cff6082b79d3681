//! Transactions: pushes and acknowledgements in any queues, all or none.
//!
//! One log decides: that of the first queue pushed to (or acknowledged in). Its records carry everything, in one run that counts
//! together: own pushes and cursors, cursors and dead letters of other queues, and what is pushed into other queues to do it again
//! should the machine stop before they have it. So the usual transaction, push here and acknowledge there, costs one sync.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::codec::{Put, Reader, UnexpectedEnd};
use crate::format::control::ControlOp;
use crate::model::{
    AckReply, AckRequest, Durability, Error, ErrorCode, Now, PackedBatch, Promise, PushItem, PushReply, PushRequest, PushResult,
    PushResults, TransactionReply, TransactionRequest,
};
use crate::record::{Annex, GroupId, Matches, PartitionId, check_name};

use super::acknowledge::ResolvedAck;
use super::delivery::{Delivery, LeaseToken};
use super::filters::FilterSet;
use super::prepare::{Content, Prepared, PushLimits, pack, prepare};
use super::queue::{Committer, CommitterGuard, Queue};
use super::stage::{Plan, Stage};
use super::state::State;
use super::{Engine, Result};

/// What a transaction does in one queue.
struct Part {
    queue: Arc<Queue>,
    pushes: Vec<(usize, Prepared)>,
    acks: Vec<(usize, ResolvedAck)>,
    /// State machines as they were, to put back if the transaction does not happen.
    saved: Vec<(GroupId, PartitionId, Delivery)>,
    plan: Plan,
    /// What is pushed here, for the log of the queue that decides.
    redo: Vec<Vec<u8>>,
}

impl Engine {
    /// Does all pushes and acknowledgements or none, also across a crash at any byte, and returns when it is committed.
    ///
    /// # Errors
    ///
    /// `Duplicate` if a push has a known transaction id, `AckRejected` if an acknowledgement is refused (one below the cursor is not),
    /// `LeaseLost` if a required lease is over; whatever a push or an acknowledgement can fail with. Nothing happened then.
    pub fn transact(&self, request: TransactionRequest, now: Now) -> Result<TransactionReply> {
        self.check_open()?;
        let (push_count, ack_count) = (request.pushes.len(), request.acks.len());
        self.check_names(&request)?;
        let decides = self.deciding_queue(&request, now)?;
        let mut parts = self.parts(request, now)?;
        let mut pushes: Vec<Option<PushReply>> = (0..push_count).map(|_| None).collect();
        let mut acks: Vec<Option<AckReply>> = (0..ack_count).map(|_| None).collect();
        let Some(decides) = decides else {
            return Ok(TransactionReply { pushes: Vec::new(), acks: Vec::new() });
        };
        // In the order of incarnations, so that two transactions never wait for each other.
        let queues: Vec<Arc<Queue>> = parts.values().map(|part| Arc::clone(&part.queue)).collect();
        let lock = || queues.iter().map(|queue| (queue.incarnation, queue.committer())).collect();
        let mut committers: BTreeMap<u64, CommitterGuard<'_>> = lock();
        if committers.get(&decides).is_some_and(|committer| !committer.owed.is_empty()) {
            drop(std::mem::take(&mut committers));
            if let Some(queue) = queues.iter().find(|queue| queue.incarnation == decides) {
                self.finish_owed(queue, now)?;
            }
            committers = lock();
        }
        if queues.iter().any(|queue| queue.is_shut()) {
            return Err(super::closed());
        }
        decide_all(&mut parts, &mut committers, now, &mut pushes, &mut acks)?;
        let transaction = self.next_token().counter;
        let committed = commit_all(&mut parts, &mut committers, decides, (self.shared.start_number << 40) ^ transaction, now);
        if let Err(error) = committed {
            for part in parts.values_mut() {
                let mut state = part.queue.state();
                put_back(&mut part.saved, &mut state);
            }
            return Err(error);
        }
        Ok(TransactionReply { pushes: pushes.into_iter().flatten().collect(), acks: acks.into_iter().flatten().collect() })
    }

    /// Refuses what is out of scope, or has no name for a queue, before a queue is made for anything.
    fn check_names(&self, request: &TransactionRequest) -> Result<()> {
        for push in &request.pushes {
            self.check_scope(&push.queue)?;
            check_name(&push.queue)?;
        }
        request.acks.iter().try_for_each(|ack| self.check_scope(&ack.queue))
    }

    /// The incarnation of the queue whose log decides.
    fn deciding_queue(&self, request: &TransactionRequest, now: Now) -> Result<Option<u64>> {
        if let Some(push) = request.pushes.first() {
            return Ok(Some(self.queue_for_push(&push.queue, now)?.incarnation));
        }
        match request.acks.first() {
            Some(ack) => Ok(Some(self.find_queue(&ack.queue)?.incarnation)),
            None => Ok(None),
        }
    }

    /// Sorts the requests by queue and makes them ready. The partitions that required leases hold must be held.
    fn parts(&self, request: TransactionRequest, now: Now) -> Result<BTreeMap<u64, Part>> {
        let lent = self.check_required_leases(&request.required_leases, now)?;
        let mut parts = BTreeMap::new();
        for (index, push) in request.pushes.into_iter().enumerate() {
            let queue = self.queue_for_push(&push.queue, now)?;
            let compression = queue.state().settings.compression;
            let prepared = prepare(push, &queue.filters(), compression, self.push_limits())?;
            part_of(&mut parts, queue).pushes.push((index, prepared));
        }
        for (index, mut ack) in request.acks.into_iter().enumerate() {
            lend(&mut ack, lent.as_deref());
            let queue = self.find_queue(&ack.queue)?;
            let resolved = ResolvedAck::resolve(&queue, ack)?;
            part_of(&mut parts, queue).acks.push((index, resolved));
        }
        Ok(parts)
    }

    /// Whether all required leases are live. If there is exactly one, acknowledgements without a lease act under it.
    fn check_required_leases(&self, leases: &[String], now: Now) -> Result<Option<String>> {
        for lease in leases {
            let is_live = LeaseToken::parse(lease).is_some_and(|token| {
                self.places_in_scope(token).iter().any(|place| {
                    let Some(queue) = self.queue_by_incarnation(place.incarnation) else { return false };
                    let mut state = queue.state();
                    let active = state.groups.get_mut(&place.group).and_then(|group| group.existing_active(place.partition));
                    active.is_some_and(|active| active.delivery.leases(now).any(|lease| lease.token == token))
                })
            });
            if !is_live {
                return Err(Error::new(ErrorCode::LeaseLost, format!("required lease {lease:?} is over")));
            }
        }
        Ok(if let [lease] = leases { Some(lease.clone()) } else { None })
    }

    /// Writes what transactions that `queue` decided still owe to other queues, in their order.
    pub(super) fn finish_owed(&self, queue: &Arc<Queue>, now: Now) -> Result<()> {
        loop {
            let Some(part) = queue.committer().owed.front().cloned() else { return Ok(()) };
            if let Some(target) = self.queue_by_incarnation(part.target)
                && !target.has_part(queue, &part)
            {
                self.write_part(queue, &target, &part, now)?;
            }
            let mut committer = queue.committer();
            committer.foreign.insert(part.target);
            if committer.owed.front().is_some_and(|front| front.transaction == part.transaction && front.target == part.target) {
                committer.owed.pop_front();
            }
        }
    }

    fn write_part(&self, coordinator: &Queue, target: &Arc<Queue>, part: &Owed, now: Now) -> Result<()> {
        let (coordinator, transaction) = (coordinator.incarnation, part.transaction);
        let broken = |_| Error::new(ErrorCode::BadDirectory, format!("push of transaction {transaction} does not decode"));
        let requests = decode_redo(&part.push).map_err(broken)?;
        part.operations.iter().for_each(|operation| target.apply_recovered(operation));
        let compression = target.state().settings.compression;
        // It was accepted before, with the gateway's marks if it had any; and decided, so that no filter is asked again.
        let limits = PushLimits { may_mark: true, ..self.push_limits() };
        let mut prepared = Vec::new();
        for (request, matches) in requests {
            prepared.push(match &request.items {
                PushItem::Messages(none) if none.is_empty() => Prepared::nothing(request.partition, request.producer),
                _ => {
                    let mut push = prepare(request, &FilterSet::default(), compression, limits)?;
                    push.keep_decision(matches);
                    push
                }
            });
        }
        let operations = part.operations.clone();
        target.run(now, move |stage| {
            if stage.state.applied.get(&coordinator).is_some_and(|&newest| newest >= transaction) {
                return Ok(());
            }
            for push in prepared {
                stage.push(push)?;
            }
            stage.plan.operations.extend(operations);
            stage.plan.operations.push(ControlOp::Applied { coordinator, transaction });
            Ok(())
        })
    }
}

/// A part of a decided transaction that its queue does not have in its own log.
#[derive(Debug, Clone)]
pub(super) struct Owed {
    /// The transaction's number in the queue that decided; they grow.
    pub transaction: u64,
    /// Incarnation of the queue that the part belongs to.
    pub target: u64,
    /// Cursors and dead letters there.
    pub operations: Vec<ControlOp>,
    /// What is pushed there, encoded; empty if nothing is.
    pub push: Vec<u8>,
}

impl Queue {
    /// Whether this queue has a part in its log already.
    pub(super) fn has_part(&self, coordinator: &Queue, part: &Owed) -> bool {
        self.state().applied.get(&coordinator.incarnation).is_some_and(|&newest| newest >= part.transaction)
    }
}

fn part_of(parts: &mut BTreeMap<u64, Part>, queue: Arc<Queue>) -> &mut Part {
    parts.entry(queue.incarnation).or_insert_with(|| Part {
        queue,
        pushes: Vec::new(),
        acks: Vec::new(),
        saved: Vec::new(),
        plan: Plan::default(),
        redo: Vec::new(),
    })
}

fn lend(ack: &mut AckRequest, lease: Option<&str>) {
    if ack.lease_id.is_empty()
        && let Some(lease) = lease
    {
        lease.clone_into(&mut ack.lease_id);
    }
}

fn decide_all(
    parts: &mut BTreeMap<u64, Part>,
    committers: &mut BTreeMap<u64, CommitterGuard<'_>>,
    now: Now,
    pushes: &mut [Option<PushReply>],
    acks: &mut [Option<AckReply>],
) -> Result<()> {
    for (incarnation, part) in parts.iter() {
        let Some(committer) = committers.get_mut(incarnation) else { continue };
        if part.queue.is_deleted() {
            return Err(part.queue.gone());
        }
        let bytes: u64 = part.pushes.iter().map(|(_, push)| push.bytes as u64 + 512).sum::<u64>() + (64 << 10);
        let segment_bytes_max = part.queue.state().settings.segment_bytes_max;
        committer.writer.ensure_room(bytes, segment_bytes_max, part.pushes.is_empty(), now.wall_us)?;
    }
    // All states at once, in the order of incarnations: nobody takes what one part sets free, or extends a lease that it ends, before it
    // is known that no other part is refused.
    let queues: Vec<Arc<Queue>> = parts.values().map(|part| Arc::clone(&part.queue)).collect();
    let mut states: Vec<_> = queues.iter().map(|queue| queue.state()).collect();
    let decided = parts.iter_mut().zip(&mut states).try_for_each(|((incarnation, part), state)| {
        let Some(committer) = committers.get(incarnation) else { return Ok(()) };
        decide_part(part, committer, state, now, pushes, acks)
    });
    if decided.is_err() {
        for (part, state) in parts.values_mut().zip(&mut states) {
            put_back(&mut part.saved, state);
        }
    }
    decided
}

fn decide_part(
    part: &mut Part,
    committer: &Committer,
    state: &mut State,
    now: Now,
    pushes: &mut [Option<PushReply>],
    acks: &mut [Option<AckReply>],
) -> Result<()> {
    let queue = Arc::clone(&part.queue);
    for (_, ack) in &part.acks {
        save(&mut part.saved, state, &queue, ack)?;
    }
    let promise = Promise::from(state.settings.durability);
    let mut stage = Stage { state, log: &queue.log, now, promise, at: committer.writer.end(), plan: Plan::default() };
    for (index, mut prepared) in part.pushes.drain(..) {
        stage.settle_filters(&mut prepared)?;
        part.redo.push(encode_redo(&prepared));
        let reply = stage.push(prepared)?;
        if let Some(offset) = first_duplicate(&reply.results) {
            let text = format!("push {index} of the transaction is a duplicate of offset {offset}");
            return Err(Error::new(ErrorCode::Duplicate, text));
        }
        if let Some(slot) = pushes.get_mut(index) {
            *slot = Some(reply);
        }
    }
    for (index, ack) in &part.acks {
        let reply = stage.ack(ack)?;
        let refused = reply.outcomes.iter().find_map(|outcome| outcome.refused.as_ref());
        if let Some(refused) = refused {
            let text = format!("acknowledgement {index} of the transaction is refused: {}", refused.text);
            return Err(Error::new(ErrorCode::AckRejected, text));
        }
        if let Some(slot) = acks.get_mut(*index) {
            *slot = Some(reply);
        }
    }
    let mut plan = stage.plan;
    plan.take_cursor_changes(state);
    plan.note_counters(state);
    plan.is_atomic = true;
    part.plan = plan;
    Ok(())
}

/// Keeps the state machine that an acknowledgement will change.
fn save(saved: &mut Vec<(GroupId, PartitionId, Delivery)>, state: &mut State, queue: &Queue, ack: &ResolvedAck) -> Result<()> {
    let group_id = state.require_group(ack.group.as_deref())?;
    let is_saved = saved.iter().any(|&(group, partition, _)| group == group_id && partition == ack.partition);
    let (Some(partition), Some(group)) = (state.partitions.get(ack.partition), state.groups.get_mut(&group_id)) else {
        return Ok(());
    };
    if !is_saved && let Ok(active) = group.active_mut(ack.partition, partition, &queue.log) {
        saved.push((group_id, ack.partition, active.delivery.clone()));
    }
    Ok(())
}

fn put_back(saved: &mut Vec<(GroupId, PartitionId, Delivery)>, state: &mut State) {
    for (group, partition, before) in saved.drain(..) {
        let Some(group) = state.groups.get_mut(&group) else { continue };
        if let Some(active) = group.existing_active(partition) {
            active.delivery.put_back(before);
        }
        group.settle(partition);
    }
}

fn commit_all(
    parts: &mut BTreeMap<u64, Part>,
    committers: &mut BTreeMap<u64, CommitterGuard<'_>>,
    decides: u64,
    transaction: u64,
    now: Now,
) -> Result<()> {
    let mut owed = VecDeque::new();
    for (&incarnation, part) in parts.iter_mut().filter(|(incarnation, _)| **incarnation != decides) {
        let cursors = part.plan.operations.iter().filter(|operation| !matches!(operation, ControlOp::Partition(_)));
        let operations = cursors.cloned().collect();
        let mut push = Vec::new();
        part.redo.iter().for_each(|bytes| push.put_sized(bytes));
        part.plan.operations.push(ControlOp::Applied { coordinator: decides, transaction });
        owed.push_back(Owed { transaction, target: incarnation, operations, push });
    }
    let (Some(part), Some(committer)) = (parts.get_mut(&decides), committers.get_mut(&decides)) else {
        return Err(Error::new(ErrorCode::Internal, "the deciding queue is not part of the transaction"));
    };
    if !committer.owed.is_empty() {
        let text = format!("queue {:?} has yet to finish an earlier transaction", part.queue.name);
        return Err(Error::new(ErrorCode::Busy, text));
    }
    let mut plan = std::mem::take(&mut part.plan);
    owed.iter().for_each(|part| part.write_to(&mut plan));
    part.queue.commit_plan(committer, plan, now)?;
    part.saved.clear();
    if !owed.is_empty() {
        // In the weaker modes, too: no other queue may have its part before it is certain that there was a transaction.
        part.queue.sync_writer(committer)?;
    }
    // It has happened. What follows makes it visible in the other queues.
    let others: Vec<u64> = owed.iter().map(|part| part.target).collect();
    let mut outcome = Ok(());
    let mut failed = VecDeque::new();
    for owed in owed {
        let (Some(part), Some(committer)) = (parts.get_mut(&owed.target), committers.get_mut(&owed.target)) else { continue };
        let plan = std::mem::take(&mut part.plan);
        part.saved.clear();
        // Cursors stand in the log that decided and are synced with its checkpoint; a push is told to readers at once.
        let durability = if owed.push.is_empty() { Durability::Os } else { part.queue.state().settings.durability };
        if let Err(error) = part.queue.commit_plan_as(committer, plan, durability, now) {
            let text =
                format!("the transaction is durable and will be finished in queue {:?} later: {}", part.queue.name, error.text);
            outcome = Err(Error::new(error.code, text));
            failed.push_back(owed);
        }
    }
    if let Some(committer) = committers.get_mut(&decides) {
        committer.foreign.extend(others);
        committer.owed = failed;
    }
    outcome
}

impl Owed {
    /// What the log that decides must say of this part.
    fn write_to(&self, plan: &mut Plan) {
        for operation in &self.operations {
            let mut bytes = Vec::new();
            operation.encode(&mut bytes);
            plan.operations.push(ControlOp::Foreign { incarnation: self.target, operation: bytes });
        }
        let (transaction, target, push) = (self.transaction, self.target, self.push.clone());
        plan.operations.push(ControlOp::Redo { transaction, target, push });
    }
}

fn first_duplicate(results: &PushResults) -> Option<u64> {
    match results {
        PushResults::Range { .. } => None,
        PushResults::Each(each) => each.iter().find_map(|result| match result {
            PushResult::Duplicate(offset) => Some(*offset),
            _ => None,
        }),
    }
}

/// Bytes of a push for [`ControlOp::Redo`]: partition, producer, the batch as a producer packs it, and what groups take of it.
fn encode_redo(prepared: &Prepared) -> Vec<u8> {
    let packed = match &prepared.content {
        Content::Packed(packed) => packed.clone(),
        Content::Messages(messages) => pack(messages, crate::model::Compression::None),
    };
    let mut bytes = Vec::with_capacity(packed.payload.len() + 64);
    bytes.put_sized(prepared.partition.as_bytes());
    let (producer_id, epoch, sequence) = prepared.producer.unwrap_or_default();
    bytes.put_u64(producer_id);
    bytes.put_u32(epoch);
    bytes.put_u32(sequence);
    bytes.put_u32(packed.count);
    bytes.put_u32(packed.index_length);
    bytes.put_u32(packed.uncompressed_length);
    bytes.put_u8(packed.codec);
    bytes.put_u32(packed.payload_crc);
    bytes.put_sized(&packed.payload);
    Annex { producers: Vec::new(), matches: prepared.matches.clone() }.encode(&mut bytes);
    bytes
}

/// A push and what groups take of it.
type Decided = (PushRequest, Vec<(GroupId, Matches)>);

fn decode_redo(bytes: &[u8]) -> std::result::Result<Vec<Decided>, UnexpectedEnd> {
    let mut reader = Reader::new(bytes);
    let mut requests = Vec::new();
    while !reader.is_empty() {
        let mut push = Reader::new(reader.sized()?);
        let partition = std::str::from_utf8(push.sized()?).map_err(|_| UnexpectedEnd)?.to_owned();
        let producer = Some((push.u64()?, push.u32()?, push.u32()?)).filter(|producer| producer.0 != 0);
        let packed = PackedBatch {
            count: push.u32()?,
            index_length: push.u32()?,
            uncompressed_length: push.u32()?,
            codec: push.u8()?,
            payload_crc: push.u32()?,
            payload: bytes::Bytes::copy_from_slice(push.sized()?),
        };
        // A push of which every message was dropped has an empty batch.
        let (items, matches) = match packed.count {
            0 => (PushItem::Messages(Vec::new()), Vec::new()),
            count => {
                let annex = Annex::decode(push.rest(), count)?;
                (PushItem::Packed(packed), annex.matches)
            }
        };
        requests.push((PushRequest { queue: String::new(), partition, items, producer }, matches));
    }
    Ok(requests)
}
