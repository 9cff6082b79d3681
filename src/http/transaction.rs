//! `POST /transaction`: pushes and acknowledgements that happen all or not at all. A rollback is a 200 that says so.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::access::Right;
use crate::model::{ErrorCode, Now, TransactionReply, TransactionRequest};

use super::ack::{self, Acknowledgement, Verdict};
use super::auth::Caller;
use super::body::Raw;
use super::error::{ApiError, Result, code_name};
use super::push::{self, Item};
use super::{Gateway, json};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    #[serde(borrow)]
    operations: Vec<&'a RawValue>,
    #[serde(default)]
    required_leases: Vec<String>,
    #[serde(default, borrow)]
    kv: Vec<&'a RawValue>,
    #[serde(default, borrow)]
    timers: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Kind<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(default, borrow)]
    items: Option<Vec<Item<'a>>>,
}

/// `POST /api/v1/transaction`
pub(super) async fn transact(State(gateway): State<Arc<Gateway>>, caller: Caller, body: Raw) -> Result<Response> {
    let shared = gateway.clone();
    gateway.blocking(move || run(&shared, &caller, &body)).await
}

fn run(gateway: &Gateway, caller: &Caller, body: &Raw) -> Result<Response> {
    let parsed: Body<'_> = json::parse(&body.bytes)?;
    if !parsed.kv.is_empty() || !parsed.timers.is_empty() {
        // Left out in silence, they would break the promise of all or nothing.
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "unsupported", "transactions have no kv and timers here"));
    }
    let (mut pushes, acks) = read(gateway, body, &parsed)?;
    push::stamp(&mut pushes, caller)?;
    if !acks.groups.is_empty() || !acks.refused.is_empty() || !parsed.required_leases.is_empty() {
        caller.check(Right::Work, "acknowledgements in POST /api/v1/transaction")?;
    }
    let transaction_id = uuid::Uuid::now_v7().to_string();
    if let Some(verdict) = acks.refused.first() {
        let text = verdict.error.clone().unwrap_or_default();
        return Ok(rolled_back(&transaction_id, "ack_rejected", &text, verdict.code.as_deref().unwrap_or_default()));
    }
    let request = TransactionRequest {
        pushes: pushes.iter().map(|group| group.request.clone()).collect(),
        acks: acks.groups.iter().map(|group| group.request.clone()).collect(),
        required_leases: parsed.required_leases,
    };
    match gateway.engine.transact(request, Now::read()) {
        Ok(reply) => {
            let results = results(gateway, &pushes, &acks.groups, &reply);
            Ok(json::ok(&json!({ "transactionId": transaction_id, "success": true, "results": results })))
        }
        Err(error) => match reason(error.code) {
            Some(reason) => Ok(rolled_back(&transaction_id, reason, &ack::wording(&error), &code_name(error.code))),
            None => Err(error.into()),
        },
    }
}

/// Sorts the operations into pushes and acknowledgements; each item keeps its place in the flat list of results.
fn read(gateway: &Gateway, body: &Raw, parsed: &Body<'_>) -> Result<(Vec<push::Group>, ack::Grouping)> {
    let mut pushes = push::Grouping::new(&gateway.engine, &gateway.cipher, &body.bytes, true);
    let mut acks = ack::Grouping::default();
    let mut index = 0;
    for operation in &parsed.operations {
        let text = operation.get();
        let operation: Kind<'_> = part(text)?;
        match &*operation.kind {
            "push" => {
                // Queen's clients send a list of items, older ones the item itself.
                let items = match operation.items {
                    Some(items) => items,
                    None => vec![part::<Item<'_>>(text)?],
                };
                for item in items {
                    pushes.add(index, item)?;
                    index += 1;
                }
            }
            "ack" => {
                let mut ack: Acknowledgement<'_> = part(text)?;
                // The one lease that fences the transaction also covers acknowledgements that name none.
                if let ([lease], None) = (parsed.required_leases.as_slice(), ack.lease_id.as_deref().filter(|id| !id.is_empty()))
                {
                    ack.lease_id = Some(lease.as_str().into());
                }
                acks.add(gateway, index, &ack);
                index += 1;
            }
            kind => return Err(ApiError::bad_request(format!("operation {kind} is neither push nor ack"))),
        }
    }
    Ok((pushes.finish(), acks))
}

fn part<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| ApiError::bad_request(format!("operation does not parse: {error}")))
}

