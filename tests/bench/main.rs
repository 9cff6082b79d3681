//! `fanlog bench` as its users run it: what it reports, and that it finds a server that does not keep its word.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Output, Stdio};
use std::thread;

use serde_json::Value;

#[allow(dead_code, reason = "other programs use the rest")]
#[path = "../support/program.rs"]
mod program;

use program::{Launch, Program, eventually, fanlog, json_of, text_of};

/// The report of a run with a server of its own.
fn report(line: &str) -> Value {
    let arguments: Vec<&str> = ["bench"].into_iter().chain(line.split(' ')).chain(["--serve", "-o", "json"]).collect();
    json_of(&fanlog().args(arguments).output().unwrap())
}

/// The server outlived the run, and the directory stayed.
#[test]
fn a_run_that_is_ended_by_a_signal_takes_its_server_and_directory_with_it() {
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let parent = tempfile::tempdir().unwrap();
        let mut run = fanlog()
            .args(["bench", "push", "--serve", "--duration", "10m", "--serve-in"])
            .arg(parent.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut ports = None;
        eventually(|| {
            assert!(run.try_wait().unwrap().is_none(), "the run ended");
            let inside = std::fs::read_dir(parent.path()).unwrap().next().map(|entry| entry.unwrap().path().join("ports.json"));
            ports = inside.and_then(|path| std::fs::read_to_string(path).ok());
            ports.is_some()
        });
        let ports = ports.unwrap();
        let ports: Value = serde_json::from_str(&ports).unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_child(&run), signal).unwrap();
        assert_eq!(run.wait().unwrap().code(), Some(1));
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0, "its directory is gone");
        assert!(TcpStream::connect(ports["tcp"].as_str().unwrap()).is_err(), "its server is gone");
    }
}

fn assert_clean(report: &Value, checked: u64) {
    let checks = report["checks"].as_object().unwrap();
    assert_eq!(checks["ok"], true);
    assert_eq!(checks["checked"], checked);
    for fault in ["lost", "repeated", "out_of_order", "altered", "misplaced", "unexpected", "refused"] {
        assert_eq!(checks[fault], 0, "{fault}");
    }
}

fn assert_measured(report: &Value, messages: u64) {
    assert_eq!(report["messages"], messages);
    assert_eq!(report["bytes"], messages * report["size"].as_u64().unwrap());
    for field in ["messages_per_second", "bytes_per_second", "seconds"] {
        assert!(report[field].as_f64().unwrap() > 0.0, "{field}");
    }
    let latency = &report["latency_us"];
    let steps = ["min", "p50", "p90", "p99", "p999", "max"].map(|name| latency[name].as_f64().unwrap());
    assert!(steps[0] > 0.0 && steps.is_sorted(), "{latency}");
    assert!(latency["mean"].as_f64().unwrap() > 0.0);
    for field in ["cpu_seconds", "cpu_us_per_message", "rss_bytes", "rss_file_bytes", "rss_anon_bytes"] {
        assert!(report["server"][field].is_number(), "{field}");
    }
}

#[test]
fn a_push_is_measured_and_read_back() {
    let report = report("push --count 1003 --batch 10 --size 256 --connections 3 --partitions 7 --groups 2");
    assert_eq!((report["kind"].as_str(), report["durability"].as_str()), (Some("push"), Some("sync")));
    assert_eq!((report["connections"].as_u64(), report["partitions"].as_u64()), (Some(3), Some(7)));
    assert_measured(&report, 1003);
    assert_clean(&report, 1003);
    let disk = &report["disk"];
    assert!(disk["bytes_per_message"].as_f64().unwrap() > 10.0 && disk["syncs"].as_u64().unwrap() > 0, "{disk}");
    assert!(report["compression_ratio"].as_f64().unwrap() > 1.2, "JSON is compressible");
    assert!(report["zstd_alone"]["ratio"].as_f64().unwrap() > 1.2);
}

