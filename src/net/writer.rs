//! The sending half.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::protocol::Chunks;

use super::NetError;

/// Pieces that one call to the operating system takes.
const SLICES_MAX: usize = 64;

/// Writes frames to a byte stream.
#[derive(Debug)]
pub struct FrameWriter<W> {
    stream: W,
    pieces: VecDeque<Bytes>,
    queued_bytes: usize,
    stall: Duration,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    /// A writer that gives up when the peer takes no byte for `stall`.
    pub fn new(stream: W, stall: Duration) -> Self {
        Self { stream, pieces: VecDeque::new(), queued_bytes: 0, stall }
    }

    /// Adds a frame to those that the next [`flush`](Self::flush) writes. Holds what it is given until then: the caller bounds
    /// it with [`queued_bytes`](Self::queued_bytes).
    pub fn queue(&mut self, frame: Chunks) {
        self.queue_pieces(frame.into_pieces());
    }

    /// As [`queue`](Self::queue), for a frame that is kept in pieces because it may be sent again.
    pub fn queue_pieces(&mut self, pieces: Vec<Bytes>) {
        self.queued_bytes += pieces.iter().map(Bytes::len).sum::<usize>();
        self.pieces.extend(pieces);
    }

    /// Bytes that wait to be written.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Writes all that is queued, many pieces with each call. Dropping the future loses nothing: the next call goes on.
    pub async fn flush(&mut self) -> Result<(), NetError> {
        while !self.pieces.is_empty() {
            let written = self.write_some().await?;
            self.advance(written);
        }
        self.within_stall_flush().await
    }

    /// Queues a frame and writes it.
    pub async fn send(&mut self, frame: Chunks) -> Result<(), NetError> {
        self.queue(frame);
        self.flush().await
    }

    /// Writes what is queued and closes the sending direction.
    pub async fn close(mut self) -> Result<(), NetError> {
        self.flush().await?;
        Ok(self.stream.shutdown().await?)
    }

    async fn write_some(&mut self) -> Result<usize, NetError> {
        let slices: Vec<IoSlice<'_>> = self.pieces.iter().take(SLICES_MAX).map(|piece| IoSlice::new(piece)).collect();
        match timeout(self.stall, self.stream.write_vectored(&slices)).await {
            Ok(Ok(0)) => Err(NetError::Io(io::ErrorKind::WriteZero.into())),
            Ok(written) => Ok(written?),
            Err(_) => Err(NetError::WriteStalled { elapsed: self.stall }),
        }
    }

    async fn within_stall_flush(&mut self) -> Result<(), NetError> {
        match timeout(self.stall, self.stream.flush()).await {
            Ok(flushed) => Ok(flushed?),
            Err(_) => Err(NetError::WriteStalled { elapsed: self.stall }),
        }
    }

    fn advance(&mut self, mut written: usize) {
        self.queued_bytes -= written;
        while let Some(piece) = self.pieces.front_mut() {
            if written < piece.len() {
                piece.advance(written);
                return;
            }
            written -= piece.len();
            self.pieces.pop_front();
        }
    }
}
