//! Metrics for Prometheus: the engine's counters and distributions, read at each scrape, and the gateway's own counts and latencies.
//!
//! Labels are queue and group, bounded by [`HttpOptions::metrics_groups_max`](super::HttpOptions); never a partition.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::engine::{Engine, RecoveryReport};
use crate::model::{GroupProgress, GroupState, QueueInfo, QueueStats, ServerStats};

use super::ack::Verdict;
use super::error::{ApiError, Result};
use super::{Gateway, distributions, process};

/// The label of everything that has no series of its own.
const OTHERS: &str = "__others__";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    method: String,
    route: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteOnly {
    route: String,
}

/// What the gateway counts itself.
pub(super) struct Metrics {
    registry: Registry,
    requests: Family<RouteLabels, Counter>,
    request_seconds: Family<RouteOnly, Histogram>,
    pop_messages: Histogram,
    ack_refused: Counter,
    connections: Gauge<i64, AtomicI64>,
    request_count: AtomicU64,
    error_count: AtomicU64,
}

fn latency() -> Histogram {
    // 100 microseconds to about 52 seconds.
    Histogram::new(exponential_buckets(0.0001, 2.0, 20))
}

/// A connection, counted as long as it lives.
pub(super) struct CountedConnection(Gauge<i64, AtomicI64>);

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    pub(super) fn new() -> Self {
        let mut registry = Registry::with_prefix("fanlog_http");
        let requests = Family::<RouteLabels, Counter>::default();
        let request_seconds = Family::<RouteOnly, Histogram>::new_with_constructor(latency);
        let pop_messages = Histogram::new(exponential_buckets(1.0, 4.0, 8));
        let ack_refused = Counter::default();
        let connections = Gauge::default();
        registry.register("requests", "Requests by route template, method and status", requests.clone());
        registry.register_with_unit("request", "Time to the head of the answer", Unit::Seconds, request_seconds.clone());
        registry.register("pop_messages", "Messages of a pop that found some", pop_messages.clone());
        registry.register("acks_refused", "Acknowledgements that did not take effect", ack_refused.clone());
        registry.register("connections", "Open connections", connections.clone());
        Self {
            registry,
            requests,
            request_seconds,
            pop_messages,
            ack_refused,
            connections,
            request_count: AtomicU64::new(0),
            error_count: AtomicU64::new(0),
        }
    }

    pub(super) fn connection(&self) -> CountedConnection {
        self.connections.inc();
        CountedConnection(self.connections.clone())
    }

    pub(super) fn connections(&self) -> u64 {
        u64::try_from(self.connections.get()).unwrap_or(0)
    }

    pub(super) fn requests(&self) -> u64 {
        self.request_count.load(Ordering::Relaxed)
    }

    /// Answers with a status of 500 and more.
    pub(super) fn errors(&self) -> u64 {
        self.error_count.load(Ordering::Relaxed)
    }

    pub(super) fn request(&self, method: &Method, route: &str, status: StatusCode, elapsed: Duration) {
        self.request_count.fetch_add(1, Ordering::Relaxed);
        if status.is_server_error() {
            self.error_count.fetch_add(1, Ordering::Relaxed);
        }
        // A client may send any word as its method; only the usual ones become labels.
        let method = match *method {
            Method::GET | Method::POST | Method::PUT | Method::PATCH | Method::DELETE | Method::HEAD => method.as_str(),
            _ => "other",
        };
        let labels = RouteLabels { method: method.to_owned(), route: route.to_owned(), status: status.as_u16() };
        self.requests.get_or_create(&labels).inc();
        self.request_seconds.get_or_create(&RouteOnly { route: route.to_owned() }).observe(elapsed.as_secs_f64());
    }

    /// A pop went out with so many messages.
    pub(super) fn popped(&self, messages: u64) {
        self.pop_messages.observe(messages as f64);
    }

    pub(super) fn acked(&self, verdicts: &[Verdict]) {
        let refused = verdicts.iter().filter(|verdict| !verdict.success).count();
        self.ack_refused.inc_by(refused as u64);
    }
}

