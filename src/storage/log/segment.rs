//! One segment as readers see it: the published part of its file, and its index.

use std::sync::Arc;

use bytes::Bytes;

use crate::format::index::{Damage, INDEX_HEADER_BYTES, IndexSummary, IndexedBatch, SealedIndex};
use crate::format::{Lsn, lsn, names};
use crate::record::{GroupId, Offset, PartitionId, RecordHeader, StoredBatch};
use crate::storage::disk::{Access, Dir, DiskError, DiskErrorKind, Errno, File};
use crate::storage::map::{Map, MapUse};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, RwLock};

use super::LogError;
use super::holes::{Holes, Released};
use super::ram_index::RamIndex;
use super::scan::{self, Found};

/// One segment of a log.
#[derive(Debug)]
pub struct Segment {
    dir: Arc<dyn Dir>,
    incarnation: u64,
    number: u32,
    capacity: u64,
    /// Readers take slices only before this position; it is stored (Release) after the bytes before it are what the queue's mode
    /// calls committed.
    end: AtomicU32,
    newest_at_us: AtomicU64,
    last_crc: AtomicU32,
    map: Mutex<Option<Map>>,
    index: RwLock<Index>,
    was_used: AtomicBool,
    /// A map showed zeros in place of a page that could not be read.
    has_faulted: AtomicBool,
    /// Maps that gave way to newer ones, as long as somebody looks at them.
    older_maps: Mutex<Vec<MapUse>>,
    /// What was taken out of it; `None` until somebody asks.
    holes: Mutex<Option<Arc<Holes>>>,
    /// Whether something was taken out in this run: slices may be of bytes that are about to go.
    has_new_holes: AtomicBool,
    pub(super) released: Released,
}

#[derive(Debug, Clone)]
enum Index {
    /// In memory: the segment grows, or its index file is not written yet.
    Growing(Arc<RwLock<RamIndex>>),
    /// The index file.
    Sealed(SealedFile),
    /// The index file has not been opened since start, or was let go.
    Unopened,
}

/// An index file, and the map that it is read through; in memory if there is none.
#[derive(Debug, Clone)]
struct SealedFile {
    index: SealedIndex,
    map: Option<Map>,
}

impl Segment {
    /// A segment with an index in memory.
    pub(in crate::storage) fn growing(dir: Arc<dyn Dir>, incarnation: u64, number: u32, capacity: u64, end: u32) -> Self {
        Self::with_index(dir, incarnation, number, capacity, end, Index::Growing(Arc::default()))
    }

    /// A sealed segment whose index file will be opened when it is wanted.
    pub(super) fn sealed(dir: Arc<dyn Dir>, incarnation: u64, number: u32, capacity: u64, end: u32) -> Self {
        Self::with_index(dir, incarnation, number, capacity, end, Index::Unopened)
    }

    fn with_index(dir: Arc<dyn Dir>, incarnation: u64, number: u32, capacity: u64, end: u32, index: Index) -> Self {
        Self {
            dir,
            incarnation,
            number,
            capacity,
            end: AtomicU32::new(end),
            newest_at_us: AtomicU64::new(0),
            last_crc: AtomicU32::new(0),
            map: Mutex::new(None),
            index: RwLock::new(index),
            was_used: AtomicBool::new(true),
            has_faulted: AtomicBool::new(false),
            older_maps: Mutex::default(),
            holes: Mutex::default(),
            has_new_holes: AtomicBool::new(false),
            released: Released::default(),
        }
    }

    /// The segment's number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The length of its file.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes that its file takes on the disk: its length without the room that was given back.
    pub fn disk_bytes(&self) -> u64 {
        self.capacity.saturating_sub(self.released.bytes())
    }

    /// Where its published records end.
    pub fn end(&self) -> u32 {
        self.end.load(Ordering::Acquire)
    }

    /// Time of its newest record, microseconds since the Unix epoch; 0 if none is known.
    pub fn newest_at_us(&self) -> u64 {
        self.newest_at_us.load(Ordering::Relaxed)
    }

    pub(super) fn publish(&self, end: u32, last_crc: u32, newest_at_us: u64) {
        self.newest_at_us.fetch_max(newest_at_us, Ordering::Relaxed);
        self.last_crc.store(last_crc, Ordering::Relaxed);
        self.end.store(end, Ordering::Release);
    }

    /// The log address of a position in it.
    pub fn lsn(&self, position: u32) -> Lsn {
        lsn(self.number, position)
    }

