//! Leases against the clock, against each other, and against late answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fanlog::model::*;
use fanlog::record::Message;
use shuttle::thread;

use crate::explore::{Notes, after, after_power_loss, contents, explore};
use crate::support::{World, push_of};

const MESSAGES: u64 = 4;
const LEASE_MS: u64 = 100;

/// Something that a consumer did, with when its call began and when it had returned, as places in the order of events.
#[derive(Debug, Clone)]
struct Event {
    began: u64,
    ended: u64,
    lease: String,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    /// Handed out when the clock stood at `clock_us` at the latest, until `until_us`.
    Held { offsets: Vec<u64>, clock_us: u64, until_us: u64 },
    /// Acknowledged with effect.
    Done { offset: u64 },
}

/// What the threads share.
struct Model {
    world: World,
    /// Milliseconds since the start. Threads look before they call, and may be late.
    clock: AtomicU64,
    events: AtomicU64,
    notes: Notes<Event>,
}

impl Model {
    fn new(is_shared: bool) -> Arc<Self> {
        let world = World::new(1);
        world.create("q", SettingsPatch::default());
        let payloads: Vec<String> = (0..MESSAGES).map(|index| index.to_string()).collect();
        for pair in payloads.chunks(2) {
            world.push("q", "a", &[&pair[0], &pair[1]]);
        }
        let declaration = GroupDeclaration { shared: is_shared, start: Some(Start::Beginning), ..GroupDeclaration::default() };
        world.engine.declare_group("q", "g", &declaration, world.now).unwrap();
        Arc::new(Self { world, clock: AtomicU64::new(0), events: AtomicU64::new(0), notes: Notes::new() })
    }

    fn now(&self) -> Now {
        after(self.world.now, self.clock.load(Ordering::SeqCst))
    }

    fn event(&self) -> u64 {
        self.events.fetch_add(1, Ordering::SeqCst)
    }

    /// Pops, perhaps extends, and completes one message after the other.
    fn consume(&self, count: u32, extends: bool) {
        let engine = &self.world.engine;
        let (began, now) = (self.event(), self.now());
        let request = PopRequest { lease_ms: Some(LEASE_MS), ..PopRequest::any("q", count).group("g") };
        let reply = engine.pop(&request, now).unwrap();
        let Some(claim) = reply.claims.first() else { return };
        let offsets: Vec<u64> = contents(claim)
            .into_iter()
            .map(|(offset, payload)| {
                assert_eq!(payload, offset.to_string().as_bytes());
                offset
            })
            .collect();
        let (ended, clock_us) = (self.event(), self.now().steady_us);
        let mut until_us = now.steady_us + LEASE_MS * 1000;
        if extends {
            let now = self.now();
            if engine.extend(&reply.lease_id, LEASE_MS, now).unwrap().renewed == 1 {
                until_us = until_us.max(now.steady_us + LEASE_MS * 1000);
            }
        }
        let lease = reply.lease_id;
        let what = What::Held { offsets: offsets.clone(), clock_us, until_us };
        self.notes.add(Event { began, ended, lease: lease.clone(), what });
        for offset in offsets {
            let began = self.event();
            let request = crate::support::ack_of(claim, "g", &lease, &[(offset, AckVerb::Completed)]);
            let now = self.now();
            let acked = engine.ack(request, now).unwrap();
            match &acked.outcomes[0] {
                AckOutcome { refused: None, is_noop: false, .. } => {
                    assert!(now.steady_us < until_us, "completed when the lease was over");
                    self.notes.add(Event { began, ended: self.event(), lease: lease.clone(), what: What::Done { offset } });
                }
                AckOutcome { refused: Some(error), .. } => assert_eq!(error.code, ErrorCode::LeaseLost, "{error:?}"),
                AckOutcome { is_noop: true, .. } => {}
            }
        }
    }

    /// What must hold of a completion that took effect: its lease was the last one that held the message.
    fn check_done(&self, done: &Event, offset: u64, events: &[Event]) {
        let holds = |event: &&Event| matches!(&event.what, What::Held { offsets, .. } if offsets.contains(&offset));
        let own = events.iter().filter(holds).find(|event| event.lease == done.lease).unwrap();
        for other in events.iter().filter(holds) {
            assert!(other.began < done.ended, "handed out after it was completed: {done:?}, {other:?}");
            let came_between = other.began > own.ended && other.ended < done.began;
            assert!(!came_between, "completed under a lease that another one followed: {own:?}, {other:?}, {done:?}");
        }
    }

    /// What must hold of everything that happened, and of what is left.
    fn check(&self) {
        let events = self.notes.all();
        let mut done = [0; MESSAGES as usize];
        for (at, event) in events.iter().enumerate() {
            match &event.what {
                What::Done { offset } => {
                    done[*offset as usize] += 1;
                    self.check_done(event, *offset, &events);
                }
                What::Held { offsets, clock_us, until_us } => {
                    for other in &events[at + 1..] {
                        let What::Held { offsets: others, clock_us: other_clock_us, until_us: other_until_us } = &other.what
                        else {
                            continue;
                        };
                        // Whichever came first: the other one was handed out before the time of the first was over.
                        let meets = clock_us < other_until_us && other_clock_us < until_us;
                        let shares = offsets.iter().any(|offset| others.contains(offset));
                        assert!(!(meets && shares), "two live leases hold a message: {event:?}, {other:?}");
                    }
                }
            }
        }
        assert!(done.iter().all(|&count| count <= 1), "completed twice: {events:?}");
        // What is left is exactly what nobody completed, now and after a loss of power.
        let left: Vec<u64> = (0..MESSAGES).filter(|&offset| done[offset as usize] == 0).collect();
        let late = after(self.world.now, 3_600_000);
        let lost = after_power_loss(&self.world, late);
        for (world, when) in [(&lost, "after a loss of power"), (&self.world, "at the end")] {
            world.engine.tick(late);
            let mut found = Vec::new();
            loop {
                let reply =
                    world.engine.pop(&PopRequest { auto_ack: true, ..PopRequest::any("q", 10).group("g") }, late).unwrap();
                let Some(claim) = reply.claims.first() else { break };
                found.extend(contents(claim).into_iter().map(|(offset, _)| offset));
            }
            found.sort_unstable();
            assert_eq!(found, left, "{when}: {events:?}");
            assert_eq!(world.cursor("q", "g", "a").next, MESSAGES, "{when}");
        }
    }
}

