//! The answers of a commit.

use std::time::Instant;

use crate::model::{AckReply, Error, PushReply};

use super::completion::Done;
use super::distributions::Recorders;

/// What a commit owes to those who pushed and acknowledged.
pub(super) struct Answers<'a> {
    /// Whether the commit went well.
    pub outcome: Result<(), Error>,
    recorders: &'a Recorders,
    /// With when each was taken.
    pub pushes: Vec<(Done<PushReply>, Result<PushReply, Error>, Instant)>,
    pub acks: Vec<(Done<AckReply>, Result<AckReply, Error>)>,
}

impl<'a> Answers<'a> {
    /// Nothing is owed.
    pub fn new(recorders: &'a Recorders) -> Self {
        Self { outcome: Ok(()), recorders, pushes: Vec::new(), acks: Vec::new() }
    }

    /// Tells all of them.
    pub fn send(self) {
        let Self { outcome, recorders, pushes, acks } = self;
        let now = Instant::now();
        // What was refused by decision stays refused for its own reason, whatever became of the rest.
        for (done, reply, taken_at) in pushes {
            if reply.is_ok() && outcome.is_ok() {
                recorders.push.record_time(now.saturating_duration_since(taken_at));
            }
            done(reply.and_then(|reply| outcome.clone().map(|()| reply)));
        }
        for (done, reply) in acks {
            done(reply.and_then(|reply| outcome.clone().map(|()| reply)));
        }
    }
}
