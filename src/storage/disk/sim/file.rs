//! A simulated file: sparse pages, and for each page that was written since the last sync what it was before and after every
//! write. A crash then picks for each sector how many of those writes reached the disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::choice::{Choice, Unit};

/// The unit of sparse storage.
pub(super) const PAGE_BYTES: usize = 4096;

/// The unit that a drive writes whole.
pub(super) const SECTOR_BYTES: usize = 512;

type Page = [u8; PAGE_BYTES];

/// A page that was never written, or was punched out, is absent and reads as zero.
type MaybePage = Option<Arc<Page>>;

/// Content of a file, as running programs see it and as the disk may have it. Clones share pages.
#[derive(Debug, Clone, Default)]
pub(super) struct FileNode {
    /// How many names stand for the file.
    pub links: u32,
    length: u64,
    pages: BTreeMap<u64, Arc<Page>>,
    blocks: Blocks,
    dirty: BTreeMap<u64, PageHistory>,
    lengths: Option<LengthHistory>,
}

/// What happened to a page since it was synced.
#[derive(Debug, Clone)]
struct PageHistory {
    synced: MaybePage,
    versions: Vec<PageVersion>,
    /// A sync failed over these changes: a later sync does not make them safe, only writing them again does.
    is_stuck: bool,
}

#[derive(Debug, Clone)]
struct PageVersion {
    step: u64,
    /// One bit for each sector that the write touched.
    sectors: u8,
    page: MaybePage,
}

#[derive(Debug, Clone)]
struct LengthHistory {
    synced: u64,
    versions: Vec<(u64, u64)>,
    is_stuck: bool,
}

