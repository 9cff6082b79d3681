//! The paths that are counted, each a fixed amount of work with fixed bytes and fixed times, on one thread.

use bytes::Bytes;
use fanlog::engine::{Engine, EngineOptions};
use fanlog::filter::Filter;
use fanlog::model::{
    AckItem, AckRequest, AckTarget, AckVerb, BatchSlice, Claim, Compression, Durability, GroupDeclaration, Now, PopReply,
    PopRequest, PushItem, PushRequest, SettingsPatch, Start,
};
use fanlog::protocol::{Frame, Pop, Request, Response};
use fanlog::record::{Attributes, AttributesRef, BatchBuilder, Message, StoredBatch};
use tempfile::TempDir;

use super::filters::{ATTRIBUTES, FILTERS};

/// Operations that are done and not counted, so that memory that is kept is there when counting begins.
const WARM_UP: usize = 16;
/// Messages of a batch.
const BATCH: usize = 100;
/// Pushes that one commit joins.
const JOINED: usize = 64;
const QUEUE: &str = "orders";
const GROUP: &str = "billing";

/// A path and what its count is of.
pub struct Path {
    pub name: &'static str,
    /// What the instructions are counted for.
    pub unit: &'static str,
    /// Units in one call of what is counted.
    pub units: usize,
    /// Calls that are counted.
    pub calls: usize,
    pub run: fn(&Path),
}

/// All of them, in the order of the table.
pub const PATHS: &[Path] = &[
    Path { name: "push_batch", unit: "push of 100 messages of 256 B", units: 1, calls: 200, run: push_batch },
    Path {
        name: "push_filtered",
        unit: "the same with five attributes each, for ten filters",
        units: 1,
        calls: 100,
        run: push_filtered,
    },
    Path { name: "push_single", unit: "push of one message of 256 B, its own commit", units: 1, calls: 1000, run: push_single },
    Path {
        name: "push_joined",
        unit: "one of 64 such pushes in one commit, each to its partition",
        units: JOINED,
        calls: 50,
        run: push_joined,
    },
    Path { name: "pop_whole", unit: "pop of ten whole batches of 100 messages", units: 1, calls: 100, run: pop_whole },
    Path { name: "pop_single", unit: "pop of one message that was pushed alone", units: 1, calls: 500, run: pop_single },
    Path { name: "pop_cut", unit: "pop of one message out of a batch of 100", units: 1, calls: 500, run: pop_cut },
    Path {
        name: "pop_filtered",
        unit: "pop of ten batches of 100 messages by a group that takes every tenth",
        units: 1,
        calls: 50,
        run: pop_filtered,
    },
    Path { name: "ack", unit: "acknowledgement of one claim", units: 1, calls: 500, run: ack },
    Path { name: "filter", unit: "check of five attributes, and ten filters", units: 1, calls: 1000, run: filter },
    Path {
        name: "record_plain",
        unit: "batch of 100 messages of 256 B packed without compression",
        units: 1,
        calls: 200,
        run: record_plain,
    },
    Path { name: "record_zstd", unit: "the same with zstd 1", units: 1, calls: 100, run: record_zstd },
    Path {
        name: "record_open",
        unit: "stored batch of 100 messages of 256 B turned into messages, zstd 1",
        units: 1,
        calls: 100,
        run: record_open,
    },
];

impl Path {
    /// Does one call's work: call `number` of the warm-up or, after it, of those that count.
    fn call(&self, number: usize, work: &mut dyn FnMut()) {
        if number < WARM_UP { work() } else { super::fanlog_counted(work) }
    }

    /// The numbers of all calls.
    fn numbers(&self) -> std::ops::Range<usize> {
        0..WARM_UP + self.calls
    }
}

fn push_batch(path: &Path) {
    let server = Server::new(Compression::None);
    let frame = push_frame("p", messages(BATCH));
    path.numbers().for_each(|number| path.call(number, &mut || server.serve(&frame)));
}

fn push_filtered(path: &Path) {
    let server = Server::new(Compression::None);
    for (number, filter) in FILTERS.iter().enumerate() {
        let declaration = GroupDeclaration { filter: (*filter).to_owned(), ..GroupDeclaration::default() };
        server.engine.declare_group(QUEUE, &format!("g{number}"), &declaration, server.now).expect("a group");
    }
    let attributes = Attributes::from_json(ATTRIBUTES).expect("valid attributes");
    let messages = messages(BATCH).into_iter().map(|message| Message { attributes: attributes.clone(), ..message });
    let frame = push_frame("p", messages.collect());
    path.numbers().for_each(|number| path.call(number, &mut || server.serve(&frame)));
}

fn push_single(path: &Path) {
    let server = Server::new(Compression::None);
    let frame = push_frame("p", messages(1));
    path.numbers().for_each(|number| path.call(number, &mut || server.serve(&frame)));
}

