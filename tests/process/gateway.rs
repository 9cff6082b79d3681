//! The gateway of the real binary: its logs, and changing them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::program::{Launch, binary, eventually, forget_settings};

/// Sends a request with a connection of its own; the status.
fn request(address: &str, method: &str, path: &str, body: &str) -> u16 {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Lines about requests to a path.
fn lines_about(words: &str, route: &str) -> usize {
    words
        .lines()
        .map(|line| -> Value { serde_json::from_str(line).unwrap_or_else(|error| panic!("{line} is not JSON: {error}")) })
        .inspect(|line| assert!(line["timestamp"].is_string() && line["level"].is_string(), "{line}"))
        .filter(|line| line["fields"]["message"] == "request" && line["fields"]["route"] == route)
        .count()
}

#[test]
fn logs_in_a_pipe_are_json_and_what_is_logged_changes_while_it_runs() {
    let directory = tempfile::tempdir().unwrap();
    let program = Launch::in_directory(directory.path()).http().start();
    let http = program.http.clone().unwrap();
    let log = |filter: &str| request(&http, "PUT", "/api/v1/system/log-filter", &format!(r#"{{"filter":"{filter}"}}"#));
    assert_eq!(request(&http, "GET", "/version", ""), 200);
    assert_eq!(log("fanlog=debug"), 200);
    assert_eq!(request(&http, "GET", "/health", ""), 200);
    eventually(|| lines_about(&program.words(), "/health") == 1);
    assert_eq!(lines_about(&program.words(), "/version"), 0, "it was logged before it was asked for");
    assert_eq!(log("=,="), 400);
    assert_eq!(log("warn"), 200);
    assert_eq!(request(&http, "GET", "/healthz", ""), 200);
    assert_eq!(log("debug"), 200);
    assert_eq!(request(&http, "GET", "/health", ""), 200);
    eventually(|| lines_about(&program.words(), "/health") == 2);
    assert_eq!(lines_about(&program.words(), "/healthz"), 0);
    program.stop();
}

/// `script` gives the program a terminal.
#[test]
fn logs_on_a_terminal_are_text() {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("script is not installed: not checked");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let (data, ports, words) = (path("data"), path("ports.json"), path("typescript"));
    let quoted = |path: &Path| format!("'{}'", path.display());
    let command = format!(
        "exec {} serve --listen 127.0.0.1:0 --http 127.0.0.1:0 --data {} --ports-file {}",
        quoted(&binary()),
        quoted(&data),
        quoted(&ports)
    );
    let mut script = Command::new("script");
    forget_settings(&mut script);
    script.args(["--quiet", "--flush", "--command", &command]).arg(&words).env("FANLOG_LOG", "debug");
    let mut script = script.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    eventually(|| ports.exists());
    let addresses: Value = serde_json::from_str(&std::fs::read_to_string(&ports).unwrap()).unwrap();
    assert_eq!(request(addresses["http"].as_str().unwrap(), "GET", "/health", ""), 200);
    let shown = || std::fs::read_to_string(&words).unwrap_or_default();
    eventually(|| shown().contains("/health"));
    assert!(!shown().lines().any(|line| line.starts_with('{')), "{}", shown());
    // Without its terminal the server ends, too.
    script.kill().unwrap();
    script.wait().unwrap();
    eventually(|| TcpStream::connect(addresses["tcp"].as_str().unwrap()).is_err());
}
