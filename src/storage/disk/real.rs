//! The door on the operating system.
//!
//! A directory is held as a path and costs no file descriptor, so that thousands of idle queues fit under the default limit
//! of 1,024; a file holds one descriptor for writing and syncing, so that a failed write-back is reported to the sync that
//! follows.

use std::fs::{self, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use rustix::io::{Errno, retry_on_intr};

use super::super::map;
use super::transfer::{read_fully, write_fully};
use super::{Access, Dir, DiskError, DiskErrorKind, Entry, File, Map, Result, check_component};

/// A directory of the operating system.
#[derive(Debug, Clone)]
pub struct RealDir {
    path: PathBuf,
}

impl RealDir {
    /// A handle to a directory that exists.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        map::ignore_file_size_signal();
        let path = path.into();
        let metadata = fs::metadata(&path).map_err(|error| from_io("open", &path, &error))?;
        if metadata.is_dir() { Ok(Self { path }) } else { Err(from_errno("open", &path, Errno::NOTDIR)) }
    }

    /// A handle to a directory that is made if it is missing, with those above it. What was made is durable on return.
    pub fn open_or_create(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        create_durably(&path)?;
        Self::open(path)
    }

    fn child(&self, operation: &'static str, name: &str) -> Result<PathBuf> {
        check_component(operation, &self.describe(), name)?;
        Ok(self.path.join(name))
    }
}

impl Dir for RealDir {
    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        let path = self.child("create", name)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o640);
        Ok(Arc::new(RealFile::open(&options, Access::ReadWrite, "create", &path)?))
    }

    fn open(&self, name: &str, access: Access) -> Result<Arc<dyn File>> {
        let path = self.child("open", name)?;
        let mut options = OpenOptions::new();
        options.read(true).write(access == Access::ReadWrite);
        Ok(Arc::new(RealFile::open(&options, access, "open", &path)?))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let source = self.child("rename", from)?;
        let target = self.child("rename", to)?;
        fs::rename(&source, target).map_err(|error| from_io("rename", &source, &error))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.child("remove", name)?;
        fs::remove_file(&path).map_err(|error| from_io("remove", &path, &error))
    }

    fn list(&self) -> Result<Vec<Entry>> {
        let failed = |error: io::Error| from_io("list", &self.path, &error);
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // A link counts as what it points to, so that a queue moved to another disk is still a directory; a dangling one
            // as itself. A name that vanished since it was read is left out.
            let metadata = match fs::metadata(entry.path()).or_else(|_| entry.metadata()) {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(from_io("list", &entry.path(), &error)),
            };
            let is_directory = metadata.is_dir();
            let length = if is_directory { 0 } else { metadata.len() };
            entries.push(Entry { name: entry.file_name().to_string_lossy().into_owned(), is_directory, length });
        }
        entries.sort_unstable();
        Ok(entries)
    }

    fn create_dir(&self, name: &str) -> Result<()> {
        let path = self.child("create", name)?;
        fs::DirBuilder::new().mode(0o750).create(&path).map_err(|error| from_io("create", &path, &error))
    }

    fn dir(&self, name: &str) -> Result<Arc<dyn Dir>> {
        Ok(Arc::new(Self::open(self.child("open", name)?)?))
    }

    fn remove_dir(&self, name: &str) -> Result<()> {
        let path = self.child("remove", name)?;
        fs::remove_dir(&path).map_err(|error| from_io("remove", &path, &error))
    }

    fn sync(&self) -> Result<()> {
        sync_directory(&self.path)
    }

    fn free_bytes(&self) -> Result<u64> {
        let figures = rustix::fs::statvfs(&self.path).map_err(|errno| from_errno("measure", &self.path, errno))?;
        Ok(figures.f_bavail.saturating_mul(figures.f_frsize))
    }

    fn lock_file(&self, name: &str) -> Result<Option<Arc<dyn File>>> {
        let path = self.child("lock", name)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o640);
        let file = RealFile::open(&options, Access::ReadWrite, "lock", &path)?;
        match file.file.try_lock() {
            Ok(()) => Ok(Some(Arc::new(file))),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(from_io("lock", &path, &error)),
        }
    }

    fn describe(&self) -> String {
        self.path.display().to_string()
    }
}

/// A file of the operating system.
#[derive(Debug)]
struct RealFile {
    file: fs::File,
    access: Access,
    path: String,
}