    /// The bytes `[position, position + length)` of the published part.
    pub fn bytes(&self, position: u32, length: u32) -> Result<Bytes, LogError> {
        let end = u64::from(position) + u64::from(length);
        if end > u64::from(self.end()) {
            return Err(LogError::BeyondEnd { segment: self.number, position });
        }
        let bytes = self.slice(u64::from(position), end)?;
        // Asked after the slice was taken: what is taken out later waits until nobody looks at the map that the slice is of.
        if self.has_new_holes.load(Ordering::SeqCst) && self.holes()?.holds(position) {
            return Err(LogError::Removed { segment: self.number, position });
        }
        Ok(bytes)
    }

    /// What was taken out of it.
    pub(super) fn holes(&self) -> Result<Arc<Holes>, LogError> {
        let mut slot = lock(&self.holes);
        if let Some(holes) = slot.as_ref() {
            return Ok(Arc::clone(holes));
        }
        let holes = Arc::new(Holes::read(self.dir.as_ref(), self.incarnation, self.number)?);
        *slot = Some(Arc::clone(&holes));
        Ok(holes)
    }

    /// From now on nobody gets a slice of what is in the holes; makes the index anew, without it.
    pub(super) fn put_holes(&self, holes: Holes) -> Result<(), LogError> {
        *lock(&self.holes) = Some(Arc::new(holes));
        self.has_new_holes.store(true, Ordering::SeqCst);
        if let Some(map) = lock(&self.map).take() {
            self.outdate(&map);
        }
        let index = self.rebuild_index()?;
        *write(&self.index) = Index::Growing(Arc::new(RwLock::new(index)));
        self.seal_index()
    }

    fn outdate(&self, map: &Map) {
        let mut older = lock(&self.older_maps);
        older.retain(MapUse::is_in_use);
        older.push(map.use_of());
    }

    /// Whether somebody looks at a map that gave way to a newer one.
    pub(super) fn has_older_maps(&self) -> bool {
        let mut older = lock(&self.older_maps);
        older.retain(MapUse::is_in_use);
        !older.is_empty()
    }

    pub(super) fn dir(&self) -> &dyn Dir {
        self.dir.as_ref()
    }

    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub(super) fn last_crc(&self) -> u32 {
        self.last_crc.load(Ordering::Relaxed)
    }

    /// How many bytes of the file can be read.
    pub(in crate::storage) fn readable(&self) -> Result<u64, LogError> {
        Ok(self.map()?.length())
    }

    /// Bytes of the whole file, published or not: for recovery and verification, when nobody writes.
    pub(super) fn slice(&self, start: u64, end: u64) -> Result<Bytes, LogError> {
        let map = self.map()?;
        map.slice(start..end).ok_or(LogError::BeyondEnd { segment: self.number, position: start as u32 })
    }

    /// As [`Segment::slice`], read through the file, which names what keeps it from being read.
    pub(super) fn read(&self, start: u64, end: u64) -> Result<Bytes, LogError> {
        let mut bytes = vec![0; (end - start) as usize];
        if self.open_file()?.read_at(&mut bytes, start)? < bytes.len() {
            return Err(LogError::BeyondEnd { segment: self.number, position: start as u32 });
        }
        Ok(bytes.into())
    }

    /// The file, for reads that must know an unreadable sector from zeros.
    pub(super) fn open_file(&self) -> Result<Arc<dyn File>, LogError> {
        Ok(self.dir.open(&names::segment(self.number), Access::Read)?)
    }

    /// Whether a slice taken since the last call shows zeros in place of bytes that could not be read. Ask after they were looked at.
    pub(super) fn take_fault(&self) -> bool {
        let is_faulted = lock(&self.map).take_if(|map| map.is_faulted()).is_some();
        self.has_faulted.swap(false, Ordering::Relaxed) || is_faulted
    }

    /// An error if `Segment::take_fault`: what cannot be read is neither damage nor an end, since it may be there another time.
    pub(super) fn check_fault(&self) -> Result<(), LogError> {
        if !self.take_fault() {
            return Ok(());
        }
        let path = self.open_file()?.describe().to_owned();
        Err(DiskError::from_errno("read", path, Errno::IO).into())
    }

    /// Makes the next `Segment::take_fault` say yes.
    pub(super) fn note_fault(&self) {
        self.has_faulted.store(true, Ordering::Relaxed);
    }

