//! Redis streams: XADD, one command for each message, a batch of them in one write; XREADGROUP without acknowledgements.

use std::io::Write;
use std::net::TcpStream;

use super::{Finder, Order, Outcome, Peer, Work, payload, read_until};

const STREAM: &str = "bench";

pub struct Redis {
    work: Work,
    request: Vec<u8>,
    finder: Finder,
    lines: usize,
}

fn command(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", parts.len()).into_bytes();
    for part in parts {
        bytes.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        bytes.extend_from_slice(part);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

impl Redis {
    pub fn open(mut stream: &TcpStream, order: &Order, number: usize) -> Outcome<Self> {
        let request = match order.work {
            Work::Push => command(&[b"XADD", STREAM.as_bytes(), b"*", b"d", &payload(order.size)]).repeat(order.batch),
            Work::Pop => {
                let create = command(&[b"XGROUP", b"CREATE", STREAM.as_bytes(), b"readers", b"0"]);
                stream.write_all(&create)?;
                // Another connection may have made it.
                read_until(stream, |answer| answer.ends_with(b"\r\n"))?;
                let (count, consumer) = (order.batch.to_string(), format!("c{number}"));
                let words = ["XREADGROUP", "GROUP", "readers", &consumer, "COUNT", &count, "NOACK", "STREAMS", STREAM, ">"];
                command(&words.map(str::as_bytes))
            }
        };
        Ok(Self { work: order.work, request, finder: Finder::default(), lines: 0 })
    }
}

impl Peer for Redis {
    fn request(&mut self) -> &[u8] {
        &self.request
    }

    fn take(&mut self, bytes: &[u8]) -> Outcome<usize> {
        if bytes.starts_with(b"-") {
            return Err(String::from_utf8_lossy(bytes).into());
        }
        match self.work {
            Work::Push => {
                // An answer is the id in two lines.
                self.lines += bytes.iter().filter(|byte| **byte == b'\n').count();
                let whole = self.lines / 2;
                self.lines %= 2;
                Ok(whole)
            }
            // Each message has the field name once.
            Work::Pop => Ok(self.finder.count(bytes, b"$1\r\nd\r\n")),
        }
    }
}
