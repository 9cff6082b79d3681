//! The vocabulary and the bytes that disk and wire share: messages, batches, attributes, names.
//!
//! Pure: no I/O, no clock. Every decoder takes untrusted bytes and returns a type or an error.

mod annex;
mod attributes;
mod block;
mod derived_id;
mod header;
mod message;
mod name;
mod number;
mod stored;

pub use annex::{Annex, Matches, ProducerMark};
pub(crate) use attributes::RawValue;
pub use attributes::{
    ATTRIBUTES_MAX, AttributeError, Attributes, AttributesRef, KEY_BYTES_MAX, RESERVED_KEY_PREFIX, VALUE_BYTES_MAX, Value,
    ValueRef,
};
pub use block::{
    BLOCK_BYTES_MAX, BatchBuilder, BlockError, CODEC_PLAIN, CODEC_ZSTD, IndexEntry, IndexWalk, TRANSACTION_ID_BYTES_MAX,
};
pub use derived_id::{DerivedId, derived_id, parse_derived_id};
pub use header::{
    BATCH_HEADER_BYTES, BatchHeader, FLAG_TRANSACTION_GOES_ON, HeaderError, RECORD_ALIGNMENT, RECORD_BYTES_MAX,
    RECORD_HEADER_BYTES, RECORD_MAGIC, RecordHeader, RecordKind, crc_of_two, padded,
};
pub use message::Message;
pub use name::{DEFAULT_PARTITION, NAME_BYTES_MAX, NameError, check_name};
pub use number::{Decimal, NUMBER_BYTES_MAX, NUMBER_DIGITS_MAX, NUMBER_EXPONENT_MAX, Number, NumberError, NumberRef};
pub use stored::{BatchError, OpenBatch, StoredBatch};

/// Counts messages inside one partition, from 0. Never given twice; a reader must not rely on offsets being dense.
pub type Offset = u64;

/// The number of a partition inside its queue; names are for people, numbers for records.
pub type PartitionId = u32;

/// The number of a group inside its queue. 0 is the primary group.
pub type GroupId = u32;
