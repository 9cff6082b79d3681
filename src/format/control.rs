//! Control operations: how the state of a queue changes. See "Control record" in `storage-format.md`.
//!
//! An operation carries the resulting state of one thing, not a step toward it, so that applying it twice is harmless. The same
//! bytes are the values of the checkpoint table, keyed by [`ControlOp::key`].

use crate::codec::{Put, Reader, UnexpectedEnd};
use crate::model::{Compression, Durability, QueueSettings, Start};
use crate::record::{GroupId, Offset, PartitionId};

use super::Lsn;

/// One change of a queue's state.
#[derive(Debug, Clone, PartialEq)]
pub enum ControlOp {
    /// The queue itself: its name, when it was made, its settings.
    Queue(QueueRecord),
    /// A partition and where it stands.
    Partition(PartitionRecord),
    /// A partition is gone, with its cursors.
    PartitionRemoved(PartitionId),
    /// A group as it is now.
    Group(GroupRecord),
    /// A group is gone, with its cursors.
    GroupRemoved(GroupId),
    /// A cursor as it is now; the bytes are the engine's.
    Cursor {
        /// The group.
        group: GroupId,
        /// The partition.
        partition: PartitionId,
        /// The encoded cursor.
        state: Vec<u8>,
    },
    /// An operation on another queue: part of a transaction that pushed into this one.
    Foreign {
        /// The other queue's incarnation.
        incarnation: u64,
        /// The encoded operation.
        operation: Vec<u8>,
    },
    /// A dead letter; the bytes are the engine's.
    DeadLetter {
        /// Its number.
        id: u64,
        /// The encoded dead letter.
        state: Vec<u8>,
    },
    /// A dead letter is gone.
    DeadLetterRemoved(u64),
    /// Persistent counters as they are now.
    Counters(Counters),
    /// A push of a producer that stored nothing of its own (all dropped or duplicate), for recognising a resend.
    Producer {
        /// The partition.
        partition: PartitionId,
        /// The producer.
        producer_id: u64,
        /// Its epoch.
        epoch: u32,
        /// The push's sequence.
        sequence: u32,
    },
    /// A partition of which the log may hold messages and whose record was lost with damage.
    PartitionLost(PartitionId),
    /// The last pushes of a producer in a partition, as the checkpoint keeps them.
    Sender {
        /// The partition.
        partition: PartitionId,
        /// The producer.
        producer_id: u64,
        /// Its epoch.
        epoch: u32,
        /// Its last pushes, oldest first: (sequence, offset of the first stored message, messages stored).
        pushes: Vec<(u32, Offset, u32)>,
    },
    /// A transaction that this queue decides pushes into another queue too: what it pushes there, to be done again at start if the
    /// other queue does not have it.
    Redo {
        /// The transaction's number in this queue.
        transaction: u64,
        /// The other queue's incarnation.
        target: u64,
        /// The encoded push; the bytes are the engine's.
        push: Vec<u8>,
    },
    /// This queue has its part of a transaction that another queue decided.
    Applied {
        /// Incarnation of the queue that decided.
        coordinator: u64,
        /// The transaction's number there.
        transaction: u64,
    },
    /// After damage: partitions whose newest batch lies in this segment or before give out their next offset only behind a gap.
    Jump(JumpRecord),
    /// Offsets of a partition that were never given to a message.
    Gap {
        /// The partition.
        partition: PartitionId,
        /// The first of them.
        first: Offset,
        /// The last of them.
        last: Offset,
    },
    /// A remark on a message's way; the bytes are the engine's.
    Trace {
        /// Its number.
        id: u64,
        /// The encoded remark.
        state: Vec<u8>,
    },
}

/// A queue's name and settings.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueRecord {
    /// The name.
    pub name: String,
    /// When it was made, microseconds since the Unix epoch.
    pub created_at_us: u64,
    /// The settings.
    pub settings: QueueSettings,
}

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionRecord {
    /// Its number.
    pub id: PartitionId,
    /// Its name.
    pub name: String,
    /// The oldest offset kept.
    pub start: Offset,
    /// The next offset to give.
    pub next: Offset,
    /// Time of its newest message, microseconds since the Unix epoch.
    pub newest_at_us: u64,
    /// The segment in which the oldest kept message lies, or a lower one.
    pub first_segment: u32,
    /// The segment in which its newest message lies.
    pub last_segment: u32,
}

