//! Load for other servers, as lean as `fanlog bench` makes it for ours: bytes made beforehand, one thread that waits for all
//! connections, one batch in flight on each.
//!
//! ```text
//! peer_load PROTOCOL push|pop|pop-decoded|fanout|ack ADDRESS SIZE BATCH CONNECTIONS COUNT
//! ```
//!
//! PROTOCOL is fanlog, redis, postgres, nats, rabbit-stream, rabbit-quorum or queen. A push ends when the server has acknowledged it.
//! A pop reads COUNT messages that were pushed before, BATCH in an answer; decoded, it opens what comes in stored batches. In a
//! fan-out each connection reads all of them for itself, COUNT over all connections. An acknowledgement is of one message of a
//! partition of the connection's own, whose messages it holds. Prints one JSON object.

mod fanlog;
mod nats;
// What `fanlog bench` pushes, without what proves it.
#[allow(dead_code)]
#[path = "../../src/cli/bench/payload.rs"]
mod payload;
mod postgres;
mod queen;
mod rabbit;
mod redis;

use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use serde_json::json;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A run in which nothing comes for so long has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is done over a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Push,
    Pop,
    PopDecoded,
    Fanout,
    Ack,
}

/// How a connection asks and understands.
trait Peer {
    /// What to send for the next batch; nothing if the server goes on by itself.
    fn request(&mut self) -> &[u8];
    /// How many messages these bytes acknowledge or deliver.
    fn take(&mut self, bytes: &[u8]) -> Outcome<usize>;
    /// What must be sent in between, such as credit.
    fn aside(&mut self) -> Vec<u8> {
        Vec::new()
    }
    /// Whether the answer is there in full, even if it had fewer messages than a batch.
    fn has_answered(&self) -> bool {
        false
    }
}

/// What is wanted of a server.
#[derive(Debug, Clone)]
struct Order {
    work: Work,
    size: usize,
    batch: usize,
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [protocol, work, address, numbers @ ..] = arguments.as_slice() else { return Err(usage()) };
    let numbers = numbers.iter().map(|text| text.parse::<usize>()).collect::<Result<Vec<_>, _>>()?;
    let &[size, batch, connections, count] = numbers.as_slice() else { return Err(usage()) };
    let work = match work.as_str() {
        "push" => Work::Push,
        "pop" => Work::Pop,
        "pop-decoded" => Work::PopDecoded,
        "fanout" => Work::Fanout,
        "ack" => Work::Ack,
        _ => return Err(usage()),
    };
    if work == Work::Ack && (batch != 1 || protocol != "fanlog") {
        return Err("acknowledgements are of one message each, and fanlog's".into());
    }
    let order = Order { work, size, batch };
    let mut peers: Vec<(TcpStream, Box<dyn Peer>)> = Vec::new();
    for number in 0..connections {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let peer: Box<dyn Peer> = match protocol.as_str() {
            "fanlog" => Box::new(fanlog::Fanlog::open(&stream, &order, number)?),
            "queen" => Box::new(queen::Queen::open(&order, address, number)?),
            "redis" => Box::new(redis::Redis::open(&stream, &order, number)?),
            "postgres" => Box::new(postgres::Postgres::open(&stream, &order)?),
            "nats" => Box::new(nats::Nats::open(&stream, &order, number)?),
            "rabbit-stream" => Box::new(rabbit::Stream::open(&stream, &order)?),
            "rabbit-quorum" => Box::new(rabbit::Quorum::open(&stream, &order)?),
            _ => return Err(usage()),
        };
        stream.set_nonblocking(true)?;
        peers.push((stream, peer));
    }
    let (messages, elapsed, latency) = drive(&mut peers, &order, count)?;
    let at = |quantile: f64| latency.value_at_quantile(quantile) as f64 / 1000.0;
    println!(
        "{}",
        json!({
            "messages": messages,
            "seconds": elapsed.as_secs_f64(),
            "messages_per_second": (messages as f64 / elapsed.as_secs_f64()).round(),
            "latency_us": { "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p999": at(0.999), "max": latency.max() as f64 / 1000.0 },
        })
    );
    Ok(())
}

