//! How far groups are: lag, single messages, what a removal takes along.

use fanlog::model::*;
use fanlog::record::Message;

use crate::cases::seeks_over_four;
use crate::support::{World, popped, push_of, seek_of, texts};

fn consumed(view: &MessageView) -> Vec<(&str, bool, bool)> {
    view.groups.iter().map(|group| (group.name.as_str(), group.is_consumed, group.lease_expires_at_us.is_some())).collect()
}

#[test]
fn a_message_is_completed_when_every_named_group_has_passed_it() {
    let mut world = World::new(1);
    let message = Message { transaction_id: Some("order-1".to_owned()), ..Message::new("0") };
    let push = PushRequest { items: PushItem::Messages(vec![message, Message::new("1")]), ..push_of("q", "a", &[]) };
    let partition = world.engine.push(push, world.now).unwrap().partition_id;
    let by_id = AckTarget::TransactionId("order-1".to_owned());
    let view = |world: &World| world.engine.message("q", partition, &by_id, world.now).unwrap();
    assert_eq!((view(&world).message.offset, view(&world).status), (0, "pending"));

    let reply = world.pop("q", "billing", 1);
    let leased = view(&world);
    assert_eq!((leased.status, consumed(&leased)), ("processing", vec![("billing", false, true)]));
    assert_eq!(leased.groups[0].lease_expires_at_us, Some(reply.lease_expires_at_us));
    world.ack(&reply.claims[0], "billing", &reply.lease_id, &[(0, AckVerb::Completed)]);
    assert_eq!(view(&world).status, "completed");

    world.pop("q", "analytics", 1);
    world.pass(61_000);
    let expired = view(&world);
    assert_eq!((expired.status, consumed(&expired)), ("pending", vec![("billing", true, false), ("analytics", false, false)]));
    assert_eq!(world.take("q", "analytics", 1).len(), 1);
    // The primary group does not count where there are named ones.
    let primary = world.pop_as(&PopRequest::any("q", 1));
    assert_eq!(popped(&primary), ["0"]);
    let done = view(&world);
    assert_eq!(done.status, "completed", "{:?}", consumed(&done));
    // By its offset, and by the id that the log gives to messages without one.
    let second = world.engine.message("q", partition, &AckTarget::Offset(1), world.now).unwrap();
    let again = AckTarget::TransactionId(second.transaction_id.clone());
    assert_eq!(world.engine.message("q", partition, &again, world.now).unwrap(), second);

    let reply = world.pop("q", "billing", 1);
    world.ack(&reply.claims[0], "billing", &reply.lease_id, &[(1, AckVerb::Reject)]);
    assert_eq!(world.engine.message("q", partition, &again, world.now).unwrap().status, "dead_letter");
}

#[test]
fn lag_is_counted_in_messages_and_in_the_age_of_the_oldest_one() {
    let mut world = World::new(2);
    world.push("q", "a", &["0", "1"]);
    world.pass(10_000);
    world.push("q", "b", &["2"]);
    world.take("q", "g", 1);
    world.pass(5_000);
    let progress = world.engine.progress("q", world.now).unwrap();
    let group = progress.iter().find(|progress| progress.group.name == "g").unwrap();
    assert_eq!((group.lag, group.partitions_with_lag, group.cursors), (2, 2, 2));
    assert_eq!(group.lag_time_us, 15_000_000);
    let [a, b] = ["a", "b"].map(|lane| world.cursor("q", "g", lane));
    assert_eq!((a.next, a.end, a.lag, a.lag_time_us, a.total_consumed), (1, 2, 1, 15_000_000, 1));
    assert_eq!((b.next, b.end, b.lag, b.lag_time_us, b.total_consumed), (0, 1, 1, 5_000_000, 0));
    world.drain("q", "g");
    let progress = world.engine.progress("q", world.now).unwrap();
    let group = progress.iter().find(|progress| progress.group.name == "g").unwrap();
    assert_eq!((group.lag, group.lag_time_us, group.partitions_with_lag), (0, 0, 0));
}

#[test]
fn what_retention_took_is_no_lag_and_lag_is_never_negative() {
    let mut world = World::new(3);
    world.create("q", SettingsPatch { max_wait_time_s: Some(60), ..SettingsPatch::default() });
    world.push("q", "a", &["0", "1", "2"]);
    world.take("q", "g", 1);
    world.pass(100_000);
    world.push("q", "a", &["3"]);
    world.pass(6_000);
    let cursor = world.cursor("q", "g", "a");
    assert_eq!((cursor.start, cursor.end, cursor.lag), (3, 4, 1));
    assert_eq!(texts(&world.drain("q", "g")), ["3"]);
    world.pass(100_000);
    let cursor = world.cursor("q", "g", "a");
    assert_eq!((cursor.start, cursor.next, cursor.end, cursor.lag), (4, 4, 4, 0));
}

#[test]
fn a_seek_goes_to_either_end_an_offset_a_time_or_by_a_shift() {
    let mut world = World::new(4);
    world.push("q", "a", &["0", "1"]);
    world.pass(10_000);
    world.push("q", "a", &["2", "3"]);
    let between_us = world.now.wall_us - 5_000_000;
    world.take("q", "g", 1);
    for (target, after) in seeks_over_four(between_us) {
        let shown = world.engine.seek(&SeekRequest { is_preview: true, ..seek_of("q", "g", target) }, world.now).unwrap();
        assert_eq!(world.seek("q", "g", target), shown, "{target:?}");
        assert_eq!((shown[0].after, world.cursor("q", "g", "a").next), (after, after), "{target:?}");
    }
}

