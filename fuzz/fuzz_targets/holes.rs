//! Any bytes are a list of holes or an error, and a list is in order and comes back as it was.
#![no_main]

mod support;

use fanlog::format::holes::{decode, encode};
use libfuzzer_sys::fuzz_target;
use support::INCARNATION;

fuzz_target!(|bytes: &[u8]| {
    let mut sealed = bytes.to_vec();
    support::put(&mut sealed, 0, b"FANLOGho");
    support::put(&mut sealed, 16, &[0; 4]);
    support::put(&mut sealed, 20, &INCARNATION.to_le_bytes());
    support::put(&mut sealed, 28, &1u32.to_le_bytes());
    let end = sealed.len();
    support::put(&mut sealed, 32, &(end.saturating_sub(48) as u32 / 12).to_le_bytes());
    support::put_crc(&mut sealed, 48.min(end)..end, 36);
    support::put_crc(&mut sealed, 0..44.min(end), 44);
    for bytes in [bytes.to_vec(), sealed] {
        let Ok(holes) = decode(&bytes, INCARNATION, 1) else { continue };
        assert!(holes.windows(2).all(|pair| pair[0].end <= pair[1].start));
        assert!(holes.iter().all(|hole| hole.blocks().end <= hole.end));
        assert_eq!(decode(&encode(INCARNATION, 1, &holes), INCARNATION, 1), Ok(holes));
    }
});
