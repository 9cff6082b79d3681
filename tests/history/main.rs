//! Histories of concurrent clients of the real binary under faults, and a checker that knows only what was promised to them.
//!
//! `FANLOG_HISTORIES` says how many (1 without it), `FANLOG_SEED` which one is the first; timing is the machine's.
//! Linux only, since it reads `/proc`.

mod check;
mod consumers;
#[allow(dead_code, reason = "other programs use the rest")]
#[path = "../support/filter_model.rs"]
mod filter_model;
mod history;
mod nemesis;
mod producers;
#[allow(dead_code, reason = "other programs use the rest")]
#[path = "../support/program.rs"]
mod program;
mod proxy;
#[path = "../process/random.rs"]
mod random;
mod recorder;
mod run;
mod scene;
mod worker;

use std::time::Duration;

use check::Violation;
use history::{Call, Event, History, Outcome};

/// How long things break in one history.
const FAULTY: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_history_contradicts_a_promise() {
    let histories: u64 =
        std::env::var("FANLOG_HISTORIES").ok().map_or(1, |text| text.parse().expect("FANLOG_HISTORIES is a number"));
    let (first, _) = random::random_from_environment();
    for seed in first..first + histories {
        let made = run::make(seed, FAULTY).await;
        println!("FANLOG_SEED={seed}: {}, {:?}", totals(&made.history), made.deeds);
        let violations = check::check(&made.history);
        if !violations.is_empty() {
            let filters: Vec<_> = made.scene.rules.iter().map(|rule| (rule.name, &rule.filter)).collect();
            panic!(
                "FANLOG_SEED={seed}: {} contradictions, filters {filters:#?}\n{}",
                violations.len(),
                shown(&made.history, &violations)
            );
        }
    }
}

/// How much a history holds.
fn totals(history: &History) -> String {
    let count = |is_counted: fn(&Outcome) -> bool| history.events.iter().filter(|event| is_counted(&event.outcome)).count();
    let messages = history.events.iter().flat_map(|event| event.parts()).map(|part| part.sent.len()).sum::<usize>();
    let deliveries = history.events.iter().map(|event| match &event.call {
        Call::Pop { claims, .. } => claims.iter().map(|claim| claim.messages.len()).sum(),
        _ => 0,
    });
    format!(
        "{} calls ({} refused, {} without an answer), {messages} messages sent, {} delivered",
        history.events.len(),
        count(|outcome| matches!(outcome, Outcome::Refused(_))),
        count(|outcome| matches!(outcome, Outcome::Unknown(_))),
        deliveries.sum::<usize>()
    )
}

/// The first contradictions with their events.
fn shown(history: &History, violations: &[Violation]) -> String {
    let mut text = String::new();
    for violation in violations.iter().take(8) {
        text += &format!("{:?}: {}\n", violation.rule, violation.says);
        for index in &violation.events {
            let Event { client, invoked, ended, outcome, call } = &history.events[*index];
            let call: String = format!("{call:?}").chars().take(1_500).collect();
            text += &format!("    {client} {invoked}..{ended} {outcome:?} {call}\n");
        }
    }
    text
}
