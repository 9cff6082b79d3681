//! One history: a server, its clients, what breaks, and the end, when everything is read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fanlog::client::{Client, Error, messages_of};
use fanlog::model::{
    Compression, DeadLetterQuery, Durability, ErrorCode, FetchRequest, GroupDeclaration, GroupPatch, SeekTarget, SettingsPatch,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::history::{Call, History, Outcome, Place};
use crate::nemesis::{self, Deeds};
use crate::program::{Launch, PATIENCE, Program, lasting_port};
use crate::proxy::Proxy;
use crate::random::Random;
use crate::recorder::Recorder;
use crate::scene::{self, MOVER, ONCE, ORDERED, PARTITIONS, SEEKING, SHARED, SINKS, SOURCE, Scene, TARGETS, content_of, lane};
use crate::worker::Worker;
use crate::{consumers, producers};

/// Messages of one read.
const READ: u32 = 500;

/// A history and how it was made.
#[derive(Debug)]
pub struct Made {
    pub history: History,
    pub deeds: Deeds,
    pub scene: Arc<Scene>,
}

/// Makes a history whose faults last for `faulty`.
pub async fn make(seed: u64, faulty: Duration) -> Made {
    let mut random = Random::new(seed);
    let directory = tempfile::tempdir().unwrap();
    let launch = Launch::in_directory(directory.path()).port(lasting_port(seed));
    let scene = Arc::new(Scene::new(seed, &mut random));
    let mut program = launch.start();
    declare(&program, &scene, &mut random).await;
    let proxy = Proxy::start(program.address.clone()).await;
    let recorder = Arc::new(Recorder::new(scene::groups()));
    let mut crew = Crew::default();
    let mut crew_of = Recruiter { proxy: &proxy, scene: &scene, recorder: &recorder, random: &mut random };
    crew_of.producers(&mut crew).await;
    crew_of.consumers(&mut crew).await;
    let mut deeds = Deeds::default();
    let started = Instant::now();
    while started.elapsed() < faulty {
        tokio::time::sleep(Duration::from_millis(random.below(400))).await;
        program = nemesis::act(program, &launch, &proxy, &recorder, &mut random, &mut deeds).await;
        crew.all_are_there();
    }
    // Whatever is on its way still dies with the server.
    proxy.heal();
    crew.producing.cancel();
    crew.calm.cancel();
    join_all(&mut crew.producers).await;
    program = nemesis::kill(program, &launch, &recorder);
    finish(&program, &scene, &recorder, &mut crew).await;
    let words = program.words();
    assert!(!words.contains("panicked"), "{words}");
    program.stop();
    Made { history: recorder.finish(), deeds, scene }
}

async fn declare(program: &Program, scene: &Scene, random: &mut Random) {
    let client = program.client().await;
    for queue in [SOURCE, TARGETS[0], TARGETS[1]] {
        let durability = [Durability::Sync, Durability::Os, Durability::Interval { milliseconds: 20 }][random.index(3)];
        let compression = if random.chance(1, 2) { Compression::None } else { Compression::Zstd { level: 1 } };
        let settings = SettingsPatch {
            durability: Some(durability),
            compression: Some(compression),
            segment_bytes_max: Some(1 << 20),
            ..SettingsPatch::default()
        };
        client.create_queue(queue, settings).await.unwrap();
        // What no other group takes is not stored.
        let off = GroupPatch { is_enabled: Some(false), ..GroupPatch::default() };
        client.update_group(queue, None, off).await.unwrap();
    }
    for rule in &scene.rules {
        let declaration = GroupDeclaration { filter: rule.filter.clone(), shared: rule.is_shared, ..GroupDeclaration::default() };
        client.declare_group(rule.queue, rule.name, declaration).await.unwrap();
    }
}

/// All clients.
#[derive(Debug, Default)]
struct Crew {
    producers: JoinSet<()>,
    consumers: JoinSet<()>,
    /// Ends producers.
    producing: CancellationToken,
    /// Ends consumers.
    consuming: CancellationToken,
    calm: CancellationToken,
}

impl Crew {
    /// Fails if one has failed.
    fn all_are_there(&mut self) {
        for tasks in [&mut self.producers, &mut self.consumers] {
            while let Some(ended) = tasks.try_join_next() {
                ended.unwrap();
            }
        }
    }
}

/// Makes clients.
struct Recruiter<'a> {
    proxy: &'a Proxy,
    scene: &'a Arc<Scene>,
    recorder: &'a Arc<Recorder>,
    random: &'a mut Random,
}

impl Recruiter<'_> {
    async fn worker(&mut self, name: &str, stopping: &CancellationToken, calm: &CancellationToken) -> Worker {
        let builder = Client::builder(self.proxy.address.clone()).request_timeout(Duration::from_secs(2));
        let client = builder.heartbeat(Duration::from_millis(500)).connect().await.unwrap();
        Worker {
            name: name.to_owned(),
            client,
            scene: Arc::clone(self.scene),
            recorder: Arc::clone(self.recorder),
            random: Random::new(self.random.number()),
            stopping: stopping.clone(),
            calm: calm.clone(),
        }
    }

    async fn producers(&mut self, crew: &mut Crew) {
        let (stopping, calm) = (crew.producing.clone(), crew.calm.clone());
        for number in 0..2 {
            crew.producers.spawn(producers::plain(self.worker(&format!("plain-{number}"), &stopping, &calm).await));
            crew.producers.spawn(producers::transactions(self.worker(&format!("transactions-{number}"), &stopping, &calm).await));
        }
        crew.producers.spawn(producers::numbered(self.worker("numbered", &stopping, &calm).await));
        crew.producers.spawn(producers::named(self.worker("named", &stopping, &calm).await));
        crew.producers.spawn(producers::steady(self.worker("steady", &stopping, &calm).await));
    }

    async fn consumers(&mut self, crew: &mut Crew) {
        let (stopping, calm) = (crew.consuming.clone(), crew.calm.clone());
        for (group, count) in [(ORDERED, 2), (SHARED, 3), (SEEKING, 2), (ONCE, 2), (SINKS[0], 1), (SINKS[1], 1)] {
            for number in 0..count {
                let name = format!("{}-{number}", self.scene.rules[group].name);
                crew.consumers.spawn(consumers::popping(self.worker(&name, &stopping, &calm).await, group));
            }
        }
        for number in 0..2 {
            let name = format!("{}-{number}", self.scene.rules[MOVER].name);
            crew.consumers.spawn(consumers::moving(self.worker(&name, &stopping, &calm).await));
        }
        crew.consumers.spawn(consumers::streaming(self.worker("stream", &stopping, &calm).await));
        crew.producers.spawn(consumers::seeking(self.worker("seeker", &stopping, &calm).await));
        crew.producers.spawn(reading(self.worker("reader", &crew.producing, &calm).await));
    }
}

