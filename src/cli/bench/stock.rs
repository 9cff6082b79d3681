//! The messages of one connection, made before the clock starts: a push only writes stamps into frames that are there already, so
//! that the load costs little beside the server.

use anyhow::{Context, Result};
use fanlog::codec::Reader;
use fanlog::filter::Filter;
use fanlog::model::{Compression, PushItem, PushRequest};
use fanlog::protocol::{HEADER_BYTES, LENGTH_BYTES, encode_call};
use fanlog::record::{Attributes, AttributesRef, BatchBuilder, Message};

use super::payload::{BUCKETS, Content, Samples, Stamp, bucket_position, content_crc, put_bucket};

/// Samples that a connection has at least, unless they are too large.
const SAMPLES_MIN: usize = 256;
/// Bytes of samples that a connection has at most, unless one push is larger.
const SAMPLE_BYTES_MAX: usize = 1 << 20;

/// What a stock is made of.
#[derive(Debug, Clone)]
pub struct StockOptions {
    /// The queue that is pushed to.
    pub queue: String,
    /// Messages of a push.
    pub batch: usize,
    /// Bytes of a payload.
    pub size: usize,
    /// What payloads are.
    pub content: Content,
    /// Whether messages have attributes.
    pub has_attributes: bool,
    /// Pack on this side, and how.
    pub pack: Option<Compression>,
}

/// A message without its stamp.
#[derive(Debug)]
struct Slot {
    message: Message,
    content_crc: u32,
}

/// The messages of one connection.
#[derive(Debug)]
pub struct Stock {
    options: StockOptions,
    slots: Vec<Slot>,
    /// A frame for each stretch of `batch` slots; none when packing.
    frames: Vec<PushFrame>,
    scratch: Vec<u8>,
}

/// A push, encoded, and where in it things stand.
#[derive(Debug)]
struct PushFrame {
    bytes: Vec<u8>,
    places: Vec<Place>,
}

/// Where in a frame the parts of a message stand that are its own.
#[derive(Debug, Clone, Copy)]
struct Place {
    payload: usize,
    bucket: Option<usize>,
}

/// The name of a partition: always as long, so that it can be written into a frame.
pub fn partition_name(partition: u32) -> String {
    format!("p{partition:07}")
}

/// The number in a partition's name, if it is one of ours.
pub fn partition_number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix('p')?;
    (digits.len() >= 7).then(|| digits.parse().ok())?
}

impl Stock {
    /// The stock of a connection.
    pub fn new(connection: u16, options: StockOptions) -> Result<Self> {
        let mut samples = Samples::new(u64::from(connection) << 32, options.size, options.content);
        let count = slot_count(options.batch, options.size);
        let slots = (0..count)
            .map(|_| {
                let sample = samples.sample();
                let attributes = if options.has_attributes { sample.attributes } else { Attributes::new() };
                let content_crc = content_crc(&sample.payload);
                Slot { message: Message { transaction_id: None, attributes, payload: sample.payload }, content_crc }
            })
            .collect();
        let mut stock = Self { options, slots, frames: Vec::new(), scratch: Vec::new() };
        if stock.options.pack.is_none() {
            let batch = stock.options.batch;
            stock.frames = (0..count / batch).map(|variant| stock.push_frame(variant * batch, batch)).collect::<Result<_>>()?;
        }
        Ok(stock)
    }

    /// Whether a filter takes each message, by place: that of a sequence number is its remainder by their count.
    pub fn takes(&self, filter: &Filter) -> Vec<bool> {
        let buckets = if self.options.has_attributes { BUCKETS as usize } else { 1 };
        (0..least_common_multiple(self.slots.len(), buckets))
            .zip(0u32..)
            .map(|(place, sequence)| {
                let attributes = self.slots[place % self.slots.len()].attributes(sequence);
                AttributesRef::parse(&attributes).is_ok_and(|attributes| filter.matches(attributes))
            })
            .collect()
    }

    /// Payloads of one push, as samples for compression.
    pub fn sample_batch(&self) -> BatchBuilder {
        let batch = &self.slots[..self.options.batch];
        let mut builder = BatchBuilder::with_capacity(batch.len(), batch.len() * self.options.size);
        let mut payload = Vec::new();
        for (slot, sequence) in batch.iter().zip(0u32..) {
            payload.clear();
            payload.extend_from_slice(&slot.message.payload);
            Stamp { run: 0x5eed_5eed, connection: 0, sequence, sent_ns: 1_000_000_000 }.write(slot.content_crc, &mut payload);
            push_to(&mut builder, &slot.attributes(sequence), &payload);
        }
        builder
    }

