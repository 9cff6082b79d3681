//! `fanlog push`: messages from arguments, lines or JSON lines.

use std::collections::{HashSet, VecDeque};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use fanlog::client::{Producer, ReceiptFuture};
use fanlog::model::{Promise, PushResult};
use fanlog::record::{DEFAULT_PARTITION, Message, PartitionId};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use tokio::sync::mpsc;

use super::source::{Entry, Lines, Parser, PartitionField, parse_attributes};
use super::{Context, view};

/// Receipts that may be outstanding before the next message is read.
const OUTSTANDING_MAX: usize = 100_000;
/// Entries that travel together from the thread that reads lines.
const ENTRIES_OF_A_CHUNK: usize = 256;
/// Messages that no group took of which the summary says which ones they are.
const DROPPED_SHOWN: usize = 100;
/// How long a message waits for others, so that lines become batches.
const LINGER: Duration = Duration::from_millis(2);

/// What to push where.
#[derive(Debug, clap::Args)]
pub struct PushArguments {
    /// The queue; made if it does not exist
    queue: String,
    /// Messages, one for each argument
    messages: Vec<String>,
    /// A message for each line of a file; - is standard input
    #[arg(long, value_name = "FILE|-", conflicts_with_all = ["messages", "ndjson"])]
    lines: Option<PathBuf>,
    /// A message for each JSON object of a file: payload or data, partition, transactionId, attributes
    #[arg(long, value_name = "FILE|-", conflicts_with = "messages")]
    ndjson: Option<PathBuf>,
    /// The partition
    #[arg(long, conflicts_with = "partition_field")]
    partition: Option<String>,
    /// What names the partition: a field of a JSON payload or, with --lines, the number of a word such as 4
    #[arg(long, value_name = "FIELD")]
    partition_field: Option<String>,
    /// An attribute of every message: key=text or key:=number; may be given many times
    #[arg(short, long = "attribute", value_name = "KEY=VALUE")]
    attribute: Vec<String>,
}

/// What was pushed.
#[derive(Default)]
struct Summary {
    stored: u64,
    duplicates: u64,
    dropped: u64,
    /// Which ones no group took, counted from 0: the first of them.
    first_dropped: Vec<u64>,
    bytes: u64,
    partitions: HashSet<PartitionId>,
    promise: Option<Promise>,
}

/// Runs the command.
pub async fn run(arguments: PushArguments, context: Context) -> Result<()> {
    let parser = arguments.parser()?;
    let partition = arguments.partition.clone().unwrap_or_else(|| DEFAULT_PARTITION.to_owned());
    match arguments.lines.as_ref().or(arguments.ndjson.as_ref()) {
        Some(path) => {
            let lines = Lines::open(path)?;
            push_lines(&arguments.queue, &partition, lines, parser, context).await
        }
        None if arguments.messages.is_empty() => bail!("nothing to push: give messages, --lines or --ndjson"),
        None => {
            let parse = |message: &String| parser.parse(message.clone().into_bytes());
            let entries = arguments.messages.iter().map(parse).collect::<Result<Vec<Entry>>>()?;
            push_entries(&arguments.queue, &partition, entries, context).await
        }
    }
}

impl PushArguments {
    fn parser(&self) -> Result<Parser> {
        let are_lines_text = self.ndjson.is_none();
        let partition_field =
            self.partition_field.as_ref().map(|field| PartitionField::parse(field, are_lines_text)).transpose()?;
        Ok(Parser { is_ndjson: !are_lines_text, partition_field, attributes: parse_attributes(&self.attribute)? })
    }
}

/// Pushes a few messages and shows what became of each.
async fn push_entries(queue: &str, partition: &str, entries: Vec<Entry>, mut context: Context) -> Result<()> {
    let client = context.connect().await?;
    let producer = client.producer(queue).delivery_timeout(context.config.duration("request_timeout")?).build();
    let mut receipts = Vec::new();
    for Entry { partition: lane, message } in entries {
        let partition = lane.unwrap_or_else(|| partition.to_owned());
        let receipt = producer.enqueue_to(&partition, message).await?;
        receipts.push((partition, receipt));
    }
    let mut rows = Vec::new();
    for (partition, receipt) in receipts {
        let receipt = receipt.await?;
        rows.push(json!({
            "queue": queue,
            "partition": partition,
            "partition_id": receipt.partition_id,
            "offset": receipt.offset(),
            "result": view::show_push_result(receipt.result),
            "promise": view::show_promise(receipt.promise),
        }));
    }
    producer.close().await?;
    context.output.list(view::RECEIPT_COLUMNS, &rows)
}

