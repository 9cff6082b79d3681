//! Queen's status routes: the dashboard's numbers over time.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use crate::engine::Engine;
use crate::model::{Now, QueueInfo};

use super::counts::{self, Counts};
use super::error::Result;
use super::params::{Names, Params};
use super::series::Point;
use super::{Gateway, cursors, ids, json, queues, resources, time};

const WINDOW_DEFAULT_US: u64 = 3_600 * 1_000_000;
const MINUTE_US: u64 = 60 * 1_000_000;

/// Points that a window is divided into, if the query names no interval.
const POINTS: u64 = 120;

/// The window that a query asks for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Window {
    pub(super) from_us: u64,
    pub(super) to_us: u64,
    pub(super) bucket_us: u64,
}

impl Window {
    /// `from`, `to` and `interval` (`minute`, `hour`, `day`, or whole seconds).
    pub(super) fn read(params: &Params, now_us: u64) -> Result<Self> {
        let to_us = params.time("to")?.unwrap_or(now_us);
        let from_us = params.time("from")?.unwrap_or(to_us.saturating_sub(WINDOW_DEFAULT_US)).min(to_us);
        let bucket_us = match params.text("interval") {
            Some("minute") => MINUTE_US,
            Some("hour") => 60 * MINUTE_US,
            Some("day") => 24 * 60 * MINUTE_US,
            _ => match params.number("interval")? {
                Some(seconds) => seconds.clamp(1, 86_400) * 1_000_000,
                // Whole minutes, as few as keep the number of points bounded.
                None => ((to_us - from_us) / POINTS).div_ceil(MINUTE_US).max(1) * MINUTE_US,
            },
        };
        Ok(Self { from_us, to_us, bucket_us })
    }

    pub(super) fn range_json(&self) -> Value {
        json!({ "from": time::iso(self.from_us), "to": time::iso(self.to_us) })
    }

    pub(super) fn bucket_minutes(&self) -> u64 {
        self.bucket_us.div_ceil(MINUTE_US)
    }

    pub(super) fn points(&self, gateway: &Gateway) -> Vec<Point> {
        gateway.series.server(self.from_us, self.to_us, self.bucket_us)
    }
}

/// One point of the throughput series.
pub(super) fn throughput(point: &Point) -> Value {
    json!({
        "timestamp": time::iso(point.last.at_us), "ingested": point.pushed, "processed": point.acked, "delivered": point.popped,
        "ingestedPerSecond": point.rate(point.pushed), "processedPerSecond": point.rate(point.acked),
        "deliveredPerSecond": point.rate(point.popped), "dropped": point.dropped, "duplicates": point.duplicates,
        "lag": point.last.lag, "lagSeconds": point.last.lag_time_us / 1_000_000, "errors": point.errors,
    })
}

/// `GET /api/v1/status`
pub(super) async fn status(State(gateway): State<Arc<Gateway>>, params: Params) -> Result<Response> {
    let now = Now::read().wall_us;
    let window = Window::read(&params, now)?;
    let points = window.points(&gateway);
    let stats_age = gateway.series.age_s(now);
    let errors: u64 = points.iter().map(|point| point.errors).sum();
    let throughput: Vec<_> = points.iter().map(throughput).collect();
    let mut answer = gateway.call(|engine| Ok(totals(engine))).await?;
    answer["timeRange"] = window.range_json();
    answer["bucketMinutes"] = window.bucket_minutes().into();
    answer["pointCount"] = throughput.len().into();
    answer["statsAge"] = stats_age.into();
    answer["throughput"] = throughput.into();
    answer["errors"] = json!({ "total": errors });
    Ok(json::ok(&answer))
}

/// What is there now, over all queues.
fn totals(engine: &Engine) -> Value {
    let queues = engine.queues();
    let mut total = Counts::default();
    let (mut leases, mut leased_partitions, mut groups) = (0, 0, 0);
    for queue in &queues {
        total.add(&counts::of_queue(engine, queue));
        for progress in engine.progress(&queue.name, Now::read()).unwrap_or_default() {
            groups += 1;
            leases += progress.leases;
            leased_partitions += progress.leases;
        }
    }
    let affected = queues.iter().filter(|queue| queue.stats.dead_letters > 0).count();
    json!({
        "queues": {
            "total": queues.len(), "partitions": queues.iter().map(|queue| queue.stats.partitions).sum::<u64>(), "groups": groups,
        },
        "messages": total.json(),
        "leases": { "active": leases, "partitionsWithLeases": leased_partitions },
        "deadLetterQueue": { "totalMessages": total.dead_letter, "affectedQueues": affected },
        // One process without workers of its own: the list is for Queen's dashboards.
        "workers": [],
    })
}

/// `GET /api/v1/status/queues`
pub(super) async fn queues(State(gateway): State<Arc<Gateway>>, params: Params) -> Result<Response> {
    let limit = params.number_in("limit", 100, 1..=10_000)?;
    let skip = params.number_in("offset", 0, 0..=u64::MAX)?;
    let whole = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let (rows, total) = gateway
        .call(move |engine| {
            let found = resources::matching(engine, &params);
            let rows: Vec<_> = found.iter().skip(whole(skip)).take(whole(limit)).map(|queue| row(engine, queue)).collect();
            Ok((rows, found.len()))
        })
        .await?;
    Ok(json::ok(&json!({ "queues": rows, "pagination": { "limit": limit, "offset": skip, "total": total } })))
}

