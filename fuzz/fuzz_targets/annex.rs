//! Any bytes are an annex of a batch of so many messages (the first two bytes) or an error.
#![no_main]

use fanlog::record::Annex;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((count, bytes)) = bytes.split_first_chunk::<2>() else { return };
    let count = u32::from(u16::from_le_bytes(*count));
    let Ok(annex) = Annex::decode(bytes, count) else { return };
    for (group, matches) in &annex.matches {
        assert_eq!(annex.matches_of(*group), Some(matches));
        assert_eq!((0..count).filter(|&index| matches.takes(index)).count() as u32, matches.count(count));
    }
    let mut again = Vec::new();
    annex.encode(&mut again);
    assert_eq!(Annex::decode(&again, count), Ok(annex));
});
