//! Acknowledging: what a consumer says of messages that it holds.

use crate::record::Offset;

use super::Promise;

/// What a consumer says of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AckVerb {
    /// Done with it.
    Completed,
    /// Could not do it: charged once against the retry limit, handed out again.
    Failed,
    /// Give it back: not charged, handed out again, after a delay if one is named.
    Retry,
    /// Never again: a dead letter at once.
    Reject,
}

/// Which message is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AckTarget {
    /// By offset.
    Offset(Offset),
    /// By transaction id (the producer's own or the derived one).
    TransactionId(String),
}

/// What is said of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckItem {
    /// The message.
    pub target: AckTarget,
    /// What is said.
    pub verb: AckVerb,
    /// Why it failed or was rejected; kept with the message. At most 4,096 bytes are kept.
    pub reason: String,
    /// With `Retry`: milliseconds before it is handed out again.
    pub delay_ms: u64,
}

/// Acknowledges messages of one partition for one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckRequest {
    /// The queue.
    pub queue: String,
    /// The partition's number, from the pop's claim.
    pub partition_id: u32,
    /// The group; `None` is the primary group.
    pub group: Option<String>,
    /// The lease that the messages were handed out under; empty is unfenced: it still moves the cursor, as Queen does.
    pub lease_id: String,
    /// What is said; completed moves the cursor up to the highest completed offset, anything else clamps it below the lowest.
    pub items: Vec<AckItem>,
}

/// What became of one item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckOutcome {
    /// `None` if it took effect (or was a no-op), else why not.
    pub refused: Option<super::Error>,
    /// The message lies below the cursor: nothing to do, or the same acknowledgement was repeated.
    pub is_noop: bool,
    /// The message became a dead letter.
    pub is_dead_letter: bool,
}

/// The reply to an acknowledgement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckReply {
    /// What the reply promises.
    pub promise: Promise,
    /// The group's cursor in this partition: the next offset wanted. Everything below it is done.
    pub next: Offset,
    /// Whether the lease is over.
    pub is_lease_released: bool,
    /// One for each item, in order.
    pub outcomes: Vec<AckOutcome>,
}

/// The reply to an extension of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtendReply {
    /// Partitions whose lease was renewed; 0 if the lease is lost.
    pub renewed: u32,
    /// When the lease ends now, microseconds since the Unix epoch.
    pub expires_at_us: u64,
}
