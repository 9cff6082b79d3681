//! Reading a table from front to back, and telling a torn end from damage.

use super::format::{BLOCK_HEADER_BYTES, BLOCK_MAGIC, BODY_BYTES_MAX, BlockHeader, FILE_HEADER_BYTES, SEQUENCE_MAX, decode_body};
use super::{DiskError, Entry, File, TableReport};

/// Bytes read at once in the search for the next block.
const WINDOW_BYTES: usize = 1 << 20;

/// What the file holds.
#[derive(Debug)]
pub(super) struct Scan {
    pub report: TableReport,
    /// The end of the last good block, where the next one goes.
    pub end: u64,
    /// The number of the next block.
    pub sequence: u64,
}

/// Passes on the entries of every good block, each with the position of its value. `base_length` is the part of the file that was synced before anyone saw it.
pub(super) fn scan(
    file: &dyn File,
    incarnation: u64,
    base_length: u64,
    mut on_entry: impl FnMut(Entry<'_>, u64),
) -> Result<Scan, DiskError> {
    let blocks = Blocks { file, incarnation, length: file.length()? };
    let mut scan = Scan { report: TableReport::default(), end: FILE_HEADER_BYTES as u64, sequence: 1 };
    let mut position = scan.end;
    while position < blocks.length {
        if let Some((header, body)) = blocks.read(position, scan.sequence)?
            && let Ok(entries) = decode_body(&body, header.entry_count)
        {
            scan.report.blocks += 1;
            scan.report.entries += entries.len() as u64;
            let start = position + BLOCK_HEADER_BYTES as u64;
            for entry in entries {
                let within = entry.value.map_or(0, |value| value.as_ptr() as usize - body.as_ptr() as usize);
                on_entry(entry, start + within as u64);
            }
            position += BLOCK_HEADER_BYTES as u64 + u64::from(header.body_length);
            (scan.end, scan.sequence, scan.report.lsn) = (position, header.sequence + 1, header.lsn);
            continue;
        }
        match blocks.find(position + 1, scan.sequence)? {
            // Each block is synced before the next is written, so what stands before a later block was whole once.
            Some(header) => {
                scan.report.damage.push(position..header.position);
                position = header.position;
                scan.sequence = header.sequence;
            }
            None if position < base_length => {
                scan.report.damage.push(position..blocks.length.max(base_length));
                break;
            }
            None => {
                scan.report.torn_tail = Some(position..blocks.length);
                break;
            }
        }
    }
    // The file was cut short at the end of a block.
    if scan.report.damage.is_empty() && scan.end < base_length {
        scan.report.damage.push(scan.end..base_length);
    }
    Ok(scan)
}

struct Blocks<'a> {
    file: &'a dyn File,
    incarnation: u64,
    length: u64,
}

impl Blocks<'_> {
    /// The block at a position, if it is whole and has this number.
    fn read(&self, position: u64, sequence: u64) -> Result<Option<(BlockHeader, Vec<u8>)>, DiskError> {
        let Some(header) = self.header(position)? else { return Ok(None) };
        let start = position + BLOCK_HEADER_BYTES as u64;
        let body_length = header.body_length as usize;
        if header.sequence != sequence || body_length > BODY_BYTES_MAX || start + u64::from(header.body_length) > self.length {
            return Ok(None);
        }
        let mut body = vec![0; body_length];
        self.file.read_exact_at(&mut body, start)?;
        Ok((crc32fast::hash(&body) == header.body_checksum).then_some((header, body)))
    }

    /// The header at a position, if it is one and belongs there.
    fn header(&self, position: u64) -> Result<Option<BlockHeader>, DiskError> {
        let mut bytes = [0; BLOCK_HEADER_BYTES];
        let count = self.file.read_at(&mut bytes, position)?;
        let header = bytes.get(..count).and_then(BlockHeader::decode);
        Ok(header.filter(|header| {
            header.incarnation == self.incarnation && header.position == position && header.sequence <= SEQUENCE_MAX
        }))
    }

    /// The first header from a position on that belongs where it is and comes after `sequence`.
    fn find(&self, from: u64, sequence: u64) -> Result<Option<BlockHeader>, DiskError> {
        let mut window = vec![0; WINDOW_BYTES];
        let mut start = from;
        while start < self.length {
            let count = self.file.read_at(&mut window, start)?;
            let bytes = window.get(..count).unwrap_or_default();
            for candidate in magics(bytes) {
                if let Some(header) = self.header(start + candidate as u64)?
                    && header.sequence > sequence
                {
                    return Ok(Some(header));
                }
            }
            if count < WINDOW_BYTES {
                break;
            }
            // A mark may lie across two windows.
            start += (count - (BLOCK_MAGIC.len() - 1)) as u64;
        }
        Ok(None)
    }
}

/// Where blocks could begin.
fn magics(bytes: &[u8]) -> impl Iterator<Item = usize> {
    bytes.windows(BLOCK_MAGIC.len()).enumerate().filter(|(_, window)| *window == BLOCK_MAGIC).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::super::disk::sim::SimDisk;
    use super::*;

    /// The file grows while it is read by someone else than its writer: a block that was not whole when the length was taken.
    #[test]
    fn a_block_that_ends_behind_the_length_is_not_read() {
        let file = SimDisk::new(1).root().create("a").unwrap();
        let header = BlockHeader { incarnation: 7, position: 64, sequence: 1, ..BlockHeader::default() };
        file.write_at(&header.encode(), 64).unwrap();
        for length in 65..64 + BLOCK_HEADER_BYTES as u64 {
            let blocks = Blocks { file: &*file, incarnation: 7, length };
            assert_eq!(blocks.read(64, 1).unwrap(), None);
        }
    }

    #[test]
    fn a_sequence_that_cannot_be_counted_on_is_no_block() {
        let file = SimDisk::new(1).root().create("a").unwrap();
        let header = BlockHeader { incarnation: 7, position: 64, sequence: u64::MAX, ..BlockHeader::default() };
        file.write_at(&header.encode(), 64).unwrap();
        let report = scan(&*file, 7, 0, |_, _| {}).unwrap().report;
        assert_eq!((report.blocks, report.torn_tail), (0, Some(64..120)));
    }

    /// A mark that lies across two windows of the search is found.
    #[test]
    fn the_search_overlaps_its_windows() {
        for shift in 0..8 {
            let file = SimDisk::new(1).root().create("a").unwrap();
            let position = (100 + WINDOW_BYTES - 6 + shift) as u64;
            let header = BlockHeader { incarnation: 7, position, sequence: 5, ..BlockHeader::default() };
            file.write_at(&header.encode(), position).unwrap();
            let blocks = Blocks { file: &*file, incarnation: 7, length: file.length().unwrap() };
            assert_eq!(blocks.find(100, 4).unwrap(), Some(header));
            assert_eq!(blocks.find(100, 5).unwrap(), None);
        }
    }
}
