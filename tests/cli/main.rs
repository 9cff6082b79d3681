//! The program as its users run it: a server in a process of its own, commands, signals, exit codes.

mod access;
#[allow(dead_code)]
#[path = "../support/certificates.rs"]
mod certificates;
mod operations;
#[allow(dead_code, reason = "other programs use the rest")]
#[path = "../support/program.rs"]
mod program;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Instant;

use serde_json::Value;

use program::{Launch, PATIENCE, Program, fanlog, json_of, text_of};

/// A server with a directory of its own; killed when dropped.
struct Server {
    program: Program,
    directory: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap())
    }

    fn start_in(directory: tempfile::TempDir) -> Self {
        Self::start_with(directory, |launch| launch)
    }

    fn start_with(directory: tempfile::TempDir, change: impl FnOnce(Launch) -> Launch) -> Self {
        Self { program: change(Launch::in_directory(directory.path()).http()).start(), directory }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.program.command(arguments).output().unwrap()
    }

    fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut command = self.program.command(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        child.wait_with_output().unwrap()
    }

    /// What a command that must succeed prints.
    fn json(&self, arguments: &[&str]) -> Value {
        json_of(&self.run(arguments))
    }

    fn kill(self) -> tempfile::TempDir {
        self.program.kill();
        self.directory
    }
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn stderr(output: &Output) -> String {
    text_of(&output.stderr)
}

fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn lines_go_into_lanes_and_out_to_groups_at_their_own_pace() {
    let server = Server::start();
    let lines: String = (0..100).map(|index| format!("10:00:{index:02} event lane-{} text {index}\n", index % 7)).collect();
    let pushed = json_of(&server.run_with_input(&["push", "q", "--lines", "-", "--partition-field", "3"], lines.as_bytes()));
    assert_eq!((pushed["stored"].as_u64(), pushed["partitions"].as_u64()), (Some(100), Some(7)));
    assert_eq!(pushed["promise"], "durable");

    let all = server.json(&["pop", "q", "--group", "fast", "--from", "beginning", "-n", "1000"]);
    assert_eq!(all.as_array().unwrap().len(), 100);
    let some = server.json(&["pop", "q", "--group", "slow", "--from", "beginning", "-n", "10"]);
    assert_eq!(some.as_array().unwrap().len(), 10);
    let payloads: std::collections::BTreeSet<&str> =
        all.as_array().unwrap().iter().map(|row| row["payload"].as_str().unwrap()).collect();
    let expected: std::collections::BTreeSet<&str> = lines.lines().collect();
    assert_eq!(payloads, expected);

    let groups = server.json(&["group", "list", "q"]);
    let lag = |name: &str| groups.as_array().unwrap().iter().find(|row| row["group"] == name).unwrap()["lag"].as_u64();
    assert_eq!((lag("fast"), lag("slow")), (Some(0), Some(90)));

    let again = server.json(&["pop", "q", "--group", "fast", "-n", "10"]);
    assert_eq!(again, Value::Array(Vec::new()), "what was acknowledged does not come again");
}

#[test]
fn a_killed_server_keeps_what_it_answered() {
    let server = Server::start();
    let first = server.json(&["push", "q", "a", "b", "c", "--partition", "p"]);
    assert_eq!(first.as_array().unwrap().len(), 3);
    server.json(&["pop", "q", "--group", "g", "--from", "beginning", "-n", "2"]);
    let server = Server::start_in(server.kill());
    let rest = server.json(&["pop", "q", "--group", "g", "-n", "10"]);
    let rest: Vec<(u64, &str)> =
        rest.as_array().unwrap().iter().map(|row| (row["offset"].as_u64().unwrap(), row["payload"].as_str().unwrap())).collect();
    assert_eq!(rest, [(2, "c")]);
}

#[test]
fn a_first_signal_stops_gracefully() {
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let server = Server::start();
        server.json(&["push", "q", "m"]);
        server.program.signal(signal);
        let status = server.program.wait();
        assert!(status.success(), "{status}");
        assert!(!server.directory.path().join("ports.json").exists());
    }
}