/// A group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRecord {
    /// Its number.
    pub id: GroupId,
    /// Its name.
    pub name: String,
    /// Whether it was declared.
    pub is_declared: bool,
    /// Whether it takes messages.
    pub is_enabled: bool,
    /// Whether it hands out nothing for now.
    pub is_paused: bool,
    /// Whether it is a work queue.
    pub shared: bool,
    /// Whether it has taken every message since it was made, never having had a filter or been disabled. Not known of records from
    /// before there was this flag: there a version of 1 says the same of an enabled group without filters.
    pub is_unfiltered: bool,
    /// Its filter now.
    pub filter: String,
    /// The filter by which messages stored before `created_lsn` are judged.
    pub first_filter: String,
    /// Its own delivery limit.
    pub delivery_limit: Option<u32>,
    /// A name for people.
    pub display_name: String,
    /// Grows by one with each change.
    pub version: u64,
    /// Where it started, once decided.
    pub start: Option<Start>,
    /// When it was made.
    pub created_at_us: u64,
    /// When it was last changed.
    pub updated_at_us: u64,
    /// Batches at or behind this address were pushed while the group existed.
    pub created_lsn: Lsn,
}

/// How far offsets jump after damage, so that none that was given before is given again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JumpRecord {
    /// The last segment that the damage concerns.
    pub segment: u32,
    /// How many offsets to leave out.
    pub offsets: u64,
}

/// Persistent counters of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Messages that no group took.
    pub dropped: u64,
    /// Messages ever stored.
    pub pushed: u64,
    /// The oldest segment that retention has left.
    pub first_segment: u32,
    /// The lowest number that no partition ever had.
    pub next_partition: PartitionId,
    /// The lowest number that no group ever had.
    pub next_group: GroupId,
    /// The lowest number that no dead letter ever had.
    pub next_dead_letter: u64,
    /// The lowest number that no trace ever had.
    pub next_trace: u64,
}

/// Kinds of keys of the checkpoint table.
pub mod key {
    /// The queue.
    pub const QUEUE: u8 = 1;
    /// A partition.
    pub const PARTITION: u8 = 2;
    /// A group.
    pub const GROUP: u8 = 4;
    /// A cursor: (group, partition).
    pub const CURSOR: u8 = 6;
    /// A dead letter: the number's halves.
    pub const DEAD_LETTER: u8 = 8;
    /// The counters.
    pub const COUNTERS: u8 = 10;
    /// A part of a transaction that another queue decided: the value is the operation, the key only tells several apart.
    pub const APPLIED: u8 = 13;
    /// A trace: the number's halves.
    pub const TRACE: u8 = 14;
    /// Offsets to skip after damage.
    pub const JUMP: u8 = 15;
    /// Offsets of a partition that were skipped: (partition, running number).
    pub const GAP: u8 = 16;
    /// A cursor that lives in its cursor file: (group, partition).
    pub const CURSOR_IN_FILE: u8 = 17;
    /// The last pushes of producers in a partition: (partition, halves of the producer's id folded together). The value is one
    /// operation for each producer that folds to the same number.
    pub const SENDER: u8 = 18;
    /// A partition whose record was lost.
    pub const LOST: u8 = 19;
}

impl ControlOp {
    /// Appends an encoded [`ControlOp::Cursor`], of which there are too many in a checkpoint to make each first.
    pub fn encode_cursor(group: GroupId, partition: PartitionId, state: &[u8], bytes: &mut Vec<u8>) {
        bytes.put_u8(6);
        bytes.put_varint(u64::from(group));
        bytes.put_varint(u64::from(partition));
        bytes.put_sized(state);
    }

