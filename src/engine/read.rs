//! Finding and slicing what a reader may have: whole stored batches where all of one belongs to it, single messages elsewhere.

use std::sync::Arc;

use bytes::Bytes;

use crate::filter::Filter;
use crate::format::Lsn;
use crate::format::index::IndexedBatch;
use crate::model::{BatchSlice, Error, OffsetRange, StoredMessage};
use crate::record::{AttributesRef, GroupId, Offset, PartitionId, RecordHeader, StoredBatch};
use crate::storage::log::{Log, LogError, Segment};

use super::cache::BatchCache;
use super::delivery::{OffsetSet, Runs};

/// What a reader is to messages.
#[derive(Debug, Clone, Default)]
pub(super) struct View {
    /// The group; `None` reads everything.
    pub group: Option<GroupId>,
    /// Judges batches before `created_lsn`.
    pub first_filter: Option<Arc<Filter>>,
    /// Where the log ended when the group was made.
    pub created_lsn: Lsn,
}

/// How much a read may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadLimits {
    pub messages_max: u32,
    /// Stored bytes; the first batch or message comes whatever its size.
    pub bytes_max: usize,
}

/// What to read.
#[derive(Debug)]
pub(super) struct ReadPlan<'a> {
    pub partition: PartitionId,
    /// Stretches of offsets that may be taken, ascending; not empty.
    pub ranges: &'a [OffsetRange],
    pub view: &'a View,
    pub limits: ReadLimits,
    /// The segment to begin in.
    pub hint: u32,
    /// How often the messages were delivered before.
    pub deliveries: &'a Runs<u32>,
}

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub slices: Vec<BatchSlice>,
    /// Offsets of the messages.
    pub messages: OffsetSet,
    pub count: u32,
    pub bytes: usize,
    /// The last offset that was looked at.
    pub through: Offset,
    /// The segment of the first batch looked at.
    pub hint: u32,
    /// From the first to the last offset that damage took, or retention meanwhile, if the read came upon any.
    pub lost: Option<OffsetRange>,
    /// What damage took of that.
    pub damaged: Vec<OffsetRange>,
}

/// Reads. Damaged batches are left out and named in [`Taken::lost`]; an error of the disk ends the read, and is returned if nothing
/// was read before it.
pub(super) fn read(log: &Log, cache: &BatchCache, plan: &ReadPlan<'_>) -> Result<Taken, Error> {
    let (Some(first), Some(last)) = (plan.ranges.first(), plan.ranges.last()) else { return Ok(Taken::default()) };
    let mut reading = Reading {
        log,
        cache,
        plan,
        taken: Taken { through: last.last, hint: plan.hint, ..Taken::default() },
        expected: first.first,
        previous: None,
        error: None,
    };
    let mut is_to_end = true;
    log.visit(plan.partition, first.first, plan.view.group, plan.hint, &mut |segment, batch| {
        is_to_end = reading.take(segment, batch);
        is_to_end
    })?;
    if is_to_end {
        reading.notice_end(last.last);
    }
    match reading.error {
        Some(error) if reading.taken.count == 0 => Err(error),
        _ => Ok(reading.taken),
    }
}

struct Reading<'a> {
    log: &'a Log,
    cache: &'a BatchCache,
    plan: &'a ReadPlan<'a>,
    taken: Taken,
    /// The offset that the next batch begins with, if nothing is missing.
    expected: Offset,
    previous: Option<Lsn>,
    error: Option<Error>,
}

