//! `fanlog trace`: remarks on a message's way.

use anyhow::{Context as _, Result};
use clap::Subcommand;
use fanlog::model::TraceEvent;
use serde_json::json;

use super::message::MessageName;
use super::{Context, view};

/// Remarks on a message's way.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Write one
    Write {
        #[command(flatten)]
        message: MessageName,
        /// The group that the message was handled for
        #[arg(long, default_value = "")]
        group: String,
        /// A name to find it by; may be given many times
        #[arg(long)]
        name: Vec<String>,
        /// A word for its kind
        #[arg(long = "type", default_value = "info")]
        event_type: String,
        /// Anything, JSON by convention
        #[arg(long, default_value = "{}")]
        data: String,
    },
    /// List those of a name, the newest first
    Show {
        /// The name
        name: String,
        /// Only of this queue
        #[arg(long)]
        queue: Option<String>,
        /// At most so many
        #[arg(short = 'n', long, default_value_t = 100)]
        count: u32,
        /// Skip so many
        #[arg(long, default_value_t = 0)]
        skip: u32,
    },
    /// List those of a message, the oldest first
    Message(MessageName),
    /// List all names
    Names,
}

/// Runs the command.
pub async fn run(command: TraceCommand, mut context: Context) -> Result<()> {
    let client = context.connect().await?;
    match command {
        TraceCommand::Write { message, group, name, event_type, data } => {
            let view = client.message(&message.queue, message.partition(), message.target()?).await?;
            let event = TraceEvent {
                partition_id: view.partition_id,
                transaction_id: view.transaction_id,
                group,
                names: name,
                event_type,
                data: data.into(),
                worker_id: worker_id().context("cannot tell this machine's name")?,
                created_at_us: 0,
            };
            client.write_trace(&message.queue, event).await?;
            context.output.object(&json!({ "written": true }))
        }
        TraceCommand::Show { name, queue, count, skip } => {
            let records = client.traces_by_name(queue.as_deref(), &name, count, skip).await?;
            let rows: Vec<_> = records.iter().map(|record| view::trace(&record.queue, &record.event)).collect();
            context.output.list(view::TRACE_COLUMNS, &rows)
        }
        TraceCommand::Message(message) => {
            let view = client.message(&message.queue, message.partition(), message.target()?).await?;
            let records = client.traces_of_message(&message.queue, view.partition_id, &view.transaction_id).await?;
            let rows: Vec<_> = records.iter().map(|record| view::trace(&record.queue, &record.event)).collect();
            context.output.list(view::TRACE_COLUMNS, &rows)
        }
        TraceCommand::Names => {
            let names = client.trace_names().await?;
            let rows: Vec<_> = names.iter().map(|name| json!({ "name": name.name, "count": name.count })).collect();
            context.output.list(&["name", "count"], &rows)
        }
    }
}

fn worker_id() -> Result<String> {
    let host = rustix::system::uname().nodename().to_str()?.to_owned();
    Ok(format!("{host}:{}", std::process::id()))
}
