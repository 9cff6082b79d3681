//! Opening a log: which segments there are, where the last one ends, what happened since the checkpoint.
//!
//! Nothing is deleted, renumbered or taken for empty because it cannot be read. A torn tail is cut by ending its segment before it
//! and going on in a new one; its bytes stay where they are and a copy is kept aside. Damage before the durable frontier stays in
//! place and is reported. Opening twice, or crashing while opening, changes nothing of that.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::format::index::{Damage, IndexSummary};
use crate::format::segment::{SEGMENT_BYTES_LIMIT, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::{FormatError, Lsn, lsn, lsn_position, lsn_segment, names};
use crate::record::FLAG_TRANSACTION_GOES_ON;
use crate::storage::disk::{Access, Dir, DiskError, DiskErrorKind, Entry, File, create_temporary};

use super::holes::read_holes;
use super::scan::{self, Chain, Found, Record, Tail};
use super::segment::index_record;
use super::writer::make_first;
use super::{Log, LogError, LogWriter, Segment, position_in};

/// Something that opening a log found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogFinding {
    /// The last write did not finish; nobody was told that it had.
    TornTail {
        /// The segment.
        segment: u32,
        /// Where the log ends before it.
        position: u32,
        /// Bytes behind that end that are not zero; a copy was kept aside.
        bytes: u32,
        /// Why the first record there is refused.
        reason: String,
        /// Whether whole records lie behind it: possible loss within the last commit if a disk broke its promise.
        has_records_behind: bool,
    },
    /// Bytes that were durable do not read as they were written.
    Damaged {
        /// The segment.
        segment: u32,
        /// First damaged position.
        start: u32,
        /// First position behind.
        end: u32,
    },
    /// Segments that are not there.
    MissingSegments {
        /// The first of them.
        first: u32,
        /// The last of them.
        last: u32,
    },
    /// A segment's header does not read; its records are served all the same.
    BadSegmentHeader {
        /// The segment.
        segment: u32,
        /// Why.
        reason: String,
    },
    /// The log ends before the checkpoint was taken: newer segments are gone, or older files were put in place.
    EndsBeforeCheckpoint {
        /// Where the log ends.
        end: Lsn,
        /// Where it ended at the checkpoint.
        checkpoint: Lsn,
    },
    /// An index was missing or wrong and was made again.
    IndexRebuilt(u32),
    /// A file that is none of ours; it is left alone.
    ForeignFile(String),
}

impl LogFinding {
    /// Whether it says that data is lost that had been promised to be kept.
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::MissingSegments { .. } | Self::EndsBeforeCheckpoint { .. })
    }
}

impl fmt::Display for LogFinding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TornTail { segment, position, bytes, reason, has_records_behind } => {
                let behind = if *has_records_behind { "; whole records that were never synced lay behind it" } else { "" };
                write!(
                    formatter,
                    "segment {segment:08x} ends at position {position}: the last write did not finish ({reason}), {bytes} bytes are \
                     cut and kept aside{behind}"
                )
            }
            Self::Damaged { segment, start, end } => {
                write!(formatter, "segment {segment:08x} is damaged from position {start} to {end}; what was there is lost")
            }
            Self::MissingSegments { first, last } if first == last => write!(formatter, "segment {first:08x} is missing"),
            Self::MissingSegments { first, last } => write!(formatter, "segments {first:08x} to {last:08x} are missing"),
            Self::BadSegmentHeader { segment, reason } => {
                write!(
                    formatter,
                    "the header of segment {segment:08x} does not read: {reason}; its records are served all the same"
                )
            }
            Self::EndsBeforeCheckpoint { end, checkpoint } => write!(
                formatter,
                "the log ends at position {} of segment {:08x}, before position {} of segment {:08x}, where it ended at the last \
                 checkpoint; what was behind is lost",
                lsn_position(*end),
                lsn_segment(*end),
                lsn_position(*checkpoint),
                lsn_segment(*checkpoint),
            ),
            Self::IndexRebuilt(segment) => {
                write!(formatter, "the index of segment {segment:08x} was missing or wrong and is made again")
            }
            Self::ForeignFile(name) => write!(formatter, "{name:?} is none of our files and is left alone"),
        }
    }
}

