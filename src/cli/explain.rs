//! `fanlog filter`: trying filters, alone and against what a queue holds.

use std::io::{BufReader, Write};
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};
use clap::Subcommand;
use fanlog::filter::{Filter, Why};
use fanlog::record::{Attributes, DEFAULT_PARTITION};
use serde_json::{Value, json};

use super::output::Format;
use super::scan::Scan;
use super::{Context, filter};

/// Try filters.
#[derive(Debug, Subcommand)]
pub enum FilterCommand {
    /// Say whether a filter takes attributes: match (exit code 0), no match (1), not valid (2)
    Test {
        /// The filter
        #[arg(long, value_name = "EXPR", required_unless_present = "ndjson", requires = "attributes")]
        filter: Option<String>,
        /// The attributes, a JSON object
        #[arg(long, value_name = "JSON", requires = "filter")]
        attributes: Option<String>,
        /// A filter and attributes on each line of a file: {"filter":...,"attributes":{...}}; - is standard input
        #[arg(long, value_name = "FILE|-", conflicts_with_all = ["filter", "attributes"])]
        ndjson: Option<PathBuf>,
    },
    /// Show how a filter is understood and what it takes
    Explain {
        /// The filter
        filter: String,
        /// Say why it takes or refuses these attributes, a JSON object
        #[arg(long, value_name = "JSON")]
        attributes: Option<String>,
        /// Try it on the last messages of this queue
        #[arg(long)]
        queue: Option<String>,
        /// So many of them
        #[arg(long, value_name = "N", default_value_t = 100, requires = "queue")]
        last: u32,
        /// Say why it takes or refuses the message at this offset of the queue
        #[arg(long, requires = "queue", conflicts_with = "attributes")]
        offset: Option<u64>,
        /// The partition of that message, or of the last messages
        #[arg(long, requires = "queue")]
        partition: Option<String>,
    },
}

/// Runs the command; gives the exit code.
pub async fn run(command: FilterCommand, context: Context) -> Result<u8> {
    match command {
        FilterCommand::Test { filter: Some(filter), attributes, .. } => {
            let (mut out, mut errors) = (std::io::stdout().lock(), std::io::stderr().lock());
            let code = filter::test(&filter, attributes.as_deref().unwrap_or("{}"), &mut out, &mut errors)?;
            Ok(u8::try_from(code)?)
        }
        FilterCommand::Test { ndjson, .. } => test_lines(&ndjson.context("name a file with --ndjson")?),
        FilterCommand::Explain { filter, attributes, queue, last, offset, partition } => {
            let parsed = Filter::parse(&filter).map_err(|error| anyhow!("{error}\n{}", error.caret(&filter)))?;
            let mut explanation = Explanation::new(parsed, &filter);
            if let Some(attributes) = attributes {
                explanation.judge(&Attributes::from_json(&attributes)?);
            }
            if let Some(queue) = queue {
                explanation.try_on(&queue, partition.as_deref(), last, offset, &context).await?;
            }
            explanation.show(context)?;
            Ok(0)
        }
    }
}

fn test_lines(path: &std::path::Path) -> Result<u8> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let code = if path == std::path::Path::new("-") {
        filter::test_ndjson(std::io::stdin().lock(), &mut out)?
    } else {
        let file = std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        filter::test_ndjson(BufReader::new(file), &mut out)?
    };
    out.flush()?;
    Ok(u8::try_from(code)?)
}

/// What is said of a filter.
struct Explanation {
    filter: Filter,
    text: String,
    why: Option<Why>,
    trial: Option<Value>,
}

impl Explanation {
    fn new(filter: Filter, text: &str) -> Self {
        Self { filter, text: text.to_owned(), why: None, trial: None }
    }

    fn judge(&mut self, attributes: &Attributes) {
        self.why = Some(self.filter.why(attributes.view()));
    }

    async fn try_on(
        &mut self,
        queue: &str,
        partition: Option<&str>,
        last: u32,
        offset: Option<u64>,
        context: &Context,
    ) -> Result<()> {
        let client = context.connect().await?;
        let scan = Scan { client: &client, queue, partition };
        if let Some(offset) = offset {
            let partition = partition.unwrap_or(DEFAULT_PARTITION);
            let piece = scan.fetch(partition, offset, offset.saturating_add(1), 1).await?;
            let message = piece.messages.first();
            let message = message.with_context(|| format!("partition {partition:?} has no message {offset}"))?;
            self.judge(&message.attributes);
            return Ok(());
        }
        let partitions = scan.partitions().await?;
        let starts = scan.starts_of_last(&partitions, last).await?;
        let (mut tried, mut taken) = (0u64, 0u64);
        for partition in &partitions {
            let mut from = starts.get(&partition.id).copied().unwrap_or(partition.end);
            while from < partition.end {
                let piece = scan.fetch(&partition.name, from, partition.end, u32::MAX).await?;
                tried += piece.messages.len() as u64;
                taken += piece.messages.iter().filter(|message| self.filter.matches(message.attributes.view())).count() as u64;
                if piece.next <= from {
                    break;
                }
                from = piece.next;
            }
        }
        self.trial = Some(json!({ "queue": queue, "tried": tried, "taken": taken }));
        Ok(())
    }

    fn show(&self, mut context: Context) -> Result<()> {
        if context.output.format() != Format::Table {
            let nodes = self.why.as_ref().map(|why| {
                let node = |node: &fanlog::filter::Verdict| {
                    let found = node.actual.as_ref().map(ToString::to_string);
                    json!({ "depth": node.depth, "text": node.text, "holds": node.holds, "found": found })
                };
                json!({ "matches": why.matches, "nodes": why.nodes.iter().map(node).collect::<Vec<_>>() })
            });
            return context.output.object(&json!({
                "filter": self.filter.to_string(),
                "grouping": self.filter.parenthesised(),
                "tree": self.filter.outline().lines().collect::<Vec<_>>(),
                "why": nodes,
                "trial": self.trial,
            }));
        }
        let mut text = filter::explain_text(&self.text).map_err(|error| anyhow!("{error}"))?;
        if let Some(why) = &self.why {
            text.push_str(&format!("{}\n{why}", if why.matches { "match" } else { "no match" }));
        }
        if let Some(trial) = &self.trial {
            text.push_str(&format!("takes {} of the last {} messages of {}\n", trial["taken"], trial["tried"], trial["queue"]));
        }
        context.output.text(&text)
    }
}
