//! The primary group and declared groups: what may be done with them, by whom, and what lasts.

use fanlog::model::*;

use crate::support::*;

fn limit(deliveries: u32) -> GroupPatch {
    GroupPatch { delivery_limit: Some(Some(deliveries)), ..GroupPatch::default() }
}

#[tokio::test]
async fn the_primary_group_is_in_every_queue_and_cannot_be_made_deleted_filtered_or_limited() {
    let server = Server::start().await;
    server.create("q", SettingsPatch::default()).await;
    let groups = server.client.groups(Some("q")).await.unwrap();
    assert_eq!(groups.iter().map(|found| found.group.name.as_str()).collect::<Vec<_>>(), [PRIMARY_GROUP]);
    let filter = GroupPatch { filter: Some(":k".to_owned()), ..GroupPatch::default() };
    for patch in [filter, limit(3)] {
        for name in [None, Some(PRIMARY_GROUP)] {
            assert_eq!(refused(server.client.update_group("q", name, patch.clone()).await), ErrorCode::PrimaryGroup);
        }
    }
    for queue in [Some("q"), None] {
        assert_eq!(refused(server.client.delete_group(queue, PRIMARY_GROUP).await), ErrorCode::PrimaryGroup);
    }
    let declared = server.client.declare_group("q", PRIMARY_GROUP, GroupDeclaration::default()).await;
    assert_eq!(refused(declared), ErrorCode::PrimaryGroup);
    let output = server.run(&["group", "delete", "q", PRIMARY_GROUP]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("the primary group cannot"));
}

#[tokio::test]
async fn while_it_is_enabled_the_primary_group_takes_everything_and_nothing_is_dropped() {
    let server = Server::start().await;
    server.create("q", SettingsPatch::default()).await;
    server.declare("q", "g", ":k = \"a\"").await;
    use PushResult::{Dropped, Stored};
    assert_eq!(server.push_messages("q", "p", letters_of("ab")).await, [Stored(0), Stored(1)]);
    assert_eq!(server.set_enabled("q", PRIMARY_GROUP, false).await.state, GroupState::Inactive);
    let inactive = server.client.pop(&pop_of("q", PRIMARY_GROUP, 1), Default::default()).await;
    assert_eq!(refused(inactive), ErrorCode::GroupInactive);
    let server = server.killed_and_started().await;
    assert_eq!(server.push_messages("q", "p", letters_of("ab")).await, [Stored(2), Dropped]);
    assert_eq!(server.set_enabled("q", PRIMARY_GROUP, true).await.state, GroupState::Active);
    server.push_messages("q", "p", letters_of("b")).await;
    assert_eq!(server.drain("q", PRIMARY_GROUP).await, ["a", "b", "b"]);
    assert_eq!(server.drain("q", "g").await, ["a", "a"]);
}

#[tokio::test]
async fn a_declared_group_is_made_read_listed_changed_and_deleted_at_the_version_that_was_seen() {
    let server = Server::start().await;
    server.create("q", SettingsPatch::default()).await;
    let declaration = GroupDeclaration {
        filter: ":k = \"a\"".to_owned(),
        delivery_limit: Some(5),
        display_name: "Letters".to_owned(),
        ..GroupDeclaration::default()
    };
    let made = server.client.declare_group("q", "g", declaration.clone()).await.unwrap();
    assert_eq!((made.version, made.state, made.is_declared), (1, GroupState::Active, true));
    assert_eq!((made.delivery_limit, made.display_name.as_str()), (Some(5), "Letters"));
    assert_eq!(refused(server.client.declare_group("q", "g", declaration).await), ErrorCode::GroupExists);
    let server = server.killed_and_started().await;
    assert_eq!(server.client.group("q", Some("g")).await.unwrap().group, made);
    assert!(server.client.groups(Some("q")).await.unwrap().iter().any(|found| found.group == made));

    let at = |version: u64, patch: GroupPatch| GroupPatch { expected_version: Some(version), ..patch };
    let rename = || GroupPatch { display_name: Some("Other".to_owned()), ..GroupPatch::default() };
    let changed = server.update("q", "g", at(1, rename())).await;
    assert_eq!((changed.version, changed.display_name.as_str(), &changed.filter), (2, "Other", &made.filter));
    for stale in [at(1, rename()), at(3, limit(1)), at(1, GroupPatch { is_enabled: Some(false), ..GroupPatch::default() })] {
        assert_eq!(refused(server.client.update_group("q", Some("g"), stale).await), ErrorCode::VersionConflict);
    }
    assert_eq!(refused(server.client.delete_group_at("q", "g", 1).await), ErrorCode::VersionConflict);
    let server = server.killed_and_started().await;
    assert_eq!(server.client.group("q", Some("g")).await.unwrap().group, changed);
    assert_eq!(server.client.delete_group_at("q", "g", 2).await.unwrap().queues, 1);
    assert_eq!(refused(server.client.group("q", Some("g")).await), ErrorCode::UnknownGroup);
}

