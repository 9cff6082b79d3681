//! What `ops/` looks at is what the server shows.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::server::{Server, ack, pop, push, unique};

/// The names of metrics in a text, without what a histogram or a counter adds.
fn metrics(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names = text.split(|c| !is_name(c)).filter(|word| word.starts_with("fanlog_"));
    let base = |name: &str| {
        let endings = ["_bucket", "_sum", "_count", "_total"];
        endings.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name).to_owned()
    };
    names.map(base).collect()
}

#[test]
fn the_dashboard_and_the_alerts_name_metrics_that_exist() {
    let server = Server::start();
    let mut client = server.client();
    let queue = unique("watched");
    push(&mut client, &queue, &[json!(1), json!(2)]);
    let message = pop(&mut client, &queue, "g", 1).remove(0);
    ack(&mut client, &message, "completed");
    let shown = metrics(&client.get("/metrics/prometheus").text);
    let ops = Path::new(env!("CARGO_MANIFEST_DIR")).join("ops");
    for file in ["alerts.yml", "grafana-dashboard.json"] {
        let used = metrics(&std::fs::read_to_string(ops.join(file)).unwrap());
        assert!(used.len() > 10, "{file}: {used:?}");
        let unknown: Vec<_> = used.difference(&shown).collect();
        assert!(unknown.is_empty(), "{file} names {unknown:?}, the server shows {shown:?}");
    }
}

/// Prometheus's own checker reads the rules and the dashboard's queries, where it is installed.
#[test]
fn prometheus_understands_the_rules_and_the_queries() {
    if Command::new("promtool").arg("--version").output().is_err() {
        eprintln!("promtool is not installed: not checked");
        return;
    }
    let ops = Path::new(env!("CARGO_MANIFEST_DIR")).join("ops");
    check_rules(&ops.join("alerts.yml"));
    let dashboard: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(ops.join("grafana-dashboard.json")).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let queries = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let rules: Vec<_> = queries
        .enumerate()
        .map(|(number, target)| {
            let query = target["expr"].as_str().unwrap().replace("$__rate_interval", "5m");
            json!({ "record": format!("query:{number}"), "expr": query })
        })
        .collect();
    assert!(rules.len() > 30);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("queries.yml");
    std::fs::write(&file, json!({ "groups": [{ "name": "dashboard", "rules": rules }] }).to_string()).unwrap();
    check_rules(&file);
}

fn check_rules(file: &Path) {
    let output = Command::new("promtool").args(["check", "rules"]).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
