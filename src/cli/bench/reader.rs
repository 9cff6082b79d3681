//! A connection that reads partitions back without a group, to see that what was answered is there.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Result;
use fanlog::model::{FetchReply, FetchRequest};
use fanlog::protocol::{Fetch, Frame, Wire, encode_call};

use super::check::Ledger;
use super::consumer::each_message;
use super::drive::{Actor, Next, Tally};
use super::link::{Link, refuse_error};
use super::stock::partition_name;

/// Bytes of an answer at most.
const FETCH_BYTES_MAX: u32 = 1 << 20;

/// A connection that reads back.
pub struct Reader {
    link: Link,
    queue: String,
    /// Partitions that are left, and the offset to go on from in each.
    left: Vec<(u32, u64)>,
    is_waiting: bool,
    ledger: Arc<Mutex<Ledger>>,
}

impl Reader {
    /// Reads these partitions, each from its offset to its end.
    pub fn new(link: Link, queue: String, partitions: Vec<(u32, u64)>, ledger: &Arc<Mutex<Ledger>>) -> Self {
        Self { link, queue, left: partitions, is_waiting: false, ledger: Arc::clone(ledger) }
    }
}

impl Actor for Reader {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    fn take(&mut self, frame: Frame, _: &mut Tally) -> Result<bool> {
        refuse_error(&frame)?;
        self.is_waiting = false;
        let reply = FetchReply::from_body(&frame.body)?;
        let Some((partition, from)) = self.left.last_mut() else { return Ok(false) };
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        for batch in &reply.batches {
            each_message(batch, |offset, payload| {
                if offset >= *from {
                    ledger.note(Some(*partition), payload, None);
                }
            })?;
        }
        *from = reply.next;
        if reply.next >= reply.end || reply.batches.is_empty() {
            self.left.pop();
        }
        Ok(true)
    }

    fn advance(&mut self, _: Instant, _: &mut Tally) -> Result<Next> {
        if let Some((partition, from)) = self.left.last()
            && !self.is_waiting
        {
            let request = FetchRequest {
                queue: self.queue.clone(),
                partition: partition_name(*partition),
                from: *from,
                to: None,
                messages_max: u32::MAX,
                bytes_max: FETCH_BYTES_MAX,
            };
            self.is_waiting = true;
            self.link.send(&encode_call(&Fetch { request, wait_ms: 0 }, 1).into_bytes())?;
        }
        Ok(if self.left.is_empty() { Next::Done } else { Next::Wait })
    }
}
