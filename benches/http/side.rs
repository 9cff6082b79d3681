//! The two protocols, each spoken over a blocking connection with one request under way.

use std::io::{Read, Write};
use std::net::TcpStream;

use bytes::Bytes;
use fanlog::model::*;
use fanlog::protocol::{Call, Frame, FrameKind, Hello, LENGTH_BYTES, Pop, Wire, encode_call};
use fanlog::record::{Message, StoredBatch};
use memchr::memmem;

/// One of the protocols.
pub trait Side: Send + Sync {
    fn name(&self) -> &'static str;
    /// Whether its client unpacks batches that come as they are stored.
    fn unpacks(&self) -> bool {
        false
    }
    fn connect(&self) -> Box<dyn Link>;
    /// A push as it goes over the wire.
    fn push_request(&self, queue: &str, partition: &str, payloads: &[String]) -> Vec<u8>;
}

/// A connection.
pub trait Link: Send {
    /// Sends a push and waits for its answer, which must say that all is stored.
    fn push(&mut self, request: &[u8], messages: usize);
    /// Says what [`pop`](Self::pop) pops.
    fn prepare_pop(&mut self, queue: &str, group: &str, batch: usize);
    /// Pops, and acknowledges what came. How many messages came.
    fn pop(&mut self) -> usize;
}

/// The binary protocol.
pub struct Binary {
    address: String,
    unpacks: bool,
}

impl Binary {
    pub fn new(address: &str, unpacks: bool) -> Self {
        Self { address: address.to_owned(), unpacks }
    }
}

impl Side for Binary {
    fn name(&self) -> &'static str {
        if self.unpacks { "unpacked" } else { "binary" }
    }

    fn unpacks(&self) -> bool {
        self.unpacks
    }

    fn connect(&self) -> Box<dyn Link> {
        Box::new(BinaryLink { unpacks: self.unpacks, ..BinaryLink::connect(&self.address) })
    }

    fn push_request(&self, queue: &str, partition: &str, payloads: &[String]) -> Vec<u8> {
        let messages = payloads.iter().map(|payload| Message::new(payload.clone().into_bytes())).collect();
        let request = PushRequest {
            queue: queue.to_owned(),
            partition: partition.to_owned(),
            producer: None,
            items: PushItem::Messages(messages),
        };
        encode_call(&request, 1).into_bytes().to_vec()
    }
}

/// A connection of the binary protocol.
pub struct BinaryLink {
    stream: TcpStream,
    unpacks: bool,
    queue: String,
    group: String,
    pop: Vec<u8>,
}

impl BinaryLink {
    pub fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_nodelay(true).expect("a socket option");
        let mut link = Self { stream, unpacks: false, queue: String::new(), group: String::new(), pop: Vec::new() };
        link.call(&Hello::new("bench", ""));
        link
    }

    /// Sends a request and waits for its reply.
    pub fn call<C: Call>(&mut self, call: &C) -> C::Reply {
        self.exchange::<C>(&encode_call(call, 1).into_bytes())
    }

    fn exchange<C: Call>(&mut self, request: &[u8]) -> C::Reply {
        self.stream.write_all(request).expect("a request that leaves");
        let mut length = [0; LENGTH_BYTES];
        self.stream.read_exact(&mut length).expect("an answer");
        let mut rest = vec![0; Frame::check_length(length, 64 << 20).expect("a length")];
        self.stream.read_exact(&mut rest).expect("an answer");
        let frame = Frame::decode(&Bytes::from(rest)).expect("a frame");
        assert_eq!(frame.kind, FrameKind::Response { more: false }, "{:?}", frame.body);
        C::Reply::from_body(&frame.body).expect("a reply")
    }
}

impl Link for BinaryLink {
    fn push(&mut self, request: &[u8], messages: usize) {
        let reply = self.exchange::<PushRequest>(request);
        assert_eq!(reply.results.len(), messages);
    }

    fn prepare_pop(&mut self, queue: &str, group: &str, batch: usize) {
        let request = PopRequest { start: Some(Start::Beginning), ..PopRequest::any(queue, batch as u32).group(group) };
        self.pop = encode_call(&Pop { request, wait_ms: 0 }, 1).into_bytes().to_vec();
        (self.queue, self.group) = (queue.to_owned(), group.to_owned());
    }

    fn pop(&mut self) -> usize {
        let request = std::mem::take(&mut self.pop);
        let reply = self.exchange::<Pop>(&request);
        self.pop = request;
        let mut messages = 0;
        for claim in reply.claims {
            messages += (claim.range.last - claim.range.first + 1) as usize;
            if self.unpacks {
                let decoded = claim.batches.iter().map(|batch| match batch {
                    BatchSlice::Messages(messages) => messages.len(),
                    BatchSlice::Whole(bytes) => {
                        let batch = StoredBatch::parse(bytes.clone()).expect("a batch");
                        batch.messages().expect("messages").len()
                    }
                });
                assert_eq!(decoded.sum::<usize>() as u64, claim.range.last - claim.range.first + 1);
            }
            let item = AckItem {
                target: AckTarget::Offset(claim.range.last),
                verb: AckVerb::Completed,
                reason: String::new(),
                delay_ms: 0,
            };
            let reply = self.call(&AckRequest {
                queue: self.queue.clone(),
                partition_id: claim.partition_id,
                group: Some(self.group.clone()),
                lease_id: reply.lease_id.clone(),
                items: vec![item],
            });
            assert!(reply.outcomes.iter().all(|outcome| outcome.refused.is_none()), "{reply:?}");
        }
        messages
    }
}

