//! Reading a segment from front to back without an index: for recovery, rebuilding and verification.

use bytes::Bytes;

use crate::format::holes::Hole;
use crate::format::index::Damage;
use crate::format::segment::SEGMENT_HEADER_BYTES;
use crate::format::{Lsn, lsn};
use crate::record::{BatchHeader, RECORD_ALIGNMENT, RECORD_HEADER_BYTES, RecordHeader, padded};
use crate::storage::disk::File;

use super::LogError;
use super::segment::Segment;

/// A verified record.
#[derive(Debug, Clone)]
pub struct Record {
    /// Where it lies in the segment.
    pub position: u32,
    /// Its header.
    pub header: RecordHeader,
    /// Its batch header, if it is a batch.
    pub batch: Option<BatchHeader>,
    /// CRC of its header.
    pub header_crc: u32,
    /// The whole record.
    pub bytes: Bytes,
}

impl Record {
    /// What follows the header.
    pub fn body(&self) -> Bytes {
        self.bytes.slice(self.header.header_length()..)
    }

    /// The position behind its padding.
    pub fn next_position(&self) -> u64 {
        u64::from(self.position) + padded(self.header.length)
    }
}

/// What a scan came upon.
#[derive(Debug)]
pub enum Found {
    /// A record.
    Record(Record),
    /// A range that holds no readable record, with readable ones, or the known end, behind it.
    Damage(Damage),
    /// A range that retention took out.
    Hole(Hole),
}

/// Which records a scan accepts.
#[derive(Debug, Clone, Copy)]
pub struct Chain {
    /// The queue's incarnation.
    pub incarnation: u64,
    /// Header CRC of the record before; `None` if it is not known.
    pub previous_crc: Option<u32>,
    /// The lowest epoch that the next record may have: epochs never go down.
    pub epoch: u32,
}

/// The record at a position, if a whole and right one lies there; else why not. What a map shows in place of a page that cannot be
/// read is no answer: the file is asked then, and if it refuses, `Segment::take_fault` says so.
pub fn record_at(segment: &Segment, chain: &Chain, position: u64, limit: u64) -> Result<Result<Record, String>, LogError> {
    let mapped = look_at(segment, chain, position, limit, |start, end| segment.slice(start, end))?;
    if mapped.is_ok() || !segment.take_fault() {
        return Ok(mapped);
    }
    match look_at(segment, chain, position, limit, |start, end| segment.read(start, end)) {
        Err(LogError::Disk(error)) => {
            segment.note_fault();
            Ok(Err(error.to_string()))
        }
        looked => looked,
    }
}

