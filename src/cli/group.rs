//! `fanlog group`: groups, their filters and their cursors.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use fanlog::client::Client;
use fanlog::model::{GroupDeclaration, GroupPatch, GroupProgress, Now, PRIMARY_GROUP, SeekRequest};
use serde_json::json;

use super::output::Format;
use super::time::{parse_seek, parse_start};
use super::{Context, view};

/// Cursors that one request asks for.
const CURSORS_OF_A_PAGE: u32 = 1_000;

/// A group of a queue. The primary group is called `__QUEUE_MODE__`.
#[derive(Debug, clap::Args)]
pub struct GroupName {
    /// The queue
    queue: String,
    /// The group; __QUEUE_MODE__ is the primary group
    group: String,
}

/// A group to switch.
#[derive(Debug, clap::Args)]
pub struct Switch {
    #[command(flatten)]
    name: GroupName,
    /// Only if this is still its version
    #[arg(long, value_name = "N")]
    if_version: Option<u64>,
}

/// Groups: cursors, filters, seeking.
#[derive(Debug, Subcommand)]
pub enum GroupCommand {
    /// List groups with their lag
    List {
        /// Only of this queue
        queue: Option<String>,
    },
    /// Show a group and its cursors
    Show {
        #[command(flatten)]
        name: GroupName,
        /// Cursors at most
        #[arg(short = 'n', long, default_value_t = 100)]
        count: usize,
    },
    /// Declare a group
    Create {
        #[command(flatten)]
        name: GroupName,
        /// Only messages whose attributes satisfy this
        #[arg(long, value_name = "EXPR", default_value = "")]
        filter: String,
        /// Start disabled: take nothing and hand out nothing
        #[arg(long)]
        disabled: bool,
        /// Failed deliveries before a message is a dead letter; 0 is never
        #[arg(long, value_name = "N")]
        delivery_limit: Option<u32>,
        /// A name for people
        #[arg(long, value_name = "TEXT", default_value = "")]
        display_name: String,
        /// Start earlier than now: beginning, an offset or a time
        #[arg(long, value_name = "PLACE")]
        from: Option<String>,
        /// A work queue: many consumers hold messages of one partition
        #[arg(long)]
        shared: bool,
    },
    /// Change what is named and nothing else
    Update {
        #[command(flatten)]
        name: GroupName,
        /// A new filter for later messages; empty takes all
        #[arg(long, value_name = "EXPR")]
        filter: Option<String>,
        /// Failed deliveries before a message is a dead letter; 0 is never, queue goes back to the queue's limit
        #[arg(long, value_name = "N|queue")]
        delivery_limit: Option<String>,
        /// A name for people
        #[arg(long, value_name = "TEXT")]
        display_name: Option<String>,
        /// Only if this is still its version
        #[arg(long, value_name = "N")]
        if_version: Option<u64>,
    },
    /// Take messages and hand them out again
    Enable(Switch),
    /// Take no more messages and hand out nothing
    Disable(Switch),
    /// Hand out nothing, and go on taking messages
    Pause(Switch),
    /// Hand out messages again after a pause
    Resume(Switch),
    /// Move a group's cursors; shows what would move unless --execute is given
    Seek {
        #[command(flatten)]
        name: GroupName,
        /// Where to: beginning, end, an offset, a time, or +N and -N messages
        #[arg(long, value_name = "PLACE", allow_hyphen_values = true)]
        to: String,
        /// Only in this partition
        #[arg(long)]
        partition: Option<String>,
        /// Do it
        #[arg(long)]
        execute: bool,
        /// Cursors at most in the listing
        #[arg(short = 'n', long, default_value_t = 1_000)]
        count: u32,
    },
    /// Delete a group: cursors, registration, declaration
    Delete {
        /// The queue, or with --everywhere the group
        queue: String,
        /// The group
        group: Option<String>,
        /// In all queues
        #[arg(long)]
        everywhere: bool,
        /// Only if this is still its version
        #[arg(long, value_name = "N", conflicts_with = "everywhere")]
        if_version: Option<u64>,
    },
    /// Change where a group starts in partitions that it has not been in, in all queues; its cursors do not move
    Start {
        /// The group
        group: String,
        /// Where: beginning, new, an offset or a time
        #[arg(long, value_name = "PLACE")]
        from: String,
    },
    /// List groups that are behind
    Lagging {
        /// Only of this queue
        queue: Option<String>,
        /// Their oldest unread message is at least so old, in seconds
        #[arg(long, value_name = "N", default_value_t = 3600)]
        min_seconds: u64,
    },
}

