//! The SIGBUS handler and the list of address ranges it guards.
//!
//! The list has a fixed number of places and is read without a lock, since a handler may take none and may allocate nothing.
//! Places are taken and given back under a mutex by ordinary code.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// As many maps as a process may have by default (`vm.max_map_count` is 65,530). Untouched places cost no memory.
const PLACES: usize = 65_536;

/// One guarded range. `start` is 0 while the place is free; it is written last when the place is taken and first when it is
/// given back, so a range is never seen half-made.
struct Place {
    start: AtomicUsize,
    end: AtomicUsize,
    faulted: AtomicBool,
}

static LIST: [Place; PLACES] =
    [const { Place { start: AtomicUsize::new(0), end: AtomicUsize::new(0), faulted: AtomicBool::new(false) } }; PLACES];

/// Places below this number have been used at some time; the handler looks no further.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Numbers of places below [`USED`] that are free again.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Who handled SIGBUS before, and the size of a page; set before the handler is installed.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
static PAGE: AtomicUsize = AtomicUsize::new(0);
static INSTALLED: OnceLock<Option<i32>> = OnceLock::new();

/// A range of addresses under guard until it is dropped.
pub(super) struct Watch {
    place: &'static Place,
    number: usize,
}

impl Watch {
    /// Guards a range that was just mapped; it must stay mapped until the watch is dropped.
    pub(super) fn start(address: usize, length: usize) -> io::Result<Self> {
        install()?;
        let number = take_place().ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let place = LIST.get(number).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        place.faulted.store(false, Ordering::Relaxed);
        // Maps are whole pages, and a read of the last page faults as one.
        let page = PAGE.load(Ordering::Relaxed);
        place.end.store(address.saturating_add(length).next_multiple_of(page), Ordering::Relaxed);
        place.start.store(address, Ordering::Release);
        Ok(Self { place, number })
    }

    /// Whether the handler had to put zeros into the range.
    pub(super) fn is_faulted(&self) -> bool {
        self.place.faulted.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.place.start.store(0, Ordering::Release);
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
    }
}

/// Ranges under guard now.
pub(super) fn watched() -> usize {
    let free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    USED.load(Ordering::Relaxed).saturating_sub(free.len())
}

fn take_place() -> Option<usize> {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(number) = free.pop() {
        return Some(number);
    }
    let number = USED.load(Ordering::Relaxed);
    if number == PLACES {
        return None;
    }
    USED.store(number + 1, Ordering::Release);
    Some(number)
}

/// Installs the handler once; a refusal is remembered, since a map without the guard must not be handed out.
fn install() -> io::Result<()> {
    let refused = INSTALLED.get_or_init(|| {
        PAGE.store(rustix::param::page_size(), Ordering::Relaxed);
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the call only reads the present action into `before`, which is large enough and all of it initialised.
        let before = unsafe {
            if libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) != 0 {
                return io::Error::last_os_error().raw_os_error();
            }
            before.assume_init()
        };
        let before = BEFORE.get_or_init(|| before);
        let mut action = *before;
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
        action.sa_sigaction = handler as libc::sighandler_t;
        // The alternative stack is the one that the standard library gives each thread.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler has the signature that SA_SIGINFO asks for and calls only what is safe in a handler: atomics
        // and the system calls mmap, sigaction and raise.
        match unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) } {
            0 => None,
            _ => io::Error::last_os_error().raw_os_error(),
        }
    });
    refused.map_or(Ok(()), |number| Err(io::Error::from_raw_os_error(number)))
}

/// Lets a write beyond the process's limit on file sizes fail with an error, where the default is to end the process. An
/// action that someone chose stays.
pub(in crate::storage) fn ignore_file_size_signal() {
    static DONE: OnceLock<()> = OnceLock::new();
    DONE.get_or_init(|| {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the first call only reads the present action, and it is looked at only if that succeeded; the second
        // passes the same value with a disposition that runs no code.
        unsafe {
            let is_known = libc::sigaction(libc::SIGXFSZ, std::ptr::null(), action.as_mut_ptr()) == 0;
            if is_known && action.assume_init_ref().sa_sigaction == libc::SIG_DFL {
                action.assume_init_mut().sa_sigaction = libc::SIG_IGN;
                libc::sigaction(libc::SIGXFSZ, action.as_ptr(), std::ptr::null_mut());
            }
        }
    });
}

extern "C" fn on_bus_error(signal: libc::c_int, information: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the system passes a valid siginfo of a SIGBUS, whose address is meaningful when the kernel raised it (a code
    // above zero) and not used otherwise.
    let (code, address) = unsafe { ((*information).si_code, (*information).si_addr() as usize) };
    let is_fault = code > 0;
    if is_fault && cover(address) {
        return;
    }
    // SAFETY: restoring an action and raising a signal are allowed in a handler. A fault happens again on return and finds
    // the former handler; a signal that someone sent has to be sent again.
    unsafe {
        if let Some(before) = BEFORE.get() {
            libc::sigaction(signal, before, std::ptr::null_mut());
        }
        if !is_fault {
            libc::raise(signal);
        }
    }
}

/// Puts zeros at the page of `address` if it lies in a guarded range, and says whether it did.
fn cover(address: usize) -> bool {
    let used = USED.load(Ordering::Acquire);
    for place in LIST.iter().take(used) {
        let start = place.start.load(Ordering::Acquire);
        let end = place.end.load(Ordering::Relaxed);
        // A range that holds an address being read is neither made nor given back meanwhile: its reader owns the map. Any
        // other range that changes under this loop must not be believed, hence the second look.
        if start == 0 || address < start || address >= end || place.start.load(Ordering::Acquire) != start {
            continue;
        }
        place.faulted.store(true, Ordering::Relaxed);
        let page = PAGE.load(Ordering::Relaxed);
        let page_start = address - address % page;
        // One page, so that readable data around it stays; the whole map when the system has no room for another small one.
        return put_zeros(page_start, page) || put_zeros(start, end - start);
    }
    false
}

fn put_zeros(start: usize, length: usize) -> bool {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the range lies inside a read-only map of ours that its reader keeps alive, so only our own pages are
    // replaced. The new pages are read-only too; `rustix` makes the system call directly and leaves `errno` alone.
    unsafe { mmap_anonymous(start as *mut _, length, ProtFlags::READ, flags).is_ok() }
}
