//! Transactions over several queues, and what is left of them after kills, power losses and checkpoints at bad moments.

use fanlog::model::*;
use fanlog::record::{Attributes, Message};
use fanlog::storage::disk::Errno;
use fanlog::storage::disk::sim::{Fault, Operation};

use crate::support::{World, ack_of, messages_of, push_of};

const MIB: usize = 1 << 20;

fn world(seed: u64, queues: &[&str]) -> World {
    let world = World::new(seed);
    for queue in queues {
        let settings =
            SettingsPatch { segment_bytes_max: Some(1 << 20), compression: Some(Compression::None), ..SettingsPatch::default() };
        world.engine.create_queue(queue, &settings, world.now).unwrap();
    }
    world
}

/// Pushes so much into a queue that its log rolls, and lets the time come for its checkpoint.
fn roll_and_checkpoint(world: &mut World, queue: &str) {
    for _ in 0..3 {
        world.push(queue, "filler", &[&"x".repeat(MIB / 2)]);
    }
    world.pass(2_000);
}

fn count(world: &World, queue: &str, partition: &str) -> u64 {
    let info = world.engine.partition(queue, partition).unwrap();
    info.end - info.start
}

/// A part that its queue could not write at once is judged by the filters that held when the transaction was answered for, and not by
/// those that hold when it is written.
#[test]
fn a_part_that_is_written_later_has_the_decision_of_its_push() {
    let mut world = world(3, &["decides", "target"]);
    for (group, filter) in [("before", ":k = 1"), ("after", ":k = 2")] {
        let declaration = GroupDeclaration { filter: filter.to_owned(), ..GroupDeclaration::default() };
        world.engine.declare_group("target", group, &declaration, world.now).unwrap();
    }
    let with = |k: i64| {
        let mut attributes = Attributes::new();
        attributes.insert("k", k).unwrap();
        Message { attributes, ..Message::new(k.to_string()) }
    };
    let items = PushItem::Messages(vec![with(1), with(2), with(1)]);
    let pushes = vec![push_of("decides", "p", &["m"]), PushRequest { items, ..push_of("target", "p", &[]) }];
    // The first write is the deciding queue's.
    world.disk.fail(Fault::new(Errno::IO).on(Operation::Write).skip(1));
    let error = world.engine.transact(TransactionRequest { pushes, ..TransactionRequest::default() }, world.now).unwrap_err();
    assert!(error.text.starts_with("the transaction is durable and will be finished in queue \"target\" later"), "{error}");
    world.disk.clear_faults();
    for (group, filter) in [("before", ":k = 2"), ("after", "")] {
        let patch = GroupPatch { filter: Some(filter.to_owned()), ..GroupPatch::default() };
        world.engine.update_group("target", group, &patch, world.now).unwrap();
    }
    world = world.power_loss();
    let payloads = |group: &str| world.drain("target", group).into_iter().map(|entry| entry.2).collect::<String>();
    assert_eq!((payloads("before"), payloads("after"), payloads("all")), ("11".to_owned(), "2".to_owned(), "121".to_owned()));
}

#[test]
fn a_part_that_is_written_later_and_was_dropped_whole_leaves_its_partition_and_its_number() {
    let world = world(4, &["decides", "target"]);
    let disabled = GroupPatch { is_enabled: Some(false), ..GroupPatch::default() };
    for group in world.engine.progress("target", world.now).unwrap() {
        world.engine.update_group("target", &group.group.name, &disabled, world.now).unwrap();
    }
    let numbered = |sequence| PushRequest { producer: Some((7, 1, sequence)), ..push_of("target", "new", &["dropped"]) };
    world.disk.fail(Fault::new(Errno::IO).on(Operation::Write).skip(1));
    let pushes = vec![push_of("decides", "p", &["m"]), numbered(0)];
    let error = world.engine.transact(TransactionRequest { pushes, ..TransactionRequest::default() }, world.now).unwrap_err();
    assert!(error.text.starts_with("the transaction is durable and will be finished in queue \"target\" later"), "{error}");
    world.disk.clear_faults();
    let world = world.power_loss();
    let found = world.engine.partition("target", "new").unwrap();
    assert_eq!((found.start, found.end), (0, 0));
    assert_eq!(world.engine.queue("target").unwrap().stats.messages_dropped, 1);
    let error = world.engine.push(numbered(2), world.now).unwrap_err();
    assert_eq!(error.code, ErrorCode::OutOfSequence, "1 is next");
    world.engine.push(numbered(1), world.now).unwrap();
}

fn moves(world: &World, from: &str, to: &[&str], group: &str) -> TransactionRequest {
    let source = PopSource::Partition { queue: from.to_owned(), partition: "p".to_owned() };
    let reply = world.engine.pop(&PopRequest { source, ..PopRequest::any(from, 1).group(group) }, world.now).unwrap();
    let claim = &reply.claims[0];
    let offset = messages_of(claim)[0].offset;
    TransactionRequest {
        pushes: to.iter().map(|queue| push_of(queue, "moved", &[&format!("{offset}")])).collect(),
        acks: vec![ack_of(claim, group, &reply.lease_id, &[(offset, AckVerb::Completed)])],
        required_leases: Vec::new(),
    }
}

/// The number of a transaction begins anew with each start. A checkpoint once kept only half of it, so that a transaction of one start
/// took the place of one of an earlier start, whose push was then done a second time.
#[test]
fn a_push_into_another_queue_is_done_once_over_kills_and_checkpoints() {
    let mut world = world(1, &["decides", "target"]);
    for round in 1..=4 {
        for _ in 0..3 {
            let pushes = ["decides", "target"].map(|queue| push_of(queue, "p", &["m"])).to_vec();
            world.engine.transact(TransactionRequest { pushes, ..TransactionRequest::default() }, world.now).unwrap();
        }
        roll_and_checkpoint(&mut world, "target");
        world = if round % 2 == 0 { world.power_loss() } else { world.kill() };
        assert_eq!((count(&world, "decides", "p"), count(&world, "target", "p")), (3 * round, 3 * round));
    }
}

/// An acknowledgement in a queue that another queue's log decided stood only there until that queue's next checkpoint. Two queues
/// that decide for each other must not lose what they hold for each other, whichever is checkpointed first.
#[test]
fn an_acknowledgement_decided_elsewhere_outlives_the_checkpoints_of_both() {
    for first in [0, 1] {
        let queues = ["one", "two"];
        let mut world = world(2, &queues);
        for queue in queues {
            world.push(queue, "p", &["a", "b", "c", "d"]);
        }
        for round in 1..=3 {
            for (from, to) in [("one", "two"), ("two", "one")] {
                world.engine.transact(moves(&world, from, &[to], "g"), world.now).unwrap();
            }
            roll_and_checkpoint(&mut world, queues[first]);
            world = if round == 2 { world.power_loss() } else { world.kill() };
            for queue in queues {
                let cursors = world.engine.cursors(queue, "g", 0, 10, world.now).unwrap();
                let next = cursors.iter().find(|cursor| cursor.partition == "p").map(|cursor| cursor.next);
                assert_eq!(next, Some(round), "{queue} after round {round}, {} was checkpointed", queues[first]);
                assert_eq!(count(&world, queue, "moved"), round);
            }
        }
    }
}
