//! Leases: one holder for each partition and group, for as long as was agreed, and never again afterwards.

use std::time::Duration;

use fanlog::model::*;
use fanlog::protocol::{Hello, Pop};

use crate::support::*;

use AckVerb::Completed;

/// When a lease taken between two moments ends, if it lasts so long.
fn assert_lasts(expires_at_us: u64, asked_us: u64, lasts_ms: u64) {
    let range = asked_us + lasts_ms * 1_000..=now_us() + lasts_ms * 1_000;
    assert!(range.contains(&expires_at_us), "{expires_at_us} is not in {range:?}");
}

#[tokio::test]
async fn a_lease_lasts_60_seconds_or_what_the_queue_or_the_pop_says() {
    let server = Server::start().await;
    server.create("configured", SettingsPatch { lease_time_s: Some(300), ..SettingsPatch::default() }).await;
    for (queue, lease_ms, lasts_ms) in
        [("implicit", None, 60_000), ("configured", None, 300_000), ("configured", Some(1_500), 1_500)]
    {
        let partition = format!("{lasts_ms}");
        server.push(queue, &partition, &["0"]).await;
        let asked_us = now_us();
        let taken = server.pop_as(&PopRequest { lease_ms, ..pinned_pop_of(queue, &partition, "g", 1) }).await;
        assert_lasts(taken.reply.lease_expires_at_us, asked_us, lasts_ms);
        assert_eq!(server.cursor(queue, "g", &partition).await.lease_id, taken.lease());
    }
}

