//! Groups and their positions.

use fanlog::model::*;

use super::support::{World, messages_of};
use super::{paths, read_all, seek_of};

fn offsets(taken: &[(String, u64, String)]) -> Vec<u64> {
    taken.iter().map(|(_, offset, _)| *offset).collect()
}

/// The log is put back to an older copy and the cursors are not: the loss is told, and what is pushed next is delivered.
#[test]
fn a_cursor_ahead_of_its_log_does_not_starve() {
    let world = World::new(20);
    world.push("q", "p", &["one"]);
    world.drain("q", "g");
    let world = world.restart();
    let path = paths(&world, ".segment").remove(0);
    let older = world.disk.read_file(&path).unwrap();
    world.push("q", "p", &["two", "three", "four"]);
    assert_eq!(world.drain("q", "g").len(), 3);
    let world = world.restart();
    let disk = world.disk.crash_keep_all();
    disk.write_file(&path, &older);
    let world = World::on(disk, world.now);
    assert!(world.report.findings.iter().any(|finding| finding.is_loss), "{:?}", world.report.findings);
    let texts: Vec<String> = (0..10).map(|number| format!("new {number}")).collect();
    let reply = world.push("q", "p", &texts.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(matches!(reply.results.get(0), Some(PushResult::Stored(offset)) if offset >= 4), "{reply:?}");
    let taken: Vec<_> = world.drain("q", "g").into_iter().map(|(_, _, text)| text).collect();
    assert_eq!(taken, texts);
}

/// Checkpoint and cursors are put back to an older copy and the log is not: nothing is written over, and at worst handed out again.
#[test]
fn older_metadata_overwrites_nothing() {
    let world = World::new(21);
    world.push("q", "p", &["one", "two"]);
    world.take("q", "g", 1);
    let world = world.restart();
    let older: Vec<_> = (world.disk.paths().into_iter().filter(|path| !path.ends_with(".segment") && !path.ends_with("lock")))
        .map(|path| (path.clone(), world.disk.read_file(&path).unwrap()))
        .collect();
    world.push("q", "p", &["three", "four"]);
    world.take("q", "g", 2);
    let world = world.restart();
    let disk = world.disk.crash_keep_all();
    for (path, bytes) in &older {
        disk.write_file(path, bytes);
    }
    let world = World::on(disk, world.now);
    world.push("q", "p", &["five"]);
    let texts: Vec<_> = read_all(&world, "q", "p", 0).into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["one", "two", "three", "four", "five"]);
    let taken = offsets(&world.drain("q", "g"));
    assert_eq!(taken.last(), Some(&4));
    assert!(taken.windows(2).all(|pair| pair[1] == pair[0] + 1), "{taken:?} skips something");
}

#[test]
fn a_seek_hands_out_what_its_reply_named_also_after_a_kill() {
    for target in [SeekTarget::Beginning, SeekTarget::Offset(4), SeekTarget::Time(1_700_000_006_000_000), SeekTarget::End] {
        for is_killed in [false, true] {
            let mut world = World::new(22);
            for number in 0..10 {
                world.push("q", "p", &[&number.to_string()]);
                world.pass(1_000);
            }
            world.drain("q", "g");
            let moved = world.engine.seek(&seek_of("q", "g", target), world.now).unwrap();
            if is_killed {
                world = world.power_loss();
            }
            world.push("q", "p", &["10"]);
            let taken = offsets(&world.drain("q", "g"));
            assert_eq!(taken, (moved[0].after..11).collect::<Vec<_>>(), "{target:?}, killed {is_killed}");
        }
    }
}

/// A group in the middle of a log goes on over a restart while new messages come in.
#[test]
fn a_group_goes_from_the_disk_to_what_is_new_without_a_gap() {
    let push = |world: &World, from: u32| {
        let texts: Vec<String> = (from..from + 100).map(|number| number.to_string()).collect();
        world.push("q", "p", &texts.iter().map(String::as_str).collect::<Vec<_>>());
    };
    let world = World::new(23);
    (0..10).for_each(|round| push(&world, round * 100));
    let mut taken = Vec::new();
    while taken.len() < 500 {
        taken.extend(offsets(&world.take("q", "g", 50)));
    }
    let world = world.restart();
    for round in 10..20 {
        push(&world, round * 100);
        let request = PopRequest { auto_ack: true, ..PopRequest::any("q", 70).group("g") };
        for claim in world.engine.pop(&request, world.now).unwrap().claims {
            taken.extend(messages_of(&claim).iter().map(|message| message.offset));
        }
    }
    taken.extend(offsets(&world.drain("q", "g")));
    assert_eq!(taken, (0..2000).collect::<Vec<_>>());
}

