//! The token: without one everybody may do everything, with one only who sends it as `Authorization: Bearer`.

use std::hint::black_box;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Gateway;
use super::error::ApiError;

/// What answers without a token: a probe has none, and learns only that the server lives.
const OPEN: [&str; 3] = ["/health", "/healthz", "/version"];

/// Lets a request through if it may.
pub(super) async fn authorize(State(gateway): State<Arc<Gateway>>, request: Request, next: Next) -> Response {
    match &gateway.options.token {
        Some(token) if !OPEN.contains(&request.uri().path()) && !is_allowed(request.headers(), token) => {
            let error = ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", "the token is missing or wrong");
            let mut response = error.into_response();
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response
        }
        _ => next.run(request).await,
    }
}

fn is_allowed(headers: &HeaderMap, token: &str) -> bool {
    let given = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let given = given.and_then(|value| value.strip_prefix(b"Bearer ".as_slice()));
    given.is_some_and(|given| is_same_secret(given, token.as_bytes()))
}

/// Whether both are the same, in a time that depends only on their lengths: how far a guess is right cannot be measured.
fn is_same_secret(given: &[u8], expected: &[u8]) -> bool {
    let difference = (0..given.len().max(expected.len())).fold(0, |difference, index| {
        let (left, right) = (given.get(index).copied().unwrap_or(0), expected.get(index).copied().unwrap_or(0));
        black_box(difference | (left ^ right))
    });
    difference == 0 && given.len() == expected.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_opens() {
        let headers = |value: &str| HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap())]);
        assert!(is_allowed(&headers("Bearer secret"), "secret"));
        for wrong in ["secret", "Bearer ", "Bearer secre", "Bearer secrets", "bearer secret", "Basic secret", "Bearer  secret"] {
            assert!(!is_allowed(&headers(wrong), "secret"), "{wrong}");
        }
        assert!(!is_allowed(&HeaderMap::new(), "secret"));
    }
}
