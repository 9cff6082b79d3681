//! Data directories that are in use, read-only, newer, incomplete, or cut short while they are read.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fanlog::client::Client;
use fanlog::model::{Compression, ErrorCode, FetchRequest, SettingsPatch};
use fanlog::record::Message;

use crate::program::{Launch, contents};
use crate::record::Identity;

/// Exit code of a server that does not start.
const EXIT_SERVER: i32 = 2;

/// A queue "q" of several segments; partition "p" has messages 0.. of producer 1, one batch each.
async fn fill(client: &Client, messages: u64) {
    let settings =
        SettingsPatch { segment_bytes_max: Some(1 << 20), compression: Some(Compression::None), ..SettingsPatch::default() };
    client.create_queue("q", settings).await.unwrap();
    let producer = client.producer("q").max_batch_count(1).build();
    let mut receipts = Vec::new();
    for sequence in 0..messages {
        receipts.push(producer.enqueue_to("p", Message::new(large(sequence))).await.unwrap());
    }
    for (sequence, receipt) in receipts.into_iter().enumerate() {
        assert_eq!(receipt.await.unwrap().offset(), Some(sequence as u64));
    }
}

/// The payload of a message, followed by 32 KiB.
fn large(sequence: u64) -> Vec<u8> {
    let identity = Identity { producer: 1, sequence };
    [&identity.payload()[..], &[sequence as u8; 32 << 10][..]].concat()
}

fn files(directory: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found: Vec<_> =
        contents(directory).into_keys().filter(|path| path.to_str().is_some_and(|name| name.ends_with(suffix))).collect();
    found.sort();
    found
}

/// One message or why not.
async fn read(client: &Client, offset: u64) -> Result<Vec<u8>, Option<ErrorCode>> {
    let request = FetchRequest {
        queue: "q".into(),
        partition: "p".into(),
        from: offset,
        to: Some(offset + 1),
        messages_max: 1,
        bytes_max: 1,
    };
    let reply = client.fetch(&request, Duration::ZERO).await.map_err(|error| error.code())?;
    let messages = fanlog::client::messages_of(reply.batches).unwrap();
    Ok(messages.into_iter().find(|message| message.offset == offset).map(|message| message.payload.to_vec()).unwrap_or_default())
}

/// Which of the messages below `count` are whole; the others must be errors and not something else.
async fn readable(client: &Client, count: u64) -> Vec<u64> {
    let mut whole = Vec::new();
    for offset in 0..count {
        match read(client, offset).await {
            Ok(payload) => {
                assert!(payload == large(offset), "offset {offset} came as {} bytes", payload.len());
                whole.push(offset);
            }
            Err(code) => {
                let expected = [Some(ErrorCode::Corrupt), Some(ErrorCode::RangeRemoved), Some(ErrorCode::Io)];
                assert!(expected.contains(&code), "offset {offset}: {code:?}");
            }
        }
    }
    whole
}

#[tokio::test]
async fn a_second_server_names_the_first_and_touches_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let launch = Launch::in_directory(directory.path());
    let first = launch.start();
    fill(&first.client().await, 3).await;
    // The idle log gets its last mark.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = contents(&launch.data);
    let beside = tempfile::tempdir().unwrap();
    let (code, words) = Launch { beside: beside.path().to_owned(), ..launch.clone() }.refused();
    assert_eq!(code, EXIT_SERVER, "{words}");
    assert!(words.contains(&format!("pid {}", first.pid())), "{words}");
    assert!(contents(&launch.data) == before, "the second server changed files");
    assert!(read(&first.client().await, 2).await.unwrap() == large(2));
    first.stop();
}

#[tokio::test]
async fn a_directory_of_a_newer_format_is_refused_untouched() {
    let directory = tempfile::tempdir().unwrap();
    let launch = Launch::in_directory(directory.path());
    let program = launch.start();
    fill(&program.client().await, 40).await;
    program.stop();
    // File, position of its incompatible flags, position of its checksum, which is over all before.
    let data = &launch.data;
    let cases = [
        (data.join("start"), 16, 52),
        (files(data, "/table").remove(0), 16, 60),
        (files(data, ".segment").remove(0), 16, 68),
        (files(data, ".segment").pop().unwrap(), 16, 68),
    ];
    for (path, flags, checksum) in cases {
        let original = std::fs::read(&path).unwrap();
        let mut newer = original.clone();
        newer[flags + 3] |= 0x80;
        let crc = crc32fast::hash(&newer[..checksum]);
        newer[checksum..checksum + 4].copy_from_slice(&crc.to_le_bytes());
        std::fs::write(&path, &newer).unwrap();
        let before = without_lock(data);
        let (code, words) = launch.refused();
        assert_eq!(code, EXIT_SERVER, "{}: {words}", path.display());
        assert!(words.contains("newer format"), "{}: {words}", path.display());
        assert!(without_lock(data) == before, "{}: the refused server changed files", path.display());
        std::fs::write(&path, &original).unwrap();
    }
    let program = launch.start();
    assert_eq!(readable(&program.client().await, 40).await.len(), 40);
    program.stop();
}

