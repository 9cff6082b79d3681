//! Any bytes are attributes in their one encoding or an error; any text is attributes in JSON, an argument, a number, or an error.
#![no_main]

use fanlog::record::{Attributes, Number};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(attributes) = Attributes::decode(bytes) {
        check(&attributes);
        assert_eq!(attributes.as_bytes(), bytes);
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(attributes) = Attributes::from_json(text) {
        check(&attributes);
    }
    if let Ok((key, value)) = Attributes::parse_argument(text) {
        // Only a length can still be wrong.
        let _ = Attributes::new().insert(&key, value);
    }
    if let Ok(number) = Number::parse(text) {
        assert_eq!(number.as_str(), text);
        assert!(number.compare(&number).is_eq());
    }
});

fn check(attributes: &Attributes) {
    let mut again = Attributes::new();
    for (key, value) in attributes.iter() {
        assert_eq!(attributes.get(key), Some(value));
        again.insert(key, value.to_owned()).expect("a distinct key within the limits");
    }
    assert_eq!(&again, attributes);
    assert_eq!(Attributes::decode(again.as_bytes()).as_ref(), Ok(attributes));
    assert_eq!(Attributes::from_json(&attributes.to_json()).as_ref(), Ok(attributes));
    assert_eq!(attributes.size(), attributes.iter().map(|(key, value)| key.len() + value.as_str().len()).sum::<usize>());
}