#[test]
fn a_seek_releases_leases_resets_counts_and_fences_what_was_out() {
    let world = World::new(5);
    world.push("q", "a", &["0", "1"]);
    world.push("q", "b", &["x"]);
    for _ in 0..3 {
        let reply = world.pop("q", "g", 1);
        world.ack(&reply.claims[0], "g", &reply.lease_id, &[(0, AckVerb::Failed)]);
        let reply = world.pop("q", "g", 1);
        world.ack(&reply.claims[0], "g", &reply.lease_id, &[(0, AckVerb::Failed)]);
    }
    let out = world.pop_as(&PopRequest { partitions_max: 2, ..PopRequest::any("q", 10).group("g") });
    let only = SeekRequest { partition: Some("a".to_owned()), ..seek_of("q", "g", SeekTarget::Beginning) };
    assert_eq!(world.engine.seek(&only, world.now).unwrap().len(), 1);
    for claim in &out.claims {
        let late = world.ack(claim, "g", &out.lease_id, &[(0, AckVerb::Completed)]);
        let is_refused = late.outcomes[0].refused.as_ref().map(|error| error.code) == Some(ErrorCode::LeaseLost);
        assert_eq!(is_refused, claim.partition == "a", "the other partition was not moved");
    }
    let again = world.pop("q", "g", 10);
    assert_eq!(
        (popped(&again), again.claims[0].delivery_count, again.claims[0].last_error.as_str()),
        (vec!["0".into(), "1".into()], 1, "")
    );
    // Three failures were forgotten: the limit is three more away.
    let acked = world.ack(&again.claims[0], "g", &again.lease_id, &[(0, AckVerb::Failed)]);
    assert!(!acked.outcomes[0].is_dead_letter);
}

#[test]
fn a_group_is_removed_from_one_queue_or_everywhere_and_no_other_is_touched() {
    let world = World::new(6);
    for queue in ["p", "q"] {
        world.push(queue, "a", &["0"]);
        world.push(queue, "b", &["0"]);
        world.drain(queue, "g");
        world.drain(queue, "other");
    }
    let removed = world.engine.delete_group("g", Some("q"), world.now).unwrap();
    assert_eq!(removed, RemovedGroup { queues: 1, deleted_partitions: 2 });
    assert_eq!(world.engine.group("q", "g").unwrap_err().code, ErrorCode::UnknownGroup);
    assert_eq!(world.drain("q", "g").len(), 2, "it starts again, with nothing of before in the way");
    assert!(world.drain("p", "g").is_empty());
    let removed = world.engine.delete_group("g", None, world.now).unwrap();
    assert_eq!(removed, RemovedGroup { queues: 2, deleted_partitions: 4 });
    assert_eq!(world.engine.delete_group("g", None, world.now).unwrap(), RemovedGroup::default());
    let world = world.power_loss();
    for queue in ["p", "q"] {
        assert_eq!(world.drain(queue, "g").len(), 2);
        assert!(world.drain(queue, "other").is_empty());
    }
}

#[test]
fn a_queue_made_again_is_another_queue() {
    let world = World::new(7);
    world.push("q", "a", &["0", "1"]);
    let held = world.pop("q", "g", 1);
    assert!(world.engine.delete_queue("q", world.now).unwrap());
    world.push("q", "a", &["new"]);
    assert_eq!(world.engine.group("q", "g").unwrap_err().code, ErrorCode::UnknownGroup);
    let reply = world.pop("q", "g", 10);
    assert_eq!(popped(&reply), ["new"]);
    assert_ne!(reply.claims[0].incarnation, held.claims[0].incarnation);
    let late = world.ack(&held.claims[0], "g", &held.lease_id, &[(0, AckVerb::Completed)]);
    assert_eq!(late.outcomes[0].refused.as_ref().unwrap().code, ErrorCode::LeaseLost);
    assert_eq!(world.engine.extend(&held.lease_id, 1_000, world.now).unwrap().renewed, 0);
    let world = world.power_loss();
    assert_eq!(texts(&world.drain("q", "g")), ["new"]);
}

/// Nothing but a seek or a removal moves a cursor back.
#[test]
fn settings_filters_pauses_and_starts_move_no_cursor() {
    let mut world = World::new(8);
    world.push("q", "a", &["0", "1", "2"]);
    world.take("q", "g", 2);
    let changes = [
        GroupPatch { filter: Some(":a = 1".to_owned()), ..GroupPatch::default() },
        GroupPatch { filter: Some(String::new()), is_enabled: Some(false), ..GroupPatch::default() },
        GroupPatch { is_enabled: Some(true), is_paused: Some(true), ..GroupPatch::default() },
        GroupPatch { is_paused: Some(false), delivery_limit: Some(Some(1)), ..GroupPatch::default() },
    ];
    for change in changes {
        world.engine.update_group("q", "g", &change, world.now).unwrap();
        world.engine.update_queue("q", &SettingsPatch::of(&QueueSettings::default()), world.now).unwrap();
        world = world.kill();
        assert_eq!(world.cursor("q", "g", "a").next, 2);
    }
    assert_eq!(texts(&world.drain("q", "g")), ["2"]);
}