    fn map(&self) -> Result<Map, LogError> {
        self.was_used.store(true, Ordering::Relaxed);
        let mut slot = lock(&self.map);
        if let Some(map) = slot.as_ref().filter(|map| !map.is_faulted()) {
            return Ok(map.clone());
        }
        if slot.is_some() {
            self.has_faulted.store(true, Ordering::Relaxed);
        }
        let file = self.open_file()?;
        // A file cut short is mapped as far as it goes: what is there can be served.
        let length = file.length()?.min(self.capacity);
        let map = file.map(length)?;
        if let Some(older) = slot.replace(map.clone()) {
            self.outdate(&older);
        }
        Ok(map)
    }

    /// Lets go of maps that nobody used since the last call. Slices in flight keep theirs.
    pub(super) fn release_unused(&self) {
        if self.was_used.swap(false, Ordering::Relaxed) {
            return;
        }
        if let Some(map) = lock(&self.map).take() {
            self.outdate(&map);
        }
        let mut index = write(&self.index);
        if matches!(*index, Index::Sealed(_)) {
            *index = Index::Unopened;
        }
    }

    /// The record of an indexed batch, verified to be the one that the index means. Only what the file itself shows is damage: a map
    /// also shows zeros in place of a page that could not be read this time.
    pub fn batch(&self, entry: &IndexedBatch) -> Result<Bytes, LogError> {
        match self.verified(entry) {
            // Zeros where the room was given back in an earlier run.
            Err(LogError::Damaged { .. }) if self.holes()?.holds(entry.position) => {
                Err(LogError::Removed { segment: self.number, position: entry.position })
            }
            outcome => outcome,
        }
    }

    fn verified(&self, entry: &IndexedBatch) -> Result<Bytes, LogError> {
        let (start, end) = (u64::from(entry.position), u64::from(entry.position) + u64::from(entry.length));
        if end > u64::from(self.end()) {
            return Err(LogError::BeyondEnd { segment: self.number, position: entry.position });
        }
        match self.bytes(entry.position, entry.length) {
            Ok(bytes) if self.check_batch(entry, &bytes).is_ok() => return Ok(bytes),
            Err(error @ LogError::Removed { .. }) => return Err(error),
            _ => {}
        }
        let damaged = |reason| LogError::Damaged { segment: self.number, position: entry.position, reason };
        match self.read(start, end) {
            Ok(bytes) => self.check_batch(entry, &bytes).map(|()| bytes).map_err(damaged),
            Err(LogError::BeyondEnd { .. }) => Err(damaged("the file ends before the batch does".to_owned())),
            Err(error) => Err(error),
        }
    }

    fn check_batch(&self, entry: &IndexedBatch, bytes: &Bytes) -> Result<(), String> {
        let (header, batch, _) = RecordHeader::decode(bytes).map_err(|error| error.to_string())?;
        let is_it = header.incarnation == self.incarnation
            && header.lsn == self.lsn(entry.position)
            && header.length == entry.length
            && batch.is_some_and(|batch| {
                batch.partition == entry.partition && batch.base_offset == entry.base_offset && batch.count == entry.count
            });
        if !is_it {
            return Err("another record lies where the index says".to_owned());
        }
        if crc32fast::hash(&bytes[header.header_length()..]) != header.body_crc {
            return Err("checksum of the batch is wrong".to_owned());
        }
        Ok(())
    }

    /// As [`Segment::batch`], parsed.
    pub fn stored_batch(&self, entry: &IndexedBatch) -> Result<StoredBatch, LogError> {
        StoredBatch::split(&self.batch(entry)?).map_err(|error| LogError::Damaged {
            segment: self.number,
            position: entry.position,
            reason: error.to_string(),
        })
    }

    /// Visits, in order, the partition's batches that end behind `from` and of which the group takes something, until the visitor
    /// says no. Returns whether it may go on in the next segment.
    pub fn visit(
        &self,
        partition: PartitionId,
        from: Offset,
        group: Option<GroupId>,
        visit: &mut dyn FnMut(IndexedBatch) -> bool,
    ) -> Result<bool, LogError> {
        match self.index()? {
            Index::Growing(index) => Ok(visit_growing(&index, partition, from, group, visit)),
            Index::Sealed(file) => self.look_up(&file, |index| visit_sealed(index, partition, from, group, visit)),
            Index::Unopened => Ok(true),
        }
    }

    /// Batches and message indexes of own transaction ids that hash to `hash`.
    pub fn ids(&self, hash: u64) -> Result<Vec<(IndexedBatch, u32)>, LogError> {
        Ok(match self.index()? {
            Index::Growing(index) => read(&index).ids(hash).collect(),
            Index::Sealed(file) => {
                self.look_up(&file, |index| index.ids(hash).map(|id| (index.batch(id.batch as usize), id.message)).collect())?
            }
            Index::Unopened => Vec::new(),
        })
    }

