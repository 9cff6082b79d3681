//! Files are not as they were left.
//!
//! A closed directory with segments, indexes, cursors and a checkpoint is spoilt in one file: every byte flipped, cut at every length,
//! emptied, zeroed, removed, exchanged for another one, put back as it was earlier. Whatever was done to it, nothing panics, no wrong
//! message is served, a flipped byte costs no message but those of its own batch, nothing that is served differently goes without a
//! word, and `verify` finds it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use fanlog::engine::Engine;
use fanlog::model::Now;
use fanlog::storage::disk::sim::{Random, SimDisk};
use fanlog::storage::verify::{Severity, verify};

use crate::faults::workload;
use crate::power::Base;
use crate::proof::drive::{Driver, Op, Step, options};
use crate::proof::model::Model;
use crate::proof::view::{self, View};
use crate::{number, wants_all};

#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    spoilt: u64,
    /// Not opened, or a queue of it not served.
    refused: u64,
    /// Served, and something lost or moved.
    different: u64,
    unharmed: u64,
}

struct Subject {
    disk: SimDisk,
    model: Model,
    expected: View,
    now: Now,
    files: BTreeMap<String, Vec<u8>>,
    /// The files as they were earlier.
    older: BTreeMap<String, Vec<u8>>,
}

fn files(disk: &SimDisk) -> BTreeMap<String, Vec<u8>> {
    let named = |path: String| disk.read_file(&path).map(|content| (path, content));
    disk.paths().into_iter().filter_map(named).filter(|(path, _)| !path.ends_with("fanlog.lock")).collect()
}

impl Subject {
    fn new() -> Self {
        let base = Base::new();
        let older = files(&base.disk);
        let mut driver = base.open().unwrap();
        // One roll is enough, and small files are sooner spoilt at every byte.
        let is_small = |op: &Op| !matches!(op, Op::Push { items, .. } if items.len() > 4 && items[0].tag > 220);
        for op in workload().into_iter().filter(is_small) {
            assert!(matches!(driver.step(&op).unwrap(), Step::Done), "{op:?}");
        }
        // Indexes are written.
        assert!(matches!(driver.step(&Op::Pass { is_long: false }).unwrap(), Step::Done));
        driver.engine().close(driver.now).unwrap();
        driver.engine = None;
        let Driver { disk, mut model, now, .. } = driver;
        model.restart();
        Self { expected: view::of_model(&model), files: files(&disk), disk, model, now, older }
    }