/// `GET /metrics/prometheus`
pub(super) async fn prometheus(State(gateway): State<Arc<Gateway>>) -> Result<Response> {
    let shared = gateway.clone();
    let text = gateway
        .blocking(move || {
            let mut text = String::new();
            let scraped = scrape(&shared);
            encode_registry(&mut text, &shared.metrics.registry)
                .and_then(|()| encode_registry(&mut text, &scraped))
                .and_then(|()| encode_eof(&mut text))
                .map_err(|_| ApiError::internal("metrics do not encode"))?;
            Ok(text)
        })
        .await?;
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, content_type)], text).into_response())
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    queue: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GroupLabels {
    queue: String,
    group: String,
}

type FloatCounter = Counter<f64, AtomicU64>;
type FloatGauge = Gauge<f64, AtomicU64>;

/// A metric of each queue: its name, what it says, and where it is read.
type QueueMetric = (&'static str, &'static str, fn(&QueueStats) -> f64);

/// Counters of each queue.
const QUEUE_COUNTERS: &[QueueMetric] = &[
    ("pushed_messages", "Messages ever stored", |stats| stats.messages_pushed as f64),
    ("removed_messages", "Messages ever stored that are gone: what retention removed", |stats| {
        stats.messages_pushed.saturating_sub(stats.messages) as f64
    }),
    ("dropped_messages", "Messages that no group took", |stats| stats.messages_dropped as f64),
    ("duplicate_messages", "Pushed messages that were stored before, since start", |stats| stats.duplicates as f64),
    ("popped_messages", "Messages handed out, since start", |stats| stats.messages_popped as f64),
    ("acked_messages", "Messages acknowledged, since start", |stats| stats.messages_acked as f64),
    ("lost_unread_messages", "Messages that retention removed unread, since start", |stats| stats.messages_lost_unread as f64),
    ("commits", "Group commits, since start", |stats| stats.commits as f64),
    ("written_bytes", "Bytes written by commits, since start", |stats| stats.bytes_written as f64),
    ("syncs", "Syncs, since start", |stats| stats.syncs as f64),
    ("sync_seconds", "Time spent in syncs, since start", |stats| stats.sync_time_us as f64 / 1e6),
];

/// Gauges of each queue.
const QUEUE_GAUGES: &[QueueMetric] = &[
    ("messages", "Messages kept", |stats| stats.messages as f64),
    ("partitions", "Partitions", |stats| stats.partitions as f64),
    ("groups", "Groups, the primary one included", |stats| stats.groups as f64),
    ("dead_letters", "Dead letters kept", |stats| stats.dead_letters as f64),
    ("log_bytes", "Bytes of log on disk", |stats| stats.log_bytes as f64),
    ("segments", "Segments", |stats| stats.segments as f64),
    ("poisoned", "1 if a failed sync stopped writing", |stats| f64::from(u8::from(stats.is_poisoned))),
];

/// A metric of each group in each queue.
type GroupMetric = (&'static str, &'static str, fn(&GroupProgress) -> f64);

const GROUP_GAUGES: &[GroupMetric] = &[
    ("group_lag_messages", "Messages that the group takes and has not done", |group| group.lag as f64),
    ("group_oldest_unacked_seconds", "Age of the oldest of them", |group| group.lag_time_us as f64 / 1e6),
    ("group_partitions_with_lag", "Partitions with such messages", |group| group.partitions_with_lag as f64),
    ("group_leases", "Live leases", |group| group.leases as f64),
    ("group_active", "1 if the group hands out messages", |group| f64::from(u8::from(group.group.state == GroupState::Active))),
];

