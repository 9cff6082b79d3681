//! Queen's consumer-group routes: where groups stand, and moving or removing them.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::engine::Engine;
use crate::model::{self, CursorProgress, GroupProgress, GroupState, Now, PRIMARY_GROUP, SeekRequest, SeekTarget, Start};
use crate::record::PartitionId;

use super::body::Raw;
use super::error::{ApiError, Result};
use super::params::{Names, Params};
use super::{Gateway, group_option, groups, ids, json, time};

/// Cursors that one answer shows of a group in a queue.
const CURSORS_MAX: usize = 10_000;
const PAGE: usize = 1_000;

/// A group whose oldest unread message is older than this lags.
const LAGGING_US: u64 = 300 * 1_000_000;

const MIN_LAG_DEFAULT_S: u64 = 3_600;

/// `GET /api/v1/consumer-groups`: one row for each group and queue.
pub(super) async fn list(State(gateway): State<Arc<Gateway>>) -> Result<Response> {
    let rows = gateway.call(|engine| Ok(progress(engine).iter().map(group_row).collect::<Vec<_>>())).await?;
    Ok(json::ok(&rows))
}

/// The progress of every group in every queue. The primary group is left out where nobody ever used it.
pub(super) fn progress(engine: &Engine) -> Vec<GroupProgress> {
    let mut all = Vec::new();
    for queue in engine.queues() {
        // A queue that was deleted meanwhile has no groups any more.
        let groups = engine.progress(&queue.name, Now::read()).unwrap_or_default();
        all.extend(groups.into_iter().filter(|group| group.group.name != PRIMARY_GROUP || group.cursors > 0));
    }
    all
}

fn group_row(progress: &GroupProgress) -> Value {
    let group = &progress.group;
    let timestamp = match group.start {
        Some(Start::Time(time)) => Some(time),
        Some(Start::New) => Some(group.created_at_us),
        _ => None,
    };
    json!({
        "name": group.name, "topics": [group.queue], "queueName": group.queue, "members": progress.leases,
        "partitionCursors": progress.cursors, "partitionsWithLag": progress.partitions_with_lag, "totalLag": progress.lag,
        "maxTimeLag": progress.lag_time_us / 1_000_000, "state": state(progress), "storage": "log",
        "subscriptionMode": groups::mode_text(group.start), "subscriptionTimestamp": time::iso_option(timestamp),
        "subscriptionCreatedAt": time::iso(group.created_at_us), "conflation": false,
        "filter": group.filter, "enabled": group.state != GroupState::Inactive, "paused": group.state == GroupState::Paused,
        "declared": group.is_declared,
    })
}

fn state(progress: &GroupProgress) -> &'static str {
    match progress.group.state {
        GroupState::Inactive => "Inactive",
        GroupState::Paused => "Paused",
        GroupState::Active if progress.lag > 0 && progress.lag_time_us > LAGGING_US => "Lagging",
        GroupState::Active => "Stable",
    }
}

/// `GET /api/v1/consumer-groups/{group}`: its cursors, by queue; `{}` for a group that is nowhere.
pub(super) async fn detail(State(gateway): State<Arc<Gateway>>, Names(group): Names<String>) -> Result<Response> {
    let queues = gateway
        .call(move |engine| {
            let mut queues = Map::new();
            for queue in engine.queues() {
                if engine.group(&queue.name, &group).is_err() {
                    continue;
                }
                let cursors = cursors(engine, &queue.name, &group);
                let partitions: Vec<_> = cursors.iter().map(cursor_row).collect();
                queues.insert(queue.name, json!({ "conflation": false, "partitions": partitions }));
            }
            Ok(queues)
        })
        .await?;
    Ok(json::ok(&queues))
}

/// A group's cursors in a queue, page by page.
pub(super) fn cursors(engine: &Engine, queue: &str, group: &str) -> Vec<CursorProgress> {
    let mut all: Vec<CursorProgress> = Vec::new();
    let mut from: PartitionId = 0;
    while all.len() < CURSORS_MAX {
        let page = engine.cursors(queue, group, from, PAGE, Now::read()).unwrap_or_default();
        let Some(next) = page.last().and_then(|cursor| cursor.partition_id.checked_add(1)) else { break };
        let is_last = page.len() < PAGE;
        all.extend(page);
        if is_last {
            break;
        }
        from = next;
    }
    all
}