/// Two consumers, one of which extends, and a clock that ends leases while they work.
fn leases_end_while_consumers_work(is_shared: bool) {
    let model = Model::new(is_shared);
    let mut threads: Vec<_> = [(2, false), (3, true)]
        .into_iter()
        .map(|(count, extends)| {
            let model = Arc::clone(&model);
            thread::spawn(move || (0..2).for_each(|_| model.consume(count, extends)))
        })
        .collect();
    let clock = Arc::clone(&model);
    threads.push(thread::spawn(move || {
        for _ in 0..4 {
            clock.clock.fetch_add(LEASE_MS * 3 / 4, Ordering::SeqCst);
            clock.world.engine.tick(clock.now());
        }
    }));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    model.check();
}

#[test]
fn one_lease_at_a_time_in_an_ordered_group() {
    explore(|| leases_end_while_consumers_work(false));
}

#[test]
fn one_lease_at_a_time_in_a_work_queue() {
    explore(|| leases_end_while_consumers_work(true));
}

/// Whoever listens to a lease hears of its end once, if it ended before its messages were acknowledged, and else never.
#[test]
fn the_end_of_a_lease_is_told_once_or_never() {
    explore(|| {
        let model = Model::new(false);
        let request = PopRequest { lease_ms: Some(LEASE_MS), ..PopRequest::any("q", 10).group("g") };
        let reply = model.world.engine.pop(&request, model.now()).unwrap();
        let told = Arc::new(Notes::new());
        {
            let told = Arc::clone(&told);
            assert!(
                model
                    .world
                    .engine
                    .watch_lease(&reply.lease_id, Arc::new(move |end: fanlog::engine::LeaseEnd| told.add(end.reason)))
            );
        }
        let ticker = {
            let model = Arc::clone(&model);
            thread::spawn(move || {
                for milliseconds in [LEASE_MS / 2, LEASE_MS * 30] {
                    model.world.engine.tick(after(model.world.now, milliseconds));
                }
            })
        };
        let all = crate::support::ack_of(&reply.claims[0], "g", &reply.lease_id, &[(MESSAGES - 1, AckVerb::Completed)]);
        let acked = model.world.engine.ack(all, model.now()).unwrap();
        ticker.join().unwrap();
        model.world.engine.tick(after(model.world.now, 3_600_000));
        let is_acked = acked.outcomes[0].refused.is_none();
        let told = told.all();
        assert!(told.len() <= 1, "told twice: {told:?}");
        assert!(is_acked || told == [ErrorCode::LeaseLost], "lost and not told");
        assert!(told.is_empty() || !is_acked || acked.is_lease_released, "{told:?} {acked:?}");
    });
}

/// A transaction that was refused put state machines back as they had been when it began: whoever took messages meanwhile lost them
/// without a word, and they were handed out twice.
#[test]
fn a_transaction_that_is_refused_leaves_what_others_took_meanwhile() {
    explore(|| {
        let model = Model::new(true);
        let known = Message { transaction_id: Some("known".to_owned()), ..Message::new("known") };
        let push = PushRequest { items: PushItem::Messages(vec![known]), ..push_of("target", "a", &[]) };
        model.world.engine.push(push.clone(), model.now()).unwrap();
        let pop = |model: &Model| model.world.engine.pop(&PopRequest::any("q", 2).group("g"), model.now()).unwrap();
        let completed = |reply: &PopReply| {
            let items: Vec<_> = contents(&reply.claims[0]).into_iter().map(|(offset, _)| (offset, AckVerb::Completed)).collect();
            crate::support::ack_of(&reply.claims[0], "g", &reply.lease_id, &items)
        };
        let own = pop(&model);
        let taking = {
            let model = Arc::clone(&model);
            thread::spawn(move || {
                let taken = pop(&model);
                model.world.engine.extend(&taken.lease_id, LEASE_MS, model.now()).unwrap();
                taken
            })
        };
        let request = TransactionRequest { pushes: vec![push], acks: vec![completed(&own)], ..TransactionRequest::default() };
        let error = model.world.engine.transact(request, model.now()).unwrap_err();
        assert_eq!(error.code, ErrorCode::Duplicate);
        let taken = taking.join().unwrap();
        for reply in [own, taken] {
            let acked = model.world.engine.ack(completed(&reply), model.now()).unwrap();
            assert!(acked.outcomes.iter().all(|outcome| outcome.refused.is_none()), "{reply:?}: {acked:?}");
        }
        assert_eq!(model.world.cursor("q", "g", "a").next, MESSAGES);
    });
}
