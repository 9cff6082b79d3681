//! `fanlog verify` and `fanlog inspect`: a data directory without its server, or beside it. Nothing is changed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use fanlog::format::names;
use fanlog::model::Now;
use fanlog::storage::disk::{Dir, RealDir};
use fanlog::storage::inspect::inspect as inspect_file;
use fanlog::storage::verify::{Severity, verify as verify_directory};
use serde_json::json;

use super::Context;
use super::exit::{EXIT_DONE, EXIT_SERVER, ServerFault};
use super::output::Format;

/// What to verify.
#[derive(Debug, clap::Args)]
pub struct VerifyArguments {
    /// The data directory; without it the one of the settings
    directory: Option<PathBuf>,
}

/// What to inspect.
#[derive(Debug, clap::Args)]
pub struct InspectArguments {
    /// A data directory, or a segment, index, checkpoint or cursor file in it; without it the directory of the settings
    path: Option<PathBuf>,
    /// Rows at most
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<usize>,
}

/// Reads all of a directory; gives the exit code: a loss is a fault of the server.
pub fn verify(arguments: VerifyArguments, mut context: Context) -> Result<u8> {
    let path = arguments.directory.unwrap_or_else(|| context.config.text("data").into());
    let dir = open(&path)?;
    let report =
        verify_directory(&dir, Now::read().wall_us).with_context(|| ServerFault(format!("cannot read {}", path.display())))?;
    match context.output.format() {
        Format::Table => {
            let findings: String = report.findings.iter().map(|finding| format!("{finding}\n")).collect();
            let verdict = match report.worst() {
                None | Some(Severity::Info) => "nothing is wrong",
                Some(Severity::Warning) => "nothing is lost",
                Some(Severity::Loss) => "something is lost",
            };
            context.output.text(&format!(
                "{findings}{verdict}: {} queues, {} segments, {} bytes, {} records, {} batches, {} messages, {} indexes, {} cursors\n",
                report.queues,
                report.segments,
                report.bytes,
                report.records,
                report.batches,
                report.messages,
                report.indexes,
                report.cursors,
            ))?;
        }
        Format::Json | Format::Ndjson => context.output.object(&report)?,
    }
    Ok(if report.worst() == Some(Severity::Loss) { EXIT_SERVER } else { EXIT_DONE })
}

/// Lists a directory's files, or the rows of one of them.
pub fn inspect(arguments: InspectArguments, context: Context) -> Result<()> {
    let path = arguments.path.unwrap_or_else(|| context.config.text("data").into());
    let count = arguments.count.unwrap_or(usize::MAX);
    let metadata = std::fs::metadata(&path).with_context(|| format!("cannot read {}", path.display()))?;
    if metadata.is_dir() { list(&path, count, context) } else { rows(&path, count, context) }
}

fn open(path: &Path) -> Result<Arc<dyn Dir>> {
    Ok(Arc::new(RealDir::open(path).with_context(|| format!("cannot read {}", path.display()))?))
}

fn list(path: &Path, count: usize, mut context: Context) -> Result<()> {
    let root = open(path)?;
    let mut files = Vec::new();
    add_files(&root, "", &mut files)?;
    files.truncate(count);
    context.output.list(&["file", "kind", "bytes"], &files)
}

fn add_files(dir: &Arc<dyn Dir>, prefix: &str, files: &mut Vec<serde_json::Value>) -> Result<()> {
    let mut entries = dir.list()?;
    entries.sort_by(|first, second| first.name.cmp(&second.name));
    for entry in entries {
        let file = format!("{prefix}{}", entry.name);
        if entry.is_directory {
            add_files(&dir.dir(&entry.name)?, &format!("{file}/"), files)?;
        } else {
            files.push(json!({ "file": file, "kind": kind_of(&entry.name), "bytes": entry.length }));
        }
    }
    Ok(())
}

fn kind_of(name: &str) -> &'static str {
    match name {
        _ if names::parse_segment(name).is_some() => "segment",
        _ if names::parse_unused_segment(name).is_some() => "unused segment",
        _ if names::parse_index(name).is_some() => "index",
        _ if names::parse_cursor(name).is_some() => "cursor",
        _ if names::is_kept_aside(name) => "kept aside",
        _ if names::is_damaged_table(name) => "damaged checkpoint",
        names::TABLE => "checkpoint",
        _ => "other",
    }
}

fn rows(path: &Path, count: usize, mut context: Context) -> Result<()> {
    let (queue, incarnation, name) = place(path)?;
    let dir = open(&queue)?;
    let (mut left, mut failure) = (count, None);
    let mut show = |row: fanlog::storage::inspect::Row| {
        if left == 0 {
            return false;
        }
        left -= 1;
        let line = context.output.event(&row, |row| serde_json::to_string(row).unwrap_or_default());
        failure = line.err();
        failure.is_none()
    };
    let inspected = inspect_file(&dir, incarnation, &name, &mut show);
    context.output.flush()?;
    match failure {
        Some(error) => Err(error),
        None => inspected.with_context(|| format!("cannot inspect {}", path.display())),
    }
}

/// The queue's directory that a file lies in, that queue's incarnation, and the file's name.
fn place(path: &Path) -> Result<(PathBuf, u64, String)> {
    let path = std::fs::canonicalize(path).with_context(|| format!("cannot read {}", path.display()))?;
    let name = path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    let queue = path.ancestors().skip(1).find_map(|directory| {
        let incarnation = names::parse_queue_dir(directory.file_name()?.to_str()?)?;
        Some((directory.to_owned(), incarnation))
    });
    match (queue, name) {
        (Some((directory, incarnation)), Some(name)) => Ok((directory, incarnation, name)),
        _ => bail!("{} does not lie in the directory of a queue", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_knows_its_queue_by_the_directory_that_it_lies_in() {
        let root = tempfile::tempdir().unwrap();
        let queue = root.path().join(names::queue_dir(7));
        let cursors = queue.join("cursors");
        std::fs::create_dir_all(&cursors).unwrap();
        for file in [queue.join(names::segment(1)), cursors.join(names::cursor(2, 3))] {
            std::fs::write(&file, b"").unwrap();
            let (directory, incarnation, name) = place(&file).unwrap();
            assert_eq!((directory, incarnation), (std::fs::canonicalize(&queue).unwrap(), 7));
            assert_eq!(name, file.file_name().unwrap().to_str().unwrap());
        }
        let stray = root.path().join("stray");
        std::fs::write(&stray, b"").unwrap();
        assert!(place(&stray).is_err());
    }
}
