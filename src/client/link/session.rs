//! The link's task: connects, says hello, reads and writes until the connection is lost, and starts over.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::model::ErrorCode;
use crate::net::{FrameReader, FrameWriter};
use crate::protocol::{Delivery, Frame, Hello, HelloReply, Operation, Ping, Release, Response, encode_call};

use super::dial::{ReadHalf, WriteHalf};
use super::table::{Delivered, frame_result};
use super::{Dial, Error, ErrorKind, Event, LinkOptions, Result, Shared, Status};

/// Bytes gathered before a write.
const WRITE_BYTES: usize = 256 << 10;
/// Time for the last frames to be written when a link closes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection whose hello is done.
pub struct Session {
    reader: FrameReader<ReadHalf>,
    writer: FrameWriter<WriteHalf>,
    hello: Arc<HelloReply>,
}

/// Connects and says hello.
pub async fn connect(dial: &Dial, options: &LinkOptions) -> Result<Session> {
    match timeout(options.connect_timeout, say_hello(dial, options)).await {
        Ok(session) => session,
        Err(_) => Err(connect_error(dial, format!("no answer within {} ms", options.connect_timeout.as_millis()))),
    }
}

async fn say_hello(dial: &Dial, options: &LinkOptions) -> Result<Session> {
    let (read, write) = dial.connect().await.map_err(|error| connect_error(dial, error))?;
    let mut reader = FrameReader::new(read, options.pace);
    let mut writer = FrameWriter::new(write, options.heartbeat * 3);
    writer.send(encode_call(&Hello::new(&*options.name, &*options.token), 1)).await?;
    let frame = reader.read().await?.ok_or_else(|| connect_error(dial, "server closed the connection"))?;
    let frame = frame_result(frame)?;
    let Response::Hello(hello) = Response::decode(frame.operation, &frame.body)? else {
        return Err(Error::new(ErrorKind::Protocol, "server did not answer the hello"));
    };
    // What the server takes is also what it sends.
    reader.set_frame_bytes_max(hello.limits.frame_bytes as usize);
    Ok(Session { reader, writer, hello: Arc::new(hello) })
}

fn connect_error(dial: &Dial, reason: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Connect, format!("cannot connect to {}: {reason}", dial.target()))
}

/// Keeps a link: runs sessions, one after the other, until the link closes or the server refuses this client for good.
pub(super) async fn keep(shared: Arc<Shared>, dial: Dial, options: LinkOptions, mut session: Session) {
    let error = loop {
        if let Some(error) = run_until_lost(&shared, &options, session).await {
            break error;
        }
        match reconnect(&shared, &dial, &options).await {
            Ok(again) => session = again,
            Err(error) => break error,
        }
    };
    let answers = shared.table().close(&error);
    answers.into_iter().for_each(|answer| answer(Err(error.clone()), 0));
    shared.status.send_replace(Status::Closed(error));
}

/// Returns the error to close with, or `None` if the connection was only lost.
async fn run_until_lost(shared: &Shared, options: &LinkOptions, mut session: Session) -> Option<Error> {
    let hello = Arc::clone(&session.hello);
    shared.emit(Event::Connected { server_name: hello.server_name.clone(), start_number: hello.start_number });
    shared.status.send_replace(Status::Connected(hello));
    let result = run(shared, options, &mut session).await;
    if result.is_ok() {
        // Closed by the owner: the peer sees an orderly end, or none if it takes no bytes.
        let _ = timeout(CLOSE_TIMEOUT, session.writer.close()).await;
        return Some(Error::closed());
    }
    shared.status.send_replace(Status::Disconnected);
    let answers = shared.table().disconnect();
    let error = Error::new(ErrorKind::Disconnected, result.err().map_or_else(String::new, |error| error.to_string()));
    shared.emit(Event::Disconnected { reason: error.to_string() });
    answers.into_iter().for_each(|answer| answer(Err(error.clone()), 1));
    None
}

/// Tries until there is a session. Gives up when the link closes or when the refusal is not one that time heals.
async fn reconnect(shared: &Shared, dial: &Dial, options: &LinkOptions) -> Result<Session> {
    let mut pause = options.backoff_min;
    loop {
        if shared.table().is_closing {
            return Err(Error::closed());
        }
        match connect(dial, options).await {
            Ok(session) => return Ok(session),
            Err(error) if is_final(&error) => return Err(error),
            Err(_) => (),
        }
        tokio::select! {
            () = sleep(jittered(pause)) => (),
            () = closing(shared) => return Err(Error::closed()),
        }
        pause = (pause * 2).min(options.backoff_max);
    }
}

fn is_final(error: &Error) -> bool {
    matches!(error.code(), Some(ErrorCode::Unauthorized | ErrorCode::UnsupportedVersion))
}

