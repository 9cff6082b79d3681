//! Messages that may not be handed out yet, and groups that go while others look at them.

use fanlog::model::SettingsPatch;

use crate::support::World;

/// The first message of a partition that was too young used to be passed over: the cursor went to offset 1 and the message was
/// never handed out. Only offset 0 was hit, as there is no offset before it to stop at.
#[test]
fn a_delayed_message_is_handed_out_when_its_time_has_come_wherever_it_stands() {
    let mut world = World::new(1);
    let patch = SettingsPatch { delayed_processing_s: Some(3), ..SettingsPatch::default() };
    world.engine.create_queue("q", &patch, world.now).unwrap();
    for round in 0..3u64 {
        world.push("q", "p", &["a"]);
        for _ in 0..3 {
            assert!(world.pop("q", "g", 10).claims.is_empty(), "round {round}");
            world.pass(900);
        }
        world.pass(400);
        assert_eq!(world.take("q", "g", 10), [("p".to_owned(), round, "a".to_owned())]);
    }
}

/// Deleting a group used to wait for itself.
#[test]
fn a_group_is_deleted_and_starts_again() {
    let world = World::new(2);
    world.push("q", "p", &["a"]);
    assert_eq!(world.take("q", "g", 10).len(), 1);
    assert_eq!(world.engine.delete_group("g", None, world.now).unwrap().deleted_partitions, 1);
    assert_eq!(world.take("q", "g", 10).len(), 1);
}
