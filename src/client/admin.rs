//! The protocol's operations by name.

use std::time::{Duration, Instant};

use crate::model::{
    AckReply, AckRequest, AckTarget, CursorProgress, DeadLetter, DeadLetterQuery, ExtendReply, FetchReply, FetchRequest,
    GroupDeclaration, GroupInfo, GroupPatch, GroupProgress, Losses, MessageView, PartitionInfo, PopReply, PopRequest, PushReply,
    PushRequest, QueueInfo, RemovedGroup, SeekRequest, ServerStats, SettingsPatch, Start, TraceEvent, TransactionReply,
    TransactionRequest,
};
use crate::protocol::{
    DeadLetterDelete, DeadLetterGet, DeadLetterPage, DeadLetterReplay, Extend, Fetch, FilterTest, GroupDeclare, GroupDelete,
    GroupGet, GroupList, GroupStart, GroupUpdate, LossesGet, MessageGet, PartitionGet, PartitionList, PartitionSelector, Ping,
    Pop, Progress, QueueCreate, QueueDelete, QueueGet, QueueList, QueueUpdate, Release, Seek, SeekReply, Stats, TraceByMessage,
    TraceByName, TraceName, TraceNames, TraceRecord, TraceWrite,
};
use crate::record::{Attributes, PartitionId};

use super::{Client, Result};

/// Queues that one request asks for.
const QUEUES_OF_A_PAGE: u32 = 1_000;

/// The data path, one request at a time. Producers, consumers and readers do more.
impl Client {
    /// How long a ping takes.
    pub async fn ping(&self) -> Result<Duration> {
        let start = Instant::now();
        self.call(&Ping { nonce: 1 }).await?;
        Ok(start.elapsed())
    }

    /// Stores messages. Sent once: after `Disconnected` or `Timeout` it is not known whether they are stored. A
    /// [`Producer`](super::Producer) repeats safely.
    pub async fn push(&self, request: &PushRequest) -> Result<PushReply> {
        self.call(request).await
    }

    /// Pushes and acknowledges, all or nothing. Sent once.
    pub async fn transact(&self, request: &TransactionRequest) -> Result<TransactionReply> {
        self.call(request).await
    }

    /// Takes messages for a group, waiting up to `wait` for some. Sent once.
    pub async fn pop(&self, request: &PopRequest, wait: Duration) -> Result<PopReply> {
        let pop = Pop { request: request.clone(), wait_ms: milliseconds(wait) };
        self.call_waiting(&pop, wait).await
    }

    /// Says what became of popped messages.
    pub async fn ack(&self, request: &AckRequest) -> Result<AckReply> {
        self.call(request).await
    }

    /// Makes a lease last until `lease` from now; `None` is the queue's lease time.
    pub async fn extend(&self, lease_id: &str, lease: Option<Duration>) -> Result<ExtendReply> {
        let lease_ms = lease.map(|lease| u64::from(milliseconds(lease)));
        self.call(&Extend { lease_id: lease_id.to_owned(), lease_ms }).await
    }

    /// Hands a lease back, uncharged. Returns how many partitions it still held.
    pub async fn release(&self, lease_id: &str) -> Result<u32> {
        Ok(self.call(&Release { lease_id: lease_id.to_owned() }).await?.partitions)
    }

    /// Reads a range without a group, waiting up to `wait` for the first message of it.
    pub async fn fetch(&self, request: &FetchRequest, wait: Duration) -> Result<FetchReply> {
        let fetch = Fetch { request: request.clone(), wait_ms: milliseconds(wait) };
        self.call_waiting(&fetch, wait).await
    }
}

/// Queues and partitions.
impl Client {
    /// Makes a queue; `QueueExists` if there is one.
    pub async fn create_queue(&self, queue: &str, settings: SettingsPatch) -> Result<QueueInfo> {
        self.call(&QueueCreate { queue: queue.to_owned(), settings }).await
    }

    /// One queue.
    pub async fn queue(&self, queue: &str) -> Result<QueueInfo> {
        self.call(&QueueGet { queue: queue.to_owned() }).await
    }

