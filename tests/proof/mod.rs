//! Shared by the programs that prove: a model, operations on model and engine at once, and what can be seen of both.

#![allow(dead_code, reason = "each program uses its part")]

pub mod drive;
pub mod model;
pub mod view;
