//! Subscriptions: a task for each sends messages as they become claimable, as far as the credits reach.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use crate::engine::{Engine, LeaseEnd, LeaseListener, Wake};
use crate::model::{BatchSlice, Claim, Error, ErrorCode, Now, PopReply, PopRequest};
use crate::protocol::{
    Credit, Delivery, Done, HEADER_BYTES, Heartbeat, LENGTH_BYTES, LeaseEnded, LeasedPartition, Operation, Response, Subscribe,
    Subscribed, SubscriptionEnd,
};
use crate::record::RecordHeader;

use super::Shared;
use super::budget::WaitSlot;
use super::handler::naming;
use super::lease::UnheardLease;
use super::outbox::{Outbox, Outgoing};
use super::session::error_frame;
use super::waiting::{Started, stopping_error, wake};

/// What the connection tells a subscription's task.
pub(super) struct Control {
    credit: Mutex<Allowance>,
    /// The correlation id of the request that ends the subscription.
    end_asked_by: Mutex<Option<u32>>,
    changed: Arc<Notify>,
    has_ended: AtomicBool,
}

/// What may still be sent. Bytes go below zero by the delivery that used the last of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Allowance {
    messages: u64,
    bytes: i64,
}

impl Allowance {
    fn add(&mut self, messages: u32, bytes: u32) {
        self.messages = self.messages.saturating_add(messages.into());
        self.bytes = self.bytes.saturating_add(bytes.into());
    }

    fn spend(&mut self, messages: u64, bytes: usize) {
        self.messages = self.messages.saturating_sub(messages);
        self.bytes = self.bytes.saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// The request cut to what is left; `None` if nothing is.
    fn bound(self, request: &PopRequest) -> Option<PopRequest> {
        let messages = u32::try_from(self.messages).unwrap_or(u32::MAX);
        let bytes = u32::try_from(self.bytes.max(0)).unwrap_or(u32::MAX);
        (messages > 0 && bytes > 0).then(|| PopRequest {
            messages_max: request.messages_max.min(messages),
            bytes_max: request.bytes_max.min(bytes),
            ..request.clone()
        })
    }
}

impl Control {
    fn new(request: &Subscribe, changed: Arc<Notify>) -> Self {
        let mut credit = Allowance { messages: 0, bytes: 0 };
        credit.add(request.credit_messages, request.credit_bytes);
        Self { credit: Mutex::new(credit), end_asked_by: Mutex::new(None), changed, has_ended: AtomicBool::new(false) }
    }

    /// Adds credit.
    pub(super) fn add_credit(&self, credit: &Credit) {
        self.credit.lock().unwrap_or_else(PoisonError::into_inner).add(credit.messages, credit.bytes);
        self.changed.notify_one();
    }

    /// Asks for the end; the task answers.
    pub(super) fn end(&self, correlation_id: u32) {
        *self.end_asked_by.lock().unwrap_or_else(PoisonError::into_inner) = Some(correlation_id);
        self.changed.notify_one();
    }

    /// Whether the task is over.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Relaxed)
    }

    fn end_asked_by(&self) -> Option<u32> {
        *self.end_asked_by.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn allowance(&self) -> Allowance {
        *self.credit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spend(&self, messages: u64, bytes: usize) {
        self.credit.lock().unwrap_or_else(PoisonError::into_inner).spend(messages, bytes);
    }
}

/// What became of an attempt to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Sent,
    /// No message is ready.
    Nothing,
    /// No credit is left.
    NoCredit,
    /// The client has not taken what it was sent.
    OutboxFull,
    /// All clients together have not.
    ServerFull,
}

/// How long a subscription waits when the server's bound on replies is reached: nobody tells it of room.
const SERVER_FULL_PAUSE: Duration = Duration::from_millis(20);

/// A subscription's task.
pub(super) struct Subscription {
    pub(super) shared: Arc<Shared>,
    /// The engine as the principal may use it.
    pub(super) engine: Engine,
    pub(super) outbox: Arc<Outbox>,
    pub(super) correlation_id: u32,
    /// Where the ends of its leases are told.
    pub(super) notices: Arc<Notices>,
    /// Its place among those that wait.
    pub(super) _slot: WaitSlot,
}

impl Subscription {
    /// The task's future and what controls it.
    pub(super) fn start(self, subscribe: Subscribe) -> (Arc<Control>, impl Future<Output = ()> + Send) {
        let (wake, woken) = wake();
        let control = Arc::new(Control::new(&subscribe, woken));
        let controlled = control.clone();
        let task = async move {
            let ended = self.run(&subscribe.request, &controlled, wake).await;
            controlled.has_ended.store(true, Relaxed);
            if let Err(error) = ended {
                self.notices.close();
                let operation = Operation::Subscribe.number();
                self.outbox.push(error_frame(operation, self.correlation_id, naming(operation, error)));
            }
        };
        (control, task)
    }

