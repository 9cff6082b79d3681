//! Calls of the disk fail.
