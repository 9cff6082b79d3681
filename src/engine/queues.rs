//! Making, changing, listing and deleting queues.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

use crate::format::control::{ControlOp, QueueRecord, key};
use crate::format::{Lsn, names};
use crate::model::{
    Compression, Durability, Error, ErrorCode, Losses, Now, PartitionInfo, QueueInfo, QueueSettings, QueueStats, ServerStats,
    SettingsPatch,
};
use crate::record::{PartitionId, check_name};
use crate::storage::disk::Dir;
use crate::storage::log::{self, OpenLog};
use crate::storage::table::{Entry, Key, Table};

use super::queue::Queue;
use super::state::State;
use super::{Engine, Result};

impl Engine {
    /// Makes a queue. Durable when it returns.
    ///
    /// # Errors
    ///
    /// `QueueExists`, `BadName`, `BadSettings`, `DiskFull`, `Io`.
    pub fn create_queue(&self, name: &str, patch: &SettingsPatch, now: Now) -> Result<QueueInfo> {
        self.check_open()?;
        check_name(name)?;
        self.check_scope(name)?;
        let queue = self.make_queue(name, patch, now, true)?;
        Ok(info(&queue))
    }

    /// Changes settings of a queue; what the patch does not name stays. Durable when it returns, and holds for every push that starts
    /// afterwards.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`, `BadSettings`, or that the commit failed.
    pub fn update_queue(&self, name: &str, patch: &SettingsPatch, now: Now) -> Result<QueueInfo> {
        let queue = self.find_queue(name)?;
        let patch = patch.clone();
        queue.run(now, move |stage| {
            let settings = patch.apply(&stage.state.settings);
            check_settings(&settings)?;
            let record = QueueRecord { name: stage.state.name.clone(), created_at_us: stage.state.created_at_us, settings };
            stage.plan.operations.push(ControlOp::Queue(record));
            Ok(())
        })?;
        wake_groups(&queue);
        Ok(info(&queue))
    }

    /// Deletes a queue with all that is in it; whether there was one. Durable when it returns. Made again, it is another queue.
    ///
    /// # Errors
    ///
    /// If the directory cannot be renamed; nothing is deleted then. If the rename cannot be made durable the queue is gone all the same,
    /// unless the power fails before the next start.
    pub fn delete_queue(&self, name: &str, now: Now) -> Result<bool> {
        self.check_open()?;
        self.check_scope(name)?;
        let _making = self.shared.making.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(queue) = self.queues_map().get(name).cloned() else { return Ok(false) };
        let synced = loop {
            // What its log alone has of other queues must not go with it.
            self.finish_owed(&queue, now)?;
            let foreign = queue.committer().foreign.clone();
            for other in foreign.iter().filter_map(|&incarnation| self.queue_by_incarnation(incarnation)) {
                other.sync_log()?;
            }
            // Nobody commits to it from here on.
            let committer = queue.committer();
            if !committer.owed.is_empty() || !committer.foreign.is_subset(&foreign) {
                continue;
            }
            let deleted = names::deleted_queue_dir(queue.incarnation);
            queue.set_leaving(true);
            let renamed = self.shared.dir.rename(&names::queue_dir(queue.incarnation), &deleted);
            renamed.inspect_err(|_| queue.set_leaving(false))?;
            self.shared.queues.write().unwrap_or_else(PoisonError::into_inner).remove(name);
            queue.mark_deleted();
            break self.shared.dir.sync();
        };
        // It takes nothing any more, but a power loss may bring it back as it was.
        synced?;
        // The name is gone for good; what cannot be removed now is removed at the next start.
        let _ = remove_tree(&self.shared.dir, &names::deleted_queue_dir(queue.incarnation));
        Ok(true)
    }

    /// What is known of a queue.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`.
    pub fn queue(&self, name: &str) -> Result<QueueInfo> {
        Ok(info(&*self.find_queue(name)?))
    }

