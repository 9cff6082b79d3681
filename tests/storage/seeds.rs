//! Seeds for the fuzz targets of `fuzz/`: what the code writes, so that the fuzzer begins with something that decodes.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use fanlog::format::control::ControlOp;
use fanlog::format::index::{IndexContent, IndexedBatch, IndexedId, id_hash};
use fanlog::model::Compression;
use fanlog::record::{Annex, BatchBuilder, Matches, Message, ProducerMark};
use fanlog::storage::disk::Dir;
use fanlog::storage::disk::sim::SimDisk;
use fanlog::storage::log::{self, OpenLog, OutBatch, OutBody, OutRecord};
use fanlog::storage::slots::{SlotIdentity, Slots};
use fanlog::storage::table::{Entry, Key, Table};

const INCARNATION: u64 = 7;

fn write(target: &str, name: &str, bytes: &[u8]) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join(name), bytes).unwrap();
}

fn annex() -> Annex {
    Annex {
        producers: vec![ProducerMark { producer_id: 9, epoch: 2, sequence: 7, first_index: 0, count: 2 }],
        matches: vec![(1, Matches::collect(3, |index| index == 1)), (3, Matches::None), (9, Matches::All)],
    }
}

fn builder() -> BatchBuilder {
    let mut builder = BatchBuilder::new();
    let mut message = Message::new("hello ".repeat(40));
    message.transaction_id = Some("a-1".to_owned());
    message.attributes.insert("region", "us").unwrap();
    builder.push(&message);
    builder.push(&Message::new(""));
    builder.push(&Message::new("x"));
    builder
}

fn operations() -> Vec<u8> {
    let operations = [
        ControlOp::Cursor { group: 1, partition: 2, state: vec![0x10, 5, 1, 0, 0] },
        ControlOp::PartitionRemoved(3),
        ControlOp::Gap { partition: 1, first: 4, last: 9 },
        ControlOp::Applied { coordinator: 1, transaction: 2 },
    ];
    let mut bytes = Vec::new();
    operations.iter().for_each(|operation| operation.encode(&mut bytes));
    bytes
}

#[test]
#[ignore = "writes fuzz/corpus; run it when a layout changes"]
fn write_seeds() {
    let disk = SimDisk::new(1);
    let dir: Arc<dyn Dir> = disk.root();
    let options =
        OpenLog { incarnation: INCARNATION, epoch: 1, checkpoint: 0, first_segment: 1, segment_bytes_max: 1 << 20, now_us: 1 };
    let mut writer = log::open(&dir, &options, &mut |_| {}).unwrap().writer;
    let mut batches = Vec::new();
    for (partition, compression) in [(0, Compression::None), (1, Compression::default())] {
        let batch = OutBatch {
            partition,
            base_offset: 0,
            packed: builder().finish(compression),
            annex: annex(),
            ids: vec![(id_hash(partition, b"a-1"), 0)],
        };
        let records = vec![
            OutRecord { body: OutBody::Control(operations()), goes_on: true },
            OutRecord { body: OutBody::Batch(batch), goes_on: false },
        ];
        let appended = writer.append(records, 2).unwrap();
        batches.extend(appended.batches().copied());
        writer.sync().unwrap();
        writer.publish(appended);
    }
    writer.mark_frontier(3).unwrap();
    let segment = disk.read_file("00000001.segment").unwrap();
    let used = &segment[4096..writer.end() as u32 as usize];
    write("segment_header", "one", &segment[..72]);
    for (choice, name) in [(0, "plain"), (1, "sealed"), (2, "bad-header"), (5, "checkpoint")] {
        write("log_open", name, &[&[choice], used].concat());
    }
    write("log_open", "torn", &[&[0], &used[..used.len() - 100]].concat());
    for (batch, name) in batches.iter().zip(["plain", "zstd"]) {
        let bytes = &segment[batch.position as usize..(batch.position + batch.length) as usize];
        write("batch", name, bytes);
        write("record_header", name, &bytes[..128]);
    }
    write("record_header", "control", &used[..64]);
    for (compression, name) in [(Compression::None, "plain"), (Compression::default(), "zstd")] {
        let packed = builder().finish(compression);
        let mut bytes = Vec::new();
        for number in [packed.count, packed.index_length, packed.uncompressed_length] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.push(packed.codec);
        bytes.extend_from_slice(&packed.payload);
        write("packed_batch", name, &bytes);
    }
    let mut bytes = vec![3, 0];
    annex().encode(&mut bytes);
    write("annex", "one", &bytes);
    write("control", "some", &operations());
    write_index();
    write_table(&dir, &disk);
    write_cursors(&dir, &disk);
}

fn write_index() {
    let batch = |partition, base_offset| IndexedBatch {
        base_offset,
        created_at_us: 5,
        position: 4096,
        length: 200,
        count: 10,
        partition,
    };
    let content = IndexContent {
        incarnation: INCARNATION,
        segment: 1,
        end: 9000,
        last_crc: 1,
        newest_at_us: 5,
        batches: vec![batch(0, 0), batch(0, 10), batch(3, 7)],
        groups: vec![(1, vec![0b101]), (2, vec![0])],
        ids: vec![IndexedId { hash: 1, batch: 2, message: 3 }],
        damage: Vec::new(),
    };
    write("index", "one", &content.encode());
}

fn write_table(dir: &Arc<dyn Dir>, disk: &SimDisk) {
    let mut table = Table::create(dir, "table", INCARNATION).unwrap();
    write("table", "empty", &disk.read_file("table").unwrap());
    let key = |a| Key { kind: 2, a, b: 0 };
    table.append(9, [Entry { key: key(1), value: Some(b"one") }, Entry { key: key(2), value: Some(b"") }]).unwrap();
    table.append(10, [Entry { key: key(1), value: None }]).unwrap();
    let bytes = disk.read_file("table").unwrap();
    write("table", "blocks", &bytes);
    write("table", "torn", &bytes[..bytes.len() - 3]);
}

fn write_cursors(dir: &Arc<dyn Dir>, disk: &SimDisk) {
    let plain = [0x10, 0xac, 2, 0xc8, 1, 4, 1];
    #[rustfmt::skip]
    let busy = [
        0x1d, 0xac, 2, 0xc8, 1, 4, 1,
        2, 1, 1, 5, 0,
        2, 0, 1, 2, 2, 5, 1,
        2, 1, 1, 2, b'n', b'o', 3, 0, 0,
    ];
    write("cursor", "plain", &plain);
    write("cursor", "busy", &busy);
    write("cursor", "dense", &[0x12, 0xac, 2, 0xc8, 1, 4, 1, 5, 0x55, 0x55, 0x55, 0x55, 0x55]);
    let identity = SlotIdentity { incarnation: INCARNATION, partition: 1, group: 2 };
    let mut slots = Slots::create(dir, "cursor", identity, 1, &plain).unwrap();
    slots.write(2, &busy).unwrap();
    write("slots", "two", &disk.read_file("cursor").unwrap());
}
