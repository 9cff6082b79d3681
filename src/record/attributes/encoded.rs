//! Encoded attributes and the view over them that filters read.
//!
//! A set is its entries one after the other, keys strictly ascending by bytes; the empty set is no bytes at all, and the length
//! is known to whoever embeds it. An entry:
//!
//! ```text
//! key length  u8, 1 to 255
//! key         UTF-8
//! kind        u8: 1 = string, 2 = number
//! length      varint, at most 65,536
//! value       UTF-8 of the string, or the number's text as it was given
//! ```
//!
//! Each set has one encoding: everything else is refused.

use std::fmt;

use crate::codec::{Put, Reader, UnexpectedEnd};
use crate::record::{
    NumberRef,
    number::{self, Number},
};

use super::error::shown;
use super::{ATTRIBUTES_MAX, AttributeError, Attributes, RESERVED_KEY_PREFIX, VALUE_BYTES_MAX, Value, check_value};

const KIND_STRING: u8 = 1;
const KIND_NUMBER: u8 = 2;

/// Attributes in their encoded form, checked once and then read without allocation.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct AttributesRef<'a> {
    bytes: &'a [u8],
}

/// A value of encoded attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueRef<'a> {
    /// A text.
    String(&'a str),
    /// A number.
    Number(NumberRef<'a>),
}

/// A value as the filter program reads it: bytes that are known to be valid for their kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawValue<'a> {
    pub(crate) is_number: bool,
    pub(crate) bytes: &'a [u8],
}

impl<'a> AttributesRef<'a> {
    /// Checks a whole slice: form, order, UTF-8, numbers and limits.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, AttributeError> {
        let mut previous: Option<&[u8]> = None;
        let mut reader = Reader::new(bytes);
        let mut count = 0;
        while !reader.is_empty() {
            let position = bytes.len() - reader.remaining();
            let entry = Entry::read(&mut reader).map_err(|_| AttributeError::CutShort { position })?;
            let key = std::str::from_utf8(entry.key).map_err(|_| AttributeError::KeyNotUtf8 { position })?;
            entry.check(key)?;
            match previous.map(|previous| previous.cmp(entry.key)) {
                Some(std::cmp::Ordering::Equal) => return Err(AttributeError::Duplicate { key: shown(key) }),
                Some(std::cmp::Ordering::Greater) => return Err(AttributeError::OutOfOrder { key: shown(key) }),
                _ => previous = Some(entry.key),
            }
            count += 1;
            if count > ATTRIBUTES_MAX {
                return Err(AttributeError::TooMany { key: shown(key) });
            }
        }
        Ok(Self { bytes })
    }

    /// Bytes that passed [`parse`](Self::parse) before, as those of a verified batch, or that came out of an insertion. Others make a set
    /// with wrong values or none, never a panic.
    pub(crate) fn checked(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The encoded form.
    pub fn as_bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// The value of a key.
    pub fn get(self, key: &str) -> Option<ValueRef<'a>> {
        self.find(key.as_bytes()).map(RawValue::view)
    }

    /// The value of a key, without looking at its UTF-8 again. Keys ascend, so the search ends at the first larger one.
    pub(crate) fn find(self, key: &[u8]) -> Option<RawValue<'a>> {
        let mut reader = Reader::new(self.bytes);
        while let Ok(entry) = Entry::read(&mut reader) {
            match entry.key.cmp(key) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => return Some(entry.value()),
                std::cmp::Ordering::Greater => return None,
            }
        }
        None
    }

    /// The values of many keys, which ascend, in their order: one walk for all of them.
    pub(crate) fn find_all(self, keys: &[Box<[u8]>], found: &mut Vec<Option<RawValue<'a>>>) {
        found.clear();
        let mut entries = self.entries();
        let mut entry = entries.next();
        for key in keys {
            while entry.as_ref().is_some_and(|entry| *entry.key < **key) {
                entry = entries.next();
            }
            found.push(entry.as_ref().filter(|entry| *entry.key == **key).map(Entry::value));
        }
    }

    /// Keys and values, ascending by key.
    pub fn iter(self) -> impl Iterator<Item = (&'a str, ValueRef<'a>)> {
        self.entries().map(|entry| (std::str::from_utf8(entry.key).unwrap_or_default(), entry.value().view()))
    }

    /// How many attributes there are.
    pub fn len(self) -> usize {
        self.entries().count()
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.bytes.is_empty()
    }

    /// The first key that begins with [`RESERVED_KEY_PREFIX`], if there is one. Keys ascend, so only one of them can be it.
    pub fn reserved_key(self) -> Option<&'a str> {
        let prefix = RESERVED_KEY_PREFIX.as_bytes();
        let entry = self.entries().find(|entry| entry.key >= prefix)?;
        if entry.key.starts_with(prefix) { std::str::from_utf8(entry.key).ok() } else { None }
    }

    /// Bytes that count toward the message's size: keys and values in UTF-8, a number as its text.
    pub fn size(self) -> usize {
        self.entries().map(|entry| entry.key.len() + entry.bytes.len()).sum()
    }

    /// The attributes with their own memory.
    pub fn to_owned(self) -> Attributes {
        Attributes { encoded: self.bytes.to_vec() }
    }

    /// Where a key that is not there belongs; `None` if it is there.
    pub(super) fn insertion_position(self, key: &str) -> Option<usize> {
        let mut reader = Reader::new(self.bytes);
        loop {
            let position = self.bytes.len() - reader.remaining();
            let Ok(entry) = Entry::read(&mut reader) else { return Some(position) };
            match entry.key.cmp(key.as_bytes()) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => return None,
                std::cmp::Ordering::Greater => return Some(position),
            }
        }
    }

    fn entries(self) -> impl Iterator<Item = Entry<'a>> {
        let mut reader = Reader::new(self.bytes);
        std::iter::from_fn(move || Entry::read(&mut reader).ok())
    }
}

