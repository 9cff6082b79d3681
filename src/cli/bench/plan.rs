//! Checked options of a run.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fanlog::filter::Filter;
use fanlog::model::SettingsPatch;

use super::super::settings::parse_patch;
use super::super::time::parse_duration;
use super::consumer::{AckMode, Way};
use super::payload::{Content, PAYLOAD_BYTES_MIN};
use super::{BenchArguments, Kind};

/// Partitions have names of seven digits.
const PARTITIONS_MAX: u32 = 10_000_000;
/// Connections that push a backlog.
const BACKLOG_CONNECTIONS: u32 = 4;
/// Pushes of each of them that wait for an answer.
const BACKLOG_IN_FLIGHT: usize = 4;

/// What a run does, with every option decided.
#[derive(Debug)]
pub struct Plan {
    pub kind: Kind,
    pub queue: String,
    pub size: usize,
    pub batch: u32,
    /// Connections that push.
    pub push_connections: u32,
    /// Connections that read, for each group.
    pub read_connections: u32,
    /// Messages after the warm-up; `None` if the duration bounds the run.
    pub count: Option<u64>,
    pub duration: Option<Duration>,
    pub warmup: Duration,
    pub rate: Option<f64>,
    pub push_in_flight: usize,
    pub read_in_flight: usize,
    pub partitions: u32,
    pub groups: u32,
    pub filters: Vec<(String, Filter)>,
    pub has_attributes: bool,
    pub settings: SettingsPatch,
    pub content: Content,
    pub is_packed: bool,
    pub is_raw: bool,
    pub way: Way,
    pub ack: AckMode,
    pub pop_bytes: u32,
    pub pop_messages: u32,
    pub pop_partitions: u32,
    pub threads: usize,
    pub serve: bool,
    pub serve_in: Option<PathBuf>,
    pub delete: bool,
}

impl Plan {
    /// Takes arguments apart; refuses what does not make sense.
    pub fn of(kind: Kind, arguments: BenchArguments) -> Result<Self> {
        let reads_backlog = matches!(kind, Kind::Pop | Kind::Fanout);
        let batch = arguments.batch.unwrap_or(if kind == Kind::Latency { 1 } else { 100 });
        let connections = u32::from(arguments.connections.unwrap_or(if kind == Kind::Push { 4 } else { 1 }));
        let groups = arguments.groups.unwrap_or(match kind {
            Kind::Fanout => 16,
            Kind::Pop | Kind::E2e => 1,
            Kind::Push | Kind::Latency => 0,
        });
        let duration = arguments.duration.as_deref().map(parse_duration).transpose()?;
        let count = match duration {
            Some(_) => None,
            None => Some(arguments.count.unwrap_or(if kind == Kind::Latency { 10_000 } else { 200_000 })),
        };
        let warmup = parse_duration(&arguments.warmup)?;
        let push_in_flight =
            if reads_backlog { BACKLOG_IN_FLIGHT } else { arguments.in_flight.unwrap_or(if batch == 1 { 1 } else { 4 }) };
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let is_timing = matches!(kind, Kind::Latency | Kind::E2e);
        let filters = arguments
            .filter
            .iter()
            .map(|text| Ok((text.clone(), Filter::parse(text).with_context(|| format!("filter {text:?}"))?)))
            .collect::<Result<Vec<_>>>()?;
        let plan = Self {
            kind,
            size: arguments.size,
            batch,
            push_connections: if reads_backlog { BACKLOG_CONNECTIONS } else { connections },
            read_connections: connections,
            count,
            duration,
            warmup,
            rate: arguments.rate,
            push_in_flight,
            read_in_flight: arguments.in_flight.unwrap_or(1),
            partitions: arguments.partitions,
            groups,
            has_attributes: arguments.attributes || !filters.is_empty(),
            filters,
            settings: settings(&arguments)?,
            content: arguments.payload,
            is_packed: arguments.pack,
            is_raw: arguments.raw,
            way: arguments.via.unwrap_or(if kind == Kind::E2e { Way::Subscription } else { Way::Pop }),
            ack: arguments.ack,
            pop_bytes: arguments.pop_bytes,
            pop_messages: arguments.pop_messages,
            pop_partitions: arguments.pop_partitions,
            threads: arguments.threads.unwrap_or(if is_timing { 1 } else { processors }),
            serve: arguments.serve,
            serve_in: arguments.serve_in,
            delete: arguments.delete,
            queue: arguments.queue,
        };
        plan.check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<()> {
        if self.size < PAYLOAD_BYTES_MIN {
            bail!("--size is {PAYLOAD_BYTES_MIN} at least: a message carries its number, its time and a checksum");
        }
        if self.batch == 0
            || self.push_connections == 0
            || self.push_in_flight == 0
            || self.read_in_flight == 0
            || self.threads == 0
        {
            bail!("--batch, --connections, --in-flight and --threads are 1 at least");
        }
        if !(1..=PARTITIONS_MAX).contains(&self.partitions) {
            bail!("--partitions is a number from 1 to {PARTITIONS_MAX}");
        }
        if self.groups == 0 && matches!(self.kind, Kind::Pop | Kind::Fanout | Kind::E2e) {
            bail!("--groups is 1 at least: somebody must read");
        }
        if self.count == Some(0) {
            bail!("--count is 1 at least");
        }
        if self.reads_backlog() && (self.duration.is_some() || self.rate.is_some()) {
            bail!("--duration and --rate are not for {}: it reads a backlog of --count messages", self.kind.name());
        }
        if self.rate.is_some_and(|rate| !(rate > 0.0 && rate.is_finite())) {
            bail!("--rate is above 0");
        }
        if self.is_raw && (!self.reads_backlog() || self.ack == AckMode::Each) {
            bail!("--raw is for pop and fanout, and not with --ack each");
        }
        if self.pop_bytes == 0 || self.pop_messages == 0 || !(1..=64).contains(&self.pop_partitions) {
            bail!("--pop-bytes and --pop-messages are 1 at least, --pop-partitions is 1 to 64");
        }
        Ok(())
    }

    /// Whether a backlog is pushed first, and what is measured is its reading.
    pub fn reads_backlog(&self) -> bool {
        matches!(self.kind, Kind::Pop | Kind::Fanout)
    }

    /// The filter of a group.
    pub fn filter_of(&self, group: usize) -> Option<&(String, Filter)> {
        self.filters.get(group % self.filters.len().max(1))
    }

    /// Time between two pushes of a connection.
    pub fn interval(&self) -> Option<Duration> {
        let pushes_per_second = self.rate? / f64::from(self.batch) / f64::from(self.push_connections);
        Some(Duration::from_secs_f64((1.0 / pushes_per_second).min(3600.0)))
    }

    /// A connection's share of the messages.
    pub fn share(&self, connection: u32) -> Option<u64> {
        let (count, connections) = (self.count?, u64::from(self.push_connections));
        Some(count / connections + u64::from(u64::from(connection) < count % connections))
    }
}

fn settings(arguments: &BenchArguments) -> Result<SettingsPatch> {
    let words: Vec<String> = [("durability", &arguments.durability), ("compression", &arguments.compression)]
        .into_iter()
        .filter_map(|(key, value)| Some(format!("{key}={}", value.as_ref()?)))
        .collect();
    parse_patch(&words)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::BenchCommand;
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: BenchCommand,
    }

