//! `fanlog config`: what the settings are and where they come from.

use anyhow::Result;
use clap::Subcommand;

use super::Context;
use super::serve::ServePlan;

/// Settings of this program.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show all settings, their origins and meanings
    Show,
    /// Check all settings without starting anything
    Check,
}

/// Runs the command.
pub fn run(command: &ConfigCommand, mut context: Context) -> Result<()> {
    match command {
        ConfigCommand::Show => context.output.list(&["key", "value", "origin", "meaning"], &context.config.rows()),
        ConfigCommand::Check => {
            ServePlan::of(&context.config)?;
            context.config.duration("request_timeout")?;
            context.output.object(&serde_json::json!({ "result": "ok" }))
        }
    }
}