/// The reason for a rollback; `None` for an error that is not the transaction's fault.
fn reason(code: ErrorCode) -> Option<&'static str> {
    match code {
        ErrorCode::Duplicate => Some("duplicate"),
        ErrorCode::AckRejected
        | ErrorCode::LeaseLost
        | ErrorCode::NotLeased
        | ErrorCode::UnknownMessage
        | ErrorCode::UnknownGroup
        | ErrorCode::UnknownPartition
        | ErrorCode::UnknownQueue => Some("ack_rejected"),
        ErrorCode::BadRequest | ErrorCode::TooLarge | ErrorCode::BadAttribute | ErrorCode::OutOfSequence => Some("bad_request"),
        _ => None,
    }
}

fn rolled_back(transaction_id: &str, reason: &str, error: &str, code: &str) -> Response {
    json::ok(&json!({
        "transactionId": transaction_id, "success": false, "reason": reason, "error": error, "code": code, "results": [],
    }))
}

fn results(gateway: &Gateway, pushes: &[push::Group], acks: &[ack::Group], reply: &TransactionReply) -> Vec<Value> {
    let mut results = Vec::new();
    for (group, reply) in pushes.iter().zip(&reply.pushes) {
        let incarnation = push::incarnation(&gateway.engine, &group.request.queue);
        for (position, row) in group.rows.iter().enumerate() {
            let outcome = push::outcome(incarnation, reply, position, row);
            let mut result = json!({
                "index": row.index, "type": "push", "success": true, "transactionId": outcome.transaction_id,
                "messageId": outcome.message_id, "queueName": group.request.queue,
            });
            match outcome.offset {
                Some(offset) => result["offset"] = offset.into(),
                None => result["dropped"] = true.into(),
            }
            results.push((row.index, result));
        }
    }
    for (group, reply) in acks.iter().zip(&reply.acks) {
        for (position, (index, id)) in group.rows.iter().enumerate() {
            let verdict = Verdict::of(*index, id, reply, reply.outcomes.get(position));
            let result = json!({
                "index": index, "type": "ack", "success": verdict.success, "error": verdict.error, "dlq": verdict.dlq,
                "noop": verdict.noop, "transactionId": id,
            });
            results.push((*index, result));
        }
    }
    results.sort_unstable_by_key(|&(index, _)| index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_the_server_is_no_rollback() {
        assert_eq!(reason(ErrorCode::Duplicate), Some("duplicate"));
        assert_eq!(reason(ErrorCode::LeaseLost), Some("ack_rejected"));
        for code in [ErrorCode::Busy, ErrorCode::DiskFull, ErrorCode::Io, ErrorCode::Internal, ErrorCode::ShuttingDown] {
            assert_eq!(reason(code), None, "{code:?}");
        }
    }

    #[test]
    fn both_forms_of_a_push_parse() {
        let list: Kind<'_> = part(r#"{"type":"push","items":[{"queue":"q","payload":1}]}"#).unwrap();
        assert_eq!(list.items.unwrap().len(), 1);
        let flat: Kind<'_> = part(r#"{"type":"push","queue":"q","payload":1}"#).unwrap();
        assert!(flat.items.is_none());
        assert!(part::<Kind<'_>>(r#"{"queue":"q"}"#).is_err());
    }

    #[test]
    fn missing_operations_are_an_error_and_none_are_fine() {
        assert!(json::parse::<Body<'_>>(b"{}").is_err());
        assert!(json::parse::<Body<'_>>(br#"{"operations":[]}"#).unwrap().operations.is_empty());
    }

    #[test]
    fn the_rollback_says_why() {
        let error = crate::model::Error::new(ErrorCode::LeaseLost, "lease x is over");
        assert!(ack::wording(&error).contains("lease"));
    }
}