impl FileNode {
    /// An empty file with one name.
    pub(super) fn named() -> Self {
        Self { links: 1, ..Self::default() }
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Pages of disk space in use.
    pub(super) fn used_pages(&self) -> u64 {
        self.blocks.count()
    }

    /// Fills the buffer as far as the file goes and says how far.
    pub(super) fn read(&self, buffer: &mut [u8], position: u64) -> usize {
        let left = self.length.saturating_sub(position);
        let length = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        for piece in pieces(position, length as u64) {
            let target = &mut buffer[piece.offset..piece.offset + piece.length()];
            match self.pages.get(&piece.page) {
                Some(page) => target.copy_from_slice(&page[piece.start..piece.end]),
                None => target.fill(0),
            }
        }
        length
    }

    /// Writes as many of the bytes as `room` new pages allow and says how many.
    pub(super) fn write(&mut self, bytes: &[u8], position: u64, step: u64, mut room: u64) -> usize {
        let mut written = 0;
        for piece in pieces(position, bytes.len() as u64) {
            if !self.blocks.contains(piece.page) {
                if room == 0 {
                    break;
                }
                room -= 1;
                self.blocks.insert(piece.page);
            }
            let source = &bytes[piece.offset..piece.offset + piece.length()];
            self.change_page(&piece, step, |page| page[piece.start..piece.end].copy_from_slice(source));
            written += piece.length();
        }
        self.grow(position + written as u64, step);
        written
    }

    /// New pages that a reservation needs.
    pub(super) fn pages_to_allocate(&self, position: u64, length: u64) -> u64 {
        pieces(position, length).filter(|piece| !self.blocks.contains(piece.page)).count() as u64
    }

    pub(super) fn allocate(&mut self, position: u64, length: u64, step: u64) {
        for piece in pieces(position, length) {
            self.blocks.insert(piece.page);
        }
        self.grow(position + length, step);
    }

    pub(super) fn set_length(&mut self, length: u64, step: u64) {
        if length < self.length {
            self.clear(length, self.length - length, step);
            self.blocks.cut(length.div_ceil(PAGE_BYTES as u64));
        }
        self.record_length(length, step);
    }

    pub(super) fn punch_hole(&mut self, position: u64, length: u64, step: u64) {
        let length = length.min(self.length.saturating_sub(position));
        for piece in pieces(position, length).filter(|piece| piece.length() == PAGE_BYTES) {
            self.blocks.remove(piece.page);
        }
        self.clear(position, length, step);
    }

    pub(super) fn sync_succeeded(&mut self) {
        self.dirty.retain(|_, history| history.is_stuck);
        if self.lengths.as_ref().is_some_and(|lengths| !lengths.is_stuck) {
            self.lengths = None;
        }
    }

    pub(super) fn sync_failed(&mut self) {
        for history in self.dirty.values_mut() {
            history.is_stuck = true;
        }
        if let Some(lengths) = &mut self.lengths {
            lengths.is_stuck = true;
        }
    }

    /// The file as a crash may leave it, all of it synced.
    pub(super) fn after_crash(&self, choice: &mut dyn Choice) -> Self {
        let mut pages = self.pages.clone();
        let synced_length = self.lengths.as_ref().map_or(self.length, |lengths| lengths.synced);
        for (&number, history) in &self.dirty {
            let start = number * PAGE_BYTES as u64;
            match history.after_crash(choice, start, synced_length) {
                Some(page) => pages.insert(number, page),
                None => pages.remove(&number),
            };
        }
        let length = self.lengths.as_ref().map_or(self.length, |lengths| lengths.after_crash(choice));
        let mut file = Self { length, pages, blocks: self.blocks.clone(), ..Self::default() };
        file.drop_beyond_length();
        file
    }

    /// The numbers of the first and last call whose changes are not synced.
    pub(super) fn steps(&self) -> impl Iterator<Item = u64> {
        let pages = self.dirty.values().flat_map(|history| history.versions.iter().map(|version| version.step));
        let lengths = self.lengths.iter().flat_map(|lengths| lengths.versions.iter().map(|version| version.0));
        pages.chain(lengths)
    }

    fn grow(&mut self, end: u64, step: u64) {
        if end > self.length {
            self.record_length(end, step);
        }
    }

    fn record_length(&mut self, length: u64, step: u64) {
        if length == self.length {
            return;
        }
        let synced = self.length;
        let history = self.lengths.get_or_insert(LengthHistory { synced, versions: Vec::new(), is_stuck: false });
        history.versions.push((step, length));
        history.is_stuck = false;
        self.length = length;
    }

    fn clear(&mut self, position: u64, length: u64, step: u64) {
        for piece in pieces(position, length) {
            if self.pages.contains_key(&piece.page) {
                self.change_page(&piece, step, |page| page[piece.start..piece.end].fill(0));
            }
        }
    }

    fn change_page(&mut self, piece: &Piece, step: u64, change: impl FnOnce(&mut Page)) {
        let synced = self.pages.get(&piece.page).cloned();
        let mut page = synced.as_deref().copied().unwrap_or([0; PAGE_BYTES]);
        change(&mut page);
        let page = Arc::new(page);
        self.pages.insert(piece.page, Arc::clone(&page));
        let new = || PageHistory { synced, versions: Vec::new(), is_stuck: false };
        let history = self.dirty.entry(piece.page).or_insert_with(new);
        history.versions.push(PageVersion { step, sectors: piece.sectors(), page: Some(page) });
        history.is_stuck = false;
    }

    /// What lies beyond the end reads as zero when the file grows again.
    fn drop_beyond_length(&mut self) {
        let whole = self.length / PAGE_BYTES as u64;
        let part = (self.length % PAGE_BYTES as u64) as usize;
        let beyond = self.pages.split_off(&whole);
        if let Some(page) = beyond.get(&whole).filter(|_| part > 0) {
            let mut page = **page;
            page[part..].fill(0);
            self.pages.insert(whole, Arc::new(page));
        }
        self.blocks.cut(self.length.div_ceil(PAGE_BYTES as u64));
        for &page in self.pages.keys() {
            self.blocks.insert(page);
        }
    }
}

impl PageHistory {
    fn after_crash(&self, choice: &mut dyn Choice, start: u64, synced_length: u64) -> MaybePage {
        let mut result = self.synced.as_deref().copied().unwrap_or([0; PAGE_BYTES]);
        for sector in 0..PAGE_BYTES / SECTOR_BYTES {
            let versions: Vec<&PageVersion> =
                self.versions.iter().filter(|version| version.sectors & (1 << sector) != 0).collect();
            if versions.is_empty() {
                continue;
            }
            let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
            let steps: Vec<u64> = versions.iter().map(|version| version.step).collect();
            let target = &mut result[range.clone()];
            match choice.kept(Unit::Sector, &steps).checked_sub(1).and_then(|index| versions.get(index)) {
                Some(version) => {
                    let new = version.page.as_deref().map_or(&[0; SECTOR_BYTES][..], |page| &page[range]);
                    match choice.tear(SECTOR_BYTES) {
                        Some((at, true)) => target[..at].copy_from_slice(&new[..at]),
                        Some((at, false)) => target[at..].copy_from_slice(&new[at..]),
                        None => target.copy_from_slice(new),
                    }
                }
                None if start + range.start as u64 >= synced_length => {
                    if let Some(byte) = choice.garbage() {
                        target.fill(byte);
                    }
                }
                None => {}
            }
        }
        Some(Arc::new(result))
    }
}

impl LengthHistory {
    fn after_crash(&self, choice: &mut dyn Choice) -> u64 {
        let steps: Vec<u64> = self.versions.iter().map(|version| version.0).collect();
        let kept = choice.kept(Unit::Length, &steps);
        kept.checked_sub(1).and_then(|index| self.versions.get(index)).map_or(self.synced, |version| version.1)
    }
}

/// The part of a range that lies in one page.
struct Piece {
    page: u64,
    /// From where to where inside the page.
    start: usize,
    end: usize,
    /// Where the part begins inside the range.
    offset: usize,
}

impl Piece {
    fn length(&self) -> usize {
        self.end - self.start
    }

