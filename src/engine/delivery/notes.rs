//! What is kept of messages that were handed back.

use std::collections::BTreeMap;

use crate::model::OffsetRange;
use crate::record::Offset;

/// Bytes of a reason that are kept with a message in flight.
pub const ERROR_BYTES_MAX: usize = 4_096;

/// Bytes of reasons that one cursor keeps; later ones are cut to what is left of it.
const ERROR_BYTES_TOTAL_MAX: usize = 8_192;

/// What is kept of a message that was handed back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Note {
    /// Failures charged.
    pub(super) failures: u32,
    /// Why it was last handed back; empty if no reason was given.
    pub(super) error: String,
}

/// Notes by offset.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Notes {
    by_offset: BTreeMap<Offset, Note>,
    /// Bytes of all reasons.
    error_bytes: usize,
}

impl Notes {
    pub(super) fn is_empty(&self) -> bool {
        self.by_offset.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.by_offset.len()
    }

    pub(super) fn get(&self, offset: Offset) -> Option<&Note> {
        self.by_offset.get(&offset)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Offset, &Note)> {
        self.by_offset.iter().map(|(&offset, note)| (offset, note))
    }

    /// Replaces the note of a message.
    pub(super) fn insert(&mut self, offset: Offset, note: Note) {
        self.remove(offset);
        self.error_bytes += note.error.len();
        self.by_offset.insert(offset, note);
    }

    pub(super) fn remove(&mut self, offset: Offset) {
        if let Some(note) = self.by_offset.remove(&offset) {
            self.error_bytes -= note.error.len();
        }
    }

    pub(super) fn clear(&mut self, range: OffsetRange) {
        while let Some((&offset, _)) = self.by_offset.range(range.first..=range.last.max(range.first)).next() {
            self.remove(offset);
        }
    }

    pub(super) fn clear_below(&mut self, offset: Offset) {
        if let Some(last) = offset.checked_sub(1) {
            self.clear(OffsetRange { first: 0, last });
        }
    }

    /// Keeps why a message was handed back, and charges it. A reason replaces the one before, silence leaves it. Returns the
    /// failures charged so far.
    pub(super) fn hand_back(&mut self, offset: Offset, reason: &str, is_charged: bool) -> u32 {
        let mut note = self.get(offset).cloned().unwrap_or_default();
        note.failures = note.failures.saturating_add(u32::from(is_charged));
        if !reason.is_empty() {
            let others = self.error_bytes - self.get(offset).map_or(0, |note| note.error.len());
            let room = ERROR_BYTES_TOTAL_MAX.saturating_sub(others).min(ERROR_BYTES_MAX);
            note.error = reason[..reason.floor_char_boundary(room)].to_owned();
        }
        let failures = note.failures;
        self.insert(offset, note);
        failures
    }

    /// Keeps the notes of the lowest `notes_max` messages, and that of `offset` whatever its place.
    pub(super) fn limit(&mut self, notes_max: usize, offset: Offset) {
        while self.len() > notes_max
            && let Some(highest) = self.by_offset.keys().rev().copied().find(|&other| other != offset)
        {
            self.remove(highest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_stay_inside_their_budget_and_are_cut_between_characters() {
        let mut notes = Notes::default();
        let long = "é".repeat(3_000);
        for offset in 0..10 {
            notes.hand_back(offset, &long, true);
        }
        let kept: usize = notes.iter().map(|(_, note)| note.error.len()).sum();
        assert_eq!(notes.get(0).unwrap().error.len(), ERROR_BYTES_MAX);
        assert!(kept <= ERROR_BYTES_TOTAL_MAX && kept == notes.error_bytes);
        assert_eq!(notes.hand_back(3, "short", true), 2);
        notes.clear_below(2);
        assert_eq!(notes.error_bytes, 0);
        notes.hand_back(5, &format!("x{long}"), false);
        assert_eq!(notes.get(5).unwrap().error.len(), ERROR_BYTES_MAX - 1);
        assert_eq!(notes.hand_back(5, "", false), 1);
        assert_eq!(notes.get(5).unwrap().error.len(), ERROR_BYTES_MAX - 1);
    }

    #[test]
    fn a_limit_keeps_the_lowest_and_the_newest() {
        let mut notes = Notes::default();
        for offset in 0..5 {
            notes.hand_back(offset, "", true);
        }
        notes.limit(3, 4);
        assert_eq!(notes.iter().map(|(offset, _)| offset).collect::<Vec<_>>(), [0, 1, 4]);
    }
}