#[tokio::test]
async fn of_two_who_change_the_same_version_one_wins() {
    let server = Server::start().await;
    server.create("q", SettingsPatch::default()).await;
    server.declare("q", "g", "").await;
    let other = server.other_client().await;
    let patch = |filter: &str| GroupPatch { expected_version: Some(1), filter: Some(filter.to_owned()), ..GroupPatch::default() };
    let outcomes = tokio::join!(
        server.client.update_group("q", Some("g"), patch(":k = \"a\"")),
        other.update_group("q", Some("g"), patch(":k = \"b\""))
    );
    let (won, lost) = match outcomes {
        (Ok(won), lost) => (won, lost),
        (lost, won) => (won.unwrap(), lost),
    };
    assert_eq!(refused(lost), ErrorCode::VersionConflict);
    assert_eq!(server.client.group("q", Some("g")).await.unwrap().group, won);
}

#[tokio::test]
async fn a_deleted_group_is_gone_and_its_name_starts_anew_as_another_group() {
    let server = Server::start().await;
    server.create("q", SettingsPatch::default()).await;
    let first = server.declare("q", "g", ":k = \"a\"").await;
    server.push_messages("q", "p", letters_of("aab")).await;
    assert_eq!(server.take("q", "g", 1).await, ["a"]);
    let removed = server.client.delete_group_at("q", "g", first.version).await.unwrap();
    assert_eq!((removed.queues, removed.deleted_partitions), (1, 1));
    let server = server.killed_and_started().await;
    let again = server.declare("q", "g", ":k = \"b\"").await;
    assert!(again.id > first.id && again.version == 1);
    server.push_messages("q", "p", letters_of("ab")).await;
    assert_eq!(server.drain("q", "g").await, ["b"]);
}

#[tokio::test]
async fn a_disabled_group_takes_nothing_keeps_what_it_holds_and_its_leases_can_be_acknowledged() {
    let server = Server::start().await;
    server.create("q", SettingsPatch::default()).await;
    server.declare("q", "g", "").await;
    server.push_messages("q", "p", letters_of("abc")).await;
    let held = server.pop("q", "g", 2).await;
    assert_eq!(server.set_enabled("q", "g", false).await.state, GroupState::Inactive);
    assert_eq!(refused(server.client.pop(&pop_of("q", "g", 1), Default::default()).await), ErrorCode::GroupInactive);
    assert_eq!(refusals(&server.ack(&held, &[(0, AckVerb::Completed)]).await), [None]);
    server.push_messages("q", "p", letters_of("de")).await;
    let server = server.killed_and_started().await;
    assert_eq!(refused(server.client.pop(&pop_of("q", "g", 1), Default::default()).await), ErrorCode::GroupInactive);
    server.set_enabled("q", "g", true).await;
    server.push_messages("q", "p", letters_of("f")).await;
    assert_eq!(server.drain("q", "g").await, ["b", "c", "f"]);
}

#[tokio::test]
async fn the_delivery_limit_in_force_when_a_delivery_ends_decides_and_goes_back_to_the_queues() {
    let server = Server::start().await;
    server.create("q", SettingsPatch::default()).await;
    server.declare("q", "g", ":k = \"a\"").await;
    server.push_messages("q", "p", letters_of("baa")).await;
    let held = server.pop("q", "g", 1).await;
    server.update("q", "g", limit(1)).await;
    let failed = server.ack(&held, &[(1, AckVerb::Failed)]).await;
    assert!(failed.outcomes[0].is_dead_letter, "handed out under the queue's limit of 3, it ends under the group's of 1");
    let letters = server.letters("q").await;
    assert_eq!((letters.len(), letters[0].offset, letters[0].attributes.len()), (1, 1, 1));
    server.update("q", "g", GroupPatch { delivery_limit: Some(None), ..GroupPatch::default() }).await;
    let held = server.pop("q", "g", 1).await;
    assert!(!server.ack(&held, &[(2, AckVerb::Failed)]).await.outcomes[0].is_dead_letter);
}

#[tokio::test]
async fn a_group_that_is_only_named_has_no_filter_and_may_get_one() {
    let server = Server::start().await;
    server.push_messages("q", "p", letters_of("ab")).await;
    assert_eq!(server.drain("q", "g").await, ["a", "b"]);
    let info = server.client.group("q", Some("g")).await.unwrap().group;
    assert_eq!((info.is_declared, info.filter.as_str(), info.state), (false, "", GroupState::Active));
    server.set_filter("q", "g", ":k = \"a\"").await;
    server.push_messages("q", "p", letters_of("ab")).await;
    assert_eq!(server.drain("q", "g").await, ["a"]);
}

#[tokio::test]
async fn a_queue_has_as_many_groups_as_the_server_says() {
    let server = Server::start_with(|launch| launch.setting("FANLOG_GROUPS_MAX", 4)).await;
    server.create("q", SettingsPatch::default()).await;
    for group in ["a", "b", "c"] {
        server.declare("q", group, ":k").await;
    }
    assert_eq!(refused(server.client.declare_group("q", "d", GroupDeclaration::default()).await), ErrorCode::TooLarge);
    assert_eq!(refused(server.client.pop(&pop_of("q", "d", 1), Default::default()).await), ErrorCode::TooLarge);
}
