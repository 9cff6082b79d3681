//! Peers that lie, flood and stall: each harms its own connection, memory stays bounded, and others are served meanwhile.

use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fanlog::model::{Compression, ErrorCode, FetchRequest, PackedBatch, PushItem, PushRequest};
use fanlog::protocol::{
    Call, ErrorReply, FRAME_BYTES_MAX, Fetch, Frame, FrameKind, Hello, LENGTH_BYTES, Operation, Ping, Wire, encode_call,
};
use fanlog::record::{BatchBuilder, Message};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::program::{Launch, PATIENCE, Program};
use crate::random::{Random, random_from_environment};

/// A connection without any client code but the encoding of frames.
pub struct Peer {
    stream: TcpStream,
}

impl Peer {
    pub async fn connect(address: &str) -> Self {
        Self { stream: TcpStream::connect(address).await.unwrap() }
    }

    pub async fn greeted(address: &str) -> Self {
        let mut peer = Self::connect(address).await;
        peer.send(&Hello::new("hostile", ""), 0).await;
        Self::decode::<Hello>(&peer.frame().await.expect("a reply")).unwrap();
        peer
    }

    pub async fn send<C: Call>(&mut self, call: &C, id: u32) {
        self.write(&encode_call(call, id).into_bytes()).await.unwrap();
    }

    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        tokio::time::timeout(PATIENCE, self.stream.write_all(bytes)).await.expect("the server takes bytes")
    }

    /// The next frame; none when the server has closed.
    pub async fn frame(&mut self) -> Option<Frame> {
        let read = async {
            let mut length = [0; LENGTH_BYTES];
            self.stream.read_exact(&mut length).await.ok()?;
            let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
            self.stream.read_exact(&mut bytes).await.ok()?;
            Some(Frame::decode(&Bytes::from(bytes)).unwrap())
        };
        tokio::time::timeout(PATIENCE, read).await.expect("a frame or the end")
    }

    pub fn decode<C: Call>(frame: &Frame) -> Result<C::Reply, ErrorReply> {
        match frame.kind {
            FrameKind::Error => Err(ErrorReply::from_body(&frame.body).unwrap()),
            _ => Ok(C::Reply::from_body(&frame.body).unwrap()),
        }
    }
}

pub fn push_of(queue: &str, partition: &str, payloads: Vec<Vec<u8>>) -> PushRequest {
    let items = PushItem::Messages(payloads.into_iter().map(Message::new).collect());
    PushRequest { queue: queue.into(), partition: partition.into(), items, producer: None }
}

pub fn fetch_of(queue: &str, partition: &str) -> FetchRequest {
    let (queue, partition) = (queue.into(), partition.into());
    FetchRequest { queue, partition, from: 0, to: None, messages_max: 1_000, bytes_max: 4 << 20 }
}

/// A well-behaved client that works while others attack, and the server's memory as it goes.
struct Watch {
    stopping: CancellationToken,
    bystander: JoinHandle<Duration>,
    memory: JoinHandle<u64>,
    memory_before: u64,
}

