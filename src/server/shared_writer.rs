//! The sending half of a socket, for the connection's own task and for whoever has a reply for it.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;
use tokio::net::tcp::OwnedWriteHalf;

/// Writes to a socket that others may write to; they see to it that frames are not mixed.
#[derive(Clone)]
pub(super) struct SharedWriter(Arc<OwnedWriteHalf>);

impl SharedWriter {
    pub(super) fn new(half: OwnedWriteHalf) -> Self {
        Self(Arc::new(half))
    }

    /// Writes what the socket takes now.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn poll(&self, context: &mut Context<'_>, write: impl Fn(&OwnedWriteHalf) -> io::Result<usize>) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.as_ref().as_ref().poll_write_ready(context))?;
            match write(&self.0) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

impl AsyncWrite for SharedWriter {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll(context, |half| half.try_write(bytes))
    }

    fn poll_write_vectored(self: Pin<&mut Self>, context: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.poll(context, |half| half.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.0.as_ref().as_ref();
        Poll::Ready(rustix::net::shutdown(stream, rustix::net::Shutdown::Write).map_err(io::Error::from))
    }
}
