//! The cursor file of one (partition, group): two checksummed slots that are written in turn.
//!
//! A write goes to the slot with the older value and is synced; a power loss during it leaves the other slot as it was. A
//! reader takes the newer of the two that are whole. If neither is, that is an error and never an empty cursor. The bytes are
//! described in `storage-format.md`, "Slots".

mod format;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::disk::{Access, Dir, DiskError, File, check_absent, create_temporary};
use format::Slot;

pub use format::{BODY_BYTES_MAX, SlotFault};

/// Whose cursor a file holds; a slot of another is no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotIdentity {
    /// The incarnation of the queue.
    pub incarnation: u64,
    /// The partition.
    pub partition: u32,
    /// The group.
    pub group: u32,
}

/// What the newest whole slot holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotValue {
    /// Which write of this file it was; grows by one or two with each.
    pub sequence: u64,
    /// The caller's mark of how far its log is covered.
    pub lsn: u64,
    /// The content.
    pub body: Vec<u8>,
}

/// Why slots cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SlotsError {
    /// The disk refused. After a refused sync the slots are poisoned.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// There was a value and it cannot be read. Hold the group; it is for a person to decide where it goes on.
    #[error("{path} has no readable slot: the first {first}, the second {second}")]
    BothSlotsBad {
        /// The file.
        path: String,
        /// What is wrong with the first slot.
        first: SlotFault,
        /// What is wrong with the second.
        second: SlotFault,
    },
    /// A slot was written by a newer format. Its bytes are untouched.
    #[error("{path} was written by a newer format (version {version}, unknown incompatible features {features:#x})")]
    NewerFormat {
        /// The file.
        path: String,
        /// The version in the file.
        version: u16,
        /// The incompatible features in the file.
        features: u16,
    },
    /// A sync failed, so what is on the disk is unknown until the file is opened again.
    #[error("{path} takes no more writes after a failed sync")]
    Poisoned {
        /// The file.
        path: String,
    },
    /// The content is over [`BODY_BYTES_MAX`].
    #[error("cursor of {bytes} bytes is over the limit of {limit}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
}

/// An open cursor file.
#[derive(Debug)]
pub struct Slots {
    dir: Arc<dyn Dir>,
    name: String,
    identity: SlotIdentity,
    file: Arc<dyn File>,
    /// Bytes of each slot.
    slot_bytes: usize,
    /// The slot, 0 or 1, that the next write goes to.
    next: usize,
    sequence: u64,
    is_poisoned: bool,
}

impl Slots {
    /// Makes the file, which must not exist, with its first value; durable on return, directory entry included.
    pub fn create(dir: &Arc<dyn Dir>, name: &str, identity: SlotIdentity, lsn: u64, body: &[u8]) -> Result<Self, SlotsError> {
        check_absent(&**dir, name)?;
        stage(&**dir, name, identity, 1, lsn, body)?;
        put_in_place(dir, name, identity, 1, body)
    }

    /// Opens a file and reads its newest whole slot. A fault of the other slot is passed on: what a power loss during a write
    /// leaves, or damage of the older value. The next write repairs it. Nothing on the disk is changed.
    pub fn open(
        dir: &Arc<dyn Dir>,
        name: &str,
        identity: SlotIdentity,
    ) -> Result<(Self, SlotValue, Option<SlotFault>), SlotsError> {
        let file = dir.open(name, Access::ReadWrite)?;
        let newest = read_newest(&*file, identity)?;
        let slots = Self {
            dir: Arc::clone(dir),
            name: name.to_owned(),
            identity,
            file,
            slot_bytes: newest.slot.slot_bytes,
            next: 1 - newest.index,
            sequence: newest.slot.sequence,
            is_poisoned: false,
        };
        Ok((slots, newest.slot.into_value(), newest.other_fault))
    }

    /// Reads a file as [`Self::open`] does, without the means to write it.
    pub fn read(dir: &dyn Dir, name: &str, identity: SlotIdentity) -> Result<(SlotValue, Option<SlotFault>), SlotsError> {
        let newest = read_newest(&*dir.open(name, Access::Read)?, identity)?;
        Ok((newest.slot.into_value(), newest.other_fault))
    }

    /// Reads both slots as they are, for people.
    pub fn read_both(
        dir: &dyn Dir,
        name: &str,
        identity: SlotIdentity,
    ) -> Result<[std::result::Result<SlotValue, SlotFault>; 2], SlotsError> {
        let bytes = read_bytes(&*dir.open(name, Access::Read)?)?;
        Ok(format::decode_both(&bytes, identity).map(|slot| slot.map(Slot::into_value)))
    }

