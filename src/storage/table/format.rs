//! The bytes of a table: file header, block header, entries. See `storage-format.md`, "Table".

use super::{Entry, Key, TableError};
use crate::codec::{Put, Reader, UnexpectedEnd};

/// The first bytes of a table.
pub(super) const FILE_MAGIC: [u8; 8] = *b"FANLOGKT";

/// The first bytes of a block; never zero, so that preallocated space is no block.
pub(super) const BLOCK_MAGIC: [u8; 4] = *b"KTBK";

/// The version that this program writes, and the only one it reads.
pub(super) const VERSION: u16 = 1;

/// Bytes of the file header.
pub(super) const FILE_HEADER_BYTES: usize = 64;

/// Bytes of a block's header.
pub(super) const BLOCK_HEADER_BYTES: usize = 56;

/// Bytes of an entry before its value.
const ENTRY_HEADER_BYTES: usize = 14;

/// The longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 16 << 20;

/// The longest body of a block; a longer one would have to be read whole before its checksum is known.
pub(super) const BODY_BYTES_MAX: usize = 256 << 20;

/// The highest number of a block; a higher one is no block, so that the next number can always be given.
pub(super) const SEQUENCE_MAX: u64 = u64::MAX / 2;

/// The flag of an entry that removes its key.
const REMOVAL: u8 = 1;

/// Bytes that an entry with a value of this length takes in the file.
pub fn entry_bytes(value_length: usize) -> u64 {
    (ENTRY_HEADER_BYTES + value_length) as u64
}

/// The header of a file whose checksum was right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileHeader {
    pub version: u16,
    pub incompatible: u32,
    pub incarnation: u64,
    /// The length that the file had when it was put in place, all of it synced.
    pub base_length: u64,
}

impl FileHeader {
    pub(super) fn encode(&self) -> [u8; FILE_HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(FILE_HEADER_BYTES);
        bytes.put_bytes(&FILE_MAGIC);
        bytes.put_u16(self.version);
        bytes.put_u16(0);
        bytes.put_u32(0);
        bytes.put_u32(self.incompatible);
        bytes.put_u32(0);
        bytes.put_u64(self.incarnation);
        bytes.put_u64(self.base_length);
        let mut header = [0; FILE_HEADER_BYTES];
        let (content, checksum) = header.split_at_mut(FILE_HEADER_BYTES - 4);
        content[..bytes.len()].copy_from_slice(&bytes);
        checksum.copy_from_slice(&crc32fast::hash(content).to_le_bytes());
        header
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        Self::parse(bytes).map_err(|_| "it is shorter than a header")?
    }

    fn parse(bytes: &[u8]) -> Result<Result<Self, &'static str>, UnexpectedEnd> {
        let mut reader = Reader::new(bytes);
        let content = reader.bytes(FILE_HEADER_BYTES - 4)?;
        let checksum = reader.u32()?;
        let mut reader = Reader::new(content);
        if reader.array()? != FILE_MAGIC {
            return Ok(Err("it does not begin with the mark of a table"));
        }
        if crc32fast::hash(content) != checksum {
            return Ok(Err("its checksum is wrong"));
        }
        let version = reader.u16()?;
        let _reserved = reader.u16()?;
        // Compatible features may be ignored by a reader that does not know them.
        let _compatible = reader.u32()?;
        let incompatible = reader.u32()?;
        let _reserved = reader.u32()?;
        Ok(Ok(Self { version, incompatible, incarnation: reader.u64()?, base_length: reader.u64()? }))
    }
}

/// The header of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct BlockHeader {
    pub incarnation: u64,
    pub position: u64,
    pub sequence: u64,
    pub lsn: u64,
    pub body_length: u32,
    pub entry_count: u32,
    pub body_checksum: u32,
}

impl BlockHeader {
    pub(super) fn encode(&self) -> [u8; BLOCK_HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(BLOCK_HEADER_BYTES);
        for number in [self.incarnation, self.position, self.sequence, self.lsn] {
            bytes.put_u64(number);
        }
        for number in [self.body_length, self.entry_count, self.body_checksum, 0] {
            bytes.put_u32(number);
        }
        let mut header = [0; BLOCK_HEADER_BYTES];
        header[..4].copy_from_slice(&BLOCK_MAGIC);
        header[4..8].copy_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
        header[8..].copy_from_slice(&bytes);
        header
    }

