//! A batch as it lies in a log and travels to consumers: header, annex, block.

use bytes::Bytes;

use crate::model::StoredMessage;

use super::block::{BlockError, IndexEntry, IndexWalk, decompress};
use super::header::{BatchHeader, HeaderError, RecordHeader};
use super::{Annex, Attributes};

/// Why bytes are not a stored batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The header is refused.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The record is no batch.
    #[error("the record is not a batch")]
    NotABatch,
    /// The bytes are fewer or more than the header says.
    #[error("the batch has {found} bytes where its header says {expected}")]
    Length {
        /// What the header says.
        expected: usize,
        /// What is there.
        found: usize,
    },
    /// The body's checksum is wrong.
    #[error("checksum of the batch is wrong")]
    Checksum,
    /// The annex does not decode.
    #[error("the annex of the batch does not decode")]
    Annex,
    /// The block is refused.
    #[error(transparent)]
    Block(#[from] BlockError),
}

/// A stored batch whose checksums have been verified; its block may still be compressed.
#[derive(Debug, Clone)]
pub struct StoredBatch {
    header: RecordHeader,
    batch: BatchHeader,
    annex: Bytes,
    payload: Bytes,
}

impl StoredBatch {
    /// Takes the bytes of one whole record and verifies both checksums.
    pub fn parse(bytes: Bytes) -> Result<Self, BatchError> {
        let batch = Self::split(&bytes)?;
        if crc32fast::hash(&bytes[batch.header.header_length()..]) != batch.header.body_crc {
            return Err(BatchError::Checksum);
        }
        Ok(batch)
    }

    /// As [`StoredBatch::parse`], without the checksum of the body: for a record whose body was verified just before. Nothing else
    /// about it is believed.
    pub(crate) fn split(bytes: &Bytes) -> Result<Self, BatchError> {
        let (header, batch, _) = RecordHeader::decode(bytes)?;
        let batch = batch.ok_or(BatchError::NotABatch)?;
        if bytes.len() != header.length as usize {
            return Err(BatchError::Length { expected: header.length as usize, found: bytes.len() });
        }
        let body = bytes.slice(header.header_length()..);
        let annex = body.slice(..batch.annex_length as usize);
        let payload = body.slice(batch.annex_length as usize..);
        Ok(Self { header, batch, annex, payload })
    }

    /// The record header.
    pub fn header(&self) -> &RecordHeader {
        &self.header
    }

    /// The batch header.
    pub fn batch(&self) -> &BatchHeader {
        &self.batch
    }

    /// Offset of the first message.
    pub fn base_offset(&self) -> u64 {
        self.batch.base_offset
    }

    /// Messages.
    pub fn count(&self) -> u32 {
        self.batch.count
    }

    /// When the log stored the batch, microseconds since the Unix epoch.
    pub fn created_at_us(&self) -> u64 {
        self.header.created_at_us
    }

    /// Producers and match table.
    pub fn annex(&self) -> Result<Annex, BatchError> {
        Annex::decode(&self.annex, self.batch.count).map_err(|_| BatchError::Annex)
    }

    /// The uncompressed block, with what is needed to walk it.
    pub fn open(&self) -> Result<OpenBatch, BatchError> {
        let block = decompress(self.batch.codec, &self.payload, self.batch.uncompressed_length)?;
        Ok(OpenBatch { batch: self.batch, created_at_us: self.header.created_at_us, block })
    }

    /// All messages, in order.
    pub fn messages(&self) -> Result<Vec<StoredMessage>, BatchError> {
        self.open()?.messages(|_| true)
    }
}

/// A batch with its block uncompressed; cheap to clone and to share.
#[derive(Debug, Clone)]
pub struct OpenBatch {
    batch: BatchHeader,
    created_at_us: u64,
    block: Bytes,
}

impl OpenBatch {
    /// The batch header.
    pub fn batch(&self) -> &BatchHeader {
        &self.batch
    }

    /// When the log stored the batch, microseconds since the Unix epoch.
    pub fn created_at_us(&self) -> u64 {
        self.created_at_us
    }

    /// Bytes that the block holds in memory.
    pub fn block_bytes(&self) -> usize {
        self.block.len()
    }

    /// Walks the message index.
    pub fn entries(&self) -> Result<IndexWalk<'_>, BatchError> {
        Ok(IndexWalk::new(&self.block, self.batch.count, self.batch.index_length)?)
    }

    /// The body of an entry, without a copy.
    pub fn body(&self, entry: &IndexEntry<'_>) -> Bytes {
        self.block.slice(entry.body_start..entry.body_start + entry.body_length)
    }

    /// The bytes of an entry's body.
    pub fn payload(&self, entry: &IndexEntry<'_>) -> &[u8] {
        &self.block[entry.body_start..entry.body_start + entry.body_length]
    }

    /// The messages whose index (from 0) is wanted, in order, their payloads shared with the block.
    pub fn messages(&self, mut wants: impl FnMut(u32) -> bool) -> Result<Vec<StoredMessage>, BatchError> {
        let mut messages = Vec::new();
        for (index, entry) in (0u32..).zip(self.entries()?) {
            let entry = entry?;
            if wants(index) {
                messages.push(self.message(index, &entry)?);
            }
        }
        Ok(messages)
    }

    /// The message of an entry, its payload shared with the block.
    pub fn message(&self, index: u32, entry: &IndexEntry<'_>) -> Result<StoredMessage, BatchError> {
        let attributes = if entry.attributes.is_empty() {
            Attributes::default()
        } else {
            Attributes::decode(entry.attributes).map_err(BlockError::from)?
        };
        Ok(StoredMessage {
            offset: self.batch.base_offset + u64::from(index),
            created_at_us: self.created_at_us,
            transaction_id: entry.transaction_id.map(str::to_owned),
            attributes,
            payload: self.body(entry),
            delivery_count: 0,
        })
    }
}
