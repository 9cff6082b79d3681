//! The replies of one connection on their way to its client: anybody may add one, from any thread; the connection's own task
//! writes all that is there with one call. A short reply to a connection that has none waiting is written at once by whoever has it:
//! to wake the task would cost as much again.
//!
//! Bounded in bytes: while a connection's bound is reached its requests are not read and its subscriptions send nothing, and
//! while the server's bound is reached readers are told to come back later. What is added all the same are replies to requests
//! that were let in before.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use tokio::io::AsyncWrite;
use tokio::sync::Notify;

use crate::net::{FrameWriter, NetError};
use crate::protocol::Chunks;

use super::lease::UnheardLease;
use super::shared_writer::SharedWriter;

/// Longest reply that is written by whoever has it.
const DIRECT_BYTES_MAX: usize = 4 << 10;

/// A reply, and the lease that its client learns of by it.
pub(super) struct Outgoing {
    pub(super) frame: Chunks,
    pub(super) lease: Option<UnheardLease>,
}

impl From<Chunks> for Outgoing {
    fn from(frame: Chunks) -> Self {
        Self { frame, lease: None }
    }
}

/// The queue of replies of one connection.
pub(super) struct Outbox {
    state: Mutex<State>,
    room: Notify,
    bytes_max: usize,
    total: Arc<OutgoingBytes>,
}

#[derive(Default)]
struct State {
    replies: VecDeque<Outgoing>,
    /// Bytes that are not written yet, those in the writer's hands included.
    bytes: usize,
    /// The connection's task, if it waits for replies.
    writer: Option<Waker>,
    /// The connection's socket, if what is written there needs no more than to be written.
    socket: Option<SharedWriter>,
    /// Leases whose replies left since the client was last heard: it may be gone without having read them.
    unread: Vec<UnheardLease>,
    is_closed: bool,
}

impl State {
    /// Writes a short reply that stands behind no other. What is left of it goes the way of the others, as does an error.
    fn write_directly(&mut self, mut outgoing: Outgoing) -> Option<Outgoing> {
        if self.bytes > 0 || outgoing.lease.is_some() || outgoing.frame.len() > DIRECT_BYTES_MAX {
            return Some(outgoing);
        }
        let (Some(socket), Some(bytes)) = (&self.socket, outgoing.frame.as_small()) else { return Some(outgoing) };
        match socket.try_write(bytes) {
            Ok(written) if written == bytes.len() => None,
            Ok(written) => {
                outgoing.frame.skip_small(written);
                Some(outgoing)
            }
            Err(_) => Some(outgoing),
        }
    }
}

/// Bytes of replies over all connections.
pub(super) struct OutgoingBytes {
    bytes: AtomicUsize,
    bytes_max: usize,
}

impl OutgoingBytes {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes: AtomicUsize::new(0), bytes_max }
    }

    /// Whether readers should come back later.
    pub(super) fn is_used_up(&self) -> bool {
        self.bytes.load(Relaxed) >= self.bytes_max
    }
}

impl Outbox {
    pub(super) fn new(bytes_max: usize, total: Arc<OutgoingBytes>, socket: Option<SharedWriter>) -> Self {
        Self { state: Mutex::new(State { socket, ..State::default() }), room: Notify::new(), bytes_max, total }
    }

    /// Writes a reply, or adds it and wakes the connection's task. On a closed connection the reply is dropped, and its lease goes
    /// back.
    pub(super) fn push(&self, outgoing: impl Into<Outgoing>) {
        let mut state = self.lock();
        let Some(outgoing) = state.write_directly(outgoing.into()) else { return };
        let refused = self.add(&mut state, outgoing);
        let writer = state.writer.take();
        drop(state);
        drop(refused);
        if let Some(writer) = writer {
            writer.wake();
        }
    }

    /// Adds a reply from the connection's own task, which looks for replies before it sleeps.
    pub(super) fn push_from_own_task(&self, outgoing: impl Into<Outgoing>) {
        let mut state = self.lock();
        let refused = self.add(&mut state, outgoing.into());
        drop(state);
        drop(refused);
    }

