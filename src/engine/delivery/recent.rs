//! The last acknowledgements that cannot be recognised by the cursor when their reply was lost.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::model::{AckVerb, Now};
use crate::record::Offset;

use super::{LeaseToken, Verdict};

/// How many calls are remembered.
const CALLS_MAX: usize = 64;
/// How long they are remembered: a repeat comes within seconds.
const REMEMBERED_US: u64 = 60_000_000;

/// Calls with a failed, retry or reject that took effect. Completed items need no memory: they lie below the cursor.
#[derive(Debug, Clone, Default)]
pub(super) struct RecentAcks {
    calls: VecDeque<RecentAck>,
}

#[derive(Debug, Clone)]
struct RecentAck {
    token: LeaseToken,
    /// Over offsets and verbs: 64 bits, and the token must be the same too.
    digest: u64,
    dead: Vec<Offset>,
    until_us: u64,
}

impl RecentAcks {
    /// The dead letters that the same call made, if it is remembered.
    pub(super) fn find(&self, token: LeaseToken, verdicts: &[Verdict<'_>]) -> Option<&[Offset]> {
        if !self.calls.iter().any(|call| call.token == token) {
            return None;
        }
        let digest = digest(verdicts);
        self.calls.iter().find(|call| call.token == token && call.digest == digest).map(|call| call.dead.as_slice())
    }

    pub(super) fn remember(&mut self, token: LeaseToken, verdicts: &[Verdict<'_>], dead: Vec<Offset>, now: Now) {
        if verdicts.iter().all(|verdict| verdict.verb == AckVerb::Completed) {
            return;
        }
        if self.calls.len() == CALLS_MAX {
            self.calls.pop_front();
        }
        let until_us = now.steady_us.saturating_add(REMEMBERED_US);
        self.calls.push_back(RecentAck { token, digest: digest(verdicts), dead, until_us });
    }

    /// Forgets what is too old to be repeated.
    pub(super) fn expire(&mut self, now: Now) {
        while self.calls.front().is_some_and(|call| call.until_us <= now.steady_us) {
            self.calls.pop_front();
        }
    }

    /// When the oldest one is forgotten.
    pub(super) fn earliest(&self) -> Option<u64> {
        self.calls.front().map(|call| call.until_us)
    }

    pub(super) fn clear(&mut self) {
        self.calls.clear();
    }
}

fn digest(verdicts: &[Verdict<'_>]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for verdict in verdicts {
        (verdict.offset, verdict.verb).hash(&mut hasher);
    }
    hasher.finish()
}
