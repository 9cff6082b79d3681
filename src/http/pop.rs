//! The three pops: from a partition, a queue, or a namespace and task; with waiting, and with delivery of only the newest message.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::engine::{Engine, Watch};
use crate::model::{
    self, AckItem, AckRequest, AckTarget, AckVerb, BatchSlice, Claim, ErrorCode, Now, PopReply, PopRequest, PopSource, Start,
};

use super::delivery::Delivery;
use super::error::{ApiError, Result};
use super::messages_out::{self, Delivered};
use super::params::{Names, Params};
use super::{Gateway, answers, group_option, json, time, until_draining};

const BATCH_DEFAULT: u64 = 200;
const BATCH_MAX: u64 = 10_000;
const PARTITIONS_MAX: u64 = 64;
const TIMEOUT_DEFAULT_MS: u64 = 30_000;
const TIMEOUT_MAX_MS: u64 = 600_000;
const LEASE_SECONDS_MAX: u64 = 7 * 24 * 3600;

/// Payload bytes of one answer, as stored.
const BYTES_MAX: u32 = 16 << 20;

/// Answers from more stored bytes are written on a blocking thread.
const INLINE_BYTES_MAX: usize = 256 * 1024;

/// How often a queue is looked for that does not exist yet: nothing can wake a pop that waits for it.
const UNKNOWN_QUEUE_PAUSE: Duration = Duration::from_millis(250);

/// Messages that a pop for the newest one looks through at a time.
const CONFLATION_STEP: u32 = 5_000;
const CONFLATION_BYTES: u32 = 256 << 20;

/// `GET /api/v1/pop/queue/{queue}`
pub(super) async fn queue(State(gateway): State<Arc<Gateway>>, Names(queue): Names<String>, params: Params) -> Result<Response> {
    pop(&gateway, PopSource::Queue(queue), &params).await
}

/// `GET /api/v1/pop/queue/{queue}/partition/{partition}`
pub(super) async fn partition(
    State(gateway): State<Arc<Gateway>>,
    Names((queue, partition)): Names<(String, String)>,
    params: Params,
) -> Result<Response> {
    pop(&gateway, PopSource::Partition { queue, partition }, &params).await
}

/// `GET /api/v1/pop`
pub(super) async fn discover(State(gateway): State<Arc<Gateway>>, params: Params) -> Result<Response> {
    let (namespace, task) = (params.owned("namespace"), params.owned("task"));
    if namespace.is_none() && task.is_none() {
        return Err(no_messages(ApiError::bad_request("a pop without a queue needs a namespace or a task")));
    }
    pop(&gateway, PopSource::Discover { namespace, task }, &params).await
}

/// A pop as its query asks for it.
#[derive(Debug, Clone, PartialEq)]
struct Ask {
    request: PopRequest,
    /// How long to wait for messages; `None` is not at all.
    wait: Option<Duration>,
    /// Only the newest message of a partition.
    is_conflated: bool,
    /// The server chooses what the client left out, and says what it chose.
    is_autopilot: bool,
}

impl Ask {
    fn read(source: PopSource, params: &Params) -> Result<Self> {
        let group = group_option(params.text("consumerGroup"));
        let auto_ack = params.flag("autoAck") || params.flag("commitOnDelivery");
        let is_conflated = params.flag("conflation");
        if is_conflated && group.is_none() {
            return Err(ApiError::bad_request("conflation needs a consumerGroup"));
        }
        if is_conflated && auto_ack {
            return Err(ApiError::bad_request("conflation and autoAck exclude each other"));
        }
        let is_autopilot = params.flag("autopilot");
        let partitions_default = if is_autopilot { PARTITIONS_MAX } else { 1 };
        let lease = params.number("leaseSeconds")?.filter(|&seconds| seconds > 0);
        let request = PopRequest {
            start: if group.is_some() { start(params)? } else { None },
            source,
            group,
            messages_max: small(params.number_in("batch", BATCH_DEFAULT, 1..=BATCH_MAX)?),
            bytes_max: BYTES_MAX,
            partitions_max: small(params.number_in("partitions", partitions_default, 1..=PARTITIONS_MAX)?),
            lease_ms: lease.map(|seconds| seconds.min(LEASE_SECONDS_MAX) * 1_000),
            auto_ack,
            shared: false,
        };
        let timeout_ms = params.number_in("timeout", TIMEOUT_DEFAULT_MS, 0..=TIMEOUT_MAX_MS)?;
        let wait = params.flag("wait").then(|| Duration::from_millis(timeout_ms));
        Ok(Self { request, wait, is_conflated, is_autopilot })
    }
}

