//! SIGKILL under load, again and again, with a record of what was promised.
//!
//! `FANLOG_KILLS` says how often (3 without it), `FANLOG_SEED` repeats the random choices; timing is the machine's.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fanlog::client::Client;
use fanlog::model::SettingsPatch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::program::{Launch, PATIENCE, Program, lasting_port};
use crate::random::{Random, random_from_environment};
use crate::record::{Identity, Place, Record};
use crate::traffic::{GROUPS, MOVER, ORDERED, PARTITIONS, Queues, STREAM, Scene};

/// Kills of one generation of queues; then they are checked a last time and deleted, so that reading everything after each kill
/// stays cheap.
const KILLS_OF_A_GENERATION: u64 = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_under_load_lose_nothing_and_undo_nothing() {
    let kills: u64 = std::env::var("FANLOG_KILLS").ok().map_or(3, |text| text.parse().expect("FANLOG_KILLS is a number"));
    let (seed, mut random) = random_from_environment();
    let directory = tempfile::tempdir().unwrap();
    let launch = Launch::in_directory(directory.path()).port(lasting_port(seed));
    let started = Instant::now();
    let mut program = launch.start();
    let (mut done, mut generation, mut restart_slowest) = (0, 0, Duration::ZERO);
    let mut totals = (0, 0, 0);
    while done < kills {
        let queues = Queues::of(generation);
        let setup = program.client().await;
        for queue in queues.all() {
            // Small segments, so that kills meet rolls, seals and checkpoints.
            let settings = SettingsPatch { segment_bytes_max: Some(1 << 20), lease_time_s: Some(3), ..SettingsPatch::default() };
            setup.create_queue(queue, settings).await.unwrap();
        }
        let mut load = Load::start(&program, queues.clone(), &mut random).await;
        for _ in 0..KILLS_OF_A_GENERATION.min(kills - done) {
            load.go_on(50 + random.below(450)).await;
            program.kill();
            done += 1;
            while random.below(4) == 0 {
                let starting = launch.spawn();
                tokio::time::sleep(Duration::from_millis(random.below(60))).await;
                starting.kill();
                done += 1;
            }
            let restarted = Instant::now();
            program = launch.start();
            restart_slowest = restart_slowest.max(restarted.elapsed());
            check(&program.client().await, &load.scene).await;
            load.go_on(0).await;
        }
        let record = load.finish(&program).await;
        let all = record.totals();
        totals = (totals.0 + all.receipts, totals.1 + all.acknowledgements, totals.2 + all.messages);
        println!("{done} kills, {all:?}, slowest restart {restart_slowest:?}, {:?}", started.elapsed());
        for queue in queues.all() {
            assert!(program.client().await.delete_queue(queue).await.unwrap());
        }
        generation += 1;
    }
    program.stop();
    println!(
        "{done} kills in {:?}: {} receipts, {} acknowledgements, {} messages checked after each kill; slowest restart {restart_slowest:?}",
        started.elapsed(),
        totals.0,
        totals.1,
        totals.2
    );
}

/// Producers and consumers at work.
struct Load {
    scene: Scene,
    producing: CancellationToken,
    producers: JoinSet<()>,
    consumers: JoinSet<()>,
}

impl Load {
    async fn start(program: &Program, queues: Queues, random: &mut Random) -> Self {
        let client = program.builder().request_timeout(Duration::from_secs(20)).connect().await.unwrap();
        let scene = Scene { client, record: Arc::new(Record::default()), queues, stopping: CancellationToken::new() };
        let producing = CancellationToken::new();
        let (mut producers, mut consumers) = (JoinSet::new(), JoinSet::new());
        let at_producers = Scene { stopping: producing.clone(), ..scene.clone() };
        at_producers.start_producers(&mut producers, random);
        scene.start_consumers(&mut consumers, random);
        Self { scene, producing, producers, consumers }
    }

    /// Lets it work for a while. Nobody may end.
    async fn go_on(&mut self, milliseconds: u64) {
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
        for tasks in [&mut self.producers, &mut self.consumers] {
            if let Some(ended) = tasks.try_join_next() {
                ended.unwrap();
                panic!("a task ended by itself");
            }
        }
    }

