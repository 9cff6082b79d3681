//! What passes the check of a pushed batch can be read by everyone: the first bytes are its sizes, the rest is its payload.
#![no_main]

mod support;

use bytes::Bytes;
use fanlog::model::PackedBatch;
use fanlog::record::{Attributes, IndexWalk};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let payload = Bytes::copy_from_slice(bytes.get(13..).unwrap_or_default());
    let packed = PackedBatch {
        count: support::number(bytes, 0),
        index_length: support::number(bytes, 4),
        uncompressed_length: support::number(bytes, 8),
        codec: bytes.get(12).copied().unwrap_or_default(),
        payload_crc: crc32fast::hash(&payload),
        payload,
    };
    let Ok(block) = packed.verify() else { return };
    assert_eq!(block.len(), packed.uncompressed_length as usize);
    let mut bodies = 0;
    let entries: Vec<_> = IndexWalk::new(&block, packed.count, packed.index_length)
        .expect("verified")
        .map(|entry| entry.expect("verified"))
        .collect();
    for entry in &entries {
        assert!(entry.attributes.is_empty() || Attributes::decode(entry.attributes).is_ok());
        bodies += block.slice(entry.body_start..entry.body_start + entry.body_length).len();
    }
    assert_eq!((entries.len(), bodies), (packed.count as usize, block.len() - packed.index_length as usize));
});
