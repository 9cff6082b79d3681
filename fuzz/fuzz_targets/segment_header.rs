//! Any bytes are a segment header or an error.
#![no_main]

mod support;

use fanlog::format::segment::SegmentHeader;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = SegmentHeader::decode(bytes);
    let mut sealed = bytes.to_vec();
    support::put(&mut sealed, 0, b"FANLOGsg");
    support::put_crc(&mut sealed, 0..68, 68);
    if let Ok(header) = SegmentHeader::decode(&sealed) {
        assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
    }
});
