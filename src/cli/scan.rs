//! Reading a queue without a group: partitions, ranges, the last messages.

use std::collections::HashMap;

use anyhow::Result;
use fanlog::client::{Client, messages_of};
use fanlog::model::{ErrorCode, FetchRequest, PartitionInfo, StoredMessage};
use fanlog::record::{Offset, PartitionId};

/// Partitions that one request asks for.
const PARTITIONS_OF_A_PAGE: u32 = 10_000;
/// Messages that one request asks for.
const MESSAGES_OF_A_FETCH: u32 = 1_000;
/// Bytes that one request asks for.
const BYTES_OF_A_FETCH: u32 = 4 << 20;

/// Reads partitions of a queue.
pub struct Scan<'a> {
    /// The connection.
    pub client: &'a Client,
    /// The queue.
    pub queue: &'a str,
    /// One partition; `None` is all.
    pub partition: Option<&'a str>,
}

/// Messages of a range, and where it goes on.
pub struct Piece {
    /// The messages, in order.
    pub messages: Vec<StoredMessage>,
    /// The offset to go on from.
    pub next: Offset,
}

impl Scan<'_> {
    /// The partitions as they are now.
    pub async fn partitions(&self) -> Result<Vec<PartitionInfo>> {
        if let Some(partition) = self.partition {
            return Ok(vec![self.client.partition(self.queue, partition).await?]);
        }
        let mut partitions: Vec<PartitionInfo> = Vec::new();
        loop {
            let after: Option<PartitionId> = partitions.last().map(|partition| partition.id);
            let page = self.client.partitions(self.queue, after, PARTITIONS_OF_A_PAGE).await?;
            let is_last = page.len() < PARTITIONS_OF_A_PAGE as usize;
            partitions.extend(page);
            if is_last {
                return Ok(partitions);
            }
        }
    }

    /// Messages from `from` on and before `to`, at most `count` of them. What retention removed is passed over and told.
    pub async fn fetch(&self, partition: &str, from: Offset, to: Offset, count: u32) -> Result<Piece> {
        let mut request = FetchRequest {
            queue: self.queue.to_owned(),
            partition: partition.to_owned(),
            from,
            to: Some(to),
            messages_max: count.min(MESSAGES_OF_A_FETCH),
            bytes_max: BYTES_OF_A_FETCH,
        };
        let reply = loop {
            match self.client.fetch(&request, std::time::Duration::ZERO).await {
                Err(error) if error.code() == Some(ErrorCode::RangeRemoved) => {
                    let start = self.client.partition(self.queue, partition).await?.start;
                    if start <= request.from {
                        return Err(error.into());
                    }
                    eprintln!("offsets {} to {} of partition {partition:?} were removed", request.from, start - 1);
                    if start >= to {
                        return Ok(Piece { messages: Vec::new(), next: to });
                    }
                    request.from = start;
                }
                reply => break reply?,
            }
        };
        let mut messages = messages_of(reply.batches)?;
        messages.retain(|message| message.offset >= request.from && message.offset < to);
        messages.truncate(count as usize);
        let next = match messages.last() {
            Some(last) if messages.len() == count as usize => last.offset + 1,
            _ => reply.next.min(to),
        };
        Ok(Piece { messages, next })
    }

    /// The first offset whose message was stored at `time_us` or later; the end if there is none.
    pub async fn offset_of_time(&self, partition: &PartitionInfo, time_us: u64) -> Result<Offset> {
        if partition.newest_at_us < time_us {
            return Ok(partition.end);
        }
        let (mut low, mut high) = (partition.start, partition.end);
        while low < high {
            let middle = low + (high - low) / 2;
            let piece = self.fetch(&partition.name, middle, partition.end, 1).await?;
            match piece.messages.first() {
                Some(message) if message.created_at_us < time_us => low = message.offset + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    /// For each partition, the offset at which the last `count` messages of all of them begin, as far as the newest ones of each
    /// partition tell.
    pub async fn starts_of_last(&self, partitions: &[PartitionInfo], count: u32) -> Result<HashMap<PartitionId, Offset>> {
        let mut newest: Vec<&PartitionInfo> = partitions.iter().filter(|partition| partition.end > partition.start).collect();
        newest.sort_by_key(|partition| std::cmp::Reverse(partition.newest_at_us));
        let mut times: Vec<(u64, PartitionId, Offset)> = Vec::new();
        // A partition whose newest message is older than all of the last ones so far has nothing to add.
        for partition in newest {
            times.sort_unstable_by(|first, second| second.cmp(first));
            times.truncate(count as usize);
            let is_enough = times.len() == count as usize;
            if is_enough && times.last().is_some_and(|(oldest, ..)| *oldest > partition.newest_at_us) {
                break;
            }
            let mut from = partition.end.saturating_sub(count.into()).max(partition.start);
            while from < partition.end {
                let piece = self.fetch(&partition.name, from, partition.end, count).await?;
                times.extend(piece.messages.iter().map(|message| (message.created_at_us, partition.id, message.offset)));
                if piece.next <= from {
                    break;
                }
                from = piece.next;
            }
        }
        times.sort_unstable_by(|first, second| second.cmp(first));
        times.truncate(count as usize);
        let mut starts: HashMap<PartitionId, Offset> = partitions.iter().map(|partition| (partition.id, partition.end)).collect();
        for (_, partition, offset) in times {
            let start = starts.entry(partition).or_insert(offset);
            *start = (*start).min(offset);
        }
        Ok(starts)
    }
}
