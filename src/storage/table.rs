//! A persistent table of small values: the checkpoint of a queue.
//!
//! The file grows by checksummed blocks; an entry in a later block overrides an earlier one with its key. A block is there
//! whole or not at all. The caller keeps the live entries in memory and says when to write the file anew; the table keeps
//! only positions and counts. The bytes are described in `storage-format.md`, "Table".
//!
//! A block that is bad at the end of the file is what a power loss during [`Table::append`] leaves: it is cut off by the next
//! append and reported. A block that is bad before a good one, or in the part that was written when the file was put in
//! place, is damage: it is reported, nothing is appended, and [`Table::rewrite`] keeps the damaged file aside.

mod format;
mod scan;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::disk::{self, Access, Dir, DiskError, DiskErrorKind, File, check_absent, create_temporary};
use format::{BlockBuilder, BlockHeader, FileHeader};

pub use format::{VALUE_BYTES_MAX, entry_bytes};

/// What an entry is about. The table gives no meaning to the parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The kind of value.
    pub kind: u8,
    /// The first number, such as a partition.
    pub a: u32,
    /// The second number, such as a group.
    pub b: u32,
}

/// A key and its value; without a value the key is gone from here on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The key.
    pub key: Key,
    /// Its value, at most [`VALUE_BYTES_MAX`] bytes, or `None` for a removal.
    pub value: Option<&'a [u8]>,
}

/// What opening a table found beside its entries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use]
pub struct TableReport {
    /// Good blocks.
    pub blocks: u64,
    /// Entries in them, removals included.
    pub entries: u64,
    /// The mark of the last good block; 0 if there is none.
    pub lsn: u64,
    /// The bytes of a last block that was never finished. What it held was never reported as durable, unless the disk lost
    /// what it had promised: the caller can tell by whether its log still goes back to [`Table::lsn`].
    pub torn_tail: Option<Range<u64>>,
    /// Ranges of bytes that were durable once and are not readable as blocks. If there are any, an entry that was passed on
    /// may be older than it should be, and others may be missing.
    pub damage: Vec<Range<u64>>,
}

