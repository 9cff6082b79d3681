//! The one writer of a log: appends records, syncs, publishes, rolls segments.

use std::io::IoSlice;
use std::sync::Arc;

use bytes::Bytes;

use crate::format::index::IndexedBatch;
use crate::format::segment::{SEGMENT_BYTES_LIMIT, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::{Lsn, lsn_position, lsn_segment, names};
use crate::record::{
    Annex, BATCH_HEADER_BYTES, BLOCK_BYTES_MAX, BatchHeader, FLAG_TRANSACTION_GOES_ON, Offset, PartitionId, RECORD_BYTES_MAX,
    RECORD_HEADER_BYTES, RecordHeader, RecordKind, crc_of_two, padded,
};
use crate::storage::disk::{Access, Dir, DiskError, DiskErrorKind, File};
use crate::sync::Mutex;

use super::{Log, LogError, Segment};

/// The first segment of a log; each one after is four times as large, up to the queue's limit, so that a small queue costs a small
/// file and a busy one few files.
const FIRST_SEGMENT_BYTES: u64 = 256 << 10;
/// Free bytes that pushes leave on the disk, so that acknowledgements, cursors and retention still have room.
const RESERVE_BYTES: u64 = 4 << 20;

/// A record to append.
#[derive(Debug)]
pub struct OutRecord {
    /// What it holds.
    pub body: OutBody,
    /// Whether the transaction that it is part of goes on in the next record.
    pub goes_on: bool,
}

/// The content of a record to append.
#[derive(Debug)]
pub enum OutBody {
    /// Messages.
    Batch(OutBatch),
    /// Encoded control operations.
    Control(Vec<u8>),
}

/// A batch to append.
#[derive(Debug)]
pub struct OutBatch {
    /// The partition.
    pub partition: PartitionId,
    /// Offset of its first message.
    pub base_offset: Offset,
    /// Messages, index length, uncompressed length, codec, checksum and payload.
    pub packed: crate::model::PackedBatch,
    /// Producers and match table.
    pub annex: Annex,
    /// Hashes of own transaction ids with their messages' indexes.
    pub ids: Vec<(u64, u32)>,
}

/// A batch for the index: where it lies, what groups take of it, and hashes of its own transaction ids with their messages' indexes.
type NewBatch = (IndexedBatch, Annex, Vec<(u64, u32)>);

/// Records that were appended and are not published yet.
#[derive(Debug)]
#[must_use = "appended records become visible when they are published"]
pub struct Appended {
    /// Address of the first.
    pub start: Lsn,
    /// Address behind the last.
    pub end: Lsn,
    /// Bytes written.
    pub bytes: u64,
    /// Where they lie: the log may roll before they are published.
    segment: Arc<Segment>,
    batches: Vec<NewBatch>,
    last_crc: u32,
    created_at_us: u64,
}

impl Appended {
    /// The batches, in the order of the records.
    pub fn batches(&self) -> impl Iterator<Item = &IndexedBatch> {
        self.batches.iter().map(|entry| &entry.0)
    }
}

/// Zeros that are written and synced at once into a spare. With all of it in one sync the disk works on that, and every commit
/// meanwhile waits behind it.
const FILL_BYTES: usize = 1 << 20;

/// A segment file made ahead of need, its blocks written.
#[derive(Debug)]
struct Spare {
    name: String,
    capacity: u64,
}

/// A segment's file before it gets its segment's name: its name now, and its bytes.
type Unnamed = (String, Arc<dyn File>, u64);

/// Makes spare segments in the background.
#[derive(Debug)]
pub struct SpareMaker {
    dir: Arc<dyn Dir>,
    spare: Mutex<Option<Spare>>,
    wanted: Mutex<Option<(u32, u64)>>,
    /// Held while a spare is made, which may take long: one at a time.
    making: Mutex<()>,
}

/// The one writer of a log.
#[derive(Debug)]
pub struct LogWriter {
    log: Arc<Log>,
    spares: Arc<SpareMaker>,
    active: Arc<Segment>,
    file: Arc<dyn File>,
    /// Position behind the last appended record; nothing of ours lies at or behind it.
    end: u32,
    last_crc: u32,
    epoch: u32,
    durable: Lsn,
    /// An append failed: what lies behind `end` is not known, and nothing more is appended to this segment.
    is_tail_unknown: bool,
    poison: Option<DiskError>,
}

impl LogWriter {
    pub(super) fn new(log: Arc<Log>, active: Arc<Segment>, file: Arc<dyn File>, last_crc: u32, epoch: u32, durable: Lsn) -> Self {
        let spares = Arc::new(SpareMaker::new(Arc::clone(&log.dir)));
        let end = active.end();
        Self { log, spares, active, file, end, last_crc, epoch, durable, is_tail_unknown: false, poison: None }
    }

    /// The log for readers.
    pub fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// What makes spare segments, to call from a thread that may wait for the disk.
    pub fn spares(&self) -> &Arc<SpareMaker> {
        &self.spares
    }

    /// The address behind the last appended record.
    pub fn end(&self) -> Lsn {
        self.active.lsn(self.end)
    }

    /// Everything before this address is durable.
    pub fn durable(&self) -> Lsn {
        self.durable
    }

    /// Why the log takes no more writes, if it does not.
    pub fn poison(&self) -> Option<&DiskError> {
        self.poison.as_ref()
    }

    /// Sees to it that `bytes` of records can be appended to the active segment, rolling it if they do not fit. `may_use_reserve` is
    /// for acknowledgements, which make room in the end. Refused as [`DiskErrorKind::Full`] when there is no room; nothing changed then.
    pub fn ensure_room(
        &mut self,
        bytes: u64,
        segment_bytes_max: u64,
        may_use_reserve: bool,
        now_us: u64,
    ) -> Result<(), LogError> {
        if let Some(error) = &self.poison {
            return Err(LogError::Poisoned(error.clone()));
        }
        let fits = u64::from(self.end) + bytes <= self.active.capacity();
        if fits && !self.is_tail_unknown {
            let is_half_full = u64::from(self.end) > self.active.capacity() / 2;
            if is_half_full {
                self.spares
                    .want(self.active.number().saturating_add(1), next_capacity(self.active.capacity(), segment_bytes_max));
            }
            return Ok(());
        }
        let needed = (u64::from(SEGMENT_HEADER_BYTES) + bytes).next_multiple_of(4096);
        if needed > SEGMENT_BYTES_LIMIT {
            let path = self.log.dir.describe();
            return Err(DiskError { operation: "append", path, kind: DiskErrorKind::Full, errno: None }.into());
        }
        let capacity = next_capacity(self.active.capacity(), segment_bytes_max).max(needed);
        self.roll(capacity, needed, may_use_reserve, now_us)
    }

    /// Appends records behind each other with one write. On an error nothing of them will ever be visible.
    ///
    /// # Panics
    ///
    /// If [`LogWriter::ensure_room`] was not asked for their size before.
    pub fn append(&mut self, records: Vec<OutRecord>, now_us: u64) -> Result<Appended, LogError> {
        if let Some(error) = &self.poison {
            return Err(LogError::Poisoned(error.clone()));
        }
        let mut layout = Layout::new(self, now_us, records.len());
        for record in records {
            layout.push(record)?;
        }
        assert!(layout.position <= self.active.capacity(), "room for a commit is made before it is appended");
        let outcome = self.file.write_vectored_at(&layout.slices(), u64::from(self.end));
        let Layout { position, last_crc, batches, .. } = layout;
        if let Err(error) = outcome {
            self.is_tail_unknown = true;
            return Err(error.into());
        }
        let (start, bytes) = (self.end(), position - u64::from(self.end));
        self.end = position as u32;
        self.last_crc = last_crc;
        let segment = Arc::clone(&self.active);
        Ok(Appended { start, end: self.end(), bytes, segment, batches, last_crc, created_at_us: now_us })
    }

    /// Makes everything appended durable. A failure stops all writing until the log is opened again: what the disk holds is not known.
    pub fn sync(&mut self) -> Result<(), LogError> {
        if let Some(error) = &self.poison {
            return Err(LogError::Poisoned(error.clone()));
        }
        if self.durable == self.end() {
            return Ok(());
        }
        if let Err(error) = self.file.sync_data() {
            self.poison = Some(error.clone());
            return Err(LogError::Poisoned(error));
        }
        self.durable = self.end();
        Ok(())
    }

    /// A handle to sync the active segment with, for a caller that does not want to hold the writer meanwhile.
    pub fn sync_handle(&self) -> (Arc<dyn File>, Lsn) {
        (Arc::clone(&self.file), self.end())
    }

    /// Takes note of a sync through [`LogWriter::sync_handle`].
    pub fn synced(&mut self, outcome: Result<(), DiskError>, end: Lsn) -> Result<(), LogError> {
        if let Err(error) = outcome {
            self.poison = Some(error.clone());
            return Err(LogError::Poisoned(error));
        }
        self.durable = self.durable.max(end);
        Ok(())
    }

    /// Makes appended records visible to readers.
    pub fn publish(&mut self, appended: Appended) {
        // The bytes first: whoever finds a batch in the index can read it.
        appended.segment.publish(lsn_position(appended.end), appended.last_crc, appended.created_at_us);
        if let Some(index) = appended.segment.growing_index() {
            let mut index = index.write().unwrap_or_else(std::sync::PoisonError::into_inner);
            for (batch, annex, ids) in &appended.batches {
                index.push(*batch, &annex.matches, ids);
            }
        }
    }

    /// Writes a record that says how far the log is durable. Not synced itself. Does nothing while there are records that are not
    /// published, since the mark is, and everything before it with it.
    pub fn mark_frontier(&mut self, now_us: u64) -> Result<(), LogError> {
        let has_room = u64::from(self.end) + RECORD_HEADER_BYTES as u64 <= self.active.capacity();
        let is_published = self.active.end() == self.end;
        if self.poison.is_some() || self.is_tail_unknown || !has_room || !is_published {
            return Ok(());
        }
        let header = self.header(RecordKind::Frontier, 0, self.end, self.last_crc, now_us);
        let (bytes, crc) = header.encode();
        if let Err(error) = self.file.write_at(&bytes, u64::from(self.end)) {
            self.is_tail_unknown = true;
            return Err(error.into());
        }
        self.end += RECORD_HEADER_BYTES as u32;
        self.last_crc = crc;
        self.active.publish(self.end, crc, 0);
        Ok(())
    }

    fn header(&self, kind: RecordKind, flags: u8, position: u32, previous_crc: u32, now_us: u64) -> RecordHeader {
        RecordHeader {
            kind,
            flags,
            length: if kind == RecordKind::Batch { BATCH_HEADER_BYTES } else { RECORD_HEADER_BYTES } as u32,
            body_crc: 0,
            epoch: self.epoch,
            incarnation: self.log.incarnation,
            lsn: self.active.lsn(position),
            durable_lsn: self.durable,
            created_at_us: now_us,
            previous_crc,
        }
    }

    /// Ends the active segment where it is and goes on in a new one of `capacity` bytes, or of fewer but at least `needed` if the
    /// disk has no more room.
    fn roll(&mut self, capacity: u64, needed: u64, may_use_reserve: bool, now_us: u64) -> Result<(), LogError> {
        let number = self.active.number().checked_add(1).ok_or(LogError::NumbersUsedUp)?;
        self.roll_to(number, capacity, needed, may_use_reserve, now_us)
    }

    fn roll_to(&mut self, number: u32, capacity: u64, needed: u64, may_use_reserve: bool, now_us: u64) -> Result<(), LogError> {
        // The new segment's header says where this one ends, so that must be on the disk before.
        self.sync()?;
        let dir = Arc::clone(&self.log.dir);
        let (name, file, capacity) = match self.spares.take(needed, dir.as_ref())? {
            Some(spare) => spare,
            None => make_file(dir.as_ref(), number, capacity, needed, may_use_reserve)?,
        };
        let header = SegmentHeader {
            incarnation: self.log.incarnation,
            number,
            epoch: self.epoch,
            previous_end: self.end(),
            previous_crc: self.last_crc,
            created_at_us: now_us,
            capacity: capacity as u32,
        };
        prepare(file.as_ref(), &header)?;
        // From here on a failure leaves open which of the two segments a restart takes for the last: a record that went to the old
        // one would lie behind the end that the new one gives it.
        if let Err(error) = put_in_place(dir.as_ref(), &name, number) {
            self.poison = Some(error.clone());
            return Err(LogError::Poisoned(error));
        }
        let segment = Arc::new(Segment::growing(dir, self.log.incarnation, number, capacity, SEGMENT_HEADER_BYTES));
        self.log.replace_segments(|list| list.push(Arc::clone(&segment)));
        self.active = segment;
        self.file = file;
        self.end = SEGMENT_HEADER_BYTES;
        self.durable = self.end();
        self.is_tail_unknown = false;
        Ok(())
    }

    /// Ends the active segment and goes on in a new one, behind `floor`: after a torn tail, whose bytes must not be written over, or
    /// where the log ends before an address that was given out, or where offsets jump.
    pub fn roll_away(&mut self, floor: Lsn, segment_bytes_max: u64, now_us: u64) -> Result<(), LogError> {
        let capacity = next_capacity(0, segment_bytes_max);
        let number = self.active.number().max(lsn_segment(floor)).checked_add(1).ok_or(LogError::NumbersUsedUp)?;
        self.roll_to(number, capacity, u64::from(SEGMENT_HEADER_BYTES) * 2, true, now_us)
    }
}

/// Where the records of one append go.
struct Layout<'a> {
    writer: &'a LogWriter,
    now_us: u64,
    position: u64,
    last_crc: u32,
    /// Headers, annexes and paddings, in order; payloads are between them.
    small: Vec<u8>,
    pieces: Vec<Piece>,
    batches: Vec<NewBatch>,
}