impl RealFile {
    fn open(options: &OpenOptions, access: Access, operation: &'static str, path: &Path) -> Result<Self> {
        let file = options.open(path).map_err(|error| from_io(operation, path, &error))?;
        // Reading a directory as a file is refused only at the first read; refuse it here, as every other version does.
        let metadata = file.metadata().map_err(|error| from_io(operation, path, &error))?;
        if metadata.is_dir() {
            return Err(from_errno(operation, path, Errno::ISDIR));
        }
        Ok(Self { file, access, path: path.display().to_string() })
    }

    /// The system names a write to a file opened for reading in three ways; this gives it one.
    fn check_writable(&self, operation: &'static str) -> Result<()> {
        match self.access {
            Access::ReadWrite => Ok(()),
            Access::Read => Err(self.failed(operation)(Errno::BADF)),
        }
    }

    fn failed(&self, operation: &'static str) -> impl FnOnce(Errno) -> DiskError {
        move |errno| DiskError::from_errno(operation, &self.path, errno)
    }
}

impl File for RealFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> Result<usize> {
        let read = |buffer: &mut [u8], at| self.file.read_at(buffer, at).map_err(|error| errno_of(&error));
        read_fully(buffer, position, read).map_err(self.failed("read"))
    }

    fn write_vectored_at(&self, slices: &[IoSlice<'_>], position: u64) -> Result<()> {
        self.check_writable("write")?;
        let write = |slices: &[IoSlice<'_>], at| rustix::io::pwritev(&self.file, slices, at);
        write_fully(slices, position, write).map_err(self.failed("write"))
    }

    fn allocate(&self, position: u64, length: u64) -> Result<()> {
        self.check_writable("allocate")?;
        match retry_on_intr(|| rustix::fs::fallocate(&self.file, FallocateFlags::empty(), position, length)) {
            Err(Errno::OPNOTSUPP) => {
                let end = position.checked_add(length).ok_or(Errno::FBIG).map_err(self.failed("allocate"))?;
                if self.length()? < end { self.set_length(end) } else { Ok(()) }
            }
            other => other.map_err(self.failed("allocate")),
        }
    }

    fn set_length(&self, length: u64) -> Result<()> {
        self.check_writable("set length of")?;
        retry_on_intr(|| rustix::fs::ftruncate(&self.file, length)).map_err(self.failed("set length of"))
    }

    fn length(&self) -> Result<u64> {
        self.file.metadata().map(|metadata| metadata.len()).map_err(|error| self.failed("measure")(errno_of(&error)))
    }

    fn sync_data(&self) -> Result<()> {
        retry_on_intr(|| rustix::fs::fdatasync(&self.file)).map_err(self.failed("sync"))
    }

    fn map(&self, length: u64) -> Result<Map> {
        // A map past the end of the file is legal and faults when it is read.
        if self.length()? < length {
            return Err(DiskError::end_of_file("map", &self.path));
        }
        let length = usize::try_from(length).map_err(|_| self.failed("map")(Errno::NOMEM))?;
        Map::of_file(&self.file, length).map_err(|error| self.failed("map")(errno_of(&error)))
    }

    fn punch_hole(&self, position: u64, length: u64) -> Result<()> {
        self.check_writable("punch hole in")?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        retry_on_intr(|| rustix::fs::fallocate(&self.file, flags, position, length)).map_err(self.failed("punch hole in"))
    }

    fn describe(&self) -> &str {
        &self.path
    }
}

fn create_durably(path: &Path) -> Result<()> {
    match fs::DirBuilder::new().mode(0o750).create(path) {
        Ok(()) => sync_directory(parent(path)),
        // An earlier run may have made it and died before the sync; a parent that we may not read is another's to sync.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match sync_directory(parent(path)) {
            Err(error) if error.kind == DiskErrorKind::Permission => Ok(()),
            other => other,
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound && parent(path) != path => {
            create_durably(parent(path))?;
            fs::DirBuilder::new().mode(0o750).create(path).map_err(|error| from_io("create", path, &error))?;
            sync_directory(parent(path))
        }
        Err(error) => Err(from_io("create", path, &error)),
    }
}

/// The directory above; the current one for a bare name.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

fn sync_directory(path: &Path) -> Result<()> {
    let directory = fs::File::open(path).map_err(|error| from_io("sync", path, &error))?;
    retry_on_intr(|| rustix::fs::fsync(&directory)).map_err(|errno| from_errno("sync", path, errno))
}

fn from_errno(operation: &'static str, path: &Path, errno: Errno) -> DiskError {
    DiskError::from_errno(operation, path.display().to_string(), errno)
}

fn from_io(operation: &'static str, path: &Path, error: &io::Error) -> DiskError {
    from_errno(operation, path, errno_of(error))
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
