//! The bytes of an outgoing frame, in pieces.
//!
//! Small fields are gathered into buffers; a large payload or a stored batch keeps its own memory and stands between them, so
//! that a connection can write all of it with one vectored call and nothing large is copied.

use bytes::Bytes;

use crate::codec::Put;

/// Shared bytes at least this long stay where they are; shorter ones are cheaper to copy than to hand to the operating system
/// as a piece of their own.
const SHARED_BYTES_MIN: usize = 8192;

/// A sequence of byte pieces that reads as one string of bytes.
#[derive(Debug, Clone, Default)]
pub struct Chunks {
    /// All small fields behind each other.
    small: Vec<u8>,
    /// What stands between them, each with the number of small bytes before it.
    shared: Vec<(usize, Bytes)>,
    shared_length: usize,
}

impl Chunks {
    /// No bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// No bytes, and room for so many small ones.
    pub fn with_capacity(small: usize) -> Self {
        Self { small: Vec::with_capacity(small), ..Self::default() }
    }

    /// Bytes in all pieces.
    pub fn len(&self) -> usize {
        self.small.len() + self.shared_length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `bytes` without copying them, unless they are short.
    pub fn put_shared(&mut self, bytes: &Bytes) {
        if bytes.len() < SHARED_BYTES_MIN {
            self.small.extend_from_slice(bytes);
            return;
        }
        self.shared_length += bytes.len();
        self.shared.push((self.small.len(), bytes.clone()));
    }

    /// Writes over the first small bytes, for a field that is known last. Bytes that are not there yet are not written.
    pub(super) fn overwrite_first(&mut self, bytes: &[u8]) {
        self.small.iter_mut().zip(bytes).for_each(|(slot, &byte)| *slot = byte);
    }

    /// The pieces in order; none of them is empty.
    pub fn into_pieces(self) -> Vec<Bytes> {
        let mut pieces = Vec::with_capacity(2 * self.shared.len() + 1);
        let mut small = Bytes::from(self.small);
        let mut done = 0;
        for (position, bytes) in self.shared {
            if position > done {
                pieces.push(small.split_to(position - done));
                done = position;
            }
            pieces.push(bytes);
        }
        if !small.is_empty() {
            pieces.push(small);
        }
        pieces
    }

    /// All bytes, if none of them stand by themselves.
    pub fn as_small(&self) -> Option<&[u8]> {
        self.shared.is_empty().then_some(&self.small)
    }

    /// Takes the first of the bytes away, if none of them stand by themselves.
    pub fn skip_small(&mut self, count: usize) {
        if self.shared.is_empty() {
            self.small.drain(..count.min(self.small.len()));
        }
    }

    /// All bytes as one string, copied if there is more than one piece.
    pub fn into_bytes(self) -> Bytes {
        if self.shared.is_empty() {
            return Bytes::from(self.small);
        }
        let mut all = Vec::with_capacity(self.len());
        self.into_pieces().iter().for_each(|piece| all.extend_from_slice(piece));
        Bytes::from(all)
    }
}

impl Put for Chunks {
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.small.extend_from_slice(bytes);
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
        let mut chunks = Chunks::new();
        chunks.put_shared(&Bytes::from(vec![9; SHARED_BYTES_MIN]));
        chunks.put_u8(1);
        chunks.put_u8(2);
        chunks.put_shared(&Bytes::from(vec![3; SHARED_BYTES_MIN]));
        chunks.put_shared(&Bytes::from(vec![4; SHARED_BYTES_MIN]));
        let pieces: Vec<usize> = chunks.clone().into_pieces().iter().map(Bytes::len).collect();
        assert_eq!(pieces, [SHARED_BYTES_MIN, 2, SHARED_BYTES_MIN, SHARED_BYTES_MIN]);
        let all = chunks.into_bytes();
        assert_eq!(all[SHARED_BYTES_MIN - 1..SHARED_BYTES_MIN + 3], [9, 1, 2, 3]);
        assert_eq!((all.len(), all.last()), (3 * SHARED_BYTES_MIN + 2, Some(&4)));
    }

    #[test]
    fn the_first_bytes_can_be_written_last() {
        let mut chunks = Chunks::with_capacity(16);
        chunks.put_u32(0);
        chunks.put_u8(5);
        chunks.put_shared(&Bytes::from(vec![3; SHARED_BYTES_MIN]));
        chunks.overwrite_first(&[1, 2, 3, 4]);
        assert_eq!(chunks.into_bytes()[..6], [1, 2, 3, 4, 5, 3]);
        let mut short = Chunks::new();
        short.put_u8(0);
        short.overwrite_first(&[1, 2]);
        assert_eq!(short.into_bytes()[..], [1]);
    }
}
