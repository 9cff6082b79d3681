//! `fanlog filter test` and `fanlog filter explain`: trying a filter without a server.

use std::io::{self, BufRead, Read, Write};

use fanlog::filter::{Filter, FilterError};
use fanlog::record::Attributes;
use serde::{Deserialize, Serialize};

/// Exit code when the filter takes the message, and of a run over lines.
pub const EXIT_MATCH: i32 = 0;

/// Exit code when it does not.
pub const EXIT_NO_MATCH: i32 = 1;

/// Exit code when filter or attributes are not valid.
pub const EXIT_INVALID: i32 = 2;

/// The longest line of [`test_ndjson`], in bytes: the largest set of attributes with every character escaped fits.
const LINE_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Evaluates a filter against attributes given as a JSON object. Prints `match` or `no match`; what is not valid goes to
/// `errors`, a filter with its position and a caret. Gives the exit code.
pub fn test(filter: &str, attributes_json: &str, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<i32> {
    let filter = match Filter::parse(filter) {
        Ok(filter) => filter,
        Err(error) => {
            writeln!(errors, "error: {error}\n{}", error.caret(filter))?;
            return Ok(EXIT_INVALID);
        }
    };
    let attributes = match Attributes::from_json(attributes_json) {
        Ok(attributes) => attributes,
        Err(error) => {
            writeln!(errors, "error: {error}")?;
            return Ok(EXIT_INVALID);
        }
    };
    let matches = filter.matches(attributes.view());
    writeln!(out, "{}", if matches { "match" } else { "no match" })?;
    Ok(if matches { EXIT_MATCH } else { EXIT_NO_MATCH })
}

/// Evaluates one `{"filter": ..., "attributes": {...}}` for each line of `input` and prints one
/// `{"result": "match" | "no_match" | "invalid"}` for each, with an `error` if it is invalid. A line that is not valid, in
/// whatever way, is one such result and never ends the run. Fails only if reading or writing does.
pub fn test_ndjson(mut input: impl BufRead, out: &mut dyn Write) -> io::Result<i32> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(EXIT_MATCH);
        }
        let is_cut = line.len() as u64 == LINE_BYTES_MAX && line.last() != Some(&b'\n');
        let result = if is_cut {
            input.skip_until(b'\n')?;
            Err(format!("line is over {LINE_BYTES_MAX} bytes long"))
        } else {
            judge(&line)
        };
        serde_json::to_writer(&mut *out, &Answer::from(result))?;
        writeln!(out)?;
    }
}

/// What `fanlog filter explain` prints of a filter alone: its canonical text, the same with every parenthesis, and its tree.
pub fn explain_text(filter: &str) -> Result<String, FilterError> {
    let filter = Filter::parse(filter)?;
    if filter.is_everything() {
        return Ok("the empty filter takes everything\n".to_owned());
    }
    Ok(format!("filter:   {filter}\ngrouping: {}\ntree:\n{}", filter.parenthesised(), indent(&filter.outline())))
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

#[derive(Deserialize)]
struct Question {
    filter: String,
    attributes: Attributes,
}

#[derive(Serialize)]
struct Answer {
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

fn judge(line: &[u8]) -> Result<bool, String> {
    let question: Question = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let filter = Filter::parse(&question.filter).map_err(|error| error.to_string())?;
    Ok(filter.matches(question.attributes.view()))
}

impl From<Result<bool, String>> for Answer {
    fn from(result: Result<bool, String>) -> Self {
        match result {
            Ok(true) => Self { result: "match", error: None },
            Ok(false) => Self { result: "no_match", error: None },
            Err(error) => Self { result: "invalid", error: Some(error) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(filter: &str, attributes: &str) -> (i32, String, String) {
        let (mut out, mut errors) = (Vec::new(), Vec::new());
        let code = test(filter, attributes, &mut out, &mut errors).unwrap();
        (code, String::from_utf8(out).unwrap(), String::from_utf8(errors).unwrap())
    }

    fn run_lines(input: &[u8]) -> Vec<String> {
        let mut out = Vec::new();
        assert_eq!(test_ndjson(input, &mut out).unwrap(), EXIT_MATCH);
        String::from_utf8(out).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn one_message_gives_one_word_and_an_exit_code() {
        assert_eq!(run(":age >= 40", r#"{"age":40.0}"#), (0, "match\n".to_owned(), String::new()));
        assert_eq!(run(":age >= 40", r#"{"age":"40"}"#), (1, "no match\n".to_owned(), String::new()));
        assert_eq!(run("", "{}"), (0, "match\n".to_owned(), String::new()));
    }

    #[test]
    fn what_is_not_valid_is_code_2_with_its_reason() {
        let text = "error: filter is not valid at character 5: == is not supported, write =\n:age == 40\n     ^\n";
        assert_eq!(run(":age == 40", "{}"), (2, String::new(), text.to_owned()));
        let text = "error: attribute \"a\" is a boolean, only strings and numbers are allowed\n";
        assert_eq!(run(":a", r#"{"a":true}"#), (2, String::new(), text.to_owned()));
        assert_eq!(run(":a", "[]").0, 2);
    }

    #[test]
    fn every_line_has_its_answer() {
        let input = b"{\"filter\":\":a\",\"attributes\":{\"a\":1}}\n\
            {\"filter\":\":a\",\"attributes\":{},\"id\":7}\r\n\
            {\"filter\":\":a and\",\"attributes\":{}}\n\
            {\"filter\":\":a\",\"attributes\":{\"a\":null}}\n\
            {\"filter\":\":a\"}\n\
            \n\
            \xff\n\
            {\"filter\":\"NOT :a\",\"attributes\":{}}";
        let lines = run_lines(input);
        assert_eq!(lines[0], r#"{"result":"match"}"#);
        assert_eq!(lines[1], r#"{"result":"no_match"}"#);
        assert_eq!(lines[2], r#"{"result":"invalid","error":"filter is not valid at character 3: and must be written as AND"}"#);
        for (line, reason) in lines[3..7].iter().zip([r#"\"a\" is null"#, "missing field `attributes`", "EOF", "expected value"])
        {
            assert!(line.starts_with(r#"{"result":"invalid","error":""#) && line.contains(reason), "{line}");
        }
        assert_eq!(lines[7], r#"{"result":"match"}"#);
        assert_eq!(lines.len(), 8);
        assert_eq!(run_lines(b""), Vec::<String>::new());
    }

    #[test]
    fn a_line_without_end_is_cut_and_the_next_one_is_read() {
        let mut input = vec![b' '; 32 * 1024 * 1024 + 5];
        input.extend_from_slice(b"\n{\"filter\":\"\",\"attributes\":{}}\n");
        let lines = run_lines(&input);
        assert_eq!(lines, [r#"{"result":"invalid","error":"line is over 33554432 bytes long"}"#, r#"{"result":"match"}"#]);
    }

    #[test]
    fn an_explanation_shows_the_grouping() {
        let expected =
            "filter:   :a OR :b AND :c\ngrouping: (:a OR (:b AND :c))\ntree:\n  OR\n    :a\n    AND\n      :b\n      :c\n";
        assert_eq!(explain_text(":a OR(:b AND :c)").unwrap(), expected);
        assert_eq!(explain_text(" ").unwrap(), "the empty filter takes everything\n");
        assert_eq!(explain_text("(").unwrap_err().position, 1);
    }
}
