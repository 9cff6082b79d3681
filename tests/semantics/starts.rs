//! Where a group starts: decided once, at its first pop, and durably.

use fanlog::model::*;

use crate::support::*;

const SECOND_US: u64 = 1_000_000;

fn from(start: Start, group: &str) -> PopRequest {
    PopRequest { start: Some(start), ..pop_of("q", group, 10) }
}

#[tokio::test]
async fn a_group_starts_at_the_beginning_with_what_is_new_at_a_time_or_at_an_offset() {
    let server = Server::start().await;
    server.push("q", "a", &["0", "1"]).await;
    let between_us = now_us();
    clock_passes(between_us).await;
    server.push("q", "a", &["2"]).await;
    for (start, group, expected) in [
        (Start::Beginning, "all", ["0", "1", "2"].as_slice()),
        (Start::Time(between_us), "time", &["2"]),
        (Start::Offset(1), "offset", &["1", "2"]),
        (Start::New, "new", &[]),
    ] {
        assert_eq!(server.pop_as(&from(start, group)).await.payloads(), expected, "{group}");
    }
    server.push("q", "a", &["3"]).await;
    assert_eq!(server.take("q", "new", 10).await, ["3"]);
}

#[tokio::test]
async fn without_a_word_a_named_group_starts_with_what_is_new_and_a_server_may_be_set_otherwise() {
    for (default, expected) in [(None, [].as_slice()), (Some("beginning"), &["old"])] {
        let server = Server::start_with(|launch| match default {
            Some(default) => launch.setting("FANLOG_DEFAULT_START", default),
            None => launch,
        });
        let server = server.await;
        server.push("q", "a", &["old"]).await;
        assert_eq!(server.pop_as(&PopRequest::any("q", 10).group("g")).await.payloads(), expected, "{default:?}");
    }
}

#[tokio::test]
async fn queue_mode_reads_from_the_beginning_whatever_the_pop_says() {
    let server = Server::start().await;
    server.push("q", "a", &["old"]).await;
    let request = PopRequest { start: Some(Start::New), ..PopRequest::any("q", 10) };
    assert_eq!(server.pop_as(&request).await.payloads(), ["old"]);
}

/// Registered, and killed before anything else happens: the decision is there with its time, whether the pop was for one partition
/// or any, and whether it found something or not.
#[tokio::test]
async fn the_decision_is_durable_before_anything_is_handed_out() {
    let server = Server::start().await;
    server.push("q", "a", &["0"]).await;
    let time = Start::Time(now_us() - SECOND_US);
    let before_us = now_us();
    let pinned = PopRequest { start: Some(Start::New), ..pinned_pop_of("q", "a", "pinned", 1) };
    assert!(server.pop_as(&pinned).await.is_empty());
    assert_eq!(server.pop_as(&from(time, "timed")).await.payloads(), ["0"]);
    let server = server.killed_and_started().await;
    for (group, expected) in [("pinned", Start::New), ("timed", time)] {
        let info = server.client.group("q", Some(group)).await.unwrap().group;
        assert_eq!(info.start, Some(expected), "{group}");
        assert!((before_us..=now_us()).contains(&info.created_at_us), "{group}: {}", info.created_at_us);
    }
    assert!(server.pop_as(&from(Start::Beginning, "pinned")).await.is_empty(), "what was there is not for the one that said new");
    assert_eq!(server.pop_as(&from(Start::New, "timed")).await.payloads(), ["0"], "what was not acknowledged comes again");
}

#[tokio::test]
async fn a_cursor_is_never_seeded_again() {
    let mut server = Server::start().await;
    server.push("q", "a", &["0", "1", "2"]).await;
    assert_eq!(server.take("q", "g", 2).await, ["0", "1"]);
    for again in [Start::Beginning, Start::New, Start::Offset(0), Start::Time(0)] {
        assert_eq!(server.pop_as(&from(again, "g")).await.payloads(), ["2"], "{again:?}");
        server = server.killed_and_started().await;
    }
}

#[tokio::test]
async fn a_partition_made_after_the_registration_is_read_from_its_first_message_that_the_start_admits() {
    let server = Server::start().await;
    server.push("q", "old", &["0"]).await;
    let admitted_us = now_us() + SECOND_US / 4;
    for (start, group) in [(Start::New, "new"), (Start::Time(admitted_us), "time"), (Start::Offset(1), "offset")] {
        assert!(server.pop_as(&from(start, group)).await.is_empty(), "{group}");
    }
    server.push("q", "young", &["1"]).await;
    let server = server.killed_and_started().await;
    clock_passes(admitted_us).await;
    server.push("q", "young", &["2", "3"]).await;
    assert_eq!(server.drain("q", "new").await, ["1", "2", "3"]);
    assert_eq!(server.drain("q", "time").await, ["2", "3"]);
    assert_eq!(server.drain("q", "offset").await, ["2", "3"]);
}

#[tokio::test]
async fn a_start_that_is_not_there_yet_is_waited_for() {
    let server = Server::start().await;
    server.push("q", "a", &["0"]).await;
    assert!(server.pop_as(&from(Start::Offset(2), "g")).await.is_empty());
    let server = server.killed_and_started().await;
    server.push("q", "a", &["1", "2"]).await;
    assert_eq!(server.take("q", "g", 10).await, ["2"]);
}

#[tokio::test]
async fn a_changed_start_moves_no_cursor_and_holds_for_partitions_that_the_group_has_not_been_in() {
    let server = Server::start().await;
    server.push("q", "a", &["0", "1"]).await;
    assert_eq!(server.take("q", "g", 1).await, ["0"]);
    server.push("q", "b", &["old"]).await;
    clock_passes(now_us()).await;
    assert_eq!(server.client.set_group_start("g", Start::Time(now_us())).await.unwrap(), 1);
    assert_eq!(server.client.set_group_start("nobody", Start::New).await.unwrap(), 0);
    assert_eq!(refused(server.client.set_group_start(PRIMARY_GROUP, Start::New).await), ErrorCode::PrimaryGroup);
    let server = server.killed_and_started().await;
    assert_eq!(server.drain("q", "g").await, ["1"]);
    server.push("q", "b", &["new"]).await;
    assert_eq!(server.drain("q", "g").await, ["new"]);
}
