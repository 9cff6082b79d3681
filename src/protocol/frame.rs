//! The envelope: length, operation, flags, correlation id, body. Drawn in `protocol.md`, section "Frame".

use bytes::Bytes;

use crate::codec::{Put, Reader};

use super::{Chunks, ProtocolError};

/// Bytes of the length field, which does not count itself.
pub const LENGTH_BYTES: usize = 4;
/// Bytes between the length field and the body.
pub const HEADER_BYTES: usize = 8;
/// The longest frame that is taken before the hello: an unknown peer cannot make this end allocate more.
pub const HELLO_FRAME_BYTES_MAX: usize = 4096;
/// The longest frame by default, after the hello.
pub const FRAME_BYTES_MAX: usize = 64 << 20;
/// Room that a frame begins with: most requests and replies without payloads fit.
const SMALL_FRAME_BYTES: usize = 192;

/// The frame answers a request.
const RESPONSE: u16 = 1;
/// The body is an [`ErrorReply`](super::ErrorReply).
const ERROR: u16 = 2;
/// More frames with this correlation id follow.
const MORE: u16 = 4;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// A request (client to server).
    Request,
    /// A response (server to client).
    Response {
        /// Whether more frames with this correlation id follow.
        more: bool,
    },
    /// A response that is an error; none follows it.
    Error,
}

impl FrameKind {
    fn flags(self) -> u16 {
        match self {
            Self::Request => 0,
            Self::Response { more: false } => RESPONSE,
            Self::Response { more: true } => RESPONSE | MORE,
            Self::Error => RESPONSE | ERROR,
        }
    }

    fn from_flags(flags: u16) -> Result<Self, ProtocolError> {
        [Self::Request, Self::Response { more: false }, Self::Response { more: true }, Self::Error]
            .into_iter()
            .find(|kind| kind.flags() == flags)
            .ok_or(ProtocolError::BadFlags { flags })
    }
}

/// One frame as it came, its body not looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The operation's number, perhaps one that this end does not know.
    pub operation: u16,
    /// What the frame is.
    pub kind: FrameKind,
    /// Chosen by the client; 0 belongs to the connection as a whole.
    pub correlation_id: u32,
    /// The body.
    pub body: Bytes,
}

impl Frame {
    /// Checks the length field: returns how many bytes follow it. Nothing may be allocated before this.
    pub fn check_length(length: [u8; LENGTH_BYTES], limit: usize) -> Result<usize, ProtocolError> {
        let length = u32::from_le_bytes(length) as usize;
        if length < HEADER_BYTES {
            return Err(ProtocolError::FrameTooShort { length });
        }
        if length > limit {
            return Err(ProtocolError::FrameTooLarge { length, limit });
        }
        Ok(length)
    }

    /// The frame whose bytes after the length field are all of `bytes`. The body shares their memory.
    pub fn decode(bytes: &Bytes) -> Result<Self, ProtocolError> {
        let mut reader = Reader::new(bytes);
        let operation = reader.u16()?;
        let kind = FrameKind::from_flags(reader.u16()?)?;
        let correlation_id = reader.u32()?;
        Ok(Self { operation, kind, correlation_id, body: bytes.slice_ref(reader.rest()) })
    }

    /// A frame, length field first, around what `body` appends. A body over 4 GiB gets a length that every reader refuses; senders
    /// check their limits first.
    pub fn encode(operation: u16, kind: FrameKind, correlation_id: u32, body: impl FnOnce(&mut Chunks)) -> Chunks {
        let mut out = Chunks::with_capacity(SMALL_FRAME_BYTES);
        out.put_u32(0);
        out.put_u16(operation);
        out.put_u16(kind.flags());
        out.put_u32(correlation_id);
        body(&mut out);
        let length = u32::try_from(out.len() - LENGTH_BYTES).unwrap_or(u32::MAX);
        out.overwrite_first(&length.to_le_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_round_trips_and_has_known_bytes() {
        let kind = FrameKind::Response { more: true };
        let bytes = Frame::encode(0x0203, kind, 0x0a0b_0c0d, |body| body.put_bytes(b"hi")).into_bytes();
        assert_eq!(&bytes[..], [10, 0, 0, 0, 3, 2, 5, 0, 0x0d, 0x0c, 0x0b, 0x0a, b'h', b'i']);
        let rest = bytes.slice(LENGTH_BYTES..);
        let frame = Frame::decode(&rest).unwrap();
        assert_eq!(frame.kind, FrameKind::Response { more: true });
        assert_eq!((frame.operation, frame.correlation_id, &frame.body[..]), (0x0203, 0x0a0b_0c0d, &b"hi"[..]));
        for cut in 0..HEADER_BYTES {
            assert_eq!(Frame::decode(&rest.slice(..cut)), Err(ProtocolError::UnexpectedEnd));
        }
    }

    #[test]
    fn a_length_is_checked_at_both_ends() {
        assert_eq!(Frame::check_length([7, 0, 0, 0], 100), Err(ProtocolError::FrameTooShort { length: 7 }));
        assert_eq!(Frame::check_length([8, 0, 0, 0], 100), Ok(8));
        assert_eq!(Frame::check_length([100, 0, 0, 0], 100), Ok(100));
        assert_eq!(Frame::check_length([101, 0, 0, 0], 100), Err(ProtocolError::FrameTooLarge { length: 101, limit: 100 }));
        assert!(Frame::check_length([0xff; 4], FRAME_BYTES_MAX).is_err());
    }

    #[test]
    fn flags_outside_the_four_kinds_are_refused() {
        let refused = (0..=u16::MAX).filter(|&flags| FrameKind::from_flags(flags).is_err()).count();
        assert_eq!(refused, 65536 - 4);
    }
}
