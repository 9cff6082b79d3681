//! Retention beside damage: what cannot be judged is kept.

use fanlog::model::*;

use super::support::{World, messages_of, push_of, seek_of};

fn settings(patch: SettingsPatch) -> SettingsPatch {
    SettingsPatch {
        retention_enabled: Some(true),
        segment_bytes_max: Some(1 << 20),
        compression: Some(Compression::None),
        dedup_window_s: Some(0),
        ..patch
    }
}

/// Flips a byte of the first place in the log that holds this text.
fn spoil(world: &World, text: &[u8]) -> String {
    for path in world.disk.paths().into_iter().filter(|path| path.ends_with(".segment")) {
        let mut bytes = world.disk.read_file(&path).unwrap();
        if let Some(at) = bytes.windows(text.len()).position(|window| window == text) {
            bytes[at] ^= 1;
            world.disk.write_file(&path, &bytes);
            return path;
        }
    }
    panic!("nothing holds it");
}

fn losses(world: &World) -> Vec<&str> {
    world.report.findings.iter().filter(|finding| finding.is_loss).map(|finding| finding.text.as_str()).collect()
}

fn roll(world: &World, queue: &str) {
    for _ in 0..20 {
        world.engine.push(push_of(queue, "other", &[&"x".repeat(60_000)]), world.now).unwrap();
    }
}

/// The record that named a partition was damaged; its messages, whole, were taken for those of a removed one and deleted.
#[test]
fn batches_of_a_partition_whose_record_is_lost_are_kept_by_retention_and_giving_room_back() {
    let world = World::new(51);
    let patch = settings(SettingsPatch { retention_s: Some(60), ..SettingsPatch::default() });
    world.engine.create_queue("q", &patch, world.now).unwrap();
    world.push("q", "named-once", &["precious"]);
    roll(&world, "q");
    // No checkpoint has it.
    let path = spoil(&world, b"named-once");
    let mut world = world.kill();
    assert!(losses(&world).iter().any(|text| text.contains("records of 1 partitions are lost")), "{:?}", losses(&world));
    for round in 0..3 {
        roll(&world, "q");
        for _ in 0..4 {
            world.pass(70_000);
        }
        let bytes = world.disk.read_file(&path).expect("its segment is kept");
        assert!(bytes.windows(8).any(|window| window == b"precious"), "round {round}");
        world = if round == 0 { world.restart() } else { world.kill() };
    }
    assert_eq!(losses(&world), Vec::<&str>::new(), "once it is noted, it is no news");
}

#[test]
fn a_partition_that_was_removed_is_not_kept() {
    let disk = fanlog::storage::disk::sim::SimDisk::new(52);
    let now = Now { wall_us: 1_700_000_000_000_000, steady_us: 1_000_000_000 };
    let options =
        fanlog::engine::EngineOptions { partition_cleanup_days: 0, default_start: Start::Beginning, ..Default::default() };
    let mut world = World::with_options(disk, now, options);
    let patch = settings(SettingsPatch { retention_s: Some(60), ..SettingsPatch::default() });
    world.engine.create_queue("q", &patch, world.now).unwrap();
    world.push("q", "gone", &["x"]);
    roll(&world, "q");
    for _ in 0..4 {
        world.pass(70_000);
    }
    assert!(!world.disk.paths().iter().any(|path| path.ends_with("00000001.segment")));
}

/// Messages that everybody has read go with their segment, but nobody knows who has read what is damaged in it.
#[test]
fn a_damaged_range_is_kept_until_everything_of_its_time_goes() {
    let mut world = World::new(53);
    let patch = settings(SettingsPatch { completed_retention_s: Some(10), ..SettingsPatch::default() });
    world.engine.create_queue("q", &patch, world.now).unwrap();
    world.push("q", "other", &["damaged soon"]);
    roll(&world, "q");
    world.drain("q", "g");
    // No checkpoint has it.
    let path = spoil(&world, b"damaged soon");
    world = world.kill();
    assert!(!losses(&world).is_empty());
    roll(&world, "q");
    world.drain("q", "g");
    for _ in 0..4 {
        world.pass(70_000);
    }
    assert!(world.disk.read_file(&path).is_some(), "the segment is kept");
    let patch = SettingsPatch { retention_s: Some(60), ..SettingsPatch::default() };
    world.engine.update_queue("q", &patch, world.now).unwrap();
    roll(&world, "q");
    for _ in 0..4 {
        world.pass(70_000);
        roll(&world, "q");
    }
    assert!(world.disk.read_file(&path).is_none(), "everything of its time is too old");
}

fn lost_to_damage(world: &World) -> u64 {
    world.engine.losses(Some("q")).unwrap().damaged
}

/// Opens a queue whose partition ends in damage: "whole", and behind it two messages of one batch that are not. A sealed segment has an
/// index that knows the batch; in the newest one it is not found at all.
fn with_damaged_end(seed: u64, is_sealed: bool) -> World {
    let mut world = World::new(seed);
    world.engine.create_queue("q", &settings(SettingsPatch::default()), world.now).unwrap();
    world.push("q", "p", &["whole"]);
    world.push("q", "p", &["damaged soon", "and this"]);
    if is_sealed {
        roll(&world, "q");
        (0..4).for_each(|_| world.pass(70_000));
    }
    // The checkpoint knows where the partition ends.
    let world = world.restart();
    spoil(&world, b"damaged soon");
    world.kill()
}

