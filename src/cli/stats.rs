//! `fanlog stats` and `fanlog ping`.

use std::time::Duration;

use anyhow::Result;
use fanlog::model::ErrorCode;
use serde_json::json;

use super::{Context, view};

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct PingArguments {
    /// Round trips to make
    #[arg(short = 'n', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,
}

/// Shows the server's counters.
pub async fn stats(mut context: Context) -> Result<()> {
    let client = context.connect().await?;
    let mut shown = view::server_stats(&client.stats().await?);
    match client.losses(None).await {
        Ok(losses) => shown["total"]["messages_lost_damaged"] = losses.damaged.into(),
        // A server from before it was counted.
        Err(error) if error.code() == Some(ErrorCode::UnknownOperation) => {}
        Err(error) => return Err(error.into()),
    }
    context.output.object(&shown)
}

/// Measures round trips.
pub async fn ping(arguments: PingArguments, mut context: Context) -> Result<()> {
    let client = context.connect().await?;
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..arguments.count {
        times.push(client.ping().await?);
    }
    times.sort_unstable();
    let micros = |time: Option<&Duration>| time.map(|time| time.as_micros() as u64);
    context.output.object(&json!({
        "server": context.config.text("server"),
        "name": client.server().map(|server| server.server_name.clone()),
        "round_trips": times.len(),
        "min_us": micros(times.first()),
        "median_us": micros(times.get(times.len() / 2)),
        "max_us": micros(times.last()),
    }))
}
