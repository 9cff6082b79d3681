//! The one door to files: directories and files as the engine sees them.
//!
//! Two versions stand behind the traits: [`RealDir`] on the operating system, and [`sim::SimDisk`], which keeps what was
//! synced apart from what was written and can cut the power at any call. One suite of tests asks both the same questions.
//!
//! Durability is the caller's to ask for: a file's bytes and length are safe after [`File::sync_data`], a created, renamed or
//! removed name is safe after [`Dir::sync`] of the directory that holds it. Nothing else is.
//!
//! Names are single components that this crate makes; a name with a separator, and the names `.` and `..`, are refused.

mod error;
mod real;
pub mod sim;
#[cfg(test)]
mod tests;
mod transfer;

use std::fmt;
use std::io::IoSlice;
use std::sync::Arc;

pub use error::{DiskError, DiskErrorKind, Result};
pub use real::RealDir;
pub use rustix::io::Errno;

use super::map::Map;

/// What an opened file may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading and mapping; every change is refused as [`DiskErrorKind::ReadOnly`].
    Read,
    /// Reading and changing.
    ReadWrite,
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The name; a name that is not UTF-8 has replacement characters and is not ours.
    pub name: String,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// The file's length in bytes; 0 for a directory.
    pub length: u64,
}

/// A directory, known by its path: after a rename of it or of a directory above, the handle finds nothing.
pub trait Dir: Send + Sync + fmt::Debug {
    /// Makes an empty file that did not exist, open for reading and writing.
    fn create(&self, name: &str) -> Result<Arc<dyn File>>;

    /// Opens a file that exists.
    fn open(&self, name: &str, access: Access) -> Result<Arc<dyn File>>;

    /// Gives a file or directory of this directory another name in it, replacing a file that has the name. What is visible
    /// afterwards is the old or the new state, never a mixture.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Takes a file's name away. Open handles and maps go on reading it.
    fn remove(&self, name: &str) -> Result<()>;

    /// All names, sorted. An unreadable directory is an error and never an empty list.
    fn list(&self) -> Result<Vec<Entry>>;

    /// Makes a directory that did not exist.
    fn create_dir(&self, name: &str) -> Result<()>;

    /// A handle to a directory that exists.
    fn dir(&self, name: &str) -> Result<Arc<dyn Dir>>;

    /// Removes an empty directory.
    fn remove_dir(&self, name: &str) -> Result<()>;

    /// Makes every change of names in this directory durable. The contents of the files are not meant by it.
    fn sync(&self) -> Result<()>;

    /// Bytes that this process may still write.
    fn free_bytes(&self) -> Result<u64>;

    /// Opens or creates the file `name` and holds an exclusive lock on it for as long as the file is open; `None` when
    /// another open file, of this process or another, holds it. The lock ends with the process.
    fn lock_file(&self, name: &str) -> Result<Option<Arc<dyn File>>>;

    /// The path, for texts.
    fn describe(&self) -> String;
}

/// An open file. Reads and writes carry their position, so that any number of threads may share the handle.
pub trait File: Send + Sync + fmt::Debug {
    /// Reads up to `buffer.len()` bytes and says how many; fewer only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], position: u64) -> Result<usize>;

    /// Fills `buffer`, or fails with [`DiskErrorKind::EndOfFile`].
    fn read_exact_at(&self, buffer: &mut [u8], position: u64) -> Result<()> {
        let length = self.read_at(buffer, position)?;
        if length < buffer.len() { Err(DiskError::end_of_file("read", self.describe())) } else { Ok(()) }
    }

    /// Writes all of `bytes`. After an error any part of them may have been written.
    fn write_at(&self, bytes: &[u8], position: u64) -> Result<()> {
        self.write_vectored_at(&[IoSlice::new(bytes)], position)
    }

    /// Writes all slices one after the other. After an error any part of them may have been written.
    fn write_vectored_at(&self, slices: &[IoSlice<'_>], position: u64) -> Result<()>;

    /// Reserves room for the bytes `[position, position + length)`, which must not be empty, and makes the file at least that
    /// long; bytes never written read as zero. With [`DiskErrorKind::Full`] the length is as it was. A file system that cannot
    /// reserve only gets the length set, and a full disk then shows at the write.
    fn allocate(&self, position: u64, length: u64) -> Result<()>;

    /// Cuts or extends (with zeros) the file. A mapped file must never be cut.
    fn set_length(&self, length: u64) -> Result<()>;

    /// The length in bytes.
    fn length(&self) -> Result<u64>;

    /// Makes the bytes and the length durable (`fdatasync`). After an error nothing written since the last success may be
    /// believed to be on the disk, whatever a later call says: stop writing.
    fn sync_data(&self) -> Result<()>;

    /// A read-only view of the first `length` bytes, which shows later writes to them. Refused as
    /// [`DiskErrorKind::EndOfFile`] when the file is shorter, as [`DiskErrorKind::Memory`] when no more maps are to be had.
    fn map(&self, length: u64) -> Result<Map>;

    /// Gives the room of `[position, position + length)` back; the bytes read as zero and the length stays.
    fn punch_hole(&self, position: u64, length: u64) -> Result<()>;

    /// The path, for texts.
    fn describe(&self) -> &str;
}

/// Creates a temporary file; one of that name was left by a run that ended before it put it in place, and goes.
pub fn create_temporary(dir: &dyn Dir, name: &str) -> Result<Arc<dyn File>> {
    match dir.create(name) {
        Err(error) if error.kind == DiskErrorKind::AlreadyExists => {
            dir.remove(name)?;
            dir.create(name)
        }
        other => other,
    }
}

/// Succeeds if no file has the name. What cannot be opened is not taken for missing, so that it is never made anew.
pub fn check_absent(dir: &dyn Dir, name: &str) -> Result<()> {
    match dir.open(name, Access::Read) {
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
        Ok(file) => Err(DiskError::from_errno("create", file.describe(), Errno::EXIST)),
    }
}

/// Refuses what is not a single component of a path.
fn check_component(operation: &'static str, parent: &str, name: &str) -> Result<()> {
    let is_component = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
    if is_component { Ok(()) } else { Err(DiskError::from_errno(operation, join(parent, name), Errno::INVAL)) }
}

/// A path for texts.
fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}/{name}") }
}