fn usage() -> Box<dyn Error + Send + Sync> {
    "usage: peer_load fanlog|redis|postgres|nats|rabbit-stream|rabbit-quorum|queen push|pop|pop-decoded|fanout|ack ADDRESS SIZE BATCH \
     CONNECTIONS COUNT"
        .into()
}

/// A connection's place in its batch.
struct Turn {
    sent: Instant,
    left: usize,
    outbox: Vec<u8>,
}

/// Each connection asks, waits for its whole batch, and asks again, until `count` messages are done over all of them.
fn drive(peers: &mut [(TcpStream, Box<dyn Peer>)], order: &Order, count: usize) -> Outcome<(usize, Duration, Histogram<u64>)> {
    // Who reads goes on to the end: one connection may have to read what another one asked for in vain.
    let (batch, asked_max) = (order.batch, if matches!(order.work, Work::Push | Work::Ack) { count } else { usize::MAX });
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    for ((stream, _), index) in peers.iter().zip(0..) {
        epoll::add(&epoll, stream, EventData::new_u64(index), EventFlags::IN | EventFlags::OUT | EventFlags::ET)?;
    }
    let mut latency = Histogram::new_with_bounds(1, 600_000_000_000, 3)?;
    let start = Instant::now();
    let (mut asked, mut done) = (0, 0);
    let mut turns: Vec<Turn> = Vec::new();
    for (stream, peer) in peers.iter_mut() {
        let mut turn = Turn { sent: Instant::now(), left: 0, outbox: Vec::new() };
        if asked < asked_max {
            ask(stream, peer.as_mut(), &mut turn, batch)?;
            asked += batch;
        }
        turns.push(turn);
    }
    let mut buffer = vec![0; 1 << 20];
    let mut events = Vec::with_capacity(256);
    let mut end = start;
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    while done < count {
        events.clear();
        if epoll::wait(&epoll, spare_capacity(&mut events), Some(&patience))? == 0 {
            return Err(format!("nothing came for {} seconds, after {done} messages", PATIENCE.as_secs()).into());
        }
        for event in &events {
            let index = event.data.u64() as usize;
            let ((stream, peer), turn) = (&mut peers[index], &mut turns[index]);
            flush(stream, turn)?;
            loop {
                let read = match stream.read(&mut buffer) {
                    Ok(0) => return Err("the server closed the connection".into()),
                    Ok(read) => read,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                };
                let mut some = peer.take(&buffer[..read])?;
                done += some;
                let aside = peer.aside();
                if !aside.is_empty() {
                    turn.outbox.extend_from_slice(&aside);
                    flush(stream, turn)?;
                }
                while some > 0 {
                    let part = some.min(turn.left);
                    if part == 0 {
                        break;
                    }
                    some -= part;
                    turn.left -= part;
                    if turn.left == 0 {
                        latency.saturating_record(turn.sent.elapsed().as_nanos() as u64);
                        if asked < asked_max {
                            ask(stream, peer.as_mut(), turn, batch)?;
                            asked += batch;
                        }
                    }
                }
                if turn.left > 0 && peer.has_answered() {
                    ask(stream, peer.as_mut(), turn, batch)?;
                }
                end = Instant::now();
                if read < buffer.len() {
                    break;
                }
            }
        }
    }
    Ok((done, end - start, latency))
}

fn ask(stream: &TcpStream, peer: &mut dyn Peer, turn: &mut Turn, batch: usize) -> Outcome<()> {
    turn.sent = Instant::now();
    turn.left = batch;
    turn.outbox.extend_from_slice(peer.request());
    flush(stream, turn)
}

fn flush(mut stream: &TcpStream, turn: &mut Turn) -> Outcome<()> {
    let mut written = 0;
    while written < turn.outbox.len() {
        match stream.write(&turn.outbox[written..]) {
            Ok(some) => written += some,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error.into()),
        }
    }
    turn.outbox.drain(..written);
    Ok(())
}

/// Looks at the beginning of frames in a stream that comes in pieces, and passes over the rest of each.
#[derive(Debug)]
struct Skim {
    head_bytes: usize,
    head: Vec<u8>,
    /// Bytes of the frame that have come.
    come: usize,
}

