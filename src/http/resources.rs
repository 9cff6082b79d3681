//! Queen's resource routes: queues, partitions, namespaces and tasks with their numbers.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use crate::engine::Engine;
use crate::model::PartitionInfo;
use crate::model::{GroupProgress, Now, PRIMARY_GROUP, QueueInfo};

use super::counts::{self, Counts};
use super::error::Result;
use super::params::{Names, Params};
use super::{Gateway, cursors, ids, json, messages, queues, time};

const LIMIT_DEFAULT: u64 = 1_000;
const LIMIT_MAX: u64 = 10_000;

/// Partitions that the detail of a queue shows.
const PARTITIONS_MAX: usize = 1_000;

/// `GET /api/v1/resources/queues`
pub(super) async fn queues(State(gateway): State<Arc<Gateway>>, params: Params) -> Result<Response> {
    let limit = whole(params.number_in("limit", LIMIT_DEFAULT, 1..=LIMIT_MAX)?);
    let skip = whole(params.number_in("offset", 0, 0..=u64::MAX)?);
    let rows = gateway
        .call(move |engine| {
            let found = matching(engine, &params);
            Ok(found.iter().skip(skip).take(limit).map(|queue| queue_row(engine, queue)).collect::<Vec<_>>())
        })
        .await?;
    Ok(json::ok(&json!({ "queues": rows })))
}

/// Queues that the query's namespace, task and search admit.
pub(super) fn matching(engine: &Engine, params: &Params) -> Vec<QueueInfo> {
    let fits = |name: &str, found: &str| params.text(name).is_none_or(|wanted| wanted == found);
    let mut queues = engine.queues();
    queues.retain(|queue| {
        fits("namespace", &queue.settings.namespace)
            && fits("task", &queue.settings.task)
            && fits("queue", &queue.name)
            && params.text("search").is_none_or(|text| queue.name.contains(text))
    });
    queues
}

fn queue_row(engine: &Engine, queue: &QueueInfo) -> Value {
    let counts = counts::of_queue(engine, queue);
    json!({
        "id": ids::queue_id(queue.incarnation), "name": queue.name, "namespace": queue.settings.namespace,
        "task": queue.settings.task, "createdAt": time::iso(queue.created_at_us), "partitions": queue.stats.partitions,
        "messages": counts.json(), "segments": queue.stats.segments, "retainedBytes": queue.stats.log_bytes,
        "dropped": queue.stats.messages_dropped, "groups": queue.stats.groups,
    })
}

/// `GET /api/v1/resources/queues/{queue}`
pub(super) async fn queue(State(gateway): State<Arc<Gateway>>, Names(name): Names<String>) -> Result<Response> {
    let answer = gateway
        .call(move |engine| {
            let queue = engine.queue(&name)?;
            let behind = counts::by_partition(engine, &name);
            let partitions = engine.partitions(&name, 0, PARTITIONS_MAX)?;
            let rows: Vec<_> = partitions.iter().map(|partition| partition_row(&queue, partition, &behind)).collect();
            let stats = queue.stats;
            Ok(json!({
                "id": ids::queue_id(queue.incarnation), "name": queue.name, "namespace": queue.settings.namespace,
                "task": queue.settings.task, "createdAt": time::iso(queue.created_at_us), "partitions": rows,
                "totals": counts::of_queue(engine, &queue).json(), "options": queues::options_json(&queue.settings),
                "segments": { "count": stats.segments, "messages": stats.messages, "bytes": stats.log_bytes },
                "retainedBytes": stats.log_bytes, "dropped": stats.messages_dropped, "pushed": stats.messages_pushed,
                "partitionCount": stats.partitions, "groups": stats.groups, "poisoned": stats.is_poisoned,
            }))
        })
        .await?;
    Ok(json::ok(&answer))
}

type Behind = std::collections::HashMap<crate::record::PartitionId, crate::model::CursorProgress>;

fn partition_row(queue: &QueueInfo, partition: &PartitionInfo, behind: &Behind) -> Value {
    let cursor = behind.get(&partition.id);
    let counts = counts::of_partition(partition.end.saturating_sub(partition.start), cursor);
    let newest = Some(partition.newest_at_us).filter(|&at| at > 0);
    json!({
        "id": ids::partition_id(queue.incarnation, partition.id), "name": partition.name,
        "createdAt": time::iso(queue.created_at_us),
        "oldestMessage": time::iso_option(cursor.and_then(|cursor| cursor.oldest_at_us)), "newestMessage": time::iso_option(newest),
        "start": partition.start, "end": partition.end, "stats": counts.json(),
    })
}

/// `GET /api/v1/resources/queues/{queue}/depth`: what a group has before it.
pub(super) async fn depth(State(gateway): State<Arc<Gateway>>, Names(name): Names<String>, params: Params) -> Result<Response> {
    let group = params.owned("group").unwrap_or_else(|| PRIMARY_GROUP.to_owned());
    let answer = gateway
        .call(move |engine| {
            let progress = engine.progress(&name, Now::read())?;
            let found: Option<&GroupProgress> = progress.iter().find(|progress| progress.group.name == group);
            let cursors = cursors::cursors(engine, &name, &group);
            let rows: Vec<_> = cursors
                .iter()
                .filter(|cursor| cursor.lag > 0)
                .map(|cursor| json!({ "partition": cursor.partition, "pending": cursor.lag }))
                .collect();
            let pending = found.map_or(0, |progress| progress.lag);
            let in_flight: u64 = cursors.iter().map(|cursor| cursor.in_flight).sum();
            Ok(json!({
                "queue": name, "group": group, "pending": pending, "partitions": rows,
                "partitionsPending": found.map_or(0, |progress| progress.partitions_with_lag),
                "effectivePending": pending.saturating_sub(in_flight),
            }))
        })
        .await?;
    Ok(json::ok(&answer))
}