impl fmt::Debug for AttributesRef<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_map().entries(self.iter()).finish()
    }
}

impl<'a> ValueRef<'a> {
    /// The value with its own memory.
    pub fn to_owned(self) -> Value {
        match self {
            Self::String(text) => Value::String(text.to_owned()),
            Self::Number(number) => Value::Number(number.to_owned()),
        }
    }

    /// The text of the string, or of the number as it was given.
    pub fn as_str(self) -> &'a str {
        match self {
            Self::String(text) => text,
            Self::Number(number) => number.as_str(),
        }
    }
}

impl<'a> RawValue<'a> {
    fn view(self) -> ValueRef<'a> {
        let text = std::str::from_utf8(self.bytes).unwrap_or_default();
        if self.is_number { ValueRef::Number(NumberRef::checked(text)) } else { ValueRef::String(text) }
    }
}

/// Appends an entry whose key and value have been checked.
pub(super) fn put_entry(out: &mut Vec<u8>, key: &str, value: &Value) {
    let (kind, text) = match value {
        Value::String(text) => (KIND_STRING, text.as_str()),
        Value::Number(number) => (KIND_NUMBER, Number::as_str(number)),
    };
    out.put_u8(u8::try_from(key.len()).unwrap_or(u8::MAX));
    out.put_bytes(key.as_bytes());
    out.put_u8(kind);
    out.put_sized(text.as_bytes());
}

struct Entry<'a> {
    key: &'a [u8],
    kind: u8,
    bytes: &'a [u8],
}