    /// Replaces the value; durable on return. If it fails, the former value or this one is what a restart finds. A value that
    /// the slots are too small for moves to a larger file.
    pub fn write(&mut self, lsn: u64, body: &[u8]) -> Result<(), SlotsError> {
        if self.is_poisoned {
            return Err(SlotsError::Poisoned { path: self.file.describe().to_owned() });
        }
        if format::slot_bytes_for(body.len())? > self.slot_bytes {
            return self.grow(lsn, body);
        }
        let sequence = self.sequence + 1;
        let slot = Slot { index: self.next, slot_bytes: self.slot_bytes, sequence, lsn, body: body.to_vec() };
        self.file.write_at(&slot.encode(self.identity), (self.next * self.slot_bytes) as u64)?;
        self.file.sync_data().inspect_err(|_| self.is_poisoned = true)?;
        self.next = 1 - self.next;
        self.sequence = sequence;
        Ok(())
    }

    fn grow(&mut self, lsn: u64, body: &[u8]) -> Result<(), SlotsError> {
        let sequence = self.sequence + 1;
        stage(&*self.dir, &self.name, self.identity, sequence, lsn, body)?;
        // From here on a failure leaves open which of the two files a restart finds, and a write could go to the other.
        self.is_poisoned = true;
        *self = put_in_place(&self.dir, &self.name, self.identity, sequence, body)?;
        Ok(())
    }
}

fn temporary(name: &str) -> String {
    format!("{name}.tmp")
}

/// Writes a file with the value in both slots (so that one bad sector does not lose it) under a temporary name, synced. The
/// first slot has number `sequence`, the second the one after it.
fn stage(dir: &dyn Dir, name: &str, identity: SlotIdentity, sequence: u64, lsn: u64, body: &[u8]) -> Result<(), SlotsError> {
    let slot_bytes = format::slot_bytes_for(body.len())?;
    let slot =
        |index: usize| Slot { index, slot_bytes, sequence: sequence + index as u64, lsn, body: body.to_vec() }.encode(identity);
    let bytes = [slot(0), slot(1)].concat();
    let file = create_temporary(dir, &temporary(name))?;
    let written = file.write_at(&bytes, 0).and_then(|()| file.sync_data());
    if written.is_err() {
        // A full disk shall not fill up with what did not fit.
        let _ = dir.remove(&temporary(name));
    }
    Ok(written?)
}

fn put_in_place(dir: &Arc<dyn Dir>, name: &str, identity: SlotIdentity, sequence: u64, body: &[u8]) -> Result<Slots, SlotsError> {
    dir.rename(&temporary(name), name)?;
    dir.sync()?;
    Ok(Slots {
        dir: Arc::clone(dir),
        name: name.to_owned(),
        identity,
        file: dir.open(name, Access::ReadWrite)?,
        slot_bytes: format::slot_bytes_for(body.len())?,
        next: 0,
        sequence: sequence + 1,
        is_poisoned: false,
    })
}

/// The newer of the two slots.
struct Newest {
    slot: Slot,
    index: usize,
    other_fault: Option<SlotFault>,
}

fn read_bytes(file: &dyn File) -> Result<Vec<u8>, SlotsError> {
    let mut bytes = vec![0; 2 * format::SLOT_BYTES_MAX];
    let count = file.read_at(&mut bytes, 0)?;
    bytes.truncate(count);
    Ok(bytes)
}

fn read_newest(file: &dyn File, identity: SlotIdentity) -> Result<Newest, SlotsError> {
    let [first, second] = format::decode_both(&read_bytes(file)?, identity);
    for slot in [&first, &second] {
        if let Err(SlotFault::Newer { version, features }) = *slot {
            return Err(SlotsError::NewerFormat { path: file.describe().to_owned(), version, features });
        }
    }
    match (first, second) {
        (Ok(first), Ok(second)) if first.sequence > second.sequence => Ok(Newest { slot: first, index: 0, other_fault: None }),
        (Ok(_), Ok(second)) => Ok(Newest { slot: second, index: 1, other_fault: None }),
        (Ok(first), Err(fault)) => Ok(Newest { slot: first, index: 0, other_fault: Some(fault) }),
        (Err(fault), Ok(second)) => Ok(Newest { slot: second, index: 1, other_fault: Some(fault) }),
        (Err(first), Err(second)) => Err(SlotsError::BothSlotsBad { path: file.describe().to_owned(), first, second }),
    }
}