enum Piece {
    Small(usize),
    Payload(Bytes),
}

impl<'a> Layout<'a> {
    fn new(writer: &'a LogWriter, now_us: u64, records: usize) -> Self {
        Self {
            writer,
            now_us,
            position: u64::from(writer.end),
            last_crc: writer.last_crc,
            small: Vec::with_capacity(records * (BATCH_HEADER_BYTES + 8)),
            pieces: Vec::with_capacity(records * 2 + 1),
            batches: Vec::with_capacity(records),
        }
    }

    fn push(&mut self, record: OutRecord) -> Result<(), LogError> {
        let flags = if record.goes_on { FLAG_TRANSACTION_GOES_ON } else { 0 };
        let position = self.position as u32;
        let length = match record.body {
            OutBody::Control(body) => {
                let mut header = self.writer.header(RecordKind::Control, flags, position, self.last_crc, self.now_us);
                header.length = record_length(header.length, body.len())?;
                header.body_crc = crc32fast::hash(&body);
                let (bytes, crc) = header.encode();
                self.last_crc = crc;
                self.put_small(&bytes);
                self.put_small(&body);
                header.length
            }
            OutBody::Batch(batch) => self.push_batch(batch, flags, position)?,
        };
        let padding = padded(length) - u64::from(length);
        self.put_small(&[0; 8][..padding as usize]);
        self.position += padded(length);
        Ok(())
    }

