//! The server under test as a process, with a client of it, and shorthands for what most tests do.

use std::path::PathBuf;
use std::process::Output;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fanlog::client::{self, Client, messages_of, messages_of_claim};
use fanlog::model::*;
use fanlog::protocol::PartitionSelector;
use fanlog::record::{Attributes, Message};

use crate::program::{Launch, PATIENCE, Program, json_of};

/// What wakes a waiting pop does so at once: far less than a pop is willing to wait, and more than a busy machine needs.
const AT_ONCE: Duration = Duration::from_secs(10);

/// A server with a directory of its own.
pub struct Server {
    pub client: Client,
    program: Program,
    launch: Launch,
    directory: tempfile::TempDir,
}

impl Server {
    pub async fn start() -> Self {
        Self::start_with(|launch| launch).await
    }

    /// Sweeps for what retention takes many times a second.
    pub async fn start_sweeping() -> Self {
        Self::start_with(|launch| launch.setting("FANLOG_RETENTION_INTERVAL", "50ms")).await
    }

    pub async fn start_with(set: impl FnOnce(Launch) -> Launch) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let launch = set(Launch::in_directory(directory.path()));
        #[cfg(feature = "http")]
        let launch = launch.http();
        Self::start_on(launch, directory).await
    }

    async fn start_on(launch: Launch, directory: tempfile::TempDir) -> Self {
        let program = launch.start();
        let client = program.client().await;
        Self { client, program, launch, directory }
    }

    /// SIGKILL, and the same binary on the same files.
    pub async fn killed_and_started(self) -> Self {
        let Self { client, program, launch, directory } = self;
        program.kill();
        client.close().await;
        Self::start_on(launch, directory).await
    }

    /// A connection of its own, as another consumer has.
    pub async fn other_client(&self) -> Client {
        self.program.client().await
    }

    pub fn address(&self) -> &str {
        &self.program.address
    }

    /// What the server has logged.
    pub fn words(&self) -> String {
        self.program.words()
    }

    pub fn data(&self) -> PathBuf {
        self.launch.data.clone()
    }

    /// What a command prints and how it ends.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.program.command(arguments).output().unwrap()
    }

    /// What a command that must succeed prints.
    pub fn json(&self, arguments: &[&str]) -> serde_json::Value {
        json_of(&self.run(arguments))
    }

    pub async fn create(&self, queue: &str, settings: SettingsPatch) -> QueueInfo {
        self.client.create_queue(queue, settings).await.unwrap()
    }

    pub async fn push(&self, queue: &str, partition: &str, payloads: &[&str]) -> PushReply {
        self.client.push(&push_of(queue, partition, payloads)).await.unwrap()
    }

    pub async fn push_messages(&self, queue: &str, partition: &str, messages: Vec<Message>) -> Vec<PushResult> {
        let request = PushRequest { items: PushItem::Messages(messages), ..push_of(queue, partition, &[]) };
        results_of(&self.client.push(&request).await.unwrap())
    }

    pub async fn pop_as(&self, request: &PopRequest) -> Taken {
        taken(&self.client, request, Duration::ZERO).await
    }

    /// A pop of any partition, by a group that starts at the beginning.
    pub async fn pop(&self, queue: &str, group: &str, count: u32) -> Taken {
        self.pop_as(&pop_of(queue, group, count)).await
    }

    /// Waits for messages on a connection of its own; returns when the server knows that somebody waits.
    pub async fn waiting(&self, request: &PopRequest) -> Waiting {
        let before = self.client.stats().await.unwrap().waiting_pops;
        let (client, request) = (self.other_client().await, request.clone());
        let pop = tokio::spawn(async move { client.pop(&request, PATIENCE).await });
        eventually(async || (self.client.stats().await.unwrap().waiting_pops > before).then_some(())).await;
        assert!(!pop.is_finished(), "there was something already");
        Waiting(pop)
    }

    pub async fn ack(&self, taken: &Taken, items: &[(u64, AckVerb)]) -> AckReply {
        self.client.ack(&taken.ack_of(items)).await.unwrap()
    }

    /// Pops once and completes everything; the payloads.
    pub async fn take(&self, queue: &str, group: &str, count: u32) -> Vec<String> {
        let taken = self.pop(queue, group, count).await;
        for claim in &taken.reply.claims {
            let last = messages_of(claim.batches.clone()).unwrap().last().unwrap().offset;
            let items = [(last, AckVerb::Completed)];
            let reply = self.client.ack(&ack_of(claim, &taken.group, taken.lease(), &items)).await.unwrap();
            assert_eq!(refusals(&reply), [None], "{reply:?}");
        }
        taken.payloads()
    }

    /// Takes until nothing is left.
    pub async fn drain(&self, queue: &str, group: &str) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            let some = self.take(queue, group, 100).await;
            if some.is_empty() {
                return all;
            }
            all.extend(some);
        }
    }

    pub async fn lag(&self, queue: &str, group: &str) -> u64 {
        self.client.group(queue, name_of(group)).await.unwrap().lag
    }

    pub async fn cursor(&self, queue: &str, group: &str, partition: &str) -> CursorProgress {
        let cursors = self.client.progress(queue, name_of(group), None, 1_000).await.unwrap();
        cursors.into_iter().find(|cursor| cursor.partition == partition).unwrap()
    }

    /// Dead letters of a queue, the oldest first.
    pub async fn letters(&self, queue: &str) -> Vec<DeadLetter> {
        let query = DeadLetterQuery { queue: Some(queue.to_owned()), limit: 100, ..DeadLetterQuery::default() };
        let mut letters = self.client.dead_letters(&query).await.unwrap().letters;
        letters.sort_by_key(|letter| letter.id);
        letters
    }

    pub async fn message(&self, queue: &str, partition: &str, offset: u64) -> MessageView {
        let partition = PartitionSelector::Name(partition.to_owned());
        self.client.message(queue, partition, AckTarget::Offset(offset)).await.unwrap()
    }

    /// The oldest offset kept and the one after the newest.
    pub async fn bounds(&self, queue: &str, partition: &str) -> (u64, u64) {
        let found = self.client.partition(queue, partition).await.unwrap();
        (found.start, found.end)
    }

    pub async fn stats(&self, queue: &str) -> QueueStats {
        self.client.queue(queue).await.unwrap().stats
    }

    pub async fn declare(&self, queue: &str, group: &str, filter: &str) -> GroupInfo {
        let declaration = GroupDeclaration { filter: filter.to_owned(), ..GroupDeclaration::default() };
        self.client.declare_group(queue, group, declaration).await.unwrap()
    }

    pub async fn update(&self, queue: &str, group: &str, patch: GroupPatch) -> GroupInfo {
        self.client.update_group(queue, name_of(group), patch).await.unwrap()
    }

    pub async fn set_filter(&self, queue: &str, group: &str, filter: &str) -> GroupInfo {
        self.update(queue, group, GroupPatch { filter: Some(filter.to_owned()), ..GroupPatch::default() }).await
    }

    pub async fn set_enabled(&self, queue: &str, group: &str, is_enabled: bool) -> GroupInfo {
        self.update(queue, group, GroupPatch { is_enabled: Some(is_enabled), ..GroupPatch::default() }).await
    }

    pub async fn seek(&self, queue: &str, group: &str, target: SeekTarget) -> Vec<SeekPreview> {
        self.client.seek(seek_of(queue, group, target), 1_000).await.unwrap().cursors
    }
}

