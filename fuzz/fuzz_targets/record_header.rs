//! Any bytes are a record header or an error; one that decodes says nothing that its reader could stumble over.
#![no_main]

mod support;

use fanlog::record::{RECORD_MAGIC, RecordHeader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    let mut sealed = bytes.to_vec();
    support::put(&mut sealed, 0, &RECORD_MAGIC.to_le_bytes());
    let header = if sealed.get(16) == Some(&1) { 128 } else { 64 };
    support::put_crc(&mut sealed, 8..header, 4);
    check(&sealed);
});

fn check(bytes: &[u8]) {
    let Ok((header, batch, _)) = RecordHeader::decode(bytes) else { return };
    assert_eq!(header.body_length() + header.header_length(), header.length as usize);
    let again = match batch {
        Some(batch) => {
            assert!(batch.last_offset() >= batch.base_offset);
            RecordHeader::decode(&header.encode_batch(&batch).0)
        }
        None => RecordHeader::decode(&header.encode().0),
    };
    assert_eq!(again.map(|(header, batch, _)| (header, batch)), Ok((header, batch)));
}
