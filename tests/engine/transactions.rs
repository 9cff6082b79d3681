//! Pushes and acknowledgements, all or none.

use fanlog::model::*;
use fanlog::record::Message;

use crate::support::{World, ack_of, popped, push_of, texts};

fn with_id(queue: &str, id: &str) -> PushRequest {
    let message = Message { transaction_id: Some(id.to_owned()), ..Message::new(id.as_bytes().to_vec()) };
    PushRequest { items: PushItem::Messages(vec![message]), ..push_of(queue, "a", &[]) }
}

/// Nothing of it happened: the message is still leased, nothing was pushed.
fn assert_untouched(world: &World, lease: &str) {
    assert_eq!(world.engine.partition("out", "a").unwrap().end, 1);
    let cursor = world.cursor("in", "g", "a");
    assert_eq!((cursor.next, cursor.lease_id.as_str()), (0, lease));
    assert!(world.letters("in").is_empty());
}

#[test]
fn a_duplicate_or_a_refused_acknowledgement_rolls_all_back_and_says_why() {
    let world = World::new(1);
    world.push("in", "a", &["job", "next"]);
    world.engine.push(with_id("out", "known"), world.now).unwrap();
    let reply = world.pop("in", "g", 2);
    let ack = |offset, verb| ack_of(&reply.claims[0], "g", &reply.lease_id, &[(offset, verb)]);
    let good = ack(0, AckVerb::Completed);
    let refused = |pushes: Vec<PushRequest>, acks: Vec<AckRequest>, required: &[&str]| {
        let required_leases = required.iter().map(|lease| (*lease).to_owned()).collect();
        let error = world.engine.transact(TransactionRequest { pushes, acks, required_leases }, world.now).unwrap_err();
        assert_untouched(&world, &reply.lease_id);
        error.code
    };
    assert_eq!(
        refused(vec![push_of("out", "a", &["x"]), with_id("out", "known")], vec![good.clone()], &[]),
        ErrorCode::Duplicate
    );
    assert_eq!(
        refused(vec![push_of("out", "a", &["x"])], vec![ack(0, AckVerb::Reject), ack(7, AckVerb::Completed)], &[]),
        ErrorCode::AckRejected
    );
    let stale = AckRequest { lease_id: "1-999".to_owned(), ..good.clone() };
    assert_eq!(refused(vec![push_of("out", "a", &["x"])], vec![stale], &[]), ErrorCode::AckRejected);
    assert_eq!(refused(vec![push_of("out", "a", &["x"])], vec![good.clone()], &["1-999"]), ErrorCode::LeaseLost);
    let nobody = AckRequest { group: Some("nobody".to_owned()), ..good.clone() };
    refused(vec![push_of("out", "a", &["x"])], vec![nobody], &[]);
    let world = world.power_loss();
    assert_eq!(world.engine.partition("out", "a").unwrap().end, 1);
    assert_eq!(texts(&world.drain("in", "g")), ["job", "next"]);
}

#[test]
fn pushes_acknowledgements_and_dead_letters_of_several_queues_are_one() {
    let world = World::new(2);
    world.push("in", "a", &["good", "bad"]);
    let reply = world.pop("in", "g", 2);
    let ack = ack_of(&reply.claims[0], "g", &reply.lease_id, &[(0, AckVerb::Completed), (1, AckVerb::Reject)]);
    let pushes = vec![push_of("out", "a", &["1"]), push_of("out", "b", &["2"]), push_of("log", "a", &["3"])];
    let done =
        world.engine.transact(TransactionRequest { pushes, acks: vec![ack], required_leases: Vec::new() }, world.now).unwrap();
    assert_eq!((done.pushes.len(), done.acks[0].next, done.acks[0].is_lease_released), (3, 2, true));
    let world = world.power_loss();
    assert_eq!((world.letters("in").len(), world.lag("in", "g")), (1, 0));
    assert_eq!((world.drain("out", "g").len(), texts(&world.drain("log", "g"))), (2, vec!["3"]));
}

#[test]
fn an_acknowledgement_below_the_cursor_does_not_hinder_and_nothing_is_fine() {
    let world = World::new(3);
    world.push("in", "a", &["job"]);
    let reply = world.pop("in", "g", 1);
    let ack = ack_of(&reply.claims[0], "g", &reply.lease_id, &[(0, AckVerb::Completed)]);
    world.engine.ack(ack.clone(), world.now).unwrap();
    let again = TransactionRequest { pushes: vec![push_of("out", "a", &["x"])], acks: vec![ack], required_leases: Vec::new() };
    assert!(world.engine.transact(again, world.now).unwrap().acks[0].outcomes[0].is_noop);
    assert_eq!(world.engine.partition("out", "a").unwrap().end, 1);
    let nothing = world.engine.transact(TransactionRequest::default(), world.now).unwrap();
    assert!(nothing.pushes.is_empty() && nothing.acks.is_empty());
}

/// Acknowledge here, push there: one of the two logs is synced for it.
#[test]
fn the_usual_transaction_costs_one_sync() {
    let world = World::new(4);
    world.push("in", "a", &["0", "1", "2"]);
    world.push("out", "a", &["first"]);
    world.pop("in", "warm", 1);
    for offset in 0..3 {
        let reply = world.pop("in", "g", 1);
        assert_eq!(popped(&reply).len(), 1);
        let ack = ack_of(&reply.claims[0], "g", &reply.lease_id, &[(offset, AckVerb::Completed)]);
        let before = world.engine.stats().total.syncs;
        let request =
            TransactionRequest { pushes: vec![push_of("out", "a", &["x"])], acks: vec![ack], required_leases: Vec::new() };
        world.engine.transact(request, world.now).unwrap();
        assert_eq!(world.engine.stats().total.syncs - before, 1);
    }
    let world = world.power_loss();
    assert_eq!((world.lag("in", "g"), world.engine.partition("out", "a").unwrap().end), (0, 4));
}
