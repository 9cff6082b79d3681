//! The error of the engine and of the wire: a stable number, and a text that names the thing.

/// What went wrong, as a number that never changes its meaning and is never reused.
///
/// The numbers stand in `protocol.md`; clients decide by them, people read the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
#[non_exhaustive]
pub enum ErrorCode {
    /// A fault of the server that has no code of its own.
    Internal = 1,
    /// The request does not decode, or a field is out of its range.
    BadRequest = 2,
    /// The operation is not known to this server.
    UnknownOperation = 3,
    /// The peer speaks no protocol version that this server speaks.
    UnsupportedVersion = 4,
    /// The token is missing or wrong, or its role does not allow this.
    Unauthorized = 5,
    /// A frame, message, batch or request is over its limit.
    TooLarge = 6,
    /// Too much is in flight; try again after a pause.
    Busy = 7,
    /// The server is stopping.
    ShuttingDown = 8,
    /// A deadline passed: handshake, half frame or request.
    Timeout = 9,

    /// A name is empty, too long or has control characters.
    BadName = 20,
    /// No queue has this name.
    UnknownQueue = 21,
    /// The queue exists already.
    QueueExists = 22,
    /// The queue has no partition of this name.
    UnknownPartition = 23,
    /// The queue has no such group.
    UnknownGroup = 24,
    /// The group exists already.
    GroupExists = 25,
    /// The group is disabled; it hands out nothing until it is enabled.
    GroupInactive = 26,
    /// The primary group cannot be deleted, filtered or given a delivery limit of its own.
    PrimaryGroup = 27,
    /// The group changed since the version that the request names.
    VersionConflict = 28,
    /// The filter does not parse; the text has position and reason.
    BadFilter = 29,
    /// An attribute's key or value is not allowed.
    BadAttribute = 30,
    /// The settings contradict each other or are out of range.
    BadSettings = 31,
    /// No message has this offset or transaction id.
    UnknownMessage = 32,
    /// The queue has its consumer groups switched off.
    GroupsDisabled = 33,
    /// No dead letter has this id.
    UnknownDeadLetter = 34,

    /// The lease is over: expired, released, or taken over by a seek or a restart.
    LeaseLost = 40,
    /// An offset was never handed out under this lease, or lies beyond the end.
    NotLeased = 41,
    /// A push of the transaction is a duplicate.
    Duplicate = 42,
    /// An acknowledgement of the transaction was refused.
    AckRejected = 43,
    /// The producer's sequence number does not follow its last one.
    OutOfSequence = 44,

    /// Messages of the range were removed by retention.
    RangeRemoved = 50,
    /// Stored messages of the range are damaged.
    Corrupt = 51,
    /// The offset lies beyond the end of the partition.
    BeyondEnd = 52,
    /// The batch does not decode: checksum, count, sizes or compression.
    BadBatch = 53,

    /// The disk is full; reads and acknowledgements go on.
    DiskFull = 60,
    /// The operating system refused a read or write.
    Io = 61,
    /// A sync failed; this queue takes no writes until the server restarts.
    Poisoned = 62,
    /// The data directory, or a file in it, cannot be used as it is.
    BadDirectory = 63,
    /// Another process has the data directory open.
    DirectoryInUse = 64,
    /// The data was written by a newer format.
    NewerFormat = 65,

    /// Another node owns this partition (reserved for several nodes).
    NotOwner = 80,
    /// The epoch of the request is over (reserved for several nodes).
    Fenced = 81,
}

impl ErrorCode {
    /// All codes, for documentation and decoding.
    pub const ALL: &[ErrorCode] = &[
        Self::Internal,
        Self::BadRequest,
        Self::UnknownOperation,
        Self::UnsupportedVersion,
        Self::Unauthorized,
        Self::TooLarge,
        Self::Busy,
        Self::ShuttingDown,
        Self::Timeout,
        Self::BadName,
        Self::UnknownQueue,
        Self::QueueExists,
        Self::UnknownPartition,
        Self::UnknownGroup,
        Self::GroupExists,
        Self::GroupInactive,
        Self::PrimaryGroup,
        Self::VersionConflict,
        Self::BadFilter,
        Self::BadAttribute,
        Self::BadSettings,
        Self::UnknownMessage,
        Self::GroupsDisabled,
        Self::UnknownDeadLetter,
        Self::LeaseLost,
        Self::NotLeased,
        Self::Duplicate,
        Self::AckRejected,
        Self::OutOfSequence,
        Self::RangeRemoved,
        Self::Corrupt,
        Self::BeyondEnd,
        Self::BadBatch,
        Self::DiskFull,
        Self::Io,
        Self::Poisoned,
        Self::BadDirectory,
        Self::DirectoryInUse,
        Self::NewerFormat,
        Self::NotOwner,
        Self::Fenced,
    ];

    /// The number on the wire.
    pub fn number(self) -> u16 {
        self as u16
    }

    /// The code of a number; a number from a newer server is `None`.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.number() == number)
    }

    /// Whether the same request may succeed later without a change.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Busy | Self::ShuttingDown | Self::Timeout | Self::DiskFull | Self::NotOwner)
    }
}

/// An error of an operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    /// What a program decides by.
    pub code: ErrorCode,
    /// What a person reads: names the thing, starts in lower case, has no full stop.
    pub text: String,
}

/// The result of an operation.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with its text.
    pub fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// Whether the same request may succeed later without a change.
    pub fn is_retryable(&self) -> bool {
        self.code.is_retryable()
    }
}

impl From<crate::record::NameError> for Error {
    fn from(error: crate::record::NameError) -> Self {
        Self::new(ErrorCode::BadName, error.to_string())
    }
}

impl From<crate::record::AttributeError> for Error {
    fn from(error: crate::record::AttributeError) -> Self {
        Self::new(ErrorCode::BadAttribute, error.to_string())
    }
}

impl From<crate::filter::FilterError> for Error {
    fn from(error: crate::filter::FilterError) -> Self {
        Self::new(ErrorCode::BadFilter, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_its_own_code() {
        for &code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_number(code.number()), Some(code));
        }
        assert_eq!(ErrorCode::from_number(0), None);
    }
}
