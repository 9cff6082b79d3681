//! NATS JetStream: a message each with an answer each, a batch of them in one write; a pull consumer without acknowledgements.

use std::io::Write;
use std::net::TcpStream;

use super::{Finder, Frames, Order, Outcome, Peer, Work, group, payload, read_until};

pub struct Nats {
    work: Work,
    request: Vec<u8>,
    finder: Finder,
    errors: Finder,
    frames: Frames,
}

fn publish(subject: &str, reply: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("PUB {subject} {reply} {}\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(b"\r\n");
    bytes
}

impl Nats {
    pub fn open(mut stream: &TcpStream, order: &Order, number: usize) -> Outcome<Self> {
        let inbox = format!("_INBOX.{number}");
        read_until(stream, |answer| answer.ends_with(b"\r\n"))?;
        let connect =
            "CONNECT {\"verbose\":false,\"pedantic\":false,\"tls_required\":false,\"lang\":\"rust\",\"version\":\"1\"}\r\n";
        stream.write_all(format!("{connect}SUB {inbox} 1\r\nPING\r\n").as_bytes())?;
        read_until(stream, |answer| answer.ends_with(b"PONG\r\n"))?;
        let mut call = |subject: &str, body: &str| -> Outcome<()> {
            stream.write_all(&publish(subject, &inbox, body.as_bytes()))?;
            // Made by another connection before, with the same settings: then the answer is the same.
            let answer = read_until(stream, |answer| answer.ends_with(b"}\r\n"))?;
            let text = String::from_utf8_lossy(&answer);
            if text.contains("\"error\"") { Err(text.into()) } else { Ok(()) }
        };
        call(
            "$JS.API.STREAM.CREATE.BENCH",
            r#"{"name":"BENCH","subjects":["bench"],"storage":"file","retention":"limits","num_replicas":1,"discard":"old","max_consumers":-1,"max_msgs":-1,"max_bytes":-1,"max_age":0}"#,
        )?;
        let request = match order.work {
            Work::Push => publish("bench", &inbox, &payload(order.size)).repeat(order.batch),
            _ => {
                let group = group();
                call(
                    &format!("$JS.API.CONSUMER.DURABLE.CREATE.BENCH.{group}"),
                    &format!(
                        r#"{{"stream_name":"BENCH","config":{{"durable_name":"{group}","deliver_policy":"all","ack_policy":"none","replay_policy":"instant","max_waiting":512}}}}"#
                    ),
                )?;
                let next = format!("$JS.API.CONSUMER.MSG.NEXT.BENCH.{group}");
                publish(&next, &inbox, format!("{{\"batch\":{}}}", order.batch).as_bytes())
            }
        };
        Ok(Self { work: order.work, request, finder: Finder::default(), errors: Finder::default(), frames: Frames::default() })
    }
}

impl Peer for Nats {
    fn request(&mut self) -> &[u8] {
        &self.request
    }

    fn take(&mut self, bytes: &[u8]) -> Outcome<usize> {
        if self.work == Work::Push {
            if self.errors.count(bytes, b"\"error\"") > 0 {
                return Err(String::from_utf8_lossy(bytes).into());
            }
            return Ok(self.finder.count(bytes, b"\"seq\":"));
        }
        let mut messages = 0;
        self.frames.take(bytes, frame_length, |frame| {
            messages += usize::from(frame.starts_with(b"MSG"));
            Ok(())
        })?;
        Ok(messages)
    }
}

/// A line, and for a message the bytes that its last word counts.
fn frame_length(bytes: &[u8]) -> Option<usize> {
    let end = bytes.iter().take(512).position(|byte| *byte == b'\n')? + 1;
    let line = &bytes[..end];
    if !line.starts_with(b"MSG") && !line.starts_with(b"HMSG") {
        return Some(end);
    }
    let last = line.trim_ascii_end().rsplit(|byte| *byte == b' ').next()?;
    let size: usize = std::str::from_utf8(last).ok()?.parse().ok()?;
    Some(end + size + 2)
}
