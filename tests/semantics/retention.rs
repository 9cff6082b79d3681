//! What goes when, what stays, who is told, and that the disk gets its bytes back.

use std::path::Path;
use std::time::Duration;

use fanlog::engine::{Engine, EngineOptions};
use fanlog::model::*;
use fanlog::record::Message;

use crate::support::*;

use AckVerb::Completed;

fn settings(is_enabled: bool, retention_s: u64, completed_s: u64) -> SettingsPatch {
    SettingsPatch {
        retention_enabled: Some(is_enabled),
        retention_s: Some(retention_s),
        completed_retention_s: Some(completed_s),
        ..SettingsPatch::default()
    }
}

async fn bounds_become(server: &Server, queue: &str, partition: &str, bounds: (u64, u64)) {
    eventually(async || (server.bounds(queue, partition).await == bounds).then_some(())).await;
}

async fn pop_once(server: &Server, partition: &str, group: &str, count: u32) -> usize {
    let request = PopRequest { auto_ack: true, ..pinned_pop_of("q", partition, group, count) };
    server.pop_as(&request).await.payloads().len()
}

/// Blocks that the files of a directory take, in bytes: what `du` says.
fn disk_bytes(directory: &Path) -> u64 {
    let output = std::process::Command::new("du").args(["-s", "--block-size=1"]).arg(directory).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

/// Sweeps have been there: another queue of the same server, which is swept by the same rules, has lost what it had.
#[tokio::test]
async fn nothing_goes_without_the_switch_or_without_a_window() {
    let server = Server::start_sweeping().await;
    for (queue, patch) in [("off", settings(false, 1, 1)), ("none", settings(true, 0, 0)), ("witness", settings(true, 1, 0))] {
        server.create(queue, patch).await;
        server.push(queue, "a", &["0"]).await;
        server.drain(queue, "g").await;
    }
    bounds_become(&server, "witness", "a", (1, 1)).await;
    for queue in ["off", "none"] {
        assert_eq!(server.bounds(queue, "a").await, (0, 1), "{queue}");
    }
}

#[tokio::test]
async fn age_takes_whole_batches_read_or_not_and_readers_are_told_the_range_that_was_removed() {
    let server = Server::start_sweeping().await;
    server.create("q", settings(true, 1, 0)).await;
    server.push("q", "a", &["0", "1"]).await;
    server.push("q", "a", &["2", "3"]).await;
    assert_eq!(server.take("q", "g", 1).await, ["0"]);
    bounds_become(&server, "q", "a", (4, 4)).await;
    // The operator hears of it before the group does, and when the group never does.
    eventually(async || (server.stats("q").await.messages_lost_unread == 3).then_some(())).await;
    eventually(async || server.words().contains("retention removed messages").then_some(())).await;
    server.client.update_queue("q", settings(false, 0, 0)).await.unwrap();
    server.push("q", "a", &["4"]).await;
    let mut reader = server.client.reader("q", "a").from_beginning().build().await.unwrap();
    assert_eq!(reader.next().await.unwrap().unwrap().offset, 4, "what is the beginning now");
    let fetch =
        FetchRequest { queue: "q".into(), partition: "a".into(), from: 1, to: None, messages_max: 10, bytes_max: 1 << 20 };
    let error = server.client.fetch(&fetch, Duration::ZERO).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::RangeRemoved));
    assert!(error.to_string().contains("[1,4)") || error.to_string().contains("[1, 4)"), "{error}");

    let taken = server.pop("q", "g", 10).await;
    assert_eq!((taken.payloads(), taken.claim().lost), (vec!["4".to_owned()], Some(OffsetRange { first: 1, last: 3 })));
    server.client.release(taken.lease()).await.unwrap();
    assert_eq!(server.pop("q", "g", 10).await.claim().lost, None, "it is told once");
    assert_eq!(server.stats("q").await.messages_lost_unread, 3);
    #[cfg(feature = "http")]
    assert_eq!(server.metric("lost_unread_messages", "q").await, 3.0);
    let server = server.killed_and_started().await;
    assert_eq!(server.push("q", "a", &["5"]).await.results, PushResults::Range { base: 5, count: 1 }, "offsets go on");
}

