//! Settings of the program: defaults < config file < environment < flags. Each value knows where it comes from; a key that is not
//! known is refused, with the nearest one named.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};
use fanlog::model::Start;

use super::nearest::suggestion;
use super::time::{parse_duration, parse_start};

/// Where environment variables of ours start.
const ENVIRONMENT_PREFIX: &str = "FANLOG_";
/// The variable that names the config file; it is no key of the file.
const CONFIG_VARIABLE: &str = "FANLOG_CONFIG";
/// What some container platforms set for a service that is called like us.
const FOREIGN_PREFIXES: [&str; 2] = ["FANLOG_SERVICE_", "FANLOG_PORT"];

/// A key, its default and its meaning.
struct Key {
    name: &'static str,
    default: &'static str,
    meaning: &'static str,
}

const fn key(name: &'static str, default: &'static str, meaning: &'static str) -> Key {
    Key { name, default, meaning }
}

const KEYS: &[Key] = &[
    key("server", "127.0.0.1:6633", "server that commands talk to"),
    key("token", "", "secret that the server asks for, and for a server that of an admin"),
    key("token_file", "", "file with that secret, read if there is no token"),
    key("ca", "", "file with the certificates that a server with TLS is trusted by; without it those of the system"),
    key("client_cert", "", "file with the certificate of this client, for a server that asks for one"),
    key("client_key", "", "file with the key of that certificate"),
    key("output", "", "table, json or ndjson; without it a table on a terminal and json in a pipe"),
    key("request_timeout", "30s", "how long commands wait for an answer"),
    key("data", "./fanlog-data", "data directory"),
    key("listen", "127.0.0.1:6633", "address of the binary protocol; port 0 is any"),
    key("http", "127.0.0.1:6632", "address of the HTTP gateway; port 0 is any, off is none"),
    key("jwt_algorithm", "", "how JSON web tokens are signed: HS256, RS256 or EdDSA; without it they are not taken"),
    key("jwt_key_file", "", "file with their secret (HS256) or public key (PEM)"),
    key("jwt_issuer", "", "what their iss must be"),
    key("jwt_audience", "", "what their aud must be or contain"),
    key("jwt_role_claim", "role", "their claim with the role"),
    key("jwt_prefixes_claim", "queue_prefixes", "their claim with the list of prefixes of queue names"),
    key("tls_cert", "", "file with the certificate of the server and those above it: both ports then speak TLS only"),
    key("tls_key", "", "file with the key of that certificate"),
    key("tls_client_ca", "", "file with the certificates that those of clients must come from; without it none is asked for"),
    key("encryption_key", "", "64 hexadecimal digits: the key of queues with encryptionEnabled, over HTTP"),
    key("ports_file", "", "file that gets the ports when everything is ready"),
    key("insecure_bind", "false", "listen beyond loopback without a token"),
    key("default_start", "new", "where a named group starts: new, beginning, an offset or a time"),
    key("committers", "2", "threads that commit"),
    key("pending_bytes_max", "268435456", "bytes that may wait for a commit"),
    key("message_bytes_max", "16777216", "largest message"),
    key("push_bytes_max", "33554432", "largest push"),
    key("push_messages_max", "1048576", "messages of a push at most"),
    key("queues_max", "10000", "queues at most"),
    key("groups_max", "1000", "groups of a queue at most"),
    key("partition_cleanup_days", "30", "days that an empty partition must be idle before it goes"),
    key("retention_interval", "5s", "time between retention sweeps"),
    key("connections_max", "4096", "connections to each port at most; fewer if the limit of open files is low"),
    key(
        "connections_per_address_max",
        "1024",
        "the same from one address; raise it behind a proxy, whose connections all come from one",
    ),
    key("handshakes_max", "1024", "connections at most that have not said hello; a quarter of them from one address"),
    key("frame_bytes_max", "67108864", "largest frame"),
    key("in_flight_bytes_max", "268435456", "bytes of requests in flight, over all connections"),
    key("out_bytes_max", "536870912", "bytes of replies that wait for clients, over all connections"),
    key("waiting_max", "65536", "waiting pops and subscriptions, over all connections"),
    key("drain_timeout", "10s", "how long a stop waits for connections to finish"),
    key("log", "info", "what is logged: error, warn, info, debug, or a filter by module"),
];

/// Keys whose values are never shown.
const SECRETS: [&str; 2] = ["token", "encryption_key"];

/// Where a value comes from; a later one wins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// The config file.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
    /// A flag.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => formatter.write_str("default"),
            Self::File(path) => write!(formatter, "{}", path.display()),
            Self::Environment(name) => formatter.write_str(name),
            Self::Flag(name) => write!(formatter, "--{name}"),
        }
    }
}

/// All settings.
#[derive(Debug)]
pub struct Config {
    values: HashMap<&'static str, (String, Origin)>,
}

