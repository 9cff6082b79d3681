//! Random operations against a model with one record for each message.

use std::collections::VecDeque;

use super::model::{Item, Lease, Message, Model, Outcome};
use super::*;

const MESSAGES: u64 = 48;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// The real thing and the model, side by side, with what the log holds of both.
struct World {
    lane: Lane,
    model: Model,
    random: Random,
    /// Taken and not yet durable, each with the model of that moment.
    unsynced: VecDeque<(Cursor, Model)>,
    /// The last durable one.
    synced: Model,
    tokens: Vec<LeaseToken>,
    last_call: Option<(Option<LeaseToken>, Vec<Item>)>,
}

impl World {
    fn new(mode: Mode, seed: u64) -> Self {
        let mut random = Random(seed);
        let is_filtered = random.below(2) == 0;
        let mut messages = vec![Message::default(); MESSAGES as usize];
        messages.iter_mut().for_each(|message| message.is_taken = !is_filtered || random.below(3) > 0);
        let model = Model { mode, messages, end: 0, leases: Default::default(), total: 0, calls: Default::default() };
        let lane = Lane::new(mode, 0);
        Self { lane, synced: model.clone(), model, random, unsynced: VecDeque::new(), tokens: vec![], last_call: None }
    }

    fn now_us(&self) -> u64 {
        self.lane.now.steady_us
    }

    fn step(&mut self) {
        match self.random.below(40) {
            0..=2 => self.lane.end = (self.lane.end + self.random.below(8)).min(MESSAGES),
            3..=12 => self.claim(),
            13..=24 => self.ack(),
            25 => self.repeat_ack(),
            26..=28 => self.lane.wait(self.random.0 % LEASE),
            29 => self.extend(),
            30 => self.release(),
            31 => self.pass_over(),
            32..=34 => self.take(),
            35..=37 => self.sync(),
            38 => match self.random.below(8) {
                0 => self.crash(),
                1 => self.seek(),
                2 => self.skip(),
                3 | 4 => self.take_back(),
                _ => {}
            },
            _ => assert_eq!(self.lane.delivery.clone().expire(self.lane.now), self.model_frees()),
        }
        self.model.end = self.lane.end;
        self.model.expire(self.now_us());
        self.compare();
    }

    fn model_frees(&self) -> bool {
        let now_us = self.now_us();
        let is_due = |message: &Message| message.put_off_until.is_some_and(|until| until <= now_us);
        self.model.leases.values().any(|lease| lease.until_us <= now_us) || self.model.messages.iter().any(is_due)
    }

    fn claim(&mut self) {
        self.model.expire(self.now_us());
        let token = self.lane.token();
        let until_us = self.now_us() + 1 + self.random.below(LEASE);
        let count = 1 + self.random.below(10) as usize;
        let free = self.model.free();
        let mine: Vec<_> =
            free.iter().copied().filter(|&offset| self.model.messages[offset as usize].is_taken).take(count).collect();
        let from = self.model.next();
        if mine.is_empty() {
            // All that is free is refused by the filter: the engine passes it.
            if let (Some(&first), Some(&last)) = (free.first(), free.last()) {
                assert_eq!(self.lane.delivery.ready(self.lane.end, 1, self.lane.now)[0].first, first);
                let wrong = self.lane.delivery.claim(token, until_us, from, last, OffsetSet::default(), self.lane.now);
                assert!(wrong.is_err());
            }
            return;
        }
        let last = mine[mine.len() - 1];
        // Up to the next message of the group's own, the claim may have looked at more.
        let more = (last + 1..self.lane.end).take_while(|&offset| !self.model.messages[offset as usize].is_taken).count() as u64;
        let through = last + self.random.below(more + 1);
        let claimed =
            self.lane.delivery.claim(token, until_us, from, through, mine.iter().copied().collect(), self.lane.now).unwrap();
        for &offset in &mine {
            let message = &mut self.model.messages[offset as usize];
            message.holder = Some(token);
            message.deliveries += 1;
        }
        let first = &self.model.messages[mine[0] as usize];
        assert_eq!((claimed.delivery_count, &claimed.last_error), (first.deliveries, &first.error));
        self.model.leases.insert(token, Lease { until_us, through, from, messages: mine });
        self.tokens.push(token);
    }

    /// A token that was given at some time, most often lately; or none.
    fn some_token(&mut self) -> Option<LeaseToken> {
        let newest = self.tokens.len().checked_sub(1)? as u64;
        let back = if self.random.below(8) == 0 { self.random.below(newest + 1) } else { self.random.below(newest.min(2) + 1) };
        Some(self.tokens[(newest - back) as usize])
    }

