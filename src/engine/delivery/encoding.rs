//! The bytes of a cursor.

use crate::codec::{Put, Reader, UnexpectedEnd};
use crate::model::OffsetRange;
use crate::record::Offset;

use super::cursor::{Cursor, WINDOW};
use super::notes::{ERROR_BYTES_MAX, Note, Notes};
use super::runs::{OffsetSet, Runs};

/// Runs of delivery counts that are encoded, the lowest first. The counts of the rest are those of a delivery that nobody
/// answered, and are forgotten in a restart.
const DELIVERY_RUNS_MAX: usize = 1_024;

/// The high half of the first byte. Never 0, so that zeros do not decode.
const FORMAT: u8 = 0x10;
const HAS_DONE_RUNS: u8 = 1;
const HAS_DONE_BITMAP: u8 = 2;
const HAS_DELIVERIES: u8 = 4;
const HAS_NOTES: u8 = 8;

/// Why bytes are not a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    /// The bytes end before the cursor does, or an integer is written in a way that the writer never uses.
    #[error("cursor ends early or has a malformed integer")]
    UnexpectedEnd,
    /// The first byte names a format that this version does not know.
    #[error("unknown cursor format {0:#04x}")]
    Format(u8),
    /// A value contradicts the rest.
    #[error("cursor has a bad {0}")]
    Invalid(&'static str),
}

impl From<UnexpectedEnd> for CursorError {
    fn from(_: UnexpectedEnd) -> Self {
        Self::UnexpectedEnd
    }
}

impl Cursor {
    /// Appends the cursor: about 10 to 20 bytes for a plain one. With work in flight it grows by the runs of what is done
    /// (at most 2 KiB inside the window) and of delivery counts (at most 1,024), and by each message that was handed back.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let (done_flag, done) = self.encode_done();
        let flags = done_flag
            | if self.deliveries.is_empty() { 0 } else { HAS_DELIVERIES }
            | if self.notes.is_empty() { 0 } else { HAS_NOTES };
        bytes.put_u8(FORMAT | flags);
        bytes.put_varint(self.next);
        bytes.put_varint(self.version);
        // Nearly always close to `next`: the difference is a byte or two.
        bytes.put_varint(zigzag(self.next.wrapping_sub(self.total_consumed)));
        bytes.put_varint(self.last_consumed_at_us);
        bytes.put_bytes(&done);
        if !self.deliveries.is_empty() {
            bytes.put_varint(self.deliveries.run_count().min(DELIVERY_RUNS_MAX) as u64);
            let mut at = self.next;
            for (run, count) in self.deliveries.iter().take(DELIVERY_RUNS_MAX) {
                bytes.put_varint(run.first - at);
                bytes.put_varint(run.last - run.first);
                bytes.put_varint(u64::from(count));
                at = run.last.saturating_add(1);
            }
        }
        if !self.notes.is_empty() {
            bytes.put_varint(self.notes.len() as u64);
            let mut at = self.next;
            for (offset, note) in self.notes.iter() {
                bytes.put_varint(offset - at);
                bytes.put_varint(u64::from(note.failures));
                bytes.put_sized(note.error.as_bytes());
                at = offset.saturating_add(1);
            }
        }
    }

    /// What is done above `next`, as runs or as a bitmap, whichever is shorter.
    fn encode_done(&self) -> (u8, Vec<u8>) {
        let mut bytes = Vec::new();
        let Some(last) = self.done.last() else { return (0, bytes) };
        bytes.put_varint(self.done.run_count() as u64);
        // `next` is never done and runs are never adjacent, so at least one offset lies before each run.
        let mut at = self.next;
        for (run, ()) in self.done.iter() {
            bytes.put_varint(run.first - at - 1);
            bytes.put_varint(run.last - run.first);
            at = run.last.saturating_add(1);
        }
        let span = last - self.next;
        if span > WINDOW || bytes.len() as u64 <= span / 8 + 4 {
            return (HAS_DONE_RUNS, bytes);
        }
        let mut bitmap = vec![0u8; (span as usize).div_ceil(8)];
        for (run, ()) in self.done.iter() {
            for bit in run.first - self.next - 1..=run.last - self.next - 1 {
                bitmap[(bit / 8) as usize] |= 1 << (bit % 8);
            }
        }
        let mut bytes = Vec::new();
        bytes.put_sized(&bitmap);
        (HAS_DONE_BITMAP, bytes)
    }

    /// Reads a cursor that fills `bytes`.
    ///
    /// # Errors
    ///
    /// If the bytes are not exactly one cursor, or of a format that is not known.
    pub fn decode(bytes: &[u8]) -> Result<Self, CursorError> {
        let mut reader = Reader::new(bytes);
        let flags = reader.u8()?;
        if flags & 0xf0 != FORMAT {
            return Err(CursorError::Format(flags));
        }
        let next = reader.varint()?;
        let version = reader.varint()?;
        let total_consumed = next.wrapping_sub(unzigzag(reader.varint()?));
        let last_consumed_at_us = reader.varint()?;
        let mut cursor = Self { next, version, total_consumed, last_consumed_at_us, ..Self::default() };
        match flags & (HAS_DONE_RUNS | HAS_DONE_BITMAP) {
            0 => {}
            HAS_DONE_RUNS => cursor.done = decode_done_runs(&mut reader, next)?,
            HAS_DONE_BITMAP => cursor.done = decode_done_bitmap(&mut reader, next)?,
            _ => return Err(CursorError::Invalid("flag")),
        }
        if flags & HAS_DELIVERIES != 0 {
            cursor.deliveries = decode_deliveries(&mut reader, next)?;
        }
        if flags & HAS_NOTES != 0 {
            cursor.notes = decode_notes(&mut reader, next)?;
        }
        if reader.is_empty() { Ok(cursor) } else { Err(CursorError::Invalid("length")) }
    }
}

