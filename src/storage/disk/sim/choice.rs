//! Who decides what a crash keeps: chance, one of the two extremes, or a count through all cases.

use super::Random;

/// What a decision is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// The bytes of one sector.
    Sector,
    /// The length of a file.
    Length,
    /// What a name in a directory stands for.
    Name,
}

/// Decides the fate of unsynced changes.
pub(super) trait Choice {
    /// How many of the changes to one unit reach the disk, oldest first: 0 for none, `steps.len()` for all. `steps` are the
    /// numbers of the calls that made them, ascending.
    fn kept(&mut self, unit: Unit, steps: &[u64]) -> usize;

    /// A place inside a sector at which its old and new bytes meet, and whether the new ones come first.
    fn tear(&mut self, _sector_bytes: usize) -> Option<(usize, bool)> {
        None
    }

    /// What an unwritten sector beyond the synced length holds, if not zeros.
    fn garbage(&mut self) -> Option<u8> {
        None
    }
}

/// Nothing unsynced reaches the disk.
pub(super) struct KeepNothing;

impl Choice for KeepNothing {
    fn kept(&mut self, _unit: Unit, _steps: &[u64]) -> usize {
        0
    }
}

/// What a crash by chance may do beyond losing and reordering whole sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CrashModel {
    /// A sector may be half old and half new. Drives promise otherwise; some break it.
    pub tears_sectors: bool,
    /// Sectors beyond the synced length that were never written out may hold anything. Journalling file systems promise zeros.
    pub leaves_garbage: bool,
}

/// Chance, in one of several moods: independent decisions alone would hardly ever keep, or lose, a long write whole.
pub(super) struct Chance {
    random: Random,
    model: CrashModel,
    sectors: Mood,
    lengths: Mood,
    names: Mood,
}

#[derive(Clone, Copy)]
enum Mood {
    /// Each unit keeps all its changes in so many of eight cases, else any number of them.
    Mixed { eighths: u64 },
    /// What was done before this call is kept, what came after is lost, and the call itself may be half done.
    Ordered { cut: u64 },
}

impl Chance {
    /// `first` and `last` are the numbers of the calls that a cut can fall on.
    pub(super) fn new(seed: u64, model: CrashModel, first: u64, last: u64) -> Self {
        let mut random = Random::new(seed);
        let cut = first + random.below((last.saturating_sub(first)).saturating_add(2));
        let is_ordered_throughout = random.chance(1, 4);
        let mut mood = || {
            if is_ordered_throughout || random.chance(1, 4) {
                Mood::Ordered { cut }
            } else {
                Mood::Mixed { eighths: random.below(9) }
            }
        };
        let (sectors, lengths, names) = (mood(), mood(), mood());
        Self { random, model, sectors, lengths, names }
    }
}

impl Choice for Chance {
    fn kept(&mut self, unit: Unit, steps: &[u64]) -> usize {
        let mood = match unit {
            Unit::Sector => self.sectors,
            Unit::Length => self.lengths,
            Unit::Name => self.names,
        };
        match mood {
            Mood::Mixed { eighths } if self.random.chance(eighths, 8) => steps.len(),
            Mood::Mixed { .. } => self.random.index(steps.len() + 1),
            Mood::Ordered { cut } => {
                let before = steps.partition_point(|&step| step < cut);
                let is_hit = steps.get(before) == Some(&cut);
                before + usize::from(is_hit && self.random.chance(1, 2))
            }
        }
    }

    fn tear(&mut self, sector_bytes: usize) -> Option<(usize, bool)> {
        let is_torn = self.model.tears_sectors && self.random.chance(1, 4);
        is_torn.then(|| (self.random.index(sector_bytes), self.random.chance(1, 2)))
    }

    fn garbage(&mut self) -> Option<u8> {
        let is_garbage = self.model.leaves_garbage && self.random.chance(1, 4);
        is_garbage.then(|| self.random.number() as u8)
    }
}

/// Counts through every combination of decisions, like the wheels of an odometer.
#[derive(Debug, Default)]
pub(super) struct Odometer {
    wheels: Vec<Wheel>,
    position: usize,
}

#[derive(Debug)]
struct Wheel {
    at: usize,
    last: usize,
}

impl Odometer {
    /// Moves to the next combination; `false` after the last.
    pub(super) fn advance(&mut self) -> bool {
        self.position = 0;
        while let Some(wheel) = self.wheels.last_mut() {
            if wheel.at < wheel.last {
                wheel.at += 1;
                return true;
            }
            self.wheels.pop();
        }
        false
    }
}

impl Choice for Odometer {
    fn kept(&mut self, _unit: Unit, steps: &[u64]) -> usize {
        if self.position == self.wheels.len() {
            self.wheels.push(Wheel { at: 0, last: steps.len() });
        }
        let at = self.wheels.get(self.position).map_or(0, |wheel| wheel.at);
        self.position += 1;
        at
    }
}
