//! A connection to the server that never waits: the loop that drives many of them waits for all together.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use fanlog::protocol::{ErrorReply, Frame, FrameKind, HEADER_BYTES, Hello, HelloReply, LENGTH_BYTES, Wire, encode_call};

use super::super::exit::ServerFault;

/// How long the server may take for its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Room for what comes in; grows to the largest frame.
const INBOX_BYTES: usize = 64 << 10;

/// A connection.
#[derive(Debug)]
pub struct Link {
    stream: TcpStream,
    /// All of it is initialised; what has come lies in `start..end`.
    inbox: Vec<u8>,
    handed_over: Bytes,
    start: usize,
    end: usize,
    outbox: Vec<u8>,
    sent: usize,
    frame_bytes_max: usize,
}

impl Link {
    /// Connects and says hello; waits for both.
    pub fn connect(address: &str, token: Option<&str>) -> Result<Self> {
        let fault = || ServerFault(format!("cannot connect to {address}"));
        let mut stream = TcpStream::connect(address).with_context(fault)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(HELLO_TIMEOUT))?;
        let hello = Hello::new("fanlog-bench", token.unwrap_or_default());
        stream.write_all(&encode_call(&hello, 1).into_bytes()).with_context(fault)?;
        let mut header = [0; LENGTH_BYTES];
        stream.read_exact(&mut header).with_context(fault)?;
        let mut rest = vec![0; Frame::check_length(header, fanlog::protocol::HELLO_FRAME_BYTES_MAX)?];
        stream.read_exact(&mut rest).with_context(fault)?;
        let frame = Frame::decode(&rest.into())?;
        refuse_error(&frame)?;
        let reply = HelloReply::from_body(&frame.body)?;
        stream.set_read_timeout(None)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            inbox: vec![0; INBOX_BYTES],
            handed_over: Bytes::new(),
            start: 0,
            end: 0,
            outbox: Vec::new(),
            sent: 0,
            frame_bytes_max: reply.limits.frame_bytes as usize,
        })
    }

    /// The socket.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Whether all that was sent has gone to the operating system.
    pub fn is_clear(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Adds a frame to what the next [`flush`](Self::flush) sends.
    pub fn queue(&mut self, frame: &[u8]) {
        self.outbox.extend_from_slice(frame);
    }

    /// Sends a frame; what the socket does not take now is kept and sent later.
    pub fn send(&mut self, frame: &[u8]) -> Result<()> {
        let written = if self.is_clear() { write_some(&self.stream, frame)? } else { 0 };
        self.outbox.extend_from_slice(&frame[written..]);
        Ok(())
    }

    /// Sends what is kept, as far as the socket takes it.
    pub fn flush(&mut self) -> Result<()> {
        self.sent += write_some(&self.stream, &self.outbox[self.sent..])?;
        if self.sent == self.outbox.len() {
            self.outbox.clear();
            self.sent = 0;
        }
        Ok(())
    }

    /// Reads what has come, at most as much as there is room for. Whether there may be more.
    pub fn fill(&mut self) -> Result<bool> {
        self.make_room()?;
        loop {
            match self.stream.read(&mut self.inbox[self.end..]) {
                Ok(0) => bail!(ServerFault("the server closed the connection".to_owned())),
                Ok(read) => {
                    self.end += read;
                    return Ok(self.end == self.inbox.len());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) => return Err(error).context(lost()),
            }
        }
    }

    /// Hands over the whole frames that have come. They share the memory of the inbox, which
    /// [`take_back`](Self::take_back) must make usable again.
    pub fn hand_over(&mut self, frames: &mut Vec<Frame>) -> Result<()> {
        self.handed_over = Bytes::from(std::mem::take(&mut self.inbox));
        while let Some(length) = self.handed_over[self.start..self.end].first_chunk() {
            let length = Frame::check_length(*length, self.frame_bytes_max.max(HEADER_BYTES))?;
            let end = self.start + LENGTH_BYTES + length;
            if end > self.end {
                break;
            }
            frames.push(Frame::decode(&self.handed_over.slice(self.start + LENGTH_BYTES..end))?);
            self.start = end;
        }
        Ok(())
    }

    /// Uses the memory of frames that are gone for those that come next; memory of frames that were kept is copied.
    pub fn take_back(&mut self) {
        self.inbox = Vec::from(std::mem::take(&mut self.handed_over));
    }

    /// Moves half a frame to the front if its end would not fit behind it, and grows to hold the whole of it.
    fn make_room(&mut self) -> Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let total = match self.inbox[self.start..self.end].first_chunk() {
            Some(length) => LENGTH_BYTES + Frame::check_length(*length, self.frame_bytes_max.max(HEADER_BYTES))?,
            None => LENGTH_BYTES,
        };
        if self.start + total > self.inbox.len() {
            self.inbox.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if total > self.inbox.len() {
            // Twice as much, so that the next frame need not be moved each time.
            self.inbox.resize(total * 2, 0);
        }
        Ok(())
    }
}

/// Writes until the socket takes no more; returns how much it took.
fn write_some(mut stream: &TcpStream, bytes: &[u8]) -> Result<usize> {
    let mut written = 0;
    while written < bytes.len() {
        match stream.write(&bytes[written..]) {
            Ok(some) => written += some,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            Err(error) => return Err(error).context(lost()),
        }
    }
    Ok(written)
}

/// Turns an error frame into an error.
pub fn refuse_error(frame: &Frame) -> Result<()> {
    if frame.kind == FrameKind::Error {
        let error = ErrorReply::from_body(&frame.body)?;
        bail!(ServerFault(format!("the server answered with an error: {}", error.text)));
    }
    Ok(())
}

fn lost() -> ServerFault {
    ServerFault("the connection to the server failed".to_owned())
}