/// Between half and all of `pause`, so that many clients of one server do not return in step.
fn jittered(pause: Duration) -> Duration {
    let random = uuid::Uuid::new_v4().as_u64_pair().1 as u32;
    pause / 2 + pause.mul_f64(f64::from(random) / f64::from(u32::MAX) / 2.0)
}

async fn closing(shared: &Shared) {
    while !shared.table().is_closing {
        shared.work.notified().await;
    }
}

/// Reads and writes until the link closes (`Ok`) or the connection cannot be used any more.
async fn run(shared: &Shared, options: &LinkOptions, session: &mut Session) -> Result<()> {
    let Session { reader, writer, .. } = session;
    tokio::select! {
        result = write_all(shared, writer) => result,
        error = read_all(shared, options, reader) => Err(error),
    }
}

async fn write_all(shared: &Shared, writer: &mut FrameWriter<WriteHalf>) -> Result<()> {
    loop {
        let is_closing = {
            let mut table = shared.table();
            while writer.queued_bytes() < WRITE_BYTES {
                let Some(pieces) = table.next_outgoing() else { break };
                writer.queue_pieces(pieces);
            }
            table.is_closing
        };
        match writer.queued_bytes() {
            0 if is_closing => return Ok(()),
            0 => shared.work.notified().await,
            _ => writer.flush().await?,
        }
    }
}

async fn read_all(shared: &Shared, options: &LinkOptions, reader: &mut FrameReader<ReadHalf>) -> Error {
    let mut ticks = interval(options.heartbeat);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_frame = Instant::now();
    loop {
        tokio::select! {
            biased;
            frame = reader.read() => {
                last_frame = Instant::now();
                let received = match frame {
                    Ok(Some(frame)) => receive(shared, frame),
                    Ok(None) => Err(Error::new(ErrorKind::Disconnected, "server closed the connection")),
                    Err(error) => Err(error.into()),
                };
                if let Err(error) = received {
                    return error;
                }
            }
            _ = ticks.tick() => {
                if let Err(error) = watch_silence(shared, options, last_frame) {
                    return error;
                }
            }
        }
    }
}

fn receive(shared: &Shared, frame: Frame) -> Result<()> {
    if frame.correlation_id == 0 {
        frame_result(frame)?;
        return Ok(());
    }
    let delivered = shared.table().receive(frame)?;
    match delivered {
        Some(Delivered::Answer(answer, frame, sends)) => answer(frame_result(frame), sends),
        Some(Delivered::Stray(frame)) => give_back(shared, frame),
        None => (),
    }
    Ok(())
}

/// Messages that came for a caller who went away are handed back at once.
fn give_back(shared: &Shared, frame: Frame) {
    if ![Operation::Pop.number(), Operation::Delivery.number()].contains(&frame.operation) {
        return;
    }
    let (Ok(Response::Pop(reply)) | Ok(Response::Delivery(Delivery(reply)))) = Response::decode(frame.operation, &frame.body)
    else {
        return;
    };
    if reply.lease_id.is_empty() {
        return;
    }
    let mut table = shared.table();
    let id = table.next_call_id();
    table.add_notice(encode_call(&Release { lease_id: reply.lease_id }, id.wire()).into_pieces());
    drop(table);
    shared.work.notify_one();
}

/// Asks a silent server whether it is alive, and gives it up after three intervals.
fn watch_silence(shared: &Shared, options: &LinkOptions, last_frame: Instant) -> Result<()> {
    let now = Instant::now();
    let mut table = shared.table();
    let stalled = match table.stalled_subscription(now) {
        Some(id) => Some(format!("subscription {id}")),
        None => (now.duration_since(last_frame) >= options.heartbeat * 3).then(|| "server".to_owned()),
    };
    if let Some(what) = stalled {
        drop(table);
        let text = format!("{what} was silent for too long");
        shared.emit(Event::Stalled { what });
        return Err(Error::new(ErrorKind::Disconnected, text));
    }
    if now.duration_since(last_frame) >= options.heartbeat {
        let id = table.next_call_id();
        table.add_notice(encode_call(&Ping { nonce: 0 }, id.wire()).into_pieces());
        drop(table);
        shared.work.notify_one();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jittered_pause_is_between_half_and_all() {
        let pause = Duration::from_millis(100);
        for _ in 0..1000 {
            let jittered = jittered(pause);
            assert!(jittered >= pause / 2 && jittered <= pause);
        }
    }

    #[test]
    fn only_refusals_that_time_does_not_heal_are_final() {
        let error = |code| Error::from(crate::model::Error::new(code, ""));
        assert!(is_final(&error(ErrorCode::Unauthorized)));
        assert!(!is_final(&error(ErrorCode::Busy)));
    }
}
