//! Small histories written by hand: for each rule one that breaks it and is found, and one that is just allowed.

mod groups;
mod leases;
mod log;
mod story;