    /// All queues, in order of name.
    pub async fn queues(&self) -> Result<Vec<QueueInfo>> {
        let mut queues: Vec<QueueInfo> = Vec::new();
        loop {
            let after = queues.last().map(|queue| queue.name.clone());
            let page = self.call(&QueueList { after, limit: QUEUES_OF_A_PAGE }).await?.queues;
            let is_last = page.len() < QUEUES_OF_A_PAGE as usize;
            queues.extend(page);
            if is_last {
                return Ok(queues);
            }
        }
    }

    /// Changes the settings that are named and no others.
    pub async fn update_queue(&self, queue: &str, settings: SettingsPatch) -> Result<QueueInfo> {
        self.call(&QueueUpdate { queue: queue.to_owned(), settings }).await
    }

    /// Deletes a queue with all it holds. Returns whether there was one.
    pub async fn delete_queue(&self, queue: &str) -> Result<bool> {
        Ok(self.call(&QueueDelete { queue: queue.to_owned() }).await?.existed)
    }

    /// Up to `limit` partitions with a number greater than `after`, in order of number.
    pub async fn partitions(&self, queue: &str, after: Option<PartitionId>, limit: u32) -> Result<Vec<PartitionInfo>> {
        Ok(self.call(&PartitionList { queue: queue.to_owned(), after, limit }).await?.partitions)
    }

    /// One partition.
    pub async fn partition(&self, queue: &str, partition: &str) -> Result<PartitionInfo> {
        self.call(&PartitionGet { queue: queue.to_owned(), partition: partition.to_owned() }).await
    }

    /// Counters of the whole server.
    pub async fn stats(&self) -> Result<ServerStats> {
        self.call(&Stats {}).await
    }

    /// What groups lost of a queue before they read it, or of all of them. A server from before there was this answers
    /// `UnknownOperation`.
    pub async fn losses(&self, queue: Option<&str>) -> Result<Losses> {
        self.call(&LossesGet { queue: queue.map(str::to_owned) }).await
    }
}

/// Groups and how far they are.
impl Client {
    /// Declares a group; `GroupExists` if there is one.
    pub async fn declare_group(&self, queue: &str, group: &str, declaration: GroupDeclaration) -> Result<GroupInfo> {
        self.call(&GroupDeclare { queue: queue.to_owned(), group: group.to_owned(), declaration }).await
    }

    /// One group with its progress; `None` is the primary group.
    pub async fn group(&self, queue: &str, group: Option<&str>) -> Result<GroupProgress> {
        self.call(&GroupGet { queue: queue.to_owned(), group: group.map(str::to_owned) }).await
    }

    /// Groups of one queue or of all.
    pub async fn groups(&self, queue: Option<&str>) -> Result<Vec<GroupProgress>> {
        let list = GroupList { queue: queue.map(str::to_owned), group: None, lag_min_s: None };
        Ok(self.call(&list).await?.groups)
    }

    /// Groups whose oldest unread message is at least so old.
    pub async fn lagging_groups(&self, queue: Option<&str>, lag_min: Duration) -> Result<Vec<GroupProgress>> {
        let list = GroupList { queue: queue.map(str::to_owned), group: None, lag_min_s: Some(lag_min.as_secs()) };
        Ok(self.call(&list).await?.groups)
    }

    /// One group in all queues that have it.
    pub async fn group_everywhere(&self, group: &str) -> Result<Vec<GroupProgress>> {
        let list = GroupList { queue: None, group: Some(group.to_owned()), lag_min_s: None };
        Ok(self.call(&list).await?.groups)
    }

    /// Changes what the patch names; `None` is the primary group.
    pub async fn update_group(&self, queue: &str, group: Option<&str>, patch: GroupPatch) -> Result<GroupInfo> {
        self.call(&GroupUpdate { queue: queue.to_owned(), group: group.map(str::to_owned), patch }).await
    }

    /// Deletes a group in one queue or, with `None`, everywhere.
    pub async fn delete_group(&self, queue: Option<&str>, group: &str) -> Result<RemovedGroup> {
        let (queue, group) = (queue.map(str::to_owned), group.to_owned());
        self.call(&GroupDelete { queue, group, expected_version: None }).await
    }

