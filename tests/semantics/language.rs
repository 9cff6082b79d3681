//! The filter language: what each sentence means for real messages in real groups, and what is refused.

use fanlog::model::*;
use fanlog::record::Attributes;

use crate::support::*;

/// One queue, a group for each filter, every message pushed once: which messages each group has.
async fn taken_by(filters: &[&str], messages: &[&str]) -> Vec<Vec<String>> {
    let server = Server::start().await;
    server.create("q", SettingsPatch::default()).await;
    for (index, filter) in filters.iter().enumerate() {
        server.declare("q", &format!("g{index}"), filter).await;
    }
    server.push_messages("q", "a", messages.iter().map(|json| with_attributes(json)).collect()).await;
    let server = server.killed_and_started().await;
    let mut all = Vec::new();
    for index in 0..filters.len() {
        all.push(server.drain("q", &format!("g{index}")).await);
    }
    all
}

#[tokio::test]
async fn every_example_of_the_language_holds() {
    const BOB: &str = r#"{"name":"Bob","age":40}"#;
    const BO: &str = r#"{"name":"Bo","age":39.5}"#;
    const ROB: &str = r#"{"name":"Rob"}"#;
    const LOWER: &str = r#"{"Name":"Bob","name":"bob"}"#;
    const REGION: &str = r#"{"region":"","age":"40"}"#;
    const NONE: &str = "{}";
    let messages = [BOB, BO, ROB, LOWER, REGION, NONE];
    let examples: [(&str, &[&str]); 23] = [
        ("", &[BOB, BO, ROB, LOWER, REGION, NONE]),
        (":region", &[REGION]),
        ("NOT :region", &[BOB, BO, ROB, LOWER, NONE]),
        (":name = \"Bob\"", &[BOB]),
        (":Name = \"Bob\"", &[LOWER]),
        (":name != \"Bob\"", &[BO, ROB, LOWER, REGION, NONE]),
        ("hasPrefix(:name, \"Bo\")", &[BOB, BO]),
        ("hasSuffix(:name, \"ob\")", &[BOB, ROB, LOWER]),
        ("NOT hasPrefix(:name, \"Bo\")", &[ROB, LOWER, REGION, NONE]),
        (":age = 40", &[BOB]),
        (":age = 40.00", &[BOB]),
        (":age != 40", &[BO, ROB, LOWER, REGION, NONE]),
        (":age > 39.5", &[BOB]),
        (":age >= 39.5", &[BOB, BO]),
        (":age < 40", &[BO]),
        (":age <= 40", &[BOB, BO]),
        (":name = \"Bob\" AND :age = 40", &[BOB]),
        (":name = \"Rob\" OR :age = 40", &[BOB, ROB]),
        (":name = \"bob\" AND NOT :age", &[LOWER]),
        (":region OR :name = \"Bob\" AND :age > 50", &[REGION]),
        ("(:region OR :name = \"Bob\") AND :age > 30", &[BOB]),
        ("NOT (:name OR :region)", &[NONE]),
        (":\"name\" = \"Bob\"", &[BOB]),
    ];
    let filters = examples.map(|(filter, _)| filter);
    let taken = taken_by(&filters, &messages).await;
    for ((filter, expected), taken) in examples.iter().zip(&taken) {
        assert_eq!(taken, expected, "{filter}");
    }
}

#[tokio::test]
async fn numbers_are_compared_exactly() {
    const LESS: &str = r#"{"n":12345678901234567890123456789012345677}"#;
    const MORE: &str = r#"{"n":12345678901234567890123456789012345678}"#;
    const TENTH: &str = r#"{"n":0.1}"#;
    const NEAR: &str = r#"{"n":0.10000000000000000000000000000000000001}"#;
    let filters = [
        ":n = 12345678901234567890123456789012345678",
        ":n > 12345678901234567890123456789012345677",
        ":n = 0.1",
        ":n > 0.1 AND :n < 0.2",
        ":n = 0.100",
    ];
    let taken = taken_by(&filters, &[LESS, MORE, TENTH, NEAR]).await;
    assert_eq!(taken, [vec![MORE], vec![MORE], vec![TENTH], vec![NEAR], vec![TENTH]]);
}

