//! The bytes of an outgoing frame, in pieces.
//!
//! Small fields are gathered into buffers; a large payload or a stored batch keeps its own memory and stands between them, so
//! that a connection can write all of it with one vectored call and nothing large is copied.

use bytes::{Buf, Bytes, BytesMut};

use crate::codec::Put;

/// Shared bytes at least this long stay where they are; shorter ones are cheaper to copy than to hand to the operating system
/// as a piece of their own.
const SHARED_BYTES_MIN: usize = 8192;

/// A sequence of byte pieces that reads as one string of bytes.
#[derive(Debug, Clone, Default)]
pub struct Chunks {
    done: Vec<Bytes>,
    done_length: usize,
    open: BytesMut,
}

impl Chunks {
    /// No bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes in all pieces.
    pub fn len(&self) -> usize {
        self.done_length + self.open.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `bytes` without copying them, unless they are short.
    pub fn put_shared(&mut self, bytes: &Bytes) {
        if bytes.len() < SHARED_BYTES_MIN {
            self.open.extend_from_slice(bytes);
            return;
        }
        self.close_open();
        self.done_length += bytes.len();
        self.done.push(bytes.clone());
    }

    /// Appends all pieces of `other` without copying the large ones.
    pub fn put_chunks(&mut self, other: Chunks) {
        for piece in other.into_pieces() {
            self.put_shared(&piece);
        }
    }

    /// The pieces in order; none of them is empty.
    pub fn into_pieces(mut self) -> Vec<Bytes> {
        self.close_open();
        self.done
    }

    /// All bytes, if they are in one piece.
    pub fn as_piece(&self) -> Option<&[u8]> {
        match self.done.as_slice() {
            [] => Some(&self.open),
            [piece] if self.open.is_empty() => Some(piece),
            _ => None,
        }
    }

    /// Takes bytes off the front of what is in one piece.
    pub fn skip(self, count: usize) -> Self {
        let mut rest = self.into_bytes();
        rest.advance(count.min(rest.len()));
        Self { done_length: rest.len(), done: Vec::from([rest]), open: BytesMut::new() }
    }

    /// All bytes as one string, copied if there is more than one piece.
    pub fn into_bytes(self) -> Bytes {
        let length = self.len();
        let mut pieces = self.into_pieces();
        if pieces.len() == 1 {
            return pieces.remove(0);
        }
        let mut all = BytesMut::with_capacity(length);
        pieces.iter().for_each(|piece| all.extend_from_slice(piece));
        all.freeze()
    }

    fn close_open(&mut self) {
        if !self.open.is_empty() {
            self.done_length += self.open.len();
            self.done.push(self.open.split().freeze());
        }
    }
}

impl Put for Chunks {
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.open.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_bytes_keep_their_memory_and_small_ones_are_gathered() {
        let large = Bytes::from(vec![7; SHARED_BYTES_MIN]);
        let mut chunks = Chunks::new();
        chunks.put_u8(1);
        chunks.put_shared(&Bytes::from_static(b"ab"));
        chunks.put_shared(&large);
        chunks.put_u8(2);
        assert_eq!(chunks.len(), SHARED_BYTES_MIN + 4);
        let pieces = chunks.into_pieces();
        assert_eq!(pieces.len(), 3);
        assert_eq!(&pieces[0][..], b"\x01ab");
        assert_eq!(pieces[1].as_ptr(), large.as_ptr());
        assert_eq!(&pieces[2][..], b"\x02");
    }

    #[test]
    fn pieces_read_as_one_string() {
        let mut inner = Chunks::new();
        inner.put_u8(2);
        inner.put_shared(&Bytes::from(vec![3; SHARED_BYTES_MIN]));
        let mut chunks = Chunks::new();
        chunks.put_u8(1);
        chunks.put_chunks(inner);
        let all = chunks.into_bytes();
        assert_eq!(all[..3], [1, 2, 3]);
        assert_eq!(all.len(), SHARED_BYTES_MIN + 2);
    }
}
