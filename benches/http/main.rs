//! The gateway against the binary protocol: the same work over both, in turns, on one server.
//!
//! `cargo bench --bench http [-- OPTIONS]` starts a server of its own. Connections are threads that wait for each answer before they
//! send the next request, over both protocols; requests are made before the clock starts. What an answer needs to be acknowledged is
//! read from it and no more, so that the load costs little. The binary protocol hands out batches as they are stored, compressed; so
//! pops over it are measured twice, the second time with a client that unpacks the messages. Over HTTP they come unpacked.
//!
//! Absolute figures belong to the machine; compare lines of one run. What stands behind a line's name are messages a second (median,
//! least, most), processor time of the server for each message, and the load's share of all processor time; at a ratio, the median,
//! least and most of the ratios of neighbouring measurements.

mod load;
mod server;
mod side;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fanlog::model::{Compression, Durability, SettingsPatch};
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
    settings: SettingsPatch,
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
            settings: SettingsPatch::default(),
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
                "--durability" => options.settings.durability = Some(durability(&value())),
                "--no-compression" => options.settings.compression = Some(Compression::None),
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
    let sides: [Arc<dyn Side>; 3] =
        [Arc::new(Http::new(&server.http)), Arc::new(Binary::new(&server.tcp, false)), Arc::new(Binary::new(&server.tcp, true))];
    println!("{:<24} {:>10} {:>10} {:>10} {:>8} {:>7}", "work, bytes, protocol", "median/s", "min/s", "max/s", "us", "load");
    for &size in &options.sizes {
        for &work in &options.work {
            // Only the answers of pops can be unpacked.
            let sides = sides.iter().filter(|side| work == Work::Pop || !side.unpacks());
            let wanted = |side: &&Arc<dyn Side>| options.side.as_deref().is_none_or(|only| only == side.name());
            compare(&options, &server, &sides.filter(wanted).cloned().collect::<Vec<_>>(), work, size);
        }
    }
}

/// Measures both sides in turns and prints a line for each, and how they compare.
fn compare(options: &Options, server: &Server, sides: &[Arc<dyn Side>], work: Work, size: usize) {
    let mut found: Vec<Vec<Outcome>> = sides.iter().map(|_| Vec::new()).collect();
    // The first pair warms up.
    for pair in 0..=options.pairs {
        let queue = format!("{work:?}-{size}-{pair}").to_lowercase();
        server.create_queue(&queue, options.settings.clone());
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
    for (outcomes, side) in found.iter().zip(sides) {
        report(work, size, side.name(), outcomes);
    }
    for (outcomes, side) in found.iter().zip(sides).skip(1) {
        let ratios = found[0].iter().zip(outcomes).map(|(http, other)| http.rate() / other.rate() * 100.0);
        let [median, min, max] = spread(ratios.collect());
        println!("{:<24} {median:>9.0}% {min:>9.0}% {max:>9.0}%", format!("{work:?} {size} http/{}", side.name()));
    }
}

/// Median, least and most.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [values[values.len() / 2], values[0], values[values.len() - 1]]
}

/// Prints a line.
fn report(work: Work, size: usize, side: &str, outcomes: &[Outcome]) {
    let [median, min, max] = spread(outcomes.iter().map(Outcome::rate).collect());
    let sum = |part: fn(&Outcome) -> f64| outcomes.iter().map(part).sum::<f64>();
    let (messages, server, own) =
        (sum(|outcome| outcome.messages as f64), sum(|outcome| outcome.server_cpu), sum(|outcome| outcome.own_cpu));
    println!(
        "{:<24} {median:>10.0} {min:>10.0} {max:>10.0} {:>8.2} {:>6.0}%",
        format!("{work:?} {size} {side}"),
        server * 1e6 / messages,
        own / (own + server) * 100.0
    );
}
