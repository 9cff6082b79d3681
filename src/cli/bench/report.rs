//! What a run found, as it is written.

use std::time::{Duration, Instant};

use fanlog::model::{Compression, QueueSettings, QueueStats};
use fanlog::record::BatchBuilder;
use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::Value;

use super::super::settings;
use super::Kind;
use super::check::Faults;
use super::consumer::AckMode;
use super::drive::Tally;
use super::measure::Costs;
use super::plan::Plan;
use super::process::{Memory, Sample};

/// Time for each of the two measurements of zstd.
const ZSTD_TIME: Duration = Duration::from_millis(100);

/// What a run found.
pub struct Measured {
    pub tally: Tally,
    pub costs: Costs,
    pub faults: Faults,
    pub checked: u64,
    /// Messages that were pushed, warm-up included.
    pub pushed: u64,
    /// Counters of the queue before and after pushing.
    pub pushing: (QueueStats, QueueStats),
    /// The same of reading a backlog.
    pub reading: Option<(QueueStats, QueueStats)>,
    pub push_latency: Option<Histogram<u64>>,
    pub zstd: Option<ZstdAlone>,
    pub drains: Vec<Drain>,
}

/// The document.
#[derive(Debug, Serialize)]
pub struct Report {
    kind: &'static str,
    queue: String,
    size: usize,
    batch: u32,
    connections: u32,
    in_flight: usize,
    partitions: u32,
    groups: u32,
    filters: Vec<String>,
    durability: Value,
    compression: Value,
    rate: Option<f64>,
    messages: u64,
    bytes: u64,
    requests: u64,
    seconds: f64,
    messages_per_second: f64,
    bytes_per_second: f64,
    /// Where batches came as they are stored.
    stored_bytes_per_second: Option<f64>,
    latency_of: &'static str,
    latency_us: Latency,
    push_latency_us: Option<Latency>,
    server: Option<Server>,
    client_cpu_seconds: Option<f64>,
    disk: Disk,
    reading: Option<Reading>,
    /// Where a backlog is read: each group on its own.
    drains: Vec<Drain>,
    compression_ratio: Option<f64>,
    zstd_alone: Option<ZstdAlone>,
    pub checks: Checks,
}

/// Microseconds.
#[derive(Debug, Serialize)]
struct Latency {
    min: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
    mean: f64,
}

#[derive(Debug, Serialize)]
struct Server {
    pid: u32,
    cpu_seconds: f64,
    /// Processors busy with it in the mean.
    cpus: f64,
    cpu_us_per_message: Option<f64>,
    #[serde(flatten)]
    memory: Memory,
}

/// What pushing wrote.
#[derive(Debug, Serialize)]
struct Disk {
    bytes_per_message: Option<f64>,
    bytes_written: u64,
    log_bytes: u64,
    commits: u64,
    messages_per_commit: Option<f64>,
    syncs: u64,
    sync_us_mean: Option<f64>,
}

/// What reading a backlog wrote.
#[derive(Debug, Serialize)]
struct Reading {
    bytes_written: u64,
    bytes_per_message: Option<f64>,
    commits: u64,
    syncs: u64,
}

/// How long a group took to read a backlog.
#[derive(Debug, Serialize)]
pub struct Drain {
    pub filter: String,
    pub messages: u64,
    /// From the beginning to its last message, all groups reading at once; `None` if not all came.
    pub seconds: Option<f64>,
}

/// What became of the messages.
#[derive(Debug, Serialize)]
pub struct Checks {
    pub ok: bool,
    checked: u64,
    #[serde(flatten)]
    faults: Faults,
}

/// zstd on the same batches, on one processor and with nothing beside it.
#[derive(Debug, Serialize)]
pub struct ZstdAlone {
    ratio: f64,
    bytes_per_message: f64,
    compress_messages_per_second: f64,
    compress_bytes_per_second: f64,
    decompress_messages_per_second: f64,
    decompress_bytes_per_second: f64,
}

impl Report {
    /// Puts the document together.
    pub fn new(plan: &Plan, settings: &QueueSettings, pid: Option<u32>, measured: Measured) -> Self {
        let Measured { tally, costs, faults, checked, pushed, pushing, reading, push_latency, zstd, drains } = measured;
        let seconds = tally.last.map_or(costs.elapsed, |last| last.saturating_duration_since(costs.measure_from)).as_secs_f64();
        let per_second = |number: u64| if seconds > 0.0 { rounded(number as f64 / seconds) } else { 0.0 };
        let is_reading = plan.reads_backlog();
        let settings = settings::to_json(settings);
        let disk = Disk::new(&pushing.0, &pushing.1, pushed);
        let payload_bytes = pushed * plan.size as u64;
        Self {
            kind: plan.kind.name(),
            queue: plan.queue.clone(),
            size: plan.size,
            batch: plan.batch,
            connections: if is_reading { plan.read_connections } else { plan.push_connections },
            in_flight: if is_reading { plan.read_in_flight } else { plan.push_in_flight },
            partitions: plan.partitions,
            groups: plan.groups,
            filters: plan.filters.iter().map(|(text, _)| text.clone()).collect(),
            durability: settings["durability"].clone(),
            compression: settings["compression"].clone(),
            rate: plan.rate,
            messages: tally.messages,
            bytes: tally.bytes,
            requests: tally.requests,
            seconds,
            messages_per_second: per_second(tally.messages),
            bytes_per_second: per_second(tally.bytes),
            stored_bytes_per_second: (tally.stored_bytes > 0).then(|| per_second(tally.stored_bytes)),
            latency_of: match (plan.kind, plan.ack) {
                (Kind::E2e, _) => "delivery",
                (Kind::Push | Kind::Latency, _) => "push",
                (Kind::Pop | Kind::Fanout, AckMode::Each) => "acknowledgement",
                (Kind::Pop | Kind::Fanout, _) => "pop",
            },
            latency_us: Latency::of(&tally.latency),
            push_latency_us: push_latency.as_ref().map(Latency::of),
            server: pid.zip(costs.server).map(|(pid, samples)| Server::new(pid, samples, costs.elapsed, tally.messages)),
            client_cpu_seconds: costs.client.map(|(before, after)| rounded(after.cpu_seconds - before.cpu_seconds)),
            compression_ratio: ratio(payload_bytes, disk.bytes_written),
            disk,
            reading: reading.map(|(before, after)| Reading::new(&before, &after, tally.messages)),
            drains,
            zstd_alone: zstd,
            checks: Checks { ok: faults.is_none(), checked, faults },
        }
    }
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Self {
        let microseconds = |nanoseconds: u64| nanoseconds as f64 / 1000.0;
        let at = |quantile: f64| microseconds(histogram.value_at_quantile(quantile));
        Self {
            min: microseconds(histogram.min()),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: microseconds(histogram.max()),
            mean: rounded(histogram.mean() / 1000.0),
        }
    }
}