/// Why a table cannot be opened or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The disk refused. After a refused sync the table is poisoned.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The file does not begin as a table does; nothing in it can be told apart.
    #[error("{path} has a damaged header: {reason}")]
    BadHeader {
        /// The file.
        path: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// The file was written by a newer format. Its bytes are untouched.
    #[error("{path} was written by a newer format (version {version}, unknown incompatible features {features:#x})")]
    NewerFormat {
        /// The file.
        path: String,
        /// The version in the file.
        version: u16,
        /// The incompatible features in the file.
        features: u32,
    },
    /// The file belongs to another incarnation of the queue.
    #[error("{path} belongs to incarnation {found:016x}, not {expected:016x}")]
    WrongIncarnation {
        /// The file.
        path: String,
        /// The one asked for.
        expected: u64,
        /// The one in the file.
        found: u64,
    },
    /// A table with damage takes no appends; write it anew from a state that is known to be whole.
    #[error("{path} is damaged at byte {position}")]
    Damaged {
        /// The file.
        path: String,
        /// Where the damage begins.
        position: u64,
    },
    /// A sync failed, so what is on the disk is unknown until the table is opened again.
    #[error("{path} takes no more writes after a failed sync")]
    Poisoned {
        /// The file.
        path: String,
    },
    /// A value or the sum of the entries of one append is too large.
    #[error("{what} of {bytes} bytes is over the limit of {limit}")]
    TooLarge {
        /// "value" or "block".
        what: &'static str,
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
}

/// An open table.
#[derive(Debug)]
pub struct Table {
    dir: Arc<dyn Dir>,
    name: String,
    incarnation: u64,
    file: Arc<dyn File>,
    /// Where the next block goes: the end of the last good one.
    end: u64,
    /// The number of the next block.
    sequence: u64,
    lsn: u64,
    /// Bytes beyond the end that have to go before the next block.
    has_tail: bool,
    damaged_at: Option<u64>,
    is_poisoned: bool,
    places: Places,
}

/// Where the values of one kind lie in the file, so that they can be read when they are wanted.
#[derive(Debug, Default)]
struct Places {
    kind: Option<u8>,
    list: BTreeMap<Key, Place>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    position: u64,
    length: u32,
    checksum: u32,
}

impl Places {
    fn of(kind: Option<u8>) -> Self {
        Self { kind, list: BTreeMap::new() }
    }

    /// Takes note of an entry whose value lies at a position.
    fn note(&mut self, entry: Entry<'_>, position: u64) {
        if self.kind != Some(entry.key.kind) {
            return;
        }
        match entry.value {
            Some(value) => {
                let place = Place { position, length: value.len() as u32, checksum: crc32fast::hash(value) };
                self.list.insert(entry.key, place);
            }
            None => {
                self.list.remove(&entry.key);
            }
        }
    }
}

/// Garbage below this is not worth a rewrite.
const GARBAGE_BYTES_MIN: u64 = 1 << 20;

/// The unit in which a damaged file is copied: what cannot be read is lost in units of this.
const PAGE_BYTES: usize = 4096;

/// The size that a rewrite gives its blocks; it bounds memory, not the format.
const REWRITE_BLOCK_BYTES: usize = 4 << 20;

impl Table {
    /// Makes an empty table that did not exist, durable on return, directory entry included.
    pub fn create(dir: &Arc<dyn Dir>, name: &str, incarnation: u64) -> Result<Self, TableError> {
        check_absent(&**dir, name)?;
        let empty = Contents { entries: std::iter::empty(), carried: None };
        stage(dir, name, incarnation, 0, Places::default(), empty)?.put_in_place(dir, name)
    }

    /// Opens a table and passes every entry on in the order of the file, so that the last one of a key counts. Entries are
    /// passed on only from blocks whose checksum is right. Nothing on the disk is changed.
    pub fn open(
        dir: &Arc<dyn Dir>,
        name: &str,
        incarnation: u64,
        on_entry: impl FnMut(Entry<'_>),
    ) -> Result<(Self, TableReport), TableError> {
        Self::open_with(dir, name, incarnation, None, on_entry)
    }

    /// As [`Self::open`], for an owner that does not keep the values of one kind: the table knows where they lie, gives them with
    /// [`Self::value`] and carries them over in a rewrite. A key and its place take about a hundred bytes of memory.
    pub fn open_with(
        dir: &Arc<dyn Dir>,
        name: &str,
        incarnation: u64,
        kind: Option<u8>,
        mut on_entry: impl FnMut(Entry<'_>),
    ) -> Result<(Self, TableReport), TableError> {
        let file = dir.open(name, Access::ReadWrite)?;
        let mut places = Places::of(kind);
        let scan = scan::scan(&*file, incarnation, read_header(&*file, incarnation)?.base_length, |entry, position| {
            places.note(entry, position);
            on_entry(entry);
        })?;
        let table = Self {
            dir: Arc::clone(dir),
            name: name.to_owned(),
            incarnation,
            file,
            end: scan.end,
            sequence: scan.sequence,
            lsn: scan.report.lsn,
            has_tail: scan.report.torn_tail.is_some(),
            damaged_at: scan.report.damage.first().map(|range| range.start),
            is_poisoned: false,
            places,
        };
        Ok((table, scan.report))
    }

    /// Refuses a table of a newer format and reads nothing else; other faults are found when it is opened.
    pub fn check_format(dir: &dyn Dir, name: &str, incarnation: u64) -> Result<(), TableError> {
        match read_header(&*dir.open(name, Access::Read)?, incarnation) {
            Err(error @ TableError::NewerFormat { .. }) => Err(error),
            _ => Ok(()),
        }
    }

    /// Reads a table as [`Self::open`] does, without the means to write it.
    pub fn read(
        dir: &dyn Dir,
        name: &str,
        incarnation: u64,
        mut on_entry: impl FnMut(Entry<'_>),
    ) -> Result<TableReport, TableError> {
        let file = dir.open(name, Access::Read)?;
        let header = read_header(&*file, incarnation)?;
        Ok(scan::scan(&*file, incarnation, header.base_length, |entry, _| on_entry(entry))?.report)
    }

    /// The value of a key of the kind that the table was opened with; `None` if it has none.
    ///
    /// # Errors
    ///
    /// [`TableError::Damaged`] if it is not as it was written.
    pub fn value(&self, key: Key) -> Result<Option<Vec<u8>>, TableError> {
        self.places.list.get(&key).map(|&place| self.read_value(place)).transpose()
    }

    fn read_value(&self, place: Place) -> Result<Vec<u8>, TableError> {
        let mut value = vec![0; place.length as usize];
        self.file.read_exact_at(&mut value, place.position)?;
        if crc32fast::hash(&value) != place.checksum {
            return Err(TableError::Damaged { path: self.path(), position: place.position });
        }
        Ok(value)
    }

    /// Adds entries as one block that is there whole or not at all; durable on return. `lsn` is the caller's mark of how far
    /// the state now reaches, and comes back from [`Self::lsn`].
    pub fn append<'a>(&mut self, lsn: u64, entries: impl IntoIterator<Item = Entry<'a>>) -> Result<(), TableError> {
        self.check_writable()?;
        if let Some(position) = self.damaged_at {
            return Err(TableError::Damaged { path: self.path(), position });
        }
        let mut block = PlacedBlock::default();
        for entry in entries {
            block.push(&self.places, entry)?;
        }
        if self.has_tail {
            self.file.set_length(self.end)?;
        }
        self.has_tail = true;
        let (bytes, placed) = block.finish(self.next_header(lsn));
        self.file.write_at(&bytes, self.end)?;
        self.file.sync_data().inspect_err(|_| self.is_poisoned = true)?;
        self.has_tail = false;
        self.advance(&bytes, placed, lsn);
        Ok(())
    }

    /// Replaces the file with one that holds these entries, and the values that it knows the places of, and nothing else; durable on
    /// return. Before that the old file stands, whatever happens. A damaged file is kept beside the new one, under its name and
    /// `.damaged-N`; a value that cannot be read any more makes it one.
    pub fn rewrite<'a>(&mut self, lsn: u64, entries: impl IntoIterator<Item = Entry<'a>>) -> Result<(), TableError> {
        self.check_writable()?;
        let unreadable = self.drop_unreadable()?;
        self.damaged_at = self.damaged_at.or(unreadable);
        let contents = Contents { entries: entries.into_iter(), carried: Some(self) };
        let staged = stage(&self.dir, &self.name, self.incarnation, lsn, Places::of(self.places.kind), contents)?;
        if self.damaged_at.is_some() {
            self.keep_aside()?;
        }
        // From here on a failure leaves open which of the two files a restart finds, and an append could go to the other.
        self.is_poisoned = true;
        *self = staged.put_in_place(&self.dir, &self.name)?;
        Ok(())
    }

    /// Forgets the places of values that are not as they were written; where the first of them is.
    fn drop_unreadable(&mut self) -> Result<Option<u64>, TableError> {
        let mut bad = Vec::new();
        for (&key, &place) in &self.places.list {
            match self.read_value(place) {
                Ok(_) => {}
                Err(TableError::Damaged { position, .. }) => bad.push((key, position)),
                Err(error) => return Err(error),
            }
        }
        for (key, _) in &bad {
            self.places.list.remove(key);
        }
        Ok(bad.first().map(|&(_, position)| position))
    }

    /// The mark of the last block; 0 in an empty table.
    pub fn lsn(&self) -> u64 {
        self.lsn
    }

    /// Bytes of the file up to the end of its last block.
    pub fn file_bytes(&self) -> u64 {
        self.end
    }

    /// Whether a rewrite pays: more than half of the file, and more than a mebibyte, is overridden. `live_bytes` is the sum of
    /// [`entry_bytes`] over the live entries.
    pub fn is_worth_rewriting(&self, live_bytes: u64) -> bool {
        let garbage = self.end.saturating_sub(live_bytes);
        garbage > GARBAGE_BYTES_MIN && garbage > live_bytes
    }

    fn check_writable(&self) -> Result<(), TableError> {
        if self.is_poisoned { Err(TableError::Poisoned { path: self.path() }) } else { Ok(()) }
    }

    fn path(&self) -> String {
        self.file.describe().to_owned()
    }

    fn next_header(&self, lsn: u64) -> BlockHeader {
        BlockHeader { incarnation: self.incarnation, position: self.end, sequence: self.sequence, lsn, ..BlockHeader::default() }
    }

    /// Writes a block at the end, without a sync.
    fn write_block(&mut self, block: PlacedBlock) -> Result<(), TableError> {
        let (bytes, placed) = block.finish(self.next_header(self.lsn));
        self.file.write_at(&bytes, self.end)?;
        self.advance(&bytes, placed, self.lsn);
        Ok(())
    }

    /// Adds an entry to a block, which is written when it is large enough.
    fn put(&mut self, block: &mut PlacedBlock, entry: Entry<'_>) -> Result<(), TableError> {
        block.push(&self.places, entry)?;
        if block.block.body_length() >= REWRITE_BLOCK_BYTES {
            self.write_block(std::mem::take(block))?;
        }
        Ok(())
    }

    fn advance(&mut self, block: &[u8], placed: Vec<(Key, Option<Place>)>, lsn: u64) {
        for (key, place) in placed {
            match place {
                Some(place) => self.places.list.insert(key, Place { position: self.end + place.position, ..place }),
                None => self.places.list.remove(&key),
            };
        }
        self.end += block.len() as u64;
        self.sequence += 1;
        self.lsn = lsn;
    }

    /// Copies the file beside itself; durable on return. A rename would leave a moment with no table at all.
    fn keep_aside(&self) -> Result<(), TableError> {
        let copy = create_numbered(&*self.dir, &format!("{}.damaged", self.name))?;
        let length = self.file.length()?;
        let mut page = vec![0; PAGE_BYTES];
        for position in (0..length).step_by(PAGE_BYTES) {
            // What cannot be read stays a hole.
            if let Ok(count) = self.file.read_at(&mut page, position) {
                copy.write_at(page.get(..count).unwrap_or_default(), position)?;
            }
        }
        copy.set_length(length)?;
        copy.sync_data()?;
        self.dir.sync()?;
        Ok(())
    }
}

/// A block being made, with the places in it of the values that the table keeps track of.
struct PlacedBlock {
    block: BlockBuilder,
    placed: Vec<(Key, Option<Place>)>,
}

impl Default for PlacedBlock {
    fn default() -> Self {
        Self { block: BlockBuilder::new(), placed: Vec::new() }
    }
}

impl PlacedBlock {
    fn push(&mut self, places: &Places, entry: Entry<'_>) -> Result<(), TableError> {
        self.block.push(entry)?;
        if places.kind == Some(entry.key.kind) {
            let place = entry.value.map(|value| Place {
                position: (self.block.length() - value.len()) as u64,
                length: value.len() as u32,
                checksum: crc32fast::hash(value),
            });
            self.placed.push((entry.key, place));
        }
        Ok(())
    }

    fn finish(self, header: BlockHeader) -> (Vec<u8>, Vec<(Key, Option<Place>)>) {
        (self.block.finish(header), self.placed)
    }
}

/// What a new file holds: these entries, then the values of which a table knows the places.
struct Contents<'t, I> {
    entries: I,
    carried: Option<&'t Table>,
}

/// A whole table under its temporary name, durable but not in place.
struct Staged {
    table: Table,
    temporary: String,
}

/// Writes a table of these entries under a temporary name.
fn stage<'a>(
    dir: &Arc<dyn Dir>,
    name: &str,
    incarnation: u64,
    lsn: u64,
    places: Places,
    contents: Contents<'_, impl Iterator<Item = Entry<'a>>>,
) -> Result<Staged, TableError> {
    let temporary = format!("{name}.tmp");
    let file = create_temporary(&**dir, &temporary)?;
    let mut table = Table {
        dir: Arc::clone(dir),
        name: name.to_owned(),
        incarnation,
        file,
        end: format::FILE_HEADER_BYTES as u64,
        sequence: 1,
        lsn,
        has_tail: false,
        damaged_at: None,
        is_poisoned: false,
        places,
    };
    let mut block = PlacedBlock::default();
    for entry in contents.entries {
        table.put(&mut block, entry)?;
    }
    if let Some(source) = contents.carried {
        for (&key, &place) in &source.places.list {
            let value = source.read_value(place)?;
            table.put(&mut block, Entry { key, value: Some(&value) })?;
        }
    }
    // An empty table without a mark needs no block; a mark is kept even if nothing else is left.
    if !block.block.is_empty() || (table.sequence == 1 && lsn > 0) {
        table.write_block(block)?;
    }
    let header = FileHeader { version: format::VERSION, incompatible: 0, incarnation, base_length: table.end };
    table.file.write_at(&header.encode(), 0)?;
    table.file.sync_data()?;
    Ok(Staged { table, temporary })
}

