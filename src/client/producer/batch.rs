//! Messages on their way to one partition, together.

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use crate::model::{Compression, PushItem, PushReply, PushRequest};
use crate::record::{BatchBuilder, Message};

use super::super::link::CallId;
use super::super::{Error, ErrorKind, Result};
use super::{ProducerOptions, Receipt};

/// A message and who waits for its receipt.
#[derive(Debug)]
pub struct Entry {
    pub message: Message,
    pub receipt: oneshot::Sender<Result<Receipt>>,
    /// Its share of the buffer, free again when the receipt is given.
    pub room: OwnedSemaphorePermit,
}

/// What a batch waits for.
#[derive(Debug)]
pub enum Progress {
    /// To be sent for the first time.
    New,
    /// For the answer to this request.
    Sent(CallId),
    /// To be sent again: the server was not able to take it, or asked for another one first.
    Failed(Error),
}

/// The place of a push in its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub epoch: u32,
    pub sequence: u32,
}

/// Messages that are one push.
#[derive(Debug)]
pub struct Batch {
    /// Its number in the producer.
    pub number: u64,
    /// How many messages the lane had taken before its first one.
    pub first_entry: u64,
    pub progress: Progress,
    pub deadline: Instant,
    pub request: PushRequest,
    mark: Mark,
    receipts: Vec<oneshot::Sender<Result<Receipt>>>,
    _room: Option<OwnedSemaphorePermit>,
}

impl Batch {
    /// Closes a batch. The room of its messages is free again when the batch is dropped.
    pub fn new(
        number: u64,
        first_entry: u64,
        deadline: Instant,
        partition: &str,
        entries: Vec<Entry>,
        options: &ProducerOptions,
    ) -> Self {
        let mut messages = Vec::with_capacity(entries.len());
        let mut receipts = Vec::with_capacity(entries.len());
        let mut room: Option<OwnedSemaphorePermit> = None;
        for entry in entries {
            messages.push(entry.message);
            receipts.push(entry.receipt);
            match &mut room {
                Some(room) => room.merge(entry.room),
                None => room = Some(entry.room),
            }
        }
        let items = match options.compression {
            Some(compression) => pack(&messages, compression),
            None => PushItem::Messages(messages),
        };
        let request = PushRequest { queue: options.queue.clone(), partition: partition.to_owned(), items, producer: None };
        let mark = Mark { epoch: 0, sequence: 0 };
        Self { number, first_entry, progress: Progress::New, deadline, request, mark, receipts, _room: room }
    }

    /// Gives the push its place.
    pub fn set_mark(&mut self, producer_id: u64, mark: Mark) {
        self.mark = mark;
        self.request.producer = Some((producer_id, mark.epoch, mark.sequence));
    }

    /// The push's place.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// Gives every message its receipt. Nobody need be waiting for it.
    pub fn succeed(self, reply: &PushReply) {
        for (index, waiting) in self.receipts.into_iter().enumerate() {
            let receipt = match reply.results.get(index) {
                Some(result) => Ok(Receipt {
                    partition_id: reply.partition_id,
                    result,
                    promise: reply.promise,
                    created_at_us: reply.created_at_us,
                }),
                None => Err(Error::new(ErrorKind::Protocol, "server answered for fewer messages than were pushed")),
            };
            let _ = waiting.send(receipt);
        }
    }

    /// Gives every message the error.
    pub fn fail(self, error: &Error) {
        for waiting in self.receipts {
            let _ = waiting.send(Err(error.clone()));
        }
    }
}

fn pack(messages: &[Message], compression: Compression) -> PushItem {
    let mut builder = BatchBuilder::with_capacity(messages.len(), messages.iter().map(Message::size).sum());
    messages.iter().for_each(|message| builder.push(message));
    PushItem::Packed(builder.finish(compression))
}

/// Bytes that a message adds to a batch: its own, and about as many as its fields cost on the wire.
pub fn size(message: &Message) -> usize {
    message.size() + 16
}
