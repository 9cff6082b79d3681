//! Read-only maps of files, and what happens when the file behind one fails.
//!
//! This is the only module with unsafe code; what leaves it is safe to call with any argument. A [`Map`] hands out
//! [`Bytes`] that keep the map alive, so a slice on its way to a socket is never unmapped under it.
//!
//! The file goes on being written (with positioned writes) while it is mapped. Slices are therefore to be taken only of the
//! published part: bytes that were complete before their end was published and are never written again while anyone can
//! reach them.
//!
//! When a page cannot be read (the file was cut short, the sector is bad), the processor raises SIGBUS. A handler that is
//! installed with the first map puts a page of zeros in its place and marks the map as faulted: the read goes on, its
//! checksum fails, and [`Map::is_faulted`] tells why. A SIGBUS anywhere else goes to whoever handled it before.
#![allow(unsafe_code, reason = "maps and signal handlers have no safe form; every block says what it relies on")]

mod fault;

use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;

use fault::Watch;
pub(super) use fault::ignore_file_size_signal;

/// A read-only view of the first bytes of a file. Clones share it.
#[derive(Clone)]
pub struct Map {
    source: Source,
    length: u64,
}

#[derive(Clone)]
enum Source {
    /// Mapped memory: slices borrow from `whole`.
    Mapped { whole: Bytes, memory: Arc<Memory> },
    /// A file that is not memory: slices are copies, and hold on to `memory` as those of mapped memory do.
    Copied { file: Arc<dyn CopySource>, faulted: Arc<AtomicBool>, memory: Arc<Memory> },
}

/// A file that a map reads through to, for disks without memory to map.
pub trait CopySource: Send + Sync {
    /// Fills `target` from `position`; `false` when a byte cannot be read, whose place is then zero.
    fn copy(&self, target: &mut [u8], position: u64) -> bool;
}

/// Maps of files that this process has now.
pub fn open_maps() -> usize {
    fault::watched()
}

impl Map {
    /// Maps the first `length` bytes, which the file must have, of an open file.
    pub(super) fn of_file(file: &fs::File, length: usize) -> io::Result<Self> {
        if length == 0 {
            let empty = Memory { _watch: None, map: None };
            return Ok(Self { source: Source::Mapped { whole: Bytes::new(), memory: Arc::new(empty) }, length: 0 });
        }
        // SAFETY: the map is read-only and shared. Its bytes change only through writes to parts of the file that are not
        // published (see the module), so no slice in a reader's hands changes; the directory's lock keeps other processes
        // from writing. A file that is cut short raises SIGBUS, which the watch below turns into zeros.
        let map = unsafe { memmap2::MmapOptions::new().len(length).map(file)? };
        let watch = Watch::start(map.as_ptr() as usize, length)?;
        let memory = Arc::new(Memory { _watch: Some(watch), map: Some(map) });
        let whole = Bytes::from_owner(Owner(Arc::clone(&memory)));
        Ok(Self { source: Source::Mapped { whole, memory }, length: length as u64 })
    }

    /// A map that copies from `file` at each slice and shows its later writes, as mapped memory does.
    pub fn of_copies(file: Arc<dyn CopySource>, length: u64) -> Self {
        let memory = Arc::new(Memory { _watch: None, map: None });
        Self { source: Source::Copied { file, faulted: Arc::default(), memory }, length }
    }

    /// How many bytes of the file the map shows.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The bytes of a range of positions; `None` when it is not inside the map. Take only ranges that are published. Nothing
    /// is copied, and the slice keeps the map alive.
    pub fn slice(&self, range: Range<u64>) -> Option<Bytes> {
        if range.start > range.end || range.end > self.length {
            return None;
        }
        let start = usize::try_from(range.start).ok()?;
        let end = usize::try_from(range.end).ok()?;
        match &self.source {
            Source::Mapped { whole, .. } => Some(whole.slice(start..end)),
            Source::Copied { file, faulted, memory } => {
                let mut bytes = vec![0; end - start];
                if !file.copy(&mut bytes, range.start) {
                    faulted.store(true, Ordering::Relaxed);
                }
                let (file, _memory) = (Arc::clone(file), Arc::clone(memory));
                Some(Bytes::from_owner(Copy { bytes, file, position: range.start, _memory }))
            }
        }
    }

    /// Tells, also when this map is dropped, whether anyone holds it or a slice of it.
    pub(super) fn use_of(&self) -> MapUse {
        match &self.source {
            Source::Mapped { memory, .. } | Source::Copied { memory, .. } => MapUse(Arc::downgrade(memory)),
        }
    }