    fn sectors(&self) -> u8 {
        let last = self.end.saturating_sub(1) / SECTOR_BYTES;
        (self.start / SECTOR_BYTES..=last).fold(0, |bits, sector| bits | 1 << sector)
    }
}

/// Splits a range at page boundaries.
fn pieces(position: u64, length: u64) -> impl Iterator<Item = Piece> {
    let page_bytes = PAGE_BYTES as u64;
    let end = position + length;
    let pages = if length == 0 { 0..0 } else { position / page_bytes..end.div_ceil(page_bytes) };
    pages.map(move |page| {
        let base = page * page_bytes;
        let start = position.max(base);
        Piece {
            page,
            start: (start - base) as usize,
            end: (end.min(base + page_bytes) - base) as usize,
            offset: (start - position) as usize,
        }
    })
}

/// Which pages have room on the disk: one bit each.
#[derive(Debug, Clone, Default)]
struct Blocks {
    words: Vec<u64>,
}

impl Blocks {
    fn contains(&self, page: u64) -> bool {
        self.words.get((page / 64) as usize).is_some_and(|word| word & (1 << (page % 64)) != 0)
    }

    fn insert(&mut self, page: u64) {
        let index = (page / 64) as usize;
        if index >= self.words.len() {
            self.words.resize(index + 1, 0);
        }
        self.words[index] |= 1 << (page % 64);
    }

    fn remove(&mut self, page: u64) {
        if let Some(word) = self.words.get_mut((page / 64) as usize) {
            *word &= !(1 << (page % 64));
        }
    }

    fn cut(&mut self, pages: u64) {
        self.words.truncate(pages.div_ceil(64) as usize);
        if !pages.is_multiple_of(64)
            && let Some(last) = self.words.get_mut((pages / 64) as usize)
        {
            *last &= (1 << (pages % 64)) - 1;
        }
    }

    fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}
