//! Commits against readers: what is seen is whole, committed and in its place, and what was answered is seen.

use std::sync::Arc;

use fanlog::model::*;
use fanlog::storage::disk::sim::SimDisk;
use shuttle::thread;

use crate::explore::{Notes, after_power_loss, contents, explore, fetch};
use crate::support::{World, messages_in, push_of, text};

/// What each message says: the push that it belongs to.
fn payloads(producer: u32, push: u32) -> [String; 2] {
    ["first", "second"].map(|half| format!("{producer}/{push}/{half}"))
}

/// Pushes twice and notes where each is.
fn produce(world: &World, producer: u32, answered: &Notes<(u64, String)>) {
    for push in 0..2 {
        let payloads = payloads(producer, push);
        let reply = world.push("q", "a", &[&payloads[0], &payloads[1]]);
        let PushResults::Range { base, .. } = reply.results else { panic!("{reply:?}") };
        (base..).zip(payloads).for_each(|note| answered.add(note));
    }
}

/// Whether the messages from offset 0 are whole pushes behind each other.
fn check_whole(found: &[String]) {
    assert!(found.len().is_multiple_of(2), "half a push: {found:?}");
    for pair in found.chunks(2) {
        let (first, second) = (pair[0].rsplit_once('/').unwrap(), pair[1].rsplit_once('/').unwrap());
        assert_eq!((first.0, first.1, second.1), (second.0, "first", "second"), "{found:?}");
    }
}

fn read(world: &World) -> Vec<String> {
    let reply = fetch(&world.engine, "a", 0, world.now).unwrap();
    let found: Vec<_> = messages_in(&reply.batches).iter().map(text).collect();
    assert_eq!((found.len() as u64, reply.next), (reply.end, reply.end), "all that the end says is there, and no more");
    found
}

/// A world with an empty partition, so that a reader may come before the first push.
fn world(durability: Durability) -> World {
    let world = World::new(1);
    world.create("q", SettingsPatch { durability: Some(durability), ..SettingsPatch::default() });
    world.push("q", "a", &payloads(0, 0).each_ref().map(String::as_str));
    world
}

fn readers_see_whole_committed_pushes(durability: Durability) {
    let world = Arc::new(world(durability));
    let answered = Arc::new(Notes::new());
    let mut threads = Vec::new();
    for producer in 1..3 {
        let (world, answered) = (Arc::clone(&world), Arc::clone(&answered));
        threads.push(thread::spawn(move || produce(&world, producer, &answered)));
    }
    {
        let (world, answered) = (Arc::clone(&world), Arc::clone(&answered));
        threads.push(thread::spawn(move || {
            let mut seen = Vec::new();
            for _ in 0..3 {
                let before = answered.all();
                let found = read(&world);
                check_whole(&found);
                assert!(found.starts_with(&seen), "what was seen stays: {seen:?}, {found:?}");
                for (offset, payload) in before {
                    assert_eq!(found.get(offset as usize), Some(&payload), "answered and not there");
                }
                seen = found;
            }
            if durability == Durability::Sync {
                // Nobody sees what a loss of power takes away.
                let left = read(&after_power_loss(&world, world.now));
                assert!(left.starts_with(&seen), "seen {seen:?}, kept {left:?}");
            }
        }));
    }
    {
        let world = Arc::clone(&world);
        threads.push(thread::spawn(move || {
            let mut next = 0;
            for _ in 0..3 {
                let reply = world.engine.pop(&PopRequest { auto_ack: true, ..PopRequest::any("q", 3).group("g") }, world.now);
                for (offset, payload) in reply.unwrap().claims.iter().flat_map(contents) {
                    assert_eq!(offset, next, "in order, and each once");
                    assert!(!payload.is_empty());
                    next += 1;
                }
            }
        }));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let found = read(&world);
    assert_eq!(found.len(), 10);
    check_whole(&found);
}

#[test]
fn readers_see_whole_synced_pushes() {
    explore(|| readers_see_whole_committed_pushes(Durability::Sync));
}

#[test]
fn readers_see_whole_pushes_while_the_log_is_synced_beside_them() {
    explore(|| {
        readers_see_whole_committed_pushes(Durability::Interval { milliseconds: 5 });
    });
}

#[test]
fn readers_see_every_message_while_the_log_rolls() {
    explore(|| {
        let world = World::new(1);
        world.create("q", SettingsPatch { segment_bytes_max: Some(1 << 20), ..plain() });
        let payload = |index: u64| format!("{index}/").repeat(200_000);
        world.push("q", "a", &[&payload(0)]);
        let world = Arc::new(world);
        let writer = {
            let world = Arc::clone(&world);
            thread::spawn(move || (1..5).for_each(|index| drop(world.push("q", "a", &[&payload(index)]))))
        };
        let keeper = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                for milliseconds in [2_000, 4_000] {
                    world.engine.tick(crate::explore::after(world.now, milliseconds));
                }
            })
        };
        for _ in 0..3 {
            let reply = fetch(&world.engine, "a", 0, world.now).unwrap();
            let found = messages_in(&reply.batches);
            assert_eq!(found.len() as u64, reply.end);
            for (index, message) in (0..).zip(&found) {
                assert!(message.offset == index && message.payload == payload(index).as_bytes(), "message {index}");
            }
        }
        writer.join().unwrap();
        keeper.join().unwrap();
        assert!(world.engine.queue("q").unwrap().stats.segments > 1, "it did roll");
    });
}

