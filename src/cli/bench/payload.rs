//! What the messages of a measurement hold: a stamp that proves them, and content that looks like somebody's orders.
//!
//! ```text
//! {"id":"rrrrrrrrccccnnnnnnnnttttttttttttxxxxxxxx","type":"order.paid",...}
//! ```
//!
//! r is the run, c the connection that pushed, n its count of messages, t the time of sending in nanoseconds since the run began
//! and x a checksum over all of it; hexadecimal digits each.

use bytes::Bytes;
use fanlog::record::Attributes;

/// The attribute `bucket` counts the messages of a connection in four digits, from 0000 to 9999 and again: a filter takes exactly one
/// message in 10, 100, 1,000 or 10,000 by it.
pub const BUCKETS: u32 = 10_000;
const BUCKET_ENTRY: &[u8] = b"\x06bucket\x01\x04";
const BUCKET_DIGITS: usize = 4;

const PREFIX: &[u8] = b"{\"id\":\"";
const STAMP_START: usize = PREFIX.len();
const STAMP_END: usize = STAMP_START + 40;
/// The smallest message: a stamp and a little content.
pub const PAYLOAD_BYTES_MIN: usize = 64;

/// What the content is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Content {
    /// Orders in JSON, which compress as such things do
    Json,
    /// Random bytes, which do not compress
    Random,
}

/// Who pushed a message, as which one, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Tells this run's messages from others.
    pub run: u32,
    /// The connection that pushed it.
    pub connection: u16,
    /// How many messages that connection had pushed before.
    pub sequence: u32,
    /// Nanoseconds from the run's beginning to the time that it was sent, or should have been.
    pub sent_ns: u64,
}

/// What is at the place of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// A message as it was pushed.
    Whole(Stamp),
    /// No message of ours, or one that was changed.
    Altered,
}

impl Stamp {
    /// Writes the stamp into a payload whose content has this checksum.
    pub fn write(&self, content_crc: u32, payload: &mut [u8]) {
        let Some(target) = payload.get_mut(STAMP_START..STAMP_END) else { return };
        put_hex(&mut target[0..8], self.run.into());
        put_hex(&mut target[8..12], self.connection.into());
        put_hex(&mut target[12..20], self.sequence.into());
        put_hex(&mut target[20..32], self.sent_ns);
        put_hex(&mut target[32..40], (content_crc ^ self.fold()).into());
    }

    /// Reads and proves a payload.
    pub fn read(payload: &[u8]) -> Reading {
        Self::parse(payload).map_or(Reading::Altered, Reading::Whole)
    }

    fn parse(payload: &[u8]) -> Option<Self> {
        if !payload.starts_with(PREFIX) {
            return None;
        }
        let stamp = payload.get(STAMP_START..STAMP_END)?;
        let read = Self {
            run: u32::try_from(hex(&stamp[0..8])?).ok()?,
            connection: u16::try_from(hex(&stamp[8..12])?).ok()?,
            sequence: u32::try_from(hex(&stamp[12..20])?).ok()?,
            sent_ns: hex(&stamp[20..32])?,
        };
        let check = u64::from(content_crc(payload) ^ read.fold());
        (hex(&stamp[32..40])? == check).then_some(read)
    }

    fn fold(&self) -> u32 {
        let ids = u64::from(self.run) << 32 | u64::from(self.sequence);
        let rest = u64::from(self.connection) << 48 | self.sent_ns;
        let mixed = (ids ^ rest.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ (mixed >> 32)) as u32
    }
}

/// The checksum of what stands behind the stamp.
pub fn content_crc(payload: &[u8]) -> u32 {
    crc32fast::hash(payload.get(STAMP_END..).unwrap_or_default())
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

fn put_hex(target: &mut [u8], value: u64) {
    let mut rest = value;
    for byte in target.iter_mut().rev() {
        *byte = DIGITS[(rest & 15) as usize];
        rest >>= 4;
    }
}

fn hex(text: &[u8]) -> Option<u64> {
    text.iter().try_fold(0u64, |value, &byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u64::from(digit))
    })
}

/// A message without its stamp.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The payload, with room for the stamp.
    pub payload: Bytes,
    /// The same facts for filters: `type`, `region`, `amount` and `customer`; and `bucket`, still to be written.
    pub attributes: Attributes,
}

const TYPES: [&str; 8] = [
    "order.created",
    "order.paid",
    "order.packed",
    "order.shipped",
    "order.returned",
    "invoice.sent",
    "invoice.paid",
    "customer.changed",
];
const REGIONS: [&str; 4] = ["eu-west", "eu-north", "us-east", "ap-south"];
const WORDS: [&str; 32] = [
    "please",
    "leave",
    "parcel",
    "with",
    "the",
    "neighbour",
    "at",
    "front",
    "door",
    "before",
    "noon",
    "call",
    "customer",
    "when",
    "ready",
    "gift",
    "wrap",
    "fragile",
    "second",
    "floor",
    "no",
    "signature",
    "needed",
    "deliver",
    "after",
    "work",
    "thank",
    "you",
    "invoice",
    "separately",
    "to",
    "office",
];

/// Makes samples, the same ones for the same seed.
#[derive(Debug)]
pub struct Samples {
    random: Random,
    size: usize,
    content: Content,
}

impl Samples {
    /// Samples of `size` bytes each, at least [`PAYLOAD_BYTES_MIN`].
    pub fn new(seed: u64, size: usize, content: Content) -> Self {
        Self { random: Random(seed), size: size.max(PAYLOAD_BYTES_MIN), content }
    }

