//! Attributes: typed key-value pairs that filters look at.

/// A set of attributes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attributes {}

impl Attributes {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        true
    }

    /// Encodes.
    pub fn encode(&self, _bytes: &mut Vec<u8>) {}

    /// Decodes.
    pub fn decode(_bytes: &[u8]) -> Result<Self, AttributeError> {
        Ok(Self {})
    }

    /// Bytes that count toward the message's size.
    pub fn size(&self) -> usize {
        0
    }

    /// Appends the bytes of the attributes.
    pub fn encode(&self, _out: &mut Vec<u8>) {}

    /// The attributes that are all of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, AttributeError> {
        if bytes.is_empty() { Ok(Self {}) } else { Err(AttributeError::Malformed) }
    }
}

/// A number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Number {}

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {}

/// Why an attribute is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttributeError {
    /// The bytes are no attributes.
    #[error("bytes are no attributes")]
    Malformed,
}