/// `GET /api/v1/resources/namespaces`
pub(super) async fn namespaces(State(gateway): State<Arc<Gateway>>) -> Result<Response> {
    let rows = gateway.call(|engine| Ok(grouped(engine, "namespace", |queue| &queue.settings.namespace))).await?;
    Ok(json::ok(&json!({ "namespaces": rows })))
}

/// `GET /api/v1/resources/tasks`
pub(super) async fn tasks(State(gateway): State<Arc<Gateway>>) -> Result<Response> {
    let rows = gateway.call(|engine| Ok(grouped(engine, "task", |queue| &queue.settings.task))).await?;
    Ok(json::ok(&json!({ "tasks": rows })))
}

fn grouped(engine: &Engine, key: &str, word: impl Fn(&QueueInfo) -> &String) -> Vec<Value> {
    let mut groups: BTreeMap<String, (u64, u64, Counts)> = BTreeMap::new();
    for queue in engine.queues().iter().filter(|queue| !word(queue).is_empty()) {
        let (queues, partitions, counts) = groups.entry(word(queue).clone()).or_default();
        *queues += 1;
        *partitions += queue.stats.partitions;
        counts.add(&counts::of_queue(engine, queue));
    }
    groups
        .into_iter()
        .map(|(name, (queues, partitions, counts))| {
            json!({ key: name, "queues": queues, "partitions": partitions, "messages": counts.json() })
        })
        .collect()
}

/// `GET /api/v1/resources/overview`
pub(super) async fn overview(State(gateway): State<Arc<Gateway>>) -> Result<Response> {
    let last = gateway.series.last_minute();
    let answer = gateway.call(move |engine| Ok(overview_json(engine, &last))).await?;
    Ok(json::ok(&answer))
}

fn overview_json(engine: &Engine, last: &super::series::Rates) -> Value {
    let queues = engine.queues();
    let words = |word: fn(&QueueInfo) -> &String| {
        let mut words: Vec<_> = queues.iter().map(word).filter(|word| !word.is_empty()).collect();
        words.sort_unstable();
        words.dedup();
        words.len()
    };
    let each: Vec<Counts> = queues.iter().map(|queue| counts::of_queue(engine, queue)).collect();
    let mut total = Counts::default();
    each.iter().for_each(|counts| total.add(counts));
    let seconds: Vec<u64> = each.iter().map(|counts| counts.lag_time_us / 1_000_000).collect();
    let pending: Vec<u64> = each.iter().map(|counts| counts.pending).collect();
    json!({
        "queues": queues.len(), "partitions": queues.iter().map(|queue| queue.stats.partitions).sum::<u64>(),
        "namespaces": words(|queue| &queue.settings.namespace), "tasks": words(|queue| &queue.settings.task),
        "messages": total.json(), "lag": { "time": spread(seconds), "offset": spread(pending) },
        "throughput": {
            "ingestedPerSecond": last.pushed, "processedPerSecond": last.acked, "deliveredPerSecond": last.popped,
        },
        "timestamp": time::iso(Now::read().wall_us),
    })
}

/// Smallest, largest, mean and median.
fn spread(mut values: Vec<u64>) -> Value {
    values.sort_unstable();
    let count = values.len().max(1);
    let mean = values.iter().sum::<u64>() as f64 / count as f64;
    let at = |index: usize| values.get(index).copied().unwrap_or(0);
    json!({ "min": at(0), "max": values.last().copied().unwrap_or(0), "avg": mean, "median": at(values.len() / 2) })
}

/// `GET /api/v1/resources/partitions`: those with the most before them first.
pub(super) async fn partitions(State(gateway): State<Arc<Gateway>>, params: Params) -> Result<Response> {
    let limit = whole(params.number_in("limit", LIMIT_DEFAULT, 1..=LIMIT_MAX)?);
    let skip = whole(params.number_in("offset", 0, 0..=u64::MAX)?);
    let (rows, total) = gateway
        .call(move |engine| {
            let mut rows = Vec::new();
            for queue in matching(engine, &params) {
                let behind = counts::by_partition(engine, &queue.name);
                for partition in messages::all_partitions(engine, &queue.name) {
                    let cursor = behind.get(&partition.id);
                    let counts = counts::of_partition(partition.end.saturating_sub(partition.start), cursor);
                    rows.push((counts, queue.name.clone(), ids::partition_id(queue.incarnation, partition.id), partition));
                }
            }
            rows.sort_by_key(|row| std::cmp::Reverse(row.0.pending));
            let total = rows.len();
            Ok((rows.into_iter().skip(skip).take(limit).map(pending_row).collect::<Vec<_>>(), total))
        })
        .await?;
    Ok(json::ok(&json!({ "partitions": rows, "total": total })))
}

fn pending_row((counts, queue, id, partition): (Counts, String, String, PartitionInfo)) -> Value {
    json!({
        "id": id, "queue": queue, "partition": partition.name, "pending": counts.pending, "processing": counts.processing,
        "completed": counts.completed(), "total": counts.total, "lagSeconds": counts.lag_time_us / 1_000_000,
        "start": partition.start, "end": partition.end,
    })
}

fn whole(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_of_nothing_is_zero() {
        assert_eq!(spread(Vec::new()), json!({ "min": 0, "max": 0, "avg": 0.0, "median": 0 }));
        assert_eq!(spread(vec![5, 1, 3]), json!({ "min": 1, "max": 5, "avg": 3.0, "median": 3 }));
    }
}
