//! What a connection does with a request.
//!
//! Pushes and acknowledgements are handed to the engine in the order of arrival and answered from its committer threads. Pops
//! and fetches that find something are answered at once. Administration, which may wait for the disk, runs on a thread for
//! blocking work, and the connection's next request waits for it.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::access::{Principal, needed};
use crate::engine::Engine;
use crate::model::{AckRequest, Error, ErrorCode, FetchReply, Now, PopReply, PushRequest, Result};
use crate::protocol::{Fetch, Frame, Operation, Pong, Pop, Released, Request, Response, Subscribe};

use super::Shared;
use super::admin;
use super::budget::{Room, WaitSlot};
use super::lease::UnheardLease;
use super::outbox::{Outbox, Outgoing};
use super::session::error_frame;
use super::subscription::{Control, Notices, Subscription};
use super::waiting::{Started, has_news, wait_for_fetch, wait_for_pop};

/// Serves the requests of one connection.
pub(super) struct Handler {
    shared: Arc<Shared>,
    principal: Arc<Principal>,
    /// The engine as the principal may use it.
    engine: Engine,
    outbox: Arc<Outbox>,
    /// Waiting requests and subscriptions that this connection may still have.
    waits: Arc<Semaphore>,
    subscriptions: HashMap<u32, Arc<Control>>,
}

/// Where a reply goes.
#[derive(Clone, Copy)]
struct ReplyTo {
    operation: u16,
    correlation_id: u32,
}

impl ReplyTo {
    fn encode(self, result: Result<Response>) -> Outgoing {
        match result {
            Ok(response) => response.encode(self.correlation_id, false).into(),
            Err(error) => error_frame(self.operation, self.correlation_id, naming(self.operation, error)).into(),
        }
    }

    /// A reply to a pop, which gives its lease back unless it is sent.
    fn encode_pop(self, result: Result<PopReply>, engine: &Engine) -> Outgoing {
        let lease = result.as_ref().ok().and_then(|reply| UnheardLease::of(reply, engine));
        Outgoing { lease, ..self.encode(result.map(Response::Pop)) }
    }
}

/// The engine says which queue is refused; this says what was asked of it.
pub(super) fn naming(operation: u16, error: Error) -> Error {
    match (error.code, Operation::from_number(operation)) {
        (ErrorCode::Unauthorized, Some(operation)) => Error { text: format!("{}: {}", operation.name(), error.text), ..error },
        _ => error,
    }
}

impl Handler {
    pub(super) fn new(shared: &Arc<Shared>, outbox: &Arc<Outbox>, principal: Arc<Principal>) -> Self {
        let waits = Arc::new(Semaphore::new(shared.options.connection_waiting_max));
        let engine = &shared.engine;
        let engine = principal.scope.as_ref().map_or_else(|| engine.clone(), |scope| engine.within(scope.clone()));
        Self { shared: shared.clone(), principal, engine, outbox: outbox.clone(), waits, subscriptions: HashMap::new() }
    }

    /// Starts a request; what goes on beside the connection's task goes into `tasks`.
    pub(super) async fn handle(&mut self, frame: Frame, room: Room, tasks: &mut JoinSet<()>) {
        let reply_to = ReplyTo { operation: frame.operation, correlation_id: frame.correlation_id };
        let request = match Request::decode(frame.operation, &frame.body) {
            Ok(request) => request,
            Err(error) => return self.answer(reply_to, Err(error.into())),
        };
        if let Err(error) = self.principal.check(needed(&request), request.operation().name()) {
            return self.outbox.push_from_own_task(error_frame(frame.operation, frame.correlation_id, error));
        }
        while tasks.try_join_next().is_some() {}
        match request {
            Request::Push(request) => self.push(request, reply_to, room),
            Request::Ack(request) => self.ack(request, reply_to, room),
            Request::Pop(pop) => self.pop(pop, reply_to, room, tasks),
            Request::Fetch(fetch) => self.fetch(fetch, reply_to, tasks),
            Request::Subscribe(subscribe) => {
                if let Err(error) = self.subscribe(subscribe, reply_to.correlation_id, tasks) {
                    self.answer(reply_to, Err(error));
                }
            }
            Request::Credit(credit) => match self.subscription(credit.subscription) {
                Ok(control) => control.add_credit(&credit),
                Err(error) => self.answer(reply_to, Err(error)),
            },
            Request::Unsubscribe(unsubscribe) => match self.subscription(unsubscribe.subscription) {
                Ok(control) => control.end(reply_to.correlation_id),
                Err(error) => self.answer(reply_to, Err(error)),
            },
            Request::Extend(request) => {
                let extended = admin::extend(&self.engine, &request, Now::read());
                self.answer(reply_to, extended.map(Response::Extend));
            }
            Request::Release(request) => {
                let released = self.engine.release(&request.lease_id, Now::read());
                self.answer(reply_to, released.map(|partitions| Response::Release(Released { partitions })));
            }
            Request::Ping(ping) => {
                let pong = Pong { nonce: ping.nonce, time_us: Now::read().wall_us };
                self.answer(reply_to, Ok(Response::Ping(pong)));
            }
            Request::Hello(_) => {
                self.answer(reply_to, Err(Error::new(ErrorCode::BadRequest, "the hello was said already")));
            }
            request => {
                let engine = self.engine.clone();
                let answer = tokio::task::spawn_blocking(move || admin::answer(&engine, request, Now::read())).await;
                let failed = |_| Err(Error::new(ErrorCode::Internal, "the operation ended in a fault of the server"));
                self.answer(reply_to, answer.unwrap_or_else(failed));
            }
        }
    }

