//! Opening a log: which segments there are, where the last one ends, what happened since the checkpoint.
//!
//! Nothing is deleted, renumbered or taken for empty because it cannot be read. A torn tail is cut by ending its segment before it
//! and going on in a new one; its bytes stay where they are and a copy is kept aside. Damage before the durable frontier stays in
//! place and is reported. Opening twice, or crashing while opening, changes nothing of that.

use std::sync::Arc;

use crate::format::index::Damage;
use crate::format::segment::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::{FormatError, Lsn, lsn, lsn_segment, names};
use crate::record::FLAG_TRANSACTION_GOES_ON;
use crate::storage::disk::{Access, Dir, DiskError, File};

use super::scan::{self, Chain, Found, Record, Tail};
use super::segment::{index_record, replace_file};
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
    /// A segment is not there.
    MissingSegment(u32),
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
    /// Whether nothing may be written (verification of a directory that may be in use).
    pub is_read_only: bool,
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

struct Opening<'a> {
    dir: &'a Arc<dyn Dir>,
    options: &'a OpenLog,
    findings: Vec<LogFinding>,
    replayed: u64,
    missing: Vec<u32>,
    replay: &'a mut dyn FnMut(&Record),
}

impl Opening<'_> {
    /// Segment numbers in order. Files that a crash left half made are removed: no record ever lay in them.
    fn list(&mut self) -> Result<Vec<u32>, LogError> {
        let mut numbers = Vec::new();
        for entry in self.dir.list()? {
            let name = entry.name.as_str();
            let is_ours = entry.is_directory
                || name == names::TABLE
                || names::parse_index(name).is_some()
                || names::is_kept_aside(name)
                || name == names::temporary(names::TABLE);
            if let Some(number) = names::parse_segment(name) {
                numbers.push(number);
            } else if names::parse_new_segment(name).is_some() || is_temporary_index(name) {
                if !self.options.is_read_only {
                    self.dir.remove(name)?;
                }
            } else if !is_ours {
                self.findings.push(LogFinding::ForeignFile(entry.name));
            }
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn note_missing(&mut self, numbers: &[u32]) {
        let Some(&last) = numbers.last() else { return };
        let first = self.options.first_segment.min(last);
        let checkpoint_segment = lsn_segment(self.options.checkpoint);
        let expected = first..last.max(checkpoint_segment) + 1;
        let gone: Vec<u32> = expected.filter(|number| numbers.binary_search(number).is_err()).collect();
        self.findings.extend(gone.iter().map(|&number| LogFinding::MissingSegment(number)));
        self.missing = gone;
    }

    fn make_log(mut self) -> Result<LogRecovery, LogError> {
        let mut number = 1;
        if self.options.checkpoint != 0 {
            let lost = lsn_segment(self.options.checkpoint);
            self.missing = (self.options.first_segment.min(lost)..=lost).collect();
            self.findings.extend(self.missing.iter().map(|&number| LogFinding::MissingSegment(number)));
            number = lost + 1;
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
        let mut bytes = [0; 128];
        let length = file.read_at(&mut bytes, 0)?;
        let reason = match SegmentHeader::decode(&bytes[..length]) {
            Err(error @ FormatError::Newer { .. }) => return Err(error.into()),
            Ok(header) if header.incarnation == self.options.incarnation && header.number == number => return Ok(Some(header)),
            Ok(header) => format!("it belongs to segment {:08x} of queue {:016x}", header.number, header.incarnation),
            Err(error) => error.to_string(),
        };
        self.findings.push(LogFinding::BadSegmentHeader { segment: number, reason });
        Ok(None)
    }

    /// A segment with another one behind it. `end` comes from that one's header.
    fn open_sealed(&mut self, number: u32, end: Option<u32>) -> Result<Segment, LogError> {
        let length = self.dir.open(&names::segment(number), Access::Read)?.length()?;
        let incarnation = self.options.incarnation;
        let indexed = Segment::read_index_summary(self.dir.as_ref(), incarnation, number)?;
        let end = match (end, &indexed) {
            (Some(end), _) => end,
            (None, Some(summary)) => summary.end,
            (None, None) => {
                let probe = Segment::growing(Arc::clone(self.dir), incarnation, number, length, 0);
                let chain = Chain { incarnation, previous_crc: None, epoch: 0 };
                scan::tail(&probe, chain, length, lsn(number, u32::MAX), |_| {})?.end
            }
        };
        let is_replayed = number >= lsn_segment(self.options.checkpoint);
        let summary = indexed.filter(|summary| summary.end == end);
        if let (Some(summary), false) = (summary, is_replayed) {
            let segment = Segment::sealed(Arc::clone(self.dir), incarnation, number, length.max(u64::from(end)), end);
            segment.publish(end, summary.last_crc, summary.newest_at_us);
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
        })?;
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
        let access = if options.is_read_only { Access::Read } else { Access::ReadWrite };
        let file = self.dir.open(&names::segment(number), access)?;
        let length = file.length()?;
        let segment = Segment::growing(Arc::clone(self.dir), options.incarnation, number, length, SEGMENT_HEADER_BYTES);
        let chain = Chain {
            incarnation: options.incarnation,
            previous_crc: header.map(|header| header.previous_crc),
            epoch: header.map_or(0, |header| header.epoch),
        };
        let tail = self.scan_last(&segment, chain, length)?;
        let segment = Arc::new(segment);
        segments.push(Arc::clone(&segment));
        let log = Arc::new(Log::new(Arc::clone(self.dir), options.incarnation, segments, std::mem::take(&mut self.missing)));
        let epoch = options.epoch.max(tail.epoch.saturating_add(1));
        let end = segment.lsn(tail.end);
        let is_short = end < options.checkpoint;
        if is_short {
            self.findings.push(LogFinding::EndsBeforeCheckpoint { end, checkpoint: options.checkpoint });
        }
        if !options.is_read_only {
            // What the scan accepted may lie in the page cache alone; it is shown to readers from now on, so it must be durable.
            file.sync_data()?;
            self.keep_aside(file.as_ref(), &tail, number)?;
        }
        let is_torn = tail.torn.is_some();
        if let Some(torn) = tail.torn {
            self.findings.push(LogFinding::TornTail {
                segment: number,
                position: tail.end,
                bytes: torn.end - tail.end,
                reason: torn.reason,
                has_records_behind: torn.has_records_behind,
            });
        }
        let durable = if options.is_read_only { tail.durable } else { end };
        let mut writer = LogWriter::new(log, segment, file, tail.last_crc, epoch, durable);
        let is_unfit = is_torn || is_short || header.is_none() || length < u64::from(SEGMENT_HEADER_BYTES);
        if is_unfit && !options.is_read_only {
            writer.roll_away(options.checkpoint, options.segment_bytes_max, options.now_us)?;
        }
        Ok(LogRecovery { writer, findings: self.findings, replayed: self.replayed })
    }

    /// Scans the last segment; a transaction whose last record is missing counts as a torn tail from its first record on.
    fn scan_last(&mut self, segment: &Segment, chain: Chain, length: u64) -> Result<Tail, LogError> {
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
        let mut tail = scan::tail(segment, chain, length, checkpoint, |found| match found {
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
        })?;
        if let Some(first) = run.first() {
            let torn_end = tail.torn.as_ref().map_or(tail.end, |torn| torn.end);
            let reason = "the transaction's last record is missing".to_owned();
            tail.torn = Some(scan::Torn { reason, end: torn_end, has_records_behind: false });
            tail.end = first.position;
            tail.last_crc = accepted_crc;
        }
        segment.publish(tail.end, tail.last_crc, newest);
        Ok(tail)
    }

    fn keep_aside(&self, file: &dyn File, tail: &Tail, number: u32) -> Result<(), DiskError> {
        let Some(torn) = &tail.torn else { return Ok(()) };
        let mut bytes = vec![0; (torn.end - tail.end) as usize];
        file.read_exact_at(&mut bytes, u64::from(tail.end))?;
        replace_file(self.dir.as_ref(), &names::kept_aside(number, tail.end), &bytes)
    }
}

fn damaged(segment: u32, damage: Damage) -> LogFinding {
    LogFinding::Damaged { segment, start: damage.start, end: damage.end }
}

fn is_temporary_index(name: &str) -> bool {
    name.strip_suffix(".tmp").is_some_and(|name| names::parse_index(name).is_some() || names::is_kept_aside(name))
}
