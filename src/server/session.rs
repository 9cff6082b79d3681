//! One connection: hello, requests, replies, end.
//!
//! A single task reads and writes. Requests are started in the order in which they came; what takes long goes on beside it and
//! is answered when it is done. Invariants: a request holds room in the budgets until it is answered, but for one that waits; every
//! wait belongs to the session's task set and ends with it, while what is being committed is answered; a lease whose reply the client
//! did not read goes back, as far as can be known.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, split};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::access::Grant;
use crate::model::{Error, ErrorCode};
use crate::net::{FrameReader, FrameWriter, NetError};
use crate::protocol::{Chunks, ErrorReply, Frame, FrameKind, HelloReply, Limits, Request, Response, encode_error};
use crate::tls::Refused;

use super::Shared;
use super::accept::Permit;
use super::budget::{ConnectionBudget, LARGE_FRAME_BYTES, Room};
use super::handler::Handler;
use super::lease::UnheardLease;
use super::outbox::{Outbox, ReplyWriter};
use super::shared_writer::SharedWriter;
use super::waiting::stopping_error;

/// Advice to a client that is told to come back later.
const BUSY_RETRY_MS: u32 = 100;
/// Time for a client to read the last frames before the connection goes.
const LINGER: Duration = Duration::from_millis(250);

/// Time to take what is left, for a client whose token is over.
const DISOWNED_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves a connection to its end.
pub(super) async fn serve_connection(shared: Arc<Shared>, stream: TcpStream, mut permit: Permit) {
    let Some(tls) = shared.options.tls.clone() else {
        let (mut read_half, write_half) = stream.into_split();
        let write_half = SharedWriter::new(write_half);
        let socket = Some(write_half.clone());
        let farewell = serve_stream(&shared, &mut read_half, write_half, socket, &mut permit).await;
        let is_reset_now = linger(&mut read_half).await;
        return farewell.settle(is_reset_now, read_half.as_ref()).await;
    };
    let accepted = tokio::select! {
        () = shared.stopping.cancelled() => return,
        accepted = tls.accept(stream, shared.options.handshake_timeout) => accepted,
    };
    let mut stream = match accepted {
        Ok(stream) => stream,
        Err(refused) => return refuse_handshake(refused, &permit).await,
    };
    let (read_half, write_half) = split(&mut stream);
    let farewell = serve_stream(&shared, read_half, write_half, None, &mut permit).await;
    let is_reset_now = linger(&mut stream).await;
    farewell.settle(is_reset_now, stream.get_ref().0).await;
}

/// Tells who speaks our protocol, but plain, that TLS is spoken here.
async fn refuse_handshake(refused: Refused, permit: &Permit) {
    tracing::debug!(address = %permit.address(), error = %refused, "a connection is refused");
    if let Refused::Plain(mut stream) = refused {
        let text = "this port speaks TLS: connect to fanlog+tls://";
        let frame = error_frame(0, 0, Error::new(ErrorCode::BadRequest, text)).into_bytes();
        let told = async {
            stream.write_all(&frame).await?;
            stream.shutdown().await
        };
        if matches!(timeout(LINGER, told).await, Ok(Ok(()))) {
            linger(&mut stream).await;
        }
    }
}

/// What is left when a session is over.
#[derive(Default)]
struct Farewell {
    /// Leases whose replies left after the client was last heard.
    unread: Vec<UnheardLease>,
    /// The client's system has said that it did not read all that it was sent.
    is_reset: bool,
}

impl Farewell {
    /// Leases stay with a client that has read all it was sent, as far as its system says.
    async fn settle(self, is_reset_now: bool, stream: &TcpStream) {
        if self.unread.is_empty() || self.is_reset || is_reset_now || is_reset(stream).await {
            return;
        }
        self.unread.into_iter().for_each(UnheardLease::keep);
    }
}

