//! Times as clients write and read them: ISO 8601, UTC, microseconds.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;

/// A time in microseconds since the Unix epoch as `2026-09-04T10:00:00.000000Z`.
pub(super) fn iso(microseconds: u64) -> String {
    let time = i64::try_from(microseconds).ok().and_then(|time| Timestamp::from_microsecond(time).ok());
    format!("{:.6}", time.unwrap_or(Timestamp::MAX))
}

/// A time that may be absent.
pub(super) fn iso_option(microseconds: Option<u64>) -> Option<String> {
    microseconds.map(iso)
}

/// Reads an ISO 8601 date or time; without a zone it is UTC. A time before 1970 is 1970. `None` if it is neither.
pub(super) fn parse_iso(text: &str) -> Option<u64> {
    let text = text.trim();
    let utc = |time: DateTime| TimeZone::UTC.to_timestamp(time).ok();
    let time = text
        .parse::<Timestamp>()
        .ok()
        .or_else(|| text.parse::<DateTime>().ok().and_then(utc))
        .or_else(|| text.parse::<Date>().ok().and_then(|date| utc(date.to_datetime(jiff::civil::Time::midnight()))))?;
    Some(u64::try_from(time.as_microsecond()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_six_digits_and_a_z() {
        assert_eq!(iso(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(iso(1_788_516_000_000_001), "2026-09-04T10:00:00.000001Z");
        assert!(iso(u64::MAX).ends_with('Z'));
    }

    #[test]
    fn times_are_read_with_and_without_a_zone() {
        for text in [
            "2026-09-04T10:00:00Z",
            "2026-09-04T10:00:00.000Z",
            "2026-09-04T12:00:00+02:00",
            "2026-09-04T10:00:00",
            "2026-09-04 10:00",
        ] {
            assert_eq!(parse_iso(text), Some(1_788_516_000_000_000), "{text}");
        }
        assert_eq!(parse_iso("2026-09-04"), Some(1_788_480_000_000_000));
        assert_eq!(parse_iso("1969-01-01T00:00:00Z"), Some(0));
        assert_eq!(parse_iso(&iso(1_788_516_000_123_456)), Some(1_788_516_000_123_456));
        for bad in ["", "now", "yesterday", "2026-13-01", "12", "2026-09-04T25:00:00Z"] {
            assert_eq!(parse_iso(bad), None, "{bad}");
        }
    }
}
