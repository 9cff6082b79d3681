//! Any bytes are a stored batch or an error, and so is what is inside.
#![no_main]

mod support;

use bytes::Bytes;
use fanlog::record::StoredBatch;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check(Bytes::copy_from_slice(bytes));
    let mut sealed = bytes.to_vec();
    let length = (sealed.len() as u32).to_le_bytes();
    support::put(&mut sealed, 0, b"FLR1");
    support::put(&mut sealed, 8, &length);
    support::put(&mut sealed, 16, &[1, 0, 128, 0]);
    support::seal_record(&mut sealed);
    check(Bytes::from(sealed));
});

fn check(bytes: Bytes) {
    let Ok(batch) = StoredBatch::parse(bytes) else { return };
    if let Ok(annex) = batch.annex() {
        assert!(annex.matches.iter().all(|(_, matches)| matches.count(batch.count()) <= batch.count()));
    }
    let Ok(messages) = batch.messages() else { return };
    assert_eq!(messages.len(), batch.count() as usize);
    assert_eq!(messages.last().map(|message| message.offset), Some(batch.batch().last_offset()));
}
