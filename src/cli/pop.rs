//! `fanlog pop`: messages for a group.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use fanlog::client::{Client, messages_of_claim};
use fanlog::model::{AckItem, AckRequest, AckTarget, AckVerb, Claim, Now, PopReply, PopRequest, PopSource};

use super::Context;
use super::output::Format;
use super::time::{parse_duration, parse_start};
use super::view::{MessageRow, Place};

/// Partitions that one pop takes from at most.
const PARTITIONS_MAX: u32 = 64;

/// What becomes of messages that were printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AckMode {
    /// They are acknowledged after they were printed.
    Auto,
    /// They are acknowledged before they leave the server: at most once.
    Once,
    /// They stay leased until the lease ends, and come again then; see `fanlog ack`.
    None,
}

/// What to take.
#[derive(Debug, clap::Args)]
pub struct PopArguments {
    /// The queue; without it any queue of --namespace or --task
    #[arg(required_unless_present_any = ["namespace", "task"])]
    queue: Option<String>,
    /// From any queue of this namespace: the first part of a name such as namespace.task.rest
    #[arg(long, conflicts_with_all = ["queue", "partition"])]
    namespace: Option<String>,
    /// From any queue of this task: the second part of a name such as namespace.task.rest
    #[arg(long, conflicts_with_all = ["queue", "partition"])]
    task: Option<String>,
    /// The group; without it the queue's primary group. Naming a group makes it
    #[arg(long)]
    group: Option<String>,
    /// Only from this partition
    #[arg(long)]
    partition: Option<String>,
    /// Messages at most
    #[arg(short = 'n', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// How long to wait for the first message
    #[arg(long, value_name = "TIME", default_value = "0s")]
    wait: String,
    /// Where the group starts if it is new: beginning, new, a time or an offset
    #[arg(long, value_name = "PLACE")]
    from: Option<String>,
    /// What becomes of printed messages
    #[arg(long, value_enum, default_value_t = AckMode::Auto)]
    ack: AckMode,
    /// How long the messages are leased; without it as long as the queue says
    #[arg(long, value_name = "TIME")]
    lease: Option<String>,
    /// Make a new group a work queue: many consumers hold messages of one partition
    #[arg(long)]
    shared: bool,
}

impl PopArguments {
    fn request(&self) -> Result<PopRequest> {
        let source = match (&self.queue, &self.partition) {
            (Some(queue), Some(partition)) => PopSource::Partition { queue: queue.clone(), partition: partition.clone() },
            (Some(queue), None) => PopSource::Queue(queue.clone()),
            (None, _) => PopSource::Discover { namespace: self.namespace.clone(), task: self.task.clone() },
        };
        let lease = self.lease.as_ref().map(|lease| parse_duration(lease)).transpose()?;
        Ok(PopRequest {
            source,
            partitions_max: self.count.min(PARTITIONS_MAX),
            lease_ms: lease.map(|lease| u64::try_from(lease.as_millis())).transpose().context("lease is too long")?,
            start: self.from.as_ref().map(|from| parse_start(from, Now::read().wall_us)).transpose()?,
            group: self.group.clone(),
            shared: self.shared,
            auto_ack: self.ack == AckMode::Once,
            ..PopRequest::any("", self.count)
        })
    }
}

/// Runs the command.
pub async fn run(arguments: PopArguments, mut context: Context) -> Result<()> {
    let mut request = arguments.request()?;
    let mut wait = parse_duration(&arguments.wait)?;
    let client = context.connect().await?;
    let is_document = context.output.format() == Format::Json;
    let mut document = Vec::new();
    let mut left = arguments.count;
    while left > 0 {
        request.messages_max = left;
        request.partitions_max = left.min(PARTITIONS_MAX);
        let reply = client.pop(&request, wait).await?;
        if reply.claims.is_empty() {
            break;
        }
        let taken = Taken::of(&reply)?;
        let is_notice = taken.rows.is_empty();
        left = left.saturating_sub(u32::try_from(taken.rows.len()).unwrap_or(u32::MAX));
        // A document has one end: what it holds is acknowledged when all of it is written.
        if is_document {
            document.push(taken);
        } else {
            taken.rows.iter().try_for_each(|row| context.output.event(row, MessageRow::line))?;
            context.output.flush()?;
            settle(&client, &arguments, &taken).await?;
        }
        // A reply may only tell of losses.
        if !is_notice {
            wait = Duration::ZERO;
        }
    }
    if is_document {
        let rows: Vec<&MessageRow> = document.iter().flat_map(|taken| &taken.rows).collect();
        context.output.list(&[], &rows)?;
        for taken in &document {
            settle(&client, &arguments, taken).await?;
        }
    }
    Ok(())
}

/// Messages of one pop, and how they are acknowledged.
struct Taken {
    rows: Vec<MessageRow>,
    acks: Vec<AckRequest>,
}

impl Taken {
    fn of(reply: &PopReply) -> Result<Self> {
        let mut taken = Self { rows: Vec::new(), acks: Vec::new() };
        for claim in &reply.claims {
            taken.add(claim, &reply.lease_id)?;
        }
        Ok(taken)
    }

    fn add(&mut self, claim: &Claim, lease_id: &str) -> Result<()> {
        if let Some(lost) = claim.lost {
            eprintln!(
                "offsets {} to {} of partition {:?} are gone, removed or damaged, before this group read them",
                lost.first, lost.last, claim.partition
            );
        }
        let place = Place { queue: &claim.queue, partition: &claim.partition, partition_id: claim.partition_id };
        let messages = messages_of_claim(claim)?;
        let item =
            |offset| AckItem { target: AckTarget::Offset(offset), verb: AckVerb::Completed, reason: String::new(), delay_ms: 0 };
        self.acks.push(AckRequest {
            queue: claim.queue.clone(),
            partition_id: claim.partition_id,
            group: None,
            lease_id: lease_id.to_owned(),
            items: messages.iter().map(|message| item(message.offset)).collect(),
        });
        for (index, message) in messages.iter().enumerate() {
            let last_error = if index == 0 { claim.last_error.as_str() } else { "" };
            self.rows.push(MessageRow::new(place, message).leased(lease_id, message.delivery_count, last_error));
        }
        Ok(())
    }
}

async fn settle(client: &Client, arguments: &PopArguments, taken: &Taken) -> Result<()> {
    if arguments.ack != AckMode::Auto {
        return Ok(());
    }
    for ack in taken.acks.iter().filter(|ack| !ack.items.is_empty()) {
        let reply = client.ack(&AckRequest { group: arguments.group.clone(), ..ack.clone() }).await?;
        if let Some(refused) = reply.outcomes.into_iter().find_map(|outcome| outcome.refused) {
            bail!(refused);
        }
    }
    Ok(())
}
