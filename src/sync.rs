//! The locks, atomics and threads of the engine and the storage: the standard library's, or those of the `shuttle` scheduler.
//!
//! With the feature `shuttle` every lock that is taken and every atomic that is touched is a place where the scheduler may let another
//! thread go on, so that `tests/concurrency` runs the engine itself through orders of events that a machine shows once in a year. A
//! build without the feature has the standard library's types under their own names, and nothing else. `Arc` and what is counted for
//! statistics alone stay the standard library's: no order of them decides anything.

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{sync::*, thread};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::{sync::*, thread};
