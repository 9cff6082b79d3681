//! Administration of queues and their partitions.

use crate::model::{
    Compression, Durability, Losses, PartitionInfo, QueueInfo, QueueSettings, QueueStats, ServerStats, SettingsPatch,
};

use super::wire::{Wire, bad_value, wire_struct, wire_type};
use super::{Chunks, Input, ProtocolError};

impl Wire for Durability {
    const BYTES_MIN: usize = 1;

    fn encode(&self, out: &mut Chunks) {
        match self {
            Self::Sync => 0u8.encode(out),
            Self::Interval { milliseconds } => {
                1u8.encode(out);
                milliseconds.encode(out);
            }
            Self::Os => 2u8.encode(out),
        }
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        match u8::decode(input)? {
            0 => Ok(Self::Sync),
            1 => Ok(Self::Interval { milliseconds: u32::decode(input)? }),
            2 => Ok(Self::Os),
            kind => Err(bad_value("a durability", kind)),
        }
    }
}

impl Wire for Compression {
    const BYTES_MIN: usize = 1;

    fn encode(&self, out: &mut Chunks) {
        match self {
            Self::None => 0u8.encode(out),
            Self::Zstd { level } => {
                1u8.encode(out);
                level.encode(out);
            }
        }
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        match u8::decode(input)? {
            0 => Ok(Self::None),
            1 => Ok(Self::Zstd { level: u8::decode(input)? }),
            kind => Err(bad_value("a compression", kind)),
        }
    }
}

/// The settings in their order on the wire, once for the values and once for the change, where each may be absent.
macro_rules! wire_settings {
    ($($field:ident: $type:ty),* $(,)?) => {
        wire_struct!(QueueSettings { $($field: $type),* });
        wire_struct!(SettingsPatch { $($field: Option<$type>),* });
    };
}

wire_settings!(
    durability: Durability,
    compression: Compression,
    namespace: String,
    task: String,
    consumer_groups: bool,
    priority: i64,
    lease_time_s: u32,
    retry_limit: u32,
    retry_delay_ms: u32,
    max_size: u64,
    ttl_s: u64,
    dead_letter_queue: bool,
    dlq_after_max_retries: bool,
    delayed_processing_s: u32,
    window_buffer_s: u32,
    retention_s: u64,
    completed_retention_s: u64,
    retention_enabled: bool,
    retention_bytes: u64,
    encryption_enabled: bool,
    max_wait_time_s: u64,
    min_pop_wait_time: u64,
    dedup_window_s: u64,
    segment_bytes_max: u64,
);

wire_struct!(QueueStats {
    partitions: u64,
    groups: u64,
    messages: u64,
    messages_pushed: u64,
    messages_dropped: u64,
    duplicates: u64,
    messages_popped: u64,
    messages_acked: u64,
    dead_letters: u64,
    log_bytes: u64,
    segments: u64,
    commits: u64,
    bytes_written: u64,
    syncs: u64,
    sync_time_us: u64,
    messages_lost_unread: u64,
    is_poisoned: bool,
});

wire_struct!(ServerStats {
    queues: u64,
    total: QueueStats,
    pending_bytes: u64,
    disk_free_bytes: u64,
    waiting_pops: u64,
    start_number: u64,
});

wire_struct!(Losses { unread: u64, damaged: u64 });

wire_struct!(QueueInfo { name: String, incarnation: u64, created_at_us: u64, settings: QueueSettings, stats: QueueStats });

wire_struct!(PartitionInfo { name: String, id: u32, start: u64, end: u64, newest_at_us: u64 });

wire_type!(
    /// Makes a queue. Fails with `QueueExists` if there is one.
    QueueCreate {
        /// Its name.
        queue: String,
        /// Settings that differ from the default.
        settings: SettingsPatch,
    }
);

wire_type!(
    /// One queue with its settings and counters.
    QueueGet {
        /// Its name.
        queue: String,
    }
);

wire_type!(
    /// Queues in order of their names.
    QueueList {
        /// Only names after this one; `None` starts at the first.
        after: Option<String>,
        /// At most so many, 1 to 1,000.
        limit: u32,
    }
);

wire_type!(
    /// Queues; as many as the limit means that there may be more.
    QueuePage {
        /// The queues.
        queues: Vec<QueueInfo>,
    }
);

wire_type!(
    /// Changes the settings that are named and no others.
    QueueUpdate {
        /// The queue.
        queue: String,
        /// What changes.
        settings: SettingsPatch,
    }
);

wire_type!(
    /// Deletes a queue with all it holds.
    QueueDelete {
        /// The queue.
        queue: String,
    }
);

wire_type!(
    /// The reply to a deletion.
    Deleted {
        /// Whether there was anything to delete.
        existed: bool,
    }
);

wire_type!(
    /// Partitions of a queue in order of their numbers.
    PartitionList {
        /// The queue.
        queue: String,
        /// Only numbers after this one; `None` starts at the first.
        after: Option<u32>,
        /// At most so many, 1 to 10,000.
        limit: u32,
    }
);

wire_type!(
    /// Partitions; as many as the limit means that there may be more.
    PartitionPage {
        /// The partitions.
        partitions: Vec<PartitionInfo>,
    }
);

wire_type!(
    /// One partition by name.
    PartitionGet {
        /// The queue.
        queue: String,
        /// The partition's name.
        partition: String,
    }
);

wire_type!(
    /// Counters of the whole server.
    Stats {}
);

wire_type!(
    /// Messages that groups lost before they read them.
    LossesGet {
        /// One queue; `None` is all.
        queue: Option<String>,
    }
);
