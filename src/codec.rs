//! A little-endian cursor over a slice, and its writing twin.
//!
//! Owns nothing but the order of bytes. A read past the end is one unit error, [`UnexpectedEnd`], and never a panic; what the
//! bytes mean, and how much of them may be believed, is the caller's business.

/// The slice ended before the value did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unexpected end of bytes")]
pub struct UnexpectedEnd;

/// Reads values from the front of a slice.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader at the first byte of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// How many bytes have not been read.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Whether every byte has been read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The bytes that have not been read; the reader does not move.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `length` bytes.
    pub fn bytes(&mut self, length: usize) -> Result<&'a [u8], UnexpectedEnd> {
        let (head, tail) = self.rest.split_at_checked(length).ok_or(UnexpectedEnd)?;
        self.rest = tail;
        Ok(head)
    }

    /// The next `N` bytes by value.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], UnexpectedEnd> {
        let (head, tail) = self.rest.split_first_chunk::<N>().ok_or(UnexpectedEnd)?;
        self.rest = tail;
        Ok(*head)
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, UnexpectedEnd> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Two bytes, little-endian.
    pub fn u16(&mut self) -> Result<u16, UnexpectedEnd> {
        self.array().map(u16::from_le_bytes)
    }

    /// Four bytes, little-endian.
    pub fn u32(&mut self) -> Result<u32, UnexpectedEnd> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes, little-endian.
    pub fn u64(&mut self) -> Result<u64, UnexpectedEnd> {
        self.array().map(u64::from_le_bytes)
    }

    /// An unsigned LEB128 integer of at most ten bytes. An encoding longer than the value needs, or one over 64 bits, is
    /// refused in the same way as one that is cut short: each value has one encoding.
    pub fn varint(&mut self) -> Result<u64, UnexpectedEnd> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let low = u64::from(byte & 0x7f);
            if shift == 63 && low > 1 {
                return Err(UnexpectedEnd);
            }
            value |= low << shift;
            if byte & 0x80 == 0 {
                let is_padded = byte == 0 && shift > 0;
                return if is_padded { Err(UnexpectedEnd) } else { Ok(value) };
            }
        }
        Err(UnexpectedEnd)
    }

    /// A varint that must fit in a `usize` no larger than what is left: the length of something that follows.
    pub fn length(&mut self) -> Result<usize, UnexpectedEnd> {
        let length = usize::try_from(self.varint()?).map_err(|_| UnexpectedEnd)?;
        if length > self.remaining() { Err(UnexpectedEnd) } else { Ok(length) }
    }

    /// A varint length and that many bytes.
    pub fn sized(&mut self) -> Result<&'a [u8], UnexpectedEnd> {
        let length = self.length()?;
        self.bytes(length)
    }
}

/// Appends values to a byte vector; the twin of [`Reader`].
pub trait Put {
    /// Appends raw bytes.
    fn put_bytes(&mut self, bytes: &[u8]);

    /// Appends one byte.
    fn put_u8(&mut self, value: u8) {
        self.put_bytes(&[value]);
    }

    /// Appends two bytes, little-endian.
    fn put_u16(&mut self, value: u16) {
        self.put_bytes(&value.to_le_bytes());
    }

    /// Appends four bytes, little-endian.
    fn put_u32(&mut self, value: u32) {
        self.put_bytes(&value.to_le_bytes());
    }

    /// Appends eight bytes, little-endian.
    fn put_u64(&mut self, value: u64) {
        self.put_bytes(&value.to_le_bytes());
    }

    /// Appends an unsigned LEB128 integer.
    fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.put_u8((value as u8 & 0x7f) | 0x80);
            value >>= 7;
        }
        self.put_u8(value as u8);
    }

    /// Appends a varint length and the bytes.
    fn put_sized(&mut self, bytes: &[u8]) {
        self.put_varint(bytes.len() as u64);
        self.put_bytes(bytes);
    }
}

impl Put for Vec<u8> {
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Counts the bytes that would be written.
#[derive(Debug, Clone, Copy, Default)]
pub struct ByteCount(pub usize);

impl Put for ByteCount {
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}

impl Put for bytes::BytesMut {
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_integer_round_trips() {
        let mut bytes = Vec::new();
        bytes.put_u8(1);
        bytes.put_u16(0x0302);
        bytes.put_u32(0x0706_0504);
        bytes.put_u64(0x0f0e_0d0c_0b0a_0908);
        assert_eq!(bytes, (1..=15).collect::<Vec<u8>>());
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.u8(), Ok(1));
        assert_eq!(reader.u16(), Ok(0x0302));
        assert_eq!(reader.u32(), Ok(0x0706_0504));
        assert_eq!(reader.u64(), Ok(0x0f0e_0d0c_0b0a_0908));
        assert!(reader.is_empty());
        assert_eq!(reader.u8(), Err(UnexpectedEnd));
    }

    #[test]
    fn varints_round_trip_and_refuse_every_shorter_input() {
        for value in [0, 1, 127, 128, 300, 1 << 32, u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            bytes.put_varint(value);
            assert_eq!(Reader::new(&bytes).varint(), Ok(value));
            for cut in 0..bytes.len() {
                assert_eq!(Reader::new(&bytes[..cut]).varint(), Err(UnexpectedEnd));
            }
        }
    }

    #[test]
    fn a_varint_has_one_encoding() {
        assert_eq!(Reader::new(&[0x80, 0x00]).varint(), Err(UnexpectedEnd));
        assert_eq!(Reader::new(&[0xff; 10]).varint(), Err(UnexpectedEnd));
        let mut over = vec![0xff; 9];
        over.push(0x02);
        assert_eq!(Reader::new(&over).varint(), Err(UnexpectedEnd));
    }

    #[test]
    fn a_length_past_the_end_is_refused_before_anything_is_taken() {
        let mut bytes = Vec::new();
        bytes.put_varint(u64::MAX);
        assert_eq!(Reader::new(&bytes).sized(), Err(UnexpectedEnd));
    }
}