/// Flags that were given, by key.
pub type Flags = Vec<(&'static str, String)>;

impl Config {
    /// Puts the sources together. `file` is what a flag says; without it the environment may name one.
    pub fn load(file: Option<&Path>, environment: impl Iterator<Item = (String, String)>, flags: &Flags) -> Result<Self> {
        let environment: Vec<(String, String)> = environment.filter(|(name, _)| name.starts_with(ENVIRONMENT_PREFIX)).collect();
        let of_environment = environment.iter().find(|(name, _)| name == CONFIG_VARIABLE).map(|(_, path)| PathBuf::from(path));
        let mut config = Self { values: KEYS.iter().map(|key| (key.name, (key.default.to_owned(), Origin::Default))).collect() };
        if let Some(path) = file.map(Path::to_owned).or(of_environment) {
            let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read config file {}", path.display()))?;
            config.add_file(&path, &text)?;
        }
        for (name, value) in environment {
            config.add_variable(name, value)?;
        }
        for (name, value) in flags {
            config.set(name, value.clone(), Origin::Flag(name.replace('_', "-")));
        }
        Ok(config)
    }

    fn add_file(&mut self, path: &Path, text: &str) -> Result<()> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            // Its own text shows the line, which may be that of the token.
            let end = error.span().map_or(0, |span| span.start).min(text.len());
            let line = 1 + text.as_bytes()[..end].iter().filter(|&&byte| byte == b'\n').count();
            anyhow!("config file {} does not parse: line {line}: {}", path.display(), error.message())
        })?;
        for (name, value) in table {
            let Some(key) = find(&name) else {
                bail!("config file {} has an unknown key {name:?}{}", path.display(), suggestion(&name, names()));
            };
            let value = match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(_) | toml::Value::Boolean(_) => value.to_string(),
                _ => bail!("config file {}: key {name:?} takes a text, a number or a boolean", path.display()),
            };
            self.set(key.name, value, Origin::File(path.to_owned()));
        }
        Ok(())
    }

    fn add_variable(&mut self, variable: String, value: String) -> Result<()> {
        if variable == CONFIG_VARIABLE || FOREIGN_PREFIXES.iter().any(|prefix| is_foreign(&variable, prefix)) {
            return Ok(());
        }
        let name = variable.trim_start_matches(ENVIRONMENT_PREFIX).to_lowercase();
        let Some(key) = find(&name) else {
            let variables: Vec<String> = names().map(|name| format!("{ENVIRONMENT_PREFIX}{}", name.to_uppercase())).collect();
            bail!(
                "environment variable {variable:?} is no setting{}",
                suggestion(&variable, variables.iter().map(String::as_str).chain([CONFIG_VARIABLE]))
            );
        };
        self.set(key.name, value, Origin::Environment(variable));
        Ok(())
    }

    fn set(&mut self, name: &'static str, value: String, origin: Origin) {
        self.values.insert(name, (value, origin));
    }

    /// A value as text; empty if it is not set.
    pub fn text(&self, name: &str) -> &str {
        self.values.get(name).map_or("", |(value, _)| value)
    }

    /// A value as text, if it is set.
    pub fn optional(&self, name: &str) -> Option<&str> {
        Some(self.text(name)).filter(|text| !text.is_empty())
    }

    /// A value of a type; the error says where the wrong one comes from.
    pub fn get<T: FromStr>(&self, name: &str) -> Result<T>
    where
        T::Err: std::error::Error + Send + Sync + 'static,
    {
        self.text(name).parse().with_context(|| self.refused(name))
    }

    /// A duration.
    pub fn duration(&self, name: &str) -> Result<std::time::Duration> {
        parse_duration(self.text(name)).with_context(|| self.refused(name))
    }

    /// A start of groups.
    pub fn start(&self, name: &str, now_us: u64) -> Result<Start> {
        parse_start(self.text(name), now_us).with_context(|| self.refused(name))
    }

    /// The token, from itself or its file.
    pub fn token(&self) -> Result<Option<String>> {
        if let Some(token) = self.optional("token") {
            return Ok(Some(token.to_owned()));
        }
        let Some(path) = self.optional("token_file") else { return Ok(None) };
        let token = std::fs::read_to_string(path).with_context(|| format!("cannot read token file {path:?}"))?;
        match token.trim() {
            "" => bail!("token file {path:?} is empty"),
            token => Ok(Some(token.to_owned())),
        }
    }

    /// What is said of a value that makes no sense.
    pub fn refused(&self, name: &str) -> String {
        let origin = self.values.get(name).map_or(&Origin::Default, |(_, origin)| origin);
        if SECRETS.contains(&name) {
            return format!("setting {name:?} (from {origin}) is not valid");
        }
        format!("setting {name:?} = {:?} (from {origin}) is not valid", self.text(name))
    }

    /// All settings in order: key, value (secrets are not shown), origin, meaning.
    pub fn rows(&self) -> Vec<ConfigRow> {
        let row = |key: &Key| {
            let (value, origin) = self.values.get(key.name).cloned().unwrap_or((String::new(), Origin::Default));
            let is_secret = SECRETS.contains(&key.name) && !value.is_empty();
            let value = if is_secret { "(secret)".to_owned() } else { value };
            ConfigRow { key: key.name, value, origin: origin.to_string(), meaning: key.meaning }
        };
        KEYS.iter().map(row).collect()
    }
}

