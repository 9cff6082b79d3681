//! What an acknowledgement does: to the cursor, to the lease, to the counts.

use std::time::Duration;

use fanlog::model::*;

use crate::support::*;

use AckVerb::{Completed, Failed, Reject, Retry};

/// Messages 0, 1, ... in one partition, popped together.
async fn held(count: usize) -> (Server, Taken) {
    let server = Server::start().await;
    let taken = held_of(&server, "q", count).await;
    (server, taken)
}

async fn held_of(server: &Server, queue: &str, count: usize) -> Taken {
    let payloads: Vec<String> = (0..count).map(|index| index.to_string()).collect();
    server.push(queue, "a", &payloads.iter().map(String::as_str).collect::<Vec<_>>()).await;
    server.pop(queue, "g", 100).await
}

#[tokio::test]
async fn completed_moves_the_cursor_up_to_the_highest_completed_offset_and_lasts() {
    let (server, taken) = held(5).await;
    let acked = server.ack(&taken, &[(2, Completed)]).await;
    assert_eq!((acked.promise, acked.next, acked.is_lease_released), (Promise::Durable, 3, false));
    let acked = server.ack(&taken, &[(3, Completed)]).await;
    assert_eq!((acked.next, acked.is_lease_released), (4, false));
    let server = server.killed_and_started().await;
    assert_eq!(server.cursor("q", "g", "a").await.next, 4);
    let rest = server.pop("q", "g", 10).await;
    assert_eq!(rest.payloads(), ["4"]);
    let acked = server.ack(&rest, &[(4, Completed)]).await;
    assert_eq!((acked.next, acked.is_lease_released), (5, true));
    let server = server.killed_and_started().await;
    assert!(server.pop("q", "g", 10).await.is_empty());
}

#[tokio::test]
async fn the_cursor_stops_below_the_lowest_failed_retried_or_rejected_message() {
    let server = Server::start().await;
    for (verb, next, again) in [(Failed, 1, ["1", "2", "3"].as_slice()), (Retry, 1, &["1", "2", "3"]), (Reject, 4, &[])] {
        let queue = format!("{verb:?}");
        let taken = held_of(&server, &queue, 4).await;
        let acked = server.ack(&taken, &[(3, Completed), (1, verb), (0, Completed)]).await;
        assert_eq!((acked.next, acked.is_lease_released), (next, true), "{verb:?}");
        assert_eq!(server.drain(&queue, "g").await, again, "{verb:?}");
    }
}

#[tokio::test]
async fn failed_is_charged_once_a_call_and_a_retry_an_expiry_and_a_release_never() {
    let (server, mut taken) = held(2).await;
    for round in 0..12 {
        match round % 3 {
            0 => drop(server.ack(&taken, &[(0, Retry)]).await),
            1 => assert_eq!(server.client.release(taken.lease()).await.unwrap(), 1),
            _ => {}
        }
        let short = PopRequest { lease_ms: (round % 3 == 1).then_some(20), ..pop_of("q", "g", 10) };
        taken = crate::support::taken(&server.client, &short, Duration::from_secs(20)).await;
        assert_eq!(taken.payloads(), ["0", "1"], "round {round}");
    }
    assert!(server.letters("q").await.is_empty());
    // Both fail in each call; only the lower one is charged.
    for attempt in 1..=4 {
        let acked = server.ack(&taken, &[(0, Failed), (1, Failed)]).await;
        assert_eq!(acked.outcomes[0].is_dead_letter, attempt == 4, "attempt {attempt}");
        assert!(!acked.outcomes[1].is_dead_letter);
        taken = server.pop("q", "g", 10).await;
    }
    assert_eq!(taken.payloads(), ["1"]);
}

#[tokio::test]
async fn a_retry_may_ask_for_a_delay_before_the_next_delivery() {
    let (server, taken) = held(1).await;
    let mut later = taken.ack_of(&[(0, Retry)]);
    later.items[0].delay_ms = 400;
    let due_us = now_us() + 400_000;
    server.client.ack(&later).await.unwrap();
    assert!(server.pop("q", "g", 1).await.is_empty());
    let again = crate::support::taken(&server.client, &pop_of("q", "g", 1), Duration::from_secs(20)).await;
    assert_eq!(again.payloads(), ["0"]);
    assert!(now_us() >= due_us);
}

#[tokio::test]
async fn over_the_limit_of_3_a_message_is_a_dead_letter_and_the_next_one_comes() {
    let (mut server, taken) = held(2).await;
    server.client.release(taken.lease()).await.unwrap();
    for attempt in 1..=4 {
        let taken = server.pop("q", "g", 1).await;
        assert_eq!(taken.payloads(), ["0"], "attempt {attempt}");
        let acked = server.ack(&taken, &[(0, Failed)]).await;
        assert_eq!(acked.outcomes[0].is_dead_letter, attempt == 4, "attempt {attempt}");
        if attempt == 2 {
            server = server.killed_and_started().await;
        }
    }
    assert_eq!(server.drain("q", "g").await, ["1"]);
    assert_eq!(&server.letters("q").await[0].payload[..], b"0");
}

