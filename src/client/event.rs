//! What happens to a client beside its calls.

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::model::OffsetRange;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A connection stands, the first one or again.
    Connected {
        /// The server's name and version.
        server_name: String,
        /// The server's start number: a greater one than before means that all leases are void.
        start_number: u64,
    },
    /// The connection is lost; the client goes on trying.
    Disconnected {
        /// Why.
        reason: String,
    },
    /// The server was silent for so long that the client gave the connection up; `Disconnected` follows.
    Stalled {
        /// What was silent.
        what: String,
    },
    /// A lease ended before its messages were acknowledged (a seek, a restart, expiry); they will be delivered again.
    LeaseLost {
        /// The queue.
        queue: String,
        /// The partition.
        partition: String,
        /// The lease.
        lease_id: String,
    },
    /// Retention or damage removed messages that the group had not read.
    MessagesLost {
        /// The queue.
        queue: String,
        /// The partition.
        partition: String,
        /// The offsets, both inclusive.
        range: OffsetRange,
    },
}

/// A stream of events. A slow listener misses the oldest ones.
#[derive(Debug)]
pub struct Events {
    pub(super) receiver: broadcast::Receiver<Event>,
}

impl Events {
    /// The next event, or `None` after the client is closed.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            match self.receiver.recv().await {
                Ok(event) => return Some(event),
                Err(RecvError::Lagged(_)) => (),
                Err(RecvError::Closed) => return None,
            }
        }
    }
}
