//! A producer: gathers messages into batches, keeps some of them under way, and repeats without storing anything twice.
//!
//! Owns what has been given to it and is not answered, bounded in bytes. Each push carries (producer id, epoch, sequence), so
//! that a push whose answer was lost can be sent again: the server answers a known sequence with the original offsets. Within a
//! partition the order of messages is the order of the calls, also over repeats.

mod batch;
mod lane;
mod task;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{Semaphore, TryAcquireError, mpsc, oneshot};

use crate::model::{Compression, Promise, PushResult};
use crate::record::{DEFAULT_PARTITION, Message, Offset, PartitionId, check_name};

use super::{Client, Error, ErrorKind, Result};
use task::Command;

/// What a message costs in the producer's memory beside its own bytes.
const MESSAGE_COST: usize = 128;

/// How a producer behaves.
#[derive(Debug, Clone)]
struct ProducerOptions {
    queue: String,
    /// Random, so that two producers never share their sequences.
    producer_id: u64,
    linger: Duration,
    batch_bytes_max: usize,
    batch_count_max: usize,
    in_flight_max: usize,
    compression: Option<Compression>,
    delivery_timeout: Duration,
}

/// Makes a [`Producer`].
#[derive(Debug, Clone)]
pub struct ProducerBuilder {
    client: Client,
    options: ProducerOptions,
    buffer_bytes_max: usize,
}

impl ProducerBuilder {
    pub(super) fn new(client: Client, queue: String) -> Self {
        let options = ProducerOptions {
            queue,
            producer_id: 0,
            linger: Duration::ZERO,
            batch_bytes_max: 256 << 10,
            batch_count_max: 1_000,
            in_flight_max: 8,
            compression: None,
            delivery_timeout: Duration::from_secs(120),
        };
        Self { client, options, buffer_bytes_max: 32 << 20 }
    }

    /// How long a batch that is not full waits for more messages. Without one (the default) it waits only while
    /// [`max_in_flight`](Self::max_in_flight) pushes are under way.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.options.linger = linger;
        self
    }

    /// Bytes of messages at which a batch is full. 256 KiB by default. A larger message is a batch of its own.
    pub fn max_batch_bytes(mut self, bytes: usize) -> Self {
        self.options.batch_bytes_max = bytes.max(1);
        self
    }

    /// Messages at which a batch is full. 1,000 by default.
    pub fn max_batch_count(mut self, count: usize) -> Self {
        self.options.batch_count_max = count.max(1);
        self
    }

    /// Pushes that may be under way at the same time, over all partitions. 8 by default.
    pub fn max_in_flight(mut self, pushes: usize) -> Self {
        self.options.in_flight_max = pushes.max(1);
        self
    }

    /// Bytes of messages that may wait for their receipts, with some overhead for each; beyond that `send` waits and `try_send`
    /// says `Full`. 32 MiB by default.
    pub fn max_buffer_bytes(mut self, bytes: usize) -> Self {
        self.buffer_bytes_max = bytes.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        self
    }

    /// Pack and compress batches here instead of on the server.
    pub fn pack(mut self, compression: Compression) -> Self {
        self.options.compression = Some(compression);
        self
    }

    /// How long a message may wait for its receipt, repeats and reconnects included. 2 minutes by default.
    pub fn delivery_timeout(mut self, timeout: Duration) -> Self {
        self.options.delivery_timeout = timeout;
        self
    }

    /// Starts the producer. Must be called inside a Tokio runtime.
    pub fn build(self) -> Producer {
        let (commands, receiver) = mpsc::unbounded_channel();
        // A built producer has an identity of its own, also if its builder is used again.
        let options = ProducerOptions { producer_id: uuid::Uuid::new_v4().as_u64_pair().1 | 1, ..self.options };
        task::start(self.client, options, commands.clone(), receiver);
        let room = Arc::new(Semaphore::new(self.buffer_bytes_max));
        Producer { handle: Arc::new(Handle { commands }), room, buffer_bytes_max: self.buffer_bytes_max }
    }
}

/// Pushes messages into one queue; clones share it. When the last clone is dropped, what was given to it is still sent, as long
/// as the runtime lives; [`close`](Self::close) waits for that.
#[derive(Debug, Clone)]
pub struct Producer {
    handle: Arc<Handle>,
    /// One permit for each byte of buffer that is free.
    room: Arc<Semaphore>,
    buffer_bytes_max: usize,
}

