//! Who somebody is, and for how long.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::model::{Error, ErrorCode, Now, QueueScope, Result};

use super::{Right, Role};

/// The longest time between two looks at the clock, which may jump.
const LOOK_AT_CLOCK: Duration = Duration::from_secs(1);

/// Who somebody is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// For logs: the token's name or the subject.
    pub name: String,
    /// What they may do.
    pub role: Role,
    /// The queues that they may use; `None` is all.
    pub scope: Option<QueueScope>,
    /// The subject of a validated JWT.
    pub subject: Option<String>,
}

impl Principal {
    /// Somebody with a role, bound to queues with these prefixes if any are given.
    pub fn new(name: impl Into<String>, role: Role, prefixes: Option<Vec<String>>) -> Self {
        let scope = prefixes.map(|prefixes| QueueScope::new(format!("role {role}"), prefixes));
        Self { name: name.into(), role, scope, subject: None }
    }

    /// Refuses what the role does not allow. `operation` is for the text.
    ///
    /// # Errors
    ///
    /// `Unauthorized`, which names the role and the operation.
    pub fn check(&self, right: Right, operation: &str) -> Result<()> {
        let role = self.role;
        if !role.has(right) {
            let mut holders = Role::ALL.into_iter().filter(|role| role.has(right)).map(Role::name);
            let mut needed = holders.next().unwrap_or_default().to_owned();
            holders.for_each(|holder| needed.push_str(&format!(" or {holder}")));
            return Err(Error::new(
                ErrorCode::Unauthorized,
                format!("role {role} does not allow {operation}, it needs {needed}"),
            ));
        }
        match &self.scope {
            Some(scope) if right == Right::Server => {
                let text = format!("role {role} does not allow {operation} to who is bound to queues that begin with {scope}");
                Err(Error::new(ErrorCode::Unauthorized, text))
            }
            _ => Ok(()),
        }
    }
}

/// A principal that was recognised, as long as that holds. Clones are one grant.
#[derive(Debug, Clone)]
pub struct Grant {
    principal: Arc<Principal>,
    revoked: CancellationToken,
    expires_at_us: Option<u64>,
}

impl Grant {
    pub(super) fn new(principal: Arc<Principal>, revoked: CancellationToken, expires_at_us: Option<u64>) -> Self {
        Self { principal, revoked, expires_at_us }
    }

    /// Whose it is.
    pub fn principal(&self) -> &Arc<Principal> {
        &self.principal
    }

    /// Waits for the end, and returns what to tell the holder.
    pub async fn ended(&self) -> Error {
        let expired = async {
            let Some(expires_at_us) = self.expires_at_us else { return std::future::pending().await };
            loop {
                match expires_at_us.saturating_sub(Now::read().wall_us) {
                    0 => return,
                    left_us => sleep(LOOK_AT_CLOCK.min(Duration::from_micros(left_us))).await,
                }
            }
        };
        let what = tokio::select! {
            () = self.revoked.cancelled() => "token is no longer valid",
            () = expired => "token has expired",
        };
        Error::new(ErrorCode::Unauthorized, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_role_the_operation_and_who_may() {
        let principal = Principal::new("ci", Role::WriteOnly, None);
        assert_eq!(principal.check(Right::Push, "Push"), Ok(()));
        let error = principal.check(Right::Work, "Pop").unwrap_err();
        assert_eq!(error.code, ErrorCode::Unauthorized);
        assert_eq!(error.text, "role write-only does not allow Pop, it needs admin or read-write");
    }

    #[test]
    fn who_is_bound_to_queues_does_not_change_the_server() {
        let bound = Principal::new("ops", Role::Admin, Some(vec!["a.".into()]));
        assert_eq!(bound.check(Right::Delete, "QueueDelete"), Ok(()));
        assert!(bound.check(Right::Server, "PUT /log").unwrap_err().text.ends_with("queues that begin with \"a.\""));
        assert_eq!(Principal::new("ops", Role::Admin, None).check(Right::Server, "PUT /log"), Ok(()));
    }

    #[tokio::test]
    async fn a_grant_ends_when_it_is_revoked_or_expires() {
        let principal = Arc::new(Principal::new("x", Role::Admin, None));
        let revoked = CancellationToken::new();
        let endless = Grant::new(principal.clone(), revoked.clone(), None);
        let brief = Grant::new(principal, CancellationToken::new(), Some(Now::read().wall_us + 20_000));
        assert_eq!(brief.ended().await.text, "token has expired");
        assert!(tokio::time::timeout(Duration::from_millis(20), endless.ended()).await.is_err());
        revoked.cancel();
        assert_eq!(endless.ended().await.text, "token is no longer valid");
    }
}
