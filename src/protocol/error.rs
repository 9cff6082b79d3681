//! Why bytes from a peer are refused, and the error as it travels.

use crate::codec::UnexpectedEnd;
use crate::model::{Error, ErrorCode};

use super::wire::wire_struct;

/// Bytes that are not what they should be.
///
/// A refused frame header ends the connection, since nothing after it can be trusted; a refused body ends the request only.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A frame is longer than this end takes.
    #[error("frame of {length} bytes is over the limit of {limit}")]
    FrameTooLarge {
        /// Its length, without the length field.
        length: usize,
        /// The most that is taken.
        limit: usize,
    },
    /// A frame is too short to hold its header.
    #[error("frame of {length} bytes is shorter than its header")]
    FrameTooShort {
        /// Its length, without the length field.
        length: usize,
    },
    /// A flag is set that has no meaning, or that cannot stand beside another.
    #[error("flags {flags:#06x} are not known")]
    BadFlags {
        /// All flags.
        flags: u16,
    },
    /// The first frame does not start with the magic: the peer speaks something else.
    #[error("peer does not speak the fanlog protocol")]
    BadMagic,
    /// No operation has this number.
    #[error("operation {number:#06x} is not known")]
    UnknownOperation {
        /// The number.
        number: u16,
    },
    /// A value ends before it should.
    #[error("unexpected end of bytes")]
    UnexpectedEnd,
    /// Bytes are left after the last field.
    #[error("{count} bytes are left after the last field")]
    LeftOver {
        /// How many.
        count: usize,
    },
    /// A field has a value that it cannot have.
    #[error("{what} cannot be {value}")]
    BadValue {
        /// The field.
        what: &'static str,
        /// The value.
        value: u64,
    },
    /// A text is not UTF-8.
    #[error("text is not UTF-8")]
    NotUtf8,
    /// The lists of one frame have more items than allowed, all together.
    #[error("frame has over {limit} items")]
    TooManyItems {
        /// The most that one frame may have.
        limit: usize,
    },
    /// Attributes do not decode.
    #[error("attributes do not decode: {reason}")]
    BadAttributes {
        /// Why.
        reason: String,
    },
}

impl ProtocolError {
    /// The code that a peer is told.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::FrameTooLarge { .. } | Self::TooManyItems { .. } => ErrorCode::TooLarge,
            Self::UnknownOperation { .. } => ErrorCode::UnknownOperation,
            Self::BadAttributes { .. } => ErrorCode::BadAttribute,
            _ => ErrorCode::BadRequest,
        }
    }
}

impl From<UnexpectedEnd> for ProtocolError {
    fn from(UnexpectedEnd: UnexpectedEnd) -> Self {
        Self::UnexpectedEnd
    }
}

impl From<ProtocolError> for Error {
    fn from(error: ProtocolError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// The body of a response whose error flag is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorReply {
    /// The number of an [`ErrorCode`]; a newer server may send one that this end does not know.
    pub number: u16,
    /// Whether the same request may succeed later without a change.
    pub is_retryable: bool,
    /// Milliseconds before that is worth trying; 0 is no advice.
    pub retry_after_ms: u32,
    /// What a person reads.
    pub text: String,
}

wire_struct!(ErrorReply { number: u16, is_retryable: bool, retry_after_ms: u32, text: String });

impl From<Error> for ErrorReply {
    fn from(error: Error) -> Self {
        Self { number: error.code.number(), is_retryable: error.is_retryable(), retry_after_ms: 0, text: error.text }
    }
}

impl From<ProtocolError> for ErrorReply {
    fn from(error: ProtocolError) -> Self {
        Error::from(error).into()
    }
}

impl ErrorReply {
    /// The code, if this end knows it.
    pub fn code(&self) -> Option<ErrorCode> {
        ErrorCode::from_number(self.number)
    }
}
