//! The engine's distributions as histograms for Prometheus.

use std::fmt;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::engine::{DISTRIBUTION_BUCKETS, Distribution, Distributions};

/// A distribution that was read, to be written once.
#[derive(Debug)]
struct Read {
    distribution: Distribution,
    /// What a value is divided by to be in the metric's unit.
    divisor: f64,
    /// Buckets outside of these are written together with their neighbours: nobody tells one microsecond from two.
    first: usize,
    last: usize,
}

impl Read {
    /// Microseconds as seconds: from 16 microseconds to 67 seconds.
    fn time(distribution: Distribution) -> Self {
        Self { distribution, divisor: 1e6, first: 4, last: 26 }
    }

    /// Bytes: from 256 bytes to 64 MiB.
    fn bytes(distribution: Distribution) -> Self {
        Self { distribution, divisor: 1.0, first: 8, last: 26 }
    }

    /// Bounds and how many values lie between each and the one before.
    fn buckets(&self) -> Vec<(f64, u64)> {
        let counts = &self.distribution.counts;
        let mut buckets = Vec::with_capacity(self.last - self.first + 2);
        let mut waiting = 0;
        for (bucket, &count) in counts.iter().enumerate() {
            waiting += count;
            let bound = match Distribution::bound(bucket) {
                Some(bound) if (self.first..=self.last).contains(&bucket) => bound as f64 / self.divisor,
                _ if bucket + 1 == DISTRIBUTION_BUCKETS => f64::INFINITY,
                _ => continue,
            };
            buckets.push((bound, std::mem::take(&mut waiting)));
        }
        buckets
    }
}

impl EncodeMetric for Read {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let (sum, count) = (self.distribution.sum as f64 / self.divisor, self.distribution.count());
        encoder.encode_histogram::<NoLabelSet>(sum, count, &self.buckets(), None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// Registers all of them.
pub(super) fn register(registry: &mut Registry, found: &Distributions) {
    let times = [
        ("sync_duration", "Time of a sync of a log", found.sync_us),
        ("push_duration", "Time from taking a push to its answer, over all protocols", found.push_us),
        (
            "delivery_duration",
            "End to end: time from the commit of a claim's first message to its first delivery to a group, waiting for a consumer \
             included, over all protocols",
            found.delivery_us,
        ),
    ];
    for (name, help, distribution) in times {
        registry.register_with_unit(name, help, Unit::Seconds, Read::time(distribution));
    }
    registry.register_with_unit("commit_size", "Bytes that a group commit wrote", Unit::Bytes, Read::bytes(found.commit_bytes));
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode_registry;

    #[test]
    fn a_histogram_has_all_values_and_bounds_in_its_unit() {
        let mut found = Distributions::default();
        // 1 and 16 microseconds, 17, about 100 seconds, about an hour.
        for (bucket, value) in [(0, 1), (4, 16), (5, 17), (27, 100_000_000), (31, 3_600_000_000)] {
            found.push_us.counts[bucket] += 1;
            found.push_us.sum += value;
        }
        found.commit_bytes.counts[12] = 7;
        let mut registry = Registry::with_prefix("fanlog");
        register(&mut registry, &found);
        let mut text = String::new();
        encode_registry(&mut text, &registry).unwrap();
        for line in [
            "# TYPE fanlog_push_duration_seconds histogram",
            "fanlog_push_duration_seconds_sum 3700.000034",
            "fanlog_push_duration_seconds_count 5",
            "fanlog_push_duration_seconds_bucket{le=\"0.000016\"} 2",
            "fanlog_push_duration_seconds_bucket{le=\"0.000032\"} 3",
            "fanlog_push_duration_seconds_bucket{le=\"67.108864\"} 3",
            "fanlog_push_duration_seconds_bucket{le=\"+Inf\"} 5",
            "fanlog_commit_size_bytes_bucket{le=\"2048.0\"} 0",
            "fanlog_commit_size_bytes_bucket{le=\"4096.0\"} 7",
            "fanlog_sync_duration_seconds_count 0",
            "fanlog_delivery_duration_seconds_bucket{le=\"+Inf\"} 0",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line} is missing in\n{text}");
        }
        assert_eq!(text.matches("push_duration_seconds_bucket").count(), 24);
    }
}