#[test]
fn no_position_beyond_the_end_is_taken() {
    let world = World::new(24);
    world.push("q", "p", &["a", "b", "c"]);
    let reply = world.pop("q", "g", 2);
    for offset in [2, 3, 4, 1003, 1 << 63, u64::MAX] {
        let acked = world.ack(&reply.claims[0], "g", &reply.lease_id, &[(offset, AckVerb::Completed)]);
        assert!(acked.outcomes[0].refused.is_some(), "ack of {offset}");
        let sought = world.engine.seek(&seek_of("q", "h", SeekTarget::Offset(offset)), world.now);
        assert!(offset <= 3 || sought.is_err(), "seek to {offset}");
    }
    let held = world.pop("q", "h", 1);
    world.engine.release(&held.lease_id, world.now).unwrap();
    for offset in [4, 1003, 1 << 63, u64::MAX] {
        let error = world.engine.seek(&seek_of("q", "h", SeekTarget::Offset(offset)), world.now).unwrap_err();
        assert_eq!(error.code, ErrorCode::BeyondEnd, "seek to {offset}");
    }
    let lease = reply.lease_id.clone();
    let items: Vec<_> = (0..2).map(|offset| (offset, AckVerb::Completed)).collect();
    assert!(world.ack(&reply.claims[0], "g", &lease, &items).outcomes.iter().all(|outcome| outcome.refused.is_none()));
    assert_eq!(offsets(&world.drain("q", "g")), [2]);
    assert_eq!(offsets(&world.drain("q", "h")), [0, 1, 2]);
}

/// The default starts of a group that is deleted and made again, each said in the reply.
#[test]
fn a_group_made_again_starts_where_it_says() {
    let world = World::with_options(
        fanlog::storage::disk::sim::SimDisk::new(25),
        Now { wall_us: 1_700_000_000_000_000, steady_us: 1 },
        fanlog::engine::EngineOptions::default(),
    );
    let texts: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    world.push("q", "p", &texts.iter().map(String::as_str).collect::<Vec<_>>());
    let taken = |start: Option<Start>| {
        let request = PopRequest { start, ..PopRequest::any("q", 100).group("g") };
        let reply = world.engine.pop(&request, world.now).unwrap();
        let held = reply.claims.first().map(|claim| messages_of(claim)[0].offset);
        let info = world.engine.group("q", "g").unwrap();
        world.engine.delete_group("g", Some("q"), world.now).unwrap();
        if let Some(claim) = reply.claims.first() {
            // The consumer of the group that is gone is told so.
            let late =
                world.engine.ack(super::support::ack_of(claim, "g", &reply.lease_id, &[(0, AckVerb::Completed)]), world.now);
            let is_refused = late.as_ref().map_or(true, |reply| reply.outcomes[0].refused.is_some());
            assert!(is_refused, "{late:?}");
        }
        (held, info.start)
    };
    assert_eq!(taken(None), (None, Some(Start::New)));
    assert_eq!(taken(Some(Start::Beginning)), (Some(0), Some(Start::Beginning)));
    assert_eq!(taken(Some(Start::Beginning)), (Some(0), Some(Start::Beginning)));
    assert_eq!(taken(None), (None, Some(Start::New)));
}

/// A lag is counted from what is there, also when retention has passed the group.
#[test]
fn a_lag_is_right_when_messages_were_taken_away_in_the_middle() {
    let mut world = World::new(26);
    let patch = SettingsPatch { retention_enabled: Some(true), retention_s: Some(60), ..SettingsPatch::default() };
    world.engine.create_queue("q", &patch, world.now).unwrap();
    (0..4).for_each(|number| drop(world.push("q", "p", &[&number.to_string()])));
    world.take("q", "g", 1);
    world.pass(100_000);
    world.push("q", "p", &["4"]);
    world.pass(10_000);
    let lag = |world: &World| world.engine.cursors("q", "g", 0, 10, world.now).unwrap()[0].lag;
    assert_eq!(lag(&world), 1);
    assert_eq!(offsets(&world.drain("q", "g")), [4]);
    assert_eq!(lag(&world), 0);
    world.pass(100_000);
    world.pass(10_000);
    assert_eq!(lag(&world), 0);
    assert_eq!(world.engine.queue("q").unwrap().stats.messages, 0);
}

/// A transaction id is known over a kill and a power loss, and also when retention has taken its message.
#[test]
fn an_id_is_known_as_long_as_its_window_lasts() {
    let mut world = World::new(27);
    let patch = SettingsPatch {
        retention_enabled: Some(true),
        retention_s: Some(60),
        dedup_window_s: Some(3600),
        ..super::small_segments()
    };
    world.engine.create_queue("q", &patch, world.now).unwrap();
    let push = |world: &World| {
        let mut request = super::support::push_of("q", "p", &["once"]);
        if let PushItem::Messages(messages) = &mut request.items {
            messages[0].transaction_id = Some("id".to_owned());
        }
        world.engine.push(request, world.now).unwrap().results.get(0).unwrap()
    };
    assert_eq!(push(&world), PushResult::Stored(0));
    assert_eq!(push(&world), PushResult::Duplicate(0));
    world = world.kill();
    assert_eq!(push(&world), PushResult::Duplicate(0));
    world = world.power_loss();
    assert_eq!(push(&world), PushResult::Duplicate(0));
    // Retention takes the message, and would take its segment.
    (0..40).for_each(|_| drop(world.push("q", "p", &[&"x".repeat(20_000)])));
    world.pass(100_000);
    world.push("q", "p", &["young"]);
    world.pass(10_000);
    assert_eq!(world.engine.partition("q", "p").unwrap().start, 41);
    assert_eq!(push(&world), PushResult::Duplicate(0));
    world = world.kill();
    assert_eq!(push(&world), PushResult::Duplicate(0));
    world.pass(3_700_000);
    world.push("q", "p", &["younger"]);
    world.pass(10_000);
    assert!(!super::paths(&world, ".segment").iter().any(|path| path.ends_with("00000001.segment")), "its time is over");
    // Outside the window the same id is a new message, at a new offset.
    assert_eq!(push(&world), PushResult::Stored(43));
}
