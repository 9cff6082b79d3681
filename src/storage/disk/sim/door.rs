//! The traits on the simulated disk.

use std::io::IoSlice;
use std::sync::Arc;

use rustix::io::retry_on_intr;

use super::super::transfer::{read_fully, write_fully};
use super::super::{check_component, join};
use super::{
    Access, Admission, Dir, DirNode, DiskError, Entry, Errno, FILE_BYTES_MAX, File, FileNode, Map, Node, Operation, PAGE_BYTES,
    Result, SimDisk, State,
};
use crate::storage::map::CopySource;

/// What a system call answers.
type Answer<T> = std::result::Result<T, Errno>;

/// A directory of the simulated disk; its path from the root, without a slash before or behind.
#[derive(Debug)]
pub(super) struct SimDir {
    disk: SimDisk,
    path: String,
}

impl SimDisk {
    /// Runs a call: counts it, refuses it if a fault says so, else lets it happen. `refused` is what a refusal leaves.
    fn call<T>(
        &self,
        operation: Operation,
        path: &str,
        effect: impl FnOnce(&mut State) -> Answer<T>,
        refused: impl FnOnce(&mut State),
    ) -> Answer<T> {
        let mut state = self.state();
        match state.plan.admit(operation, path) {
            Admission::Granted => effect(&mut state),
            Admission::Refused(errno) => {
                if errno != Errno::INTR && !state.plan.is_off {
                    refused(&mut state);
                }
                Err(errno)
            }
            Admission::PowerFails => {
                if !matches!(operation, Operation::Sync | Operation::SyncDir) {
                    let _ = effect(&mut state);
                }
                Err(Errno::IO)
            }
        }
    }
}

impl State {
    fn step(&mut self) -> u64 {
        self.next_step += 1;
        self.next_step - 1
    }
}

impl SimDir {
    pub(super) fn root(disk: SimDisk) -> Self {
        Self { disk, path: String::new() }
    }

    /// Runs a call on a name of this directory.
    fn name_call<T>(&self, operation: Operation, name: &str, mut effect: impl FnMut(&mut State) -> Answer<T>) -> Result<T> {
        check_component(operation.verb(), &self.path, name)?;
        self.path_call(operation, &join(&self.path, name), &mut effect)
    }

    fn path_call<T>(&self, operation: Operation, path: &str, effect: &mut dyn FnMut(&mut State) -> Answer<T>) -> Result<T> {
        retry_on_intr(|| self.disk.call(operation, path, &mut *effect, |_| {})).map_err(|errno| failed(operation, path, errno))
    }

    fn file(&self, name: &str, node: u64, access: Access, is_lock: bool) -> Arc<dyn File> {
        Arc::new(SimFile { disk: self.disk.clone(), path: join(&self.path, name), node, access, is_lock })
    }

    fn make_file(&self, state: &mut State, name: &str) -> Answer<u64> {
        let step = state.step();
        let number = state.new_node();
        let dir = state.dir_at(&self.path)?;
        if dir.get(name).is_some() {
            return Err(Errno::EXIST);
        }
        dir.set(name, Some(Node::File(number)), step);
        state.files.insert(number, FileNode::named());
        Ok(number)
    }
}

