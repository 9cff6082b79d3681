//! Batches as they come from the server, to messages.

use crate::model::{BatchSlice, Claim, StoredMessage};
use crate::record::StoredBatch;

use super::{Error, ErrorKind, Result};

/// The messages of some batches, in order of offset. Checksums are verified here: what a disk or a network damaged never looks
/// like a message.
pub fn messages_of(batches: Vec<BatchSlice>) -> Result<Vec<StoredMessage>> {
    let mut messages = Vec::new();
    for batch in batches {
        match batch {
            BatchSlice::Messages(some) => messages.extend(some),
            BatchSlice::Whole(record) => {
                let stored = StoredBatch::parse(record).and_then(|batch| batch.messages());
                messages.extend(stored.map_err(|error| bad_batch(error.to_string()))?);
            }
        }
    }
    if messages.is_sorted_by(|first, second| first.offset < second.offset) {
        Ok(messages)
    } else {
        Err(bad_batch("offsets are not in order".to_owned()))
    }
}

/// The messages of a claim, in order of offset. One that came in a whole batch, which says nothing of deliveries, has the claim's count.
pub fn messages_of_claim(claim: &Claim) -> Result<Vec<StoredMessage>> {
    let mut messages = messages_of(claim.batches.clone())?;
    for message in messages.iter_mut().filter(|message| message.delivery_count == 0) {
        message.delivery_count = claim.delivery_count.max(1);
    }
    Ok(messages)
}

fn bad_batch(reason: String) -> Error {
    Error::new(ErrorKind::Protocol, format!("server sent a batch that does not decode: {reason}"))
}
