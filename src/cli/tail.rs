//! `fanlog tail`: messages as they come, without a group. Moves no cursor.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Result, bail};
use fanlog::filter::Filter;
use fanlog::model::{Now, PartitionInfo, StoredMessage};
use fanlog::record::{Offset, PartitionId};

use super::Context;
use super::scan::Scan;
use super::time::parse_time;
use super::view::{MessageRow, Place};

/// How often a queue is looked at.
const PAUSE: Duration = Duration::from_millis(100);
/// The same where a look takes many requests.
const PAUSE_OF_MANY: Duration = Duration::from_secs(1);
/// So many partitions are many.
const MANY_PARTITIONS: usize = 20_000;

/// Rows that are held together to be put in order.
const ROWS_MAX: usize = 10_000;

/// What to watch.
#[derive(Debug, clap::Args)]
pub struct TailArguments {
    /// The queue
    queue: String,
    /// Only this partition
    #[arg(long)]
    partition: Option<String>,
    /// Begin with the last N messages
    #[arg(short = 'n', long, value_name = "N", conflicts_with_all = ["since", "from"])]
    last: Option<u32>,
    /// Begin with messages stored since then
    #[arg(long, value_name = "TIME", conflicts_with = "from")]
    since: Option<String>,
    /// Begin at this offset of each partition
    #[arg(long, value_name = "OFFSET")]
    from: Option<Offset>,
    /// End before this offset of each partition; ends when all are read
    #[arg(long, value_name = "OFFSET")]
    to: Option<Offset>,
    /// Only messages whose attributes satisfy this
    #[arg(long, value_name = "EXPR")]
    filter: Option<String>,
    /// End when everything that is there is read
    #[arg(long)]
    no_follow: bool,
}

/// Runs the command.
pub async fn run(arguments: TailArguments, context: Context) -> Result<()> {
    let filter = match &arguments.filter {
        Some(text) => Filter::parse(text).map_err(|error| anyhow::anyhow!("{error}\n{}", error.caret(text)))?,
        None => Filter::everything(),
    };
    if let (Some(from), Some(to)) = (arguments.from, arguments.to)
        && from > to
    {
        bail!("--from {from} lies behind --to {to}");
    }
    let client = context.connect().await?;
    let scan = Scan { client: &client, queue: &arguments.queue, partition: arguments.partition.as_deref() };
    let partitions = scan.partitions().await?;
    let next = starts(&arguments, &scan, &partitions).await?;
    let mut tail = Tail { arguments: &arguments, scan: &scan, filter, next, context };
    tail.run(partitions).await
}

/// Where each partition begins.
async fn starts(
    arguments: &TailArguments,
    scan: &Scan<'_>,
    partitions: &[PartitionInfo],
) -> Result<HashMap<PartitionId, Offset>> {
    if let Some(last) = arguments.last {
        return scan.starts_of_last(partitions, last).await;
    }
    let since = arguments.since.as_ref().map(|since| parse_time(since, Now::read().wall_us)).transpose()?;
    let mut starts = HashMap::new();
    for partition in partitions {
        let start = match (since, arguments.from) {
            (Some(time_us), _) => scan.offset_of_time(partition, time_us).await?,
            (None, Some(from)) => from.max(partition.start),
            // A range without a beginning begins at the beginning.
            (None, None) if arguments.to.is_some() => partition.start,
            (None, None) => partition.end,
        };
        starts.insert(partition.id, start);
    }
    Ok(starts)
}

struct Tail<'a> {
    arguments: &'a TailArguments,
    scan: &'a Scan<'a>,
    filter: Filter,
    /// The next offset of each partition.
    next: HashMap<PartitionId, Offset>,
    context: Context,
}

impl Tail<'_> {
    async fn run(&mut self, mut partitions: Vec<PartitionInfo>) -> Result<()> {
        loop {
            self.round(&partitions).await?;
            if self.arguments.no_follow || self.is_done(&partitions) {
                return Ok(());
            }
            tokio::time::sleep(if partitions.len() < MANY_PARTITIONS { PAUSE } else { PAUSE_OF_MANY }).await;
            partitions = self.scan.partitions().await?;
        }
    }

    /// Prints what is there and was not printed, in the order of its times as far as the rows held together go.
    async fn round(&mut self, partitions: &[PartitionInfo]) -> Result<()> {
        loop {
            let mut rows = Vec::new();
            let mut is_more = false;
            for partition in partitions {
                let to = self.arguments.to.unwrap_or(Offset::MAX).min(partition.end);
                // A partition that is new since the start is read from its beginning.
                let beginning = self.arguments.from.unwrap_or(0).max(partition.start);
                let from = *self.next.entry(partition.id).or_insert(beginning);
                if from >= to {
                    continue;
                }
                let piece = self.scan.fetch(&partition.name, from, to, u32::MAX).await?;
                is_more |= piece.next < to && piece.next > from;
                self.next.insert(partition.id, piece.next.max(from));
                let taken = piece.messages.into_iter().filter(|message| self.filter.matches(message.attributes.view()));
                rows.extend(taken.map(|message| (partition, message)));
                if rows.len() >= ROWS_MAX {
                    self.print(&mut rows)?;
                }
            }
            self.print(&mut rows)?;
            if !is_more {
                return Ok(());
            }
        }
    }

    fn print(&mut self, rows: &mut Vec<(&PartitionInfo, StoredMessage)>) -> Result<()> {
        rows.sort_by_key(|(partition, message)| (message.created_at_us, partition.id, message.offset));
        for (partition, message) in rows.drain(..) {
            let place = Place { queue: &self.arguments.queue, partition: &partition.name, partition_id: partition.id };
            self.context.output.event(&MessageRow::new(place, &message), MessageRow::line)?;
        }
        self.context.output.flush()
    }

    /// Whether every partition was read up to where it was to end.
    fn is_done(&self, partitions: &[PartitionInfo]) -> bool {
        self.arguments
            .to
            .is_some_and(|to| partitions.iter().all(|partition| self.next.get(&partition.id).is_some_and(|next| *next >= to)))
    }
}