    /// The header at the front of `bytes`, if it is one and its checksum is right.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        Self::parse(bytes).ok().flatten()
    }

    fn parse(bytes: &[u8]) -> Result<Option<Self>, UnexpectedEnd> {
        let mut reader = Reader::new(bytes);
        let magic: [u8; 4] = reader.array()?;
        let checksum = reader.u32()?;
        let content = reader.bytes(BLOCK_HEADER_BYTES - 8)?;
        if magic != BLOCK_MAGIC || crc32fast::hash(content) != checksum {
            return Ok(None);
        }
        let mut reader = Reader::new(content);
        Ok(Some(Self {
            incarnation: reader.u64()?,
            position: reader.u64()?,
            sequence: reader.u64()?,
            lsn: reader.u64()?,
            body_length: reader.u32()?,
            entry_count: reader.u32()?,
            body_checksum: reader.u32()?,
        }))
    }
}

/// Collects the entries of a block.
pub(super) struct BlockBuilder {
    /// Room for the header, then the body.
    bytes: Vec<u8>,
    count: u32,
}

impl BlockBuilder {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; BLOCK_HEADER_BYTES], count: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes so far, the header among them.
    pub(super) fn length(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn body_length(&self) -> usize {
        self.bytes.len() - BLOCK_HEADER_BYTES
    }

    pub(super) fn push(&mut self, entry: Entry<'_>) -> Result<(), TableError> {
        let value = entry.value.unwrap_or_default();
        check_size("value", value.len(), VALUE_BYTES_MAX)?;
        check_size("block", self.body_length() + ENTRY_HEADER_BYTES + value.len(), BODY_BYTES_MAX)?;
        self.bytes.put_u8(entry.key.kind);
        self.bytes.put_u8(if entry.value.is_none() { REMOVAL } else { 0 });
        self.bytes.put_u32(entry.key.a);
        self.bytes.put_u32(entry.key.b);
        self.bytes.put_u32(value.len() as u32);
        self.bytes.put_bytes(value);
        self.count += 1;
        Ok(())
    }

    /// The block's bytes; `header` says where it goes, and its sizes and checksum are filled in.
    pub(super) fn finish(mut self, header: BlockHeader) -> Vec<u8> {
        let body = self.bytes.get(BLOCK_HEADER_BYTES..).unwrap_or_default();
        let body_checksum = crc32fast::hash(body);
        // The body is at most BODY_BYTES_MAX.
        let header = BlockHeader { body_length: body.len() as u32, entry_count: self.count, body_checksum, ..header };
        self.bytes[..BLOCK_HEADER_BYTES].copy_from_slice(&header.encode());
        self.bytes
    }
}

fn check_size(what: &'static str, bytes: usize, limit: usize) -> Result<(), TableError> {
    if bytes <= limit { Ok(()) } else { Err(TableError::TooLarge { what, bytes: bytes as u64, limit: limit as u64 }) }
}

