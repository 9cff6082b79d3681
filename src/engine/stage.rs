//! One group commit while it is decided: what goes into the log, and what becomes visible when it is there.
//!
//! Decisions are taken one after the other, each seeing those before it. Nothing of them is visible until [`Stage::publish`], which
//! runs when the records are what the queue's durability mode calls committed.

use std::collections::{HashMap, HashSet};

use crate::format::control::{ControlOp, PartitionRecord};
use crate::format::{Lsn, lsn_segment};
use crate::model::{Compression, Error, ErrorCode, Now, Promise, PushReply, PushResult, PushResults};
use crate::record::{Annex, GroupId, Offset, PartitionId, ProducerMark};
use crate::storage::log::{Log, OutBatch, OutBody, OutRecord};

use super::delivery::{Cursor, LeaseToken};
use super::filters::join_matches;
use super::prepare::{Content, Prepared, pack};
use super::producers::{Past, Verdict};
use super::state::State;

/// Batches are not made larger than this by joining small pushes.
const JOINED_BYTES_MAX: usize = 256 << 10;
const JOINED_COUNT_MAX: u32 = 4096;

/// Decisions of one group commit.
pub(super) struct Stage<'a> {
    pub state: &'a mut State,
    pub log: &'a Log,
    pub now: Now,
    pub promise: Promise,
    /// Where the log ends before this commit.
    pub at: Lsn,
    pub plan: Plan,
}

/// What a commit will write and then make visible.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Operations of the control record, in front of the batches.
    pub operations: Vec<ControlOp>,
    batches: Vec<StagedBatch>,
    /// The last batch of each partition, by index.
    open: HashMap<PartitionId, usize, rapidhash::fast::RandomState>,
    /// Partitions as they will be.
    partitions: HashMap<PartitionId, PartitionRecord, rapidhash::fast::RandomState>,
    new_partitions: HashMap<String, PartitionId, rapidhash::fast::RandomState>,
    ids: HashMap<(PartitionId, String), Offset, rapidhash::fast::RandomState>,
    producers: Vec<(PartitionId, u64, u32, Past)>,
    producer_ends: HashMap<(PartitionId, u64), (u32, u32), rapidhash::fast::RandomState>,
    /// Cursors that decisions touched.
    pub touched: Vec<(GroupId, PartitionId)>,
    /// Cursors that may hand out something again once the commit is published.
    pub freed: Vec<(GroupId, PartitionId)>,
    /// Claims whose lease is over.
    pub ended: Vec<(LeaseToken, GroupId, PartitionId)>,
    /// Claims that end though their messages are not acknowledged, and why.
    pub lost_claims: Vec<(LeaseToken, GroupId, PartitionId, ErrorCode)>,
    /// Cursors to look at again at a steady time.
    pub timers: Vec<(u64, GroupId, PartitionId)>,
    /// Cursors that change, to be published.
    pub cursors: Vec<(GroupId, PartitionId, Cursor)>,
    /// Partitions whose start moves.
    pub starts: Vec<(PartitionId, Offset)>,
    /// Whether its records count together or not at all.
    pub is_atomic: bool,
    dropped: u64,
    duplicates: u64,
    pushed: u64,
}

#[derive(Debug)]
struct StagedBatch {
    partition: PartitionId,
    base: Offset,
    content: Content,
    bytes: usize,
    annex: Annex,
    ids: Vec<(u64, u32)>,
}

