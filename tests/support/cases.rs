//! Cases that hold for the engine alone and for the real binary alike: each program makes its own assertions of them.

use fanlog::model::{Compression, Durability, SeekTarget, SettingsPatch};

/// Settings that are refused.
pub fn bad_settings() -> Vec<SettingsPatch> {
    let none = SettingsPatch::default;
    vec![
        SettingsPatch { lease_time_s: Some(0), ..none() },
        SettingsPatch { durability: Some(Durability::Interval { milliseconds: 0 }), ..none() },
        SettingsPatch { compression: Some(Compression::Zstd { level: 20 }), ..none() },
        SettingsPatch { segment_bytes_max: Some(1), ..none() },
        SettingsPatch { segment_bytes_max: Some(u64::MAX), ..none() },
        SettingsPatch { retention_s: Some(u64::MAX), retry_limit: Some(7), ..none() },
        SettingsPatch { completed_retention_s: Some(u64::MAX), ..none() },
        SettingsPatch { max_wait_time_s: Some(u64::MAX), ..none() },
        SettingsPatch { dedup_window_s: Some(u64::MAX), ..none() },
        SettingsPatch { dedup_window_s: Some(u64::MAX), lease_time_s: Some(5), ..none() },
    ]
}

/// The largest settings that are taken.
pub fn largest_settings() -> SettingsPatch {
    let most = u64::from(u32::MAX) * 1000;
    SettingsPatch {
        lease_time_s: Some(u32::MAX),
        retry_limit: Some(u32::MAX),
        delayed_processing_s: Some(u32::MAX),
        window_buffer_s: Some(u32::MAX),
        retention_enabled: Some(true),
        retention_s: Some(most),
        completed_retention_s: Some(most),
        max_wait_time_s: Some(most),
        dedup_window_s: Some(most),
        retention_bytes: Some(u64::MAX),
        ..SettingsPatch::default()
    }
}

/// Seeks one after the other, and the offset that each leads to, in a partition of four messages of which the group has done one;
/// `between_us` lies between the second and the third.
pub fn seeks_over_four(between_us: u64) -> [(SeekTarget, u64); 10] {
    [
        (SeekTarget::End, 4),
        (SeekTarget::Beginning, 0),
        (SeekTarget::Offset(3), 3),
        (SeekTarget::Time(between_us), 2),
        (SeekTarget::Shift(1), 3),
        (SeekTarget::Shift(-2), 1),
        (SeekTarget::Shift(i64::MAX), 4),
        (SeekTarget::Shift(i64::MIN), 0),
        (SeekTarget::Time(u64::MAX), 4),
        (SeekTarget::Time(0), 0),
    ]
}
