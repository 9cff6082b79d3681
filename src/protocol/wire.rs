//! How values lie in a frame's body: one trait, the basic types, and the macros that spell out a type's fields once.
//!
//! All integers are little-endian. The table of basic types stands in `protocol.md`, section "Basic types".

use bytes::Bytes;

use crate::codec::{Put, Reader};
use crate::record::Attributes;

use super::{Chunks, ProtocolError};

/// The most items that the lists of one frame may have, all together. Items may be larger in memory than on the wire, so this
/// bounds what a frame can make its reader allocate.
pub const FRAME_ITEMS_MAX: usize = 1 << 18;

/// A value with one place in a frame's body.
pub trait Wire: Sized {
    /// The fewest bytes that a value takes: what a list's count is checked against before anything is allocated.
    const BYTES_MIN: usize;

    /// Appends the value.
    fn encode(&self, out: &mut Chunks);

    /// Takes the value from the front.
    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError>;

    /// The value as bytes.
    fn to_chunks(&self) -> Chunks {
        let mut out = Chunks::new();
        self.encode(&mut out);
        out
    }

    /// The value that is all of `body`; bytes left over are an error. Payloads share the memory of `body`.
    fn from_body(body: &Bytes) -> Result<Self, ProtocolError> {
        let mut input = Input::new(body);
        let value = Self::decode(&mut input)?;
        input.finish()?;
        Ok(value)
    }
}

/// A body that is being read.
#[derive(Debug)]
pub struct Input<'a> {
    body: &'a Bytes,
    reader: Reader<'a>,
    items_left: usize,
}

impl<'a> Input<'a> {
    /// At the first byte of `body`.
    pub fn new(body: &'a Bytes) -> Self {
        Self { body, reader: Reader::new(body), items_left: FRAME_ITEMS_MAX }
    }

    /// Refuses bytes that no field took.
    pub fn finish(&self) -> Result<(), ProtocolError> {
        match self.reader.remaining() {
            0 => Ok(()),
            count => Err(ProtocolError::LeftOver { count }),
        }
    }

    /// The next `N` bytes by value.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        Ok(self.reader.array()?)
    }

    /// A length (u32) and that many bytes.
    fn sized(&mut self) -> Result<&'a [u8], ProtocolError> {
        let length = self.reader.u32()? as usize;
        Ok(self.reader.bytes(length)?)
    }

    /// A count (u32) of items that take at least `item_bytes_min` bytes each.
    fn count(&mut self, item_bytes_min: usize) -> Result<usize, ProtocolError> {
        let count = self.reader.u32()? as usize;
        if count > self.reader.remaining() / item_bytes_min.max(1) {
            return Err(ProtocolError::UnexpectedEnd);
        }
        self.items_left = self.items_left.checked_sub(count).ok_or(ProtocolError::TooManyItems { limit: FRAME_ITEMS_MAX })?;
        Ok(count)
    }
}

macro_rules! wire_integer {
    ($($type:ty),*) => {$(
        impl Wire for $type {
            const BYTES_MIN: usize = size_of::<$type>();

            fn encode(&self, out: &mut Chunks) {
                out.put_bytes(&self.to_le_bytes());
            }

            fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
                input.array().map(<$type>::from_le_bytes)
            }
        }
    )*};
}

wire_integer!(u8, u16, u32, u64, i64);

impl Wire for bool {
    const BYTES_MIN: usize = 1;

    fn encode(&self, out: &mut Chunks) {
        u8::from(*self).encode(out);
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        match u8::decode(input)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(bad_value("a flag", value)),
        }
    }
}

impl Wire for Bytes {
    const BYTES_MIN: usize = 4;

    fn encode(&self, out: &mut Chunks) {
        put_length(self.len(), out);
        out.put_shared(self);
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        let slice = input.sized()?;
        Ok(input.body.slice_ref(slice))
    }
}

impl Wire for String {
    const BYTES_MIN: usize = 4;

    fn encode(&self, out: &mut Chunks) {
        put_length(self.len(), out);
        out.put_bytes(self.as_bytes());
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        let text = std::str::from_utf8(input.sized()?).map_err(|_| ProtocolError::NotUtf8)?;
        Ok(text.to_owned())
    }
}

/// Attributes: a length, and the bytes that `record` gives them; none at all are no bytes.
impl Wire for Attributes {
    const BYTES_MIN: usize = 4;

    fn encode(&self, out: &mut Chunks) {
        put_length(self.as_bytes().len(), out);
        out.put_bytes(self.as_bytes());
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        Attributes::decode(input.sized()?).map_err(|error| ProtocolError::BadAttributes { reason: error.to_string() })
    }
}

impl<T: Wire> Wire for Option<T> {
    const BYTES_MIN: usize = 1;

