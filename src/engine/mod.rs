//! The engine: queues, partitions, groups and what happens to their messages.

pub mod delivery;
