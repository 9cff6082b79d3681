//! `POST /ack` and `/ack/batch`: always 200; each item says whether it took effect.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::model::{self, AckItem, AckOutcome, AckReply, AckRequest, AckTarget, AckVerb, ErrorCode, Now};
use crate::record::PartitionId;

use super::body::Raw;
use super::error::{Result, code_name};
use super::json::Text;
use super::{Gateway, group_name, json};

/// An acknowledgement as clients write it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Acknowledgement<'a> {
    #[serde(default, borrow)]
    pub(super) transaction_id: Option<Text<'a>>,
    /// In place of the transaction id: cheaper, since nothing is looked up.
    #[serde(default)]
    pub(super) offset: Option<u64>,
    #[serde(default, borrow)]
    pub(super) partition_id: Option<Text<'a>>,
    #[serde(default, borrow)]
    pub(super) status: Option<Text<'a>>,
    #[serde(default, borrow)]
    pub(super) error: Option<Text<'a>>,
    #[serde(default, borrow)]
    pub(super) consumer_group: Option<Text<'a>>,
    #[serde(default, borrow)]
    pub(super) lease_id: Option<Text<'a>>,
    /// With `retry`: seconds before the message is handed out again.
    #[serde(default)]
    pub(super) delay_seconds: Option<f64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Batch<'a> {
    #[serde(borrow)]
    acknowledgments: Vec<Acknowledgement<'a>>,
    #[serde(default, borrow)]
    consumer_group: Option<Text<'a>>,
}

/// What became of one acknowledgement.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Verdict {
    pub(super) index: usize,
    pub(super) transaction_id: String,
    pub(super) success: bool,
    pub(super) error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<String>,
    pub(super) lease_released: bool,
    pub(super) dlq: bool,
    pub(super) noop: bool,
}

impl Verdict {
    pub(super) fn refused(index: usize, transaction_id: &str, error: &model::Error) -> Self {
        Self {
            index,
            transaction_id: transaction_id.to_owned(),
            success: false,
            error: Some(wording(error)),
            code: Some(code_name(error.code)),
            lease_released: false,
            dlq: false,
            noop: false,
        }
    }

    pub(super) fn of(index: usize, transaction_id: &str, reply: &AckReply, outcome: Option<&AckOutcome>) -> Self {
        let Some(outcome) = outcome else {
            let error = model::Error::new(ErrorCode::Internal, "the acknowledgement has no outcome");
            return Self::refused(index, transaction_id, &error);
        };
        let refused = outcome.refused.as_ref();
        Self {
            index,
            transaction_id: transaction_id.to_owned(),
            success: refused.is_none(),
            error: refused.map(|error| if outcome.is_noop { already_committed(error) } else { wording(error) }),
            code: refused.map(|error| code_name(error.code)),
            lease_released: reply.is_lease_released,
            dlq: outcome.is_dead_letter,
            noop: outcome.is_noop,
        }
    }
}

/// The engine's text behind the words that Queen's clients look for.
pub(super) fn wording(error: &model::Error) -> String {
    let words = match error.code {
        ErrorCode::LeaseLost => "invalid or expired lease",
        ErrorCode::UnknownMessage => "unresolvable transaction id",
        ErrorCode::UnknownGroup => "consumer not found",
        _ => return error.text.clone(),
    };
    format!("{words}: {}", error.text)
}

fn already_committed(error: &model::Error) -> String {
    format!("already committed: {}", error.text)
}

/// The items of one partition, group and lease, and where their verdicts belong.
pub(super) struct Group {
    pub(super) request: AckRequest,
    /// Index and transaction id of each item.
    pub(super) rows: Vec<(usize, String)>,
    /// The partition's id as the client has it.
    partition_id: String,
}

impl Group {
    fn is_for(&self, (partition_id, group, lease_id): (&str, Option<&str>, &str)) -> bool {
        self.partition_id == partition_id && self.request.group.as_deref() == group && self.request.lease_id == lease_id
    }
}

