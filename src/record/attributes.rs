//! Attributes: typed key-value pairs of a message, the only thing that filters look at.
//!
//! A key is any text of 1 to 255 bytes; a value is a string or an exact decimal number that keeps the text it was given as.
//! A set lives in its encoded form (see [`AttributesRef`]), sorted by key, so a filter reads it as it lies in a batch.

mod encoded;
mod error;
mod text;

use std::fmt;

pub(crate) use encoded::RawValue;
pub use encoded::{AttributesRef, ValueRef};
pub use error::AttributeError;

use crate::codec::Put;

use super::Number;
use error::shown;

/// Most attributes of one message.
pub const ATTRIBUTES_MAX: usize = 64;

/// The longest key, in bytes of UTF-8.
pub const KEY_BYTES_MAX: usize = 255;

/// Keys that begin with this are for marks of the server's own: clients read them and cannot set them.
pub const RESERVED_KEY_PREFIX: &str = "fanlog.";

/// The longest string value, in bytes of UTF-8.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;

/// The attributes of one message: distinct keys in ascending order, each with its value.
#[derive(Clone, PartialEq, Eq, Default, Hash)]
pub struct Attributes {
    encoded: Vec<u8>,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Value {
    /// A text.
    String(String),
    /// A number with the text it was given as.
    Number(Number),
}

impl Attributes {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an attribute. A key that is there already is refused, because one of the two values would be lost; so is whatever
    /// is over a limit. A refused attribute changes nothing.
    pub fn insert(&mut self, key: &str, value: impl Into<Value>) -> Result<(), AttributeError> {
        let value = value.into();
        if key.is_empty() {
            return Err(AttributeError::EmptyKey);
        }
        if key.len() > KEY_BYTES_MAX {
            return Err(AttributeError::KeyTooLong { key: shown(key), length: key.len() });
        }
        if let Value::String(text) = &value {
            check_value(key, text)?;
        }
        let view = self.view();
        let Some(position) = view.insertion_position(key) else {
            return Err(AttributeError::Duplicate { key: shown(key) });
        };
        if view.len() == ATTRIBUTES_MAX {
            return Err(AttributeError::TooMany { key: shown(key) });
        }
        let mut entry = Vec::new();
        encoded::put_entry(&mut entry, key, &value);
        self.encoded.splice(position..position, entry);
        Ok(())
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<ValueRef<'_>> {
        self.view().get(key)
    }

    /// Keys and values, ascending by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, ValueRef<'_>)> {
        self.view().iter()
    }

    /// How many attributes there are.
    pub fn len(&self) -> usize {
        self.view().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.encoded.is_empty()
    }

    /// Bytes that count toward the message's size: keys and values in UTF-8, a number as its text.
    pub fn size(&self) -> usize {
        self.view().size()
    }

    /// The set as filters read it; costs nothing.
    pub fn view(&self) -> AttributesRef<'_> {
        AttributesRef::checked(&self.encoded)
    }

    /// The encoded form. Its length is not part of it.
    pub fn as_bytes(&self) -> &[u8] {
        &self.encoded
    }

    /// Appends the encoded form.
    pub fn encode(&self, out: &mut impl Put) {
        out.put_bytes(&self.encoded);
    }

    /// Checks and copies a whole slice of encoded attributes.
    pub fn decode(bytes: &[u8]) -> Result<Self, AttributeError> {
        AttributesRef::parse(bytes).map(AttributesRef::to_owned)
    }
}

fn check_value(key: &str, text: &str) -> Result<(), AttributeError> {
    if text.len() > VALUE_BYTES_MAX {
        return Err(AttributeError::ValueTooLong { key: shown(key), length: text.len() });
    }
    Ok(())
}

impl fmt::Debug for Attributes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(formatter)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<Number> for Value {
    fn from(number: Number) -> Self {
        Self::Number(number)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Number(value.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_come_out_sorted_and_typed() {
        let mut attributes = Attributes::new();
        attributes.insert("b", "40").unwrap();
        attributes.insert("c", "").unwrap();
        attributes.insert("a", 40).unwrap();
        attributes.insert("é ä", "ü").unwrap();
        let pairs: Vec<_> = attributes.iter().map(|(key, value)| (key, value.to_owned())).collect();
        assert_eq!(pairs, [("a", Value::from(40)), ("b", "40".into()), ("c", "".into()), ("é ä", "ü".into())]);
        assert_eq!(attributes.len(), 4);
        assert_eq!(attributes.get("b"), Some(ValueRef::String("40")));
        assert_eq!(attributes.get("B"), None);
        assert_eq!(attributes.get(""), None);
        assert_eq!(attributes.size(), 3 + 3 + 1 + 7);
        assert!(!attributes.is_empty());
        assert!(Attributes::new().is_empty());
        assert_eq!(format!("{:?}", Attributes::new()), "{}");
        assert!(format!("{attributes:?}").starts_with("{\"a\": Number("));
    }

    #[test]
    fn a_refused_attribute_names_its_key_and_changes_nothing() {
        let mut attributes = Attributes::new();
        attributes.insert("a", 1).unwrap();
        let before = attributes.clone();
        assert_eq!(attributes.insert("", 1), Err(AttributeError::EmptyKey));
        assert_eq!(attributes.insert("a", 2), Err(AttributeError::Duplicate { key: "a".to_owned() }));
        assert_eq!(attributes.insert(&"k".repeat(256), 1), Err(AttributeError::KeyTooLong { key: "k".repeat(64), length: 256 }));
        assert_eq!(
            attributes.insert("long", "x".repeat(VALUE_BYTES_MAX + 1)),
            Err(AttributeError::ValueTooLong { key: "long".to_owned(), length: VALUE_BYTES_MAX + 1 })
        );
        assert_eq!(attributes, before);
        attributes.insert(&"k".repeat(KEY_BYTES_MAX), "x".repeat(VALUE_BYTES_MAX)).unwrap();
        assert_eq!(Attributes::decode(attributes.as_bytes()), Ok(attributes));
    }

    #[test]
    fn a_message_has_at_most_64_attributes() {
        let mut attributes = Attributes::new();
        for index in 0..64 {
            attributes.insert(&format!("key{index}"), index).unwrap();
        }
        assert_eq!(attributes.insert("one more", 1), Err(AttributeError::TooMany { key: "one more".to_owned() }));
        assert_eq!(attributes.len(), 64);
        let mut bytes = Vec::new();
        attributes.encode(&mut bytes);
        assert_eq!(Attributes::decode(&bytes), Ok(attributes));
    }
}