impl<'a> Entry<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, UnexpectedEnd> {
        let key_length = reader.u8()?;
        Ok(Self { key: reader.bytes(usize::from(key_length))?, kind: reader.u8()?, bytes: reader.sized()? })
    }

    fn check(&self, key: &str) -> Result<(), AttributeError> {
        if key.is_empty() {
            return Err(AttributeError::EmptyKey);
        }
        if self.bytes.len() > VALUE_BYTES_MAX {
            return Err(AttributeError::ValueTooLong { key: shown(key), length: self.bytes.len() });
        }
        let text = std::str::from_utf8(self.bytes).map_err(|_| AttributeError::ValueNotUtf8 { key: shown(key) })?;
        match self.kind {
            KIND_STRING => check_value(key, text),
            KIND_NUMBER => number::check(text).map_err(|reason| AttributeError::Number { key: shown(key), reason }),
            kind => Err(AttributeError::UnknownKind { key: shown(key), kind }),
        }
    }

    fn value(&self) -> RawValue<'a> {
        RawValue { is_number: self.kind == KIND_NUMBER, bytes: self.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Attributes {
        let mut attributes = Attributes::new();
        attributes.insert("region", Value::from("us")).unwrap();
        attributes.insert("age", Value::Number(Number::parse("40.0").unwrap())).unwrap();
        attributes
    }

    const GOLDEN: &[u8] = b"\x03age\x02\x0440.0\x06region\x01\x02us";

    #[test]
    fn the_bytes_are_these() {
        assert_eq!(sample().as_bytes(), GOLDEN);
        assert_eq!(AttributesRef::parse(GOLDEN).map(AttributesRef::to_owned), Ok(sample()));
        assert_eq!(Attributes::new().as_bytes(), b"");
        assert_eq!(Attributes::decode(b""), Ok(Attributes::new()));
    }

    #[test]
    fn a_reserved_key_is_found_wherever_it_stands() {
        let mut attributes = sample();
        for (key, expected) in [("fanlog", None), ("fanlog-x", None), ("fanlog.", Some("fanlog.")), ("fanlog.x", Some("fanlog."))]
        {
            attributes.insert(key, 1).unwrap();
            assert_eq!(attributes.view().reserved_key(), expected, "{key}");
        }
        assert_eq!(AttributesRef::parse(b"\x08fanlog.x\x02\x011").unwrap().reserved_key(), Some("fanlog.x"));
        assert_eq!(Attributes::new().view().reserved_key(), None);
    }

    #[test]
    fn every_shorter_input_is_refused_or_a_smaller_set() {
        for length in 1..GOLDEN.len() {
            let parsed = AttributesRef::parse(&GOLDEN[..length]);
            let position = if length < 10 { 0 } else { 10 };
            if length == 10 {
                assert_eq!(parsed.map(AttributesRef::len), Ok(1));
            } else {
                assert_eq!(parsed, Err(AttributeError::CutShort { position }), "{length}");
            }
        }
    }

    #[test]
    fn a_flipped_bit_is_refused_or_gives_another_set_with_that_encoding() {
        for index in 0..GOLDEN.len() {
            for bit in 0..8 {
                let mut bytes = GOLDEN.to_vec();
                bytes[index] ^= 1 << bit;
                if let Ok(attributes) = Attributes::decode(&bytes) {
                    assert_eq!(attributes.as_bytes(), bytes);
                    assert_ne!(attributes, sample());
                    let mut again = Attributes::new();
                    for (key, value) in attributes.iter() {
                        again.insert(key, value.to_owned()).unwrap();
                    }
                    assert_eq!(again, attributes);
                }
            }
        }
    }

    #[test]
    fn what_is_not_canonical_is_refused() {
        let key = |key: &str| key.to_owned();
        for (bytes, expected) in [
            (&b"\x00\x01\x01x"[..], AttributeError::EmptyKey),
            (b"\x01a\x01\x00\x01a\x01\x00", AttributeError::Duplicate { key: key("a") }),
            (b"\x01b\x01\x00\x01a\x01\x00", AttributeError::OutOfOrder { key: key("a") }),
            (b"\x01a\x03\x00", AttributeError::UnknownKind { key: key("a"), kind: 3 }),
            (b"\x01a\x00\x00", AttributeError::UnknownKind { key: key("a"), kind: 0 }),
            (b"\x01\xff\x01\x00", AttributeError::KeyNotUtf8 { position: 0 }),
            (b"\x01a\x01\x01\xff", AttributeError::ValueNotUtf8 { key: key("a") }),
            (b"\x01a\x02\x00", AttributeError::Number { key: key("a"), reason: crate::record::NumberError::Empty }),
            (b"\x01a\x02\x03NaN", AttributeError::Number { key: key("a"), reason: crate::record::NumberError::NotFinite }),
            (b"\x01a\x01\x80\x00", AttributeError::CutShort { position: 0 }),
        ] {
            assert_eq!(Attributes::decode(bytes), Err(expected), "{bytes:?}");
        }
    }

    #[test]
    fn the_limits_hold_for_bytes_too() {
        let mut bytes = b"\x01a\x01".to_vec();
        bytes.put_sized(&vec![b'x'; VALUE_BYTES_MAX + 1]);
        let length = VALUE_BYTES_MAX + 1;
        assert_eq!(Attributes::decode(&bytes), Err(AttributeError::ValueTooLong { key: "a".to_owned(), length }));
        let bytes: Vec<u8> = (b'0'..).take(ATTRIBUTES_MAX + 1).flat_map(|key| [1, key, 1, 0]).collect();
        assert_eq!(Attributes::decode(&bytes), Err(AttributeError::TooMany { key: "p".to_owned() }));
        assert_eq!(Attributes::decode(&bytes[..ATTRIBUTES_MAX * 4]).map(|attributes| attributes.len()), Ok(ATTRIBUTES_MAX));
    }
}
