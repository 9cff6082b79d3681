//! Requests in line for a commit.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::{AckReply, Error, Now, PushReply};

use super::acknowledge::ResolvedAck;
use super::completion::{Done, Signal};
use super::prepare::Prepared;
use super::stage::Stage;

/// Bytes of pushes that one commit takes; the rest waits for the next.
const COMMIT_BYTES_MAX: usize = 16 << 20;
/// The longest wait for more requests: a disk that stood still for a while says nothing about who comes.
const PATIENCE_MAX: Duration = Duration::from_millis(2);

/// Requests that wait for a commit, in their order.
#[derive(Default)]
pub(super) struct Line {
    jobs: VecDeque<Job>,
    /// Threads that wait for an outcome while another commits.
    pub waiting: VecDeque<Arc<Signal>>,
    newest: Option<Now>,
    /// What the last commit lets expect of the next.
    expected: Option<Expected>,
    /// Somebody waits for that.
    is_awaited: bool,
    /// The engine closes: what comes now would not be looked at any more.
    pub is_shut: bool,
}

/// How long it is worth to wait for more requests before the next commit, and for how many.
#[derive(Clone, Copy)]
struct Expected {
    jobs: usize,
    until: Instant,
}

/// A request in line.
pub(super) enum Job {
    Push(Box<Prepared>, Done<PushReply>),
    Ack(Box<ResolvedAck>, Done<AckReply>),
    /// Committed by itself.
    Exclusive(Box<dyn Exclusive>),
}

/// Decides with the stage to itself.
pub(super) trait Exclusive: Send {
    /// Decides; what it returns hears whether the commit went well.
    fn decide(self: Box<Self>, stage: &mut Stage<'_>) -> Finish;
    /// Hears that it did not come to its turn.
    fn refuse(self: Box<Self>, error: Error);
}

/// Hears the outcome of the commit.
pub(super) type Finish = Box<dyn FnOnce(Result<(), Error>) + Send>;

pub(super) struct Decision<T, F> {
    pub decide: F,
    pub done: Done<T>,
}

impl<T, F> Exclusive for Decision<T, F>
where
    T: Send + 'static,
    F: FnOnce(&mut Stage<'_>) -> Result<T, Error> + Send + 'static,
{
    fn decide(self: Box<Self>, stage: &mut Stage<'_>) -> Finish {
        let Self { decide, done } = *self;
        let decision = decide(stage);
        Box::new(move |outcome| done(decision.and_then(|value| outcome.map(|()| value))))
    }

    fn refuse(self: Box<Self>, error: Error) {
        (self.done)(Err(error));
    }
}

impl Job {
    /// Bytes that it adds to the log, about.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Push(prepared, _) => prepared.bytes,
            Self::Ack(ack, _) => ack.bytes(),
            Self::Exclusive(_) => 0,
        }
    }

    /// Tells the requester that nothing happened.
    pub fn refuse(self, error: Error) {
        match self {
            Self::Push(_, done) => done(Err(error)),
            Self::Ack(_, done) => done(Err(error)),
            Self::Exclusive(exclusive) => exclusive.refuse(error),
        }
    }
}

impl Line {
    /// Puts a request at the end. Whether the wait before a commit is over by it: what is committed by itself is not waited with.
    pub fn push(&mut self, job: Job, now: Now) -> bool {
        // By the steady clock: the other one may have gone back.
        if self.newest.is_none_or(|newest| newest.steady_us <= now.steady_us) {
            self.newest = Some(now);
        }
        if matches!(job, Job::Exclusive(_)) {
            self.expected = None;
        }
        self.jobs.push_back(job);
        self.is_awaited && self.expected.is_none_or(|expected| self.jobs.len() >= expected.jobs)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Takes all of them out.
    pub fn clear(&mut self) -> VecDeque<Job> {
        std::mem::take(&mut self.jobs)
    }

    /// What the next commit takes, and the newest time of all that was ever in line.
    pub fn take(&mut self) -> Option<(Vec<Job>, Now)> {
        let now = self.newest?;
        let mut bytes = 0;
        let mut jobs = Vec::new();
        while let Some(job) = self.jobs.front() {
            let is_exclusive = matches!(job, Job::Exclusive(_));
            let is_over = bytes > 0 && bytes + job.bytes() > COMMIT_BYTES_MAX;
            if !jobs.is_empty() && (is_exclusive || is_over) {
                break;
            }
            bytes += job.bytes();
            jobs.extend(self.jobs.pop_front());
            if is_exclusive {
                break;
            }
        }
        (!jobs.is_empty()).then_some((jobs, now))
    }

    /// A commit of so many requests that took so long is over. If half of those who wait for answers are in one commit and half in the
    /// next, some are heard while others are synced; it is not worth to wait for them longer than another commit takes.
    pub fn expect(&mut self, count: usize, took: Duration, now: Instant) {
        let jobs = usize::midpoint(count, self.jobs.len());
        self.expected = (jobs > 1).then(|| Expected { jobs, until: now + took.min(PATIENCE_MAX) });
    }

    /// How long to wait before the next commit for those that the last one answered to ask again. Without it a busy queue commits the
    /// first request that comes back alone, and the others wait for the commit after that: twice the syncs, each for half of the
    /// requests. `None` if there is nothing to wait for.
    pub fn patience(&mut self, now: Instant) -> Option<Duration> {
        let missing = self.expected.filter(|expected| self.jobs.len() < expected.jobs && !self.is_shut);
        let left = missing.map(|expected| expected.until.saturating_duration_since(now)).filter(|left| !left.is_zero());
        self.is_awaited = left.is_some();
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Exclusive for Nothing {
        fn decide(self: Box<Self>, _: &mut Stage<'_>) -> Finish {
            Box::new(|_| {})
        }

        fn refuse(self: Box<Self>, _: Error) {}
    }

    fn job() -> Job {
        Job::Exclusive(Box::new(Nothing))
    }

    const COMMIT: Duration = Duration::from_micros(300);

    #[test]
    fn one_client_at_a_time_is_not_kept_waiting() {
        let (mut line, now) = (Line::default(), Instant::now());
        assert!(line.patience(now).is_none(), "nothing was committed");
        line.expect(1, COMMIT, now);
        assert!(line.patience(now).is_none(), "one was answered");
    }

    #[test]
    fn half_of_those_who_were_answered_are_waited_for_and_no_longer_than_a_commit() {
        let (mut line, now) = (Line::default(), Instant::now());
        line.expect(4, COMMIT, now);
        assert_eq!(line.patience(now), Some(COMMIT));
        assert!(line.patience(now + COMMIT).is_none(), "the time is over");
        line.expect(4, Duration::from_secs(60), now);
        assert_eq!(line.patience(now), Some(PATIENCE_MAX), "a commit of a minute keeps nobody for another");
        assert!(line.push(job(), Now::read()), "what is committed by itself goes on at once");
        assert!(line.patience(now).is_none());
        assert_eq!(line.take().unwrap().0.len(), 1);
        line.expect(2, COMMIT, now);
        assert!(line.patience(now).is_none(), "one of two");
        line.expect(8, COMMIT, now);
        line.is_shut = true;
        assert!(line.patience(now).is_none(), "nobody comes any more");
    }
}