    /// Returns the reply if the connection is closed, so that it is dropped without the lock.
    fn add(&self, state: &mut State, outgoing: Outgoing) -> Option<Outgoing> {
        if state.is_closed {
            return Some(outgoing);
        }
        let bytes = outgoing.frame.len();
        state.bytes += bytes;
        self.total.bytes.fetch_add(bytes, Relaxed);
        state.replies.push_back(outgoing);
        None
    }

    /// Whether no more should be asked for until some is written.
    pub(super) fn is_full(&self) -> bool {
        self.lock().bytes >= self.bytes_max
    }

    /// Waits until the bound is not reached.
    pub(super) async fn room(&self) {
        loop {
            let room = self.room.notified();
            if !self.is_full() {
                return;
            }
            room.await;
        }
    }

    /// The client was heard: what was written before is its own from here on.
    pub(super) fn keep_unread(&self) {
        for lease in self.take_unread() {
            lease.keep();
        }
    }

    /// Leases whose replies left after the client was last heard.
    pub(super) fn take_unread(&self) -> Vec<UnheardLease> {
        mem::take(&mut self.lock().unread)
    }

    /// Drops the replies that would hand out a lease and that nobody has begun to write: their client is gone.
    pub(super) fn drop_leased(&self) {
        let mut state = self.lock();
        let (leased, kept): (VecDeque<_>, VecDeque<_>) =
            mem::take(&mut state.replies).into_iter().partition(|outgoing| outgoing.lease.is_some());
        state.replies = kept;
        let bytes = leased.iter().map(|outgoing| outgoing.frame.len()).sum();
        self.forget(&mut state, bytes);
        drop(state);
        drop(leased);
    }

