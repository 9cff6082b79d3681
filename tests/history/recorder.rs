//! Writes down calls as they are made.

use std::future::Future;
use std::sync::Mutex;
use std::time::Instant;

use fanlog::client::{Error, ErrorKind};
use fanlog::model::ErrorCode;

use crate::history::{Call, Event, Group, History, Outcome, Time};

/// A history that is being made.
#[derive(Debug)]
pub struct Recorder {
    start: Instant,
    history: Mutex<History>,
}

/// A call that has ended, with its answer or without.
#[derive(Debug)]
pub struct Ended<T> {
    pub invoked: Time,
    pub ended: Time,
    pub answer: Result<T, Outcome>,
}

impl Recorder {
    pub fn new(groups: Vec<Group>) -> Self {
        Self { start: Instant::now(), history: Mutex::new(History { groups, ..History::default() }) }
    }

    pub fn now(&self) -> Time {
        u64::try_from(self.start.elapsed().as_micros()).unwrap()
    }

    /// Makes a call and takes the times.
    pub async fn timed<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Ended<T> {
        let invoked = self.now();
        let answer = call.await;
        Ended { invoked, ended: self.now(), answer: answer.map_err(|error| outcome_of(&error)) }
    }

    /// Keeps a call.
    pub fn keep(&self, client: &str, invoked: Time, ended: Time, outcome: Outcome, call: Call) {
        let event = Event { client: client.to_owned(), invoked, ended, outcome, call };
        self.history.lock().unwrap().events.push(event);
    }

    /// Keeps that the server was killed.
    pub fn killed(&self, before: Time) {
        let after = self.now();
        self.history.lock().unwrap().kills.push((before, after));
    }

    /// All of it, in the order in which calls began.
    pub fn finish(&self) -> History {
        let mut history = std::mem::take(&mut *self.history.lock().unwrap());
        history.events.sort_by_key(|event| event.invoked);
        history
    }
}

impl<T> Ended<T> {
    pub fn outcome(&self) -> Outcome {
        self.answer.as_ref().err().cloned().unwrap_or(Outcome::Done)
    }
}

/// Whether an error says that nothing happened. One that no fault here explains is a failure.
fn outcome_of(error: &Error) -> Outcome {
    use ErrorCode::*;
    let says = format!("{:?}: {error}", error.code());
    match (error.kind(), error.code()) {
        (_, Some(Busy | UnknownPartition | BeyondEnd | LeaseLost | NotLeased | Duplicate | AckRejected | OutOfSequence)) => {
            Outcome::Refused(says)
        }
        (ErrorKind::Disconnected | ErrorKind::Timeout | ErrorKind::Closed | ErrorKind::Connect, _) => Outcome::Unknown(says),
        (_, Some(ShuttingDown | Timeout | DiskFull | Io | Poisoned)) => Outcome::Unknown(says),
        _ => panic!("{error} ({error:?})"),
    }
}