fn look_at(
    segment: &Segment,
    chain: &Chain,
    position: u64,
    limit: u64,
    read: impl Fn(u64, u64) -> Result<Bytes, LogError>,
) -> Result<Result<Record, String>, LogError> {
    let header_end = (position + crate::record::BATCH_HEADER_BYTES as u64).min(limit);
    if position + RECORD_HEADER_BYTES as u64 > limit {
        return Ok(Err("the file ends".to_owned()));
    }
    let head = read(position, header_end)?;
    let (header, batch, header_crc) = match RecordHeader::decode(&head) {
        Ok(decoded) => decoded,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let place = lsn(segment.number(), position as u32);
    if header.incarnation != chain.incarnation || header.lsn != place {
        return Ok(Err(format!("the record belongs to address {:#x} of queue {:016x}", header.lsn, header.incarnation)));
    }
    if header.epoch < chain.epoch {
        return Ok(Err(format!("the record is of epoch {}, which is over", header.epoch)));
    }
    if chain.previous_crc.is_some_and(|crc| crc != header.previous_crc) {
        return Ok(Err("the record does not follow the one before it".to_owned()));
    }
    let end = position + u64::from(header.length);
    if end > limit {
        return Ok(Err("the record is cut short by the end of the file".to_owned()));
    }
    let bytes = read(position, end)?;
    if crc32fast::hash(&bytes[header.header_length()..]) != header.body_crc {
        return Ok(Err("checksum of the record is wrong".to_owned()));
    }
    Ok(Ok(Record { position: position as u32, header, batch, header_crc, bytes }))
}

/// The first whole record at or behind `from`, whatever precedes it.
pub fn find_record(segment: &Segment, chain: &Chain, from: u64, limit: u64) -> Result<Option<Record>, LogError> {
    const WINDOW: u64 = 1 << 20;
    let chain = Chain { previous_crc: None, ..*chain };
    let magic = crate::record::RECORD_MAGIC.to_le_bytes();
    let mut start = from.next_multiple_of(RECORD_ALIGNMENT as u64);
    while start < limit {
        let end = (start + WINDOW).min(limit);
        let window = segment.slice(start, end)?;
        let is_zero = window.iter().all(|&byte| byte == 0);
        if !is_zero {
            for (at, word) in window.chunks(RECORD_ALIGNMENT).enumerate() {
                if word.starts_with(&magic)
                    && let Ok(record) = record_at(segment, &chain, start + (at * RECORD_ALIGNMENT) as u64, limit)?
                {
                    return Ok(Some(record));
                }
            }
        }
        start = end;
    }
    Ok(None)
}

/// Whether a range of a segment's file is all zeros.
pub(in crate::storage) fn is_zero(segment: &Segment, start: u64, end: u64) -> Result<bool, LogError> {
    Ok(last_nonzero(segment.open_file()?.as_ref(), start, end)? == start)
}

/// How a scan of the last segment ended.
#[derive(Debug)]
pub struct Tail {
    /// Where the accepted records end.
    pub end: u32,
    /// Header CRC of the last accepted record.
    pub last_crc: u32,
    /// Its epoch, or the chain's.
    pub epoch: u32,
    /// Everything before this address was durable at some time.
    pub durable: Lsn,
    /// Bytes behind `end` that are not zero: a torn tail, with the reason why the first record is refused.
    pub torn: Option<Torn>,
}

/// A torn tail.
#[derive(Debug)]
pub struct Torn {
    /// Why the record at the end is refused.
    pub reason: String,
    /// Where the bytes end that are not zero.
    pub end: u32,
    /// Whether whole records lie behind the refused one: writes that were never synced reached the disk out of order.
    pub has_records_behind: bool,
}

/// Scans a segment whose end is known; everything before it that is no record is damage, also what cannot be read:
/// `Segment::take_fault` tells.
pub fn sealed(segment: &Segment, incarnation: u64, end: u32, mut visit: impl FnMut(Found)) -> Result<(), LogError> {
    let mut chain = Chain { incarnation, previous_crc: None, epoch: 0 };
    let mut position = u64::from(SEGMENT_HEADER_BYTES);
    let limit = u64::from(end).min(segment.readable()?);
    let holes = segment.holes()?;
    while position < limit {
        if let Some(hole) = holes.around(position) {
            position = u64::from(hole.end);
            chain.previous_crc = Some(hole.last_crc);
            visit(Found::Hole(hole));
            continue;
        }
        match record_at(segment, &chain, position, limit)? {
            Ok(record) => {
                position = record.next_position();
                chain = Chain { previous_crc: Some(record.header_crc), epoch: record.header.epoch, ..chain };
                visit(Found::Record(record));
            }
            Err(_) => {
                let limit = holes.next_start(position).min(limit);
                let next = find_record(segment, &chain, position + RECORD_ALIGNMENT as u64, limit)?;
                let behind = next.as_ref().map_or(limit, |record| u64::from(record.position));
                visit(Found::Damage(Damage { start: position as u32, end: behind as u32 }));
                chain.previous_crc = None;
                position = behind;
            }
        }
    }
    // A file cut short: what should be behind its end is lost.
    if position < u64::from(end) {
        visit(Found::Damage(Damage { start: position as u32, end }));
    }
    Ok(())
}

/// Scans the last segment of a log, whose end is not known. `durable` is what is known from elsewhere to have been durable. A bad
/// record before the durable frontier is damage; one at or behind it is a torn tail. In a file that is spoilt in another place, by
/// what no crash does, every bad record with whole ones behind it is damage.
pub fn tail(
    segment: &Segment,
    mut chain: Chain,
    length: u64,
    mut durable: Lsn,
    is_spoilt: bool,
    mut visit: impl FnMut(Found),
) -> Result<Tail, LogError> {
    let mut position = u64::from(SEGMENT_HEADER_BYTES);
    let mut last_crc = chain.previous_crc.unwrap_or(0);
    // The segments behind a sealed one may be lost.
    let holes = segment.holes()?;
    loop {
        if let Some(hole) = holes.around(position).filter(|hole| u64::from(hole.end) <= length) {
            position = u64::from(hole.end);
            last_crc = hole.last_crc;
            chain.previous_crc = Some(hole.last_crc);
            durable = durable.max(segment.lsn(hole.end));
            visit(Found::Hole(hole));
            continue;
        }
        let reason = match record_at(segment, &chain, position, length)? {
            Ok(record) => {
                position = record.next_position();
                durable = durable.max(record.header.durable_lsn);
                last_crc = record.header_crc;
                chain = Chain { previous_crc: Some(record.header_crc), epoch: record.header.epoch, ..chain };
                visit(Found::Record(record));
                continue;
            }
            Err(reason) => reason,
        };
        let place = segment.lsn(position as u32);
        // Whole records behind the bad one tell, by the frontier that they carry, whether it had been durable.
        let mut behind = find_record(segment, &chain, position + RECORD_ALIGNMENT as u64, length)?;
        let first_behind = behind.as_ref().map(|record| record.position);
        let has_records_behind = behind.is_some();
        while !is_spoilt && let Some(record) = &behind {
            durable = durable.max(record.header.durable_lsn);
            if durable > place {
                break;
            }
            behind = find_record(segment, &chain, record.next_position(), length)?;
        }
        segment.check_fault()?;
        if durable > place || (is_spoilt && has_records_behind) {
            let end = match first_behind {
                Some(position) => u64::from(position),
                None => durable_end(durable, segment.number(), length),
            };
            let end = end.min(holes.next_start(position));
            if end > position {
                visit(Found::Damage(Damage { start: position as u32, end: end as u32 }));
                chain.previous_crc = None;
                position = end;
                continue;
            }
        }
        let torn_end = last_nonzero(segment.open_file()?.as_ref(), position, length)?;
        let torn = (torn_end > position).then_some(Torn { reason, end: torn_end as u32, has_records_behind });
        return Ok(Tail { end: position as u32, last_crc, epoch: chain.epoch, durable, torn });
    }
}

/// Where the durable part of a segment ends, as a position.
fn durable_end(durable: Lsn, number: u32, length: u64) -> u64 {
    if crate::format::lsn_segment(durable) > number {
        length
    } else {
        u64::from(crate::format::lsn_position(durable)).min(length)
    }
}

/// The position behind the last byte at or behind `from` that is not zero; `from` if there is none. Read through the file: in a map a
/// sector that cannot be read shows zeros, and an end of the log must not be made of those.
fn last_nonzero(file: &dyn File, from: u64, length: u64) -> Result<u64, LogError> {
    const WINDOW: u64 = 1 << 20;
    let mut window = Vec::new();
    let mut end = length;
    while end > from {
        let start = end.saturating_sub(WINDOW).max(from);
        window.resize((end - start) as usize, 0);
        file.read_exact_at(&mut window, start)?;
        if let Some(at) = window.iter().rposition(|&byte| byte != 0) {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(from)
}
