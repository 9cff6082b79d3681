//! A message as a producer gives it: id, attributes, payload.

use bytes::Bytes;

use super::Attributes;

/// What a producer pushes. The offset and the time are given by the log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    /// The producer's own id, for deduplication and for reading progress by id; absent, the log derives one from the
    /// message's place, which costs nothing to store.
    pub transaction_id: Option<String>,
    /// What filters look at.
    pub attributes: Attributes,
    /// The content, never looked at.
    pub payload: Bytes,
}

impl Message {
    /// A message with a payload and nothing else.
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self { payload: payload.into(), ..Self::default() }
    }

    /// Bytes that count toward the size limit: payload, attributes (keys and values) and id.
    pub fn size(&self) -> usize {
        self.payload.len() + self.attributes.size() + self.transaction_id.as_ref().map_or(0, String::len)
    }
}