    /// The frame of a push of `count` messages, the first of which has this stamp. `count` is below a whole batch only in the last
    /// push, so that a sequence number always means the same message.
    pub fn frame(&mut self, correlation_id: u32, partition: u32, first: Stamp, count: usize) -> Result<&[u8]> {
        let start = first.sequence as usize % self.slots.len();
        if let Some(compression) = self.options.pack {
            return self.packed(correlation_id, partition, first, count, compression);
        }
        let mut frame = if count == self.options.batch {
            std::mem::replace(&mut self.frames[start / count], PushFrame { bytes: Vec::new(), places: Vec::new() })
        } else {
            self.push_frame(start, count)?
        };
        put_correlation_id(&mut frame.bytes, correlation_id);
        let name = partition_name(partition);
        let name_start = LENGTH_BYTES + HEADER_BYTES + 4 + self.options.queue.len() + 4;
        frame.bytes[name_start..name_start + name.len()].copy_from_slice(name.as_bytes());
        for ((slot, place), index) in self.slots[start..].iter().zip(&frame.places).zip(0u32..) {
            let stamp = Stamp { sequence: first.sequence.wrapping_add(index), ..first };
            stamp.write(slot.content_crc, &mut frame.bytes[place.payload..place.payload + self.options.size]);
            if let Some(position) = place.bucket {
                put_bucket(&mut frame.bytes, position, stamp.sequence);
            }
        }
        if count == self.options.batch {
            self.frames[start / count] = frame;
            return Ok(&self.frames[start / count].bytes);
        }
        self.scratch = frame.bytes;
        Ok(&self.scratch)
    }

    fn packed(
        &mut self,
        correlation_id: u32,
        partition: u32,
        first: Stamp,
        count: usize,
        compression: Compression,
    ) -> Result<&[u8]> {
        let start = first.sequence as usize % self.slots.len();
        let mut builder = BatchBuilder::with_capacity(count, count * self.options.size);
        let mut payload = Vec::with_capacity(self.options.size);
        for (slot, index) in self.slots[start..start + count].iter().zip(0u32..) {
            payload.clear();
            payload.extend_from_slice(&slot.message.payload);
            let stamp = Stamp { sequence: first.sequence.wrapping_add(index), ..first };
            stamp.write(slot.content_crc, &mut payload);
            push_to(&mut builder, &slot.attributes(stamp.sequence), &payload);
        }
        let items = PushItem::Packed(builder.finish(compression));
        let request =
            PushRequest { queue: self.options.queue.clone(), partition: partition_name(partition), items, producer: None };
        self.scratch.clear();
        for piece in encode_call(&request, correlation_id).into_pieces() {
            self.scratch.extend_from_slice(&piece);
        }
        Ok(&self.scratch)
    }

    fn push_frame(&self, start: usize, count: usize) -> Result<PushFrame> {
        let messages: Vec<Message> = self.slots[start..start + count].iter().map(|slot| slot.message.clone()).collect();
        let request = PushRequest {
            queue: self.options.queue.clone(),
            partition: partition_name(0),
            items: PushItem::Messages(messages),
            producer: None,
        };
        let bytes = Vec::from(encode_call(&request, 0).into_bytes());
        let places = places(&bytes, count).context("a push that does not read as it was written")?;
        Ok(PushFrame { bytes, places })
    }
}

impl Slot {
    /// The encoded attributes of the message when it has this sequence number.
    fn attributes(&self, sequence: u32) -> Vec<u8> {
        let mut bytes = self.message.attributes.as_bytes().to_vec();
        if let Some(position) = bucket_position(&bytes) {
            put_bucket(&mut bytes, position, sequence);
        }
        bytes
    }
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    a / divisor * b
}

/// Where the messages of a push stand in its frame.
fn places(frame: &[u8], count: usize) -> Option<Vec<Place>> {
    fn sized<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
        let length = reader.u32().ok()? as usize;
        reader.bytes(length).ok()
    }
    let mut reader = Reader::new(frame);
    reader.bytes(LENGTH_BYTES + HEADER_BYTES).ok()?;
    sized(&mut reader)?;
    sized(&mut reader)?;
    // No producer, plain messages, their count; each without a transaction id.
    reader.bytes(2 + 4).ok()?;
    let mut places = Vec::with_capacity(count);
    for _ in 0..count {
        reader.u8().ok()?;
        let attributes = sized(&mut reader)?;
        let attributes_end = frame.len() - reader.remaining();
        let bucket = bucket_position(attributes).map(|position| attributes_end - attributes.len() + position);
        let payload = sized(&mut reader)?;
        places.push(Place { payload: frame.len() - reader.remaining() - payload.len(), bucket });
    }
    (reader.remaining() == 0).then_some(places)
}

