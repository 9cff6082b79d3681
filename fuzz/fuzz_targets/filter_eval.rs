//! The compiled program judges as an obviously simple interpreter does.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/support/filter_model.rs"]
mod model;

fuzz_target!(|bytes: &[u8]| model::check(&mut model::Source::new(bytes)));