/// An opened log.
#[derive(Debug)]
pub struct LogRecovery {
    /// The writer; readers take [`LogWriter::log`].
    pub writer: LogWriter,
    /// What was found.
    pub findings: Vec<LogFinding>,
    /// Records behind the checkpoint that were given to the visitor.
    pub replayed: u64,
}

/// What opening a log needs to know.
#[derive(Debug, Clone, Copy)]
pub struct OpenLog {
    /// The queue's incarnation.
    pub incarnation: u64,
    /// The lowest epoch for this run.
    pub epoch: u32,
    /// Everything before this address is in the checkpoint.
    pub checkpoint: Lsn,
    /// The oldest segment that retention has left.
    pub first_segment: u32,
    /// The largest segment to make.
    pub segment_bytes_max: u64,
    /// Time, for headers of new segments.
    pub now_us: u64,
}

/// Opens the log in `dir`, or makes one if there is none, and gives every record behind the checkpoint to `replay`, in order; of a
/// transaction all records or none.
pub fn open(dir: &Arc<dyn Dir>, options: &OpenLog, replay: &mut dyn FnMut(&Record)) -> Result<LogRecovery, LogError> {
    let mut opening = Opening { dir, options, findings: Vec::new(), replayed: 0, missing: Vec::new(), replay };
    let numbers = opening.list()?;
    let Some((&last, sealed)) = numbers.split_last() else { return opening.make_log() };
    opening.note_missing(&numbers);
    let mut headers = Vec::new();
    for &number in &numbers {
        headers.push(opening.read_header(number)?);
    }
    let mut segments = Vec::new();
    for (at, &number) in sealed.iter().enumerate() {
        let end = headers[at + 1].as_ref().and_then(|header| position_in(header.previous_end, number));
        segments.push(Arc::new(opening.open_sealed(number, end)?));
    }
    opening.open_last(last, headers.last().and_then(Option::as_ref), segments)
}

/// Refuses a log with a segment of a newer format. Changes nothing; other faults are found when it is opened.
pub fn check_format(dir: &dyn Dir, incarnation: u64) -> Result<(), LogError> {
    for entry in dir.list()? {
        match Role::of(&entry) {
            Role::Segment(number) => {
                let _fault = read_header(dir.open(&entry.name, Access::Read)?.as_ref(), incarnation, number)?;
            }
            Role::Holes(number) => {
                let _holes = read_holes(dir, incarnation, number)?;
            }
            _ => {}
        }
    }
    Ok(())
}

struct Opening<'a> {
    dir: &'a Arc<dyn Dir>,
    options: &'a OpenLog,
    findings: Vec<LogFinding>,
    replayed: u64,
    missing: Vec<RangeInclusive<u32>>,
    replay: &'a mut dyn FnMut(&Record),
}

