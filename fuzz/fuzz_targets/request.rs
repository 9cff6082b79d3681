//! The body of a request, after two bytes of operation: what decodes encodes to bytes that decode to the same.
#![no_main]

use bytes::Bytes;
use fanlog::protocol::{Frame, LENGTH_BYTES, Request};
use libfuzzer_sys::fuzz_target;

fn body(encoded: Bytes) -> Bytes {
    Frame::decode(&encoded.slice(LENGTH_BYTES..)).expect("own frames decode").body
}

fuzz_target!(|bytes: &[u8]| {
    let Some((operation, rest)) = bytes.split_first_chunk::<2>() else { return };
    let operation = u16::from_le_bytes(*operation);
    let Ok(request) = Request::decode(operation, &Bytes::copy_from_slice(rest)) else { return };
    let encoded = body(request.encode(1).into_bytes());
    let again = Request::decode(operation, &encoded).expect("own bodies decode");
    assert_eq!(body(again.encode(1).into_bytes()), encoded);
});