/// Acknowledgements sorted into one request for each partition, group and lease.
#[derive(Default)]
pub(super) struct Grouping {
    pub(super) groups: Vec<Group>,
    /// Those that name no partition of ours.
    pub(super) refused: Vec<Verdict>,
    places: HashMap<(String, Option<String>, String), usize>,
}

impl Grouping {
    pub(super) fn add(&mut self, gateway: &Gateway, index: usize, ack: &Acknowledgement<'_>) {
        let transaction_id = ack.transaction_id.as_deref().unwrap_or_default();
        let target = match (ack.offset, transaction_id) {
            (Some(offset), _) => AckTarget::Offset(offset),
            (None, "") => return self.refuse(index, "", ErrorCode::BadRequest, "transactionId is missing"),
            (None, id) => AckTarget::TransactionId(id.to_owned()),
        };
        let Some(partition_id) = ack.partition_id.as_deref().filter(|id| !id.is_empty()) else {
            return self.refuse(index, transaction_id, ErrorCode::BadRequest, "partitionId is missing");
        };
        let group = group_name(ack.consumer_group.as_deref());
        let key = (partition_id, group, ack.lease_id.as_deref().unwrap_or_default());
        let at = match self.find(key) {
            Some(at) => at,
            None => {
                let Some((queue, partition)) = gateway.place(partition_id) else {
                    let text = format!("no partition has the id {partition_id}");
                    return self.refuse(index, transaction_id, ErrorCode::UnknownMessage, &text);
                };
                self.begin(key, queue, partition)
            }
        };
        let Some(group) = self.groups.get_mut(at) else { return };
        group.rows.push((index, transaction_id.to_owned()));
        group.request.items.push(AckItem {
            target,
            verb: verb(ack.status.as_deref()),
            reason: ack.error.as_deref().unwrap_or_default().to_owned(),
            delay_ms: ack.delay_seconds.filter(|seconds| *seconds > 0.0).map_or(0, |seconds| (seconds * 1_000.0) as u64),
        });
    }

    /// The group that takes an acknowledgement. Most requests are about one claim: the last group is looked at before hashing.
    fn find(&self, key: (&str, Option<&str>, &str)) -> Option<usize> {
        match self.groups.last() {
            None => None,
            Some(last) if last.is_for(key) => Some(self.groups.len() - 1),
            Some(_) => self.places.get(&owned(key)).copied(),
        }
    }

    fn begin(&mut self, key: (&str, Option<&str>, &str), queue: String, partition: PartitionId) -> usize {
        let (partition_id, group, lease_id) = owned(key);
        let at = self.groups.len();
        self.places.insert(owned(key), at);
        let request = AckRequest { queue, partition_id: partition, group, lease_id, items: Vec::new() };
        self.groups.push(Group { request, rows: Vec::new(), partition_id });
        at
    }

    fn refuse(&mut self, index: usize, transaction_id: &str, code: ErrorCode, text: &str) {
        self.refused.push(Verdict::refused(index, transaction_id, &model::Error::new(code, text)));
    }
}

fn owned((partition_id, group, lease_id): (&str, Option<&str>, &str)) -> (String, Option<String>, String) {
    (partition_id.to_owned(), group.map(str::to_owned), lease_id.to_owned())
}

/// Queen's words for what is said of a message.
fn verb(status: Option<&str>) -> AckVerb {
    match status {
        None | Some("completed" | "success" | "acked" | "ok") => AckVerb::Completed,
        Some("retry") => AckVerb::Retry,
        Some("dlq") => AckVerb::Reject,
        Some(_) => AckVerb::Failed,
    }
}

/// `POST /api/v1/ack`
pub(super) async fn one(State(gateway): State<Arc<Gateway>>, body: Raw) -> Result<Response> {
    let ack: Acknowledgement<'_> = json::parse(&body.bytes)?;
    acknowledge(&gateway, &[ack]).await
}

