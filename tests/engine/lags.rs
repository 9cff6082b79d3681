//! Reading progress, and what it costs.

use fanlog::model::*;

use super::support::World;

/// A group whose start was set had its lag counted batch by batch, on the disk, though it takes everything.
#[test]
fn the_lag_of_a_group_that_takes_everything_is_not_counted_on_the_disk() {
    let mut world = World::new(41);
    let filter =
        GroupDeclaration { filter: ":a = \"b\"".to_owned(), start: Some(Start::Beginning), ..GroupDeclaration::default() };
    world.engine.declare_group("q", "filtered", &filter, world.now).unwrap_err();
    world.push("q", "p", &["0"]);
    world.pop("q", "g", 1);
    world.engine.declare_group("q", "filtered", &filter, world.now).unwrap();
    for _ in 0..300 {
        world.push("q", "p", &["x", "y"]);
    }
    let calls = |world: &World, group: &str| {
        let before = world.disk.calls();
        let progress = world.engine.group_progress("q", group, world.now).unwrap();
        (progress.lag, world.disk.calls() - before)
    };
    assert_eq!(calls(&world, "g").0, 601);
    world.engine.set_start("g", Start::Beginning, world.now).unwrap();
    let patch = GroupPatch { display_name: Some("G".to_owned()), ..GroupPatch::default() };
    world.engine.update_group("q", "g", &patch, world.now).unwrap();
    for what in ["after a change", "after a restart"] {
        let (lag, cost) = calls(&world, "g");
        assert_eq!(lag, 601, "{what}");
        assert!(cost < 10, "{what}: {cost} calls of the disk");
        world = world.restart();
    }
    // A filter, even one that is gone again, leaves marks in the log, which are counted then.
    for filter in [":a = \"b\"", ""] {
        let patch = GroupPatch { filter: Some(filter.to_owned()), ..GroupPatch::default() };
        world.engine.update_group("q", "g", &patch, world.now).unwrap();
        world.push("q", "p", &["z"]);
    }
    assert_eq!(calls(&world, "g").0, 602);
    assert_eq!(calls(&world, "filtered").0, 0);
    let all = world.engine.progress("q", world.now).unwrap();
    let one = world.engine.group_progress("q", "g", world.now).unwrap();
    assert_eq!(all.iter().find(|progress| progress.group.name == "g"), Some(&one));
    assert_eq!(world.engine.group_progress("q", "none", world.now).unwrap_err().code, ErrorCode::UnknownGroup);
    assert_eq!(world.engine.group_progress("none", "g", world.now).unwrap_err().code, ErrorCode::UnknownQueue);
}