    fn plan(line: &str) -> Result<Plan> {
        let command = Line::try_parse_from(["bench"].into_iter().chain(line.split(' ')))?.command;
        match command {
            BenchCommand::Push(arguments) => Plan::of(Kind::Push, arguments),
            BenchCommand::Latency(arguments) => Plan::of(Kind::Latency, arguments),
            BenchCommand::Pop(arguments) => Plan::of(Kind::Pop, arguments),
            BenchCommand::Fanout(arguments) => Plan::of(Kind::Fanout, arguments),
            BenchCommand::E2e(arguments) => Plan::of(Kind::E2e, arguments),
        }
    }

    #[test]
    fn each_kind_has_fitting_defaults() {
        let push = plan("push").unwrap();
        assert_eq!((push.batch, push.push_connections, push.push_in_flight, push.groups), (100, 4, 4, 0));
        let latency = plan("latency").unwrap();
        assert_eq!((latency.batch, latency.push_connections, latency.push_in_flight, latency.threads), (1, 1, 1, 1));
        let fanout = plan("fanout --connections 2").unwrap();
        assert_eq!((fanout.groups, fanout.read_connections, fanout.push_connections), (16, 2, 4));
        assert_eq!(plan("e2e").unwrap().way, Way::Subscription);
        assert!(plan("pop --filter :amount>10").unwrap().has_attributes);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "push --size 63",
            "push --batch 0",
            "push --partitions 0",
            "pop --groups 0",
            "pop --duration 5s",
            "fanout --rate 5",
            "push --rate 0",
            "push --rate nan",
            "push --raw",
            "pop --raw --ack each",
            "pop --pop-partitions 65",
            "push --filter (",
            "push --durability fsync",
            "push --count 5 --duration 5s",
            "push --duration 5",
        ] {
            assert!(plan(line).is_err(), "{line}");
        }
    }

    #[test]
    fn shares_add_up_and_a_rate_is_divided() {
        let plan = plan("push --count 10 --connections 3 --rate 600 --batch 2").unwrap();
        assert_eq!((0..3).filter_map(|connection| plan.share(connection)).collect::<Vec<_>>(), [4, 3, 3]);
        assert_eq!(plan.interval(), Some(Duration::from_millis(10)));
    }
}