    /// Stops the producers, lets every group read everything, and checks what only holds then.
    async fn finish(mut self, program: &Program) -> Arc<Record> {
        self.producing.cancel();
        join_all(&mut self.producers).await;
        let client = program.client().await;
        let started = Instant::now();
        loop {
            self.go_on_consuming().await;
            let groups = client.groups(Some(&self.scene.queues.source)).await.unwrap();
            let behind: Vec<_> = groups
                .iter()
                .filter(|group| GROUPS.contains(&group.group.name.as_str()) && group.lag > 0)
                .map(|group| (&group.group.name, group.lag))
                .collect();
            if behind.is_empty() {
                break;
            }
            assert!(started.elapsed() < PATIENCE, "groups do not reach the end: {behind:?}");
        }
        self.scene.stopping.cancel();
        join_all(&mut self.consumers).await;
        let logs = check(&client, &self.scene).await;
        let [source, first, second] = self.scene.queues.all().map(|queue| sorted(&logs[queue]));
        assert_eq!(first, source, "each message is moved once, into the first target");
        assert_eq!(second, source, "and into the second");
        for place in logs[&self.scene.queues.source].keys() {
            for group in GROUPS {
                assert!(self.scene.record.was_delivered(group, place), "group {group} never got {place:?}");
            }
        }
        self.scene.record
    }

    async fn go_on_consuming(&mut self) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if let Some(ended) = self.consumers.try_join_next() {
            ended.unwrap();
            panic!("a consumer ended by itself");
        }
    }
}

async fn join_all(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tokio::time::timeout(PATIENCE, tasks.join_next()).await.expect("tasks end") {
        ended.unwrap();
    }
}

fn sorted(log: &BTreeMap<Place, Identity>) -> Vec<Identity> {
    let mut identities: Vec<_> = log.values().copied().collect();
    identities.sort_unstable();
    identities
}

/// Reads all of the logs and compares them with what was promised before; returns them.
async fn check(client: &Client, scene: &Scene) -> HashMap<String, BTreeMap<Place, Identity>> {
    let mut logs = HashMap::new();
    for queue in scene.queues.all() {
        let promised = scene.record.messages_of(queue);
        let log = read(client, &scene.record, queue).await;
        for (place, identity) in promised {
            assert_eq!(log.get(&place), Some(&identity), "{place:?} was promised to be {identity:?}");
        }
        logs.insert(queue.to_owned(), log);
    }
    for group in [ORDERED, STREAM, MOVER] {
        let promised = scene.record.cursors(group, &scene.queues.source);
        let cursors = client.progress(&scene.queues.source, Some(group), None, 1_000).await;
        let cursors = if promised.is_empty() { cursors.unwrap_or_default() } else { cursors.unwrap() };
        let cursors: BTreeMap<_, _> = cursors.into_iter().map(|cursor| (cursor.partition, cursor.next)).collect();
        for (partition, next) in promised {
            let now = cursors.get(&partition).copied();
            assert!(now >= Some(next), "group {group} was told that {partition} is done below {next}, the cursor is at {now:?}");
        }
    }
    logs
}

/// Reads a queue: every offset above the one before, every producer's messages of a partition in its order.
async fn read(client: &Client, record: &Record, queue: &str) -> BTreeMap<Place, Identity> {
    let mut log = BTreeMap::new();
    let partitions = client.partitions(queue, None, 1_000).await.unwrap();
    assert!(partitions.len() as u64 <= PARTITIONS);
    for partition in partitions {
        let mut reader = client.reader(queue, partition.name.as_str()).to_offset(partition.end).build().await.unwrap();
        let mut last: HashMap<u32, u64> = HashMap::new();
        while let Some(message) = reader.next().await.unwrap() {
            let identity = Identity::of(&message.payload);
            let place = Place { queue: queue.to_owned(), partition: partition.name.clone(), offset: message.offset };
            record.saw(place.clone(), identity);
            if let Some(before) = last.insert(identity.producer, identity.sequence) {
                assert!(before < identity.sequence, "producer {} is out of order at {place:?}", identity.producer);
            }
            assert!(log.insert(place, identity).is_none());
        }
    }
    log
}