impl Stage<'_> {
    /// Decides a push: resend, duplicates, offsets. What is refused changes nothing.
    pub fn push(&mut self, mut prepared: Prepared) -> Result<PushReply, Error> {
        let compression = self.state.settings.compression;
        self.settle_filters(&mut prepared)?;
        let partition = self.partition(&prepared.partition);
        let created_at_us = self.now.wall_us.max(self.state.newest_at_us);
        let promise = self.promise;
        let reply = |results| PushReply { promise, partition_id: partition, created_at_us, results };
        if let Some((id, epoch, sequence)) = prepared.producer {
            match self.check_producer(partition, id, epoch, sequence) {
                Verdict::New => {}
                // Of a push that stored nothing there is nothing to answer with but what is found now.
                Verdict::Resent(past) if past.count == 0 => {}
                Verdict::Resent(past) => {
                    let known = self.find_duplicates(partition, &prepared)?;
                    return Ok(reply(resent(&prepared, past, &known)));
                }
                Verdict::OutOfSequence(expected) => {
                    let text = format!("producer {id:016x} sent sequence {sequence} where {expected} is next");
                    return Err(Error::new(ErrorCode::OutOfSequence, text));
                }
            }
        }
        let duplicates = self.find_duplicates(partition, &prepared)?;
        let count_before = prepared.content.count();
        if !duplicates.is_empty() {
            let keep: Vec<u32> =
                (0..count_before).filter(|index| duplicates.binary_search_by_key(index, |found| found.0).is_err()).collect();
            prepared.retain(&keep, compression)?;
        }
        let count = prepared.content.count();
        let base = self.allocate(partition, count, &prepared.partition)?;
        let results = results(&prepared, count_before, base, &duplicates);
        for (index, id) in &prepared.ids {
            self.plan.ids.insert((partition, id.clone()), base + u64::from(*index));
        }
        self.plan.pushed += u64::from(count);
        self.plan.duplicates += duplicates.len() as u64;
        self.plan.dropped += u64::from(prepared.requested - count_before);
        if let Some((id, epoch, sequence)) = prepared.producer {
            let past = Past { sequence, base, count };
            self.plan.producers.push((partition, id, epoch, past));
            self.plan.producer_ends.insert((partition, id), (epoch, sequence));
            if count == 0 {
                self.plan.operations.push(ControlOp::Producer { partition, producer_id: id, epoch, sequence });
            }
        }
        if count > 0 {
            self.stage_batch(partition, base, prepared);
        }
        Ok(reply(results))
    }

    /// Asks the filters again if they changed since the push was made ready.
    pub fn settle_filters(&self, prepared: &mut Prepared) -> Result<(), Error> {
        let filters = &self.state.filters;
        if prepared.filter_version.is_some_and(|version| version != filters.version) {
            prepared.judge(filters)?;
            prepared.pack(self.state.settings.compression);
        }
        Ok(())
    }

    fn check_producer(&self, partition: PartitionId, id: u64, epoch: u32, sequence: u32) -> Verdict {
        if let Some(&(last_epoch, last)) = self.plan.producer_ends.get(&(partition, id)) {
            let staged = self.plan.producers.iter().rev();
            let mut mine = staged.filter(|entry| entry.0 == partition && entry.1 == id && entry.2 == epoch);
            return match mine.find(|entry| entry.3.sequence == sequence) {
                Some(entry) => Verdict::Resent(entry.3),
                None if epoch > last_epoch || (epoch == last_epoch && sequence == last.wrapping_add(1)) => Verdict::New,
                None => match self.state.producers.check(partition, id, epoch, sequence) {
                    Verdict::Resent(past) => Verdict::Resent(past),
                    _ => Verdict::OutOfSequence(last.wrapping_add(1)),
                },
            };
        }
        self.state.producers.check(partition, id, epoch, sequence)
    }

    /// The partition of a name; a new one gets its number now and exists when the commit is published.
    fn partition(&mut self, name: &str) -> PartitionId {
        if let Some(id) = self.state.partitions.find(name) {
            return id;
        }
        if let Some(&id) = self.plan.new_partitions.get(name) {
            return id;
        }
        let id = self.state.partitions.next_id() + self.plan.new_partitions.len() as PartitionId;
        self.plan.new_partitions.insert(name.to_owned(), id);
        let record =
            PartitionRecord { id, name: name.to_owned(), start: 0, next: 0, newest_at_us: 0, first_segment: 0, last_segment: 0 };
        self.plan.operations.push(ControlOp::Partition(record.clone()));
        self.plan.partitions.insert(id, record);
        id
    }

    /// Gives out `count` offsets of a partition.
    fn allocate(&mut self, partition: PartitionId, count: u32, name: &str) -> Result<Offset, Error> {
        let state = &mut *self.state;
        let operations = &mut self.plan.operations;
        let record = self.plan.partitions.entry(partition).or_insert_with(|| {
            let mut record = state.partitions.get(partition).map(|found| found.record(partition)).unwrap_or(PartitionRecord {
                id: partition,
                name: name.to_owned(),
                start: 0,
                next: 0,
                newest_at_us: 0,
                first_segment: 0,
                last_segment: 0,
            });
            let jump = state.jump.filter(|jump| record.last_segment <= jump.segment && record.next > 0);
            if let Some(jump) = jump {
                let first = record.next;
                record.next = record.next.saturating_add(jump.offsets);
                operations.push(ControlOp::Gap { partition, first, last: record.next - 1 });
            }
            record
        });
        let base = record.next;
        record.next = base
            .checked_add(u64::from(count))
            .ok_or_else(|| Error::new(ErrorCode::Internal, format!("partition {name:?} has no offsets left")))?;
        Ok(base)
    }

    /// Messages whose own id is known in the partition inside the window, or stands earlier in the same push: (index, offset). None
    /// where the window is 0.
    fn find_duplicates(&self, partition: PartitionId, prepared: &Prepared) -> Result<Vec<(u32, Duplicate)>, Error> {
        let window_us = self.state.settings.dedup_window_s.saturating_mul(1_000_000);
        if prepared.ids.is_empty() || window_us == 0 {
            return Ok(Vec::new());
        }
        let not_before_us = self.now.wall_us.saturating_sub(window_us);
        let is_new_partition = self.state.partitions.get(partition).is_none();
        let mut first: HashMap<&str, u32> = HashMap::new();
        let mut found = Vec::new();
        for (index, id) in &prepared.ids {
            if let Some(&earlier) = first.get(id.as_str()) {
                found.push((*index, Duplicate::Of(earlier)));
                continue;
            }
            first.insert(id, *index);
            let staged = self.plan.ids.get(&(partition, id.clone())).copied();
            let stored = match staged {
                Some(offset) => Some(offset),
                None if is_new_partition => None,
                None => self.log.find_id(partition, id, not_before_us)?,
            };
            if let Some(offset) = stored {
                found.push((*index, Duplicate::At(offset)));
            }
        }
        Ok(found)
    }

    fn stage_batch(&mut self, partition: PartitionId, base: Offset, prepared: Prepared) {
        let ids = prepared.id_hashes(partition);
        let count = prepared.content.count();
        let producers = prepared.producer.map(|(producer_id, epoch, sequence)| ProducerMark {
            producer_id,
            epoch,
            sequence,
            first_index: 0,
            count,
        });
        let annex = Annex { producers: producers.into_iter().collect(), matches: prepared.matches };
        let batch = StagedBatch { partition, base, content: prepared.content, bytes: prepared.bytes, annex, ids };
        let last = self.plan.open.get(&partition).and_then(|&at| self.plan.batches.get_mut(at));
        let Some(batch) = (match last {
            Some(last) => last.join(batch),
            None => Some(batch),
        }) else {
            return;
        };
        self.plan.open.insert(partition, self.plan.batches.len());
        self.plan.batches.push(batch);
    }
}