impl Opening<'_> {
    /// Segment numbers in order. Files that a crash left half made are removed: no record ever lay in them.
    fn list(&mut self) -> Result<Vec<u32>, LogError> {
        let mut numbers = Vec::new();
        let mut companions = Vec::new();
        for entry in self.dir.list()? {
            match Role::of(&entry) {
                Role::Segment(number) => numbers.push(number),
                Role::Unfinished => self.dir.remove(&entry.name)?,
                Role::Foreign => self.findings.push(LogFinding::ForeignFile(entry.name)),
                Role::Index(number) | Role::Holes(number) => companions.push((number, entry.name)),
                Role::Other => {}
            }
        }
        numbers.sort_unstable();
        for (number, name) in companions {
            // A crash came between the removal of a segment and that of what belongs to it.
            if number < self.options.first_segment && numbers.binary_search(&number).is_err() {
                self.dir.remove(&name)?;
            }
        }
        Ok(numbers)
    }

    fn note_missing(&mut self, numbers: &[u32]) {
        self.missing = missing(numbers, self.options.first_segment, self.options.checkpoint);
        self.findings
            .extend(self.missing.iter().map(|gone| LogFinding::MissingSegments { first: *gone.start(), last: *gone.end() }));
    }

    fn make_log(mut self) -> Result<LogRecovery, LogError> {
        let mut number = 1;
        if self.options.checkpoint != 0 {
            self.note_missing(&[]);
            number = lsn_segment(self.options.checkpoint).checked_add(1).ok_or(LogError::NumbersUsedUp)?;
        }
        let options = self.options;
        let (file, capacity) = make_first(self.dir.as_ref(), options.incarnation, number, options.epoch, options.now_us)?;
        let segment =
            Arc::new(Segment::growing(Arc::clone(self.dir), options.incarnation, number, capacity, SEGMENT_HEADER_BYTES));
        let log = Log::new(Arc::clone(self.dir), options.incarnation, vec![Arc::clone(&segment)], self.missing);
        let durable = segment.lsn(SEGMENT_HEADER_BYTES);
        let writer = LogWriter::new(Arc::new(log), segment, file, 0, options.epoch, durable);
        Ok(LogRecovery { writer, findings: self.findings, replayed: 0 })
    }

    /// The header of a segment; `None` if it does not read. A newer format refuses the whole log.
    fn read_header(&mut self, number: u32) -> Result<Option<SegmentHeader>, LogError> {
        let file = self.dir.open(&names::segment(number), Access::Read)?;
        match read_header(file.as_ref(), self.options.incarnation, number)? {
            Ok(header) => Ok(Some(header)),
            Err(reason) => {
                self.findings.push(LogFinding::BadSegmentHeader { segment: number, reason });
                Ok(None)
            }
        }
    }

    /// A segment with another one behind it. `end` comes from that one's header.
    fn open_sealed(&mut self, number: u32, end: Option<u32>) -> Result<Segment, LogError> {
        let length = self.dir.open(&names::segment(number), Access::Read)?.length()?.min(SEGMENT_BYTES_LIMIT);
        let incarnation = self.options.incarnation;
        let indexed = Segment::read_index_summary(self.dir.as_ref(), incarnation, number)?;
        let end = sealed_end(self.dir, incarnation, number, length, end, indexed.as_ref())?;
        let is_replayed = number >= lsn_segment(self.options.checkpoint);
        let summary = indexed.filter(|summary| summary.end == end);
        if let (Some(summary), false) = (summary, is_replayed) {
            let segment = Segment::sealed(Arc::clone(self.dir), incarnation, number, length.max(u64::from(end)), end);
            segment.publish(end, summary.last_crc, summary.newest_at_us);
            if length < u64::from(end) {
                self.findings.push(LogFinding::Damaged { segment: number, start: length as u32, end });
            }
            return Ok(segment);
        }
        let segment = Segment::growing(Arc::clone(self.dir), incarnation, number, length.max(u64::from(end)), end);
        self.scan_sealed(&segment, end)?;
        if !is_replayed {
            self.findings.push(LogFinding::IndexRebuilt(number));
        }
        Ok(segment)
    }

    fn scan_sealed(&mut self, segment: &Segment, end: u32) -> Result<(), LogError> {
        let index = segment.growing_index().unwrap_or_default();
        let mut index = index.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (mut last_crc, mut newest) = (0, 0);
        let (findings, replayed, replay) = (&mut self.findings, &mut self.replayed, &mut *self.replay);
        let checkpoint = self.options.checkpoint;
        scan::sealed(segment, self.options.incarnation, end, |found| match found {
            Found::Record(record) => {
                last_crc = record.header_crc;
                newest = newest.max(record.header.created_at_us);
                index_record(&mut index, &record);
                if record.header.lsn >= checkpoint {
                    *replayed += 1;
                    replay(&record);
                }
            }
            Found::Damage(damage) => {
                index.push_damage(damage);
                findings.push(damaged(segment.number(), damage));
            }
            Found::Hole(hole) => {
                last_crc = hole.last_crc;
                findings.extend(beyond_checkpoint(segment.lsn(hole.start), segment.lsn(hole.end), checkpoint));
            }
        })?;
        segment.check_fault()?;
        segment.publish(end, last_crc, newest);
        Ok(())
    }

    fn open_last(
        mut self,
        number: u32,
        header: Option<&SegmentHeader>,
        mut segments: Vec<Arc<Segment>>,
    ) -> Result<LogRecovery, LogError> {
        let options = self.options;
        let file = self.dir.open(&names::segment(number), Access::ReadWrite)?;
        let length = file.length()?.min(SEGMENT_BYTES_LIMIT);
        let segment = Segment::growing(Arc::clone(self.dir), options.incarnation, number, length, SEGMENT_HEADER_BYTES);
        let tail = self.scan_last(&segment, header, length)?;
        let segment = Arc::new(segment);
        segments.push(Arc::clone(&segment));
        let log = Arc::new(Log::new(Arc::clone(self.dir), options.incarnation, segments, std::mem::take(&mut self.missing)));
        let epoch = options.epoch.max(tail.epoch.saturating_add(1));
        let end = segment.lsn(tail.end);
        let is_short = end < options.checkpoint;
        if is_short {
            self.findings.push(LogFinding::EndsBeforeCheckpoint { end, checkpoint: options.checkpoint });
            self.note_lost_tail(&segment, tail.end);
        }
        make_durable(file.as_ref(), &tail, number, length)?;
        let is_torn = tail.torn.is_some();
        if let Some(torn) = tail.torn {
            self.keep_aside(file.as_ref(), number, tail.end, torn.end)?;
            self.findings.push(LogFinding::TornTail {
                segment: number,
                position: tail.end,
                bytes: torn.end - tail.end,
                reason: torn.reason,
                has_records_behind: torn.has_records_behind,
            });
        }
        let mut writer = LogWriter::new(log, segment, file, tail.last_crc, epoch, end);
        if is_torn || is_short || is_spoilt(header, length) {
            writer.roll_away(options.checkpoint, options.segment_bytes_max, options.now_us)?;
        }
        Ok(LogRecovery { writer, findings: self.findings, replayed: self.replayed })
    }

    /// The checkpoint has seen more of this segment than is there: a reader that comes to its end must not take it for the log's.
    fn note_lost_tail(&self, segment: &Segment, end: u32) {
        let lost_end = position_in(self.options.checkpoint, segment.number()).unwrap_or(u32::MAX);
        if let Some(index) = segment.growing_index()
            && lost_end > end
        {
            let mut index = index.write().unwrap_or_else(std::sync::PoisonError::into_inner);
            index.push_damage(Damage { start: end, end: lost_end });
        }
    }

    /// Scans the last segment; a transaction whose last record is missing counts as a torn tail from its first record on.
    fn scan_last(&mut self, segment: &Segment, header: Option<&SegmentHeader>, length: u64) -> Result<Tail, LogError> {
        let chain = Chain {
            incarnation: self.options.incarnation,
            previous_crc: header.map(|header| header.previous_crc),
            epoch: header.map_or(0, |header| header.epoch),
        };
        let index = segment.growing_index().unwrap_or_default();
        let mut index = index.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (mut newest, mut accepted_crc) = (0, chain.previous_crc.unwrap_or(0));
        let mut run: Vec<Record> = Vec::new();
        let checkpoint = self.options.checkpoint;
        let (findings, replayed, replay) = (&mut self.findings, &mut self.replayed, &mut *self.replay);
        let mut accept = |index: &mut _, record: &Record| {
            newest = newest.max(record.header.created_at_us);
            accepted_crc = record.header_crc;
            index_record(index, record);
            if record.header.lsn >= checkpoint {
                *replayed += 1;
                replay(record);
            }
        };
        let mut on_found = |found, run: &mut Vec<Record>| match found {
            Found::Record(record) if record.header.flags & FLAG_TRANSACTION_GOES_ON != 0 => run.push(record),
            Found::Record(record) => {
                run.drain(..).for_each(|part| accept(&mut index, &part));
                accept(&mut index, &record);
            }
            Found::Damage(damage) => {
                // What was durable was acknowledged: the readable parts of a transaction are kept.
                run.drain(..).for_each(|part| accept(&mut index, &part));
                index.push_damage(damage);
                findings.push(damaged(segment.number(), damage));
            }
            Found::Hole(hole) => {
                run.drain(..).for_each(|part| accept(&mut index, &part));
                findings.extend(beyond_checkpoint(segment.lsn(hole.start), segment.lsn(hole.end), checkpoint));
            }
        };
        let mut tail =
            scan::tail(segment, chain, length, checkpoint, is_spoilt(header, length), |found| on_found(found, &mut run))?;
        if let Some(damage) = proven_damage(&tail, header, length) {
            on_found(Found::Damage(damage), &mut run);
            tail.end = damage.end;
            tail.torn = None;
        }
        if let Some(first) = run.first() {
            // A file cut short inside the padding of its last record ends before the next record would begin.
            let torn_end = tail.torn.as_ref().map_or(tail.end, |torn| torn.end).min(length as u32);
            let reason = "the transaction's last record is missing".to_owned();
            tail.torn = Some(scan::Torn { reason, end: torn_end, has_records_behind: false });
            tail.end = first.position;
            tail.last_crc = accepted_crc;
        }
        segment.publish(tail.end, tail.last_crc, newest);
        Ok(tail)
    }

    /// Copies the bytes of a torn tail. They also stay where they are until retention, so a disk without room for a copy is no
    /// reason not to open.
    fn keep_aside(&self, file: &dyn File, number: u32, start: u32, end: u32) -> Result<(), DiskError> {
        let name = names::kept_aside(number, start);
        let temporary = names::temporary(&name);
        match copy_aside(self.dir.as_ref(), file, &temporary, u64::from(start)..u64::from(end)) {
            Err(error) if error.kind == DiskErrorKind::Full => self.dir.remove(&temporary),
            Err(error) => Err(error),
            Ok(()) => {
                self.dir.rename(&temporary, &name)?;
                self.dir.sync()
            }
        }
    }
}

