//! Where a group starts, and that it stays decided.

use fanlog::engine::EngineOptions;
use fanlog::model::*;
use fanlog::storage::disk::sim::SimDisk;

use crate::support::{World, popped, texts};

const SECOND_US: u64 = 1_000_000;

fn start(request: PopRequest, start: Start) -> PopRequest {
    PopRequest { start: Some(start), ..request }
}

#[test]
fn a_group_starts_at_the_beginning_the_end_a_time_or_an_offset() {
    let mut world = World::new(1);
    world.push("q", "a", &["0", "1"]);
    world.pass(10_000);
    world.push("q", "a", &["2"]);
    let between_us = world.now.wall_us - 5 * SECOND_US;
    let first =
        |world: &World, group: &str, from: Start| popped(&world.pop_as(&start(PopRequest::any("q", 10).group(group), from)));
    assert_eq!(first(&world, "all", Start::Beginning), ["0", "1", "2"]);
    assert_eq!(first(&world, "time", Start::Time(between_us)), ["2"]);
    assert_eq!(first(&world, "offset", Start::Offset(1)), ["1", "2"]);
    assert!(first(&world, "new", Start::New).is_empty());
    world.push("q", "a", &["3"]);
    assert_eq!(texts(&world.take("q", "new", 10)), ["3"]);
}

#[test]
fn a_named_group_starts_with_what_comes_and_the_primary_group_at_the_beginning() {
    let now = Now { wall_us: 1_700_000_000_000_000, steady_us: 1_000_000_000 };
    let world = World::with_options(SimDisk::new(2), now, EngineOptions::default());
    world.push("q", "a", &["old"]);
    assert!(world.pop("q", "named", 10).claims.is_empty());
    let primary = start(PopRequest::any("q", 10), Start::New);
    assert_eq!(popped(&world.pop_as(&primary)), ["old"], "the primary group does not choose");
    world.push("q", "a", &["new"]);
    assert_eq!(texts(&world.take("q", "named", 10)), ["new"]);
}

/// Registered, and the power fails before anything else is written: the decision is there, and so is its time.
#[test]
fn the_first_pop_registers_the_group_durably_pinned_or_not_before_it_hands_anything_out() {
    let world = World::new(3);
    world.push("q", "a", &["0"]);
    let time = Start::Time(world.now.wall_us - SECOND_US);
    let mut pinned = start(PopRequest::any("q", 1).group("pinned"), Start::New);
    pinned.source = PopSource::Partition { queue: "q".into(), partition: "a".into() };
    assert!(world.pop_as(&pinned).claims.is_empty());
    assert_eq!(popped(&world.pop_as(&start(PopRequest::any("q", 1).group("timed"), time))), ["0"]);
    let registered_at_us = world.now.wall_us;
    let world = world.power_loss();
    for (group, expected) in [("pinned", Start::New), ("timed", time)] {
        let info = world.engine.group("q", group).unwrap();
        assert_eq!((info.start, info.created_at_us), (Some(expected), registered_at_us), "{group}");
    }
    // Nothing that was there is given to the one that said new, whatever it says now.
    assert!(world.pop_as(&start(PopRequest::any("q", 1).group("pinned"), Start::Beginning)).claims.is_empty());
}

#[test]
fn a_cursor_is_never_seeded_again() {
    let world = World::new(4);
    world.push("q", "a", &["0", "1", "2"]);
    assert_eq!(texts(&world.take("q", "g", 2)), ["0", "1"]);
    for again in [Start::Beginning, Start::New, Start::Offset(0), Start::Time(0)] {
        let reply = world.pop_as(&start(PopRequest::any("q", 10).group("g"), again));
        assert_eq!(popped(&reply), ["2"], "{again:?}");
        world.engine.release(&reply.lease_id, world.now).unwrap();
    }
}

#[test]
fn a_partition_made_after_the_registration_is_read_from_its_first_message() {
    let mut world = World::new(5);
    world.push("q", "old", &["0"]);
    let registered_us = world.now.wall_us;
    for (group, from) in [("new", Start::New), ("time", Start::Time(registered_us + SECOND_US))] {
        assert!(world.pop_as(&start(PopRequest::any("q", 10).group(group), from)).claims.is_empty());
    }
    world.pass(2_000);
    world.push("q", "young", &["1", "2"]);
    let world = world.kill();
    for group in ["new", "time"] {
        assert_eq!(texts(&world.take("q", group, 10)), ["1", "2"], "{group}");
    }
}

/// The pop came before the message: the place where the group starts was not there yet.
#[test]
fn a_start_that_is_not_there_yet_is_waited_for() {
    let mut world = World::new(6);
    world.push("q", "a", &["0"]);
    let later_us = world.now.wall_us + 60 * SECOND_US;
    assert!(world.pop_as(&start(PopRequest::any("q", 10).group("offset"), Start::Offset(2))).claims.is_empty());
    assert!(world.pop_as(&start(PopRequest::any("q", 10).group("time"), Start::Time(later_us))).claims.is_empty());
    world.push("q", "a", &["1", "2"]);
    assert_eq!(texts(&world.take("q", "offset", 10)), ["2"]);
    assert!(world.take("q", "time", 10).is_empty());
    world.pass(61_000);
    world.push("q", "a", &["3"]);
    assert_eq!(texts(&world.take("q", "time", 10)), ["3"]);
}

#[test]
fn a_changed_start_moves_no_cursor_and_holds_for_partitions_that_come() {
    let mut world = World::new(7);
    world.push("q", "a", &["0", "1"]);
    assert_eq!(texts(&world.take("q", "g", 1)), ["0"]);
    world.push("q", "b", &["old"]);
    world.pass(2_000);
    assert_eq!(world.engine.set_start("g", Start::Time(world.now.wall_us), world.now).unwrap(), 1);
    assert_eq!(world.engine.set_start("nobody", Start::New, world.now).unwrap(), 0);
    assert_eq!(texts(&world.drain("q", "g")), ["1"]);
    world.push("q", "b", &["new"]);
    assert_eq!(texts(&world.drain("q", "g")), ["new"]);
    assert_eq!(world.engine.set_start(PRIMARY_GROUP, Start::New, world.now).unwrap_err().code, ErrorCode::PrimaryGroup);
}
