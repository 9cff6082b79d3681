//! What goes when, and what stays.

use fanlog::engine::{Engine, EngineOptions};
use fanlog::model::*;
use fanlog::record::Message;

use crate::support::{World, messages_of, popped, push_of, texts};

const DAY_MS: u64 = 86_400_000;

fn bounds(world: &World, partition: &str) -> (u64, u64) {
    let found = world.engine.partition("q", partition).unwrap();
    (found.start, found.end)
}

fn settings(retention_s: u64, completed_s: u64) -> SettingsPatch {
    SettingsPatch {
        retention_enabled: Some(true),
        retention_s: Some(retention_s),
        completed_retention_s: Some(completed_s),
        ..SettingsPatch::default()
    }
}

#[test]
fn nothing_goes_without_the_switch_or_without_a_window() {
    for (is_enabled, seconds) in [(false, 60), (true, 0)] {
        let mut world = World::new(1);
        world.create("q", SettingsPatch { retention_enabled: Some(is_enabled), ..settings(seconds, seconds) });
        world.push("q", "a", &["0"]);
        world.drain("q", "g");
        world.pass(10 * DAY_MS);
        assert_eq!(bounds(&world, "a"), (0, 1), "enabled {is_enabled}, {seconds} s");
    }
}

#[test]
fn age_takes_whole_batches_read_or_not_and_a_counter_tells_what_was_unread() {
    let mut world = World::new(2);
    world.create("q", settings(60, 0));
    world.push("q", "a", &["0", "1"]);
    world.push("q", "a", &["2", "3"]);
    assert_eq!(texts(&world.take("q", "g", 1)), ["0"]);
    world.pass(50_000);
    world.push("q", "a", &["4"]);
    world.pass(20_000);
    assert_eq!(bounds(&world, "a"), (4, 5));
    assert_eq!(world.engine.queue("q").unwrap().stats.messages_lost_unread, 3, "before the group comes to it");
    let reply = world.pop("q", "g", 10);
    assert_eq!((popped(&reply), reply.claims[0].lost), (vec!["4".to_owned()], Some(OffsetRange { first: 1, last: 3 })));
    assert_eq!(world.engine.queue("q").unwrap().stats.messages_lost_unread, 3);
    // All of it is gone; offsets go on where they were, also after a start.
    world.pass(100_000);
    assert_eq!(bounds(&world, "a"), (5, 5));
    let world = world.restart();
    assert_eq!(world.push("q", "a", &["5"]).results, PushResults::Range { base: 5, count: 1 });
}

#[test]
fn lost_unread_counts_for_each_group_what_it_takes_and_has_not_acknowledged() {
    let mut world = World::new(2);
    world.create("q", settings(60, 0));
    let filter = |filter: &str| GroupDeclaration { filter: filter.to_owned(), ..GroupDeclaration::default() };
    for (group, text) in [("even", ":even"), ("none", ":nothing")] {
        world.engine.declare_group("q", group, &filter(text), world.now).unwrap();
    }
    let mut messages: Vec<Message> = (0..6).map(|number: u8| Message::new(vec![number])).collect();
    for message in messages.iter_mut().step_by(2) {
        message.attributes.insert("even", "yes").unwrap();
    }
    let items = PushItem::Messages(messages);
    let request = PushRequest { queue: "q".into(), partition: "a".into(), items, producer: None };
    world.engine.push(request, world.now).unwrap();
    let shared = world.pop_as(&PopRequest { shared: true, ..PopRequest::any("q", 6).group("s") });
    world.ack(&shared.claims[0], "s", &shared.lease_id, &[(1, AckVerb::Completed), (4, AckVerb::Completed)]);
    assert_eq!(world.take("q", "even", 1).len(), 1);
    world.pass(100_000);
    assert_eq!(bounds(&world, "a"), (6, 6));
    // Four of the shared group, two of the group of the even ones, none of the one that takes nothing; the primary group does not read.
    assert_eq!(world.engine.queue("q").unwrap().stats.messages_lost_unread, 6);
    assert_eq!(world.drain("q", "even").len() + world.drain("q", "s").len(), 0);
    assert_eq!(world.engine.queue("q").unwrap().stats.messages_lost_unread, 6, "each is counted once");
}