    /// Deletes a group in one queue if `version` is still its version.
    pub async fn delete_group_at(&self, queue: &str, group: &str, version: u64) -> Result<RemovedGroup> {
        let (queue, group) = (Some(queue.to_owned()), group.to_owned());
        self.call(&GroupDelete { queue, group, expected_version: Some(version) }).await
    }

    /// Changes where a group starts in partitions that it has not been in, in every queue that has it. Returns in how many.
    pub async fn set_group_start(&self, group: &str, start: Start) -> Result<u64> {
        Ok(self.call(&GroupStart { group: group.to_owned(), start }).await?.queues)
    }

    /// Up to `limit` cursors of a group, in partitions with a number greater than `after`.
    pub async fn progress(
        &self,
        queue: &str,
        group: Option<&str>,
        after: Option<PartitionId>,
        limit: u32,
    ) -> Result<Vec<CursorProgress>> {
        let progress = Progress { queue: queue.to_owned(), group: group.map(str::to_owned), after, limit };
        Ok(self.call(&progress).await?.cursors)
    }

    /// Moves a group's cursors, or tells what would move; the reply names up to `limit` of them.
    pub async fn seek(&self, request: SeekRequest, limit: u32) -> Result<SeekReply> {
        self.call(&Seek { request, limit }).await
    }

    /// One message and how far each group is with it.
    pub async fn message(&self, queue: &str, partition: PartitionSelector, target: AckTarget) -> Result<MessageView> {
        self.call(&MessageGet { queue: queue.to_owned(), partition, target }).await
    }

    /// Whether a filter takes a message with these attributes; `BadFilter` if it does not parse.
    pub async fn test_filter(&self, filter: &str, attributes: Attributes) -> Result<bool> {
        Ok(self.call(&FilterTest { filter: filter.to_owned(), attributes }).await?.is_match)
    }
}

/// Dead letters and traces.
impl Client {
    /// Dead letters, the newest first, with their total.
    pub async fn dead_letters(&self, query: &DeadLetterQuery) -> Result<DeadLetterPage> {
        self.call(query).await
    }

    /// One dead letter.
    pub async fn dead_letter(&self, queue: &str, id: u64) -> Result<DeadLetter> {
        self.call(&DeadLetterGet { queue: queue.to_owned(), id }).await
    }

    /// Pushes a dead letter's message again and removes the letter; it stays if no enabled group takes the message (`Dropped`).
    pub async fn replay_dead_letter(&self, queue: &str, id: u64) -> Result<PushReply> {
        self.call(&DeadLetterReplay { queue: queue.to_owned(), id }).await
    }

    /// Removes a dead letter. Returns whether there was one.
    pub async fn delete_dead_letter(&self, queue: &str, id: u64) -> Result<bool> {
        Ok(self.call(&DeadLetterDelete { queue: queue.to_owned(), id }).await?.existed)
    }

    /// Writes a remark on a message.
    pub async fn write_trace(&self, queue: &str, event: TraceEvent) -> Result<()> {
        self.call(&TraceWrite { queue: queue.to_owned(), event }).await.map(|_| ())
    }

    /// Remarks with a name, the newest first.
    pub async fn traces_by_name(&self, queue: Option<&str>, name: &str, limit: u32, skip: u32) -> Result<Vec<TraceRecord>> {
        let request = TraceByName { queue: queue.map(str::to_owned), name: name.to_owned(), limit, skip };
        Ok(self.call(&request).await?.traces)
    }

    /// Remarks on one message, the oldest first.
    pub async fn traces_of_message(
        &self,
        queue: &str,
        partition_id: PartitionId,
        transaction_id: &str,
    ) -> Result<Vec<TraceRecord>> {
        let request = TraceByMessage { queue: queue.to_owned(), partition_id, transaction_id: transaction_id.to_owned() };
        Ok(self.call(&request).await?.traces)
    }

    /// Names of all remarks, with their counts.
    pub async fn trace_names(&self) -> Result<Vec<TraceName>> {
        Ok(self.call(&TraceNames {}).await?.names)
    }
}

/// Milliseconds as the wire counts them.
pub(super) fn milliseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}
