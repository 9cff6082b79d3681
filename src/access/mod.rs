//! Who may do what: tokens of our own and JSON web tokens, roles, rules by the beginning of queue names.
//!
//! Both doors, the binary protocol and HTTP, show the secret of a client to one [`Access`] and get a [`Grant`] or a refusal. What an
//! operation needs stands in one table; which queues a principal may use is enforced by the engine itself, which is handed out
//! [within](crate::engine::Engine::within) the principal's scope, so that no listing, pop or transaction can forget it.
//!
//! Invariant: what cannot be read or understood opens nothing.

mod attempts;
mod crypto;
mod jwt;
mod principal;
mod rights;
mod role;
mod store;
mod token;

pub use jwt::{BadJwtKey, JwtAlgorithm, JwtRules, UnknownAlgorithm};
pub use principal::{Grant, Principal};
pub use rights::{needed, right_of};
pub use role::{Right, Role, UnknownRole};
pub use store::{NewToken, StoredToken, TOKEN_FILE, TokenFileError, create_token, read_tokens, revoke_token};
pub use token::{BadTokenId, TOKEN_PREFIX, TokenId, parse_token};

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::model::{Error, ErrorCode, Now, Result};

use attempts::Attempts;
use jwt::{Jwt, is_jwt};
use store::Stamp;
use token::SecretHash;

/// Bytes of an admin's secret below which it is not enough for addresses that others reach.
pub const SECRET_BYTES_MIN: usize = 16;
/// A secret of so many bytes is not guessed, however often somebody tries.
const SECRET_BYTES_STRONG: usize = 32;
/// How often a server looks whether the token file has changed.
const LOOK_AT_FILE: Duration = Duration::from_millis(500);

/// Decides who a client is. Without any way to prove oneself configured, everybody may do everything.
#[derive(Debug)]
pub struct Access {
    admin_secret: Option<AdminSecret>,
    jwt: Option<Mutex<KeyInUse>>,
    directory: Option<PathBuf>,
    tokens: Mutex<Tokens>,
    attempts: Attempts,
    admin: Arc<Principal>,
    /// Ends what was granted to clients without a secret, when secrets begin to be asked for.
    open: CancellationToken,
}

/// The key that JSON web tokens are checked with.
#[derive(Debug)]
struct KeyInUse {
    jwt: Arc<Jwt>,
    /// Ends what was granted by it, when another takes its place.
    replaced: CancellationToken,
}

#[derive(Debug)]
struct AdminSecret {
    hash: SecretHash,
    /// Of the text.
    bytes: usize,
}

/// The token file as it was read last.
#[derive(Debug, Default)]
struct Tokens {
    /// There is a file, or was one: a file that vanishes opens nothing.
    is_asked_for: bool,
    live: HashMap<TokenId, LiveToken>,
    stamp: Option<Stamp>,
    /// Why the file could not be read last time, so that it is said once.
    fault: Option<String>,
}

#[derive(Debug)]
struct LiveToken {
    stored: StoredToken,
    principal: Arc<Principal>,
    revoked: CancellationToken,
}

impl Default for Access {
    fn default() -> Self {
        Self {
            admin_secret: None,
            jwt: None,
            directory: None,
            tokens: Mutex::default(),
            attempts: Attempts::default(),
            admin: Arc::new(Principal::new("admin", Role::Admin, None)),
            open: CancellationToken::new(),
        }
    }
}

impl Access {
    /// One secret that makes its holder an admin.
    pub fn with_secret(secret: &str) -> Self {
        Self::default().and_secret(secret)
    }

    /// Knows this secret of an admin too.
    pub fn and_secret(mut self, secret: &str) -> Self {
        self.admin_secret = Some(AdminSecret { hash: SecretHash::of(secret), bytes: secret.len() });
        self
    }

