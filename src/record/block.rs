//! The block of a batch: message index and bodies, plain or compressed. See "Block" in `storage-format.md`.
//!
//! A producer, or the server for it, packs messages into a block once; the same bytes lie on disk and go to consumers.

use std::cell::RefCell;

use bytes::Bytes;
use zstd_safe::{CCtx, CParameter, DCtx, DParameter};

use crate::codec::{ByteCount, Put, Reader, UnexpectedEnd};
use crate::model::{Compression, PackedBatch};

use super::{AttributeError, Attributes, Message};

/// Codec number: the block as it is.
pub const CODEC_PLAIN: u8 = 0;
/// Codec number: one zstd frame with its content size.
pub const CODEC_ZSTD: u8 = 1;
/// The largest uncompressed block.
pub const BLOCK_BYTES_MAX: u32 = 64 << 20;
/// The largest zstd window that a stored frame may ask for, as a power of two: 8 MiB, as RFC 9659 asks of the web.
pub const WINDOW_LOG_MAX: u32 = 23;
/// Shorter blocks are not worth a frame: zstd makes single small messages longer.
const COMPRESS_BYTES_MIN: usize = 200;

const HAS_TRANSACTION_ID: u8 = 1;
const HAS_ATTRIBUTES: u8 = 2;

/// Why a block is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// Lengths or counts do not fit the bytes.
    #[error("message index does not fit the batch")]
    Index,
    /// The checksum is wrong.
    #[error("checksum of the payload is wrong")]
    Checksum,
    /// The codec number is unknown.
    #[error("unknown codec {0}")]
    Codec(u8),
    /// The block is over its limit.
    #[error("uncompressed size {0} is over the limit of {BLOCK_BYTES_MAX}")]
    TooLarge(u32),
    /// zstd refuses the frame, or it does not give what was announced.
    #[error("compressed payload does not give the announced {expected} bytes: {reason}")]
    Compression {
        /// The announced size.
        expected: u32,
        /// What zstd says.
        reason: String,
    },
    /// A transaction id is not UTF-8 or over its limit.
    #[error("a transaction id is not UTF-8 or is over {TRANSACTION_ID_BYTES_MAX} bytes")]
    TransactionId,
    /// An attribute is not allowed.
    #[error(transparent)]
    Attribute(#[from] AttributeError),
}

impl From<UnexpectedEnd> for BlockError {
    fn from(_: UnexpectedEnd) -> Self {
        Self::Index
    }
}

/// The longest transaction id, in bytes.
pub const TRANSACTION_ID_BYTES_MAX: usize = 65_535;

/// Packs messages into a block.
#[derive(Debug, Default)]
pub struct BatchBuilder {
    count: u32,
    index: Vec<u8>,
    bodies: Vec<u8>,
}

impl BatchBuilder {
    /// An empty builder.
    pub fn new() -> Self {
        Self::default()
    }

    /// A builder with room for bodies of `bytes`.
    pub fn with_capacity(count: usize, bytes: usize) -> Self {
        Self { count: 0, index: Vec::with_capacity(count * 4), bodies: Vec::with_capacity(bytes) }
    }

    /// Appends a message.
    pub fn push(&mut self, message: &Message) {
        let (id, attributes) = encoded_parts(message);
        self.push_parts(id, attributes, &message.payload);
    }

    /// Uncompressed bytes that a message takes in a block.
    pub fn bytes_of(message: &Message) -> usize {
        let (id, attributes) = encoded_parts(message);
        let mut index = ByteCount::default();
        put_entry(&mut index, id, attributes, message.payload.len());
        index.0 + message.payload.len()
    }

    /// Appends a message whose parts are encoded already.
    pub fn push_parts(&mut self, transaction_id: Option<&[u8]>, attributes: Option<&[u8]>, body: &[u8]) {
        self.count += 1;
        put_entry(&mut self.index, transaction_id, attributes, body.len());
        self.bodies.extend_from_slice(body);
    }

    /// Messages so far.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Uncompressed bytes so far.
    pub fn len(&self) -> usize {
        self.index.len() + self.bodies.len()
    }

    /// Whether there is no message.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Finishes the batch; compressed if that saves 10 % or more.
    pub fn finish(mut self, compression: Compression) -> PackedBatch {
        let index_length = self.index.len() as u32;
        self.index.extend_from_slice(&self.bodies);
        pack(self.index, self.count, index_length, compression)
    }
}

/// The transaction id and the attributes of a message, as an index has them.
fn encoded_parts(message: &Message) -> (Option<&[u8]>, Option<&[u8]>) {
    let attributes = Some(message.attributes.as_bytes()).filter(|attributes| !attributes.is_empty());
    (message.transaction_id.as_deref().map(str::as_bytes), attributes)
}

