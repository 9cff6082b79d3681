//! RabbitMQ: its stream protocol (a batch is one publish frame; chunks on the way back), and a quorum queue over AMQP 0-9-1 with
//! publisher confirms.

use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpStream;

use super::{Frames, Order, Outcome, Peer, Skim, Work, big_endian_u32, payload, read_until};

const STREAM: &str = "bench";

/// Builds frames: numbers are big-endian, texts have a length of two bytes.
#[derive(Default)]
struct Builder(Vec<u8>);

impl Builder {
    fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    fn u16(mut self, value: u16) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn bytes(mut self, value: &[u8]) -> Self {
        self.0.extend_from_slice(value);
        self
    }

    fn text(self, value: &str) -> Self {
        self.u16(value.len() as u16).bytes(value.as_bytes())
    }

    fn short(self, value: &str) -> Self {
        self.u8(value.len() as u8).bytes(value.as_bytes())
    }

    fn framed(self) -> Vec<u8> {
        let mut frame = (self.0.len() as u32).to_be_bytes().to_vec();
        frame.extend_from_slice(&self.0);
        frame
    }
}

fn stream_frame_length(bytes: &[u8]) -> Option<usize> {
    Some(big_endian_u32(bytes, 0)? + 4)
}

/// What of a frame from the server is looked at.
const HEAD: usize = 64;
/// Chunks that the server may send ahead.
const CREDIT: u16 = 100;
/// Operation, version, publisher and count stand before the first message of a publish frame.
const PUBLISH_HEADER: usize = 4 + 2 + 2 + 1 + 4;

/// The stream protocol.
pub struct Stream {
    work: Work,
    size: usize,
    /// The next request; of a publish only the numbers change.
    request: Vec<u8>,
    frames: Skim,
    next_id: u64,
    has_subscribed: bool,
    credit: Vec<u8>,
}

impl Stream {
    pub fn open(stream: &TcpStream, order: &Order) -> Outcome<Self> {
        let answer = || read_until(stream, |answer| stream_frame_length(answer).is_some_and(|length| answer.len() >= length));
        let send = |frame: &[u8]| {
            let mut stream = stream;
            stream.write_all(frame)
        };
        let call = |frame: Vec<u8>| -> Outcome<Vec<u8>> {
            send(&frame)?;
            answer()
        };
        let command = |key: u16, correlation: u32| Builder::default().u16(key).u16(1).u32(correlation);
        call(command(17, 1).u32(0).framed())?;
        call(command(18, 2).framed())?;
        let login = b"\0guest\0guest";
        let login_answer = call(command(19, 3).text("PLAIN").u32(login.len() as u32).bytes(login).framed())?;
        // The server's tune may come with the answer or behind it.
        if stream_frame_length(&login_answer).is_some_and(|length| login_answer.len() <= length) {
            answer()?;
        }
        send(&Builder::default().u16(20).u16(1).u32(0).u32(0).framed())?;
        call(command(21, 4).text("/").framed())?;
        // Another connection may have made it.
        call(command(13, 5).text(STREAM).u32(0).framed())?;
        if order.work == Work::Push {
            call(command(1, 6).u8(1).text("").text(STREAM).framed())?;
        }
        let request = match order.work {
            Work::Push => {
                let payload = payload(order.size);
                let header = Builder::default().u16(2).u16(1).u8(1).u32(order.batch as u32);
                (0..order.batch).fold(header, |frame, _| frame.u64(0).u32(payload.len() as u32).bytes(&payload)).framed()
            }
            // From the first chunk on.
            _ => Builder::default().u16(7).u16(1).u32(9).u8(1).text(STREAM).u16(1).u16(CREDIT).u32(0).framed(),
        };
        Ok(Self {
            work: order.work,
            size: order.size,
            request,
            frames: Skim::new(HEAD),
            next_id: 0,
            has_subscribed: false,
            credit: Vec::new(),
        })
    }
}

impl Peer for Stream {
    fn request(&mut self) -> &[u8] {
        if self.work == Work::Push {
            for message in self.request[PUBLISH_HEADER..].chunks_mut(8 + 4 + self.size) {
                message[..8].copy_from_slice(&self.next_id.to_be_bytes());
                self.next_id += 1;
            }
        } else if self.has_subscribed {
            self.request.clear();
        }
        self.has_subscribed = true;
        &self.request
    }

