//! What is unanswered and what waits to be written. Plain bookkeeping: no I/O, no waiting.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::Instant;

use crate::protocol::{ErrorReply, Frame, FrameKind, Operation, Response, Wire};

use super::super::{Error, ErrorKind, Result};
use super::Pieces;

/// Called once with a response frame or an error, and with how many times the request was sent.
pub type Answer = Box<dyn FnOnce(Result<Frame>, u32) + Send>;

/// Names a request for as long as the client lives; the wire carries its low half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(u64);

impl CallId {
    /// The correlation id.
    pub fn wire(self) -> u32 {
        self.0 as u32
    }
}

/// The requests and subscriptions of a link.
#[derive(Debug, Default)]
pub struct Table {
    /// No new requests; the task ends when what waits is written.
    pub is_closing: bool,
    /// Why it closed, once it has.
    closed_by: Option<Error>,
    last_call: u64,
    calls: BTreeMap<CallId, PendingCall>,
    subscriptions: HashMap<u32, Subscription>,
    outgoing: VecDeque<Outgoing>,
}

struct PendingCall {
    pieces: Pieces,
    is_repeatable: bool,
    sends: u32,
    answer: Answer,
}

impl fmt::Debug for PendingCall {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PendingCall").field("sends", &self.sends).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Subscription {
    frames: mpsc::Sender<Frame>,
    /// The server's promise; known after its first frame.
    heartbeat: Option<Duration>,
    last_frame: Instant,
}

#[derive(Debug)]
enum Outgoing {
    Call(CallId),
    Frame(Pieces),
}

impl Table {
    /// The next id. Zero is never a correlation id: it belongs to the connection as a whole; one of an open subscription is not
    /// given again.
    pub fn next_call_id(&mut self) -> CallId {
        loop {
            self.last_call += 1;
            let id = CallId(self.last_call);
            if id.wire() != 0 && !self.subscriptions.contains_key(&id.wire()) {
                return id;
            }
        }
    }

    /// A request that waits to be sent and answered.
    pub fn add_call(&mut self, id: CallId, pieces: Pieces, is_repeatable: bool, answer: Answer) -> Result<()> {
        self.check_open()?;
        self.calls.insert(id, PendingCall { pieces, is_repeatable, sends: 0, answer });
        self.outgoing.push_back(Outgoing::Call(id));
        Ok(())
    }

    /// A subscription that waits to be sent.
    pub fn add_subscription(&mut self, id: CallId, pieces: Pieces, frames: mpsc::Sender<Frame>) -> Result<()> {
        self.check_open()?;
        self.subscriptions.insert(id.wire(), Subscription { frames, heartbeat: None, last_frame: Instant::now() });
        self.outgoing.push_back(Outgoing::Frame(pieces));
        Ok(())
    }

    /// A frame that nobody answers.
    pub fn add_notice(&mut self, pieces: Pieces) {
        self.outgoing.push_back(Outgoing::Frame(pieces));
    }

    /// Drops a request.
    pub fn forget(&mut self, id: CallId) {
        self.calls.remove(&id);
    }

    /// The next frame to write.
    pub fn next_outgoing(&mut self) -> Option<Pieces> {
        loop {
            match self.outgoing.pop_front()? {
                Outgoing::Frame(pieces) => return Some(pieces),
                Outgoing::Call(id) => {
                    let Some(call) = self.calls.get_mut(&id) else { continue };
                    call.sends += 1;
                    let pieces = if call.is_repeatable { call.pieces.clone() } else { std::mem::take(&mut call.pieces) };
                    return Some(pieces);
                }
            }
        }
    }

    /// The subscription that has been silent for three of its heartbeats, if there is one.
    pub fn stalled_subscription(&self, now: Instant) -> Option<u32> {
        let is_stalled = |subscription: &Subscription| {
            subscription.heartbeat.is_some_and(|heartbeat| now.duration_since(subscription.last_frame) > heartbeat * 3)
        };
        self.subscriptions.iter().find(|(_, subscription)| is_stalled(subscription)).map(|(id, _)| *id)
    }

    /// Finds the owner of a frame. Returns what is to be called when the table is no longer held.
    pub fn receive(&mut self, frame: Frame) -> Result<Option<Delivered>> {
        if self.subscriptions.contains_key(&frame.correlation_id) {
            return Ok(self.receive_for_subscription(frame)?.map(Delivered::Stray));
        }
        let Some(call) = self.calls.remove(&self.call_id_of(frame.correlation_id)) else {
            return Ok(Some(Delivered::Stray(frame)));
        };
        Ok(Some(Delivered::Answer(call.answer, frame, call.sends)))
    }

