//! The first exchange of a connection, and ping.

use crate::model::{Error, ErrorCode};

use super::wire::{Wire, wire_struct, wire_type};
use super::{Chunks, Input, ProtocolError};

/// The first bytes of a client's first body.
pub const MAGIC: [u8; 4] = *b"FANL";
/// The newest version that this code speaks.
pub const VERSION_MAX: u16 = 1;
/// The oldest version that this code speaks.
pub const VERSION_MIN: u16 = 1;

/// The magic: it has one value, so a body without it does not decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Magic;

impl Wire for Magic {
    const BYTES_MIN: usize = MAGIC.len();

    fn encode(&self, out: &mut Chunks) {
        MAGIC.iter().for_each(|byte| byte.encode(out));
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        if input.array()? == MAGIC { Ok(Self) } else { Err(ProtocolError::BadMagic) }
    }
}

wire_type!(
    /// The first request of every connection. Its whole frame must fit in
    /// [`HELLO_FRAME_BYTES_MAX`](super::HELLO_FRAME_BYTES_MAX).
    Hello {
        /// Tells this protocol from others.
        magic: Magic,
        /// The oldest version that the client speaks.
        version_min: u16,
        /// The newest version that the client speaks.
        version_max: u16,
        /// The client's name, for logs and listings; may be empty.
        client_name: String,
        /// The secret that the server may ask for; empty is none.
        token: String,
        /// What the client can do beyond the version: no bit has a meaning yet, all are zero.
        capabilities: u64,
    }
);

impl Hello {
    /// A hello of this code's versions.
    pub fn new(client_name: impl Into<String>, token: impl Into<String>) -> Self {
        Self {
            magic: Magic,
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            client_name: client_name.into(),
            token: token.into(),
            capabilities: 0,
        }
    }

    /// The newest version that both ends speak.
    pub fn negotiate(&self) -> Result<u16, Error> {
        let version = self.version_max.min(VERSION_MAX);
        if self.version_min <= version && VERSION_MIN <= version {
            return Ok(version);
        }
        let text = format!(
            "client speaks versions {} to {}, server speaks {VERSION_MIN} to {VERSION_MAX}",
            self.version_min, self.version_max
        );
        Err(Error::new(ErrorCode::UnsupportedVersion, text))
    }
}

/// What a server takes from one connection. A request over a limit is refused with `TooLarge` or `Busy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a frame after its length field.
    pub frame_bytes: u32,
    /// Bytes of a message: payload, attributes and transaction id.
    pub message_bytes: u32,
    /// Requests that wait for their answer.
    pub in_flight: u32,
}

wire_struct!(Limits { frame_bytes: u32, message_bytes: u32, in_flight: u32 });

wire_type!(
    /// The reply to the hello.
    HelloReply {
        /// The version that both ends speak from here on.
        version: u16,
        /// The server's name and version, for people.
        server_name: String,
        /// What the server can do beyond the version: no bit has a meaning yet, all are zero.
        capabilities: u64,
        /// What the server takes.
        limits: Limits,
        /// The server's number among several nodes (reserved; 0).
        node_id: u64,
        /// Grows with each start of the server: leases of an earlier start are void.
        start_number: u64,
        /// The epoch of the server's ownership (reserved; 0).
        epoch: u64,
    }
);

wire_type!(
    /// Asks whether the peer is alive.
    Ping {
        /// Comes back in the reply.
        nonce: u64,
    }
);

wire_type!(
    /// The reply to a ping.
    Pong {
        /// The nonce of the ping.
        nonce: u64,
        /// The server's time, microseconds since the Unix epoch.
        time_us: u64,
    }
);

wire_type!(
    /// The reply of operations that have nothing to say but that they happened.
    Done {}
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_wins_and_none_is_an_error() {
        let mut hello = Hello::new("test", "");
        assert_eq!(hello.negotiate(), Ok(1));
        hello.version_max = 9;
        assert_eq!(hello.negotiate(), Ok(1));
        hello.version_min = 2;
        assert_eq!(hello.negotiate().unwrap_err().code, ErrorCode::UnsupportedVersion);
        (hello.version_min, hello.version_max) = (0, 0);
        assert_eq!(hello.negotiate().unwrap_err().code, ErrorCode::UnsupportedVersion);
    }
}
