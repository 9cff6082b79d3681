//! What can be done for a push before its turn comes: checks, filters, packing. Runs on the caller's thread, in parallel.

use std::time::Instant;

use bytes::Bytes;

use crate::format::index::id_hash;
use crate::model::{Compression, Error, ErrorCode, PackedBatch, PushItem, PushRequest};
use crate::record::{
    AttributeError, Attributes, AttributesRef, BLOCK_BYTES_MAX, BatchBuilder, DEFAULT_PARTITION, GroupId, IndexEntry, IndexWalk,
    Matches, Message, RECORD_BYTES_MAX, TRANSACTION_ID_BYTES_MAX, check_name,
};

use super::filters::FilterSet;

/// Pushes below this many bytes are packed by the committer, together with others for the same partition.
const SMALL_PUSH_BYTES: usize = 8 << 10;
/// The largest match table: with the largest block and the headers it fits in a record.
const TABLE_BYTES_MAX: usize = (RECORD_BYTES_MAX - BLOCK_BYTES_MAX) as usize - 4096;

/// A push that is ready to be given offsets.
#[derive(Debug)]
pub(super) struct Prepared {
    pub partition: String,
    pub content: Content,
    /// Messages that the request had.
    pub requested: u32,
    /// Messages that some group takes, by index in the request; `None` is all.
    pub kept: Option<Vec<u32>>,
    /// The others with their index, until it is committed: filters that changed meanwhile judge all of the push.
    dropped: Vec<(u32, Message)>,
    /// What groups take of the kept messages.
    pub matches: Vec<(GroupId, Matches)>,
    /// Own transaction ids of kept messages, with their index among the kept.
    pub ids: Vec<(u32, String)>,
    /// Which filters decided; `None` if that was settled before and no filter is asked again.
    pub filter_version: Option<u64>,
    pub producer: Option<(u64, u32, u32)>,
    /// Bytes that it takes in the log at most, without the batch header.
    pub bytes: usize,
    /// When the push was taken, to know how long its answer takes.
    pub taken_at: Instant,
    /// The uncompressed block of a batch that came packed, so that it is opened once.
    block: Option<Bytes>,
}

/// The messages of a prepared push.
#[derive(Debug)]
pub(super) enum Content {
    /// Still to be packed.
    Messages(Vec<Message>),
    /// Packed.
    Packed(PackedBatch),
}

impl Content {
    /// Messages in it.
    pub fn count(&self) -> u32 {
        match self {
            Self::Messages(messages) => messages.len() as u32,
            Self::Packed(packed) => packed.count,
        }
    }

    /// The messages, unpacked if they were packed.
    pub fn into_messages(self) -> Result<Vec<Message>, Error> {
        match self {
            Self::Messages(messages) => Ok(messages),
            Self::Packed(packed) => unpack(&packed),
        }
    }
}

/// Limits on what one push may bring.
#[derive(Debug, Clone, Copy)]
pub(super) struct PushLimits {
    pub message_bytes_max: usize,
    pub push_bytes_max: usize,
    pub messages_max: usize,
    /// Whether attributes may have reserved keys.
    pub may_mark: bool,
}

/// Checks a push and makes it ready. Nothing is stored if this fails.
pub(super) fn prepare(
    request: PushRequest,
    filters: &FilterSet,
    compression: Compression,
    limits: PushLimits,
) -> Result<Prepared, Error> {
    let taken_at = Instant::now();
    let partition = if request.partition.is_empty() { DEFAULT_PARTITION.to_owned() } else { request.partition };
    check_name(&partition)?;
    let producer = request.producer.filter(|producer| producer.0 != 0);
    let (content, block) = match request.items {
        PushItem::Messages(messages) => {
            check_messages(&messages, limits)?;
            (Content::Messages(messages), None)
        }
        PushItem::Packed(packed) => {
            let block = check_packed(&packed, limits)?;
            (Content::Packed(packed), Some(block))
        }
    };
    let mut prepared = Prepared {
        partition,
        requested: content.count(),
        content,
        kept: None,
        dropped: Vec::new(),
        matches: Vec::new(),
        ids: Vec::new(),
        filter_version: Some(filters.version),
        producer,
        bytes: 0,
        taken_at,
        block,
    };
    prepared.judge(filters)?;
    prepared.pack(compression);
    prepared.block = None;
    Ok(prepared)
}

