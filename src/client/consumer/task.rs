//! The consumer's task: what is held, what is said of it, and when it ends. The subscription is in `subscription`.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::model::{AckOutcome, AckReply, AckRequest, ExtendReply, PopRequest};
use crate::protocol::{Call, Extend, Frame, Release, Response, Unsubscribe};
use crate::record::Offset;

use super::super::admin::milliseconds;
use super::super::link::{SubscriptionFrames, frame_result};
use super::super::{Client, Error, ErrorKind, Event, Result, decode_reply};
use super::claim::Claim;
use super::delivery::{ClaimInfo, ClaimKey, Delivery, Verdict};
use super::subscription::{next_frame, wait_connected};

/// How long a dropped consumer waits for messages that are still held.
pub const DROP_TIMEOUT: Duration = Duration::from_secs(30);

/// What the task works by.
#[derive(Debug)]
pub struct TaskOptions {
    pub request: PopRequest,
    pub prefetch: u32,
    pub prefetch_bytes: u32,
    pub lease: Duration,
    pub auto_extend: bool,
}

/// What the task is told.
#[derive(Debug)]
pub enum Signal {
    /// The application said something of a message, or dropped it (then nobody waits).
    Settle { key: ClaimKey, offset: Offset, verdict: Verdict, reply: Option<oneshot::Sender<Result<AckOutcome>>> },
    /// The application wants a lease to last longer.
    Extend { lease: u64, duration: Duration, reply: oneshot::Sender<Result<()>> },
    /// The server answered an acknowledgement.
    Acked { key: ClaimKey, result: Result<AckReply> },
    /// The server answered an extension.
    Extended { lease: u64, result: Result<ExtendReply>, reply: Option<oneshot::Sender<Result<()>>> },
    /// The application waits and nothing is left for it here.
    Starved,
    /// No more messages; end when those that are held are settled, or at the timeout.
    Close { timeout: Duration, done: Option<oneshot::Sender<bool>> },
}

/// What came with one delivery.
pub(super) struct Lease {
    pub(super) id: String,
    pub(super) claims: Vec<Claim>,
    pub(super) bytes: u32,
    pub(super) extend_at: Instant,
}

pub(super) struct Closing {
    pub(super) deadline: Instant,
    pub(super) done: Option<oneshot::Sender<bool>>,
}

pub(super) struct Task {
    pub(super) client: Client,
    pub(super) options: TaskOptions,
    pub(super) signals: mpsc::UnboundedSender<Signal>,
    /// `None` once the consumer takes no more.
    pub(super) deliveries: Option<mpsc::UnboundedSender<Result<Delivery>>>,
    pub(super) subscription: Option<SubscriptionFrames>,
    pub(super) leases: BTreeMap<u64, Lease>,
    pub(super) next_lease: u64,
    /// Whether the group is a work queue; asked when the first messages come, if the application says that it may be.
    pub(super) is_shared: Option<bool>,
    /// Messages that are here and not settled.
    pub(super) open: u32,
    /// The application waits and nothing is left for it here.
    pub(super) is_starved: bool,
    /// Credit that was used and is not given back to the server yet.
    pub(super) owed_messages: u32,
    pub(super) owed_bytes: u32,
    /// Not before then is a refused subscription tried again.
    pub(super) resubscribe_at: Option<Instant>,
    /// Which start of the server the leases are of.
    pub(super) start_number: Option<u64>,
    pub(super) closing: Option<Closing>,
}

/// Opens the subscription and starts the task. Returns where the deliveries come out.
pub async fn start(
    client: Client,
    options: TaskOptions,
    signals: mpsc::UnboundedSender<Signal>,
    receiver: mpsc::UnboundedReceiver<Signal>,
) -> Result<mpsc::UnboundedReceiver<Result<Delivery>>> {
    let (deliveries, stream) = mpsc::unbounded_channel();
    let is_shared = if options.request.shared { None } else { Some(false) };
    let mut task = Task {
        client,
        options,
        signals,
        deliveries: Some(deliveries),
        subscription: None,
        leases: BTreeMap::new(),
        next_lease: 0,
        is_shared,
        open: 0,
        is_starved: false,
        owed_messages: 0,
        owed_bytes: 0,
        resubscribe_at: None,
        start_number: None,
        closing: None,
    };
    task.resubscribe(Ok(wait_connected(&task.client).await?));
    let lost = || Error::new(ErrorKind::Disconnected, "connection was lost before the subscription stood");
    let first = next_frame(&mut task.subscription).await.ok_or_else(lost)?;
    frame_result(first)?;
    tokio::spawn(task.run(receiver));
    Ok(stream)
}

