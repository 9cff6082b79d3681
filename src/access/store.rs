//! The file of tokens in a data directory.
//!
//! Read and replaced as a whole: a change writes a new file beside it, makes it durable, and renames it. Programs that change it take
//! turns by a lock on the directory. A file that is not exactly as it was written is refused; it is never taken for an empty one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::format::names;

use super::token::{self, SecretHash, TokenId};
use super::{Principal, Role};

pub use crate::format::names::TOKEN_FILE;

/// What the file says that it is.
const FORMAT: &str = "fanlog tokens";
const VERSION: u32 = 1;
/// The largest file that is read; more than a hundred thousand tokens.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// The longest name or prefix, in bytes.
const TEXT_BYTES_MAX: usize = 255;
/// How long a change waits for others to finish theirs, which take milliseconds.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);
/// Others may write a file with one of these bits.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// What is kept of a token.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredToken {
    /// Finds it.
    pub id: TokenId,
    /// What it is for.
    pub name: String,
    /// What its holder may do.
    pub role: Role,
    /// How the names of the holder's queues begin; empty is all queues.
    pub queue_prefixes: Vec<String>,
    /// When it was made, microseconds since the Unix epoch.
    pub created_at_us: u64,
    /// When it stops to be valid, microseconds since the Unix epoch; `None` is never.
    pub expires_at_us: Option<u64>,
    #[serde(with = "secret_text")]
    pub(super) secret_sha256: SecretHash,
}

/// What a new token is to be.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// What it is for.
    pub name: String,
    /// What its holder may do.
    pub role: Role,
    /// How the names of the holder's queues begin; empty is all queues.
    pub queue_prefixes: Vec<String>,
    /// When it stops to be valid, microseconds since the Unix epoch; `None` is never.
    pub expires_at_us: Option<u64>,
}

/// Why the tokens cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// The file is there and is not what it should be.
    #[error("token file {} is not usable: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The operating system refuses.
    #[error("token file {}: {source}", path.display())]
    Io {
        /// The file or its directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What was asked for is not allowed.
    #[error("{0}")]
    Refused(String),
}

/// What tells one state of the file from another without reading it: number, size, times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp(u64, u64, i64, i64);

impl Stamp {
    /// The file's; `None` if there is none.
    pub(super) fn of(directory: &Path) -> Result<Option<Self>, TokenFileError> {
        let path = directory.join(TOKEN_FILE);
        match std::fs::metadata(&path) {
            Ok(data) => Ok(Some(Self(data.ino(), data.size(), data.mtime(), data.mtime_nsec()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(TokenFileError::Io { path, source }),
        }
    }
}

/// The file's content. The checksum is that of the tokens as this program writes them.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    format: String,
    version: u32,
    crc32: String,
    tokens: Vec<StoredToken>,
}

impl StoredToken {
    /// Who its holder is.
    pub fn principal(&self) -> Principal {
        let prefixes = (!self.queue_prefixes.is_empty()).then(|| self.queue_prefixes.clone());
        Principal::new(self.name.clone(), self.role, prefixes)
    }
}

/// The tokens of a data directory; `None` if it has no token file.
///
/// # Errors
///
/// If the file is there and cannot be read, is not as it was written, or is writable for others.
pub fn read_tokens(directory: &Path) -> Result<Option<Vec<StoredToken>>, TokenFileError> {
    let path = directory.join(TOKEN_FILE);
    let failed = |source| TokenFileError::Io { path: path.clone(), source };
    let damaged = |reason: String| TokenFileError::Damaged { path: path.clone(), reason };
    // Without waiting: what lies there may be a pipe that nobody writes to.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = match OpenOptions::new().read(true).custom_flags(nonblocking).open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(failed)?,
    };
    let data = file.metadata().map_err(failed)?;
    if !data.is_file() || data.size() > FILE_BYTES_MAX {
        return Err(damaged(format!("it is no file of at most {FILE_BYTES_MAX} bytes")));
    }
    if data.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(damaged("others than its owner may write it".to_owned()));
    }
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(file, FILE_BYTES_MAX), &mut text).map_err(|error| damaged(error.to_string()))?;
    parse(&text).map(Some).map_err(damaged)
}

