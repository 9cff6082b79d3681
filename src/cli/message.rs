//! `fanlog message`: single messages.

use anyhow::{Result, bail};
use clap::Subcommand;
use fanlog::model::AckTarget;
use fanlog::protocol::PartitionSelector;
use fanlog::record::DEFAULT_PARTITION;

use super::{Context, view};

/// A message by its place or its id.
#[derive(Debug, clap::Args)]
pub struct MessageName {
    /// The queue
    pub queue: String,
    /// The partition
    #[arg(long, default_value = DEFAULT_PARTITION)]
    pub partition: String,
    /// The message's offset
    #[arg(long, required_unless_present = "transaction_id")]
    pub offset: Option<u64>,
    /// The message's transaction id
    #[arg(long, conflicts_with = "offset")]
    pub transaction_id: Option<String>,
}

impl MessageName {
    /// How the protocol names the message.
    pub fn target(&self) -> Result<AckTarget> {
        match (self.offset, &self.transaction_id) {
            (Some(offset), _) => Ok(AckTarget::Offset(offset)),
            (None, Some(id)) => Ok(AckTarget::TransactionId(id.clone())),
            (None, None) => bail!("name the message with --offset or --transaction-id"),
        }
    }

    /// How the protocol names the partition.
    pub fn partition(&self) -> PartitionSelector {
        PartitionSelector::Name(self.partition.clone())
    }
}

/// Single messages.
#[derive(Debug, Subcommand)]
pub enum MessageCommand {
    /// Show a message and how far each group is with it
    Show(MessageName),
}

/// Runs the command.
pub async fn run(command: MessageCommand, mut context: Context) -> Result<()> {
    let MessageCommand::Show(name) = command;
    let target = name.target()?;
    let client = context.connect().await?;
    let message = client.message(&name.queue, name.partition(), target).await?;
    context.output.object(&view::MessageRow::of_view(&message))
}