/// Appends an entry of a message index.
fn put_entry(index: &mut impl Put, transaction_id: Option<&[u8]>, attributes: Option<&[u8]>, body_length: usize) {
    index.put_varint(body_length as u64);
    let flags =
        if transaction_id.is_some() { HAS_TRANSACTION_ID } else { 0 } | if attributes.is_some() { HAS_ATTRIBUTES } else { 0 };
    index.put_u8(flags);
    if let Some(id) = transaction_id {
        index.put_sized(id);
    }
    if let Some(attributes) = attributes {
        index.put_sized(attributes);
    }
}

/// Makes a batch of an uncompressed block; compressed if that saves 10 % or more.
fn pack(block: Vec<u8>, count: u32, index_length: u32, compression: Compression) -> PackedBatch {
    let uncompressed_length = block.len() as u32;
    let compressed = match compression {
        Compression::Zstd { level } if block.len() >= COMPRESS_BYTES_MIN => compress(&block, level),
        _ => None,
    };
    let (codec, payload) = match compressed {
        Some(payload) => (CODEC_ZSTD, payload),
        None => (CODEC_PLAIN, block),
    };
    let payload_crc = crc32fast::hash(&payload);
    PackedBatch { count, index_length, uncompressed_length, codec, payload_crc, payload: Bytes::from(payload) }
}

thread_local! {
    // A compression context holds some hundred KiB of tables; one for each thread spares making them for each batch.
    static COMPRESSOR: RefCell<CCtx<'static>> = RefCell::new(CCtx::create());
    static DECOMPRESSOR: RefCell<DCtx<'static>> = RefCell::new({
        let mut context = DCtx::create();
        // Setting a documented parameter to a value in its range does not fail; if it ever did, the library's own bound would hold.
        let _ = context.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX));
        context
    });
}

fn compress(block: &[u8], level: u8) -> Option<Vec<u8>> {
    COMPRESSOR.with_borrow_mut(|context| {
        let limit = block.len() - block.len() / 10;
        let mut output = Vec::with_capacity(limit);
        context.set_parameter(CParameter::CompressionLevel(i32::from(level))).ok()?;
        context.set_parameter(CParameter::WindowLog(window_log(block.len()))).ok()?;
        // The output's capacity is nine tenths of the input: what does not fit is not worth compressing, and zstd says so.
        context.compress2(&mut output, block).ok()?;
        output.shrink_to_fit();
        Some(output)
    })
}

fn window_log(length: usize) -> u32 {
    (usize::BITS - length.leading_zeros()).clamp(10, WINDOW_LOG_MAX)
}

/// Decompresses a payload of at most [`BLOCK_BYTES_MAX`] bytes, of exactly the announced size.
pub fn decompress(codec: u8, payload: &Bytes, uncompressed_length: u32) -> Result<Bytes, BlockError> {
    if uncompressed_length > BLOCK_BYTES_MAX {
        return Err(BlockError::TooLarge(uncompressed_length));
    }
    let expected = uncompressed_length as usize;
    match codec {
        CODEC_PLAIN if payload.len() == expected => Ok(payload.clone()),
        CODEC_PLAIN => Err(BlockError::Index),
        CODEC_ZSTD => {
            let fail = |reason: String| BlockError::Compression { expected: uncompressed_length, reason };
            // The frame's own announcement is checked before memory is taken, and one frame must be all there is.
            match zstd_safe::get_frame_content_size(payload) {
                Ok(Some(size)) if size == u64::from(uncompressed_length) => {}
                Ok(_) => return Err(fail("the frame announces another size".to_owned())),
                Err(_) => return Err(fail("not a zstd frame".to_owned())),
            }
            match zstd_safe::find_frame_compressed_size(payload) {
                Ok(size) if size == payload.len() => {}
                _ => return Err(fail("there are bytes behind the frame, or too few".to_owned())),
            }
            // zstd itself looks at the window only when it streams; a consumer that streams must be able to open every batch.
            if window_bytes(payload).is_none_or(|bytes| bytes > 1 << WINDOW_LOG_MAX) {
                return Err(fail(format!("the frame asks for a window of over {} bytes", 1u32 << WINDOW_LOG_MAX)));
            }
            let mut output = Vec::with_capacity(expected);
            let written = DECOMPRESSOR
                .with_borrow_mut(|context| context.decompress(&mut output, payload))
                .map_err(|code| fail(zstd_safe::get_error_name(code).to_owned()))?;
            if written != expected {
                return Err(fail(format!("it gives {written}")));
            }
            Ok(Bytes::from(output))
        }
        other => Err(BlockError::Codec(other)),
    }
}

