//! `fanlog bench`: load for a server, from connections that cost little themselves, and numbers that can be compared.
//!
//! Every run proves what it measured: each message carries who pushed it, as which one, and a checksum; at the end all that was
//! answered for must have come out once, in order and unchanged, or the run fails.

mod check;
mod consumer;
mod drive;
mod link;
mod measure;
mod own_server;
mod payload;
mod plan;
mod process;
mod pusher;
mod reader;
mod report;
mod stock;

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;

use super::Context;
use consumer::{AckMode, Way};
use payload::Content;
use plan::Plan;

/// Measure a server, and check that it loses and changes nothing.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Push, each push answered as durably as the queue promises
    Push(BenchArguments),
    /// Push single messages, at a fixed rate or one after the other
    Latency(BenchArguments),
    /// Push a backlog, then read it in one group
    Pop(BenchArguments),
    /// Push a backlog, then read it in many groups at once
    Fanout(BenchArguments),
    /// Push and read at the same time; latency is from a message's sending to its delivery
    E2e(BenchArguments),
}

/// What a run does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Push,
    Latency,
    Pop,
    Fanout,
    E2e,
}

impl Kind {
    /// The name, as the command has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Latency => "latency",
            Self::Pop => "pop",
            Self::Fanout => "fanout",
            Self::E2e => "e2e",
        }
    }
}

/// How to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchArguments {
    /// The queue; made if it does not exist, and kept
    #[arg(long, default_value = "bench")]
    queue: String,
    /// Bytes of a payload, 64 at least
    #[arg(long, default_value_t = 1024, value_name = "N")]
    size: usize,
    /// Messages of a push [default: 100; latency: 1]
    #[arg(long, value_name = "N")]
    batch: Option<u32>,
    /// Connections that push, and those that read for each group [default: push 4, otherwise 1]
    #[arg(long, value_name = "N")]
    connections: Option<u16>,
    /// Messages to push after the warm-up, over all connections [default: 200000; latency: 10000]
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Push for so long instead (not for pop and fanout)
    #[arg(long, value_name = "TIME", conflicts_with = "count")]
    duration: Option<String>,
    /// Time before measuring begins, under the same load
    #[arg(long, value_name = "TIME", default_value = "0s")]
    warmup: String,
    /// Messages a second over all connections, however slow the answers; latency is from the time that a push was due
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Requests of a connection that wait for an answer at most [default: 4; single messages and reading: 1]
    #[arg(long, value_name = "N")]
    in_flight: Option<usize>,
    /// Partitions; each push goes to one, in turn
    #[arg(long, default_value_t = 1, value_name = "N")]
    partitions: u32,
    /// Groups that are there; pop reads the first, e2e and fanout all [default: fanout 16, pop and e2e 1, otherwise 0]
    #[arg(long, value_name = "N")]
    groups: Option<u32>,
    /// A filter of the groups, which take turns if there are several: over :type, :region, :amount, :customer and :bucket, which
    /// counts from 0000 to 9999, so that :bucket = "0042" takes one message in 10,000
    #[arg(long, value_name = "EXPR")]
    filter: Vec<String>,
    /// Give messages the attributes that filters look at even without a filter
    #[arg(long)]
    attributes: bool,
    /// The queue's durability: sync, os or interval:MS [default: as the queue has it]
    #[arg(long, value_name = "MODE")]
    durability: Option<String>,
    /// The queue's compression: none or zstd:LEVEL [default: as the queue has it]
    #[arg(long, value_name = "KIND")]
    compression: Option<String>,
    /// What payloads are
    #[arg(long, value_enum, default_value = "json")]
    payload: Content,
    /// Pack and compress on this side
    #[arg(long)]
    pack: bool,
    /// Leave batches as they are when reading, and check their headers; the messages are checked afterwards
    #[arg(long)]
    raw: bool,
    /// How messages come [default: e2e subscription, otherwise pop]
    #[arg(long, value_enum)]
    via: Option<Way>,
    /// What is acknowledged; with each, latency is that of the acknowledgements
    #[arg(long, value_enum, default_value = "last")]
    ack: AckMode,
    /// Bytes of an answer when reading
    #[arg(long, default_value_t = 1 << 20, value_name = "N")]
    pop_bytes: u32,
    /// Messages of an answer when reading
    #[arg(long, default_value_t = 1 << 20, value_name = "N")]
    pop_messages: u32,
    /// Partitions of an answer when reading, 1 to 64
    #[arg(long, default_value_t = 1, value_name = "N")]
    pop_partitions: u32,
    /// Threads that drive the connections of each side [default: push, pop and fanout as many as processors, otherwise 1]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Start a server for this run, with a directory of its own, and remove both afterwards
    #[arg(long)]
    serve: bool,
    /// Where that directory is made [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR", requires = "serve")]
    serve_in: Option<PathBuf>,
    /// Delete the queue afterwards
    #[arg(long)]
    delete: bool,
}

/// Measures.
pub async fn run(command: BenchCommand, context: Context) -> Result<u8> {
    let (kind, arguments) = match command {
        BenchCommand::Push(arguments) => (Kind::Push, arguments),
        BenchCommand::Latency(arguments) => (Kind::Latency, arguments),
        BenchCommand::Pop(arguments) => (Kind::Pop, arguments),
        BenchCommand::Fanout(arguments) => (Kind::Fanout, arguments),
        BenchCommand::E2e(arguments) => (Kind::E2e, arguments),
    };
    measure::run(Plan::of(kind, arguments)?, context).await
}