fn push_joined(path: &Path) {
    let server = Server::new(Compression::None);
    let frames: Vec<Bytes> = (0..JOINED).map(|number| push_frame(&format!("p{number}"), messages(1))).collect();
    let (last, first) = frames.split_last().expect("some frames");
    for number in path.numbers() {
        path.call(number, &mut || {
            // Without committer threads they stay in line until somebody commits: the last one, which waits for its answer.
            first.iter().for_each(|frame| server.submit(frame));
            server.serve(last);
        });
    }
}

fn pop_whole(path: &Path) {
    let server = Server::new(Compression::default());
    server.store(10 * path.numbers().len(), BATCH);
    path.numbers().for_each(|number| pop_and_acknowledge(path, &server, GROUP, number, 10 * BATCH as u32));
}

fn pop_single(path: &Path) {
    let server = Server::new(Compression::default());
    server.store(path.numbers().len(), 1);
    path.numbers().for_each(|number| pop_and_acknowledge(path, &server, GROUP, number, 1));
}

fn pop_cut(path: &Path) {
    let server = Server::new(Compression::default());
    server.store(path.numbers().len().div_ceil(BATCH), BATCH);
    path.numbers().for_each(|number| pop_and_acknowledge(path, &server, GROUP, number, 1));
}

fn pop_filtered(path: &Path) {
    let server = Server::new(Compression::default());
    let declaration = GroupDeclaration { filter: ":tenth".to_owned(), ..GroupDeclaration::default() };
    server.engine.declare_group(QUEUE, "tenths", &declaration, server.now).expect("a group");
    let tenth = Attributes::from_json(r#"{"tenth":1}"#).expect("valid attributes");
    let mut messages = messages(BATCH);
    messages.iter_mut().step_by(10).for_each(|message| message.attributes = tenth.clone());
    let frame = push_frame("p", messages);
    (0..10 * path.numbers().len()).for_each(|_| server.serve(&frame));
    path.numbers().for_each(|number| pop_and_acknowledge(path, &server, "tenths", number, BATCH as u32));
}

/// Only the pop is counted; its claim is acknowledged so that the next one finds something.
fn pop_and_acknowledge(path: &Path, server: &Server, group: &str, number: usize, messages_max: u32) {
    let frame = pop_frame(group, messages_max);
    let mut reply = None;
    path.call(number, &mut || reply = server.answer(&frame).1);
    let (lease_id, claim) = reply.unwrap_or_else(|| panic!("pop {number} found nothing"));
    assert_eq!(count(&claim), messages_max, "every pop finds what it asks for");
    server.serve(&ack_frame(group, lease_id, &claim));
}

fn ack(path: &Path) {
    let server = Server::new(Compression::default());
    server.store(path.numbers().len(), BATCH);
    let pop = pop_frame(GROUP, BATCH as u32);
    for number in path.numbers() {
        let (lease_id, claim) = server.answer(&pop).1.expect("a reply to a pop");
        let frame = ack_frame(GROUP, lease_id, &claim);
        path.call(number, &mut || server.serve(&frame));
    }
}

fn filter(path: &Path) {
    let filters = FILTERS.map(|text| Filter::parse(text).expect("a valid filter"));
    let attributes = Attributes::from_json(ATTRIBUTES).expect("valid attributes");
    for number in path.numbers() {
        path.call(number, &mut || {
            let attributes = AttributesRef::parse(attributes.as_bytes()).expect("valid attributes");
            assert_eq!(filters.iter().filter(|filter| filter.matches(attributes)).count(), 7);
        });
    }
}

fn record_plain(path: &Path) {
    pack(path, Compression::None);
}

fn record_zstd(path: &Path) {
    pack(path, Compression::Zstd { level: 1 });
}

fn pack(path: &Path, compression: Compression) {
    let messages = messages(BATCH);
    let bytes = messages.iter().map(|message| message.payload.len()).sum();
    for number in path.numbers() {
        path.call(number, &mut || {
            let mut builder = BatchBuilder::with_capacity(messages.len(), bytes);
            messages.iter().for_each(|message| builder.push(message));
            assert_eq!(builder.finish(compression).count as usize, messages.len());
        });
    }
}

fn record_open(path: &Path) {
    let server = Server::new(Compression::Zstd { level: 1 });
    server.store(1, BATCH);
    let (_, claim) = server.answer(&pop_frame(GROUP, BATCH as u32)).1.expect("a reply to a pop");
    let Some(BatchSlice::Whole(stored)) = claim.batches.first() else { panic!("the whole batch") };
    for number in path.numbers() {
        path.call(number, &mut || {
            let messages = StoredBatch::parse(stored.clone()).and_then(|batch| batch.messages()).expect("a batch");
            assert_eq!(messages.len(), BATCH);
        });
    }
}

/// An engine on a directory that goes away at the end, and what a connection does around it.
struct Server {
    engine: Engine,
    now: Now,
    _directory: TempDir,
}

impl Server {
    /// With a queue whose log has reached a segment that takes all that follows: segments grow, and making one is no part of a path.
    fn new(compression: Compression) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let now = Now { wall_us: 1_700_000_000_000_000, steady_us: 1_000_000_000 };
        let (engine, _) = Engine::open_path(directory.path(), EngineOptions::default(), now).expect("an engine");
        let patch =
            SettingsPatch { durability: Some(Durability::Os), compression: Some(compression), ..SettingsPatch::default() };
        engine.create_queue(QUEUE, &patch, now).expect("a queue");
        for _ in 0..2 {
            let message = Message::new(random_bytes(3 << 20));
            let items = PushItem::Messages(vec![message]);
            let push = PushRequest { queue: QUEUE.to_owned(), partition: "large".to_owned(), items, producer: None };
            engine.push(push, now).expect("a push");
        }
        // The group begins behind them.
        engine.pop(&PopRequest { start: Some(Start::New), ..PopRequest::any(QUEUE, 1).group(GROUP) }, now).expect("a pop");
        Self { engine, now, _directory: directory }
    }

    /// Pushes so many batches of so many messages.
    fn store(&self, batches: usize, count: usize) {
        let frame = push_frame("p", messages(count));
        (0..batches).for_each(|_| self.serve(&frame));
    }

    fn serve(&self, frame: &Bytes) {
        self.answer(frame);
    }

    /// Answers a frame as a connection does: decodes it, asks the engine, encodes the reply. Of the reply to a pop, its lease and claim.
    fn answer(&self, frame: &Bytes) -> (usize, Option<(String, Claim)>) {
        let frame = Frame::decode(frame).expect("a frame");
        let request = Request::decode(frame.operation, &frame.body).expect("a request");
        let response = match request {
            Request::Push(push) => Response::Push(self.engine.push(push, self.now).expect("a push")),
            Request::Pop(pop) => Response::Pop(self.engine.pop(&pop.request, self.now).expect("a pop")),
            Request::Ack(ack) => Response::Ack(self.engine.ack(ack, self.now).expect("an acknowledgement")),
            other => panic!("{:?} is no hot path", other.operation()),
        };
        let length = encoded_length(&response);
        let Response::Pop(PopReply { lease_id, mut claims, .. }) = response else { return (length, None) };
        (length, claims.pop().map(|claim| (lease_id, claim)))
    }

    /// Puts a push in line, to be answered by whoever commits it.
    fn submit(&self, frame: &Bytes) {
        let frame = Frame::decode(frame).expect("a frame");
        let Ok(Request::Push(push)) = Request::decode(frame.operation, &frame.body) else { panic!("a push") };
        let done = |reply| assert!(encoded_length(&Response::Push(Result::expect(reply, "a push"))) > 0);
        self.engine.submit_push(push, self.now, Box::new(done));
    }
}

