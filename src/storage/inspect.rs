//! What files hold, row by row, for people and programs: segments, indexes, checkpoints, cursor files.
//!
//! Rows are handed out as they are read, and the visitor says when it has seen enough. Damage is a row and never the end of a file that
//! has more. Nothing is changed and no lock is taken.

use std::fmt::Write as _;
use std::sync::Arc;

use serde::Serialize;

use crate::codec::Reader;
use crate::format::control::{ControlOp, key};
use crate::format::cursor::CursorFront;
use crate::format::index::SealedIndex;
use crate::format::segment::{SEGMENT_BYTES_LIMIT, SEGMENT_HEADER_BYTES};
use crate::format::{FormatError, Lsn, names};
use crate::record::{Matches, RECORD_ALIGNMENT, RecordKind, StoredBatch};

use super::disk::{Access, Dir, DiskError};
use super::log::scan::{self, Chain, Record};
use super::log::{LogError, Segment, read_header, read_holes};
use super::slots::{SlotIdentity, Slots, SlotsError};
use super::table::{Table, TableError};

/// Bytes of a value that are shown.
const SHOWN_BYTES_MAX: usize = 64;

/// Why a file cannot be inspected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InspectError {
    /// The name is not that of a file with rows.
    #[error("{0:?} is not the name of a segment, an index, a checkpoint or a cursor file")]
    Name(String),
    /// The segment.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The index.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The checkpoint.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The cursor file.
    #[error(transparent)]
    Slots(#[from] SlotsError),
    /// The disk.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// One row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "row", rename_all = "snake_case")]
pub enum Row {
    /// The header of a segment.
    SegmentHeader {
        /// The segment's number.
        number: u32,
        /// In which epoch it was made.
        epoch: u32,
        /// Where the log ended before it.
        previous_end: Lsn,
        /// Header CRC of the record before it.
        previous_crc: u32,
        /// When it was made, microseconds since the Unix epoch.
        created_at_us: u64,
        /// Bytes of its file.
        capacity: u32,
    },
    /// A record of a segment.
    Record(RecordRow),
    /// Bytes between or behind records that are no record.
    NoRecord {
        /// Where they begin.
        position: u64,
        /// The position behind them.
        end: u64,
        /// Whether all of them are zeros: room that was not used yet, at the end of a segment.
        is_zero: bool,
        /// Why the first of them are no record.
        reason: String,
    },
    /// The header of an index.
    IndexHeader {
        /// The segment's number.
        segment: u32,
        /// Where its records end.
        end: u32,
        /// Header CRC of its last record.
        last_crc: u32,
        /// Time of its newest record.
        newest_at_us: u64,
        /// Partitions in it.
        partitions: u64,
        /// Batches in it.
        batches: u64,
    },
    /// A batch of an index.
    IndexBatch {
        /// The partition.
        partition: u32,
        /// Offset of its first message.
        base_offset: u64,
        /// Messages.
        count: u32,
        /// Where its record lies.
        position: u32,
        /// Bytes of its record.
        length: u32,
        /// When it was stored.
        created_at_us: u64,
    },
    /// A damaged range of an index.
    IndexDamage {
        /// First damaged position.
        start: u32,
        /// The position behind.
        end: u32,
    },
    /// An entry of a checkpoint, in the order of the file: the last one of a key counts.
    TableEntry {
        /// What it is about, as a word.
        kind: String,
        /// The first number of its key.
        a: u32,
        /// The second number of its key.
        b: u32,
        /// What it says; `None` if it removes the key.
        value: Option<String>,
    },
    /// The end of a checkpoint.
    TableEnd {
        /// Good blocks.
        blocks: u64,
        /// How far it covers the log.
        lsn: Lsn,
        /// Where a last block begins that was never finished.
        torn_from: Option<u64>,
        /// Damaged ranges: first position and position behind.
        damage: Vec<(u64, u64)>,
    },
    /// A slot of a cursor file.
    Slot {
        /// Which of the two, 0 or 1.
        index: u8,
        /// What is wrong with it; the rest is absent then.
        fault: Option<String>,
        /// Which write it was: the higher one counts.
        sequence: Option<u64>,
        /// How far it covers the log.
        lsn: Option<Lsn>,
        /// The next offset wanted.
        next: Option<u64>,
        /// The version of the cursor.
        version: Option<u64>,
        /// The bytes of the cursor.
        body: Option<String>,
    },
}

/// A record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecordRow {
    /// Where it lies.
    pub position: u32,
    /// Its bytes, without padding.
    pub length: u32,
    /// `batch`, `control` or `frontier`.
    pub kind: &'static str,
    /// Whether its transaction goes on in the next record.
    pub goes_on: bool,
    /// Its epoch.
    pub epoch: u32,
    /// Its address.
    pub lsn: Lsn,
    /// Everything before this address was durable when it was written.
    pub durable_lsn: Lsn,
    /// Time of its commit.
    pub created_at_us: u64,
    /// CRC of its header.
    pub header_crc: u32,
    /// Header CRC of the record before it, as it says.
    pub previous_crc: u32,
    /// Whether that is the record before it; `None` where that one is not known.
    pub follows: Option<bool>,
    /// What a batch holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchRow>,
    /// What a control record says, one text for each operation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub operations: Vec<String>,
    /// What does not decode in it, though its checksums are right.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BatchRow {
    /// The partition.
    pub partition: u32,
    /// Offset of its first message.
    pub base_offset: u64,
    /// Offset of its last message.
    pub last_offset: u64,
    /// Messages.
    pub count: u32,
    /// 0 plain, 1 zstd.
    pub codec: u8,
    /// Bytes of the uncompressed block.
    pub uncompressed_length: u32,
    /// Whether a message has a transaction id of its own.
    pub has_ids: bool,
    /// (producer id, epoch, sequence, messages) of each push of a producer.
    pub producers: Vec<(u64, u32, u32, u32)>,
    /// (group, messages that it takes) for each group in the match table.
    pub matches: Vec<(u32, u32)>,
}

