//! A stream of frames, read through the connection: it ends in a clean close or an error, and never panics.
#![no_main]

use fanlog::net::{FrameReader, ReadPace};
use fanlog::protocol::{FrameKind, Request, Response};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime starts");
    runtime.block_on(async {
        let mut reader = FrameReader::new(bytes, ReadPace::default());
        while let Ok(Some(frame)) = reader.read().await {
            match frame.kind {
                FrameKind::Request => drop(Request::decode(frame.operation, &frame.body)),
                _ => drop(Response::decode(frame.operation, &frame.body)),
            }
        }
    });
});
