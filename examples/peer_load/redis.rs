//! Redis streams: XADD, one command for each message, a batch of them in one write; XREADGROUP without acknowledgements.

use std::io::Write;
use std::net::TcpStream;

use super::{Finder, Order, Outcome, Peer, Work, group, payload, read_until};

const STREAM: &str = "bench";

pub struct Redis {
    work: Work,
    request: Vec<u8>,
    finder: Finder,
    lines: usize,
    is_first: bool,
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
            _ => {
                let group = group();
                let create = command(&[b"XGROUP", b"CREATE", STREAM.as_bytes(), group.as_bytes(), b"0"]);
                stream.write_all(&create)?;
                // Another connection may have made it.
                read_until(stream, |answer| answer.ends_with(b"\r\n"))?;
                let (count, consumer) = (order.batch.to_string(), format!("c{number}"));
                let words = ["XREADGROUP", "GROUP", &group, &consumer, "COUNT", &count, "NOACK", "STREAMS", STREAM, ">"];
                command(&words.map(str::as_bytes))
            }
        };
        Ok(Self { work: order.work, request, finder: Finder::default(), lines: 0, is_first: true })
    }
}

impl Peer for Redis {
    fn request(&mut self) -> &[u8] {
        self.is_first = true;
        &self.request
    }

    fn take(&mut self, bytes: &[u8]) -> Outcome<usize> {
        // Only the beginning of an answer says that it is an error; a piece of a payload may look the same.
        if std::mem::take(&mut self.is_first) && bytes.starts_with(b"-") {
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
            _ => Ok(self.finder.count(bytes, b"$1\r\nd\r\n")),
        }
    }
}
