//! Times and durations as people write them.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use fanlog::model::{SeekTarget, Start};
use jiff::Timestamp;

/// Numbers of at least so many digits are milliseconds since the Unix epoch where an offset could stand too: the year 1973 and
/// later, and more messages than a partition will see.
const EPOCH_DIGITS_MIN: usize = 12;

const UNITS: [(&str, u64); 7] = [
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
    ("w", 604_800_000_000),
];

/// A duration such as `5s`, `1m30s`, `500ms` or `2d`.
pub fn parse_duration(text: &str) -> Result<Duration> {
    let refused = || format!("duration {text:?} is not a number and a unit such as 500ms, 5s, 15m, 2h or 1d");
    let mut rest = text.trim();
    let mut total = 0u64;
    if rest.is_empty() {
        bail!(refused());
    }
    while !rest.is_empty() {
        let digits = rest.find(|character: char| !character.is_ascii_digit()).with_context(refused)?;
        let number: u64 = rest[..digits].parse().with_context(refused)?;
        let unit_and_rest = &rest[digits..];
        let unit_end = unit_and_rest.find(|character: char| character.is_ascii_digit()).unwrap_or(unit_and_rest.len());
        let unit = unit_and_rest[..unit_end].trim();
        let (_, microseconds) = UNITS.iter().find(|(name, _)| *name == unit).with_context(refused)?;
        total = number.checked_mul(*microseconds).and_then(|part| total.checked_add(part)).with_context(refused)?;
        rest = &unit_and_rest[unit_end..];
    }
    Ok(Duration::from_micros(total))
}

/// A moment, in microseconds since the Unix epoch: RFC 3339, `15m ago`, `2h` (the same as `2h ago`), `now`, or milliseconds since
/// the epoch.
pub fn parse_time(text: &str, now_us: u64) -> Result<u64> {
    parse_time_or(text, now_us, "a distance (15m ago)")
}

/// As [`parse_time`]; what a refusal names beside the forms of a moment is the caller's.
pub fn parse_time_or(text: &str, now_us: u64, alternatives: &str) -> Result<u64> {
    let text = text.trim();
    if text == "now" {
        return Ok(now_us);
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let milliseconds: u64 = text.parse().with_context(|| format!("time {text:?} is too large"))?;
        return milliseconds.checked_mul(1_000).with_context(|| format!("time {text:?} is too large"));
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        return u64::try_from(time.as_microsecond()).with_context(|| format!("time {text:?} is before 1970"));
    }
    let duration = parse_duration(text.strip_suffix("ago").unwrap_or(text)).ok();
    let duration = duration.with_context(|| {
        format!("{text:?} is none of these: {alternatives}, RFC 3339 (2026-01-31T12:00:00Z), milliseconds since the epoch")
    })?;
    Ok(now_us.saturating_sub(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)))
}

/// Where a group starts: `beginning`, `new`, an offset or a time.
pub fn parse_start(text: &str, now_us: u64) -> Result<Start> {
    Ok(match parse_place(text, now_us, "beginning, new, an offset, a distance (15m ago)")? {
        Place::Beginning => Start::Beginning,
        Place::End => Start::New,
        Place::Offset(offset) => Start::Offset(offset),
        Place::Time(time_us) => Start::Time(time_us),
    })
}

/// Where a seek goes: `beginning`, `end`, an offset, a time, or `+N` and `-N` for so many messages.
pub fn parse_seek(text: &str, now_us: u64) -> Result<SeekTarget> {
    if text.starts_with(['+', '-']) {
        let messages = text.parse().with_context(|| format!("shift {text:?} is not a number of messages"))?;
        return Ok(SeekTarget::Shift(messages));
    }
    Ok(match parse_place(text, now_us, "beginning, end, an offset, +N or -N messages, a distance (15m ago)")? {
        Place::Beginning => SeekTarget::Beginning,
        Place::End => SeekTarget::End,
        Place::Offset(offset) => SeekTarget::Offset(offset),
        Place::Time(time_us) => SeekTarget::Time(time_us),
    })
}

enum Place {
    Beginning,
    End,
    Offset(u64),
    Time(u64),
}

fn parse_place(text: &str, now_us: u64, alternatives: &str) -> Result<Place> {
    let text = text.trim();
    match text {
        "beginning" | "earliest" | "all" => return Ok(Place::Beginning),
        "new" | "end" | "latest" => return Ok(Place::End),
        _ => (),
    }
    if let Some(time) = text.strip_prefix("time:") {
        return parse_time(time, now_us).map(Place::Time);
    }
    let offset = text.strip_prefix("offset:");
    let digits = offset.unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_number && (offset.is_some() || digits.len() < EPOCH_DIGITS_MIN) {
        return Ok(Place::Offset(digits.parse().with_context(|| format!("offset {digits:?} is too large"))?));
    }
    if offset.is_some() {
        bail!("offset {digits:?} is not a number");
    }
    parse_time_or(text, now_us, alternatives).map(Place::Time)
}

