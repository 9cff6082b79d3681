//! Subscriptions: the server sends messages as they are committed, as far as the credits reach.
//!
//! A subscription is named by the correlation id of its [`Subscribe`]. All frames of it carry that id; the first one without
//! the "more" flag ends it.

use crate::model::{ErrorCode, PopReply, PopRequest};

use super::wire::{Wire, wire_type};
use super::{Chunks, Input, ProtocolError};

wire_type!(
    /// Opens a subscription. `messages_max` and `bytes_max` of the request bound a single delivery.
    Subscribe {
        /// What to take, again and again.
        request: PopRequest,
        /// Messages that the server may send before it hears of more credit.
        credit_messages: u32,
        /// Bytes of delivery bodies that it may send; the delivery that uses the last of them may be larger than what is left.
        credit_bytes: u32,
    }
);

wire_type!(
    /// The first frame of a subscription: it is open.
    Subscribed {
        /// The server sends a heartbeat when it has sent nothing else for so many milliseconds.
        heartbeat_ms: u32,
    }
);

wire_type!(
    /// Adds credit. There is no reply unless the subscription does not exist.
    Credit {
        /// The subscription.
        subscription: u32,
        /// Messages more.
        messages: u32,
        /// Bytes more.
        bytes: u32,
    }
);

wire_type!(
    /// Ends a subscription: the server sends no new claims, then [`SubscriptionEnd`], then the reply to this. What was delivered
    /// stays leased until it is acknowledged, released or expired.
    Unsubscribe {
        /// The subscription.
        subscription: u32,
    }
);

/// Messages of a subscription; each delivery has a lease of its own.
#[derive(Debug, Clone)]
pub struct Delivery(pub PopReply);

impl Wire for Delivery {
    const BYTES_MIN: usize = PopReply::BYTES_MIN;

    fn encode(&self, out: &mut Chunks) {
        self.0.encode(out);
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        PopReply::decode(input).map(Self)
    }
}

wire_type!(
    /// Nothing happened, and the server is alive.
    Heartbeat {
        /// The server's time, microseconds since the Unix epoch.
        time_us: u64,
    }
);

wire_type!(
    /// A lease of this subscription ended before its messages were acknowledged: what the client has buffered of it will be
    /// delivered again, if its group and queue are still there.
    LeaseEnded {
        /// The lease.
        lease_id: String,
        /// The partition whose claim ended; `None` is all of the lease.
        partition: Option<LeasedPartition>,
        /// Why: the number of an [`ErrorCode`].
        reason: u16,
    }
);

impl LeaseEnded {
    /// The end of a whole lease.
    pub fn of(lease_id: impl Into<String>, reason: ErrorCode) -> Self {
        Self { lease_id: lease_id.into(), partition: None, reason: reason.number() }
    }
}

wire_type!(
    /// A partition inside a lease.
    LeasedPartition {
        /// The queue.
        queue: String,
        /// The partition's number.
        partition_id: u32,
    }
);

wire_type!(
    /// The last frame of a subscription that the client ended.
    SubscriptionEnd {}
);