/// Inspects a file of a queue's directory, by its name; a cursor file by its name in the cursor directory.
///
/// # Errors
///
/// If the name is none of these, or the file cannot be read as what its name says.
pub fn inspect(
    queue_dir: &Arc<dyn Dir>,
    incarnation: u64,
    name: &str,
    visit: &mut dyn FnMut(Row) -> bool,
) -> Result<(), InspectError> {
    if let Some(number) = names::parse_segment(name) {
        return inspect_segment(queue_dir, incarnation, number, visit);
    }
    if let Some(number) = names::parse_index(name) {
        return inspect_index(queue_dir, incarnation, number, visit);
    }
    if let Some((group, partition)) = names::parse_cursor(name) {
        return inspect_cursor(queue_dir, SlotIdentity { incarnation, partition, group }, visit);
    }
    if name == names::TABLE || names::is_damaged_table(name) {
        return inspect_table(queue_dir, incarnation, name, visit);
    }
    Err(InspectError::Name(name.to_owned()))
}

fn inspect_segment(
    dir: &Arc<dyn Dir>,
    incarnation: u64,
    number: u32,
    visit: &mut dyn FnMut(Row) -> bool,
) -> Result<(), InspectError> {
    let file = dir.open(&names::segment(number), Access::Read)?;
    let limit = file.length()?.min(SEGMENT_BYTES_LIMIT);
    let mut previous_crc = None;
    let row = match read_header(file.as_ref(), incarnation, number)? {
        Ok(header) => {
            previous_crc = Some(header.previous_crc);
            Row::SegmentHeader {
                number: header.number,
                epoch: header.epoch,
                previous_end: header.previous_end,
                previous_crc: header.previous_crc,
                created_at_us: header.created_at_us,
                capacity: header.capacity,
            }
        }
        Err(reason) => Row::NoRecord { position: 0, end: u64::from(SEGMENT_HEADER_BYTES), is_zero: false, reason },
    };
    if !visit(row) {
        return Ok(());
    }
    let segment = Segment::growing(Arc::clone(dir), incarnation, number, limit, 0);
    let chain = Chain { incarnation, previous_crc: None, epoch: 0 };
    let mut position = u64::from(SEGMENT_HEADER_BYTES);
    let (holes, _) = read_holes(dir.as_ref(), incarnation, number)?;
    let mut holes = holes.iter().peekable();
    while position < limit {
        if let Some(hole) = holes.next_if(|hole| u64::from(hole.start) <= position) {
            let (start, end) = (position, u64::from(hole.end).min(limit));
            let reason = "removed by retention, and its room given back".to_owned();
            if end > start && !visit(Row::NoRecord { position: start, end, is_zero: false, reason }) {
                return Ok(());
            }
            (position, previous_crc) = (end.max(start), Some(hole.last_crc));
            continue;
        }
        let limit = holes.peek().map_or(limit, |hole| u64::from(hole.start).min(limit));
        let row = match scan::record_at(&segment, &chain, position, limit)? {
            Ok(record) => {
                position = record.next_position();
                let follows = previous_crc.replace(record.header_crc).map(|crc| crc == record.header.previous_crc);
                Row::Record(RecordRow::of(&record, follows))
            }
            Err(reason) => {
                let next = scan::find_record(&segment, &chain, position + RECORD_ALIGNMENT as u64, limit)?;
                let end = next.map_or(limit, |record| u64::from(record.position));
                let is_zero = scan::is_zero(&segment, position, end)?;
                let row = Row::NoRecord { position, end, is_zero, reason };
                (position, previous_crc) = (end, None);
                row
            }
        };
        if !visit(row) {
            return Ok(());
        }
    }
    Ok(())
}

