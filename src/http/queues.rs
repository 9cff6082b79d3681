//! `POST /configure` and `DELETE /resources/queues/{queue}`; the options of a queue as JSON.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::engine::Engine;
use crate::model::{self, Compression, Durability, ErrorCode, Now, QueueInfo, QueueSettings, SettingsPatch};
use crate::record::check_name;

use super::body::Raw;
use super::error::{ApiError, Result};
use super::params::Names;
use super::{Gateway, ids, json};

/// The lease time of a queue that is made by a configuration; one made by its first push has the engine's default.
const CONFIGURED_LEASE_TIME_S: u32 = 300;

/// The longest `minPopWaitTime`, in milliseconds; more is cut down, as Queen does.
const MIN_POP_WAIT_TIME_MAX: u64 = 60_000;

#[derive(Deserialize)]
struct Configuration {
    queue: Option<String>,
    namespace: Option<String>,
    task: Option<String>,
    #[serde(default)]
    options: Option<Map<String, Value>>,
    mode: Option<String>,
}

/// `POST /api/v1/configure`: makes the queue or changes the options that are sent; `null` is the default, and
/// `mode: "replace"` sets every option that is not sent to its default.
pub(super) async fn configure(State(gateway): State<Arc<Gateway>>, body: Raw) -> Result<Response> {
    let configuration: Configuration = json::parse(&body.bytes)?;
    let Some(queue) = configuration.queue.filter(|queue| !queue.is_empty()) else {
        return Err(ApiError::bad_request("queue is missing"));
    };
    check_name(&queue)?;
    let is_replace = match configuration.mode.as_deref() {
        None | Some("merge") => false,
        Some("replace") => true,
        Some(mode) => return Err(ApiError::bad_request(format!("mode is neither merge nor replace: {mode}"))),
    };
    let options = configuration.options.unwrap_or_default();
    let mut patch = patch(&options)?;
    patch.namespace = configuration.namespace.or(patch.namespace);
    patch.task = configuration.task.or(patch.task);
    if patch.encryption_enabled == Some(true) {
        gateway.cipher.check()?;
    }
    let info = gateway.call(move |engine| apply(engine, &queue, patch, is_replace)).await?;
    let unknown: Vec<_> = options.keys().filter(|key| !QueueSettings::KEYS.contains(&key.as_str())).collect();
    Ok(json::ok(&json!({
        "configured": true, "queue": info.name, "queueId": ids::queue_id(info.incarnation), "partitionId": null,
        "namespace": info.settings.namespace, "task": info.settings.task, "storage": "log",
        "options": options_json(&info.settings), "ignored": unknown,
    })))
}

fn apply(engine: &Engine, queue: &str, patch: SettingsPatch, is_replace: bool) -> model::Result<QueueInfo> {
    let change = if is_replace {
        // Where it is found is not one of the options.
        let grouping = (patch.namespace.clone(), patch.task.clone());
        let mut all = SettingsPatch::of(&patch.apply(&configured_defaults()));
        (all.namespace, all.task) = grouping;
        all
    } else {
        patch.clone()
    };
    match engine.update_queue(queue, &change, Now::read()) {
        Err(error) if error.code == ErrorCode::UnknownQueue => {}
        updated => return updated,
    }
    // A configured queue has no namespace and task unless they are sent; a pushed one takes them from its name.
    let new = SettingsPatch::of(&patch.apply(&configured_defaults()));
    match engine.create_queue(queue, &new, Now::read()) {
        Err(error) if error.code == ErrorCode::QueueExists => engine.update_queue(queue, &change, Now::read()),
        created => created,
    }
}

fn configured_defaults() -> QueueSettings {
    QueueSettings { lease_time_s: CONFIGURED_LEASE_TIME_S, ..QueueSettings::default() }
}

/// `DELETE /api/v1/resources/queues/{queue}`: 200 also if there is none.
pub(super) async fn delete(State(gateway): State<Arc<Gateway>>, Names(queue): Names<String>) -> Result<Response> {
    let name = queue.clone();
    let existed = gateway.call(move |engine| engine.delete_queue(&name, Now::read())).await?;
    let mut answer = json!({ "queue": queue, "deleted": existed, "existed": existed });
    if !existed {
        answer["message"] = "no such queue".into();
    }
    Ok(json::ok(&answer))
}

