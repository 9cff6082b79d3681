//! Messages that come twice, and letters that were given up.

use std::sync::Arc;

use fanlog::model::*;
use fanlog::record::Message;

use crate::support::{World, ack_of, push_of, texts};

fn push(world: &World, partition: &str, ids: &[&str]) -> Vec<PushResult> {
    let messages =
        ids.iter().map(|id| Message { transaction_id: Some((*id).to_owned()), ..Message::new(id.as_bytes().to_vec()) });
    let request = PushRequest { items: PushItem::Messages(messages.collect()), ..push_of("q", partition, &[]) };
    let results = world.engine.push(request, world.now).unwrap().results;
    (0..results.len()).filter_map(|index| results.get(index)).collect()
}

use PushResult::{Duplicate, Stored};

#[test]
fn an_id_is_stored_once_in_its_partition_and_new_ones_of_the_same_push_are_stored() {
    let world = World::new(1);
    assert_eq!(push(&world, "a", &["x", "x", "y"]), [Stored(0), Duplicate(0), Stored(1)]);
    assert_eq!(push(&world, "b", &["x"]), [Stored(0)]);
    assert_eq!(push(&world, "a", &["z", "y"]), [Stored(2), Duplicate(1)]);
    let world = world.power_loss();
    assert_eq!(push(&world, "a", &["x", "z", "new"]), [Duplicate(0), Duplicate(2), Stored(3)]);
    assert_eq!(world.engine.partition("q", "a").unwrap().end, 4);
}

#[test]
fn the_window_is_the_queues_and_zero_is_off() {
    let mut world = World::new(2);
    world.create("q", SettingsPatch { dedup_window_s: Some(10), ..SettingsPatch::default() });
    assert_eq!(push(&world, "a", &["x"]), [Stored(0)]);
    world.pass(10_000);
    assert_eq!(push(&world, "a", &["x"]), [Duplicate(0)]);
    world.pass(1);
    assert_eq!(push(&world, "a", &["x"]), [Stored(1)]);
    let off = SettingsPatch { dedup_window_s: Some(0), ..SettingsPatch::default() };
    world.engine.update_queue("q", &off, world.now).unwrap();
    assert_eq!(push(&world, "a", &["x"]), [Stored(2)]);
}

/// Many threads push the same ids at the same time: each is stored by one of them.
#[test]
fn concurrent_pushes_of_one_id_store_it_once() {
    let world = Arc::new(World::new(3));
    let ids: Vec<String> = (0..50).map(|index| format!("id-{index}")).collect();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (world, ids) = (Arc::clone(&world), ids.clone());
            std::thread::spawn(move || ids.iter().filter(|id| matches!(push(&world, "a", &[id.as_str()])[0], Stored(_))).count())
        })
        .collect();
    let stored: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!((stored, world.engine.partition("q", "a").unwrap().end), (50, 50));
}

#[test]
fn a_numbered_push_sent_again_is_stored_once_and_a_gap_is_refused() {
    let world = World::new(4);
    let numbered = |sequence| PushRequest { producer: Some((9, 0, sequence)), ..push_of("q", "a", &["m"]) };
    let push =
        |world: &World, sequence| world.engine.push(numbered(sequence), world.now).map(|reply| reply.results.get(0).unwrap());
    assert_eq!(push(&world, 0), Ok(Stored(0)));
    assert_eq!(push(&world, 0), Ok(Duplicate(0)));
    assert_eq!(push(&world, 1), Ok(Stored(1)));
    let world = world.power_loss();
    assert_eq!(push(&world, 1), Ok(Duplicate(1)));
    assert_eq!(push(&world, 3).unwrap_err().code, ErrorCode::OutOfSequence);
    assert_eq!(push(&world, 2), Ok(Stored(2)));
}

/// Two messages that a group gave up.
fn with_letters(seed: u64) -> World {
    let world = World::new(seed);
    push(&world, "a", &["x", "y", "z"]);
    let reply = world.pop("q", "g", 3);
    let mut ack = ack_of(&reply.claims[0], "g", &reply.lease_id, &[(0, AckVerb::Reject), (1, AckVerb::Reject)]);
    ack.items[0].reason = "no such customer".to_owned();
    world.engine.ack(ack, world.now).unwrap();
    world
}

#[test]
fn a_dead_letter_has_the_message_the_group_the_reason_the_count_and_the_times() {
    let world = with_letters(5);
    let cursor = world.cursor("q", "g", "a").next;
    let world = world.power_loss();
    let letters = world.letters("q");
    assert_eq!((letters.len(), world.cursor("q", "g", "a").next), (2, cursor), "letters and cursor are of one step");
    let letter = &letters[1];
    assert_eq!((letter.queue.as_str(), letter.partition.as_str(), letter.offset, letter.group.as_str()), ("q", "a", 0, "g"));
    assert_eq!((letter.reason.as_str(), letter.delivery_count, letter.transaction_id.as_str()), ("no such customer", 1, "x"));
    assert_eq!((&letter.payload[..], letter.failed_at_us), (b"x".as_slice(), world.now.wall_us));
    assert!(letter.created_at_us > 0 && letter.created_at_us <= letter.failed_at_us);
    let of = |group: &str| DeadLetterQuery { group: Some(group.to_owned()), limit: 10, ..DeadLetterQuery::default() };
    assert_eq!(world.engine.dead_letters(&of("g")).unwrap().1, 2);
    assert_eq!(world.engine.dead_letters(&of("h")).unwrap().1, 0);
    let page = DeadLetterQuery { limit: 1, skip: 1, ..DeadLetterQuery::default() };
    assert_eq!(world.engine.dead_letters(&page).unwrap(), (vec![letter.clone()], 2));
}

#[test]
fn a_dead_letter_is_replayed_once_and_deleted_once() {
    let world = with_letters(6);
    let [newer, older] = [0, 1].map(|index| world.letters("q")[index].id);
    let replayed = world.engine.replay_dead_letter("q", older, world.now).unwrap();
    assert_eq!(replayed.results.get(0), Some(Stored(3)));
    assert_eq!(world.engine.replay_dead_letter("q", older, world.now).unwrap_err().code, ErrorCode::UnknownDeadLetter);
    assert!(world.engine.delete_dead_letter("q", newer, world.now).unwrap());
    assert!(!world.engine.delete_dead_letter("q", newer, world.now).unwrap());
    let world = world.power_loss();
    assert!(world.letters("q").is_empty());
    assert_eq!(texts(&world.drain("q", "g")), ["z", "x"]);
    assert_eq!(push(&world, "a", &[&format!("dlq:{older}")]), [Duplicate(3)]);
}

/// No enabled group takes it: it would be stored nowhere.
#[test]
fn a_replay_that_nobody_takes_keeps_the_letter() {
    let world = with_letters(7);
    let id = world.letters("q")[0].id;
    let enable = |is_enabled| GroupPatch { is_enabled: Some(is_enabled), ..GroupPatch::default() };
    for group in ["g", PRIMARY_GROUP] {
        world.engine.update_group("q", group, &enable(false), world.now).unwrap();
    }
    assert_eq!(world.engine.replay_dead_letter("q", id, world.now).unwrap().results.get(0), Some(PushResult::Dropped));
    assert_eq!(world.letters("q").len(), 2);
    world.engine.update_group("q", "g", &enable(true), world.now).unwrap();
    assert_eq!(world.engine.replay_dead_letter("q", id, world.now).unwrap().results.get(0), Some(Stored(3)));
    assert_eq!(world.letters("q").len(), 1);
}
