//! SIGKILL around changes of groups: every message has the decision that held when it was pushed, and no other, ever after.
//!
//! `FANLOG_KILLS` says how often (6 without it), `FANLOG_SEED` repeats the random choices; timing is the machine's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fanlog::client::{Client, messages_of};
use fanlog::model::{
    GroupDeclaration, GroupPatch, GroupState, PRIMARY_GROUP, PopRequest, PushItem, PushRequest, PushResult, SettingsPatch,
};
use fanlog::record::{Attributes, Message};
use rustix::process::Signal;

use crate::program::{Launch, Program};
use crate::random::{Random, random_from_environment};

const QUEUE: &str = "decided";
const PARTITIONS: [&str; 2] = ["p0", "p1"];
/// The primary group first.
const GROUPS: [&str; 4] = [PRIMARY_GROUP, "red", "green", "blue"];
/// Values of the attribute that filters look at.
const KEYS: [&str; 4] = ["a", "b", "c", "d"];

/// What a group takes: keys by their index, or nothing while it is disabled.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    keys: BTreeSet<usize>,
    is_enabled: bool,
}

impl Rule {
    fn takes(&self, key: usize) -> bool {
        self.is_enabled && (self.keys.is_empty() || self.keys.contains(&key))
    }

    /// The filter; empty takes everything.
    fn filter(&self) -> String {
        self.keys.iter().map(|&key| format!(":k = \"{}\"", KEYS[key])).collect::<Vec<_>>().join(" OR ")
    }
}

type Rules = [Rule; 4];

fn is_stored(rules: &Rules, key: usize) -> bool {
    rules.iter().any(|rule| rule.takes(key))
}

/// A push: all of it was decided by one of `rules`.
#[derive(Debug)]
struct Pushed {
    partition: &'static str,
    /// Number and key of each message.
    messages: Vec<(u64, usize)>,
    rules: Vec<Rules>,
    /// Offsets as they were answered; `None` if no answer came.
    answer: Option<Vec<Option<u64>>>,
}

struct Test {
    rules: Rules,
    pushes: Vec<Pushed>,
    /// A change that got no answer before the kill, by group.
    unanswered: Option<(usize, Rule)>,
    random: Random,
    next: u64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_hold_over_kills_right_after_a_change() {
    let kills: u64 = std::env::var("FANLOG_KILLS").ok().map_or(6, |text| text.parse().expect("FANLOG_KILLS is a number"));
    let (_, random) = random_from_environment();
    let directory = tempfile::tempdir().unwrap();
    let launch = Launch::in_directory(directory.path());
    let mut program = launch.start();
    let setup = program.client().await;
    let small = SettingsPatch { segment_bytes_max: Some(1 << 20), ..SettingsPatch::default() };
    setup.create_queue(QUEUE, small).await.unwrap();
    for group in &GROUPS[1..] {
        setup.declare_group(QUEUE, group, GroupDeclaration::default()).await.unwrap();
    }
    let rule = Rule { keys: BTreeSet::new(), is_enabled: true };
    let mut test = Test { rules: std::array::from_fn(|_| rule.clone()), pushes: Vec::new(), unanswered: None, random, next: 0 };
    for kill in 0..kills {
        test.work(&program.client().await).await;
        test.change_and_kill(&program, kill % 2 == 0).await;
        program.kill();
        program = launch.start();
        test.check(&program.client().await).await;
    }
    let messages = test.pushes.iter().map(|push| push.messages.len()).sum::<usize>();
    println!("{kills} kills, {} pushes, {messages} messages", test.pushes.len());
    program.stop();
}

impl Test {
    /// Pushes and changes, one after the other or at once.
    async fn work(&mut self, client: &Client) {
        for _ in 0..10 + self.random.below(20) {
            match self.random.below(4) {
                0 => {
                    let (group, after) = self.next_rule();
                    let (push, request) = self.next_push();
                    let (reply, changed) = tokio::join!(client.push(&request), change(client, group, &after));
                    changed.unwrap();
                    let before = self.rules.clone();
                    self.rules[group] = after;
                    let answer = Some(offsets(&reply.unwrap(), push.messages.len()));
                    self.pushes.push(Pushed { rules: vec![before, self.rules.clone()], answer, ..push });
                }
                1 => {
                    let (group, after) = self.next_rule();
                    change(client, group, &after).await.unwrap();
                    self.rules[group] = after;
                }
                _ => {
                    let (push, request) = self.next_push();
                    let answer = Some(offsets(&client.push(&request).await.unwrap(), push.messages.len()));
                    self.pushes.push(Pushed { rules: vec![self.rules.clone()], answer, ..push });
                }
            }
        }
    }