impl Prepared {
    /// A push that was decided before, of which every message was dropped: its partition and the producer's number are left of it.
    pub fn nothing(partition: String, producer: Option<(u64, u32, u32)>) -> Self {
        Self {
            partition,
            requested: 0,
            content: Content::Messages(Vec::new()),
            kept: None,
            dropped: Vec::new(),
            matches: Vec::new(),
            ids: Vec::new(),
            filter_version: None,
            producer,
            bytes: 0,
            taken_at: Instant::now(),
            block: None,
        }
    }

    /// Lets the filters decide, also anew after they changed: all of the push by one set of filters. Messages that no group takes are
    /// taken out.
    pub fn judge(&mut self, filters: &FilterSet) -> Result<(), Error> {
        self.take_back_dropped()?;
        self.filter_version = Some(filters.version);
        let block;
        let decision = match &self.content {
            Content::Messages(messages) => filters.decide(messages.iter().map(|message| message.attributes.view())),
            Content::Packed(_) if filters.is_trivial() => filters.decide(std::iter::empty()),
            Content::Packed(packed) => {
                block = self.open(packed)?;
                let entries = entries_of(packed, &block)?;
                filters.decide(entries.iter().map(|entry| AttributesRef::checked(entry.attributes)))
            }
        };
        if decision.dropped.is_empty() {
            self.matches = decision.all_matches();
        } else {
            let content = std::mem::replace(&mut self.content, Content::Messages(Vec::new()));
            let is_dropped = |index: &u32| decision.dropped.binary_search(index).is_ok();
            let messages = (0u32..).zip(content.into_messages()?);
            let (dropped, remaining): (Vec<_>, Vec<_>) = messages.partition(|(index, _)| is_dropped(index));
            let (kept, remaining): (Vec<u32>, Vec<Message>) = remaining.into_iter().unzip();
            self.matches = decision.matches(&kept);
            self.content = Content::Messages(remaining);
            self.dropped = dropped;
            self.kept = Some(kept);
        }
        check_table(&self.matches)?;
        self.ids = self.own_ids()?;
        Ok(())
    }

    fn take_back_dropped(&mut self) -> Result<(), Error> {
        let Some(kept) = self.kept.take() else { return Ok(()) };
        let content = std::mem::replace(&mut self.content, Content::Messages(Vec::new()));
        let remaining = kept.into_iter().zip(content.into_messages()?);
        let mut all: Vec<(u32, Message)> = remaining.chain(std::mem::take(&mut self.dropped)).collect();
        all.sort_unstable_by_key(|entry| entry.0);
        self.content = Content::Messages(all.into_iter().map(|entry| entry.1).collect());
        Ok(())
    }

    /// Takes the decision that was made when it was pushed in the place of any other.
    pub fn keep_decision(&mut self, matches: Vec<(GroupId, Matches)>) {
        self.filter_version = None;
        self.matches = matches;
    }

    /// Packs what is worth it here; small pushes wait for the committer.
    pub fn pack(&mut self, compression: Compression) {
        if let Content::Messages(messages) = &self.content {
            let bytes: usize = messages.iter().map(BatchBuilder::bytes_of).sum();
            if bytes >= SMALL_PUSH_BYTES {
                self.content = Content::Packed(pack(messages, compression));
            }
            self.bytes = bytes;
        }
        if let Content::Packed(packed) = &self.content {
            self.bytes = packed.payload.len();
        }
        self.bytes += table_bytes(&self.matches) + self.partition.len() + 256;
    }

    /// Keeps only some of the kept messages, by index among them: the others turned out to be duplicates.
    pub fn retain(&mut self, keep: &[u32], compression: Compression) -> Result<(), Error> {
        let content = std::mem::replace(&mut self.content, Content::Messages(Vec::new()));
        let count = content.count();
        let mut messages: Vec<Option<Message>> = content.into_messages()?.into_iter().map(Some).collect();
        let remaining: Vec<Message> = keep.iter().filter_map(|&index| messages.get_mut(index as usize)?.take()).collect();
        for (_, matches) in &mut self.matches {
            let all = std::mem::replace(matches, Matches::None);
            *matches = Matches::collect(keep.len() as u32, |at| {
                keep.get(at as usize).is_some_and(|&index| index < count && all.takes(index))
            });
        }
        self.content = Content::Messages(remaining);
        self.ids = self.own_ids()?;
        self.pack(compression);
        Ok(())
    }

    fn open(&self, packed: &PackedBatch) -> Result<Bytes, Error> {
        match &self.block {
            Some(block) => Ok(block.clone()),
            None => Ok(packed.verify()?),
        }
    }

