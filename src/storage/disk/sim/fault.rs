//! Which calls the simulated disk refuses: counters, planned faults and the power switch.

use super::Errno;

/// What a call asks of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// [`Dir::create`](super::Dir::create).
    Create,
    /// [`Dir::open`](super::Dir::open) and [`Dir::dir`](super::Dir::dir).
    Open,
    /// [`Dir::rename`](super::Dir::rename).
    Rename,
    /// [`Dir::remove`](super::Dir::remove).
    Remove,
    /// [`Dir::list`](super::Dir::list).
    List,
    /// [`Dir::create_dir`](super::Dir::create_dir).
    CreateDir,
    /// [`Dir::remove_dir`](super::Dir::remove_dir).
    RemoveDir,
    /// [`Dir::sync`](super::Dir::sync).
    SyncDir,
    /// [`Dir::free_bytes`](super::Dir::free_bytes) and [`File::length`](super::File::length).
    Measure,
    /// [`Dir::lock_file`](super::Dir::lock_file).
    Lock,
    /// [`File::read_at`](super::File::read_at).
    Read,
    /// [`File::write_vectored_at`](super::File::write_vectored_at), each system call of it.
    Write,
    /// [`File::allocate`](super::File::allocate).
    Allocate,
    /// [`File::set_length`](super::File::set_length).
    SetLength,
    /// [`File::sync_data`](super::File::sync_data).
    Sync,
    /// [`File::map`](super::File::map).
    Map,
    /// A read through a map, which a fault turns into zeros and [`Map::is_faulted`](super::Map::is_faulted).
    ReadMap,
    /// [`File::punch_hole`](super::File::punch_hole).
    PunchHole,
}

impl Operation {
    /// Every operation, for tests that fail each in turn.
    pub const ALL: &[Operation] = &[
        Self::Create,
        Self::Open,
        Self::Rename,
        Self::Remove,
        Self::List,
        Self::CreateDir,
        Self::RemoveDir,
        Self::SyncDir,
        Self::Measure,
        Self::Lock,
        Self::Read,
        Self::Write,
        Self::Allocate,
        Self::SetLength,
        Self::Sync,
        Self::Map,
        Self::ReadMap,
        Self::PunchHole,
    ];

    /// Whether it can change what a crash leaves.
    pub fn is_mutation(self) -> bool {
        !matches!(self, Self::Open | Self::List | Self::Measure | Self::Read | Self::Map | Self::ReadMap)
    }

    /// The verb in error texts, the same as on the real disk.
    pub(super) fn verb(self) -> &'static str {
        match self {
            Self::Create | Self::CreateDir => "create",
            Self::Open => "open",
            Self::Rename => "rename",
            Self::Remove | Self::RemoveDir => "remove",
            Self::List => "list",
            Self::SyncDir | Self::Sync => "sync",
            Self::Measure => "measure",
            Self::Lock => "lock",
            Self::Read | Self::ReadMap => "read",
            Self::Write => "write",
            Self::Allocate => "allocate",
            Self::SetLength => "set length of",
            Self::Map => "map",
            Self::PunchHole => "punch hole in",
        }
    }
}

/// How often a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    /// At the first call that it meets.
    Once,
    /// At that call and at every later one that it meets, until the faults are cleared.
    Forever,
}

/// A planned refusal. `EINTR` is tried again by the call itself, as on the real disk, so it only makes sense once.
#[derive(Debug, Clone)]
pub struct Fault {
    operation: Option<Operation>,
    suffix: String,
    from_call: u64,
    skip: u64,
    times: Times,
    errno: Errno,
}

impl Fault {
    /// A fault that refuses any call with this number, once.
    pub fn new(errno: Errno) -> Self {
        Self { operation: None, suffix: String::new(), from_call: 0, skip: 0, times: Times::Once, errno }
    }

    /// Only calls of this operation.
    pub fn on(mut self, operation: Operation) -> Self {
        self.operation = Some(operation);
        self
    }

    /// Only calls on paths that end like this (of a rename: the former name).
    pub fn suffix(mut self, suffix: impl Into<String>) -> Self {
        self.suffix = suffix.into();
        self
    }

    /// Only calls whose number, counted by [`SimDisk::calls`](super::SimDisk::calls), is at least this.
    pub fn from_call(mut self, call: u64) -> Self {
        self.from_call = call;
        self
    }

    /// Lets this many calls that it meets pass before it strikes.
    pub fn skip(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }

    /// How often it strikes.
    pub fn times(mut self, times: Times) -> Self {
        self.times = times;
        self
    }

    fn meets(&self, call: u64, operation: Operation, path: &str) -> bool {
        // A read through a map is no call that a signal could interrupt.
        let can_happen = self.errno != Errno::INTR || operation != Operation::ReadMap;
        can_happen
            && call >= self.from_call
            && self.operation.is_none_or(|wanted| wanted == operation)
            && path.ends_with(self.suffix.as_str())
    }
}

/// The answer to a call that wants to begin.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It happens.
    Granted,
    /// It does not happen and reports this.
    Refused(Errno),
    /// The power fails while it runs: what it does may or may not reach the disk, and nobody hears of it.
    PowerFails,
}

/// Counters, planned faults and the power switch.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub calls: u64,
    pub mutations: u64,
    pub power_off_after: Option<u64>,
    pub is_off: bool,
    pub faults: Vec<Fault>,
}

impl Plan {
    pub(super) fn admit(&mut self, operation: Operation, path: &str) -> Admission {
        if self.is_off {
            return Admission::Refused(Errno::IO);
        }
        let call = self.calls;
        self.calls += 1;
        if operation.is_mutation() {
            self.mutations += 1;
            if self.power_off_after.is_some_and(|last| self.mutations > last) {
                self.is_off = true;
                return Admission::PowerFails;
            }
        }
        for index in 0..self.faults.len() {
            let fault = &mut self.faults[index];
            if !fault.meets(call, operation, path) {
                continue;
            }
            if fault.skip > 0 {
                fault.skip -= 1;
                continue;
            }
            let errno = fault.errno;
            if fault.times == Times::Once {
                self.faults.remove(index);
            }
            return Admission::Refused(errno);
        }
        Admission::Granted
    }
}
