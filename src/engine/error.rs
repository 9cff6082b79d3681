//! How the errors of the layers below become the one that callers see.

use crate::model::{Error, ErrorCode};
use crate::record::{BatchError, BlockError};
use crate::storage::disk::{DiskError, DiskErrorKind};
use crate::storage::lock::LockError;
use crate::storage::log::LogError;
use crate::storage::table::TableError;

impl From<DiskError> for Error {
    fn from(error: DiskError) -> Self {
        let code = match error.kind {
            DiskErrorKind::Full => ErrorCode::DiskFull,
            // Files come back when others are closed; nothing was written to one that could not be opened.
            DiskErrorKind::TooManyFiles => ErrorCode::Busy,
            _ => ErrorCode::Io,
        };
        Self::new(code, error.to_string())
    }
}

impl From<LogError> for Error {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Disk(error) => error.into(),
            LogError::Poisoned(_) => Self::new(ErrorCode::Poisoned, error.to_string()),
            LogError::Format(_) => Self::new(ErrorCode::NewerFormat, error.to_string()),
            LogError::TooLarge { .. } => Self::new(ErrorCode::TooLarge, error.to_string()),
            LogError::NumbersUsedUp => Self::new(ErrorCode::DiskFull, error.to_string()),
            LogError::Removed { .. } => Self::new(ErrorCode::RangeRemoved, error.to_string()),
            LogError::BeyondEnd { .. } | LogError::Damaged { .. } => Self::new(ErrorCode::Corrupt, error.to_string()),
        }
    }
}

impl From<TableError> for Error {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Disk(error) => error.into(),
            TableError::NewerFormat { .. } => Self::new(ErrorCode::NewerFormat, error.to_string()),
            other => Self::new(ErrorCode::BadDirectory, other.to_string()),
        }
    }
}

impl From<LockError> for Error {
    fn from(error: LockError) -> Self {
        match error {
            LockError::InUse { .. } => Self::new(ErrorCode::DirectoryInUse, error.to_string()),
            LockError::Disk(error) => error.into(),
        }
    }
}

impl From<BlockError> for Error {
    fn from(error: BlockError) -> Self {
        match error {
            BlockError::Attribute(error) => error.into(),
            BlockError::TooLarge(_) => Self::new(ErrorCode::TooLarge, error.to_string()),
            _ => Self::new(ErrorCode::BadBatch, error.to_string()),
        }
    }
}

impl From<BatchError> for Error {
    fn from(error: BatchError) -> Self {
        Self::new(ErrorCode::Corrupt, error.to_string())
    }
}