impl StagedBatch {
    /// Puts a later small batch of the same partition behind this one, or gives it back.
    fn join(&mut self, mut later: Self) -> Option<Self> {
        let (own, added) = (self.content.count(), later.content.count());
        let fits = self.bytes + later.bytes <= JOINED_BYTES_MAX && own + added <= JOINED_COUNT_MAX;
        let follows = self.base + u64::from(own) == later.base;
        let (Content::Messages(messages), Content::Messages(more)) = (&mut self.content, &mut later.content) else {
            return Some(later);
        };
        if !fits || !follows {
            return Some(later);
        }
        let joined = join_matches((&self.annex.matches, own), (&later.annex.matches, added));
        let Some(matches) = joined else { return Some(later) };
        self.annex.matches = matches;
        messages.append(more);
        self.bytes += later.bytes;
        self.ids.extend(later.ids.iter().map(|&(hash, index)| (hash, index + own)));
        let marks = later.annex.producers.into_iter();
        self.annex.producers.extend(marks.map(|mark| ProducerMark { first_index: mark.first_index + own, ..mark }));
        None
    }

    fn into_record(self, compression: Compression) -> OutRecord {
        let packed = match self.content {
            Content::Packed(packed) => packed,
            Content::Messages(messages) => pack(&messages, compression),
        };
        let Self { partition, base, annex, ids, .. } = self;
        OutRecord { body: OutBody::Batch(OutBatch { partition, base_offset: base, packed, annex, ids }), goes_on: false }
    }
}

