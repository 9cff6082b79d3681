//! The engine: queues, partitions, groups, leases, dead letters, transactions, filters. Synchronous; the library for embedding.
#![allow(missing_docs, unused_variables, clippy::todo)]

pub mod delivery;

use std::path::Path;
use std::sync::Arc;

pub use crate::model::PartitionInfo;
use crate::model::*;
use crate::record::PartitionId;

/// How an engine behaves.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Where a named group starts if its first pop does not say.
    pub default_start: Start,
    /// Bytes that may wait for a commit over all queues; more are refused as `Busy`.
    pub pending_bytes_max: usize,
    /// The largest message (payload, attributes and id).
    pub message_bytes_max: usize,
    /// The largest push.
    pub push_bytes_max: usize,
    pub queues_max: usize,
    pub groups_max: usize,
    pub push_messages_max: usize,
    /// Days that an empty partition must be idle before it goes.
    pub partition_cleanup_days: u32,
    /// Milliseconds between retention sweeps.
    pub retention_interval_ms: u64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            default_start: Start::New,
            pending_bytes_max: 256 << 20,
            message_bytes_max: 16 << 20,
            push_bytes_max: 32 << 20,
            queues_max: 10_000,
            groups_max: 1_000,
            push_messages_max: 1 << 20,
            partition_cleanup_days: 30,
            retention_interval_ms: 5_000,
        }
    }
}

/// What opening found. One line for each finding; `serve`, `verify` and tests share it.
#[derive(Debug, Clone, Default)]
pub struct RecoveryReport {
    /// Whether the last run closed the directory.
    pub was_clean: bool,
    pub queues: u64,
    pub partitions: u64,
    pub messages: u64,
    pub records_replayed: u64,
    pub findings: Vec<Finding>,
}

/// One thing that recovery found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Whether acknowledged data is lost or cannot be served.
    pub is_loss: bool,
    /// The queue's name, if it concerns one.
    pub queue: Option<String>,
    /// One line for people.
    pub text: String,
}

/// Registered interest in a pop's source; ends when dropped.
pub struct Watch {}

/// Cheap to clone; all clones are one engine.
#[derive(Clone)]
pub struct Engine {}

pub type Wake = Arc<dyn Fn() + Send + Sync>;

impl Engine {
    /// Opens or makes a data directory on the real disk.
    pub fn open_path(path: &Path, options: EngineOptions, now: Now) -> Result<(Self, RecoveryReport)> {
        todo!()
    }
    /// Starts committer threads and the timer thread (they read the machine's clocks); they end with `close`.
    pub fn start_threads(&self, committers: usize) -> Result<()> {
        todo!()
    }
    /// Checkpoints, marks the directory clean and refuses everything afterwards.
    pub fn close(&self, now: Now) -> Result<()> {
        todo!()
    }
    /// Does what time has made due (expired leases, delays, retention, checkpoints) and says when to call again (steady microseconds).
    pub fn tick(&self, now: Now) -> u64 {
        todo!()
    }

    /// Blocks until committed. Makes queue and partition if they do not exist.
    pub fn push(&self, request: PushRequest, now: Now) -> Result<PushReply> {
        todo!()
    }
    /// Returns at once; `done` is called from a committer thread when the push is committed or refused (or at once on refusal).
    /// Checks, filters and compresses on the calling thread.
    pub fn submit_push(&self, request: PushRequest, now: Now, done: Box<dyn FnOnce(Result<PushReply>) + Send>) {
        todo!()
    }
    pub fn ack(&self, request: AckRequest, now: Now) -> Result<AckReply> {
        todo!()
    }
    pub fn submit_ack(&self, request: AckRequest, now: Now, done: Box<dyn FnOnce(Result<AckReply>) + Send>) {
        todo!()
    }
    /// Blocks until committed or refused.
    pub fn transact(&self, request: TransactionRequest, now: Now) -> Result<TransactionReply> {
        todo!()
    }

    /// Never waits for messages (it may wait for one commit when it registers a group). An empty reply has no claims.
    pub fn pop(&self, request: &PopRequest, now: Now) -> Result<PopReply> {
        todo!()
    }
    pub fn submit_pop(&self, request: &PopRequest, now: Now, done: Box<dyn FnOnce(Result<PopReply>) + Send>) {
        todo!()
    }
    /// `wake` is called (from any thread, quickly, perhaps without need) whenever messages may have become claimable for such a pop.
    /// Register first, then pop, then wait.
    pub fn watch(&self, request: &PopRequest, wake: Wake) -> Result<Watch> {
        todo!()
    }
    pub fn fetch(&self, request: &FetchRequest, now: Now) -> Result<FetchReply> {
        todo!()
    }
    /// As `watch`, for a reader without a group: woken when messages are committed to the queue.
    pub fn watch_queue(&self, queue: &str, wake: Wake) -> Result<Watch> {
        todo!()
    }
    /// Renews every partition of the lease; never shortens. `renewed == 0` if the lease is lost.
    pub fn extend(&self, lease_id: &str, milliseconds: u64, now: Now) -> Result<ExtendReply> {
        todo!()
    }
    /// Gives everything of the lease back, uncharged, as if it had never been handed out. Says how many partitions.
    pub fn release(&self, lease_id: &str, now: Now) -> Result<u32> {
        todo!()
    }

