//! One connection that heals itself: requests of many callers go over it, answers find their way back.
//!
//! Owns what is unanswered. A request that may be repeated stays through a reconnect and is sent again, in the order in which the
//! requests were made, before anything newer; one that may not fails with `Disconnected` if it had been sent. A task of its own
//! reads, so a slow handler never looks like a dead server.

mod dial;
mod session;
mod table;

pub(super) use dial::Dial;
pub(super) use table::{Answer, CallId, frame_result};

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, broadcast, mpsc, watch};

use crate::net::ReadPace;
use crate::protocol::{Call, Credit, Frame, HEADER_BYTES, HelloReply, LENGTH_BYTES, Subscribe, encode_call};

use super::event::Event;
use super::{Error, ErrorKind, Result};
use table::Table;

/// How a link behaves.
#[derive(Debug, Clone)]
pub(super) struct LinkOptions {
    pub name: String,
    pub token: String,
    pub connect_timeout: Duration,
    pub heartbeat: Duration,
    pub backoff_min: Duration,
    pub backoff_max: Duration,
    pub pace: ReadPace,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            name: String::new(),
            token: String::new(),
            connect_timeout: Duration::from_secs(10),
            heartbeat: Duration::from_secs(10),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(5),
            pace: ReadPace::default(),
        }
    }
}

/// Whether there is a connection.
#[derive(Debug, Clone)]
pub(super) enum Status {
    /// There is one, with what the server said of itself.
    Connected(Arc<HelloReply>),
    /// There is none now.
    Disconnected,
    /// There will never be one again.
    Closed(Error),
}

/// The owner's end: dropping it closes the link without waiting.
#[derive(Debug)]
pub(super) struct Link {
    shared: Arc<Shared>,
}

/// What the link's task and its callers share.
#[derive(Debug)]
struct Shared {
    table: Mutex<Table>,
    /// There is something to write, or the link is closing.
    work: Notify,
    status: watch::Sender<Status>,
    events: broadcast::Sender<Event>,
}

/// An open subscription. Dropping it only stops listening; [`Link::call_later`] with `Unsubscribe` ends it.
#[derive(Debug)]
pub(super) struct SubscriptionFrames {
    pub id: u32,
    pub frames: mpsc::Receiver<Frame>,
}

impl Link {
    /// Connects once, then keeps a task that reconnects until the link is dropped or closed.
    pub async fn open(dial: Dial, options: LinkOptions) -> Result<Self> {
        let session = session::connect(&dial, &options).await?;
        let shared = Arc::new(Shared {
            table: Mutex::new(Table::default()),
            work: Notify::new(),
            status: watch::Sender::new(Status::Disconnected),
            events: broadcast::Sender::new(64),
        });
        tokio::spawn(session::keep(Arc::clone(&shared), dial, options, session));
        Ok(Self { shared })
    }

    /// Sends a request; `answer` is called once with the response frame or the error, from the link's task. Returns its id.
    pub fn call_later<C: Call>(&self, call: &C, is_repeatable: bool, answer: Answer) -> Result<CallId> {
        let id = self.shared.table().next_call_id();
        // Encoded between the two locks: a large push holds nobody up.
        let frame = encode_call(call, id.wire());
        self.check_length(frame.len())?;
        self.shared.table().add_call(id, frame.into_pieces(), is_repeatable, answer)?;
        self.shared.work.notify_one();
        Ok(id)
    }

    /// Forgets a request; its answer, if one comes, is ignored.
    pub fn forget(&self, id: CallId) {
        self.shared.table().forget(id);
    }

    /// Opens a subscription on the connection that stands now; it ends with the connection. Its first frame says whether the
    /// server accepted it. At most `frames_max` frames may wait to be read.
    pub fn subscribe(&self, call: &Subscribe, frames_max: usize) -> Result<SubscriptionFrames> {
        if !matches!(*self.shared.status.borrow(), Status::Connected(_)) {
            return Err(Error::new(ErrorKind::Disconnected, "there is no connection"));
        }
        let (sender, frames) = mpsc::channel(frames_max);
        let mut table = self.shared.table();
        let id = table.next_call_id();
        table.add_subscription(id, encode_call(call, id.wire()).into_pieces(), sender)?;
        drop(table);
        self.shared.work.notify_one();
        Ok(SubscriptionFrames { id: id.wire(), frames })
    }

    /// Adds credit to a subscription. Lost with the connection, like the subscription itself.
    pub fn credit(&self, credit: &Credit) {
        let mut table = self.shared.table();
        let id = table.next_call_id();
        table.add_notice(encode_call(credit, id.wire()).into_pieces());
        drop(table);
        self.shared.work.notify_one();
    }

    /// Follows the connection's state.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.shared.status.subscribe()
    }

    /// Follows the events.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.shared.events.subscribe()
    }

    /// Tells an event to all who listen.
    pub fn emit(&self, event: Event) {
        self.shared.emit(event);
    }

    /// Writes what waits to be written, closes the connection and waits until that is done. Requests without an answer fail.
    pub async fn close(&self) {
        let mut status = self.status();
        self.shared.begin_close();
        // The sender lives in `shared`, so this ends only when the state is reached.
        let _ = status.wait_for(|status| matches!(status, Status::Closed(_))).await;
    }

    fn check_length(&self, length: usize) -> Result<()> {
        let limit = match &*self.shared.status.borrow() {
            Status::Connected(hello) => hello.limits.frame_bytes as usize,
            _ => return Ok(()),
        };
        if length - LENGTH_BYTES <= limit.max(HEADER_BYTES) {
            return Ok(());
        }
        let text = format!("request of {length} bytes is over the server's limit of {limit}");
        Err(Error::new(ErrorKind::TooLarge, text))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.begin_close();
    }
}

impl Shared {
    /// The table. No caller panics while it holds it, and what it holds is whole between any two calls.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn emit(&self, event: Event) {
        // An error says that nobody listens.
        let _ = self.events.send(event);
    }

    fn begin_close(&self) {
        self.table().is_closing = true;
        self.work.notify_one();
    }
}

/// The pieces of a frame that is ready to be written.
type Pieces = Vec<Bytes>;
