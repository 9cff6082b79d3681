//! Attributes as people and programs write them: JSON, and arguments of the command line.
//!
//! A JSON string is a string and a JSON number is a number with its digits untouched: numbers are taken as raw JSON text and
//! never pass through `f64`. Reading and writing therefore works with `serde_json` only, and not through `#[serde(flatten)]` or
//! untagged enums, which lose the raw text.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde::ser::{Error as _, Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;

use crate::record::Number;

use super::error::shown;
use super::{AttributeError, Attributes, Value, ValueRef};

impl Attributes {
    /// Reads a JSON object whose values are strings and numbers. A key that occurs twice is refused.
    pub fn from_json(text: &str) -> Result<Self, AttributeError> {
        serde_json::from_str::<RawPairs>(text)
            .map_err(|error| AttributeError::NotJson { reason: error.to_string() })
            .and_then(Self::try_from)
    }

    /// Writes a JSON object, keys ascending, numbers as they were given.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|error| unreachable!("attributes are valid json: {error}"))
    }

    /// Reads an argument of the command line: `key=value` is a string, `key:=number` is a number. The first `=` divides.
    pub fn parse_argument(argument: &str) -> Result<(String, Value), AttributeError> {
        let Some((left, right)) = argument.split_once('=') else {
            return Err(AttributeError::Argument { argument: shown(argument) });
        };
        let (key, value) = match left.strip_suffix(':') {
            Some(key) => {
                let reason = |reason| AttributeError::Number { key: shown(key), reason };
                (key, Value::Number(Number::parse(right).map_err(reason)?))
            }
            None => (left, Value::String(right.to_owned())),
        };
        if key.is_empty() {
            return Err(AttributeError::EmptyKey);
        }
        Ok((key.to_owned(), value))
    }
}

/// The pairs of a JSON object before anything is believed about them.
struct RawPairs(Vec<(String, Box<RawValue>)>);

impl TryFrom<RawPairs> for Attributes {
    type Error = AttributeError;

    fn try_from(pairs: RawPairs) -> Result<Self, AttributeError> {
        let mut attributes = Self::new();
        for (key, raw) in pairs.0 {
            let value = value_of(&key, raw.get())?;
            attributes.insert(&key, value)?;
        }
        Ok(attributes)
    }
}

/// The value that a piece of valid JSON stands for.
fn value_of(key: &str, json: &str) -> Result<Value, AttributeError> {
    let found = match json.as_bytes().first() {
        Some(b'"') => {
            let text = serde_json::from_str(json).map_err(|error| AttributeError::NotJson { reason: error.to_string() })?;
            return Ok(Value::String(text));
        }
        Some(b'-' | b'0'..=b'9') => {
            let number = Number::parse(json).map_err(|reason| AttributeError::Number { key: shown(key), reason })?;
            return Ok(Value::Number(number));
        }
        Some(b't' | b'f') => "a boolean",
        Some(b'[') => "an array",
        Some(b'{') => "an object",
        _ => "null",
    };
    Err(AttributeError::WrongType { key: shown(key), found })
}

impl<'de> Deserialize<'de> for RawPairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = RawPairs;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object of attributes")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawPairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(RawPairs(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

impl<'de> Deserialize<'de> for Attributes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        RawPairs::deserialize(deserializer)?.try_into().map_err(D::Error::custom)
    }
}

