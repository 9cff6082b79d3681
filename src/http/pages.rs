//! Web pages of others: what a browser sends for them is refused where no token would stop it.
//!
//! A browser carries out requests for every page that it shows, also to servers that only it reaches. Whoever must prove who they are
//! cannot be misused so: no page makes a browser send another one's token. Without tokens two things are looked at. The browser says
//! whose page asks (`Sec-Fetch-Site`, `Origin`); and while only this machine reaches the server, a `Host` that is a name of some
//! domain is that of a page whose owner has pointed the name to this machine. Programs send neither.

use std::net::IpAddr;

use axum::http::{HeaderMap, StatusCode, header};

use super::error::{ApiError, Result};

/// Refuses a request that somebody else's page asks for. `is_local` says that only this machine reaches the server.
pub(super) fn check(headers: &HeaderMap, is_local: bool) -> Result<()> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(header::HOST.as_str());
    if let Some(site) = text("sec-fetch-site")
        && !["same-origin", "none"].contains(&site)
    {
        return Err(refused(format!("sec-fetch-site is {site:?}, so the page of another site asks")));
    }
    if let Some(origin) = text(header::ORIGIN.as_str())
        && !host.is_some_and(|host| is_of(origin, host))
    {
        return Err(refused(format!("its origin {origin:?} is not this server")));
    }
    match host {
        Some(host) if is_local && !is_no_domain(host) => Err(refused(format!("its host {host:?} is not this machine"))),
        _ => Ok(()),
    }
}

fn refused(reason: String) -> ApiError {
    let text = format!("refused while the server asks for no token: {reason}; with a token it does not matter");
    ApiError::new(StatusCode::FORBIDDEN, "foreign_page", text)
}

/// Whether a page of this origin came from this host.
fn is_of(origin: &str, host: &str) -> bool {
    origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host))
}

/// Whether a host is an address or this machine's own name, which nobody can point elsewhere.
fn is_no_domain(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn answer(headers: &[(&'static str, &str)], is_local: bool) -> bool {
        let headers = headers.iter().map(|(name, value)| {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            (header::HeaderName::from_static(name), value)
        });
        check(&headers.collect(), is_local).is_ok()
    }

    #[test]
    fn programs_and_own_pages_are_answered() {
        for host in ["localhost", "LOCALHOST:6632", "127.0.0.1:6632", "127.0.0.1", "[::1]:6632", "[::1]", "10.0.0.1:80"] {
            assert!(answer(&[("host", host)], true), "{host}");
            let origin = format!("http://{host}");
            let own = [("host", host), ("origin", &origin), ("sec-fetch-site", "same-origin")];
            assert!(answer(&own, true), "{host}");
        }
        assert!(answer(&[], true), "HTTP/1.0");
        assert!(answer(&[("host", "localhost"), ("sec-fetch-site", "none")], true), "typed by a person");
        // A proxy before a server that others reach keeps the host.
        assert!(answer(&[("host", "logs.example")], false));
        assert!(answer(&[("host", "logs.example"), ("origin", "https://Logs.example")], false));
    }

    #[test]
    fn pages_of_others_are_refused() {
        for is_local in [false, true] {
            for site in ["cross-site", "same-site", "", "\u{fe}"] {
                assert!(!answer(&[("host", "localhost"), ("sec-fetch-site", site)], is_local), "{site:?}");
            }
            for origin in ["https://evil.example", "null", "", "http://localhost:1", "localhost:6632", "http://localhost:6632/"] {
                assert!(!answer(&[("host", "localhost:6632"), ("origin", origin)], is_local), "{origin:?}");
            }
            assert!(!answer(&[("origin", "http://localhost")], is_local));
        }
        for host in ["evil.example", "evil.example:6632", "127.0.0.1.evil.example", "localhost.evil.example:80", "", ":80", "x"] {
            assert!(!answer(&[("host", host)], true), "{host:?}");
        }
    }
}