/// Whether the client went away without reading all that it was sent: its system answers with a reset then, and with a plain
/// close otherwise. The reset may come a little after the close.
async fn is_reset(stream: &TcpStream) -> bool {
    timeout(LINGER, stream.ready(Interest::ERROR)).await.is_ok() || matches!(stream.take_error(), Ok(Some(_)) | Err(_))
}

async fn serve_stream(
    shared: &Arc<Shared>,
    read_half: impl AsyncRead + Unpin,
    write_half: impl AsyncWrite + Unpin,
    socket: Option<SharedWriter>,
    permit: &mut Permit,
) -> Farewell {
    let mut reader = FrameReader::new(read_half, shared.options.read_pace);
    let mut writer = FrameWriter::new(write_half, shared.options.write_stall);
    let shaken = tokio::select! {
        () = shared.stopping.cancelled() => return Farewell::default(),
        shaken = timeout(shared.options.handshake_timeout, shake_hands(shared, permit.address(), &mut reader, &mut writer)) => shaken,
    };
    let grant = match shaken {
        Ok(Ok(grant)) => grant,
        Ok(Err(error)) => {
            tracing::debug!(%error, "a connection ended before its hello");
            return Farewell::default();
        }
        Err(_) => {
            let error = Error::new(ErrorCode::Timeout, "no hello came in time");
            writer.queue(error_frame(0, 0, error));
            let _ = timeout(LINGER, writer.flush()).await;
            return Farewell::default();
        }
    };
    permit.end_handshake();
    reader.set_frame_bytes_max(shared.options.frame_bytes_max);
    Session::new(shared, grant, socket).run(reader, writer).await
}

/// Reads until the client closes too, for a moment: bytes that nobody read would make the operating system take back what was
/// sent last. Returns whether the client's system sent a reset.
async fn linger(stream: &mut (impl AsyncRead + Unpin)) -> bool {
    let read_rest = async {
        let mut rest = [0; 4096];
        loop {
            match stream.read(&mut rest).await {
                Ok(0) => return false,
                Ok(_) => (),
                Err(_) => return true,
            }
        }
    };
    timeout(LINGER, read_rest).await.unwrap_or(false)
}

fn is_reset_error(error: &NetError) -> bool {
    matches!(error, NetError::Io(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe))
}

/// An error as a frame, with advice when to come back.
pub(super) fn error_frame(operation: u16, correlation_id: u32, error: Error) -> Chunks {
    let retry_after_ms = if error.code == ErrorCode::Busy { BUSY_RETRY_MS } else { 0 };
    encode_error(operation, correlation_id, &ErrorReply { retry_after_ms, ..error.into() })
}

/// Answers the first frame, which must be a hello that fits. The error has been told to the client.
async fn shake_hands(
    shared: &Shared,
    address: IpAddr,
    reader: &mut FrameReader<impl AsyncRead + Unpin>,
    writer: &mut FrameWriter<impl AsyncWrite + Unpin>,
) -> Result<Grant, String> {
    let (frame, reply) = match reader.read().await {
        Ok(None) => return Err("closed".to_owned()),
        Ok(Some(frame)) => {
            let reply = answer_hello(shared, address, &frame);
            (Some(frame), reply)
        }
        Err(NetError::Protocol(error)) => (None, Err(error.into())),
        Err(error) => return Err(error.to_string()),
    };
    let (operation, correlation_id) = frame.map_or((0, 0), |frame| (frame.operation, frame.correlation_id));
    let (chunks, result) = match reply {
        Ok((reply, grant)) => (Response::Hello(reply).encode(correlation_id, false), Ok(grant)),
        Err(error) => {
            let text = error.to_string();
            (error_frame(operation, correlation_id, error), Err(text))
        }
    };
    writer.send(chunks).await.map_err(|error| error.to_string())?;
    result
}