    /// Changes a group, and kills the server as soon as that is answered or at some moment before; a push is on its way too.
    async fn change_and_kill(&mut self, program: &Program, is_answered: bool) {
        let (client, pusher) = (program.client().await, program.client().await);
        let (group, after) = self.next_rule();
        let (push, request) = self.next_push();
        let before = self.rules.clone();
        let mut changed = before.clone();
        changed[group] = after.clone();
        if is_answered {
            change(&client, group, &after).await.unwrap();
            program.signal(Signal::KILL);
            self.rules = changed;
            return;
        }
        let moment = Duration::from_micros(self.random.below(2_500));
        let killing = async {
            tokio::time::sleep(moment).await;
            program.signal(Signal::KILL);
        };
        let (reply, outcome, ()) = tokio::join!(pusher.push(&request), change(&client, group, &after), killing);
        let answer = reply.ok().map(|reply| offsets(&reply, push.messages.len()));
        self.pushes.push(Pushed { rules: vec![before, changed.clone()], answer, ..push });
        match outcome {
            Ok(()) => self.rules = changed,
            Err(_) => self.unanswered = Some((group, after)),
        }
    }

    /// Reads everything that the server has, and compares it with the record.
    async fn check(&mut self, client: &Client) {
        self.adopt_unanswered_change(client).await;
        let log = read_log(client).await;
        let mut taken: Vec<Option<BTreeSet<u64>>> = Vec::new();
        for (group, rule) in GROUPS.iter().zip(&self.rules) {
            let popped = if rule.is_enabled { Some(pop_all(client, group).await) } else { None };
            taken.push(popped);
        }
        let mut known = BTreeSet::new();
        for push in &mut self.pushes {
            let is_there = push.messages.iter().any(|(number, _)| log.contains_key(number));
            if push.answer.is_none() && !is_there {
                // Never stored, or nothing of it was to be: neither may change later.
                push.messages.clear();
                continue;
            }
            let offset_of = |(number, _): &(u64, usize)| {
                let (partition, offset) = log.get(number)?;
                assert_eq!(partition, push.partition);
                Some(*offset)
            };
            let offsets = push.messages.iter().map(offset_of).collect::<Vec<_>>();
            let answered = push.answer.get_or_insert_with(|| offsets.clone()).clone();
            assert_eq!(answered, offsets, "{push:?}");
            known.extend(push.messages.iter().map(|message| message.0));
            let fits = |rules: &Rules| {
                push.messages.iter().zip(&offsets).all(|(&(number, key), offset)| {
                    let groups = rules.iter().zip(&taken);
                    let mut told = groups.filter_map(|(rule, taken)| Some((rule, taken.as_ref()?)));
                    is_stored(rules, key) == offset.is_some()
                        && told.all(|(rule, taken)| rule.takes(key) == taken.contains(&number))
                })
            };
            // What one look leaves open, the next one must not decide in another way than one before.
            let remaining: Vec<Rules> = push.rules.iter().filter(|rules| fits(rules)).cloned().collect();
            assert!(!remaining.is_empty(), "no rule explains {push:?}: {taken:?}");
            push.rules = remaining;
        }
        assert!(log.keys().all(|number| known.contains(number)), "a push that was not there before is there now");
    }