    /// Knows JSON web tokens too. `key` is the content of the key file: the secret (with HS256) or a public key in PEM.
    ///
    /// # Errors
    ///
    /// If the key is none of the algorithm, or too weak.
    pub fn and_jwt(mut self, rules: JwtRules, key: &[u8]) -> std::result::Result<Self, BadJwtKey> {
        let jwt = Arc::new(Jwt::new(rules, key)?);
        self.jwt = Some(Mutex::new(KeyInUse { jwt, replaced: CancellationToken::new() }));
        Ok(self)
    }

    /// Takes another key in place of that of [`and_jwt`](Self::and_jwt); whether it is another. What tokens of the old one opened
    /// ends: it may have been replaced because it is known to others.
    ///
    /// # Errors
    ///
    /// As there; the old key then stays.
    pub fn replace_jwt_key(&self, key: &[u8]) -> std::result::Result<bool, BadJwtKey> {
        let Some(in_use) = &self.jwt else { return Ok(false) };
        let mut in_use = in_use.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(jwt) = in_use.jwt.with_key(key)? else { return Ok(false) };
        in_use.replaced.cancel();
        *in_use = KeyInUse { jwt: Arc::new(jwt), replaced: CancellationToken::new() };
        Ok(true)
    }

    /// Knows the tokens of this data directory too, and follows their file with [`follow`](Self::follow).
    ///
    /// # Errors
    ///
    /// If there is a token file that cannot be used.
    pub fn and_tokens_of(mut self, directory: impl Into<PathBuf>) -> std::result::Result<Self, TokenFileError> {
        self.directory = Some(directory.into());
        self.reload()?;
        Ok(self)
    }

    /// Whether a client must prove who it is.
    pub fn is_required(&self) -> bool {
        self.admin_secret.is_some() || self.jwt.is_some() || self.tokens().is_asked_for
    }

    /// Whether there is a secret that is short enough to be guessed in the end.
    pub fn has_weak_secret(&self) -> bool {
        self.admin_secret.as_ref().is_some_and(|secret| secret.bytes < SECRET_BYTES_MIN)
    }

    /// Who the client is that comes from `address` with this secret; an empty one is none.
    ///
    /// # Errors
    ///
    /// `Unauthorized`, or `Busy` if too many attempts from the address have failed.
    pub fn authenticate(&self, secret: &str, address: IpAddr) -> Result<Grant> {
        if !self.is_required() {
            return Ok(Grant::new(self.admin.clone(), self.open.clone(), None));
        }
        if secret.is_empty() {
            return Err(Error::new(ErrorCode::Unauthorized, "server asks for a token"));
        }
        let now = Instant::now();
        let wait = self.attempts.wait_of(address, now);
        let outcome = match (parse_token(secret), &self.jwt) {
            (Some((id, secret)), _) => self.stored(&id, secret),
            (None, Some(in_use)) if is_jwt(secret) => signed(in_use, secret),
            _ => Err(wrong()),
        };
        // Only this secret can be weak enough to be guessed: then it is not looked at while the address has failed too often. The others
        // are, so that nobody can keep their holders out.
        let is_strong = self.admin_secret.as_ref().is_some_and(|secret| secret.bytes >= SECRET_BYTES_STRONG);
        let outcome = match outcome {
            Err(error) if wait.is_none() || is_strong => self.admin(secret).ok_or(error),
            outcome => outcome,
        };
        outcome.map_err(|error| {
            if self.attempts.failed(address, now) {
                tracing::warn!(%address, %error, "a client is refused");
            }
            match wait {
                Some(wait) => {
                    let text = format!("too many failed attempts from this address; try again in {} s", wait.as_secs() + 1);
                    Error::new(ErrorCode::Busy, text)
                }
                None => error,
            }
        })
    }

    fn admin(&self, secret: &str) -> Option<Grant> {
        let is_admin = self.admin_secret.as_ref().is_some_and(|admin| admin.hash.is_of(secret));
        is_admin.then(|| Grant::new(self.admin.clone(), CancellationToken::new(), None))
    }

