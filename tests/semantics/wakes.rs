//! Whatever makes a message claimable wakes who waits for it, at once.

use std::time::Duration;

use fanlog::model::*;

use crate::support::*;

const SHORT: u64 = 200;

fn any() -> PopRequest {
    pop_of("q", "g", 10)
}

fn short_lease() -> PopRequest {
    PopRequest { lease_ms: Some(SHORT), ..any() }
}

/// A queue with one message that the group has leased.
async fn leased(settings: SettingsPatch) -> (Server, Taken) {
    let server = Server::start().await;
    server.create("q", settings).await;
    server.push("q", "a", &["0"]).await;
    let taken = server.pop_as(&any()).await;
    (server, taken)
}

#[tokio::test]
async fn a_commit_in_a_known_or_a_new_partition() {
    let server = Server::start().await;
    server.create("q", SettingsPatch::default()).await;
    for (partition, payload) in [("a", "0"), ("a", "1"), ("b", "2")] {
        let waiting = server.waiting(&PopRequest { auto_ack: true, ..any() }).await;
        server.push("q", partition, &[payload]).await;
        assert_eq!(waiting.woken().await.claims[0].partition, partition);
    }
}

#[tokio::test]
async fn a_retry_a_failure_a_release_and_a_completed_batch_with_more_behind() {
    for verb in [Some(AckVerb::Retry), Some(AckVerb::Failed), None, Some(AckVerb::Completed)] {
        let (server, held) = leased(SettingsPatch::default()).await;
        server.push("q", "a", &["1"]).await;
        let waiting = server.waiting(&any()).await;
        match verb {
            Some(verb) => assert_eq!(refusals(&server.ack(&held, &[(0, verb)]).await), [None]),
            None => assert_eq!(server.client.release(held.lease()).await.unwrap(), 1),
        }
        assert!(!waiting.woken().await.claims.is_empty(), "{verb:?}");
    }
}

#[tokio::test]
async fn the_end_of_a_lease_and_of_an_extension() {
    let server = Server::start().await;
    server.push("q", "a", &["0"]).await;
    let held = server.pop_as(&short_lease()).await;
    assert_eq!(held.payloads(), ["0"]);
    let waiting = server.waiting(&short_lease()).await;
    let again = waiting.woken().await;
    let extended = server.client.extend(&again.lease_id, Some(Duration::from_millis(2 * SHORT))).await.unwrap();
    assert_eq!(extended.renewed, 1);
    let waiting = server.waiting(&any()).await;
    assert_eq!(waiting.woken().await.claims[0].delivery_count, 3);
    assert!(now_us() >= extended.expires_at_us, "it was woken too early");
}

#[tokio::test]
async fn the_end_of_the_delay_that_a_retry_asked_for() {
    let (server, held) = leased(SettingsPatch::default()).await;
    let mut later = held.ack_of(&[(0, AckVerb::Retry)]);
    later.items[0].delay_ms = SHORT;
    let due_us = now_us() + SHORT * 1_000;
    server.client.ack(&later).await.unwrap();
    let waiting = server.waiting(&any()).await;
    waiting.woken().await;
    assert!(now_us() >= due_us, "it was woken too early");
}

#[tokio::test]
async fn the_end_of_a_processing_delay_and_of_a_window() {
    let delay = SettingsPatch { delayed_processing_s: Some(1), ..SettingsPatch::default() };
    let window = SettingsPatch { window_buffer_s: Some(1), ..SettingsPatch::default() };
    let ends = async |settings: SettingsPatch| {
        let server = Server::start().await;
        server.create("q", settings.clone()).await;
        let before_us = now_us();
        server.push("q", "a", &["0"]).await;
        server.waiting(&any()).await.woken().await;
        assert!(now_us() >= before_us + 1_000_000, "{settings:?}: it was woken too early");
    };
    tokio::join!(ends(delay), ends(window));
}

