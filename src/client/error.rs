//! What a client reports: a kind to decide by, the server's code where there is one, a text for people.

use std::fmt;
use std::time::Duration;

use crate::model::ErrorCode;
use crate::net::NetError;
use crate::protocol::{ErrorReply, ProtocolError};

/// What went wrong, in the terms of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The address does not parse.
    BadAddress,
    /// No connection could be made.
    Connect,
    /// The connection was lost before the answer; whether the request took effect is not known.
    Disconnected,
    /// The deadline passed before the answer; whether the request took effect is not known.
    Timeout,
    /// The client, producer or consumer is closed.
    Closed,
    /// There is no room for the message now.
    Full,
    /// The message or request is larger than the server takes.
    TooLarge,
    /// The lease is over; the message will be delivered again.
    LeaseLost,
    /// The server sent bytes that do not decode.
    Protocol,
    /// The server refused the request; [`Error::code`] says why.
    Refused,
}

/// An error of the client.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    code: Option<ErrorCode>,
    is_retryable: bool,
    retry_after: Option<Duration>,
    text: String,
}

/// The result of a client's operation.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(super) fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        let is_retryable = matches!(kind, ErrorKind::Connect | ErrorKind::Disconnected | ErrorKind::Timeout | ErrorKind::Full);
        Self { kind, code: None, is_retryable, retry_after: None, text: text.into() }
    }

    pub(super) fn closed() -> Self {
        Self::new(ErrorKind::Closed, "client is closed")
    }

    /// What later calls are told where the server, and not the owner, ended it.
    pub(super) fn closed_by(reason: &Self) -> Self {
        match reason.kind {
            ErrorKind::Closed => reason.clone(),
            _ => Self { code: reason.code, ..Self::new(ErrorKind::Closed, format!("client is closed: {reason}")) },
        }
    }

    pub(super) fn lease_lost(text: impl Into<String>) -> Self {
        Self { code: Some(ErrorCode::LeaseLost), ..Self::new(ErrorKind::LeaseLost, text) }
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The server's code, if the server refused the request and this client knows the code.
    pub fn code(&self) -> Option<ErrorCode> {
        self.code
    }

    /// Whether the same call may succeed later without a change. After `Disconnected` and `Timeout` it may also take effect
    /// twice.
    pub fn is_retryable(&self) -> bool {
        self.is_retryable
    }

    /// How long the server asks to wait before that.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl std::error::Error for Error {}

impl From<ErrorReply> for Error {
    fn from(reply: ErrorReply) -> Self {
        let kind = match reply.code() {
            Some(ErrorCode::LeaseLost) => ErrorKind::LeaseLost,
            Some(ErrorCode::TooLarge) => ErrorKind::TooLarge,
            _ => ErrorKind::Refused,
        };
        let retry_after = (reply.retry_after_ms > 0).then(|| Duration::from_millis(reply.retry_after_ms.into()));
        Self { kind, code: reply.code(), is_retryable: reply.is_retryable, retry_after, text: reply.text }
    }
}

impl From<crate::model::Error> for Error {
    fn from(error: crate::model::Error) -> Self {
        ErrorReply::from(error).into()
    }
}

impl From<ProtocolError> for Error {
    fn from(error: ProtocolError) -> Self {
        Self::new(ErrorKind::Protocol, format!("server sent bytes that do not decode: {error}"))
    }
}

impl From<NetError> for Error {
    fn from(error: NetError) -> Self {
        match error {
            NetError::Protocol(error) => error.into(),
            error => Self::new(ErrorKind::Disconnected, error.to_string()),
        }
    }
}