fn plain() -> SettingsPatch {
    SettingsPatch { compression: Some(Compression::None), ..SettingsPatch::default() }
}

/// Of pushes at the same time that bring the same id one is stored, and each is told the offset of that one.
#[test]
fn one_of_several_pushes_with_one_id_is_stored() {
    explore(|| {
        let world = Arc::new(World::new(1));
        world.create("q", SettingsPatch::default());
        let push = |world: &World, text: &str| {
            let mut request = push_of("q", "a", &[text, "other"]);
            let PushItem::Messages(messages) = &mut request.items else { panic!("messages were pushed") };
            messages[0].transaction_id = Some("one".to_owned());
            world.engine.push(request, world.now).unwrap()
        };
        let threads: Vec<_> = ["x", "y", "z"]
            .into_iter()
            .map(|text| {
                let world = Arc::clone(&world);
                thread::spawn(move || push(&world, text))
            })
            .collect();
        let mut replies: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        replies.push(push(&world, "late"));
        let mut stored = 0;
        let mut offsets = Vec::new();
        for reply in &replies {
            match reply.results.get(0) {
                Some(PushResult::Stored(offset)) => {
                    stored += 1;
                    offsets.push(offset);
                }
                Some(PushResult::Duplicate(offset)) => offsets.push(offset),
                other => panic!("{other:?}"),
            }
        }
        let found = read(&world);
        assert_eq!(stored, 1, "{replies:?}");
        assert_eq!(found.iter().filter(|text| *text != "other").count(), 1, "{found:?}");
        assert!(offsets.iter().all(|offset| offset == &offsets[0]), "{replies:?}");
        assert_eq!(found.len(), 5);
    });
}

/// Closing lets everything that was answered be found again; what came too late is refused.
#[test]
fn nothing_answered_is_lost_when_the_engine_closes() {
    explore(|| {
        let world = Arc::new(world(Durability::Interval { milliseconds: 1_000 }));
        let answered = Arc::new(Notes::new());
        let threads: Vec<_> = (1..3)
            .map(|producer| {
                let (world, answered) = (Arc::clone(&world), Arc::clone(&answered));
                thread::spawn(move || {
                    for push in 0..2 {
                        let payloads = payloads(producer, push);
                        let request = push_of("q", "a", &payloads.each_ref().map(String::as_str));
                        match world.engine.push(request, world.now) {
                            Ok(PushReply { results: PushResults::Range { base, .. }, .. }) => {
                                (base..).zip(payloads).for_each(|note| answered.add(note));
                            }
                            Err(error) if error.code == ErrorCode::ShuttingDown => {}
                            other => panic!("{other:?}"),
                        }
                    }
                })
            })
            .collect();
        world.engine.close(world.now).unwrap();
        let answered_before = answered.all();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let disk: SimDisk = world.disk.clone();
        let (options, now) = (world.options.clone(), world.now);
        // A process that closed ends: what it answered before that is on the disk, and all else unless the power fails.
        for (kept, answered) in [(disk.crash_drop_unsynced(), answered_before), (disk.crash_keep_all(), answered.all())] {
            let world = World::with_options(kept, now, options.clone());
            let found = read(&world);
            check_whole(&found);
            for (offset, payload) in answered {
                assert_eq!(found.get(offset as usize), Some(&payload), "answered and not there");
            }
        }
    });
}

/// Readers who skip what is not for them look for damage in between, in the index that the writer writes to: neither waits for the other.
#[test]
fn a_filtered_group_takes_its_messages_while_others_are_pushed() {
    explore(|| {
        let world = World::new(1);
        world.create("q", SettingsPatch::default());
        let declaration =
            GroupDeclaration { filter: ":kind = \"x\"".to_owned(), start: Some(Start::Beginning), ..GroupDeclaration::default() };
        world.engine.declare_group("q", "g", &declaration, world.now).unwrap();
        let world = Arc::new(world);
        let push = |world: &World, kind: &str| {
            let mut request = push_of("q", "a", &[kind]);
            let PushItem::Messages(messages) = &mut request.items else { panic!("messages were pushed") };
            messages[0].attributes.insert("kind", kind).unwrap();
            world.engine.push(request, world.now).unwrap();
        };
        ["y", "x", "y", "y", "x"].iter().for_each(|kind| push(&world, kind));
        let writer = {
            let world = Arc::clone(&world);
            thread::spawn(move || ["y", "x"].iter().for_each(|kind| push(&world, kind)))
        };
        let mut taken = Vec::new();
        for _ in 0..3 {
            taken.extend(world.take("q", "g", 10));
        }
        writer.join().unwrap();
        taken.extend(world.take("q", "g", 10));
        let offsets: Vec<_> = taken.iter().map(|(_, offset, text)| (*offset, text.as_str())).collect();
        assert_eq!(offsets, [(1, "x"), (4, "x"), (6, "x")]);
    });
}
