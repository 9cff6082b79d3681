//! Requests that may wait: pops and fetches that find nothing stay until something comes, their time is over or the server stops.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::engine::{Engine, Wake};
use crate::model::{Error, ErrorCode, FetchReply, Now, PopReply, PopRequest, Result};
use crate::protocol::{Fetch, Pop};
use crate::record::Offset;

/// A pop that was started.
pub(super) enum Started {
    /// It is answered.
    Answered(Result<PopReply>),
    /// It found messages; they may be handed on when their acknowledgement is committed.
    Committing(oneshot::Receiver<Result<PopReply>>),
}

impl Started {
    /// Starts a pop. Does not wait for the commit of an automatic acknowledgement.
    pub(super) fn new(engine: &Engine, request: &PopRequest) -> Self {
        if !request.auto_ack {
            return Self::Answered(engine.pop(request, Now::read()));
        }
        let (sender, mut receiver) = oneshot::channel();
        engine.submit_pop(request, Now::read(), Box::new(move |result| drop(sender.send(result))));
        match receiver.try_recv() {
            Ok(result) => Self::Answered(result),
            Err(_) => Self::Committing(receiver),
        }
    }

    /// Waits for the commit, if there is one to wait for.
    pub(super) async fn finish(self) -> Result<PopReply> {
        match self {
            Self::Answered(result) => result,
            Self::Committing(receiver) => receiver.await.unwrap_or_else(|_| Err(stopping_error())),
        }
    }
}

/// Answers a pop, with an empty reply when its time is over.
pub(super) async fn wait_for_pop(engine: &Engine, pop: &Pop, stopping: &CancellationToken) -> Result<PopReply> {
    let (wake, woken) = wake();
    let deadline = deadline(pop.wait_ms);
    let mut was_registered = true;
    loop {
        let watch = engine.watch(&pop.request, wake.clone())?;
        let reply = Started::new(engine, &pop.request).finish().await?;
        if !reply.claims.is_empty() {
            return Ok(reply);
        }
        // The pop has registered the group: what happens to it is heard of from now on.
        if !watch.is_complete() && was_registered {
            was_registered = false;
            continue;
        }
        was_registered = true;
        if !is_woken(&woken, deadline, stopping).await? {
            return Ok(reply);
        }
    }
}

/// Answers a fetch, with an empty reply when its time is over.
pub(super) async fn wait_for_fetch(engine: &Engine, fetch: &Fetch, stopping: &CancellationToken) -> Result<FetchReply> {
    let (wake, woken) = wake();
    let _watch = engine.watch_queue(&fetch.request.queue, wake)?;
    let deadline = deadline(fetch.wait_ms);
    loop {
        let reply = engine.fetch(&fetch.request, Now::read())?;
        if has_news(&reply, fetch.request.from) || !is_woken(&woken, deadline, stopping).await? {
            return Ok(reply);
        }
    }
}

/// Whether a fetch found messages, or went on past offsets that have none.
pub(super) fn has_news(reply: &FetchReply, from: Offset) -> bool {
    !reply.batches.is_empty() || reply.next > from
}

/// A wake for the engine and what it wakes. A wake before the wait is not lost.
pub(super) fn wake() -> (Wake, Arc<Notify>) {
    let notify = Arc::new(Notify::new());
    let woken = notify.clone();
    (Arc::new(move || notify.notify_one()), woken)
}

/// The error of requests that a stopping server does not serve.
pub(super) fn stopping_error() -> Error {
    Error::new(ErrorCode::ShuttingDown, "server is stopping")
}

fn deadline(wait_ms: u32) -> Instant {
    Instant::now() + Duration::from_millis(u64::from(wait_ms))
}

/// Waits for a wake; false when the time is over.
async fn is_woken(woken: &Notify, deadline: Instant, stopping: &CancellationToken) -> Result<bool> {
    tokio::select! {
        () = stopping.cancelled() => Err(stopping_error()),
        waited = timeout_at(deadline, woken.notified()) => Ok(waited.is_ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wake_is_not_lost_and_time_ends() {
        let (wake, woken) = wake();
        let stopping = CancellationToken::new();
        let start = Instant::now();
        wake();
        assert_eq!(is_woken(&woken, deadline(1_000), &stopping).await, Ok(true));
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert_eq!(is_woken(&woken, deadline(1_000), &stopping).await, Ok(false));
        assert_eq!(start.elapsed(), Duration::from_secs(1));
        stopping.cancel();
        assert_eq!(is_woken(&woken, deadline(1_000), &stopping).await, Err(stopping_error()));
    }
}