    /// The incarnation and the settings of a queue; unlike [`Engine::queue`] it counts nothing.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`.
    pub fn settings(&self, name: &str) -> Result<(u64, Arc<QueueSettings>)> {
        let queue = self.find_queue(name)?;
        let settings = Arc::clone(&queue.state().settings);
        Ok((queue.incarnation, settings))
    }

    /// All queues, sorted by name.
    pub fn queues(&self) -> Vec<QueueInfo> {
        let mut found: Vec<_> = self.all_queues().iter().map(|queue| info(queue)).collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }

    /// The name of the queue with this incarnation.
    pub fn queue_of_incarnation(&self, incarnation: u64) -> Option<String> {
        self.queue_by_incarnation(incarnation).map(|queue| queue.name.clone()).filter(|name| self.is_in_scope(name))
    }

    /// Partitions with a number of at least `from`, in order of number.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`.
    pub fn partitions(&self, queue: &str, from: PartitionId, limit: usize) -> Result<Vec<PartitionInfo>> {
        let queue = self.find_queue(queue)?;
        let state = queue.state();
        Ok(state.partitions.iter_from(from).take(limit).map(|(id, partition)| partition_info(id, partition)).collect())
    }

    /// A partition by name.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`, `UnknownPartition`.
    pub fn partition(&self, queue: &str, name: &str) -> Result<PartitionInfo> {
        let queue = self.find_queue(queue)?;
        let state = queue.state();
        let id = state.require_partition(name)?;
        state
            .partitions
            .get(id)
            .map(|partition| partition_info(id, partition))
            .ok_or_else(|| Error::new(ErrorCode::UnknownPartition, format!("there is no partition {name:?}")))
    }

    /// Counters of the whole engine.
    pub fn stats(&self) -> ServerStats {
        let mut total = QueueStats::default();
        let queues = self.queues();
        for QueueInfo { stats, .. } in &queues {
            total.partitions += stats.partitions;
            total.groups += stats.groups;
            total.messages += stats.messages;
            total.messages_pushed += stats.messages_pushed;
            total.messages_dropped += stats.messages_dropped;
            total.duplicates += stats.duplicates;
            total.messages_popped += stats.messages_popped;
            total.messages_acked += stats.messages_acked;
            total.dead_letters += stats.dead_letters;
            total.log_bytes += stats.log_bytes;
            total.segments += stats.segments;
            total.commits += stats.commits;
            total.bytes_written += stats.bytes_written;
            total.syncs += stats.syncs;
            total.sync_time_us += stats.sync_time_us;
            total.messages_lost_unread += stats.messages_lost_unread;
            total.is_poisoned |= stats.is_poisoned;
        }
        ServerStats {
            queues: queues.len() as u64,
            total,
            pending_bytes: self.shared.common.pending_bytes.load(std::sync::atomic::Ordering::Relaxed) as u64,
            disk_free_bytes: self.shared.dir.free_bytes().unwrap_or(0),
            waiting_pops: self.waiting_pops(),
            start_number: self.shared.start_number,
        }
    }

    /// What groups lost of a queue, or of all of them.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`.
    pub fn losses(&self, queue: Option<&str>) -> Result<Losses> {
        let queues = match queue {
            Some(name) => vec![self.find_queue(name)?],
            None => self.all_queues(),
        };
        Ok(queues.iter().fold(Losses::default(), |sum, queue| {
            let stats = queue.state().stats;
            Losses { unread: sum.unread + stats.lost_unread, damaged: sum.damaged + stats.lost_damaged }
        }))
    }