/// All options with their values.
pub(super) fn options_json(settings: &QueueSettings) -> Map<String, Value> {
    let values: [Value; 24] = [
        durability_text(settings.durability).into(),
        compression_text(settings.compression).into(),
        settings.namespace.clone().into(),
        settings.task.clone().into(),
        settings.consumer_groups.into(),
        settings.priority.into(),
        settings.lease_time_s.into(),
        settings.retry_limit.into(),
        settings.retry_delay_ms.into(),
        settings.max_size.into(),
        settings.ttl_s.into(),
        settings.dead_letter_queue.into(),
        settings.dlq_after_max_retries.into(),
        settings.delayed_processing_s.into(),
        settings.window_buffer_s.into(),
        settings.retention_s.into(),
        settings.completed_retention_s.into(),
        settings.retention_enabled.into(),
        settings.retention_bytes.into(),
        settings.encryption_enabled.into(),
        settings.max_wait_time_s.into(),
        settings.min_pop_wait_time.into(),
        settings.dedup_window_s.into(),
        settings.segment_bytes_max.into(),
    ];
    QueueSettings::KEYS.iter().map(|key| (*key).to_owned()).zip(values).collect()
}

/// Reads options; those that are not known are left alone.
fn patch(options: &Map<String, Value>) -> Result<SettingsPatch> {
    let default = configured_defaults();
    let read = Options(options);
    Ok(SettingsPatch {
        durability: read.text("durability", default.durability, durability)?,
        compression: read.text("compression", default.compression, compression)?,
        namespace: read.text("namespace", default.namespace, |text| Some(text.to_owned()))?,
        task: read.text("task", default.task, |text| Some(text.to_owned()))?,
        consumer_groups: read.flag("consumerGroups", default.consumer_groups)?,
        priority: read.whole("priority", default.priority)?,
        lease_time_s: read.small("leaseTime", default.lease_time_s)?,
        retry_limit: read.small("retryLimit", default.retry_limit)?,
        retry_delay_ms: read.small("retryDelay", default.retry_delay_ms)?,
        max_size: read.count("maxSize", default.max_size)?,
        ttl_s: read.count("ttl", default.ttl_s)?,
        dead_letter_queue: read.flag("deadLetterQueue", default.dead_letter_queue)?,
        dlq_after_max_retries: read.flag("dlqAfterMaxRetries", default.dlq_after_max_retries)?,
        delayed_processing_s: read.small("delayedProcessing", default.delayed_processing_s)?,
        window_buffer_s: read.small("windowBuffer", default.window_buffer_s)?,
        retention_s: read.count("retentionSeconds", default.retention_s)?,
        completed_retention_s: read.count("completedRetentionSeconds", default.completed_retention_s)?,
        retention_enabled: read.flag("retentionEnabled", default.retention_enabled)?,
        retention_bytes: read.count("retentionBytes", default.retention_bytes)?,
        encryption_enabled: read.flag("encryptionEnabled", default.encryption_enabled)?,
        max_wait_time_s: read.count("maxWaitTimeSeconds", default.max_wait_time_s)?,
        min_pop_wait_time: read
            .count("minPopWaitTime", default.min_pop_wait_time)?
            .map(|milliseconds| milliseconds.min(MIN_POP_WAIT_TIME_MAX)),
        dedup_window_s: read.count("dedupWindowSeconds", default.dedup_window_s)?,
        segment_bytes_max: read.count("segmentBytes", default.segment_bytes_max)?,
    })
}

/// Options as they came: absent is no change, `null` is the default.
struct Options<'a>(&'a Map<String, Value>);