    fn own_ids(&self) -> Result<Vec<(u32, String)>, Error> {
        match &self.content {
            Content::Messages(messages) => {
                Ok((0u32..).zip(messages).filter_map(|(index, message)| Some((index, message.transaction_id.clone()?))).collect())
            }
            Content::Packed(packed) => {
                let block = self.open(packed)?;
                let entries = entries_of(packed, &block)?;
                let ids = (0u32..).zip(&entries).filter_map(|(index, entry)| Some((index, entry.transaction_id?.to_owned())));
                Ok(ids.collect())
            }
        }
    }

    /// Hashes of the own ids for the index.
    pub fn id_hashes(&self, partition: u32) -> Vec<(u64, u32)> {
        self.ids.iter().map(|(index, id)| (id_hash(partition, id.as_bytes()), *index)).collect()
    }
}

/// Packs messages into a batch.
pub(super) fn pack(messages: &[Message], compression: Compression) -> PackedBatch {
    let bytes = messages.iter().map(|message| message.payload.len()).sum();
    let mut builder = BatchBuilder::with_capacity(messages.len(), bytes);
    messages.iter().for_each(|message| builder.push(message));
    builder.finish(compression)
}

fn unpack(packed: &PackedBatch) -> Result<Vec<Message>, Error> {
    let block = packed.verify()?;
    let entries = entries_of(packed, &block)?;
    entries
        .iter()
        .map(|entry| {
            let attributes = if entry.attributes.is_empty() { Attributes::new() } else { Attributes::decode(entry.attributes)? };
            Ok(Message {
                transaction_id: entry.transaction_id.map(str::to_owned),
                attributes,
                payload: block.slice(entry.body_start..entry.body_start + entry.body_length),
            })
        })
        .collect()
}

fn entries_of<'a>(packed: &PackedBatch, block: &'a Bytes) -> Result<Vec<IndexEntry<'a>>, Error> {
    let walk = IndexWalk::new(block, packed.count, packed.index_length)?;
    Ok(walk.collect::<Result<Vec<_>, _>>()?)
}

fn check_messages(messages: &[Message], limits: PushLimits) -> Result<(), Error> {
    if messages.len() > limits.messages_max {
        let text = format!("push has {} messages, at most {} are allowed", messages.len(), limits.messages_max);
        return Err(Error::new(ErrorCode::TooLarge, text));
    }
    let (mut total, mut block) = (0usize, 0usize);
    for (index, message) in messages.iter().enumerate() {
        let size = message.size();
        if size > limits.message_bytes_max {
            let text = format!("message {index} has {size} bytes, at most {} are allowed", limits.message_bytes_max);
            return Err(Error::new(ErrorCode::TooLarge, text));
        }
        if message.transaction_id.as_ref().is_some_and(|id| id.is_empty() || id.len() > TRANSACTION_ID_BYTES_MAX) {
            let text = format!("transaction id of message {index} is empty or over {TRANSACTION_ID_BYTES_MAX} bytes");
            return Err(Error::new(ErrorCode::BadRequest, text));
        }
        check_keys(index, message.attributes.view(), limits)?;
        total = total.saturating_add(size);
        block = block.saturating_add(BatchBuilder::bytes_of(message));
    }
    check_total(total, limits)?;
    // Lengths and flags of many tiny attributes and messages are more than what they hold.
    if block > BLOCK_BYTES_MAX as usize {
        let text = format!("push takes {block} bytes when it is packed, at most {BLOCK_BYTES_MAX} are allowed");
        return Err(Error::new(ErrorCode::TooLarge, text));
    }
    Ok(())
}

/// Refuses keys that are the server's own.
fn check_keys(index: usize, attributes: AttributesRef<'_>, limits: PushLimits) -> Result<(), Error> {
    match attributes.reserved_key() {
        Some(key) if !limits.may_mark => {
            let error = AttributeError::Reserved { key: key.to_owned() };
            Err(Error::new(ErrorCode::BadAttribute, format!("message {index}: {error}")))
        }
        _ => Ok(()),
    }
}

/// Bytes of a match table at most.
fn table_bytes(matches: &[(GroupId, Matches)]) -> usize {
    matches.iter().map(|(_, matches)| 8 + if let Matches::Some(bits) = matches { bits.len() } else { 0 }).sum()
}

