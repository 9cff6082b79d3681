//! The examples of `storage-format.md` are what the code writes.

use std::sync::Arc;

use fanlog::model::Compression;
use fanlog::record::{Annex, BatchBuilder, Matches, Message, ProducerMark};
use fanlog::storage::disk::Dir;
use fanlog::storage::disk::sim::SimDisk;
use fanlog::storage::log::{self, OpenLog, OutBatch, OutBody, OutRecord};
use fanlog::storage::slots::{SlotIdentity, Slots};
use fanlog::storage::table::{Entry, Key, Table};

const DOCUMENT: &str = include_str!("../storage-format.md");
const INCARNATION: u64 = 0x0102_0304_0506_0708;

/// The bytes of the first indented block under a heading. A line is a position and up to 16 bytes.
fn documented(heading: &str) -> Vec<u8> {
    let (_, section) = DOCUMENT.split_once(&format!("\n### {heading}\n")).unwrap_or_else(|| panic!("no section {heading:?}"));
    let lines = section.lines().skip_while(|line| !line.starts_with("    ")).take_while(|line| line.starts_with("    "));
    let mut bytes = Vec::new();
    for line in lines {
        let mut words = line.split_whitespace().map(|word| u8::from_str_radix(word, 16).expect("two hexadecimal digits"));
        assert_eq!(words.next().map(usize::from), Some(bytes.len()), "position of line {line:?}");
        bytes.extend(words);
    }
    bytes
}

/// As the document shows bytes.
fn shown(bytes: &[u8]) -> String {
    let line = |(at, line): (usize, &[u8])| {
        let words: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("    {:02x}  {}\n", at * 16, words.join(" "))
    };
    bytes.chunks(16).enumerate().map(line).collect()
}

fn check(heading: &str, bytes: &[u8]) {
    assert!(
        documented(heading) == bytes,
        "under {heading:?} stand\n{}but written are\n{}",
        shown(&documented(heading)),
        shown(bytes)
    );
}

#[test]
fn segment_header_and_batch_record() {
    let disk = SimDisk::new(1);
    let options = OpenLog {
        incarnation: INCARNATION,
        epoch: 1,
        checkpoint: 0,
        first_segment: 1,
        segment_bytes_max: 1 << 20,
        now_us: 1_700_000_000_000_000,
    };
    let mut writer = log::open(&disk.root(), &options, &mut |_| {}).unwrap().writer;
    let mut first = Message::new("hello");
    first.transaction_id = Some("a-1".to_owned());
    first.attributes.insert("k", "v").unwrap();
    let mut builder = BatchBuilder::new();
    builder.push(&first);
    builder.push(&Message::new("!"));
    let annex = Annex {
        producers: vec![ProducerMark { producer_id: 9, epoch: 2, sequence: 7, first_index: 0, count: 1 }],
        matches: vec![(5, Matches::collect(2, |index| index == 1)), (6, Matches::None)],
    };
    let ids = vec![(fanlog::format::index::id_hash(3, b"a-1"), 0)];
    let batch = OutBatch { partition: 3, base_offset: 41, packed: builder.finish(Compression::None), annex, ids };
    let appended = writer.append(vec![OutRecord { body: OutBody::Batch(batch), goes_on: false }], options.now_us).unwrap();
    let entry = *appended.batches().next().unwrap();
    let bytes = disk.read_file("00000001.segment").unwrap();
    check("Example of a segment header", &bytes[..72]);
    let start = entry.position as usize;
    check("Example of a batch record", &bytes[start..start + entry.length as usize]);
}

#[test]
fn table() {
    let disk = SimDisk::new(1);
    let dir: Arc<dyn Dir> = disk.root();
    let mut table = Table::create(&dir, "table", 7).unwrap();
    let set = Entry { key: Key { kind: 1, a: 2, b: 3 }, value: Some(b"hi") };
    let removed = Entry { key: Key { kind: 4, a: 5, b: 6 }, value: None };
    table.append(9, [set, removed]).unwrap();
    check("Example of a table", &disk.read_file("table").unwrap()[64..]);
}

#[test]
fn slot() {
    let disk = SimDisk::new(1);
    let dir: Arc<dyn Dir> = disk.root();
    let identity = SlotIdentity { incarnation: INCARNATION, partition: 9, group: 10 };
    let mut slots = Slots::create(&dir, "cursor", identity, 0, b"").unwrap();
    // The file is made with sequences 1 and 2; writes go to the first and the second slot in turn.
    (3..=12).for_each(|_| slots.write(12, b"hi").unwrap());
    let bytes = disk.read_file("cursor").unwrap();
    assert_eq!(bytes.len(), 1024);
    assert!(bytes[512 + 64..].iter().all(|&byte| byte == 0));
    check("Example of a slot", &bytes[512..512 + 64]);
}
