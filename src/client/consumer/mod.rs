//! A consumer: a stream of deliveries, each to be acknowledged, retried or rejected.
//!
//! The server sends ahead as far as the prefetch reaches; what is not settled counts against it. A task of the consumer keeps
//! leases alive, sends acknowledgements, opens the subscription again after a lost connection, and drops what it holds of a
//! lease that ended, since it will be delivered again.
//!
//! In ordered mode an acknowledgement of a message says that all before it in its partition are done, so the task holds one back
//! until the messages before it are settled too: handlers may run concurrently and nothing is skipped.

mod claim;
mod delivery;
mod subscription;
mod task;

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use tokio::sync::{mpsc, oneshot};

use crate::model::{PopRequest, PopSource, Start};

use super::admin::milliseconds;
use super::{Client, Result};

pub use delivery::{Delivery, Settled};
use task::{Signal, TaskOptions};

/// Makes a [`Consumer`].
#[derive(Debug, Clone)]
pub struct ConsumerBuilder {
    client: Client,
    request: PopRequest,
    queue: String,
    prefetch: u32,
    prefetch_bytes: u32,
    lease: Duration,
    auto_extend: bool,
}

impl ConsumerBuilder {
    pub(super) fn new(client: Client, queue: String) -> Self {
        Self {
            client,
            request: PopRequest::any(queue.clone(), 1),
            queue,
            prefetch: 512,
            prefetch_bytes: 16 << 20,
            lease: Duration::from_secs(30),
            auto_extend: true,
        }
    }

    /// Read for this group. Without it, for the primary group.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.request.group = Some(group.into());
        self
    }

    /// Only this partition. Without it, all partitions of the queue.
    pub fn partition(mut self, partition: impl Into<String>) -> Self {
        self.request.source = PopSource::Partition { queue: self.queue.clone(), partition: partition.into() };
        self
    }

    /// Where the group starts if it has never read before. Without it, the server's default for named groups.
    pub fn start(mut self, start: Start) -> Self {
        self.request.start = Some(start);
        self
    }

    /// Make the group a work queue if it has never read before: many consumers hold messages of one partition at the same time,
    /// and each message is settled by itself.
    pub fn shared(mut self, shared: bool) -> Self {
        self.request.shared = shared;
        self
    }

    /// Messages that may be here and not settled. 512 by default.
    pub fn prefetch(mut self, messages: u32) -> Self {
        self.prefetch = messages.max(1);
        self
    }

    /// Bytes of deliveries that may be here and not settled. 16 MiB by default. One delivery may be larger.
    pub fn prefetch_bytes(mut self, bytes: u32) -> Self {
        self.prefetch_bytes = bytes.max(1);
        self
    }

    /// Partitions that one delivery may come from, 1 to 64. 16 by default, which keeps queues of many small lanes fast.
    pub fn partitions_of_a_delivery(mut self, partitions: u32) -> Self {
        self.request.partitions_max = partitions.clamp(1, 64);
        self
    }

    /// How long a lease lasts. 30 seconds by default.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.max(Duration::from_millis(1));
        self
    }

    /// Whether leases are extended while their messages are here. On by default.
    pub fn auto_extend(mut self, auto_extend: bool) -> Self {
        self.auto_extend = auto_extend;
        self
    }

    /// Count messages as done when the server sends them: at most once, no leases, settling does nothing.
    pub fn auto_ack(mut self, auto_ack: bool) -> Self {
        self.request.auto_ack = auto_ack;
        self
    }

    /// Opens the subscription. Fails with what the server refuses it with; later refusals are items of the stream.
    pub async fn build(mut self) -> Result<Consumer> {
        self.request.messages_max = self.prefetch;
        self.request.bytes_max = self.prefetch_bytes.min(4 << 20);
        self.request.lease_ms = Some(milliseconds(self.lease).into());
        let options = TaskOptions {
            request: self.request,
            prefetch: self.prefetch,
            prefetch_bytes: self.prefetch_bytes,
            lease: self.lease,
            auto_extend: self.auto_extend,
        };
        let (signals, receiver) = mpsc::unbounded_channel();
        let deliveries = task::start(self.client, options, signals.clone(), receiver).await?;
        Ok(Consumer { deliveries, signals, is_idle: false })
    }
}

/// A stream of deliveries. It ends after [`close`](Self::close), after the client is closed, or after an error that time does
/// not heal, which is its last item. Dropping it gives back what was not taken out of it, without waiting for anything.
#[derive(Debug)]
pub struct Consumer {
    deliveries: mpsc::UnboundedReceiver<Result<Delivery>>,
    signals: mpsc::UnboundedSender<Signal>,
    /// The task was told that nothing is left here.
    is_idle: bool,
}

impl Consumer {
    /// The next delivery.
    pub async fn next(&mut self) -> Option<Result<Delivery>> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// Takes no more messages, waits up to `timeout` until those that were taken out are settled and the server has confirmed it,
    /// and gives the rest back at once, uncharged. Returns whether everything was settled.
    pub async fn close(mut self, timeout: Duration) -> bool {
        let (done, wait) = oneshot::channel();
        if self.signals.send(Signal::Close { timeout, done: Some(done) }).is_err() {
            return true;
        }
        self.deliveries.close();
        while self.deliveries.recv().await.is_some() {}
        wait.await.unwrap_or(true)
    }
}

impl Stream for Consumer {
    type Item = Result<Delivery>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match self.deliveries.poll_recv(context) {
                // What was buffered of a lease that ended will be delivered again.
                Poll::Ready(Some(Ok(delivery))) if delivery.is_lost() => drop(delivery),
                Poll::Pending if !self.is_idle => {
                    self.is_idle = true;
                    // If the task has ended, the stream is about to.
                    let _ = self.signals.send(Signal::Starved);
                    return Poll::Pending;
                }
                other => {
                    self.is_idle &= other.is_pending();
                    return other;
                }
            }
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // An error says that the task has ended already.
        let _ = self.signals.send(Signal::Close { timeout: task::DROP_TIMEOUT, done: None });
    }
}
