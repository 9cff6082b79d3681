//! A server that does what the test says.

use std::time::Duration;

use bytes::Bytes;
use tokio::io::{DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::mpsc;

use crate::model::{BatchSlice, Claim, Compression, Error as ModelError, ErrorCode, OffsetRange, PopReply};
use crate::net::{FrameReader, FrameWriter, ReadPace};
use crate::protocol::*;
use crate::record::{BatchBuilder, BatchHeader, Message, RecordHeader, RecordKind};

use super::super::link::Dial;
use super::super::{Client, Error};

/// Where the client's connections arrive.
pub struct Server {
    incoming: mpsc::UnboundedReceiver<DuplexStream>,
    pub dial: Dial,
    pub start_number: u64,
}

/// One connection, its hello done.
pub struct Peer {
    pub hello: Hello,
    reader: FrameReader<ReadHalf<DuplexStream>>,
    writer: FrameWriter<WriteHalf<DuplexStream>>,
}

impl Server {
    pub fn new() -> Self {
        let (sender, incoming) = mpsc::unbounded_channel();
        Self { incoming, dial: Dial::Memory(sender), start_number: 1 }
    }

    /// A client and its first connection.
    pub async fn connected() -> (Self, Peer, Client) {
        let mut server = Self::new();
        let client = tokio::spawn(Client::builder("peer").name("test").token("secret").connect_by(server.dial.clone()));
        let peer = server.accept().await;
        (server, peer, client.await.unwrap().unwrap())
    }

    /// The next connection.
    pub async fn accept(&mut self) -> Peer {
        let mut peer = self.accept_without_hello().await;
        let limits = Limits { frame_bytes: 1 << 20, message_bytes: 1 << 16, in_flight: 100 };
        let reply = HelloReply {
            version: 1,
            server_name: "peer".to_owned(),
            capabilities: 0,
            limits,
            node_id: 0,
            start_number: self.start_number,
            epoch: 0,
        };
        peer.reply(1, Response::Hello(reply)).await;
        peer
    }

    /// The next connection, its hello not answered.
    pub async fn accept_without_hello(&mut self) -> Peer {
        let (read, write) = tokio::io::split(self.incoming.recv().await.unwrap());
        let mut reader = FrameReader::new(read, ReadPace::default());
        let frame = reader.read().await.unwrap().unwrap();
        let Request::Hello(hello) = Request::decode(frame.operation, &frame.body).unwrap() else { panic!("no hello") };
        reader.set_frame_bytes_max(FRAME_BYTES_MAX);
        Peer { hello, reader, writer: FrameWriter::new(write, Duration::from_secs(60)) }
    }

    /// Refuses the next connection.
    pub async fn refuse(&mut self, code: ErrorCode) {
        self.accept_without_hello().await.refuse(1, code).await;
    }
}

impl Peer {
    /// The next request; pings are answered on the way.
    pub async fn request(&mut self) -> (u32, Request) {
        loop {
            let frame = self.reader.read().await.unwrap().expect("client closed the connection");
            assert_eq!(frame.kind, FrameKind::Request);
            match Request::decode(frame.operation, &frame.body).unwrap() {
                Request::Ping(ping) => {
                    self.reply(frame.correlation_id, Response::Ping(Pong { nonce: ping.nonce, time_us: 0 })).await;
                }
                request => return (frame.correlation_id, request),
            }
        }
    }

    /// The next request that is neither a credit nor an extension, which come when they like.
    pub async fn essential_request(&mut self) -> (u32, Request) {
        loop {
            match self.request().await {
                (_, Request::Credit(_) | Request::Extend(_)) => (),
                request => return request,
            }
        }
    }

    /// Whether the client ended the connection.
    pub async fn is_closed(&mut self) -> bool {
        matches!(self.reader.read().await, Ok(None))
    }

    pub async fn reply(&mut self, id: u32, response: Response) {
        self.writer.send(response.encode(id, false)).await.unwrap();
    }

    pub async fn reply_more(&mut self, id: u32, response: Response) {
        self.writer.send(response.encode(id, true)).await.unwrap();
    }

    pub async fn refuse(&mut self, id: u32, code: ErrorCode) {
        let error = ErrorReply::from(ModelError::new(code, format!("{code:?}")));
        self.writer.send(encode_error(0, id, &error)).await.unwrap();
    }
}

/// The messages of a claim, as a whole stored batch from `first` on.
pub fn record(first: u64, payloads: &[&str]) -> Bytes {
    let mut builder = BatchBuilder::new();
    payloads.iter().for_each(|payload| builder.push(&Message::new(payload.to_string())));
    let packed = builder.finish(Compression::Zstd { level: 1 });
    let batch = BatchHeader {
        partition: 5,
        count: packed.count,
        base_offset: first,
        annex_length: 0,
        index_length: packed.index_length,
        uncompressed_length: packed.uncompressed_length,
        codec: packed.codec,
        has_ids: false,
    };
    let mut header = RecordHeader {
        kind: RecordKind::Batch,
        flags: 0,
        length: 0,
        body_crc: packed.payload_crc,
        epoch: 1,
        incarnation: 1,
        lsn: 0,
        durable_lsn: 0,
        created_at_us: 7,
        previous_crc: 0,
    };
    header.length = (header.encode_batch(&batch).0.len() + packed.payload.len()) as u32;
    Bytes::from([&header.encode_batch(&batch).0[..], &packed.payload].concat())
}

/// A claim of messages from `first` on, whose payloads are given.
pub fn claim(partition_id: u32, first: u64, payloads: &[&str]) -> Claim {
    Claim {
        queue: "orders".to_owned(),
        partition: format!("p{partition_id}"),
        partition_id,
        incarnation: 1,
        range: OffsetRange { first, last: first + payloads.len() as u64 - 1 },
        delivery_count: 1,
        last_error: String::new(),
        lost: None,
        batches: vec![BatchSlice::Whole(record(first, payloads))],
    }
}

pub fn delivery(lease_id: &str, claims: Vec<Claim>) -> Response {
    Response::Delivery(Delivery(PopReply { lease_id: lease_id.to_owned(), lease_expires_at_us: 0, claims }))
}

pub fn kind_of<T: std::fmt::Debug>(result: Result<T, Error>) -> super::super::ErrorKind {
    result.unwrap_err().kind()
}
