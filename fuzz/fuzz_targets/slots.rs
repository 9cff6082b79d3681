//! Any bytes in the place of a cursor file: opening never panics, and a file that takes a write has it when it is opened again.
#![no_main]

mod support;

use std::sync::Arc;

use fanlog::storage::disk::Dir;
use fanlog::storage::disk::sim::SimDisk;
use fanlog::storage::slots::{SlotIdentity, Slots};
use libfuzzer_sys::fuzz_target;
use support::INCARNATION;

const IDENTITY: SlotIdentity = SlotIdentity { incarnation: INCARNATION, partition: 1, group: 2 };

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    let mut sealed = bytes.to_vec();
    let size = support::number(&sealed, 48) as usize;
    for (index, start) in [(0u16, 0), (1, size)] {
        let Some(slot) = sealed.get_mut(start..) else { continue };
        support::put(slot, 0, b"FLCS");
        support::put(slot, 8, &[1, 0, 0, 0, 0, 0]);
        support::put(slot, 14, &index.to_le_bytes());
        support::put(slot, 16, &INCARNATION.to_le_bytes());
        support::put(slot, 24, &[1, 0, 0, 0, 2, 0, 0, 0]);
        support::put_crc(slot, 8..size, 4);
    }
    check(&sealed);
});

fn check(bytes: &[u8]) {
    let disk = SimDisk::new(1);
    disk.write_file("cursor", bytes);
    let dir: Arc<dyn Dir> = disk.root();
    let read = Slots::read(dir.as_ref(), "cursor", IDENTITY);
    let _ = Slots::read_both(dir.as_ref(), "cursor", IDENTITY);
    let Ok((mut slots, value, _)) = Slots::open(&dir, "cursor", IDENTITY) else { return };
    assert_eq!(read.map(|read| read.0), Ok(value.clone()));
    slots.write(9, b"new").expect("an open cursor file takes a write");
    drop(slots);
    let (again, _) = Slots::read(dir.as_ref(), "cursor", IDENTITY).expect("what was written can be read");
    assert_eq!((again.lsn, again.body.as_slice()), (9, b"new".as_slice()));
    assert!(again.sequence > value.sequence);
}
