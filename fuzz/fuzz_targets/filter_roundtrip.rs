//! Formatting a parsed filter and parsing it again gives the same filter and the same text.
#![no_main]

use fanlog::filter::{FILTER_CHARACTERS_MAX, Filter};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(filter) = Filter::parse(text) else { return };
    let canonical = filter.to_string();
    assert!(canonical.chars().count() <= FILTER_CHARACTERS_MAX, "{text:?} became {canonical:?}");
    let again = Filter::parse(&canonical).expect("canonical text parses");
    assert_eq!(again, filter);
    assert_eq!(again.to_string(), canonical);
});
