//! Operations, and a maker of random ones.

use super::*;

/// An operation. Numbers choose among what is there, so that an operation means something after others were taken out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Push {
        queue: usize,
        lane: usize,
        items: Vec<Item>,
        is_numbered: bool,
    },
    Resend {
        queue: usize,
        lane: usize,
    },
    /// A numbered push that leaves a number out.
    Gap {
        queue: usize,
        lane: usize,
    },
    Pop {
        queue: usize,
        lane: Option<usize>,
        group: usize,
        max: u32,
        partitions: u32,
        lease_ms: Option<u64>,
        auto_ack: bool,
    },
    /// A pop that says where the group starts if it is its first.
    PopFrom {
        queue: usize,
        group: usize,
        from: Target,
    },
    /// A pop from any queue of the namespace.
    Discover {
        group: usize,
        max: u32,
        partitions: u32,
    },
    Ack {
        choice: u64,
        style: AckStyle,
    },
    Unfenced {
        queue: usize,
        lane: usize,
        group: usize,
        choice: u64,
        verb: AckVerb,
    },
    Extend {
        choice: u64,
    },
    Release {
        choice: u64,
    },
    Transact {
        pushes: Vec<(usize, usize, Item)>,
        acks: Vec<u64>,
    },
    Seek {
        queue: usize,
        group: usize,
        lane: Option<usize>,
        target: Target,
    },
    Declare {
        queue: usize,
        group: usize,
        filter: Option<char>,
        is_earlier: bool,
    },
    Update {
        queue: usize,
        group: usize,
        change: Change,
    },
    Remove {
        queue: usize,
        group: usize,
    },
    RemoveEverywhere {
        group: usize,
    },
    Create {
        queue: usize,
        has_retention: bool,
    },
    Settings {
        queue: usize,
        lease_s: u32,
    },
    Set {
        queue: usize,
        rule: Rule,
    },
    Delete {
        queue: usize,
    },
    Replay {
        queue: usize,
    },
    DropLetter {
        queue: usize,
    },
    Pass {
        is_long: bool,
    },
    /// The wall clock goes back; the steady one does not.
    ClockBack {
        seconds: u64,
    },
    Restart,
    Kill,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckStyle {
    All,
    First,
    Fail,
    Retry,
    RetryLater,
    RejectLast,
    Mixed(u64),
    Stale,
    Beyond,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Beginning,
    End,
    Back(u64),
    Offset(u64),
    /// So many seconds ago.
    Ago(u64),
}

/// A setting that changes what is handed out, kept or given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    DelayedProcessing(u32),
    WindowBuffer(u32),
    RetryLimit(u32),
    DeadLetters(bool),
    NamedGroups(bool),
    Retention(u64),
    MaxWait(u64),
    CompletedRetention(u64),
    RetentionBytes(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Filter(Option<char>),
    Enable(bool),
    Pause(bool),
    Limit(Option<u32>),
}

/// Makes up operations.
pub struct Maker {
    pub random: Random,
    tag: u64,
    /// Bytes of a message at most.
    pub size_max: u64,
}

impl Maker {
    pub fn new(seed: u64, size_max: u64) -> Self {
        Self { random: Random::new(seed), tag: 0, size_max }
    }

    pub fn item(&mut self, has_id: bool) -> Item {
        self.tag += 1;
        let size = self.random.below(self.size_max) as usize;
        let key = if self.random.chance(1, 2) { 'a' } else { 'b' };
        let id = has_id.then(|| format!("id{}", self.random.below(6)));
        Item { tag: self.tag, size, key, id }
    }