fn pop_lane(world: &World, group: &str, count: u32) -> PopReply {
    let source = PopSource::Partition { queue: "q".to_owned(), partition: "p".to_owned() };
    world.pop_as(&PopRequest { source, ..PopRequest::any("q", count).group(group) })
}

/// Nobody was told until something followed, and the group seemed to lag for ever.
#[test]
fn damage_at_the_end_of_a_partition_is_passed_told_and_counted_at_once() {
    for is_sealed in [false, true] {
        let world = with_damaged_end(54, is_sealed);
        let lost = Some(OffsetRange { first: 1, last: 2 });
        let next = |world: &World| world.cursor("q", "g", "p").next;
        let reply = pop_lane(&world, "g", 1);
        world.ack(&reply.claims[0], "g", &reply.lease_id, &[(0, AckVerb::Completed)]);
        assert_eq!(next(&world), if is_sealed { 1 } else { 3 }, "a claim goes as far as it has looked");
        let told = if is_sealed { pop_lane(&world, "g", 1) } else { reply };
        assert_eq!(told.claims[0].lost, lost);
        if is_sealed {
            assert_eq!((told.lease_id.as_str(), told.claims.len(), told.claims[0].batches.len()), ("", 1, 0));
        }
        let cursor = world.cursor("q", "g", "p");
        assert_eq!((cursor.next, cursor.lag), (3, 0));
        assert!(pop_lane(&world, "g", 1).claims.is_empty(), "it is told once");
        assert_eq!(lost_to_damage(&world), 2);
        let world = world.restart();
        assert_eq!(next(&world), 3);
        assert!(pop_lane(&world, "g", 1).claims.is_empty());
        world.push("q", "p", &["after"]);
        let reply = pop_lane(&world, "g", 1);
        assert_eq!((reply.claims[0].lost, messages_of(&reply.claims[0])[0].offset), (None, 3));
    }
}

/// There was a message to acknowledge in front of it once; now only damage is left, in either kind of segment.
#[test]
fn a_group_that_stands_in_front_of_nothing_but_damage_is_told() {
    for is_sealed in [false, true] {
        let world = with_damaged_end(58, is_sealed);
        pop_lane(&world, "g", 1);
        let seek = SeekTarget::Offset(1);
        let request = SeekRequest { partition: Some("p".to_owned()), ..seek_of("q", "g", seek) };
        world.engine.seek(&request, world.now).unwrap();
        assert_eq!(world.cursor("q", "g", "p").lag, 2);
        let reply = pop_lane(&world, "g", 10);
        assert_eq!((reply.lease_id.as_str(), reply.claims.len(), reply.claims[0].batches.len()), ("", 1, 0), "{is_sealed}");
        assert_eq!(reply.claims[0].lost, Some(OffsetRange { first: 1, last: 2 }));
        assert_eq!(world.cursor("q", "g", "p").lag, 0);
    }
}

/// What was shown but not written is found again.
#[test]
fn damage_that_was_passed_is_told_again_after_a_crash() {
    let world = with_damaged_end(55, true);
    let reply = pop_lane(&world, "g", 1);
    world.ack(&reply.claims[0], "g", &reply.lease_id, &[(0, AckVerb::Completed)]);
    assert!(pop_lane(&world, "g", 1).claims[0].lost.is_some());
    assert!(pop_lane(&world, "g", 1).claims.is_empty());
    let world = world.kill();
    assert_eq!(world.cursor("q", "g", "p").lag, 2);
    assert!(pop_lane(&world, "g", 1).claims[0].lost.is_some());
    assert_eq!(world.cursor("q", "g", "p").lag, 0);
}

#[test]
fn damage_is_counted_once_for_each_group() {
    let world = with_damaged_end(56, true);
    for _ in 0..3 {
        let reply = pop_lane(&world, "g", 10);
        assert_eq!(reply.claims[0].lost, Some(OffsetRange { first: 1, last: 2 }));
        // It is handed out again.
        world.engine.release(&reply.lease_id, world.now).unwrap();
    }
    assert_eq!(lost_to_damage(&world), 2);
    pop_lane(&world, "another", 10);
    assert_eq!(lost_to_damage(&world), 4);
}

/// What a filter refused is not missing, though damage of another partition lies behind it.
#[test]
fn damage_elsewhere_is_no_loss_of_a_group_whose_filter_refuses_the_end() {
    let mut world = World::new(57);
    world.engine.create_queue("q", &settings(SettingsPatch::default()), world.now).unwrap();
    let declaration = GroupDeclaration { filter: ":kind = \"wanted\"".to_owned(), ..GroupDeclaration::default() };
    world.engine.declare_group("q", "g", &declaration, world.now).unwrap();
    world.push("q", "p", &["refused"]);
    world.push("q", "other", &["damaged soon"]);
    world = world.restart();
    spoil(&world, b"damaged soon");
    let world = world.kill();
    assert!(pop_lane(&world, "g", 10).claims.is_empty());
    assert_eq!(lost_to_damage(&world), 0);
}
