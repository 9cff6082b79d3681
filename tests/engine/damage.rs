//! Retention beside damage: what cannot be judged is kept.

use fanlog::model::*;

use super::support::{World, push_of};

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