impl Watch {
    async fn start(program: &Program) -> Self {
        let stopping = CancellationToken::new();
        let (client, token) = (program.client().await, stopping.clone());
        client.push(&push_of("bystander", "p", vec![b"warm".to_vec()])).await.unwrap();
        let memory_before = program.anonymous_bytes();
        let bystander = tokio::spawn(async move {
            let mut slowest = Duration::ZERO;
            while !token.is_cancelled() {
                let started = Instant::now();
                client.push(&push_of("bystander", "p", vec![b"m".to_vec()])).await.unwrap();
                slowest = slowest.max(started.elapsed());
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            slowest
        });
        let (token, pid) = (stopping.clone(), program.pid());
        let memory = tokio::spawn(async move {
            let mut highest = 0;
            while !token.is_cancelled() {
                highest = highest.max(crate::program::anonymous_bytes_of(pid));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            highest
        });
        Self { stopping, bystander, memory, memory_before }
    }

    /// Ends the attack: the bystander was served all the time, and memory grew by no more than this.
    async fn end(self, what: &str, growth_max: u64) {
        self.stopping.cancel();
        let slowest = self.bystander.await.unwrap();
        let growth = self.memory.await.unwrap().saturating_sub(self.memory_before);
        println!("{what}: slowest push of a bystander {slowest:?}, memory +{} KiB", growth >> 10);
        assert!(slowest < Duration::from_secs(10), "{what}: a bystander waited {slowest:?}");
        assert!(growth < growth_max, "{what}: memory grew by {growth} bytes");
    }
}

const MIB: u64 = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lengths_that_are_claimed_and_never_sent_cost_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut program = Launch::in_directory(directory.path()).start();
    let watch = Watch::start(&program).await;
    let max = FRAME_BYTES_MAX as u32;
    let mut waiting = Vec::new();
    for _ in 0..50 {
        for length in [0, 1, 7, max, max + 1, i32::MAX as u32, u32::MAX] {
            let mut peer = Peer::greeted(&program.address).await;
            peer.write(&[&length.to_le_bytes()[..], &[0; 64]].concat()).await.unwrap();
            if length == max {
                waiting.push(peer);
                continue;
            }
            let frame = peer.frame().await.expect("an error");
            assert!(Peer::decode::<Ping>(&frame).is_err(), "length {length}");
            assert!(peer.frame().await.is_none(), "closed after length {length}");
        }
    }
    watch.end("lengths", 64 * MIB).await;
    assert!(program.is_running());
    drop(waiting);
    program.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_and_floods_of_connections_hurt_nobody_else() {
    let directory = tempfile::tempdir().unwrap();
    let mut program = Launch::in_directory(directory.path()).start();
    let watch = Watch::start(&program).await;
    let (_, mut random) = random_from_environment();
    for round in 0..60 {
        let mut peer = if round % 2 == 0 { Peer::connect(&program.address).await } else { Peer::greeted(&program.address).await };
        // Half of it looks like frames.
        let mut garbage: Vec<u8> = (0..8 << 10).flat_map(|_| random.number().to_le_bytes()).collect();
        if round % 4 == 1 {
            let operation = Operation::ALL[random.below(Operation::ALL.len() as u64) as usize].number();
            let body = garbage[..1 + random.below(200) as usize].to_vec();
            let put = |out: &mut fanlog::protocol::Chunks| out.put_shared(&Bytes::from(body));
            garbage = Frame::encode(operation, FrameKind::Request, 1, put).into_bytes().to_vec().repeat(50);
        }
        // It may be closed in the middle.
        let _ = peer.write(&garbage).await;
    }
    let mut crowd = Vec::new();
    for _ in 0..1_500 {
        crowd.push(TcpStream::connect(&program.address).await.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    watch.end("garbage and a flood", 96 * MIB).await;
    assert!(program.is_running());
    drop(crowd);
    let started = Instant::now();
    while program.builder().connect().await.is_err() {
        assert!(started.elapsed() < PATIENCE, "nobody gets in after the flood");
    }
    program.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_read_keep_only_themselves_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let mut program = Launch::in_directory(directory.path()).start();
    let client = program.client().await;
    let mut random = Random::new(1);
    for _ in 0..16 {
        let payload: Vec<u8> = (0..128 << 10).flat_map(|_| random.number().to_le_bytes()).collect();
        client.push(&push_of("q", "p", vec![payload])).await.unwrap();
    }
    let watch = Watch::start(&program).await;
    let mut deaf = Vec::new();
    for _ in 0..20 {
        let mut peer = Peer::greeted(&program.address).await;
        let request = encode_call(&Fetch { request: fetch_of("q", "p"), wait_ms: 0 }, 1).into_bytes();
        // Until it is not read any more, which is what should happen.
        let _ = tokio::time::timeout(Duration::from_millis(200), peer.stream.write_all(&request.repeat(2_000))).await;
        deaf.push(peer);
    }
    watch.end("clients that never read", 256 * MIB).await;
    assert!(program.is_running());
    drop(deaf);
    program.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_that_blow_up_or_lie_are_refused_and_memory_stays() {
    let directory = tempfile::tempdir().unwrap();
    let mut program = Launch::in_directory(directory.path()).start();
    let watch = Watch::start(&program).await;
    let honest = |bytes: usize| {
        let mut builder = BatchBuilder::new();
        builder.push(&Message::new(vec![0; bytes]));
        builder.finish(Compression::Zstd { level: 1 })
    };
    let bomb = honest(12 << 20);
    assert!(bomb.payload.len() < 64 << 10, "{} bytes", bomb.payload.len());
    type Lie = fn(&mut PackedBatch);
    let lies: [(&str, Lie); 9] = [
        ("says it is smaller", |batch| batch.uncompressed_length = 1_000),
        ("says it is larger", |batch| batch.uncompressed_length += 1),
        ("says it is empty", |batch| batch.uncompressed_length = 0),
        ("says it is huge", |batch| batch.uncompressed_length = u32::MAX),
        ("has more messages than index", |batch| batch.count = u32::MAX),
        ("has no messages", |batch| batch.count = 0),
        ("has an index that is too long", |batch| batch.index_length = u32::MAX),
        ("has a wrong checksum", |batch| batch.payload_crc ^= 1),
        ("has an unknown codec", |batch| batch.codec = 9),
    ];
    let packed = |batch: PackedBatch| PushRequest {
        queue: "bombs".into(),
        partition: "p".into(),
        items: PushItem::Packed(batch),
        producer: None,
    };
    let mut peer = Peer::greeted(&program.address).await;
    for (what, lie) in lies {
        let mut batch = bomb.clone();
        lie(&mut batch);
        peer.send(&packed(batch), 1).await;
        let error = Peer::decode::<PushRequest>(&peer.frame().await.expect(what)).expect_err(what);
        assert!(
            matches!(error.code(), Some(ErrorCode::BadBatch | ErrorCode::TooLarge | ErrorCode::BadRequest)),
            "{what}: {error:?}"
        );
    }
    // Many at once: what is honest is stored, what is over the limit is refused.
    let too_large = honest(33 << 20);
    let mut peers = Vec::new();
    for number in 0..10 {
        let batch = if number % 2 == 0 { bomb.clone() } else { too_large.clone() };
        let mut peer = Peer::greeted(&program.address).await;
        peer.write(&encode_call(&packed(batch), 1).into_bytes().repeat(20)).await.unwrap();
        peers.push(peer);
    }
    for (number, peer) in peers.iter_mut().enumerate() {
        for _ in 0..20 {
            let reply = Peer::decode::<PushRequest>(&peer.frame().await.expect("a reply"));
            assert_eq!(reply.is_ok(), number % 2 == 0, "{reply:?}");
        }
    }
    watch.end("bombs", 256 * MIB).await;
    assert!(program.is_running());
    program.stop();
}
