//! The command line: arguments become checked options once, commands speak to the server through the client, results go to
//! standard output and everything else to standard error.

mod config;
mod exit;
mod filter;
mod nearest;
mod output;
mod settings;
mod time;
mod view;

mod ack;
mod bench;
mod config_command;
mod dead_letter;
mod explain;
mod gateway;
mod group;
mod message;
mod offline;
mod pop;
mod push;
mod queue;
mod serve;
mod stats;
mod tail;
mod token;
mod trace;
mod transaction;

mod scan;
mod source;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use fanlog::client::Client;

use config::{Config, Flags};
use exit::{EXIT_USER, code_of, is_broken_pipe};
use output::{Format, Output};

/// A single-node log engine for fan-out: one immutable log for each queue, any number of filtered consumer groups over it.
#[derive(Debug, Parser)]
#[command(name = "fanlog", version, max_term_width = 100, after_help = EXIT_CODES)]
struct Arguments {
    #[command(flatten)]
    global: GlobalArguments,
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 a mistake of the user, 2 the server failed or cannot be reached.\n\
    Settings come from the config file, the environment (FANLOG_...) and flags; a later one wins: see `fanlog config show`.\n\
    Times: RFC 3339, a distance such as `15m ago` or `2h`, or milliseconds since 1970.";

/// Flags that every command takes.
#[derive(Debug, clap::Args)]
struct GlobalArguments {
    /// The server to talk to [default: 127.0.0.1:6633]
    #[arg(long, global = true, value_name = "ADDR")]
    server: Option<String>,
    /// The secret that the server asks for
    #[arg(long, global = true, value_name = "T")]
    token: Option<String>,
    /// A file with that secret
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<String>,
    /// The certificates that a server at fanlog+tls://... is trusted by; without it those of the system
    #[arg(long, global = true, value_name = "FILE")]
    ca: Option<String>,
    /// The certificate of this client, for a server that asks for one
    #[arg(long, global = true, value_name = "FILE")]
    client_cert: Option<String>,
    /// The key of that certificate
    #[arg(long, global = true, value_name = "FILE")]
    client_key: Option<String>,
    /// The config file
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How results are written; without it a table on a terminal and JSON in a pipe
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT")]
    output: Option<Format>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start the server
    Serve(serve::ServeArguments),
    /// Store messages in a queue
    Push(push::PushArguments),
    /// Take messages for a group
    Pop(pop::PopArguments),
    /// Say what became of messages that were taken with `pop --ack none`
    Ack(ack::AckArguments),
    /// Leases of messages that were taken with `pop --ack none`
    #[command(subcommand)]
    Lease(ack::LeaseCommand),
    /// Push and acknowledge, all or nothing
    Transaction(transaction::TransactionArguments),
    /// Watch messages come; moves no cursor
    Tail(tail::TailArguments),
    /// Queues and their settings
    #[command(subcommand)]
    Queue(queue::QueueCommand),
    /// Groups: cursors, filters, seeking
    #[command(subcommand)]
    Group(group::GroupCommand),
    /// Dead letters: messages that a group gave up
    #[command(subcommand)]
    Dlq(dead_letter::DeadLetterCommand),
    /// Single messages
    #[command(subcommand)]
    Message(message::MessageCommand),
    /// Remarks on a message's way
    #[command(subcommand)]
    Trace(trace::TraceCommand),
    /// Try filters
    #[command(subcommand)]
    Filter(explain::FilterCommand),
    /// Tokens of a data directory: who may do what
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Look into the files of a data directory, with or without its server
    Inspect(offline::InspectArguments),
    /// Check all files of a data directory, with or without its server; exit code 2 if something is lost
    Verify(offline::VerifyArguments),
    /// Counters of the server
    Stats,
    /// Measure the way to the server and back
    Ping(stats::PingArguments),
    /// Measure a server, and check that it loses and changes nothing
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Settings of this program
    #[command(subcommand)]
    Config(config_command::ConfigCommand),
    /// Print completions for a shell
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

/// What a command works with.
struct Context {
    config: Config,
    output: Output,
}

impl Context {
    /// A connection to the server.
    async fn connect(&self) -> Result<Client> {
        let builder = Client::builder(self.config.text("server"))
            .name("fanlog-cli")
            .request_timeout(self.config.duration("request_timeout")?);
        let builder = match self.config.token()? {
            Some(token) => builder.token(token),
            None => builder,
        };
        let builder = match self.config.optional("ca") {
            Some(path) => builder.ca(path),
            None => builder,
        };
        let builder = match (self.config.optional("client_cert"), self.config.optional("client_key")) {
            (Some(certificate), Some(key)) => builder.identity(certificate, key),
            (None, None) => builder,
            _ => anyhow::bail!("client_cert and client_key belong together"),
        };
        Ok(builder.connect().await?)
    }
}

/// Runs the program and gives its exit code.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(refusal) => {
            // Help and version are asked for and no failure; a reader that goes away is none either.
            let _ = refusal.print();
            return ExitCode::from(if refusal.use_stderr() { EXIT_USER } else { 0 });
        }
    };
    match run(arguments) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            if !is_broken_pipe(&error) {
                eprintln!("error: {error:#}");
            }
            ExitCode::from(code_of(&error))
        }
    }
}

