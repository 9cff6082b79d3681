//! A ring of samples for the status routes: 24 hours of the server and of its queues, in memory, bounded.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::engine::Engine;
use crate::model::{Now, QueueStats};

use super::lags::Lags;
use super::{Gateway, process};

const SPAN_US: u64 = 24 * 3_600 * 1_000_000;

/// Samples that a ring holds at most, whatever the interval.
const SAMPLES_MAX: usize = 8_640;

/// Queues with a series of their own; those that moved most when the place was free.
const QUEUES_MAX: usize = 128;

/// Time between two samples of a queue: coarser than the server's, since there are many.
const QUEUE_INTERVAL_US: u64 = 60 * 1_000_000;

/// The state at one moment: counters that only grow, and gauges.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sample {
    pub(super) at_us: u64,
    pub(super) stats: QueueStats,
    pub(super) pending_bytes: u64,
    pub(super) waiting_pops: u64,
    pub(super) disk_free_bytes: u64,
    pub(super) lag: u64,
    pub(super) lag_time_us: u64,
    /// Processor time of the process, microseconds.
    pub(super) cpu_us: u64,
    pub(super) memory_bytes: u64,
    pub(super) connections: u64,
    pub(super) errors: u64,
}

/// What happened between two samples.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    /// The later sample: its gauges hold.
    pub(super) last: Sample,
    pub(super) seconds: f64,
    pub(super) pushed: u64,
    pub(super) popped: u64,
    pub(super) acked: u64,
    pub(super) dropped: u64,
    pub(super) duplicates: u64,
    pub(super) lost_unread: u64,
    pub(super) commits: u64,
    pub(super) bytes_written: u64,
    pub(super) syncs: u64,
    pub(super) sync_time_us: u64,
    pub(super) cpu_us: u64,
    pub(super) errors: u64,
}

impl Point {
    fn between(before: &Sample, after: &Sample) -> Self {
        let (old, new) = (&before.stats, &after.stats);
        Self {
            last: *after,
            seconds: after.at_us.saturating_sub(before.at_us) as f64 / 1e6,
            // A queue that was deleted takes its counters with it: less than before counts as nothing.
            pushed: new.messages_pushed.saturating_sub(old.messages_pushed),
            popped: new.messages_popped.saturating_sub(old.messages_popped),
            acked: new.messages_acked.saturating_sub(old.messages_acked),
            dropped: new.messages_dropped.saturating_sub(old.messages_dropped),
            duplicates: new.duplicates.saturating_sub(old.duplicates),
            lost_unread: new.messages_lost_unread.saturating_sub(old.messages_lost_unread),
            commits: new.commits.saturating_sub(old.commits),
            bytes_written: new.bytes_written.saturating_sub(old.bytes_written),
            syncs: new.syncs.saturating_sub(old.syncs),
            sync_time_us: new.sync_time_us.saturating_sub(old.sync_time_us),
            cpu_us: after.cpu_us.saturating_sub(before.cpu_us),
            errors: after.errors.saturating_sub(before.errors),
        }
    }

    /// So many in each second.
    pub(super) fn rate(&self, count: u64) -> f64 {
        if self.seconds > 0.0 { (count as f64 / self.seconds * 100.0).round() / 100.0 } else { 0.0 }
    }
}

/// Messages in each second.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rates {
    pub(super) pushed: f64,
    pub(super) popped: f64,
    pub(super) acked: f64,
}

type Ring = VecDeque<Sample>;

/// All rings.
pub(super) struct Series {
    rings: Mutex<Rings>,
}

#[derive(Default)]
struct Rings {
    server: Ring,
    queues: BTreeMap<String, Ring>,
}

impl Series {
    pub(super) fn new() -> Self {
        Self { rings: Mutex::default() }
    }

    /// The server's points between two times, one for each bucket that has samples.
    pub(super) fn server(&self, from_us: u64, to_us: u64, bucket_us: u64) -> Vec<Point> {
        points(&self.rings().server, from_us, to_us, bucket_us)
    }

    /// The same for each queue that has a series.
    pub(super) fn queues(&self, from_us: u64, to_us: u64, bucket_us: u64) -> BTreeMap<String, Vec<Point>> {
        let rings = self.rings();
        rings.queues.iter().map(|(name, ring)| (name.clone(), points(ring, from_us, to_us, bucket_us))).collect()
    }

    /// The rates of about the last minute.
    pub(super) fn last_minute(&self) -> Rates {
        let rings = self.rings();
        let Some(last) = rings.server.back() else { return Rates::default() };
        let since = last.at_us.saturating_sub(60_000_000);
        let Some(first) = rings.server.iter().rev().take_while(|sample| sample.at_us >= since).last() else {
            return Rates::default();
        };
        let point = Point::between(first, last);
        Rates { pushed: point.rate(point.pushed), popped: point.rate(point.popped), acked: point.rate(point.acked) }
    }

    /// Seconds since the last sample.
    pub(super) fn age_s(&self, now_us: u64) -> u64 {
        self.rings().server.back().map_or(0, |sample| now_us.saturating_sub(sample.at_us) / 1_000_000)
    }

    /// Takes a sample now.
    pub(super) fn add(&self, server: Sample, queues: Vec<(String, Sample)>) {
        let mut rings = self.rings();
        push(&mut rings.server, server);
        rings.queues.retain(|name, _| queues.iter().any(|(live, _)| live == name));
        for (name, sample) in queues {
            let is_known = rings.queues.contains_key(&name);
            if !is_known && rings.queues.len() >= QUEUES_MAX {
                continue;
            }
            let ring = rings.queues.entry(name).or_default();
            if ring.back().is_none_or(|last| sample.at_us.saturating_sub(last.at_us) >= QUEUE_INTERVAL_US) {
                push(ring, sample);
            }
        }
    }