/// A setting as it is shown.
#[derive(Debug, serde::Serialize)]
pub struct ConfigRow {
    key: &'static str,
    value: String,
    origin: String,
    meaning: &'static str,
}

fn names() -> impl Iterator<Item = &'static str> {
    KEYS.iter().map(|key| key.name)
}

fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// `FANLOG_PORT` and `FANLOG_PORT_6633_TCP`, and not `FANLOG_PORTS_FILE`.
fn is_foreign(variable: &str, prefix: &str) -> bool {
    variable.strip_prefix(prefix).is_some_and(|rest| prefix.ends_with('_') || rest.is_empty() || rest.starts_with('_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(file: Option<&str>, environment: &[(&str, &str)], flags: &[(&'static str, &str)]) -> Result<Config> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fanlog.toml");
        if let Some(text) = file {
            std::fs::write(&path, text).unwrap();
        }
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let flags = flags.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Config::load(file.map(|_| path.as_path()), environment, &flags)
    }

    #[test]
    fn a_later_source_wins_and_each_value_knows_its_own() {
        let file = "listen = \"127.0.0.1:1\"\nconnections_max = 7\ninsecure_bind = true\ndata = \"/from/file\"";
        let config = load(Some(file), &[("FANLOG_LISTEN", "127.0.0.1:2"), ("PATH", "/bin")], &[("data", "/from/flag")]).unwrap();
        assert_eq!(config.text("listen"), "127.0.0.1:2");
        assert_eq!(config.get::<usize>("connections_max").unwrap(), 7);
        assert!(config.get::<bool>("insecure_bind").unwrap());
        let origin = |name: &str| config.rows().into_iter().find(|row| row.key == name).unwrap().origin;
        assert_eq!(
            (origin("listen").as_str(), origin("data").as_str(), origin("http").as_str()),
            ("FANLOG_LISTEN", "--data", "default")
        );
        assert!(origin("connections_max").ends_with("fanlog.toml"));
    }

    #[test]
    fn unknown_keys_are_refused_with_the_nearest() {
        let refused = |result: Result<Config>| format!("{:#}", result.unwrap_err());
        assert!(refused(load(Some("listn = \"x\""), &[], &[])).ends_with("unknown key \"listn\"; did you mean \"listen\"?"));
        assert!(refused(load(Some("listen = [1]"), &[], &[])).contains("takes a text, a number or a boolean"));
        assert!(refused(load(Some("listen"), &[], &[])).contains("does not parse"));
        assert_eq!(
            refused(load(None, &[("FANLOG_LISTN", "x")], &[])),
            "environment variable \"FANLOG_LISTN\" is no setting; did you mean \"FANLOG_LISTEN\"?"
        );
        let foreign = [("FANLOG_SERVICE_HOST", "x"), ("FANLOG_PORT", "x"), ("FANLOG_PORT_6633_TCP", "x")];
        assert!(load(None, &foreign, &[]).is_ok());
        assert!(
            refused(load(None, &[("FANLOG_CONFIG", "/nowhere/at/all")], &[])).starts_with("cannot read config file /nowhere")
        );
    }

    #[test]
    fn a_file_that_does_not_parse_is_not_shown() {
        for file in
            ["listen = \"x\"\ntoken = \"hunter2", "listen = \"x\"\ntoken = hunter2", "listen = \"x\"\ntoken = \"\\hunter2\""]
        {
            let error = format!("{:?}", load(Some(file), &[], &[]).unwrap_err());
            assert!(error.contains("does not parse: line 2: ") && !error.contains("hunter"), "{error}");
        }
    }

    #[test]
    fn a_wrong_value_names_its_origin() {
        let config = load(None, &[("FANLOG_CONNECTIONS_MAX", "many")], &[]).unwrap();
        let error = config.get::<usize>("connections_max").unwrap_err();
        assert_eq!(error.to_string(), "setting \"connections_max\" = \"many\" (from FANLOG_CONNECTIONS_MAX) is not valid");
    }

    #[test]
    fn tokens_are_read_and_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "secret\n").unwrap();
        let path = path.to_str().unwrap();
        assert_eq!(load(None, &[("FANLOG_TOKEN_FILE", path)], &[]).unwrap().token().unwrap(), Some("secret".to_owned()));
        let config = load(None, &[("FANLOG_TOKEN_FILE", path), ("FANLOG_TOKEN", "other")], &[]).unwrap();
        assert_eq!(config.token().unwrap(), Some("other".to_owned()));
        assert!(config.rows().iter().all(|row| row.value != "other"));
        std::fs::write(path, " \n").unwrap();
        assert!(load(None, &[("FANLOG_TOKEN_FILE", path)], &[]).unwrap().token().is_err());
    }
}