    fn answer(&self, reply_to: ReplyTo, result: Result<Response>) {
        self.outbox.push_from_own_task(reply_to.encode(result));
    }

    fn push(&self, request: PushRequest, reply_to: ReplyTo, room: Room) {
        let outbox = self.outbox.clone();
        let done = move |result: Result<_>| {
            outbox.push(reply_to.encode(result.map(Response::Push)));
            drop(room);
        };
        self.engine.submit_push(request, Now::read(), Box::new(done));
    }

    fn ack(&self, request: AckRequest, reply_to: ReplyTo, room: Room) {
        let outbox = self.outbox.clone();
        let done = move |result: Result<_>| {
            outbox.push(reply_to.encode(result.map(Response::Ack)));
            drop(room);
        };
        self.engine.submit_ack(request, Now::read(), Box::new(done));
    }

    fn pop(&self, pop: Pop, reply_to: ReplyTo, room: Room, tasks: &mut JoinSet<()>) {
        let engine = &self.engine;
        let attempt = match self.reading().map(|()| Started::new(engine, &pop.request)) {
            Err(error) => Err(error),
            Ok(Started::Answered(result)) => result,
            Ok(committing) => {
                let (engine, outbox) = (engine.clone(), self.outbox.clone());
                // Not one of the tasks that end when the client has said all: what was taken for it will not be handed out again.
                tokio::spawn(async move {
                    outbox.push(reply_to.encode_pop(committing.finish().await, &engine));
                    drop(room);
                });
                return;
            }
        };
        let is_answer = pop.wait_ms == 0 || !matches!(&attempt, Ok(reply) if reply.claims.is_empty());
        let slot = if is_answer { Ok(None) } else { self.wait_slot().map(Some) };
        match slot {
            Ok(None) => self.outbox.push_from_own_task(reply_to.encode_pop(attempt, engine)),
            Err(error) => self.answer(reply_to, Err(error)),
            Ok(Some(slot)) => {
                let (shared, engine, outbox) = (self.shared.clone(), engine.clone(), self.outbox.clone());
                tasks.spawn(async move {
                    let result = wait_for_pop(&engine, &pop, &shared.stopping).await;
                    outbox.push(reply_to.encode_pop(result, &engine));
                    drop(slot);
                });
            }
        }
    }

    fn fetch(&self, fetch: Fetch, reply_to: ReplyTo, tasks: &mut JoinSet<()>) {
        let attempt = self.reading().and_then(|()| self.engine.fetch(&fetch.request, Now::read()));
        let is_empty = |reply: &FetchReply| !has_news(reply, fetch.request.from);
        let is_answer = fetch.wait_ms == 0 || !attempt.as_ref().is_ok_and(is_empty);
        let slot = if is_answer { Ok(None) } else { self.wait_slot().map(Some) };
        match slot {
            Ok(None) => self.answer(reply_to, attempt.map(Response::Fetch)),
            Err(error) => self.answer(reply_to, Err(error)),
            Ok(Some(slot)) => {
                let (shared, engine, outbox) = (self.shared.clone(), self.engine.clone(), self.outbox.clone());
                tasks.spawn(async move {
                    let result = wait_for_fetch(&engine, &fetch, &shared.stopping).await;
                    outbox.push(reply_to.encode(result.map(Response::Fetch)));
                    drop(slot);
                });
            }
        }
    }

    fn subscribe(&mut self, subscribe: Subscribe, correlation_id: u32, tasks: &mut JoinSet<()>) -> Result<()> {
        self.subscriptions.retain(|_, control| !control.has_ended());
        if self.subscriptions.contains_key(&correlation_id) {
            let text = format!("connection has a subscription {correlation_id} already");
            return Err(Error::new(ErrorCode::BadRequest, text));
        }
        let slot = self.wait_slot()?;
        let notices = Notices::new(&self.outbox, correlation_id);
        let (shared, engine, outbox) = (self.shared.clone(), self.engine.clone(), self.outbox.clone());
        let subscription = Subscription { shared, engine, outbox, correlation_id, notices, _slot: slot };
        let (control, task) = subscription.start(subscribe);
        self.subscriptions.insert(correlation_id, control);
        tasks.spawn(task);
        Ok(())
    }

    fn subscription(&self, correlation_id: u32) -> Result<&Control> {
        let live = self.subscriptions.get(&correlation_id).filter(|control| !control.has_ended());
        live.map(Arc::as_ref)
            .ok_or_else(|| Error::new(ErrorCode::BadRequest, format!("connection has no subscription {correlation_id}")))
    }

    /// Refuses to read more while the replies of all connections fill the memory meant for them.
    fn reading(&self) -> Result<()> {
        match self.shared.outgoing.is_used_up() {
            false => Ok(()),
            true => Err(Error::new(ErrorCode::Busy, "too many bytes of replies wait for their clients")),
        }
    }

    fn wait_slot(&self) -> Result<WaitSlot> {
        WaitSlot::take(&self.waits, &self.shared.waits)
    }
}
