//! The vocabulary of requests and replies: what the engine takes and answers, and what the protocol carries.
//!
//! Plain values without I/O. The engine, the binary protocol and the HTTP gateway speak these same types, so an operation has one
//! meaning whichever door it came through.

mod ack;
mod admin;
mod error;
mod group;
mod pop;
mod progress;
mod push;
mod scope;
mod seek;
mod settings;

pub use ack::{AckItem, AckOutcome, AckReply, AckRequest, AckTarget, AckVerb, ExtendReply};
pub use admin::{DeadLetter, DeadLetterQuery, Losses, PartitionInfo, QueueInfo, QueueStats, ServerStats, TraceEvent};
pub use error::{Error, ErrorCode, Result};
pub use group::{GroupDeclaration, GroupInfo, GroupPatch, GroupState, RemovedGroup};
pub use pop::{BatchSlice, Claim, FetchReply, FetchRequest, OffsetRange, PopReply, PopRequest, PopSource, Start, StoredMessage};
pub use progress::{CursorProgress, GroupProgress, MessageProgress, MessageView};
pub use push::{
    PackedBatch, Promise, PushItem, PushReply, PushRequest, PushResult, PushResults, TransactionReply, TransactionRequest,
};
pub use scope::QueueScope;
pub use seek::{SeekPreview, SeekRequest, SeekTarget};
pub use settings::{Compression, Durability, QueueSettings, SettingsPatch};

/// The name that stands for the primary group where a name is asked for. A pop without a group reads it.
pub const PRIMARY_GROUP: &str = "__QUEUE_MODE__";

/// The moment of a call: the engine has no clock of its own. Two moments have no order: the wall clock may go back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Microseconds since the Unix epoch, for `created_at`, retention and seeks by time.
    pub wall_us: u64,
    /// Microseconds on a clock that never jumps and counts suspend (CLOCK_BOOTTIME), for leases and delays.
    pub steady_us: u64,
}

impl Now {
    /// Reads the machine's clocks.
    pub fn read() -> Self {
        let wall = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let steady = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Self { wall_us: micros(wall), steady_us: micros(steady) }
    }
}

fn micros(time: rustix::time::Timespec) -> u64 {
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000
}