/// Enough of a frame to know its length.
const LENGTH_BYTES: usize = 4;

impl Skim {
    fn new(head_bytes: usize) -> Self {
        Self { head_bytes, head: Vec::new(), come: 0 }
    }

    /// Hands over the first bytes of each frame once it is there in full.
    fn take(
        &mut self,
        mut bytes: &[u8],
        length_of: impl Fn(&[u8]) -> Option<usize>,
        mut each: impl FnMut(&[u8]) -> Outcome<()>,
    ) -> Outcome<()> {
        while !bytes.is_empty() {
            let length = length_of(&self.head);
            let wanted = length.map_or(LENGTH_BYTES, |length| length.min(self.head_bytes));
            let left = if self.head.len() < wanted { wanted - self.head.len() } else { length.ok_or("no frame")? - self.come };
            let (some, rest) = bytes.split_at(bytes.len().min(left));
            if self.head.len() < wanted {
                self.head.extend_from_slice(some);
            }
            self.come += some.len();
            bytes = rest;
            if length_of(&self.head) == Some(self.come) {
                each(&self.head)?;
                self.head.clear();
                self.come = 0;
            }
        }
        Ok(())
    }
}

/// A payload that looks like those of `fanlog bench`. No peer compresses by itself, so one is as good as many.
fn payload(size: usize) -> Vec<u8> {
    let text = br#"{"id":"0123456789abcdef","type":"order.paid","region":"eu-west","amount":129.95,"note":"please leave with the neighbour"} "#;
    text.iter().copied().cycle().take(size).collect()
}

/// The group of this run, so that it reads from the beginning.
fn group() -> String {
    format!("readers-{}", std::process::id())
}

/// Reads until the answer has come to an end that `is_whole` knows.
fn read_until(mut stream: &TcpStream, is_whole: impl Fn(&[u8]) -> bool) -> Outcome<Vec<u8>> {
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while !is_whole(&answer) {
        match stream.read(&mut buffer)? {
            0 => return Err("the server closed the connection".into()),
            read => answer.extend_from_slice(&buffer[..read]),
        }
    }
    Ok(answer)
}

/// Finds a token in a stream of bytes that comes in pieces.
#[derive(Debug, Default)]
struct Finder {
    carry: Vec<u8>,
}

impl Finder {
    fn count(&mut self, bytes: &[u8], token: &[u8]) -> usize {
        // The end of the last piece may hold the beginning of a token.
        self.carry.extend_from_slice(&bytes[..bytes.len().min(token.len() - 1)]);
        let mut found = occurrences(&self.carry, token);
        found += occurrences(bytes, token);
        let keep = token.len() - 1;
        if bytes.len() >= keep {
            self.carry.clear();
            self.carry.extend_from_slice(&bytes[bytes.len() - keep..]);
        } else if self.carry.len() > keep {
            self.carry.drain(..self.carry.len() - keep);
        }
        found
    }
}

fn occurrences(bytes: &[u8], token: &[u8]) -> usize {
    let Some(first) = token.first() else { return 0 };
    let mut found = 0;
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|byte| byte == first) {
        rest = &rest[at..];
        found += usize::from(rest.starts_with(token));
        rest = &rest[1..];
    }
    found
}

/// Frames with a length in front, cut out of a stream that comes in pieces.
#[derive(Debug, Default)]
struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    /// Hands over the whole frames; `length_of` says how long the one at the front is, once that can be known.
    fn take(
        &mut self,
        bytes: &[u8],
        length_of: impl Fn(&[u8]) -> Option<usize>,
        mut each: impl FnMut(&[u8]) -> Outcome<()>,
    ) -> Outcome<()> {
        self.bytes.extend_from_slice(bytes);
        let mut start = 0;
        while let Some(length) = length_of(&self.bytes[start..]) {
            let Some(frame) = self.bytes.get(start..start + length) else { break };
            each(frame)?;
            start += length;
        }
        self.bytes.drain(..start);
        Ok(())
    }
}

fn big_endian_u32(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize)
}

fn little_endian_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn little_endian_u64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
