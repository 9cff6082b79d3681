//! `fanlog dlq`: dead letters.

use anyhow::{Result, bail};
use clap::Subcommand;
use fanlog::client::Client;
use fanlog::model::DeadLetterQuery;
use serde_json::json;

use super::{Context, view};

/// Dead letters that one request asks for.
const LETTERS_OF_A_PAGE: u32 = 500;

/// Which dead letters of a queue.
#[derive(Debug, clap::Args)]
pub struct Selection {
    /// The queue
    queue: String,
    /// Their numbers
    #[arg(required_unless_present = "all")]
    ids: Vec<u64>,
    /// All of the queue
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// With --all, only of this group
    #[arg(long, requires = "all")]
    group: Option<String>,
}

/// Dead letters: messages that a group gave up.
#[derive(Debug, Subcommand)]
pub enum DeadLetterCommand {
    /// List them, the newest first
    List {
        /// Only of this queue
        queue: Option<String>,
        /// Only of this group
        #[arg(long)]
        group: Option<String>,
        /// At most so many
        #[arg(short = 'n', long, default_value_t = 100)]
        count: u32,
        /// Skip so many
        #[arg(long, default_value_t = 0)]
        skip: u32,
    },
    /// Show one
    Show {
        /// The queue
        queue: String,
        /// Its number
        id: u64,
    },
    /// Push them again and remove them
    Replay(Selection),
    /// Remove them
    Delete(Selection),
}

/// Runs the command.
pub async fn run(command: DeadLetterCommand, mut context: Context) -> Result<()> {
    let client = context.connect().await?;
    match command {
        DeadLetterCommand::List { queue, group, count, skip } => {
            let page = client.dead_letters(&DeadLetterQuery { queue, group, limit: count, skip }).await?;
            let rows: Vec<_> = page.letters.iter().map(view::DeadLetterRow::from).collect();
            context.output.list(view::DEAD_LETTER_COLUMNS, &rows)?;
            if page.total > rows.len() as u64 {
                eprintln!("{} of {}", rows.len(), page.total);
            }
            Ok(())
        }
        DeadLetterCommand::Show { queue, id } => {
            context.output.object(&view::DeadLetterRow::from(&client.dead_letter(&queue, id).await?))
        }
        DeadLetterCommand::Replay(selection) => {
            let mut rows = Vec::new();
            for id in ids(&client, &selection).await? {
                let letter = client.dead_letter(&selection.queue, id).await?;
                let reply = client.replay_dead_letter(&selection.queue, id).await?;
                let mut row = view::push_reply(&letter.partition, &reply);
                if let Some(row) = row.as_object_mut() {
                    row.insert("id".to_owned(), id.into());
                }
                rows.push(row);
            }
            context.output.list(&["id", "partition", "offset", "result"], &rows)
        }
        DeadLetterCommand::Delete(selection) => {
            let mut rows = Vec::new();
            for id in ids(&client, &selection).await? {
                if !client.delete_dead_letter(&selection.queue, id).await? {
                    bail!("queue {:?} has no dead letter {id}", selection.queue);
                }
                rows.push(json!({ "id": id, "deleted": true }));
            }
            context.output.list(&["id", "deleted"], &rows)
        }
    }
}

async fn ids(client: &Client, selection: &Selection) -> Result<Vec<u64>> {
    if !selection.all {
        return Ok(selection.ids.clone());
    }
    let mut ids = Vec::new();
    loop {
        let query = DeadLetterQuery {
            queue: Some(selection.queue.clone()),
            group: selection.group.clone(),
            limit: LETTERS_OF_A_PAGE,
            skip: u32::try_from(ids.len())?,
        };
        let letters = client.dead_letters(&query).await?.letters;
        ids.extend(letters.iter().map(|letter| letter.id));
        if letters.len() < LETTERS_OF_A_PAGE as usize {
            return Ok(ids);
        }
    }
}
