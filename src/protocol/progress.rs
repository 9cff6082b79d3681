//! Reading progress: cursors of a group, seeking, one message.

use crate::model::{
    AckTarget, CursorProgress, MessageProgress, MessageView, SeekPreview, SeekRequest, SeekTarget, StoredMessage,
};

use super::wire::{Wire, bad_value, wire_struct, wire_type};
use super::{Chunks, Input, ProtocolError};

wire_struct!(CursorProgress {
    partition: String,
    partition_id: u32,
    next: u64,
    start: u64,
    end: u64,
    lag: u64,
    lag_time_us: u64,
    oldest_at_us: Option<u64>,
    in_flight: u64,
    lease_expires_at_us: Option<u64>,
    lease_id: String,
    total_consumed: u64,
    last_consumed_at_us: Option<u64>,
});

wire_type!(
    /// Cursors of a group in a queue, in order of partition number.
    Progress {
        /// The queue.
        queue: String,
        /// The group; `None` is the primary group.
        group: Option<String>,
        /// Only partitions after this number; `None` starts at the first.
        after: Option<u32>,
        /// At most so many, 1 to 10,000.
        limit: u32,
    }
);

wire_type!(
    /// Cursors; as many as the limit means that there may be more.
    ProgressPage {
        /// The cursors.
        cursors: Vec<CursorProgress>,
    }
);

impl Wire for SeekTarget {
    const BYTES_MIN: usize = 1;

    fn encode(&self, out: &mut Chunks) {
        match self {
            Self::Beginning => 0u8.encode(out),
            Self::End => 1u8.encode(out),
            Self::Offset(offset) => {
                2u8.encode(out);
                offset.encode(out);
            }
            Self::Time(time_us) => {
                3u8.encode(out);
                time_us.encode(out);
            }
            Self::Shift(messages) => {
                4u8.encode(out);
                messages.encode(out);
            }
        }
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        match u8::decode(input)? {
            0 => Ok(Self::Beginning),
            1 => Ok(Self::End),
            2 => Ok(Self::Offset(u64::decode(input)?)),
            3 => Ok(Self::Time(u64::decode(input)?)),
            4 => Ok(Self::Shift(i64::decode(input)?)),
            kind => Err(bad_value("the target of a seek", kind)),
        }
    }
}

wire_struct!(SeekRequest {
    queue: String,
    group: Option<String>,
    partition: Option<String>,
    target: SeekTarget,
    is_preview: bool,
});

wire_struct!(SeekPreview { partition: String, before: u64, after: u64, start: u64, end: u64 });

wire_type!(
    /// Moves cursors of a group, or tells what would move.
    Seek {
        /// What to move where.
        request: SeekRequest,
        /// Cursors at most in the reply; all move, whatever the limit.
        limit: u32,
    }
);

wire_type!(
    /// The reply to a seek.
    SeekReply {
        /// Cursors that moved, or would.
        total: u64,
        /// The first of them, in order of partition number.
        cursors: Vec<SeekPreview>,
    }
);

/// A partition by name or by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartitionSelector {
    /// By name.
    Name(String),
    /// By number.
    Id(u32),
}

impl Wire for PartitionSelector {
    const BYTES_MIN: usize = 5;

    fn encode(&self, out: &mut Chunks) {
        match self {
            Self::Name(name) => {
                0u8.encode(out);
                name.encode(out);
            }
            Self::Id(id) => {
                1u8.encode(out);
                id.encode(out);
            }
        }
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        match u8::decode(input)? {
            0 => Ok(Self::Name(String::decode(input)?)),
            1 => Ok(Self::Id(u32::decode(input)?)),
            kind => Err(bad_value("a partition", kind)),
        }
    }
}

wire_type!(
    /// One message, and how far each group is with it.
    MessageGet {
        /// The queue.
        queue: String,
        /// The partition.
        partition: PartitionSelector,
        /// The message.
        target: AckTarget,
    }
);

wire_struct!(MessageProgress { name: String, is_consumed: bool, is_taken: bool, lease_expires_at_us: Option<u64> });

/// The states of a message; a state's number is its place.
const STATUSES: [&str; 4] = ["pending", "processing", "completed", "dead_letter"];

impl Wire for MessageView {
    const BYTES_MIN: usize = 13 + StoredMessage::BYTES_MIN + 5 + 4;

    fn encode(&self, out: &mut Chunks) {
        self.queue.encode(out);
        self.partition.encode(out);
        self.partition_id.encode(out);
        self.message.encode(out);
        self.transaction_id.encode(out);
        let status = STATUSES.iter().position(|status| *status == self.status).unwrap_or(0);
        (status as u8).encode(out);
        self.groups.encode(out);
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, ProtocolError> {
        Ok(Self {
            queue: String::decode(input)?,
            partition: String::decode(input)?,
            partition_id: u32::decode(input)?,
            message: StoredMessage::decode(input)?,
            transaction_id: String::decode(input)?,
            status: decode_status(input)?,
            groups: Vec::decode(input)?,
        })
    }
}

fn decode_status(input: &mut Input<'_>) -> Result<&'static str, ProtocolError> {
    let number = u8::decode(input)?;
    STATUSES.get(usize::from(number)).copied().ok_or(bad_value("the status of a message", number))
}
