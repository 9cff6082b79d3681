//! The simulated disk: a tree of files in memory that keeps what was synced apart from what was written.
//!
//! - **Power loss.** [`SimDisk::crash`] gives a new disk that holds one legal outcome, determined by a seed: each sector
//!   written since the last sync of its file has the content after any number of those writes (so writes are lost, torn and
//!   reordered), the length is any it had since then, and each name changed since the last sync of its directory stands for
//!   anything it stood for since then. [`SimDisk::crash_states`] counts through all outcomes.
//! - **Process kill.** [`SimDisk::crash_keep_all`]: everything written is there, and what was not synced still is not.
//! - **A cut at any call.** [`SimDisk::power_off_after`] makes the n-th mutation the last; the one that follows may be half
//!   done, and every later call fails.
//! - **Faults.** [`SimDisk::fail`] refuses calls by operation, path and number; a refused write may have written a part, and
//!   what a refused sync was to cover is never safe again unless it is written anew.
//! - **Room.** [`SimDisk::set_capacity`] bounds the pages that files take.
//!
//! Everything is determined by seeds and by the order of calls.

mod choice;
mod crash;
mod door;
mod fault;
mod file;
mod random;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

pub use choice::CrashModel;
pub use crash::CrashStates;
pub use fault::{Fault, Operation, Times};
pub use random::Random;

use crate::sync::{Mutex, MutexGuard};

use super::{Access, Dir, DiskError, Entry, Errno, File, Map, Result};
use door::SimDir;
use fault::{Admission, Plan};
use file::{FileNode, PAGE_BYTES};
use tree::{DirNode, Node};

/// The number of the root directory.
const ROOT: u64 = 0;

/// The longest file, so that a wild position is an error and not a heap of memory.
const FILE_BYTES_MAX: u64 = 1 << 40;

/// A disk in memory. Clones are the same disk.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

/// Everything behind the one lock; a simulated disk has no need to be fast with many threads.
struct State {
    files: BTreeMap<u64, FileNode>,
    dirs: BTreeMap<u64, DirNode>,
    next_node: u64,
    next_step: u64,
    locked: BTreeSet<u64>,
    capacity: Option<u64>,
    model: CrashModel,
    writes_short: bool,
    random: Random,
    plan: Plan,
}

impl SimDisk {
    /// An empty disk. The seed determines short writes and how much of a refused write is written.
    pub fn new(seed: u64) -> Self {
        Self::of(State::new(seed))
    }

    /// The handle to its root directory.
    pub fn root(&self) -> Arc<dyn Dir> {
        Arc::new(SimDir::root(self.clone()))
    }

    /// Calls since the disk was made, reads included. The next call has this number for [`Self::fail_call`].
    pub fn calls(&self) -> u64 {
        self.state().plan.calls
    }

    /// Calls since the disk was made that can change what a crash leaves.
    pub fn mutations(&self) -> u64 {
        self.state().plan.mutations
    }

    /// Lets the first `mutations` mutations since the disk was made happen and cuts the power during the next: its effect is
    /// one of the unsynced changes, and it and every later call fail with an I/O error.
    pub fn power_off_after(&self, mutations: u64) {
        self.state().plan.power_off_after = Some(mutations);
    }

    /// Whether the power has gone off.
    pub fn is_off(&self) -> bool {
        self.state().plan.is_off
    }

    /// Plans a refusal. Of several that meet a call, the one planned first strikes.
    pub fn fail(&self, fault: Fault) {
        self.state().plan.faults.push(fault);
    }

    /// Refuses the call with this number, and with [`Times::Forever`] every later one.
    pub fn fail_call(&self, call: u64, errno: Errno, times: Times) {
        self.fail(Fault::new(errno).from_call(call).times(times));
    }

    /// Forgets all planned refusals.
    pub fn clear_faults(&self) {
        self.state().plan.faults.clear();
    }

    /// Whether a call may write fewer bytes than it was asked to.
    pub fn set_short_writes(&self, writes_short: bool) {
        self.state().writes_short = writes_short;
    }

    /// Bounds the bytes that files may take, in whole pages of 4 KiB; beyond it calls fail as on a full disk.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    /// What later crashes may do beyond losing and reordering whole sectors.
    pub fn set_crash_model(&self, model: CrashModel) {
        self.state().model = model;
    }