impl Reading<'_> {
    /// Looks at a batch; whether to go on.
    fn take(&mut self, segment: &Arc<Segment>, batch: IndexedBatch) -> bool {
        let end = self.plan.ranges.last().map_or(0, |range| range.last);
        if batch.base_offset > end {
            return false;
        }
        let is_full = self.taken.count >= self.plan.limits.messages_max
            || (self.taken.count > 0 && self.taken.bytes + batch.length as usize > self.plan.limits.bytes_max);
        if is_full {
            self.taken.through = batch.base_offset.saturating_sub(1).max(self.taken.messages.last().unwrap_or(0));
            return false;
        }
        if self.previous.is_none() {
            self.taken.hint = segment.number();
        }
        self.notice_gap(segment, &batch);
        let all = OffsetRange { first: batch.base_offset, last: batch.next_offset() - 1 };
        match self.take_batch(segment, &batch) {
            Ok(goes_on) => goes_on,
            Err(Stop::Damaged) => {
                self.note_damage(all);
                true
            }
            Err(Stop::Removed) => {
                self.lose(all);
                true
            }
            Err(Stop::Failed(error)) => {
                self.taken.through = batch.base_offset.saturating_sub(1);
                self.error = Some(error);
                false
            }
        }
    }

    /// Offsets missing before a batch are lost if damage lies in the log between it and the one before; else nobody ever had them.
    fn notice_gap(&mut self, segment: &Segment, batch: &IndexedBatch) {
        let at = segment.lsn(batch.position);
        if batch.base_offset > self.expected {
            let from = self.previous.unwrap_or_else(|| crate::format::lsn(self.plan.hint, 0));
            if self.log.has_damage_between(from, at).unwrap_or(false) {
                self.note_damage(OffsetRange { first: self.expected, last: batch.base_offset - 1 });
            }
        }
        self.expected = batch.next_offset();
        self.previous = Some(at);
    }

    /// The same behind the last batch. Batches that hold nothing for the group were not looked at: those are not missing.
    fn notice_end(&mut self, end: Offset) {
        let from = self.previous.unwrap_or_else(|| crate::format::lsn(self.plan.hint, 0));
        if self.expected > end || !self.log.has_damage_between(from, self.log.end()).unwrap_or(false) {
            return;
        }
        let mut missing = self.expected;
        let found = self.log.visit(self.plan.partition, self.expected, None, self.plan.hint, &mut |_, batch| {
            missing = missing.max(batch.next_offset());
            true
        });
        if found.is_ok() && missing <= end {
            self.note_damage(OffsetRange { first: missing, last: end });
        }
    }

    fn note_damage(&mut self, range: OffsetRange) {
        self.taken.damaged.push(range);
        self.lose(range);
    }

    fn lose(&mut self, range: OffsetRange) {
        self.taken.lost.get_or_insert(range).last = range.last;
    }

    fn take_batch(&mut self, segment: &Arc<Segment>, batch: &IndexedBatch) -> Result<bool, Stop> {
        let left = self.plan.limits.messages_max - self.taken.count;
        let bytes = segment.batch(batch)?;
        let share = self.share(segment, batch, &bytes)?;
        let last = batch.next_offset() - 1;
        let is_free = self.plan.ranges.iter().any(|range| range.first <= batch.base_offset && last <= range.last);
        let range = OffsetRange { first: batch.base_offset, last };
        if matches!(share, Share::All) && is_free && batch.count <= left && self.is_one_count(range) {
            self.taken.messages.set(range, ());
            self.taken.count += batch.count;
            self.taken.bytes += bytes.len();
            self.taken.slices.push(BatchSlice::Whole(bytes));
            return Ok(true);
        }
        self.take_some(segment, batch, &bytes, &share, left)
    }

    /// Whether all of the range was delivered as often as the first message that is taken: a whole batch cannot say how often each was.
    fn is_one_count(&self, range: OffsetRange) -> bool {
        let deliveries = self.plan.deliveries;
        let expected = deliveries.get(self.taken.messages.first().unwrap_or(range.first));
        match deliveries.overlapping(range).next() {
            None => expected.is_none(),
            Some((run, count)) => expected == Some(count) && run.first <= range.first && run.last >= range.last,
        }
    }

    fn share(&self, segment: &Segment, batch: &IndexedBatch, bytes: &Bytes) -> Result<Share, Stop> {
        let Some(group) = self.plan.view.group else { return Ok(Share::All) };
        let is_earlier = segment.lsn(batch.position) < self.plan.view.created_lsn;
        if is_earlier && let Some(filter) = &self.plan.view.first_filter {
            return Ok(Share::Judged(Arc::clone(filter)));
        }
        let (header, Some(batch), _) = RecordHeader::decode(bytes).map_err(|_| Stop::Damaged)? else {
            return Err(Stop::Damaged);
        };
        if batch.annex_length == 0 {
            return Ok(Share::All);
        }
        let start = header.header_length();
        let annex = bytes.get(start..start + batch.annex_length as usize).ok_or(Stop::Damaged)?;
        let annex = crate::record::Annex::decode(annex, batch.count).map_err(|_| Stop::Damaged)?;
        Ok(match annex.matches_of(group) {
            None | Some(crate::record::Matches::All) => Share::All,
            Some(matches) => Share::Matched(matches.clone()),
        })
    }

    /// Takes single messages of a batch, of which `bytes` is the verified record.
    fn take_some(
        &mut self,
        segment: &Segment,
        batch: &IndexedBatch,
        bytes: &Bytes,
        share: &Share,
        left: u32,
    ) -> Result<bool, Stop> {
        let at = segment.lsn(batch.position);
        let open = self.cache.get(self.log.incarnation(), at, || StoredBatch::split(bytes)?.open()).map_err(|_| Stop::Damaged)?;
        let mut messages: Vec<StoredMessage> = Vec::new();
        let mut is_full = false;
        for (index, entry) in (0u32..).zip(open.entries().map_err(|_| Stop::Damaged)?) {
            let entry = entry.map_err(|_| Stop::Damaged)?;
            let offset = batch.base_offset + u64::from(index);
            if !self.plan.ranges.iter().any(|range| range.first <= offset && offset <= range.last) {
                continue;
            }
            if !share.takes(index, entry.attributes) {
                continue;
            }
            let bytes = entry.body_length + entry.attributes.len();
            let is_over = self.taken.count > 0 && self.taken.bytes + bytes > self.plan.limits.bytes_max;
            if messages.len() as u32 >= left || is_over {
                is_full = true;
                self.taken.through = self.taken.messages.last().unwrap_or(offset.saturating_sub(1));
                break;
            }
            self.taken.messages.insert(offset);
            self.taken.count += 1;
            self.taken.bytes += bytes;
            messages.push(open.message(index, &entry).map_err(|_| Stop::Damaged)?);
        }
        if !messages.is_empty() {
            self.taken.slices.push(BatchSlice::Messages(messages));
        }
        Ok(!is_full)
    }
}