/// HTTP, for what is only said there.
#[cfg(feature = "http")]
impl Server {
    /// Sends a request with a connection of its own; the status and the body.
    pub async fn http(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(self.program.http.as_ref().unwrap()).await.unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.0\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    /// A counter of a queue as Prometheus is told it.
    pub async fn metric(&self, name: &str, queue: &str) -> f64 {
        let (_, text) = self.http("GET", "/metrics/prometheus", "").await;
        let start = format!("fanlog_{name}_total{{queue=\"{queue}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_else(|| panic!("{start} is not there")).parse().unwrap()
    }
}

/// What a pop took, and for whom.
#[derive(Debug)]
pub struct Taken {
    pub group: Option<String>,
    pub reply: PopReply,
}

impl Taken {
    pub fn lease(&self) -> &str {
        &self.reply.lease_id
    }

    /// The only claim.
    pub fn claim(&self) -> &Claim {
        assert_eq!(self.reply.claims.len(), 1, "{:?}", self.reply);
        &self.reply.claims[0]
    }

    pub fn messages(&self) -> Vec<StoredMessage> {
        self.reply.claims.iter().flat_map(|claim| messages_of_claim(claim).unwrap()).collect()
    }

    pub fn payloads(&self) -> Vec<String> {
        self.messages().iter().map(|message| String::from_utf8(message.payload.to_vec()).unwrap()).collect()
    }

    pub fn offsets(&self) -> Vec<u64> {
        self.messages().iter().map(|message| message.offset).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.reply.claims.is_empty()
    }

    pub fn ack_of(&self, items: &[(u64, AckVerb)]) -> AckRequest {
        ack_of(self.claim(), &self.group, self.lease(), items)
    }
}

/// A pop that waits.
pub struct Waiting(tokio::task::JoinHandle<client::Result<PopReply>>);

impl Waiting {
    /// What it was woken for.
    pub async fn woken(self) -> PopReply {
        let reply = self.ended().await.unwrap();
        assert!(!reply.claims.is_empty());
        reply
    }

    /// How it ended, with messages or without.
    pub async fn ended(self) -> client::Result<PopReply> {
        tokio::time::timeout(AT_ONCE, self.0).await.expect("it was not woken").unwrap()
    }
}

pub async fn taken(client: &Client, request: &PopRequest, wait: Duration) -> Taken {
    Taken { group: request.group.clone(), reply: client.pop(request, wait).await.unwrap() }
}

/// A group's name as requests have it: the primary group has none.
pub fn name_of(group: &str) -> Option<&str> {
    (group != PRIMARY_GROUP).then_some(group)
}

pub fn pop_of(queue: &str, group: &str, count: u32) -> PopRequest {
    let group = name_of(group).map(str::to_owned);
    PopRequest { group, start: Some(Start::Beginning), partitions_max: 64, ..PopRequest::any(queue, count) }
}

pub fn pinned_pop_of(queue: &str, partition: &str, group: &str, count: u32) -> PopRequest {
    let source = PopSource::Partition { queue: queue.to_owned(), partition: partition.to_owned() };
    PopRequest { source, ..pop_of(queue, group, count) }
}

pub fn push_of(queue: &str, partition: &str, payloads: &[&str]) -> PushRequest {
    let messages = payloads.iter().map(|payload| Message::new(payload.as_bytes().to_vec())).collect();
    PushRequest { queue: queue.to_owned(), partition: partition.to_owned(), items: PushItem::Messages(messages), producer: None }
}

/// A message with an id, which is its payload too.
pub fn with_id(id: &str) -> Message {
    Message { transaction_id: Some(id.to_owned()), ..Message::new(id.as_bytes().to_vec()) }
}

/// A message with attributes, whose JSON is its payload too.
pub fn with_attributes(json: &str) -> Message {
    Message { attributes: Attributes::from_json(json).unwrap(), ..Message::new(json.as_bytes().to_vec()) }
}

/// Messages with the attribute `k`: one for each letter, which is the payload too.
pub fn letters_of(keys: &str) -> Vec<Message> {
    let of = |key: char| {
        let mut attributes = Attributes::new();
        attributes.insert("k", key.to_string().as_str()).unwrap();
        Message { attributes, ..Message::new(key.to_string()) }
    };
    keys.chars().map(of).collect()
}

pub fn ack_of(claim: &Claim, group: &Option<String>, lease: &str, items: &[(u64, AckVerb)]) -> AckRequest {
    let item = |&(offset, verb)| AckItem { target: AckTarget::Offset(offset), verb, reason: String::new(), delay_ms: 0 };
    AckRequest {
        queue: claim.queue.clone(),
        partition_id: claim.partition_id,
        group: group.clone(),
        lease_id: lease.to_owned(),
        items: items.iter().map(item).collect(),
    }
}

pub fn seek_of(queue: &str, group: &str, target: SeekTarget) -> SeekRequest {
    SeekRequest { queue: queue.into(), group: name_of(group).map(str::to_owned), partition: None, target, is_preview: false }
}

pub fn results_of(reply: &PushReply) -> Vec<PushResult> {
    (0..reply.results.len()).filter_map(|index| reply.results.get(index)).collect()
}

/// The codes with which the items of an acknowledgement were refused.
pub fn refusals(reply: &AckReply) -> Vec<Option<ErrorCode>> {
    reply.outcomes.iter().map(|outcome| outcome.refused.as_ref().map(|error| error.code)).collect()
}

/// The code that a call was refused with.
pub fn refused<T: std::fmt::Debug>(outcome: client::Result<T>) -> ErrorCode {
    outcome.unwrap_err().code().expect("the server's code")
}

pub fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

/// Returns when the clock is past a time.
pub async fn clock_passes(time_us: u64) {
    eventually(async || (now_us() > time_us).then_some(())).await;
}

/// Asks again and again until the answer is there.
pub async fn eventually<T>(mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = attempt().await {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "it never held");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