fn row(engine: &Engine, queue: &QueueInfo) -> Value {
    let counts = counts::of_queue(engine, queue);
    let stats = queue.stats;
    json!({
        "id": ids::queue_id(queue.incarnation), "name": queue.name, "namespace": queue.settings.namespace,
        "task": queue.settings.task, "createdAt": time::iso(queue.created_at_us), "partitions": stats.partitions,
        "messages": counts.json(), "lag": { "seconds": counts.lag_time_us / 1_000_000, "count": counts.pending + counts.processing },
        "performance": {
            "pushed": stats.messages_pushed, "popped": stats.messages_popped, "acked": stats.messages_acked,
            "dropped": stats.messages_dropped, "duplicates": stats.duplicates, "lostUnread": stats.messages_lost_unread,
        },
        "segments": stats.segments, "retainedBytes": stats.log_bytes, "poisoned": stats.is_poisoned,
    })
}

/// `GET /api/v1/status/queues/{queue}`
pub(super) async fn queue(State(gateway): State<Arc<Gateway>>, Names(name): Names<String>, params: Params) -> Result<Response> {
    let window = Window::read(&params, Now::read().wall_us)?;
    let series = gateway.series.queues(window.from_us, window.to_us, window.bucket_us).remove(&name).unwrap_or_default();
    let points: Vec<_> = series.iter().map(throughput).collect();
    let mut answer = gateway.call(move |engine| Ok(detail(engine, &engine.queue(&name)?))).await?;
    answer["timeRange"] = window.range_json();
    answer["throughput"] = points.into();
    Ok(json::ok(&answer))
}

fn detail(engine: &Engine, queue: &QueueInfo) -> Value {
    let groups: Vec<_> = engine
        .progress(&queue.name, Now::read())
        .unwrap_or_default()
        .iter()
        .map(|progress| {
            json!({
                "name": progress.group.name, "lag": progress.lag, "lagSeconds": progress.lag_time_us / 1_000_000,
                "partitionsWithLag": progress.partitions_with_lag, "leases": progress.leases,
            })
        })
        .collect();
    let behind = counts::by_partition(engine, &queue.name);
    let partitions: Vec<_> = engine
        .partitions(&queue.name, 0, 1_000)
        .unwrap_or_default()
        .iter()
        .map(|partition| {
            let cursor = behind.get(&partition.id);
            let counts = counts::of_partition(partition.end.saturating_sub(partition.start), cursor);
            json!({
                "id": ids::partition_id(queue.incarnation, partition.id), "name": partition.name, "messages": counts.json(),
                "lagSeconds": counts.lag_time_us / 1_000_000,
            })
        })
        .collect();
    let mut row = row(engine, queue);
    row["config"] = queues::options_json(&queue.settings).into();
    json!({ "queue": row, "partitions": partitions, "consumerGroups": groups, "totals": counts::of_queue(engine, queue).json() })
}

/// `GET /api/v1/status/analytics`
pub(super) async fn analytics(State(gateway): State<Arc<Gateway>>, params: Params) -> Result<Response> {
    let window = Window::read(&params, Now::read().wall_us)?;
    let points: Vec<_> = window.points(&gateway).iter().map(throughput).collect();
    let interval = params.text("interval").map_or_else(|| format!("{}m", window.bucket_minutes()), str::to_owned);
    let totals = gateway.call(|engine| Ok(totals(engine))).await?;
    let lagging = gateway.call(|engine| Ok(cursors::progress(engine).iter().filter(|group| group.lag > 0).count())).await?;
    Ok(json::ok(&json!({
        "interval": interval, "from": time::iso(window.from_us), "to": time::iso(window.to_us), "dataPoints": points,
        "queues": totals["queues"], "messages": totals["messages"], "deadLetterQueue": totals["deadLetterQueue"],
        "groupsWithLag": lagging,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Uri;

    fn window(query: &str) -> Result<Window> {
        let uri: Uri = format!("/?{query}").parse().unwrap();
        Window::read(&Params::of(&uri)?, 100_000 * 1_000_000)
    }

    #[test]
    fn a_window_is_the_last_hour_by_minutes_unless_it_says_more() {
        let hour = window("").unwrap();
        assert_eq!((hour.to_us - hour.from_us, hour.bucket_us), (WINDOW_DEFAULT_US, MINUTE_US));
        assert_eq!(window("interval=hour").unwrap().bucket_minutes(), 60);
        assert_eq!(window("interval=10").unwrap().bucket_us, 10_000_000);
        let day = window("from=1970-01-01T00:00:00Z&to=1970-01-02T00:00:00Z").unwrap();
        assert_eq!(day.bucket_minutes(), 12);
        assert!(window("from=x").is_err());
        assert!(window("interval=often").is_err());
        let reversed = window("from=1970-01-02&to=1970-01-01").unwrap();
        assert_eq!(reversed.from_us, reversed.to_us);
    }
}
