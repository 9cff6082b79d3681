//! Groups: what is declared of them and what is known of them.

use crate::record::GroupId;

use super::Start;

/// Declares a group in a queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupDeclaration {
    /// Its filter; empty takes every message.
    pub filter: String,
    /// Whether it is disabled from the start.
    pub is_disabled: bool,
    /// Failed deliveries before a message is a dead letter; `None` is the queue's retry limit, 0 is never.
    pub delivery_limit: Option<u32>,
    /// A name for people.
    pub display_name: String,
    /// An earlier start than now: what was stored before is judged by the filter given here.
    pub start: Option<Start>,
    /// Whether it is a work queue (shared mode).
    pub shared: bool,
}

/// Changes a declared group; what is `None` stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupPatch {
    /// The version that the change is based on; another one is a conflict. `None` changes whatever is there.
    pub expected_version: Option<u64>,
    /// A new filter; empty takes every message.
    pub filter: Option<String>,
    /// Enables or disables.
    pub is_enabled: Option<bool>,
    /// A new delivery limit; `Some(None)` goes back to the queue's.
    pub delivery_limit: Option<Option<u32>>,
    /// A new name for people.
    pub display_name: Option<String>,
    /// Pauses (hands out nothing, goes on taking messages) or resumes.
    pub is_paused: Option<bool>,
}

/// The state of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupState {
    /// Takes messages and hands them out.
    Active,
    /// Disabled: takes nothing, hands out nothing, keeps what it holds.
    Inactive,
    /// Takes messages, hands out nothing until resumed.
    Paused,
}

/// What is known of a group.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupInfo {
    /// The queue.
    pub queue: String,
    /// Its name; `__QUEUE_MODE__` is the primary group.
    pub name: String,
    /// Its number in the queue; a group deleted and made again has another.
    pub id: GroupId,
    /// Whether it was declared, and not only named by a consumer.
    pub is_declared: bool,
    /// Its filter; empty takes every message.
    pub filter: String,
    /// Its state.
    pub state: GroupState,
    /// Its own delivery limit.
    pub delivery_limit: Option<u32>,
    /// A name for people.
    pub display_name: String,
    /// Whether it is a work queue.
    pub shared: bool,
    /// Grows by one with each change.
    pub version: u64,
    /// Where it started; `None` until its first pop decides (a primary group always starts at the beginning).
    pub start: Option<Start>,
    /// When it was registered or declared, microseconds since the Unix epoch.
    pub created_at_us: u64,
    /// When it was last changed.
    pub updated_at_us: u64,
    /// Whether messages stored before its creation are judged by the filter given then (an earlier start with a filter).
    pub judges_earlier: bool,
}

/// The merged result of removing a group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RemovedGroup {
    /// Queues in which it was.
    pub queues: u32,
    /// Cursors that went, over all partitions.
    pub deleted_partitions: u64,
}
