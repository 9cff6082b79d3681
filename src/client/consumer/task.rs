//! The consumer's task: subscription, leases, acknowledgements.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::model::StoredMessage;
use crate::model::{AckOutcome, AckReply, AckRequest, Claim as WireClaim, ExtendReply, PopReply, PopRequest, PopSource};
use crate::protocol::{Credit, Extend, Frame, GroupGet, LeaseEnded, Release, Response, Subscribe, Unsubscribe};
use crate::record::Offset;

use super::super::admin::milliseconds;
use super::super::link::{Status, SubscriptionFrames, frame_result};
use super::super::unpack::messages_of;
use super::super::{Client, Error, ErrorKind, Event, Result, decode_reply};
use super::claim::Claim;
use super::delivery::{ClaimInfo, ClaimKey, Delivery, Verdict};

/// How long a dropped consumer waits for messages that are still held.
pub const DROP_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause before a refused subscription is tried again.
const RESUBSCRIBE_PAUSE: Duration = Duration::from_secs(1);

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
struct Lease {
    id: String,
    claims: Vec<Claim>,
    bytes: u32,
    extend_at: Instant,
}

struct Closing {
    deadline: Instant,
    done: Option<oneshot::Sender<bool>>,
}

struct Task {
    client: Client,
    options: TaskOptions,
    signals: mpsc::UnboundedSender<Signal>,
    /// `None` once the consumer takes no more.
    deliveries: Option<mpsc::UnboundedSender<Result<Delivery>>>,
    subscription: Option<SubscriptionFrames>,
    leases: BTreeMap<u64, Lease>,
    next_lease: u64,
    /// Whether the group is a work queue; asked when the first messages come, if the application says that it may be.
    is_shared: Option<bool>,
    /// Messages that are here and not settled.
    open: u32,
    /// Credit that was used and is not given back to the server yet.
    owed_messages: u32,
    owed_bytes: u32,
    /// Not before then is a refused subscription tried again.
    resubscribe_at: Option<Instant>,
    /// Which start of the server the leases are of.
    start_number: Option<u64>,
    closing: Option<Closing>,
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
            Signal::Starved => self.give_credit(true),
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
        self.give_credit(false);
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

    fn end_if_done(&mut self, number: u64) {
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
        self.give_credit(false);
    }

