//! What goes, and when.

use fanlog::model::*;

use super::support::World;
use super::{paths, read_all, small_segments};

fn kept_for(seconds: u64) -> SettingsPatch {
    SettingsPatch { retention_enabled: Some(true), retention_s: Some(seconds), ..small_segments() }
}

/// Index files are emptied, zeroed or gone when retention runs right behind the start: nothing young goes.
#[test]
fn spoilt_indexes_delete_nothing() {
    let mut world = World::new(40);
    world.engine.create_queue("q", &kept_for(7 * 86_400), world.now).unwrap();
    for _ in 0..40 {
        world.push("q", "p", &[&"x".repeat(20_000)]);
    }
    world.pass(1_000);
    assert!(!paths(&world, ".index").is_empty());
    world.engine.close(world.now).unwrap();
    for how in 0..3 {
        let disk = world.disk.crash_keep_all();
        for path in paths(&world, ".index") {
            match how {
                0 => disk.write_file(&path, &[]),
                1 => disk.write_file(&path, &vec![0; world.disk.read_file(&path).unwrap().len()]),
                _ => disk.remove_file(&path),
            }
        }
        let mut opened = World::on(disk, world.now);
        opened.pass(10_000);
        assert_eq!(read_all(&opened, "q", "p", 0).len(), 40, "way {how}");
    }
}

/// The wall clock jumps ten years ahead and back, and a day back: nothing goes early, times never go down, leases do not care.
#[test]
fn a_clock_that_jumps_deletes_nothing_early_and_holds_no_lease() {
    let mut world = World::new(41);
    world.engine.create_queue("q", &kept_for(86_400), world.now).unwrap();
    world.push("q", "p", &["one"]);
    let lease = PopRequest { lease_ms: Some(30_000), ..PopRequest::any("q", 1).group("g") };
    let reply = world.engine.pop(&lease, world.now).unwrap();
    assert_eq!(reply.claims.len(), 1);
    let day_us = 86_400_000_000;
    world.now.wall_us -= day_us;
    world.pass(1_000);
    world.push("q", "p", &["two"]);
    world.pass(10_000);
    assert_eq!(read_all(&world, "q", "p", 0).len(), 2);
    assert!(world.pop("q", "g", 1).claims.is_empty(), "the lease lasts as long as it says");
    world.pass(20_000);
    assert_eq!(world.pop("q", "g", 1).claims.len(), 1, "and no longer");
    let times = |world: &World| {
        let info = world.engine.partition("q", "p").unwrap();
        info.newest_at_us
    };
    let before = times(&world);
    world.push("q", "p", &["three"]);
    assert!(times(&world) >= before);
    // What was pushed while the clock was ahead goes by that time: its own, and not for ever.
    world.now.wall_us += 11 * day_us;
    world.pass(10_000);
    world.pass(10_000);
    world.push("q", "p", &["four"]);
    world.pass(10_000);
    let texts: Vec<_> = read_all(&world, "q", "p", 3).into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["four"]);
}

/// Segments made after a restart go by the queue's own setting, also when it has changed.
#[test]
fn every_segment_goes_by_the_queues_setting_of_now() {
    let mut world = World::new(42);
    world.engine.create_queue("q", &kept_for(1_000), world.now).unwrap();
    let push = |world: &World| (0..20).for_each(|_| drop(world.push("q", "p", &[&"x".repeat(20_000)])));
    push(&world);
    world = world.restart();
    push(&world);
    world.pass(500_000);
    world.pass(10_000);
    assert_eq!(read_all(&world, "q", "p", 0).len(), 40);
    world.engine.update_queue("q", &SettingsPatch { retention_s: Some(100), ..SettingsPatch::default() }, world.now).unwrap();
    world = world.restart();
    push(&world);
    world.pass(10_000);
    let start = world.engine.partition("q", "p").unwrap().start;
    assert_eq!(start, 40);
    assert_eq!(read_all(&world, "q", "p", 40).len(), 20);
}

/// End and payloads at fixed offsets are the same before and after most of the log went, over and over.
#[test]
fn offsets_do_not_move_when_the_log_is_shortened_and_opened_again() {
    let mut world = World::new(43);
    world.engine.create_queue("q", &kept_for(60), world.now).unwrap();
    let mut pushed = 0u64;
    for _ in 0..10 {
        for _ in 0..20 {
            world.push("q", "p", &[&format!("{pushed} {}", "x".repeat(20_000))]);
            pushed += 1;
        }
        world.pass(100_000);
        world.push("q", "p", &[&pushed.to_string()]);
        pushed += 1;
        world.pass(10_000);
        world = world.restart();
        let info = world.engine.partition("q", "p").unwrap();
        assert_eq!((info.start, info.end), (pushed - 1, pushed));
        assert_eq!(read_all(&world, "q", "p", info.start)[0].1, (pushed - 1).to_string());
    }
}

/// What is deleted when all have passed it waits for the slowest group that is there, and for no other.
#[test]
fn messages_go_when_the_last_group_that_needs_them_is_past_or_gone() {
    let mut world = World::new(44);
    let patch = SettingsPatch { retention_enabled: Some(true), completed_retention_s: Some(1), ..small_segments() };
    world.engine.create_queue("q", &patch, world.now).unwrap();
    for number in 0..6 {
        world.push("q", "p", &[&number.to_string()]);
    }
    for (group, count) in [("a", 5), ("b", 3), ("c", 1)] {
        for _ in 0..count {
            world.take("q", group, 1);
        }
    }
    let start = |world: &mut World| {
        world.pass(10_000);
        world.pass(10_000);
        world.engine.partition("q", "p").unwrap().start
    };
    assert_eq!(start(&mut world), 1);
    world.engine.delete_group("c", Some("q"), world.now).unwrap();
    assert_eq!(start(&mut world), 3);
    world.engine.delete_group("b", Some("q"), world.now).unwrap();
    assert_eq!(start(&mut world), 5);
    assert_eq!(world.drain("q", "d").len(), 1, "a new group sees what was there when it came");
}
