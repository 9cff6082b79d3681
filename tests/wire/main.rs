//! The bytes of the protocol, operation by operation: known bytes, round trips, and what damaged bytes do.
//!
//! `BLESS=1 cargo test --test wire` writes `tests/wire/vectors.json` anew; a change to it is a change of the protocol.

mod samples;

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use fanlog::model::ErrorCode;
use fanlog::protocol::{Chunks, Frame, FrameKind, LENGTH_BYTES, Operation, ProtocolError, Request, Response};

/// A frame of each operation, by name.
fn frames() -> Vec<(String, Bytes)> {
    let requests = samples::requests().into_iter().map(|(name, request)| (format!("request {name}"), request.encode(7)));
    let responses =
        samples::responses().into_iter().map(|(name, response, more)| (format!("response {name}"), response.encode(7, more)));
    requests.chain(responses).map(|(name, frame)| (name, frame.into_bytes())).collect()
}

/// Decodes a whole frame and encodes it again.
fn again(bytes: &Bytes) -> Result<Chunks, ProtocolError> {
    let length = bytes.first_chunk::<LENGTH_BYTES>().ok_or(ProtocolError::UnexpectedEnd)?;
    let length = Frame::check_length(*length, 1 << 20)?;
    if length != bytes.len() - LENGTH_BYTES {
        return Err(ProtocolError::UnexpectedEnd);
    }
    let frame = Frame::decode(&bytes.slice(LENGTH_BYTES..))?;
    match frame.kind {
        FrameKind::Request => Ok(Request::decode(frame.operation, &frame.body)?.encode(frame.correlation_id)),
        FrameKind::Response { more } => Ok(Response::decode(frame.operation, &frame.body)?.encode(frame.correlation_id, more)),
        FrameKind::Error => Err(ProtocolError::UnknownOperation { number: frame.operation }),
    }
}

#[test]
fn every_operation_has_a_sample() {
    let requests: Vec<_> = samples::requests().iter().map(|(_, request)| request.operation()).collect();
    let responses: Vec<_> = samples::responses().iter().map(|(_, response, _)| response.operation()).collect();
    for operation in Operation::ALL {
        assert!(responses.contains(operation), "no response sample of {}", operation.name());
        let is_notice = matches!(operation.number(), 0x0310..=0x0313);
        assert!(is_notice || requests.contains(operation), "no request sample of {}", operation.name());
    }
}

#[test]
fn the_bytes_are_those_written_down() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wire/vectors.json");
    let hex = |bytes: &Bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let actual: BTreeMap<String, String> = frames().iter().map(|(name, bytes)| (name.clone(), hex(bytes))).collect();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, serde_json::to_string_pretty(&actual).unwrap() + "\n").unwrap();
    }
    let expected: BTreeMap<String, String> = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(actual.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, bytes) in &actual {
        assert_eq!(bytes, &expected[name], "{name}");
    }
}

#[test]
fn the_document_names_every_operation_and_error_and_its_example_is_true() {
    let document = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("protocol.md")).unwrap();
    for operation in Operation::ALL {
        let row = format!("| 0x{:04x} | {} |", operation.number(), operation.name());
        assert!(document.contains(&row), "no row {row}");
    }
    for code in ErrorCode::ALL {
        let retryable = if code.is_retryable() { "yes" } else { "no" };
        let row = format!("| {} | `{code:?}` | {retryable} |", code.number());
        assert!(document.contains(&row), "no row {row}");
    }
    let example = document.split_once("## A worked example").unwrap().1;
    let mut examples = example.split("```text\n").skip(1).map(|block| bytes_of(block.split_once("```").unwrap().0));
    let frame = |wanted: &str| frames().into_iter().find(|(name, _)| name == wanted).unwrap().1;
    assert_eq!(examples.next().unwrap(), frame("request push of messages"));
    assert_eq!(examples.next().unwrap(), frame("response push, all stored"));
}

/// The bytes at the front of each line.
fn bytes_of(block: &str) -> Vec<u8> {
    let is_byte = |word: &&str| word.len() == 2 && u8::from_str_radix(word, 16).is_ok();
    let words = block.lines().flat_map(|line| line.split_whitespace().take_while(is_byte));
    words.map(|word| u8::from_str_radix(word, 16).unwrap()).collect()
}

#[test]
fn every_frame_round_trips() {
    for (name, bytes) in frames() {
        assert_eq!(again(&bytes).map(Chunks::into_bytes), Ok(bytes), "{name}");
    }
}

#[test]
fn every_shorter_body_and_every_longer_one_is_refused() {
    for (name, bytes) in frames() {
        let frame = Frame::decode(&bytes.slice(LENGTH_BYTES..)).unwrap();
        let decode = |body: &Bytes| match frame.kind {
            FrameKind::Request => Request::decode(frame.operation, body).map(|_| ()),
            _ => Response::decode(frame.operation, body).map(|_| ()),
        };
        for cut in 0..frame.body.len() {
            assert!(decode(&frame.body.slice(..cut)).is_err(), "{name} cut to {cut} bytes");
        }
        let longer = Bytes::from([&frame.body[..], &[0]].concat());
        assert_eq!(decode(&longer), Err(ProtocolError::LeftOver { count: 1 }), "{name}");
    }
}

#[test]
fn damaged_bytes_never_panic_and_what_they_decode_to_is_stable() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed);
    println!("SEED={seed}");
    let mut random = SplitMix(seed);
    for (name, bytes) in frames() {
        for _ in 0..500 {
            let mut damaged = bytes.to_vec();
            for _ in 0..=random.below(3) {
                let position = random.below(damaged.len());
                damaged[position] ^= 1 << random.below(8);
            }
            let damaged = Bytes::from(damaged);
            if let Ok(encoded) = again(&damaged) {
                let encoded = encoded.into_bytes();
                assert_eq!(again(&encoded).map(Chunks::into_bytes), Ok(encoded), "{name}");
            }
        }
    }
}

#[test]
fn random_bodies_of_every_operation_never_panic() {
    let mut random = SplitMix(1);
    for operation in Operation::ALL {
        for _ in 0..200 {
            let length = random.below(200);
            let body: Bytes = (0..length).map(|_| if random.below(3) == 0 { random.below(256) as u8 } else { 0 }).collect();
            let _ = Request::decode(operation.number(), &body);
            let _ = Response::decode(operation.number(), &body);
        }
    }
}

struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((value ^ (value >> 31)) % bound as u64) as usize
    }
}
