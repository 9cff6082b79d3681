//! Dead letters and remarks: found, listed, replayed and removed wherever they lie.

use std::collections::BTreeMap;

use fanlog::model::*;
use fanlog::record::{Attributes, Message};

use super::support::{World, push_of, text};

/// Rejects everything that a group gets; what was pushed by number of the letter.
fn reject(world: &World, partition: &str, group: &str, count: u64, size: usize) {
    for number in 0..count {
        let mut message = Message::new(format!("{group} {number} ").repeat(size / 8 + 1));
        message.attributes = Attributes::new();
        message.attributes.insert("number", number.to_string().as_str()).unwrap();
        message.transaction_id = (number % 2 == 0).then(|| format!("{group}-{number}"));
        let request = PushRequest { items: PushItem::Messages(vec![message]), ..push_of("q", partition, &[]) };
        world.engine.push(request, world.now).unwrap();
    }
    loop {
        let source = PopSource::Partition { queue: "q".into(), partition: partition.into() };
        let reply = world.engine.pop(&PopRequest { source, ..PopRequest::any("q", 50).group(group) }, world.now).unwrap();
        let Some(claim) = reply.claims.first() else { return };
        let items: Vec<_> = super::support::messages_of(claim).iter().map(|message| (message.offset, AckVerb::Reject)).collect();
        world.ack(claim, group, &reply.lease_id, &items);
    }
}

fn list(world: &World, group: Option<&str>, skip: u32, limit: u32) -> (Vec<DeadLetter>, u64) {
    let query = DeadLetterQuery { queue: Some("q".into()), group: group.map(str::to_owned), skip, limit };
    world.engine.dead_letters(&query).unwrap()
}

fn all(world: &World) -> BTreeMap<u64, DeadLetter> {
    let (letters, total) = list(world, None, 0, u32::MAX);
    assert_eq!(letters.len() as u64, total);
    letters.into_iter().map(|letter| (letter.id, letter)).collect()
}

#[test]
fn letters_are_the_same_before_and_after_checkpoints_rewrites_kills_and_restarts() {
    let mut world = World::new(31);
    reject(&world, "a", "g", 30, 60_000);
    world.pass(1_000);
    reject(&world, "b", "h", 10, 100);
    let known = all(&world);
    assert_eq!(known.len(), 40);
    let check = |world: &World, what: &str| {
        assert_eq!(all(world), known, "{what}");
        let mut pages = Vec::new();
        for skip in (0..50).step_by(7) {
            let (page, total) = list(world, Some("g"), skip, 7);
            assert_eq!(total, 30);
            pages.extend(page);
        }
        assert_eq!(pages.len(), 30);
        assert!(pages.windows(2).all(|pair| (pair[0].failed_at_us, pair[0].id) > (pair[1].failed_at_us, pair[1].id)));
        for (&id, letter) in &known {
            assert_eq!(world.engine.dead_letter("q", id).unwrap(), *letter);
            let found = world.engine.dead_letter_of("q", letter.partition_id, letter.offset).unwrap();
            assert_eq!(found.as_ref(), Some(letter));
        }
    };
    world = world.kill();
    check(&world, "after a kill, from the log");
    // The table grows beyond twice its size again and again, and is written anew.
    for round in 0..3 {
        reject(&world, "c", &format!("c{round}"), 25, 60_000);
        for (id, letter) in all(&world) {
            if letter.partition == "c" {
                assert!(world.engine.delete_dead_letter("q", id, world.now).unwrap());
            }
        }
        world = world.restart();
        check(&world, "after a restart, from the checkpoint");
    }
    world = world.power_loss();
    check(&world, "after a loss of power");
    assert_eq!(world.engine.stats().total.dead_letters, 40);
    let first = *known.keys().next().unwrap();
    world.engine.replay_dead_letter("q", first, world.now).unwrap();
    let error = world.engine.replay_dead_letter("q", first, world.now).unwrap_err();
    assert_eq!(error.code, ErrorCode::UnknownDeadLetter);
    assert_eq!(world.engine.dead_letter("q", first).unwrap_err().code, ErrorCode::UnknownDeadLetter);
    let world = world.restart();
    assert_eq!(all(&world).len(), 39);
    let replayed = world.pop("q", "g", 1);
    let message = &super::support::messages_of(&replayed.claims[0])[0];
    assert_eq!((message.transaction_id.clone(), text(message)), (Some(format!("dlq:{first}")), "g 0 ".repeat(60_000 / 8 + 1)));
}

#[test]
fn remarks_are_found_by_name_in_one_queue_or_all() {
    let world = World::new(32);
    for queue in ["q", "r"] {
        let id = world.push(queue, "a", &["x"]).partition_id;
        for number in 0..3 {
            let event = TraceEvent {
                partition_id: id,
                transaction_id: format!("t{number}"),
                group: String::new(),
                names: vec!["tour".to_owned(), format!("n{number}")],
                event_type: "info".to_owned(),
                data: Default::default(),
                worker_id: queue.to_owned(),
                created_at_us: 0,
            };
            world.engine.trace(queue, event, world.now).unwrap();
        }
    }
    let world = world.kill();
    let ids = |events: Vec<TraceEvent>| events.into_iter().map(|event| event.transaction_id).collect::<Vec<_>>();
    assert_eq!(ids(world.engine.traces_by_name_in("q", "tour", 1, 5).unwrap()), ["t1", "t0"]);
    assert_eq!(ids(world.engine.traces_by_name_in("q", "tour", 0, 1).unwrap()), ["t2"]);
    assert_eq!(ids(world.engine.traces_by_name_in("q", "none", 0, 9).unwrap()), Vec::<String>::new());
    assert_eq!(world.engine.traces_by_name("tour", 4).len(), 4);
    assert_eq!(ids(world.engine.traces_of_message("r", 0, "t1").unwrap()), ["t1"]);
    let names: Vec<_> = world.engine.trace_names().into_iter().map(|(name, count)| format!("{name}={count}")).collect();
    assert_eq!(names, ["n0=2", "n1=2", "n2=2", "tour=6"]);
}
