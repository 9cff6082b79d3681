//! `POST /filters/test`: what a filter would take, without making anything.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::engine::Engine;
use crate::filter::{Actual, Filter, FilterError, Why};
use crate::model::FetchRequest;
use crate::record::{Attributes, DEFAULT_PARTITION};

use super::body::Raw;
use super::error::{ApiError, Result};
use super::{Gateway, fetch, json};

/// Stored messages that one test looks at.
const MESSAGES_MAX: u64 = 10_000;
const MESSAGES_DEFAULT: u64 = 100;

#[derive(Deserialize)]
struct Test<'a> {
    filter: String,
    #[serde(default, borrow)]
    attributes: Option<&'a RawValue>,
    queue: Option<String>,
    partition: Option<String>,
    last: Option<u64>,
}

/// `POST /api/v1/filters/test`: against given attributes, or against the last messages of a partition.
pub(super) async fn test(State(gateway): State<Arc<Gateway>>, body: Raw) -> Result<Response> {
    let test: Test<'_> = json::parse(&body.bytes)?;
    let filter = Filter::parse(&test.filter).map_err(|error| refused(&test.filter, &error))?;
    if let Some(queue) = test.queue {
        let partition = test.partition.unwrap_or_else(|| DEFAULT_PARTITION.to_owned());
        let last = test.last.unwrap_or(MESSAGES_DEFAULT).min(MESSAGES_MAX);
        let shared = gateway.clone();
        let (mut answer, text) =
            (gateway.blocking(move || against(&shared.engine, &filter, queue, partition, last)).await?, test.filter);
        answer["filter"] = text.into();
        return Ok(json::ok(&answer));
    }
    let attributes = match test.attributes {
        Some(raw) => json::attributes(raw)?,
        None => Attributes::default(),
    };
    let why = filter.why(attributes.view());
    Ok(json::ok(&json!({
        "filter": test.filter, "parsed": filter.parenthesised(), "matches": why.matches, "why": why_json(&why),
    })))
}

/// The error of a filter text, with its place.
fn refused(text: &str, error: &FilterError) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "bad_filter", error.to_string())
        .with("position", error.position)
        .with("caret", error.caret(text))
}

fn against(engine: &Engine, filter: &Filter, queue: String, partition: String, last: u64) -> Result<Value> {
    let info = engine.partition(&queue, &partition)?;
    let mut from = info.end.saturating_sub(last).max(info.start);
    let (mut tested, mut matched, mut examples) = (0u64, 0u64, Vec::new());
    while from < info.end {
        let request = FetchRequest {
            queue: queue.clone(),
            partition: partition.clone(),
            from,
            to: Some(info.end),
            messages_max: 1_000,
            bytes_max: 16 << 20,
        };
        let (reply, messages) = fetch::read(engine, &request)?;
        for message in &messages {
            tested += 1;
            if filter.matches(message.attributes.view()) {
                matched += 1;
                if examples.len() < 10 {
                    examples.push(message.offset);
                }
            }
        }
        if reply.next <= from {
            break;
        }
        from = reply.next;
    }
    Ok(json!({
        "parsed": filter.parenthesised(), "queue": queue, "partition": partition, "tested": tested, "matched": matched,
        "offsets": examples,
    }))
}

fn why_json(why: &Why) -> Vec<Value> {
    why.nodes
        .iter()
        .map(|node| {
            let actual = node.actual.as_ref().map(Actual::to_string);
            json!({ "depth": node.depth, "condition": node.text, "holds": node.holds, "actual": actual })
        })
        .collect()
}
