//! The segments of a queue and their indexes.

use std::sync::Arc;

use crate::format::control::ControlOp;
use crate::format::index::SealedIndex;
use crate::format::segment::{SEGMENT_BYTES_LIMIT, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::{Lsn, lsn, lsn_position, lsn_segment, names};
use crate::record::{FLAG_TRANSACTION_GOES_ON, RecordKind, StoredBatch};
use crate::storage::disk::{Access, Dir};
use crate::storage::log::scan::{self, Chain, Found, Record, Tail};
use crate::storage::log::{
    LogError, LogFinding, RamIndex, Role, Segment, index_record, is_spoilt, missing, proven_damage, read_header, read_holes,
    sealed_end,
};

use super::state::State;
use super::{Notes, Severity};

/// Scans of a last segment that goes on growing.
const ATTEMPTS: usize = 5;

/// Reads every segment, and every index against its segment.
pub(super) fn check(dir: &Arc<dyn Dir>, incarnation: u64, state: &mut State, notes: &mut Notes<'_>) {
    let Some(files) = Files::list(dir, notes) else { return };
    let mut log = LogCheck { dir, incarnation, state, notes };
    let mut headers = Vec::new();
    for &number in &files.segments {
        headers.push(log.header(number));
    }
    for (at, &number) in files.segments.iter().enumerate() {
        let header = headers[at].as_ref();
        let outcome = match headers.get(at + 1) {
            Some(next) => log.sealed(number, header, next.as_ref()),
            None => log.last(number, header),
        };
        if let Err(error) = outcome {
            log.refused(number, &error);
        }
    }
    let checkpoint = log.state.checkpoint;
    for gone in missing(&files.segments, log.state.first_segment, checkpoint) {
        let found = LogFinding::MissingSegments { first: *gone.start(), last: *gone.end() };
        log.notes.add(Severity::Loss, &names::segment(*gone.start()), None, found.to_string());
    }
    for (number, name) in files.companions {
        if files.segments.binary_search(&number).is_err() {
            log.notes.add(Severity::Info, &name, None, "there is no such segment");
        }
    }
}

struct Files {
    segments: Vec<u32>,
    /// Indexes and lists of holes.
    companions: Vec<(u32, String)>,
}

impl Files {
    fn list(dir: &Arc<dyn Dir>, notes: &mut Notes<'_>) -> Option<Self> {
        let entries = match dir.list() {
            Ok(entries) => entries,
            Err(error) => {
                notes.add(Severity::Loss, "", None, error.to_string());
                return None;
            }
        };
        let mut files = Self { segments: Vec::new(), companions: Vec::new() };
        for entry in entries {
            match Role::of(&entry) {
                Role::Segment(number) => files.segments.push(number),
                Role::Index(number) | Role::Holes(number) => files.companions.push((number, entry.name)),
                Role::Unfinished => notes.add(Severity::Info, &entry.name, None, "prepared or not finished; it does not count"),
                Role::Foreign => notes.add(Severity::Info, &entry.name, None, "none of our files"),
                Role::Other if names::is_kept_aside(&entry.name) => {
                    notes.add(Severity::Info, &entry.name, None, "bytes of a write that did not finish, kept aside at a start");
                }
                Role::Other if names::is_damaged_table(&entry.name) => {
                    notes.add(Severity::Info, &entry.name, None, "a damaged checkpoint, kept aside when it was replaced");
                }
                Role::Other => {}
            }
        }
        files.segments.sort_unstable();
        Some(files)
    }
}

struct LogCheck<'a, 'b> {
    dir: &'a Arc<dyn Dir>,
    incarnation: u64,
    state: &'a mut State,
    notes: &'a mut Notes<'b>,
}

/// What one segment had, while it is scanned.
#[derive(Default)]
struct SegmentCheck {
    index: RamIndex,
    /// What the first record says of the one before it; `None` inside if damage comes first.
    first_previous_crc: Option<Option<u32>>,
    /// Header CRC of the last record.
    last_crc: Option<u32>,
    has_damage: bool,
    /// Records of a transaction whose last part has not come yet.
    run: Vec<Record>,
    findings: Vec<(Severity, u64, String)>,
    records: u64,
    batches: u64,
    messages: u64,
}

impl LogCheck<'_, '_> {
    fn header(&mut self, number: u32) -> Option<SegmentHeader> {
        let name = names::segment(number);
        let file = match self.dir.open(&name, Access::Read) {
            Ok(file) => file,
            Err(error) => {
                self.refused(number, &error.into());
                return None;
            }
        };
        match read_header(file.as_ref(), self.incarnation, number) {
            Ok(Ok(header)) => Some(header),
            Ok(Err(reason)) => {
                let found = LogFinding::BadSegmentHeader { segment: number, reason };
                self.notes.add(Severity::Warning, &name, Some(0), found.to_string());
                None
            }
            Err(error) => {
                self.refused(number, &error);
                None
            }
        }
    }

    /// A segment that retention took away meanwhile is no finding.
    fn refused(&mut self, number: u32, error: &LogError) {
        let name = names::segment(number);
        let is_gone = matches!(error, LogError::Disk(error) if error.is_not_found());
        let is_listed = self.dir.list().is_ok_and(|entries| entries.iter().any(|entry| entry.name == name));
        if is_gone && !is_listed {
            self.state.first_segment = self.state.first_segment.max(number.saturating_add(1));
            return;
        }
        self.notes.add(Severity::Loss, &name, None, error.to_string());
    }

    fn sealed(&mut self, number: u32, header: Option<&SegmentHeader>, next: Option<&SegmentHeader>) -> Result<(), LogError> {
        let length = self.dir.open(&names::segment(number), Access::Read)?.length()?.min(SEGMENT_BYTES_LIMIT);
        let named = next.map(|next| next.previous_end).filter(|&end| lsn_segment(end) == number).map(lsn_position);
        let summary = Segment::read_index_summary(self.dir.as_ref(), self.incarnation, number)?;
        let end = sealed_end(self.dir, self.incarnation, number, length, named, summary.as_ref())?;
        let segment = Segment::growing(Arc::clone(self.dir), self.incarnation, number, length.max(u64::from(end)), end);
        let (holes, fault) = read_holes(self.dir.as_ref(), self.incarnation, number)?;
        let mut check = SegmentCheck::default();
        let checkpoint = self.state.checkpoint;
        let state = &mut *self.state;
        scan::sealed(&segment, self.incarnation, end, |found| check.found(found, state, checkpoint))?;
        check.finish_run(state, checkpoint);
        if read_holes(self.dir.as_ref(), self.incarnation, number)?.0 != holes {
            let text = "retention took something out of it while it was read; it was not checked";
            self.notes.add(Severity::Info, &names::segment(number), None, text);
            return Ok(());
        }
        if let Some(fault) = fault {
            self.notes.add(
                Severity::Warning,
                &names::holes(number),
                None,
                format!("{fault}; what was taken out reads as damage"),
            );
        }
        if let Some(next) = next
            && !check.has_damage
            && check.last_crc.or(header.map(|header| header.previous_crc)).is_some_and(|crc| crc != next.previous_crc)
        {
            let text = "it does not follow the last record of the segment before it".to_owned();
            self.notes.add(Severity::Warning, &names::segment(next.number), Some(0), text);
        }
        self.check_index(number, end, &check)?;
        self.finish(number, header, end, check);
        Ok(())
    }

    fn last(&mut self, number: u32, header: Option<&SegmentHeader>) -> Result<(), LogError> {
        let mut attempt = 1;
        loop {
            let length = self.dir.open(&names::segment(number), Access::Read)?.length()?.min(SEGMENT_BYTES_LIMIT);
            let (records, tail) = self.scan_last(number, header, length)?;
            // A server that runs may be writing the record that is not whole.
            if tail.torn.is_some() && attempt < ATTEMPTS {
                let (_, again) = self.scan_last(number, header, length)?;
                if again.end != tail.end {
                    attempt += 1;
                    continue;
                }
            }
            return self.accept_last(number, header, length, records, tail);
        }
    }

    fn scan_last(&self, number: u32, header: Option<&SegmentHeader>, length: u64) -> Result<(Vec<Found>, Tail), LogError> {
        let segment = Segment::growing(Arc::clone(self.dir), self.incarnation, number, length, SEGMENT_HEADER_BYTES);
        let chain = Chain {
            incarnation: self.incarnation,
            previous_crc: header.map(|header| header.previous_crc),
            epoch: header.map_or(0, |header| header.epoch),
        };
        let mut found = Vec::new();
        let tail = scan::tail(&segment, chain, length, self.state.checkpoint, is_spoilt(header, length), |one| found.push(one))?;
        Ok((found, tail))
    }

    fn accept_last(
        &mut self,
        number: u32,
        header: Option<&SegmentHeader>,
        length: u64,
        found: Vec<Found>,
        tail: Tail,
    ) -> Result<(), LogError> {
        let name = names::segment(number);
        let checkpoint = self.state.checkpoint;
        let mut check = SegmentCheck::default();
        found.into_iter().for_each(|one| check.found(one, self.state, checkpoint));
        if let Some(damage) = proven_damage(&tail, header, length) {
            check.found(Found::Damage(damage), self.state, checkpoint);
        } else if let Some(torn) = &tail.torn {
            let text = LogFinding::TornTail {
                segment: number,
                position: tail.end,
                bytes: torn.end - tail.end,
                reason: torn.reason.clone(),
                has_records_behind: torn.has_records_behind,
            };
            let text = format!("{text}; a start will do that, unless a server is writing it now");
            self.notes.add(Severity::Warning, &name, Some(u64::from(tail.end)), text);
        }
        if let Some(first) = check.run.first() {
            let text = "the last transaction did not finish; a start cuts it".to_owned();
            self.notes.add(Severity::Warning, &name, Some(u64::from(first.position)), text);
        }
        let end: Lsn = lsn(number, tail.end);
        if end < checkpoint && !check.has_damage {
            let text = LogFinding::EndsBeforeCheckpoint { end, checkpoint }.to_string();
            self.notes.add(Severity::Loss, &name, Some(u64::from(tail.end)), text);
        }
        self.finish(number, header, tail.end, check);
        Ok(())
    }

    fn finish(&mut self, number: u32, header: Option<&SegmentHeader>, end: u32, check: SegmentCheck) {
        let name = names::segment(number);
        let report = &mut *self.notes.report;
        report.segments += 1;
        report.bytes += u64::from(end.saturating_sub(SEGMENT_HEADER_BYTES));
        report.records += check.records;
        report.batches += check.batches;
        report.messages += check.messages;
        for (severity, position, text) in check.findings {
            self.notes.add(severity, &name, Some(position), text);
        }
        if let (Some(header), Some(Some(first))) = (header, check.first_previous_crc)
            && header.previous_crc != first
        {
            self.notes.add(Severity::Warning, &name, Some(0), "its first record does not follow the one that its header names");
        }
    }

    fn check_index(&mut self, number: u32, end: u32, check: &SegmentCheck) -> Result<(), LogError> {
        let name = names::index(number);
        let file = match self.dir.open(&name, Access::Read) {
            Ok(file) => file,
            Err(error) if error.is_not_found() => {
                self.notes.add(Severity::Info, &name, None, "it is not written yet; a start makes it again");
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let mut bytes = vec![0; file.length()?.min(SEGMENT_BYTES_LIMIT) as usize];
        let length = file.read_at(&mut bytes, 0)?;
        bytes.truncate(length);
        let index = match SealedIndex::parse(bytes.clone().into(), self.incarnation) {
            Ok(index) if index.segment() == number && index.end() == end => index,
            Ok(_) => {
                self.notes.add(
                    Severity::Warning,
                    &name,
                    None,
                    "it belongs to another segment; it is made again when it is wanted",
                );
                return Ok(());
            }
            Err(error) => {
                self.notes.add(Severity::Warning, &name, None, format!("{error}; it is made again when it is wanted"));
                return Ok(());
            }
        };
        // An index made before its segment was damaged lists what is lost, rightly.
        if check.has_damage {
            return Ok(());
        }
        let last_crc = check.last_crc.unwrap_or(index.last_crc());
        let mut expected = check.index.content(self.incarnation, number, end, last_crc, index.newest_at_us());
        // What a start found lost behind the segment's last record stands in the index alone.
        expected.damage = index.damage();
        if expected.encode() != bytes {
            self.notes.add(
                Severity::Loss,
                &name,
                None,
                "it is whole and does not say what its segment holds; delete it and it is made again",
            );
            return Ok(());
        }
        self.notes.report.indexes += 1;
        for lost in index.damage() {
            let text = format!("the log lost what was here, up to position {}, before it went on in another segment", lost.end);
            self.notes.add(Severity::Loss, &names::segment(number), Some(u64::from(lost.start)), text);
        }
        Ok(())
    }
}

impl SegmentCheck {
    fn found(&mut self, found: Found, state: &mut State, checkpoint: Lsn) {
        match found {
            Found::Record(record) => {
                self.records += 1;
                self.first_previous_crc.get_or_insert(Some(record.header.previous_crc));
                self.last_crc = Some(record.header_crc);
                let goes_on = record.header.flags & FLAG_TRANSACTION_GOES_ON != 0;
                self.run.push(record);
                if !goes_on {
                    self.finish_run(state, checkpoint);
                }
            }
            Found::Damage(damage) => {
                self.finish_run(state, checkpoint);
                self.has_damage = true;
                self.index.push_damage(damage);
                self.first_previous_crc.get_or_insert(None);
                let text = format!("damaged up to position {}; what was there is lost", damage.end);
                self.findings.push((Severity::Loss, u64::from(damage.start), text));
            }
            Found::Hole(hole) => {
                self.finish_run(state, checkpoint);
                self.first_previous_crc.get_or_insert(None);
                self.last_crc = Some(hole.last_crc);
            }
        }
    }

    fn finish_run(&mut self, state: &mut State, checkpoint: Lsn) {
        for record in std::mem::take(&mut self.run) {
            self.accept(&record, state, checkpoint);
        }
    }

    fn accept(&mut self, record: &Record, state: &mut State, checkpoint: Lsn) {
        let is_replayed = record.header.lsn >= checkpoint;
        let position = u64::from(record.position);
        match record.header.kind {
            RecordKind::Frontier => {}
            RecordKind::Control => match ControlOp::decode_all(&record.body()) {
                Ok(operations) if is_replayed => operations.iter().for_each(|operation| state.apply(operation)),
                Ok(_) => {}
                Err(_) => self.findings.push((Severity::Loss, position, "a control record does not decode".to_owned())),
            },
            RecordKind::Batch => {
                index_record(&mut self.index, record);
                match open_batch(record) {
                    Ok(messages) => {
                        self.batches += 1;
                        self.messages += messages;
                    }
                    Err(error) => self.findings.push((Severity::Loss, position, format!("a batch does not open: {error}"))),
                }
                if let Some(batch) = record.batch
                    && let Some(text) = state.put_batch(batch.partition, batch.base_offset, batch.count, is_replayed)
                {
                    self.findings.push((Severity::Loss, position, text));
                }
            }
        }
    }
}

/// Decodes everything in a batch; how many messages it has.
fn open_batch(record: &Record) -> Result<u64, crate::record::BatchError> {
    let stored = StoredBatch::parse(record.bytes.clone())?;
    stored.annex()?;
    let mut messages = 0;
    let open = stored.open()?;
    for (index, entry) in (0u32..).zip(open.entries()?) {
        open.message(index, &entry?)?;
        messages += 1;
    }
    Ok(messages)
}