/// A duplicate of a stored message, or of an earlier one in the same push.
#[derive(Debug, Clone, Copy)]
pub(super) enum Duplicate {
    At(Offset),
    Of(u32),
}

impl Plan {
    /// Whether nothing is to be written.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty() && self.batches.is_empty()
    }

    /// The records, control operations first, and their size in the log at most.
    pub fn take_records(&mut self, compression: Compression) -> (Vec<OutRecord>, u64) {
        let mut records = Vec::with_capacity(self.batches.len() + 1);
        if !self.operations.is_empty() {
            let mut body = Vec::new();
            self.operations.iter().for_each(|operation| operation.encode(&mut body));
            records.push(OutRecord { body: OutBody::Control(body), goes_on: false });
        }
        self.open.clear();
        records.extend(std::mem::take(&mut self.batches).into_iter().map(|batch| batch.into_record(compression)));
        if self.is_atomic
            && let Some((_, parts)) = records.split_last_mut()
        {
            parts.iter_mut().for_each(|part| part.goes_on = true);
        }
        let bytes = records
            .iter()
            .map(|record| match &record.body {
                OutBody::Control(body) => 72 + body.len() as u64,
                OutBody::Batch(batch) => {
                    let mut annex = Vec::new();
                    batch.annex.encode(&mut annex);
                    136 + (annex.len() + batch.packed.payload.len()) as u64
                }
            })
            .sum();
        (records, bytes)
    }

    /// Makes the decisions visible. Returns the partitions that have new messages.
    pub fn publish(self, state: &mut State, created_at_us: u64, at: Lsn) -> Vec<PartitionId> {
        for operation in &self.operations {
            // Partitions are published with their bounds below; cursors that live in a state machine through it.
            if !matches!(operation, ControlOp::Partition(_) | ControlOp::Cursor { .. } | ControlOp::Producer { .. }) {
                state.apply(operation, true);
            }
        }
        for (id, start) in self.starts {
            let Some(partition) = state.partitions.change(id) else { continue };
            let removed = start.saturating_sub(partition.start);
            partition.start = start;
            state.stats.messages = state.stats.messages.saturating_sub(removed);
            state.removals += u64::from(removed > 0);
        }
        let mut touched = Vec::with_capacity(self.partitions.len());
        let segment = lsn_segment(at);
        let mut records: Vec<_> = self.partitions.into_values().collect();
        records.sort_unstable_by_key(|record| record.id);
        for mut record in records {
            let (end, had) = state.partitions.get(record.id).map_or((0, 0), |known| (known.end, known.length()));
            let is_new = state.partitions.get(record.id).is_none();
            if record.next > end || is_new {
                let has_messages = record.next > end;
                if has_messages {
                    record.newest_at_us = created_at_us;
                    record.last_segment = segment;
                    if had == 0 {
                        record.first_segment = segment;
                    }
                }
                state.partitions.put(&record);
                if has_messages {
                    state.partitions.touch(record.id);
                    touched.push(record.id);
                }
            }
        }
        for (partition, id, epoch, past) in self.producers {
            state.producers.record(partition, id, epoch, past);
        }
        for (group, partition, cursor) in self.cursors {
            if let Some(group) = state.groups.get_mut(&group) {
                if let Some(active) = group.existing_active(partition) {
                    active.delivery.publish(cursor);
                }
                group.settle(partition);
                group.mark_dirty(partition);
            }
        }
        state.counters.pushed += self.pushed;
        state.stats.messages += self.pushed;
        state.stats.duplicates += self.duplicates;
        state.newest_at_us = state.newest_at_us.max(created_at_us);
        touched
    }

    /// Takes the resulting state of every cursor that was touched into the log.
    pub fn take_cursor_changes(&mut self, state: &mut State) {
        self.touched.sort_unstable();
        self.touched.dedup();
        for (group, partition) in std::mem::take(&mut self.touched) {
            let Some(found) = state.groups.get_mut(&group) else { continue };
            let Some(active) = found.existing_active(partition) else { continue };
            let Some(change) = active.delivery.take_change() else {
                found.settle(partition);
                continue;
            };
            let mut bytes = Vec::new();
            change.cursor.encode(&mut bytes);
            self.operations.push(ControlOp::Cursor { group, partition, state: bytes });
            self.cursors.push((group, partition, change.cursor));
        }
    }

    /// Counts of dropped messages must be in the log when there are any: they stand nowhere else.
    pub fn note_counters(&mut self, state: &State) {
        if self.dropped > 0 {
            let mut counters = state.counters();
            counters.dropped += std::mem::take(&mut self.dropped);
            self.operations.push(ControlOp::Counters(counters));
        }
    }
}