impl Producer {
    /// Pushes into the partition `Default` and waits for the receipt.
    pub async fn send(&self, message: Message) -> Result<Receipt> {
        self.send_to(DEFAULT_PARTITION, message).await
    }

    /// Pushes into a partition (made if it does not exist) and waits for the receipt.
    pub async fn send_to(&self, partition: &str, message: Message) -> Result<Receipt> {
        self.enqueue_to(partition, message).await?.await
    }

    /// Waits only for room in the buffer; the future that it returns is the receipt. The message is sent whether or not that
    /// future is awaited.
    pub async fn enqueue(&self, message: Message) -> Result<ReceiptFuture> {
        self.enqueue_to(DEFAULT_PARTITION, message).await
    }

    /// As [`enqueue`](Self::enqueue), into a partition.
    pub async fn enqueue_to(&self, partition: &str, message: Message) -> Result<ReceiptFuture> {
        let permits = self.cost(partition, &message)?;
        let room = Arc::clone(&self.room).acquire_many_owned(permits).await.map_err(|_| closed())?;
        self.accept(partition, message, room)
    }

    /// Waits for nothing: `Full` if there is no room.
    pub fn try_send(&self, message: Message) -> Result<ReceiptFuture> {
        self.try_send_to(DEFAULT_PARTITION, message)
    }

    /// As [`try_send`](Self::try_send), into a partition.
    pub fn try_send_to(&self, partition: &str, message: Message) -> Result<ReceiptFuture> {
        let permits = self.cost(partition, &message)?;
        let room = Arc::clone(&self.room).try_acquire_many_owned(permits).map_err(|error| match error {
            TryAcquireError::NoPermits => Error::new(ErrorKind::Full, "producer has no room for the message"),
            TryAcquireError::Closed => closed(),
        })?;
        self.accept(partition, message, room)
    }

    /// Sends what lingers and waits until everything given to the producer before this call has its receipt or error.
    pub async fn flush(&self) -> Result<()> {
        let (done, wait) = oneshot::channel();
        self.handle.commands.send(Command::Flush(done)).map_err(|_| closed())?;
        wait.await.map_err(|_| closed())
    }

    /// Takes no more messages, sends what it has, and waits for that. Clones are closed as well.
    pub async fn close(&self) -> Result<()> {
        self.room.close();
        self.flush().await
    }

    fn cost(&self, partition: &str, message: &Message) -> Result<u32> {
        check_name(partition).map_err(crate::model::Error::from)?;
        let cost = message.size().saturating_add(MESSAGE_COST).min(self.buffer_bytes_max);
        Ok(u32::try_from(cost).unwrap_or(u32::MAX))
    }

    fn accept(&self, partition: &str, message: Message, room: tokio::sync::OwnedSemaphorePermit) -> Result<ReceiptFuture> {
        let (receipt, receiver) = oneshot::channel();
        let entry = batch::Entry { message, receipt, room };
        self.handle.commands.send(Command::Message(partition.to_owned(), entry)).map_err(|_| closed())?;
        Ok(ReceiptFuture { receiver })
    }
}

/// What the clones of a producer share: the last one tells the task to finish and end.
#[derive(Debug)]
struct Handle {
    commands: mpsc::UnboundedSender<Command>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // An error says that the task has ended already.
        let _ = self.commands.send(Command::Drain);
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "producer is closed")
}

/// The receipt of a message, when it comes.
#[derive(Debug)]
pub struct ReceiptFuture {
    receiver: oneshot::Receiver<Result<Receipt>>,
}

impl Future for ReceiptFuture {
    type Output = Result<Receipt>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.receiver).poll(context).map(|answer| answer.unwrap_or_else(|_| Err(closed())))
    }
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// The partition's number.
    pub partition_id: PartitionId,
    /// What became of it.
    pub result: PushResult,
    /// What the server promises of it.
    pub promise: Promise,
    /// When the log stored it, microseconds since the Unix epoch.
    pub created_at_us: u64,
}

impl Receipt {
    /// Its offset, or that of the message which it is a duplicate of; `None` if it was dropped.
    pub fn offset(&self) -> Option<Offset> {
        match self.result {
            PushResult::Stored(offset) | PushResult::Duplicate(offset) => Some(offset),
            PushResult::Dropped => None,
        }
    }

    /// Whether a message with its transaction id was stored before.
    pub fn is_duplicate(&self) -> bool {
        matches!(self.result, PushResult::Duplicate(_))
    }

    /// Whether no enabled group takes it, so that it was not stored.
    pub fn is_dropped(&self) -> bool {
        self.result == PushResult::Dropped
    }
}