    fn encode(&self, out: &mut Chunks) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        Ok(if bool::decode(input)? { Some(T::decode(input)?) } else { None })
    }
}

impl<T: Wire> Wire for Vec<T> {
    const BYTES_MIN: usize = 4;

    fn encode(&self, out: &mut Chunks) {
        put_length(self.len(), out);
        self.iter().for_each(|item| item.encode(out));
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        let count = input.count(T::BYTES_MIN)?;
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(T::decode(input)?);
        }
        Ok(items)
    }
}

impl<A: Wire, B: Wire, C: Wire> Wire for (A, B, C) {
    const BYTES_MIN: usize = A::BYTES_MIN + B::BYTES_MIN + C::BYTES_MIN;

    fn encode(&self, out: &mut Chunks) {
        self.0.encode(out);
        self.1.encode(out);
        self.2.encode(out);
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        Ok((A::decode(input)?, B::decode(input)?, C::decode(input)?))
    }
}

/// The error for a number that means nothing in its field.
pub fn bad_value(what: &'static str, value: impl Into<u64>) -> ProtocolError {
    ProtocolError::BadValue { what, value: value.into() }
}

/// A length that does not fit becomes one that no frame may have, so that the frame is refused before it is sent.
fn put_length(length: usize, out: &mut Chunks) {
    out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
}

/// Spells out the fields of a struct in their order on the wire, for a type that has its definition elsewhere.
macro_rules! wire_struct {
    ($type:ty { $($field:ident: $field_type:ty),* $(,)? }) => {
        impl $crate::protocol::Wire for $type {
            const BYTES_MIN: usize = 0 $(+ <$field_type as $crate::protocol::Wire>::BYTES_MIN)*;

            #[allow(unused_variables, reason = "a body without fields needs neither")]
            fn encode(&self, out: &mut $crate::protocol::Chunks) {
                $(<$field_type as $crate::protocol::Wire>::encode(&self.$field, out);)*
            }

            #[allow(unused_variables, reason = "a body without fields needs neither")]
            fn decode(input: &mut $crate::protocol::Input<'_>) -> Result<Self, $crate::protocol::ProtocolError> {
                Ok(Self { $($field: <$field_type as $crate::protocol::Wire>::decode(input)?,)* })
            }
        }
    };
}

/// Defines a struct of the protocol: its fields in their order on the wire.
macro_rules! wire_type {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        $crate::protocol::wire::wire_struct!($name { $($field: $type),* });
    };
}

/// Gives the values of an enum without fields their numbers (one byte).
macro_rules! wire_enum {
    ($type:ident, $what:literal { $($number:literal => $value:ident),* $(,)? }) => {
        impl $crate::protocol::Wire for $type {
            const BYTES_MIN: usize = 1;

            fn encode(&self, out: &mut $crate::protocol::Chunks) {
                let number: u8 = match self { $(Self::$value => $number,)* };
                number.encode(out);
            }

            fn decode(input: &mut $crate::protocol::Input<'_>) -> Result<Self, $crate::protocol::ProtocolError> {
                match u8::decode(input)? {
                    $($number => Ok(Self::$value),)*
                    number => Err($crate::protocol::wire::bad_value($what, number)),
                }
            }
        }
    };
}

pub(super) use {wire_enum, wire_struct, wire_type};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_checked_against_what_is_left_before_it_is_believed() {
        let body = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4]);
        assert_eq!(Vec::<u64>::from_body(&body), Err(ProtocolError::UnexpectedEnd));
        assert_eq!(Bytes::from_body(&body), Err(ProtocolError::UnexpectedEnd));
    }

    #[test]
    fn the_items_of_all_lists_have_one_bound() {
        let half = vec![0u8; FRAME_ITEMS_MAX / 2 + 1];
        let body = vec![half.clone(), half].to_chunks().into_bytes();
        assert_eq!(Vec::<Vec<u8>>::from_body(&body), Err(ProtocolError::TooManyItems { limit: FRAME_ITEMS_MAX }));
    }

    #[test]
    fn payloads_share_the_memory_of_the_body() {
        let body = Bytes::from_static(b"payload").to_chunks().into_bytes();
        let payload = Bytes::from_body(&body).unwrap();
        assert_eq!(payload.as_ptr(), body[4..].as_ptr());
    }

    #[test]
    fn flags_are_zero_or_one_and_text_is_utf8() {
        assert_eq!(bool::from_body(&Bytes::from_static(&[2])), Err(bad_value("a flag", 2u8)));
        assert_eq!(String::from_body(&Bytes::from_static(&[1, 0, 0, 0, 0xff])), Err(ProtocolError::NotUtf8));
        assert_eq!(u8::from_body(&Bytes::from_static(&[1, 2])), Err(ProtocolError::LeftOver { count: 1 }));
    }
}
