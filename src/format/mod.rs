//! The files' own bytes: segment header, segment index, control operations, file names, versions.
//!
//! Pure: bytes to values and back. Each file here names its section of `storage-format.md`, and a change to one is a change to
//! both. Records and batches, which also travel, are in [`crate::record`].

pub mod control;
pub mod cursor;
pub mod holes;
pub mod index;
pub mod names;
pub mod segment;

/// The format version that this code writes. Readers decide by the flags, people by the number.
pub const VERSION: u16 = 1;
/// Features that a reader may ignore.
pub const COMPATIBLE_FLAGS: u32 = 0;
/// Features that a reader must know, or refuse the file without touching it.
pub const INCOMPATIBLE_FLAGS: u32 = 0;

/// A log address: segment number in the upper half, position in its file in the lower.
pub type Lsn = u64;

/// The address of a position in a segment.
pub fn lsn(segment: u32, position: u32) -> Lsn {
    u64::from(segment) << 32 | u64::from(position)
}

/// The segment number of an address.
pub fn lsn_segment(lsn: Lsn) -> u32 {
    (lsn >> 32) as u32
}

/// The position in the file of an address.
pub fn lsn_position(lsn: Lsn) -> u32 {
    lsn as u32
}

/// Why a file's own bytes are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The bytes end too early.
    #[error("{0} is cut short")]
    Short(&'static str),
    /// The first bytes are not those of such a file.
    #[error("{0} has the wrong magic")]
    Magic(&'static str),
    /// The checksum is wrong.
    #[error("checksum of the {0} is wrong")]
    Checksum(&'static str),
    /// The file needs a feature that this program does not know.
    #[error("{what} was written by a newer format (version {version}, unknown incompatible flags {flags:#x})")]
    Newer {
        /// Which file.
        what: &'static str,
        /// Its version.
        version: u16,
        /// The flags that are not known.
        flags: u32,
    },
    /// A field has a value that no writer of this format gives it.
    #[error("{what} has an impossible {field}")]
    Field {
        /// Which file.
        what: &'static str,
        /// Which field.
        field: &'static str,
    },
}

/// Refuses incompatible flags that this code does not know.
pub fn check_flags(what: &'static str, version: u16, incompatible: u32) -> Result<(), FormatError> {
    match incompatible & !INCOMPATIBLE_FLAGS {
        0 => Ok(()),
        flags => Err(FormatError::Newer { what, version, flags }),
    }
}
