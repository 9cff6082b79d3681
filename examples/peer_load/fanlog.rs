//! fanlog's own protocol, frames made by hand from protocol.md: a push of messages into a partition of the connection's own, a pop
//! that moves the cursor as it hands out and takes batches as they are stored.

use std::io::Write;
use std::net::TcpStream;

use bytes::Bytes;
use fanlog::record::StoredBatch;

use super::payload::{Content, Samples};
use super::{Order, Outcome, Peer, Skim, Work, group, little_endian_u32, little_endian_u64, read_until};

const HELLO: u16 = 0x0001;
const PUSH: u16 = 0x0101;
const POP: u16 = 0x0202;
const ACK: u16 = 0x0203;
/// The header of a frame, its length included.
const HEADER: usize = 12;
/// What of an answer is looked at: all of a push's, and a pop's up to the range of its claim.
const HEAD: usize = 512;
const SHORT: &str = "an answer ends early";
/// Bytes of requests that a connection makes beforehand, unless one is larger; they go in turn, so that what is compressed differs.
const REQUEST_BYTES_MAX: usize = 2 << 20;

pub struct Fanlog {
    work: Work,
    requests: Vec<Vec<u8>>,
    turn: usize,
    skim: Skim,
    /// With `Work::PopDecoded`: the answer as far as it has come.
    answer: Vec<u8>,
    next_offset: Option<u64>,
    has_answered: bool,
    /// With `Work::Ack`: the offset to acknowledge, and where it stands in the request.
    next_ack: (u64, usize),
}

/// Builds frames: numbers are little-endian, texts have a length of four bytes.
struct Builder(Vec<u8>);