#[test]
fn completed_messages_go_up_to_the_slowest_group_and_stay_where_nobody_has_read() {
    let mut world = World::new(3);
    world.create("q", settings(0, 60));
    for payload in ["0", "1", "2"] {
        world.push("q", "a", &[payload]);
        world.push("q", "unread", &[payload]);
    }
    world.pass(100_000);
    assert_eq!(bounds(&world, "a"), (0, 3), "no group, nothing consumed");
    let pinned = |world: &World, group: &str, count: u32| {
        let mut request = PopRequest { auto_ack: true, ..PopRequest::any("q", count).group(group) };
        request.source = PopSource::Partition { queue: "q".into(), partition: "a".into() };
        popped(&world.pop_as(&request)).len()
    };
    assert_eq!((pinned(&world, "fast", 3), pinned(&world, "slow", 1)), (3, 1));
    world.pass(6_000);
    assert_eq!((bounds(&world, "a"), bounds(&world, "unread")), ((1, 3), (0, 3)));
    assert_eq!(pinned(&world, "slow", 3), 2);
    world.pass(6_000);
    assert_eq!((bounds(&world, "a"), bounds(&world, "unread")), ((3, 3), (0, 3)));
    assert_eq!((world.lag("q", "fast"), world.lag("q", "slow")), (3, 3), "what stays is still unread");
}

#[test]
fn completed_messages_stay_until_they_are_old_enough() {
    let mut world = World::new(4);
    world.create("q", settings(0, 60));
    world.push("q", "a", &["0"]);
    world.drain("q", "g");
    world.pass(50_000);
    assert_eq!(bounds(&world, "a"), (0, 1));
    world.pass(20_000);
    assert_eq!(bounds(&world, "a"), (1, 1));
}

#[test]
fn the_longest_wait_takes_leased_messages_too_and_makes_no_dead_letters() {
    let mut world = World::new(5);
    world.create("q", SettingsPatch { max_wait_time_s: Some(30), ..SettingsPatch::default() });
    world.push("q", "a", &["0"]);
    let reply = world.pop_as(&PopRequest { lease_ms: Some(600_000), ..PopRequest::any("q", 1).group("g") });
    world.pass(40_000);
    assert_eq!(bounds(&world, "a"), (1, 1));
    assert!(world.letters("q").is_empty());
    let late = world.ack(&reply.claims[0], "g", &reply.lease_id, &[(0, AckVerb::Completed)]);
    assert!(late.outcomes[0].is_noop, "{late:?}");
    assert_eq!(world.lag("q", "g"), 0);
}

#[test]
fn dead_letters_stay() {
    let mut world = World::new(6);
    world.create("q", settings(60, 60));
    world.push("q", "a", &["0"]);
    let reply = world.pop("q", "g", 1);
    world.ack(&reply.claims[0], "g", &reply.lease_id, &[(0, AckVerb::Reject)]);
    world.pass(100 * DAY_MS);
    let mut world = world.restart();
    world.pass(100 * DAY_MS);
    assert_eq!(bounds(&world, "a"), (1, 1), "the partition stays for its dead letter");
    assert_eq!(&world.letters("q")[0].payload[..], b"0");
}

/// Bytes kept: the oldest segments go, and their bytes come back.
#[test]
fn a_limit_of_bytes_gives_the_oldest_back() {
    let mut world = World::new(7);
    let patch = SettingsPatch {
        retention_bytes: Some(3 << 20),
        segment_bytes_max: Some(1 << 20),
        compression: Some(Compression::None),
        ..SettingsPatch::default()
    };
    world.create("q", patch);
    let payload = "x".repeat(100_000);
    for _ in 0..80 {
        world.push("q", "a", &[&payload]);
    }
    assert!(world.engine.queue("q").unwrap().stats.log_bytes > 7 << 20);
    world.pass(6_000);
    let stats = world.engine.queue("q").unwrap().stats;
    assert!(stats.log_bytes <= 3 << 20, "{} bytes", stats.log_bytes);
    let (start, end) = bounds(&world, "a");
    assert!(start > 40 && end == 80 && stats.messages == end - start, "[{start}, {end})");
    assert_eq!(world.drain("q", "g").len() as u64, end - start);
}

