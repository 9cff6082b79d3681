//! Two groups over one queue, restarts, and the first rules of reading.

use fanlog::model::*;
use fanlog::record::{Attributes, Message};

use crate::support::{World, messages_of, push_of, text, texts};

#[test]
fn two_groups_read_one_log_each_at_its_own_pace() {
    let world = World::new(1);
    let reply = world.push("orders", "a", &["1", "2", "3"]);
    assert_eq!((reply.promise, reply.results), (Promise::Durable, PushResults::Range { base: 0, count: 3 }));
    assert_eq!(texts(&world.take("orders", "billing", 2)), ["1", "2"]);
    assert_eq!(texts(&world.take("orders", "analytics", 10)), ["1", "2", "3"]);
    assert_eq!(texts(&world.take("orders", "billing", 10)), ["3"]);
    assert_eq!(world.take("orders", "billing", 10), vec![]);
    world.push("orders", "a", &["4"]);
    assert_eq!(texts(&world.take("orders", "billing", 10)), ["4"]);
    assert_eq!(texts(&world.take("orders", "analytics", 10)), ["4"]);
}

#[test]
fn nothing_acknowledged_is_lost_or_repeated_over_restarts_kills_and_power_losses() {
    let mut world = World::new(2);
    let mut expected = Vec::new();
    let mut seen = Vec::new();
    for round in 0..12u32 {
        for partition in ["a", "b"] {
            let payload = format!("{partition}{round}");
            world.push("q", partition, &[&payload]);
            expected.push(payload);
        }
        seen.extend(world.take("q", "g", 1).into_iter().map(|entry| entry.2));
        world = match round % 3 {
            0 => world.restart(),
            1 => world.kill(),
            _ => world.power_loss(),
        };
        let losses: Vec<_> = world.report.findings.iter().filter(|finding| finding.is_loss).collect();
        assert!(losses.is_empty(), "{losses:?}");
    }
    seen.extend(world.drain("q", "g").into_iter().map(|entry| entry.2));
    seen.sort();
    expected.sort();
    assert_eq!(seen, expected);
}

#[test]
fn a_lease_keeps_others_away_until_it_ends_and_expiry_hands_out_again() {
    let mut world = World::new(3);
    world.push("q", "a", &["1", "2"]);
    let first = world.pop("q", "g", 10);
    assert_eq!(first.claims.len(), 1);
    assert!(world.pop("q", "g", 10).claims.is_empty());
    world.pass(61_000);
    let second = world.pop("q", "g", 10);
    assert_eq!(messages_of(&second.claims[0]).len(), 2);
    assert_eq!(second.claims[0].delivery_count, 2);
    // The first holder comes too late.
    let late = world.ack(&first.claims[0], "g", &first.lease_id, &[(1, AckVerb::Completed)]);
    assert_eq!(late.outcomes[0].refused.as_ref().map(|error| error.code), Some(ErrorCode::LeaseLost));
    let done = world.ack(&second.claims[0], "g", &second.lease_id, &[(1, AckVerb::Completed)]);
    assert_eq!((done.next, done.is_lease_released), (2, true));
}

#[test]
fn filters_decide_at_push_and_drops_are_told_and_counted() {
    let world = World::new(4);
    world.engine.create_queue("q", &SettingsPatch::default(), world.now).unwrap();
    let declaration = GroupDeclaration { filter: ":region = \"us\"".to_owned(), ..GroupDeclaration::default() };
    world.engine.declare_group("q", "us", &declaration, world.now).unwrap();
    let disable = GroupPatch { is_enabled: Some(false), ..GroupPatch::default() };
    world.engine.update_group("q", PRIMARY_GROUP, &disable, world.now).unwrap();
    let message = |region: &str| {
        let mut attributes = Attributes::new();
        attributes.insert("region", region).unwrap();
        Message { attributes, ..Message::new(region.as_bytes().to_vec()) }
    };
    let request = PushRequest {
        items: PushItem::Messages(vec![message("eu"), message("us"), message("us"), message("asia")]),
        ..push_of("q", "a", &[])
    };
    let reply = world.engine.push(request, world.now).unwrap();
    use PushResult::{Dropped, Stored};
    assert_eq!(reply.results, PushResults::Each(vec![Dropped, Stored(0), Stored(1), Dropped]));
    assert_eq!(world.engine.queue("q").unwrap().stats.messages_dropped, 2);
    let world = world.kill();
    assert_eq!(world.engine.queue("q").unwrap().stats.messages_dropped, 2);
    assert_eq!(texts(&world.take("q", "us", 10)), ["us", "us"]);
    let inactive = world.engine.pop(&PopRequest::any("q", 1), world.now).unwrap_err();
    assert_eq!(inactive.code, ErrorCode::GroupInactive);
}

