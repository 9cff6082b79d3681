//! `fanlog serve`: the server from its settings to its end.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use fanlog::access::{Access, JwtRules};
use fanlog::engine::{Engine, EngineOptions, RecoveryReport};
use fanlog::model::Now;
use fanlog::server::{Server, ServerOptions};
use fanlog::tls::{TlsFiles, TlsServer};
use indicatif::ProgressBar;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use super::config::{Config, Flags};
use super::exit::ServerFault;
use super::gateway::{Gateway, GatewayPlan, SetLogFilter};
use super::{Context, exit};

/// A file that grows over its limit must be an error of the write, not the end of the process.
const SIGXFSZ: i32 = 25;
/// A start that takes longer shows that it goes on.
const QUIET_START: Duration = Duration::from_millis(1500);

/// How to serve.
#[derive(Debug, clap::Args)]
pub struct ServeArguments {
    /// Data directory; made if it does not exist [default: ./fanlog-data]
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// Address of the binary protocol; port 0 is any [default: 127.0.0.1:6633]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Address of the HTTP gateway; port 0 is any, off is none [default: 127.0.0.1:6632]
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// A file that gets the ports, as JSON, when everything is ready
    #[arg(long, value_name = "FILE")]
    ports_file: Option<String>,
    /// The server's certificate and those above it, PEM: both ports then speak TLS only; read again on SIGHUP
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<String>,
    /// The key of that certificate, PEM
    #[arg(long, value_name = "FILE")]
    tls_key: Option<String>,
    /// Whose certificates clients must have, PEM; without it none is asked for
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<String>,
    /// How JSON web tokens are signed: HS256, RS256 or EdDSA; without it they are not taken
    #[arg(long, value_name = "ALGORITHM")]
    jwt_algorithm: Option<String>,
    /// Their secret (HS256) or public key (PEM)
    #[arg(long, value_name = "FILE")]
    jwt_key_file: Option<String>,
    /// What their iss must be
    #[arg(long, value_name = "TEXT")]
    jwt_issuer: Option<String>,
    /// What their aud must be or contain
    #[arg(long, value_name = "TEXT")]
    jwt_audience: Option<String>,
    /// Listen beyond loopback without a token
    #[arg(long)]
    insecure_bind: bool,
}