/// A filter of the longest length that is allowed, and everything outside the grammar with the character where it goes wrong.
#[tokio::test]
async fn every_construct_outside_the_grammar_is_refused_with_its_position_and_changes_nothing() {
    let server = Server::start().await;
    server.create("q", SettingsPatch::default()).await;
    let longest = format!(":k = \"{}\"", "a".repeat(249));
    let too_long = format!(":k = \"{}\"", "a".repeat(250));
    assert_eq!((longest.len(), too_long.len()), (256, 257));
    let before = server.declare("q", "g", &longest).await;
    for (filter, position, reason) in [
        (":a <> 1", 3, "<> is not supported, write !="),
        (":a == 1", 3, "== is not supported, write ="),
        (":a IN (1, 2)", 3, "IN is not supported"),
        (":a LIKE \"x\"", 3, "LIKE is not supported"),
        (":a = 'x'", 5, "not in single quotes"),
        (":a = 1 and :b = 2", 7, "and must be written as AND"),
        (":a = 1 or :b", 7, "or must be written as OR"),
        ("not :a", 0, "not must be written as NOT"),
        (":a = 1e3", 6, "a number has no exponent in a filter"),
        (":a = 1.", 6, "a decimal point needs digits on both sides"),
        (":a = 1 :b", 7, "expected AND, OR or the end, found :b"),
        (":a = \"x", 5, "the quoted text has no end"),
        ("\"", 0, "the quoted text has no end"),
        (":a = \"\\q\"", 6, "unknown escape \\q"),
        ("a = 1", 0, "unknown word a"),
        (":", 1, "the key must follow the colon at once"),
        ("(:a", 0, "the parenthesis is never closed"),
        (":a = ", 5, "found the end"),
        (":a = 1 AND", 10, "expected a condition, found the end"),
        ("hasPrefix(:a, 1)", 14, "expected a quoted text, found 1"),
        (too_long.as_str(), 256, "the filter has 257 characters, at most 256 are allowed"),
    ] {
        let declaration = GroupDeclaration { filter: filter.into(), ..GroupDeclaration::default() };
        let patch = GroupPatch { filter: Some(filter.into()), ..GroupPatch::default() };
        for outcome in [
            server.client.declare_group("q", "bad", declaration).await.map(drop),
            server.client.update_group("q", Some("g"), patch).await.map(drop),
            server.client.test_filter(filter, Attributes::new()).await.map(drop),
        ] {
            let error = outcome.unwrap_err();
            assert_eq!(error.code(), Some(ErrorCode::BadFilter), "{filter}");
            let text = error.to_string();
            assert!(text.contains(&format!("at character {position}: ")) && text.contains(reason), "{filter}: {text}");
        }
    }
    assert_eq!(refused(server.client.group("q", Some("bad")).await), ErrorCode::UnknownGroup);
    let server = server.killed_and_started().await;
    assert_eq!(server.client.group("q", Some("g")).await.unwrap().group, before);
}

/// With an update that also says other things: none of them is done.
#[tokio::test]
async fn an_update_with_a_bad_filter_changes_nothing_else_either() {
    let server = Server::start().await;
    server.create("q", SettingsPatch::default()).await;
    let before = server.declare("q", "g", ":k = \"a\"").await;
    let patch = GroupPatch {
        filter: Some(":k ==".to_owned()),
        is_enabled: Some(false),
        delivery_limit: Some(Some(1)),
        display_name: Some("other".to_owned()),
        ..GroupPatch::default()
    };
    assert_eq!(refused(server.client.update_group("q", Some("g"), patch).await), ErrorCode::BadFilter);
    assert_eq!(server.client.group("q", Some("g")).await.unwrap().group, before);
    server.push_messages("q", "a", letters_of("ab")).await;
    assert_eq!(server.drain("q", "g").await, ["a"]);
}

#[tokio::test]
async fn the_body_is_never_looked_at() {
    let taken = taken_by(&[":k = \"a\""], &["{}", r#"{"k":"a"}"#]).await;
    assert_eq!(taken, [[r#"{"k":"a"}"#]]);
}