    fn push_batch(&mut self, batch: OutBatch, flags: u8, position: u32) -> Result<u32, LogError> {
        let mut annex = Vec::new();
        batch.annex.encode(&mut annex);
        let packed = batch.packed;
        if packed.uncompressed_length > BLOCK_BYTES_MAX {
            let bytes = u64::from(packed.uncompressed_length);
            return Err(LogError::TooLarge { what: "block", bytes, limit: BLOCK_BYTES_MAX });
        }
        let mut header = self.writer.header(RecordKind::Batch, flags, position, self.last_crc, self.now_us);
        header.length = record_length(header.length, annex.len() + packed.payload.len())?;
        header.body_crc = crc_of_two(&annex, packed.payload_crc, packed.payload.len() as u64);
        let batch_header = BatchHeader {
            partition: batch.partition,
            count: packed.count,
            base_offset: batch.base_offset,
            annex_length: annex.len() as u32,
            index_length: packed.index_length,
            uncompressed_length: packed.uncompressed_length,
            codec: packed.codec,
            has_ids: !batch.ids.is_empty(),
        };
        let (bytes, crc) = header.encode_batch(&batch_header);
        self.last_crc = crc;
        self.put_small(&bytes);
        self.put_small(&annex);
        self.pieces.push(Piece::Payload(packed.payload));
        let entry = IndexedBatch {
            base_offset: batch.base_offset,
            created_at_us: self.now_us,
            position,
            length: header.length,
            count: packed.count,
            partition: batch.partition,
        };
        self.batches.push((entry, batch.annex, batch.ids));
        Ok(header.length)
    }

