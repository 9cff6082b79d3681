//! The front of an encoded cursor: see "Cursor" in `storage-format.md`. The whole of it belongs to the engine; this much is enough to
//! hold a cursor against its log.

use crate::codec::{Reader, UnexpectedEnd};
use crate::record::Offset;

/// The high half of a cursor's first byte.
const FORMAT: u8 = 0x10;

/// What a cursor begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CursorFront {
    /// The next offset wanted: everything below is done.
    pub next: Offset,
    /// Grows with each change; the greatest one counts.
    pub version: u64,
}

impl CursorFront {
    /// Decodes the front of a cursor; what follows is not looked at.
    pub fn decode(bytes: &[u8]) -> Result<Self, UnexpectedEnd> {
        let mut reader = Reader::new(bytes);
        if reader.u8()? & 0xf0 != FORMAT {
            return Err(UnexpectedEnd);
        }
        Ok(Self { next: reader.varint()?, version: reader.varint()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::delivery::{Cursor, PlainCursor};

    #[test]
    fn the_front_is_that_of_what_the_engine_writes() {
        let plain = PlainCursor { next: 300, version: 200, total_consumed: 7, last_consumed_at_us: 9 };
        let mut bytes = Vec::new();
        Cursor::from(plain).encode(&mut bytes);
        assert_eq!(CursorFront::decode(&bytes), Ok(CursorFront { next: 300, version: 200 }));
        for cut in 0..5 {
            assert_eq!(CursorFront::decode(&bytes[..cut]), Err(UnexpectedEnd));
        }
        assert_eq!(CursorFront::decode(&[0; 16]), Err(UnexpectedEnd));
    }
}
