//! Any bytes in the place of a table: opening never panics, and a table that takes an append has it when it is opened again.
#![no_main]

mod support;

use std::sync::Arc;

use fanlog::storage::disk::Dir;
use fanlog::storage::disk::sim::SimDisk;
use fanlog::storage::table::{Entry, Key, Table};
use libfuzzer_sys::fuzz_target;
use support::INCARNATION;

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    let mut sealed = bytes.to_vec();
    support::put(&mut sealed, 0, b"FANLOGKT\x01\0");
    support::put(&mut sealed, 16, &[0; 4]);
    support::put(&mut sealed, 24, &INCARNATION.to_le_bytes());
    support::put_crc(&mut sealed, 0..60, 60);
    // The blocks that stand one behind the other, as far as their lengths lead.
    let mut position = 64;
    let mut sequence = 1u64;
    while sealed.get(position..).is_some_and(|rest| rest.starts_with(b"KTBK")) {
        let length = support::number(&sealed, position + 40) as usize;
        support::put(&mut sealed, position + 8, &INCARNATION.to_le_bytes());
        support::put(&mut sealed, position + 16, &(position as u64).to_le_bytes());
        support::put(&mut sealed, position + 24, &sequence.to_le_bytes());
        support::put_crc(&mut sealed, position + 56..position.saturating_add(56).saturating_add(length), position + 48);
        support::put_crc(&mut sealed, position + 8..position + 56, position + 4);
        position = position.saturating_add(56).saturating_add(length);
        sequence += 1;
    }
    check(&sealed);
});

fn check(bytes: &[u8]) {
    let disk = SimDisk::new(1);
    disk.write_file("table", bytes);
    let dir: Arc<dyn Dir> = disk.root();
    let mut entries = 0u64;
    let Ok((mut table, report)) = Table::open(&dir, "table", INCARNATION, |_| entries += 1) else { return };
    assert_eq!((report.entries, report.lsn), (entries, table.lsn()));
    let key = Key { kind: 1, a: 2, b: 3 };
    let entry = Entry { key, value: Some(b"new") };
    if table.append(9, [entry]).is_err() {
        assert!(!report.damage.is_empty());
        table.rewrite(9, [entry]).expect("a damaged table is written anew");
    }
    drop(table);
    let mut last = None;
    let (table, report) = Table::open(&dir, "table", INCARNATION, |entry| {
        if entry.key == key {
            last = entry.value.map(<[u8]>::to_vec);
        }
    })
    .expect("what was written can be read");
    assert_eq!((table.lsn(), last.as_deref()), (9, Some(b"new".as_slice())));
    assert!(report.damage.is_empty() && report.torn_tail.is_none());
}
