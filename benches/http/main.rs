//! The gateway against the binary protocol: the same work over both, in turns, on one server.
//!
//! `cargo bench --bench http [-- OPTIONS]` starts a server of its own. Connections are threads that wait for each answer before they
//! send the next request, over both protocols; requests are made before the clock starts. What an answer needs to be acknowledged is
//! read from it and no more, so that the load costs little; `--decode` has the binary side unpack its messages, as programs do.
//! Absolute figures belong to the machine; compare lines of one run.

mod load;
mod server;
mod side;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fanlog::model::{Durability, SettingsPatch};
use load::{Backlog, Outcome};
use server::Server;
use side::{Binary, Http, Side};

/// What a run does.
struct Options {
    sizes: Vec<usize>,
    batch: usize,
    connections: usize,
    pairs: usize,
    /// Time of each measurement of pushes.
    seconds: f64,
    /// Messages of each measurement of pops.
    backlog: usize,
    durability: Option<Durability>,
    decode: bool,
    work: Vec<Work>,
    /// Only one protocol, for a profile.
    side: Option<String>,
    server: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Work {
    Push,
    Pop,
}

impl Options {
    fn read() -> Self {
        let mut options = Self {
            sizes: vec![100, 256, 1024],
            batch: 100,
            connections: 8,
            pairs: 5,
            seconds: 1.0,
            backlog: 200_000,
            durability: None,
            decode: false,
            work: vec![Work::Push, Work::Pop],
            side: None,
            server: None,
        };
        let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument} needs a value"));
            match argument.as_str() {
                "--size" => options.sizes = value().split(',').map(number).collect(),
                "--batch" => options.batch = number(&value()),
                "--connections" => options.connections = number(&value()),
                "--pairs" => options.pairs = number(&value()),
                "--seconds" => options.seconds = value().parse().expect("a number of seconds"),
                "--backlog" => options.backlog = number(&value()),
                "--durability" => options.durability = Some(durability(&value())),
                "--decode" => options.decode = true,
                "--only" => options.work = vec![if value() == "push" { Work::Push } else { Work::Pop }],
                "--side" => options.side = Some(value()),
                "--server" => options.server = Some(value()),
                other => panic!("unknown option {other}"),
            }
        }
        options
    }
}

fn number(text: &str) -> usize {
    text.parse().unwrap_or_else(|_| panic!("{text} is not a number"))
}

fn durability(text: &str) -> Durability {
    match text {
        "sync" => Durability::Sync,
        "os" => Durability::Os,
        other => panic!("durability is sync or os, not {other}"),
    }
}

fn main() {
    let options = Options::read();
    let server = Server::start(options.server.as_deref());
    let mut sides: Vec<Arc<dyn Side>> =
        vec![Arc::new(Binary::new(&server.tcp, options.decode)), Arc::new(Http::new(&server.http))];
    sides.retain(|side| options.side.as_deref().is_none_or(|only| only == side.name()));
    println!(
        "{:<24} {:>10} {:>10} {:>10}  {:>22}  {:>16}",
        "work, bytes, protocol", "median/s", "min/s", "max/s", "server CPU us/message", "load's share"
    );
    for &size in &options.sizes {
        for &work in &options.work {
            compare(&options, &server, &sides, work, size);
        }
    }
}

/// Measures both sides in turns and prints a line for each, and how they compare.
fn compare(options: &Options, server: &Server, sides: &[Arc<dyn Side>], work: Work, size: usize) {
    let mut found: Vec<Vec<Outcome>> = sides.iter().map(|_| Vec::new()).collect();
    // The first pair warms up.
    for pair in 0..=options.pairs {
        let queue = format!("{work:?}-{size}-{pair}").to_lowercase();
        let patch = SettingsPatch { durability: options.durability, ..SettingsPatch::default() };
        server.create_queue(&queue, patch);
        if work == Work::Pop {
            Backlog { messages: options.backlog, batch: options.batch, size }.push(&server.tcp, &queue, options.connections);
        }
        for turn in 0..sides.len() {
            // Who comes first changes with each pair.
            let index = (pair + turn) % sides.len();
            let side = &sides[index];
            let outcome = match work {
                Work::Push => {
                    let until = Instant::now() + Duration::from_secs_f64(options.seconds);
                    load::push(server, side, &queue, options.connections, options.batch, size, until)
                }
                Work::Pop => load::pop(server, side, &queue, options.connections, options.batch, options.backlog),
            };
            if pair > 0 {
                found[index].push(outcome);
            }
        }
        server.delete_queue(&queue);
    }
    let medians: Vec<f64> = found.iter().zip(sides).map(|(outcomes, side)| report(work, size, side.name(), outcomes)).collect();
    if let [binary, http] = medians.as_slice() {
        println!("{:<24} {:>9.0}%", format!("{work:?} {size} http/binary"), http / binary * 100.0);
    }
}

/// Prints a line; the median rate.
fn report(work: Work, size: usize, side: &str, outcomes: &[Outcome]) -> f64 {
    let mut rates: Vec<f64> = outcomes.iter().map(Outcome::rate).collect();
    rates.sort_by(f64::total_cmp);
    let mut costs: Vec<f64> = outcomes.iter().map(|outcome| outcome.server_cpu * 1e6 / outcome.messages as f64).collect();
    costs.sort_by(f64::total_cmp);
    let (own, server): (f64, f64) =
        outcomes.iter().fold((0.0, 0.0), |sum, outcome| (sum.0 + outcome.own_cpu, sum.1 + outcome.server_cpu));
    let middle = rates.len() / 2;
    println!(
        "{:<24} {:>10.0} {:>10.0} {:>10.0}  {:>22.2}  {:>15.0}%",
        format!("{work:?} {size} {side}"),
        rates[middle],
        rates[0],
        rates[rates.len() - 1],
        costs[middle],
        own / (own + server) * 100.0
    );
    rates[middle]
}
