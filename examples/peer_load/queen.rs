//! Queen's HTTP API: a batch of messages into a partition of the connection's own in one request, whose answer has an entry for each.

use super::{Finder, Order, Outcome, Peer, Work, payload};

pub struct Queen {
    request: Vec<u8>,
    answer: Vec<u8>,
    batch: usize,
}

impl Queen {
    pub fn open(order: &Order, address: &str, number: usize) -> Outcome<Self> {
        if order.work != Work::Push {
            return Err("Queen is only pushed to here".into());
        }
        // A payload is JSON there: an object that is as long as the others' bytes.
        let frame = r#"{"note":""}"#.len();
        let text: String = payload(order.size.saturating_sub(frame))
            .iter()
            .map(|byte| if *byte == b'"' { '\'' } else { char::from(*byte) })
            .collect();
        let item = format!(r#"{{"queue":"bench","partition":"{number}","payload":{{"note":"{text}"}}}}"#);
        let body = format!(r#"{{"items":[{}]}}"#, vec![item; order.batch].join(","));
        let request = format!(
            "POST /api/v1/push HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        Ok(Self { request: request.into_bytes(), answer: Vec::new(), batch: order.batch })
    }
}

impl Peer for Queen {
    fn request(&mut self) -> &[u8] {
        &self.request
    }

    fn take(&mut self, bytes: &[u8]) -> Outcome<usize> {
        self.answer.extend_from_slice(bytes);
        if length(&self.answer).is_none_or(|length| self.answer.len() < length) {
            return Ok(0);
        }
        let answer = std::mem::take(&mut self.answer);
        let queued = Finder::default().count(&answer, br#""status":"queued""#);
        if answer.starts_with(b"HTTP/1.1 201") && queued == self.batch {
            Ok(queued)
        } else {
            Err(String::from_utf8_lossy(&answer[..answer.len().min(2000)]).into())
        }
    }
}

/// Bytes of an answer with its header, once that is there.
fn length(answer: &[u8]) -> Option<usize> {
    const LENGTH: &str = "content-length: ";
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let header = std::str::from_utf8(&answer[..end]).ok()?.to_ascii_lowercase();
    let value = &header[header.find(LENGTH)? + LENGTH.len()..];
    Some(end + value.lines().next()?.trim().parse::<usize>().ok()?)
}