impl Dir for SimDir {
    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        let node = self.name_call(Operation::Create, name, |state| self.make_file(state, name))?;
        Ok(self.file(name, node, Access::ReadWrite, false))
    }

    fn open(&self, name: &str, access: Access) -> Result<Arc<dyn File>> {
        let node =
            self.name_call(Operation::Open, name, |state| match state.dir_at(&self.path)?.get(name).ok_or(Errno::NOENT)? {
                Node::File(node) => Ok(node),
                Node::Dir(_) => Err(Errno::ISDIR),
            })?;
        Ok(self.file(name, node, access, false))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_component(Operation::Rename.verb(), &self.path, to)?;
        self.name_call(Operation::Rename, from, |state| {
            let step = state.step();
            let dir = state.dir_at(&self.path)?;
            let node = dir.get(from).ok_or(Errno::NOENT)?;
            let replaced = dir.get(to);
            if replaced == Some(node) {
                return Ok(());
            }
            match (node, replaced) {
                (Node::File(_), Some(Node::Dir(_))) => return Err(Errno::ISDIR),
                (Node::Dir(_), Some(Node::File(_))) => return Err(Errno::NOTDIR),
                (Node::Dir(_), Some(Node::Dir(target))) => state.check_empty(target)?,
                _ => {}
            }
            state.dir_at(&self.path)?.rename(from, to, node, step);
            state.add_link(replaced, -1);
            Ok(())
        })
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.name_call(Operation::Remove, name, |state| {
            let step = state.step();
            let dir = state.dir_at(&self.path)?;
            let node = dir.get(name).ok_or(Errno::NOENT)?;
            if matches!(node, Node::Dir(_)) {
                return Err(Errno::ISDIR);
            }
            dir.set(name, None, step);
            state.add_link(Some(node), -1);
            Ok(())
        })
    }

    fn list(&self) -> Result<Vec<Entry>> {
        self.path_call(Operation::List, &self.path, &mut |state| {
            let names = state.dir_at(&self.path)?.names().clone();
            let entry = |(name, node)| match node {
                Node::Dir(_) => Entry { name, is_directory: true, length: 0 },
                Node::File(file) => {
                    let length = state.files.get(&file).map_or(0, FileNode::length);
                    Entry { name, is_directory: false, length }
                }
            };
            Ok(names.into_iter().map(entry).collect())
        })
    }

    fn create_dir(&self, name: &str) -> Result<()> {
        self.name_call(Operation::CreateDir, name, |state| {
            let step = state.step();
            let number = state.new_node();
            let dir = state.dir_at(&self.path)?;
            if dir.get(name).is_some() {
                return Err(Errno::EXIST);
            }
            dir.set(name, Some(Node::Dir(number)), step);
            state.dirs.insert(number, DirNode::default());
            Ok(())
        })
    }

    fn dir(&self, name: &str) -> Result<Arc<dyn Dir>> {
        let path = join(&self.path, name);
        self.name_call(Operation::Open, name, |state| state.dir_at(&path).map(|_| ()))?;
        Ok(Arc::new(Self { disk: self.disk.clone(), path }))
    }

    fn remove_dir(&self, name: &str) -> Result<()> {
        self.name_call(Operation::RemoveDir, name, |state| {
            let step = state.step();
            let dir = state.dir_at(&self.path)?;
            match dir.get(name).ok_or(Errno::NOENT)? {
                Node::File(_) => Err(Errno::NOTDIR),
                Node::Dir(number) => {
                    state.check_empty(number)?;
                    state.dir_at(&self.path)?.set(name, None, step);
                    Ok(())
                }
            }
        })
    }

    fn sync(&self) -> Result<()> {
        let effect = |state: &mut State| state.dir_at(&self.path).map(DirNode::sync_succeeded);
        let refused = |state: &mut State| {
            let _ = state.dir_at(&self.path).map(DirNode::sync_failed);
        };
        retry_on_intr(|| self.disk.call(Operation::SyncDir, &self.path, effect, refused))
            .map_err(|errno| failed(Operation::SyncDir, &self.path, errno))
    }

    fn free_bytes(&self) -> Result<u64> {
        self.path_call(Operation::Measure, &self.path, &mut |state| {
            state.dir_at(&self.path)?;
            Ok(state.free_pages().saturating_mul(PAGE_BYTES as u64))
        })
    }

    fn lock_file(&self, name: &str) -> Result<Option<Arc<dyn File>>> {
        let node = self.name_call(Operation::Lock, name, |state| {
            let node = match state.dir_at(&self.path)?.get(name) {
                Some(Node::File(node)) => node,
                Some(Node::Dir(_)) => return Err(Errno::ISDIR),
                None => self.make_file(state, name)?,
            };
            Ok(state.locked.insert(node).then_some(node))
        })?;
        Ok(node.map(|node| self.file(name, node, Access::ReadWrite, true)))
    }

    fn describe(&self) -> String {
        visible(&self.path).to_owned()
    }
}

/// The path of a directory for texts: the root's own is empty.
fn visible(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

fn failed(operation: Operation, path: &str, errno: Errno) -> DiskError {
    DiskError::from_errno(operation.verb(), visible(path), errno)
}

impl State {
    fn check_empty(&self, dir: u64) -> Answer<()> {
        let is_empty = self.dirs.get(&dir).is_none_or(|dir| dir.names().is_empty());
        if is_empty { Ok(()) } else { Err(Errno::NOTEMPTY) }
    }
}

/// An open file of the simulated disk.
#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    path: String,
    node: u64,
    access: Access,
    is_lock: bool,
}

impl SimFile {
    fn failed(&self, operation: Operation) -> impl FnOnce(Errno) -> DiskError {
        move |errno| failed(operation, &self.path, errno)
    }

    fn call<T>(&self, operation: Operation, mut effect: impl FnMut(&mut State) -> Answer<T>) -> Result<T> {
        retry_on_intr(|| self.disk.call(operation, &self.path, &mut effect, |_| {})).map_err(self.failed(operation))
    }

    /// Runs a call that changes the file; the effect gets the number of the call.
    fn change(&self, operation: Operation, mut effect: impl FnMut(&mut State, u64) -> Answer<()>) -> Result<()> {
        self.check_writable(operation)?;
        self.call(operation, |state| {
            let step = state.step();
            effect(state, step)
        })
    }