#[cfg(feature = "http")]
#[tokio::test]
async fn a_queue_that_was_configured_over_http_without_a_lease_time_leases_for_300_seconds() {
    let server = Server::start().await;
    let (status, body) = server.http("POST", "/api/v1/configure", r#"{"queue":"q","options":{}}"#).await;
    assert!((200..300).contains(&status), "{status} {body}");
    server.push("q", "a", &["0"]).await;
    let asked_us = now_us();
    let taken = server.pop("q", "g", 1).await;
    assert_lasts(taken.reply.lease_expires_at_us, asked_us, 300_000);
}

#[tokio::test]
async fn a_lease_keeps_others_away_until_it_ends_and_the_first_holder_then_comes_too_late() {
    let server = Server::start().await;
    server.push("q", "a", &["0", "1"]).await;
    let first = server.pop_as(&PopRequest { lease_ms: Some(300), ..pop_of("q", "g", 10) }).await;
    assert_eq!(first.payloads(), ["0", "1"]);
    let other = server.other_client().await;
    assert!(taken(&other, &pop_of("q", "g", 10), Duration::ZERO).await.is_empty());
    let second = taken(&other, &pop_of("q", "g", 10), Duration::from_secs(20)).await;
    assert_eq!((second.payloads().len(), second.claim().delivery_count), (2, 2));
    let late = server.ack(&first, &[(1, Completed)]).await;
    assert_eq!((refusals(&late), late.next), (vec![Some(ErrorCode::LeaseLost)], 0));
    assert_eq!(server.client.extend(first.lease(), None).await.unwrap().renewed, 0);
    let done = other.ack(&second.ack_of(&[(1, Completed)])).await.unwrap();
    assert_eq!((done.next, done.is_lease_released), (2, true));
}

#[tokio::test]
async fn an_extension_never_shortens_and_a_lease_that_is_over_is_not_extended() {
    let server = Server::start().await;
    server.push("q", "a", &["0"]).await;
    let taken = server.pop("q", "g", 1).await;
    let long = server.client.extend(taken.lease(), Some(Duration::from_secs(500))).await.unwrap();
    assert!(long.expires_at_us > taken.reply.lease_expires_at_us + 400_000_000);
    for lease in [Some(Duration::from_millis(1)), None] {
        let short = server.client.extend(taken.lease(), lease).await.unwrap();
        assert_eq!((short.renewed, short.expires_at_us.abs_diff(long.expires_at_us) < 100_000), (1, true), "{short:?}");
    }
    server.client.release(taken.lease()).await.unwrap();
    for lease in [taken.lease(), "", "nonsense", "9-9"] {
        let outcome = server.client.extend(lease, Some(Duration::from_secs(1))).await;
        assert!(outcome.is_ok_and(|reply| reply.renewed == 0), "{lease}");
        assert!(server.client.release(lease).await.is_ok_and(|partitions| partitions == 0), "{lease}");
    }
}

/// Whoever holds an older lease holds a smaller number, also over starts: it can fence what the consumer writes elsewhere.
#[tokio::test]
async fn lease_ids_grow_over_sigkill_and_old_ones_are_refused() {
    let mut server = Server::start().await;
    server.push("q", "a", &["0"]).await;
    let mut previous = None;
    for _ in 0..3 {
        let taken = server.pop("q", "g", 1).await;
        let (start, counter) = taken.lease().split_once('-').unwrap();
        let token = (u64::from_str_radix(start, 16).unwrap(), u64::from_str_radix(counter, 16).unwrap());
        assert!(previous.is_none_or(|previous| previous < token), "{previous:?}, then {token:?}");
        previous = Some(token);
        server = server.killed_and_started().await;
        assert_eq!(refusals(&server.ack(&taken, &[(0, Completed)]).await), [Some(ErrorCode::LeaseLost)]);
        assert_eq!(server.cursor("q", "g", "a").await.next, 0);
    }
}

#[tokio::test]
async fn an_acknowledgement_whose_reply_was_lost_is_repeated_safely_also_after_sigkill() {
    let server = Server::start().await;
    server.push("q", "a", &["0", "1"]).await;
    let taken = server.pop("q", "g", 2).await;
    let items = [(0, Completed), (1, AckVerb::Reject)];
    let first = server.ack(&taken, &items).await;
    let again = server.ack(&taken, &items).await;
    assert_eq!((first.next, again.next, refusals(&again)), (2, 2, vec![None, None]));
    assert!(again.outcomes[1].is_dead_letter);
    let server = server.killed_and_started().await;
    let after = server.ack(&taken, &[(0, Completed)]).await;
    assert_eq!((after.next, refusals(&after), after.outcomes[0].is_noop), (2, vec![None], true));
    assert_eq!(server.letters("q").await.len(), 1);
}

/// Twenty clients ask and are gone before they could have read an answer; the next one gets the message as if they had never been.
#[tokio::test]
async fn a_client_that_goes_away_before_its_reply_gives_the_claim_back_uncharged() {
    use fanlog::protocol::encode_call;
    use tokio::io::AsyncWriteExt;
    let server = Server::start().await;
    server.create("q", SettingsPatch { lease_time_s: Some(3_600), retry_limit: Some(1), ..SettingsPatch::default() }).await;
    server.push("q", "a", &["m"]).await;
    for _ in 0..20 {
        let mut hasty = tokio::net::TcpStream::connect(server.address()).await.unwrap();
        hasty.write_all(&encode_call(&Hello::new("hasty", ""), 1).into_bytes()).await.unwrap();
        let pop = Pop { request: pop_of("q", "g", 1), wait_ms: 0 };
        hasty.write_all(&encode_call(&pop, 2).into_bytes()).await.unwrap();
    }
    let taken = taken(&server.client, &pop_of("q", "g", 1), Duration::from_secs(20)).await;
    assert_eq!((taken.payloads(), taken.claim().last_error.as_str()), (vec!["m".to_owned()], ""));
    let failed = server.ack(&taken, &[(0, AckVerb::Failed)]).await;
    assert!(!failed.outcomes[0].is_dead_letter, "the first failure is the first");
}

/// Messages that came in a whole batch used to say that they were never delivered.
#[tokio::test]
async fn each_message_of_a_whole_batch_says_how_often_it_was_delivered() {
    let server = Server::start().await;
    server.push("q", "a", &["0", "1"]).await;
    for count in [1, 2] {
        let taken = server.pop("q", "g", 10).await;
        assert!(matches!(taken.claim().batches[..], [BatchSlice::Whole(_)]), "{:?}", taken.claim());
        let counts: Vec<_> = taken.messages().iter().map(|message| message.delivery_count).collect();
        assert_eq!(counts, [count, count]);
        let reply = server.ack(&taken, &[(0, AckVerb::Retry)]).await;
        assert_eq!(refusals(&reply), [None]);
    }
}

#[tokio::test]
async fn messages_of_one_batch_that_were_delivered_unequally_often_say_so_each() {
    let server = Server::start().await;
    server.push("q", "a", &["0", "1", "2"]).await;
    let first = server.pop("q", "g", 1).await;
    assert_eq!(refusals(&server.ack(&first, &[(0, AckVerb::Retry)]).await), [None]);
    for expected in [[2, 1, 1], [3, 2, 2]] {
        let taken = server.pop("q", "g", 10).await;
        let counts: Vec<_> = taken.messages().iter().map(|message| message.delivery_count).collect();
        assert_eq!((taken.claim().delivery_count, counts), (expected[0], expected.to_vec()));
        assert_eq!(refusals(&server.ack(&taken, &[(0, AckVerb::Retry)]).await), [None]);
    }
}
