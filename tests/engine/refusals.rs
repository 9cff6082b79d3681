//! What makes no sense is refused with a code of its own, and nothing changes.

use fanlog::model::*;
use fanlog::record::NAME_BYTES_MAX;

use crate::cases::{bad_settings, largest_settings};
use crate::support::{World, push_of, seek_of};

use ErrorCode::*;

fn world(seed: u64) -> World {
    let world = World::new(seed);
    world.push("q", "a", &["0", "1", "2"]);
    world.take("q", "g", 1);
    world
}

/// Everything that can be seen of the queue, for people.
fn seen(world: &World) -> String {
    let queues = world.engine.queues();
    let cursors = world.engine.cursors("q", "g", 0, 100, world.now).unwrap();
    let groups = world.engine.groups("q").unwrap();
    let settings: Vec<_> = queues.iter().map(|queue| (&queue.name, &queue.settings, queue.stats.messages)).collect();
    format!("{settings:?} {groups:?} {cursors:?}")
}

#[test]
fn unknown_names_are_told_apart() {
    let world = world(1);
    let before = seen(&world);
    let engine = &world.engine;
    let now = world.now;
    let pop = |queue: &str| engine.pop(&PopRequest::any(queue, 1).group("g"), now).unwrap_err().code;
    assert_eq!(pop("nowhere"), UnknownQueue);
    assert_eq!(engine.queue("nowhere").unwrap_err().code, UnknownQueue);
    assert_eq!(engine.update_queue("nowhere", &SettingsPatch::default(), now).unwrap_err().code, UnknownQueue);
    assert_eq!(engine.delete_group("g", Some("nowhere"), now).unwrap_err().code, UnknownQueue);
    assert_eq!(engine.group("q", "nobody").unwrap_err().code, UnknownGroup);
    assert_eq!(engine.update_group("q", "nobody", &GroupPatch::default(), now).unwrap_err().code, UnknownGroup);
    assert_eq!(engine.cursors("q", "nobody", 0, 1, now).unwrap_err().code, UnknownGroup);
    assert_eq!(engine.partition("q", "nowhere").unwrap_err().code, UnknownPartition);
    let lane = SeekRequest { partition: Some("nowhere".into()), ..seek_of("q", "g", SeekTarget::End) };
    assert_eq!(engine.seek(&lane, now).unwrap_err().code, UnknownPartition);
    assert_eq!(engine.seek(&seek_of("q", "nobody", SeekTarget::End), now).unwrap_err().code, UnknownGroup);
    let message = |partition, target| engine.message("q", partition, &target, now).unwrap_err().code;
    assert_eq!(message(77, AckTarget::Offset(0)), UnknownPartition);
    assert_eq!(message(0, AckTarget::Offset(3)), UnknownMessage);
    assert_eq!(message(0, AckTarget::Offset(u64::MAX)), UnknownMessage);
    assert_eq!(message(0, AckTarget::TransactionId("nobody's".into())), UnknownMessage);
    let ack = |queue: &str, partition_id, group: &str| {
        let request = AckRequest {
            queue: queue.into(),
            partition_id,
            group: Some(group.into()),
            lease_id: String::new(),
            items: Vec::new(),
        };
        engine.ack(request, now).unwrap_err().code
    };
    assert_eq!(
        (ack("nowhere", 0, "g"), ack("q", 77, "g"), ack("q", 0, "nobody")),
        (UnknownQueue, UnknownPartition, UnknownGroup)
    );
    assert_eq!(
        engine.dead_letters(&DeadLetterQuery { queue: Some("nowhere".into()), ..DeadLetterQuery::default() }).unwrap_err().code,
        UnknownQueue
    );
    assert_eq!(engine.replay_dead_letter("q", 77, now).unwrap_err().code, UnknownDeadLetter);
    // A partition that is not there yet has nothing; asking does not make it.
    let mut pinned = PopRequest::any("q", 1).group("g");
    pinned.source = PopSource::Partition { queue: "q".into(), partition: "nowhere".into() };
    assert!(engine.pop(&pinned, now).unwrap().claims.is_empty());
    assert_eq!(seen(&world), before);
}

#[test]
fn counts_and_times_of_zero_and_beyond_all_bounds() {
    let mut world = world(2);
    let before = seen(&world);
    let request = PopRequest::any("q", 1).group("g");
    for bad in [
        PopRequest { messages_max: 0, ..request.clone() },
        PopRequest { partitions_max: 0, ..request.clone() },
        PopRequest { partitions_max: 65, ..request.clone() },
        PopRequest { lease_ms: Some(0), ..request.clone() },
    ] {
        assert_eq!(world.engine.pop(&bad, world.now).unwrap_err().code, BadRequest, "{bad:?}");
    }
    let too_long = "x".repeat(NAME_BYTES_MAX + 1);
    for group in ["", "a\nb", &too_long] {
        assert_eq!(world.engine.pop(&PopRequest::any("q", 1).group(group), world.now).unwrap_err().code, BadName);
    }
    assert_eq!(seen(&world), before);
    // As much and as long as anybody can ask for is no reason to fall over.
    let huge =
        PopRequest { messages_max: u32::MAX, bytes_max: u32::MAX, lease_ms: Some(u64::MAX), partitions_max: 64, ..request };
    let reply = world.pop_as(&huge);
    assert_eq!(reply.claims[0].range, OffsetRange { first: 1, last: 2 });
    assert_eq!(world.engine.extend(&reply.lease_id, u64::MAX, world.now).unwrap().renewed, 1);
    assert_eq!(world.engine.extend(&reply.lease_id, 0, world.now).unwrap().renewed, 1);
    world.pass(86_400_000);
    assert!(world.pop("q", "g", 1).claims.is_empty());
    let mut later = crate::support::ack_of(&reply.claims[0], "g", &reply.lease_id, &[(1, AckVerb::Retry)]);
    later.items[0].delay_ms = u64::MAX;
    world.engine.ack(later, world.now).unwrap();
    world.pass(86_400_000);
    assert!(world.pop("q", "g", 1).claims.is_empty(), "a delay without end does not end");
    for from in [Start::Offset(u64::MAX), Start::Time(u64::MAX)] {
        let group = format!("{from:?}");
        assert!(world.pop_as(&PopRequest { start: Some(from), ..PopRequest::any("q", 1).group(group) }).claims.is_empty());
    }
}