/// Pushes lines as they come and shows how many.
async fn push_lines(queue: &str, partition: &str, lines: Lines, parser: Parser, mut context: Context) -> Result<()> {
    let client = context.connect().await?;
    let delivery_timeout = context.config.duration("request_timeout")?;
    let producer = client.producer(queue).linger(LINGER).delivery_timeout(delivery_timeout).build();
    let progress = progress_bar(lines.length);
    let start = Instant::now();
    let mut summary = Summary::default();
    let outcome = push_all(&producer, partition, read(lines, parser), &progress, &mut summary).await;
    let closed = producer.close().await;
    progress.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();
    context.output.object(&json!({
        "queue": queue,
        "stored": summary.stored,
        "duplicates": summary.duplicates,
        "dropped": summary.dropped,
        "first_dropped": summary.first_dropped,
        "partitions": summary.partitions.len(),
        "payload_bytes": summary.bytes,
        "promise": summary.promise.map(view::show_promise),
        "seconds": (seconds * 1e3).round() / 1e3,
        "messages_per_second": ((summary.stored + summary.duplicates + summary.dropped) as f64 / seconds.max(1e-9)).round(),
    }))?;
    outcome?;
    Ok(closed?)
}

/// Reads lines on a thread of its own: files block.
fn read(mut lines: Lines, parser: Parser) -> mpsc::Receiver<Result<(Vec<Entry>, usize)>> {
    let (sender, receiver) = mpsc::channel(8);
    tokio::task::spawn_blocking(move || {
        loop {
            let chunk = read_chunk(&mut lines, &parser);
            let is_last = !matches!(&chunk, Ok((entries, _)) if !entries.is_empty());
            // Nobody listens any more: pushing has failed.
            if sender.blocking_send(chunk).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}

/// The next entries and the bytes that they took; none at the end. On a terminal or a slow pipe a chunk is a line.
fn read_chunk(lines: &mut Lines, parser: &Parser) -> Result<(Vec<Entry>, usize)> {
    let (mut entries, mut bytes) = (Vec::new(), 0);
    while entries.len() < ENTRIES_OF_A_CHUNK {
        let Some((number, line, taken)) = lines.next()? else { break };
        bytes += taken;
        entries.push(parser.parse(line).with_context(|| format!("line {number}"))?);
        if lines.would_block() {
            break;
        }
    }
    Ok((entries, bytes))
}

async fn push_all(
    producer: &Producer,
    partition: &str,
    mut chunks: mpsc::Receiver<Result<(Vec<Entry>, usize)>>,
    progress: &ProgressBar,
    summary: &mut Summary,
) -> Result<()> {
    let mut receipts: VecDeque<ReceiptFuture> = VecDeque::new();
    let mut failure = None;
    while let Some(chunk) = chunks.recv().await {
        let (entries, bytes) = match chunk {
            Ok(chunk) => chunk,
            Err(error) => {
                failure = Some(error);
                break;
            }
        };
        for Entry { partition: lane, message } in entries {
            summary.bytes += message.payload.len() as u64;
            receipts.push_back(enqueue(producer, lane.as_deref().unwrap_or(partition), message).await?);
            if receipts.len() >= OUTSTANDING_MAX
                && let Some(receipt) = receipts.pop_front()
            {
                summary.add(receipt).await?;
            }
        }
        progress.inc(bytes as u64);
    }
    for receipt in receipts {
        summary.add(receipt).await?;
    }
    failure.map_or(Ok(()), Err)
}

async fn enqueue(producer: &Producer, partition: &str, message: Message) -> Result<ReceiptFuture> {
    producer.enqueue_to(partition, message).await.map_err(|error| anyhow!(error))
}

impl Summary {
    async fn add(&mut self, receipt: ReceiptFuture) -> Result<()> {
        let receipt = receipt.await?;
        let index = self.stored + self.duplicates + self.dropped;
        match receipt.result {
            PushResult::Stored(_) => self.stored += 1,
            PushResult::Duplicate(_) => self.duplicates += 1,
            PushResult::Dropped => {
                self.dropped += 1;
                if self.first_dropped.len() < DROPPED_SHOWN {
                    self.first_dropped.push(index);
                }
            }
        }
        self.partitions.insert(receipt.partition_id);
        self.promise = Some(receipt.promise);
        Ok(())
    }
}

/// A bar on standard error, if people look at it.
fn progress_bar(length: Option<u64>) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match length {
        Some(length) => (ProgressBar::new(length), "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}"),
        None => (ProgressBar::no_length(), "{spinner} {bytes} {bytes_per_sec}"),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