fn answer_hello(shared: &Shared, address: IpAddr, frame: &Frame) -> Result<(HelloReply, Grant), Error> {
    let hello = match Request::decode(frame.operation, &frame.body)? {
        Request::Hello(hello) if frame.kind == FrameKind::Request => hello,
        _ => return Err(Error::new(ErrorCode::BadRequest, "the first request must be a hello")),
    };
    let version = hello.negotiate()?;
    let grant = shared.options.access.authenticate(&hello.token, address)?;
    if shared.stopping.is_cancelled() {
        return Err(stopping_error());
    }
    let options = &shared.options;
    let reply = HelloReply {
        version,
        server_name: concat!("fanlog ", env!("CARGO_PKG_VERSION")).to_owned(),
        capabilities: 0,
        limits: Limits {
            frame_bytes: u32::try_from(options.frame_bytes_max).unwrap_or(u32::MAX),
            message_bytes: u32::try_from(options.message_bytes_max).unwrap_or(u32::MAX),
            in_flight: ConnectionBudget::requests_max(options),
        },
        node_id: 0,
        start_number: shared.start_number,
        epoch: 0,
    };
    Ok((reply, grant))
}

/// Why a session stopped reading.
enum End {
    /// The client said all it had to say.
    Closed,
    /// The client's bytes cannot be understood further; it has been told.
    Refused,
    /// The client may do nothing any more.
    Disowned(Error),
    /// The connection is of no use any more.
    Lost(NetError),
    /// The server stops, and everything that was asked is answered.
    Drained,
}

struct Session {
    shared: Arc<Shared>,
    outbox: Arc<Outbox>,
    budget: Arc<ConnectionBudget>,
    stopping: CancellationToken,
    tasks: JoinSet<()>,
    handler: Handler,
    grant: Grant,
}

impl Session {
    fn new(shared: &Arc<Shared>, grant: Grant, socket: Option<SharedWriter>) -> Self {
        let outbox = Arc::new(Outbox::new(shared.options.connection_out_bytes_max, shared.outgoing.clone(), socket));
        Self {
            handler: Handler::new(shared, &outbox, grant.principal().clone()),
            grant,
            budget: Arc::new(ConnectionBudget::new(&shared.options)),
            stopping: shared.stopping.child_token(),
            tasks: JoinSet::new(),
            shared: shared.clone(),
            outbox,
        }
    }

    async fn run(
        mut self,
        mut reader: FrameReader<impl AsyncRead + Unpin>,
        writer: FrameWriter<impl AsyncWrite + Unpin>,
    ) -> Farewell {
        let mut writer = ReplyWriter::new(self.outbox.clone(), writer);
        let outbox = self.outbox.clone();
        // Requests first: their replies then leave together.
        let end = tokio::select! {
            biased;
            end = self.read(&mut reader) => end,
            error = writer.run() => End::Lost(error),
        };
        let ended = match end {
            End::Lost(error) => Err(error),
            End::Closed => {
                // Whoever waits for a message has gone; pushes and acknowledgements are answered even so.
                self.tasks.shutdown().await;
                outbox.drop_leased();
                self.finish(writer).await
            }
            End::Disowned(error) => {
                tracing::debug!(%error, "a connection is ended");
                // What it asked for while it might is not done for it any more, however slowly it takes what is written.
                self.tasks.shutdown().await;
                outbox.drop_leased();
                outbox.push_from_own_task(error_frame(0, 0, error));
                let stalled = || NetError::WriteStalled { elapsed: DISOWNED_TIMEOUT };
                timeout(DISOWNED_TIMEOUT, self.finish(writer)).await.unwrap_or_else(|_| Err(stalled()))
            }
            End::Refused | End::Drained => self.finish(writer).await,
        };
        self.tasks.shutdown().await;
        outbox.close();
        if let Err(error) = &ended {
            tracing::debug!(%error, "a connection was lost");
        }
        Farewell { unread: outbox.take_unread(), is_reset: ended.is_err_and(|error| is_reset_error(&error)) }
    }

    /// Waits for what is in flight and writes it.
    async fn finish(&mut self, mut writer: ReplyWriter<impl AsyncWrite + Unpin>) -> Result<(), NetError> {
        tokio::select! {
            biased;
            () = self.budget.idle() => (),
            error = writer.run() => return Err(error),
        }
        writer.close().await
    }