#[tokio::test]
async fn completed_messages_go_up_to_the_slowest_group_and_all_stay_where_nobody_has_read() {
    let server = Server::start_sweeping().await;
    server.create("q", settings(true, 0, 1)).await;
    server.create("witness", settings(true, 1, 0)).await;
    for payload in ["0", "1", "2"] {
        server.push("q", "a", &[payload]).await;
        server.push("q", "unread", &[payload]).await;
    }
    assert_eq!((pop_once(&server, "a", "fast", 3).await, pop_once(&server, "a", "slow", 1).await), (3, 1));
    bounds_become(&server, "q", "a", (1, 3)).await;
    assert_eq!(pop_once(&server, "a", "slow", 1).await, 1);
    bounds_become(&server, "q", "a", (2, 3)).await;
    assert_eq!(pop_once(&server, "a", "slow", 1).await, 1);
    bounds_become(&server, "q", "a", (3, 3)).await;
    assert_eq!(server.bounds("q", "unread").await, (0, 3));
    assert_eq!((server.lag("q", "fast").await, server.lag("q", "slow").await), (3, 3), "what stays is still unread");
    assert_eq!(server.stats("q").await.messages_lost_unread, 0);
}

#[tokio::test]
async fn the_longest_wait_needs_no_switch_takes_leased_messages_too_and_makes_no_dead_letters() {
    let server = Server::start_sweeping().await;
    server.create("q", SettingsPatch { max_wait_time_s: Some(1), ..SettingsPatch::default() }).await;
    server.push("q", "a", &["0"]).await;
    let taken = server.pop_as(&PopRequest { lease_ms: Some(600_000), ..pop_of("q", "g", 1) }).await;
    bounds_become(&server, "q", "a", (1, 1)).await;
    assert!(server.letters("q").await.is_empty());
    let late = server.ack(&taken, &[(0, Completed)]).await;
    assert!(late.outcomes[0].is_noop, "{late:?}");
    server.client.update_queue("q", SettingsPatch { max_wait_time_s: Some(0), ..SettingsPatch::default() }).await.unwrap();
    server.push("q", "a", &["1"]).await;
    assert_eq!(server.drain("q", "g").await, ["1"], "a lease of nothing but removed messages holds its lane no longer");
}

#[tokio::test]
async fn a_limit_of_bytes_removes_the_oldest_and_the_disk_has_its_bytes_back() {
    let server = Server::start_sweeping().await;
    let patch =
        SettingsPatch { segment_bytes_max: Some(1 << 20), compression: Some(Compression::None), ..SettingsPatch::default() };
    server.create("q", patch).await;
    let payload = "x".repeat(100_000);
    for _ in 0..10 {
        server.push("q", "a", &[payload.as_str(); 12]).await;
    }
    let before = disk_bytes(&server.data());
    assert!(before > 12 << 20, "{before} bytes");
    let limit = SettingsPatch { retention_bytes: Some(3 << 20), ..SettingsPatch::default() };
    server.client.update_queue("q", limit).await.unwrap();
    eventually(async || (server.stats("q").await.log_bytes <= 3 << 20).then_some(())).await;
    // Segments made in advance take room, too.
    eventually(async || (disk_bytes(&server.data()) < before - (8 << 20)).then_some(())).await;
    let (start, end) = server.bounds("q", "a").await;
    assert!(start >= 80 && end == 120, "[{start}, {end})");
    assert_eq!(server.drain("q", "g").await.len() as u64, end - start);
    let server = server.killed_and_started().await;
    assert_eq!(server.bounds("q", "a").await, (start, end));
}

/// One partition of several goes, and the other one keeps its segments, which are made hollow. This was so only for what a start
/// replayed: what retention removed while the server ran was not noticed once the segments had been looked at before.
#[tokio::test]
async fn room_comes_back_also_inside_segments_that_have_to_stay() {
    let server = Server::start_sweeping().await;
    let patch = SettingsPatch {
        segment_bytes_max: Some(1 << 20),
        compression: Some(Compression::None),
        dedup_window_s: Some(0),
        ..settings(true, 0, 1)
    };
    server.create("q", patch).await;
    let payload = "x".repeat(50_000);
    for _ in 0..60 {
        server.push("q", "read", &[payload.as_str(); 2]).await;
        server.push("q", "kept", &["small"]).await;
    }
    let before = disk_bytes(&server.data());
    while pop_once(&server, "read", "g", 100).await > 0 {}
    bounds_become(&server, "q", "read", (120, 120)).await;
    eventually(async || (disk_bytes(&server.data()) < before - (3 << 20)).then_some(())).await;
    assert_eq!(server.bounds("q", "kept").await, (0, 60));
    let server = server.killed_and_started().await;
    assert_eq!(server.drain("q", "h").await, vec!["small"; 60]);
}