/// Reads here and there.
async fn reading(mut worker: Worker) {
    while worker.pause(100).await {
        let queue = [SOURCE, TARGETS[0], TARGETS[1]][worker.random.index(3)];
        let partition = PARTITIONS[worker.random.index(PARTITIONS.len())];
        let from = worker.random.below(200);
        read(&worker.client, &worker.recorder, &worker.name, queue, partition, from).await;
    }
}

/// Reads up to the end, or as far as it gets.
async fn read(client: &Client, recorder: &Recorder, name: &str, queue: &str, partition: &str, from: u64) -> Outcome {
    let (mut next, mut messages, mut is_to_end) = (from, Vec::new(), false);
    let reading = async {
        while !is_to_end {
            let request = FetchRequest {
                queue: queue.to_owned(),
                partition: partition.to_owned(),
                from: next,
                to: None,
                messages_max: READ,
                bytes_max: 1 << 20,
            };
            let reply = client.fetch(&request, Duration::ZERO).await?;
            let read = messages_of(reply.batches)?;
            let wanted = read.iter().filter(|message| (next..reply.next).contains(&message.offset));
            messages.extend(wanted.map(|message| (message.offset, content_of(message))));
            is_to_end = reply.next >= reply.end;
            assert!(is_to_end || reply.next > next, "a read does not go on at {next} of {queue} {partition}");
            next = reply.next;
        }
        Ok::<(), Error>(())
    };
    let ended = recorder.timed(reading).await;
    let outcome = ended.outcome();
    let read = Call::Read { lane: lane(queue, partition), from, next, is_to_end, messages };
    recorder.keep(name, ended.invoked, ended.ended, outcome.clone(), read);
    outcome
}

/// Lets every group get everything, and reads all there is.
async fn finish(program: &Program, scene: &Arc<Scene>, recorder: &Arc<Recorder>, crew: &mut Crew) {
    let client = program.client().await;
    let seeker = Worker {
        name: "last".to_owned(),
        client: client.clone(),
        scene: Arc::clone(scene),
        recorder: Arc::clone(recorder),
        random: Random::new(0),
        stopping: crew.producing.clone(),
        calm: crew.calm.clone(),
    };
    assert_eq!(consumers::seek(&seeker, SeekTarget::Beginning, None).await, Outcome::Done);
    let started = Instant::now();
    loop {
        let groups = client.groups(None).await.unwrap();
        let is_ours = |name: &str| scene.rules.iter().any(|rule| rule.name == name);
        let behind: Vec<_> = groups
            .iter()
            .filter(|group| is_ours(&group.group.name) && group.lag > 0)
            .map(|group| (&group.group.name, group.lag, group.leases))
            .collect();
        if behind.is_empty() {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "groups do not reach the end: {behind:?}");
        crew.all_are_there();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    crew.consuming.cancel();
    join_all(&mut crew.consumers).await;
    for queue in [SOURCE, TARGETS[0], TARGETS[1]] {
        for partition in PARTITIONS {
            let outcome = read(&client, recorder, "last", queue, partition, 0).await;
            // Nothing was ever stored there.
            let is_absent = |says: &str| says.starts_with(&format!("{:?}", Some(ErrorCode::UnknownPartition)));
            assert!(matches!(&outcome, Outcome::Done) || matches!(&outcome, Outcome::Refused(says) if is_absent(says)));
        }
    }
    let ended = recorder.timed(letters(&client, scene)).await;
    let outcome = ended.outcome();
    recorder.keep("last", ended.invoked, ended.ended, outcome, Call::Letters(ended.answer.unwrap()));
}

async fn letters(client: &Client, scene: &Scene) -> Result<Vec<(usize, Place, crate::history::Content)>, Error> {
    let mut found = Vec::new();
    loop {
        let query = DeadLetterQuery { queue: None, group: None, limit: 500, skip: found.len() as u32 };
        let page = client.dead_letters(&query).await?;
        if page.letters.is_empty() {
            return Ok(found);
        }
        for letter in page.letters {
            let group = scene.rules.iter().position(|rule| rule.name == letter.group).unwrap();
            let is_own = letter.transaction_id.starts_with("id-").then_some(letter.transaction_id.as_str());
            let content = scene::content(&letter.payload, &letter.attributes, is_own);
            found.push((group, Place { lane: lane(&letter.queue, &letter.partition), offset: letter.offset }, content));
        }
    }
}

async fn join_all(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tokio::time::timeout(PATIENCE, tasks.join_next()).await.expect("tasks end") {
        ended.unwrap();
    }
}