    fn put_small(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.small.extend_from_slice(bytes);
        match self.pieces.last_mut() {
            Some(Piece::Small(length)) => *length += bytes.len(),
            _ => self.pieces.push(Piece::Small(bytes.len())),
        }
    }

    fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut small = self.small.as_slice();
        self.pieces
            .iter()
            .map(|piece| match piece {
                Piece::Small(length) => {
                    let (head, tail) = small.split_at(*length);
                    small = tail;
                    IoSlice::new(head)
                }
                Piece::Payload(bytes) => IoSlice::new(bytes),
            })
            .collect()
    }
}

/// Bytes of a record. One over the limit would be written and then refused by every reader.
fn record_length(header_length: u32, body_length: usize) -> Result<u32, LogError> {
    let bytes = u64::from(header_length) + body_length as u64;
    let fits = u32::try_from(bytes).ok().filter(|&length| length <= RECORD_BYTES_MAX);
    fits.ok_or(LogError::TooLarge { what: "record", bytes, limit: RECORD_BYTES_MAX })
}

impl SpareMaker {
    fn new(dir: Arc<dyn Dir>) -> Self {
        Self { dir, spare: Mutex::default(), wanted: Mutex::default(), making: Mutex::default() }
    }

    fn want(&self, number: u32, capacity: u64) {
        let has_spare = lock(&self.spare).is_some();
        if !has_spare {
            *lock(&self.wanted) = Some((number, capacity));
        }
    }

