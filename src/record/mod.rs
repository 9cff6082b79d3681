//! The vocabulary and the bytes that disk and wire share: messages, batches, attributes, names.
//!
//! Pure: no I/O, no clock. Every decoder takes untrusted bytes and returns a type or an error.

mod attributes;
mod message;
mod name;
mod number;

pub(crate) use attributes::RawValue;
pub use attributes::{
    ATTRIBUTES_MAX, AttributeError, Attributes, AttributesRef, KEY_BYTES_MAX, VALUE_BYTES_MAX, Value, ValueRef,
};
pub use message::Message;
pub use name::{DEFAULT_PARTITION, NAME_BYTES_MAX, NameError, check_name};
pub use number::{Decimal, NUMBER_BYTES_MAX, NUMBER_DIGITS_MAX, NUMBER_EXPONENT_MAX, Number, NumberError, NumberRef};

/// Counts messages inside one partition, from 0. Never given twice; a reader must not rely on offsets being dense.
pub type Offset = u64;

/// The number of a partition inside its queue; names are for people, numbers for records.
pub type PartitionId = u32;

/// The number of a group inside its queue. 0 is the primary group.
pub type GroupId = u32;
