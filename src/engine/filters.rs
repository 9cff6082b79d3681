//! Which groups take a message: the filters of a queue at one moment, shared with everyone who prepares a push.

use crate::filter::{Filter, FilterBank};
use crate::record::{AttributesRef, GroupId, Matches};

/// The filters of a queue. A push that starts after a change is confirmed sees the change.
#[derive(Debug, Default)]
pub(super) struct FilterSet {
    /// Grows with each change.
    pub version: u64,
    /// Whether an enabled group without a filter takes everything.
    takes_all: bool,
    /// Groups that do not take everything, in order of number.
    groups: Vec<GroupId>,
    /// Their filters.
    bank: FilterBank,
}

/// What the groups take of the messages of a push.
#[derive(Debug, Default)]
pub(super) struct Decision {
    /// Messages that were judged.
    count: u32,
    /// For each group that does not take everything, a bit for each message as in [`Matches::Some`].
    takes: Vec<(GroupId, Vec<u8>)>,
    /// Messages that no group takes, by index; empty if there is none.
    pub dropped: Vec<u32>,
}

impl FilterSet {
    /// The filters of groups that do not take everything, in order of number, or `None` for a disabled one; and whether an enabled
    /// group takes everything.
    pub fn new(version: u64, takes_all: bool, groups: &[(GroupId, Option<&Filter>)]) -> Self {
        let bank = FilterBank::new(groups.iter().map(|group| group.1));
        Self { version, takes_all, groups: groups.iter().map(|group| group.0).collect(), bank }
    }

    /// Whether there is nothing to decide: every group takes everything.
    pub fn is_trivial(&self) -> bool {
        self.groups.is_empty()
    }

    /// Decides for messages with these attributes.
    pub fn decide<'a>(&self, attributes: impl ExactSizeIterator<Item = AttributesRef<'a>>) -> Decision {
        if self.is_trivial() {
            return Decision::default();
        }
        let count = attributes.len();
        let mut takes: Vec<_> = self.groups.iter().map(|&group| (group, vec![0u8; count.div_ceil(8)])).collect();
        let mut dropped = Vec::new();
        let mut found = Vec::new();
        for (index, view) in (0u32..).zip(attributes) {
            let mut is_taken = self.takes_all;
            self.bank.judge(view, &mut found, |number| {
                is_taken = true;
                takes[number].1[index as usize / 8] |= 1 << (index % 8);
            });
            if !is_taken {
                dropped.push(index);
            }
        }
        Decision { count: count as u32, takes, dropped }
    }
}

impl Decision {
    /// The match table for the messages that are kept, by their index in the push.
    pub fn matches(&self, kept: &[u32]) -> Vec<(GroupId, Matches)> {
        let is_set = |bits: &[u8], index: u32| bits.get(index as usize / 8).is_some_and(|byte| byte & (1 << (index % 8)) != 0);
        self.takes
            .iter()
            .map(|(group, bits)| {
                let takes = |at: u32| kept.get(at as usize).is_some_and(|&index| is_set(bits, index));
                (*group, Matches::collect(kept.len() as u32, takes))
            })
            .collect()
    }

    /// The match table when every message is kept.
    pub fn all_matches(self) -> Vec<(GroupId, Matches)> {
        let count = self.count;
        self.takes.into_iter().map(|(group, bits)| (group, Matches::from_bits(bits, count))).collect()
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
