//! Groups are cursors over one log.

use fanlog::model::*;

use crate::support::*;

#[tokio::test]
async fn two_groups_read_one_log_each_at_its_own_pace_and_batch_size() {
    let server = Server::start().await;
    let reply = server.push("orders", "a", &["1", "2", "3"]).await;
    assert_eq!((reply.promise, reply.results), (Promise::Durable, PushResults::Range { base: 0, count: 3 }));
    assert_eq!(server.take("orders", "billing", 2).await, ["1", "2"]);
    assert_eq!(server.take("orders", "analytics", 500).await, ["1", "2", "3"]);
    assert_eq!(server.take("orders", "billing", 50).await, ["3"]);
    server.push("orders", "a", &["4"]).await;
    for group in ["billing", "analytics"] {
        assert_eq!(server.take("orders", group, 10).await, ["4"]);
    }
}

#[tokio::test]
async fn consumed_is_the_comparison_of_an_offset_with_the_cursor() {
    let server = Server::start().await;
    server.push("q", "a", &["0", "1", "2", "3", "4"]).await;
    assert_eq!(server.take("q", "g", 3).await.len(), 3);
    let server = server.killed_and_started().await;
    let cursor = server.cursor("q", "g", "a").await;
    assert_eq!((cursor.next, cursor.end, cursor.lag), (3, 5, 2));
    for offset in 0..5 {
        let view = server.message("q", "a", offset).await;
        assert_eq!(view.groups[0].is_consumed, offset < cursor.next, "offset {offset}");
    }
}

/// Frontier marks of an idle log are the only bytes that are not of the push; there are few, and they are small.
#[tokio::test]
async fn a_push_writes_the_same_bytes_for_1_4_16_and_64_groups() {
    const MESSAGES: usize = 2_000;
    let server = Server::start().await;
    let payloads = vec!["a payload of some length"; MESSAGES];
    let mut written = Vec::new();
    for groups in [1, 4, 16, 64] {
        let queue = format!("q{groups}");
        server.push(&queue, "a", &["first"]).await;
        for group in 0..groups {
            assert_eq!(server.take(&queue, &format!("g{group}"), 10).await, ["first"]);
        }
        let before = server.stats(&queue).await.bytes_written;
        server.push(&queue, "a", &payloads).await;
        written.push(server.stats(&queue).await.bytes_written - before);
        assert_eq!(server.drain(&queue, &format!("g{}", groups - 1)).await.len(), MESSAGES);
    }
    let (least, most) = (written.iter().min().unwrap(), written.iter().max().unwrap());
    assert!(most - least < 1_024, "{written:?} bytes for {MESSAGES} messages");
}

#[tokio::test]
async fn a_new_group_writes_nothing_for_the_messages_that_are_there() {
    let server = Server::start().await;
    for count in [1, 20_000] {
        let queue = format!("q{count}");
        server.push(&queue, "a", &vec!["x"; count]).await;
        let before = server.stats(&queue).await.bytes_written;
        for group in 0..10 {
            assert_eq!(server.take(&queue, &format!("g{group}"), 1).await, ["x"]);
        }
        let written = server.stats(&queue).await.bytes_written - before;
        assert!(written < 10 * 4_096, "{written} bytes for ten groups over {count} messages");
    }
}

#[tokio::test]
async fn a_group_that_fails_holds_and_stalls_slows_no_other_and_replays_nothing_for_it() {
    let server = Server::start().await;
    server.push("q", "a", &["0", "1", "2", "3", "4"]).await;
    let held = server.pop("q", "billing", 3).await;
    server.ack(&held, &[(0, AckVerb::Failed)]).await;
    assert_eq!(server.pop("q", "billing", 2).await.payloads(), ["0", "1"]);
    assert_eq!(server.drain("q", "analytics").await.len(), 5);
    server.seek("q", "analytics", SeekTarget::Beginning).await;
    assert_eq!(server.drain("q", "analytics").await.len(), 5);
    assert_eq!((server.lag("q", "billing").await, server.lag("q", "analytics").await), (5, 0));
    assert_eq!(server.cursor("q", "billing", "a").await.next, 0);
}

#[tokio::test]
async fn what_every_group_had_acknowledged_stays_so_over_sigkill() {
    let mut server = Server::start().await;
    let mut seen: [Vec<String>; 2] = Default::default();
    let mut pushed = Vec::new();
    for round in 0..4 {
        let payloads = [format!("{round}a"), format!("{round}b")];
        server.push("q", "p", &[&payloads[0], &payloads[1]]).await;
        pushed.extend(payloads);
        seen[0].extend(server.take("q", "all", 10).await);
        seen[1].extend(server.take("q", "half", 1).await);
        server = server.killed_and_started().await;
    }
    seen[1].extend(server.drain("q", "half").await);
    assert_eq!(seen, [pushed.clone(), pushed]);
}