    /// The next one.
    pub fn sample(&mut self) -> Sample {
        let kind = self.random.pick(&TYPES);
        let region = self.random.pick(&REGIONS);
        let cents = self.random.below(100_000);
        let customer = format!("c-{:07}", self.random.below(10_000_000));
        let mut text = Vec::with_capacity(self.size);
        text.extend_from_slice(PREFIX);
        text.resize(STAMP_END, b'0');
        text.push(b'"');
        match self.content {
            Content::Json => self.fill_json(&mut text, kind, region, cents, &customer),
            Content::Random => {
                while text.len() < self.size {
                    text.extend_from_slice(&self.random.next().to_le_bytes());
                }
                text.truncate(self.size);
            }
        }
        Sample { payload: text.into(), attributes: attributes(kind, region, cents, &customer) }
    }

    fn fill_json(&mut self, text: &mut Vec<u8>, kind: &str, region: &str, cents: u64, customer: &str) {
        const NOTE: &str = ",\"note\":\"";
        const END: &str = "\"}";
        let limit = self.size - NOTE.len() - END.len();
        let mut add = |field: String| {
            let fits = text.len() + field.len() <= limit;
            if fits {
                text.extend_from_slice(field.as_bytes());
            }
            fits
        };
        add(format!(",\"type\":\"{kind}\""));
        add(format!(",\"region\":\"{region}\""));
        add(format!(",\"amount\":{}.{:02}", cents / 100, cents % 100));
        add(format!(",\"customer\":\"{customer}\""));
        add(format!(
            ",\"created\":\"2026-01-{:02}T{:02}:{:02}:{:02}Z\"",
            1 + self.random.below(28),
            self.random.below(24),
            self.random.below(60),
            self.random.below(60)
        ));
        for line in 1..=self.size / 140 {
            let (sku, quantity, price) = (self.random.below(100_000), 1 + self.random.below(9), self.random.below(10_000));
            add(format!(
                ",\"line{line}\":{{\"sku\":\"A-{sku:05}\",\"quantity\":{quantity},\"price\":{}.{:02}}}",
                price / 100,
                price % 100
            ));
        }
        text.extend_from_slice(NOTE.as_bytes());
        let end = self.size - END.len();
        while text.len() < end {
            text.extend_from_slice(self.random.pick(&WORDS).as_bytes());
            text.push(b' ');
        }
        text.truncate(end);
        text.extend_from_slice(END.as_bytes());
    }
}

/// Where the digits of the bucket stand in encoded attributes.
pub fn bucket_position(attributes: &[u8]) -> Option<usize> {
    let entry = attributes.windows(BUCKET_ENTRY.len()).position(|window| window == BUCKET_ENTRY)?;
    Some(entry + BUCKET_ENTRY.len())
}

/// Writes the bucket of a message at its position.
pub fn put_bucket(bytes: &mut [u8], position: usize, sequence: u32) {
    let mut rest = sequence % BUCKETS;
    for byte in bytes[position..position + BUCKET_DIGITS].iter_mut().rev() {
        *byte = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

fn attributes(kind: &str, region: &str, cents: u64, customer: &str) -> Attributes {
    let mut attributes = Attributes::new();
    // These keys and values are within every limit.
    let _ = attributes.insert("type", kind);
    let _ = attributes.insert("region", region);
    let _ = attributes.insert("amount", i64::try_from(cents / 100).unwrap_or(0));
    let _ = attributes.insert("customer", customer);
    let _ = attributes.insert("bucket", "0000");
    attributes
}

/// Numbers that look random and are the same for the same seed.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[(self.next() % choices.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_json_of_exactly_the_size() {
        for size in [PAYLOAD_BYTES_MIN, 65, 100, 256, 1024, 16384] {
            let mut samples = Samples::new(7, size, Content::Json);
            for _ in 0..20 {
                let sample = samples.sample();
                assert_eq!(sample.payload.len(), size);
                serde_json::from_slice::<serde_json::Value>(&sample.payload).unwrap();
            }
            assert_eq!(Samples::new(7, size, Content::Random).sample().payload.len(), size);
        }
    }

    #[test]
    fn a_stamp_round_trips_and_every_flipped_bit_is_seen() {
        let mut payload = Samples::new(7, 100, Content::Json).sample().payload.to_vec();
        let stamp = Stamp { run: 0xdead_beef, connection: 0xfedc, sequence: 0x1234_5678, sent_ns: 0xa987_6543_210f };
        stamp.write(content_crc(&payload), &mut payload);
        assert_eq!(Stamp::read(&payload), Reading::Whole(stamp));
        for bit in 0..payload.len() * 8 {
            // A letter in the other case is no hexadecimal digit of ours.
            let mut bad = payload.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Stamp::read(&bad), Reading::Altered, "bit {bit}");
        }
        for cut in 0..payload.len() {
            assert_eq!(Stamp::read(&payload[..cut]), Reading::Altered);
        }
    }

    #[test]
    fn samples_are_the_same_for_the_same_seed() {
        let of = |seed| Samples::new(seed, 300, Content::Json).sample();
        assert_eq!(of(1).payload, of(1).payload);
        assert_ne!(of(1).payload, of(2).payload);
        assert_eq!(of(1).attributes.len(), 5);
        let mut bytes = of(1).attributes.as_bytes().to_vec();
        let position = bucket_position(&bytes).unwrap();
        put_bucket(&mut bytes, position, 30_042);
        let bucket = Attributes::decode(&bytes).unwrap().get("bucket").map(|value| value.as_str().to_owned());
        assert_eq!(bucket.as_deref(), Some("0042"));
    }
}