/// What a name in a queue's directory is to the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::storage) enum Role {
    /// A segment.
    Segment(u32),
    /// An index.
    Index(u32),
    /// A list of holes.
    Holes(u32),
    /// Left by a crash in the middle of making it.
    Unfinished,
    /// Somebody else's in this program, or kept for people.
    Other,
    /// None of ours.
    Foreign,
}

impl Role {
    pub(in crate::storage) fn of(entry: &Entry) -> Self {
        let name = entry.name.as_str();
        if entry.is_directory {
            return if name == names::CURSORS { Self::Other } else { Self::Foreign };
        }
        if let Some(number) = names::parse_segment(name) {
            return Self::Segment(number);
        }
        if let Some(number) = names::parse_index(name) {
            return Self::Index(number);
        }
        if let Some(number) = names::parse_holes(name) {
            return Self::Holes(number);
        }
        let replaced = name.strip_suffix(".tmp");
        if names::parse_unused_segment(name).is_some()
            || replaced.is_some_and(|name| {
                names::parse_index(name).is_some() || names::parse_holes(name).is_some() || names::is_kept_aside(name)
            })
        {
            return Self::Unfinished;
        }
        let is_known =
            name == names::TABLE || replaced == Some(names::TABLE) || names::is_damaged_table(name) || names::is_kept_aside(name);
        if is_known { Self::Other } else { Self::Foreign }
    }
}

