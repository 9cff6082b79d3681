//! What is removed, against who reads it: right bytes, or that they were removed.

use std::sync::Arc;

use fanlog::model::*;
use fanlog::storage::verify::{Severity, verify};
use shuttle::thread;

use crate::explore::{after, explore, fetch, tick};
use crate::support::{World, messages_in, messages_of};

const MESSAGES: u64 = 5;

fn payload(index: u64) -> Vec<u8> {
    format!("{index}/").repeat(150_000).into_bytes()
}

fn check(messages: &[StoredMessage]) {
    for message in messages {
        assert!(message.payload == payload(message.offset), "wrong bytes at offset {}", message.offset);
    }
}

fn settings() -> SettingsPatch {
    SettingsPatch {
        segment_bytes_max: Some(1 << 20),
        compression: Some(Compression::None),
        dedup_window_s: Some(0),
        retention_enabled: Some(true),
        ..SettingsPatch::default()
    }
}

/// Some segments of big messages, with what `between` pushes after each.
fn filled(patch: SettingsPatch, between: impl Fn(&World, u64)) -> Arc<World> {
    let world = World::new(1);
    world.create("q", patch);
    for index in 0..MESSAGES {
        between(&world, index);
        let payload = String::from_utf8(payload(index)).unwrap();
        world.push("q", "a", &[&payload]);
    }
    assert!(world.engine.queue("q").unwrap().stats.segments > 2, "there is something to remove");
    Arc::new(world)
}

/// Reads on from the start that each refusal names, and holds what it got.
fn read_on(world: &World) -> Vec<StoredMessage> {
    let mut held = Vec::new();
    let mut from = 0;
    for _ in 0..4 {
        match fetch(&world.engine, "a", from, world.now) {
            Ok(reply) => {
                let messages = messages_in(&reply.batches);
                for (offset, message) in (from..).zip(&messages) {
                    assert_eq!(message.offset, offset, "nothing is left out in silence");
                }
                check(&messages);
                held.extend(messages);
            }
            Err(error) => {
                assert_eq!(error.code, ErrorCode::RangeRemoved, "{error:?}");
                let start = world.engine.partition("q", "a").unwrap().start;
                assert!(start > from, "removed, and the start says it is not");
                from = start;
            }
        }
    }
    held
}

/// Pops and holds, as often as there is something.
fn pop_on(world: &World, now: Now) -> Vec<StoredMessage> {
    let mut held = Vec::new();
    let mut next = 0;
    for _ in 0..3 {
        let request = PopRequest { source: PopSource::Partition { queue: "q".into(), partition: "a".into() }, ..pop(2) };
        for claim in world.engine.pop(&request, now).unwrap().claims {
            let messages = messages_of(&claim);
            check(&messages);
            assert!(messages[0].offset >= next, "handed out twice");
            let skipped = next..messages[0].offset;
            assert!(skipped.is_empty() || claim.lost.is_some(), "skipped {skipped:?} and did not say so");
            next = messages[messages.len() - 1].offset + 1;
            held.extend(messages);
        }
    }
    held
}

fn pop(count: u32) -> PopRequest {
    PopRequest { auto_ack: true, ..PopRequest::any("q", count).group("g") }
}

fn check_directory(world: &World, tolerated: Severity) {
    let report = verify(&world.disk.crash_keep_all().root(), 7).unwrap();
    let bad: Vec<_> = report.findings.iter().filter(|finding| finding.severity > tolerated).collect();
    assert!(bad.is_empty(), "{bad:?}");
}

/// Segments are unlinked while readers are at work in them.
#[test]
fn readers_of_segments_that_go_get_right_bytes_or_are_told() {
    explore(|| {
        let world = filled(SettingsPatch { retention_s: Some(60), ..settings() }, |_, _| {});
        let sweeper = {
            let world = Arc::clone(&world);
            thread::spawn(move || (1..3).for_each(|round| tick(&world, round * 61_000)))
        };
        let popper = {
            let world = Arc::clone(&world);
            thread::spawn(move || pop_on(&world, world.now))
        };
        let mut held = read_on(&world);
        sweeper.join().unwrap();
        held.extend(popper.join().unwrap());
        check(&held);
        assert_eq!(world.engine.partition("q", "a").unwrap().start, MESSAGES);
        check_directory(&world, Severity::Info);
    });
}

/// Room is given back inside segments that stay, while readers are at work in what goes.
#[test]
fn readers_of_what_is_taken_out_get_right_bytes_or_are_told() {
    explore(|| {
        let world = filled(SettingsPatch { completed_retention_s: Some(60), ..settings() }, |world, index| {
            world.push("q", "kept", &[&index.to_string()]);
        });
        // Held from before, as by a connection that is slow to send.
        let before = messages_in(&fetch(&world.engine, "a", 0, world.now).unwrap().batches);
        let request = PopRequest { source: PopSource::Partition { queue: "q".into(), partition: "a".into() }, ..pop(100) };
        assert_eq!(messages_of(&world.engine.pop(&request, world.now).unwrap().claims[0]).len() as u64, MESSAGES);
        let sweeper = {
            let world = Arc::clone(&world);
            thread::spawn(move || (1..4).for_each(|round| tick(&world, round * 61_000)))
        };
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let request = PopRequest { source: request.source, ..PopRequest::any("q", 100).group("other") };
                world.engine.pop(&request, world.now).unwrap().claims.iter().flat_map(messages_of).collect::<Vec<_>>()
            })
        };
        let mut held = read_on(&world);
        held.extend(other.join().unwrap());
        sweeper.join().unwrap();
        check(&held);
        check(&before);
        let kept = messages_in(&fetch(&world.engine, "kept", 0, world.now).unwrap().batches);
        assert_eq!(kept.len() as u64, MESSAGES, "what stays is there");
        drop((held, before));
        world.engine.tick(after(world.now, 400_000));
        check_directory(&world, Severity::Info);
    });
}
