//! What a group has left to read of a stretch of offsets, by one definition for lags and for what retention takes.
//!
//! These are the messages that the group takes and has not done. A group that never had a filter and was never disabled takes all, so
//! that counting is a subtraction; for others the index is asked.

use crate::record::{Offset, PartitionId};
use crate::storage::log::{Log, LogError};

use super::cache::BatchCache;
use super::delivery::OffsetSet;
use super::group::{Group, Slot};
use super::partition::Partition;
use super::read::{View, count_taken};
use super::state::State;

/// What is looked at of one cursor while the state is held.
pub(super) struct Unread {
    pub partition: PartitionId,
    /// The first offset of the stretch.
    pub from: Offset,
    /// The offset behind the last.
    pub to: Offset,
    /// The segment to begin in.
    pub hint: u32,
    /// Offsets of the stretch that are done.
    done: OffsetSet,
    /// Offsets of it that are not done and that no message ever had.
    gap: u64,
}

impl Unread {
    /// From where the group stands, or the partition begins, to before `to`.
    pub fn of(state: &State, group: &Group, id: PartitionId, partition: &Partition, log: &Log, to: Offset) -> Self {
        let from = group.next(id, partition, log).max(partition.start);
        let (done, hint) = match group.slot(id) {
            Some(Slot::Plain { hint, .. }) => (OffsetSet::default(), *hint),
            Some(Slot::Active(active)) => (active.delivery.visible().done_above().clone(), active.hint),
            _ => (OffsetSet::default(), 0),
        };
        let gap = done.gaps(from, to).map(|free| state.gap_between(id, free.first, free.last.saturating_add(1))).sum();
        Self { partition: id, from, to, hint: hint.max(partition.first_segment), done, gap }
    }

    /// Messages; `is_unfiltered` as [`Group::is_unfiltered`] has it.
    ///
    /// # Errors
    ///
    /// What cannot be read.
    pub fn count(&self, log: &Log, cache: &BatchCache, view: &View, is_unfiltered: bool) -> Result<u64, LogError> {
        if self.from >= self.to {
            return Ok(0);
        }
        if is_unfiltered {
            return Ok(self.offsets());
        }
        count_taken(log, cache, self.partition, view, (self.from, self.to), &self.done, self.hint)
    }

    /// Offsets that are not done and that a message had, whether the group takes it or not.
    pub fn offsets(&self) -> u64 {
        let free: u64 = self.done.gaps(self.from, self.to).map(|free| free.last - free.first + 1).sum();
        free.saturating_sub(self.gap)
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::start::StartRecord;
    use crate::engine::{Engine, EngineOptions};
    use crate::model::{Durability, Now, PopRequest, PushItem, PushRequest, PushResult, SettingsPatch, Start};
    use crate::record::Message;
    use crate::storage::disk::sim::SimDisk;

    /// Behind a loss of power a queue in a weaker mode leaves out so many numbers that none is given twice. No message ever had them:
    /// nobody is behind by them, and nothing is lost when retention passes them.
    #[test]
    fn numbers_that_were_left_out_are_neither_behind_nor_lost() {
        let mut now = Now { wall_us: 1_700_000_000_000_000, steady_us: 1_000_000_000 };
        let options = EngineOptions { default_start: Start::Beginning, ..EngineOptions::default() };
        let open = |disk: &SimDisk, now| Engine::open(disk.root(), options.clone(), now).unwrap().0;
        let push = |engine: &Engine, now| {
            let items = PushItem::Messages(vec![Message::new("m"), Message::new("n")]);
            let request = PushRequest { queue: "q".into(), partition: "p".into(), items, producer: None };
            engine.push(request, now).unwrap().results.get(0).unwrap()
        };
        let disk = SimDisk::new(1);
        let engine = open(&disk, now);
        let settings = SettingsPatch {
            durability: Some(Durability::Os),
            retention_enabled: Some(true),
            retention_s: Some(60),
            ..SettingsPatch::default()
        };
        engine.create_queue("q", &settings, now).unwrap();
        push(&engine, now);
        let disk = disk.crash_keep_all();
        drop(engine);
        let before = StartRecord::read(disk.root().as_ref()).unwrap().unwrap();
        StartRecord { boot_id: [7; 16], ..before }.write(&disk.root()).unwrap();

        let engine = open(&disk, now);
        let PushResult::Stored(offset) = push(&engine, now) else { panic!("it is new") };
        assert!(offset > 1 << 32, "{offset}");
        engine.pop(&PopRequest::any("q", 1).group("g"), now).unwrap();
        let progress = engine.progress("q", now).unwrap();
        assert_eq!(progress.iter().find(|found| found.group.name == "g").unwrap().lag, 4);
        now.wall_us += 100_000_000;
        now.steady_us += 100_000_000;
        engine.tick(now);
        assert_eq!(engine.partition("q", "p").unwrap().start, offset + 2);
        assert_eq!(engine.queue("q").unwrap().stats.messages_lost_unread, 4);
    }
}
