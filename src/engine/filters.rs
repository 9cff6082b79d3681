//! Which groups take a message: the filters of a queue at one moment, shared with everyone who prepares a push.

use crate::filter::Filter;
use crate::record::{AttributesRef, GroupId, Matches};

/// The filters of a queue. A push that starts after a change is confirmed sees the change.
#[derive(Debug, Default)]
pub(super) struct FilterSet {
    /// Grows with each change.
    pub version: u64,
    /// Whether an enabled group without a filter takes everything.
    pub takes_all: bool,
    /// Groups that do not take everything, in order of number: their filter, or `None` for a disabled one.
    pub groups: Vec<(GroupId, Option<Filter>)>,
}

/// What the groups take of the messages of a push.
#[derive(Debug, Default)]
pub(super) struct Decision {
    /// For each group that does not take everything, an answer for each message.
    takes: Vec<(GroupId, Vec<bool>)>,
    /// Messages that no group takes, by index; empty if there is none.
    pub dropped: Vec<u32>,
}

impl FilterSet {
    /// Decides for messages with these encoded attributes.
    pub fn decide<'a>(&self, attributes: impl ExactSizeIterator<Item = &'a [u8]>) -> Decision {
        if self.groups.is_empty() {
            return Decision::default();
        }
        let count = attributes.len();
        let empty = crate::record::Attributes::new();
        let nothing = empty.view();
        let mut takes: Vec<_> = self.groups.iter().map(|&(group, _)| (group, Vec::with_capacity(count))).collect();
        let mut dropped = Vec::new();
        for (index, bytes) in (0u32..).zip(attributes) {
            // The attributes were verified when the push was taken in; bytes that are none match as none at all.
            let view = AttributesRef::parse(bytes).unwrap_or(nothing);
            let mut is_taken = self.takes_all;
            for ((_, filter), (_, answers)) in self.groups.iter().zip(&mut takes) {
                let takes = filter.as_ref().is_some_and(|filter| filter.matches(view));
                is_taken |= takes;
                answers.push(takes);
            }
            if !is_taken {
                dropped.push(index);
            }
        }
        Decision { takes, dropped }
    }
}

impl Decision {
    /// The match table for the messages that are kept, by their index in the push.
    pub fn matches(&self, kept: &[u32]) -> Vec<(GroupId, Matches)> {
        self.takes
            .iter()
            .map(|(group, answers)| {
                let takes = |at: u32| kept.get(at as usize).is_some_and(|&index| answers.get(index as usize) == Some(&true));
                (*group, Matches::collect(kept.len() as u32, takes))
            })
            .collect()
    }

    /// The match table when every message is kept.
    pub fn all_matches(&self, count: u32) -> Vec<(GroupId, Matches)> {
        self.takes
            .iter()
            .map(|(group, answers)| (*group, Matches::collect(count, |at| answers.get(at as usize) == Some(&true))))
            .collect()
    }
}

/// The match table of two runs of messages behind each other; `None` if they do not name the same groups.
pub(super) fn join_matches(
    first: (&[(GroupId, Matches)], u32),
    second: (&[(GroupId, Matches)], u32),
) -> Option<Vec<(GroupId, Matches)>> {
    if first.0.len() != second.0.len() {
        return None;
    }
    first
        .0
        .iter()
        .zip(second.0)
        .map(|((group, a), (other, b))| {
            let joined =
                Matches::collect(first.1 + second.1, |at| if at < first.1 { a.takes(at) } else { b.takes(at - first.1) });
            (group == other).then_some((*group, joined))
        })
        .collect()
}
