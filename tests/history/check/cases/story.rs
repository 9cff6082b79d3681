//! A history in a few lines. Calls follow each other, a millisecond each, unless a time is given.

use fanlog::model::AckVerb::{self, Completed};

use crate::check::{Rule, check};
use crate::history::{
    Ack, Call, Claim, Content, Event, Group, History, Kind, Lane, Outcome, Part, Place, Sent, Settled, Stored, Time,
};

/// Group numbers of a story.
pub const ORDERED: usize = 0;
pub const SHARED: usize = 1;
pub const ONCE: usize = 2;
pub const MOVER: usize = 3;

/// How long leases last, unless they are extended.
pub const LEASE_US: Time = 1_000_000;

pub struct Story(pub History);

impl Story {
    pub fn new() -> Self {
        let group = |name, kind| Group { name, kind, is_mover: name == "mover" };
        let groups = vec![
            group("ordered", Kind::Ordered),
            group("shared", Kind::Shared),
            group("once", Kind::AtMostOnce),
            group("mover", Kind::Ordered),
        ];
        Self(History { groups, ..History::default() })
    }

    /// The next call, which is answered.
    pub fn call(mut self, call: Call) -> Self {
        let invoked = self.0.events.last().map_or(0, |event| event.ended) + 1_000;
        let event = Event { client: "client".to_owned(), invoked, ended: invoked + 1_000, outcome: Outcome::Done, call };
        self.0.events.push(event);
        self
    }

    /// Changes when the last call was made.
    pub fn at(mut self, invoked: Time, ended: Time) -> Self {
        let last = self.0.events.last_mut().unwrap();
        (last.invoked, last.ended) = (invoked, ended);
        self
    }

    fn unanswered(mut self, outcome: Outcome) -> Self {
        let last = self.0.events.last_mut().unwrap();
        last.outcome = outcome;
        if let Call::Write { parts, acks } = &mut last.call {
            parts.iter_mut().for_each(|part| part.results.clear());
            acks.iter_mut().for_each(forget_answer);
        }
        if let Call::Ack(ack) = &mut last.call {
            forget_answer(ack);
        }
        self
    }

    /// The last call had no answer.
    pub fn unknown(self) -> Self {
        self.unanswered(Outcome::Unknown("cut".to_owned()))
    }

    /// The last call was refused.
    pub fn refused(self) -> Self {
        self.unanswered(Outcome::Refused("busy".to_owned()))
    }

    /// The server was killed at once after the last call.
    pub fn killed(mut self) -> Self {
        let ended = self.0.events.last().unwrap().ended;
        self.0.kills.push((ended, ended + 100));
        self
    }

    /// A push of messages, by offset and id, that groups take.
    pub fn push(self, messages: &[(u64, u64)], takers: &[usize]) -> Self {
        self.call(Call::Write { parts: vec![part("q", messages, takers)], acks: Vec::new() })
    }

    /// A pop from the queue `q`.
    pub fn pop(self, group: usize, lease: &str, messages: &[(u64, u64)]) -> Self {
        let lease = if group == ONCE { String::new() } else { lease.to_owned() };
        let claims = vec![Claim { lane: lane("q"), messages: contents(messages) }];
        self.call(Call::Pop { group, most: messages.len() as u64, lease, lease_us: LEASE_US, claims })
    }

    pub fn ack(self, group: usize, lease: &str, items: &[(u64, AckVerb, Settled)], next: u64) -> Self {
        self.call(Call::Ack(ack(group, lease, items, next)))
    }

    /// Offset 0 is completed.
    pub fn complete(self, group: usize, lease: &str) -> Self {
        self.ack(group, lease, &[(0, Completed, Settled::Now)], 1)
    }

    pub fn extend(self, lease: &str, renewed: usize) -> Self {
        self.call(Call::Extend { lease: lease.to_owned(), lease_us: LEASE_US, renewed })
    }

    pub fn release(self, lease: &str) -> Self {
        self.call(Call::Release { lease: lease.to_owned() })
    }

    pub fn seek(self, group: usize, is_to_beginning: bool) -> Self {
        self.call(Call::Seek { group, partition: None, is_to_beginning })
    }

    /// A read of all of a queue.
    pub fn read(self, queue: &str, messages: &[(u64, u64)]) -> Self {
        let next = messages.last().map_or(0, |(offset, _)| offset + 1);
        self.call(Call::Read { lane: lane(queue), from: 0, next, is_to_end: true, messages: contents(messages) })
    }

    /// A dead letter of offset 0.
    pub fn letter(self, group: usize, id: u64) -> Self {
        self.call(Call::Letters(vec![(group, Place { lane: lane("q"), offset: 0 }, content(id))]))
    }

    /// The rules that it breaks.
    pub fn broken(self) -> Vec<Rule> {
        let mut rules: Vec<_> = check(&self.0).into_iter().map(|violation| violation.rule).collect();
        rules.dedup();
        rules
    }
}

fn forget_answer(ack: &mut Ack) {
    ack.next = None;
    ack.items.iter_mut().for_each(|item| item.2 = Settled::Unanswered);
}

pub fn ack(group: usize, lease: &str, items: &[(u64, AckVerb, Settled)], next: u64) -> Ack {
    Ack { group, lane: lane("q"), lease: lease.to_owned(), items: items.to_vec(), next: Some(next) }
}

pub fn part(queue: &str, messages: &[(u64, u64)], takers: &[usize]) -> Part {
    let sent = messages.iter().map(|&(_, id)| Sent { content: content(id), takers: takers.to_vec() });
    let results = messages.iter().map(|&(offset, _)| Stored::At(offset)).collect();
    Part { lane: lane(queue), sent: sent.collect(), results }
}

pub fn lane(queue: &str) -> Lane {
    Lane { queue: queue.to_owned(), partition: "p".to_owned() }
}

pub fn content(id: u64) -> Content {
    Content { id, digest: id * 10 }
}

fn contents(messages: &[(u64, u64)]) -> Vec<(u64, Content)> {
    messages.iter().map(|&(offset, id)| (offset, content(id))).collect()
}