impl Server {
    fn new(pid: u32, (before, after): (Sample, Sample), elapsed: Duration, messages: u64) -> Self {
        let cpu_seconds = after.cpu_seconds - before.cpu_seconds;
        Self {
            pid,
            cpu_seconds: rounded(cpu_seconds),
            cpus: rounded(cpu_seconds / elapsed.as_secs_f64().max(1e-9)),
            cpu_us_per_message: (messages > 0).then(|| rounded(cpu_seconds * 1e6 / messages as f64)),
            memory: after.memory,
        }
    }
}

impl Disk {
    fn new(before: &QueueStats, after: &QueueStats, messages: u64) -> Self {
        let commits = after.commits.saturating_sub(before.commits);
        let bytes_written = after.bytes_written.saturating_sub(before.bytes_written);
        let syncs = after.syncs.saturating_sub(before.syncs);
        Self {
            bytes_per_message: ratio(bytes_written, messages),
            bytes_written,
            log_bytes: after.log_bytes,
            commits,
            messages_per_commit: ratio(messages, commits),
            syncs,
            sync_us_mean: ratio(after.sync_time_us.saturating_sub(before.sync_time_us), syncs),
        }
    }
}

impl Reading {
    fn new(before: &QueueStats, after: &QueueStats, messages: u64) -> Self {
        let bytes_written = after.bytes_written.saturating_sub(before.bytes_written);
        Self {
            bytes_written,
            bytes_per_message: ratio(bytes_written, messages),
            commits: after.commits.saturating_sub(before.commits),
            syncs: after.syncs.saturating_sub(before.syncs),
        }
    }
}

impl ZstdAlone {
    /// Compresses and decompresses the same batch again and again; `None` if it does not shrink enough to be stored compressed.
    pub fn measure(builder: impl Fn() -> BatchBuilder, level: u8) -> Option<Self> {
        let count = u64::from(builder().count());
        let block = builder().finish(Compression::None).payload;
        let stored = builder().finish(Compression::Zstd { level });
        if stored.payload.len() >= block.len() {
            return None;
        }
        let mut compressor = zstd_safe::CCtx::create();
        let mut compressed = Vec::with_capacity(zstd_safe::compress_bound(block.len()));
        let compress = repeat(|| compressor.compress(&mut compressed, &block, level.into()).is_ok())?;
        let mut decompressor = zstd_safe::DCtx::create();
        let mut plain = Vec::with_capacity(block.len());
        let decompress = repeat(|| decompressor.decompress(&mut plain, &stored.payload).is_ok())?;
        Some(Self {
            ratio: ratio(block.len() as u64, stored.payload.len() as u64)?,
            bytes_per_message: ratio(stored.payload.len() as u64, count)?,
            compress_messages_per_second: rounded(compress * count as f64),
            compress_bytes_per_second: rounded(compress * block.len() as f64),
            decompress_messages_per_second: rounded(decompress * count as f64),
            decompress_bytes_per_second: rounded(decompress * block.len() as f64),
        })
    }
}

/// How often a second something can be done; `None` if it fails.
fn repeat(mut work: impl FnMut() -> bool) -> Option<f64> {
    let start = Instant::now();
    let mut times = 0u32;
    while start.elapsed() < ZSTD_TIME {
        if !work() {
            return None;
        }
        times += 1;
    }
    Some(f64::from(times) / start.elapsed().as_secs_f64())
}

fn ratio(number: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| rounded(number as f64 / of as f64))
}

/// With as many digits as mean something.
fn rounded(number: f64) -> f64 {
    if number.abs() >= 1000.0 { number.round() } else { (number * 1000.0).round() / 1000.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_mean_something() {
        assert_eq!([rounded(123_456.7), rounded(0.123_456), rounded(0.0)], [123_457.0, 0.123, 0.0]);
        assert_eq!((ratio(7, 2), ratio(7, 0)), (Some(3.5), None));
    }

    #[test]
    fn percentiles_are_microseconds() {
        let mut histogram = Histogram::new_with_bounds(1, 1_000_000_000, 3).unwrap();
        (1..=1000u64).for_each(|number| histogram.record(number * 1000).unwrap());
        let latency = Latency::of(&histogram);
        assert!((latency.p50 - 500.0).abs() < 1.0 && (latency.p99 - 990.0).abs() < 1.0, "{latency:?}");
        assert!((latency.max - 1000.0).abs() < 1.0 && (latency.mean - 500.5).abs() < 1.0, "{latency:?}");
    }
}
