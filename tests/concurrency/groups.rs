//! Groups and queues that go while somebody uses them.

use std::sync::Arc;

use fanlog::model::*;
use shuttle::thread;

use crate::explore::{Notes, after, explore};
use crate::support::{World, ack_of};

/// A pop against the removal of its group: either it comes first, and its lease is over with the group, or it registers the group anew.
#[test]
fn a_removed_group_leaves_no_lease_behind() {
    explore(|| {
        let world = Arc::new(World::new(1));
        world.push("q", "a", &["0", "1"]);
        world.take("q", "g", 1);
        let remover = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.engine.delete_group("g", Some("q"), world.now).unwrap())
        };
        let told = Arc::new(Notes::new());
        let reply = match world.engine.pop(&PopRequest::any("q", 1).group("g"), world.now) {
            Ok(reply) => reply,
            Err(error) => {
                assert_eq!(error.code, ErrorCode::UnknownGroup, "{error:?}");
                PopReply::default()
            }
        };
        let mut is_watched = false;
        if !reply.claims.is_empty() {
            let told = Arc::clone(&told);
            is_watched =
                world.engine.watch_lease(&reply.lease_id, Arc::new(move |end: fanlog::engine::LeaseEnd| told.add(end.reason)));
        }
        remover.join().unwrap();
        for claim in &reply.claims {
            let offset = claim.range.first;
            let acked = world.engine.ack(ack_of(claim, "g", &reply.lease_id, &[(offset, AckVerb::Completed)]), world.now);
            let is_there = world.engine.group("q", "g").is_ok();
            match acked {
                Ok(reply) => {
                    assert!(is_there, "acknowledged for a group that is gone: {reply:?}");
                    let is_refused = reply.outcomes[0].refused.is_some();
                    assert_eq!(is_refused, is_watched && !told.all().is_empty(), "{reply:?}");
                }
                Err(error) => assert_eq!((error.code, is_there), (ErrorCode::UnknownGroup, false), "{error:?}"),
            }
            if !is_there && is_watched {
                assert_eq!(told.all().len(), 1, "the end of the lease is told once");
            }
        }
        // From the beginning, as a group that is new: nothing of the old one is left, its lease neither.
        world.engine.delete_group("g", Some("q"), world.now).unwrap();
        assert_eq!(world.drain("q", "g").len(), 2);
    });
}

/// Pushes and pops against the deletion of their queue: answered as before it, or as of a queue that is not there, or new.
#[test]
fn a_queue_that_goes_answers_as_one_that_is_there_or_not() {
    explore(|| {
        let world = Arc::new(World::new(1));
        world.push("q", "a", &["old"]);
        let pusher = {
            let world = Arc::clone(&world);
            thread::spawn(move || match world.engine.push(crate::support::push_of("q", "a", &["new"]), world.now) {
                Ok(reply) => Some(reply.partition_id),
                Err(error) => {
                    assert_eq!(error.code, ErrorCode::UnknownQueue, "{error:?}");
                    None
                }
            })
        };
        let popper = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                for _ in 0..2 {
                    match world.engine.pop(&PopRequest::any("q", 10).group("g"), world.now) {
                        Ok(reply) => {
                            let found = crate::support::popped(&reply);
                            assert!(found.iter().all(|text| text == "old" || text == "new"), "{found:?}");
                        }
                        Err(error) => assert_eq!(error.code, ErrorCode::UnknownQueue, "{error:?}"),
                    }
                }
            })
        };
        let ticker = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.engine.tick(after(world.now, 10_000)))
        };
        assert!(world.engine.delete_queue("q", world.now).unwrap());
        let pushed = pusher.join().unwrap();
        popper.join().unwrap();
        ticker.join().unwrap();
        // What is there now was made after the deletion, and is there after a start.
        let found =
            world.engine.queue("q").ok().map(|_| world.drain("q", "after").into_iter().map(|taken| taken.2).collect::<Vec<_>>());
        if let Some(found) = &found {
            assert!(pushed.is_some() && found == &["new"], "{found:?}");
        }
        let kept = crate::explore::after_power_loss(&world, after(world.now, 20_000));
        assert_eq!(kept.engine.queue("q").is_ok(), found.is_some());
        if found.is_some() {
            assert_eq!(kept.drain("q", "later").len(), 1);
        }
    });
}
