//! A connection that sends and receives frames, for both ends and over any byte stream.
//!
//! Owns the buffers, the deadlines of a half frame and the order of bytes; what the frames mean is left to
//! [`crate::protocol`] and above. Invariants: a buffer grows as bytes arrive and never from a claimed length; a half frame is
//! never handed out; large pieces of an outgoing frame are not copied; both halves may be dropped in the middle of an await and
//! go on where they were.

mod addresses;
mod reader;
mod writer;

pub use addresses::{Addresses, Place, network_of};
pub use reader::{FrameReader, ReadPace};
pub use writer::FrameWriter;

use std::time::Duration;

use crate::protocol::ProtocolError;

/// Why a connection can no longer be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// The peer went away in the middle of a frame.
    #[error("connection closed inside a frame, after {received} bytes of it")]
    ClosedInsideFrame {
        /// Bytes of the frame that had come.
        received: usize,
    },
    /// A frame took too long to arrive.
    #[error("frame not complete after {} ms", elapsed.as_millis())]
    FrameTimeout {
        /// Time since its first byte.
        elapsed: Duration,
    },
    /// The peer takes no bytes.
    #[error("peer took no bytes for {} ms", elapsed.as_millis())]
    WriteStalled {
        /// Time since it last took some.
        elapsed: Duration,
    },
    /// A frame's length or header is refused.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The operating system refused to read or write.
    #[error("connection failed: {0}")]
    Io(#[from] std::io::Error),
}

#[cfg(test)]
mod tests;
