//! Any text is a filter or an error that points into the text.
#![no_main]

use fanlog::filter::{FILTER_CHARACTERS_MAX, Filter};
use fanlog::record::Attributes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match Filter::parse(text) {
        Ok(filter) => {
            let attributes = Attributes::from_json(r#"{"a":1,"b":"x"}"#).expect("valid attributes");
            for attributes in [attributes.view(), Attributes::new().view()] {
                assert_eq!(filter.matches(attributes), filter.why(attributes).matches);
            }
            assert!(!filter.outline().is_empty());
        }
        Err(error) => {
            assert!(error.position <= text.chars().count().min(FILTER_CHARACTERS_MAX));
            assert_eq!(error.caret(text).lines().count(), 2);
            assert!(!error.to_string().is_empty());
        }
    }
});