impl Serialize for Attributes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in self.iter() {
            match value {
                ValueRef::String(text) => map.serialize_entry(key, text)?,
                ValueRef::Number(number) => {
                    let raw = RawValue::from_string(number.as_str().to_owned()).map_err(S::Error::custom)?;
                    map.serialize_entry(key, &raw)?;
                }
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::NumberError;

    #[test]
    fn json_keeps_types_and_digits() {
        let text =
            r#"{"age":40.00,"big":12345678901234567890123456789012345678,"exp":1E+3,"name":"B\"ob\n","neg":-0,"zip":"01234"}"#;
        let attributes = Attributes::from_json(text).unwrap();
        assert_eq!(attributes.get("zip"), Some(ValueRef::String("01234")));
        assert_eq!(attributes.get("age").map(ValueRef::as_str), Some("40.00"));
        assert_eq!(attributes.get("name"), Some(ValueRef::String("B\"ob\n")));
        assert_eq!(attributes.to_json(), text);
        assert_eq!(serde_json::from_str::<Attributes>(text).unwrap(), attributes);
        assert_eq!(serde_json::from_reader::<_, Attributes>(text.as_bytes()).unwrap(), attributes);
        assert_eq!(Attributes::from_json(" { } "), Ok(Attributes::new()));
        assert_eq!(Attributes::new().to_json(), "{}");
    }

    #[test]
    fn json_that_is_no_set_of_attributes_is_refused() {
        let wrong = |found| Err(AttributeError::WrongType { key: "a".to_owned(), found });
        assert_eq!(Attributes::from_json(r#"{"a":true}"#), wrong("a boolean"));
        assert_eq!(Attributes::from_json(r#"{"a": null}"#), wrong("null"));
        assert_eq!(Attributes::from_json(r#"{"a": [1]}"#), wrong("an array"));
        assert_eq!(Attributes::from_json(r#"{"a":{"b":1}}"#), wrong("an object"));
        assert_eq!(Attributes::from_json(r#"{"a":1,"a":1}"#), Err(AttributeError::Duplicate { key: "a".to_owned() }));
        assert_eq!(Attributes::from_json(r#"{"":1}"#), Err(AttributeError::EmptyKey));
        let reason = NumberError::ExponentTooLarge;
        assert_eq!(Attributes::from_json(r#"{"a":1e99999}"#), Err(AttributeError::Number { key: "a".to_owned(), reason }));
        let deep = format!(r#"{{"a":{}1{}}}"#, "[".repeat(100), "]".repeat(100));
        assert_eq!(Attributes::from_json(&deep), wrong("an array"));
        for text in ["", "[]", "1", r#"{"a":NaN}"#, r#"{"a":1} x"#, r#"{"a":.5}"#, r#"{"a":01}"#, r#"{"a":"\ud800"}"#] {
            assert!(matches!(Attributes::from_json(text), Err(AttributeError::NotJson { .. })), "{text}");
        }
        let error = serde_json::from_str::<Attributes>(r#"{"a":false}"#).unwrap_err();
        assert!(error.to_string().contains("attribute \"a\" is a boolean"), "{error}");
    }

    #[test]
    fn arguments_say_their_type() {
        let pair = |key: &str, value: Value| Ok((key.to_owned(), value));
        let number = |text: &str| Value::Number(Number::parse(text).unwrap());
        assert_eq!(Attributes::parse_argument("region=us"), pair("region", "us".into()));
        assert_eq!(Attributes::parse_argument("age:=40.0"), pair("age", number("40.0")));
        assert_eq!(Attributes::parse_argument("age=40"), pair("age", "40".into()));
        assert_eq!(Attributes::parse_argument("a=b:=c=d"), pair("a", "b:=c=d".into()));
        assert_eq!(Attributes::parse_argument("empty="), pair("empty", "".into()));
        assert_eq!(Attributes::parse_argument("a:b= x "), pair("a:b", " x ".into()));
        assert_eq!(Attributes::parse_argument("=x"), Err(AttributeError::EmptyKey));
        assert_eq!(Attributes::parse_argument(":=1"), Err(AttributeError::EmptyKey));
        assert_eq!(Attributes::parse_argument("age"), Err(AttributeError::Argument { argument: "age".to_owned() }));
        let reason = NumberError::NotFinite;
        assert_eq!(Attributes::parse_argument("a:=inf"), Err(AttributeError::Number { key: "a".to_owned(), reason }));
    }
}