/// Where offsets are read as differences: the lowest that may come, or none after the highest offset of all.
fn step(at: Option<Offset>, difference: u64, what: &'static str) -> Result<Offset, CursorError> {
    at.and_then(|at| at.checked_add(difference)).ok_or(CursorError::Invalid(what))
}

fn count(reader: &mut Reader<'_>, what: &'static str) -> Result<u64, CursorError> {
    match reader.varint()? {
        0 => Err(CursorError::Invalid(what)),
        count => Ok(count),
    }
}

fn decode_done_runs(reader: &mut Reader<'_>, next: Offset) -> Result<OffsetSet, CursorError> {
    let mut done = OffsetSet::default();
    let mut at = Some(next);
    for _ in 0..count(reader, "count of done runs")? {
        let first = step(at.and_then(|at| at.checked_add(1)), reader.varint()?, "done run")?;
        let last = step(Some(first), reader.varint()?, "done run")?;
        done.set(OffsetRange { first, last }, ());
        at = last.checked_add(1);
    }
    Ok(done)
}

fn decode_done_bitmap(reader: &mut Reader<'_>, next: Offset) -> Result<OffsetSet, CursorError> {
    let bitmap = reader.sized()?;
    let is_empty = bitmap.last().is_none_or(|&byte| byte == 0);
    if is_empty || bitmap.len() as u64 > WINDOW / 8 {
        return Err(CursorError::Invalid("done bitmap"));
    }
    let mut done = OffsetSet::default();
    for (index, byte) in (0u64..).zip(bitmap) {
        for bit in (0..8).filter(|bit| byte & (1 << bit) != 0) {
            done.insert(step(next.checked_add(1), index * 8 + bit, "done bitmap")?);
        }
    }
    Ok(done)
}

fn decode_deliveries(reader: &mut Reader<'_>, next: Offset) -> Result<Runs<u32>, CursorError> {
    let mut deliveries = Runs::default();
    let mut at = Some(next);
    for _ in 0..count(reader, "count of delivery runs")? {
        let first = step(at, reader.varint()?, "delivery run")?;
        let last = step(Some(first), reader.varint()?, "delivery run")?;
        let times = u32::try_from(count(reader, "delivery count")?).map_err(|_| CursorError::Invalid("delivery count"))?;
        deliveries.set(OffsetRange { first, last }, times);
        at = last.checked_add(1);
    }
    Ok(deliveries)
}

fn decode_notes(reader: &mut Reader<'_>, next: Offset) -> Result<Notes, CursorError> {
    let mut notes = Notes::default();
    let mut at = Some(next);
    for _ in 0..count(reader, "count of notes")? {
        let offset = step(at, reader.varint()?, "note")?;
        let failures = u32::try_from(reader.varint()?).map_err(|_| CursorError::Invalid("failure count"))?;
        let error = std::str::from_utf8(reader.sized()?).map_err(|_| CursorError::Invalid("reason"))?;
        if error.len() > ERROR_BYTES_MAX {
            return Err(CursorError::Invalid("reason"));
        }
        notes.insert(offset, Note { failures, error: error.to_owned() });
        at = offset.checked_add(1);
    }
    Ok(notes)
}

/// Small numbers of either sign as small unsigned ones.
fn zigzag(value: u64) -> u64 {
    (value << 1) ^ if value >> 63 == 1 { u64::MAX } else { 0 }
}