/// The segments that should be there and are not: between the oldest that retention has left and the newest, or the checkpoint's.
pub(in crate::storage) fn missing(numbers: &[u32], first_segment: u32, checkpoint: Lsn) -> Vec<RangeInclusive<u32>> {
    let newest = numbers.last().copied().unwrap_or(0).max(lsn_segment(checkpoint));
    let mut gone = Vec::new();
    // 64 bits, so that there is a number behind the last one.
    let mut expected = u64::from(first_segment.min(newest));
    for number in numbers.iter().map(|&number| u64::from(number)).chain([u64::from(newest) + 1]) {
        if number > expected {
            gone.push(expected as u32..=(number - 1) as u32);
        }
        expected = expected.max(number + 1);
    }
    gone
}

/// The header of a segment's file, or why it is not that of this segment. A newer format refuses the whole log.
pub(in crate::storage) fn read_header(
    file: &dyn File,
    incarnation: u64,
    number: u32,
) -> Result<Result<SegmentHeader, String>, LogError> {
    let mut bytes = [0; 128];
    let length = file.read_at(&mut bytes, 0)?;
    match SegmentHeader::decode(&bytes[..length]) {
        Err(error @ FormatError::Newer { .. }) => Err(error.into()),
        Ok(header) if header.incarnation == incarnation && header.number == number => Ok(Ok(header)),
        Ok(header) => Ok(Err(format!("it belongs to segment {:08x} of queue {:016x}", header.number, header.incarnation))),
        Err(error) => Ok(Err(error.to_string())),
    }
}