#[test]
fn an_empty_partition_that_is_idle_for_a_month_goes_with_its_cursors() {
    let mut world = World::new(8);
    world.create("q", settings(60, 0));
    world.push("q", "a", &["0"]);
    world.push("q", "busy", &["0"]);
    world.drain("q", "g");
    world.pass(29 * DAY_MS);
    assert_eq!((bounds(&world, "a"), world.engine.progress("q", world.now).unwrap()[1].cursors), ((1, 1), 2));
    world.push("q", "busy", &["1"]);
    world.pass(2 * DAY_MS);
    // One sweep looks at a part of the partitions and the next one goes on.
    world.pass(6_000);
    assert_eq!(world.engine.partition("q", "a").unwrap_err().code, ErrorCode::UnknownPartition);
    assert_eq!((bounds(&world, "busy").1, world.engine.progress("q", world.now).unwrap()[1].cursors), (2, 1));
    let world = world.kill();
    assert_eq!(world.push("q", "a", &["again"]).results, PushResults::Range { base: 0, count: 1 });
    assert!(texts(&world.drain("q", "g")).contains(&"again"));
}

/// On a real disk: the file is unlinked, what was read from it stays as it was.
#[test]
fn a_reader_keeps_what_it_holds_of_a_segment_that_goes() {
    let directory = tempfile::tempdir().unwrap();
    let mut now = Now { wall_us: 1_700_000_000_000_000, steady_us: 1_000_000_000 };
    let (engine, _) = Engine::open_path(directory.path(), EngineOptions::default(), now).unwrap();
    let patch = SettingsPatch { segment_bytes_max: Some(1 << 20), compression: Some(Compression::None), ..settings(60, 0) };
    engine.create_queue("q", &patch, now).unwrap();
    let payload = |index: usize| format!("{index}{}", "y".repeat(400_000));
    for index in 0..6 {
        engine.push(push_of("q", "a", &[&payload(index)]), now).unwrap();
    }
    let request = PopRequest { start: Some(Start::Beginning), ..PopRequest::any("q", 2).group("g") };
    let held = engine.pop(&request, now).unwrap();
    let segments = engine.queue("q").unwrap().stats.segments;
    now.wall_us += 100_000_000;
    now.steady_us += 100_000_000;
    engine.tick(now);
    assert!(engine.queue("q").unwrap().stats.segments < segments);
    assert_eq!(engine.partition("q", "a").unwrap().start, 6);
    for (index, message) in messages_of(&held.claims[0]).iter().enumerate() {
        assert!(message.payload == payload(index).as_bytes());
    }
    engine.close(now).unwrap();
}

#[test]
fn a_message_is_not_younger_than_the_one_before_it_whatever_the_clock_says() {
    let mut world = World::new(9);
    let first = world.push("q", "a", &["0"]).created_at_us;
    world.now.wall_us -= 3_600_000_000;
    assert_eq!(world.push("q", "a", &["1"]).created_at_us, first);
    let mut world = world.restart();
    world.now.wall_us -= 3_600_000_000;
    assert_eq!(world.push("q", "b", &["2"]).created_at_us, first);
}

/// A lease of nothing but messages that retention took held its lane until it ran out.
#[test]
fn a_lease_of_removed_messages_holds_its_lane_no_longer() {
    let mut world = World::new(77);
    let patch = SettingsPatch { retention_enabled: Some(true), retention_s: Some(60), ..SettingsPatch::default() };
    world.engine.create_queue("q", &patch, world.now).unwrap();
    world.push("q", "p", &["old"]);
    let request = PopRequest { lease_ms: Some(1_000_000), ..PopRequest::any("q", 1).group("g") };
    assert_eq!(world.engine.pop(&request, world.now).unwrap().claims.len(), 1);
    world.pass(50_000);
    world.push("q", "p", &["young"]);
    world.pass(20_000);
    assert_eq!(world.engine.partition("q", "p").unwrap().start, 1);
    assert_eq!(world.drain("q", "g"), [("p".to_owned(), 1, "young".to_owned())]);
}
