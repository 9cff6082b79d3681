//! Trying a filter before it is used: on the command line and on what a queue holds.

use std::io::Write;
use std::process::{Output, Stdio};

use crate::program::{fanlog, text_of};
use crate::support::*;

fn test(filter: &str, attributes: &str) -> Output {
    fanlog().args(["filter", "test", "--filter", filter, "--attributes", attributes]).output().unwrap()
}

#[test]
fn a_test_prints_match_or_no_match_and_ends_with_0_1_or_2_and_the_position() {
    for (filter, attributes, code, printed) in [
        (":a = 1.0", r#"{"a":1}"#, 0, "match"),
        (":a = 1", r#"{"a":2}"#, 1, "no match"),
        ("NOT :a", "{}", 0, "match"),
        ("hasPrefix(:a, \"x\")", r#"{"a":"xy"}"#, 0, "match"),
    ] {
        let output = test(filter, attributes);
        assert_eq!((output.status.code(), text_of(&output.stdout).trim()), (Some(code), printed), "{filter}");
    }
    for (filter, position) in [("a ==", 0), (":a == 1", 3), (":a = 'x'", 5), (":a and :b", 3)] {
        let output = test(filter, "{}");
        let words = text_of(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{filter}: {words}");
        assert!(words.contains('^') && words.contains(&format!("character {position}")), "{filter}: {words}");
    }
    assert!(!test(":a", "[1]").status.success());
}

#[test]
fn lines_of_filters_and_attributes_get_a_line_each() {
    let lines = "{\"filter\":\":a\",\"attributes\":{\"a\":1}}\n{\"filter\":\":a\",\"attributes\":{}}\n{\"filter\":\"a\",\"attributes\":{}}\n";
    let mut child =
        fanlog().args(["filter", "test", "--ndjson", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let text = text_of(&child.wait_with_output().unwrap().stdout);
    let results: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(results.iter().map(|line| line["result"].as_str().unwrap()).collect::<Vec<_>>(), ["match", "no_match", "invalid"]);
    assert!(results[2]["error"].as_str().is_some_and(|error| error.contains("at character 0")), "{text}");
}

#[test]
fn an_explanation_makes_the_precedence_visible_without_a_server() {
    let output = fanlog().args(["filter", "explain", ":a OR NOT :b AND :c = 1", "-o", "table"]).output().unwrap();
    assert!(output.status.success(), "{}", text_of(&output.stderr));
    let text = text_of(&output.stdout);
    let [or, and, not] = ["OR", "AND", "NOT"].map(|word| text.find(word).unwrap_or_else(|| panic!("{word}: {text}")));
    assert!(or < and || text.contains('('), "{text}");
    assert!(and < not || text.contains("(NOT"), "{text}");
}

#[tokio::test]
async fn an_explanation_counts_what_a_queue_holds_and_says_which_condition_failed() {
    let server = Server::start().await;
    server.push_messages("q", "p", letters_of("aab")).await;
    server.push_messages("q", "p", vec![with_attributes(r#"{"k":"a","size":5}"#)]).await;
    let explained = server.json(&["filter", "explain", ":k = \"a\"", "--queue", "q", "--last", "10"]);
    assert_eq!((explained["trial"]["tried"].as_u64(), explained["trial"]["taken"].as_u64()), (Some(4), Some(3)), "{explained}");
    let explained = server.json(&["filter", "explain", ":k = \"a\"", "--queue", "q", "--last", "2"]);
    assert_eq!((explained["trial"]["tried"].as_u64(), explained["trial"]["taken"].as_u64()), (Some(2), Some(1)), "{explained}");
    let filter = ":k = \"a\" AND :size > 5";
    let one = server.json(&["filter", "explain", filter, "--queue", "q", "--partition", "p", "--offset", "3"]).to_string();
    assert!(one.contains(":size > 5") && one.contains("false"), "{one}");
    let server = server.killed_and_started().await;
    assert_eq!(server.client.groups(Some("q")).await.unwrap().len(), 1, "a trial leaves nothing behind");
    let judged = async |json| server.client.test_filter(filter, with_attributes(json).attributes).await;
    assert!(judged(r#"{"k":"a","size":6}"#).await.unwrap());
    assert!(!judged(r#"{"k":"a","size":"6"}"#).await.unwrap());
    assert_eq!(server.stats("q").await.messages, 4);
}
