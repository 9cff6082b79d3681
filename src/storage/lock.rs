//! The lock on a data directory: one process at a time, from before the first read to the end of the process.
//!
//! The file is never deleted, since a lock on a deleted file keeps nobody out.

use std::sync::Arc;

use super::disk::{Access, Dir, DiskError, File};

/// The name of the lock file.
pub const LOCK_FILE: &str = "fanlog.lock";

/// Bytes of the holder's text that a second opener reads.
const HOLDER_BYTES_MAX: usize = 256;

/// An exclusive hold on a data directory, until it is dropped or the process ends, however it ends.
#[derive(Debug)]
pub struct DirectoryLock {
    _file: Arc<dyn File>,
}

/// Why a directory cannot be locked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// Another process, or another engine in this one, has the directory open.
    #[error("{path} is in use by {holder}")]
    InUse {
        /// The directory.
        path: String,
        /// The holder as it described itself: its process id and when it started.
        holder: String,
    },
    /// The lock file cannot be opened, locked or written.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl DirectoryLock {
    /// Locks the directory without waiting. `started` describes this start to whoever finds the directory locked, such as
    /// the time; the process id stands before it.
    pub fn acquire(dir: &dyn Dir, started: &str) -> Result<Self, LockError> {
        match dir.lock_file(LOCK_FILE)? {
            Some(file) => {
                // Written over before it is cut, so that a full disk does not keep the directory from being opened.
                let text = format!("pid {}, {started}\n", std::process::id());
                file.write_at(text.as_bytes(), 0)?;
                file.set_length(text.len() as u64)?;
                Ok(Self { _file: file })
            }
            None => Err(LockError::InUse { path: dir.describe(), holder: holder(dir) }),
        }
    }
}

/// What the holder wrote about itself; a holder that has not come that far is still a holder.
fn holder(dir: &dyn Dir) -> String {
    let mut bytes = [0; HOLDER_BYTES_MAX];
    let length = dir.open(LOCK_FILE, Access::Read).and_then(|file| file.read_at(&mut bytes, 0)).unwrap_or(0);
    let text = String::from_utf8_lossy(bytes.get(..length).unwrap_or_default());
    let text: String = text.trim().chars().map(|character| if character.is_control() { ' ' } else { character }).collect();
    if text.is_empty() { "another process".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::super::disk::RealDir;
    use super::super::disk::sim::SimDisk;
    use super::*;

    fn locks_one_at_a_time(dir: &dyn Dir) {
        let lock = DirectoryLock::acquire(dir, "started at noon").unwrap();
        let error = DirectoryLock::acquire(dir, "started later").unwrap_err();
        let holder = format!("pid {}, started at noon", std::process::id());
        assert_eq!(error, LockError::InUse { path: dir.describe(), holder: holder.clone() });
        assert_eq!(error.to_string(), format!("{} is in use by {holder}", dir.describe()));
        drop(lock);
        let again = DirectoryLock::acquire(dir, "x").unwrap();
        drop(again);
        assert!(dir.list().unwrap().iter().any(|entry| entry.name == LOCK_FILE));
    }

    #[test]
    fn a_real_directory_has_one_holder() {
        let temporary = tempfile::tempdir().unwrap();
        locks_one_at_a_time(&RealDir::open(temporary.path()).unwrap());
    }

    #[test]
    fn a_simulated_directory_has_one_holder() {
        locks_one_at_a_time(&*SimDisk::new(1).root());
    }

    #[test]
    fn a_lock_ends_with_its_process() {
        let disk = SimDisk::new(1);
        let _lock = DirectoryLock::acquire(&*disk.root(), "first").unwrap();
        for next in [disk.crash_keep_all(), disk.crash(7)] {
            assert!(DirectoryLock::acquire(&*next.root(), "second").is_ok());
        }
    }
}