#[test]
fn a_push_may_be_packed_by_the_client_or_not_compressible() {
    let packed = report("push --count 500 --batch 50 --pack --compression zstd:3");
    assert_clean(&packed, 500);
    assert_eq!(packed["compression"], "zstd:3");
    assert!(packed["compression_ratio"].as_f64().unwrap() > 2.0);
    let random = report("push --count 500 --batch 50 --payload random --compression none --durability os");
    assert_clean(&random, 500);
    assert_eq!((random["durability"].as_str(), random["compression"].as_str()), (Some("os"), Some("none")));
    assert!(random["compression_ratio"].as_f64().unwrap() < 1.0 && random["zstd_alone"].is_null());
}

#[test]
fn a_fixed_rate_lasts_as_long_as_it_says() {
    let report = report("latency --rate 500 --duration 400ms --warmup 100ms --durability interval:50");
    assert_eq!((report["batch"].as_u64(), report["latency_of"].as_str()), (Some(1), Some("push")));
    let messages = report["messages"].as_u64().unwrap();
    assert!((199..=201).contains(&messages), "{messages}");
    assert_measured(&report, messages);
    assert_clean(&report, 250);
}

#[test]
fn a_backlog_is_read_whole_by_each_group() {
    let pop = report("pop --count 2000 --batch 50 --partitions 3 --connections 2");
    assert_measured(&pop, 2000);
    assert_clean(&pop, 2000);
    assert_eq!(pop["latency_of"], "pop");
    assert!(pop["reading"]["commits"].as_u64().unwrap() > 0, "acknowledgements are committed");
    let raw = report("pop --count 2000 --batch 50 --raw --via subscription");
    assert_measured_throughput(&raw, 2000);
    assert!(raw["stored_bytes_per_second"].as_f64().unwrap() > 0.0);
    let fanout = report("fanout --count 500 --batch 50 --groups 4");
    assert_measured(&fanout, 2000);
    assert_clean(&fanout, 2000);
}

fn assert_measured_throughput(report: &Value, messages: u64) {
    assert_eq!(report["messages"], messages);
    assert!(report["messages_per_second"].as_f64().unwrap() > 0.0);
    assert_clean(report, messages);
}

#[test]
fn each_message_may_have_its_own_acknowledgement_or_none() {
    let each = report("pop --count 300 --batch 10 --partitions 6 --connections 3 --ack each");
    assert_eq!((each["latency_of"].as_str(), each["requests"].as_u64()), (Some("acknowledgement"), Some(300)));
    assert_clean(&each, 300);
    assert_clean(&report("pop --count 300 --batch 10 --partitions 6 --connections 3 --ack auto"), 300);
}

#[test]
fn connections_may_share_a_partition_whose_batches_stay_closed() {
    // Answers of few messages each, so that all connections get some.
    assert_clean(&report("pop --count 20000 --batch 10 --connections 4 --pop-messages 50 --raw"), 20_000);
}