    fn ack(&mut self) {
        let token = if self.random.below(10) == 0 { None } else { self.some_token() };
        let is_gentle = self.random.below(2) == 0;
        let mut items = Vec::new();
        let held: Vec<_> =
            (0..MESSAGES).filter(|&offset| token.is_some() && self.model.messages[offset as usize].holder == token).collect();
        for _ in 0..1 + self.random.below(6) {
            let offset = match held.len() as u64 {
                length if length > 0 && self.random.below(8) > 0 => held[self.random.below(length) as usize],
                _ => self.random.below(self.lane.end + 2),
            };
            let verb = if is_gentle { Completed } else { [Completed, Failed, Retry, Reject][self.random.below(4) as usize] };
            let reason = ["", "no", "why not"][self.random.below(3) as usize].to_owned();
            let delay_ms = [0, 0, 5_000, 100_000][self.random.below(4) as usize];
            items.push((offset, verb, reason, delay_ms));
        }
        self.act(token, items);
    }

    fn repeat_ack(&mut self) {
        if let Some((token, items)) = self.last_call.clone() {
            self.act(token, items);
        }
    }

    fn act(&mut self, token: Option<LeaseToken>, items: Vec<Item>) {
        self.lane.limits = AckLimits { failures_max: self.random.below(4) as u32, is_dead_letter: self.random.below(3) > 0 };
        let limits = self.lane.limits;
        let verdicts: Vec<_> =
            items.iter().map(|(offset, verb, reason, delay_ms)| verdict(*offset, *verb, reason, *delay_ms)).collect();
        let before = self.model.next();
        let (outcomes, dead_offsets, consumed) = self.model.ack(token, &verdicts, limits, self.lane.now);
        let decision = self.lane.ack_verdicts(token, &verdicts);
        let got: Vec<_> = decision.outcomes.iter().map(outcome_of).collect();
        assert_eq!(got, outcomes);
        assert_eq!((dead(&decision), decision.consumed), (dead_offsets, consumed));
        assert!(decision.next >= before, "an acknowledgement never moves the cursor back");
        if let Some(token) = token {
            assert_eq!(decision.is_lease_released, !self.model.leases.contains_key(&token));
        }
        assert!(decision.version <= self.lane.delivery.staged().version());
        self.last_call = Some((token, items));
    }

    fn extend(&mut self) {
        let Some(token) = self.some_token() else { return };
        self.model.expire(self.now_us());
        let until_us = self.now_us() + self.random.below(LEASE);
        let lease = self.model.leases.get_mut(&token);
        let expected = lease.map(|lease| {
            lease.until_us = lease.until_us.max(until_us);
            lease.until_us
        });
        assert_eq!(self.lane.delivery.extend(token, until_us, self.lane.now), expected);
    }

    fn release(&mut self) {
        let Some(token) = self.some_token() else { return };
        self.model.expire(self.now_us());
        let is_live = self.model.leases.contains_key(&token);
        assert_eq!(self.lane.delivery.release(token, self.lane.now), is_live);
        for message in self.model.messages.iter_mut().filter(|message| message.holder == Some(token)) {
            // The count of what was settled and taken back may be forgotten.
            message.deliveries = message.deliveries.saturating_sub(1);
        }
        self.model.end_lease(token);
    }

    fn pass_over(&mut self) {
        self.model.expire(self.now_us());
        self.lane.delivery.expire(self.lane.now);
        let (first, next) = (self.random.below(MESSAGES), self.model.next());
        let refused = (first..self.lane.end).take_while(|&offset| !self.model.messages[offset as usize].is_taken).count() as u64;
        if refused == 0 {
            return;
        }
        self.lane.delivery.pass_over(range(first, first + refused - 1));
        let is_ignored = self.model.mode == Mode::Ordered && (!self.model.leases.is_empty() || first > next);
        if !is_ignored {
            self.model.messages[first as usize..(first + refused) as usize].iter_mut().for_each(|message| {
                if message.put_off_until.is_none() {
                    message.finish();
                }
            });
        }
    }

    fn take(&mut self) {
        if let Some(change) = self.lane.delivery.take_change() {
            let mut bytes = Vec::new();
            change.cursor.encode(&mut bytes);
            assert_eq!(Cursor::decode(&bytes).as_ref(), Ok(&change.cursor));
            self.model.expire(self.now_us());
            self.unsynced.push_back((change.cursor, self.model.clone()));
        }
    }

    fn sync(&mut self) {
        if let Some((cursor, model)) = self.unsynced.pop_front() {
            self.lane.delivery.publish(cursor);
            self.synced = model;
        }
    }

