//! One log, any number of groups: a message is written once.

use fanlog::model::*;

use crate::support::{World, popped};

fn written(world: &World) -> u64 {
    world.engine.queue("q").unwrap().stats.bytes_written
}

/// Pushes 200 messages past so many groups that have read before; the bytes that the pushes wrote.
fn bytes_of_pushes(groups: usize) -> u64 {
    let world = World::new(1);
    world.push("q", "a", &["first"]);
    for group in 0..groups {
        assert_eq!(world.take("q", &format!("group-{group}"), 1).len(), 1);
    }
    let before = written(&world);
    for index in 0..200 {
        world.push("q", "a", &[&format!("message {index}")]);
    }
    let bytes = written(&world) - before;
    for group in 0..groups {
        assert_eq!(world.drain("q", &format!("group-{group}")).len(), 200);
    }
    bytes
}

#[test]
fn a_push_writes_the_same_bytes_for_1_4_16_and_64_groups() {
    let bytes = [1, 4, 16, 64].map(bytes_of_pushes);
    println!("bytes written for 200 messages past 1, 4, 16 and 64 groups: {bytes:?}");
    assert!(bytes.iter().all(|&other| other == bytes[0]), "{bytes:?}");
}

/// What a new group costs does not depend on what is there for it to read.
#[test]
fn a_new_group_writes_nothing_for_messages() {
    let cost = |messages: usize| {
        let world = World::new(2);
        for _ in 0..messages {
            world.push("q", "a", &["x"; 100]);
        }
        let before = written(&world);
        assert_eq!(popped(&world.pop("q", "late", 1)).len(), 1);
        written(&world) - before
    };
    let (few, many) = (cost(1), cost(100));
    assert_eq!(few, many);
    assert!(few < 4_096, "{few} bytes");
}

/// A group that was not there when the messages came reads all of them; the oldest offset it wants is a number.
#[test]
fn consumed_is_a_comparison_with_the_cursor() {
    let world = World::new(3);
    world.push("q", "a", &["0", "1", "2", "3"]);
    world.take("q", "g", 2);
    let partition = world.engine.partition("q", "a").unwrap().id;
    let next = world.cursor("q", "g", "a").next;
    for offset in 0..4 {
        let view = world.engine.message("q", partition, &AckTarget::Offset(offset), world.now).unwrap();
        assert_eq!(view.groups[0].is_consumed, offset < next);
    }
    assert_eq!(next, 2);
}
