//! Moving a group's cursors.

use fanlog::model::*;

use crate::cases::seeks_over_four;
use crate::support::*;

use AckVerb::{Completed, Failed};

#[tokio::test]
async fn a_seek_goes_to_either_end_an_offset_a_time_or_by_a_shift_and_a_preview_says_so_before() {
    let server = Server::start().await;
    server.push("q", "a", &["0", "1"]).await;
    let between_us = now_us();
    clock_passes(between_us).await;
    server.push("q", "a", &["2", "3"]).await;
    server.take("q", "g", 1).await;
    let mut before = 1;
    for (target, after) in seeks_over_four(between_us) {
        let preview = SeekRequest { is_preview: true, ..seek_of("q", "g", target) };
        let shown = server.client.seek(preview, 10).await.unwrap();
        assert_eq!((shown.total, shown.cursors[0].before, shown.cursors[0].after), (1, before, after), "{target:?}");
        assert_eq!((shown.cursors[0].start, shown.cursors[0].end), (0, 4));
        assert_eq!(server.cursor("q", "g", "a").await.next, before, "{target:?} was shown only");
        assert_eq!(server.seek("q", "g", target).await, shown.cursors, "{target:?}");
        assert_eq!(server.cursor("q", "g", "a").await.next, after, "{target:?}");
        before = after;
    }
    server.seek("q", "g", SeekTarget::Offset(3)).await;
    let server = server.killed_and_started().await;
    assert_eq!(server.drain("q", "g").await, ["3"], "a seek lasts");
}

#[tokio::test]
async fn a_seek_moves_all_partitions_of_a_queue_or_one_and_the_primary_group_too() {
    let server = Server::start().await;
    for partition in ["a", "b", "c"] {
        server.push("q", partition, &[partition]).await;
    }
    for group in ["g", PRIMARY_GROUP] {
        assert_eq!(server.drain("q", group).await.len(), 3);
        let only = SeekRequest { partition: Some("b".to_owned()), ..seek_of("q", group, SeekTarget::Beginning) };
        assert_eq!(server.client.seek(only, 10).await.unwrap().total, 1);
        assert_eq!(server.drain("q", group).await, ["b"]);
        assert_eq!(server.seek("q", group, SeekTarget::Beginning).await.len(), 3);
        assert_eq!(server.drain("q", group).await.len(), 3);
    }
    let few = server.client.seek(seek_of("q", "g", SeekTarget::Beginning), 1).await.unwrap();
    assert_eq!((few.total, few.cursors.len()), (3, 1), "all move, whatever the reply names");
    assert_eq!(server.drain("q", "g").await.len(), 3);
}

#[tokio::test]
async fn a_seek_releases_leases_resets_counts_and_fences_what_was_out() {
    let server = Server::start().await;
    server.push("q", "a", &["0", "1"]).await;
    server.push("q", "b", &["x"]).await;
    for _ in 0..3 {
        let taken = server.pop_as(&pinned_pop_of("q", "a", "g", 1)).await;
        server.ack(&taken, &[(0, Failed)]).await;
    }
    let out = server.pop("q", "g", 10).await;
    assert_eq!(out.reply.claims.len(), 2);
    let only = SeekRequest { partition: Some("a".to_owned()), ..seek_of("q", "g", SeekTarget::Beginning) };
    server.client.seek(only, 10).await.unwrap();
    for claim in &out.reply.claims {
        let late = server.client.ack(&ack_of(claim, &out.group, out.lease(), &[(0, Completed)])).await.unwrap();
        let expected = (claim.partition == "a").then_some(ErrorCode::LeaseLost);
        assert_eq!(refusals(&late), [expected], "{}: the other partition was not moved", claim.partition);
    }
    let again = server.pop("q", "g", 10).await;
    assert_eq!((again.payloads().len(), again.claim().delivery_count, again.claim().last_error.as_str()), (2, 1, ""));
    // Three failures were forgotten: the limit is three more away.
    assert!(!server.ack(&again, &[(0, Failed)]).await.outcomes[0].is_dead_letter);
}

#[tokio::test]
async fn a_seek_beyond_either_end_moves_nothing_anywhere() {
    let server = Server::start_sweeping().await;
    server.create("q", SettingsPatch { max_wait_time_s: Some(1), ..SettingsPatch::default() }).await;
    server.push("q", "a", &["0", "1"]).await;
    eventually(async || (server.bounds("q", "a").await == (2, 2)).then_some(())).await;
    server.client.update_queue("q", SettingsPatch { max_wait_time_s: Some(0), ..SettingsPatch::default() }).await.unwrap();
    server.push("q", "a", &["2"]).await;
    server.push("q", "b", &["0", "1", "2", "3", "4"]).await;
    server.drain("q", "g").await;
    for (offset, code) in [(1, ErrorCode::RangeRemoved), (5, ErrorCode::BeyondEnd), (u64::MAX, ErrorCode::BeyondEnd)] {
        for is_preview in [true, false] {
            let request = SeekRequest { is_preview, ..seek_of("q", "g", SeekTarget::Offset(offset)) };
            assert_eq!(refused(server.client.seek(request, 10).await), code, "{offset}");
        }
        assert_eq!((server.cursor("q", "g", "a").await.next, server.cursor("q", "g", "b").await.next), (3, 5));
    }
    let only = SeekRequest { partition: Some("b".into()), ..seek_of("q", "g", SeekTarget::Offset(1)) };
    assert_eq!(server.client.seek(only, 10).await.unwrap().cursors[0].after, 1, "there it can be had");
}

#[tokio::test]
async fn the_command_line_shows_first_and_does_it_when_asked() {
    let server = Server::start().await;
    server.push("q", "a", &["0", "1", "2"]).await;
    server.drain("q", "g").await;
    let shown = server.json(&["group", "seek", "q", "g", "--to", "1"]);
    assert_eq!((&shown[0]["before"], &shown[0]["after"]), (&3.into(), &1.into()));
    assert_eq!(server.cursor("q", "g", "a").await.next, 3);
    server.json(&["group", "seek", "q", "g", "--to", "1", "--execute"]);
    assert_eq!(server.drain("q", "g").await, ["1", "2"]);
}

/// Nothing but a seek or a removal moves a cursor back.
#[tokio::test]
async fn settings_filters_pauses_and_starts_move_no_cursor() {
    let mut server = Server::start().await;
    server.push("q", "a", &["0", "1", "2"]).await;
    server.take("q", "g", 2).await;
    for change in [
        GroupPatch { filter: Some(":a = 1".to_owned()), ..GroupPatch::default() },
        GroupPatch { filter: Some(String::new()), is_enabled: Some(false), ..GroupPatch::default() },
        GroupPatch { is_enabled: Some(true), is_paused: Some(true), ..GroupPatch::default() },
        GroupPatch { is_paused: Some(false), delivery_limit: Some(Some(1)), ..GroupPatch::default() },
    ] {
        server.update("q", "g", change).await;
        server.client.update_queue("q", SettingsPatch::of(&QueueSettings::default())).await.unwrap();
        server = server.killed_and_started().await;
        assert_eq!(server.cursor("q", "g", "a").await.next, 2);
    }
    assert_eq!(server.drain("q", "g").await, ["2"]);
}