    /// Takes no more replies and drops those that are left, the ones in the writer's hands included.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.socket = None;
        let replies = mem::take(&mut state.replies);
        let bytes = state.bytes;
        self.forget(&mut state, bytes);
        drop(state);
        drop(replies);
    }

    fn forget(&self, state: &mut State, bytes: usize) {
        let bytes = bytes.min(state.bytes);
        state.bytes -= bytes;
        self.total.bytes.fetch_sub(bytes, Relaxed);
        if state.bytes < self.bytes_max {
            self.room.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The writing half of a connection: takes replies from the outbox and knows which leases the client can have heard of.
pub(super) struct ReplyWriter<W> {
    outbox: Arc<Outbox>,
    writer: FrameWriter<W>,
    taken: VecDeque<Outgoing>,
    /// Bytes ever given to the writer.
    given: u64,
    /// Leases whose replies are being written, with the count of bytes that must be out before the client can have them.
    unsent: VecDeque<(u64, UnheardLease)>,
}

impl<W: AsyncWrite + Unpin> ReplyWriter<W> {
    pub(super) fn new(outbox: Arc<Outbox>, writer: FrameWriter<W>) -> Self {
        Self { outbox, writer, taken: VecDeque::new(), given: 0, unsent: VecDeque::new() }
    }

    /// Writes replies as they come, until that fails.
    pub(super) async fn run(&mut self) -> NetError {
        loop {
            self.take().await;
            if let Err(error) = self.flush().await {
                return error;
            }
        }
    }

    /// Writes what is there and closes the sending direction.
    pub(super) async fn close(mut self) -> Result<(), NetError> {
        mem::swap(&mut self.outbox.lock().replies, &mut self.taken);
        self.queue_taken();
        self.flush().await?;
        self.writer.close().await
    }

    /// Takes all replies that are there, waiting for the first.
    async fn take(&mut self) {
        poll_fn(|context| {
            let mut state = self.outbox.lock();
            if state.replies.is_empty() {
                if !state.writer.as_ref().is_some_and(|writer| writer.will_wake(context.waker())) {
                    state.writer = Some(context.waker().clone());
                }
                return Poll::Pending;
            }
            mem::swap(&mut state.replies, &mut self.taken);
            Poll::Ready(())
        })
        .await;
        self.queue_taken();
    }

    fn queue_taken(&mut self) {
        for Outgoing { frame, lease } in self.taken.drain(..) {
            self.given += frame.len() as u64;
            self.writer.queue(frame);
            self.unsent.extend(lease.map(|lease| (self.given, lease)));
        }
    }

    async fn flush(&mut self) -> Result<(), NetError> {
        let bytes = self.writer.queued_bytes();
        let flushed = self.writer.flush().await;
        let written = self.given - self.writer.queued_bytes() as u64;
        let mut state = self.outbox.lock();
        while self.unsent.front().is_some_and(|(end, _)| *end <= written) {
            state.unread.extend(self.unsent.pop_front().map(|(_, lease)| lease));
        }
        self.outbox.forget(&mut state, bytes);
        flushed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, duplex};
    use tokio::net::{TcpListener, TcpStream};

    use crate::protocol::{Ping, encode_call};

    use super::*;

    fn frame(nonce: u64) -> Chunks {
        encode_call(&Ping { nonce }, nonce as u32)
    }

    fn outbox(bytes_max: usize) -> (Arc<Outbox>, Arc<OutgoingBytes>) {
        let total = Arc::new(OutgoingBytes::new(2 * bytes_max));
        (Arc::new(Outbox::new(bytes_max, total.clone(), None)), total)
    }

    #[tokio::test]
    async fn replies_leave_in_order_and_make_room() {
        let (outbox, total) = outbox(2 * frame(0).len());
        (0..5).for_each(|nonce| outbox.push(frame(nonce)));
        assert!(outbox.is_full() && total.is_used_up());
        let (near, mut far) = duplex(1 << 10);
        let mut writer = ReplyWriter::new(outbox.clone(), FrameWriter::new(near, Duration::from_secs(1)));
        let later = outbox.clone();
        let reading = async {
            later.room().await;
            later.push(frame(5));
            let mut bytes = vec![0; 6 * frame(0).len()];
            far.read_exact(&mut bytes).await.unwrap();
            bytes
        };
        let bytes = tokio::select! { error = writer.run() => panic!("{error}"), bytes = reading => bytes };
        let expected: Vec<u8> = (0..6).flat_map(|nonce| frame(nonce).into_bytes()).collect();
        assert_eq!(bytes, expected);
        outbox.close();
        assert!(!outbox.is_full() && total.bytes.load(Relaxed) == 0);
    }

    #[tokio::test]
    async fn a_short_reply_is_written_at_once_and_a_socket_that_is_full_mixes_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (_, write_half) = listener.accept().await.unwrap().0.into_split();
        write_half.writable().await.unwrap();
        let socket = SharedWriter::new(write_half);
        let total = Arc::new(OutgoingBytes::new(1 << 30));
        let outbox = Arc::new(Outbox::new(1 << 30, total.clone(), Some(socket.clone())));
        outbox.push(frame(0));
        assert_eq!(total.bytes.load(Relaxed), 0, "nobody has to wake up for it");
        // Until the socket takes no more, with no task that writes: the rest waits, from the middle of a frame on.
        let mut count = 1;
        while total.bytes.load(Relaxed) == 0 {
            outbox.push(frame(count));
            count += 1;
        }
        (count..count + 10).for_each(|nonce| outbox.push(frame(nonce)));
        let expected: Vec<u8> = (0..count + 10).flat_map(|nonce| frame(nonce).into_bytes()).collect();
        let mut writer = ReplyWriter::new(outbox.clone(), FrameWriter::new(socket, Duration::from_secs(10)));
        let mut bytes = vec![0; expected.len()];
        tokio::select! { error = writer.run() => panic!("{error}"), read = far.read_exact(&mut bytes) => read.unwrap() };
        assert!(bytes == expected, "the frames are whole and in order");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up_and_leaves_nothing_counted() {
        let (outbox, total) = outbox(1 << 20);
        (0..100).for_each(|nonce| outbox.push(frame(nonce)));
        let (near, _far) = duplex(64);
        let mut writer = ReplyWriter::new(outbox.clone(), FrameWriter::new(near, Duration::from_secs(30)));
        assert!(matches!(writer.run().await, NetError::WriteStalled { .. }));
        outbox.close();
        outbox.push(frame(1));
        assert_eq!(total.bytes.load(Relaxed), 0);
    }
}
