//! Waiting for the outcome of a submitted request.

use std::sync::{Arc, PoisonError};

use crate::model::{Error, ErrorCode};
use crate::sync::{Condvar, Mutex};

/// Hears the outcome of a submitted request, once, from whichever thread commits it.
pub(super) type Done<T> = Box<dyn FnOnce(Result<T, Error>) + Send>;

/// A place for an outcome that a thread waits for.
#[derive(Debug)]
pub(super) struct Completion<T> {
    slot: Arc<Slot<T>>,
    signal: Arc<Signal>,
}

#[derive(Debug)]
struct Slot<T> {
    outcome: Mutex<Option<Result<T, Error>>>,
}

/// Wakes the thread that waits: because the outcome is there, or because it is asked to commit what is in line.
#[derive(Debug, Default)]
pub(super) struct Signal {
    state: Mutex<Wakened>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Wakened {
    is_done: bool,
    is_asked: bool,
}

impl Signal {
    /// Asks the thread to commit. Whether it still waits.
    pub fn ask(&self) -> bool {
        let mut state = self.lock();
        state.is_asked = true;
        self.changed.notify_all();
        !state.is_done
    }

    fn finish(&self) {
        self.lock().is_done = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> crate::sync::MutexGuard<'_, Wakened> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fills the slot; dropped without having been called, it says that nobody will.
struct Filler<T> {
    slot: Arc<Slot<T>>,
    signal: Arc<Signal>,
}

impl<T> Filler<T> {
    fn fill(&self, outcome: Result<T, Error>) {
        let mut slot = self.slot.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            *slot = Some(outcome);
        }
    }
}

impl<T> Drop for Filler<T> {
    fn drop(&mut self) {
        self.fill(Err(Error::new(ErrorCode::ShuttingDown, "the request was dropped before its commit")));
        self.signal.finish();
    }
}

impl<T: Send + 'static> Completion<T> {
    /// A place, and what fills it.
    pub fn new() -> (Self, Done<T>) {
        let slot = Arc::new(Slot { outcome: Mutex::new(None) });
        let signal = Arc::<Signal>::default();
        let filler = Filler { slot: Arc::clone(&slot), signal: Arc::clone(&signal) };
        (Self { slot, signal }, Box::new(move |outcome| filler.fill(outcome)))
    }

    /// What wakes the waiting thread.
    pub fn signal(&self) -> &Arc<Signal> {
        &self.signal
    }

    /// Whether the outcome is there.
    pub fn is_done(&self) -> bool {
        self.signal.lock().is_done
    }

    /// Waits until the outcome is there or the thread is asked to commit; whether it is there.
    pub fn wait(&self) -> bool {
        let mut state = self.signal.lock();
        while !state.is_done && !state.is_asked {
            state = self.signal.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_asked = false;
        state.is_done
    }

    /// The outcome, once it is there.
    pub fn take(self) -> Result<T, Error> {
        let mut slot = self.slot.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        slot.take().unwrap_or_else(|| Err(Error::new(ErrorCode::Internal, "the outcome was taken before it was there")))
    }
}
