//! Settings of a queue: changed one by one, durable before the reply, refused when they make no sense.

use fanlog::model::*;

use crate::cases::{bad_settings, largest_settings};
use crate::support::*;

#[tokio::test]
async fn a_change_touches_only_what_it_names_and_is_durable_before_its_reply() {
    let none = SettingsPatch::default;
    let changes = [
        SettingsPatch { lease_time_s: Some(7), ..none() },
        SettingsPatch { retry_limit: Some(9), ..none() },
        SettingsPatch { delayed_processing_s: Some(1), window_buffer_s: Some(2), ..none() },
        SettingsPatch { retention_enabled: Some(true), retention_s: Some(11), completed_retention_s: Some(12), ..none() },
        SettingsPatch { max_wait_time_s: Some(13), dedup_window_s: Some(14), ..none() },
        SettingsPatch { dead_letter_queue: Some(false), dlq_after_max_retries: Some(false), ..none() },
        SettingsPatch {
            durability: Some(Durability::Interval { milliseconds: 50 }),
            compression: Some(Compression::None),
            ..none()
        },
        SettingsPatch { priority: Some(-3), max_size: Some(4), ttl_s: Some(5), min_pop_wait_time: Some(6), ..none() },
        SettingsPatch { namespace: Some("n".to_owned()), task: Some("t".to_owned()), ..none() },
    ];
    let mut server = Server::start().await;
    let mut expected = server.create("q", none()).await.settings;
    for change in changes {
        expected = change.apply(&expected);
        assert_eq!(server.client.update_queue("q", change).await.unwrap().settings, expected);
        server = server.killed_and_started().await;
        assert_eq!(server.client.queue("q").await.unwrap().settings, expected);
    }
}

#[tokio::test]
async fn a_queue_made_by_its_first_push_has_the_documented_defaults() {
    let server = Server::start().await;
    server.push("shop.mail.eu", "a", &["0"]).await;
    let settings = server.client.queue("shop.mail.eu").await.unwrap().settings;
    let expected = QueueSettings { namespace: "shop".to_owned(), task: "mail".to_owned(), ..QueueSettings::default() };
    assert_eq!(settings, expected);
    assert_eq!((settings.lease_time_s, settings.retry_limit, settings.dedup_window_s), (60, 3, 3_600));
    assert_eq!(refused(server.client.create_queue("shop.mail.eu", SettingsPatch::default()).await), ErrorCode::QueueExists);
}

#[tokio::test]
async fn settings_that_contradict_each_other_or_are_out_of_range_change_nothing() {
    let server = Server::start().await;
    let before = server.create("q", SettingsPatch::default()).await.settings;
    let none = SettingsPatch::default;
    for bad in bad_settings() {
        assert_eq!(refused(server.client.update_queue("q", bad.clone()).await), ErrorCode::BadSettings, "{bad:?}");
        assert_eq!(refused(server.client.create_queue("other", bad.clone()).await), ErrorCode::BadSettings, "{bad:?}");
        assert_eq!(server.client.queue("q").await.unwrap().settings, before);
    }
    let bad_word = SettingsPatch { namespace: Some("a\nb".to_owned()), ..none() };
    assert_eq!(refused(server.client.update_queue("q", bad_word).await), ErrorCode::BadName);
    assert_eq!(server.client.queues().await.unwrap().len(), 1, "no other queue was made");
    for (key, value) in [("leaseTime", "-1"), ("leaseTime", "soon"), ("retryLimit", "4294967296"), ("leastime", "5")] {
        let output = server.run(&["queue", "update", "q", "--set", &format!("{key}={value}")]);
        assert_eq!(output.status.code(), Some(1), "{key}={value}");
        assert_eq!(server.client.queue("q").await.unwrap().settings, before);
    }
}

#[tokio::test]
async fn the_largest_settings_that_are_allowed_work() {
    let server = Server::start_sweeping().await;
    server.create("q", largest_settings()).await;
    server.push("q", "a", &["0"]).await;
    assert!(server.pop("q", "g", 1).await.is_empty(), "it is delayed for 136 years");
    let sooner = SettingsPatch { delayed_processing_s: Some(0), window_buffer_s: Some(0), ..SettingsPatch::default() };
    server.client.update_queue("q", sooner).await.unwrap();
    let server = server.killed_and_started().await;
    assert_eq!(server.pop("q", "g", 1).await.payloads(), ["0"]);
}

#[tokio::test]
async fn groups_can_be_switched_off_in_a_queue_and_the_primary_group_reads_on() {
    let server = Server::start().await;
    let groups = |is_on| SettingsPatch { consumer_groups: Some(is_on), ..SettingsPatch::default() };
    server.create("q", groups(false)).await;
    server.push("q", "a", &["0"]).await;
    assert_eq!(refused(server.client.pop(&pop_of("q", "g", 1), Default::default()).await), ErrorCode::GroupsDisabled);
    let declared = server.client.declare_group("q", "g", GroupDeclaration::default()).await;
    assert_eq!(refused(declared), ErrorCode::GroupsDisabled);
    assert_eq!(server.pop("q", PRIMARY_GROUP, 1).await.payloads(), ["0"]);
    server.client.update_queue("q", groups(true)).await.unwrap();
    assert_eq!(server.drain("q", "g").await, ["0"]);
}
