//! Waiting for the outcome of a submitted request.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::model::Error;

/// Hears the outcome of a submitted request, once, from whichever thread commits it.
pub(super) type Done<T> = Box<dyn FnOnce(Result<T, Error>) + Send>;

/// A place for an outcome that a thread waits for.
#[derive(Debug)]
pub(super) struct Completion<T> {
    slot: Arc<(Mutex<Option<Result<T, Error>>>, Condvar)>,
}

impl<T: Send + 'static> Completion<T> {
    /// A place, and what fills it.
    pub fn new() -> (Self, Done<T>) {
        let slot = Arc::new((Mutex::new(None), Condvar::new()));
        let filled = Arc::clone(&slot);
        let done = Box::new(move |outcome| {
            *filled.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
            filled.1.notify_all();
        });
        (Self { slot }, done)
    }

    /// Whether the outcome is there.
    pub fn is_done(&self) -> bool {
        self.slot.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Waits for the outcome.
    pub fn wait(self) -> Result<T, Error> {
        let mut slot = self.slot.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = slot.take() {
                return outcome;
            }
            slot = self.slot.1.wait(slot).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
