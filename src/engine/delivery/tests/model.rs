//! The model: one record for each message, and every rule written down as plainly as it goes.

use std::collections::{BTreeMap, VecDeque};

use super::*;

/// One message, as anyone would write it down.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Message {
    /// Whether the group's filter takes it.
    pub(super) is_taken: bool,
    pub(super) is_done: bool,
    pub(super) deliveries: u32,
    pub(super) failures: u32,
    pub(super) error: String,
    pub(super) holder: Option<LeaseToken>,
    pub(super) put_off_until: Option<u64>,
}

impl Message {
    pub(super) fn finish(&mut self) {
        let is_taken = self.is_taken;
        *self = Self { is_taken, is_done: true, ..Self::default() };
    }
}

#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) until_us: u64,
    pub(super) through: Offset,
    /// Where the cursor stood, and what was handed out.
    pub(super) from: Offset,
    pub(super) messages: Vec<Offset>,
}

/// Offset, verb, reason and delay in milliseconds.
pub(super) type Item = (Offset, AckVerb, String, u64);

pub(super) type Call = (LeaseToken, Vec<(Offset, AckVerb)>);

#[derive(Clone)]
pub(super) struct Model {
    pub(super) mode: Mode,
    pub(super) messages: Vec<Message>,
    pub(super) end: Offset,
    pub(super) leases: BTreeMap<LeaseToken, Lease>,
    pub(super) total: u64,
    /// Calls with a signal that took effect, their dead letters, and until when they are known again.
    pub(super) calls: VecDeque<(Call, Vec<Offset>, u64)>,
}

/// What the model says of one item.
#[derive(Debug, PartialEq, Clone)]
pub(super) enum Outcome {
    Done,
    Dead,
    Noop { is_dead: bool },
    Refused(ErrorCode),
}

impl Model {
    pub(super) fn next(&self) -> Offset {
        self.messages.iter().position(|message| !message.is_done).unwrap_or(self.messages.len()) as u64
    }

    pub(super) fn expire(&mut self, now_us: u64) {
        self.leases.retain(|_, lease| lease.until_us > now_us);
        self.calls.retain(|(_, _, until_us)| *until_us > now_us);
        for message in &mut self.messages {
            message.holder = message.holder.filter(|holder| self.leases.contains_key(holder));
            message.put_off_until = message.put_off_until.filter(|&until| until > now_us);
        }
    }

    pub(super) fn drop_empty_leases(&mut self) {
        let messages = &self.messages;
        self.leases.retain(|&token, _| messages.iter().any(|message| message.holder == Some(token)));
    }

    pub(super) fn end_lease(&mut self, token: LeaseToken) {
        self.leases.remove(&token);
        for message in self.messages.iter_mut().filter(|message| message.holder == Some(token)) {
            message.holder = None;
        }
    }

    pub(super) fn free(&self) -> Vec<Offset> {
        let is_held = !self.leases.is_empty() || self.messages.iter().any(|message| message.put_off_until.is_some());
        if self.mode == Mode::Ordered && is_held {
            return Vec::new();
        }
        let is_free = |message: &Message| !message.is_done && message.holder.is_none() && message.put_off_until.is_none();
        (0..self.end).filter(|&offset| is_free(&self.messages[offset as usize])).collect()
    }

    /// After an ordered ack: what was refused by the filter is passed with the messages around it.
    pub(super) fn pass_refused(&mut self, token: LeaseToken, through: Offset) {
        for message in &mut self.messages[..=through as usize] {
            if message.holder == Some(token) {
                return;
            }
            message.finish();
        }
    }