/// The lock file names its last holder.
fn without_lock(data: &Path) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
    let mut found = contents(data);
    found.remove(&data.join("fanlog.lock"));
    found
}

#[tokio::test]
async fn a_missing_segment_is_reported_and_nothing_is_renumbered() {
    const MESSAGES: u64 = 150;
    for which in ["middle", "last"] {
        let directory = tempfile::tempdir().unwrap();
        let launch = Launch::in_directory(directory.path());
        let program = launch.start();
        fill(&program.client().await, MESSAGES).await;
        // The checkpoint of a stop says how far the log went; after a kill a missing last file could not be known.
        if which == "last" {
            program.stop()
        } else {
            program.kill()
        }
        let segments = files(&launch.data, ".segment");
        assert!(segments.len() >= 4, "{segments:?}");
        let missing = if which == "middle" { &segments[segments.len() / 2] } else { segments.last().unwrap() };
        std::fs::remove_file(missing).unwrap();
        let program = launch.start();
        let client = program.client().await;
        let whole = readable(&client, MESSAGES).await;
        assert!(!whole.is_empty() && whole.len() < MESSAGES as usize, "{which}: {} messages are whole", whole.len());
        let producer = client.producer("q").build();
        let offset = producer.send_to("p", Message::new("after")).await.unwrap().offset().unwrap();
        assert!(offset >= MESSAGES, "{which}: offset {offset} was given out before");
        program.stop();
        let program = launch.start();
        assert_eq!(readable(&program.client().await, MESSAGES).await, whole, "{which}");
        program.stop();
    }
}

#[tokio::test]
async fn a_segment_cut_short_under_its_readers_is_an_error_of_the_read() {
    const MESSAGES: u64 = 150;
    let directory = tempfile::tempdir().unwrap();
    let launch = Launch::in_directory(directory.path());
    let mut program = launch.start();
    let client = program.client().await;
    fill(&client, MESSAGES).await;
    assert_eq!(readable(&client, MESSAGES).await.len(), MESSAGES as usize);
    let segments = files(&launch.data, ".segment");
    for segment in [&segments[1], segments.last().unwrap()] {
        let file = std::fs::OpenOptions::new().write(true).open(segment).unwrap();
        file.set_len(file.metadata().unwrap().len() / 3).unwrap();
        let whole = readable(&client, MESSAGES).await;
        assert!(whole.len() < MESSAGES as usize, "something is missing");
        assert!(whole.len() > MESSAGES as usize / 3, "the rest is there: {}", whole.len());
        assert!(program.is_running());
    }
    client.ping().await.unwrap();
    let producer = client.producer("other").build();
    producer.send_to("p", Message::new("still here")).await.unwrap();
    program.kill();
    // It starts with what is left. What lay behind the cut left no trace, so the partition may end earlier.
    let program = launch.start();
    let client = program.client().await;
    let end = client.partition("q", "p").await.unwrap().end;
    let whole = readable(&client, end.min(MESSAGES)).await;
    assert!(whole.len() > MESSAGES as usize / 3, "{}", whole.len());
    program.stop();
}

#[tokio::test]
async fn a_read_only_directory_is_refused_in_words() {
    let Some(mount) = Mount::tmpfs("16m") else { return };
    let beside = tempfile::tempdir().unwrap();
    let launch = Launch::in_directory(beside.path()).data(mount.path().join("data"));
    let program = launch.start();
    fill(&program.client().await, 3).await;
    program.stop();
    mount.remount("ro");
    let (code, words) = launch.refused();
    assert_eq!(code, EXIT_SERVER, "{words}");
    assert!(words.to_lowercase().contains("read-only") || words.contains("os error 30"), "{words}");
    assert!(!words.contains("panicked"), "{words}");
    mount.remount("rw");
    let program = launch.start();
    assert_eq!(readable(&program.client().await, 3).await.len(), 3);
    program.stop();
}

/// A file system of our own, unmounted when dropped.
pub struct Mount {
    directory: tempfile::TempDir,
}

impl Mount {
    /// None, with a word about it, where mounting is not possible.
    pub fn tmpfs(size: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let output = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(directory.path()).output();
        match output {
            Ok(output) if output.status.success() => Some(Self { directory }),
            Ok(output) => {
                println!("SKIPPED: cannot mount a file system: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(error) => {
                println!("SKIPPED: cannot mount a file system: {error}");
                None
            }
        }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    fn remount(&self, option: &str) {
        let status = Command::new("mount").args(["-o", &format!("remount,{option}")]).arg(self.path()).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
