//! What is left after a crash: the tree is built anew from the root, one decision for each unsynced change.

use std::collections::BTreeMap;

use super::choice::{Chance, Choice, KeepNothing, Odometer};
use super::file::FileNode;
use super::tree::{DirNode, Node};
use super::{Plan, ROOT, Random, SimDisk, State};

impl SimDisk {
    /// A new disk with one legal outcome of a power loss now; the same seed and history give the same outcome. This disk
    /// stays as it is, so that many outcomes can be drawn from one moment.
    pub fn crash(&self, seed: u64) -> SimDisk {
        let state = self.state();
        let dirty = || state.files.values().flat_map(FileNode::steps).chain(state.dirs.values().flat_map(DirNode::steps));
        let (first, last) = (dirty().min().unwrap_or(0), dirty().max().unwrap_or(0));
        let mut chance = Chance::new(seed, state.model, first, last);
        Self::of(state.after_power_loss(&mut chance, seed))
    }

    /// A new disk on which nothing unsynced survived.
    pub fn crash_drop_unsynced(&self) -> SimDisk {
        Self::of(self.state().after_power_loss(&mut KeepNothing, 0))
    }

    /// A new disk as after the death of the process alone: all that was written is there, all that was not synced can still
    /// be lost by a power loss to come. Locks, faults and counters are gone, and the power is on.
    pub fn crash_keep_all(&self) -> SimDisk {
        Self::of(self.state().after_kill())
    }

    /// Every outcome of a power loss now, one after the other. Their number is the product over all unsynced changes, so this
    /// is for small cases; sectors are lost and reordered whole.
    pub fn crash_states(&self) -> CrashStates {
        CrashStates { moment: self.crash_keep_all(), odometer: Some(Odometer::default()) }
    }
}

/// The outcomes of a power loss; see [`SimDisk::crash_states`].
#[derive(Debug)]
pub struct CrashStates {
    moment: SimDisk,
    odometer: Option<Odometer>,
}

impl Iterator for CrashStates {
    type Item = SimDisk;

    fn next(&mut self) -> Option<SimDisk> {
        let odometer = self.odometer.as_mut()?;
        let disk = SimDisk::of(self.moment.state().after_power_loss(odometer, 0));
        if !odometer.advance() {
            self.odometer = None;
        }
        Some(disk)
    }
}

impl State {
    fn after_kill(&self) -> State {
        State {
            files: self.files.clone(),
            dirs: self.dirs.clone(),
            locked: Default::default(),
            random: self.random.clone(),
            plan: Plan::default(),
            ..*self
        }
    }

    fn after_power_loss(&self, choice: &mut dyn Choice, seed: u64) -> State {
        let mut state = State {
            files: BTreeMap::new(),
            dirs: BTreeMap::new(),
            locked: Default::default(),
            random: Random::new(seed),
            plan: Plan::default(),
            ..*self
        };
        state.rebuild(self, ROOT, choice);
        state
    }

    /// Decides what is in a directory, and then in all that its names stand for.
    fn rebuild(&mut self, before: &State, dir: u64, choice: &mut dyn Choice) {
        let names = before.dirs.get(&dir).map(|node| node.after_crash(choice)).unwrap_or_default();
        for &node in names.values() {
            match node {
                Node::Dir(child) => self.rebuild(before, child, choice),
                Node::File(number) => {
                    if !self.files.contains_key(&number)
                        && let Some(file) = before.files.get(&number)
                    {
                        self.files.insert(number, file.after_crash(choice));
                    }
                    self.add_link(Some(node), 1);
                }
            }
        }
        self.dirs.insert(dir, DirNode::synced(names));
    }
}