    fn used(&self, path: &str) -> usize {
        self.files[path].iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)
    }

    fn spoil(&self, path: &str, content: Option<&[u8]>) -> SimDisk {
        let disk = self.disk.crash_keep_all();
        match content {
            Some(content) => disk.write_file(path, content),
            None => disk.remove_file(path),
        }
        disk
    }

    /// Opens a spoilt copy and looks at all of it. `is_flip` says that one byte of one file is wrong.
    fn judge(&self, disk: &SimDisk, path: &str, is_flip: bool, tally: &mut Tally) -> Result<(), String> {
        tally.spoilt += 1;
        let is_found = match verify(&disk.root(), 1) {
            Ok(report) => report.findings.iter().any(|finding| finding.severity >= Severity::Warning),
            Err(error) => !error.to_string().is_empty(),
        };
        let (engine, report) = match Engine::open(disk.root(), options(), self.now) {
            Ok(opened) => opened,
            Err(error) if error.to_string().is_empty() => return Err("it is refused without a word".to_owned()),
            Err(_) if !is_found => return Err("verify finds nothing in what is refused".to_owned()),
            Err(_) => {
                tally.refused += 1;
                return Ok(());
            }
        };
        let found = view::of_engine(&engine, self.now)?;
        let is_told = report.findings.iter().any(|finding| !finding.text.is_empty());
        let closed: Vec<&str> = self.model.queues.keys().map(String::as_str).filter(|name| !found.contains_key(*name)).collect();
        if !closed.is_empty() {
            tally.refused += 1;
            return if is_told && is_found { Ok(()) } else { Err(format!("{closed:?} are not served, without a word")) };
        }
        let lost = self.compare_messages(&found)?;
        if is_flip {
            self.check_one_batch(path, &lost)?;
        }
        if found == self.expected {
            tally.unharmed += 1;
            return Ok(());
        }
        tally.different += 1;
        let difference = view::difference(&self.expected, &found);
        // What the opening does not tell, since it does not read all of a log, the reader is told.
        let is_told_to_reader =
            lost.iter().all(|(name, lane, offset)| found.contains_key(&format!("{name} lane {lane} {offset} damaged")));
        if !is_told && (lost.is_empty() || !is_told_to_reader) {
            return Err(format!("it is served differently without a word:\n{difference}"));
        }
        if !is_found {
            return Err(format!("verify finds nothing, and it is served differently:\n{difference}"));
        }
        Ok(())
    }

    /// Messages that were done may be unread again, and that is all.
    fn check_older_cursor(&self, disk: &SimDisk) -> Result<(), String> {
        let (engine, _) = Engine::open(disk.root(), options(), self.now).map_err(|error| error.to_string())?;
        let found = view::of_engine(&engine, self.now)?;
        let is_right = self.expected.iter().all(|(key, expected)| {
            let value = found.get(key);
            value == Some(expected)
                || key.contains(" lag ")
                || (expected == "done" && value.is_some_and(|value| value == "unread"))
        });
        if is_right && found.len() == self.expected.len() { Ok(()) } else { Err(view::difference(&self.expected, &found)) }
    }

    /// No message but those that were pushed, each where it was. Returns those that are gone: queue, lane and offset.
    fn compare_messages(&self, found: &View) -> Result<BTreeSet<(String, String, u64)>, String> {
        let mut lost = BTreeSet::new();
        for (name, queue) in &self.model.queues {
            for (lane, kept) in &queue.lanes {
                let prefix = format!("{name} lane {lane} ");
                let shown = found.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix));
                for (key, value) in shown {
                    let is_message = key[prefix.len()..].parse::<u64>().is_ok();
                    if is_message && self.expected.get(key) != Some(value) {
                        return Err(format!("a wrong message: {key} is {value}, expected {:?}", self.expected.get(key)));
                    }
                }
                let offsets = kept.messages.range(kept.start..).map(|(&offset, _)| offset);
                let gone = offsets.filter(|offset| !found.contains_key(&format!("{prefix}{offset}")));
                lost.extend(gone.map(|offset| (name.clone(), lane.clone(), offset)));
            }
        }
        Ok(lost)
    }

    /// A wrong byte in a segment costs its own batch; one in another file costs no message.
    fn check_one_batch(&self, path: &str, lost: &BTreeSet<(String, String, u64)>) -> Result<(), String> {
        let Some((name, lane, offset)) = lost.first() else { return Ok(()) };
        let batches = &self.model.queues[name].lanes[lane].batches;
        let Some(batch) = batches.iter().find(|batch| (batch.base..batch.next).contains(offset)) else {
            return Err(format!("{lost:?} are gone, and were in no batch"));
        };
        let is_inside =
            |gone: &(String, String, u64)| gone.0 == *name && gone.1 == *lane && (batch.base..batch.next).contains(&gone.2);
        if !path.ends_with(".segment") || !lost.iter().all(is_inside) {
            return Err(format!("more is gone than one batch of one segment: {lost:?}"));
        }
        Ok(())
    }
}