#[tokio::test]
async fn a_seek_of_the_queue_and_of_one_partition() {
    let server = Server::start().await;
    server.push("q", "a", &["0"]).await;
    server.drain("q", "g").await;
    for partition in [None, Some("a".to_owned())] {
        let waiting = server.waiting(&PopRequest { auto_ack: true, ..any() }).await;
        server.client.seek(SeekRequest { partition, ..seek_of("q", "g", SeekTarget::Beginning) }, 10).await.unwrap();
        waiting.woken().await;
    }
}

#[tokio::test]
async fn a_resumed_group() {
    let server = Server::start().await;
    server.push("q", "a", &["0"]).await;
    server.client.release(server.pop_as(&any()).await.lease()).await.unwrap();
    let paused = |is_paused| GroupPatch { is_paused: Some(is_paused), ..GroupPatch::default() };
    server.update("q", "g", paused(true)).await;
    let waiting = server.waiting(&any()).await;
    server.update("q", "g", paused(false)).await;
    waiting.woken().await;
}

/// Nobody waits for a group that is disabled: whoever does is told so at once, and is welcome when it is enabled.
#[tokio::test]
async fn a_disabled_group_turns_its_waiters_away_and_an_enabled_one_hands_out_at_once() {
    let server = Server::start().await;
    server.push("q", "a", &["0"]).await;
    let held = server.pop_as(&any()).await;
    let waiting = server.waiting(&any()).await;
    server.set_enabled("q", "g", false).await;
    assert_eq!(refused(waiting.ended().await), ErrorCode::GroupInactive);
    server.client.release(held.lease()).await.unwrap();
    server.set_enabled("q", "g", true).await;
    assert_eq!(server.pop_as(&any()).await.payloads(), ["0"]);
    let waiting = server.waiting(&any()).await;
    server.push("q", "b", &["1"]).await;
    assert_eq!(waiting.woken().await.claims[0].partition, "b");
}

#[tokio::test]
async fn settings_that_shorten_a_delay_or_a_window() {
    let delay = |seconds| SettingsPatch { delayed_processing_s: Some(seconds), ..SettingsPatch::default() };
    let window = |seconds| SettingsPatch { window_buffer_s: Some(seconds), ..SettingsPatch::default() };
    for (long, none) in [(delay(3_600), delay(0)), (window(3_600), window(0))] {
        let server = Server::start().await;
        server.create("q", long).await;
        server.push("q", "a", &["0"]).await;
        let waiting = server.waiting(&any()).await;
        server.client.update_queue("q", none).await.unwrap();
        waiting.woken().await;
    }
}

#[tokio::test]
async fn a_restart_frees_what_was_leased() {
    let (server, held) = leased(SettingsPatch { lease_time_s: Some(3_600), ..SettingsPatch::default() }).await;
    assert_eq!(held.payloads(), ["0"]);
    assert!(server.pop_as(&any()).await.is_empty());
    let server = server.killed_and_started().await;
    assert_eq!(server.pop_as(&any()).await.payloads(), ["0"]);
}

#[tokio::test]
async fn the_end_of_the_group_or_the_queue() {
    let (server, _held) = leased(SettingsPatch::default()).await;
    let waiting = server.waiting(&any()).await;
    server.client.delete_group(Some("q"), "g").await.unwrap();
    let again = waiting.ended().await;
    assert!(again.is_ok_and(|reply| reply.claims.len() == 1), "the same name starts again, and finds the message");
    let waiting = server.waiting(&any()).await;
    server.client.delete_queue("q").await.unwrap();
    assert_eq!(refused(waiting.ended().await), ErrorCode::UnknownQueue);
}

/// Whether there is a queue of the namespace or none yet. A pop that waits in two queues was counted twice, and one in none not at all.
#[tokio::test]
async fn a_new_queue_of_the_namespace() {
    let server = Server::start().await;
    let source = PopSource::Discover { namespace: Some("shop".to_owned()), task: None };
    let request = PopRequest { source, auto_ack: true, ..any() };
    for queue in ["shop.first", "shop.second", "shop.third"] {
        let waiting = server.waiting(&request).await;
        eventually(async || (server.client.stats().await.unwrap().waiting_pops == 1).then_some(())).await;
        server.push(queue, "a", &["0"]).await;
        assert_eq!(waiting.woken().await.claims[0].queue, queue);
    }
}