fn encoded_length(response: &Response) -> usize {
    response.encode(7, false).into_pieces().iter().map(Bytes::len).sum()
}

/// A request as it comes from a connection, behind the length field.
fn frame_of(request: &Request) -> Bytes {
    request.encode(7).into_bytes().slice(fanlog::protocol::LENGTH_BYTES..)
}

fn push_frame(partition: &str, messages: Vec<Message>) -> Bytes {
    let items = PushItem::Messages(messages);
    frame_of(&Request::Push(PushRequest { queue: QUEUE.to_owned(), partition: partition.to_owned(), items, producer: None }))
}

fn pop_frame(group: &str, messages_max: u32) -> Bytes {
    frame_of(&Request::Pop(Pop { request: PopRequest::any(QUEUE, messages_max).group(group), wait_ms: 0 }))
}

/// Completes all of a claim: its last message, which may not be the last of the range.
fn ack_frame(group: &str, lease_id: String, claim: &Claim) -> Bytes {
    let last = match claim.batches.last() {
        Some(BatchSlice::Messages(messages)) => messages.last().map(|message| message.offset),
        _ => None,
    };
    let target = AckTarget::Offset(last.unwrap_or(claim.range.last));
    let item = AckItem { target, verb: AckVerb::Completed, reason: String::new(), delay_ms: 0 };
    let group = Some(group.to_owned());
    let items = vec![item];
    frame_of(&Request::Ack(AckRequest { queue: QUEUE.to_owned(), partition_id: claim.partition_id, group, lease_id, items }))
}

/// Messages that a claim handed out.
fn count(claim: &Claim) -> u32 {
    let of = |slice: &BatchSlice| match slice {
        BatchSlice::Whole(bytes) => StoredBatch::parse(bytes.clone()).expect("a batch").count(),
        BatchSlice::Messages(messages) => messages.len() as u32,
    };
    claim.batches.iter().map(of).sum()
}

/// Messages of 256 bytes that look like JSON.
fn messages(count: usize) -> Vec<Message> {
    let payload = |number: usize| {
        let mut payload = format!(r#"{{"order":{number},"customer":"c{}","note":""#, number * 7919 % 1000).into_bytes();
        let letters = random_bytes(254 - payload.len());
        payload.extend(letters.iter().map(|byte| b"abcdefghijklmnopqrstuvwxyz     x"[usize::from(byte % 32)]));
        payload.extend_from_slice(br#""}"#);
        payload
    };
    (0..count).map(|number| Message::new(payload(number))).collect()
}

fn random_bytes(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64.wrapping_add(count as u64);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}