/// The window that a zstd frame asks for, in bytes, as RFC 8878 describes its header.
fn window_bytes(frame: &[u8]) -> Option<u64> {
    const SINGLE_SEGMENT: u8 = 1 << 5;
    let descriptor = *frame.get(4)?;
    if descriptor & SINGLE_SEGMENT != 0 {
        return zstd_safe::get_frame_content_size(frame).ok()?;
    }
    let window = *frame.get(5)?;
    let base = 1u64 << (10 + (window >> 3));
    Some(base + base / 8 * u64::from(window & 7))
}

/// One entry of a message index, its parts still encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry<'a> {
    /// The producer's own id.
    pub transaction_id: Option<&'a str>,
    /// Encoded attributes; empty if there are none.
    pub attributes: &'a [u8],
    /// Where the body lies in the block.
    pub body_start: usize,
    /// Bytes of the body.
    pub body_length: usize,
}

/// Walks the message index of an uncompressed block. Each step is checked; after the last entry, so is the whole.
pub struct IndexWalk<'a> {
    index: Reader<'a>,
    left: u32,
    body_start: usize,
    block_length: usize,
}

impl<'a> IndexWalk<'a> {
    /// Starts at the first message of a block of `count` messages.
    pub fn new(block: &'a [u8], count: u32, index_length: u32) -> Result<Self, BlockError> {
        let index = block.get(..index_length as usize).ok_or(BlockError::Index)?;
        Ok(Self { index: Reader::new(index), left: count, body_start: index.len(), block_length: block.len() })
    }

    fn step(&mut self) -> Result<IndexEntry<'a>, BlockError> {
        let body_length = usize::try_from(self.index.varint()?).map_err(|_| BlockError::Index)?;
        let flags = self.index.u8()?;
        if flags & !(HAS_TRANSACTION_ID | HAS_ATTRIBUTES) != 0 {
            return Err(BlockError::Index);
        }
        let transaction_id = if flags & HAS_TRANSACTION_ID != 0 {
            let bytes = self.index.sized()?;
            if bytes.len() > TRANSACTION_ID_BYTES_MAX {
                return Err(BlockError::TransactionId);
            }
            Some(std::str::from_utf8(bytes).map_err(|_| BlockError::TransactionId)?)
        } else {
            None
        };
        let attributes = if flags & HAS_ATTRIBUTES != 0 { self.index.sized()? } else { &[] };
        let body_start = self.body_start;
        let body_end = body_start.checked_add(body_length).filter(|&end| end <= self.block_length);
        self.body_start = body_end.ok_or(BlockError::Index)?;
        Ok(IndexEntry { transaction_id, attributes, body_start, body_length })
    }
}

impl<'a> Iterator for IndexWalk<'a> {
    type Item = Result<IndexEntry<'a>, BlockError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            let is_whole = self.index.is_empty() && self.body_start == self.block_length;
            if is_whole {
                return None;
            }
            self.index = Reader::new(&[]);
            self.body_start = self.block_length;
            return Some(Err(BlockError::Index));
        }
        self.left -= 1;
        let entry = self.step();
        if entry.is_err() {
            self.left = 0;
            self.index = Reader::new(&[]);
            self.body_start = self.block_length;
        }
        Some(entry)
    }
}