    fn rings(&self) -> std::sync::MutexGuard<'_, Rings> {
        // Samples are whole or not there: a panic elsewhere leaves nothing half done.
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn push(ring: &mut Ring, sample: Sample) {
    let oldest = sample.at_us.saturating_sub(SPAN_US);
    while ring.len() >= SAMPLES_MAX || ring.front().is_some_and(|first| first.at_us < oldest) {
        ring.pop_front();
    }
    ring.push_back(sample);
}

fn points(ring: &Ring, from_us: u64, to_us: u64, bucket_us: u64) -> Vec<Point> {
    let bucket_us = bucket_us.max(1);
    let mut points: Vec<Point> = Vec::new();
    // The last sample of the bucket before: what a bucket's counts are measured from.
    let mut before: Option<Sample> = None;
    let mut samples = ring.iter().peekable();
    while let Some(sample) = samples.next() {
        let bucket = sample.at_us / bucket_us;
        if samples.peek().is_some_and(|next| next.at_us / bucket_us == bucket && next.at_us <= to_us) {
            // Not the last one of its bucket; but the very first sample is where counting begins.
            before = before.or(Some(*sample));
            continue;
        }
        if sample.at_us > to_us {
            break;
        }
        if sample.at_us >= from_us {
            points.push(Point::between(before.as_ref().unwrap_or(sample), sample));
        }
        before = Some(*sample);
    }
    points
}

/// Samples until it is aborted.
pub(super) async fn sample(gateway: Arc<Gateway>) {
    let mut ticks = tokio::time::interval(gateway.options.sample_interval.max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        take(&gateway).await;
    }
}

/// Takes one sample.
pub(super) async fn take(gateway: &Arc<Gateway>) {
    let shared = gateway.clone();
    let (connections, errors) = (gateway.metrics.connections(), gateway.metrics.errors());
    let taken = gateway
        .blocking(move || {
            // The series are everybody's: whoever asks for a sample, it is of all queues.
            let (server, queues) = read(&shared.whole, &shared.lags, connections, errors);
            shared.series.add(server, queues);
            Ok(())
        })
        .await;
    if let Err(error) = taken {
        tracing::warn!("no sample for the status series: {}", error.text);
    }
}

fn read(engine: &Engine, lags: &Lags, connections: u64, errors: u64) -> (Sample, Vec<(String, Sample)>) {
    let at_us = Now::read().wall_us;
    let stats = engine.stats();
    let mut server = Sample {
        at_us,
        stats: stats.total,
        pending_bytes: stats.pending_bytes,
        waiting_pops: stats.waiting_pops,
        disk_free_bytes: stats.disk_free_bytes,
        cpu_us: process::cpu_us(),
        memory_bytes: process::memory_bytes(),
        connections,
        errors,
        ..Sample::default()
    };
    let mut queues = Vec::new();
    let found = engine.queues();
    lags.keep_only(&found);
    for queue in found {
        let groups = lags.of(engine, &queue);
        let lag = groups.iter().map(|group| group.lag).max().unwrap_or(0);
        let lag_time_us = groups.iter().map(|group| group.lag_time_us).max().unwrap_or(0);
        server.lag += lag;
        server.lag_time_us = server.lag_time_us.max(lag_time_us);
        queues.push((queue.name, Sample { at_us, stats: queue.stats, lag, lag_time_us, ..Sample::default() }));
    }
    queues.sort_by_key(|(_, sample)| std::cmp::Reverse(sample.stats.messages_pushed));
    (server, queues)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64, pushed: u64) -> Sample {
        let stats = QueueStats { messages_pushed: pushed, ..QueueStats::default() };
        Sample { at_us: second * 1_000_000, stats, ..Sample::default() }
    }

    #[test]
    fn buckets_count_every_message_once() {
        let ring: Ring = (0..=60).map(|step| at(step * 10, step * 7)).collect();
        for bucket in [1, 10, 60, 300, 10_000] {
            let points = points(&ring, 0, u64::MAX, bucket * 1_000_000);
            assert_eq!(points.iter().map(|point| point.pushed).sum::<u64>(), 60 * 7, "bucket {bucket}");
        }
        let window = points(&ring, 100_000_000, 200_000_000, 10_000_000);
        assert_eq!((window.len(), window[0].pushed, window[0].seconds), (11, 7, 10.0));
        assert_eq!(window[0].rate(7), 0.7);
    }

    #[test]
    fn rings_and_queues_are_bounded_and_deleted_queues_go() {
        let series = Series::new();
        for second in 0..10_000 {
            series.add(at(second, second), vec![("q".to_owned(), at(second, second))]);
        }
        assert_eq!(series.rings().server.len(), SAMPLES_MAX);
        assert_eq!(series.rings().queues["q"].len(), 10_000 / 60 + 1);
        assert_eq!(series.last_minute().pushed, 1.0);
        let many = (0..1_000).map(|number| (format!("q{number}"), at(10_000, 1))).collect();
        series.add(at(10_000, 1), many);
        assert_eq!(series.rings().queues.len(), QUEUES_MAX);
        assert!(!series.rings().queues.contains_key("q"));
        // A day later only the newest sample is left.
        series.add(at(200_000, 1), Vec::new());
        assert_eq!(series.rings().server.len(), 1);
    }
}