fn cursor_row(cursor: &CursorProgress) -> Value {
    json!({
        "partition": cursor.partition, "workerId": cursor.lease_id, "lastConsumedAt": time::iso_option(cursor.last_consumed_at_us),
        "totalConsumed": cursor.total_consumed, "offsetLag": cursor.lag, "timeLagSeconds": cursor.lag_time_us / 1_000_000,
        "leaseActive": cursor.lease_expires_at_us.is_some(), "leaseExpiresAt": time::iso_option(cursor.lease_expires_at_us),
        "next": cursor.next, "start": cursor.start, "end": cursor.end, "inFlight": cursor.in_flight,
    })
}

/// `GET /api/v1/consumer-groups/lagging`: the cursors that are behind by time.
pub(super) async fn lagging(State(gateway): State<Arc<Gateway>>, params: Params) -> Result<Response> {
    let min_lag_us = params.number("minLagSeconds")?.unwrap_or(MIN_LAG_DEFAULT_S).saturating_mul(1_000_000);
    let rows = gateway
        .call(move |engine| {
            let mut rows = Vec::new();
            for progress in progress(engine) {
                if progress.lag == 0 || progress.lag_time_us < min_lag_us {
                    continue;
                }
                let (queue, group) = (&progress.group.queue, &progress.group.name);
                let Ok((incarnation, _)) = engine.settings(queue) else { continue };
                let behind = cursors(engine, queue, group).into_iter().filter(|cursor| {
                    cursor.lag > 0 && cursor.lag_time_us >= min_lag_us && (group != PRIMARY_GROUP || is_used(cursor))
                });
                rows.extend(behind.map(|cursor| lagging_row(&cursor, group, queue, incarnation)));
            }
            Ok(rows)
        })
        .await?;
    Ok(json::ok(&rows))
}

/// Whether anybody ever read with this cursor; the primary group has one everywhere, read or not.
fn is_used(cursor: &CursorProgress) -> bool {
    cursor.total_consumed > 0 || cursor.last_consumed_at_us.is_some() || !cursor.lease_id.is_empty() || cursor.next > cursor.start
}

fn lagging_row(cursor: &CursorProgress, group: &str, queue: &str, incarnation: u64) -> Value {
    let seconds = cursor.lag_time_us / 1_000_000;
    json!({
        "consumer_group": group, "queue_name": queue, "partition_name": cursor.partition,
        "partition_id": ids::partition_id(incarnation, cursor.partition_id), "worker_id": cursor.lease_id,
        "offset_lag": cursor.lag, "time_lag_seconds": seconds, "lag_hours": seconds as f64 / 3_600.0,
        "oldest_unconsumed_at": time::iso_option(cursor.oldest_at_us), "last_consumed_at": time::iso_option(cursor.last_consumed_at_us),
    })
}

/// `DELETE /api/v1/consumer-groups/{group}`
pub(super) async fn delete_everywhere(State(gateway): State<Arc<Gateway>>, Names(group): Names<String>) -> Result<Response> {
    delete(&gateway, group, None).await
}

/// `DELETE /api/v1/consumer-groups/{group}/queues/{queue}`
pub(super) async fn delete_in_queue(
    State(gateway): State<Arc<Gateway>>,
    Names((group, queue)): Names<(String, String)>,
) -> Result<Response> {
    delete(&gateway, group, Some(queue)).await
}

