//! Waiting: whoever watches, finds nothing and waits, is woken. A wake-up that is lost lets the thread wait for ever, which the
//! scheduler reports.

use std::sync::Arc;

use fanlog::model::*;
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;

use crate::explore::{after, explore, tick};
use crate::support::{World, popped};

/// Where a waiting thread sleeps.
#[derive(Default)]
struct Bell {
    has_rung: Mutex<bool>,
    rung: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.has_rung.lock().unwrap() = true;
        self.rung.notify_all();
    }

    fn wait(&self) {
        let mut has_rung = self.has_rung.lock().unwrap();
        while !*has_rung {
            has_rung = self.rung.wait(has_rung).unwrap();
        }
    }
}

/// Pops one message and waits for it if need be, as a server does.
fn pop_waiting(world: &World, now: Now) -> PopReply {
    let request = PopRequest::any("q", 1).group("g");
    loop {
        let bell = Arc::new(Bell::default());
        let watch = {
            let bell = Arc::clone(&bell);
            world.engine.watch(&request, Arc::new(move || bell.ring())).unwrap()
        };
        let reply = match world.engine.pop(&request, now) {
            // It was removed between two looks; the next one registers it.
            Err(error) if error.code == ErrorCode::UnknownGroup => continue,
            outcome => outcome.unwrap(),
        };
        if !reply.claims.is_empty() {
            return reply;
        }
        if watch.is_complete() {
            bell.wait();
        }
    }
}

/// As many waiting pops as messages that become claimable in each of the ways there are.
fn waiters_are_woken(prepare: impl Fn(&World) -> PopReply, change: impl Fn(&World, PopReply) + Send + 'static, count: usize) {
    let world = Arc::new(World::new(1));
    let held = prepare(&world);
    let threads: Vec<_> = (0..count)
        .map(|_| {
            let world = Arc::clone(&world);
            thread::spawn(move || popped(&pop_waiting(&world, after(world.now, 200_000))))
        })
        .collect();
    let changer = {
        let world = Arc::clone(&world);
        thread::spawn(move || change(&world, held))
    };
    changer.join().unwrap();
    let mut found: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    found.sort_unstable();
    assert_eq!(found, ["0", "1"][..count]);
}

fn empty(world: &World) -> PopReply {
    world.create("q", SettingsPatch::default());
    PopReply::default()
}

fn leased(world: &World) -> PopReply {
    world.push("q", "a", &["0"]);
    // Ends long after the waiting pops look at the clock.
    let reply = world.pop_as(&PopRequest { lease_ms: Some(1_000_000), ..PopRequest::any("q", 1).group("g") });
    assert_eq!(reply.claims.len(), 1);
    reply
}

#[test]
fn by_pushes_each_of_two() {
    explore(|| {
        waiters_are_woken(
            empty,
            |world, _| {
                world.push("q", "a", &["0"]);
                world.push("q", "b", &["1"]);
            },
            2,
        );
    });
}

#[test]
fn by_what_is_given_back() {
    explore(|| {
        waiters_are_woken(leased, |world, held| assert_eq!(world.engine.release(&held.lease_id, world.now).unwrap(), 1), 1);
    });
}

#[test]
fn by_what_is_retried() {
    explore(|| {
        waiters_are_woken(leased, |world, held| drop(world.ack(&held.claims[0], "g", &held.lease_id, &[(0, AckVerb::Retry)])), 1);
    });
}

#[test]
fn by_a_lease_that_ends() {
    explore(|| waiters_are_woken(leased, |world, _| tick(world, 2_000_000), 1));
}

#[test]
fn by_a_seek() {
    explore(|| {
        waiters_are_woken(
            |world| {
                world.push("q", "a", &["0"]);
                world.take("q", "g", 1);
                PopReply::default()
            },
            |world, _| drop(world.seek("q", "g", SeekTarget::Beginning)),
            1,
        );
    });
}

/// Whoever waits for a group that is removed registers it anew, and gets what is pushed then.
#[test]
fn by_the_removal_of_the_group() {
    explore(|| {
        waiters_are_woken(
            |world| {
                world.create("q", SettingsPatch::default());
                world.pop("q", "g", 1)
            },
            |world, _| {
                world.engine.delete_group("g", Some("q"), world.now).unwrap();
                world.push("q", "a", &["0"]);
            },
            1,
        );
    });
}