/// Refuses what would not fit in a record: very many messages for very many filtered groups.
fn check_table(matches: &[(GroupId, Matches)]) -> Result<(), Error> {
    let bytes = table_bytes(matches);
    if bytes > TABLE_BYTES_MAX {
        let text = format!("match table of the push for {} groups has {bytes} bytes; push fewer messages at once", matches.len());
        return Err(Error::new(ErrorCode::TooLarge, text));
    }
    Ok(())
}

fn check_packed(packed: &PackedBatch, limits: PushLimits) -> Result<Bytes, Error> {
    check_total(packed.uncompressed_length as usize, limits)?;
    if packed.count as usize > limits.messages_max {
        let text = format!("push has {} messages, at most {} are allowed", packed.count, limits.messages_max);
        return Err(Error::new(ErrorCode::TooLarge, text));
    }
    let block = packed.verify()?;
    for (index, entry) in entries_of(packed, &block)?.iter().enumerate() {
        let id = entry.transaction_id.map_or(0, str::len);
        let attributes = AttributesRef::checked(entry.attributes);
        check_keys(index, attributes, limits)?;
        let size = entry.body_length + attributes.size() + id;
        if size > limits.message_bytes_max {
            let text = format!("message {index} has {size} bytes, at most {} are allowed", limits.message_bytes_max);
            return Err(Error::new(ErrorCode::TooLarge, text));
        }
        if entry.transaction_id.is_some_and(str::is_empty) {
            return Err(Error::new(ErrorCode::BadRequest, format!("transaction id of message {index} is empty")));
        }
    }
    Ok(block)
}

fn check_total(total: usize, limits: PushLimits) -> Result<(), Error> {
    if total > limits.push_bytes_max {
        let text = format!("push has {total} bytes, at most {} are allowed", limits.push_bytes_max);
        return Err(Error::new(ErrorCode::TooLarge, text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Filter;

    /// Once a message that the old filters dropped stayed dropped, while those beside it were judged by the new ones.
    #[test]
    fn filters_that_changed_meanwhile_judge_all_of_the_push() {
        let filters = |version, text: &str| FilterSet::new(version, false, &[(1, Some(&Filter::parse(text).unwrap()))]);
        let message = |k: i64, size: usize| {
            let mut attributes = Attributes::new();
            attributes.insert("k", k).unwrap();
            Message { attributes, ..Message::new(vec![k as u8; size]) }
        };
        let limits = PushLimits { message_bytes_max: 1 << 20, push_bytes_max: 1 << 20, messages_max: 10, may_mark: false };
        for (size, is_packed) in [(1, false), (10_000, false), (10_000, true)] {
            let messages: Vec<_> = [1, 2, 3, 2].map(|k| message(k, size)).to_vec();
            let items = if is_packed {
                PushItem::Packed(pack(&messages, Compression::None))
            } else {
                PushItem::Messages(messages.clone())
            };
            let request = PushRequest { items, ..PushRequest::default() };
            let mut push = prepare(request, &filters(1, ":k = 1"), Compression::None, limits).unwrap();
            for (version, text, kept, takes) in [
                (1, ":k = 1", Some(vec![0]), Matches::All),
                (2, ":k = 2", Some(vec![1, 3]), Matches::All),
                (3, ":k > 9", Some(vec![]), Matches::None),
                (4, ":k > 0", None, Matches::All),
                (5, ":k >= 2", Some(vec![1, 2, 3]), Matches::All),
            ] {
                push.judge(&filters(version, text)).unwrap();
                push.pack(Compression::None);
                assert_eq!((&push.kept, &push.matches), (&kept, &vec![(1, takes)]), "{text}");
                let expected: Vec<_> = kept.unwrap_or(vec![0, 1, 2, 3]).iter().map(|&at| messages[at as usize].clone()).collect();
                assert_eq!(push.content.count() as usize, expected.len());
                let Content::Messages(found) = &push.content else { continue };
                assert_eq!(*found, expected);
            }
            push.judge(&filters(6, ":k = 3")).unwrap();
            let Content::Messages(found) = &push.content else { panic!("what was taken out leaves messages behind") };
            assert_eq!(*found, [messages[2].clone()]);
        }
    }

    #[test]
    fn a_match_table_that_no_record_holds_is_refused() {
        let table = |groups: u32| (0..groups).map(|group| (group, Matches::Some(vec![1; 1 << 17]))).collect::<Vec<_>>();
        assert_eq!(check_table(&table(500)), Ok(()));
        let error = check_table(&table(600)).unwrap_err();
        assert_eq!(error.code, ErrorCode::TooLarge);
        assert!(error.text.contains("600 groups"), "{error}");
    }
}
