//! Any bytes are an index or an error, and every question to one is answered.
#![no_main]

mod support;

use bytes::Bytes;
use fanlog::format::index::SealedIndex;
use libfuzzer_sys::fuzz_target;
use support::INCARNATION;

fuzz_target!(|bytes: &[u8]| {
    let mut sealed = bytes.to_vec();
    support::put(&mut sealed, 0, b"FANLOGix");
    support::put(&mut sealed, 16, &[0; 4]);
    support::put(&mut sealed, 20, &INCARNATION.to_le_bytes());
    let end = sealed.len();
    support::put_crc(&mut sealed, 80..end, 68);
    support::put_crc(&mut sealed, 0..76, 76);
    for bytes in [bytes.to_vec(), sealed] {
        let Ok(index) = SealedIndex::parse(Bytes::from(bytes), INCARNATION) else { continue };
        let _ = index.damage();
        for at in 0..index.batch_count() {
            let _ = index.batch(at).next_offset();
        }
        for (partition, run) in index.partitions() {
            assert!(run.end <= index.batch_count());
            for offset in [0, 1, u64::MAX / 2, u64::MAX] {
                let range = index.find(partition, offset);
                assert!(range.end <= index.batch_count());
                for group in 0..4 {
                    if let Some(named) = index.group(group) {
                        assert!(index.next_taken(named, range.clone()).is_none_or(|at| range.contains(&at)));
                    }
                }
            }
        }
        for hash in [0, 1, u64::MAX] {
            for id in index.ids(hash) {
                let _ = index.batch(id.batch as usize);
            }
        }
    }
});