    /// Makes a queue of this name, or returns the one that there is (an error if `is_new`).
    pub(super) fn make_queue(&self, name: &str, patch: &SettingsPatch, now: Now, is_new: bool) -> Result<Arc<Queue>> {
        let _making = self.shared.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = self.queues_map().get(name) {
            if is_new {
                return Err(Error::new(ErrorCode::QueueExists, format!("there is a queue {name:?} already")));
            }
            return Ok(Arc::clone(queue));
        }
        let limit = self.shared.options.queues_max;
        if self.queues_map().len() >= limit {
            return Err(Error::new(ErrorCode::TooLarge, format!("there are {limit} queues already, the most that are allowed")));
        }
        let settings = patch.apply(&implied_settings(name));
        check_settings(&settings)?;
        let incarnation = self.new_incarnation();
        let queue = Arc::new(self.build_queue(incarnation, name, settings, now)?);
        self.shared.queues.write().unwrap_or_else(PoisonError::into_inner).insert(Arc::clone(&queue));
        let makers = self.shared.makers.lock().unwrap_or_else(PoisonError::into_inner);
        let woken: Vec<_> = makers.iter().map(|maker| Arc::clone(&maker.1)).collect();
        drop(makers);
        woken.iter().for_each(|wake| wake());
        Ok(queue)
    }

    fn new_incarnation(&self) -> u64 {
        loop {
            let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
            let candidate = high ^ low;
            if candidate != 0 && self.queue_by_incarnation(candidate).is_none() {
                return candidate;
            }
        }
    }

    /// Everything is made in a directory that recovery ignores; its rename makes the queue.
    fn build_queue(&self, incarnation: u64, name: &str, settings: QueueSettings, now: Now) -> Result<Queue> {
        let root = &self.shared.dir;
        let temporary = names::new_queue_dir(incarnation);
        let final_name = names::queue_dir(incarnation);
        let made = (|| {
            root.create_dir(&temporary)?;
            let dir = root.dir(&temporary)?;
            let mut table = Table::create(&dir, names::TABLE, incarnation)?;
            let record = QueueRecord { name: name.to_owned(), created_at_us: now.wall_us, settings: settings.clone() };
            let mut value = Vec::new();
            ControlOp::Queue(record).encode(&mut value);
            let entry = Entry { key: Key { kind: key::QUEUE, a: 0, b: 0 }, value: Some(&value) };
            table.append(0, [entry])?;
            drop(table);
            dir.sync()?;
            root.rename(&temporary, &final_name)?;
            root.sync()?;
            Ok::<_, Error>(())
        })();
        if let Err(error) = made {
            // What is left is removed at the next start if it cannot be now.
            let _ = remove_tree(root, &temporary);
            return Err(error);
        }
        let dir = root.dir(&final_name)?;
        let opened = self.open_new(&dir, incarnation, &settings, now);
        let (recovery, table) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let _ = root.rename(&final_name, &names::deleted_queue_dir(incarnation));
                let _ = remove_tree(root, &names::deleted_queue_dir(incarnation));
                return Err(error);
            }
        };
        let mut state = State::new(name);
        let record = QueueRecord { name: name.to_owned(), created_at_us: now.wall_us, settings };
        state.apply(&ControlOp::Queue(record), false);
        let common = Arc::clone(&self.shared.common);
        Ok(Queue::new(incarnation, dir, recovery.writer, table, state, common, BTreeSet::new()))
    }

    fn open_new(
        &self,
        dir: &Arc<dyn Dir>,
        incarnation: u64,
        settings: &QueueSettings,
        now: Now,
    ) -> Result<(log::LogRecovery, Table)> {
        const BEGINNING: Lsn = 0;
        let (table, _) = Table::open_with(dir, names::TABLE, incarnation, Some(key::DEAD_LETTER), |_| {})?;
        let options = OpenLog {
            incarnation,
            epoch: u32::try_from(self.shared.start_number).unwrap_or(u32::MAX),
            checkpoint: BEGINNING,
            first_segment: 1,
            segment_bytes_max: settings.segment_bytes_max,
            now_us: now.wall_us,
        };
        Ok((log::open(dir, &options, &mut |_| {})?, table))
    }
}

/// Settings of a queue made by its name alone: namespace and task are its first two dot-separated parts.
fn implied_settings(name: &str) -> QueueSettings {
    let mut parts = name.split('.');
    let is_dotted = name.contains('.');
    let namespace = parts.next().filter(|_| is_dotted).unwrap_or_default().to_owned();
    let task = parts.next().unwrap_or_default().to_owned();
    QueueSettings { namespace, task, ..QueueSettings::default() }
}