impl RecordRow {
    fn of(record: &Record, follows: Option<bool>) -> Self {
        let header = &record.header;
        let mut row = Self {
            position: record.position,
            length: header.length,
            kind: match header.kind {
                RecordKind::Batch => "batch",
                RecordKind::Control => "control",
                RecordKind::Frontier => "frontier",
            },
            goes_on: header.flags & crate::record::FLAG_TRANSACTION_GOES_ON != 0,
            epoch: header.epoch,
            lsn: header.lsn,
            durable_lsn: header.durable_lsn,
            created_at_us: header.created_at_us,
            header_crc: record.header_crc,
            previous_crc: header.previous_crc,
            follows,
            batch: None,
            operations: Vec::new(),
            error: None,
        };
        match header.kind {
            RecordKind::Batch => row.put_batch(record),
            RecordKind::Control => match ControlOp::decode_all(&record.body()) {
                Ok(operations) => row.operations = operations.iter().map(describe).collect(),
                Err(error) => row.error = Some(format!("an operation does not decode: {error}")),
            },
            RecordKind::Frontier => {}
        }
        row
    }

    fn put_batch(&mut self, record: &Record) {
        let opened = StoredBatch::parse(record.bytes.clone()).and_then(|stored| Ok((stored.annex()?, stored)));
        let (annex, stored) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.error = Some(error.to_string());
                return;
            }
        };
        let batch = stored.batch();
        self.error = stored.messages().err().map(|error| error.to_string());
        self.batch = Some(BatchRow {
            partition: batch.partition,
            base_offset: batch.base_offset,
            last_offset: batch.last_offset(),
            count: batch.count,
            codec: batch.codec,
            uncompressed_length: batch.uncompressed_length,
            has_ids: batch.has_ids,
            producers: annex.producers.iter().map(|mark| (mark.producer_id, mark.epoch, mark.sequence, mark.count)).collect(),
            matches: annex.matches.iter().map(|(group, matches): &(u32, Matches)| (*group, matches.count(batch.count))).collect(),
        });
    }
}

fn inspect_index(
    dir: &Arc<dyn Dir>,
    incarnation: u64,
    number: u32,
    visit: &mut dyn FnMut(Row) -> bool,
) -> Result<(), InspectError> {
    let file = dir.open(&names::index(number), Access::Read)?;
    let mut bytes = vec![0; file.length()?.min(SEGMENT_BYTES_LIMIT) as usize];
    let length = file.read_at(&mut bytes, 0)?;
    bytes.truncate(length);
    let index = SealedIndex::parse(bytes.into(), incarnation)?;
    let header = Row::IndexHeader {
        segment: index.segment(),
        end: index.end(),
        last_crc: index.last_crc(),
        newest_at_us: index.newest_at_us(),
        partitions: index.partitions().count() as u64,
        batches: index.batch_count() as u64,
    };
    let batches = (0..index.batch_count()).map(|at| {
        let batch = index.batch(at);
        Row::IndexBatch {
            partition: batch.partition,
            base_offset: batch.base_offset,
            count: batch.count,
            position: batch.position,
            length: batch.length,
            created_at_us: batch.created_at_us,
        }
    });
    let damage = index.damage().into_iter().map(|damage| Row::IndexDamage { start: damage.start, end: damage.end });
    // The visitor says no by ending the walk.
    let _ = std::iter::once(header).chain(batches).chain(damage).all(visit);
    Ok(())
}