impl ServeArguments {
    /// The flags that are settings too.
    pub fn flags(&self) -> Flags {
        let insecure_bind = self.insecure_bind.then(|| "true".to_owned());
        [
            ("data", self.data.clone()),
            ("listen", self.listen.clone()),
            ("http", self.http.clone()),
            ("ports_file", self.ports_file.clone()),
            ("tls_cert", self.tls_cert.clone()),
            ("tls_key", self.tls_key.clone()),
            ("tls_client_ca", self.tls_client_ca.clone()),
            ("jwt_algorithm", self.jwt_algorithm.clone()),
            ("jwt_key_file", self.jwt_key_file.clone()),
            ("jwt_issuer", self.jwt_issuer.clone()),
            ("jwt_audience", self.jwt_audience.clone()),
            ("insecure_bind", insecure_bind),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
    }
}

/// Checked settings of a server.
pub struct ServePlan {
    data: PathBuf,
    gateway: GatewayPlan,
    ports_file: Option<PathBuf>,
    jwt_key_file: Option<PathBuf>,
    hint_flags: String,
    committers: usize,
    engine: EngineOptions,
    server: ServerOptions,
    log: String,
}

impl ServePlan {
    /// Takes the settings apart; refuses what does not make sense.
    pub fn of(config: &Config) -> Result<Self> {
        let access = Arc::new(access(config)?);
        let tls = tls(config)?.map(Arc::new);
        let gateway = GatewayPlan::of(config, access.clone(), tls.clone())?;
        let engine = EngineOptions {
            default_start: config.start("default_start", Now::read().wall_us)?,
            pending_bytes_max: config.get("pending_bytes_max")?,
            message_bytes_max: config.get("message_bytes_max")?,
            push_bytes_max: config.get("push_bytes_max")?,
            push_messages_max: config.get("push_messages_max")?,
            queues_max: config.get("queues_max")?,
            groups_max: config.get("groups_max")?,
            partition_cleanup_days: config.get("partition_cleanup_days")?,
            retention_interval_ms: u64::try_from(config.duration("retention_interval")?.as_millis())?,
        };
        let server = ServerOptions {
            listen: config.get("listen")?,
            access,
            tls,
            is_insecure_bind_allowed: config.get("insecure_bind")?,
            connections_max: config.get("connections_max")?,
            connections_per_address_max: config.get("connections_per_address_max")?,
            handshakes_max: config.get("handshakes_max")?,
            frame_bytes_max: config.get("frame_bytes_max")?,
            message_bytes_max: engine.message_bytes_max,
            in_flight_bytes_max: config.get("in_flight_bytes_max")?,
            out_bytes_max: config.get("out_bytes_max")?,
            waiting_max: config.get("waiting_max")?,
            drain_timeout: config.duration("drain_timeout")?,
            ..ServerOptions::default()
        };
        for address in [Some(server.listen), gateway.address].into_iter().flatten() {
            server.check_exposure(address)?;
        }
        let log = config.text("log").to_owned();
        EnvFilter::try_new(&log).with_context(|| format!("setting \"log\" = {log:?} is not valid"))?;
        Ok(Self {
            data: config.text("data").into(),
            ports_file: config.optional("ports_file").map(PathBuf::from),
            jwt_key_file: config.optional("jwt_key_file").map(PathBuf::from),
            hint_flags: hint_flags(config),
            committers: config.get::<usize>("committers")?.max(1),
            gateway,
            engine,
            server,
            log,
        })
    }
}

impl ServePlan {
    /// Leaves half of the files to the log: connections, which anybody can open, must not keep a segment from being made. Where that is
    /// fewer than `connections_max`, one address gets half of them, unless it was meant to get all.
    fn bound_connections(&mut self, files_max: usize) {
        let ports = 1 + usize::from(self.gateway.address.is_some());
        let (fitting, wanted) = ((files_max / 2 / ports).max(1), self.server.connections_max);
        if fitting >= wanted {
            return;
        }
        let per_address = self.server.connections_per_address_max;
        let per_address = if per_address < wanted { per_address.min(fitting.div_ceil(2)) } else { fitting };
        tracing::warn!(
            "the limit of open files, {files_max}, leaves room for {fitting} connections to a port, {per_address} of one address; \
            connections_max is {wanted}"
        );
        (self.server.connections_max, self.server.connections_per_address_max) = (fitting, per_address);
        self.gateway.bound_connections(fitting, per_address);
    }
}

/// Who may do what.
fn access(config: &Config) -> Result<Access> {
    let access = match config.token()? {
        Some(secret) => Access::with_secret(&secret),
        None => Access::default(),
    };
    let access = match (config.optional("jwt_algorithm"), config.optional("jwt_key_file")) {
        (Some(_), Some(path)) => {
            let rules = JwtRules {
                algorithm: config.get("jwt_algorithm")?,
                issuer: config.optional("jwt_issuer").map(str::to_owned),
                audience: config.optional("jwt_audience").map(str::to_owned),
                role_claim: config.text("jwt_role_claim").to_owned(),
                prefixes_claim: config.text("jwt_prefixes_claim").to_owned(),
            };
            let key = std::fs::read(path).with_context(|| format!("cannot read JWT key file {path:?}"))?;
            access.and_jwt(rules, &key).with_context(|| format!("JWT key file {path:?}"))?
        }
        (None, None) => access,
        _ => bail!("jwt_algorithm and jwt_key_file belong together"),
    };
    Ok(access.and_tokens_of(config.text("data"))?)
}

/// The certificates, if there are any.
fn tls(config: &Config) -> Result<Option<TlsServer>> {
    let client_ca = config.optional("tls_client_ca").map(PathBuf::from);
    match (config.optional("tls_cert"), config.optional("tls_key")) {
        (Some(certificate), Some(key)) => {
            Ok(Some(TlsServer::open(TlsFiles { certificate: certificate.into(), key: key.into(), client_ca })?))
        }
        (None, None) if client_ca.is_none() => Ok(None),
        (None, None) => bail!("tls_client_ca needs tls_cert and tls_key"),
        _ => bail!("tls_cert and tls_key belong together"),
    }
}

/// On SIGHUP reads the tokens, the key of JSON web tokens and the certificates again; each that cannot be used stays as it was, and does
/// not keep the others from being read.
async fn reload_on_hangup(mut hangup: Signal, server: ServerOptions, jwt_key: Option<PathBuf>, stopping: CancellationToken) {
    loop {
        tokio::select! {
            () = stopping.cancelled() => return,
            heard = hangup.recv() => if heard.is_none() { return },
        }
        let (access, tls, jwt_key) = (server.access.clone(), server.tls.clone(), jwt_key.clone());
        let reload = move || -> Vec<anyhow::Error> {
            let tokens = access.reload().map_err(anyhow::Error::from);
            let key = jwt_key.map_or(Ok(()), |path| reload_jwt_key(&access, &path));
            let certificates = tls.map_or(Ok(()), |tls| Ok(tls.reload()?));
            [tokens, key, certificates].into_iter().filter_map(Result::err).collect()
        };
        match tokio::task::spawn_blocking(reload).await {
            Ok(errors) if errors.is_empty() => tracing::info!("tokens and certificates are read again"),
            Ok(errors) => {
                errors.iter().for_each(|error| tracing::error!("not reloaded, what was read before stays in use: {error:#}"));
            }
            Err(error) => tracing::error!(%error, "not reloaded"),
        }
    }
}

fn reload_jwt_key(access: &Access, path: &Path) -> Result<()> {
    let key = std::fs::read(path).with_context(|| format!("cannot read JWT key file {}", path.display()))?;
    if access.replace_jwt_key(&key).with_context(|| format!("JWT key file {}", path.display()))? {
        tracing::info!("another JWT key is in use");
    }
    Ok(())
}

/// Serves until a signal says stop.
pub async fn run(context: Context) -> Result<()> {
    let mut plan = ServePlan::of(&context.config)?;
    let set_log_filter = start_log(&plan.log);
    if let Some(files_max) = raise_file_limit() {
        plan.bound_connections(files_max);
    }
    let _ignored = signal(SignalKind::from_raw(SIGXFSZ))?;
    let stopping = stop_on_signals()?;
    // Before the directory is read, which may take long: a hangup ends a process that does not listen for it.
    let hangup = signal(SignalKind::hangup())?;
    if let Some(path) = &plan.ports_file {
        remove_stale(path)?;
    }
    let (engine, report) = open(&plan).await?;
    let outcome = serve(&plan, &engine, &report, set_log_filter, hangup, stopping).await;
    if let Some(path) = &plan.ports_file {
        let _ = std::fs::remove_file(path);
    }
    let closed = tokio::task::spawn_blocking(move || engine.close(Now::read())).await?;
    outcome?;
    closed.context(ServerFault("cannot close the data directory".to_owned()))
}

async fn serve(
    plan: &ServePlan,
    engine: &Engine,
    report: &RecoveryReport,
    set_log_filter: SetLogFilter,
    hangup: Signal,
    stopping: CancellationToken,
) -> Result<()> {
    engine.start_threads(plan.committers).context(ServerFault("cannot start".to_owned()))?;
    let fault = || ServerFault("cannot start".to_owned());
    let server = Server::bind(plan.server.clone(), engine.clone()).await.with_context(fault)?;
    let count_connections = server.connection_counter();
    let gateway = Gateway::bind(plan.gateway.clone(), engine, report, set_log_filter, count_connections);
    let gateway = gateway.await.with_context(fault)?;
    let (tcp, http) = (server.local_addr(), gateway.local_addr());
    say_hello(plan, report, tcp, http);
    if let Some(path) = &plan.ports_file {
        write_ports(path, tcp, http).context(ServerFault(format!("cannot write {}", path.display())))?;
    }
    let reloading = tokio::spawn(reload_on_hangup(hangup, plan.server.clone(), plan.jwt_key_file.clone(), stopping.clone()));
    let following = tokio::spawn(plan.server.access.clone().follow(stopping.clone()));
    tokio::join!(server.serve(stopping.clone()), gateway.serve(stopping));
    following.await?;
    reloading.await?;
    Ok(())
}

/// Opens the data directory, which may have much to recover, and shows that it goes on.
async fn open(plan: &ServePlan) -> Result<(Engine, RecoveryReport)> {
    let (path, options) = (plan.data.clone(), plan.engine.clone());
    let mut opening = tokio::task::spawn_blocking(move || Engine::open_path(&path, options, Now::read()));
    let opened = match tokio::time::timeout(QUIET_START, &mut opening).await {
        Ok(opened) => opened,
        Err(_) => {
            let spinner = ProgressBar::new_spinner().with_message(format!("reading {}", plan.data.display()));
            spinner.enable_steady_tick(Duration::from_millis(200));
            let start = Instant::now();
            let opened = opening.await;
            spinner.finish_and_clear();
            tracing::info!(seconds = start.elapsed().as_secs_f64() + QUIET_START.as_secs_f64(), "data directory is read");
            opened
        }
    };
    let fault = || ServerFault(format!("cannot open data directory {}", plan.data.display()));
    opened.with_context(fault)?.with_context(fault)
}

/// Logs to standard error: text on a terminal, JSON otherwise. What is logged can be changed later.
fn start_log(filter: &str) -> SetLogFilter {
    use std::io::IsTerminal;
    let builder = tracing_subscriber::fmt().with_env_filter(EnvFilter::new(filter)).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        let builder = builder.with_target(false).with_filter_reloading();
        let handle = builder.reload_handle();
        builder.init();
        Arc::new(move |text| reload(text, |filter| handle.reload(filter)))
    } else {
        let builder = builder.json().with_filter_reloading();
        let handle = builder.reload_handle();
        builder.init();
        Arc::new(move |text| reload(text, |filter| handle.reload(filter)))
    }
}

