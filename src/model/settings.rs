//! Settings of a queue: Queen's seventeen options, and durability and compression.

/// What a reply to a push or an acknowledgement promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// The reply comes after `fdatasync`: it survives a power loss.
    #[default]
    Sync,
    /// The reply comes after the write; a sync follows within so many milliseconds.
    Interval {
        /// Milliseconds between syncs, at least 1.
        milliseconds: u32,
    },
    /// The reply comes after the write; the operating system syncs when it likes. Survives a kill, not a power loss.
    Os,
}

/// How payloads are stored. A batch that zstd shrinks by less than 10 % is stored plain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Stored as they are.
    None,
    /// zstd with this level, 1 to 19.
    Zstd {
        /// The level.
        level: u8,
    },
}

impl Default for Compression {
    fn default() -> Self {
        Self::Zstd { level: 1 }
    }
}

macro_rules! settings {
    ($($(#[$doc:meta])* $field:ident: $type:ty = $default:expr, $key:literal;)*) => {
        /// The settings of a queue.
        #[derive(Debug, Clone, PartialEq)]
        pub struct QueueSettings {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl Default for QueueSettings {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        /// A change of settings: what is `None` stays as it is.
        #[derive(Debug, Clone, PartialEq, Default)]
        pub struct SettingsPatch {
            $($(#[$doc])* pub $field: Option<$type>,)*
        }

        impl SettingsPatch {
            /// `settings` with this change.
            pub fn apply(&self, settings: &QueueSettings) -> QueueSettings {
                QueueSettings { $($field: self.$field.clone().unwrap_or_else(|| settings.$field.clone()),)* }
            }

            /// A change that sets every field.
            pub fn of(settings: &QueueSettings) -> Self {
                Self { $($field: Some(settings.$field.clone()),)* }
            }
        }

        impl QueueSettings {
            /// The names of all settings as users write them (Queen's spelling), in order.
            pub const KEYS: &[&str] = &[$($key,)*];
        }
    };
}

settings! {
    /// What replies promise.
    durability: Durability = Durability::Sync, "durability";
    /// How payloads are stored.
    compression: Compression = Compression::default(), "compression";
    /// First of two grouping words; taken from the first dot-separated part of the name unless given.
    namespace: String = String::new(), "namespace";
    /// Second of two grouping words; taken from the second dot-separated part of the name unless given.
    task: String = String::new(), "task";
    /// Whether named groups may read; the primary group always may.
    consumer_groups: bool = true, "consumerGroups";
    /// Stored and echoed, without effect.
    priority: i64 = 0, "priority";
    /// How long a lease lasts, in seconds, unless the pop says so. 60 for a queue made by its first push.
    lease_time_s: u32 = 60, "leaseTime";
    /// Failed deliveries before a message is a dead letter or dropped.
    retry_limit: u32 = 3, "retryLimit";
    /// Milliseconds before a failed message is handed out again; Queen stores it and retries at once, and so do we unless the
    /// consumer asks for a delay.
    retry_delay_ms: u32 = 1000, "retryDelay";
    /// Stored and echoed, without effect.
    max_size: u64 = 0, "maxSize";
    /// Stored and echoed, without effect.
    ttl_s: u64 = 3600, "ttl";
    /// Whether a message over its retry limit becomes a dead letter.
    dead_letter_queue: bool = true, "deadLetterQueue";
    /// As `dead_letter_queue`: either one sends to the dead letters.
    dlq_after_max_retries: bool = true, "dlqAfterMaxRetries";
    /// Seconds after its push before a message may be handed out.
    delayed_processing_s: u32 = 0, "delayedProcessing";
    /// Seconds that a partition must have been quiet before it is handed out.
    window_buffer_s: u32 = 0, "windowBuffer";
    /// Age in seconds at which messages go, read or not. 0 is off.
    retention_s: u64 = 0, "retentionSeconds";
    /// Age in seconds at which messages that every group has passed go. 0 is off.
    completed_retention_s: u64 = 0, "completedRetentionSeconds";
    /// Whether the two retention rules above run.
    retention_enabled: bool = false, "retentionEnabled";
    /// Bytes of log to keep; older messages go, read or not. 0 is off.
    retention_bytes: u64 = 0, "retentionBytes";
    /// Whether the gateway encrypts payloads.
    encryption_enabled: bool = false, "encryptionEnabled";
    /// Age in seconds at which messages go, without `retention_enabled`. 0 is off.
    max_wait_time_s: u64 = 0, "maxWaitTimeSeconds";
    /// Stored and echoed, without effect.
    min_pop_wait_time: u64 = 0, "minPopWaitTime";
    /// Seconds within which a transaction id is stored once in a partition. 0 is off.
    dedup_window_s: u64 = 3600, "dedupWindowSeconds";
    /// Bytes that a segment may reach, 1 MiB to 1 GiB.
    segment_bytes_max: u64 = 128 << 20, "segmentBytes";
}
