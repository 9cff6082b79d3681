//! The Rust client: one connection that heals itself, producers, consumers, readers, administration.
//!
//! ```no_run
//! use fanlog::client::Client;
//! use fanlog::record::Message;
//! use std::time::Duration;
//!
//! # async fn example() -> Result<(), fanlog::client::Error> {
//! let client = Client::builder("fanlog://127.0.0.1:6633").name("orders").connect().await?;
//!
//! // A push is answered when it is on disk.
//! let producer = client.producer("orders").linger(Duration::from_millis(2)).build();
//! let receipt = producer.send_to("customer-42", Message::new("paid")).await?;
//! println!("stored at offset {:?}", receipt.offset());
//!
//! // A group is a cursor: naming it makes it.
//! let mut consumer = client.consumer("orders").group("billing").build().await?;
//! while let Some(delivery) = consumer.next().await {
//!     delivery?.ack().await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! What holds for all of it: nothing waits in a `Drop`; buffers are bounded in bytes or messages; every call has a deadline;
//! a lost connection is made again with the same subscriptions, and unanswered pushes are sent again under the same sequence
//! numbers, so that they are not stored twice.

mod admin;
mod builder;
mod consumer;
mod error;
mod event;
mod link;
mod producer;
mod reader;
mod unpack;

pub use builder::{ClientBuilder, DEFAULT_PORT, parse_address};
pub use consumer::{Consumer, ConsumerBuilder, Delivery, Settled};
pub use error::{Error, ErrorKind, Result};
pub use event::{Event, Events};
pub use producer::{Producer, ProducerBuilder, Receipt, ReceiptFuture};
pub use reader::{Reader, ReaderBuilder};
pub use unpack::{messages_of, messages_of_claim};

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::protocol::{Call, Frame, HelloReply, Operation, Wire};
use link::{CallId, Link, Status};

/// A connection to a server; clones share it. It is closed when the last clone, producer, consumer and reader is gone.
#[derive(Debug, Clone)]
pub struct Client {
    link: Arc<Link>,
    request_timeout: Duration,
}

impl Client {
    /// Prepares a client of the server at `fanlog://host:port`, `fanlog+tls://host:port`, `host:port` or `host`.
    pub fn builder(address: impl Into<String>) -> ClientBuilder {
        ClientBuilder::new(address)
    }

    /// A producer for a queue.
    pub fn producer(&self, queue: impl Into<String>) -> ProducerBuilder {
        ProducerBuilder::new(self.clone(), queue.into())
    }

    /// A consumer of a queue, for its primary group unless another is named.
    pub fn consumer(&self, queue: impl Into<String>) -> ConsumerBuilder {
        ConsumerBuilder::new(self.clone(), queue.into())
    }

    /// A reader of one partition, without a group: it moves no cursor and takes no lease.
    pub fn reader(&self, queue: impl Into<String>, partition: impl Into<String>) -> ReaderBuilder {
        ReaderBuilder::new(self.clone(), queue.into(), partition.into())
    }

    /// Follows what happens to the connection, the leases and the groups of this client.
    pub fn events(&self) -> Events {
        Events { receiver: self.link.events() }
    }

    /// What the server said of itself when the connection that stands now was made; `None` while there is none.
    pub fn server(&self) -> Option<Arc<HelloReply>> {
        match &*self.link.status().borrow() {
            Status::Connected(hello) => Some(Arc::clone(hello)),
            _ => None,
        }
    }

    /// Writes what waits to be written and closes the connection, for all clones. Requests without an answer fail with `Closed`.
    /// Close producers and consumers first: they drain.
    pub async fn close(&self) {
        self.link.close().await;
    }

    /// Any operation of the protocol: sends the request, waits for the reply until the request timeout. The methods below are
    /// this with names.
    pub async fn call<C: Call>(&self, call: &C) -> Result<C::Reply> {
        self.call_waiting(call, Duration::ZERO).await
    }

    /// As [`call`](Self::call), for a request that makes the server wait: `wait` comes on top of the request timeout.
    pub(crate) async fn call_waiting<C: Call>(&self, call: &C, wait: Duration) -> Result<C::Reply> {
        let (sender, receiver) = oneshot::channel();
        // A caller that went away does not want the answer.
        let answer = Box::new(move |result, _| drop(sender.send(result)));
        let id = self.link.call_later(call, is_repeatable(C::OPERATION), answer)?;
        let _forget = ForgetOnDrop { link: &self.link, id };
        let limit = self.request_timeout.saturating_add(wait);
        match tokio::time::timeout(limit, receiver).await {
            Ok(Ok(answer)) => decode_reply::<C>(&answer?),
            Ok(Err(_)) => Err(Error::closed()),
            Err(_) => {
                let text = format!("no answer to {} within {} ms", C::OPERATION.name(), limit.as_millis());
                Err(Error::new(ErrorKind::Timeout, text))
            }
        }
    }
}

/// A request whose caller goes away is not kept, and not sent again.
struct ForgetOnDrop<'a> {
    link: &'a Link,
    id: CallId,
}

impl Drop for ForgetOnDrop<'_> {
    fn drop(&mut self) {
        self.link.forget(self.id);
    }
}

fn decode_reply<C: Call>(frame: &Frame) -> Result<C::Reply> {
    if frame.operation != C::OPERATION.number() {
        return Err(Error::new(ErrorKind::Protocol, format!("server answered {} with another operation", C::OPERATION.name())));
    }
    Ok(C::Reply::from_body(&frame.body)?)
}

/// Whether a request may be sent again when its answer was lost: it reads, or doing it twice is doing it once.
fn is_repeatable(operation: Operation) -> bool {
    use Operation::*;
    matches!(
        operation,
        Ping | Fetch
            | Ack
            | Extend
            | Release
            | QueueGet
            | QueueList
            | PartitionList
            | PartitionGet
            | GroupGet
            | GroupList
            | Progress
            | MessageGet
            | DeadLetterList
            | DeadLetterGet
            | TraceByName
            | TraceByMessage
            | TraceNames
            | Stats
            | LossesGet
            | FilterTest
    )
}

#[cfg(test)]
mod tests;
