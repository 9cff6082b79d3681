//! Any bytes are operations or an error, and operations keep their meaning when they are written again.
#![no_main]

use fanlog::format::control::ControlOp;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(operations) = ControlOp::decode_all(bytes) else { return };
    let mut again = Vec::new();
    for operation in &operations {
        operation.encode(&mut again);
        let _ = operation.key();
    }
    assert_eq!(ControlOp::decode_all(&again), Ok(operations));
});