/// Refuses settings that contradict each other or are out of range.
fn check_settings(settings: &QueueSettings) -> Result<()> {
    let bad = |text: String| Err(Error::new(ErrorCode::BadSettings, text));
    if let Durability::Interval { milliseconds } = settings.durability
        && !(1..=60_000).contains(&milliseconds)
    {
        return bad(format!("durability interval is {milliseconds} ms, from 1 to 60000 are allowed"));
    }
    if let Compression::Zstd { level } = settings.compression
        && !(1..=19).contains(&level)
    {
        return bad(format!("compression level is {level}, from 1 to 19 are allowed"));
    }
    if !(1 << 20..=1 << 30).contains(&settings.segment_bytes_max) {
        return bad(format!("segmentBytes is {}, from 1 MiB to 1 GiB are allowed", settings.segment_bytes_max));
    }
    if settings.lease_time_s == 0 {
        return bad("leaseTime is 0, at least 1 second is needed".to_owned());
    }
    for (key, seconds) in [
        ("retentionSeconds", settings.retention_s),
        ("completedRetentionSeconds", settings.completed_retention_s),
        ("maxWaitTimeSeconds", settings.max_wait_time_s),
        ("dedupWindowSeconds", settings.dedup_window_s),
    ] {
        if seconds > u64::from(u32::MAX) * 1000 {
            return bad(format!("{key} is {seconds}, at most {} are allowed", u64::from(u32::MAX) * 1000));
        }
    }
    for word in [&settings.namespace, &settings.task] {
        if !word.is_empty() {
            check_name(word)?;
        }
    }
    Ok(())
}

/// A shorter delay or window, or groups switched on, make messages claimable at once.
fn wake_groups(queue: &Queue) {
    let mut woken = Vec::new();
    for group in queue.state().groups.values_mut() {
        group.look_again();
        group.wake_all(&mut woken);
    }
    woken.iter().for_each(|wake| wake());
}

fn partition_info(id: PartitionId, partition: &super::partition::Partition) -> PartitionInfo {
    PartitionInfo {
        id,
        name: partition.name().to_owned(),
        start: partition.start,
        end: partition.end,
        newest_at_us: partition.newest_at_us,
    }
}

fn info(queue: &Queue) -> QueueInfo {
    let is_poisoned = queue.try_committer().is_some_and(|committer| committer.writer.poison().is_some());
    let segments = queue.log.segments();
    let state = queue.state();
    QueueInfo {
        name: queue.name.clone(),
        incarnation: queue.incarnation,
        created_at_us: state.created_at_us,
        settings: state.settings.as_ref().clone(),
        stats: QueueStats {
            partitions: state.partitions.count(),
            groups: state.groups.len() as u64,
            messages: state.stats.messages,
            messages_pushed: state.counters.pushed,
            messages_dropped: state.counters.dropped,
            duplicates: state.stats.duplicates,
            messages_popped: state.stats.popped,
            messages_acked: state.stats.acked,
            dead_letters: state.dead_letters.count(None),
            log_bytes: segments.iter().map(|segment| segment.disk_bytes()).sum(),
            segments: segments.len() as u64,
            commits: state.stats.commits,
            bytes_written: state.stats.bytes_written,
            syncs: state.stats.syncs,
            sync_time_us: state.stats.sync_time_us,
            messages_lost_unread: state.stats.lost_unread,
            is_poisoned,
        },
    }
}

/// Removes a directory of ours with everything in it.
pub(super) fn remove_tree(dir: &Arc<dyn Dir>, name: &str) -> Result<()> {
    let inner = match dir.dir(name) {
        Ok(inner) => inner,
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    for entry in inner.list()? {
        if entry.is_directory {
            remove_tree(&inner, &entry.name)?;
        } else {
            inner.remove(&entry.name)?;
        }
    }
    dir.remove_dir(name)?;
    Ok(dir.sync()?)
}