#[test]
fn objects_attributes_and_filters_travel() {
    let server = Server::start();
    server.json(&["queue", "create", "q"]);
    server.json(&["group", "create", "q", "us", "--filter", ":region = \"us\" AND :size > 5"]);
    let objects = "{\"data\":{\"n\":1},\"attributes\":{\"region\":\"us\",\"size\":12345678901234567890123456789}}\n\
                   {\"payload\":\"text\",\"partition\":\"p\",\"transactionId\":\"t1\",\"attributes\":{\"region\":\"eu\"}}\n\
                   {\"payload\":\"text\",\"partition\":\"p\",\"transactionId\":\"t1\"}\n";
    let pushed = json_of(&server.run_with_input(&["push", "q", "--ndjson", "-", "-a", "from=test"], objects.as_bytes()));
    assert_eq!((pushed["stored"].as_u64(), pushed["duplicates"].as_u64()), (Some(2), Some(1)));
    let taken = server.run(&["pop", "q", "--group", "us", "-n", "10", "-o", "ndjson"]);
    let text = String::from_utf8(taken.stdout).unwrap();
    assert_eq!(text.lines().count(), 1);
    assert!(text.contains(r#""attributes":{"from":"test","region":"us","size":12345678901234567890123456789}"#), "{text}");
    let round = json_of(&server.run_with_input(&["push", "copy", "--ndjson", "-"], text.as_bytes()));
    assert_eq!(round["stored"].as_u64(), Some(1));
    let message = server.json(&["message", "show", "q", "--partition", "p", "--transaction-id", "t1"]);
    assert_eq!((message["payload"].as_str(), message["status"].as_str()), (Some("text"), Some("completed")), "no group takes it");
    let explained = server.json(&["filter", "explain", ":region = \"us\"", "--queue", "q", "--last", "10"]);
    assert_eq!((explained["trial"]["tried"].as_u64(), explained["trial"]["taken"].as_u64()), (Some(2), Some(1)));
}

#[test]
fn a_tail_shows_ranges_and_the_last_messages_and_moves_nothing() {
    let server = Server::start();
    for index in 0..10 {
        server.json(&["push", "q", &format!("m{index}"), "--partition", ["a", "b"][index % 2]]);
    }
    let payloads = |arguments: &[&str]| {
        let output = server.run(&[&["tail", "q", "-o", "ndjson", "--no-follow"], arguments].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let rows = String::from_utf8(output.stdout).unwrap();
        rows.lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["payload"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(payloads(&["-n", "3"]), ["m7", "m8", "m9"]);
    assert_eq!(payloads(&["--partition", "a", "--from", "1", "--to", "3"]), ["m2", "m4"]);
    assert_eq!(payloads(&["--since", "1h ago"]).len(), 10);
    assert!(payloads(&[]).is_empty());
    let groups = server.json(&["group", "list", "q"]);
    assert!(groups.as_array().unwrap().iter().all(|row| row["cursors"].as_u64() == Some(0) || row["group"] == "__QUEUE_MODE__"));
}

#[test]
fn a_seek_is_shown_first_and_done_when_asked() {
    let server = Server::start();
    server.json(&["push", "q", "a", "b", "c", "--partition", "p"]);
    server.json(&["pop", "q", "--group", "g", "--from", "beginning", "-n", "3"]);
    let shown = server.json(&["group", "seek", "q", "g", "--to", "-2"]);
    assert_eq!((shown[0]["before"].as_u64(), shown[0]["after"].as_u64()), (Some(3), Some(1)));
    assert_eq!(server.json(&["pop", "q", "--group", "g"]), Value::Array(Vec::new()));
    server.json(&["group", "seek", "q", "g", "--to", "-2", "--execute"]);
    let again = server.json(&["pop", "q", "--group", "g", "-n", "5"]);
    assert_eq!(again.as_array().unwrap().len(), 2);
}

#[test]
fn mistakes_are_1_and_a_missing_server_is_2() {
    let server = Server::start();
    for arguments in [
        &["queue", "show", "nowhere"][..],
        &["queue", "create", ""],
        &["queue", "create", "q", "--set", "leastime=5"],
        &["push", "q"],
        &["push", "q", "--lines", "/nowhere/at/all"],
        &["group", "show", "q", "nowhere"],
        &["group", "create", "q", "g", "--filter", "a =="],
        &["pop", "q", "--from", "yesterday"],
        &["no-such-command"],
        &["pop", "q", "-n", "0"],
    ] {
        let output = server.run(arguments);
        assert_eq!(code(&output), 1, "{arguments:?}: {}", stderr(&output));
        assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{arguments:?}");
    }
    let output = fanlog().args(["--server", "127.0.0.1:1", "ping"]).output().unwrap();
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert_eq!(code(&fanlog().arg("--help").output().unwrap()), 0);
    let short = server.run(&["queue", "create", "q", "--set", "leastime=5"]);
    assert!(stderr(&short).contains("did you mean \"leaseTime\"?"));
}

#[test]
fn a_directory_has_one_server_and_the_second_is_told_whose_it_is() {
    let server = Server::start();
    let output = fanlog()
        .args(["serve", "--listen", "127.0.0.1:0", "--http", "off", "--data"])
        .arg(server.directory.path().join("data"))
        .output()
        .unwrap();
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains(&server.program.pid().to_string()), "{}", stderr(&output));
}

#[test]
fn addresses_beyond_loopback_need_a_token() {
    let directory = tempfile::tempdir().unwrap();
    let output = fanlog()
        .args(["serve", "--listen", "0.0.0.0:0", "--http", "off", "--data"])
        .arg(directory.path().join("data"))
        .output()
        .unwrap();
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("--insecure-bind"));
    assert!(!directory.path().join("data").exists());
}

#[test]
fn settings_come_from_file_environment_and_flags() {
    let directory = tempfile::tempdir().unwrap();
    let good = write(directory.path(), "good.toml", "listen = \"127.0.0.1:1\"\nhttp = \"off\"\n");
    let shown = fanlog().args(["config", "show", "--config"]).arg(&good).env("FANLOG_LISTEN", "127.0.0.1:2").output().unwrap();
    let rows = json_of(&shown);
    let row = |key: &str| rows.as_array().unwrap().iter().find(|row| row["key"] == key).unwrap().clone();
    assert_eq!((row("listen")["value"].as_str(), row("listen")["origin"].as_str()), (Some("127.0.0.1:2"), Some("FANLOG_LISTEN")));
    assert_eq!(row("http")["value"], "off");
    let bad = write(directory.path(), "bad.toml", "listn = \"127.0.0.1:1\"\n");
    let refused = fanlog().args(["config", "check", "--config"]).arg(&bad).output().unwrap();
    assert_eq!(code(&refused), 1);
    assert!(stderr(&refused).contains("did you mean \"listen\"?"), "{}", stderr(&refused));
}

/// `fanlog ... | head -1` must not look like a failure.
#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let server = Server::start();
    let lines: String = (0..20_000).map(|index| format!("line number {index}\n")).collect();
    json_of(&server.run_with_input(&["push", "q", "--lines", "-"], lines.as_bytes()));
    let mut child = fanlog()
        .args(["--server", &server.program.address, "tail", "q", "--from", "0", "--no-follow", "-o", "ndjson"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((code(&output), stderr(&output).as_str()), (0, ""));
}

#[test]
fn filters_can_be_tried_without_a_server() {
    let run = |attributes: &str, filter: &str| {
        fanlog().args(["filter", "test", "--filter", filter, "--attributes", attributes]).output().unwrap()
    };
    assert_eq!(code(&run(r#"{"a":1}"#, ":a = 1")), 0);
    assert_eq!(code(&run(r#"{"a":2}"#, ":a = 1")), 1);
    let invalid = run("{}", "a ==");
    assert_eq!(code(&invalid), 2);
    assert!(stderr(&invalid).contains('^'), "{}", stderr(&invalid));
}

#[test]
fn a_directory_is_verified_and_inspected_with_and_without_its_server() {
    let server = Server::start();
    server.json(&["push", "q", "a", "b", "c", "--partition", "p"]);
    server.json(&["pop", "q", "--group", "g", "--from", "beginning", "-n", "2"]);
    let check = |data: &Path| {
        let report = json_of(&fanlog().arg("verify").arg(data).output().unwrap());
        assert_eq!((report["queues"].as_u64(), report["messages"].as_u64()), (Some(1), Some(3)), "{report}");
        let files = json_of(&fanlog().arg("inspect").arg(data).output().unwrap());
        let segment = files.as_array().unwrap().iter().find(|file| file["kind"] == "segment").unwrap();
        data.join(segment["file"].as_str().unwrap())
    };
    let data = server.directory.path().join("data");
    check(&data);
    let directory = server.kill();
    let segment = check(&directory.path().join("data"));
    let rows = fanlog().args(["inspect", "-o", "ndjson"]).arg(&segment).output().unwrap();
    let rows = String::from_utf8(rows.stdout).unwrap();
    assert!(rows.lines().count() > 1 && rows.contains("\"kind\":\"batch\""), "{rows}");
    let none = fanlog().args(["verify", "/nowhere/at/all"]).output().unwrap();
    assert_eq!(code(&none), 1, "{}", stderr(&none));
}

#[test]
fn groups_with_filters_are_made_changed_switched_and_deleted() {
    let server = Server::start();
    server.json(&["push", "q", "old", "-a", "region=us"]);
    let made = server.run(&["group", "create", "q", "us", "--filter", ":region = \"us\"", "--from", "beginning", "-o", "json"]);
    assert!(stderr(&made).starts_with("messages stored before now are judged by this filter"), "{}", stderr(&made));
    let made = json_of(&made);
    assert_eq!((made["judges_earlier"].as_bool(), made["version"].as_u64()), (Some(true), Some(1)));
    let late = server.run(&["group", "create", "q", "late", "--filter", ":region", "-o", "json"]);
    assert_eq!((stderr(&late).as_str(), json_of(&late)["judges_earlier"].as_bool()), ("", Some(false)));

    let change = |arguments: &[&str]| server.run(&[&["group"][..], arguments, &["-o", "json"]].concat());
    let bad = change(&["update", "q", "us", "--filter", ":region == 1"]);
    assert!(code(&bad) == 1 && stderr(&bad).contains("at character 8"), "{}", stderr(&bad));
    let updated = json_of(&change(&["update", "q", "us", "--filter", ":region = \"eu\"", "--if-version", "1"]));
    assert_eq!((updated["filter"].as_str(), updated["version"].as_u64()), (Some(":region = \"eu\""), Some(2)));
    for stale in [
        &["update", "q", "us", "--filter", "", "--if-version", "1"][..],
        &["disable", "q", "us", "--if-version", "1"],
        &["pause", "q", "us", "--if-version", "1"],
        &["delete", "q", "us", "--if-version", "1"],
    ] {
        let output = change(stale);
        assert_eq!(code(&output), 1, "{stale:?}");
        assert!(stderr(&output).contains("group \"us\" has version 2, not 1"), "{}", stderr(&output));
    }
    assert_eq!(json_of(&change(&["disable", "q", "us", "--if-version", "2"]))["state"], "inactive");
    let inactive = server.run(&["pop", "q", "--group", "us"]);
    assert!(code(&inactive) == 1 && stderr(&inactive).contains("is inactive"), "{}", stderr(&inactive));
    assert_eq!(json_of(&change(&["enable", "q", "us"]))["state"], "active");
    assert_eq!(server.json(&["pop", "q", "--group", "us", "-o", "json"])[0]["payload"], "old");
    json_of(&change(&["delete", "q", "us", "--if-version", "4"]));
    assert_eq!(code(&change(&["show", "q", "us"])), 1);
}

#[test]
fn the_primary_group_is_switched_off_only_and_drops_are_named() {
    let server = Server::start();
    server.json(&["queue", "create", "q"]);
    server.json(&["group", "create", "q", "us", "--filter", ":region = \"us\""]);
    for refused in [&["update", "q", "__QUEUE_MODE__", "--filter", ":a"][..], &["delete", "q", "__QUEUE_MODE__"]] {
        let output = server.run(&[&["group"], refused].concat());
        assert_eq!(code(&output), 1, "{refused:?}");
        assert!(stderr(&output).contains("the primary group cannot"), "{}", stderr(&output));
    }
    assert_eq!(server.json(&["group", "disable", "q", "__QUEUE_MODE__"])["state"], "inactive");
    let rows = server.json(&["push", "q", "one", "two", "-a", "region=eu", "-a", "n:=1.50"]);
    assert_eq!(
        (&rows[0]["result"], &rows[1]["result"], &rows[1]["offset"]),
        (&"dropped".into(), &"dropped".into(), &Value::Null)
    );
    let objects: String = ["us", "eu", "us", "eu"]
        .iter()
        .map(|region| format!("{{\"payload\":1,\"attributes\":{{\"region\":\"{region}\"}}}}\n"))
        .collect();
    let summary = json_of(&server.run_with_input(&["push", "q", "--ndjson", "-"], objects.as_bytes()));
    assert_eq!((summary["stored"].as_u64(), summary["dropped"].as_u64()), (Some(2), Some(2)));
    assert_eq!(summary["first_dropped"], serde_json::json!([1, 3]));
    assert_eq!(server.json(&["queue", "show", "q"])["stats"]["messages_dropped"], 4);
    let reserved = server.run(&["push", "q", "m", "-a", "fanlog.producer=me"]);
    assert!(code(&reserved) == 1 && stderr(&reserved).contains("is reserved"), "{}", stderr(&reserved));
}

#[test]
fn an_explanation_says_which_condition_decides_for_a_stored_message() {
    let server = Server::start();
    server.json(&["push", "q", "m", "-a", "region=us", "-a", "size:=5", "--partition", "p"]);
    let filter = ":region = \"us\" AND :size > 5";
    let explained = server.json(&["filter", "explain", filter, "--queue", "q", "--partition", "p", "--offset", "0"]);
    let text = explained.to_string();
    assert!(text.contains(":size > 5") && text.contains("false"), "{text}");
    let lines = "{\"filter\":\":a\",\"attributes\":{\"a\":1}}\n{\"filter\":\"a\",\"attributes\":{}}\n";
    let tried = server.run_with_input(&["filter", "test", "--ndjson", "-"], lines.as_bytes());
    let tried = String::from_utf8(tried.stdout).unwrap();
    assert!(tried.starts_with("{\"result\":\"match\"}\n{\"result\":\"invalid\",\"error\":"), "{tried}");
}

#[test]
fn tokens_are_made_listed_and_revoked_beside_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let data = data.to_str().unwrap();
    let token = |arguments: &[&str]| fanlog().arg("token").args(arguments).args(["--data", data]).output().unwrap();
    // Before the first start.
    let admin = json_of(&token(&["create", "--name", "ops", "--role", "admin"]));
    let bound = json_of(&token(&[
        "create",
        "--name",
        "shop",
        "--role",
        "read-write",
        "--queue-prefix",
        "orders.",
        "--queue-prefix",
        "mail.",
        "--expires",
        "90d",
    ]));
    let text = |token: &Value| token["token"].as_str().unwrap().to_owned();
    assert!(text(&admin).starts_with("fl_") && text(&admin).len() == 76);
    let server = Server::start_in(directory);
    let run = |token: &str, arguments: &[&str]| server.run(&[&["--token", token], arguments].concat());

    let stranger = server.run(&["queue", "list"]);
    assert_eq!(code(&stranger), 1, "{}", stderr(&stranger));
    assert!(stderr(&stranger).contains("server asks for a token"), "{}", stderr(&stranger));
    for queue in ["orders.a", "other"] {
        json_of(&run(&text(&admin), &["push", queue, "x"]));
    }
    json_of(&run(&text(&bound), &["push", "orders.a", "x"]));
    let refused = run(&text(&bound), &["push", "other", "x"]);
    assert_eq!(code(&refused), 1, "{}", stderr(&refused));
    assert!(stderr(&refused).contains("Push: role read-write may not use queue \"other\""), "{}", stderr(&refused));
    assert_eq!(json_of(&run(&text(&bound), &["queue", "list"])).as_array().unwrap().len(), 1);

    let listed = json_of(&token(&["list"]));
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["ops", "shop"]);
    assert_eq!(listed[1]["queue_prefixes"], serde_json::json!(["orders.", "mail."]));
    assert!(listed[0]["expires_at"].is_null() && listed[1]["expires_at"].is_string());
    assert!(!listed.to_string().contains(&text(&admin)[12..]), "no secret is shown again");

    let id = bound["id"].as_str().unwrap();
    json_of(&token(&["revoke", id]));
    let start = Instant::now();
    while code(&run(&text(&bound), &["queue", "list"])) == 0 {
        assert!(start.elapsed() < PATIENCE, "the server does not notice");
    }
    json_of(&run(&text(&admin), &["queue", "list"]));
    let again = token(&["revoke", id]);
    assert_eq!(code(&again), 1);
    assert!(stderr(&again).contains("there is no token"), "{}", stderr(&again));
    for wrong in
        [&["create", "--name", "x", "--role", "root"][..], &["create", "--name", "", "--role", "admin"], &["revoke", "x"]]
    {
        assert_eq!(code(&token(wrong)), 1, "{wrong:?}");
    }

    // A damaged file is refused, by the commands and by the next start.
    let directory = server.kill();
    std::fs::write(directory.path().join("data/tokens.json"), "{}").unwrap();
    let data = directory.path().join("data");
    let refused = fanlog().args(["serve", "--listen", "127.0.0.1:0", "--http", "off", "--data"]).arg(&data).output().unwrap();
    assert_eq!(code(&refused), 1, "{}", stderr(&refused));
    assert!(stderr(&refused).contains("tokens.json is not usable"), "{}", stderr(&refused));
}

#[test]
fn tokens_in_the_data_directory_are_enough_to_listen_beyond_loopback() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let made = fanlog().args(["token", "create", "--name", "x", "--role", "read-only", "--data"]).arg(&data).output().unwrap();
    assert_eq!(code(&made), 0, "{}", stderr(&made));
    let everywhere = Launch::in_directory(directory.path()).listen("0.0.0.0:0").http_on("0.0.0.0:0");
    everywhere.start().stop();
}

#[test]
fn commands_speak_tls_and_a_hangup_reads_certificates_again() {
    use certificates::Authority;
    let (old, new, directory) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    let (certificate, key) = old.server(&["localhost"], directory.path());
    let tls = [certificate.to_str().unwrap().to_owned(), key.to_str().unwrap().to_owned()];
    let server = Server::start_with(tempfile::tempdir().unwrap(), |launch| {
        launch.flag("--tls-cert", &certificate).flag("--tls-key", &key)
    });
    let address = server.program.address.replace("127.0.0.1", "fanlog+tls://localhost");
    let run = |authority: &Authority| {
        fanlog().args(["--server", &address, "--ca"]).arg(authority.ca()).args(["push", "q", "x"]).output().unwrap()
    };
    json_of(&run(&old));
    let untrusted = run(&new);
    assert_eq!(code(&untrusted), 2, "{}", stderr(&untrusted));
    assert!(stderr(&untrusted).contains("certificate"), "{}", stderr(&untrusted));
    let plain = server.run(&["queue", "list"]);
    assert!(stderr(&plain).contains("this port speaks TLS"), "{}", stderr(&plain));
    new.server(&["localhost"], directory.path());
    server.program.signal(rustix::process::Signal::HUP);
    let start = Instant::now();
    while code(&run(&new)) != 0 {
        assert!(start.elapsed() < PATIENCE, "the server does not read its certificates again");
    }
    for half in [&["--tls-cert", &tls[0]][..], &["--tls-client-ca", &tls[0]], &["--jwt-algorithm", "HS256"]] {
        let refused = fanlog().args(["serve", "--listen", "127.0.0.1:0", "--http", "off"]).args(half).output().unwrap();
        assert_eq!(code(&refused), 1, "{}", stderr(&refused));
    }
}