#[test]
fn filters_are_checked_from_end_to_end() {
    let arguments = ["bench", "e2e", "--count", "1000", "--batch", "10", "--groups", "3", "--serve", "-o", "json"];
    let filters = ["--filter", ":amount >= 500", "--filter", ":region = \"eu-west\""];
    let report = json_of(&fanlog().args(arguments).args(filters).output().unwrap());
    let messages = report["messages"].as_u64().unwrap();
    assert!((500..2500).contains(&messages), "half, a quarter and half again of 1000, not {messages}");
    assert_clean(&report, messages);
    assert_eq!(report["latency_of"], "delivery");
    assert!(report["push_latency_us"]["p50"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_backlog_is_drained_by_a_choosy_group_too() {
    let arguments = ["bench", "fanout", "--count", "30000", "--size", "64", "--groups", "2", "--serve", "-o", "json"];
    for way in [&[][..], &["--raw"], &["--pack"]] {
        let filters = ["--filter", "", "--filter", ":bucket = \"0042\""];
        let report = json_of(&fanlog().args(arguments).args(filters).args(way).output().unwrap());
        // Four connections push 7,500 messages each, of which one is in bucket 42.
        assert_eq!(report["messages"], 30_004);
        let drains = report["drains"].as_array().unwrap();
        let messages: Vec<_> = drains.iter().map(|drain| drain["messages"].as_u64().unwrap()).collect();
        assert_eq!(messages, [30_000, 4]);
        assert!(drains.iter().all(|drain| drain["seconds"].as_f64().unwrap() > 0.0), "{drains:?}");
        assert_eq!(report["checks"]["ok"], true);
    }
}

#[test]
fn what_makes_no_sense_is_the_users_mistake() {
    for line in ["push --size 10", "pop --duration 1s", "push --durability always", "push --filter ((", "nothing"] {
        let arguments: Vec<&str> = ["bench"].into_iter().chain(line.split(' ')).collect();
        let output = fanlog().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {}", text_of(&output.stderr));
    }
    let nobody = fanlog().args(["--server", "127.0.0.1:1", "bench", "push"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(2), "{}", text_of(&nobody.stderr));
}

/// A server that others use too.
struct Server {
    program: Program,
    _directory: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { program: Launch::in_directory(directory.path()).start(), _directory: directory }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.program.command(&["-o", "json"]).args(arguments).output().unwrap()
    }
}

#[test]
fn a_queue_that_others_use_is_left_as_it_was() {
    let server = Server::start();
    assert!(server.run(&["push", "q", "hello", "--partition", "p0000000"]).status.success());
    let arguments = ["bench", "pop", "--queue", "q", "--count", "200", "--batch", "10"];
    for _ in 0..2 {
        let report = json_of(&server.run(&arguments));
        assert_clean(&report, 200);
        assert_eq!(report["server"]["pid"], server.program.pid(), "the server of this machine is found by its port");
    }
    let queue = json_of(&server.run(&["queue", "show", "q"]));
    assert_eq!(queue["stats"]["messages"], 401);
    let groups = json_of(&server.run(&["group", "list", "q"]));
    assert!(!groups.to_string().contains("bench-"), "{groups}");
    let deleted = json_of(&server.run(&["bench", "push", "--queue", "gone", "--count", "10", "--delete"]));
    assert_clean(&deleted, 10);
    assert!(!server.run(&["queue", "show", "gone"]).status.success());
}

/// Stands between the measurement and the server, and changes one byte of one message.
fn tampering_proxy(target: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let target = target.to_owned();
    thread::spawn(move || {
        for near in listener.incoming() {
            let (near, far) = (near.unwrap(), TcpStream::connect(&target).unwrap());
            let (near_reader, far_writer) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            thread::spawn(move || copy(near_reader, far_writer, true));
            thread::spawn(move || copy(far, near, false));
        }
    });
    address
}

fn copy(mut from: TcpStream, mut to: TcpStream, mut tampers: bool) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        let note = buffer[..read].windows(9).position(|window| window == b",\"note\":\"");
        if let Some(note) = note.filter(|&note| tampers && note + 10 < read) {
            buffer[note + 9] ^= 1;
            tampers = false;
        }
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn a_changed_message_is_found_and_is_the_servers_fault() {
    let server = Server::start();
    let proxy = tampering_proxy(&server.program.address);
    for kind in ["push", "pop", "e2e"] {
        let arguments = ["--server", &proxy, "-o", "json", "bench", kind, "--queue", kind, "--connections", "1"];
        let output = fanlog().args(arguments).args(["--count", "400", "--batch", "4", "--groups", "1"]).output().unwrap();
        // A backlog is pushed over four connections, each of which is tampered with; what is not whole is lost.
        let tampered = if kind == "pop" { 4 } else { 1 };
        assert_eq!(output.status.code(), Some(2), "{kind}: {} {}", text_of(&output.stdout), text_of(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let checks = &report["checks"];
        assert_eq!(
            (checks["ok"].as_bool(), checks["altered"].as_u64(), checks["lost"].as_u64()),
            (Some(false), Some(tampered), Some(tampered)),
            "{checks}"
        );
    }
}