    /// Whether it holds own transaction ids.
    pub fn has_ids(&self) -> Result<bool, LogError> {
        Ok(match self.index()? {
            Index::Growing(index) => read(&index).has_ids(),
            Index::Sealed(file) => self.look_up(&file, SealedIndex::has_ids)?,
            Index::Unopened => false,
        })
    }

    /// Every batch, in no particular order.
    pub fn all_batches(&self) -> Result<Vec<IndexedBatch>, LogError> {
        Ok(match self.index()? {
            Index::Growing(index) => {
                let index = read(&index);
                (0..index.batch_count() as u32).filter_map(|at| index.batch(at)).collect()
            }
            Index::Sealed(file) => self.look_up(&file, |index| (0..index.batch_count()).map(|at| index.batch(at)).collect())?,
            Index::Unopened => Vec::new(),
        })
    }

    /// Damaged ranges that a scan of the segment found.
    pub fn damage(&self) -> Result<Vec<Damage>, LogError> {
        Ok(match self.index()? {
            Index::Growing(index) => read(&index).damage().to_vec(),
            Index::Sealed(file) => self.look_up(&file, SealedIndex::damage)?,
            Index::Unopened => Vec::new(),
        })
    }

    /// The growing index, to append to; `None` if the segment is sealed.
    pub(super) fn growing_index(&self) -> Option<Arc<RwLock<RamIndex>>> {
        match &*read(&self.index) {
            Index::Growing(index) => Some(Arc::clone(index)),
            _ => None,
        }
    }

    /// What an index file says; an error if a page of it could not be read, and then what was said so far is void.
    fn look_up<T>(&self, file: &SealedFile, look: impl FnOnce(&SealedIndex) -> T) -> Result<T, LogError> {
        let said = look(&file.index);
        if file.map.as_ref().is_some_and(Map::is_faulted) {
            *write(&self.index) = Index::Unopened;
            let path = self.dir.describe() + "/" + &names::index(self.number);
            return Err(DiskError::from_errno("read", path, Errno::IO).into());
        }
        Ok(said)
    }

    /// Opens the index; makes it again from the segment if it is missing or wrong.
    fn index(&self) -> Result<Index, LogError> {
        self.was_used.store(true, Ordering::Relaxed);
        {
            let index = read(&self.index);
            if !matches!(*index, Index::Unopened) {
                return Ok(index.clone());
            }
        }
        let mut slot = write(&self.index);
        if matches!(*slot, Index::Unopened) {
            *slot = match self.open_index_file()? {
                Some(index) => Index::Sealed(index),
                None => Index::Growing(Arc::new(RwLock::new(self.rebuild_index()?))),
            };
        }
        Ok(slot.clone())
    }