/// A moment for people, in RFC 3339 with microseconds; nothing for 0.
pub fn show_time(time_us: u64) -> Option<String> {
    let time = Timestamp::from_microsecond(i64::try_from(time_us).ok()?).ok()?;
    (time_us > 0).then(|| time.to_string())
}

/// A span for people, with the two largest units that matter.
pub fn show_span(microseconds: u64) -> String {
    let mut left = microseconds;
    let mut text = String::new();
    let mut parts = 0;
    for (unit, size) in UNITS.iter().rev() {
        let count = left / size;
        left %= size;
        if count > 0 || (*unit == "us" && parts == 0) {
            text.push_str(&format!("{count}{unit}"));
            parts += 1;
        }
        if parts == 2 || (parts == 1 && count == 0) {
            break;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000_000;

    #[test]
    fn durations_are_numbers_with_units() {
        for (text, microseconds) in [
            ("5s", 5_000_000),
            ("500ms", 500_000),
            ("1m30s", 90_000_000),
            ("2h", 7_200_000_000),
            ("1d", 86_400_000_000),
            ("0s", 0),
        ] {
            assert_eq!(parse_duration(text).unwrap(), Duration::from_micros(microseconds), "{text}");
        }
        for text in ["", "5", "s", "5x", "5s3", "-5s", "1.5s", "99999999999999w", "5 5s"] {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn times_are_rfc_3339_distances_or_milliseconds() {
        for (text, expected) in [
            ("2027-01-15T08:00:00Z", NOW),
            ("2027-01-15T09:00:00+01:00", NOW),
            ("1800000000000", NOW),
            ("15m ago", NOW - 900_000_000),
            ("15 m ago", NOW - 900_000_000),
            ("2h", NOW - 7_200_000_000),
            ("now", NOW),
        ] {
            assert_eq!(parse_time(text, NOW).unwrap(), expected, "{text}");
        }
        for text in ["", "yesterday", "2027-13-15T08:00:00Z", "1969-01-01T00:00:00Z", "99999999999999999999"] {
            assert!(parse_time(text, NOW).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_short_number_is_an_offset_and_a_long_one_a_time() {
        assert_eq!(parse_start("beginning", NOW).unwrap(), Start::Beginning);
        assert_eq!(parse_start("new", NOW).unwrap(), Start::New);
        assert_eq!(parse_start("0", NOW).unwrap(), Start::Offset(0));
        assert_eq!(parse_start("99999999999", NOW).unwrap(), Start::Offset(99_999_999_999));
        assert_eq!(parse_start("1800000000000", NOW).unwrap(), Start::Time(NOW));
        assert_eq!(parse_start("offset:1800000000000", NOW).unwrap(), Start::Offset(1_800_000_000_000));
        assert_eq!(parse_start("time:5", NOW).unwrap(), Start::Time(5_000));
        assert_eq!(parse_seek("-20", NOW).unwrap(), SeekTarget::Shift(-20));
        assert_eq!(parse_seek("+3", NOW).unwrap(), SeekTarget::Shift(3));
        assert_eq!(parse_seek("end", NOW).unwrap(), SeekTarget::End);
        assert!(parse_seek("-x", NOW).is_err());
        assert!(parse_start("offset:x", NOW).is_err());
    }

    #[test]
    fn a_refusal_names_what_can_stand_there() {
        let moment = "RFC 3339 (2026-01-31T12:00:00Z), milliseconds since the epoch";
        let refused = |error: anyhow::Error| format!("{error:#}");
        assert_eq!(
            refused(parse_time("soon", NOW).unwrap_err()),
            format!("\"soon\" is none of these: a distance (15m ago), {moment}")
        );
        assert_eq!(
            refused(parse_start("soon", NOW).unwrap_err()),
            format!("\"soon\" is none of these: beginning, new, an offset, a distance (15m ago), {moment}")
        );
        assert_eq!(
            refused(parse_seek("soon", NOW).unwrap_err()),
            format!("\"soon\" is none of these: beginning, end, an offset, +N or -N messages, a distance (15m ago), {moment}")
        );
    }

    #[test]
    fn spans_have_at_most_two_units() {
        for (microseconds, text) in [
            (0, "0us"),
            (15, "15us"),
            (90_000_000, "1m30s"),
            (3_600_000_000, "1h"),
            (86_461_000_000, "1d"),
            (90_061_000_000, "1d1h"),
        ] {
            assert_eq!(show_span(microseconds), text);
        }
    }
}
