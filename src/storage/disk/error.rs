//! The error of the door to files: which operation, on what, and what the caller can do about it.

use std::fmt;

use rustix::io::Errno;

/// What kind of refusal it was. "Does not exist" and "cannot be read" are never the same kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DiskErrorKind {
    /// The file or directory does not exist.
    NotFound,
    /// The name is taken.
    AlreadyExists,
    /// No room: the disk, the quota or the limit on file size is reached. May pass when space returns.
    Full,
    /// The file system is mounted read-only, or the file was opened for reading only.
    ReadOnly,
    /// Not allowed.
    Permission,
    /// The process or the system is out of file descriptors. May pass.
    TooManyFiles,
    /// Out of memory or of memory maps. May pass.
    Memory,
    /// The file system cannot do it.
    Unsupported,
    /// The file ends before the bytes that were asked for.
    EndOfFile,
    /// Anything else, an unreadable sector among them; the number says more.
    Other,
}

impl DiskErrorKind {
    /// The kind that an error number of the operating system belongs to.
    pub fn of(errno: Errno) -> Self {
        match errno {
            Errno::NOENT => Self::NotFound,
            Errno::EXIST => Self::AlreadyExists,
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Self::Full,
            Errno::ROFS | Errno::BADF => Self::ReadOnly,
            Errno::ACCESS | Errno::PERM => Self::Permission,
            Errno::MFILE | Errno::NFILE => Self::TooManyFiles,
            Errno::NOMEM => Self::Memory,
            Errno::OPNOTSUPP | Errno::NOSYS => Self::Unsupported,
            _ => Self::Other,
        }
    }
}

/// A refused operation on a file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskError {
    /// The verb: "open", "write", "sync".
    pub operation: &'static str,
    /// The file or directory, as a person would name it.
    pub path: String,
    /// What a program decides by.
    pub kind: DiskErrorKind,
    /// The number of the operating system; absent where the refusal is our own.
    pub errno: Option<i32>,
}

/// The result of an operation on the disk.
pub type Result<T> = std::result::Result<T, DiskError>;

impl DiskError {
    /// The error of an operation that the operating system refused with a number.
    pub fn from_errno(operation: &'static str, path: impl Into<String>, errno: Errno) -> Self {
        Self { operation, path: path.into(), kind: DiskErrorKind::of(errno), errno: Some(errno.raw_os_error()) }
    }

    /// The error of a file that ends before the bytes that were asked for.
    pub fn end_of_file(operation: &'static str, path: impl Into<String>) -> Self {
        Self { operation, path: path.into(), kind: DiskErrorKind::EndOfFile, errno: None }
    }

    /// Whether it says that the thing does not exist, and nothing else.
    pub fn is_not_found(&self) -> bool {
        self.kind == DiskErrorKind::NotFound
    }
}

impl fmt::Display for DiskError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}: ", self.operation, self.path)?;
        match self.errno {
            Some(number) => formatter.write_str(&errno_text(number)),
            None if self.kind == DiskErrorKind::EndOfFile => formatter.write_str("unexpected end of file"),
            None => write!(formatter, "{:?}", self.kind),
        }
    }
}

impl std::error::Error for DiskError {}

/// The system's text for a number in our style: lower case, without the number behind it.
fn errno_text(number: i32) -> String {
    let text = std::io::Error::from_raw_os_error(number).to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut characters = text.chars();
    match characters.next() {
        Some(first) => first.to_lowercase().chain(characters).collect(),
        None => format!("error {number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_operation_path_and_reason() {
        let full = DiskError::from_errno("write", "/data/x", Errno::NOSPC);
        assert_eq!(full.to_string(), "write /data/x: no space left on device");
        assert_eq!(DiskError::end_of_file("read", "/data/x").to_string(), "read /data/x: unexpected end of file");
    }

    #[test]
    fn missing_and_unreadable_are_different_kinds() {
        for unreadable in [Errno::ACCESS, Errno::IO, Errno::MFILE, Errno::NOTDIR] {
            assert!(!DiskError::from_errno("open", "x", unreadable).is_not_found());
        }
        assert!(DiskError::from_errno("open", "x", Errno::NOENT).is_not_found());
        for full in [Errno::NOSPC, Errno::DQUOT, Errno::FBIG] {
            assert_eq!(DiskErrorKind::of(full), DiskErrorKind::Full);
        }
    }
}