    /// Appends the encoded operation.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Queue(record) => {
                bytes.put_u8(1);
                bytes.put_sized(record.name.as_bytes());
                bytes.put_u64(record.created_at_us);
                encode_settings(&record.settings, bytes);
            }
            Self::Partition(record) => {
                bytes.put_u8(2);
                bytes.put_varint(u64::from(record.id));
                bytes.put_sized(record.name.as_bytes());
                bytes.put_varint(record.start);
                bytes.put_varint(record.next);
                bytes.put_varint(record.newest_at_us);
                bytes.put_varint(u64::from(record.first_segment));
                bytes.put_varint(u64::from(record.last_segment));
            }
            Self::PartitionRemoved(id) => {
                bytes.put_u8(3);
                bytes.put_varint(u64::from(*id));
            }
            Self::Group(record) => {
                bytes.put_u8(4);
                record.encode(bytes);
            }
            Self::GroupRemoved(id) => {
                bytes.put_u8(5);
                bytes.put_varint(u64::from(*id));
            }
            Self::Cursor { group, partition, state } => Self::encode_cursor(*group, *partition, state, bytes),
            Self::Foreign { incarnation, operation } => {
                bytes.put_u8(7);
                bytes.put_u64(*incarnation);
                bytes.put_sized(operation);
            }
            Self::DeadLetter { id, state } => {
                bytes.put_u8(8);
                bytes.put_varint(*id);
                bytes.put_sized(state);
            }
            Self::DeadLetterRemoved(id) => {
                bytes.put_u8(9);
                bytes.put_varint(*id);
            }
            Self::Counters(counters) => {
                bytes.put_u8(10);
                bytes.put_varint(counters.dropped);
                bytes.put_varint(counters.pushed);
                bytes.put_varint(u64::from(counters.first_segment));
                bytes.put_varint(u64::from(counters.next_partition));
                bytes.put_varint(u64::from(counters.next_group));
                bytes.put_varint(counters.next_dead_letter);
                bytes.put_varint(counters.next_trace);
            }
            Self::Producer { partition, producer_id, epoch, sequence } => {
                bytes.put_u8(11);
                bytes.put_varint(u64::from(*partition));
                bytes.put_u64(*producer_id);
                bytes.put_u32(*epoch);
                bytes.put_u32(*sequence);
            }
            Self::Redo { transaction, target, push } => {
                bytes.put_u8(12);
                bytes.put_u64(*transaction);
                bytes.put_u64(*target);
                bytes.put_sized(push);
            }
            Self::Applied { coordinator, transaction } => {
                bytes.put_u8(13);
                bytes.put_u64(*coordinator);
                bytes.put_u64(*transaction);
            }
            Self::Trace { id, state } => {
                bytes.put_u8(14);
                bytes.put_varint(*id);
                bytes.put_sized(state);
            }
            Self::PartitionLost(id) => {
                bytes.put_u8(19);
                bytes.put_varint(u64::from(*id));
            }
            Self::Jump(jump) => {
                bytes.put_u8(15);
                bytes.put_varint(u64::from(jump.segment));
                bytes.put_varint(jump.offsets);
            }
            Self::Sender { partition, producer_id, epoch, pushes } => {
                bytes.put_u8(18);
                bytes.put_varint(u64::from(*partition));
                bytes.put_u64(*producer_id);
                bytes.put_u32(*epoch);
                bytes.put_varint(pushes.len() as u64);
                for &(sequence, base, count) in pushes {
                    bytes.put_u32(sequence);
                    bytes.put_varint(base);
                    bytes.put_varint(u64::from(count));
                }
            }
            Self::Gap { partition, first, last } => {
                bytes.put_u8(16);
                bytes.put_varint(u64::from(*partition));
                bytes.put_varint(*first);
                bytes.put_varint(*last);
            }
        }
    }

    /// Decodes one operation.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, UnexpectedEnd> {
        Ok(match reader.u8()? {
            1 => {
                Self::Queue(QueueRecord { name: text(reader)?, created_at_us: reader.u64()?, settings: decode_settings(reader)? })
            }
            2 => Self::Partition(PartitionRecord {
                id: number(reader)?,
                name: text(reader)?,
                start: reader.varint()?,
                next: reader.varint()?,
                newest_at_us: reader.varint()?,
                first_segment: number(reader)?,
                last_segment: number(reader)?,
            }),
            3 => Self::PartitionRemoved(number(reader)?),
            4 => Self::Group(GroupRecord::decode(reader)?),
            5 => Self::GroupRemoved(number(reader)?),
            6 => Self::Cursor { group: number(reader)?, partition: number(reader)?, state: reader.sized()?.to_vec() },
            7 => Self::Foreign { incarnation: reader.u64()?, operation: reader.sized()?.to_vec() },
            8 => Self::DeadLetter { id: reader.varint()?, state: reader.sized()?.to_vec() },
            9 => Self::DeadLetterRemoved(reader.varint()?),
            10 => Self::Counters(Counters {
                dropped: reader.varint()?,
                pushed: reader.varint()?,
                first_segment: number(reader)?,
                next_partition: number(reader)?,
                next_group: number(reader)?,
                next_dead_letter: reader.varint()?,
                next_trace: reader.varint()?,
            }),
            11 => Self::Producer {
                partition: number(reader)?,
                producer_id: reader.u64()?,
                epoch: reader.u32()?,
                sequence: reader.u32()?,
            },
            12 => Self::Redo { transaction: reader.u64()?, target: reader.u64()?, push: reader.sized()?.to_vec() },
            13 => Self::Applied { coordinator: reader.u64()?, transaction: reader.u64()? },
            14 => Self::Trace { id: reader.varint()?, state: reader.sized()?.to_vec() },
            15 => Self::Jump(JumpRecord { segment: number(reader)?, offsets: reader.varint()? }),
            16 => Self::Gap { partition: number(reader)?, first: reader.varint()?, last: reader.varint()? },
            18 => {
                let (partition, producer_id, epoch) = (number(reader)?, reader.u64()?, reader.u32()?);
                let mut pushes = Vec::new();
                for _ in 0..reader.varint()? {
                    pushes.push((reader.u32()?, reader.varint()?, number(reader)?));
                }
                Self::Sender { partition, producer_id, epoch, pushes }
            }
            19 => Self::PartitionLost(number(reader)?),
            _ => return Err(UnexpectedEnd),
        })
    }

    /// Decodes all operations of a control record's body.
    pub fn decode_all(body: &[u8]) -> Result<Vec<Self>, UnexpectedEnd> {
        let mut reader = Reader::new(body);
        let mut operations = Vec::new();
        while !reader.is_empty() {
            operations.push(Self::decode(&mut reader)?);
        }
        Ok(operations)
    }

    /// The key under which the checkpoint table keeps the state that this operation carries: (kind, a, b).
    pub fn key(&self) -> Option<(u8, u32, u32)> {
        let halves = |id: u64| ((id >> 32) as u32, id as u32);
        Some(match self {
            Self::Queue(_) => (key::QUEUE, 0, 0),
            Self::Partition(record) => (key::PARTITION, record.id, 0),
            Self::Group(record) => (key::GROUP, record.id, 0),
            Self::Cursor { group, partition, .. } => (key::CURSOR, *group, *partition),
            Self::DeadLetter { id, .. } => (key::DEAD_LETTER, halves(*id).0, halves(*id).1),
            Self::Counters(_) => (key::COUNTERS, 0, 0),
            Self::Jump(_) => (key::JUMP, 0, 0),
            Self::PartitionLost(id) => (key::LOST, *id, 0),
            Self::Trace { id, .. } => (key::TRACE, halves(*id).0, halves(*id).1),
            _ => return None,
        })
    }
}

