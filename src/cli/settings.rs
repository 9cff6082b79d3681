//! Settings of queues as people write them: `key=value`, with the keys that the HTTP gateway uses too.

use anyhow::{Context, Result, bail};
use fanlog::model::{Compression, Durability, QueueSettings, SettingsPatch};
use serde_json::{Map, Value};

use super::nearest::suggestion;
use super::time::parse_duration;

/// A setting's value as text and as JSON.
trait Setting: Sized {
    fn parse(text: &str) -> Result<Self>;
    fn to_json(&self) -> Value;
}

macro_rules! number_settings {
    ($($type:ty),*) => {$(
        impl Setting for $type {
            fn parse(text: &str) -> Result<Self> {
                text.parse().with_context(|| format!("{text:?} is not a number from {} to {}", <$type>::MIN, <$type>::MAX))
            }

            fn to_json(&self) -> Value {
                (*self).into()
            }
        }
    )*};
}

number_settings!(u32, u64, i64);

impl Setting for bool {
    fn parse(text: &str) -> Result<Self> {
        match text {
            "true" | "on" | "yes" => Ok(true),
            "false" | "off" | "no" => Ok(false),
            _ => bail!("{text:?} is neither true nor false"),
        }
    }

    fn to_json(&self) -> Value {
        (*self).into()
    }
}

impl Setting for String {
    fn parse(text: &str) -> Result<Self> {
        Ok(text.to_owned())
    }

    fn to_json(&self) -> Value {
        self.as_str().into()
    }
}

impl Setting for Durability {
    fn parse(text: &str) -> Result<Self> {
        if let Some(interval) = text.strip_prefix("interval:") {
            let milliseconds = match interval.parse() {
                Ok(milliseconds) => milliseconds,
                Err(_) => u32::try_from(parse_duration(interval)?.as_millis()).context("interval is too long")?,
            };
            return Ok(Self::Interval { milliseconds });
        }
        match text {
            "sync" => Ok(Self::Sync),
            "os" => Ok(Self::Os),
            _ => bail!("{text:?} is none of sync, interval:MILLISECONDS and os"),
        }
    }

    fn to_json(&self) -> Value {
        show_durability(*self).into()
    }
}

impl Setting for Compression {
    fn parse(text: &str) -> Result<Self> {
        if let Some(level) = text.strip_prefix("zstd:") {
            return Ok(Self::Zstd { level: level.parse().with_context(|| format!("{level:?} is not a level of zstd"))? });
        }
        match text {
            "none" => Ok(Self::None),
            "zstd" => Ok(Self::default()),
            _ => bail!("{text:?} is none of none, zstd and zstd:LEVEL"),
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::None => "none".into(),
            Self::Zstd { level } => format!("zstd:{level}").into(),
        }
    }
}

/// A durability as it is written.
pub fn show_durability(durability: Durability) -> String {
    match durability {
        Durability::Sync => "sync".to_owned(),
        Durability::Interval { milliseconds } => format!("interval:{milliseconds}"),
        Durability::Os => "os".to_owned(),
    }
}

macro_rules! keys {
    ($($key:literal => $field:ident),* $(,)?) => {
        fn set(patch: &mut SettingsPatch, key: &str, value: &str) -> Result<()> {
            match key {
                $($key => patch.$field = Some(Setting::parse(value)?),)*
                _ => bail!("no setting has this name{}", suggestion(key, QueueSettings::KEYS.iter().copied())),
            }
            Ok(())
        }

        /// All settings by name.
        pub fn to_json(settings: &QueueSettings) -> Value {
            let mut fields = Map::new();
            $(fields.insert($key.to_owned(), settings.$field.to_json());)*
            Value::Object(fields)
        }
    };
}

keys! {
    "durability" => durability,
    "compression" => compression,
    "namespace" => namespace,
    "task" => task,
    "consumerGroups" => consumer_groups,
    "priority" => priority,
    "leaseTime" => lease_time_s,
    "retryLimit" => retry_limit,
    "retryDelay" => retry_delay_ms,
    "maxSize" => max_size,
    "ttl" => ttl_s,
    "deadLetterQueue" => dead_letter_queue,
    "dlqAfterMaxRetries" => dlq_after_max_retries,
    "delayedProcessing" => delayed_processing_s,
    "windowBuffer" => window_buffer_s,
    "retentionSeconds" => retention_s,
    "completedRetentionSeconds" => completed_retention_s,
    "retentionEnabled" => retention_enabled,
    "retentionBytes" => retention_bytes,
    "encryptionEnabled" => encryption_enabled,
    "maxWaitTimeSeconds" => max_wait_time_s,
    "minPopWaitTime" => min_pop_wait_time,
    "dedupWindowSeconds" => dedup_window_s,
    "segmentBytes" => segment_bytes_max,
}

/// A change of settings from `key=value` words.
pub fn parse_patch(words: &[String]) -> Result<SettingsPatch> {
    let mut patch = SettingsPatch::default();
    for word in words {
        let (key, value) = word.split_once('=').with_context(|| format!("setting {word:?} is not KEY=VALUE"))?;
        set(&mut patch, key.trim(), value.trim()).with_context(|| format!("setting {:?}", key.trim()))?;
    }
    Ok(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_settable_and_shown() {
        let Value::Object(shown) = to_json(&QueueSettings::default()) else { panic!() };
        assert_eq!(shown.keys().map(String::as_str).collect::<Vec<_>>(), QueueSettings::KEYS);
        let words: Vec<String> = shown
            .iter()
            .map(|(key, value)| format!("{key}={}", value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
            .collect();
        assert_eq!(parse_patch(&words).unwrap(), SettingsPatch::of(&QueueSettings::default()));
    }

    #[test]
    fn a_wrong_key_or_value_is_named() {
        let refused = |word: &str| format!("{:#}", parse_patch(&[word.to_owned()]).unwrap_err());
        assert_eq!(refused("leastime=5"), "setting \"leastime\": no setting has this name; did you mean \"leaseTime\"?");
        assert_eq!(refused("leaseTime"), "setting \"leaseTime\" is not KEY=VALUE");
        assert!(refused("leaseTime=soon").starts_with("setting \"leaseTime\": \"soon\" is not a number from 0"));
        assert!(refused("durability=fsync").contains("none of sync"));
        assert!(refused("deadLetterQueue=maybe").contains("neither true nor false"));
        let patch = parse_patch(&["durability=interval:100".into(), "compression=zstd:3".into()]).unwrap();
        assert_eq!(patch.durability, Some(Durability::Interval { milliseconds: 100 }));
        assert_eq!(patch.compression, Some(Compression::Zstd { level: 3 }));
        assert_eq!(
            parse_patch(&["durability=interval:2s".into()]).unwrap().durability,
            Some(Durability::Interval { milliseconds: 2000 })
        );
    }
}