/// Runs the command.
pub async fn run(command: GroupCommand, mut context: Context) -> Result<()> {
    let client = context.connect().await?;
    let output = &mut context.output;
    match command {
        GroupCommand::List { queue } => list(&client.groups(queue.as_deref()).await?, &mut context),
        GroupCommand::Lagging { queue, min_seconds } => {
            let groups = client.lagging_groups(queue.as_deref(), Duration::from_secs(min_seconds)).await?;
            list(&groups, &mut context)
        }
        GroupCommand::Show { name, count } => show(&client, &name, count, &mut context).await,
        GroupCommand::Create { name, filter, disabled, delivery_limit, display_name, from, shared } => {
            let start = from.map(|from| parse_start(&from, Now::read().wall_us)).transpose()?;
            let declaration = GroupDeclaration { filter, is_disabled: disabled, delivery_limit, display_name, start, shared };
            let group = client.declare_group(&name.queue, &name.group, declaration).await?;
            if group.judges_earlier {
                eprintln!("messages stored before now are judged by this filter, whatever it is changed to later");
            }
            output.object(&view::group(&group))
        }
        GroupCommand::Update { name, filter, delivery_limit, display_name, if_version } => {
            let delivery_limit = delivery_limit.map(|limit| parse_delivery_limit(&limit)).transpose()?;
            if filter.is_none() && delivery_limit.is_none() && display_name.is_none() {
                bail!("nothing to change: give --filter, --delivery-limit or --display-name");
            }
            let patch =
                GroupPatch { expected_version: if_version, filter, delivery_limit, display_name, ..GroupPatch::default() };
            update(&client, &name, patch, &mut context).await
        }
        GroupCommand::Enable(switch) => set_enabled(&client, &switch, true, &mut context).await,
        GroupCommand::Disable(switch) => set_enabled(&client, &switch, false, &mut context).await,
        GroupCommand::Pause(switch) => set_paused(&client, &switch, true, &mut context).await,
        GroupCommand::Resume(switch) => set_paused(&client, &switch, false, &mut context).await,
        GroupCommand::Seek { name, to, partition, execute, count } => {
            let target = parse_seek(&to, Now::read().wall_us)?;
            let group = Some(name.group);
            let request = SeekRequest { queue: name.queue, group, partition, target, is_preview: !execute };
            let reply = client.seek(request, count).await?;
            let rows: Vec<_> = reply.cursors.iter().map(view::seek).collect();
            output.list(view::SEEK_COLUMNS, &rows)?;
            let did = if execute { "moved" } else { "would move; add --execute to do it" };
            eprintln!("{} cursors {did}", reply.total);
            Ok(())
        }
        GroupCommand::Start { group, from } => {
            let start = parse_start(&from, Now::read().wall_us)?;
            let queues = client.set_group_start(&group, start).await?;
            if queues == 0 {
                bail!("no queue has a group {group:?}");
            }
            output.object(&json!({ "group": group, "queues": queues }))
        }
        GroupCommand::Delete { queue, group, everywhere, if_version } => {
            let (queue, group) = match (queue, group, everywhere) {
                (group, None, true) => (None, group),
                (queue, Some(group), false) => (Some(queue), group),
                (_, Some(_), true) => bail!("with --everywhere only the group is named"),
                (_, None, false) => bail!("name the queue and the group, or use --everywhere"),
            };
            let removed = match (&queue, if_version) {
                (Some(queue), Some(version)) => client.delete_group_at(queue, &group, version).await?,
                _ => client.delete_group(queue.as_deref(), &group).await?,
            };
            output.object(&json!({
                "group": group,
                "queues": removed.queues,
                "deleted_partitions": removed.deleted_partitions,
            }))
        }
    }
}

fn list(groups: &[GroupProgress], context: &mut Context) -> Result<()> {
    let mut rows: Vec<_> = groups.iter().map(view::group_progress).collect();
    if context.output.format() == Format::Table {
        // The name is what commands take; a person has to know what it stands for.
        for row in rows.iter_mut().filter(|row| row["group"] == PRIMARY_GROUP) {
            row["group"] = format!("{PRIMARY_GROUP} (primary)").into();
        }
    }
    context.output.list(view::GROUP_COLUMNS, &rows)
}

/// `None` is the primary group.
fn group_of(name: &GroupName) -> Option<&str> {
    Some(name.group.as_str()).filter(|group| *group != PRIMARY_GROUP)
}

async fn show(client: &Client, name: &GroupName, count: usize, context: &mut Context) -> Result<()> {
    let group = client.group(&name.queue, group_of(name)).await?;
    let mut cursors = Vec::new();
    while cursors.len() < count {
        let after = cursors.last().map(|cursor: &fanlog::model::CursorProgress| cursor.partition_id);
        let limit = CURSORS_OF_A_PAGE.min(u32::try_from(count - cursors.len()).unwrap_or(u32::MAX));
        let page = client.progress(&name.queue, group_of(name), after, limit).await?;
        let is_last = page.len() < limit as usize;
        cursors.extend(page);
        if is_last {
            break;
        }
    }
    let rows: Vec<_> = cursors.iter().map(view::cursor).collect();
    let mut group = view::group_progress(&group);
    if context.output.format() == Format::Table {
        context.output.object(&group)?;
        context.output.text("\n")?;
        return context.output.list(view::CURSOR_COLUMNS, &rows);
    }
    if let Some(fields) = group.as_object_mut() {
        fields.insert("progress".to_owned(), rows.into());
    }
    context.output.object(&group)
}

async fn set_enabled(client: &Client, switch: &Switch, is_enabled: bool, context: &mut Context) -> Result<()> {
    let expected_version = switch.if_version;
    let patch = GroupPatch { expected_version, is_enabled: Some(is_enabled), ..GroupPatch::default() };
    update(client, &switch.name, patch, context).await
}

async fn set_paused(client: &Client, switch: &Switch, is_paused: bool, context: &mut Context) -> Result<()> {
    let expected_version = switch.if_version;
    let patch = GroupPatch { expected_version, is_paused: Some(is_paused), ..GroupPatch::default() };
    update(client, &switch.name, patch, context).await
}

async fn update(client: &Client, name: &GroupName, patch: GroupPatch, context: &mut Context) -> Result<()> {
    let group = client.update_group(&name.queue, group_of(name), patch).await?;
    context.output.object(&view::group(&group))
}

fn parse_delivery_limit(text: &str) -> Result<Option<u32>> {
    match text {
        "queue" => Ok(None),
        number => number.parse().map(Some).with_context(|| format!("delivery limit {text:?} is no number and not \"queue\"")),
    }
}