impl GroupRecord {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.put_varint(u64::from(self.id));
        bytes.put_sized(self.name.as_bytes());
        let flags = u8::from(self.is_declared)
            | u8::from(self.is_enabled) << 1
            | u8::from(self.is_paused) << 2
            | u8::from(self.is_unfiltered) << 5
            | u8::from(self.shared) << 3
            | u8::from(self.delivery_limit.is_some()) << 4;
        bytes.put_u8(flags);
        bytes.put_sized(self.filter.as_bytes());
        bytes.put_sized(self.first_filter.as_bytes());
        bytes.put_varint(u64::from(self.delivery_limit.unwrap_or(0)));
        bytes.put_sized(self.display_name.as_bytes());
        bytes.put_varint(self.version);
        let (kind, value) = match self.start {
            None => (0, 0),
            Some(Start::Beginning) => (1, 0),
            Some(Start::New) => (2, 0),
            Some(Start::Time(time)) => (3, time),
            Some(Start::Offset(offset)) => (4, offset),
        };
        bytes.put_u8(kind);
        bytes.put_varint(value);
        bytes.put_varint(self.created_at_us);
        bytes.put_varint(self.updated_at_us);
        bytes.put_u64(self.created_lsn);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, UnexpectedEnd> {
        let id = number(reader)?;
        let name = text(reader)?;
        let flags = reader.u8()?;
        let filter = text(reader)?;
        let first_filter = text(reader)?;
        let limit = number(reader)?;
        let display_name = text(reader)?;
        let version = reader.varint()?;
        let start = match (reader.u8()?, reader.varint()?) {
            (0, _) => None,
            (1, _) => Some(Start::Beginning),
            (2, _) => Some(Start::New),
            (3, time) => Some(Start::Time(time)),
            (4, offset) => Some(Start::Offset(offset)),
            _ => return Err(UnexpectedEnd),
        };
        Ok(Self {
            id,
            name,
            is_declared: flags & 1 != 0,
            is_enabled: flags & 2 != 0,
            is_paused: flags & 4 != 0,
            is_unfiltered: flags & 32 != 0,
            shared: flags & 8 != 0,
            filter,
            first_filter,
            delivery_limit: (flags & 16 != 0).then_some(limit),
            display_name,
            version,
            start,
            created_at_us: reader.varint()?,
            updated_at_us: reader.varint()?,
            created_lsn: reader.u64()?,
        })
    }
}