/// The engine's numbers at this moment.
fn scrape(gateway: &Gateway) -> Registry {
    let mut registry = Registry::with_prefix("fanlog");
    let (engine, series_max) = (&gateway.engine, gateway.options.metrics_groups_max);
    let mut queues = engine.queues();
    // The busiest queues keep their names.
    queues.sort_by_key(|queue| Reverse(queue.stats.messages_pushed));
    server_metrics(&mut registry, gateway, &engine.stats());
    distributions::register(&mut registry, &engine.distributions());
    recovery_metrics(&mut registry, &gateway.options.recovery);
    queue_metrics(&mut registry, &queues, series_max);
    damage_metric(&mut registry, engine, &queues, series_max);
    group_metrics(&mut registry, gateway, &queues);
    registry
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: f64) {
    let gauge = FloatGauge::default();
    gauge.set(value);
    registry.register(name, help, gauge);
}

fn server_metrics(registry: &mut Registry, gateway: &Gateway, stats: &ServerStats) {
    let engine_maps = gateway.engine.open_maps();
    let gauges = [
        ("queues", "Queues", stats.queues as f64),
        ("disk_free_bytes", "Free bytes of the disk that holds the data", stats.disk_free_bytes as f64),
        ("pending_bytes", "Bytes that wait for a commit", stats.pending_bytes as f64),
        ("waiting_pops", "Pops that wait for messages", stats.waiting_pops as f64),
        ("start_number", "How often the data directory was opened", stats.start_number as f64),
        ("http_body_bytes", "Bytes that request bodies hold", gateway.body_budget.held() as f64),
        ("http_answer_bytes", "Bytes that answers hold until clients take them", gateway.answer_budget.held() as f64),
        ("uptime_seconds", "Time since the gateway started", gateway.started.elapsed().as_secs_f64()),
        ("process_resident_memory_bytes", "Memory of the process", process::memory_bytes() as f64),
        ("process_open_fds", "Open files of the process: segments, connections and others", process::open_files() as f64),
        ("process_max_fds", "Files that the process may open", process::open_files_max() as f64),
        ("open_maps", "Files that are mapped for reading: segments and tables", engine_maps as f64),
        ("max_maps", "Maps that the system allows a process", process::maps_max() as f64),
        ("connections", "Open connections of the binary protocol", gateway.options.binary_connections() as f64),
        ("ready", "1 unless the server is stopping", f64::from(u8::from(!gateway.is_draining()))),
    ];
    for (name, help, value) in gauges {
        gauge(registry, name, help, value);
    }
    let cpu = FloatCounter::default();
    cpu.inc_by(process::cpu_us() as f64 / 1e6);
    registry.register("process_cpu_seconds", "Processor time of the process", cpu);
}

fn recovery_metrics(registry: &mut Registry, report: &RecoveryReport) {
    let losses = report.findings.iter().filter(|finding| finding.is_loss).count();
    let gauges = [
        ("recovery_findings", "Findings of the last start", report.findings.len() as f64),
        ("recovery_losses", "Findings of the last start that mean lost data", losses as f64),
        ("recovery_records_replayed", "Log records replayed by the last start", report.records_replayed as f64),
        ("recovery_was_clean", "1 if the run before was closed properly", f64::from(u8::from(report.was_clean))),
    ];
    for (name, help, value) in gauges {
        gauge(registry, name, help, value);
    }
}

fn labels_of(index: usize, queue: &QueueInfo, series_max: usize) -> QueueLabels {
    QueueLabels { queue: if index < series_max { queue.name.clone() } else { OTHERS.to_owned() } }
}

/// What damage took from groups; it is no part of a queue's own counters.
fn damage_metric(registry: &mut Registry, engine: &Engine, queues: &[QueueInfo], series_max: usize) {
    let family = Family::<QueueLabels, FloatCounter>::default();
    for (index, queue) in queues.iter().enumerate() {
        // One that was deleted meanwhile lost nothing any more.
        let lost = engine.losses(Some(&queue.name)).unwrap_or_default();
        family.get_or_create(&labels_of(index, queue, series_max)).inc_by(lost.damaged as f64);
    }
    registry.register("lost_damaged_messages", "Messages that damage took before a group read them, since start", family);
}