    /// Returns the frame if nobody listens any more.
    fn receive_for_subscription(&mut self, frame: Frame) -> Result<Option<Frame>> {
        let id = frame.correlation_id;
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return Ok(Some(frame)) };
        subscription.last_frame = Instant::now();
        let is_last = frame.kind != FrameKind::Response { more: true };
        match Operation::from_number(frame.operation) {
            Some(Operation::Heartbeat) => return Ok(None),
            Some(Operation::Subscribe) if !is_last => {
                if let Response::Subscribe(opened) = Response::decode(frame.operation, &frame.body)? {
                    subscription.heartbeat = Some(Duration::from_millis(opened.heartbeat_ms.max(100).into()));
                }
            }
            _ => (),
        }
        let sent = subscription.frames.try_send(frame);
        if is_last {
            self.subscriptions.remove(&id);
        }
        match sent {
            Ok(()) => Ok(None),
            Err(TrySendError::Closed(frame)) => Ok(Some(frame)),
            Err(TrySendError::Full(_)) => {
                Err(Error::new(ErrorKind::Protocol, format!("server sent more to subscription {id} than its credit")))
            }
        }
    }

    /// The connection is gone: subscriptions end, and what may be repeated waits to be sent again, oldest first. Returns the
    /// answers of what may not.
    pub fn disconnect(&mut self) -> Vec<Answer> {
        self.subscriptions.clear();
        let lost: Vec<CallId> =
            self.calls.iter().filter(|(_, call)| call.sends > 0 && !call.is_repeatable).map(|(id, _)| *id).collect();
        let answers = lost.iter().filter_map(|id| self.calls.remove(id)).map(|call| call.answer).collect();
        self.outgoing = self.calls.keys().map(|id| Outgoing::Call(*id)).collect();
        answers
    }

    /// The link is closed: nothing waits any more, and later calls hear the reason. Returns all answers.
    pub fn close(&mut self, reason: &Error) -> Vec<Answer> {
        self.is_closing = true;
        self.closed_by = Some(Error::closed_by(reason));
        self.subscriptions.clear();
        self.outgoing.clear();
        std::mem::take(&mut self.calls).into_values().map(|call| call.answer).collect()
    }

    /// The newest id with this low half that was given.
    fn call_id_of(&self, wire: u32) -> CallId {
        let candidate = (self.last_call & !0xffff_ffff) | u64::from(wire);
        CallId(if candidate > self.last_call { candidate.saturating_sub(1 << 32) } else { candidate })
    }

    fn check_open(&self) -> Result<()> {
        let reason = || self.closed_by.clone().unwrap_or_else(Error::closed);
        if self.is_closing { Err(reason()) } else { Ok(()) }
    }
}

/// A frame with its owner.
pub enum Delivered {
    /// Someone waits for it; the number says how many times the request was sent.
    Answer(Answer, Frame, u32),
    /// Nobody waits for it any more.
    Stray(Frame),
}

/// The error that a frame carries, or the frame itself.
pub fn frame_result(frame: Frame) -> Result<Frame> {
    match frame.kind {
        FrameKind::Error => Err(ErrorReply::from_body(&frame.body)?.into()),
        FrameKind::Response { .. } => Ok(frame),
        FrameKind::Request => Err(Error::new(ErrorKind::Protocol, "server sent a request")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Ping, encode_call};

    fn ping(table: &mut Table, is_repeatable: bool) -> CallId {
        let id = table.next_call_id();
        let frame = encode_call(&Ping { nonce: id.0 }, id.wire());
        table.add_call(id, frame.into_pieces(), is_repeatable, Box::new(|_, _| ())).unwrap();
        id
    }

    fn sent(table: &mut Table) -> Vec<u32> {
        let id_of = |pieces: Pieces| u32::from_le_bytes(pieces[0][8..12].try_into().unwrap());
        std::iter::from_fn(|| table.next_outgoing()).map(id_of).collect()
    }

    #[test]
    fn what_may_be_repeated_is_sent_again_in_order_before_anything_newer() {
        let mut table = Table::default();
        let (first, second, third) = (ping(&mut table, true), ping(&mut table, false), ping(&mut table, true));
        assert_eq!(sent(&mut table), [first.wire(), second.wire(), third.wire()]);
        let unsent = ping(&mut table, false);
        assert_eq!(table.disconnect().len(), 1, "the second may not be repeated");
        let newer = ping(&mut table, true);
        assert_eq!(sent(&mut table), [first.wire(), third.wire(), unsent.wire(), newer.wire()]);
    }

    #[test]
    fn ids_find_their_calls_after_the_low_half_wraps() {
        let mut table = Table { last_call: u64::from(u32::MAX) - 1, ..Table::default() };
        let before = ping(&mut table, true);
        let after = ping(&mut table, true);
        assert_eq!((before.wire(), after.wire()), (u32::MAX, 1));
        assert_eq!(table.call_id_of(u32::MAX), before);
        assert_eq!(table.call_id_of(1), after);
    }

    #[test]
    fn a_forgotten_call_is_neither_sent_nor_answered() {
        let mut table = Table::default();
        let id = ping(&mut table, true);
        table.forget(id);
        assert!(sent(&mut table).is_empty());
        assert!(table.calls.is_empty());
        table.is_closing = true;
        assert_eq!(table.add_call(id, Vec::new(), true, Box::new(|_, _| ())).unwrap_err().kind(), ErrorKind::Closed);
    }
}