    /// Takes requests until there is a reason not to.
    async fn read(&mut self, reader: &mut FrameReader<impl AsyncRead + Unpin>) -> End {
        let stopping = self.stopping.clone();
        let mut stopped = pin!(stopping.cancelled());
        let grant = self.grant.clone();
        let mut ended = pin!(grant.ended());
        loop {
            let next = tokio::select! {
                biased;
                () = &mut stopped => return self.drain(reader).await,
                error = &mut ended => return End::Disowned(error),
                next = next(&self.shared, &self.outbox, &self.budget, reader) => next,
            };
            let (frame, room) = match next {
                Ok(Some(next)) => {
                    self.outbox.keep_unread();
                    next
                }
                Ok(None) => return End::Closed,
                Err(error) => return self.refuse(error),
            };
            if frame.kind != FrameKind::Request {
                return self.refuse_frame(&frame, Error::new(ErrorCode::BadRequest, "a client sends requests only"));
            }
            self.handler.handle(frame, room, &mut self.tasks).await;
        }
    }

    /// Refuses what still comes until all that came before is answered.
    async fn drain(&mut self, reader: &mut FrameReader<impl AsyncRead + Unpin>) -> End {
        let Self { shared, outbox, budget, tasks, .. } = self;
        let idle = async {
            while tasks.join_next().await.is_some() {}
            budget.idle().await;
        };
        let refuse = async {
            loop {
                match next(shared, outbox, budget, reader).await {
                    Ok(Some((frame, _room))) => {
                        outbox.push_from_own_task(error_frame(frame.operation, frame.correlation_id, stopping_error()));
                    }
                    Ok(None) => return End::Closed,
                    Err(error) => return End::Lost(error),
                }
            }
        };
        // The refusals first: each holds room for a moment only.
        tokio::select! {
            biased;
            end = refuse => end,
            () = idle => End::Drained,
        }
    }

    fn refuse(&self, error: NetError) -> End {
        match error {
            NetError::Protocol(error) => self.refuse_with(0, 0, error.into()),
            NetError::FrameTimeout { .. } => self.refuse_with(0, 0, Error::new(ErrorCode::Timeout, error.to_string())),
            error => End::Lost(error),
        }
    }

    fn refuse_frame(&self, frame: &Frame, error: Error) -> End {
        self.refuse_with(frame.operation, frame.correlation_id, error)
    }

    fn refuse_with(&self, operation: u16, correlation_id: u32, error: Error) -> End {
        tracing::debug!(%error, "a connection is refused further requests");
        self.outbox.push_from_own_task(error_frame(operation, correlation_id, error));
        End::Refused
    }
}

/// The next frame, once there is room for it and for its reply. Dropping the future loses nothing.
async fn next(
    shared: &Shared,
    outbox: &Outbox,
    budget: &ConnectionBudget,
    reader: &mut FrameReader<impl AsyncRead + Unpin>,
) -> Result<Option<(Frame, Room)>, NetError> {
    if outbox.is_full() {
        outbox.room().await;
    }
    let Some(length) = reader.frame_length().await? else { return Ok(None) };
    let early = if length > LARGE_FRAME_BYTES {
        let room = claim(shared, budget, length).await?;
        reader.restart_pace();
        Some(room)
    } else {
        None
    };
    let Some(frame) = reader.read().await? else { return Ok(None) };
    let room = match early {
        Some(room) => room,
        None => claim(shared, budget, length).await?,
    };
    Ok(Some((frame, room)))
}

async fn claim(shared: &Shared, budget: &ConnectionBudget, length: usize) -> Result<Room, NetError> {
    if let Some(room) = budget.try_claim(&shared.budget, length) {
        return Ok(room);
    }
    budget.claim(&shared.budget, length).await.ok_or_else(|| NetError::Io(std::io::ErrorKind::BrokenPipe.into()))
}