/// The entries of a body whose checksum was right.
pub(super) fn decode_body(body: &[u8], entry_count: u32) -> Result<Vec<Entry<'_>>, UnexpectedEnd> {
    let mut reader = Reader::new(body);
    let mut entries = Vec::new();
    for _ in 0..entry_count {
        let kind = reader.u8()?;
        let flags = reader.u8()?;
        let key = Key { kind, a: reader.u32()?, b: reader.u32()? };
        let length = usize::try_from(reader.u32()?).map_err(|_| UnexpectedEnd)?;
        let bytes = reader.bytes(length)?;
        let value = match flags {
            0 => Some(bytes),
            REMOVAL if length == 0 => None,
            _ => return Err(UnexpectedEnd),
        };
        entries.push(Entry { key, value });
    }
    if reader.is_empty() { Ok(entries) } else { Err(UnexpectedEnd) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: FileHeader = FileHeader { version: 1, incompatible: 0, incarnation: 0x0102_0304_0506_0708, base_length: 120 };

    const BLOCK: BlockHeader =
        BlockHeader { incarnation: 7, position: 64, sequence: 1, lsn: 9, body_length: 0, entry_count: 0, body_checksum: 0 };

    fn block() -> Vec<u8> {
        let mut builder = BlockBuilder::new();
        builder.push(Entry { key: Key { kind: 1, a: 2, b: 3 }, value: Some(b"hi") }).unwrap();
        builder.push(Entry { key: Key { kind: 4, a: 5, b: 6 }, value: None }).unwrap();
        builder.finish(BLOCK)
    }

    #[test]
    fn the_bytes_of_a_file_header_are_these() {
        let mut golden = b"FANLOGKT".to_vec();
        golden.extend([1, 0, 0, 0]);
        golden.extend([0; 12]);
        golden.extend([8, 7, 6, 5, 4, 3, 2, 1, 120, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend([0; 20]);
        golden.extend([0x56, 0x2a, 0xe6, 0x3d]);
        assert_eq!(HEADER.encode().to_vec(), golden);
        assert_eq!(FileHeader::decode(&golden), Ok(HEADER));
    }

    #[test]
    fn the_bytes_of_a_block_are_these() {
        let mut golden = b"KTBK".to_vec();
        golden.extend([0xfa, 0xf5, 0xba, 0xc9]);
        for number in [7u64, 64, 1, 9] {
            golden.extend(number.to_le_bytes());
        }
        golden.extend([30, 0, 0, 0, 2, 0, 0, 0, 0x6e, 0x90, 0x37, 0x49, 0, 0, 0, 0]);
        golden.extend([1, 0, 2, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, b'h', b'i']);
        golden.extend([4, 1, 5, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(block(), golden);
    }

    #[test]
    fn blocks_round_trip_and_every_shorter_or_flipped_input_is_refused() {
        let bytes = block();
        let (header, body) = bytes.split_at(BLOCK_HEADER_BYTES);
        let decoded = BlockHeader::decode(header).unwrap();
        assert_eq!((decoded.position, decoded.sequence, decoded.lsn, decoded.entry_count), (64, 1, 9, 2));
        assert_eq!(decoded.body_checksum, crc32fast::hash(body));
        let entries = decode_body(body, 2).unwrap();
        assert_eq!(entries[0], Entry { key: Key { kind: 1, a: 2, b: 3 }, value: Some(b"hi") });
        assert_eq!(entries[1], Entry { key: Key { kind: 4, a: 5, b: 6 }, value: None });
        for cut in 0..header.len() {
            assert_eq!(BlockHeader::decode(&header[..cut]), None);
        }
        for index in 0..header.len() * 8 {
            let mut flipped = header.to_vec();
            flipped[index / 8] ^= 1 << (index % 8);
            assert_eq!(BlockHeader::decode(&flipped), None);
        }
        for cut in 0..body.len() {
            assert_eq!(decode_body(&body[..cut], 2), Err(UnexpectedEnd));
        }
        assert_eq!(decode_body(body, 1), Err(UnexpectedEnd));
        assert_eq!(decode_body(body, 3), Err(UnexpectedEnd));
        assert_eq!(decode_body(body, u32::MAX), Err(UnexpectedEnd));
    }

    #[test]
    fn file_headers_refuse_every_shorter_or_flipped_input() {
        let bytes = HEADER.encode();
        for cut in 0..bytes.len() {
            assert!(FileHeader::decode(&bytes[..cut]).is_err());
        }
        for index in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[index / 8] ^= 1 << (index % 8);
            assert!(FileHeader::decode(&flipped).is_err());
        }
    }

    #[test]
    fn what_is_too_large_is_refused() {
        let value = vec![0; VALUE_BYTES_MAX + 1];
        let key = Key { kind: 0, a: 0, b: 0 };
        let mut builder = BlockBuilder::new();
        let error = builder.push(Entry { key, value: Some(&value) }).unwrap_err();
        assert_eq!(error.to_string(), "value of 16777217 bytes is over the limit of 16777216");
        assert!(builder.is_empty());
        builder.push(Entry { key, value: Some(&value[1..]) }).unwrap();
    }
}
