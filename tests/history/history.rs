//! What clients saw: each call with the time before it, the time after it, and what came of it. All times are of one clock.

use fanlog::model::AckVerb;

/// Microseconds since the history began.
pub type Time = u64;

/// A partition of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane {
    pub queue: String,
    pub partition: String,
}

/// Where a message lies.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub lane: Lane,
    pub offset: u64,
}

/// Which message it is, and a digest of all of it: payload, attributes and id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Content {
    pub id: u64,
    pub digest: u64,
}

/// A message as it was given to a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    pub content: Content,
    /// The groups that must get it, by their index in the history, as an evaluation apart from the server says.
    pub takers: Vec<usize>,
}

/// How a group takes messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One consumer at a time in each partition, in order.
    Ordered,
    /// Many consumers in a partition.
    Shared,
    /// Delivered is done.
    AtMostOnce,
}

/// A group of consumers of one queue.
#[derive(Debug, Clone)]
pub struct Group {
    pub name: &'static str,
    pub kind: Kind,
    /// Whether it acknowledges in transactions only, each of which requires its lease.
    pub is_mover: bool,
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The server said that nothing happened.
    Refused(String),
    /// It may have happened, may happen later, or never.
    Unknown(String),
}

/// What the answer said of a message of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    At(u64),
    /// It was there before.
    Already(u64),
    /// No group takes it.
    Dropped,
}

/// The part of a push or transaction that goes into one partition.
#[derive(Debug, Clone)]
pub struct Part {
    pub lane: Lane,
    pub sent: Vec<Sent>,
    /// One for each message if the call was done, else none.
    pub results: Vec<Stored>,
}

/// What the answer said of an item of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// No answer.
    Unanswered,
    Refused,
    /// It was settled before.
    Before,
    Now,
    DeadLetter,
}

/// What is said of messages of one partition under a lease.
#[derive(Debug, Clone)]
pub struct Ack {
    pub group: usize,
    pub lane: Lane,
    pub lease: String,
    pub items: Vec<(u64, AckVerb, Settled)>,
    /// The cursor in the answer: all below it is done.
    pub next: Option<u64>,
}

/// Messages of one partition.
#[derive(Debug, Clone)]
pub struct Claim {
    pub lane: Lane,
    pub messages: Vec<(u64, Content)>,
}

/// What was asked, with what was answered.
#[derive(Debug, Clone)]
pub enum Call {
    /// Pushes and acknowledgements that happen all or not at all; a single push is one too.
    Write {
        parts: Vec<Part>,
        acks: Vec<Ack>,
    },
    Pop {
        group: usize,
        /// Messages at most.
        most: u64,
        /// Empty if nothing is leased.
        lease: String,
        lease_us: u64,
        claims: Vec<Claim>,
    },
    Ack(Ack),
    Extend {
        lease: String,
        lease_us: u64,
        /// Partitions whose lease was renewed.
        renewed: usize,
    },
    Release {
        lease: String,
    },
    /// Moves a group, in one partition or in all.
    Seek {
        group: usize,
        partition: Option<String>,
        is_to_beginning: bool,
    },
    /// Reads all messages of `from..next` without a group.
    Read {
        lane: Lane,
        from: u64,
        next: u64,
        /// Whether `next` was the end.
        is_to_end: bool,
        messages: Vec<(u64, Content)>,
    },
    /// All dead letters, with the groups that gave them up.
    Letters(Vec<(usize, Place, Content)>),
}

/// A call of a client.
#[derive(Debug, Clone)]
pub struct Event {
    pub client: String,
    /// Just before the call.
    pub invoked: Time,
    /// Just after it.
    pub ended: Time,
    pub outcome: Outcome,
    pub call: Call,
}

impl Event {
    pub fn is_done(&self) -> bool {
        self.outcome == Outcome::Done
    }

    pub fn may_have_happened(&self) -> bool {
        !matches!(self.outcome, Outcome::Refused(_))
    }

    /// The acknowledgements in it.
    pub fn acks(&self) -> &[Ack] {
        match &self.call {
            Call::Ack(ack) => std::slice::from_ref(ack),
            Call::Write { acks, .. } => acks,
            _ => &[],
        }
    }

    /// The pushes in it.
    pub fn parts(&self) -> &[Part] {
        match &self.call {
            Call::Write { parts, .. } => parts,
            _ => &[],
        }
    }
}

/// All of it. At its end faults are over, every group has been read and settled to the end, all partitions were read and the dead
/// letters listed.
#[derive(Debug, Clone, Default)]
pub struct History {
    pub groups: Vec<Group>,
    pub events: Vec<Event>,
    /// When the server was killed: just before, and when it was surely dead.
    pub kills: Vec<(Time, Time)>,
}

impl History {
    /// The last moment at which an event can have its effect.
    pub fn latest_effect(&self, event: &Event) -> Time {
        match event.outcome {
            Outcome::Done | Outcome::Refused(_) => event.ended,
            // What nobody waits for any more may lie in some buffer, until whoever would read it is dead.
            Outcome::Unknown(_) => {
                self.kills.iter().filter(|kill| kill.0 >= event.ended).map(|kill| kill.1).min().unwrap_or(Time::MAX)
            }
        }
    }
}