    /// `QueueExists` if it exists.
    pub fn create_queue(&self, name: &str, patch: &SettingsPatch, now: Now) -> Result<QueueInfo> {
        todo!()
    }
    /// `UnknownQueue` if it does not exist. Changes only what the patch names.
    pub fn update_queue(&self, name: &str, patch: &SettingsPatch, now: Now) -> Result<QueueInfo> {
        todo!()
    }
    /// Whether it existed.
    pub fn delete_queue(&self, name: &str, now: Now) -> Result<bool> {
        todo!()
    }
    pub fn queue(&self, name: &str) -> Result<QueueInfo> {
        todo!()
    }
    /// Sorted by name.
    pub fn queues(&self) -> Vec<QueueInfo> {
        todo!()
    }
    /// The name of the live queue with this incarnation.
    pub fn queue_of_incarnation(&self, incarnation: u64) -> Option<String> {
        todo!()
    }
    /// Partitions with a number of at least `from`, in order of number.
    pub fn partitions(&self, queue: &str, from: PartitionId, limit: usize) -> Result<Vec<PartitionInfo>> {
        todo!()
    }
    pub fn partition(&self, queue: &str, name: &str) -> Result<PartitionInfo> {
        todo!()
    }

    pub fn declare_group(&self, queue: &str, name: &str, declaration: &GroupDeclaration, now: Now) -> Result<GroupInfo> {
        todo!()
    }
    /// `None` or `__QUEUE_MODE__` as the name is the primary group, here and everywhere.
    pub fn group(&self, queue: &str, name: &str) -> Result<GroupInfo> {
        todo!()
    }
    pub fn groups(&self, queue: &str) -> Result<Vec<GroupInfo>> {
        todo!()
    }
    pub fn update_group(&self, queue: &str, name: &str, patch: &GroupPatch, now: Now) -> Result<GroupInfo> {
        todo!()
    }
    /// In one queue or in all; a group that is nowhere gives a result with zeros.
    pub fn delete_group(&self, name: &str, queue: Option<&str>, now: Now) -> Result<RemovedGroup> {
        todo!()
    }

    // WANTED: changes where a group starts in partitions that it has no cursor in yet, in every queue that has the group;
    // cursors that exist stay. Says in how many queues.
    pub fn set_start(&self, group: &str, start: Start, now: Now) -> Result<u32> {
        todo!()
    }

    /// Every group of a queue with its lag.
    pub fn progress(&self, queue: &str, now: Now) -> Result<Vec<GroupProgress>> {
        todo!()
    }
    /// Cursors of a group in partitions with a number of at least `from`.
    pub fn cursors(&self, queue: &str, group: &str, from: PartitionId, limit: usize, now: Now) -> Result<Vec<CursorProgress>> {
        todo!()
    }
    pub fn seek(&self, request: &SeekRequest, now: Now) -> Result<Vec<SeekPreview>> {
        todo!()
    }
    pub fn message(&self, queue: &str, partition: PartitionId, target: &AckTarget, now: Now) -> Result<MessageView> {
        todo!()
    }

    /// Newest first, with the total.
    pub fn dead_letters(&self, query: &DeadLetterQuery) -> Result<(Vec<DeadLetter>, u64)> {
        todo!()
    }
    /// Pushes it back into its partition with the id `dlq:<id>` (idempotent inside the dedup window) and removes it.
    pub fn replay_dead_letter(&self, queue: &str, id: u64, now: Now) -> Result<PushReply> {
        todo!()
    }
    pub fn delete_dead_letter(&self, queue: &str, id: u64, now: Now) -> Result<bool> {
        todo!()
    }

    pub fn trace(&self, queue: &str, event: TraceEvent, now: Now) -> Result<u64> {
        todo!()
    }
    pub fn traces_of_message(&self, queue: &str, partition: PartitionId, transaction_id: &str) -> Result<Vec<TraceEvent>> {
        todo!()
    }
    /// Over all queues, newest first: (queue, event).
    pub fn traces_by_name(&self, name: &str, limit: usize) -> Vec<(String, TraceEvent)> {
        todo!()
    }
    pub fn trace_names(&self) -> Vec<(String, u64)> {
        todo!()
    }

    pub fn stats(&self) -> ServerStats {
        todo!()
    }
}