/// The gateway.
pub struct Http {
    address: String,
}

impl Http {
    pub fn new(address: &str) -> Self {
        Self { address: address.to_owned() }
    }
}

impl Side for Http {
    fn name(&self) -> &'static str {
        "http"
    }

    fn connect(&self) -> Box<dyn Link> {
        let stream = TcpStream::connect(&self.address).expect("a connection");
        stream.set_nodelay(true).expect("a socket option");
        Box::new(HttpLink { stream, inbox: vec![0; 1 << 20], pop: Vec::new(), group: String::new() })
    }

    fn push_request(&self, queue: &str, partition: &str, payloads: &[String]) -> Vec<u8> {
        let items: Vec<String> = payloads
            .iter()
            .map(|payload| format!(r#"{{"queue":"{queue}","partition":"{partition}","payload":{payload}}}"#))
            .collect();
        post("/api/v1/push", &format!(r#"{{"items":[{}]}}"#, items.join(",")))
    }
}

fn post(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
        .into()
}

/// A connection that is kept.
struct HttpLink {
    stream: TcpStream,
    inbox: Vec<u8>,
    pop: Vec<u8>,
    group: String,
}

impl HttpLink {
    /// Sends a request and waits for its answer: the status and the body.
    fn exchange(&mut self, request: &[u8]) -> (u16, &[u8]) {
        self.stream.write_all(request).expect("a request that leaves");
        let mut end = 0;
        let head = loop {
            end += self.read(end);
            if let Some(head) = memmem::find(&self.inbox[..end], b"\r\n\r\n") {
                break head + 4;
            }
        };
        let text = std::str::from_utf8(&self.inbox[..head]).expect("a head");
        let status = text[9..12].parse().expect("a status");
        let length = text.find("content-length: ").map_or(0, |at| {
            let rest = &text[at + 16..];
            rest[..rest.find('\r').expect("the end of a line")].parse().expect("a length")
        });
        while end < head + length {
            end += self.read(end);
        }
        (status, &self.inbox[head..head + length])
    }

    fn read(&mut self, from: usize) -> usize {
        if from == self.inbox.len() {
            self.inbox.resize(from * 2, 0);
        }
        let read = self.stream.read(&mut self.inbox[from..]).expect("an answer");
        assert!(read > 0, "the server closed the connection");
        read
    }
}

impl Link for HttpLink {
    fn push(&mut self, request: &[u8], messages: usize) {
        let (status, body) = self.exchange(request);
        assert_eq!(status, 201, "{}", String::from_utf8_lossy(body));
        assert_eq!(memmem::find_iter(body, b"\"status\":\"queued\"").count(), messages);
    }

    fn prepare_pop(&mut self, queue: &str, group: &str, batch: usize) {
        let path = format!("/api/v1/pop/queue/{queue}?batch={batch}&consumerGroup={group}&subscriptionMode=all");
        self.pop = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes();
        self.group = group.to_owned();
    }

    fn pop(&mut self) -> usize {
        let request = std::mem::take(&mut self.pop);
        let group = self.group.clone();
        let (status, body) = self.exchange(&request);
        if status == 204 {
            self.pop = request;
            return 0;
        }
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(body));
        let messages = memmem::find_iter(body, b"\"deliveryAttempt\":").count();
        let last = memmem::rfind(body, b"\"transactionId\":\"").expect("a message");
        let (id, lease, partition) = (text(&body[last..]), field(body, "\"leaseId\":\""), field(body, "\"partitionId\":\""));
        let ack = format!(
            r#"{{"transactionId":"{id}","partitionId":"{partition}","leaseId":"{lease}","consumerGroup":"{group}","status":"completed"}}"#
        );
        let (status, body) = self.exchange(&post("/api/v1/ack", &ack));
        assert!(status == 200 && memmem::find(body, b"\"success\":true").is_some(), "{}", String::from_utf8_lossy(body));
        self.pop = request;
        messages
    }
}

/// The text of the first field that begins so.
fn field<'a>(body: &'a [u8], begin: &str) -> &'a str {
    text(&body[memmem::find(body, begin.as_bytes()).expect("a field")..])
}

/// The text of the field at the front.
fn text(field: &[u8]) -> &str {
    let (start, end) = (memmem::find(field, b":\"").expect("a value") + 2, memmem::find(field, b"\",").expect("an end"));
    std::str::from_utf8(&field[start..end]).expect("text")
}