impl Builder {
    fn new(operation: u16) -> Self {
        // The length comes last; no flags; one request is in flight, so the correlation id is always the same.
        Self([&[0; 4], &operation.to_le_bytes()[..], &[0; 2], &1u32.to_le_bytes()].concat())
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u8(self, value: u8) -> Self {
        self.bytes(&[value])
    }

    fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    fn text(self, text: &[u8]) -> Self {
        self.u32(text.len() as u32).bytes(text)
    }

    fn framed(mut self) -> Vec<u8> {
        let length = self.0.len() as u32 - 4;
        self.0[..4].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

fn frame_length(bytes: &[u8]) -> Option<usize> {
    Some(little_endian_u32(bytes, 0)? as usize + 4)
}

impl Fanlog {
    pub fn open(mut stream: &TcpStream, order: &Order, number: usize) -> Outcome<Self> {
        let hello = Builder::new(HELLO).bytes(b"FANL").bytes(&[1, 0, 1, 0]).text(b"peer_load").text(b"").bytes(&[0; 8]);
        stream.write_all(&hello.framed())?;
        let answer = read_until(stream, |answer| frame_length(answer).is_some_and(|length| answer.len() >= length))?;
        check(&answer)?;
        let mut next_ack = (0, 0);
        let requests = match order.work {
            Work::Push => pushes(order, number),
            Work::Pop | Work::PopDecoded => vec![pop(order, &group())],
            Work::Ack => {
                stream.write_all(&pop_with_lease(number))?;
                let answer = read_until(stream, |answer| frame_length(answer).is_some_and(|length| answer.len() >= length))?;
                let claim = claim_of(&answer)?.ok_or("there is nothing to acknowledge")?;
                let request = ack(&answer, &claim)?;
                // Behind the offset come verb, reason and delay.
                next_ack = (claim.first, request.len() - 8 - 1 - 4 - 8);
                vec![request]
            }
            Work::Fanout => vec![pop(order, &format!("{}-{number}", group()))],
        };
        Ok(Self {
            work: order.work,
            requests,
            turn: 0,
            skim: Skim::new(HEAD),
            answer: Vec::new(),
            next_offset: None,
            has_answered: false,
            next_ack,
        })
    }

    /// Opens every batch that has come in full and looks at each message.
    fn decode(&mut self, bytes: &[u8]) -> Outcome<usize> {
        self.answer.extend_from_slice(bytes);
        if frame_length(&self.answer).is_none_or(|length| self.answer.len() < length) {
            return Ok(0);
        }
        self.has_answered = true;
        let answer = Bytes::from(std::mem::take(&mut self.answer));
        check(&answer)?;
        let Some(claim) = claim_of(&answer)? else { return Ok(0) };
        let batches = little_endian_u32(&answer, claim.batches).ok_or(SHORT)?;
        let (mut place, mut messages) = (claim.batches + 4, 0);
        for _ in 0..batches {
            let (Some(0), Some(length)) = (answer.get(place), little_endian_u32(&answer, place + 1)) else {
                return Err("a batch did not come whole".into());
            };
            let record = place + 5..place + 5 + length as usize;
            place = record.end;
            let batch = StoredBatch::parse(answer.slice(record))?.open()?;
            for entry in batch.entries()? {
                std::hint::black_box(batch.payload(&entry?));
                messages += 1;
            }
        }
        if messages == claim.messages {
            Ok(messages)
        } else {
            Err(format!("{messages} of {} messages came", claim.messages).into())
        }
    }
}

impl Peer for Fanlog {
    fn request(&mut self) -> &[u8] {
        self.has_answered = false;
        self.turn = (self.turn + 1) % self.requests.len();
        if self.work == Work::Ack {
            let (offset, place) = &mut self.next_ack;
            self.requests[0][*place..*place + 8].copy_from_slice(&offset.to_le_bytes());
            *offset += 1;
        }
        &self.requests[self.turn]
    }

    fn take(&mut self, bytes: &[u8]) -> Outcome<usize> {
        if self.work == Work::PopDecoded {
            return self.decode(bytes);
        }
        let (work, next_offset, has_answered) = (self.work, &mut self.next_offset, &mut self.has_answered);
        let mut done = 0;
        self.skim.take(bytes, frame_length, |head| {
            *has_answered = true;
            done += count(work, next_offset, head)?;
            Ok(())
        })?;
        Ok(done)
    }

    fn has_answered(&self) -> bool {
        self.has_answered
    }
}

/// Pushes with messages of their own, as many as are kept ready.
fn pushes(order: &Order, number: usize) -> Vec<Vec<u8>> {
    let mut samples = Samples::new(number as u64 + 1, order.size, Content::Json);
    let fitting = (REQUEST_BYTES_MAX / (order.size * order.batch)).clamp(1, 64);
    let push = |_| {
        let mut frame = Builder::new(PUSH).text(b"bench").text(number.to_string().as_bytes()).u8(0).u8(0).u32(order.batch as u32);
        for _ in 0..order.batch {
            frame = frame.u8(0).u32(0).text(&samples.sample().payload);
        }
        frame.framed()
    };
    (0..fitting).map(push).collect()
}

/// A pop of the queue for a group, from the beginning on, without a lease; the server waits for messages for a second at most.
fn pop(order: &Order, group: &str) -> Vec<u8> {
    let (no_lease, auto_ack, from_beginning, ordered) = (0, 1, [1, 0], 0);
    let frame = Builder::new(POP).u8(1).text(b"bench").u8(1).text(group.as_bytes()).u32(order.batch as u32).u32(64 << 20).u32(1);
    frame.u8(no_lease).u8(auto_ack).bytes(&from_beginning).u8(ordered).u32(1000).framed()
}

/// Takes what there is in the connection's partition, with a lease that lasts for the run.
fn pop_with_lease(number: usize) -> Vec<u8> {
    let frame = Builder::new(POP).u8(0).text(b"bench").text(number.to_string().as_bytes()).u8(1).text(group().as_bytes());
    let frame = frame.u32(u32::MAX).u32(32 << 20).u32(1).u8(1).bytes(&600_000u64.to_le_bytes());
    let (no_auto_ack, from_beginning, ordered) = (0, [1, 0], 0);
    frame.u8(no_auto_ack).bytes(&from_beginning).u8(ordered).u32(1000).framed()
}

/// An acknowledgement of one message as done; its offset is still to be written.
fn ack(answer: &[u8], claim: &Claim) -> Outcome<Vec<u8>> {
    let lease_length = little_endian_u32(answer, HEADER).ok_or(SHORT)? as usize;
    let lease = answer.get(HEADER + 4..HEADER + 4 + lease_length).ok_or(SHORT)?;
    let frame = Builder::new(ACK).text(b"bench").u32(claim.partition).u8(1).text(group().as_bytes()).text(lease).u32(1);
    Ok(frame.u8(0).bytes(&[0; 8]).u8(0).text(b"").bytes(&[0; 8]).framed())
}

fn check(answer: &[u8]) -> Outcome<()> {
    match answer.get(6) {
        Some(1) => Ok(()),
        // Number, two fields about retries, text.
        Some(3) => Err(String::from_utf8_lossy(answer.get(HEADER + 11..).unwrap_or_default()).into()),
        _ => Err("the server sent something else than an answer".into()),
    }
}

/// Messages that an answer stores or delivers.
fn count(work: Work, next_offset: &mut Option<u64>, head: &[u8]) -> Outcome<usize> {
    check(head)?;
    if work == Work::Ack {
        return acknowledged(head);
    }
    if work != Work::Push {
        return Ok(claim_of(head)?.map_or(0, |claim| claim.messages));
    }
    // Promise, partition number, time; all stored, from an offset on, so many.
    let results = HEADER + 1 + 4 + 8;
    let (Some(0), Some(base), Some(count)) =
        (head.get(results), little_endian_u64(head, results + 1), little_endian_u32(head, results + 9))
    else {
        return Err("a push was not stored as it came".into());
    };
    if next_offset.is_some_and(|next| next != base) {
        return Err(format!("offset {base} does not follow").into());
    }
    *next_offset = Some(base + u64::from(count));
    Ok(count as usize)
}

/// One outcome, not refused, of a message that was not done before, behind promise, cursor and whether the lease is over.
fn acknowledged(head: &[u8]) -> Outcome<usize> {
    let outcomes = HEADER + 1 + 8 + 1;
    match (little_endian_u32(head, outcomes), head.get(outcomes + 4..outcomes + 6)) {
        (Some(1), Some([0, 0])) => Ok(1),
        _ => Err("an acknowledgement had no effect".into()),
    }
}

/// The one claim of an answer.
struct Claim {
    partition: u32,
    first: u64,
    messages: usize,
    /// Where the list of batches begins.
    batches: usize,
}

fn claim_of(head: &[u8]) -> Outcome<Option<Claim>> {
    let text = |place: usize| Some(place + 4 + little_endian_u32(head, place)? as usize);
    let find = || {
        let claims = text(HEADER)? + 8;
        if little_endian_u32(head, claims)? == 0 {
            return Some(None);
        }
        // Queue, partition, its number, incarnation; the range; deliveries, the last error, what was lost.
        let partition = text(text(claims + 4)?)?;
        let range = partition + 4 + 8;
        let (first, last) = (little_endian_u64(head, range)?, little_endian_u64(head, range + 8)?);
        let lost = text(range + 16 + 4)?;
        let batches = lost + if *head.get(lost)? == 0 { 1 } else { 17 };
        let messages = usize::try_from(last.checked_sub(first)?).ok()? + 1;
        Some(Some(Claim { partition: little_endian_u32(head, partition)?, first, messages, batches }))
    };
    find().ok_or_else(|| SHORT.into())
}