    /// Ends well when the client asks for it.
    async fn run(&self, request: &PopRequest, control: &Control, wake: Wake) -> Result<(), Error> {
        let heartbeat = self.shared.options.heartbeat;
        let heartbeat_ms = u32::try_from(heartbeat.as_millis()).unwrap_or(u32::MAX);
        self.send(Response::Subscribe(Subscribed { heartbeat_ms }), None);
        let mut silent_until = Instant::now() + heartbeat;
        let mut watch = None;
        loop {
            if let Some(asked_by) = control.end_asked_by() {
                self.notices.close();
                self.outbox.push(Response::SubscriptionEnd(SubscriptionEnd {}).encode(self.correlation_id, false));
                self.outbox.push(Response::Unsubscribe(Done {}).encode(asked_by, false));
                return Ok(());
            }
            let attempt = self.deliver(request, control).await?;
            // The first pop registers the group; only then can it be watched, and what came in between is found by the next pop.
            if watch.is_none() && matches!(attempt, Attempt::Sent | Attempt::Nothing) {
                watch = Some(self.engine.watch(request, wake.clone())?);
                continue;
            }
            if attempt == Attempt::Sent {
                silent_until = Instant::now() + heartbeat;
                tokio::task::consume_budget().await;
                continue;
            }
            tokio::select! {
                () = self.shared.stopping.cancelled() => return Err(stopping_error()),
                () = control.changed.notified() => (),
                () = self.outbox.room(), if attempt == Attempt::OutboxFull => (),
                () = sleep(SERVER_FULL_PAUSE), if attempt == Attempt::ServerFull => (),
                () = sleep_until(silent_until) => {
                    self.send(Response::Heartbeat(Heartbeat { time_us: Now::read().wall_us }), None);
                    silent_until = Instant::now() + heartbeat;
                    // A group that was deleted and made again is another one.
                    watch = None;
                }
            }
        }
    }

    /// Sends what is claimable now, as far as credit and room reach.
    async fn deliver(&self, request: &PopRequest, control: &Control) -> Result<Attempt, Error> {
        let Some(request) = control.allowance().bound(request) else { return Ok(Attempt::NoCredit) };
        if self.shared.stopping.is_cancelled() {
            return Err(stopping_error());
        }
        if self.outbox.is_full() {
            return Ok(Attempt::OutboxFull);
        }
        if self.shared.outgoing.is_used_up() {
            return Ok(Attempt::ServerFull);
        }
        let reply = Started::new(&self.engine, &request).finish().await?;
        if reply.claims.is_empty() {
            return Ok(Attempt::Nothing);
        }
        let lease = UnheardLease::of(&reply, &self.engine);
        let messages = reply.claims.iter().map(message_count).sum();
        let (lease_id, listener) = (reply.lease_id.clone(), self.notices.listener(&reply));
        let bytes = self.send(Response::Delivery(Delivery(reply)), lease);
        control.spend(messages, bytes);
        // Behind the delivery, so that the client has heard of the lease.
        if !lease_id.is_empty() && !self.shared.engine.watch_lease(&lease_id, listener) {
            self.notices.send(LeaseEnded::of(lease_id, ErrorCode::LeaseLost));
        }
        Ok(Attempt::Sent)
    }

    /// Returns the bytes of the body.
    fn send(&self, response: Response, lease: Option<UnheardLease>) -> usize {
        let frame = response.encode(self.correlation_id, true);
        let bytes = frame.len() - LENGTH_BYTES - HEADER_BYTES;
        self.outbox.push(Outgoing { frame, lease });
        bytes
    }
}

/// Tells a subscription's client of leases that ended, until the subscription has ended itself.
pub(super) struct Notices {
    correlation_id: u32,
    /// Whoever sends holds it, so that nothing comes behind the subscription's end.
    outbox: Mutex<Option<Weak<Outbox>>>,
}

impl Notices {
    pub(super) fn new(outbox: &Arc<Outbox>, correlation_id: u32) -> Arc<Self> {
        Arc::new(Self { correlation_id, outbox: Mutex::new(Some(Arc::downgrade(outbox))) })
    }

    /// What hears of the ends of a reply's claims.
    fn listener(self: &Arc<Self>, reply: &PopReply) -> LeaseListener {
        let (notices, lease_id) = (Arc::clone(self), reply.lease_id.clone());
        let places: Vec<_> =
            reply.claims.iter().map(|claim| (claim.incarnation, claim.partition_id, claim.queue.clone())).collect();
        Arc::new(move |end: LeaseEnd| {
            let found = places.iter().find(|place| (place.0, place.1) == (end.incarnation, end.partition_id));
            let partition =
                found.map(|(_, partition_id, queue)| LeasedPartition { queue: queue.clone(), partition_id: *partition_id });
            notices.send(LeaseEnded { partition, ..LeaseEnded::of(lease_id.clone(), end.reason) });
        })
    }

    fn send(&self, notice: LeaseEnded) {
        if let Some(outbox) = self.lock().as_ref().and_then(Weak::upgrade) {
            outbox.push(Response::LeaseEnded(notice).encode(self.correlation_id, true));
        }
    }

    /// Sends nothing from here on.
    fn close(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Weak<Outbox>>> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn message_count(claim: &Claim) -> u64 {
    claim.batches.iter().map(|batch| batch_count(batch, claim)).sum()
}

fn batch_count(batch: &BatchSlice, claim: &Claim) -> u64 {
    match batch {
        BatchSlice::Messages(messages) => messages.len() as u64,
        BatchSlice::Whole(record) => match RecordHeader::decode(record) {
            Ok((_, Some(header), _)) => header.count.into(),
            _ => claim.range.last - claim.range.first + 1,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_bounds_a_delivery_and_is_spent_by_it() {
        let request = PopRequest::any("q", 100);
        let mut allowance = Allowance { messages: 0, bytes: 0 };
        assert_eq!(allowance.bound(&request), None);
        allowance.add(10, 1000);
        let bound = allowance.bound(&request).unwrap();
        assert_eq!((bound.messages_max, bound.bytes_max), (10, 1000));
        allowance.spend(4, 1500);
        assert_eq!(allowance, Allowance { messages: 6, bytes: -500 });
        assert_eq!(allowance.bound(&request), None, "bytes are owed");
        allowance.add(u32::MAX, u32::MAX);
        assert_eq!(allowance.bound(&request).unwrap().messages_max, 100);
        allowance.spend(u64::MAX, usize::MAX);
        assert_eq!(allowance.bound(&request), None);
    }
}