#[tokio::test]
async fn what_retention_took_is_no_lag_and_lag_is_never_negative() {
    let server = Server::start_sweeping().await;
    server.create("q", SettingsPatch { max_wait_time_s: Some(1), ..SettingsPatch::default() }).await;
    server.push("q", "a", &["0", "1", "2"]).await;
    server.take("q", "g", 1).await;
    bounds_become(&server, "q", "a", (3, 3)).await;
    let cursor = server.cursor("q", "g", "a").await;
    assert_eq!((cursor.start, cursor.end, cursor.lag), (3, 3, 0));
    server.push("q", "a", &["3"]).await;
    assert_eq!(server.drain("q", "g").await, ["3"]);
    bounds_become(&server, "q", "a", (4, 4)).await;
    let cursor = server.cursor("q", "g", "a").await;
    assert_eq!((cursor.next, cursor.lag), (4, 0));
}

#[tokio::test]
async fn a_message_below_the_start_is_gone_by_name_and_a_young_one_is_not() {
    let server = Server::start_sweeping().await;
    server.create("q", settings(true, 1, 0)).await;
    server.push_messages("q", "a", vec![Message::new("old")]).await;
    bounds_become(&server, "q", "a", (1, 1)).await;
    server.client.update_queue("q", settings(true, 3_600, 0)).await.unwrap();
    server.push("q", "a", &["young"]).await;
    let partition = fanlog::protocol::PartitionSelector::Name("a".to_owned());
    let gone = server.client.message("q", partition, AckTarget::Offset(0)).await;
    assert!(matches!(refused(gone), ErrorCode::RangeRemoved | ErrorCode::UnknownMessage));
    assert_eq!(server.message("q", "a", 1).await.message.payload, "young");
}

const DAY_US: u64 = 86_400_000_000;

/// A directory as a server left it that ran 31, 29 and 1 days ago: the engine takes the time as an argument, and leaves no trace of
/// who gave it.
fn directory_of_a_month(data: &Path) {
    let at =
        |days: u64, seconds: u64| Now { wall_us: now_us() - days * DAY_US + seconds * 1_000_000, steady_us: seconds * 1_000_000 };
    for (days, partition) in [(31, "idle for 31 days"), (29, "idle for 29 days"), (1, "busy")] {
        let (engine, _) = Engine::open_path(data, EngineOptions::default(), at(days, 1)).unwrap();
        if days == 31 {
            engine.create_queue("q", &settings(true, 10, 0), at(days, 1)).unwrap();
        }
        engine.push(push_of("q", partition, &["0"]), at(days, 1)).unwrap();
        let request = PopRequest { auto_ack: true, ..pop_of("q", "g", 10) };
        assert_eq!(engine.pop(&request, at(days, 1)).unwrap().claims.len(), 1);
        // Retention empties the partition.
        engine.tick(at(days, 60));
        assert_eq!(engine.partition("q", partition).unwrap().start, 1);
        engine.close(at(days, 61)).unwrap();
    }
}

#[tokio::test]
async fn an_empty_partition_that_is_idle_for_30_days_goes_with_its_cursors_and_its_name_can_be_used_again() {
    let server = Server::start_with(|launch| {
        directory_of_a_month(&launch.data);
        launch.setting("FANLOG_RETENTION_INTERVAL", "50ms")
    });
    let server = server.await;
    let gone = async || server.client.partition("q", "idle for 31 days").await.err().and_then(|error| error.code());
    eventually(async || (gone().await == Some(ErrorCode::UnknownPartition)).then_some(())).await;
    let cursors = server.client.progress("q", Some("g"), None, 10).await.unwrap();
    let names: Vec<_> = cursors.iter().map(|cursor| (cursor.partition.as_str(), cursor.next)).collect();
    assert_eq!(names, [("idle for 29 days", 1), ("busy", 1)], "and nobody else's");
    let server = server.killed_and_started().await;
    let left = server.client.partitions("q", None, 10).await.unwrap();
    assert_eq!(left.iter().map(|found| found.name.as_str()).collect::<Vec<_>>(), ["idle for 29 days", "busy"]);
    let again = server.push("q", "idle for 31 days", &["again"]).await;
    assert_eq!(again.results, PushResults::Range { base: 0, count: 1 });
    assert_eq!(server.drain("q", "g").await, ["again"]);
}
