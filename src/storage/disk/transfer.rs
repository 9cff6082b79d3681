//! Loops around single system calls: a call may be interrupted, or move fewer bytes than asked.

use std::io::IoSlice;

use rustix::io::{Errno, retry_on_intr};

/// Slices that one vectored call takes at most (`IOV_MAX` on Linux).
const SLICES_MAX: usize = 1024;

/// Reads until the buffer is full or the file ends.
pub(super) fn read_fully(
    buffer: &mut [u8],
    position: u64,
    mut read: impl FnMut(&mut [u8], u64) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let mut done = 0;
    while done < buffer.len() {
        let at = position.checked_add(done as u64).ok_or(Errno::OVERFLOW)?;
        let rest = buffer.get_mut(done..).unwrap_or_default();
        match retry_on_intr(|| read(rest, at))? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}

/// Writes until every slice is written. A call that writes nothing is refused as an I/O error instead of tried for ever.
pub(super) fn write_fully(
    slices: &[IoSlice<'_>],
    position: u64,
    mut write: impl FnMut(&[IoSlice<'_>], u64) -> Result<usize, Errno>,
) -> Result<(), Errno> {
    let mut owned: Vec<IoSlice<'_>> = slices.iter().filter(|slice| !slice.is_empty()).copied().collect();
    let mut rest = owned.as_mut_slice();
    let mut at = position;
    while !rest.is_empty() {
        let now = rest.get(..SLICES_MAX).unwrap_or(rest);
        let count = retry_on_intr(|| write(now, at))?;
        if count == 0 {
            return Err(Errno::IO);
        }
        at = at.checked_add(count as u64).ok_or(Errno::OVERFLOW)?;
        IoSlice::advance_slices(&mut rest, count);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_interrupted_writes_still_write_every_byte_once() {
        for step in 1..=7 {
            let mut target = Vec::new();
            let mut interrupt = false;
            let slices = [IoSlice::new(b"abc"), IoSlice::new(b""), IoSlice::new(b"defgh"), IoSlice::new(b"i")];
            write_fully(&slices, 100, |slices, position| {
                interrupt = !interrupt;
                if interrupt {
                    return Err(Errno::INTR);
                }
                assert_eq!(position, 100 + target.len() as u64);
                let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).take(step).collect();
                target.extend_from_slice(&bytes);
                Ok(bytes.len())
            })
            .unwrap();
            assert_eq!(target, b"abcdefghi");
        }
    }

    #[test]
    fn more_slices_than_one_call_takes_go_in_several() {
        let slices = vec![IoSlice::new(b"x"); SLICES_MAX + 5];
        let mut calls = Vec::new();
        write_fully(&slices, 0, |slices, _| {
            calls.push(slices.len());
            Ok(slices.len())
        })
        .unwrap();
        assert_eq!(calls, [SLICES_MAX, 5]);
    }

    #[test]
    fn a_write_without_progress_ends() {
        assert_eq!(write_fully(&[IoSlice::new(b"x")], 0, |_, _| Ok(0)), Err(Errno::IO));
        assert_eq!(write_fully(&[IoSlice::new(b"xy")], u64::MAX, |_, _| Ok(1)), Err(Errno::OVERFLOW));
    }

    #[test]
    fn short_and_interrupted_reads_fill_the_buffer_up_to_the_end() {
        let source = b"abcdefgh";
        let mut interrupt = false;
        let mut buffer = [0; 16];
        let read = |buffer: &mut [u8], position: u64| {
            interrupt = !interrupt;
            if interrupt {
                return Err(Errno::INTR);
            }
            let rest = &source[(position as usize).min(source.len())..];
            let count = rest.len().min(3).min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        };
        assert_eq!(read_fully(&mut buffer, 1, read), Ok(7));
        assert_eq!(&buffer[..7], b"bcdefgh");
    }
}
