//! One partition of a producer: the batch that is filling, and those under way, in order.
//!
//! Bookkeeping without I/O. The rule it keeps: sequences of one epoch reach the server in order and without a hole, or under a
//! new epoch. While a batch has failed, nothing newer is sent; when every older answer is in, the failed ones are sent again in
//! their order.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::{ErrorCode, PushReply};

use super::super::{Error, ErrorKind, Result};
use super::ProducerOptions;
use super::batch::{Batch, Entry, Mark, Progress, size};

const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// The state of a partition.
#[derive(Debug)]
pub struct Lane {
    filling: VecDeque<Entry>,
    filling_bytes: usize,
    filling_since: Option<Instant>,
    under_way: VecDeque<Batch>,
    /// Messages ever added.
    entries: u64,
    next: Mark,
    /// This sequence was given to a push that was refused or given up: what follows it must start a new epoch.
    hole: Option<u32>,
    backoff: Duration,
    retry_at: Option<Instant>,
    /// The task has it in its line of lanes that wait for room in flight.
    pub is_waiting: bool,
    /// The task has a timer for its oldest batch.
    pub has_deadline_timer: bool,
}

impl Lane {
    /// A lane whose sequences start at 0 in `epoch`.
    pub fn new(epoch: u32) -> Self {
        Self {
            filling: VecDeque::new(),
            filling_bytes: 0,
            filling_since: None,
            under_way: VecDeque::new(),
            entries: 0,
            next: Mark { epoch, sequence: 0 },
            hole: None,
            backoff: BACKOFF_MIN,
            retry_at: None,
            is_waiting: false,
            has_deadline_timer: false,
        }
    }

    /// Adds a message to the batch that is filling. Returns whether it is the first of it.
    pub fn add(&mut self, entry: Entry, now: Instant) -> bool {
        self.filling_bytes += size(&entry.message);
        self.filling.push_back(entry);
        self.entries += 1;
        self.filling_since.replace(self.filling_since.unwrap_or(now)).is_none()
    }

    /// Whether nothing is filling or under way.
    pub fn is_idle(&self) -> bool {
        self.filling.is_empty() && self.under_way.is_empty()
    }

    /// Messages ever added.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// How many messages, counted from the first one ever, have all been answered.
    pub fn answered(&self) -> u64 {
        let filling_start = self.entries - self.filling.len() as u64;
        self.under_way.front().map_or(filling_start, |batch| batch.first_entry)
    }

    /// Whether the filling batch may go now: it is full, or it waited long enough, or it is flushed. Never before failed ones, and
    /// not under a new epoch while pushes of the old one may still fail.
    pub fn is_ready(&self, now: Instant, options: &ProducerOptions, is_flushing: bool) -> bool {
        let Some(since) = self.filling_since else { return false };
        let is_full = self.filling_bytes >= options.batch_bytes_max || self.filling.len() >= options.batch_count_max;
        (is_flushing || is_full || now >= since + options.linger)
            && !self.has_failed()
            && (self.hole.is_none() || self.under_way.is_empty())
    }

    /// Closes a batch, to be sent.
    pub fn close_batch(
        &mut self,
        number: u64,
        partition: &str,
        options: &ProducerOptions,
        new_epoch: impl FnOnce() -> u32,
    ) -> Option<&mut Batch> {
        let since = self.filling_since?;
        let first_entry = self.entries - self.filling.len() as u64;
        let entries = self.take_entries(options);
        let mut batch = Batch::new(number, first_entry, since + options.delivery_timeout, partition, entries, options);
        if self.hole.is_some() || self.next.sequence == u32::MAX {
            self.start_epoch(new_epoch());
        }
        batch.set_mark(options.producer_id, take_mark(&mut self.next));
        self.under_way.push_back(batch);
        self.under_way.back_mut()
    }

    /// Notes the answer to a batch that was sent `sends` times. Returns whether the batch was under way.
    pub fn answer(&mut self, number: u64, result: Result<PushReply>, sends: u32) -> bool {
        let Some(index) = self.under_way.iter().position(|batch| batch.number == number) else { return false };
        match result {
            Ok(reply) => {
                self.backoff = BACKOFF_MIN;
                self.take(index, |batch| batch.succeed(&reply));
            }
            Err(error) if self.is_worth_repeating(&error, index, sends) => {
                if let Some(batch) = self.under_way.get_mut(index) {
                    batch.progress = Progress::Failed(error);
                }
            }
            Err(error) => {
                self.note_hole(index);
                self.take(index, |batch| batch.fail(&error));
            }
        }
        true
    }

    /// Starts the pause before a repeat, if one is due and not started. Returns when it ends.
    pub fn start_pause(&mut self, now: Instant) -> Option<Instant> {
        if self.retry_at.is_some() || !self.may_repeat() {
            return None;
        }
        let advised = self.under_way.iter().find_map(|batch| match &batch.progress {
            Progress::Failed(error) => error.retry_after(),
            _ => None,
        });
        let pause = advised.unwrap_or(self.backoff).min(BACKOFF_MAX);
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        self.retry_at = Some(now + pause);
        self.retry_at
    }

