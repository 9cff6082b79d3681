//! Compiles the binary's filter command against the library, with the tests that stand in it.

#[path = "../src/cli/filter.rs"]
mod filter_cli;
