//! `fanlog transaction`: pushes and acknowledgements, all or none.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use fanlog::client::Client;
use fanlog::model::{AckItem, AckRequest, AckTarget, PushItem, PushRequest, TransactionRequest};
use fanlog::record::{Attributes, DEFAULT_PARTITION, Message};
use serde::Deserialize;
use serde_json::{Value, json};

use super::ack::{Verdict, show_ack};
use super::{Context, view};

/// A file of pushes and acknowledgements.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct TransactionArguments {
    /// A JSON object with push, ack and required_leases; - is standard input
    file: PathBuf,
}

const EXAMPLE: &str = "The object: {\"push\": [{\"queue\": Q, \"partition\": P, \"payload\": TEXT, \"transaction_id\": ID, \
    \"attributes\": {}}],\n\"ack\": [{\"queue\": Q, \"partition\": P, \"group\": G, \"lease_id\": L, \"offsets\": [N], \
    \"verdict\": \"completed\", \"reason\": TEXT}],\n\"required_leases\": [L]}. The verdicts are completed, failed, retry and reject.";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Transaction {
    #[serde(default)]
    push: Vec<Push>,
    #[serde(default)]
    ack: Vec<Ack>,
    #[serde(default)]
    required_leases: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Push {
    queue: String,
    #[serde(default = "default_partition")]
    partition: String,
    payload: String,
    transaction_id: Option<String>,
    #[serde(default)]
    attributes: Attributes,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ack {
    queue: String,
    #[serde(default = "default_partition")]
    partition: String,
    group: Option<String>,
    #[serde(default)]
    lease_id: String,
    #[serde(default)]
    offsets: Vec<u64>,
    #[serde(default)]
    transaction_ids: Vec<String>,
    #[serde(default = "completed")]
    verdict: Verdict,
    #[serde(default)]
    reason: String,
}

fn default_partition() -> String {
    DEFAULT_PARTITION.to_owned()
}

fn completed() -> Verdict {
    Verdict::Completed
}

/// Runs the command.
pub async fn run(arguments: TransactionArguments, mut context: Context) -> Result<()> {
    let text = read(&arguments.file)?;
    let transaction: Transaction =
        serde_json::from_str(&text).with_context(|| format!("{} is no transaction", arguments.file.display()))?;
    let client = context.connect().await?;
    let push_partitions: Vec<String> = transaction.push.iter().map(|push| push.partition.clone()).collect();
    let ack_partitions: Vec<String> = transaction.ack.iter().map(|ack| ack.partition.clone()).collect();
    let request = transaction.resolve(&client).await?;
    let reply = client.transact(&request).await?;
    let pushes = push_partitions.iter().zip(&reply.pushes).map(|(partition, reply)| view::push_reply(partition, reply));
    let acks = ack_partitions.iter().zip(&reply.acks).map(|(partition, reply)| show_ack(partition, reply));
    context.output.object(&json!({ "push": pushes.collect::<Vec<Value>>(), "ack": acks.collect::<Vec<Value>>() }))
}

fn read(path: &Path) -> Result<String> {
    let mut text = String::new();
    if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

impl Transaction {
    /// What the protocol takes; partitions of acknowledgements go by number there.
    async fn resolve(self, client: &Client) -> Result<TransactionRequest> {
        let mut request = TransactionRequest { required_leases: self.required_leases, ..TransactionRequest::default() };
        for push in self.push {
            let Push { queue, partition, payload, transaction_id, attributes } = push;
            let message = Message { transaction_id, attributes, payload: payload.into() };
            request.pushes.push(PushRequest { queue, partition, items: PushItem::Messages(vec![message]), producer: None });
        }
        for ack in self.ack {
            let partition_id = client.partition(&ack.queue, &ack.partition).await?.id;
            let offsets = ack.offsets.into_iter().map(AckTarget::Offset);
            let targets = offsets.chain(ack.transaction_ids.into_iter().map(AckTarget::TransactionId));
            let (verb, reason) = (ack.verdict.into(), ack.reason);
            let item = |target| AckItem { target, verb, reason: reason.clone(), delay_ms: 0 };
            request.acks.push(AckRequest {
                queue: ack.queue,
                partition_id,
                group: ack.group,
                lease_id: ack.lease_id,
                items: targets.map(item).collect(),
            });
        }
        Ok(request)
    }
}
