//! Cursor files against the checkpoint that names them.

use std::sync::Arc;

use crate::format::cursor::CursorFront;
use crate::format::names;
use crate::storage::disk::Dir;
use crate::storage::slots::{SlotIdentity, Slots, SlotsError};

use super::state::{State, is_in_file};
use super::{Notes, Severity};

/// Reads every cursor file that the checkpoint names, and names the others.
pub(super) fn check(root: &Arc<dyn Dir>, incarnation: u64, state: &mut State, notes: &mut Notes<'_>) {
    let dir = match root.dir(names::CURSORS) {
        Ok(dir) => dir,
        Err(error) if error.is_not_found() && state.in_files.is_empty() => return,
        Err(error) => return notes.add(Severity::Loss, names::CURSORS, None, error.to_string()),
    };
    for (group, partition) in state.in_files.clone() {
        let name = names::cursor(group, partition);
        let file = format!("{}/{name}", names::CURSORS);
        match Slots::read(dir.as_ref(), &name, SlotIdentity { incarnation, partition, group }) {
            Ok((value, fault)) => {
                if let Some(fault) = fault {
                    let text = format!("its older slot {fault}; the next write repairs it");
                    notes.add(Severity::Info, &file, None, text);
                }
                match CursorFront::decode(&value.body) {
                    Ok(front) => state.put_cursor((group, partition), front),
                    Err(_) => notes.add(Severity::Loss, &file, None, "its cursor does not decode; the group is held there"),
                }
            }
            // A running server took the cursor back into its checkpoint.
            Err(SlotsError::Disk(error)) if error.is_not_found() && !is_in_file(root, incarnation, (group, partition)) => {}
            Err(error) => notes.add(Severity::Loss, &file, None, format!("{error}; the group is held there")),
        }
    }
    let entries = match dir.list() {
        Ok(entries) => entries,
        Err(error) => return notes.add(Severity::Loss, names::CURSORS, None, error.to_string()),
    };
    for entry in entries {
        let file = format!("{}/{}", names::CURSORS, entry.name);
        let target = entry.name.strip_suffix(".tmp").unwrap_or(&entry.name);
        match names::parse_cursor(target).filter(|_| !entry.is_directory) {
            None => notes.add(Severity::Info, &file, None, "none of our files"),
            Some(_) if target.len() < entry.name.len() => {
                notes.add(Severity::Info, &file, None, "left by a write that did not finish");
            }
            Some(place) if !state.in_files.contains(&place) => {
                notes.add(Severity::Info, &file, None, "the checkpoint does not name it, so it does not count");
            }
            Some(_) => {}
        }
    }
}