fn encode_settings(settings: &QueueSettings, bytes: &mut Vec<u8>) {
    let (durability, milliseconds) = match settings.durability {
        Durability::Sync => (0, 0),
        Durability::Interval { milliseconds } => (1, milliseconds),
        Durability::Os => (2, 0),
    };
    bytes.put_u8(durability);
    bytes.put_varint(u64::from(milliseconds));
    bytes.put_u8(match settings.compression {
        Compression::None => 0,
        Compression::Zstd { level } => level.max(1),
    });
    bytes.put_sized(settings.namespace.as_bytes());
    bytes.put_sized(settings.task.as_bytes());
    let flags = u8::from(settings.consumer_groups)
        | u8::from(settings.dead_letter_queue) << 1
        | u8::from(settings.dlq_after_max_retries) << 2
        | u8::from(settings.retention_enabled) << 3
        | u8::from(settings.encryption_enabled) << 4;
    bytes.put_u8(flags);
    bytes.put_u64(settings.priority as u64);
    for value in [
        u64::from(settings.lease_time_s),
        u64::from(settings.retry_limit),
        u64::from(settings.retry_delay_ms),
        settings.max_size,
        settings.ttl_s,
        u64::from(settings.delayed_processing_s),
        u64::from(settings.window_buffer_s),
        settings.retention_s,
        settings.completed_retention_s,
        settings.retention_bytes,
        settings.max_wait_time_s,
        settings.min_pop_wait_time,
        settings.dedup_window_s,
        settings.segment_bytes_max,
    ] {
        bytes.put_varint(value);
    }
}

fn decode_settings(reader: &mut Reader<'_>) -> Result<QueueSettings, UnexpectedEnd> {
    let durability = (reader.u8()?, number(reader)?);
    let compression = reader.u8()?;
    let namespace = text(reader)?;
    let task = text(reader)?;
    let flags = reader.u8()?;
    Ok(QueueSettings {
        durability: match durability {
            (0, _) => Durability::Sync,
            (1, milliseconds) => Durability::Interval { milliseconds },
            (2, _) => Durability::Os,
            _ => return Err(UnexpectedEnd),
        },
        compression: if compression == 0 { Compression::None } else { Compression::Zstd { level: compression } },
        namespace,
        task,
        consumer_groups: flags & 1 != 0,
        dead_letter_queue: flags & 2 != 0,
        dlq_after_max_retries: flags & 4 != 0,
        retention_enabled: flags & 8 != 0,
        encryption_enabled: flags & 16 != 0,
        priority: reader.u64()? as i64,
        lease_time_s: number(reader)?,
        retry_limit: number(reader)?,
        retry_delay_ms: number(reader)?,
        max_size: reader.varint()?,
        ttl_s: reader.varint()?,
        delayed_processing_s: number(reader)?,
        window_buffer_s: number(reader)?,
        retention_s: reader.varint()?,
        completed_retention_s: reader.varint()?,
        retention_bytes: reader.varint()?,
        max_wait_time_s: reader.varint()?,
        min_pop_wait_time: reader.varint()?,
        dedup_window_s: reader.varint()?,
        segment_bytes_max: reader.varint()?,
    })
}