    /// Whether a page of this map could not be read and shows zeros in its place. It stays so: a map that faulted is to be
    /// dropped, and the range read through the file, which names the error. Ask after the bytes were read and verified.
    pub fn is_faulted(&self) -> bool {
        match &self.source {
            Source::Mapped { memory, .. } => memory.is_faulted(),
            Source::Copied { faulted, .. } => faulted.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Debug for Map {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Map").field("length", &self.length).field("faulted", &self.is_faulted()).finish()
    }
}

/// Whether a map is still looked at.
#[derive(Debug)]
pub(super) struct MapUse(Weak<Memory>);

impl MapUse {
    /// Whether the map, a clone or a slice of it is in somebody's hands.
    pub fn is_in_use(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// Mapped memory and its place in the list that the signal handler reads. The fields are dropped in this order: the address
/// leaves the list before the system can give it to someone else.
struct Memory {
    _watch: Option<Watch>,
    map: Option<memmap2::Mmap>,
}

impl Memory {
    fn is_faulted(&self) -> bool {
        self._watch.as_ref().is_some_and(Watch::is_faulted)
    }
}

/// What a slice holds on to.
struct Owner(Arc<Memory>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        self.0.map.as_deref().unwrap_or_default()
    }
}

/// What a slice is that was copied.
struct Copy {
    bytes: Vec<u8>,
    #[cfg_attr(not(feature = "shuttle"), expect(dead_code, reason = "compared with the copy when threads are scheduled"))]
    file: Arc<dyn CopySource>,
    #[cfg_attr(not(feature = "shuttle"), expect(dead_code, reason = "compared with the copy when threads are scheduled"))]
    position: u64,
    _memory: Arc<Memory>,
}

impl AsRef<[u8]> for Copy {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A slice of mapped memory would show what happened to the file meanwhile: nothing may have.
#[cfg(feature = "shuttle")]
impl Drop for Copy {
    fn drop(&mut self) {
        let mut bytes = vec![0; self.bytes.len()];
        if !std::thread::panicking() && self.file.copy(&mut bytes, self.position) {
            assert!(bytes == self.bytes, "bytes that a reader holds changed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::*;

    fn file_of(bytes: &[u8]) -> fs::File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn slices_are_bounded_by_the_map_and_outlive_it() {
        let map = Map::of_file(&file_of(b"0123456789"), 8).unwrap();
        assert!(open_maps() > 0);
        assert_eq!(map.length(), 8);
        assert_eq!(map.slice(0..8).unwrap(), "01234567");
        assert_eq!(map.slice(8..8).unwrap(), "");
        assert_eq!(map.slice(0..9), None);
        assert_eq!(map.slice(Range { start: 5, end: 4 }), None);
        assert_eq!(map.slice(u64::MAX - 1..u64::MAX), None);
        let slice = map.slice(2..4).unwrap();
        drop(map);
        assert_eq!(slice, "23");
    }

    #[test]
    fn a_map_is_in_use_as_long_as_a_slice_of_it_is() {
        let map = Map::of_file(&file_of(b"0123456789"), 8).unwrap();
        let (watch, slice) = (map.use_of(), map.slice(2..4).unwrap());
        drop(map);
        assert!(watch.is_in_use());
        let part = slice.slice(1..);
        drop(slice);
        assert!(watch.is_in_use());
        drop(part);
        assert!(!watch.is_in_use());
    }

    #[test]
    fn an_empty_map_has_an_empty_slice() {
        let map = Map::of_file(&file_of(b""), 0).unwrap();
        assert_eq!(map.slice(0..0).unwrap(), "");
        assert_eq!(map.slice(0..1), None);
        assert!(!map.is_faulted());
    }

    #[test]
    fn later_writes_show() {
        let file = file_of(&[0; 5000]);
        let map = Map::of_file(&file, 5000).unwrap();
        assert_eq!(map.slice(4998..5000).unwrap(), &[0, 0][..]);
        file.write_all_at(b"ab", 4998).unwrap();
        assert_eq!(map.slice(4998..5000).unwrap(), "ab");
    }

    #[test]
    fn a_file_cut_short_under_the_map_is_an_error_of_that_map_only() {
        let page = rustix::param::page_size();
        let bytes = vec![7; page * 4];
        let (cut, whole) = (file_of(&bytes), file_of(&bytes));
        let cut_map = Map::of_file(&cut, bytes.len()).unwrap();
        let whole_map = Map::of_file(&whole, bytes.len()).unwrap();
        cut.set_len(page as u64).unwrap();
        let seen = cut_map.slice(0..bytes.len() as u64).unwrap();
        assert_eq!(seen[page - 1], 7);
        assert!(!cut_map.is_faulted());
        assert_eq!(seen[page], 0);
        assert!(cut_map.is_faulted());
        assert!(seen[page..].iter().all(|&byte| byte == 0));
        assert!(whole_map.slice(0..bytes.len() as u64).unwrap().iter().all(|&byte| byte == 7));
        assert!(!whole_map.is_faulted());
    }

    #[test]
    fn a_faulted_map_leaves_a_clean_place_to_the_next() {
        for _ in 0..100 {
            let file = file_of(&[1; 100]);
            let map = Map::of_file(&file, 100).unwrap();
            assert!(!map.is_faulted());
            file.set_len(0).unwrap();
            assert_eq!(map.slice(50..51).unwrap(), &[0][..]);
            assert!(map.is_faulted());
        }
    }

    #[test]
    fn many_threads_fault_in_one_map_at_once() {
        let page = rustix::param::page_size();
        let file = file_of(&vec![1; page * 64]);
        let map = Map::of_file(&file, page * 64).unwrap();
        file.set_len(0).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert!(map.slice(0..page as u64 * 64).unwrap().iter().all(|&byte| byte == 0)));
            }
        });
        assert!(map.is_faulted());
    }
}