/// Where a new group starts, if the pop says so. A time wins over a mode, as it says more.
fn start(params: &Params) -> Result<Option<Start>> {
    match params.text("subscriptionFrom") {
        Some("now") => return Ok(Some(Start::New)),
        Some(text) => match time::parse_iso(text) {
            Some(time) => return Ok(Some(Start::Time(time))),
            None => return Err(ApiError::bad_request(format!("subscriptionFrom is neither now nor an ISO 8601 time: {text}"))),
        },
        None => {}
    }
    Ok(match params.text("subscriptionMode") {
        None => None,
        Some("new" | "new-only") => Some(Start::New),
        Some(_) => Some(Start::Beginning),
    })
}

fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

async fn pop(gateway: &Arc<Gateway>, source: PopSource, params: &Params) -> Result<Response> {
    let result = match Ask::read(source, params) {
        Ok(ask) => take_or_wait(gateway, &Arc::new(ask)).await,
        Err(error) => Err(error),
    };
    result.map_err(no_messages)
}

/// Clients look for messages in an error too.
fn no_messages(error: ApiError) -> ApiError {
    error.with("messages", Vec::<serde_json::Value>::new())
}

async fn take_or_wait(gateway: &Arc<Gateway>, ask: &Arc<Ask>) -> Result<Response> {
    if let Some(found) = take(gateway, ask).await? {
        return Ok(found);
    }
    let Some(wait) = ask.wait.filter(|_| !gateway.is_draining()) else { return Ok(nothing(ask)) };
    let deadline = Instant::now() + wait;
    let Ok(_permit) = gateway.waiting.clone().try_acquire_owned() else {
        return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "busy", "too many pops wait; try again"));
    };
    let woken = Arc::new(Notify::new());
    let mut draining = pin!(until_draining(gateway.draining.subscribe()));
    let mut watch: Option<Watch> = None;
    loop {
        // Register first, then pop, then wait: a push between pop and wait leaves its wake behind.
        if watch.is_none() {
            watch = register(&gateway.engine, &ask.request, &woken)?;
        }
        if let Some(found) = take(gateway, ask).await? {
            return Ok(found);
        }
        let pause = match watch {
            Some(_) => deadline,
            None => deadline.min(Instant::now() + UNKNOWN_QUEUE_PAUSE),
        };
        tokio::select! {
            // What woke it may be that its queue or group has gone and is made again.
            () = woken.notified() => watch = None,
            () = &mut draining => return Ok(nothing(ask)),
            () = tokio::time::sleep_until(pause) => {}
        }
        if Instant::now() >= deadline {
            return Ok(take(gateway, ask).await?.unwrap_or_else(|| nothing(ask)));
        }
    }
}