    /// The paths of all files, sorted.
    pub fn paths(&self) -> Vec<String> {
        let state = self.state();
        let mut paths = Vec::new();
        state.collect_paths(ROOT, "", &mut paths);
        paths
    }

    /// The content of a file as programs see it; absent if there is no such file. Counts as no call.
    pub fn read_file(&self, path: &str) -> Option<Vec<u8>> {
        let state = self.state();
        let Ok(Node::File(file)) = state.find(path) else { return None };
        let file = state.files.get(&file)?;
        let mut bytes = vec![0; file.length() as usize];
        file.read(&mut bytes, 0);
        Some(bytes)
    }

    /// Puts a file with this content, all of it synced, in the place of whatever has the path: damage from outside. Its
    /// directory must exist. Counts as no call.
    pub fn write_file(&self, path: &str, bytes: &[u8]) {
        let mut state = self.state();
        let mut file = FileNode::named();
        file.write(bytes, 0, 0, u64::MAX);
        file.sync_succeeded();
        let number = state.new_node();
        state.files.insert(number, file);
        state.set_name_synced(path, Some(Node::File(number)));
    }

    /// Removes a file for good: damage from outside. Counts as no call.
    pub fn remove_file(&self, path: &str) {
        self.state().set_name_synced(path, None);
    }

    fn of(state: State) -> Self {
        Self { state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for SimDisk {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("SimDisk").finish_non_exhaustive()
    }
}

impl State {
    fn new(seed: u64) -> Self {
        Self {
            files: BTreeMap::new(),
            dirs: BTreeMap::from([(ROOT, DirNode::default())]),
            next_node: ROOT + 1,
            next_step: 1,
            locked: BTreeSet::new(),
            capacity: None,
            model: CrashModel::default(),
            writes_short: false,
            random: Random::new(seed),
            plan: Plan::default(),
        }
    }

    fn new_node(&mut self) -> u64 {
        self.next_node += 1;
        self.next_node - 1
    }

    /// Follows a path from the root.
    fn find(&self, path: &str) -> std::result::Result<Node, Errno> {
        let mut node = Node::Dir(ROOT);
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let Node::Dir(dir) = node else { return Err(Errno::NOTDIR) };
            node = self.dirs.get(&dir).and_then(|dir| dir.get(name)).ok_or(Errno::NOENT)?;
        }
        Ok(node)
    }

    fn dir_at(&mut self, path: &str) -> std::result::Result<&mut DirNode, Errno> {
        match self.find(path)? {
            Node::Dir(dir) => self.dirs.get_mut(&dir).ok_or(Errno::NOENT),
            Node::File(_) => Err(Errno::NOTDIR),
        }
    }

    fn file(&mut self, number: u64) -> std::result::Result<&mut FileNode, Errno> {
        self.files.get_mut(&number).ok_or(Errno::IO)
    }

    /// Pages that may still be taken. A file without a name takes none, open or not.
    fn free_pages(&self) -> u64 {
        let Some(capacity) = self.capacity else { return u64::MAX };
        let used: u64 = self.files.values().filter(|file| file.links > 0).map(FileNode::used_pages).sum();
        (capacity / PAGE_BYTES as u64).saturating_sub(used)
    }

    fn add_link(&mut self, node: Option<Node>, links: i32) {
        if let Some(Node::File(number)) = node
            && let Some(file) = self.files.get_mut(&number)
        {
            file.links = file.links.saturating_add_signed(links);
        }
    }

    fn set_name_synced(&mut self, path: &str, node: Option<Node>) {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let Ok(dir) = self.dir_at(parent) else { return };
        let former = dir.get(name);
        dir.set_synced(name, node);
        self.add_link(former, -1);
    }

    fn collect_paths(&self, dir: u64, prefix: &str, paths: &mut Vec<String>) {
        for (name, node) in self.dirs.get(&dir).into_iter().flat_map(DirNode::names) {
            let path = super::join(prefix, name);
            match node {
                Node::File(_) => paths.push(path),
                Node::Dir(dir) => self.collect_paths(*dir, &path, paths),
            }
        }
    }
}
