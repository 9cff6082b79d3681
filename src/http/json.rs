//! JSON in and out: whole bodies, payloads as the bytes that came, visible attributes.

use std::borrow::Cow;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::record::{AttributeError, Attributes, RESERVED_KEY_PREFIX, ValueRef};

use super::error::{ApiError, Result};
use super::json_check::is_json;

/// Marks a payload that is not JSON and travels in base64.
pub(super) const BASE64_MARKER: &str = "base64";

/// A JSON response.
pub(super) fn answer(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(bytes) => answer_bytes(status, Body::from(bytes)),
        Err(error) => {
            tracing::error!("an answer does not serialize: {error}");
            answer_bytes(
                StatusCode::INTERNAL_SERVER_ERROR,
                Body::from(r#"{"success":false,"error":"internal","code":"internal"}"#),
            )
        }
    }
}

/// A JSON response with status 200.
pub(super) fn ok(body: &impl Serialize) -> Response {
    answer(StatusCode::OK, body)
}

/// A response whose body is JSON already.
pub(super) fn answer_bytes(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Reads a body as JSON.
pub(super) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T> {
    let bad = |error: &dyn std::fmt::Display| ApiError::bad_request(format!("body does not parse: {error}"));
    // Checked as a whole at once, the text need not be checked string by string.
    let text = std::str::from_utf8(body).map_err(|error| bad(&error))?;
    serde_json::from_str(text).map_err(|error| bad(&error))
}

/// Reads a body that may be absent or `null`.
pub(super) fn parse_or_default<'a, T: Deserialize<'a> + Default>(body: &'a [u8]) -> Result<T> {
    if body.iter().all(u8::is_ascii_whitespace) { Ok(T::default()) } else { Ok(parse::<Option<T>>(body)?.unwrap_or_default()) }
}

/// A payload on its way out.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Payload<'a> {
    /// JSON, as it was stored.
    Json(&'a str),
    /// Other bytes.
    Bytes(&'a [u8]),
}

impl<'a> Payload<'a> {
    /// Looks at the stored bytes: what is JSON goes out as it is.
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) if is_json(text) => Self::Json(text),
            _ => Self::Bytes(bytes),
        }
    }

    /// The marker that goes with it.
    pub(super) fn encoding(&self) -> Option<&'static str> {
        match self {
            Self::Json(_) => None,
            Self::Bytes(_) => Some(BASE64_MARKER),
        }
    }

    /// Appends it.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Json(text) => out.extend_from_slice(text.as_bytes()),
            Self::Bytes(bytes) => {
                out.push(b'"');
                let start = out.len();
                out.resize(start + bytes.len().div_ceil(3) * 4, 0);
                // The buffer has the exact length that the encoding needs.
                let written = BASE64.encode_slice(bytes, &mut out[start..]).unwrap_or(0);
                out.truncate(start + written);
                out.push(b'"');
            }
        }
    }
}

/// Only with `serde_json` itself: any other serializer, and `serde_json::Value`, would read numbers again.
impl Serialize for Payload<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Self::Json(text) => match serde_json::from_str::<&RawValue>(text) {
                Ok(raw) => raw.serialize(serializer),
                Err(error) => Err(serde::ser::Error::custom(error)),
            },
            Self::Bytes(bytes) => serializer.serialize_str(&BASE64.encode(bytes)),
        }
    }
}

/// Attributes without those that belong to the gateway.
pub(super) struct Visible<'a>(pub(super) &'a Attributes);

impl Visible<'_> {
    /// Whether there are none to see.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty() || self.0.iter().all(|(key, _)| key.starts_with(RESERVED_KEY_PREFIX))
    }
}

impl Serialize for Visible<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in self.0.iter().filter(|(key, _)| !key.starts_with(RESERVED_KEY_PREFIX)) {
            match value {
                ValueRef::String(text) => map.serialize_entry(key, text)?,
                // Raw, so that no digit passes through a float.
                ValueRef::Number(number) => {
                    let raw = RawValue::from_string(number.as_str().to_owned()).map_err(serde::ser::Error::custom)?;
                    map.serialize_entry(key, &raw)?;
                }
            }
        }
        map.end()
    }
}

/// Reads attributes as clients write them; reserved keys are refused.
pub(super) fn attributes(raw: &RawValue) -> Result<Attributes> {
    let bad = |text: String| ApiError::new(StatusCode::BAD_REQUEST, "bad_attribute", text);
    if raw.get() == "null" {
        return Ok(Attributes::default());
    }
    let attributes = Attributes::from_json(raw.get()).map_err(|error| bad(error.to_string()))?;
    if let Some(key) = attributes.view().reserved_key() {
        return Err(bad(AttributeError::Reserved { key: key.to_owned() }.to_string()));
    }
    Ok(attributes)
}

/// A JSON string that stays where it is in the body, unless it has escapes. An `Option<Cow<str>>` would always be a copy.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub(super) struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