    fn begin_close(&mut self, timeout: Duration, done: Option<oneshot::Sender<bool>>) {
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

    fn release(&self, lease_id: String) {
        if !lease_id.is_empty() {
            self.call_without_answer(&Release { lease_id });
        }
    }

    fn call_without_answer<C: crate::protocol::Call>(&self, call: &C) {
        // It fails only when the link is closed, and then the server has let go already.
        let _ = self.client.link.call_later(call, true, Box::new(|_, _| ()));
    }
}

/// Leases.
impl Task {
    fn extend(&mut self, number: u64, duration: Duration, reply: Option<oneshot::Sender<Result<()>>>) {
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
    fn lose(&mut self, number: u64, is_meant: impl Fn(&ClaimInfo) -> bool) {
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

/// The subscription.
impl Task {
    async fn receive(&mut self, frame: Frame) {
        let response = match frame_result(frame) {
            Ok(frame) => Response::decode(frame.operation, &frame.body).map(|response| (response, frame.body.len())),
            Err(error) => return self.subscription_refused(error),
        };
        match response {
            Ok((Response::Delivery(delivery), bytes)) => self.accept(delivery.0, bytes).await,
            Ok((Response::LeaseEnded(ended), _)) => self.lease_ended(&ended),
            Ok(_) => (),
            Err(error) => self.fail(error.into()),
        }
    }

    /// The server does not open the subscription, or ended it.
    fn subscription_refused(&mut self, error: Error) {
        self.subscription = None;
        if error.is_retryable() {
            self.resubscribe_at = Some(Instant::now() + error.retry_after().unwrap_or(RESUBSCRIBE_PAUSE));
        } else {
            self.fail(error);
        }
    }

    /// The stream ends with this error.
    fn fail(&mut self, error: Error) {
        if let Some(deliveries) = self.deliveries.take() {
            // The consumer may be gone.
            let _ = deliveries.send(Err(error));
        }
        self.begin_close(DROP_TIMEOUT, None);
    }

    async fn accept(&mut self, reply: PopReply, bytes: usize) {
        let is_shared = self.is_shared().await;
        let number = self.next_lease;
        self.next_lease += 1;
        let mut claims = Vec::with_capacity(reply.claims.len());
        let mut deliveries = Vec::new();
        for (index, claim) in reply.claims.into_iter().enumerate() {
            if let Some(range) = claim.lost {
                let (queue, partition) = (claim.queue.clone(), claim.partition.clone());
                self.client.link.emit(Event::MessagesLost { queue, partition, range });
            }
            let (info, messages) = match open_claim(ClaimKey { lease: number, claim: index }, claim, &reply.lease_id) {
                Ok(opened) => opened,
                Err(error) => {
                    self.release(reply.lease_id);
                    return self.fail(error);
                }
            };
            claims.push(Claim::new(Arc::clone(&info), is_shared, messages.iter().map(|message| message.offset)));
            deliveries
                .extend(messages.into_iter().map(|message| Delivery::new(message, Arc::clone(&info), self.signals.clone())));
        }
        self.open = self.open.saturating_add(u32::try_from(deliveries.len()).unwrap_or(u32::MAX));
        let lease = Lease {
            id: reply.lease_id,
            claims,
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            extend_at: Instant::now() + self.options.lease / 3,
        };
        self.leases.insert(number, lease);
        if let Some(sender) = &self.deliveries {
            // A consumer that is gone says so by a signal; what comes back settles as dropped.
            deliveries.into_iter().for_each(|delivery| drop(sender.send(Ok(delivery))));
        }
        self.end_if_done(number);
    }

    /// Whether each message is settled by itself. The application's word is not enough: acknowledging out of order in a group
    /// that is ordered would skip messages.
    async fn is_shared(&mut self) -> bool {
        if let Some(is_shared) = self.is_shared {
            return is_shared;
        }
        let queue = match &self.options.request.source {
            PopSource::Partition { queue, .. } | PopSource::Queue(queue) => queue.clone(),
            PopSource::Discover { .. } => return false,
        };
        let group = self.options.request.group.clone();
        let is_shared = match self.client.call(&GroupGet { queue, group }).await {
            Ok(progress) => progress.group.shared,
            // In order is right in both modes.
            Err(_) => return false,
        };
        self.is_shared = Some(is_shared);
        is_shared
    }

    fn lease_ended(&mut self, ended: &LeaseEnded) {
        let numbers: Vec<u64> =
            self.leases.iter().filter(|(_, lease)| lease.id == ended.lease_id).map(|(number, _)| *number).collect();
        for number in numbers {
            self.lose(number, |info| match &ended.partition {
                Some(partition) => partition.queue == info.queue && partition.partition_id == info.partition_id,
                None => true,
            });
        }
    }

    /// Tells the server of credit that is free again: in large steps, or at once when nothing is left here.
    fn give_credit(&mut self, is_starved: bool) {
        let is_owed = self.owed_messages > 0 || self.owed_bytes > 0;
        let is_due = self.owed_messages >= (self.options.prefetch / 2).max(1)
            || self.owed_bytes >= self.options.prefetch_bytes / 2
            || self.open == 0
            || is_starved;
        let Some(subscription) = &self.subscription else { return };
        if is_owed && is_due {
            let credit = Credit { subscription: subscription.id, messages: self.owed_messages, bytes: self.owed_bytes };
            (self.owed_messages, self.owed_bytes) = (0, 0);
            self.client.link.credit(&credit);
        }
    }

    /// Opens the subscription, again after a lost connection. What is held stays held: leases belong to their ids, not to the
    /// connection. Those of an earlier start of the server are over; one that ended otherwise is found out by extending it.
    fn resubscribe(&mut self, connected: Result<u64>) {
        let start_number = match connected {
            Ok(start_number) => start_number,
            Err(error) => return self.fail(error),
        };
        let numbers: Vec<u64> = self.leases.keys().copied().collect();
        let is_restarted = self.start_number.replace(start_number).is_some_and(|before| before != start_number);
        for number in numbers {
            match is_restarted {
                true => self.lose(number, |_| true),
                false if self.options.auto_extend => self.extend(number, self.options.lease, None),
                false => (),
            }
        }
        let held_bytes = self.leases.values().map(|lease| lease.bytes).fold(0, u32::saturating_add);
        let call = Subscribe {
            request: self.options.request.clone(),
            credit_messages: self.options.prefetch.saturating_sub(self.open),
            credit_bytes: self.options.prefetch_bytes.saturating_sub(held_bytes),
        };
        (self.owed_messages, self.owed_bytes) = (0, 0);
        // Every delivery has a message and thus uses credit; the rest is for notices.
        match self.client.link.subscribe(&call, self.options.prefetch as usize + 64) {
            Ok(subscription) => self.subscription = Some(subscription),
            Err(error) => self.subscription_refused(error),
        }
    }
}

/// The next frame of a subscription; `None` if there is none, or if it ended with its connection.
async fn next_frame(subscription: &mut Option<SubscriptionFrames>) -> Option<Frame> {
    match subscription {
        Some(subscription) => subscription.frames.recv().await,
        None => None,
    }
}

/// Waits for a connection. Returns the server's start number.
async fn wait_connected(client: &Client) -> Result<u64> {
    let mut status = client.link.status();
    loop {
        match &*status.borrow_and_update() {
            Status::Connected(hello) => return Ok(hello.start_number),
            Status::Closed(error) => return Err(error.clone()),
            Status::Disconnected => (),
        }
        status.changed().await.map_err(|_| Error::closed())?;
    }
}

/// What the deliveries of a claim share, and its messages with their delivery counts.
fn open_claim(key: ClaimKey, claim: WireClaim, lease_id: &str) -> Result<(Arc<ClaimInfo>, Vec<StoredMessage>)> {
    let mut messages = messages_of(claim.batches)?;
    if let Some(first) = messages.first_mut() {
        first.delivery_count = first.delivery_count.max(claim.delivery_count);
    }
    messages.iter_mut().for_each(|message| message.delivery_count = message.delivery_count.max(1));
    let info = ClaimInfo {
        key,
        queue: claim.queue,
        partition: claim.partition,
        partition_id: claim.partition_id,
        lease_id: lease_id.to_owned(),
        last_error: claim.last_error,
        is_lost: AtomicBool::new(false),
    };
    Ok((Arc::new(info), messages))
}
