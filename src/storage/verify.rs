//! Verification of a data directory, stopped or in use: reads everything, changes nothing, takes no lock.
//!
//! What may change underneath is read in an order in which a running server cannot contradict itself: the checkpoint, then cursors, then
//! the log, which is ahead of both. What a running server adds meanwhile is read as far as it is found; what looks half written is read
//! again. Each thing that is not as it should be is a [`Finding`]; only a directory that cannot be listed is an error.

mod cursors;
mod log;
mod state;

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::format::names;

use super::disk::{Access, Dir, DiskError};
use super::lock::LOCK_FILE;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Nothing is wrong; somebody may want to know.
    Info,
    /// Something is wrong, and no message or cursor is lost by it.
    Warning,
    /// Messages or cursors that were promised to be kept are lost or cannot be read.
    Loss,
}

/// One thing that is not as it should be, or that is worth knowing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// The queue's name, or its directory while the name is not known.
    pub queue: Option<String>,
    /// The file, from the data directory on.
    pub file: String,
    /// Where in the file, in bytes.
    pub position: Option<u64>,
    /// One line for people.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Loss => "loss",
        };
        write!(formatter, "{severity}: {}", self.file)?;
        if let Some(position) = self.position {
            write!(formatter, " at {position}")?;
        }
        if let Some(queue) = &self.queue {
            write!(formatter, " (queue {queue:?})")?;
        }
        write!(formatter, ": {}", self.text)
    }
}

/// What was read and what was found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct VerifyReport {
    /// When, microseconds since the Unix epoch.
    pub verified_at_us: u64,
    /// Queue directories.
    pub queues: u64,
    /// Segments.
    pub segments: u64,
    /// Bytes of records in them.
    pub bytes: u64,
    /// Records whose checksums, place and order are right.
    pub records: u64,
    /// Batches among them whose block could be opened and whose every message could be decoded.
    pub batches: u64,
    /// Messages in those.
    pub messages: u64,
    /// Index files that say what their segments hold.
    pub indexes: u64,
    /// Cursors, in files and in checkpoints.
    pub cursors: u64,
    /// What was found, queue by queue.
    pub findings: Vec<Finding>,
}

impl VerifyReport {
    /// The worst of the findings; `None` if there are none.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }
}

/// Verifies a data directory.
///
/// # Errors
///
/// If the directory itself cannot be listed. What cannot be read inside is a finding.
pub fn verify(dir: &Arc<dyn Dir>, now_us: u64) -> Result<VerifyReport, DiskError> {
    let mut report = VerifyReport { verified_at_us: now_us, ..VerifyReport::default() };
    let entries = dir.list()?;
    let mut has_start = false;
    for entry in &entries {
        let name = entry.name.as_str();
        let mut note = |severity, text: &str| report.findings.push(finding(severity, None, name, None, text));
        match name {
            _ if entry.is_directory && names::parse_queue_dir(name).is_some() => {}
            _ if entry.is_directory && names::parse_leftover_dir(name).is_some() => {
                note(Severity::Info, "a queue that is being made or removed; a start finishes that");
            }
            START_FILE if !entry.is_directory => {
                has_start = true;
                match check_start(dir.as_ref()) {
                    Ok(None) => {}
                    Ok(Some(text)) => note(Severity::Loss, text),
                    Err(error) => note(Severity::Loss, &error.to_string()),
                }
            }
            _ if !entry.is_directory && (name == LOCK_FILE || name == names::temporary(START_FILE)) => {}
            // Servers check it at their start.
            _ if !entry.is_directory && (name == names::TOKEN_FILE || name == names::temporary(names::TOKEN_FILE)) => {}
            _ => note(Severity::Info, "none of our files"),
        }
    }
    let mut incarnations: Vec<u64> =
        (entries.iter().filter(|entry| entry.is_directory)).filter_map(|entry| names::parse_queue_dir(&entry.name)).collect();
    incarnations.sort_unstable();
    if !has_start && !incarnations.is_empty() {
        report.findings.push(finding(Severity::Loss, None, START_FILE, None, "it is missing beside queues"));
    }
    for incarnation in incarnations {
        verify_queue(dir, incarnation, &mut report);
    }
    Ok(report)
}

/// The file that counts starts.
const START_FILE: &str = "start";

fn finding(severity: Severity, queue: Option<&str>, file: &str, position: Option<u64>, text: impl Into<String>) -> Finding {
    Finding { severity, queue: queue.map(str::to_owned), file: file.to_owned(), position, text: text.into() }
}

/// What is wrong with the start file; see "Start file" in `storage-format.md`.
fn check_start(dir: &dyn Dir) -> Result<Option<&'static str>, DiskError> {
    const BYTES: usize = 56;
    let mut bytes = [0; BYTES + 1];
    let length = dir.open(START_FILE, Access::Read)?.read_at(&mut bytes, 0)?;
    let (content, crc) = bytes[..BYTES].split_at(BYTES - 4);
    Ok(match () {
        () if length != BYTES => Some("it has the wrong length; starts are counted from the clock"),
        () if !content.starts_with(b"FANLOGst") => {
            Some("it does not begin as a start file does; starts are counted from the clock")
        }
        () if crc32fast::hash(content).to_le_bytes() != crc => Some("its checksum is wrong; starts are counted from the clock"),
        () => None,
    })
}

/// Where findings about one queue go.
struct Notes<'a> {
    report: &'a mut VerifyReport,
    directory: String,
    queue: String,
}

impl Notes<'_> {
    fn add(&mut self, severity: Severity, file: &str, position: Option<u64>, text: impl Into<String>) {
        let file = format!("{}/{file}", self.directory);
        self.report.findings.push(finding(severity, Some(&self.queue), &file, position, text));
    }

    fn has_loss(&self, from: usize) -> bool {
        self.report.findings.iter().skip(from).any(|finding| finding.severity == Severity::Loss)
    }
}

fn verify_queue(root: &Arc<dyn Dir>, incarnation: u64, report: &mut VerifyReport) {
    let directory = names::queue_dir(incarnation);
    let first_finding = report.findings.len();
    let mut notes = Notes { report, queue: directory.clone(), directory };
    let dir = match root.dir(&notes.directory) {
        Ok(dir) => dir,
        // Deleted since the directory was listed.
        Err(error) if error.is_not_found() => return,
        Err(error) => return notes.add(Severity::Loss, "", None, error.to_string()),
    };
    notes.report.queues += 1;
    let mut state = state::read_checkpoint(&dir, incarnation, &mut notes);
    cursors::check(&dir, incarnation, &mut state, &mut notes);
    log::check(&dir, incarnation, &mut state, &mut notes);
    state.check(&dir, incarnation, &mut notes, first_finding);
}