/// `None` if the queue does not exist yet.
fn register(engine: &Engine, request: &PopRequest, woken: &Arc<Notify>) -> Result<Option<Watch>> {
    let woken = woken.clone();
    match engine.watch(request, Arc::new(move || woken.notify_one())) {
        Ok(watch) => Ok(Some(watch)),
        Err(error) if is_absent(error.code) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A queue or partition that nobody pushed to yet is empty, not an error.
fn is_absent(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::UnknownQueue | ErrorCode::UnknownPartition)
}

/// The answer with what is there now, or `None`.
async fn take(gateway: &Arc<Gateway>, ask: &Arc<Ask>) -> Result<Option<Response>> {
    // A pop that waited may wake together with many others.
    answers::check_room(gateway)?;
    let popped = if ask.is_conflated {
        let (shared, ask) = (gateway.clone(), ask.clone());
        gateway.blocking(move || newest(&shared.engine, &ask.request)).await?
    } else {
        claim(&gateway.engine, &ask.request).await?
    };
    let Some((reply, delivery)) = popped else { return Ok(None) };
    let out = if stored_bytes(&reply) <= INLINE_BYTES_MAX {
        render(gateway, ask, &reply)?
    } else {
        let (shared, ask) = (gateway.clone(), ask.clone());
        gateway.blocking(move || render(&shared, &ask, &reply)).await?
    };
    Ok(Some(json::answer_bytes(StatusCode::OK, delivery.into_body(out))))
}

/// Bytes of what was popped, as it is stored.
fn stored_bytes(reply: &PopReply) -> usize {
    let bytes = |batch: &BatchSlice| match batch {
        BatchSlice::Whole(bytes) => bytes.len(),
        BatchSlice::Messages(messages) => messages.iter().map(|message| message.payload.len()).sum(),
    };
    reply.claims.iter().flat_map(|claim| &claim.batches).map(bytes).sum()
}

/// What a pop took, and the guard that gives it back if the client is gone.
type Popped = Option<(PopReply, Delivery)>;

/// Pops at once, on this thread as the binary protocol does: only the commit of an automatic acknowledgement is waited for elsewhere.
async fn claim(engine: &Engine, request: &PopRequest) -> Result<Popped> {
    if !request.auto_ack {
        return guard(engine, engine.pop(request, Now::read()));
    }
    let (answer, answered) = oneshot::channel();
    engine.submit_pop(request, Now::read(), Box::new(move |reply| drop(answer.send(reply))));
    let reply =
        answered.await.unwrap_or_else(|_| Err(model::Error::new(ErrorCode::Internal, "the pop was given up inside the server")));
    guard(engine, reply)
}

fn guard(engine: &Engine, reply: model::Result<PopReply>) -> Result<Popped> {
    match reply {
        Ok(reply) => {
            let delivery = Delivery::new(engine, &reply.lease_id);
            // Notices without messages (removed by retention) still go out.
            Ok((!reply.claims.is_empty()).then_some((reply, delivery)))
        }
        Err(error) if is_absent(error.code) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Takes the newest message of each partition: everything before it is acknowledged and taken again until one is left.
///
/// Acknowledging the older ones before the newest one is done loses nothing: no later pop of this kind would hand them out.
fn newest(engine: &Engine, request: &PopRequest) -> Result<Popped> {
    let request = PopRequest { messages_max: CONFLATION_STEP, bytes_max: CONFLATION_BYTES, ..request.clone() };
    loop {
        let Some((reply, delivery)) = guard(engine, engine.pop(&request, Now::read()))? else { return Ok(None) };
        let mut is_newest = true;
        for claim in &reply.claims {
            is_newest &= !skip_older(engine, &request, &reply.lease_id, claim)?;
        }
        if is_newest {
            return Ok(Some((reply, delivery)));
        }
        // The guard gives the rest back; the next round takes it from the newest message known so far.
        drop(delivery);
    }
}

/// Acknowledges all messages of a claim but the last one. Says whether there were any.
fn skip_older(engine: &Engine, request: &PopRequest, lease_id: &str, claim: &Claim) -> Result<bool> {
    let offsets = messages_out::offsets(claim)?;
    let [.., older, _] = offsets.as_slice() else { return Ok(false) };
    let item = AckItem { target: AckTarget::Offset(*older), verb: AckVerb::Completed, reason: String::new(), delay_ms: 0 };
    let ack = AckRequest {
        queue: claim.queue.clone(),
        partition_id: claim.partition_id,
        group: request.group.clone(),
        lease_id: lease_id.to_owned(),
        items: vec![item],
    };
    let reply = engine.ack(ack, Now::read())?;
    match reply.outcomes.into_iter().find_map(|outcome| outcome.refused) {
        Some(error) => Err(error.into()),
        None => Ok(true),
    }
}

/// An empty answer: no body, unless the client must hear that its newest-only delivery is in force.
fn nothing(ask: &Ask) -> Response {
    if !ask.is_conflated {
        return StatusCode::NO_CONTENT.into_response();
    }
    let group = ask.request.group.as_deref().unwrap_or(crate::model::PRIMARY_GROUP);
    json::ok(&serde_json::json!({
        "success": true, "queue": source_queue(&ask.request.source), "partition": "", "partitionId": "", "leaseId": "",
        "consumerGroup": group, "messages": [], "partitionsClaimed": 0, "conflation": true,
    }))
}

fn source_queue(source: &PopSource) -> &str {
    match source {
        PopSource::Queue(queue) | PopSource::Partition { queue, .. } => queue,
        PopSource::Discover { .. } => "",
    }
}

fn render(gateway: &Gateway, ask: &Ask, reply: &PopReply) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(4096);
    let group = ask.request.group.as_deref().unwrap_or(crate::model::PRIMARY_GROUP);
    let written = messages_out::write_pop(&mut out, &Delivered { reply, group, cipher: &gateway.cipher })?;
    gateway.metrics.popped(written);
    if ask.is_conflated {
        out.extend_from_slice(b",\"conflation\":true");
    }
    if ask.is_autopilot {
        let (partitions, batch) = (ask.request.partitions_max, ask.request.messages_max);
        out.extend_from_slice(format!(",\"autopilot\":{{\"partitions\":{partitions},\"batch\":{batch}}}").as_bytes());
    }
    out.push(b'}');
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Uri;

    fn ask(query: &str) -> Result<Ask> {
        let uri: Uri = format!("/?{query}").parse().unwrap();
        Ask::read(PopSource::Queue("q".into()), &Params::of(&uri).unwrap())
    }

    #[test]
    fn a_pop_has_queens_defaults() {
        let plain = ask("").unwrap();
        assert_eq!((plain.request.messages_max, plain.request.partitions_max), (200, 1));
        assert_eq!((plain.wait, plain.request.lease_ms, plain.request.group), (None, None, None));
        assert_eq!(ask("wait=true").unwrap().wait, Some(Duration::from_secs(30)));
        assert_eq!(ask("batch=0").unwrap().request.messages_max, 1);
        assert_eq!(ask("partitions=1000&leaseSeconds=5").unwrap().request.partitions_max, 64);
        assert_eq!(ask("leaseSeconds=5").unwrap().request.lease_ms, Some(5_000));
        assert!(ask("commitOnDelivery=true").unwrap().request.auto_ack);
        assert!(ask("batch=many").is_err());
        assert_eq!(ask("consumerGroup=__QUEUE_MODE__").unwrap().request.group, None);
    }

    #[test]
    fn an_explicit_size_is_a_hard_pin_under_autopilot() {
        assert_eq!(ask("autopilot=true").unwrap().request.partitions_max, 64);
        assert_eq!(ask("autopilot=true&partitions=1").unwrap().request.partitions_max, 1);
        assert_eq!(ask("autopilot=true&batch=3").unwrap().request.messages_max, 3);
    }

    #[test]
    fn the_start_is_read_for_named_groups_only() {
        let start = |query: &str| ask(&format!("consumerGroup=g&{query}")).unwrap().request.start;
        assert_eq!(start(""), None);
        assert_eq!(start("subscriptionMode=all"), Some(Start::Beginning));
        assert_eq!(start("subscriptionMode=new"), Some(Start::New));
        assert_eq!(start("subscriptionMode=new-only"), Some(Start::New));
        assert_eq!(start("subscriptionMode=whatever"), Some(Start::Beginning));
        assert_eq!(start("subscriptionMode=all&subscriptionFrom=now"), Some(Start::New));
        assert_eq!(start("subscriptionFrom=1970-01-01T00:00:01Z"), Some(Start::Time(1_000_000)));
        assert!(ask("consumerGroup=g&subscriptionFrom=soon").is_err());
        assert_eq!(ask("subscriptionMode=new").unwrap().request.start, None);
    }

    #[test]
    fn conflation_needs_a_group_and_a_lease() {
        assert!(ask("conflation=true").is_err());
        assert!(ask("conflation=true&consumerGroup=g&autoAck=true").is_err());
        assert!(ask("conflation=true&consumerGroup=g").unwrap().is_conflated);
    }
}
