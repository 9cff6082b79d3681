//! Query parameters and path names, read without the framework's plain-text refusals.

use axum::extract::{FromRequestParts, Path, Query};
use axum::http::Uri;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use super::error::{ApiError, Result};

/// The query of a request. An empty value counts as absent; of several, the last one counts.
#[derive(Debug, Clone, Default)]
pub(super) struct Params(Vec<(String, String)>);

impl Params {
    /// The query of a URI.
    pub(super) fn of(uri: &Uri) -> Result<Self> {
        Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map(|Query(pairs)| Self(pairs))
            .map_err(|error| ApiError::bad_request(format!("query does not parse: {}", error.body_text())))
    }

    /// A value.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }

    /// A value that owns its text.
    pub(super) fn owned(&self, name: &str) -> Option<String> {
        self.text(name).map(str::to_owned)
    }

    /// `true` or `1`; anything else, or nothing, is false.
    pub(super) fn flag(&self, name: &str) -> bool {
        matches!(self.text(name), Some("true" | "1"))
    }

    /// A whole number; negative ones are 0, since clients send -1 for "none".
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.parse::<i64>() {
            Ok(number) => Ok(Some(u64::try_from(number).unwrap_or(0))),
            Err(_) => Err(ApiError::bad_request(format!("{name} is not a whole number: {text}"))),
        }
    }

    /// A number between bounds; one outside is moved to the nearest.
    pub(super) fn number_in(&self, name: &str, default: u64, range: std::ops::RangeInclusive<u64>) -> Result<u64> {
        Ok(self.number(name)?.unwrap_or(default).clamp(*range.start(), *range.end()))
    }

    /// A time, in microseconds since the Unix epoch.
    pub(super) fn time(&self, name: &str) -> Result<Option<u64>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match super::time::parse_iso(text) {
            Some(time) => Ok(Some(time)),
            None => Err(ApiError::bad_request(format!("{name} is not an ISO 8601 time: {text}"))),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Params {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        Self::of(&parts.uri)
    }
}

/// The percent-decoded names in the path.
#[derive(Debug, Clone)]
pub(super) struct Names<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Names<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        Path::<T>::from_request_parts(parts, state)
            .await
            .map(|Path(names)| Self(names))
            .map_err(|error| ApiError::bad_request(format!("path does not parse: {}", error.body_text())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(pairs: &[(&str, &str)]) -> Params {
        Params(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn values_are_bounded_and_empty_ones_are_absent() {
        let params = params(&[("batch", "7"), ("empty", ""), ("low", "-3"), ("bad", "x"), ("wait", "true"), ("off", "false")]);
        assert_eq!(params.number_in("batch", 1, 1..=5), Ok(5));
        assert_eq!(params.number_in("absent", 9, 1..=10), Ok(9));
        assert_eq!(params.number("low"), Ok(Some(0)));
        assert_eq!(params.number("empty"), Ok(None));
        assert!(params.number("bad").is_err());
        assert!(params.flag("wait") && !params.flag("off") && !params.flag("absent"));
        assert!(params.time("bad").is_err());
    }
}
