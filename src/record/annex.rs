//! The annex of a stored batch: which pushes of which producers it holds, and which groups take which of its messages.
//! See "Annex" in `storage-format.md`.

use crate::codec::{Put, Reader, UnexpectedEnd};

use super::GroupId;

/// One push of a producer inside a batch, for recognising a resend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducerMark {
    /// The producer; never 0.
    pub producer_id: u64,
    /// Its epoch.
    pub epoch: u32,
    /// The push's sequence number in the partition.
    pub sequence: u32,
    /// Index of the push's first message in the batch.
    pub first_index: u32,
    /// Messages of the push in the batch.
    pub count: u32,
}

/// What a group takes of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matches {
    /// Nothing.
    None,
    /// Every message.
    All,
    /// The messages whose bit is set; bit `i % 8` of byte `i / 8` is message `i`. Neither all nor none.
    Some(Vec<u8>),
}

impl Matches {
    /// What the group takes of `count` messages, given an answer for each.
    pub fn collect(count: u32, mut takes: impl FnMut(u32) -> bool) -> Self {
        let mut bits = vec![0u8; (count as usize).div_ceil(8)];
        for index in (0..count).filter(|&index| takes(index)) {
            bits[index as usize / 8] |= 1 << (index % 8);
        }
        Self::from_bits(bits, count)
    }

    /// What the group takes of `count` messages, given a bit for each as in [`Matches::Some`] and no bit behind them.
    pub fn from_bits(bits: Vec<u8>, count: u32) -> Self {
        match bits.iter().map(|byte| byte.count_ones()).sum() {
            0 => Self::None,
            taken if taken == count => Self::All,
            _ => Self::Some(bits),
        }
    }

    /// Whether the group takes the message at `index`.
    pub fn takes(&self, index: u32) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Some(bits) => bits.get(index as usize / 8).is_some_and(|byte| byte & (1 << (index % 8)) != 0),
        }
    }

    /// How many of `count` messages the group takes.
    pub fn count(&self, count: u32) -> u32 {
        match self {
            Self::None => 0,
            Self::All => count,
            Self::Some(bits) => bits.iter().map(|byte| byte.count_ones()).sum(),
        }
    }
}

/// The annex of a batch. A group that is not in the match table takes every message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Annex {
    /// Pushes of producers, in order of their first index.
    pub producers: Vec<ProducerMark>,
    /// What each filtered or disabled group takes, in order of group number.
    pub matches: Vec<(GroupId, Matches)>,
}

impl Annex {
    /// What `group` takes; `None` if the table does not name it: every message, as far as this batch knows.
    pub fn matches_of(&self, group: GroupId) -> Option<&Matches> {
        self.matches.binary_search_by_key(&group, |entry| entry.0).ok().map(|at| &self.matches[at].1)
    }

    /// Appends the encoded annex; nothing at all if it is empty.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        if self.producers.is_empty() && self.matches.is_empty() {
            return;
        }
        bytes.put_varint(self.producers.len() as u64);
        for mark in &self.producers {
            bytes.put_u64(mark.producer_id);
            bytes.put_u32(mark.epoch);
            bytes.put_u32(mark.sequence);
            bytes.put_varint(u64::from(mark.first_index));
            bytes.put_varint(u64::from(mark.count));
        }
        bytes.put_varint(self.matches.len() as u64);
        for (group, matches) in &self.matches {
            bytes.put_varint(u64::from(*group));
            match matches {
                Matches::None => bytes.put_u8(0),
                Matches::All => bytes.put_u8(1),
                Matches::Some(bits) => {
                    bytes.put_u8(2);
                    bytes.put_bytes(bits);
                }
            }
        }
    }

    /// Decodes an annex of a batch of `count` messages.
    pub fn decode(bytes: &[u8], count: u32) -> Result<Self, UnexpectedEnd> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let mut reader = Reader::new(bytes);
        let mut annex = Self::default();
        for _ in 0..reader.length()? {
            let mark = ProducerMark {
                producer_id: reader.u64()?,
                epoch: reader.u32()?,
                sequence: reader.u32()?,
                first_index: small(reader.varint()?)?,
                count: small(reader.varint()?)?,
            };
            if mark.first_index.checked_add(mark.count).is_none_or(|end| end > count) {
                return Err(UnexpectedEnd);
            }
            annex.producers.push(mark);
        }
        for _ in 0..reader.length()? {
            let group = small(reader.varint()?)?;
            let matches = match reader.u8()? {
                0 => Matches::None,
                1 => Matches::All,
                2 => Matches::Some(bitmap(&mut reader, count)?),
                _ => return Err(UnexpectedEnd),
            };
            if annex.matches.last().is_some_and(|&(before, _)| before >= group) {
                return Err(UnexpectedEnd);
            }
            annex.matches.push((group, matches));
        }
        if reader.is_empty() { Ok(annex) } else { Err(UnexpectedEnd) }
    }
}

fn bitmap(reader: &mut Reader<'_>, count: u32) -> Result<Vec<u8>, UnexpectedEnd> {
    let bits = reader.bytes((count as usize).div_ceil(8))?;
    // A bit behind the last message would be counted as one.
    let has_stray_bits = !count.is_multiple_of(8) && bits.last().is_some_and(|last| last >> (count % 8) != 0);
    if has_stray_bits { Err(UnexpectedEnd) } else { Ok(bits.to_vec()) }
}

fn small(value: u64) -> Result<u32, UnexpectedEnd> {
    u32::try_from(value).map_err(|_| UnexpectedEnd)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annex() -> Annex {
        Annex {
            producers: vec![ProducerMark { producer_id: 9, epoch: 1, sequence: 300, first_index: 2, count: 8 }],
            matches: vec![(1, Matches::None), (3, Matches::All), (700, Matches::collect(10, |index| index % 2 == 0))],
        }
    }

    #[test]
    fn an_annex_round_trips_and_an_empty_one_takes_no_bytes() {
        let mut bytes = Vec::new();
        annex().encode(&mut bytes);
        assert_eq!(Annex::decode(&bytes, 10), Ok(annex()));
        for cut in 1..bytes.len() {
            assert!(Annex::decode(&bytes[..cut], 10).is_err(), "cut at {cut}");
        }
        let mut empty = Vec::new();
        Annex::default().encode(&mut empty);
        assert!(empty.is_empty());
        assert_eq!(Annex::decode(&empty, 10), Ok(Annex::default()));
    }

    #[test]
    fn bits_behind_the_last_message_are_refused() {
        let bytes = |bits: u8| [0, 1, 5, 2, bits];
        assert_eq!(Annex::decode(&bytes(0b101), 3).unwrap().matches_of(5), Some(&Matches::Some(vec![0b101])));
        assert!(Annex::decode(&bytes(0b1101), 3).is_err());
    }

    #[test]
    fn matches_are_collected_to_the_shortest_form() {
        assert_eq!(Matches::collect(9, |_| true), Matches::All);
        assert_eq!(Matches::collect(9, |_| false), Matches::None);
        let some = Matches::collect(9, |index| index == 8);
        assert!(some.takes(8) && !some.takes(7) && !some.takes(9) && !some.takes(1000));
        assert_eq!(some.count(9), 1);
    }
}