/// `POST /api/v1/ack/batch`
pub(super) async fn batch(State(gateway): State<Arc<Gateway>>, body: Raw) -> Result<Response> {
    let mut batch: Batch<'_> = json::parse(&body.bytes)?;
    for ack in &mut batch.acknowledgments {
        ack.consumer_group = ack.consumer_group.take().or_else(|| batch.consumer_group.clone());
    }
    acknowledge(&gateway, &batch.acknowledgments).await
}

async fn acknowledge(gateway: &Arc<Gateway>, acks: &[Acknowledgement<'_>]) -> Result<Response> {
    let mut grouping = Grouping::default();
    for (index, ack) in acks.iter().enumerate() {
        grouping.add(gateway, index, ack);
    }
    let now = Now::read();
    let mut pending = Vec::new();
    for Group { request, rows, .. } in grouping.groups {
        let (answer, answered) = oneshot::channel();
        // The client may be gone by then; the acknowledgement counts all the same.
        gateway.engine.submit_ack(request, now, Box::new(move |reply| drop(answer.send(reply))));
        pending.push((rows, answered));
    }
    let mut verdicts = grouping.refused;
    for (rows, answered) in pending {
        let answer = answered.await.unwrap_or_else(|_| {
            Err(model::Error::new(ErrorCode::Internal, "the acknowledgement was given up inside the server"))
        });
        verdicts.extend(rows.iter().enumerate().map(|(position, (index, id))| match &answer {
            Ok(reply) => Verdict::of(*index, id, reply, reply.outcomes.get(position)),
            Err(error) => Verdict::refused(*index, id, error),
        }));
    }
    verdicts.sort_unstable_by_key(|verdict| verdict.index);
    gateway.metrics.acked(&verdicts);
    Ok(json::ok(&verdicts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Promise;

    #[test]
    fn every_word_of_queens_has_its_verb() {
        for word in [None, Some("completed"), Some("success"), Some("acked"), Some("ok")] {
            assert_eq!(verb(word), AckVerb::Completed);
        }
        assert_eq!(verb(Some("retry")), AckVerb::Retry);
        assert_eq!(verb(Some("dlq")), AckVerb::Reject);
        for word in ["failed", "", "COMPLETED", "whatever"] {
            assert_eq!(verb(Some(word)), AckVerb::Failed);
        }
    }

    #[test]
    fn a_verdict_has_queens_shape() {
        let reply = AckReply { promise: Promise::Durable, next: 3, is_lease_released: true, outcomes: Vec::new() };
        let done = AckOutcome { refused: None, is_noop: false, is_dead_letter: true };
        let verdict = Verdict::of(0, "t", &reply, Some(&done));
        assert_eq!(
            serde_json::to_string(&verdict).unwrap(),
            r#"{"index":0,"transactionId":"t","success":true,"error":null,"leaseReleased":true,"dlq":true,"noop":false}"#
        );
        let lost = model::Error::new(ErrorCode::LeaseLost, "lease 1-2 is over");
        let refused = AckOutcome { refused: Some(lost), is_noop: false, is_dead_letter: false };
        let verdict = Verdict::of(1, "t", &reply, Some(&refused));
        assert_eq!(verdict.error.as_deref(), Some("invalid or expired lease: lease 1-2 is over"));
        assert_eq!((verdict.success, verdict.code.as_deref()), (false, Some("lease_lost")));
        assert!(!Verdict::of(1, "t", &reply, None).success);
    }

    #[test]
    fn a_batch_reads_what_clients_send() {
        let text =
            br#"{"acknowledgments":[{"transactionId":"a","partitionId":"p","status":null},{"offset":7}],"consumerGroup":"g"}"#;
        let batch: Batch<'_> = json::parse(text).unwrap();
        assert_eq!(batch.acknowledgments[1].offset, Some(7));
        assert_eq!(batch.consumer_group.as_deref(), Some("g"));
        assert!(json::parse::<Batch<'_>>(b"{}").is_err());
    }
}
