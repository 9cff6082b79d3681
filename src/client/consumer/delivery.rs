//! One message in the hands of the application.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use crate::model::{AckOutcome, AckVerb, StoredMessage};
use crate::record::{Attributes, Offset, PartitionId};

use super::super::{Error, Result};
use super::task::Signal;

/// A message that was dropped without being settled is handed out again after this pause, so that a handler that always fails
/// does not spin.
const DROPPED_RETRY: Duration = Duration::from_secs(1);

/// What the deliveries of one claim share.
#[derive(Debug)]
pub struct ClaimInfo {
    pub key: ClaimKey,
    pub queue: String,
    pub partition: String,
    pub partition_id: PartitionId,
    pub lease_id: String,
    pub last_error: String,
    pub is_lost: AtomicBool,
}

/// Names a claim inside its consumer: the number of the delivery that brought it, and its place in there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimKey {
    pub lease: u64,
    pub claim: usize,
}

/// What the application says of a message.
#[derive(Debug)]
pub struct Verdict {
    pub verb: AckVerb,
    pub reason: String,
    pub delay: Duration,
}

/// One message, to be settled with [`ack`](Self::ack), [`retry`](Self::retry) or [`reject`](Self::reject). Dropped without that,
/// it is handed out again after a second, uncharged.
#[derive(Debug)]
pub struct Delivery {
    message: StoredMessage,
    claim: Arc<ClaimInfo>,
    signals: mpsc::UnboundedSender<Signal>,
    is_settled: bool,
}

impl Delivery {
    pub(super) fn new(message: StoredMessage, claim: Arc<ClaimInfo>, signals: mpsc::UnboundedSender<Signal>) -> Self {
        Self { message, claim, signals, is_settled: false }
    }

    /// The queue.
    pub fn queue(&self) -> &str {
        &self.claim.queue
    }

    /// The partition's name.
    pub fn partition(&self) -> &str {
        &self.claim.partition
    }

    /// The partition's number.
    pub fn partition_id(&self) -> PartitionId {
        self.claim.partition_id
    }

    /// The message's offset.
    pub fn offset(&self) -> Offset {
        self.message.offset
    }

    /// The payload.
    pub fn payload(&self) -> &Bytes {
        &self.message.payload
    }

    /// The attributes.
    pub fn attributes(&self) -> &Attributes {
        &self.message.attributes
    }

    /// The producer's own id of the message, if it gave one.
    pub fn transaction_id(&self) -> Option<&str> {
        self.message.transaction_id.as_deref()
    }

    /// When the log stored the message, microseconds since the Unix epoch.
    pub fn created_at_us(&self) -> u64 {
        self.message.created_at_us
    }

    /// Which delivery of the message this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.message.delivery_count.max(1)
    }

    /// Why the last delivery failed; empty if none did.
    pub fn last_error(&self) -> &str {
        if self.attempt() > 1 { &self.claim.last_error } else { "" }
    }

    /// The lease that the message is held under; empty with auto-ack.
    pub fn lease_id(&self) -> &str {
        &self.claim.lease_id
    }

    /// Whether the lease is known to be over: the message will be delivered again, and settling it fails.
    pub fn is_lost(&self) -> bool {
        self.claim.is_lost.load(Ordering::Relaxed)
    }

    /// The message is done. Takes effect without being awaited; awaited, it gives the server's confirmation, which comes after
    /// those of the messages before it in its partition.
    pub fn ack(self) -> Settled {
        self.settle(Verdict { verb: AckVerb::Completed, reason: String::new(), delay: Duration::ZERO })
    }

    /// The message could not be handled now: it is handed out again after the pause, not charged against the retry limit. So are,
    /// in ordered mode, the messages after it.
    pub fn retry(self, after: Duration) -> Settled {
        self.settle(Verdict { verb: AckVerb::Retry, reason: String::new(), delay: after })
    }

    /// The message failed: charged once against the retry limit, then handed out again or made a dead letter.
    pub fn fail(self, reason: impl Into<String>) -> Settled {
        self.settle(Verdict { verb: AckVerb::Failed, reason: reason.into(), delay: Duration::ZERO })
    }

    /// The message can never be handled: a dead letter at once.
    pub fn reject(self, reason: impl Into<String>) -> Settled {
        self.settle(Verdict { verb: AckVerb::Reject, reason: reason.into(), delay: Duration::ZERO })
    }

    /// Makes the lease of this message, and of those that came with it, last until `lease` from now.
    pub async fn extend(&self, lease: Duration) -> Result<()> {
        let (reply, wait) = oneshot::channel();
        let signal = Signal::Extend { lease: self.claim.key.lease, duration: lease, reply };
        self.signals.send(signal).map_err(|_| Error::closed())?;
        wait.await.map_err(|_| Error::closed())?
    }

    /// The message with all that the log knows of it.
    pub fn message(&self) -> &StoredMessage {
        &self.message
    }

    fn settle(mut self, verdict: Verdict) -> Settled {
        self.is_settled = true;
        let (reply, receiver) = oneshot::channel();
        let signal = Signal::Settle { key: self.claim.key, offset: self.message.offset, verdict, reply: Some(reply) };
        // If the task has ended, the sender in the signal is dropped and the future says so.
        let _ = self.signals.send(signal);
        Settled { receiver }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if !self.is_settled {
            let verdict = Verdict { verb: AckVerb::Retry, reason: String::new(), delay: DROPPED_RETRY };
            let signal = Signal::Settle { key: self.claim.key, offset: self.message.offset, verdict, reply: None };
            // If the task has ended, the lease is given back or will expire.
            let _ = self.signals.send(signal);
        }
    }
}

/// The server's confirmation of what was said of a message. Not awaiting it loses only the answer.
#[derive(Debug)]
pub struct Settled {
    receiver: oneshot::Receiver<Result<AckOutcome>>,
}

impl Future for Settled {
    type Output = Result<AckOutcome>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.receiver).poll(context).map(|answer| answer.unwrap_or_else(|_| Err(Error::closed())))
    }
}