fn unzigzag(value: u64) -> u64 {
    (value >> 1) ^ if value & 1 == 1 { u64::MAX } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::super::cursor::PlainCursor;
    use super::*;

    fn range(first: Offset, last: Offset) -> OffsetRange {
        OffsetRange { first, last }
    }

    fn encoded(cursor: &Cursor) -> Vec<u8> {
        let mut bytes = Vec::new();
        cursor.encode(&mut bytes);
        bytes
    }

    fn plain() -> Cursor {
        PlainCursor { next: 300, version: 200, total_consumed: 298, last_consumed_at_us: 1 }.into()
    }

    fn busy() -> Cursor {
        let mut cursor = plain();
        cursor.done.set(range(302, 303), ());
        cursor.done.insert(310);
        cursor.deliveries.set(range(300, 301), 2);
        cursor.deliveries.set(range(304, 309), 1);
        cursor.notes.hand_back(301, "no", true);
        cursor.notes.hand_back(305, "", false);
        cursor
    }

    fn alternating() -> Cursor {
        let mut cursor = plain();
        (0..400).for_each(|index| cursor.done.insert(301 + 2 * index));
        cursor
    }

    #[test]
    fn golden_bytes() {
        assert_eq!(encoded(&plain()), [0x10, 0xac, 2, 0xc8, 1, 4, 1]);
        #[rustfmt::skip]
        assert_eq!(encoded(&busy()), [
            0x1d, 0xac, 2, 0xc8, 1, 4, 1,
            2, 1, 1, 5, 0,
            2, 0, 1, 2, 2, 5, 1,
            2, 1, 1, 2, b'n', b'o', 3, 0, 0,
        ]);
        let mut dense = plain();
        (0..20).for_each(|index| dense.done.insert(301 + 2 * index));
        assert_eq!(encoded(&dense), [0x12, 0xac, 2, 0xc8, 1, 4, 1, 5, 0x55, 0x55, 0x55, 0x55, 0x55]);
    }

    #[test]
    fn a_cursor_round_trips_and_every_shorter_or_longer_input_is_refused() {
        let far = Cursor { next: u64::MAX - 3, version: u64::MAX, last_consumed_at_us: u64::MAX, ..Cursor::default() };
        let mut end = far.clone();
        end.done.insert(u64::MAX);
        end.deliveries.set(range(u64::MAX - 3, u64::MAX - 1), u32::MAX);
        let ahead = Cursor { next: 5, total_consumed: u64::MAX, ..Cursor::default() };
        for cursor in [Cursor::default(), plain(), busy(), alternating(), far, end, ahead] {
            let mut bytes = encoded(&cursor);
            assert_eq!(Cursor::decode(&bytes).as_ref(), Ok(&cursor));
            assert_eq!(cursor.plain().map(Cursor::from).is_some(), cursor.plain().is_some());
            for cut in 0..bytes.len() {
                assert!(Cursor::decode(&bytes[..cut]).is_err(), "{cut} of {cursor:?}");
            }
            bytes.push(0);
            assert!(Cursor::decode(&bytes).is_err());
        }
    }

    #[test]
    fn flipped_bits_never_panic_and_never_break_the_invariants() {
        for cursor in [busy(), alternating()] {
            let bytes = encoded(&cursor);
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let Ok(other) = Cursor::decode(&flipped) else { continue };
                assert_ne!(other, cursor, "bit {bit}");
                assert!(other.done.first().is_none_or(|first| first > other.next));
                assert!(other.deliveries.first().is_none_or(|first| first >= other.next));
                assert_eq!(Cursor::decode(&encoded(&other)), Ok(other));
            }
        }
    }

    #[test]
    fn lies_are_refused() {
        assert_eq!(Cursor::decode(&[0; 16]), Err(CursorError::Format(0)));
        assert_eq!(Cursor::decode(&[0x20, 0, 0, 0, 0]), Err(CursorError::Format(0x20)));
        assert_eq!(Cursor::decode(&[0x13, 0, 0, 0, 0, 1, 0, 0]), Err(CursorError::Invalid("flag")));
        // A count of runs beyond all bytes costs nothing.
        let mut many = vec![0x11, 0, 0, 0, 0];
        many.put_varint(u64::MAX);
        assert_eq!(Cursor::decode(&many), Err(CursorError::UnexpectedEnd));
        let mut beyond = vec![0x11];
        beyond.put_varint(u64::MAX);
        beyond.put_bytes(&[0, 0, 0, 1, 0, 0]);
        assert_eq!(Cursor::decode(&beyond), Err(CursorError::Invalid("done run")));
        assert_eq!(Cursor::decode(&[0x18, 0, 0, 0, 0, 1, 0, 0, 1, 0xff]), Err(CursorError::Invalid("reason")));
    }

    #[test]
    fn a_plain_cursor_is_small() {
        let idle =
            PlainCursor { next: 1_000_000, version: 40_000, total_consumed: 999_990, last_consumed_at_us: 1_790_000_000_000_000 };
        assert!(encoded(&idle.into()).len() <= 16);
        assert_eq!(Cursor::from(idle).plain(), Some(idle));
        assert_eq!(std::mem::size_of::<PlainCursor>(), 32);
    }

    #[test]
    fn the_worst_done_window_is_two_kibibytes() {
        let mut cursor = Cursor::new(0);
        (0..WINDOW / 2).for_each(|index| cursor.done.insert(1 + 2 * index));
        let bytes = encoded(&cursor);
        assert!(bytes.len() <= 2_060, "{}", bytes.len());
        assert_eq!(Cursor::decode(&bytes), Ok(cursor));
    }
}
