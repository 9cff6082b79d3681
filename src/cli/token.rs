//! `fanlog token`: the tokens of a data directory, with or without its server, which notices within a second.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use fanlog::access::{self, NewToken, Role, StoredToken, TokenId};
use fanlog::model::Now;
use serde_json::{Value, json};

use super::Context;
use super::time::{parse_duration, parse_time_or, show_time};

/// Tokens: who may do what.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make one and show it, once
    Create(CreateArguments),
    /// List them; their secrets are kept nowhere
    List {
        #[command(flatten)]
        place: Place,
    },
    /// Remove one; its sessions end
    Revoke {
        /// Its id
        id: String,
        #[command(flatten)]
        place: Place,
    },
}

/// Where the tokens are.
#[derive(Debug, clap::Args)]
pub struct Place {
    /// The data directory; without it the one of the settings
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

/// What the token is to be.
#[derive(Debug, clap::Args)]
pub struct CreateArguments {
    /// What it is for, for people and logs
    #[arg(long)]
    name: String,
    /// What it allows: admin, read-write, read-only or write-only
    #[arg(long)]
    role: Role,
    /// Only queues whose names begin so; may be repeated
    #[arg(long = "queue-prefix", value_name = "P")]
    queue_prefixes: Vec<String>,
    /// When it stops to be valid: a span from now on such as 90d, or a time
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
    #[command(flatten)]
    place: Place,
}

/// Runs the command.
pub fn run(command: TokenCommand, mut context: Context) -> Result<()> {
    match command {
        TokenCommand::Create(arguments) => create(arguments, context),
        TokenCommand::List { place } => {
            let tokens = access::read_tokens(&place.existing(&context)?)?.unwrap_or_default();
            let now_us = Now::read().wall_us;
            let rows: Vec<Value> = tokens.iter().map(|token| show(token, now_us)).collect();
            context.output.list(&["id", "name", "role", "queue_prefixes", "created_at", "expires_at", "is_expired"], &rows)
        }
        TokenCommand::Revoke { id, place } => {
            let id = TokenId::try_from(id)?;
            if !access::revoke_token(&place.existing(&context)?, &id)? {
                bail!("there is no token {id}");
            }
            context.output.object(&json!({ "id": id.to_string(), "revoked": true }))
        }
    }
}

fn create(arguments: CreateArguments, mut context: Context) -> Result<()> {
    let now_us = Now::read().wall_us;
    let expires_at_us = arguments.expires.as_deref().map(|text| parse_expiry(text, now_us)).transpose()?;
    let directory = arguments.place.directory(&context);
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let new = NewToken { name: arguments.name, role: arguments.role, queue_prefixes: arguments.queue_prefixes, expires_at_us };
    let (token, text) = access::create_token(&directory, new, now_us)?;
    let mut shown = show(&token, now_us);
    shown["token"] = text.into();
    context.output.object(&shown)?;
    eprintln!("keep the token now, it is not shown again; it holds for the server on {}", directory.display());
    Ok(())
}

impl Place {
    fn directory(&self, context: &Context) -> PathBuf {
        self.data.clone().unwrap_or_else(|| context.config.text("data").into())
    }

    fn existing(&self, context: &Context) -> Result<PathBuf> {
        let directory = self.directory(context);
        if !directory.is_dir() {
            bail!("there is no directory {}", directory.display());
        }
        Ok(directory)
    }
}

fn show(token: &StoredToken, now_us: u64) -> Value {
    json!({
        "id": token.id, "name": token.name, "role": token.role, "queue_prefixes": token.queue_prefixes,
        "created_at": show_time(token.created_at_us), "expires_at": token.expires_at_us.and_then(show_time),
        "is_expired": token.expires_at_us.is_some_and(|expires_at_us| expires_at_us <= now_us),
    })
}

/// A span counts from now on, unlike elsewhere.
fn parse_expiry(text: &str, now_us: u64) -> Result<u64> {
    let expires_at_us = match parse_duration(text) {
        Ok(span) => now_us.saturating_add(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)),
        Err(_) => parse_time_or(text, now_us, "a span from now on (90d)")?,
    };
    if expires_at_us <= now_us {
        bail!("{text:?} is not in the future");
    }
    Ok(expires_at_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_a_span_or_a_time_in_the_future() {
        let now_us = 1_800_000_000_000_000;
        assert_eq!(parse_expiry("90d", now_us).unwrap(), now_us + 90 * 86_400_000_000);
        assert_eq!(parse_expiry("2099-01-01T00:00:00Z", now_us).unwrap(), 4_070_908_800_000_000);
        for refused in ["0s", "2001-01-01T00:00:00Z", "1h ago", "now", "soon", ""] {
            assert!(parse_expiry(refused, now_us).is_err(), "{refused:?}");
        }
    }
}