/// Adds a token and returns it with its text, which is kept nowhere. Durable when it returns.
///
/// # Errors
///
/// If the name or a prefix is empty or too long, or the file cannot be read or replaced.
pub fn create_token(directory: &Path, new: NewToken, now_us: u64) -> Result<(StoredToken, String), TokenFileError> {
    for (what, text) in [("name", &new.name)].into_iter().chain(new.queue_prefixes.iter().map(|prefix| ("queue prefix", prefix)))
    {
        if text.is_empty() || text.len() > TEXT_BYTES_MAX || text.chars().any(char::is_control) {
            let text = format!("the {what} {text:?} is not 1 to {TEXT_BYTES_MAX} bytes without control characters");
            return Err(TokenFileError::Refused(text));
        }
    }
    let (id, text, secret_sha256) =
        token::generate().map_err(|source| TokenFileError::Io { path: directory.to_owned(), source })?;
    let token = StoredToken {
        id,
        name: new.name,
        role: new.role,
        queue_prefixes: new.queue_prefixes,
        created_at_us: now_us,
        expires_at_us: new.expires_at_us,
        secret_sha256,
    };
    change(directory, |tokens| {
        if tokens.iter().any(|other| other.id == token.id) {
            return Err(TokenFileError::Refused(format!("there is a token {} already; try again", token.id)));
        }
        tokens.push(token.clone());
        Ok(())
    })?;
    Ok((token, text))
}

/// Removes a token; whether there was one. Durable when it returns.
///
/// # Errors
///
/// If the file cannot be read or replaced.
pub fn revoke_token(directory: &Path, id: &TokenId) -> Result<bool, TokenFileError> {
    let mut existed = false;
    change(directory, |tokens| {
        let before = tokens.len();
        tokens.retain(|token| token.id != *id);
        existed = tokens.len() < before;
        Ok(())
    })?;
    Ok(existed)
}

/// Reads, changes and replaces the file while nobody else does.
fn change(
    directory: &Path,
    change: impl FnOnce(&mut Vec<StoredToken>) -> Result<(), TokenFileError>,
) -> Result<(), TokenFileError> {
    let failed = |source| TokenFileError::Io { path: directory.to_owned(), source };
    let handle = File::open(directory).map_err(failed)?;
    wait_for_turn(&handle, TURN_TIMEOUT).map_err(failed)?;
    let mut tokens = read_tokens(directory)?.unwrap_or_default();
    change(&mut tokens)?;
    replace(directory, &handle, render(tokens).as_bytes()).map_err(failed)
}

/// Anybody who may list the directory can hold the lock, and must not hold up a revocation for good.
fn wait_for_turn(directory: &File, patience: Duration) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match flock(directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if start.elapsed() < patience => std::thread::sleep(Duration::from_millis(5)),
            Err(Errno::WOULDBLOCK) => {
                let text = format!("another process has held the lock (flock) on this directory for {} s", patience.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            outcome => return Ok(outcome?),
        }
    }
}

fn replace(directory: &Path, handle: &File, bytes: &[u8]) -> io::Result<()> {
    let new = directory.join(names::temporary(TOKEN_FILE));
    // What an interrupted change left; made anew so that its mode is ours.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => (),
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, directory.join(TOKEN_FILE))?;
    handle.sync_all()
}

fn render(tokens: Vec<StoredToken>) -> String {
    let content = Content { format: FORMAT.to_owned(), version: VERSION, crc32: checksum(&tokens), tokens };
    // Values of these types cannot fail to become JSON.
    serde_json::to_string_pretty(&content).unwrap_or_default() + "\n"
}

fn parse(text: &str) -> Result<Vec<StoredToken>, String> {
    let content: Content = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if content.format != FORMAT {
        return Err(format!("its format is {:?}, not {FORMAT:?}", content.format));
    }
    if content.version != VERSION {
        return Err(format!("its version is {}, this program knows {VERSION}", content.version));
    }
    if content.crc32 != checksum(&content.tokens) {
        return Err("its checksum does not fit its tokens".to_owned());
    }
    Ok(content.tokens)
}

fn checksum(tokens: &[StoredToken]) -> String {
    let text = serde_json::to_string(tokens).unwrap_or_default();
    format!("{:08x}", crc32fast::hash(text.as_bytes()))
}

mod secret_text {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    use super::SecretHash;

