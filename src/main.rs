//! The `fanlog` program: the server and its command line.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