fn run(arguments: Arguments) -> Result<u8> {
    let flags = arguments.flags();
    let environment = std::env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?)));
    let config = Config::load(arguments.global.config.as_deref(), environment, &flags)?;
    let format = match config.optional("output") {
        Some(text) => {
            Format::from_str(text, true).map_err(|_| anyhow::anyhow!("output {text:?} is none of table, json and ndjson"))?
        }
        None => Format::fitting(),
    };
    let context = Context { config, output: Output::stdout(format) };
    if let Command::Completions { shell } = arguments.command {
        return completions(shell, context);
    }
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(command(arguments.command, context))
}

async fn command(command: Command, context: Context) -> Result<u8> {
    match command {
        Command::Serve(_) => serve::run(context).await?,
        Command::Push(arguments) => push::run(arguments, context).await?,
        Command::Pop(arguments) => pop::run(arguments, context).await?,
        Command::Ack(arguments) => ack::run(arguments, context).await?,
        Command::Lease(command) => ack::lease(command, context).await?,
        Command::Transaction(arguments) => transaction::run(arguments, context).await?,
        Command::Tail(arguments) => tail::run(arguments, context).await?,
        Command::Queue(command) => queue::run(command, context).await?,
        Command::Group(command) => group::run(command, context).await?,
        Command::Dlq(command) => dead_letter::run(command, context).await?,
        Command::Message(command) => message::run(command, context).await?,
        Command::Trace(command) => trace::run(command, context).await?,
        Command::Filter(command) => return explain::run(command, context).await,
        Command::Token(command) => token::run(command, context)?,
        Command::Inspect(arguments) => offline::inspect(arguments, context)?,
        Command::Verify(arguments) => return offline::verify(arguments, context),
        Command::Stats => stats::stats(context).await?,
        Command::Ping(arguments) => stats::ping(arguments, context).await?,
        Command::Bench(command) => return bench::run(command, context).await,
        Command::Config(command) => config_command::run(&command, context)?,
        Command::Completions { shell } => return completions(shell, context),
    }
    Ok(0)
}

impl Arguments {
    /// The flags that are settings too.
    fn flags(&self) -> Flags {
        let global = &self.global;
        let output = global.output.and_then(|format| format.to_possible_value()).map(|value| value.get_name().to_owned());
        let mut flags: Flags = Vec::new();
        let mut add = |name: &'static str, value: &Option<String>| flags.extend(value.clone().map(|value| (name, value)));
        add("server", &global.server);
        add("token", &global.token);
        add("token_file", &global.token_file);
        add("ca", &global.ca);
        add("client_cert", &global.client_cert);
        add("client_key", &global.client_key);
        add("output", &output);
        if let Command::Serve(serve) = &self.command {
            flags.extend(serve.flags());
        }
        flags
    }
}

fn completions(shell: clap_complete::Shell, mut context: Context) -> Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "fanlog", &mut script);
    context.output.text(&String::from_utf8_lossy(&script))?;
    Ok(0)
}

fn text(value: OsString) -> Option<String> {
    value.into_string().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }
}