    /// Whether a spare is wanted and not made.
    pub fn is_wanted(&self) -> bool {
        lock(&self.wanted).is_some()
    }

    /// Makes the spare segment that the writer wants, if any: reserves its blocks and writes zeros over them, since a sync after
    /// overwriting costs half of one after growing (no metadata to commit). A disk without room leaves it to the roll to say so.
    pub fn make(&self) -> Result<(), DiskError> {
        let _one_at_a_time = lock(&self.making);
        let Some((number, capacity)) = *lock(&self.wanted) else { return Ok(()) };
        if lock(&self.spare).is_some() {
            *lock(&self.wanted) = None;
            return Ok(());
        }
        // Not the name that the writer gives to a segment it makes itself: the two may be at work on the same number at once.
        let name = names::spare_segment(number);
        let made = fill(self.dir.as_ref(), &name, capacity);
        *lock(&self.wanted) = None;
        match made {
            Ok(()) => {
                *lock(&self.spare) = Some(Spare { name, capacity });
                Ok(())
            }
            Err(error) => {
                // A file half made is in the way of the next one only by its room.
                let _ = self.dir.remove(&name);
                Err(error)
            }
        }
    }

    fn take(&self, needed: u64, dir: &dyn Dir) -> Result<Option<Unnamed>, LogError> {
        let Some(spare) = lock(&self.spare).take() else { return Ok(None) };
        if spare.capacity < needed {
            dir.remove(&spare.name)?;
            return Ok(None);
        }
        let file = dir.open(&spare.name, Access::ReadWrite)?;
        Ok(Some((spare.name, file, spare.capacity)))
    }
}

