//! A server on a free port with a directory of its own, and a client that speaks raw bytes.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use fanlog::client::Client;
use fanlog::engine::{Engine, EngineOptions};
use fanlog::model::{AckItem, AckTarget, AckVerb, Now, PushItem, PushRequest};
use fanlog::protocol::{Call, ErrorReply, Frame, FrameKind, Hello, LENGTH_BYTES, Wire, encode_call};
use fanlog::record::Message;
use fanlog::server::{Server, ServerOptions};
use fanlog::storage::disk::sim::Random;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::program::{Launch, Program};

/// Longer than anything takes here; a test that waits so long has failed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A server, and what ends it.
pub struct Running {
    pub address: SocketAddr,
    kind: Kind,
    _directory: tempfile::TempDir,
}

enum Kind {
    /// The real binary.
    Process(Program),
    /// In this process, for what no setting of the binary reaches.
    Inside { engine: Engine, shutdown: CancellationToken, task: JoinHandle<()> },
}

impl Running {
    /// The real binary.
    pub fn start() -> Self {
        Self::start_with(|launch| launch)
    }

    /// The real binary with settings.
    pub fn start_with(change: impl FnOnce(Launch) -> Launch) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = change(Launch::in_directory(directory.path())).start();
        let address = program.address.parse().unwrap();
        Self { address, kind: Kind::Process(program), _directory: directory }
    }

    /// A server inside this process, with bounds and times that are no settings.
    pub async fn inside(change: impl FnOnce(&mut ServerOptions)) -> Self {
        Self::inside_with_engine(change).await.0
    }

    /// The same with its engine, for pushes of another time.
    pub async fn inside_with_engine(change: impl FnOnce(&mut ServerOptions)) -> (Self, Engine) {
        let directory = tempfile::tempdir().unwrap();
        let (engine, _) = Engine::open_path(directory.path(), EngineOptions::default(), Now::read()).unwrap();
        engine.start_threads(1).unwrap();
        let mut options = ServerOptions { listen: "127.0.0.1:0".parse().unwrap(), ..ServerOptions::default() };
        change(&mut options);
        let server = Server::bind(options, engine.clone()).await.unwrap();
        let (address, shutdown) = (server.local_addr(), CancellationToken::new());
        let task = tokio::spawn(server.serve(shutdown.clone()));
        let kind = Kind::Inside { engine: engine.clone(), shutdown, task };
        (Self { address, kind, _directory: directory }, engine)
    }

    pub async fn client(&self) -> Client {
        Client::builder(self.address.to_string()).name("test").connect().await.unwrap()
    }

    pub async fn raw(&self) -> Raw {
        let mut raw = self.stranger().await;
        raw.call(&Hello::new("raw", "")).await.unwrap();
        raw
    }

    /// A connection that has not said hello.
    pub async fn stranger(&self) -> Raw {
        self.stranger_on(TcpStream::connect(self.address).await.unwrap())
    }

    /// The same over a connection that is there.
    pub fn stranger_on(&self, stream: TcpStream) -> Raw {
        Raw { stream, next_id: 1 }
    }

    /// The process, of one that is.
    pub fn program(&self) -> &Program {
        match &self.kind {
            Kind::Process(program) => program,
            Kind::Inside { .. } => panic!("the server is inside"),
        }
    }

    /// Stops and waits until all connections are closed and the data directory too, which must end well.
    pub async fn stop(self) {
        match self.kind {
            Kind::Process(program) => tokio::task::spawn_blocking(|| program.stop()).await.unwrap(),
            Kind::Inside { engine, shutdown, task } => {
                shutdown.cancel();
                within(task).await.unwrap();
                tokio::task::spawn_blocking(move || engine.close(Now::read())).await.unwrap().unwrap();
            }
        }
    }
}

/// Fails when something takes too long.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it took too long")
}

/// Asks again and again until the answer is there.
pub async fn eventually<T>(mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            if let Some(answer) = attempt().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(asking).await
}

/// A connection without any client code but the encoding of frames.
pub struct Raw {
    pub stream: TcpStream,
    next_id: u32,
}

impl Raw {
    pub async fn write(&mut self, bytes: &[u8]) {
        within(self.stream.write_all(bytes)).await.unwrap();
    }

    /// Sends a request and does not wait; returns its correlation id.
    pub async fn send<C: Call>(&mut self, call: &C) -> u32 {
        let id = self.next_id;
        self.next_id += 1;
        self.write(&encode_call(call, id).into_bytes()).await;
        id
    }

    /// The next frame; `None` when the server has closed.
    pub async fn frame(&mut self) -> Option<Frame> {
        let mut length = [0; LENGTH_BYTES];
        within(self.stream.read_exact(&mut length)).await.ok()?;
        let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
        within(self.stream.read_exact(&mut bytes)).await.ok()?;
        Some(Frame::decode(&Bytes::from(bytes)).unwrap())
    }

    /// The next frame as the reply of this call.
    pub async fn reply<C: Call>(&mut self) -> (u32, Result<C::Reply, ErrorReply>) {
        let frame = self.frame().await.expect("a frame");
        (frame.correlation_id, decode::<C>(&frame))
    }

    pub async fn call<C: Call>(&mut self, call: &C) -> Result<C::Reply, ErrorReply> {
        let id = self.send(call).await;
        let (answered, reply) = self.reply::<C>().await;
        assert_eq!(answered, id);
        reply
    }

    /// The error that the next frame is, and that the connection is closed after it.
    pub async fn last_error(&mut self) -> ErrorReply {
        let frame = self.frame().await.expect("an error frame");
        assert_eq!(frame.kind, FrameKind::Error);
        assert!(self.is_closed().await, "the connection is closed after the error");
        ErrorReply::from_body(&frame.body).unwrap()
    }

    /// Whether the server has closed and sent nothing more.
    pub async fn is_closed(&mut self) -> bool {
        matches!(within(self.stream.read(&mut [0; 1])).await, Ok(0) | Err(_))
    }
}

pub fn decode<C: Call>(frame: &Frame) -> Result<C::Reply, ErrorReply> {
    match frame.kind {
        FrameKind::Error => Err(ErrorReply::from_body(&frame.body).unwrap()),
        _ => Ok(C::Reply::from_body(&frame.body).unwrap()),
    }
}

pub fn push_of(queue: &str, partition: &str, payloads: impl IntoIterator<Item = impl Into<Bytes>>) -> PushRequest {
    let messages = payloads.into_iter().map(|payload| Message::new(payload)).collect();
    PushRequest { queue: queue.into(), partition: partition.into(), items: PushItem::Messages(messages), producer: None }
}

pub fn completed(offset: u64) -> AckItem {
    AckItem { target: AckTarget::Offset(offset), verb: AckVerb::Completed, reason: String::new(), delay_ms: 0 }
}

/// Bytes that do not compress.
pub fn random_bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..count.div_ceil(8)).flat_map(|_| random.number().to_le_bytes()).take(count).collect()
}
