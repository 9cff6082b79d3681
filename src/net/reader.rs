//! The receiving half.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, timeout_at};

use crate::protocol::{Frame, HELLO_FRAME_BYTES_MAX, LENGTH_BYTES};

use super::NetError;

/// Room made before a read; also what an idle connection keeps.
pub(super) const READ_BYTES_MIN: usize = 8 << 10;

/// How fast the rest of a frame must follow its first byte: within `grace`, plus a second for each `bytes_per_second` that came.
#[derive(Debug, Clone, Copy)]
pub struct ReadPace {
    /// Time that every frame has.
    pub grace: Duration,
    /// The mean rate below which a longer frame is given up.
    pub bytes_per_second: u32,
}

impl Default for ReadPace {
    fn default() -> Self {
        Self { grace: Duration::from_secs(10), bytes_per_second: 64 << 10 }
    }
}

impl ReadPace {
    fn deadline(self, started: Instant, received: usize) -> Instant {
        let earned = Duration::from_secs_f64(received as f64 / f64::from(self.bytes_per_second.max(1)));
        started + self.grace + earned
    }
}

/// Reads frames from a byte stream.
#[derive(Debug)]
pub struct FrameReader<R> {
    stream: R,
    pub(super) buffer: BytesMut,
    frame_bytes_max: usize,
    pace: ReadPace,
    /// When the first byte of the half frame in the buffer was seen.
    started: Option<Instant>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// A reader that takes frames up to [`HELLO_FRAME_BYTES_MAX`], until it is told otherwise.
    pub fn new(stream: R, pace: ReadPace) -> Self {
        Self { stream, buffer: BytesMut::new(), frame_bytes_max: HELLO_FRAME_BYTES_MAX, pace, started: None }
    }

    /// Takes frames up to this length from now on: the hello is done.
    pub fn set_frame_bytes_max(&mut self, frame_bytes_max: usize) {
        self.frame_bytes_max = frame_bytes_max;
    }

    /// The next frame, or `None` if the peer closed the stream between two frames. Waits for a frame's first byte without end;
    /// the rest must follow at the reader's pace. Dropping the future loses nothing.
    pub async fn read(&mut self) -> Result<Option<Frame>, NetError> {
        loop {
            let missing = match self.take_buffered()? {
                Ok(frame) => return Ok(Some(frame)),
                Err(missing) => missing,
            };
            if self.receive(missing).await? == 0 {
                let received = self.buffer.len();
                return if received == 0 { Ok(None) } else { Err(NetError::ClosedInsideFrame { received }) };
            }
        }
    }

    /// Waits for the length field of the next frame and returns how many bytes that frame takes, length field included, or
    /// `None` if the peer closed the stream between two frames. The frame itself is not waited for: a caller may make room for
    /// it first. Dropping the future loses nothing.
    pub async fn frame_length(&mut self) -> Result<Option<usize>, NetError> {
        loop {
            if let Some(length) = self.buffered_length()? {
                return Ok(Some(LENGTH_BYTES + length));
            }
            if self.receive(LENGTH_BYTES.saturating_sub(self.buffer.len())).await? == 0 {
                let received = self.buffer.len();
                return if received == 0 { Ok(None) } else { Err(NetError::ClosedInsideFrame { received }) };
            }
        }
    }

    /// Gives the rest of a half frame its whole time again: it was this end that kept it waiting.
    pub fn restart_pace(&mut self) {
        self.started = self.started.map(|_| Instant::now());
    }

    /// Whether a whole frame is here already, so that [`read`](Self::read) returns without waiting.
    pub fn has_frame(&self) -> bool {
        matches!(self.buffered_length(), Ok(Some(length)) if self.buffer.len() >= LENGTH_BYTES + length)
    }

    /// The frame at the front of the buffer, or else how many bytes of it are missing at least.
    fn take_buffered(&mut self) -> Result<Result<Frame, usize>, NetError> {
        let Some(length) = self.buffered_length()? else {
            return Ok(Err(LENGTH_BYTES.saturating_sub(self.buffer.len())));
        };
        let total = LENGTH_BYTES + length;
        if self.buffer.len() < total {
            return Ok(Err(total - self.buffer.len()));
        }
        let frame = self.buffer.split_to(total).freeze();
        self.started = None;
        Ok(Ok(Frame::decode(&frame.slice(LENGTH_BYTES..))?))
    }

    fn buffered_length(&self) -> Result<Option<usize>, NetError> {
        match self.buffer.first_chunk() {
            Some(length) => Ok(Some(Frame::check_length(*length, self.frame_bytes_max)?)),
            None => Ok(None),
        }
    }

    /// Waits for some bytes and returns how many came. The room made for them is at most what has come already: a peer that
    /// claims a large frame and sends nothing costs nothing.
    async fn receive(&mut self, missing: usize) -> Result<usize, NetError> {
        let room = missing.min(self.buffer.len()).max(READ_BYTES_MIN);
        self.buffer.reserve(room);
        if self.buffer.is_empty() {
            return Ok(self.stream.read_buf(&mut self.buffer).await?);
        }
        let started = *self.started.get_or_insert_with(Instant::now);
        let deadline = self.pace.deadline(started, self.buffer.len());
        match timeout_at(deadline, self.stream.read_buf(&mut self.buffer)).await {
            Ok(read) => Ok(read.map_err(|error| closed_inside(error, self.buffer.len()))?),
            Err(_) => Err(NetError::FrameTimeout { elapsed: started.elapsed() }),
        }
    }
}

/// A reset inside a frame is told like an end inside a frame.
fn closed_inside(error: io::Error, received: usize) -> NetError {
    match error.kind() {
        io::ErrorKind::ConnectionReset => NetError::ClosedInsideFrame { received },
        _ => NetError::Io(error),
    }
}