fn inspect_table(
    dir: &Arc<dyn Dir>,
    incarnation: u64,
    name: &str,
    visit: &mut dyn FnMut(Row) -> bool,
) -> Result<(), InspectError> {
    let mut goes_on = true;
    let report = Table::read(dir.as_ref(), name, incarnation, |entry| {
        if goes_on {
            let value = entry.value.map(|value| table_value(entry.key.kind, value));
            goes_on = visit(Row::TableEntry { kind: kind_of(entry.key.kind), a: entry.key.a, b: entry.key.b, value });
        }
    })?;
    if goes_on {
        let damage = report.damage.iter().map(|range| (range.start, range.end)).collect();
        let torn_from = report.torn_tail.map(|tail| tail.start);
        visit(Row::TableEnd { blocks: report.blocks, lsn: report.lsn, torn_from, damage });
    }
    Ok(())
}

fn kind_of(kind: u8) -> String {
    let word = match kind {
        key::QUEUE => "queue",
        key::PARTITION => "partition",
        key::GROUP => "group",
        key::CURSOR => "cursor",
        key::DEAD_LETTER => "dead_letter",
        key::COUNTERS => "counters",
        key::APPLIED => "applied",
        key::TRACE => "trace",
        key::JUMP => "jump",
        key::GAP => "gap",
        key::CURSOR_IN_FILE => "cursor_in_file",
        key::LOST => "lost",
        other => return format!("{other}"),
    };
    word.to_owned()
}

fn table_value(kind: u8, value: &[u8]) -> String {
    if kind == key::CURSOR_IN_FILE {
        return String::new();
    }
    match ControlOp::decode(&mut Reader::new(value)) {
        Ok(operation) => describe(&operation),
        Err(_) => format!("does not decode: {}", hex(value)),
    }
}

fn inspect_cursor(dir: &Arc<dyn Dir>, identity: SlotIdentity, visit: &mut dyn FnMut(Row) -> bool) -> Result<(), InspectError> {
    let cursors = dir.dir(names::CURSORS)?;
    let slots = Slots::read_both(cursors.as_ref(), &names::cursor(identity.group, identity.partition), identity)?;
    let rows = (0u8..).zip(slots).map(|(index, slot)| match slot {
        Ok(value) => {
            let front = CursorFront::decode(&value.body).ok();
            Row::Slot {
                index,
                fault: front.is_none().then(|| "its cursor does not decode".to_owned()),
                sequence: Some(value.sequence),
                lsn: Some(value.lsn),
                next: front.map(|front| front.next),
                version: front.map(|front| front.version),
                body: Some(hex(&value.body)),
            }
        }
        Err(fault) => {
            Row::Slot { index, fault: Some(fault.to_string()), sequence: None, lsn: None, next: None, version: None, body: None }
        }
    });
    let _ = { rows }.all(visit);
    Ok(())
}

/// An operation on one line; bytes that belong to the engine are shown as such, up to a limit.
fn describe(operation: &ControlOp) -> String {
    match operation {
        ControlOp::Cursor { group, partition, state } => match CursorFront::decode(state) {
            Ok(front) => {
                format!("cursor of group {group} in partition {partition}: next {}, version {}", front.next, front.version)
            }
            Err(_) => format!("cursor of group {group} in partition {partition}: {}", hex(state)),
        },
        ControlOp::Foreign { incarnation, operation } => match ControlOp::decode(&mut Reader::new(operation)) {
            Ok(inner) if !matches!(inner, ControlOp::Foreign { .. }) => {
                format!("in queue {incarnation:016x}: {}", describe(&inner))
            }
            _ => format!("in queue {incarnation:016x}: {}", hex(operation)),
        },
        ControlOp::DeadLetter { id, state } => format!("dead letter {id}: {}", hex(state)),
        ControlOp::Trace { id, state } => format!("trace {id}: {}", hex(state)),
        ControlOp::Redo { transaction, target, push } => {
            format!("transaction {transaction} pushes into queue {target:016x}: {}", hex(push))
        }
        other => format!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes.iter().take(SHOWN_BYTES_MAX) {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    if bytes.len() > SHOWN_BYTES_MAX {
        let _ = write!(text, "… ({} bytes)", bytes.len());
    }
    text
}