/// Spoils every file at many places, one at a time: at one in `one_in` of those that somebody wrote, or at all of them if that is asked
/// for. `spoil` makes the new content.
fn spoil_at_places(one_in: u64, is_flip: bool, spoil: impl Fn(&[u8], usize, &mut Random) -> Vec<u8>) {
    let started = Instant::now();
    let subject = Subject::new();
    let seed = number("FANLOG_CRASH_SEED").unwrap_or(1);
    let mut random = Random::new(seed);
    let mut tally = Tally::default();
    for (path, content) in &subject.files {
        let used = subject.used(path);
        for at in 0..content.len() {
            // What nobody wrote yet is all alike.
            let is_chosen = if at < used { wants_all() || random.chance(1, one_in) } else { random.chance(1, 100_000) };
            if !is_chosen {
                continue;
            }
            let disk = subject.spoil(path, Some(&spoil(content, at, &mut random)));
            if let Err(text) = subject.judge(&disk, path, is_flip, &mut tally) {
                panic!("seed {seed}: {path} spoilt at {at}: {text}");
            }
        }
    }
    println!("seed {seed}: {tally:?} in {:?}", started.elapsed());
}

#[test]
fn every_flipped_byte_is_harmless_or_told() {
    spoil_at_places(200, true, |content, at, random| {
        let mut spoilt = content.to_vec();
        spoilt[at] ^= 1 << random.index(8);
        spoilt
    });
}

#[test]
fn a_file_cut_at_any_length_is_harmless_or_told() {
    spoil_at_places(300, false, |content, length, _| content[..length].to_vec());
}

#[test]
fn files_that_are_gone_empty_zeroed_exchanged_or_old_are_harmless_or_told() {
    let subject = Subject::new();
    let mut tally = Tally::default();
    let judge = |disk: SimDisk, path: &str, what: String, tally: &mut Tally| {
        if let Err(text) = subject.judge(&disk, path, false, tally) {
            panic!("{path} {what}: {text}");
        }
    };
    for (path, content) in &subject.files {
        judge(subject.spoil(path, None), path, "removed".to_owned(), &mut tally);
        judge(subject.spoil(path, Some(&[])), path, "emptied".to_owned(), &mut tally);
        judge(subject.spoil(path, Some(&vec![0; content.len()])), path, "zeroed".to_owned(), &mut tally);
        judge(subject.spoil(path, Some(&vec![0xff; content.len()])), path, "filled".to_owned(), &mut tally);
        for (other, replacement) in &subject.files {
            if replacement != content {
                let disk = subject.spoil(path, Some(replacement));
                disk.write_file(other, content);
                judge(disk, path, format!("exchanged for {other}"), &mut tally);
                judge(subject.spoil(path, Some(replacement)), path, format!("replaced by {other}"), &mut tally);
            }
        }
        if let Some(older) = subject.older.get(path).filter(|older| *older != content) {
            let disk = subject.spoil(path, Some(older));
            if path.contains("/cursors/") {
                // Nothing else knows how far a cursor was: an older one cannot be told, and hands out again what it had handed out.
                subject.check_older_cursor(&disk).unwrap_or_else(|text| panic!("{path} as it was earlier: {text}"));
            } else {
                judge(disk, path, "as it was earlier".to_owned(), &mut tally);
            }
        }
    }
    println!("{tally:?}");
}

#[test]
fn any_two_files_may_be_gone_or_empty_together() {
    let subject = Subject::new();
    let mut tally = Tally::default();
    let paths: Vec<&String> = subject.files.keys().collect();
    let spoil = |disk: &SimDisk, path: &str, is_removed: bool| match is_removed {
        true => disk.remove_file(path),
        false => disk.write_file(path, &[]),
    };
    for (at, first) in paths.iter().enumerate() {
        for second in &paths[at + 1..] {
            for how in 0..4 {
                let disk = subject.disk.crash_keep_all();
                spoil(&disk, first, how & 1 == 0);
                spoil(&disk, second, how & 2 == 0);
                if let Err(text) = subject.judge(&disk, first, false, &mut tally) {
                    panic!("{first} and {second}, way {how}: {text}");
                }
            }
        }
    }
    println!("{tally:?}");
}