    /// Without an answer a change may have happened: what the group says after the restart is what holds.
    async fn adopt_unanswered_change(&mut self, client: &Client) {
        let unanswered = self.unanswered.take();
        for (index, (group, rule)) in GROUPS.iter().zip(&mut self.rules).enumerate() {
            let info = client.group(QUEUE, named(group)).await.unwrap().group;
            let found = Rule {
                keys: (0..KEYS.len()).filter(|&key| info.filter.contains(&format!("\"{}\"", KEYS[key]))).collect(),
                is_enabled: info.state != GroupState::Inactive,
            };
            let is_open = unanswered.as_ref().is_some_and(|(changed, after)| *changed == index && *after == found);
            assert!(*rule == found || is_open, "group {group} is {found:?} and was {rule:?}");
            *rule = found;
        }
    }

    /// A group and what it becomes.
    fn next_rule(&mut self) -> (usize, Rule) {
        let group = self.random.below(4) as usize;
        let mut rule = self.rules[group].clone();
        match self.random.below(2) {
            0 if group > 0 => {
                let bits = self.random.below(1 << KEYS.len());
                rule.keys = (0..KEYS.len()).filter(|key| bits & (1 << key) != 0).collect();
            }
            _ => rule.is_enabled = !rule.is_enabled,
        }
        (group, rule)
    }

    fn next_push(&mut self) -> (Pushed, PushRequest) {
        let partition = PARTITIONS[self.random.below(2) as usize];
        let count = 1 + self.random.below(8);
        let messages: Vec<_> = (self.next..self.next + count).map(|number| (number, self.random.below(4) as usize)).collect();
        self.next += count;
        let message = |&(number, key): &(u64, usize)| {
            let mut attributes = Attributes::new();
            attributes.insert("k", KEYS[key]).unwrap();
            Message { attributes, ..Message::new(number.to_string()) }
        };
        let items = PushItem::Messages(messages.iter().map(message).collect());
        let request = PushRequest { queue: QUEUE.into(), partition: partition.into(), items, producer: None };
        (Pushed { partition, messages, rules: Vec::new(), answer: None }, request)
    }
}

/// `None` is the primary group.
fn named(group: &str) -> Option<&str> {
    Some(group).filter(|group| *group != PRIMARY_GROUP)
}

async fn change(client: &Client, group: usize, rule: &Rule) -> Result<(), fanlog::client::Error> {
    let filter = (group > 0).then(|| rule.filter());
    let patch = GroupPatch { filter, is_enabled: Some(rule.is_enabled), ..GroupPatch::default() };
    client.update_group(QUEUE, named(GROUPS[group]), patch).await.map(|_| ())
}

fn offsets(reply: &fanlog::model::PushReply, count: usize) -> Vec<Option<u64>> {
    let offset = |index| match reply.results.get(index).expect("a result for each message") {
        PushResult::Stored(offset) => Some(offset),
        PushResult::Dropped => None,
        PushResult::Duplicate(offset) => panic!("a new message was taken for the one at {offset}"),
    };
    (0..count).map(offset).collect()
}

/// The place of each message, by its number.
async fn read_log(client: &Client) -> BTreeMap<u64, (String, u64)> {
    let mut log = BTreeMap::new();
    for partition in client.partitions(QUEUE, None, 100).await.unwrap() {
        let mut reader = client.reader(QUEUE, partition.name.as_str()).to_offset(partition.end).build().await.unwrap();
        while let Some(message) = reader.next().await.unwrap() {
            let before = log.insert(number_of(&message.payload), (partition.name.clone(), message.offset));
            assert_eq!(before, None, "a message is stored twice");
        }
    }
    log
}

/// All that a group takes; it goes back as if it had never been handed out.
async fn pop_all(client: &Client, group: &str) -> BTreeSet<u64> {
    let request = PopRequest { group: named(group).map(str::to_owned), partitions_max: 64, ..PopRequest::any(QUEUE, 1 << 20) };
    let reply = client.pop(&request, Duration::ZERO).await.unwrap();
    let mut found = BTreeSet::new();
    for claim in reply.claims {
        for message in messages_of(claim.batches).unwrap() {
            assert!(found.insert(number_of(&message.payload)), "a message is handed out twice");
        }
    }
    if !reply.lease_id.is_empty() {
        client.release(&reply.lease_id).await.unwrap();
    }
    found
}

fn number_of(payload: &[u8]) -> u64 {
    std::str::from_utf8(payload).unwrap().parse().unwrap()
}
