//! Dead letters: listing, reading, replaying, deleting.

use bytes::Bytes;

use crate::model::{DeadLetter, DeadLetterQuery};
use crate::record::Attributes;

use super::wire::{wire_struct, wire_type};

wire_struct!(DeadLetter {
    id: u64,
    queue: String,
    partition: String,
    partition_id: u32,
    offset: u64,
    group: String,
    reason: String,
    delivery_count: u32,
    created_at_us: u64,
    failed_at_us: u64,
    transaction_id: String,
    attributes: Attributes,
    payload: Bytes,
});

wire_struct!(DeadLetterQuery { queue: Option<String>, group: Option<String>, limit: u32, skip: u32 });

wire_type!(
    /// Dead letters, the newest first.
    DeadLetterPage {
        /// How many the query has, over all pages.
        total: u64,
        /// The ones of this page.
        letters: Vec<DeadLetter>,
    }
);

wire_type!(
    /// One dead letter.
    DeadLetterGet {
        /// The queue.
        queue: String,
        /// Its number.
        id: u64,
    }
);

wire_type!(
    /// Pushes a dead letter's message into its partition again and removes the letter, both or neither.
    DeadLetterReplay {
        /// The queue.
        queue: String,
        /// Its number.
        id: u64,
    }
);

wire_type!(
    /// Removes a dead letter.
    DeadLetterDelete {
        /// The queue.
        queue: String,
        /// Its number.
        id: u64,
    }
);