/// Where a sealed segment ends: where the header behind it says, else where its index says, else with the last record that is there.
pub(in crate::storage) fn sealed_end(
    dir: &Arc<dyn Dir>,
    incarnation: u64,
    number: u32,
    length: u64,
    next_header: Option<u32>,
    index: Option<&IndexSummary>,
) -> Result<u32, LogError> {
    if let Some(end) = next_header.or(index.map(|index| index.end)) {
        return Ok(end);
    }
    let probe = Segment::growing(Arc::clone(dir), incarnation, number, length, 0);
    let chain = Chain { incarnation, previous_crc: None, epoch: 0 };
    Ok(scan::tail(&probe, chain, length, lsn(number, u32::MAX), false, |_| {})?.end)
}

/// Whether a last segment has met with what is no crash: a crash neither shortens a file nor spoils a header.
pub(in crate::storage) fn is_spoilt(header: Option<&SegmentHeader>, length: u64) -> bool {
    header.is_none_or(|header| length < u64::from(header.capacity))
}

/// What the end of a last segment is when it cannot be what a crash leaves.
pub(in crate::storage) fn proven_damage(tail: &Tail, header: Option<&SegmentHeader>, length: u64) -> Option<Damage> {
    let end = match (header, &tail.torn) {
        (Some(header), _) if length < u64::from(header.capacity) => header.capacity,
        // Nobody knows how far it reaches.
        (None, Some(_)) => length as u32,
        _ => return None,
    };
    (end > tail.end).then_some(Damage { start: tail.end, end })
}

/// Sees to it that what a scan accepted is on the disk before readers see it. What was not synced may be in the page cache alone, and
/// after a sync that failed it stays there, taken for clean: so it is written again, byte for byte, before the sync.
fn make_durable(file: &dyn File, tail: &Tail, number: u32, length: u64) -> Result<(), DiskError> {
    let known = match lsn_segment(tail.durable).cmp(&number) {
        std::cmp::Ordering::Less => SEGMENT_HEADER_BYTES,
        std::cmp::Ordering::Equal => lsn_position(tail.durable).max(SEGMENT_HEADER_BYTES),
        std::cmp::Ordering::Greater => tail.end,
    };
    in_chunks(file, u64::from(known)..u64::from(tail.end).min(length), |bytes, position| file.write_at(bytes, position))?;
    file.sync_data()
}

/// Copies a range of a file into a temporary one, durably.
fn copy_aside(dir: &dyn Dir, file: &dyn File, temporary: &str, range: std::ops::Range<u64>) -> Result<(), DiskError> {
    let copy = create_temporary(dir, temporary)?;
    let start = range.start;
    in_chunks(file, range, |bytes, position| copy.write_at(bytes, position - start))?;
    copy.sync_data()
}

fn in_chunks(
    file: &dyn File,
    range: std::ops::Range<u64>,
    mut visit: impl FnMut(&[u8], u64) -> Result<(), DiskError>,
) -> Result<(), DiskError> {
    const CHUNK: u64 = 1 << 20;
    let mut chunk = Vec::new();
    let mut position = range.start;
    while position < range.end {
        chunk.resize((range.end - position).min(CHUNK) as usize, 0);
        file.read_exact_at(&mut chunk, position)?;
        visit(&chunk, position)?;
        position += chunk.len() as u64;
    }
    Ok(())
}

/// Nothing is taken out of a log before a checkpoint stands for it: if this one does not, a newer one is lost, and what was to be
/// replayed is gone.
fn beyond_checkpoint(start: Lsn, end: Lsn, checkpoint: Lsn) -> Option<LogFinding> {
    let lost = LogFinding::Damaged { segment: lsn_segment(start), start: lsn_position(start), end: lsn_position(end) };
    (end > checkpoint).then_some(lost)
}

fn damaged(segment: u32, damage: Damage) -> LogFinding {
    LogFinding::Damaged { segment, start: damage.start, end: damage.end }
}
