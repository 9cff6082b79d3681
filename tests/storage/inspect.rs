//! Rows of files that the engine wrote.

use std::sync::Arc;

use fanlog::format::names;
use fanlog::storage::disk::Dir;
use fanlog::storage::disk::sim::{Random, SimDisk};
use fanlog::storage::inspect::{InspectError, Row, inspect};

use super::verify::busy;

fn queue_of(disk: &SimDisk, at: usize) -> (u64, Arc<dyn Dir>) {
    let mut incarnations: Vec<u64> =
        disk.root().list().unwrap().iter().filter_map(|entry| names::parse_queue_dir(&entry.name)).collect();
    incarnations.sort_by_key(|&incarnation| {
        std::cmp::Reverse(disk.root().dir(&names::queue_dir(incarnation)).unwrap().list().unwrap().len())
    });
    (incarnations[at], disk.root().dir(&names::queue_dir(incarnations[at])).unwrap())
}

fn rows(disk: &SimDisk, name: &str) -> Result<Vec<Row>, InspectError> {
    let (incarnation, dir) = queue_of(disk, 0);
    let mut rows = Vec::new();
    inspect(&dir, incarnation, name, &mut |row| {
        rows.push(row);
        true
    })?;
    Ok(rows)
}

#[test]
fn a_segment_is_its_header_its_records_and_the_room_left() {
    let world = busy(1).restart();
    let rows = rows(&world.disk, "00000001.segment").unwrap();
    assert!(matches!(rows[0], Row::SegmentHeader { number: 1, previous_end: 0, capacity: 262_144, .. }));
    let records: Vec<_> = rows.iter().filter_map(|row| if let Row::Record(record) = row { Some(record) } else { None }).collect();
    assert!(records.len() > 10);
    assert!(records.iter().all(|record| record.follows == Some(true) && record.error.is_none()), "{records:?}");
    let batch = records.iter().find_map(|record| record.batch.as_ref()).unwrap();
    assert_eq!((batch.count, batch.has_ids, batch.producers.len()), (20, true, 1));
    assert!(records.iter().any(|record| record.operations.iter().any(|text| text.starts_with("cursor of group "))));
    assert!(rows[1..rows.len() - 1].iter().all(|row| matches!(row, Row::Record(_))));
    assert!(matches!(rows[rows.len() - 1], Row::NoRecord { is_zero: true, end: 262_144, .. } | Row::Record(_)));
    let json = serde_json::to_value(&rows[1]).unwrap();
    assert_eq!((json["row"].as_str(), json["position"].as_u64()), (Some("record"), Some(4096)));
}

#[test]
fn indexes_checkpoints_and_cursors_have_rows() {
    let world = busy(2).restart();
    let index = rows(&world.disk, "00000001.index").unwrap();
    assert!(matches!(index[0], Row::IndexHeader { segment: 1, partitions: 3, .. }), "{:?}", index[0]);
    assert!(index[1..].iter().all(|row| matches!(row, Row::IndexBatch { count: 20, .. })));
    let table = rows(&world.disk, "table").unwrap();
    let has =
        |kind: &str| table.iter().any(|row| matches!(row, Row::TableEntry { kind: found, value: Some(_), .. } if found == kind));
    assert!(has("queue") && has("partition") && has("group") && has("counters"));
    assert!(matches!(table.last(), Some(Row::TableEnd { torn_from: None, .. })));
    let path = world.disk.paths().into_iter().find(|path| path.ends_with(".cursor")).unwrap();
    let name = path.rsplit('/').next().unwrap();
    let slots = rows(&world.disk, name).unwrap();
    assert_eq!(slots.len(), 2);
    assert!(slots.iter().any(|slot| matches!(slot, Row::Slot { fault: None, next: Some(_), .. })), "{slots:?}");
    assert!(matches!(rows(&world.disk, "notes"), Err(InspectError::Name(_))));
}

#[test]
fn a_visitor_that_has_seen_enough_ends_the_walk() {
    let world = busy(3).restart();
    let (incarnation, dir) = queue_of(&world.disk, 0);
    for name in ["00000001.segment", "00000001.index", "table"] {
        let mut seen = 0;
        inspect(&dir, incarnation, name, &mut |_| {
            seen += 1;
            seen < 3
        })
        .unwrap();
        assert_eq!(seen, 3, "{name}");
    }
}

/// Random damage to every file: rows or an error, never a panic, and records outside the damage are still there.
#[test]
fn damage_is_a_row_and_not_the_end() {
    let world = busy(4).restart();
    let mut random = Random::new(9);
    let before = rows(&world.disk, "00000001.segment").unwrap();
    let paths: Vec<_> = world.disk.paths().into_iter().filter(|path| path.contains("queue-")).collect();
    for round in 0..300 {
        let path = &paths[random.index(paths.len())];
        let name = path.rsplit('/').next().unwrap();
        let mut bytes = world.disk.read_file(path).unwrap();
        let used = bytes.iter().rposition(|&byte| byte != 0).map_or(1, |last| last + 1);
        let (start, length) = (random.index(used), 1 + random.index(300));
        for byte in bytes.iter_mut().skip(start).take(length) {
            *byte = random.index(256) as u8;
        }
        let disk = world.disk.crash_keep_all();
        disk.write_file(path, &bytes);
        let outcome = rows(&disk, name);
        if path.ends_with("00000001.segment")
            && queue_of(&disk, 0).0 == queue_of(&world.disk, 0).0
            && path.contains(&names::queue_dir(queue_of(&disk, 0).0))
        {
            let outcome = outcome.unwrap();
            for row in &before {
                let Row::Record(record) = row else { continue };
                let is_hit = (record.position as usize) < start + length && start < (record.position + record.length) as usize;
                let is_there = outcome.iter().any(|row| matches!(row, Row::Record(found) if found.position == record.position));
                assert_eq!(is_there, !is_hit, "round {round}: record at {}", record.position);
            }
        }
    }
}
