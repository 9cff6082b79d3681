//! The binary protocol: frames, requests, responses, error codes. Described byte by byte in `protocol.md`.
//!
//! Pure: bytes to values and back, no I/O and no clock. Every decoder takes untrusted bytes; what a frame may make its reader
//! allocate is bounded before the allocation, bytes left over are an error, and payloads share the memory of their frame. The
//! values are those of [`crate::model`]; what is defined here is only what an operation needs beyond them.

mod wire;

mod chunks;
mod error;
mod frame;

mod ack;
mod connection;
mod dead_letter;
mod filter;
mod group;
mod pop;
mod progress;
mod push;
mod queue;
mod subscribe;
mod trace;

mod operation;

pub use ack::{Extend, Release, Released};
pub use chunks::Chunks;
pub use connection::{Done, Hello, HelloReply, Limits, MAGIC, Magic, Ping, Pong, VERSION_MAX, VERSION_MIN};
pub use dead_letter::{DeadLetterDelete, DeadLetterGet, DeadLetterPage, DeadLetterReplay};
pub use error::{ErrorReply, ProtocolError};
pub use filter::{FilterResult, FilterTest};
pub use frame::{FRAME_BYTES_MAX, Frame, FrameKind, HEADER_BYTES, HELLO_FRAME_BYTES_MAX, LENGTH_BYTES};
pub use group::{GroupDeclare, GroupDelete, GroupGet, GroupList, GroupPage, GroupStart, GroupStarted, GroupUpdate};
pub use operation::{Call, Operation, Request, Response, encode_call, encode_error};
pub use pop::{Fetch, Pop};
pub use progress::{MessageGet, PartitionSelector, Progress, ProgressPage, Seek, SeekReply};
pub use queue::{
    Deleted, LossesGet, PartitionGet, PartitionList, PartitionPage, QueueCreate, QueueDelete, QueueGet, QueueList, QueuePage,
    QueueUpdate, Stats,
};
pub use subscribe::{
    Credit, Delivery, Heartbeat, LeaseEnded, LeasedPartition, Subscribe, Subscribed, SubscriptionEnd, Unsubscribe,
};
pub use trace::{TraceByMessage, TraceByName, TraceName, TraceNamePage, TraceNames, TracePage, TraceRecord, TraceWrite};
pub use wire::{FRAME_ITEMS_MAX, Input, Wire};