    /// Whether the pause before a repeat is over.
    pub fn is_ready_to_repeat(&self, now: Instant) -> bool {
        self.may_repeat() && self.retry_at.is_some_and(|retry_at| now >= retry_at)
    }

    /// The failed batches, to be sent again in this order. They keep their sequences, unless the server does not know what they
    /// follow on: then they start a new epoch.
    pub fn repeat(&mut self, producer_id: u64, new_epoch: impl FnOnce() -> u32) -> impl Iterator<Item = &mut Batch> {
        self.retry_at = None;
        let is_lost = match self.under_way.front().map(|batch| &batch.progress) {
            Some(Progress::Failed(error)) => error.code() == Some(ErrorCode::OutOfSequence),
            _ => false,
        };
        if self.hole.is_some() || is_lost {
            self.start_epoch(new_epoch());
            for batch in &mut self.under_way {
                batch.set_mark(producer_id, take_mark(&mut self.next));
            }
        }
        self.under_way.iter_mut()
    }

    /// Gives up batches whose deadline has passed: it is not known whether they are stored.
    pub fn expire(&mut self, now: Instant, mut forget: impl FnMut(&Batch)) {
        while self.under_way.front().is_some_and(|batch| now >= batch.deadline) {
            self.note_hole(0);
            self.take(0, |batch| {
                forget(&batch);
                let text = match &batch.progress {
                    Progress::Failed(error) => format!("message not stored in time: {error}"),
                    _ => "no answer to the push in time".to_owned(),
                };
                batch.fail(&Error::new(ErrorKind::Timeout, text));
            });
        }
        if self.under_way.is_empty() {
            self.retry_at = None;
        }
    }

    /// When the oldest batch under way is given up.
    pub fn deadline(&self) -> Option<Instant> {
        self.under_way.front().map(|batch| batch.deadline)
    }

    /// Gives everything up. Returns how many batches wait for an answer.
    pub fn fail_all(self, error: &Error) -> usize {
        let sent = self.under_way.iter().filter(|batch| matches!(batch.progress, Progress::Sent(_))).count();
        self.under_way.into_iter().for_each(|batch| batch.fail(error));
        for entry in self.filling {
            // Nobody need be waiting for it.
            let _ = entry.receipt.send(Err(error.clone()));
        }
        sent
    }

    fn take_entries(&mut self, options: &ProducerOptions) -> Vec<Entry> {
        let mut bytes = 0;
        let mut entries = Vec::with_capacity(self.filling.len().min(options.batch_count_max));
        while let Some(entry) = self.filling.front() {
            let entry_bytes = size(&entry.message);
            if entries.len() == options.batch_count_max || (bytes > 0 && bytes + entry_bytes > options.batch_bytes_max) {
                break;
            }
            bytes += entry_bytes;
            entries.extend(self.filling.pop_front());
        }
        self.filling_bytes -= bytes;
        if self.filling.is_empty() {
            self.filling_since = None;
        }
        entries
    }

    /// Whether a refused batch is to be sent again. One that is out of sequence follows a batch that failed, or the server forgot
    /// the producer. If nothing before it failed and it was sent more than once, an earlier try may have stored it: repeating it
    /// under a new epoch might store it twice.
    fn is_worth_repeating(&self, error: &Error, index: usize, sends: u32) -> bool {
        if error.code() != Some(ErrorCode::OutOfSequence) {
            return error.is_retryable();
        }
        let follows_hole = match (self.hole, self.under_way.get(index)) {
            (Some(hole), Some(batch)) => batch.mark().sequence > hole,
            _ => false,
        };
        index > 0 || sends <= 1 || follows_hole
    }

    fn may_repeat(&self) -> bool {
        self.has_failed() && !self.under_way.iter().any(|batch| matches!(batch.progress, Progress::Sent(_)))
    }

    fn has_failed(&self) -> bool {
        self.under_way.iter().any(|batch| matches!(batch.progress, Progress::Failed(_)))
    }

    fn note_hole(&mut self, index: usize) {
        let Some(mark) = self.under_way.get(index).map(Batch::mark) else { return };
        if mark.epoch == self.next.epoch {
            self.hole = Some(self.hole.unwrap_or(mark.sequence).min(mark.sequence));
        }
    }

    fn take(&mut self, index: usize, finish: impl FnOnce(Batch)) {
        if let Some(batch) = self.under_way.remove(index) {
            finish(batch);
        }
    }

    fn start_epoch(&mut self, epoch: u32) {
        self.next = Mark { epoch, sequence: 0 };
        self.hole = None;
    }
}

fn take_mark(next: &mut Mark) -> Mark {
    let mark = *next;
    next.sequence = next.sequence.saturating_add(1);
    mark
}
