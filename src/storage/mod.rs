//! Everything that touches files, from the door to the operating system upward.
//!
//! [`disk`] is the only door; [`map`] is the only unsafe code. Nothing here knows sockets, clocks or requests.

pub mod disk;
pub mod inspect;
pub mod lock;
pub mod log;
pub mod map;
pub mod slots;
pub mod table;
pub mod verify;