    fn crash(&mut self) {
        // What was written but not synced may have survived or not.
        if self.random.below(2) == 0 {
            self.sync();
        }
        self.unsynced.clear();
        let end = self.lane.end;
        self.lane.crash();
        self.model = self.synced.clone();
        self.model.restart();
        self.model.end = end;
        self.synced = self.model.clone();
    }

    /// The commit of everything that was decided fails.
    fn take_back(&mut self) {
        let is_decided = self.lane.delivery.decided > self.lane.delivery.visible().version();
        self.unsynced.clear();
        self.lane.delivery.take_back();
        if is_decided {
            self.model.expire(self.now_us());
            self.model.take_back(&self.synced);
        }
    }

    fn seek(&mut self) {
        let target = self.random.below(self.lane.end + 1);
        self.lane.delivery.seek(target);
        self.model.seek(target);
    }

    fn skip(&mut self) {
        let start = self.random.below(self.lane.end + 1);
        let next = self.model.next();
        let lost = (next < start).then(|| range(next, start.max(1) - 1));
        self.model.messages[..start as usize].iter_mut().for_each(Message::finish);
        self.model.drop_empty_leases();
        assert_eq!(self.lane.delivery.skip_to(start), lost);
    }

    fn compare(&mut self) {
        let ready: Vec<_> = self.lane.free(usize::MAX);
        assert_eq!(ready, self.model.free(), "free messages");
        let (delivery, model, now) = (&self.lane.delivery, &self.model, self.lane.now);
        let staged = delivery.staged();
        assert_eq!((staged.next(), staged.total_consumed()), (model.next(), model.total));
        for (offset, message) in (0..).zip(&model.messages) {
            assert_eq!(staged.is_done(offset), message.is_done, "{offset}");
            assert_eq!(staged.delivery_count(offset), message.deliveries, "{offset}");
            assert_eq!(staged.failures(offset), message.failures, "{offset}");
            assert_eq!(staged.last_error(offset), message.error, "{offset}");
            assert_eq!(delivery.lease_of(offset, now).map(|view| view.token), message.holder, "{offset}");
        }
        let in_flight = model.messages.iter().filter(|message| message.holder.is_some()).count() as u64;
        assert_eq!((delivery.in_flight(now), delivery.leases(now).count()), (in_flight, model.leases.len()));
        assert!(model.mode == Mode::Shared || model.leases.len() <= 1);
        let put_off = model.messages.iter().filter_map(|message| message.put_off_until);
        let deadline = model.leases.values().map(|lease| lease.until_us).chain(put_off).min();
        assert_eq!(delivery.next_deadline(), deadline);
        let visible = delivery.visible();
        assert_eq!((visible.next(), visible.total_consumed()), (self.synced.next(), self.synced.total));
        for (offset, message) in (0..).zip(&self.synced.messages) {
            assert_eq!((visible.is_done(offset), visible.failures(offset)), (message.is_done, message.failures), "{offset}");
        }
    }

    /// Everything can always be finished: no message is stuck for ever.
    fn drain(&mut self) {
        self.lane.end = MESSAGES;
        for _ in 0..2 * MESSAGES {
            self.lane.wait(200 * SECOND);
            let free = self.lane.free(10);
            if free.is_empty() {
                break;
            }
            let token = self.lane.token();
            self.lane.claim_as(token, &free).unwrap();
            let items: Vec<_> = free.iter().map(|&offset| (offset, Completed)).collect();
            assert!(self.lane.ack(token, &items).is_lease_released);
        }
        assert_eq!(self.lane.next(), MESSAGES);
        while !self.unsynced.is_empty() {
            self.sync();
        }
        self.lane.commit();
        assert!(self.lane.delivery.busy.is_empty());
        assert!(self.lane.delivery.plain().is_some());
    }
}

fn outcome_of(outcome: &AckOutcome) -> Outcome {
    match (&outcome.refused, outcome.is_noop, outcome.is_dead_letter) {
        (Some(error), _, _) => Outcome::Refused(error.code),
        (None, true, is_dead) => Outcome::Noop { is_dead },
        (None, false, true) => Outcome::Dead,
        (None, false, false) => Outcome::Done,
    }
}

fn run(mode: Mode, seeds: std::ops::Range<u64>, steps: u64) {
    for seed in seeds {
        println!("{mode:?}, seed {seed}");
        let mut world = World::new(mode, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..steps {
            world.step();
        }
        world.drain();
    }
}

#[test]
fn random_operations_in_ordered_mode_agree_with_the_model() {
    run(Mode::Ordered, 1..151, 400);
}

#[test]
fn random_operations_in_shared_mode_agree_with_the_model() {
    run(Mode::Shared, 1..151, 400);
}
