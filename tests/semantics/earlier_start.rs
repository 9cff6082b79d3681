//! A declared group starts at its creation, or earlier: then its first filter judges what was there before, and the reply says so.

use fanlog::model::*;

use crate::support::*;

async fn declare(server: &Server, group: &str, filter: &str, start: Option<Start>) -> GroupInfo {
    let declaration = GroupDeclaration { filter: filter.to_owned(), start, ..GroupDeclaration::default() };
    server.client.declare_group("q", group, declaration).await.unwrap()
}

#[tokio::test]
async fn what_is_older_than_a_group_is_judged_by_the_filter_given_at_its_creation() {
    let server = Server::start().await;
    server.push_messages("q", "p", letters_of("ab")).await;
    let middle_us = now_us();
    clock_passes(middle_us).await;
    server.push_messages("q", "p", letters_of("abc")).await;
    let new = declare(&server, "new", ":k = \"a\"", None).await;
    let beginning = declare(&server, "beginning", ":k = \"a\"", Some(Start::Beginning)).await;
    let time = declare(&server, "time", "NOT :k = \"a\"", Some(Start::Time(middle_us))).await;
    let all = declare(&server, "all", "", Some(Start::Beginning)).await;
    let said = [&new, &beginning, &time, &all].map(|info| info.judges_earlier);
    assert_eq!(said, [false, true, true, false], "the reply says so");
    for group in ["new", "beginning", "time", "all"] {
        server.set_filter("q", group, ":k = \"b\"").await;
    }
    let server = server.killed_and_started().await;
    server.push_messages("q", "p", letters_of("ab")).await;
    for (group, expected) in [("new", "b"), ("beginning", "aab"), ("time", "bcb"), ("all", "ababcb")] {
        assert_eq!(server.lag("q", group).await, expected.len() as u64, "{group}");
        assert_eq!(server.drain("q", group).await.concat(), expected, "{group}");
        server.seek("q", group, SeekTarget::Beginning).await;
    }
    let server = server.killed_and_started().await;
    assert_eq!(server.drain("q", "beginning").await.concat(), "aab", "also when it is read again");
}

#[tokio::test]
async fn the_command_line_says_it_in_words() {
    let server = Server::start().await;
    server.push_messages("q", "p", letters_of("ab")).await;
    let create = ["group", "create", "q", "g", "--filter", ":k = \"a\"", "--from", "beginning", "-o", "json"];
    let output = server.run(&create);
    assert!(output.status.success());
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(words.starts_with("messages stored before now are judged by this filter"), "{words}");
    let made: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(made["judges_earlier"], true);
    assert_eq!(server.drain("q", "g").await, ["a"]);
}