fn push_to(builder: &mut BatchBuilder, attributes: &[u8], payload: &[u8]) {
    builder.push_parts(None, Some(attributes).filter(|attributes| !attributes.is_empty()), payload);
}

/// Writes the correlation id into a frame.
pub fn put_correlation_id(frame: &mut [u8], correlation_id: u32) {
    if let Some(place) = frame.get_mut(LENGTH_BYTES + 4..LENGTH_BYTES + 8) {
        place.copy_from_slice(&correlation_id.to_le_bytes());
    }
}

/// Whole batches, two at least unless they are large.
fn slot_count(batch: usize, size: usize) -> usize {
    let wanted = SAMPLES_MIN.div_ceil(batch).max(2);
    let affordable = SAMPLE_BYTES_MAX / (batch * size).max(1);
    batch * wanted.min(affordable).max(1)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use fanlog::protocol::{Frame, Request};

    use super::super::payload::Reading;
    use super::*;

    fn pushed(frame: &[u8]) -> (u32, PushRequest) {
        let frame = Frame::decode(&Bytes::copy_from_slice(&frame[LENGTH_BYTES..])).unwrap();
        let Request::Push(request) = Request::decode(frame.operation, &frame.body).unwrap() else { panic!() };
        (frame.correlation_id, request)
    }

    fn options(pack: Option<Compression>) -> StockOptions {
        StockOptions { queue: "orders".to_owned(), batch: 3, size: 200, content: Content::Json, has_attributes: true, pack }
    }

    #[test]
    fn a_frame_is_the_push_that_it_should_be() {
        let mut stock = Stock::new(5, options(None)).unwrap();
        let slots = stock.slots.len();
        let takes = stock.takes(&Filter::parse(":bucket = \"0004\"").unwrap());
        assert!(takes.len().is_multiple_of(10_000));
        assert_eq!(takes.iter().filter(|&&takes| takes).count(), takes.len() / 10_000);
        for (first, count) in [(0u32, 3usize), (3, 3), (3 * slots as u32 + 6, 3), (9, 1)] {
            let stamp = Stamp { run: 1, connection: 5, sequence: first, sent_ns: 77 };
            let (correlation_id, request) = pushed(stock.frame(9, 1234, stamp, count).unwrap());
            assert_eq!((correlation_id, request.queue.as_str(), request.partition.as_str()), (9, "orders", "p0001234"));
            let PushItem::Messages(messages) = request.items else { panic!() };
            assert_eq!(messages.len(), count);
            for (message, sequence) in messages.iter().zip(first..) {
                assert_eq!(Stamp::read(&message.payload), Reading::Whole(Stamp { sequence, ..stamp }));
                assert_eq!(message.attributes.as_bytes(), stock.slots[sequence as usize % slots].attributes(sequence));
                let bucket = message.attributes.get("bucket").map(|bucket| bucket.as_str().to_owned());
                assert_eq!(bucket, Some(format!("{:04}", sequence % BUCKETS)));
                assert_eq!(takes[sequence as usize % takes.len()], sequence % BUCKETS == 4);
            }
        }
    }

    #[test]
    fn a_packed_push_verifies() {
        let mut stock = Stock::new(5, options(Some(Compression::default()))).unwrap();
        let stamp = Stamp { run: 1, connection: 5, sequence: 3, sent_ns: 77 };
        let (_, request) = pushed(stock.frame(2, 0, stamp, 3).unwrap());
        let PushItem::Packed(batch) = request.items else { panic!() };
        assert_eq!(batch.count, 3);
        batch.verify().unwrap();
    }

    #[test]
    fn names_of_partitions_are_read_back() {
        for number in [0, 7, 9_999_999] {
            assert_eq!(partition_number(&partition_name(number)), Some(number));
            assert_eq!(partition_name(number).len(), 8);
        }
        for foreign in ["", "p", "p12", "q0000001", "p000000x"] {
            assert_eq!(partition_number(foreign), None);
        }
    }
}
