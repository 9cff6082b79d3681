//! Who sends a request, and whether they may.
//!
//! The secret comes as `Authorization: Bearer`. A caller who is bound to some queues gets routes of their own, over an engine that
//! has no others: a handler cannot forget it.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;

use crate::access::{Grant, Right};
use crate::model::{Error, ErrorCode, QueueScope};

use super::error::{ApiError, Result};
use super::rights::right_of;
use super::{Gateway, pages, router};

/// What answers without a token: a probe has none, and learns only that the server lives.
const OPEN: [&str; 3] = ["/health", "/healthz", "/version"];
/// Sets of queues that routes are kept for; over it all are made anew.
const SCOPES_MAX: usize = 256;

/// The routes, for everybody.
pub(super) struct Doors {
    gateway: Arc<Gateway>,
    whole: Router,
    scoped: Mutex<HashMap<QueueScope, Router>>,
}

impl Doors {
    pub(super) fn new(gateway: Arc<Gateway>) -> Arc<Self> {
        Arc::new(Self { whole: router::router(gateway.clone()), gateway, scoped: Mutex::default() })
    }

    /// The routes over the queues of this scope.
    fn of(&self, scope: Option<&QueueScope>) -> Router {
        let Some(scope) = scope else { return self.whole.clone() };
        // Routes are whole or not there: a panic elsewhere leaves nothing half done.
        let mut scoped = self.scoped.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(routes) = scoped.get(scope) {
            return routes.clone();
        }
        if scoped.len() >= SCOPES_MAX {
            scoped.clear();
        }
        let routes = router::router(self.gateway.within(scope.clone()));
        scoped.insert(scope.clone(), routes.clone());
        routes
    }
}

/// A connection's way to the routes: finds out who the caller is, for each request.
pub(super) struct Entrance {
    doors: Arc<Doors>,
    address: IpAddr,
    /// A request was from somebody known.
    is_known: Arc<AtomicBool>,
}

impl Entrance {
    pub(super) fn new(doors: Arc<Doors>, address: IpAddr) -> Self {
        Self { doors, address, is_known: Arc::default() }
    }

    /// Whether a request was from somebody known, as it is from then on.
    pub(super) fn is_known(&self) -> Arc<AtomicBool> {
        self.is_known.clone()
    }
}

impl Service<hyper::Request<Incoming>> for Entrance {
    type Response = Response;
    type Error = Infallible;
    type Future = <TowerToHyperService<Router> as Service<hyper::Request<Incoming>>>::Future;

    fn call(&self, mut request: hyper::Request<Incoming>) -> Self::Future {
        // A probe proves nothing, and what it sends for it fails no attempt.
        let caller = if OPEN.contains(&request.uri().path()) {
            Caller(Err(Error::new(ErrorCode::Unauthorized, "nobody is asked here")))
        } else {
            Caller(self.doors.gateway.options.access.authenticate(secret(request.headers()), self.address))
        };
        if caller.0.is_ok() {
            self.is_known.store(true, Ordering::Relaxed);
        }
        let scope = caller.0.as_ref().ok().and_then(|grant| grant.principal().scope.as_ref());
        let routes = self.doors.of(scope);
        request.extensions_mut().insert(caller);
        TowerToHyperService::new(routes).call(request)
    }
}

/// Who sends a request, or why that is not known.
#[derive(Debug, Clone)]
pub(super) struct Caller(crate::model::Result<Grant>);

impl Caller {
    /// The subject of the caller's JWT.
    pub(super) fn subject(&self) -> Option<&str> {
        self.0.as_ref().ok()?.principal().subject.as_deref()
    }

    /// Whether the caller may use some queues only.
    pub(super) fn is_bound(&self) -> bool {
        self.0.as_ref().is_ok_and(|grant| grant.principal().scope.is_some())
    }

    /// Refuses what the caller's role does not allow.
    pub(super) fn check(&self, right: Right, operation: &str) -> Result<()> {
        let grant = self.0.as_ref().map_err(|error| ApiError::from(error.clone()))?;
        Ok(grant.principal().check(right, operation)?)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| ApiError::internal("nobody looked who the caller is"))
    }
}

/// Lets a request through if it may, as long as it may.
pub(super) async fn authorize(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    route: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    if OPEN.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let grant = match &caller.0 {
        Ok(grant) => grant.clone(),
        Err(error) => return unknown(error.clone()),
    };
    if !gateway.options.access.is_required()
        && let Err(error) = pages::check(request.headers(), gateway.is_local)
    {
        return error.into_response();
    }
    if let Some(route) = route {
        // Nobody but an admin gets to what has no right of its own.
        let right = right_of(request.method(), route.as_str()).unwrap_or(Right::Server);
        if let Err(error) = caller.check(right, &format!("{} {}", request.method(), route.as_str())) {
            return error.into_response();
        }
    }
    tokio::select! {
        response = next.run(request) => response,
        error = grant.ended() => unknown(error),
    }
}

/// The answer to who has not proved who they are.
fn unknown(error: Error) -> Response {
    if error.code != ErrorCode::Unauthorized {
        return ApiError::from(error).into_response();
    }
    let mut response = ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", error.text).into_response();
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// The secret of a request; empty if it has none that could be right.
fn secret(headers: &HeaderMap<HeaderValue>) -> &str {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let parts = given.and_then(|value| value.split_once(' '));
    parts.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("Bearer")).map_or("", |(_, secret)| secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_is_what_follows_the_word() {
        let headers = |value: &str| HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap())]);
        assert_eq!(secret(&headers("Bearer secret")), "secret");
        assert_eq!(secret(&headers("Bearer  secret")), " secret");
        for scheme in ["bearer", "BEARER"] {
            assert_eq!(secret(&headers(&format!("{scheme} secret"))), "secret");
        }
        for none in ["secret", "Bearer", "Bearers secret", "Basic secret", ""] {
            assert_eq!(secret(&headers(none)), "", "{none}");
        }
        assert_eq!(secret(&HeaderMap::new()), "");
        let strange = HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_bytes(b"Bearer \xff").unwrap())]);
        assert_eq!(secret(&strange), "");
    }
}
