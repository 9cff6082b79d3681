//! What a consumer says of the messages that it holds, and of the lease itself.

use crate::model::{AckItem, AckOutcome, AckReply, AckRequest, AckTarget, AckVerb, Error, ErrorCode, ExtendReply, Promise};

use super::wire::{Wire, bad_value, wire_enum, wire_struct, wire_type};
use super::{Chunks, Input, ProtocolError};

wire_enum!(AckVerb, "an acknowledgement" { 0 => Completed, 1 => Failed, 2 => Retry, 3 => Reject });

impl Wire for AckTarget {
    const BYTES_MIN: usize = 5;

    fn encode(&self, out: &mut Chunks) {
        match self {
            Self::Offset(offset) => {
                0u8.encode(out);
                offset.encode(out);
            }
            Self::TransactionId(id) => {
                1u8.encode(out);
                id.encode(out);
            }
        }
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        match u8::decode(input)? {
            0 => Ok(Self::Offset(u64::decode(input)?)),
            1 => Ok(Self::TransactionId(String::decode(input)?)),
            kind => Err(bad_value("the target of an acknowledgement", kind)),
        }
    }
}

wire_struct!(AckItem { target: AckTarget, verb: AckVerb, reason: String, delay_ms: u64 });

wire_struct!(AckRequest {
    queue: String,
    partition_id: u32,
    group: Option<String>,
    lease_id: String,
    items: Vec<AckItem>,
});

/// An error inside a reply: the number of its code, and the text. A number that this end does not know becomes `Internal`.
impl Wire for Error {
    const BYTES_MIN: usize = 6;

    fn encode(&self, out: &mut Chunks) {
        self.code.number().encode(out);
        self.text.encode(out);
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        let code = ErrorCode::from_number(u16::decode(input)?).unwrap_or(ErrorCode::Internal);
        Ok(Self { code, text: String::decode(input)? })
    }
}

wire_struct!(AckOutcome { refused: Option<Error>, is_noop: bool, is_dead_letter: bool });

wire_struct!(AckReply { promise: Promise, next: u64, is_lease_released: bool, outcomes: Vec<AckOutcome> });

wire_type!(
    /// Makes a lease last longer; it never gets shorter.
    Extend {
        /// The lease.
        lease_id: String,
        /// Milliseconds from now; `None` is the queue's lease time.
        lease_ms: Option<u64>,
    }
);

wire_struct!(ExtendReply { renewed: u32, expires_at_us: u64 });

wire_type!(
    /// Hands a lease back: what is not acknowledged is handed out again at once, and not charged.
    Release {
        /// The lease.
        lease_id: String,
    }
);

wire_type!(
    /// The reply to a release.
    Released {
        /// Partitions that were given back; 0 if the lease was over already.
        partitions: u32,
    }
);