impl Task {
    async fn run(mut self, mut signals: mpsc::UnboundedReceiver<Signal>) {
        let client = self.client.clone();
        while !self.is_finished() {
            let timer = self.next_timer();
            let wants_subscription = self.subscription.is_none() && self.closing.is_none() && self.resubscribe_at.is_none();
            tokio::select! {
                biased;
                Some(signal) = signals.recv() => self.handle(signal),
                frame = next_frame(&mut self.subscription), if self.subscription.is_some() => match frame {
                    Some(frame) => self.receive(frame).await,
                    None => self.subscription = None,
                },
                connected = wait_connected(&client), if wants_subscription => self.resubscribe(connected),
                () = sleep_until(timer.unwrap_or_else(Instant::now)), if timer.is_some() => self.fire_timers(),
            }
        }
        self.finish();
    }

    /// Whether a closing consumer has nothing left to wait for.
    fn is_finished(&self) -> bool {
        match &self.closing {
            Some(closing) => self.leases.is_empty() || Instant::now() >= closing.deadline,
            None => false,
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        let extend = self.leases.values().map(|lease| lease.extend_at).min().filter(|_| self.options.auto_extend);
        let deadline = self.closing.as_ref().map(|closing| closing.deadline);
        [extend, deadline, self.resubscribe_at].into_iter().flatten().min()
    }

    fn fire_timers(&mut self) {
        let now = Instant::now();
        self.resubscribe_at = self.resubscribe_at.filter(|at| *at > now);
        if self.options.auto_extend {
            let due = self.leases.iter().filter(|(_, lease)| lease.extend_at <= now);
            let due: Vec<u64> = due.map(|(number, _)| *number).collect();
            due.into_iter().for_each(|number| self.extend(number, self.options.lease, None));
        }
    }

    /// Gives back what is still held and tells who waits.
    fn finish(mut self) {
        let is_settled = self.leases.is_empty();
        for mut lease in std::mem::take(&mut self.leases).into_values() {
            if lease.claims.iter().any(Claim::is_held) {
                self.release(lease.id);
            }
            lease.claims.iter_mut().for_each(Claim::lose);
        }
        if let Some(done) = self.closing.and_then(|closing| closing.done) {
            // The consumer may be gone.
            let _ = done.send(is_settled);
        }
    }
}

/// Signals.
impl Task {
    fn handle(&mut self, signal: Signal) {
        match signal {
            Signal::Settle { key, offset, verdict, reply } => self.settle(key, offset, verdict, reply),
            Signal::Acked { key, result } => self.note_acked(key, result),
            Signal::Starved => {
                self.is_starved = true;
                self.give_credit();
            }
            Signal::Extend { lease, duration, reply } => self.extend(lease, duration, Some(reply)),
            Signal::Extended { lease, result, reply } => self.note_extended(lease, result, reply),
            Signal::Close { timeout, done } => self.begin_close(timeout, done),
        }
    }

    fn settle(&mut self, key: ClaimKey, offset: Offset, verdict: Verdict, reply: Option<oneshot::Sender<Result<AckOutcome>>>) {
        self.open = self.open.saturating_sub(1);
        self.owed_messages = self.owed_messages.saturating_add(1);
        let is_abandoned = reply.is_none() && self.closing.is_some();
        self.with_claim(key, |claim| if is_abandoned { claim.abandon(offset) } else { claim.settle(offset, verdict, reply) });
        self.give_credit();
    }

    fn note_acked(&mut self, key: ClaimKey, result: Result<AckReply>) {
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::LeaseLost) {
            self.lose(key.lease, |info| info.key == key);
        }
        self.with_claim(key, |claim| claim.answer(result));
    }

    /// Changes a claim, then tells the server what can be told, and ends the lease if nothing of it is left.
    fn with_claim(&mut self, key: ClaimKey, change: impl FnOnce(&mut Claim)) {
        let Some(claim) = self.leases.get_mut(&key.lease).and_then(|lease| lease.claims.get_mut(key.claim)) else { return };
        change(claim);
        self.send_acks(key);
        self.end_if_done(key.lease);
    }

