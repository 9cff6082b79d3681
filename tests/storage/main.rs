//! What `verify` and `inspect` say of directories that the engine wrote, whole and damaged, and that they change nothing.

#[path = "../engine/support.rs"]
#[allow(dead_code)]
mod support;

mod inspect;
mod verify;