fn number(reader: &mut Reader<'_>) -> Result<u32, UnexpectedEnd> {
    u32::try_from(reader.varint()?).map_err(|_| UnexpectedEnd)
}

fn text(reader: &mut Reader<'_>) -> Result<String, UnexpectedEnd> {
    let bytes = reader.sized()?;
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| UnexpectedEnd)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operations() -> Vec<ControlOp> {
        vec![
            ControlOp::Queue(QueueRecord {
                name: "orders".to_owned(),
                created_at_us: 5,
                settings: QueueSettings {
                    durability: Durability::Interval { milliseconds: 20 },
                    priority: -3,
                    retention_enabled: true,
                    ..QueueSettings::default()
                },
            }),
            ControlOp::Partition(PartitionRecord {
                id: 1,
                name: "p".to_owned(),
                start: 2,
                next: 3,
                newest_at_us: 4,
                first_segment: 5,
                last_segment: 6,
            }),
            ControlOp::PartitionRemoved(9),
            ControlOp::Group(GroupRecord {
                id: 4,
                name: "billing".to_owned(),
                is_declared: true,
                is_enabled: false,
                is_paused: true,
                is_unfiltered: false,
                shared: true,
                filter: ":a".to_owned(),
                first_filter: ":b".to_owned(),
                delivery_limit: Some(0),
                display_name: "Billing".to_owned(),
                version: 300,
                start: Some(Start::Time(77)),
                created_at_us: 1,
                updated_at_us: 2,
                created_lsn: 1 << 32,
            }),
            ControlOp::GroupRemoved(4),
            ControlOp::Cursor { group: 1, partition: 2, state: vec![1, 2, 3] },
            ControlOp::Foreign { incarnation: 8, operation: vec![4] },
            ControlOp::DeadLetter { id: 1 << 40, state: vec![5] },
            ControlOp::DeadLetterRemoved(7),
            ControlOp::Counters(Counters {
                dropped: 6,
                pushed: 1,
                first_segment: 2,
                next_partition: 3,
                next_group: 4,
                next_dead_letter: 1 << 40,
                next_trace: 5,
            }),
            ControlOp::Sender { partition: 1, producer_id: 2, epoch: 3, pushes: vec![(4, 1 << 40, 6), (5, 7, 0)] },
            ControlOp::Producer { partition: 1, producer_id: 2, epoch: 3, sequence: 4 },
            ControlOp::Redo { transaction: 2, target: 1, push: vec![9] },
            ControlOp::Applied { coordinator: 1, transaction: 2 },
            ControlOp::Jump(JumpRecord { segment: 4, offsets: 1 << 30 }),
            ControlOp::Gap { partition: 1, first: 5, last: 9 },
            ControlOp::PartitionLost(300),
            ControlOp::Trace { id: 3, state: vec![] },
        ]
    }

    #[test]
    fn operations_round_trip_and_every_shorter_input_is_refused() {
        for operation in operations() {
            let mut bytes = Vec::new();
            operation.encode(&mut bytes);
            assert_eq!(ControlOp::decode_all(&bytes), Ok(vec![operation.clone()]));
            for cut in 1..bytes.len() {
                assert!(ControlOp::decode(&mut Reader::new(&bytes[..cut])).is_err(), "{operation:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn every_setting_survives() {
        let settings = QueueSettings { segment_bytes_max: 1, min_pop_wait_time: 2, ..QueueSettings::default() };
        let mut bytes = Vec::new();
        encode_settings(&settings, &mut bytes);
        assert_eq!(decode_settings(&mut Reader::new(&bytes)), Ok(settings));
    }
}
