//! Requests that may wait: pops and fetches that find nothing stay until something comes, their time is over or the server stops.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::engine::{Engine, Wake};
use crate::model::{Error, ErrorCode, FetchReply, Now, PopReply, Result};
use crate::protocol::{Fetch, Pop};
use crate::record::Offset;

/// Answers a pop, with an empty reply when its time is over.
pub(super) async fn wait_for_pop(engine: &Engine, pop: &Pop, stopping: &CancellationToken) -> Result<PopReply> {
    let (wake, woken) = wake();
    let _watch = engine.watch(&pop.request, wake)?;
    let attempt = || engine.pop(&pop.request, Now::read());
    wait(attempt, |reply| !reply.claims.is_empty(), &woken, pop.wait_ms, stopping).await
}

/// Answers a fetch, with an empty reply when its time is over.
pub(super) async fn wait_for_fetch(engine: &Engine, fetch: &Fetch, stopping: &CancellationToken) -> Result<FetchReply> {
    let (wake, woken) = wake();
    let _watch = engine.watch_queue(&fetch.request.queue, wake)?;
    let attempt = || engine.fetch(&fetch.request, Now::read());
    wait(attempt, |reply| has_news(reply, fetch.request.from), &woken, fetch.wait_ms, stopping).await
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

async fn wait<T>(
    attempt: impl Fn() -> Result<T>,
    is_enough: impl Fn(&T) -> bool,
    woken: &Notify,
    wait_ms: u32,
    stopping: &CancellationToken,
) -> Result<T> {
    let deadline = Instant::now() + Duration::from_millis(u64::from(wait_ms));
    loop {
        let reply = attempt()?;
        if is_enough(&reply) {
            return Ok(reply);
        }
        tokio::select! {
            () = stopping.cancelled() => return Err(stopping_error()),
            waited = timeout_at(deadline, woken.notified()) => if waited.is_err() {
                return Ok(reply);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    async fn countdown(from: u32, woken: &Notify, stopping: &CancellationToken) -> Result<u32> {
        let left = Cell::new(from);
        let attempt = || {
            left.set(left.get().saturating_sub(1));
            Ok(left.get())
        };
        wait(attempt, |left| *left == 0, woken, 1_000, stopping).await
    }

    #[tokio::test(start_paused = true)]
    async fn every_wake_is_an_attempt_and_none_is_lost() {
        let (wake, woken) = wake();
        let stopping = CancellationToken::new();
        assert_eq!(countdown(1, &woken, &stopping).await, Ok(0));
        wake();
        assert_eq!(countdown(2, &woken, &stopping).await, Ok(0));
    }

    #[tokio::test(start_paused = true)]
    async fn time_over_is_an_empty_answer_and_a_stop_is_an_error() {
        let (_wake, woken) = wake();
        let stopping = CancellationToken::new();
        let start = Instant::now();
        assert_eq!(countdown(3, &woken, &stopping).await, Ok(2));
        assert_eq!(start.elapsed(), Duration::from_secs(1));
        stopping.cancel();
        assert_eq!(countdown(3, &woken, &stopping).await, Err(stopping_error()));
    }
}