#[tokio::test]
async fn a_queue_may_drop_what_is_over_its_limit_instead() {
    let server = Server::start().await;
    for (dead_letter_queue, after_max_retries, letters) in [(true, false, 1), (false, true, 1), (false, false, 0)] {
        let queue = format!("{dead_letter_queue} {after_max_retries}");
        let settings = SettingsPatch {
            retry_limit: Some(1),
            dead_letter_queue: Some(dead_letter_queue),
            dlq_after_max_retries: Some(after_max_retries),
            ..SettingsPatch::default()
        };
        server.create(&queue, settings).await;
        server.push(&queue, "a", &["poison", "fine"]).await;
        for _ in 0..2 {
            let taken = server.pop(&queue, "g", 1).await;
            assert_eq!(taken.payloads(), ["poison"]);
            server.ack(&taken, &[(0, Failed)]).await;
        }
        assert_eq!(server.letters(&queue).await.len(), letters, "{queue}");
        assert_eq!(server.drain(&queue, "g").await, ["fine"]);
    }
}

#[tokio::test]
async fn each_message_has_its_own_result_and_below_the_cursor_nothing_happens() {
    let (server, taken) = held(3).await;
    server.ack(&taken, &[(0, Completed)]).await;
    let items = [(0, Completed), (0, Failed), (1, Completed), (2, Reject), (3, Completed), (u64::MAX, Failed)];
    let mixed = server.ack(&taken, &items).await;
    let not_leased = Some(ErrorCode::NotLeased);
    assert_eq!(refusals(&mixed), [None, not_leased, None, None, not_leased, not_leased]);
    assert!(mixed.outcomes[0].is_noop && mixed.outcomes[3].is_dead_letter);
    assert_eq!(mixed.next, 3);
    let mut unknown = taken.ack_of(&[(0, Completed), (0, Completed)]);
    unknown.items[1].target = AckTarget::TransactionId("nobody's".to_owned());
    assert_eq!(refusals(&server.client.ack(&unknown).await.unwrap()), [None, Some(ErrorCode::UnknownMessage)]);
}

#[tokio::test]
async fn what_was_never_handed_out_or_lies_beyond_the_end_is_refused_and_moves_nothing() {
    let server = Server::start().await;
    server.push("q", "a", &["0", "1", "2"]).await;
    let taken = server.pop("q", "g", 1).await;
    for (lease, offsets) in [(taken.lease(), [1, 2, 3, u64::MAX].as_slice()), ("", &[3, 1_000_000, u64::MAX])] {
        for &offset in offsets {
            for verb in [Completed, Failed, Retry, Reject] {
                let ack = ack_of(taken.claim(), &taken.group, lease, &[(offset, verb)]);
                let outcome = server.client.ack(&ack).await.unwrap();
                assert_eq!((refusals(&outcome), outcome.next), (vec![Some(ErrorCode::NotLeased)], 0), "{offset} {lease:?}");
            }
        }
    }
    assert_eq!(refusals(&server.ack(&taken, &[(0, Completed)]).await), [None], "the lease is as it was");
    assert!(server.letters("q").await.is_empty());
}

#[tokio::test]
async fn a_foreign_or_invented_lease_is_refused_one_by_one_and_no_lease_moves_the_cursor_all_the_same() {
    let (server, taken) = held(2).await;
    let foreign = held_of(&server, "other", 1).await;
    let of_another_group = server.pop("q", "h", 2).await;
    for lease in [foreign.lease(), of_another_group.lease(), "not-a-lease", "0-0", "ffffffffffffffff-ffffffffffffffff"] {
        let outcome = server.client.ack(&ack_of(taken.claim(), &taken.group, lease, &[(1, Completed)])).await.unwrap();
        assert_eq!((refusals(&outcome), outcome.next), (vec![Some(ErrorCode::LeaseLost)], 0), "{lease}");
    }
    let unfenced = server.client.ack(&ack_of(taken.claim(), &taken.group, "", &[(1, Completed)])).await.unwrap();
    assert_eq!((refusals(&unfenced), unfenced.next), (vec![None], 2));
}

#[tokio::test]
async fn the_delivery_count_and_the_last_error_are_shown_and_survive_sigkill() {
    let (server, taken) = held(2).await;
    let mut failed = taken.ack_of(&[(0, Failed)]);
    failed.items[0].reason = "the printer is on fire".to_owned();
    server.client.ack(&failed).await.unwrap();
    let second = server.pop("q", "g", 2).await;
    let told = |taken: &Taken| (taken.claim().delivery_count, taken.claim().last_error.clone());
    assert_eq!(told(&second), (2, "the printer is on fire".to_owned()));
    server.ack(&second, &[(0, Failed)]).await;
    let server = server.killed_and_started().await;
    let third = server.pop("q", "g", 1).await;
    assert!(third.claim().delivery_count >= 3, "{}", third.claim().delivery_count);
    // Two failures were charged before the kill and are still there: two more make four.
    server.ack(&third, &[(0, Failed)]).await;
    let fourth = server.pop("q", "g", 1).await;
    assert!(server.ack(&fourth, &[(0, Failed)]).await.outcomes[0].is_dead_letter);
    assert_eq!(server.letters("q").await[0].delivery_count, 4);
}