    pub fn op(&mut self) -> Op {
        let queue = usize::from(self.random.chance(1, 3));
        let lane = self.random.index(LANES.len());
        let group = self.random.index(GROUPS.len());
        let choice = self.random.number();
        let some_lane = self.random.chance(1, 3).then_some(lane);
        match self.random.below(114) {
            0..=24 => {
                let count = 1 + self.random.index(4);
                // Only queue b has retention by bytes, which takes ids along.
                let has_ids = queue == 0 && self.random.chance(1, 4);
                let items = (0..count).map(|_| self.item(has_ids)).collect();
                Op::Push { queue, lane, items, is_numbered: self.random.chance(1, 3) }
            }
            25..=26 => Op::Resend { queue, lane },
            27..=46 => Op::Pop {
                queue,
                lane: some_lane,
                group,
                max: 1 + self.random.below(6) as u32,
                partitions: 1 + self.random.below(3) as u32,
                lease_ms: self.random.chance(1, 3).then_some(1_500),
                auto_ack: self.random.chance(1, 6),
            },
            47..=64 => {
                let style = match self.random.below(12) {
                    0..=2 => AckStyle::All,
                    3 => AckStyle::First,
                    4..=5 => AckStyle::Fail,
                    6 => AckStyle::Retry,
                    7 => AckStyle::RetryLater,
                    8 => AckStyle::RejectLast,
                    9 => AckStyle::Stale,
                    10 => AckStyle::Beyond,
                    _ => AckStyle::Mixed(self.random.number()),
                };
                Op::Ack { choice, style }
            }
            65..=66 => {
                let verbs = [AckVerb::Completed, AckVerb::Completed, AckVerb::Failed, AckVerb::Reject];
                let verb = verbs[self.random.index(4)];
                Op::Unfenced { queue, lane, group, choice, verb }
            }
            67 => Op::Extend { choice },
            68..=69 => Op::Release { choice },
            70..=75 => {
                let count = self.random.index(4);
                let pushes = (0..count)
                    .map(|_| {
                        let queue = self.random.index(QUEUES.len());
                        let has_id = queue == 0 && self.random.chance(1, 3);
                        (queue, self.random.index(LANES.len()), self.item(has_id))
                    })
                    .collect();
                let acks = (0..self.random.below(3)).map(|_| self.random.number()).collect();
                Op::Transact { pushes, acks }
            }
            76..=79 => {
                let target = match self.random.below(6) {
                    0 => Target::Beginning,
                    1 => Target::End,
                    2 | 3 => Target::Back(self.random.below(5)),
                    4 => Target::Ago(self.random.below(300)),
                    _ => Target::Offset(self.random.below(20)),
                };
                Op::Seek { queue, group, lane: some_lane, target }
            }
            80..=82 => {
                let filter = self.random.chance(1, 2).then_some('b');
                Op::Declare { queue, group, filter, is_earlier: self.random.chance(1, 2) }
            }
            83..=86 => {
                let change = match self.random.below(8) {
                    0 => Change::Filter(Some('a')),
                    1 => Change::Filter(None),
                    2 => Change::Enable(false),
                    3 | 4 => Change::Enable(true),
                    5 => Change::Pause(self.random.chance(1, 2)),
                    6 => Change::Pause(false),
                    _ => Change::Limit(self.random.chance(1, 2).then_some(2)),
                };
                Op::Update { queue, group, change }
            }
            87 => Op::Remove { queue, group },
            88..=89 => Op::Create { queue, has_retention: queue == 1 },
            90 => Op::Settings { queue, lease_s: 20 + self.random.below(30) as u32 },
            91 => Op::Delete { queue },
            92 => Op::Replay { queue },
            93 => Op::DropLetter { queue },
            94..=96 => Op::Pass { is_long: self.random.chance(1, 3) },
            97..=98 => Op::Restart,
            99..=100 => {
                let from = match self.random.below(4) {
                    0 => Target::Beginning,
                    1 => Target::End,
                    2 => Target::Ago(self.random.below(300)),
                    _ => Target::Offset(self.random.below(20)),
                };
                Op::PopFrom { queue, group, from }
            }
            101..=103 => {
                Op::Discover { group, max: 1 + self.random.below(8) as u32, partitions: 1 + self.random.below(5) as u32 }
            }
            104 => Op::RemoveEverywhere { group },
            105 => Op::Gap { queue, lane },
            106 => Op::ClockBack { seconds: self.random.below(30) },
            107..=112 => Op::Set { queue, rule: self.rule(queue) },
            _ => Op::Kill,
        }
    }

    fn rule(&mut self, queue: usize) -> Rule {
        let is_off = self.random.chance(1, 2);
        let or_off = |value: u64| if is_off { 0 } else { value };
        // What takes messages away by a rule is for queue b: retention by bytes takes ids along.
        match self.random.below(if queue == 0 { 5 } else { 9 }) {
            0 => Rule::DelayedProcessing(or_off(3) as u32),
            1 => Rule::WindowBuffer(or_off(3) as u32),
            2 => Rule::RetryLimit(self.random.below(4) as u32),
            3 => Rule::DeadLetters(!is_off),
            4 => Rule::NamedGroups(self.random.chance(3, 4)),
            5 => Rule::Retention(or_off(RETENTION_S)),
            6 => Rule::MaxWait(or_off(150)),
            7 => Rule::CompletedRetention(or_off(1 + self.random.below(60))),
            _ => Rule::RetentionBytes(or_off(2 << 20)),
        }
    }
}