    pub(super) fn ack(
        &mut self,
        token: Option<LeaseToken>,
        items: &[Verdict<'_>],
        limits: AckLimits,
        now: Now,
    ) -> (Vec<Outcome>, Vec<Offset>, u64) {
        self.expire(now.steady_us);
        let call: Vec<_> = items.iter().map(|item| (item.offset, item.verb)).collect();
        if let Some(token) = token
            && let Some((_, dead, _)) = self.calls.iter().find(|(known, ..)| *known == (token, call.clone()))
        {
            let outcomes = items.iter().map(|item| Outcome::Noop { is_dead: dead.contains(&item.offset) }).collect();
            return (outcomes, Vec::new(), 0);
        }
        let acting = match self.mode {
            Mode::Ordered => self.leases.keys().next().copied().filter(|&live| token.is_none_or(|token| token == live)),
            Mode::Shared => token.filter(|token| self.leases.contains_key(token)),
        };
        let (mut outcomes, mut strongest) = (Vec::new(), BTreeMap::<Offset, &Verdict<'_>>::new());
        for item in items {
            let message = self.messages.get(item.offset as usize).filter(|_| item.offset < self.end);
            let is_done = message.is_some_and(|message| message.is_done);
            outcomes.push(if is_done && item.verb == Completed {
                Outcome::Noop { is_dead: false }
            } else if acting.is_none() && token.is_some() {
                Outcome::Refused(ErrorCode::LeaseLost)
            } else if is_done
                || message.is_none()
                || (acting.is_some() && message.is_some_and(|message| message.holder != acting))
            {
                Outcome::Refused(ErrorCode::NotLeased)
            } else {
                let known = strongest.entry(item.offset).or_insert(item);
                if strength(item.verb) > strength(known.verb) {
                    *known = item;
                }
                Outcome::Done
            });
        }
        if strongest.is_empty() {
            return (outcomes, Vec::new(), 0);
        }
        let (dead, consumed) = match self.mode {
            Mode::Ordered => self.ack_ordered(acting, &strongest, limits, now),
            Mode::Shared => self.ack_shared(&strongest, limits, now),
        };
        self.total += consumed;
        for (outcome, item) in outcomes.iter_mut().zip(items) {
            if *outcome == Outcome::Done && dead.contains(&item.offset) {
                *outcome = Outcome::Dead;
            }
        }
        let is_whole = outcomes.iter().all(|outcome| !matches!(outcome, Outcome::Refused(_)));
        if let Some(token) = token
            && is_whole
            && call.iter().any(|&(_, verb)| verb != Completed)
        {
            self.calls.push_back(((token, call), dead.clone(), now.steady_us + 60_000_000));
            if self.calls.len() > 64 {
                self.calls.pop_front();
            }
        }
        (outcomes, dead, consumed)
    }

    pub(super) fn ack_ordered(
        &mut self,
        acting: Option<LeaseToken>,
        items: &BTreeMap<Offset, &Verdict<'_>>,
        limits: AckLimits,
        now: Now,
    ) -> (Vec<Offset>, u64) {
        let (mut dead, mut ended, mut completed_to, mut has_charged, mut has_stopped) = (vec![], vec![], None, false, false);
        for (&offset, item) in items {
            let message = &mut self.messages[offset as usize];
            if item.verb == Completed {
                completed_to = Some(offset);
                continue;
            }
            if item.verb == Reject {
                dead.push(offset);
                ended.push(offset);
                continue;
            }
            if item.verb == Retry || !has_charged {
                if !item.reason.is_empty() {
                    message.error = item.reason.to_owned();
                }
                if item.verb == Failed {
                    has_charged = true;
                    message.failures += 1;
                    if limits.failures_max > 0 && message.failures >= limits.failures_max {
                        if limits.is_dead_letter {
                            dead.push(offset);
                        }
                        ended.push(offset);
                        continue;
                    }
                } else if item.delay_ms > 0 {
                    message.put_off_until = Some(now.steady_us + item.delay_ms * 1_000);
                }
            }
            has_stopped = true;
            break;
        }
        let mut consumed = 0;
        for offset in 0..self.end {
            let message = &mut self.messages[offset as usize];
            let is_below = completed_to.is_some_and(|completed_to| offset <= completed_to);
            let is_in_play = !message.is_done && (acting.is_none() || message.holder == acting);
            if is_in_play && (is_below || ended.contains(&offset)) {
                message.finish();
                consumed += 1;
            }
        }
        if let Some(token) = acting {
            let through = self.leases[&token].through;
            self.pass_refused(token, through);
            self.drop_empty_leases();
            if has_stopped || has_charged {
                self.end_lease(token);
            }
        }
        (dead, consumed)
    }

    pub(super) fn ack_shared(
        &mut self,
        items: &BTreeMap<Offset, &Verdict<'_>>,
        limits: AckLimits,
        now: Now,
    ) -> (Vec<Offset>, u64) {
        let (mut dead, mut consumed) = (vec![], 0);
        for (&offset, item) in items {
            let message = &mut self.messages[offset as usize];
            if item.verb == Failed {
                message.failures += 1;
            }
            let is_last = item.verb == Failed && limits.failures_max > 0 && message.failures >= limits.failures_max;
            if item.verb == Reject || (is_last && limits.is_dead_letter) {
                dead.push(offset);
            }
            if item.verb == Completed || item.verb == Reject || is_last {
                message.finish();
                consumed += 1;
            } else {
                message.holder = None;
                let is_delayed = item.verb == Retry && item.delay_ms > 0;
                message.put_off_until = is_delayed.then(|| now.steady_us + item.delay_ms * 1_000);
                if !item.reason.is_empty() {
                    message.error = item.reason.to_owned();
                }
            }
        }
        self.drop_empty_leases();
        (dead, consumed)
    }

    pub(super) fn restart(&mut self) {
        self.leases.clear();
        self.calls.clear();
        for message in &mut self.messages {
            message.holder = None;
            message.put_off_until = None;
        }
    }

    /// Goes back to what was durable; whoever holds something goes on holding it.
    pub(super) fn take_back(&mut self, durable: &Self) {
        let before = std::mem::replace(self, durable.clone());
        self.restart();
        self.end = before.end;
        let next = self.next();
        for (token, lease) in before.leases {
            let holds = |offset: Offset| match self.mode {
                Mode::Ordered => lease.from <= next && lease.messages.contains(&offset),
                Mode::Shared => before.messages[offset as usize].holder == Some(token),
            };
            for (offset, message) in (0..).zip(&mut self.messages) {
                if !message.is_done && holds(offset) {
                    message.holder = Some(token);
                    // That it was handed out is known, unless it was forgotten with what is taken back.
                    let counted = before.messages[offset as usize].deliveries;
                    message.deliveries = if counted > 0 { counted } else { message.deliveries };
                }
            }
            self.leases.insert(token, lease);
        }
        self.drop_empty_leases();
    }

    pub(super) fn seek(&mut self, target: Offset) {
        self.restart();
        for (offset, message) in (0..).zip(&mut self.messages) {
            message.finish();
            message.is_done = offset < target;
        }
    }
}

fn strength(verb: AckVerb) -> u8 {
    match verb {
        Completed => 0,
        Retry => 1,
        Failed => 2,
        Reject => 3,
    }
}