fn reload<E: ToString>(text: &str, reload: impl FnOnce(EnvFilter) -> Result<(), E>) -> Result<(), String> {
    let filter = EnvFilter::try_new(text).map_err(|error| error.to_string())?;
    reload(filter).map_err(|error| error.to_string())
}

/// Takes as many files as the system lets us have: each connection and each segment is one. Returns how many; `None` is any number.
fn raise_file_limit() -> Option<usize> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    getrlimit(Resource::Nofile).current.map(|files_max| usize::try_from(files_max).unwrap_or(usize::MAX))
}

/// The first SIGTERM or SIGINT stops gracefully, the second at once.
fn stop_on_signals() -> Result<CancellationToken> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stopping = CancellationToken::new();
    let token = stopping.clone();
    tokio::spawn(async move {
        any(&mut interrupt, &mut terminate).await;
        tracing::info!("stopping; a second signal stops at once");
        token.cancel();
        any(&mut interrupt, &mut terminate).await;
        std::process::exit(exit::EXIT_SERVER.into());
    });
    Ok(stopping)
}

async fn any(first: &mut Signal, second: &mut Signal) {
    tokio::select! {
        _ = first.recv() => (),
        _ = second.recv() => (),
    }
}

/// Tells people where things are. Nobody may be listening: that is no failure.
fn say_hello(plan: &ServePlan, report: &RecoveryReport, tcp: SocketAddr, http: Option<SocketAddr>) {
    let mut text = String::new();
    for finding in &report.findings {
        let loss = if finding.is_loss { "loss: " } else { "" };
        let queue = finding.queue.as_ref().map(|queue| format!("queue {queue:?}: ")).unwrap_or_default();
        text.push_str(&format!("recovery: {loss}{queue}{}\n", finding.text));
    }
    let data = std::fs::canonicalize(&plan.data).unwrap_or_else(|_| plan.data.clone());
    let scheme = if plan.server.tls.is_some() { "https" } else { "http" };
    let http = http.map_or_else(|| "off".to_owned(), |http| format!("{scheme}://{http}"));
    text.push_str(&format!(
        "fanlog {} is ready\n  data  {} ({} queues, {} partitions, {} messages)\n  tcp   {tcp}\n  http  {http}\n  next  {}\n",
        env!("CARGO_PKG_VERSION"),
        data.display(),
        report.queues,
        report.partitions,
        report.messages,
        next_command(plan, tcp),
    ));
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Something to try, with what it takes to reach this server; never a secret.
fn next_command(plan: &ServePlan, tcp: SocketAddr) -> String {
    let is_default = tcp.port() == fanlog::client::DEFAULT_PORT && tcp.ip().is_loopback();
    let mut flags = match &plan.server.tls {
        Some(_) => format!(" --server fanlog+tls://{tcp}"),
        None if is_default => String::new(),
        None => format!(" --server {tcp}"),
    };
    flags.push_str(&plan.hint_flags);
    if plan.server.access.is_required() && !flags.contains("--token-file ") {
        // Where the secret is known only here and not in a file, whoever reads this has to have it.
        flags.push_str(" --token \"$TOKEN\"");
    }
    format!("fanlog{flags} push hello 'first message' && fanlog{flags} pop hello --group readers --from beginning")
}

/// The flags that a command on this machine needs beside the address to be let in with the settings of this server.
fn hint_flags(config: &Config) -> String {
    let mut flags = String::new();
    for (name, flag) in [("token_file", "token-file"), ("ca", "ca"), ("client_cert", "client-cert"), ("client_key", "client-key")]
    {
        // A secret that is given itself goes before one in a file.
        let is_overridden = name == "token_file" && config.optional("token").is_some();
        if let Some(value) = config.optional(name).filter(|_| !is_overridden) {
            flags.push_str(&format!(" --{flag} {}", shell_word(value)));
        }
    }
    // Without another word the certificate's own file is where those above it are, if it has any.
    let chain = config.optional("tls_cert").filter(|_| config.optional("ca").is_none());
    if let Some(path) = chain.filter(|path| has_issuers(Path::new(path))) {
        flags.push_str(&format!(" --ca {}", shell_word(path)));
    }
    flags
}

fn has_issuers(certificates: &Path) -> bool {
    std::fs::read_to_string(certificates).is_ok_and(|text| text.matches("BEGIN CERTIFICATE").count() > 1)
}

/// A text as one word for a shell.
fn shell_word(text: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "/._-+:@%".contains(character);
    if !text.is_empty() && text.chars().all(is_plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// Nobody may take the ports of an earlier run for those of this one.
fn remove_stale(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove the old {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// The file is there with all its content or not at all.
fn write_ports(path: &Path, tcp: SocketAddr, http: Option<SocketAddr>) -> Result<()> {
    let mut ports = json!({ "tcp": tcp.to_string() });
    if let (Some(http), Some(ports)) = (http, ports.as_object_mut()) {
        ports.insert("http".to_owned(), http.to_string().into());
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    std::fs::write(&temporary, format!("{ports}\n"))?;
    Ok(std::fs::rename(&temporary, path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(flags: &[(&'static str, &str)]) -> Result<ServePlan> {
        let flags = flags.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        ServePlan::of(&Config::load(None, std::iter::empty(), &flags)?)
    }

    #[test]
    fn the_defaults_make_sense_and_wrong_settings_do_not() {
        let default = plan(&[]).unwrap();
        assert_eq!((default.data.as_path(), default.server.listen.port()), (Path::new("./fanlog-data"), 6633));
        assert_eq!(default.gateway.address.unwrap().port(), 6632);
        assert!(plan(&[("http", "off")]).unwrap().gateway.address.is_none());
        for (name, value) in [("listen", "nowhere"), ("listen", "0.0.0.0:1"), ("http", "0.0.0.0:1"), ("log", "=,=")] {
            assert!(plan(&[(name, value)]).is_err(), "{name} {value}");
        }
        assert!(plan(&[("listen", "0.0.0.0:1"), ("insecure_bind", "true")]).is_ok());
        assert!(plan(&[("listen", "0.0.0.0:1"), ("token", "a secret of 16 b")]).is_ok());
        let error = plan(&[("listen", "0.0.0.0:1"), ("token", "secret")]).err().unwrap();
        assert!(error.to_string().contains("under 16 bytes"), "{error}");
    }

    #[test]
    fn connections_leave_half_of_the_files_to_the_log() {
        let bounds = |flags: &[(&'static str, &str)], files_max| {
            let mut plan = plan(flags).unwrap();
            plan.bound_connections(files_max);
            (plan.server.connections_max, plan.server.connections_per_address_max)
        };
        assert_eq!(bounds(&[], 1 << 20), (4096, 1024));
        assert_eq!(bounds(&[], 16_384), (4096, 1024));
        assert_eq!(bounds(&[], 4_096), (1024, 512));
        assert_eq!(bounds(&[], 1_500), (375, 188));
        assert_eq!(bounds(&[("http", "off")], 1_500), (750, 375));
        // Behind a proxy all come from one address.
        assert_eq!(bounds(&[("connections_per_address_max", "4096")], 1_500), (375, 375));
        assert_eq!(bounds(&[], 0), (1, 1));
    }

    #[test]
    fn the_default_settings_are_the_defaults_of_the_library() {
        let plan = plan(&[]).unwrap();
        assert_eq!(format!("{:?}", plan.engine), format!("{:?}", EngineOptions::default()));
        let access = Arc::default();
        let server = ServerOptions { access: Arc::clone(&access), ..plan.server };
        assert_eq!(format!("{server:?}"), format!("{:?}", ServerOptions { access, ..ServerOptions::default() }));
    }

    #[test]
    fn the_next_command_reaches_this_server_and_shows_no_secret() {
        let dir = tempfile::tempdir().unwrap();
        let token_file = dir.path().join("a token");
        std::fs::write(&token_file, "hidden-secret").unwrap();
        let path = token_file.to_str().unwrap();
        let next = |flags: &[(&'static str, &str)], port: u16| {
            let text = next_command(&plan(flags).unwrap(), SocketAddr::from(([127, 0, 0, 1], port)));
            assert!(!text.contains("hidden-secret"));
            text.split_once(" push ").unwrap().0.to_owned()
        };
        assert_eq!(next(&[], 6633), "fanlog");
        assert_eq!(next(&[], 7), "fanlog --server 127.0.0.1:7");
        assert_eq!(next(&[("token_file", path)], 6633), format!("fanlog --token-file '{path}'"));
        assert_eq!(next(&[("token", "hidden-secret")], 6633), "fanlog --token \"$TOKEN\"");
        assert_eq!(next(&[("token", "hidden-secret"), ("token_file", path)], 6633), "fanlog --token \"$TOKEN\"");
        assert_eq!(next(&[("ca", "/some/ca.pem")], 6633), "fanlog --ca /some/ca.pem");
        assert_eq!(shell_word("it's"), "'it'\\''s'");
    }

    #[test]
    fn the_ports_file_is_one_json_object() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ports");
        let [tcp, http] = ["127.0.0.1:7", "127.0.0.1:8"].map(|address| address.parse().unwrap());
        write_ports(&path, tcp, Some(http)).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"tcp\":\"127.0.0.1:7\",\"http\":\"127.0.0.1:8\"}\n");
        write_ports(&path, tcp, None).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"tcp\":\"127.0.0.1:7\"}\n");
        remove_stale(&path).unwrap();
        remove_stale(&path).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
