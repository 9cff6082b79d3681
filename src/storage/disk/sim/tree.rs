//! The simulated tree of directories: names as running programs see them, and for each name changed since the last sync of
//! its directory what it stood for before and after every change.

use std::collections::BTreeMap;

use super::choice::{Choice, Unit};

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Node {
    File(u64),
    Dir(u64),
}

/// A directory.
#[derive(Debug, Clone, Default)]
pub(super) struct DirNode {
    names: BTreeMap<String, Node>,
    dirty: BTreeMap<String, NameHistory>,
    renames: Vec<Rename>,
}

#[derive(Debug, Clone)]
struct NameHistory {
    synced: Option<Node>,
    versions: Vec<(u64, Option<Node>)>,
    /// A sync failed over these changes: a later sync does not make them safe.
    is_stuck: bool,
}

/// A rename that is not synced. A crash may keep the old name, the new one, or (for a file) both, never neither.
#[derive(Debug, Clone)]
struct Rename {
    step: u64,
    from: String,
    to: String,
    is_directory: bool,
}

impl DirNode {
    /// A directory whose names are all durable.
    pub(super) fn synced(names: BTreeMap<String, Node>) -> Self {
        Self { names, ..Self::default() }
    }

    pub(super) fn names(&self) -> &BTreeMap<String, Node> {
        &self.names
    }

    pub(super) fn get(&self, name: &str) -> Option<Node> {
        self.names.get(name).copied()
    }

    pub(super) fn set(&mut self, name: &str, node: Option<Node>, step: u64) {
        let synced = match node {
            Some(node) => self.names.insert(name.to_owned(), node),
            None => self.names.remove(name),
        };
        let new = || NameHistory { synced, versions: Vec::new(), is_stuck: false };
        let history = self.dirty.entry(name.to_owned()).or_insert_with(new);
        history.versions.push((step, node));
        history.is_stuck = false;
    }

    /// Changes a name on the disk itself.
    pub(super) fn set_synced(&mut self, name: &str, node: Option<Node>) {
        self.dirty.remove(name);
        match node {
            Some(node) => self.names.insert(name.to_owned(), node),
            None => self.names.remove(name),
        };
    }

    pub(super) fn rename(&mut self, from: &str, to: &str, node: Node, step: u64) {
        self.set(to, Some(node), step);
        self.set(from, None, step);
        let is_directory = matches!(node, Node::Dir(_));
        self.renames.push(Rename { step, from: from.to_owned(), to: to.to_owned(), is_directory });
    }

    pub(super) fn sync_succeeded(&mut self) {
        self.dirty.retain(|_, history| history.is_stuck);
        self.renames.retain(|rename| self.dirty.contains_key(&rename.from) || self.dirty.contains_key(&rename.to));
    }

    pub(super) fn sync_failed(&mut self) {
        for history in self.dirty.values_mut() {
            history.is_stuck = true;
        }
    }

    /// The numbers of the calls whose changes are not synced.
    pub(super) fn steps(&self) -> impl Iterator<Item = u64> {
        self.dirty.values().flat_map(|history| history.versions.iter().map(|version| version.0))
    }

    /// The names as a crash may leave them.
    pub(super) fn after_crash(&self, choice: &mut dyn Choice) -> BTreeMap<String, Node> {
        let mut kept = BTreeMap::new();
        for (name, history) in &self.dirty {
            let steps: Vec<u64> = history.versions.iter().map(|version| version.0).collect();
            kept.insert(name.as_str(), choice.kept(Unit::Name, &steps));
        }
        self.settle_renames(&mut kept);
        let mut names = self.names.clone();
        for (name, history) in &self.dirty {
            let index = kept.get(name.as_str()).copied().unwrap_or(0);
            let node = match index.checked_sub(1).and_then(|index| history.versions.get(index)) {
                Some(&(_, node)) => node,
                None => history.synced,
            };
            match node {
                Some(node) => names.insert(name.clone(), node),
                None => names.remove(name),
            };
        }
        names
    }

    /// Where the old name is gone the new one must be there, and a directory never has two names.
    fn settle_renames<'a>(&'a self, kept: &mut BTreeMap<&'a str, usize>) {
        loop {
            let mut is_settled = true;
            for rename in &self.renames {
                let from_is_gone = self.reaches(kept, &rename.from, rename.step);
                let to_is_there = self.reaches(kept, &rename.to, rename.step);
                if from_is_gone && !to_is_there {
                    self.raise(kept, &rename.to, rename.step);
                    is_settled = false;
                } else if rename.is_directory && to_is_there && !from_is_gone {
                    self.raise(kept, &rename.from, rename.step);
                    is_settled = false;
                }
            }
            if is_settled {
                return;
            }
        }
    }

    fn reaches(&self, kept: &BTreeMap<&str, usize>, name: &str, step: u64) -> bool {
        match (self.dirty.get(name), kept.get(name)) {
            (Some(history), Some(&index)) => {
                index.checked_sub(1).and_then(|index| history.versions.get(index)).is_some_and(|version| version.0 >= step)
            }
            _ => true,
        }
    }

    fn raise<'a>(&self, kept: &mut BTreeMap<&'a str, usize>, name: &'a str, step: u64) {
        if let Some(history) = self.dirty.get(name) {
            kept.insert(name, history.versions.partition_point(|version| version.0 < step) + 1);
        }
    }
}
