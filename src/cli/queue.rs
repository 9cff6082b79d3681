//! `fanlog queue`: queues and their settings.

use anyhow::{Result, bail};
use clap::Subcommand;
use fanlog::record::PartitionId;
use serde_json::json;

use super::settings::parse_patch;
use super::{Context, view};

/// Partitions that one request asks for.
const PARTITIONS_OF_A_PAGE: u32 = 1_000;

/// Queues and their settings.
#[derive(Debug, Subcommand)]
pub enum QueueCommand {
    /// List all queues
    List,
    /// Show a queue with its settings and counters
    Show {
        /// The queue
        queue: String,
    },
    /// List a queue's partitions
    Partitions {
        /// The queue
        queue: String,
        /// At most so many
        #[arg(short = 'n', long, default_value_t = 1_000)]
        count: usize,
    },
    /// Make a queue
    Create {
        /// The queue
        queue: String,
        /// A setting; may be given many times
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<String>,
    },
    /// Change settings; those that are not named stay
    Update {
        /// The queue
        queue: String,
        /// A setting; may be given many times
        #[arg(long, value_name = "KEY=VALUE", required = true)]
        set: Vec<String>,
    },
    /// Delete a queue with all that it holds
    Delete {
        /// The queue
        queue: String,
    },
}

/// Runs the command.
pub async fn run(command: QueueCommand, mut context: Context) -> Result<()> {
    let client = context.connect().await?;
    match command {
        QueueCommand::List => {
            let rows: Vec<_> = client.queues().await?.iter().map(view::queue_row).collect();
            context.output.list(view::QUEUE_COLUMNS, &rows)
        }
        QueueCommand::Show { queue } => context.output.object(&view::queue(&client.queue(&queue).await?)),
        QueueCommand::Partitions { queue, count } => {
            let mut rows = Vec::new();
            let mut after: Option<PartitionId> = None;
            while rows.len() < count {
                let limit = PARTITIONS_OF_A_PAGE.min(u32::try_from(count - rows.len()).unwrap_or(u32::MAX));
                let page = client.partitions(&queue, after, limit).await?;
                after = page.last().map(|partition| partition.id);
                rows.extend(page.iter().map(view::partition));
                if page.len() < limit as usize {
                    break;
                }
            }
            context.output.list(&["partition", "partition_id", "start", "end", "newest_at"], &rows)
        }
        QueueCommand::Create { queue, set } => {
            context.output.object(&view::queue(&client.create_queue(&queue, parse_patch(&set)?).await?))
        }
        QueueCommand::Update { queue, set } => {
            context.output.object(&view::queue(&client.update_queue(&queue, parse_patch(&set)?).await?))
        }
        QueueCommand::Delete { queue } => {
            if !client.delete_queue(&queue).await? {
                bail!("there is no queue {queue:?}");
            }
            context.output.object(&json!({ "queue": queue, "deleted": true }))
        }
    }
}
