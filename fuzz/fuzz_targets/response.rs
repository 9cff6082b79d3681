//! The body of a response, after two bytes of operation: what decodes encodes to bytes that decode to the same.
#![no_main]

use bytes::Bytes;
use fanlog::protocol::{Frame, LENGTH_BYTES, Response};
use libfuzzer_sys::fuzz_target;

fn body(encoded: Bytes) -> Bytes {
    Frame::decode(&encoded.slice(LENGTH_BYTES..)).expect("own frames decode").body
}

fuzz_target!(|bytes: &[u8]| {
    let Some((operation, rest)) = bytes.split_first_chunk::<2>() else { return };
    let operation = u16::from_le_bytes(*operation);
    let Ok(response) = Response::decode(operation, &Bytes::copy_from_slice(rest)) else { return };
    let encoded = body(response.encode(1, false).into_bytes());
    let again = Response::decode(operation, &encoded).expect("own bodies decode");
    assert_eq!(body(again.encode(1, false).into_bytes()), encoded);
});
