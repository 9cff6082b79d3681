//! `fanlog ack` and `fanlog lease`: what became of messages that were taken with `fanlog pop --ack none`.

use anyhow::{Context as _, Result, bail};
use clap::{Subcommand, ValueEnum};
use fanlog::model::{AckItem, AckReply, AckRequest, AckTarget, AckVerb};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Context;
use super::time::parse_duration;

/// What is said of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Done; in an ordered group everything handed out before is done too
    Completed,
    /// Could not be done: counted against the limit and handed out again
    Failed,
    /// Given back uncounted, after --delay if there is one
    Retry,
    /// A dead letter at once
    Reject,
}

impl From<Verdict> for AckVerb {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Completed => Self::Completed,
            Verdict::Failed => Self::Failed,
            Verdict::Retry => Self::Retry,
            Verdict::Reject => Self::Reject,
        }
    }
}

/// Which messages, and what is said of them.
#[derive(Debug, clap::Args)]
pub struct AckArguments {
    /// The queue
    queue: String,
    /// The partition
    #[arg(long)]
    partition: String,
    /// The group; without it the queue's primary group
    #[arg(long)]
    group: Option<String>,
    /// The lease that the messages were taken under; without it the cursor moves all the same
    #[arg(long, value_name = "ID", default_value = "")]
    lease: String,
    /// A message's offset; may be given many times
    #[arg(long, value_name = "N", required_unless_present = "transaction_id")]
    offset: Vec<u64>,
    /// A message's transaction id; may be given many times
    #[arg(long, value_name = "ID")]
    transaction_id: Vec<String>,
    /// What became of them
    #[arg(long = "as", value_enum, value_name = "VERDICT", default_value_t = Verdict::Completed)]
    verdict: Verdict,
    /// Why they failed
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// With --as retry: how long before they are handed out again
    #[arg(long, value_name = "TIME", default_value = "0s")]
    delay: String,
}

/// Runs `fanlog ack`.
pub async fn run(arguments: AckArguments, mut context: Context) -> Result<()> {
    let delay_ms = u64::try_from(parse_duration(&arguments.delay)?.as_millis()).context("delay is too long")?;
    let offsets = arguments.offset.into_iter().map(AckTarget::Offset);
    let targets = offsets.chain(arguments.transaction_id.into_iter().map(AckTarget::TransactionId));
    let (verb, reason) = (arguments.verdict.into(), arguments.reason);
    let item = |target| AckItem { target, verb, reason: reason.clone(), delay_ms };
    let client = context.connect().await?;
    let partition_id = client.partition(&arguments.queue, &arguments.partition).await?.id;
    let request = AckRequest {
        queue: arguments.queue,
        partition_id,
        group: arguments.group,
        lease_id: arguments.lease,
        items: targets.map(item).collect(),
    };
    let reply = client.ack(&request).await?;
    context.output.object(&show_ack(&arguments.partition, &reply))?;
    match reply.outcomes.into_iter().find_map(|outcome| outcome.refused) {
        Some(refused) => bail!(refused),
        None => Ok(()),
    }
}

/// An acknowledgement's reply.
pub fn show_ack(partition: &str, reply: &AckReply) -> Value {
    let outcomes = reply.outcomes.iter().map(|outcome| {
        json!({
            "refused": outcome.refused.as_ref().map(ToString::to_string),
            "noop": outcome.is_noop,
            "dead_letter": outcome.is_dead_letter,
        })
    });
    json!({
        "partition": partition,
        "next": reply.next,
        "lease_released": reply.is_lease_released,
        "outcomes": outcomes.collect::<Vec<_>>(),
    })
}

/// Leases that `fanlog pop --ack none` gave.
#[derive(Debug, Subcommand)]
pub enum LeaseCommand {
    /// Make a lease last longer; never shorter
    Extend {
        /// The lease's id
        lease: String,
        /// How long from now; without it as long as the queue says
        #[arg(long = "for", value_name = "TIME")]
        time: Option<String>,
    },
    /// Give everything of a lease back, uncounted
    Release {
        /// The lease's id
        lease: String,
    },
}

/// Runs `fanlog lease`.
pub async fn lease(command: LeaseCommand, mut context: Context) -> Result<()> {
    let client = context.connect().await?;
    let (lease, partitions) = match command {
        LeaseCommand::Extend { lease, time } => {
            let time = time.map(|time| parse_duration(&time)).transpose()?;
            let renewed = client.extend(&lease, time).await?.renewed;
            (lease, renewed)
        }
        LeaseCommand::Release { lease } => {
            let released = client.release(&lease).await?;
            (lease, released)
        }
    };
    if partitions == 0 {
        bail!("lease {lease:?} is over");
    }
    context.output.object(&json!({ "lease_id": lease, "partitions": partitions }))
}
