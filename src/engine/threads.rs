//! Threads that commit and keep time, for a server. They read the machine's clocks.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::model::{Error, ErrorCode, Now};
use crate::sync::atomic::Ordering;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex};

use super::answers::Answers;
use super::queue::Queue;
use super::{Engine, Result};

/// Hands queues with work to committer threads.
#[derive(Default)]
pub(super) struct Scheduler {
    line: Mutex<Line>,
    /// A queue has work.
    has_work: Condvar,
    /// A queue wants a segment.
    wants_spare: Condvar,
    /// The threads are to stop.
    stopped: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Line {
    queues: VecDeque<Arc<Queue>>,
    spares: VecDeque<Arc<Queue>>,
    is_stopped: bool,
}

impl Scheduler {
    /// Has the queue committed by one of the threads, soon.
    pub fn schedule(&self, queue: &Arc<Queue>) {
        if queue.is_scheduled.swap(true, Ordering::AcqRel) {
            return;
        }
        self.lock().queues.push_back(Arc::clone(queue));
        self.has_work.notify_one();
    }

    /// Whether no queue waits for a thread.
    fn is_idle(&self) -> bool {
        self.lock().queues.is_empty()
    }

    /// Has a segment made for the queue, soon.
    fn want_spare(&self, queue: &Arc<Queue>) {
        let mut line = self.lock();
        if !line.spares.iter().any(|other| Arc::ptr_eq(other, queue)) {
            line.spares.push_back(Arc::clone(queue));
            self.wants_spare.notify_one();
        }
    }

    fn next_spare(&self) -> Option<Arc<Queue>> {
        let mut line = self.lock();
        loop {
            if line.is_stopped {
                return None;
            }
            if let Some(queue) = line.spares.pop_front() {
                return Some(queue);
            }
            line = self.wants_spare.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn next(&self) -> Option<Turn<'_>> {
        let mut line = self.lock();
        loop {
            if let Some(queue) = line.queues.pop_front() {
                return Some(Turn { scheduler: self, queue });
            }
            if line.is_stopped {
                return None;
            }
            line = self.has_work.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until it is time, or the threads stop; whether they go on.
    fn sleep(&self, duration: Duration) -> bool {
        let line = self.lock();
        if line.is_stopped {
            return false;
        }
        let (line, _) = self.stopped.wait_timeout(line, duration).unwrap_or_else(PoisonError::into_inner);
        !line.is_stopped
    }

    /// Ends the threads after what is in line is done.
    pub fn stop(&self) {
        self.lock().is_stopped = true;
        self.has_work.notify_all();
        self.wants_spare.notify_all();
        self.stopped.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A thread that panicked has said so; what it had in hand is refused when its completions are dropped.
            let _ = thread.join();
        }
    }

    fn lock(&self) -> crate::sync::MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A queue in the hands of a committer thread. It stays scheduled meanwhile, so that no other thread comes for it and waits.
struct Turn<'a> {
    scheduler: &'a Scheduler,
    queue: Arc<Queue>,
}

impl Drop for Turn<'_> {
    /// Puts the queue behind the others if there is more to commit: a busy queue does not keep them from their turn.
    fn drop(&mut self) {
        if !self.queue.has_jobs() {
            self.queue.is_scheduled.swap(false, Ordering::AcqRel);
            // What came in between the two did not schedule it.
            if !self.queue.has_jobs() || self.queue.is_scheduled.swap(true, Ordering::AcqRel) {
                return;
            }
        }
        self.scheduler.lock().queues.push_back(Arc::clone(&self.queue));
        self.scheduler.has_work.notify_one();
    }
}

impl Engine {
    /// Starts threads that commit what is submitted, one that keeps time, and one that makes segments ahead of need. They end with
    /// [`Engine::close`].
    ///
    /// # Errors
    ///
    /// If the system gives no threads.
    pub fn start_threads(&self, committers: usize) -> Result<()> {
        let mut threads = self.shared.scheduler.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for number in 0..committers.max(1) {
            let engine = self.clone();
            threads.push(spawn(format!("fanlog-commit-{number}"), move || engine.commit_loop())?);
        }
        let engine = self.clone();
        threads.push(spawn("fanlog-time".to_owned(), move || engine.time_loop())?);
        let engine = self.clone();
        threads.push(spawn("fanlog-spare".to_owned(), move || engine.spare_loop())?);
        Ok(())
    }

    fn commit_loop(&self) {
        while let Some(turn) = self.shared.scheduler.next() {
            let queue = Arc::clone(&turn.queue);
            if self.shared.scheduler.is_idle() {
                queue.gather();
            }
            let answers = queue.commit(&mut queue.committer());
            if queue.spares.is_wanted() {
                self.shared.scheduler.want_spare(&queue);
            }
            // Another thread may go on with the queue while this one sends the answers.
            drop(turn);
            answers.into_iter().for_each(Answers::send);
        }
    }

    fn time_loop(&self) {
        const LONGEST: Duration = Duration::from_millis(50);
        loop {
            let now = Now::read();
            let next_us = self.tick(now);
            let wait = Duration::from_micros(next_us.saturating_sub(now.steady_us)).clamp(Duration::from_millis(1), LONGEST);
            if !self.shared.scheduler.sleep(wait) {
                return;
            }
        }
    }

    fn spare_loop(&self) {
        while let Some(queue) = self.shared.scheduler.next_spare() {
            if !queue.is_deleted() {
                // Without room the roll itself will say so.
                let _ = queue.spares.make();
            }
        }
    }
}

fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let builder = thread::Builder::new().name(name);
    builder.spawn(body).map_err(|error| Error::new(ErrorCode::Internal, format!("start a thread: {error}")))
}
