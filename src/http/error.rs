//! Errors as clients see them: a status, and a JSON body with a text for people and a code for programs.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use crate::model::{Error, ErrorCode};

/// The result of a handler.
pub(super) type Result<T> = std::result::Result<T, ApiError>;

/// An answer that is not a success.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    /// The engine's code in snake case, or one of the gateway's own.
    pub(super) code: String,
    pub(super) text: String,
    /// More fields of the body, where a route has them.
    pub(super) fields: Map<String, Value>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &str, text: impl Into<String>) -> Self {
        Self { status, code: code.to_owned(), text: text.into(), fields: Map::new() }
    }

    /// The request does not parse, or a field is missing or out of range.
    pub(super) fn bad_request(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", text)
    }

    /// What the path names does not exist.
    pub(super) fn not_found(code: &str, text: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, text)
    }

    /// A fault of the server.
    pub(super) fn internal(text: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", text)
    }

    /// The same error with one more field in its body.
    pub(super) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(key.to_owned(), value.into());
        self
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        Self::new(status_of(error.code), &code_name(error.code), error.text)
    }
}

impl From<crate::record::NameError> for ApiError {
    fn from(error: crate::record::NameError) -> Self {
        Error::from(error).into()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::warn!(status = self.status.as_u16(), code = self.code, "request failed: {}", self.text);
        }
        if self.status == StatusCode::PAYLOAD_TOO_LARGE {
            // Queen answers this one in plain text, and its clients do not look for more.
            return (self.status, self.text).into_response();
        }
        let mut body = json!({ "success": false, "error": self.text, "code": self.code });
        if let Some(object) = body.as_object_mut() {
            object.extend(self.fields);
        }
        let mut response = super::json::answer(self.status, &body);
        if self.status == StatusCode::TOO_MANY_REQUESTS || self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// The code's name in snake case, such as `unknown_queue`.
pub(super) fn code_name(code: ErrorCode) -> String {
    let mut name = String::new();
    for (index, character) in format!("{code:?}").char_indices() {
        if character.is_ascii_uppercase() && index > 0 {
            name.push('_');
        }
        name.push(character.to_ascii_lowercase());
    }
    name
}

fn status_of(code: ErrorCode) -> StatusCode {
    use ErrorCode as Code;
    match code {
        Code::BadRequest
        | Code::UnsupportedVersion
        | Code::BadName
        | Code::BadFilter
        | Code::BadAttribute
        | Code::BadSettings
        | Code::BadBatch
        | Code::BeyondEnd => StatusCode::BAD_REQUEST,
        // Who it is was clear; who they are not is answered elsewhere.
        Code::Unauthorized => StatusCode::FORBIDDEN,
        Code::UnknownOperation
        | Code::UnknownQueue
        | Code::UnknownPartition
        | Code::UnknownGroup
        | Code::UnknownMessage
        | Code::UnknownDeadLetter => StatusCode::NOT_FOUND,
        Code::QueueExists
        | Code::GroupExists
        | Code::GroupInactive
        | Code::PrimaryGroup
        | Code::VersionConflict
        | Code::GroupsDisabled
        | Code::LeaseLost
        | Code::NotLeased
        | Code::Duplicate
        | Code::AckRejected
        | Code::OutOfSequence
        | Code::Fenced => StatusCode::CONFLICT,
        Code::RangeRemoved => StatusCode::GONE,
        Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::NotOwner => StatusCode::MISDIRECTED_REQUEST,
        Code::Busy => StatusCode::TOO_MANY_REQUESTS,
        Code::ShuttingDown | Code::Timeout | Code::Poisoned => StatusCode::SERVICE_UNAVAILABLE,
        Code::DiskFull => StatusCode::INSUFFICIENT_STORAGE,
        Code::Internal | Code::Corrupt | Code::Io | Code::BadDirectory | Code::DirectoryInUse | Code::NewerFormat => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_snake_case_and_every_one_is_an_error_status() {
        assert_eq!(code_name(ErrorCode::Io), "io");
        assert_eq!(code_name(ErrorCode::UnknownDeadLetter), "unknown_dead_letter");
        for &code in ErrorCode::ALL {
            let status = status_of(code);
            assert!(status.is_client_error() || status.is_server_error(), "{code:?}");
            // A client that repeats on a server error must only do so where that can help or the fault is the server's.
            if code.is_retryable() {
                assert!(status.is_server_error() || [429, 421].contains(&status.as_u16()), "{code:?}");
            }
        }
    }
}