impl Staged {
    fn put_in_place(mut self, dir: &Arc<dyn Dir>, name: &str) -> Result<Table, TableError> {
        dir.rename(&self.temporary, name)?;
        dir.sync()?;
        // The same file under its new name, so that errors name what is there.
        self.table.file = dir.open(name, Access::ReadWrite)?;
        Ok(self.table)
    }
}

/// Creates a file under the first free number.
fn create_numbered(dir: &dyn Dir, stem: &str) -> disk::Result<Arc<dyn File>> {
    let mut number = 1u32;
    loop {
        match dir.create(&format!("{stem}-{number}")) {
            Err(error) if error.kind == DiskErrorKind::AlreadyExists => number = number.saturating_add(1),
            other => return other,
        }
    }
}

/// The header of a table's file, if this program may use it and it belongs to the incarnation.
fn read_header(file: &dyn File, incarnation: u64) -> Result<FileHeader, TableError> {
    let path = || file.describe().to_owned();
    let mut bytes = [0; format::FILE_HEADER_BYTES];
    let count = file.read_at(&mut bytes, 0)?;
    let header = FileHeader::decode(bytes.get(..count).unwrap_or_default())
        .map_err(|reason| TableError::BadHeader { path: path(), reason })?;
    if header.version != format::VERSION || header.incompatible != 0 {
        return Err(TableError::NewerFormat { path: path(), version: header.version, features: header.incompatible });
    }
    if header.incarnation != incarnation {
        return Err(TableError::WrongIncarnation { path: path(), expected: incarnation, found: header.incarnation });
    }
    Ok(header)
}
