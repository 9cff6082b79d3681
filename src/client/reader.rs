//! A reader of one partition, without a group: it moves no cursor and takes no lease.

use std::collections::VecDeque;
use std::time::Duration;

use crate::model::{FetchRequest, StoredMessage};
use crate::record::Offset;

use super::unpack::messages_of;
use super::{Client, Error, ErrorKind, Result};

/// How long the server may hold a fetch at the end of the partition.
const LIVE_WAIT: Duration = Duration::from_secs(20);

/// Where a reader starts.
#[derive(Debug, Clone, Copy)]
enum From {
    Beginning,
    End,
    Offset(Offset),
}

/// Makes a [`Reader`].
#[derive(Debug, Clone)]
pub struct ReaderBuilder {
    client: Client,
    from: From,
    request: FetchRequest,
    live: bool,
}

impl ReaderBuilder {
    pub(super) fn new(client: Client, queue: String, partition: String) -> Self {
        let request = FetchRequest { queue, partition, from: 0, to: None, messages_max: 1_000, bytes_max: 1 << 20 };
        Self { client, from: From::Beginning, request, live: false }
    }

    /// Start at the oldest message kept. The default.
    pub fn from_beginning(mut self) -> Self {
        self.from = From::Beginning;
        self
    }

    /// Start after the newest message.
    pub fn from_end(mut self) -> Self {
        self.from = From::End;
        self
    }

    /// Start at this offset. If retention has removed it, the first read fails with `RangeRemoved`.
    pub fn from_offset(mut self, offset: Offset) -> Self {
        self.from = From::Offset(offset);
        self
    }

    /// End before this offset.
    pub fn to_offset(mut self, offset: Offset) -> Self {
        self.request.to = Some(offset);
        self
    }

    /// Whether to wait for new messages at the end of the partition, instead of ending there.
    pub fn live(mut self, live: bool) -> Self {
        self.live = live;
        self
    }

    /// Bytes that one request asks for. 1 MiB by default.
    pub fn fetch_bytes(mut self, bytes: u32) -> Self {
        self.request.bytes_max = bytes.max(1);
        self
    }

    /// Finds the start.
    pub async fn build(mut self) -> Result<Reader> {
        self.request.from = match self.from {
            From::Offset(offset) => offset,
            From::Beginning => self.client.partition(&self.request.queue, &self.request.partition).await?.start,
            From::End => self.client.partition(&self.request.queue, &self.request.partition).await?.end,
        };
        Ok(Reader { client: self.client, request: self.request, live: self.live, buffer: VecDeque::new() })
    }
}

/// Reads messages in order of offset.
#[derive(Debug)]
pub struct Reader {
    client: Client,
    request: FetchRequest,
    live: bool,
    buffer: VecDeque<StoredMessage>,
}

impl Reader {
    /// The next message, or `None` at the end. A live reader has an end only if it was given one; it waits. After an error the
    /// reader stands where it was: the same call may be tried again, or [`seek`](Self::seek) may skip what cannot be read.
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<StoredMessage>> {
        loop {
            if let Some(message) = self.buffer.pop_front() {
                return Ok(Some(message));
            }
            if self.request.to.is_some_and(|to| self.request.from >= to) {
                return Ok(None);
            }
            if !self.fetch().await? {
                return Ok(None);
            }
        }
    }

    /// The offset after the last message that was returned, or where the reader starts.
    pub fn position(&self) -> Offset {
        self.buffer.front().map_or(self.request.from, |message| message.offset)
    }

    /// Goes on from another offset.
    pub fn seek(&mut self, offset: Offset) {
        self.buffer.clear();
        self.request.from = offset;
    }

    /// Fills the buffer. Returns whether there may be more.
    async fn fetch(&mut self) -> Result<bool> {
        let wait = if self.live { LIVE_WAIT } else { Duration::ZERO };
        let from = self.request.from;
        let to = self.request.to.unwrap_or(Offset::MAX);
        let reply = self.client.fetch(&self.request, wait).await?;
        // A whole batch may begin before the range and end after it.
        let messages = messages_of(reply.batches)?.into_iter().filter(|message| (from..to).contains(&message.offset));
        self.buffer.extend(messages);
        if reply.next <= from && (reply.next < from || !self.buffer.is_empty() || from < reply.end) {
            self.buffer.clear();
            return Err(Error::new(ErrorKind::Protocol, "server's fetch does not go on"));
        }
        self.request.from = reply.next;
        Ok(self.live || !self.buffer.is_empty() || reply.next < reply.end)
    }
}