    pub fn serialize<S: Serializer>(hash: &SecretHash, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hash.to_hexadecimal())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SecretHash, D::Error> {
        let text = String::deserialize(deserializer)?;
        SecretHash::from_hexadecimal(&text).ok_or_else(|| D::Error::custom("a hash is 64 hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn new(name: &str) -> NewToken {
        NewToken { name: name.into(), role: Role::ReadWrite, queue_prefixes: vec!["orders.".into()], expires_at_us: Some(9) }
    }

    #[test]
    fn tokens_are_kept_without_their_secret_and_revoked_by_id() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read_tokens(dir.path()).unwrap().is_none());
        assert!(!revoke_token(dir.path(), &TokenId::try_from("00000000".to_owned()).unwrap()).unwrap());
        let (first, text) = create_token(dir.path(), new("ci"), 5).unwrap();
        let (second, _) = create_token(dir.path(), NewToken { queue_prefixes: Vec::new(), ..new("ops") }, 6).unwrap();
        let file = std::fs::read_to_string(dir.path().join(TOKEN_FILE)).unwrap();
        assert!(!file.contains(token::parse_token(&text).unwrap().1));
        let mode = std::fs::metadata(dir.path().join(TOKEN_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let tokens = read_tokens(dir.path()).unwrap().unwrap();
        assert_eq!(tokens.iter().map(|token| token.name.as_str()).collect::<Vec<_>>(), ["ci", "ops"]);
        assert_eq!(tokens[0].principal().scope.unwrap().to_string(), "\"orders.\"");
        assert_eq!(tokens[1].principal().scope, None);
        assert!(revoke_token(dir.path(), &first.id).unwrap());
        let left = read_tokens(dir.path()).unwrap().unwrap();
        assert_eq!((left.len(), &left[0].id), (1, &second.id));
        let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [TOKEN_FILE]);
    }

    #[test]
    fn names_and_prefixes_have_bounds() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["", "a\nb", &"x".repeat(256)] {
            assert!(matches!(create_token(dir.path(), new(name), 0), Err(TokenFileError::Refused(_))), "{name:?}");
            let prefix = NewToken { queue_prefixes: vec![name.to_owned()], ..new("x") };
            assert!(matches!(create_token(dir.path(), prefix, 0), Err(TokenFileError::Refused(_))), "{name:?}");
        }
    }

    /// Every byte changed and every shorter file: never more rights than were given, and never an empty list.
    #[test]
    fn a_file_that_is_not_as_it_was_written_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(TOKEN_FILE);
        create_token(dir.path(), new("ci"), 5).unwrap();
        let good = std::fs::read(&path).unwrap();
        let shown = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            read_tokens(dir.path()).map(|tokens| serde_json::to_string(&tokens).unwrap())
        };
        let expected = shown(&good).unwrap();
        for end in 0..good.len() - 1 {
            assert!(matches!(shown(&good[..end]), Err(TokenFileError::Damaged { .. })), "{end} bytes");
        }
        for index in 0..good.len() {
            for flip in [1, 0x20, 0x80] {
                let mut changed = good.clone();
                changed[index] ^= flip;
                match shown(&changed) {
                    // Only spaces may differ.
                    Ok(same) => assert_eq!(same, expected, "byte {index}"),
                    Err(error) => assert!(error.to_string().contains("is not usable"), "{error}"),
                }
            }
        }
        for foreign in ["", "[]", "{}", "null", "{\"format\":\"other\",\"version\":1,\"crc32\":\"00000000\",\"tokens\":[]}"] {
            assert!(shown(foreign.as_bytes()).is_err(), "{foreign}");
        }
        let newer = render(Vec::new()).replace("\"version\": 1", "\"version\": 2");
        assert!(shown(newer.as_bytes()).unwrap_err().to_string().ends_with("its version is 2, this program knows 1"));
        // A damaged file is not replaced either: what it says may be needed.
        assert!(create_token(dir.path(), new("x"), 0).is_err());
    }

    #[test]
    fn a_file_that_others_may_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        create_token(dir.path(), new("ci"), 5).unwrap();
        let path = dir.path().join(TOKEN_FILE);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o620)).unwrap();
        assert!(read_tokens(dir.path()).unwrap_err().to_string().ends_with("others than its owner may write it"));
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(matches!(read_tokens(dir.path()), Err(TokenFileError::Damaged { .. })));
    }

    /// Opening a pipe waits for somebody at its other end: the server used to wait with it, also when it was to stop.
    #[test]
    fn a_pipe_in_the_place_of_the_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(TOKEN_FILE);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        assert!(read_tokens(dir.path()).unwrap_err().to_string().contains("it is no file of at most"));
    }

    #[test]
    fn a_lock_that_somebody_keeps_is_not_waited_for_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let [keeper, handle] = [0; 2].map(|_| File::open(dir.path()).unwrap());
        wait_for_turn(&keeper, Duration::ZERO).unwrap();
        let error = wait_for_turn(&handle, Duration::from_millis(20)).unwrap_err();
        assert!(error.kind() == io::ErrorKind::TimedOut && error.to_string().contains("held the lock"), "{error}");
        drop(keeper);
        wait_for_turn(&handle, Duration::ZERO).unwrap();
    }

    #[test]
    fn changes_at_the_same_time_are_all_kept() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let path = dir.path();
                scope.spawn(move || {
                    for index in 0..5 {
                        create_token(path, new(&format!("{thread}-{index}")), 0).unwrap();
                    }
                });
            }
        });
        assert_eq!(read_tokens(dir.path()).unwrap().unwrap().len(), 20);
    }
}