fn queue_metrics(registry: &mut Registry, queues: &[QueueInfo], series_max: usize) {
    let labels = |index: usize, queue: &QueueInfo| labels_of(index, queue, series_max);
    for (name, help, read) in QUEUE_COUNTERS {
        let family = Family::<QueueLabels, FloatCounter>::default();
        for (index, queue) in queues.iter().enumerate() {
            family.get_or_create(&labels(index, queue)).inc_by(read(&queue.stats));
        }
        registry.register(*name, *help, family);
    }
    for (name, help, read) in QUEUE_GAUGES {
        let family = Family::<QueueLabels, FloatGauge>::default();
        for (index, queue) in queues.iter().enumerate() {
            family.get_or_create(&labels(index, queue)).inc_by(read(&queue.stats));
        }
        registry.register(*name, *help, family);
    }
}

fn group_metrics(registry: &mut Registry, gateway: &Gateway, queues: &[QueueInfo]) {
    let series_max = gateway.options.metrics_groups_max;
    let found: Vec<_> = queues.iter().map(|queue| gateway.lags.of(&gateway.engine, queue)).collect();
    let mut groups: Vec<&GroupProgress> = found.iter().flat_map(|groups| groups.iter()).collect();
    // Those that are furthest behind keep their names: they are what alerts are about.
    groups.sort_by_key(|group| Reverse(group.lag_time_us));
    for (name, help, read) in GROUP_GAUGES {
        let family = Family::<GroupLabels, FloatGauge>::default();
        for (index, progress) in groups.iter().enumerate() {
            let labels = match index < series_max {
                true => GroupLabels { queue: progress.group.queue.clone(), group: progress.group.name.clone() },
                false => GroupLabels { queue: OTHERS.to_owned(), group: OTHERS.to_owned() },
            };
            family.get_or_create(&labels).inc_by(read(progress));
        }
        registry.register(*name, *help, family);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(registry: &Registry) -> String {
        let mut text = String::new();
        encode_registry(&mut text, registry).unwrap();
        text
    }

    fn queue(name: &str, pushed: u64) -> QueueInfo {
        QueueInfo {
            name: name.to_owned(),
            incarnation: 1,
            created_at_us: 0,
            settings: crate::model::QueueSettings::default(),
            stats: QueueStats { messages_pushed: pushed, ..QueueStats::default() },
        }
    }

    #[test]
    fn queues_over_the_bound_are_summed() {
        let mut registry = Registry::with_prefix("fanlog");
        queue_metrics(&mut registry, &[queue("a", 9), queue("b", 5), queue("c", 2)], 1);
        let text = encoded(&registry);
        assert!(text.contains("fanlog_pushed_messages_total{queue=\"a\"} 9.0\n"), "{text}");
        assert!(text.contains("fanlog_pushed_messages_total{queue=\"__others__\"} 7.0\n"), "{text}");
        assert!(!text.contains("queue=\"b\""));
    }

    #[test]
    fn requests_are_counted_by_route_and_odd_methods_share_a_label() {
        let metrics = Metrics::new();
        for method in [Method::GET, Method::from_bytes(b"BREW").unwrap(), Method::from_bytes(b"STIR").unwrap()] {
            metrics.request(&method, "/x/{y}", StatusCode::INTERNAL_SERVER_ERROR, Duration::from_millis(1));
        }
        let text = encoded(&metrics.registry);
        assert!(text.contains("fanlog_http_requests_total{method=\"other\",route=\"/x/{y}\",status=\"500\"} 2\n"), "{text}");
        assert_eq!((metrics.requests(), metrics.errors()), (3, 3));
        let connection = metrics.connection();
        assert_eq!(metrics.connections(), 1);
        drop(connection);
        assert_eq!(metrics.connections(), 0);
    }
}