#[test]
fn a_known_transaction_id_is_stored_once_and_answers_with_its_first_offset() {
    let mut world = World::new(5);
    let push = |world: &World, id: &str| {
        let message = Message { transaction_id: Some(id.to_owned()), ..Message::new(id.as_bytes().to_vec()) };
        let request = PushRequest { items: PushItem::Messages(vec![message]), ..push_of("q", "a", &[]) };
        world.engine.push(request, world.now).unwrap().results.get(0).unwrap()
    };
    assert_eq!(push(&world, "x"), PushResult::Stored(0));
    assert_eq!(push(&world, "y"), PushResult::Stored(1));
    assert_eq!(push(&world, "x"), PushResult::Duplicate(0));
    world = world.kill();
    assert_eq!(push(&world, "y"), PushResult::Duplicate(1));
    world.pass(3_700_000);
    assert_eq!(push(&world, "x"), PushResult::Stored(2));
}

#[test]
fn a_failed_message_is_handed_out_again_and_ends_in_the_dead_letters() {
    let world = World::new(6);
    world.push("q", "a", &["poison", "fine"]);
    for attempt in 1..=4u32 {
        let reply = world.pop("q", "g", 1);
        assert_eq!(reply.claims[0].delivery_count, attempt);
        let ack = world.ack(&reply.claims[0], "g", &reply.lease_id, &[(0, AckVerb::Failed)]);
        assert_eq!(ack.outcomes[0].is_dead_letter, attempt == 4, "attempt {attempt}");
    }
    let world = world.kill();
    let (letters, total) = world.engine.dead_letters(&DeadLetterQuery { limit: 10, ..DeadLetterQuery::default() }).unwrap();
    assert_eq!((total, letters[0].offset, &letters[0].payload[..]), (1, 0, b"poison".as_slice()));
    assert_eq!(texts(&world.drain("q", "g")), ["fine"]);
    world.engine.replay_dead_letter("q", letters[0].id, world.now).unwrap();
    assert_eq!(texts(&world.drain("q", "g")), ["poison"]);
}

#[test]
fn a_transaction_over_queues_happens_whole_or_not_at_all() {
    let world = World::new(7);
    world.push("in", "a", &["job"]);
    let popped = world.pop("in", "g", 1);
    let ack = crate::support::ack_of(&popped.claims[0], "g", &popped.lease_id, &[(0, AckVerb::Completed)]);
    let request = TransactionRequest {
        pushes: vec![push_of("out", "a", &["result"]), push_of("log", "a", &["line"])],
        acks: vec![ack],
        required_leases: vec![popped.lease_id.clone()],
    };
    world.engine.transact(request.clone(), world.now).unwrap();
    let again = world.engine.transact(request, world.now).unwrap_err();
    assert_eq!(again.code, ErrorCode::LeaseLost);
    let world = world.power_loss();
    assert_eq!(texts(&world.drain("out", "g")), ["result"]);
    assert_eq!(texts(&world.drain("log", "g")), ["line"]);
    assert_eq!(world.drain("in", "g"), vec![]);
}

#[test]
fn retention_removes_what_is_old_and_readers_hear_of_it() {
    let mut world = World::new(8);
    let patch = SettingsPatch { retention_enabled: Some(true), retention_s: Some(60), ..SettingsPatch::default() };
    world.engine.create_queue("q", &patch, world.now).unwrap();
    world.push("q", "a", &["old"]);
    assert_eq!(world.pop("q", "g", 1).claims.len(), 1);
    world.pass(120_000);
    world.push("q", "a", &["new"]);
    world.pass(6_000);
    let fetch =
        FetchRequest { queue: "q".into(), partition: "a".into(), from: 0, to: None, messages_max: 10, bytes_max: 1 << 20 };
    assert_eq!(world.engine.fetch(&fetch, world.now).unwrap_err().code, ErrorCode::RangeRemoved);
    let reply = world.pop("q", "g", 10);
    assert_eq!(reply.claims[0].lost, Some(OffsetRange { first: 0, last: 0 }));
    assert_eq!(messages_of(&reply.claims[0]).iter().map(text).collect::<Vec<_>>(), ["new"]);
}

#[test]
fn seek_moves_a_group_durably_and_tells_before_it_does() {
    let world = World::new(9);
    world.push("q", "a", &["1", "2", "3"]);
    world.drain("q", "g");
    let request = SeekRequest {
        queue: "q".into(),
        group: Some("g".into()),
        partition: None,
        target: SeekTarget::Offset(1),
        is_preview: true,
    };
    let preview = world.engine.seek(&request, world.now).unwrap();
    assert_eq!((preview[0].before, preview[0].after), (3, 1));
    assert_eq!(world.drain("q", "g"), vec![]);
    world.engine.seek(&SeekRequest { is_preview: false, ..request.clone() }, world.now).unwrap();
    let world = world.power_loss();
    assert_eq!(texts(&world.drain("q", "g")), ["2", "3"]);
    let beyond = SeekRequest { target: SeekTarget::Offset(4), is_preview: false, ..request };
    assert_eq!(world.engine.seek(&beyond, world.now).unwrap_err().code, ErrorCode::BeyondEnd);
}