    fn open_index_file(&self) -> Result<Option<SealedFile>, LogError> {
        let file = match self.dir.open(&names::index(self.number), Access::Read) {
            Ok(file) => file,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let (bytes, map) = read_or_map(file.as_ref())?;
        let index = SealedIndex::parse(bytes, self.incarnation).ok();
        let index = index.filter(|index| index.segment() == self.number && index.end() == self.end());
        Ok(index.map(|index| SealedFile { index, map }))
    }

    /// What the header of a segment's index file says; `None` if there is none that fits. The rest of it is checked when it is opened.
    pub(in crate::storage) fn read_index_summary(
        dir: &dyn Dir,
        incarnation: u64,
        number: u32,
    ) -> Result<Option<IndexSummary>, LogError> {
        let file = match dir.open(&names::index(number), Access::Read) {
            Ok(file) => file,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut bytes = [0; INDEX_HEADER_BYTES];
        if file.read_at(&mut bytes, 0)? < bytes.len() {
            return Ok(None);
        }
        let summary = IndexSummary::decode(&bytes).ok();
        Ok(summary.filter(|summary| summary.incarnation == incarnation && summary.segment == number))
    }

    fn rebuild_index(&self) -> Result<RamIndex, LogError> {
        let mut index = RamIndex::default();
        scan::sealed(self, self.incarnation, self.end(), |found| match found {
            Found::Record(record) => index_record(&mut index, &record),
            Found::Damage(damage) => index.push_damage(damage),
            Found::Hole(_) => {}
        })?;
        self.check_fault()?;
        Ok(index)
    }

    /// Writes the index file, if the index is in memory, and lets the memory go. Only for a segment that no longer grows.
    pub(super) fn seal_index(&self) -> Result<(), LogError> {
        let Some(growing) = self.growing_index() else { return Ok(()) };
        let bytes =
            { read(&growing).content(self.incarnation, self.number, self.end(), self.last_crc(), self.newest_at_us()).encode() };
        let name = names::index(self.number);
        replace_file(self.dir.as_ref(), &name, &bytes)?;
        *write(&self.index) = Index::Unopened;
        Ok(())
    }
}

/// Puts one record into a growing index.
pub(in crate::storage) fn index_record(index: &mut RamIndex, record: &scan::Record) {
    let Some(batch) = record.batch else { return };
    let stored = StoredBatch::parse(record.bytes.clone());
    let annex = stored.as_ref().ok().and_then(|stored| stored.annex().ok()).unwrap_or_default();
    let ids = if batch.has_ids { stored.map(|stored| own_ids(&stored)).unwrap_or_default() } else { Vec::new() };
    let entry = IndexedBatch {
        base_offset: batch.base_offset,
        created_at_us: record.header.created_at_us,
        position: record.position,
        length: record.header.length,
        count: batch.count,
        partition: batch.partition,
    };
    index.push(entry, &annex.matches, &ids);
}

/// Hashes of the own transaction ids in a batch, with their messages' indexes.
fn own_ids(stored: &StoredBatch) -> Vec<(u64, u32)> {
    let Ok(open) = stored.open() else { return Vec::new() };
    let Ok(entries) = open.entries() else { return Vec::new() };
    let partition = stored.batch().partition;
    (0u32..)
        .zip(entries)
        .filter_map(|(at, entry)| {
            let id = entry.ok()?.transaction_id?;
            Some((crate::format::index::id_hash(partition, id.as_bytes()), at))
        })
        .collect()
}

/// Looks at a few batches at a time and holds no lock while they are visited: the visitor may read from the disk and may ask the index
/// itself, and whoever publishes waits for neither.
fn visit_growing(
    index: &RwLock<RamIndex>,
    partition: PartitionId,
    mut from: Offset,
    group: Option<GroupId>,
    visit: &mut dyn FnMut(IndexedBatch) -> bool,
) -> bool {
    let mut batches = Vec::new();
    // Most readers take one or two.
    let mut count = 4;
    loop {
        let is_all = read(index).visit(partition, from, group, &mut |batch| {
            batches.push(batch);
            batches.len() < count
        });
        for batch in batches.drain(..) {
            from = batch.next_offset();
            if !visit(batch) {
                return false;
            }
        }
        if is_all {
            return true;
        }
        count = 64;
    }
}

fn visit_sealed(
    index: &SealedIndex,
    partition: PartitionId,
    from: Offset,
    group: Option<GroupId>,
    visit: &mut dyn FnMut(IndexedBatch) -> bool,
) -> bool {
    let mut range = index.find(partition, from);
    let named = group.and_then(|group| index.group(group));
    while let Some(at) = match named {
        Some(named) => index.next_taken(named, range.clone()),
        None => (!range.is_empty()).then_some(range.start),
    } {
        if !visit(index.batch(at)) {
            return false;
        }
        range.start = at + 1;
    }
    true
}

/// Maps a whole file, or reads it when no more maps are to be had.
fn read_or_map(file: &dyn File) -> Result<(Bytes, Option<Map>), DiskError> {
    let length = file.length()?;
    match file.map(length) {
        Ok(map) => Ok((map.slice(0..length).unwrap_or_default(), Some(map))),
        Err(error) if error.kind == DiskErrorKind::Memory => {
            let mut bytes = vec![0; length as usize];
            file.read_exact_at(&mut bytes, 0)?;
            Ok((Bytes::from(bytes), None))
        }
        Err(error) => Err(error),
    }
}

/// Writes a file whole or not at all, durably.
pub(crate) fn replace_file(dir: &dyn Dir, name: &str, bytes: &[u8]) -> Result<(), DiskError> {
    let temporary = names::temporary(name);
    match dir.remove(&temporary) {
        Ok(()) => {}
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error),
    }
    let file = dir.create(&temporary)?;
    file.write_at(bytes, 0)?;
    file.sync_data()?;
    dir.rename(&temporary, name)?;
    dir.sync()
}

fn lock<T>(mutex: &Mutex<T>) -> crate::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> crate::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> crate::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(std::sync::PoisonError::into_inner)
}
