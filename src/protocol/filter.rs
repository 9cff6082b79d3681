//! Trying a filter without a queue.

use crate::record::Attributes;

use super::wire::wire_type;

wire_type!(
    /// Asks whether a filter takes a message with these attributes. Fails with `BadFilter` if it does not parse.
    FilterTest {
        /// The filter.
        filter: String,
        /// The attributes.
        attributes: Attributes,
    }
);

wire_type!(
    /// The reply to a filter test.
    FilterResult {
        /// Whether it takes the message.
        is_match: bool,
    }
);