    fn send_acks(&mut self, key: ClaimKey) {
        let Some(claim) = self.leases.get_mut(&key.lease).and_then(|lease| lease.claims.get_mut(key.claim)) else { return };
        let Some(items) = claim.take_items() else { return };
        let request = AckRequest {
            queue: claim.info.queue.clone(),
            partition_id: claim.info.partition_id,
            group: self.options.request.group.clone(),
            lease_id: claim.info.lease_id.clone(),
            items,
        };
        let signals = self.signals.clone();
        let answer = Box::new(move |frame: Result<Frame>, _| {
            let result = frame.and_then(|frame| decode_reply::<AckRequest>(&frame));
            // The task has ended: nobody waits for the answer.
            let _ = signals.send(Signal::Acked { key, result });
        });
        if let Err(error) = self.client.link.call_later(&request, true, answer) {
            claim.answer(Err(error));
        }
    }

    pub(super) fn end_if_done(&mut self, number: u64) {
        let Some(lease) = self.leases.get(&number) else { return };
        if !lease.claims.iter().all(Claim::is_done) {
            return;
        }
        let is_held = lease.claims.iter().any(Claim::is_held);
        if let Some(mut lease) = self.leases.remove(&number) {
            self.owed_bytes = self.owed_bytes.saturating_add(lease.bytes);
            lease.claims.iter_mut().for_each(Claim::lose);
            if is_held {
                self.release(lease.id);
            }
        }
        self.give_credit();
    }

    pub(super) fn begin_close(&mut self, timeout: Duration, done: Option<oneshot::Sender<bool>>) {
        // `Instant` has an end; a timeout beyond it is none.
        let deadline = Instant::now().checked_add(timeout).unwrap_or_else(|| Instant::now() + DROP_TIMEOUT);
        match &mut self.closing {
            Some(closing) if done.is_some() => *closing = Closing { deadline, done },
            Some(_) => (),
            None => self.closing = Some(Closing { deadline, done }),
        }
        self.deliveries = None;
        if let Some(mut subscription) = self.subscription.take() {
            self.call_without_answer(&Unsubscribe { subscription: subscription.id });
            // What comes from now on goes back without being looked at; so does what waits here.
            subscription.frames.close();
            while let Ok(frame) = subscription.frames.try_recv() {
                if let Ok(Response::Delivery(delivery)) = Response::decode(frame.operation, &frame.body) {
                    self.release(delivery.0.lease_id);
                }
            }
        }
    }

    pub(super) fn release(&self, lease_id: String) {
        if !lease_id.is_empty() {
            self.call_without_answer(&Release { lease_id });
        }
    }

    fn call_without_answer<C: Call>(&self, call: &C) {
        // It fails only when the link is closed, and then the server has let go already.
        let _ = self.client.link.call_later(call, true, Box::new(|_, _| ()));
    }
}

/// Leases.
impl Task {
    pub(super) fn extend(&mut self, number: u64, duration: Duration, reply: Option<oneshot::Sender<Result<()>>>) {
        let lease = self.leases.get_mut(&number).filter(|lease| lease.claims.iter().any(Claim::is_held));
        let Some(lease) = lease else {
            if let Some(reply) = reply {
                // The application may have gone on.
                let _ = reply.send(Err(Error::lease_lost("the lease is over")));
            }
            return;
        };
        lease.extend_at = Instant::now() + self.options.lease / 3;
        let call = Extend { lease_id: lease.id.clone(), lease_ms: Some(milliseconds(duration).into()) };
        let signals = self.signals.clone();
        let answer = Box::new(move |frame: Result<Frame>, _| {
            let result = frame.and_then(|frame| decode_reply::<Extend>(&frame));
            // The task has ended: nobody waits for the answer.
            let _ = signals.send(Signal::Extended { lease: number, result, reply });
        });
        // It fails only when the link is closed; the answer's channel is dropped with it.
        let _ = self.client.link.call_later(&call, true, answer);
    }

    fn note_extended(&mut self, number: u64, result: Result<ExtendReply>, reply: Option<oneshot::Sender<Result<()>>>) {
        let result = match result {
            Ok(extended) if extended.renewed == 0 => Err(Error::lease_lost("the lease is over")),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::LeaseLost) {
            self.lose(number, |_| true);
        }
        if let Some(reply) = reply {
            // The application may have gone on.
            let _ = reply.send(result);
        }
    }

    /// The claims of a lease that are meant are over.
    pub(super) fn lose(&mut self, number: u64, is_meant: impl Fn(&ClaimInfo) -> bool) {
        let Some(lease) = self.leases.get_mut(&number) else { return };
        for claim in lease.claims.iter_mut().filter(|claim| is_meant(&claim.info) && !claim.is_lost()) {
            claim.lose();
            let info = &claim.info;
            self.client.link.emit(Event::LeaseLost {
                queue: info.queue.clone(),
                partition: info.partition.clone(),
                lease_id: info.lease_id.clone(),
            });
        }
        self.end_if_done(number);
    }
}