    fn stored(&self, id: &TokenId, secret: &str) -> Result<Grant> {
        let tokens = self.tokens();
        let token = tokens.live.get(id).filter(|token| token.stored.secret_sha256.is_of(secret)).ok_or_else(wrong)?;
        let expires_at_us = token.stored.expires_at_us;
        if expires_at_us.is_some_and(|expires_at_us| expires_at_us <= Now::read().wall_us) {
            return Err(Error::new(ErrorCode::Unauthorized, "token has expired"));
        }
        Ok(Grant::new(token.principal.clone(), token.revoked.clone(), expires_at_us))
    }

    /// Reads the token file again if it has changed; ends what was granted by tokens that are gone.
    ///
    /// # Errors
    ///
    /// If the file cannot be used; the tokens that were known stay.
    pub fn reload(&self) -> std::result::Result<(), TokenFileError> {
        let Some(directory) = &self.directory else { return Ok(()) };
        // Before the reading: a change in between is seen the next time.
        let stamp = Stamp::of(directory)?;
        if stamp.is_some() && self.tokens().stamp == stamp {
            return Ok(());
        }
        let read = read_tokens(directory)?;
        let mut tokens = self.tokens();
        tokens.is_asked_for |= read.is_some();
        if tokens.is_asked_for {
            self.open.cancel();
        }
        tokens.stamp = stamp;
        tokens.replace(read.unwrap_or_default());
        Ok(())
    }

    /// Follows the token file until `stopping`.
    pub async fn follow(self: Arc<Self>, stopping: CancellationToken) {
        if self.directory.is_none() {
            return;
        }
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                () = sleep(LOOK_AT_FILE) => (),
            }
            let access = self.clone();
            let reloaded = tokio::task::spawn_blocking(move || access.reload()).await;
            let Ok(reloaded) = reloaded else { continue };
            let fault = reloaded.err().map(|error| error.to_string());
            let mut tokens = self.tokens();
            if let Some(fault) = fault.as_ref().filter(|fault| tokens.fault.as_ref() != Some(fault)) {
                tracing::error!("{fault}; the tokens that were known stay as they were");
            }
            tokens.fault = fault;
        }
    }

    fn tokens(&self) -> MutexGuard<'_, Tokens> {
        // Replaced as a whole: a panic elsewhere leaves nothing half done.
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tokens {
    fn replace(&mut self, tokens: Vec<StoredToken>) {
        let mut old = std::mem::take(&mut self.live);
        for stored in tokens {
            let live = match old.remove(&stored.id) {
                Some(live) if is_same(&live.stored, &stored) => live,
                other => {
                    // The same id with other rights is another token.
                    if let Some(other) = other {
                        other.revoked.cancel();
                    }
                    LiveToken {
                        principal: Arc::new(stored.principal()),
                        stored: stored.clone(),
                        revoked: CancellationToken::new(),
                    }
                }
            };
            self.live.insert(stored.id, live);
        }
        for (id, gone) in old {
            tracing::info!(token = %id, name = gone.stored.name, "a token is revoked");
            gone.revoked.cancel();
        }
    }
}

fn signed(in_use: &Mutex<KeyInUse>, secret: &str) -> Result<Grant> {
    let (jwt, replaced) = {
        let in_use = in_use.lock().unwrap_or_else(PoisonError::into_inner);
        (Arc::clone(&in_use.jwt), in_use.replaced.clone())
    };
    let (principal, expires_at_us) = jwt.check(secret).map_err(|reason| Error::new(ErrorCode::Unauthorized, reason))?;
    Ok(Grant::new(Arc::new(principal), replaced, Some(expires_at_us)))
}

fn is_same(left: &StoredToken, right: &StoredToken) -> bool {
    left.secret_sha256.to_hexadecimal() == right.secret_sha256.to_hexadecimal()
        && left.principal() == right.principal()
        && left.expires_at_us == right.expires_at_us
}

fn wrong() -> Error {
    Error::new(ErrorCode::Unauthorized, "token is wrong")
}

#[cfg(test)]
mod tests;
