//! The start file of a data directory: how often it was opened, and whether the last run closed it. See "Start file" in
//! `storage-format.md`.

use std::sync::Arc;

use crate::codec::{Put, Reader};
use crate::format::{COMPATIBLE_FLAGS, INCOMPATIBLE_FLAGS, VERSION, check_flags, names};
use crate::model::{Error, ErrorCode};
use crate::storage::disk::{Access, Dir, DiskErrorKind};

/// The file's name.
pub const START_FILE: &str = "start";
const MAGIC: [u8; 8] = *b"FANLOGst";
const BYTES: usize = 56;

/// What the start file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct StartRecord {
    /// Grows by one with each start; first part of lease ids, epoch of log records.
    pub number: u64,
    /// Whether the run that wrote it closed the directory.
    pub is_clean: bool,
    /// The boot of the machine that it was written in, as far as it can be told.
    pub boot_id: [u8; 16],
}

impl StartRecord {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.put_bytes(&MAGIC);
        bytes.put_u16(VERSION);
        bytes.put_u16(0);
        bytes.put_u32(COMPATIBLE_FLAGS);
        bytes.put_u32(INCOMPATIBLE_FLAGS);
        bytes.put_u64(self.number);
        bytes.put_u8(u8::from(self.is_clean));
        bytes.put_bytes(&[0; 7]);
        bytes.put_bytes(&self.boot_id);
        let crc = crc32fast::hash(&bytes);
        bytes.put_u32(crc);
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let bad = |what: &str| Error::new(ErrorCode::BadDirectory, format!("start file {what}"));
        let short = |_| bad("is cut short");
        if bytes.len() != BYTES {
            return Err(bad("has the wrong length"));
        }
        let mut reader = Reader::new(bytes);
        if reader.array().map_err(short)? != MAGIC {
            return Err(bad("has the wrong magic"));
        }
        let (covered, crc) = bytes.split_at(BYTES - 4);
        if crc32fast::hash(covered).to_le_bytes() != crc {
            return Err(bad("has a wrong checksum"));
        }
        let version = reader.u16().map_err(short)?;
        reader.u16().map_err(short)?;
        reader.u32().map_err(short)?;
        let incompatible = reader.u32().map_err(short)?;
        check_flags("start file", version, incompatible)
            .map_err(|error| Error::new(ErrorCode::NewerFormat, error.to_string()))?;
        let number = reader.u64().map_err(short)?;
        let is_clean = reader.u8().map_err(short)? != 0;
        reader.bytes(7).map_err(short)?;
        Ok(Self { number, is_clean, boot_id: reader.array().map_err(short)? })
    }

    /// Reads the start file; `None` if there is none.
    pub fn read(dir: &dyn Dir) -> Result<Option<Self>, Error> {
        let file = match dir.open(START_FILE, Access::Read) {
            Ok(file) => file,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut bytes = vec![0; BYTES + 1];
        let length = file.read_at(&mut bytes, 0)?;
        Self::decode(bytes.get(..length).unwrap_or_default()).map(Some)
    }

    /// Replaces the start file, durably. On a full disk the old file is written over: it is smaller than a sector, and a start
    /// that finds it torn goes on all the same.
    pub fn write(&self, dir: &Arc<dyn Dir>) -> Result<(), Error> {
        let bytes = self.encode();
        match crate::storage::log::replace_file(dir.as_ref(), START_FILE, &bytes) {
            Err(error) if error.kind == DiskErrorKind::Full => {
                let _ = dir.remove(&names::temporary(START_FILE));
                let Ok(file) = dir.open(START_FILE, Access::ReadWrite) else { return Err(error.into()) };
                file.write_at(&bytes, 0)?;
                Ok(file.sync_data()?)
            }
            replaced => Ok(replaced?),
        }
    }
}

/// The id of this boot of the machine; zeros where the system does not tell.
pub(super) fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    uuid::Uuid::parse_str(text.trim()).map(|id| *id.as_bytes()).unwrap_or_default()
}

/// Whether a name in the data directory is one of ours.
pub(super) fn is_our_file(name: &str) -> bool {
    let files = [START_FILE, names::TOKEN_FILE];
    name == crate::storage::lock::LOCK_FILE || files.into_iter().any(|file| name == file || name == names::temporary(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_round_trips_and_every_damage_is_refused() {
        let record = StartRecord { number: 7, is_clean: true, boot_id: [3; 16] };
        let bytes = record.encode();
        assert_eq!(StartRecord::decode(&bytes), Ok(record));
        for cut in 0..bytes.len() {
            assert!(StartRecord::decode(&bytes[..cut]).is_err());
        }
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(StartRecord::decode(&bad).is_err());
        }
    }
}