/// The answer to a push that was answered before. `known` are messages that are found by their own ids, which some pushes before it may
/// have stored; the others lie in their order at the offsets that this one was given.
fn resent(prepared: &Prepared, past: Past, known: &[(u32, Duplicate)]) -> PushResults {
    let end = past.base + u64::from(past.count);
    if past.count == prepared.requested {
        // All of it was stored, whatever the filters would say now.
        return PushResults::Each((past.base..end).map(PushResult::Duplicate).collect());
    }
    let known_at = |index: u32| known.binary_search_by_key(&index, |found| found.0).ok().map(|at| known[at].1);
    let taken: HashSet<Offset> = known
        .iter()
        .filter_map(|(_, found)| match found {
            Duplicate::At(offset) => Some(*offset),
            Duplicate::Of(_) => None,
        })
        .collect();
    let mut rest = (past.base..end).filter(|offset| !taken.contains(offset));
    let mut of_kept: Vec<PushResult> = Vec::with_capacity(prepared.content.count() as usize);
    for index in 0..prepared.content.count() {
        let result = match known_at(index) {
            Some(Duplicate::At(offset)) => PushResult::Duplicate(offset),
            Some(Duplicate::Of(earlier)) => of_kept.get(earlier as usize).copied().unwrap_or(PushResult::Dropped),
            None => rest.next().map_or(PushResult::Dropped, PushResult::Duplicate),
        };
        of_kept.push(result);
    }
    spread(prepared, of_kept)
}

/// Results of the kept messages over all that were requested.
fn spread(prepared: &Prepared, of_kept: Vec<PushResult>) -> PushResults {
    let Some(kept) = &prepared.kept else { return PushResults::Each(of_kept) };
    let mut each = vec![PushResult::Dropped; prepared.requested as usize];
    for (&index, result) in kept.iter().zip(of_kept) {
        if let Some(slot) = each.get_mut(index as usize) {
            *slot = result;
        }
    }
    PushResults::Each(each)
}

fn results(prepared: &Prepared, count_before: u32, base: Offset, duplicates: &[(u32, Duplicate)]) -> PushResults {
    if prepared.kept.is_none() && duplicates.is_empty() {
        return PushResults::Range { base, count: count_before };
    }
    // First for the kept messages, in their order; then spread over all that were requested.
    let mut next = base;
    let mut of_kept: Vec<PushResult> = Vec::with_capacity(count_before as usize);
    for index in 0..count_before {
        let duplicate = duplicates.binary_search_by_key(&index, |found| found.0).ok().map(|at| duplicates[at].1);
        let result = match duplicate {
            Some(Duplicate::At(offset)) => PushResult::Duplicate(offset),
            Some(Duplicate::Of(earlier)) => match of_kept.get(earlier as usize) {
                Some(PushResult::Stored(offset) | PushResult::Duplicate(offset)) => PushResult::Duplicate(*offset),
                _ => PushResult::Dropped,
            },
            None => {
                next += 1;
                PushResult::Stored(next - 1)
            }
        };
        of_kept.push(result);
    }
    spread(prepared, of_kept)
}