impl PackedBatch {
    /// Verifies everything that a consumer will rely on and returns the uncompressed block: checksum, codec, sizes, index, ids and
    /// attributes. What passes can be decoded by every consumer.
    pub fn verify(&self) -> Result<Bytes, BlockError> {
        if crc32fast::hash(&self.payload) != self.payload_crc {
            return Err(BlockError::Checksum);
        }
        if self.count == 0 {
            return Err(BlockError::Index);
        }
        let block = decompress(self.codec, &self.payload, self.uncompressed_length)?;
        for entry in IndexWalk::new(&block, self.count, self.index_length)? {
            let entry = entry?;
            if !entry.attributes.is_empty() {
                Attributes::decode(entry.attributes)?;
            }
        }
        Ok(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<Message> {
        (0..50u32)
            .map(|number| {
                let mut message = Message::new(format!("{{\"order\":{number},\"customer\":\"someone\"}}"));
                if number % 3 == 0 {
                    message.transaction_id = Some(format!("id-{number}"));
                }
                message
            })
            .collect()
    }

    fn packed(compression: Compression) -> PackedBatch {
        let mut builder = BatchBuilder::new();
        messages().iter().for_each(|message| builder.push(message));
        builder.finish(compression)
    }

    #[test]
    fn a_batch_round_trips_plain_and_compressed() {
        for compression in [Compression::None, Compression::Zstd { level: 1 }] {
            let batch = packed(compression);
            assert_eq!(batch.codec, if compression == Compression::None { CODEC_PLAIN } else { CODEC_ZSTD });
            let block = batch.verify().unwrap();
            let entries: Vec<_> = IndexWalk::new(&block, batch.count, batch.index_length).unwrap().map(Result::unwrap).collect();
            for (entry, message) in entries.iter().zip(messages()) {
                assert_eq!(entry.transaction_id, message.transaction_id.as_deref());
                assert_eq!(block[entry.body_start..entry.body_start + entry.body_length], message.payload);
            }
        }
    }

    #[test]
    fn the_bytes_of_a_message_are_what_a_block_grows_by() {
        let mut builder = BatchBuilder::new();
        for size in [0, 1, 127, 128, 20_000] {
            for (id, value) in [(None, None), (Some(1), None), (None, Some(0)), (Some(200), Some(300))] {
                let mut message = Message::new(vec![b'x'; size]);
                message.transaction_id = id.map(|length| "i".repeat(length));
                if let Some(length) = value {
                    message.attributes.insert("k", "v".repeat(length)).unwrap();
                }
                let before = builder.len();
                builder.push(&message);
                assert_eq!(builder.len() - before, BatchBuilder::bytes_of(&message));
            }
        }
    }

    #[test]
    fn what_does_not_shrink_is_stored_plain() {
        let mut state = 1u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(10_000)
        .collect();
        let mut builder = BatchBuilder::new();
        builder.push(&Message::new(noise));
        assert_eq!(builder.finish(Compression::default()).codec, CODEC_PLAIN);
    }

    #[test]
    fn damage_and_lies_are_refused() {
        let good = packed(Compression::default());
        let mut bad = good.clone();
        bad.payload_crc ^= 1;
        assert_eq!(bad.verify(), Err(BlockError::Checksum));
        for (count, index_length, uncompressed_length) in [
            (good.count + 1, good.index_length, good.uncompressed_length),
            (good.count - 1, good.index_length, good.uncompressed_length),
            (good.count, good.index_length - 1, good.uncompressed_length),
            (good.count, good.index_length + 1, good.uncompressed_length),
            (good.count, good.index_length, good.uncompressed_length - 1),
            (good.count, good.index_length, good.uncompressed_length + 1),
            (good.count, good.index_length, u32::MAX),
            (0, good.index_length, good.uncompressed_length),
        ] {
            let bad = PackedBatch { count, index_length, uncompressed_length, ..good.clone() };
            assert!(bad.verify().is_err(), "{count} {index_length} {uncompressed_length}");
        }
        for codec in [0, 2, 255] {
            assert!(PackedBatch { codec, ..good.clone() }.verify().is_err());
        }
    }

    /// One-shot decompression takes any window, so a frame with a large one would be stored and then refused by every consumer
    /// that decompresses as a stream.
    #[test]
    fn a_frame_with_a_window_over_the_limit_is_refused() {
        let mut index = Vec::new();
        index.put_varint(20 << 20);
        index.put_u8(0);
        let mut block = index.clone();
        block.resize(index.len() + (20 << 20), b'x');
        for (window_log, is_allowed) in [(WINDOW_LOG_MAX, true), (WINDOW_LOG_MAX + 1, false)] {
            let mut context = CCtx::create();
            context.set_parameter(CParameter::WindowLog(window_log)).unwrap();
            let mut frame = Vec::with_capacity(1 << 20);
            context.compress2(&mut frame, &block).unwrap();
            let packed = PackedBatch {
                count: 1,
                index_length: index.len() as u32,
                uncompressed_length: block.len() as u32,
                codec: CODEC_ZSTD,
                payload_crc: crc32fast::hash(&frame),
                payload: Bytes::from(frame),
            };
            assert_eq!(packed.verify().is_ok(), is_allowed, "{window_log}");
        }
    }

    #[test]
    fn a_frame_with_bytes_behind_it_or_cut_short_is_refused() {
        let good = packed(Compression::default());
        let mut longer = good.payload.to_vec();
        longer.push(0);
        let cut = good.payload.slice(..good.payload.len() - 1);
        for payload in [Bytes::from(longer), cut] {
            let payload_crc = crc32fast::hash(&payload);
            assert!(PackedBatch { payload, payload_crc, ..good.clone() }.verify().is_err());
        }
    }
}
