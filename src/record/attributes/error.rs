//! Why an attribute, or a set of them, is refused.

use crate::record::NumberError;

use super::{ATTRIBUTES_MAX, KEY_BYTES_MAX, RESERVED_KEY_PREFIX, VALUE_BYTES_MAX};

/// Characters of a key that an error repeats; the rest of a long key is cut.
const KEY_CHARACTERS_SHOWN: usize = 64;

/// Why an attribute is refused. Each variant names the key it is about, cut after 64 characters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttributeError {
    /// A key has no characters.
    #[error("attribute key is empty")]
    EmptyKey,
    /// A key is over [`KEY_BYTES_MAX`].
    #[error("attribute key {key:?} is {length} bytes long, at most {KEY_BYTES_MAX} are allowed")]
    KeyTooLong {
        /// How the key starts.
        key: String,
        /// Its length in bytes.
        length: usize,
    },
    /// A value is over [`VALUE_BYTES_MAX`].
    #[error("attribute {key:?} has a value of {length} bytes, at most {VALUE_BYTES_MAX} are allowed")]
    ValueTooLong {
        /// The key.
        key: String,
        /// The value's length in bytes.
        length: usize,
    },
    /// A message has more than [`ATTRIBUTES_MAX`].
    #[error("attribute {key:?} is one too many, at most {ATTRIBUTES_MAX} are allowed in a message")]
    TooMany {
        /// The first key over the limit.
        key: String,
    },
    /// Two attributes have the same key.
    #[error("attribute {key:?} is given twice")]
    Duplicate {
        /// The key.
        key: String,
    },
    /// A number is not one, or is over its limits.
    #[error("attribute {key:?} is refused: {reason}")]
    Number {
        /// The key.
        key: String,
        /// What is wrong with the number.
        reason: NumberError,
    },
    /// A client sets a key that is the server's own.
    #[error("attribute key {key:?} is reserved: keys that begin with {RESERVED_KEY_PREFIX:?} are set by the server alone")]
    Reserved {
        /// The key.
        key: String,
    },
    /// A JSON value is neither string nor number.
    #[error("attribute {key:?} is {found}, only strings and numbers are allowed")]
    WrongType {
        /// The key.
        key: String,
        /// What it is.
        found: &'static str,
    },
    /// The text is not a JSON object.
    #[error("attributes are not a json object: {reason}")]
    NotJson {
        /// What the JSON parser says.
        reason: String,
    },
    /// A command line argument is neither `key=value` nor `key:=number`.
    #[error("attribute argument {argument:?} is neither key=value nor key:=number")]
    Argument {
        /// How the argument starts.
        argument: String,
    },
    /// Encoded attributes end inside an entry.
    #[error("encoded attributes are cut short at byte {position}")]
    CutShort {
        /// Where the unfinished entry starts.
        position: usize,
    },
    /// An encoded key is not UTF-8.
    #[error("encoded attribute key is not utf-8 at byte {position}")]
    KeyNotUtf8 {
        /// Where its entry starts.
        position: usize,
    },
    /// An encoded value is not UTF-8.
    #[error("encoded attribute {key:?} has a value that is not utf-8")]
    ValueNotUtf8 {
        /// The key.
        key: String,
    },
    /// An encoded value is of a kind that this version does not know.
    #[error("encoded attribute {key:?} has the unknown kind {kind}")]
    UnknownKind {
        /// The key.
        key: String,
        /// The kind's number.
        kind: u8,
    },
    /// Encoded keys do not ascend.
    #[error("encoded attribute {key:?} is out of order")]
    OutOfOrder {
        /// The key that stands behind a larger one.
        key: String,
    },
}

/// The key as errors show it.
pub(super) fn shown(key: &str) -> String {
    key.chars().take(KEY_CHARACTERS_SHOWN).collect()
}