    fn take(&mut self, bytes: &[u8]) -> Outcome<usize> {
        let mut done = 0;
        let credit = &mut self.credit;
        self.frames.take(bytes, stream_frame_length, |frame| {
            match u16::from_be_bytes([frame[4], frame[5]]) & 0x7fff {
                // Confirmed: publisher, count.
                3 => done += big_endian_u32(frame, 9).unwrap_or(0),
                4 => return Err("a publish failed".into()),
                // A chunk: subscription, magic and type, entries, records.
                8 => {
                    done += big_endian_u32(frame, 13).unwrap_or(0);
                    credit.extend_from_slice(&Builder::default().u16(9).u16(1).u8(1).u16(1).framed());
                }
                _ => (),
            }
            Ok(())
        })?;
        Ok(done)
    }

    fn aside(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.credit)
    }
}

const END: u8 = 0xce;

fn method(channel: u16, class: u16, method: u16, arguments: Builder) -> Vec<u8> {
    let body = Builder::default().u16(class).u16(method).bytes(&arguments.0);
    Builder::default().u8(1).u16(channel).u32(body.0.len() as u32).bytes(&body.0).u8(END).0
}

fn amqp_frame_length(bytes: &[u8]) -> Option<usize> {
    Some(big_endian_u32(bytes, 3)? + 8)
}

/// A quorum queue.
pub struct Quorum {
    request: Vec<u8>,
    frames: Frames,
    next_tag: u64,
    /// Tags without a confirm.
    open: VecDeque<u64>,
    batch: usize,
}

impl Quorum {
    pub fn open(mut stream: &TcpStream, order: &Order) -> Outcome<Self> {
        if order.work != Work::Push {
            return Err("a quorum queue is only pushed to here".into());
        }
        let mut call = |frame: Vec<u8>| -> Outcome<()> {
            stream.write_all(&frame)?;
            let answer = read_until(stream, |answer| amqp_frame_length(answer).is_some_and(|length| answer.len() >= length))?;
            // A close says what is wrong.
            let is_close = matches!(answer.get(7..11), Some([0, 10 | 20, 0, 50 | 40]));
            if is_close { Err(String::from_utf8_lossy(&answer).into()) } else { Ok(()) }
        };
        call(b"AMQP\0\0\x09\x01".to_vec())?;
        let login = b"\0guest\0guest";
        let start = Builder::default().u32(0).short("PLAIN").u32(login.len() as u32).bytes(login).short("en_US");
        call(method(0, 10, 11, start))?;
        let tune = method(0, 10, 31, Builder::default().u16(2047).u32(131_072).u16(0));
        call([tune, method(0, 10, 40, Builder::default().short("/").short("").u8(0))].concat())?;
        call(method(1, 20, 10, Builder::default().short("")))?;
        let table = Builder::default().short("x-queue-type").u8(b'S').u32(6).bytes(b"quorum");
        let declare = Builder::default().u16(0).short("bench-quorum").u8(0b10).u32(table.0.len() as u32).bytes(&table.0);
        call(method(1, 50, 10, declare))?;
        call(method(1, 85, 10, Builder::default().u8(0)))?;
        let payload = payload(order.size);
        let publish = method(1, 60, 40, Builder::default().u16(0).short("").short("bench-quorum").u8(0));
        // A header: class, weight, size, and the one property that makes a message persistent.
        let header = Builder::default().u16(60).u16(0).u64(payload.len() as u64).u16(0x1000).u8(2);
        let header = Builder::default().u8(2).u16(1).u32(header.0.len() as u32).bytes(&header.0).u8(END);
        let body = Builder::default().u8(3).u16(1).u32(payload.len() as u32).bytes(&payload).u8(END);
        let request = [publish, header.0, body.0].concat().repeat(order.batch);
        Ok(Self { request, frames: Frames::default(), next_tag: 1, open: VecDeque::new(), batch: order.batch })
    }
}

impl Peer for Quorum {
    fn request(&mut self) -> &[u8] {
        self.open.extend(self.next_tag..self.next_tag + self.batch as u64);
        self.next_tag += self.batch as u64;
        &self.request
    }

    fn take(&mut self, bytes: &[u8]) -> Outcome<usize> {
        let before = self.open.len();
        let open = &mut self.open;
        self.frames.take(bytes, amqp_frame_length, |frame| {
            match frame.get(7..11) {
                Some([0, 60, 0, 80]) => {
                    let tag = frame.get(11..19).and_then(|tag| tag.try_into().ok()).map_or(0, u64::from_be_bytes);
                    let is_multiple = frame.get(19).is_some_and(|bits| bits & 1 == 1);
                    open.retain(|other| if is_multiple { *other > tag } else { *other != tag });
                }
                Some([0, 60, 0, 120]) => return Err("a publish failed".into()),
                Some([0, 10 | 20, 0, 50 | 40]) => return Err(String::from_utf8_lossy(frame).into()),
                _ => (),
            }
            Ok(())
        })?;
        Ok(before - self.open.len())
    }
}