/// Appends a JSON string.
pub(super) fn write_text(out: &mut Vec<u8>, text: &str) {
    // Nearly all texts are ids and names without anything to escape; the test below is a vector instruction.
    let is_plain = text.bytes().fold(true, |is_plain, byte| is_plain & (byte >= 0x20) & (byte != b'"') & (byte != b'\\'));
    if is_plain {
        out.reserve(text.len() + 2);
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        // Writing a string into a vector cannot fail.
        let _ = serde_json::to_writer(out, text);
    }
}

/// Appends a number.
pub(super) fn write_number(out: &mut Vec<u8>, number: u64) {
    // Writing a number into a vector cannot fail.
    let _ = serde_json::to_writer(out, &number);
}

/// Appends `"key":`; the key needs no escapes.
pub(super) fn write_key(out: &mut Vec<u8>, key: &str) {
    out.push(b'"');
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(b"\":");
}

/// Appends `"key":"text"`; the key needs no escapes.
pub(super) fn write_field(out: &mut Vec<u8>, key: &str, text: &str) {
    write_key(out, key);
    write_text(out, text);
}

/// Appends `"key":"text"` or `"key":null`.
pub(super) fn write_optional(out: &mut Vec<u8>, key: &str, text: Option<&str>) {
    match text {
        Some(text) => write_field(out, key, text),
        None => {
            write_key(out, key);
            out.extend_from_slice(b"null");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(payload: &Payload<'_>) -> String {
        let mut out = Vec::new();
        payload.write(&mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(serde_json::to_string(payload).unwrap(), text);
        text
    }

    #[test]
    fn json_payloads_keep_their_bytes_and_others_become_base64() {
        for json in ["null", "1e400", "9007199254740993", r#"{"a" : [1.10, "é\u0000"]}"#, "\"x\""] {
            let payload = Payload::of(json.as_bytes());
            assert_eq!((written(&payload).as_str(), payload.encoding()), (json, None));
        }
        for (bytes, base64) in
            [(&b""[..], ""), (b"\xff", "/w=="), (b"hello", "aGVsbG8="), (b"{\"a\":", "eyJhIjo="), (b"1 2", "MSAy")]
        {
            let payload = Payload::of(bytes);
            assert_eq!((written(&payload), payload.encoding()), (format!("\"{base64}\""), Some(BASE64_MARKER)));
        }
    }

    #[test]
    fn texts_and_numbers_are_written_as_serde_json_writes_them() {
        for text in ["", "plain", "with \"quotes\" and \\", "control \u{1} \n \u{1f}", "\u{7f} ü 🐝 \u{2028}"] {
            let mut out = Vec::new();
            write_text(&mut out, text);
            assert_eq!(String::from_utf8(out).unwrap(), serde_json::to_string(text).unwrap());
        }
        let mut out = Vec::new();
        write_field(&mut out, "key", "a\"b");
        out.push(b',');
        write_optional(&mut out, "none", None);
        write_number(&mut out, u64::MAX);
        assert_eq!(String::from_utf8(out).unwrap(), r#""key":"a\"b","none":null18446744073709551615"#);
    }

    #[test]
    fn texts_borrow_from_the_body_unless_they_have_escapes() {
        let texts: Vec<Option<Text<'_>>> = parse(r#"["plain ü", "a\u0062", null]"#.as_bytes()).unwrap();
        assert!(matches!(&texts[0], Some(Text(Cow::Borrowed("plain ü")))));
        assert!(matches!(&texts[1], Some(Text(Cow::Owned(text))) if text == "ab"));
        assert_eq!(texts[2], None);
        assert_eq!(parse::<Vec<Text<'_>>>(b"[\"\xff\"]").unwrap_err().code, "bad_request");
    }

    #[test]
    fn deep_json_is_json() {
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        assert_eq!(Payload::of(deep.as_bytes()), Payload::Json(&deep));
    }

    #[test]
    fn reserved_attributes_are_refused_on_the_way_in_and_hidden_on_the_way_out() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        assert_eq!(attributes(&raw(r#"{"fanlog.trace":"x"}"#)).unwrap_err().code, "bad_attribute");
        assert_eq!(attributes(&raw(r#"{"a":true}"#)).unwrap_err().code, "bad_attribute");
        assert!(attributes(&raw("null")).unwrap().is_empty());
        let mut set = attributes(&raw(r#"{"n":123456789012345678901234567890.10,"s":"x"}"#)).unwrap();
        set.insert("fanlog.trace", "t").unwrap();
        assert_eq!(serde_json::to_string(&Visible(&set)).unwrap(), r#"{"n":123456789012345678901234567890.10,"s":"x"}"#);
        let mut hidden = Attributes::default();
        hidden.insert("fanlog.trace", "t").unwrap();
        assert!(Visible(&hidden).is_empty() && !Visible(&set).is_empty());
    }

    #[test]
    fn an_absent_body_is_the_default_only_where_that_is_asked_for() {
        assert_eq!(parse_or_default::<u32>(b" ").unwrap(), 0);
        assert_eq!(parse_or_default::<u32>(b"null").unwrap(), 0);
        assert_eq!(parse_or_default::<u32>(b"7").unwrap(), 7);
        assert!(parse_or_default::<u32>(b"x").is_err());
        assert!(parse::<u32>(b"").is_err());
    }
}
