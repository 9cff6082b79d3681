//! The real binary: its commands, its server as a process of its own, and what the system tells of it.
//!
//! Linux only, since it reads `/proc`. `FANLOG_BIN` names another binary than the one that was built for this run.

use std::ffi::{OsStr, OsString};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use fanlog::client::{Client, ClientBuilder};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Longer than anything takes here; a test that waits so long has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The binary under test.
pub fn binary() -> PathBuf {
    std::env::var_os("FANLOG_BIN").map_or_else(|| env!("CARGO_BIN_EXE_fanlog").into(), PathBuf::from)
}

/// The binary under test, with no settings of whoever runs the tests.
pub fn fanlog() -> Command {
    let mut command = Command::new(binary());
    forget_settings(&mut command);
    command.stdin(Stdio::null());
    command
}

/// Lets no child have the settings of whoever runs the tests.
pub fn forget_settings(command: &mut Command) {
    let is_setting = |name: &OsStr| name.as_encoded_bytes().starts_with(b"FANLOG_") || name == "QUEEN_ENCRYPTION_KEY";
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_setting(name)) {
        command.env_remove(name);
    }
}

/// What a command that must succeed prints.
pub fn json_of(output: &Output) -> Value {
    assert!(output.status.success(), "{} {}", text_of(&output.stdout), text_of(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

pub fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Asks again and again until it holds.
#[track_caller]
pub fn eventually(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "it never held");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// How to start a server.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The data directory.
    pub data: PathBuf,
    /// Where the ports file and the server's words go.
    pub beside: PathBuf,
    /// The address of the binary protocol.
    pub listen: String,
    /// `ulimit` arguments, such as `-n 64`.
    pub ulimit: Option<String>,
    /// The address of the gateway, or `off`.
    pub http: String,
    /// Settings, by their environment variables.
    pub settings: Vec<(&'static str, String)>,
    /// Flags and their values.
    pub flags: Vec<(&'static str, OsString)>,
}

impl Launch {
    /// A server whose data lies in `directory/data`.
    pub fn in_directory(directory: &Path) -> Self {
        Self {
            data: directory.join("data"),
            beside: directory.to_owned(),
            listen: "127.0.0.1:0".to_owned(),
            ulimit: None,
            http: "off".to_owned(),
            settings: Vec::new(),
            flags: Vec::new(),
        }
    }

    pub fn port(self, port: u16) -> Self {
        self.listen(&format!("127.0.0.1:{port}"))
    }

    pub fn listen(mut self, address: &str) -> Self {
        self.listen = address.to_owned();
        self
    }

    pub fn data(mut self, data: impl Into<PathBuf>) -> Self {
        self.data = data.into();
        self
    }

    pub fn http(self) -> Self {
        self.http_on("127.0.0.1:0")
    }

    pub fn http_on(mut self, address: &str) -> Self {
        self.http = address.to_owned();
        self
    }

    pub fn ulimit(mut self, arguments: &str) -> Self {
        self.ulimit = Some(arguments.to_owned());
        self
    }

    pub fn setting(mut self, variable: &'static str, value: impl ToString) -> Self {
        self.settings.push((variable, value.to_string()));
        self
    }

    pub fn flag(mut self, flag: &'static str, value: impl Into<OsString>) -> Self {
        self.flags.push((flag, value.into()));
        self
    }

    /// Starts the process and does not wait for it to be ready.
    pub fn spawn(&self) -> Starting {
        let ports_file = self.beside.join("ports.json");
        let _ = std::fs::remove_file(&ports_file);
        let words = std::fs::OpenOptions::new().create(true).append(true).open(self.words_file()).unwrap();
        let mut command = match &self.ulimit {
            Some(arguments) => {
                let mut shell = Command::new("sh");
                shell.arg("-c").arg(format!("ulimit {arguments} && exec \"$0\" \"$@\"")).arg(binary());
                forget_settings(&mut shell);
                shell
            }
            None => fanlog(),
        };
        command.envs(self.settings.iter().map(|(name, value)| (*name, value.as_str())));
        command.arg("serve").arg("--data").arg(&self.data).arg("--ports-file").arg(&ports_file);
        command.args(["--http", &self.http, "--listen", &self.listen]);
        command.args(self.flags.iter().flat_map(|(flag, value)| [OsStr::new(flag), value]));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(words).spawn().unwrap();
        Starting { child: Owned(child), ports_file, launch: self.clone() }
    }

    /// Starts the process and waits until it is ready.
    pub fn start(&self) -> Program {
        self.spawn().ready()
    }

    /// Starts a process that must not become ready: its exit code and what it wrote.
    pub fn refused(&self) -> (i32, String) {
        let before = std::fs::read_to_string(self.words_file()).unwrap_or_default().len();
        let mut starting = self.spawn();
        let status = starting.child.wait_within(PATIENCE);
        (status.code().unwrap_or(-1), std::fs::read_to_string(self.words_file()).unwrap()[before..].to_owned())
    }

    pub fn words_file(&self) -> PathBuf {
        self.beside.join("stderr")
    }
}

/// A child that does not outlive its owner.
#[derive(Debug)]
struct Owned(Child);

impl Owned {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn wait_within(&mut self, patience: Duration) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < patience, "the process does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server that may not be ready.
#[derive(Debug)]
pub struct Starting {
    child: Owned,
    ports_file: PathBuf,
    launch: Launch,
}

impl Starting {
    pub fn ready(mut self) -> Program {
        let start = Instant::now();
        let text = loop {
            if let Ok(text) = std::fs::read_to_string(&self.ports_file) {
                break text;
            }
            let ended = self.child.0.try_wait().unwrap();
            assert!(ended.is_none(), "the server ended: {}", std::fs::read_to_string(self.launch.words_file()).unwrap());
            assert!(start.elapsed() < PATIENCE, "the server is not ready");
            std::thread::sleep(Duration::from_millis(2));
        };
        let ports: Value = serde_json::from_str(&text).unwrap();
        let http = ports["http"].as_str().map(str::to_owned);
        Program { child: self.child, address: ports["tcp"].as_str().unwrap().to_owned(), http, launch: self.launch }
    }

    pub fn signal(&self, signal: Signal) {
        self.child.signal(signal);
    }

    pub fn wait(mut self) -> ExitStatus {
        self.child.wait_within(PATIENCE)
    }

    pub fn kill(mut self) {
        self.child.0.kill().unwrap();
        self.child.0.wait().unwrap();
    }
}

/// A server that is ready.
#[derive(Debug)]
pub struct Program {
    child: Owned,
    pub address: String,
    /// The gateway's address.
    pub http: Option<String>,
    pub launch: Launch,
}

impl Program {
    pub fn builder(&self) -> ClientBuilder {
        Client::builder(self.address.clone())
    }

    /// A command that talks to this server.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = fanlog();
        command.args(["--server", &self.address]).args(arguments);
        command
    }

    pub async fn client(&self) -> Client {
        self.builder().connect().await.unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        self.child.signal(signal);
    }

    /// Lets it read its files again, and waits until it has said this once more.
    pub fn hang_up(&self, said: &str) {
        let count = || self.words().matches(said).count();
        let before = count();
        self.signal(Signal::HUP);
        eventually(|| count() > before);
    }

    pub fn kill(mut self) {
        self.child.0.kill().unwrap();
        let status = self.child.0.wait().unwrap();
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "it had ended before: {status}: {}", self.words());
    }

    pub fn wait(mut self) -> ExitStatus {
        self.child.wait_within(PATIENCE)
    }

    /// Stops with SIGTERM, which must end well.
    pub fn stop(self) {
        self.signal(Signal::TERM);
        let launch = self.launch.clone();
        let status = self.wait();
        assert!(status.success(), "{status}: {}", std::fs::read_to_string(launch.words_file()).unwrap());
    }

    /// Stops with SIGTERM, which may say that not everything could be written.
    pub fn stop_any(self) {
        self.signal(Signal::TERM);
        let status = self.wait();
        assert!(status.code().is_some(), "{status}");
    }

    pub fn is_running(&mut self) -> bool {
        self.child.0.try_wait().unwrap().is_none()
    }

    /// What it wrote to standard error so far.
    pub fn words(&self) -> String {
        std::fs::read_to_string(self.launch.words_file()).unwrap()
    }

    /// Memory that is not pages of files, in bytes.
    pub fn anonymous_bytes(&self) -> u64 {
        anonymous_bytes_of(self.pid())
    }

    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }
}

/// The same of any process.
pub fn anonymous_bytes_of(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// A port that no outgoing connection is given by the system, so that a server can come back to it: one that clients dial while
/// nobody listens could otherwise be taken by the client itself.
pub fn lasting_port(seed: u64) -> u16 {
    (0..1000)
        .map(|step| 12_000 + ((seed % 10_000) as u16 + step * 7) % 18_000)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port")
}

/// Bytes of all files of a directory, by path.
pub fn contents(directory: &Path) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
    let mut found = std::collections::BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    found
}
