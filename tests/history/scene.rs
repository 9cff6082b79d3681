//! What a history is about: queues, partitions, groups with random filters, and messages that each are one of their kind.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use fanlog::model::StoredMessage;
use fanlog::record::{Attributes, Message};

use crate::filter_model::{self, Expression, Literal, Source};
use crate::history::{Content, Group, Kind, Lane, Sent};
use crate::random::Random;

/// The queue that most groups read.
pub const SOURCE: &str = "source";
/// Queues that transactions push into.
pub const TARGETS: [&str; 2] = ["first", "second"];
/// Partitions of each queue.
pub const PARTITIONS: [&str; 3] = ["a", "b", "c"];

pub const ORDERED: usize = 0;
pub const SHARED: usize = 1;
pub const SEEKING: usize = 2;
pub const ONCE: usize = 3;
pub const MOVER: usize = 4;
pub const STREAM: usize = 5;
pub const SINKS: [usize; 2] = [6, 7];

/// The groups, by those numbers, with their queues.
const GROUPS: [(&str, &str, Kind); 8] = [
    ("ordered", SOURCE, Kind::Ordered),
    ("shared", SOURCE, Kind::Shared),
    ("seeking", SOURCE, Kind::Ordered),
    ("once", SOURCE, Kind::AtMostOnce),
    ("mover", SOURCE, Kind::Ordered),
    ("stream", SOURCE, Kind::Ordered),
    ("first-sink", TARGETS[0], Kind::Ordered),
    ("second-sink", TARGETS[1], Kind::Shared),
];

/// Groups as the history describes them.
pub fn groups() -> Vec<Group> {
    GROUPS.iter().enumerate().map(|(index, &(name, _, kind))| Group { name, kind, is_mover: index == MOVER }).collect()
}

/// A filter: as text, and as something that can be evaluated here. Without an expression it takes everything.
#[derive(Debug)]
pub struct Rule {
    pub queue: &'static str,
    pub name: &'static str,
    pub is_shared: bool,
    pub filter: String,
    expression: Option<Expression>,
}

/// Attributes of a message and the groups that take them, for each queue.
#[derive(Debug)]
struct Kin {
    attributes: Attributes,
    takers: Vec<usize>,
}

#[derive(Debug)]
pub struct Scene {
    seed: u64,
    pub rules: Vec<Rule>,
    kin: Vec<Kin>,
    next: AtomicU64,
}

impl Scene {
    pub fn new(seed: u64, random: &mut Random) -> Self {
        let attributes: Vec<_> = (0..300).map(|_| filter_model::pairs(&mut Source::new(&some_bytes(random)))).collect();
        let rules: Vec<_> = GROUPS
            .iter()
            .map(|&(name, queue, kind)| {
                let is_filtered = queue == SOURCE && random.chance(4, 5);
                let (filter, expression) = if is_filtered { choosy_filter(random, &attributes) } else { Default::default() };
                Rule { queue, name, is_shared: kind == Kind::Shared, filter, expression }
            })
            .collect();
        let kin = attributes.iter().map(|pairs| Kin {
            attributes: filter_model::attributes(pairs),
            takers: (0..rules.len()).filter(|&group| rules[group].takes(pairs)).collect(),
        });
        Self { seed, kin: kin.collect(), rules, next: AtomicU64::new(1) }
    }

    /// A message that there was not before, and what a history says of it. Some have an id.
    pub fn message(&self, queue: &str, is_named: bool, random: &mut Random) -> (Message, Sent) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let kin = &self.kin[random.index(self.kin.len())];
        let mut filler = Random::new(self.seed ^ id);
        let mut payload = id.to_le_bytes().to_vec();
        let words = if filler.chance(1, 20) { 500 } else { filler.below(30) };
        for _ in 0..words {
            payload.extend_from_slice(&filler.number().to_le_bytes());
            payload.extend_from_slice(b"the same");
        }
        let transaction_id = is_named.then(|| format!("id-{id}"));
        let message = Message { transaction_id, attributes: kin.attributes.clone(), payload: payload.into() };
        let content = content(&message.payload, &message.attributes, message.transaction_id.as_deref());
        let takers = kin.takers.iter().copied().filter(|group| self.rules[*group].queue == queue).collect();
        (message, Sent { content, takers })
    }
}

impl Rule {
    fn takes(&self, pairs: &[(&str, Literal)]) -> bool {
        self.expression.as_ref().is_none_or(|expression| filter_model::evaluate(expression, pairs))
    }
}

/// A filter that takes some of the messages and not all.
fn choosy_filter(random: &mut Random, attributes: &[Vec<(&str, Literal)>]) -> (String, Option<Expression>) {
    loop {
        let bytes = some_bytes(random);
        let mut source = Source::new(&bytes);
        let expression = filter_model::expression(&mut source, 3);
        let mut text = String::new();
        filter_model::write(&expression, 0, &mut source, &mut text);
        let taken = attributes.iter().filter(|pairs| filter_model::evaluate(&expression, pairs)).count();
        if (attributes.len() / 4..attributes.len()).contains(&taken) {
            return (text, Some(expression));
        }
    }
}

fn some_bytes(random: &mut Random) -> Vec<u8> {
    (0..20).flat_map(|_| random.number().to_le_bytes()).collect()
}

/// What a message that was read is.
pub fn content_of(message: &StoredMessage) -> Content {
    content(&message.payload, &message.attributes, message.transaction_id.as_deref())
}

pub fn content(payload: &Bytes, attributes: &Attributes, transaction_id: Option<&str>) -> Content {
    let mut digest = DefaultHasher::new();
    (payload, attributes, transaction_id).hash(&mut digest);
    let id = payload.first_chunk().map_or(0, |id| u64::from_le_bytes(*id));
    Content { id, digest: digest.finish() }
}

pub fn lane(queue: &str, partition: &str) -> Lane {
    Lane { queue: queue.to_owned(), partition: partition.to_owned() }
}
