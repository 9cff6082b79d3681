//! Instructions of the hot paths, counted by callgrind and compared with the table in `counts.toml`.
//!
//! `benches/counts/run [PATH...]` fails if a path takes more than 3 % over its table's count, and says which and by how much;
//! `--update` writes the table anew. Counted are the instructions of the program, on one thread, between a request's bytes and its
//! reply's bytes: decoding the frame, the engine with its commit, which the caller's thread does where no committer threads were
//! started, and encoding the reply. Not counted are sockets, tasks and sessions, the kernel's part of any call, and waiting; so a
//! count says nothing of syncs, wake-ups or caches. The clock does not run: times are arguments.
//!
//! The same binary gives the same counts to within a few in a thousand: hash maps choose their seeds anew for each process. Counts
//! belong to a compiler, to a C library and to what it finds in the processor; valgrind is written to show the same one on every x86-64
//! machine with AVX2, and on others nothing is judged. The same source built in another directory gave the same counts to within 0.6 %.

#[path = "../support/filters.rs"]
mod filters;
mod paths;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use paths::{PATHS, Path};
use serde::Deserialize;

/// How far over the table a count may be, as a part of it.
const MARGIN: f64 = 0.03;
/// Makes the program do one path's work under callgrind.
const WORK: &str = "--work";

/// What callgrind counts: it begins when this is called and stops when it returns, so the name must survive.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn fanlog_counted(work: &mut dyn FnMut()) {
    work();
}

/// What is checked in.
#[derive(Debug, Deserialize)]
struct Table {
    rustc: String,
    valgrind: String,
    instructions: BTreeMap<String, u64>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [option, name] = arguments.as_slice()
        && option == WORK
    {
        let path = PATHS.iter().find(|path| path.name == name).expect("a path that there is");
        (path.run)(path);
        return ExitCode::SUCCESS;
    }
    let (options, names): (Vec<_>, Vec<_>) = arguments.iter().map(String::as_str).partition(|argument| argument.starts_with('-'));
    let is_update = options == ["--update"];
    let unknown = names.iter().find(|name| PATHS.iter().all(|path| path.name != **name));
    if let Some(argument) = unknown.or(options.first().filter(|_| !is_update)) {
        eprintln!("unknown argument {argument:?}: benches/counts/run [--update] [PATH...]");
        return ExitCode::from(2);
    }
    match count(&names, is_update) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::from(2)
        }
    }
}

/// Counts the paths of these names, or all; whether none is over its table.
fn count(names: &[&str], is_update: bool) -> Result<bool, String> {
    let (rustc, valgrind) = (version("rustc")?, version("valgrind")?);
    let text = std::fs::read_to_string(table_file()).map_err(|error| format!("{}: {error}", table_file().display()))?;
    let mut table: Table = toml::from_str(&text).map_err(|error| format!("{}: {error}", table_file().display()))?;
    if (&table.rustc, &table.valgrind) != (&rustc, &valgrind) {
        println!(
            "the table is of {} and {}, these are {rustc} and {valgrind}: counts may differ for that",
            table.rustc, table.valgrind
        );
    }
    println!("{:<14} {:>12} {:>12} {:>8}", "path", "instructions", "table", "change");
    let mut over = Vec::new();
    let mut below = Vec::new();
    for path in PATHS.iter().filter(|path| names.is_empty() || names.contains(&path.name)) {
        let found = instructions(path)?;
        let known = table.instructions.insert(path.name.to_owned(), found);
        let change = known.map(|known| found as f64 / known as f64 - 1.0);
        let columns = known.zip(change).map_or((String::new(), "new".to_owned()), |(known, change)| {
            (known.to_string(), format!("{:+.1} %", 100.0 * change))
        });
        println!("{:<14} {found:>12} {:>12} {:>8}  {}", path.name, columns.0, columns.1, path.unit);
        match change {
            Some(change) if (-MARGIN..=MARGIN).contains(&change) => {}
            Some(change) if change < 0.0 => below.push(path.name),
            Some(change) => {
                over.push(format!("{} takes {:.1} % more instructions than the table says", path.name, 100.0 * change))
            }
            None => over.push(format!("{} is not in the table", path.name)),
        }
    }
    if is_update {
        let text = table_text(&rustc, &valgrind, &table.instructions);
        std::fs::write(table_file(), text).map_err(|error| format!("{}: {error}", table_file().display()))?;
        return Ok(true);
    }
    if !has_avx2() {
        println!("nothing is judged: the table is of an x86-64 processor with AVX2");
        return Ok(true);
    }
    if !below.is_empty() {
        println!("less than the table says: {}; benches/counts/run --update makes it tighter", below.join(", "));
    }
    over.iter().for_each(|line| eprintln!("{line}"));
    Ok(over.is_empty())
}

/// Counts the instructions for one unit of a path.
fn instructions(path: &Path) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let directory = tempfile::tempdir().map_err(|error| format!("a directory: {error}"))?;
    let file = directory.path().join("callgrind.out");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=fanlog_counted"])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(program)
        .args([WORK, path.name])
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    if !output.status.success() {
        return Err(format!("{}: {}", path.name, String::from_utf8_lossy(&output.stderr)));
    }
    let counts = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let total = counts.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse::<u64>().ok());
    let total = total.filter(|&total| total > 0).ok_or_else(|| format!("{}: callgrind counted nothing", path.name))?;
    Ok(total / (path.calls * path.units) as u64)
}

fn table_text(rustc: &str, valgrind: &str, instructions: &BTreeMap<String, u64>) -> String {
    let mut text = format!(
        "# Instructions of the hot paths for one operation, written by benches/counts/run --update.\n\
         rustc = \"{rustc}\"\nvalgrind = \"{valgrind}\"\n\n[instructions]\n"
    );
    for path in PATHS {
        if let Some(count) = instructions.get(path.name) {
            text.push_str(&format!("# {}\n{} = {count}\n", path.unit, path.name));
        }
    }
    text
}

fn table_file() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/benches/counts/counts.toml"))
}

fn version(program: &str) -> Result<String, String> {
    let output = Command::new(program).arg("--version").output().map_err(|error| format!("{program}: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}