fn fill(dir: &dyn Dir, name: &str, capacity: u64) -> Result<(), DiskError> {
    if dir.free_bytes()? < capacity.saturating_add(RESERVE_BYTES) {
        return Err(DiskError { operation: "allocate", path: dir.describe(), kind: DiskErrorKind::Full, errno: None });
    }
    let file = create_anew(dir, name)?;
    file.allocate(0, capacity)?;
    let zeros = vec![0u8; FILL_BYTES.min(capacity as usize)];
    let mut position = 0;
    while position < capacity {
        let length = (capacity - position).min(FILL_BYTES as u64);
        file.write_at(&zeros[..length as usize], position)?;
        file.sync_data()?;
        position += length;
    }
    Ok(())
}

/// Makes a segment file of `capacity` bytes; halves that down to `needed` while the disk has no room.
fn make_file(dir: &dyn Dir, number: u32, capacity: u64, needed: u64, may_use_reserve: bool) -> Result<Unnamed, LogError> {
    let name = names::new_segment(number);
    let file = create_anew(dir, &name)?;
    let reserve = if may_use_reserve { 0 } else { RESERVE_BYTES };
    let mut capacity = capacity;
    loop {
        let has_room = dir.free_bytes()? >= capacity.saturating_add(reserve);
        let outcome = if has_room {
            file.allocate(0, capacity)
        } else {
            Err(DiskError { operation: "allocate", path: file.describe().to_owned(), kind: DiskErrorKind::Full, errno: None })
        };
        match outcome {
            Ok(()) => return Ok((name, file, capacity)),
            Err(error) if error.kind == DiskErrorKind::Full && capacity > needed => {
                capacity = (capacity / 2).next_multiple_of(4096).max(needed);
            }
            Err(error) => {
                let _ = dir.remove(&name);
                return Err(error.into());
            }
        }
    }
}

fn create_anew(dir: &dyn Dir, name: &str) -> Result<Arc<dyn File>, DiskError> {
    match dir.create(name) {
        Err(error) if error.kind == DiskErrorKind::AlreadyExists => {
            dir.remove(name)?;
            dir.create(name)
        }
        other => other,
    }
}

/// Writes a segment's header, durably.
fn prepare(file: &dyn File, header: &SegmentHeader) -> Result<(), DiskError> {
    file.write_at(&header.encode(), 0)?;
    file.sync_data()
}

/// Gives a prepared segment its name, durably.
fn put_in_place(dir: &dyn Dir, name: &str, number: u32) -> Result<(), DiskError> {
    dir.rename(name, &names::segment(number))?;
    dir.sync()
}

/// Makes the first segment of a new log.
pub(super) fn make_first(
    dir: &dyn Dir,
    incarnation: u64,
    number: u32,
    epoch: u32,
    now_us: u64,
) -> Result<(Arc<dyn File>, u64), LogError> {
    let needed = u64::from(SEGMENT_HEADER_BYTES) * 2;
    let (name, file, capacity) = make_file(dir, number, FIRST_SEGMENT_BYTES, needed, false)?;
    let header = SegmentHeader {
        incarnation,
        number,
        epoch,
        previous_end: 0,
        previous_crc: 0,
        created_at_us: now_us,
        capacity: capacity as u32,
    };
    prepare(file.as_ref(), &header)?;
    put_in_place(dir, &name, number)?;
    Ok((file, capacity))
}

fn next_capacity(capacity: u64, segment_bytes_max: u64) -> u64 {
    (capacity * 4).clamp(FIRST_SEGMENT_BYTES, segment_bytes_max.clamp(FIRST_SEGMENT_BYTES, SEGMENT_BYTES_LIMIT))
}

fn lock<T>(mutex: &Mutex<T>) -> crate::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
