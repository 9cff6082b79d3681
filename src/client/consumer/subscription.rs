//! The consumer's subscription: opening it, taking what it brings, giving credit for it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::{Claim as WireClaim, PopReply, PopSource, StoredMessage};
use crate::protocol::{Credit, Frame, GroupGet, LeaseEnded, Response, Subscribe};

use super::super::link::{Status, SubscriptionFrames, frame_result};
use super::super::unpack::messages_of_claim;
use super::super::{Client, Error, Event, Result};
use super::claim::Claim;
use super::delivery::{ClaimInfo, ClaimKey, Delivery};
use super::task::{DROP_TIMEOUT, Lease, Task};

/// Pause before a refused subscription is tried again.
const RESUBSCRIBE_PAUSE: Duration = Duration::from_secs(1);

impl Task {
    pub(super) async fn receive(&mut self, frame: Frame) {
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
        self.is_starved &= deliveries.is_empty();
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

    /// Tells the server of credit that is free again: in large steps, so that it sends large deliveries, or at once when the
    /// application waits and the server may send nothing.
    pub(super) fn give_credit(&mut self) {
        let Some(subscription) = &self.subscription else { return };
        let is_large = self.owed_messages >= (self.options.prefetch / 2).max(1)
            || self.owed_bytes >= (self.options.prefetch_bytes / 2).max(1);
        let is_owed = self.owed_messages > 0 || self.owed_bytes > 0;
        if is_large || (is_owed && self.is_starved && self.is_server_without_credit()) {
            let credit = Credit { subscription: subscription.id, messages: self.owed_messages, bytes: self.owed_bytes };
            (self.owed_messages, self.owed_bytes) = (0, 0);
            self.client.link.credit(&credit);
        }
    }

    fn is_server_without_credit(&self) -> bool {
        let held_bytes = self.leases.values().map(|lease| lease.bytes).fold(0, u32::saturating_add);
        self.open.saturating_add(self.owed_messages) >= self.options.prefetch
            || held_bytes.saturating_add(self.owed_bytes) >= self.options.prefetch_bytes
    }

    /// Opens the subscription, again after a lost connection. What is held stays held: leases belong to their ids, not to the
    /// connection. Those of an earlier start of the server are over; one that ended otherwise is found out by extending it.
    pub(super) fn resubscribe(&mut self, connected: Result<u64>) {
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
pub(super) async fn next_frame(subscription: &mut Option<SubscriptionFrames>) -> Option<Frame> {
    match subscription {
        Some(subscription) => subscription.frames.recv().await,
        None => None,
    }
}

/// Waits for a connection. Returns the server's start number.
pub(super) async fn wait_connected(client: &Client) -> Result<u64> {
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
    let messages = messages_of_claim(&claim)?;
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