/// What of a batch belongs to the reader.
enum Share {
    All,
    Matched(crate::record::Matches),
    Judged(Arc<Filter>),
}

impl Share {
    fn takes(&self, index: u32, attributes: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Matched(matches) => matches.takes(index),
            Self::Judged(filter) => AttributesRef::parse(attributes).is_ok_and(|view| filter.matches(view)),
        }
    }
}

/// Why a batch cannot be taken.
enum Stop {
    Damaged,
    /// Retention took it meanwhile.
    Removed,
    Failed(Error),
}

impl From<LogError> for Stop {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Damaged { .. } => Self::Damaged,
            LogError::Removed { .. } => Self::Removed,
            other => Self::Failed(other.into()),
        }
    }
}

/// A batch with its block uncompressed, shared through the cache.
pub(super) fn open_batch(
    log: &Log,
    cache: &BatchCache,
    segment: &Segment,
    batch: &IndexedBatch,
) -> Result<crate::record::OpenBatch, LogError> {
    cache.get(log.incarnation(), segment.lsn(batch.position), || {
        let damaged = |reason: String| LogError::Damaged { segment: segment.number(), position: batch.position, reason };
        segment.stored_batch(batch)?.open().map_err(|error| damaged(error.to_string()))
    })
}

/// How many messages the reader takes of the offsets `[from, to)` that are not in `done`.
pub(super) fn count_taken(
    log: &Log,
    cache: &BatchCache,
    partition: PartitionId,
    view: &View,
    (from, to): (Offset, Offset),
    done: &OffsetSet,
    hint: u32,
) -> Result<u64, LogError> {
    let mut count = 0;
    let mut failure = None;
    log.visit(partition, from, view.group, hint, &mut |segment, batch| {
        if batch.base_offset >= to {
            return false;
        }
        match count_in_batch(log, cache, segment, &batch, view, (from, to), done) {
            Ok(found) => count += found,
            Err(error @ LogError::Disk(_)) => failure = Some(error),
            Err(_) => {}
        }
        failure.is_none()
    })?;
    failure.map_or(Ok(count), Err)
}

fn count_in_batch(
    log: &Log,
    cache: &BatchCache,
    segment: &Arc<Segment>,
    batch: &IndexedBatch,
    view: &View,
    (from, to): (Offset, Offset),
    done: &OffsetSet,
) -> Result<u64, LogError> {
    let in_range = |index: u32| {
        let offset = batch.base_offset + u64::from(index);
        offset >= from && offset < to && !done.contains(offset)
    };
    let is_earlier = segment.lsn(batch.position) < view.created_lsn;
    if is_earlier && let Some(filter) = &view.first_filter {
        let open = open_batch(log, cache, segment, batch)?;
        let Ok(entries) = open.entries() else { return Ok(0) };
        let takes = |attributes: &[u8]| AttributesRef::parse(attributes).is_ok_and(|seen| filter.matches(seen));
        return Ok((0u32..)
            .zip(entries)
            .filter(|(index, entry)| in_range(*index) && entry.as_ref().is_ok_and(|entry| takes(entry.attributes)))
            .count() as u64);
    }
    let stored = segment.stored_batch(batch)?;
    let annex = stored.annex().unwrap_or_default();
    let matches = view.group.and_then(|group| annex.matches_of(group));
    Ok((0..batch.count).filter(|&index| in_range(index) && matches.is_none_or(|matches| matches.takes(index))).count() as u64)
}
