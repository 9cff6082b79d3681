//! Which partitions a pop takes from, and how long it may keep what it took.

use std::collections::BTreeSet;

use fanlog::model::*;

use crate::support::{World, popped, texts};

fn discover(namespace: Option<&str>, task: Option<&str>) -> PopRequest {
    let source = PopSource::Discover { namespace: namespace.map(str::to_owned), task: task.map(str::to_owned) };
    PopRequest { source, partitions_max: 64, auto_ack: true, ..PopRequest::any("", 100).group("g") }
}

#[test]
fn a_pop_takes_from_one_partition_any_partition_of_a_queue_or_any_queue_of_a_namespace_or_task() {
    let world = World::new(1);
    for queue in ["shop.mail.eu", "shop.bill", "bank.mail", "plain"] {
        world.push(queue, "a", &[queue]);
    }
    let set = |request: &PopRequest| popped(&world.pop_as(request)).into_iter().collect::<BTreeSet<_>>();
    let expected = |queues: &[&str]| queues.iter().map(|queue| (*queue).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(set(&discover(Some("shop"), None)), expected(&["shop.mail.eu", "shop.bill"]));
    let task = PopRequest { group: Some("h".into()), ..discover(None, Some("mail")) };
    assert_eq!(set(&task), expected(&["shop.mail.eu", "bank.mail"]));
    let both = PopRequest { group: Some("i".into()), ..discover(Some("shop"), Some("mail")) };
    assert_eq!(set(&both), expected(&["shop.mail.eu"]));
    assert!(set(&discover(Some("nobody"), None)).is_empty());
    assert_eq!(world.engine.pop(&discover(None, None), world.now).unwrap_err().code, ErrorCode::BadRequest);

    world.push("plain", "b", &["other"]);
    let mut pinned = PopRequest::any("plain", 10).group("g");
    pinned.source = PopSource::Partition { queue: "plain".into(), partition: "b".into() };
    assert_eq!(popped(&world.pop_as(&pinned)), ["other"]);
    assert_eq!(popped(&world.pop("plain", "g", 10)), ["plain"]);
}

#[test]
fn one_pop_takes_from_up_to_64_partitions_under_one_lease_and_one_budget() {
    let mut world = World::new(2);
    for lane in 0..70 {
        world.push("q", &format!("lane-{lane}"), &["0", "1"]);
    }
    let request = PopRequest { partitions_max: 64, ..PopRequest::any("q", 1_000).group("g") };
    let reply = world.pop_as(&request);
    assert_eq!((reply.claims.len(), popped(&reply).len()), (64, 128));
    world.pass(30_000);
    assert_eq!(world.engine.extend(&reply.lease_id, 60_000, world.now).unwrap().renewed, 64);
    world.pass(40_000);
    assert_eq!(world.pop_as(&request).claims.len(), 6, "an extension is for all of them");
    assert_eq!(world.engine.release(&reply.lease_id, world.now).unwrap(), 64);
    let few = world.pop_as(&PopRequest { messages_max: 5, ..request.clone() });
    assert_eq!(popped(&few).len(), 5, "the number of messages is for all partitions together");
    for partitions_max in [0, 65, u32::MAX] {
        let refused = world.engine.pop(&PopRequest { partitions_max, ..request.clone() }, world.now);
        assert_eq!(refused.unwrap_err().code, ErrorCode::BadRequest);
    }
}

/// A partition that is filled again and again does not keep the others waiting.
#[test]
fn no_partition_starves() {
    let world = World::new(3);
    for lane in ["busy", "b", "c", "d"] {
        world.push("q", lane, &["first"]);
    }
    let mut seen = BTreeSet::new();
    for _ in 0..4 {
        world.push("q", "busy", &["more", "more"]);
        seen.extend(world.take("q", "g", 1).into_iter().map(|(lane, ..)| lane));
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
}

#[test]
fn at_most_once_moves_the_cursor_before_the_messages_leave_and_gives_no_lease() {
    let world = World::new(4);
    world.push("q", "a", &["0", "1"]);
    let reply = world.pop_as(&PopRequest { auto_ack: true, ..PopRequest::any("q", 10).group("g") });
    assert_eq!((popped(&reply).len(), reply.lease_id.as_str()), (2, ""));
    let world = world.power_loss();
    assert!(world.pop("q", "g", 10).claims.is_empty());
}

#[test]
fn a_lease_lasts_60_seconds_or_what_the_queue_or_the_pop_says() {
    let configured = SettingsPatch { lease_time_s: Some(300), ..SettingsPatch::default() };
    for (patch, lease_ms, lasts_ms) in
        [(None, None, 60_000), (Some(configured.clone()), None, 300_000), (Some(configured), Some(1_500), 1_500)]
    {
        let mut world = World::new(5);
        if let Some(patch) = patch {
            world.create("q", patch);
        }
        world.push("q", "a", &["0"]);
        let request = PopRequest { lease_ms, ..PopRequest::any("q", 1).group("g") };
        let reply = world.pop_as(&request);
        assert_eq!(reply.lease_expires_at_us, world.now.wall_us + lasts_ms * 1_000);
        world.pass(lasts_ms - 1);
        assert!(world.pop_as(&request).claims.is_empty());
        world.pass(1);
        assert_eq!(popped(&world.pop_as(&request)), ["0"], "after {lasts_ms} ms");
    }
}

#[test]
fn the_wall_clock_does_not_end_leases() {
    let mut world = World::new(6);
    world.push("q", "a", &["0"]);
    let reply = world.pop("q", "g", 1);
    world.now.wall_us += 86_400_000_000;
    world.engine.tick(world.now);
    assert!(world.pop("q", "g", 1).claims.is_empty());
    world.now.wall_us -= 2 * 86_400_000_000;
    world.pass(60_000);
    assert_eq!(popped(&world.pop("q", "g", 1)), ["0"]);
    assert_eq!(world.engine.extend(&reply.lease_id, 60_000, world.now).unwrap().renewed, 0);
}

#[test]
fn an_extension_never_shortens_and_a_lease_that_is_over_is_not_extended() {
    let mut world = World::new(7);
    world.push("q", "a", &["0"]);
    let reply = world.pop("q", "g", 1);
    let long = world.engine.extend(&reply.lease_id, 500_000, world.now).unwrap();
    let short = world.engine.extend(&reply.lease_id, 1_000, world.now).unwrap();
    assert_eq!((short.renewed, short.expires_at_us), (1, long.expires_at_us));
    assert_eq!(world.engine.extend_by_lease_time(&reply.lease_id, world.now).unwrap().expires_at_us, long.expires_at_us);
    world.pass(499_999);
    assert!(world.pop("q", "g", 1).claims.is_empty());
    world.pass(1);
    for lease in [reply.lease_id.as_str(), "", "nonsense", "9-9"] {
        assert_eq!(world.engine.extend(lease, 1_000, world.now).unwrap().renewed, 0, "{lease}");
        assert_eq!(world.engine.release(lease, world.now).unwrap(), 0, "{lease}");
    }
}

/// Whoever holds an older lease holds a smaller one, also over starts: the number can fence what the consumer writes elsewhere.
#[test]
fn lease_ids_grow_over_restarts_and_old_ones_are_refused() {
    let mut world = World::new(8);
    world.push("q", "a", &["0"]);
    let mut previous: Option<(u64, u64)> = None;
    for round in 0..6 {
        let reply = world.pop("q", "g", 1);
        let (start, counter) = reply.lease_id.split_once('-').unwrap();
        let token = (u64::from_str_radix(start, 16).unwrap(), u64::from_str_radix(counter, 16).unwrap());
        assert!(previous.is_none_or(|previous| previous < token), "{previous:?}, then {token:?}");
        previous = Some(token);
        world = match round % 3 {
            0 => world.restart(),
            1 => world.kill(),
            _ => world.power_loss(),
        };
        let late = world.ack(&reply.claims[0], "g", &reply.lease_id, &[(0, AckVerb::Completed)]);
        assert_eq!(late.outcomes[0].refused.as_ref().unwrap().code, ErrorCode::LeaseLost);
    }
}

/// One group fails, holds and stalls; the other does not notice.
#[test]
fn a_stalled_group_slows_no_other_and_a_restart_of_one_replays_nothing_for_another() {
    let mut world = World::new(9);
    for index in 0..10 {
        world.push("q", "a", &[&index.to_string()]);
    }
    let stalled = world.pop("q", "billing", 3);
    world.ack(&stalled.claims[0], "billing", &stalled.lease_id, &[(0, AckVerb::Failed)]);
    assert_eq!(popped(&world.pop("q", "billing", 2)), ["0", "1"]);
    assert_eq!(world.drain("q", "analytics").len(), 10);
    world.push("q", "a", &["10"]);
    assert_eq!(texts(&world.take("q", "analytics", 500)), ["10"]);
    world.seek("q", "analytics", SeekTarget::Beginning);
    assert_eq!(world.drain("q", "analytics").len(), 11);
    world.pass(61_000);
    assert_eq!(world.drain("q", "billing").len(), 11);
    assert_eq!((world.lag("q", "billing"), world.lag("q", "analytics")), (0, 0));
}

#[test]
fn a_paused_group_takes_messages_and_hands_none_out_and_a_disabled_one_takes_none() {
    let world = World::new(10);
    world.push("q", "a", &["0"]);
    for group in ["paused", "disabled"] {
        assert_eq!(world.take("q", group, 1).len(), 1);
    }
    let change = |group: &str, patch: GroupPatch| world.engine.update_group("q", group, &patch, world.now).unwrap().state;
    let pause = |is_paused| GroupPatch { is_paused: Some(is_paused), ..GroupPatch::default() };
    let enable = |is_enabled| GroupPatch { is_enabled: Some(is_enabled), ..GroupPatch::default() };
    assert_eq!(change("paused", pause(true)), GroupState::Paused);
    assert_eq!(change("disabled", enable(false)), GroupState::Inactive);
    world.push("q", "a", &["1"]);
    assert!(world.pop("q", "paused", 10).claims.is_empty());
    assert_eq!((world.lag("q", "paused"), world.lag("q", "disabled")), (1, 0));
    let refused = world.engine.pop(&PopRequest::any("q", 1).group("disabled"), world.now);
    assert_eq!(refused.unwrap_err().code, ErrorCode::GroupInactive);
    assert_eq!(change("paused", pause(false)), GroupState::Active);
    assert_eq!(change("disabled", enable(true)), GroupState::Active);
    world.push("q", "a", &["2"]);
    assert_eq!(texts(&world.drain("q", "paused")), ["1", "2"]);
    assert_eq!(texts(&world.drain("q", "disabled")), ["2"]);
}

/// A lease that had run out used to hold its partition until the timer came by: a pop in between found nothing.
#[test]
fn a_pop_takes_what_a_lease_held_that_has_run_out_without_waiting_for_the_timer() {
    let mut world = World::new(9);
    world.push("q", "a", &["0"]);
    let request = PopRequest { lease_ms: Some(1_000), ..PopRequest::any("q", 1).group("g") };
    assert_eq!(popped(&world.pop_as(&request)), ["0"]);
    world.now.wall_us += 999_999;
    world.now.steady_us += 999_999;
    assert!(world.pop_as(&request).claims.is_empty(), "it is still held");
    world.now.wall_us += 1;
    world.now.steady_us += 1;
    assert_eq!(popped(&world.pop_as(&request)), ["0"]);
    assert!(world.pop_as(&request).claims.is_empty(), "the new lease holds it");
}