impl Options<'_> {
    fn read<T>(&self, key: &str, default: T, kind: &str, read: impl FnOnce(&Value) -> Option<T>) -> Result<Option<T>> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Null) => Ok(Some(default)),
            Some(value) => match read(value) {
                Some(value) => Ok(Some(value)),
                None => Err(ApiError::new(StatusCode::BAD_REQUEST, "bad_settings", format!("{key} is not {kind}: {value}"))),
            },
        }
    }

    fn flag(&self, key: &str, default: bool) -> Result<Option<bool>> {
        self.read(key, default, "a boolean", Value::as_bool)
    }

    fn whole(&self, key: &str, default: i64) -> Result<Option<i64>> {
        self.read(key, default, "a whole number", Value::as_i64)
    }

    /// Negative numbers are 0, as in Queen.
    fn count(&self, key: &str, default: u64) -> Result<Option<u64>> {
        let read = |value: &Value| value.as_u64().or_else(|| value.as_i64().map(|_| 0));
        self.read(key, default, "a whole number", read)
    }

    fn small(&self, key: &str, default: u32) -> Result<Option<u32>> {
        Ok(self.count(key, u64::from(default))?.map(|number| u32::try_from(number).unwrap_or(u32::MAX)))
    }

    fn text<T>(&self, key: &str, default: T, read: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>> {
        self.read(key, default, "a text that it allows", |value| value.as_str().and_then(read))
    }
}

fn durability(text: &str) -> Option<Durability> {
    match text.split_once(':') {
        None if text == "sync" => Some(Durability::Sync),
        None if text == "os" => Some(Durability::Os),
        Some(("interval", number)) => {
            number.parse().ok().filter(|&milliseconds| milliseconds > 0).map(|milliseconds| Durability::Interval { milliseconds })
        }
        _ => None,
    }
}

fn durability_text(durability: Durability) -> String {
    match durability {
        Durability::Sync => "sync".to_owned(),
        Durability::Os => "os".to_owned(),
        Durability::Interval { milliseconds } => format!("interval:{milliseconds}"),
    }
}

fn compression(text: &str) -> Option<Compression> {
    match text.split_once(':') {
        None if text == "none" => Some(Compression::None),
        None if text == "zstd" => Some(Compression::default()),
        Some(("zstd", level)) => {
            level.parse().ok().filter(|level| (1..=19).contains(level)).map(|level| Compression::Zstd { level })
        }
        _ => None,
    }
}

fn compression_text(compression: Compression) -> String {
    match compression {
        Compression::None => "none".to_owned(),
        Compression::Zstd { level } => format!("zstd:{level}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(options: Value) -> Result<SettingsPatch> {
        patch(options.as_object().unwrap())
    }

    #[test]
    fn every_option_that_is_shown_can_be_sent_back() {
        let settings = QueueSettings {
            durability: Durability::Interval { milliseconds: 20 },
            compression: Compression::Zstd { level: 7 },
            namespace: "n".into(),
            retention_bytes: 1 << 40,
            priority: -3,
            ..QueueSettings::default()
        };
        let shown = options_json(&settings);
        assert_eq!(shown.len(), QueueSettings::KEYS.len());
        assert_eq!(patch(&shown).unwrap().apply(&QueueSettings::default()), settings);
        assert_eq!((&shown["leaseTime"], &shown["segmentBytes"], &shown["task"]), (&json!(60), &json!(128 << 20), &json!("")));
    }

    #[test]
    fn absent_is_no_change_null_is_the_default_and_odd_numbers_are_bounded() {
        let read_all = read(json!({"leaseTime": null, "ttl": -1, "retryLimit": 1u64 << 40, "minPopWaitTime": 90_000})).unwrap();
        assert_eq!(read_all.lease_time_s, Some(300));
        assert_eq!(read_all.ttl_s, Some(0));
        assert_eq!(read_all.retry_limit, Some(u32::MAX));
        assert_eq!(read_all.min_pop_wait_time, Some(60_000));
        assert_eq!(read_all.retry_delay_ms, None);
        for bad in [
            json!({"leaseTime": "5"}),
            json!({"leaseTime": 1.5}),
            json!({"retentionEnabled": 1}),
            json!({"durability": "never"}),
            json!({"durability": "interval:0"}),
            json!({"compression": "zstd:20"}),
            json!({"namespace": 7}),
        ] {
            assert_eq!(read(bad).unwrap_err().code, "bad_settings");
        }
    }
}
