//! Roles, and what each may do.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What somebody may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Everything.
    Admin,
    /// Everything but deleting queues and groups and changing the server.
    ReadWrite,
    /// Looking at messages, queues, groups and counters; changes nothing, so it does not pop either.
    ReadOnly,
    /// Pushing, and nothing else.
    WriteOnly,
}

/// What an operation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Right {
    /// To be somebody.
    Any,
    /// To look without changing anything.
    Read,
    /// To push.
    Push,
    /// To consume and to change what can be changed back: cursors, groups, settings, dead letters, remarks.
    Work,
    /// To delete queues and groups.
    Delete,
    /// To change the server as a whole: nobody who is bound to some queues may.
    Server,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 4] = [Self::Admin, Self::ReadWrite, Self::ReadOnly, Self::WriteOnly];

    /// The role's name, as tokens and claims have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::ReadWrite => "read-write",
            Self::ReadOnly => "read-only",
            Self::WriteOnly => "write-only",
        }
    }

    /// Whether the role has the right.
    pub fn has(self, right: Right) -> bool {
        match (self, right) {
            (Self::Admin, _) | (_, Right::Any) => true,
            (Self::ReadWrite, Right::Read | Right::Push | Right::Work) => true,
            (Self::ReadOnly, Right::Read) => true,
            (Self::WriteOnly, Right::Push) => true,
            (Self::ReadWrite, Right::Delete | Right::Server) => false,
            (Self::ReadOnly, Right::Push | Right::Work | Right::Delete | Right::Server) => false,
            (Self::WriteOnly, Right::Read | Right::Work | Right::Delete | Right::Server) => false,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A word that is no role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no role; the roles are admin, read-write, read-only and write-only")]
pub struct UnknownRole(pub String);

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<Self, UnknownRole> {
        Self::ALL.into_iter().find(|role| role.name() == text).ok_or_else(|| UnknownRole(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written_and_nothing_else_is_a_role() {
        for role in Role::ALL {
            assert_eq!(role.name().parse(), Ok(role));
            assert_eq!(serde_json::to_string(&role).unwrap(), format!("\"{role}\""));
        }
        for other in ["", "Admin", "read_write", "admin ", "none"] {
            assert_eq!(other.parse::<Role>(), Err(UnknownRole(other.to_owned())));
        }
    }

    #[test]
    fn each_role_has_its_rights_and_no_others() {
        use Right::*;
        let rights = |role: Role| [Any, Read, Push, Work, Delete, Server].into_iter().filter(|right| role.has(*right)).collect();
        let all: [(Role, Vec<Right>); 4] = Role::ALL.map(|role| (role, rights(role)));
        let expected = [
            (Role::Admin, vec![Any, Read, Push, Work, Delete, Server]),
            (Role::ReadWrite, vec![Any, Read, Push, Work]),
            (Role::ReadOnly, vec![Any, Read]),
            (Role::WriteOnly, vec![Any, Push]),
        ];
        assert_eq!(all, expected);
    }
}