    fn check_writable(&self, operation: Operation) -> Result<()> {
        match self.access {
            Access::ReadWrite => Ok(()),
            Access::Read => Err(self.failed(operation)(Errno::BADF)),
        }
    }

    /// One system call; it may write fewer bytes than it was given.
    fn write_once(&self, slices: &[IoSlice<'_>], position: u64) -> Answer<usize> {
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        check_range(position, bytes.len() as u64)?;
        let write = |state: &mut State, bytes: &[u8]| {
            let step = state.step();
            let room = state.free_pages();
            match state.file(self.node)?.write(bytes, position, step, room) {
                0 => Err(Errno::NOSPC),
                count => Ok(count),
            }
        };
        let effect = |state: &mut State| {
            let count = if state.writes_short { 1 + state.random.index(bytes.len()) } else { bytes.len() };
            write(state, &bytes[..count])
        };
        let refused = |state: &mut State| {
            let count = state.random.index(bytes.len() + 1);
            let _ = write(state, &bytes[..count]);
        };
        self.disk.call(Operation::Write, &self.path, effect, refused)
    }
}

impl File for SimFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> Result<usize> {
        let read = |buffer: &mut [u8], position| {
            let effect = |state: &mut State| Ok(state.file(self.node)?.read(buffer, position));
            self.disk.call(Operation::Read, &self.path, effect, |_| {})
        };
        read_fully(buffer, position, read).map_err(self.failed(Operation::Read))
    }

    fn write_vectored_at(&self, slices: &[IoSlice<'_>], position: u64) -> Result<()> {
        self.check_writable(Operation::Write)?;
        write_fully(slices, position, |slices, position| self.write_once(slices, position)).map_err(self.failed(Operation::Write))
    }

    fn allocate(&self, position: u64, length: u64) -> Result<()> {
        self.change(Operation::Allocate, |state, step| {
            check_range(position, length)?;
            if length == 0 {
                return Err(Errno::INVAL);
            }
            let room = state.free_pages();
            let file = state.file(self.node)?;
            if file.pages_to_allocate(position, length) > room {
                return Err(Errno::NOSPC);
            }
            file.allocate(position, length, step);
            Ok(())
        })
    }

    fn set_length(&self, length: u64) -> Result<()> {
        self.change(Operation::SetLength, |state, step| {
            check_range(0, length)?;
            state.file(self.node)?.set_length(length, step);
            Ok(())
        })
    }

    fn length(&self) -> Result<u64> {
        self.call(Operation::Measure, |state| Ok(state.file(self.node)?.length()))
    }

    fn sync_data(&self) -> Result<()> {
        let effect = |state: &mut State| state.file(self.node).map(FileNode::sync_succeeded);
        let refused = |state: &mut State| {
            let _ = state.file(self.node).map(FileNode::sync_failed);
        };
        retry_on_intr(|| self.disk.call(Operation::Sync, &self.path, effect, refused)).map_err(self.failed(Operation::Sync))
    }

    fn map(&self, length: u64) -> Result<Map> {
        let present = self.call(Operation::Map, |state| Ok(state.file(self.node)?.length()))?;
        if present < length {
            return Err(DiskError::end_of_file("map", self.path.as_str()));
        }
        let file = Mapped { disk: self.disk.clone(), path: self.path.clone(), node: self.node };
        Ok(Map::of_copies(Arc::new(file), length))
    }

    fn punch_hole(&self, position: u64, length: u64) -> Result<()> {
        self.change(Operation::PunchHole, |state, step| {
            check_range(position, length)?;
            if length == 0 {
                return Err(Errno::INVAL);
            }
            state.file(self.node)?.punch_hole(position, length, step);
            Ok(())
        })
    }

    fn describe(&self) -> &str {
        &self.path
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        if self.is_lock {
            self.disk.state().locked.remove(&self.node);
        }
    }
}

/// A file behind a map. It outlives the handle, and it is memory: it can be read when the power is off.
struct Mapped {
    disk: SimDisk,
    path: String,
    node: u64,
}

impl CopySource for Mapped {
    fn copy(&self, target: &mut [u8], position: u64) -> bool {
        let mut state = self.disk.state();
        if !state.plan.is_off && state.plan.admit(Operation::ReadMap, &self.path) != Admission::Granted {
            return false;
        }
        // A read of the last page shows zeros behind the end of the file; only whole pages beyond it cannot be read.
        let Ok(file) = state.file(self.node) else { return false };
        let readable = file.length().next_multiple_of(PAGE_BYTES as u64);
        file.read(target, position);
        position + target.len() as u64 <= readable
    }
}

fn check_range(position: u64, length: u64) -> Answer<()> {
    match position.checked_add(length) {
        Some(end) if end <= FILE_BYTES_MAX => Ok(()),
        _ => Err(Errno::FBIG),
    }
}