async fn delete(gateway: &Arc<Gateway>, group: String, queue: Option<String>) -> Result<Response> {
    let (name, of) = (group.clone(), queue.clone());
    let removed = gateway.call(move |engine| engine.delete_group(&name, of.as_deref(), Now::read())).await?;
    let mut answer = json!({
        "success": true, "consumerGroup": group, "deletedPartitions": removed.deleted_partitions,
        "metadataDeleted": removed.queues > 0,
    });
    if let Some(queue) = queue {
        answer["queueName"] = queue.into();
    }
    Ok(json::ok(&answer))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Subscription {
    subscription_timestamp: String,
}

/// `POST /api/v1/consumer-groups/{group}/subscription`: where the group starts in partitions that it has no cursor in yet.
pub(super) async fn subscription(
    State(gateway): State<Arc<Gateway>>,
    Names(group): Names<String>,
    body: Raw,
) -> Result<Response> {
    let subscription: Subscription = json::parse(&body.bytes)?;
    let text = subscription.subscription_timestamp;
    let Some(time) = time::parse_iso(&text) else {
        return Err(ApiError::bad_request(format!("subscriptionTimestamp is not an ISO 8601 time: {text}")));
    };
    let name = group.clone();
    let rows = gateway.call(move |engine| engine.set_start(&name, Start::Time(time), Now::read())).await?;
    Ok(json::ok(&json!({ "success": true, "consumerGroup": group, "newTimestamp": text, "rowsUpdated": rows })))
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Seek {
    #[serde(default)]
    to_end: bool,
    #[serde(default)]
    to_beginning: bool,
    timestamp: Option<String>,
    offset: Option<u64>,
    shift: Option<i64>,
    #[serde(default)]
    preview: bool,
}

impl Seek {
    fn target(&self) -> Result<SeekTarget> {
        let time = match &self.timestamp {
            None => None,
            Some(text) => match time::parse_iso(text) {
                Some(time) => Some(SeekTarget::Time(time)),
                None => return Err(ApiError::bad_request(format!("timestamp is not an ISO 8601 time: {text}"))),
            },
        };
        let targets = [
            self.to_end.then_some(SeekTarget::End),
            self.to_beginning.then_some(SeekTarget::Beginning),
            time,
            self.offset.map(SeekTarget::Offset),
            self.shift.map(SeekTarget::Shift),
        ];
        let mut named = targets.into_iter().flatten();
        match (named.next(), named.next()) {
            (Some(target), None) => Ok(target),
            _ => Err(ApiError::bad_request("a seek names one of toEnd, toBeginning, timestamp, offset and shift")),
        }
    }
}

/// `POST /api/v1/consumer-groups/{group}/queues/{queue}/seek`
pub(super) async fn seek_queue(
    State(gateway): State<Arc<Gateway>>,
    Names((group, queue)): Names<(String, String)>,
    body: Raw,
) -> Result<Response> {
    seek(&gateway, group, queue, None, &body).await
}

/// `POST /api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek`
pub(super) async fn seek_partition(
    State(gateway): State<Arc<Gateway>>,
    Names((group, queue, partition)): Names<(String, String, String)>,
    body: Raw,
) -> Result<Response> {
    seek(&gateway, group, queue, Some(partition), &body).await
}

async fn seek(gateway: &Arc<Gateway>, group: String, queue: String, partition: Option<String>, body: &Raw) -> Result<Response> {
    let seek: Seek = json::parse_or_default(&body.bytes)?;
    let request = SeekRequest {
        queue: queue.clone(),
        group: group_option(Some(&group)),
        partition,
        target: seek.target()?,
        is_preview: seek.preview,
    };
    let moved: Vec<model::SeekPreview> = gateway.call(move |engine| engine.seek(&request, Now::read())).await?;
    let partitions: Vec<_> = moved
        .iter()
        .map(|cursor| {
            json!({
                "partition": cursor.partition, "before": cursor.before, "after": cursor.after, "start": cursor.start,
                "end": cursor.end,
            })
        })
        .collect();
    Ok(json::ok(&json!({
        "success": true, "consumerGroup": group, "queueName": queue, "preview": seek.preview,
        "partitionsUpdated": if seek.preview { 0 } else { moved.len() }, "partitions": partitions,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Result<SeekTarget> {
        json::parse::<Seek>(text.as_bytes())?.target()
    }

    #[test]
    fn a_seek_names_exactly_one_target() {
        assert_eq!(target(r#"{"toEnd":true}"#), Ok(SeekTarget::End));
        assert_eq!(target(r#"{"timestamp":"1970-01-01T00:00:00Z"}"#), Ok(SeekTarget::Time(0)));
        assert_eq!(target(r#"{"offset":0,"preview":true}"#), Ok(SeekTarget::Offset(0)));
        assert_eq!(target(r#"{"shift":-5,"toEnd":false}"#), Ok(SeekTarget::Shift(-5)));
        for bad in
            ["{}", r#"{"position":"earliest"}"#, r#"{"toEnd":true,"offset":1}"#, r#"{"timestamp":"soon"}"#, r#"{"offset":-1}"#]
        {
            assert_eq!(target(bad).unwrap_err().status, 400, "{bad}");
        }
    }
}