#[test]
fn a_seek_beyond_either_end_moves_nothing_anywhere() {
    let mut world = World::new(3);
    world.create("q", SettingsPatch { max_wait_time_s: Some(60), ..SettingsPatch::default() });
    world.push("q", "a", &["0", "1"]);
    world.pass(100_000);
    world.push("q", "a", &["2", "3"]);
    world.push("q", "b", &["0", "1", "2", "3", "4", "5"]);
    world.take("q", "g", 1);
    world.take("q", "g", 1);
    let before = seen(&world);
    for (offset, code) in [(1, RangeRemoved), (5, BeyondEnd), (u64::MAX, BeyondEnd)] {
        for is_preview in [true, false] {
            let request = SeekRequest { is_preview, ..seek_of("q", "g", SeekTarget::Offset(offset)) };
            assert_eq!(world.engine.seek(&request, world.now).unwrap_err().code, code, "{offset}");
            assert_eq!(seen(&world), before);
        }
    }
    let only = SeekRequest { partition: Some("b".into()), ..seek_of("q", "g", SeekTarget::Offset(5)) };
    assert_eq!(world.engine.seek(&only, world.now).unwrap()[0].after, 5);
}

#[test]
fn settings_out_of_range_change_nothing() {
    let world = world(4);
    let before = seen(&world);
    let none = SettingsPatch::default;
    for bad in bad_settings() {
        assert_eq!(world.engine.update_queue("q", &bad, world.now).unwrap_err().code, BadSettings, "{bad:?}");
        assert_eq!(world.engine.create_queue("other", &bad, world.now).unwrap_err().code, BadSettings, "{bad:?}");
        assert_eq!(seen(&world), before);
    }
    let bad_word = SettingsPatch { namespace: Some("a\nb".to_owned()), ..none() };
    assert_eq!(world.engine.update_queue("q", &bad_word, world.now).unwrap_err().code, BadName);
    // The largest that are allowed do not overflow anything.
    world.engine.update_queue("q", &largest_settings(), world.now).unwrap();
    let mut world = world;
    world.push("q", "a", &["3"]);
    world.pass(1_000_000);
    assert!(world.pop("q", "g", 1).claims.is_empty());
    assert_eq!(world.lag("q", "g"), 3);
}

#[test]
fn the_primary_group_stays_what_it_is_and_groups_may_be_switched_off() {
    let world = world(5);
    let engine = &world.engine;
    let filter = GroupPatch { filter: Some(":a = 1".to_owned()), ..GroupPatch::default() };
    let limit = GroupPatch { delivery_limit: Some(Some(1)), ..GroupPatch::default() };
    for patch in [filter, limit] {
        assert_eq!(engine.update_group("q", PRIMARY_GROUP, &patch, world.now).unwrap_err().code, PrimaryGroup);
    }
    assert_eq!(engine.delete_group(PRIMARY_GROUP, None, world.now).unwrap_err().code, PrimaryGroup);
    let switch = |is_on| SettingsPatch { consumer_groups: Some(is_on), ..SettingsPatch::default() };
    engine.update_queue("q", &switch(false), world.now).unwrap();
    assert_eq!(engine.pop(&PopRequest::any("q", 1).group("g"), world.now).unwrap_err().code, GroupsDisabled);
    assert_eq!(world.pop_as(&PopRequest::any("q", 1)).claims.len(), 1);
    engine.update_queue("q", &switch(true), world.now).unwrap();
    assert_eq!(world.drain("q", "g").len(), 2);
}

#[test]
fn a_bad_push_stores_nothing_and_makes_nothing() {
    let world = world(6);
    let before = seen(&world);
    let too_long = "x".repeat(NAME_BYTES_MAX + 1);
    for (queue, partition) in [("", "a"), ("a\u{7}b", "a"), (&too_long, "a")] {
        assert_eq!(world.engine.push(push_of(queue, partition, &["x"]), world.now).unwrap_err().code, BadName);
    }
    for partition in ["a\nb", &too_long] {
        assert_eq!(world.engine.push(push_of("q", partition, &["x"]), world.now).unwrap_err().code, BadName);
    }
    assert_eq!(seen(&world), before);
}
