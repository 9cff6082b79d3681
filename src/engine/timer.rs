//! What time makes due: leases and delays that end, syncs of the weaker modes, frontier marks, checkpoints, retention.

use std::sync::{Arc, PoisonError};

use crate::model::{Durability, Now};

use super::Engine;
use super::group::Slot;
use super::queue::Queue;

/// A log that has been idle so long gets a record that says how far it is durable, so that damage in the last commit is told from a
/// torn tail.
const FRONTIER_IDLE_US: u64 = 5_000;
/// A checkpoint is taken after so many bytes of log.
const CHECKPOINT_BYTES: u64 = 64 << 20;
/// Between looks at what needs no haste: checkpoints, unused maps, free space.
const MAINTENANCE_US: u64 = 1_000_000;
/// In `os` mode the log is synced this often all the same, so that a loss of power costs a bounded time.
const OS_SYNC_US: u64 = 30_000_000;

/// When what is due next.
#[derive(Debug, Default)]
pub(super) struct Timing {
    maintenance_us: u64,
    retention_us: u64,
}

impl Engine {
    /// Does what time has made due, and says at which steady time to call again (at the latest). An engine without threads needs this
    /// for the weaker durability modes, retention and checkpoints, and to wake who waits; `pop` itself ends the leases and delays of its
    /// queue that are over.
    pub fn tick(&self, now: Now) -> u64 {
        let (is_maintenance, is_retention) = {
            let mut timing = self.shared.timing.lock().unwrap_or_else(PoisonError::into_inner);
            let is_maintenance = now.steady_us >= timing.maintenance_us;
            if is_maintenance {
                timing.maintenance_us = now.steady_us + MAINTENANCE_US;
            }
            let is_retention = now.steady_us >= timing.retention_us;
            if is_retention {
                timing.retention_us = now.steady_us + self.shared.options.retention_interval_ms * 1000;
            }
            (is_maintenance, is_retention)
        };
        let mut next_us = now.steady_us + MAINTENANCE_US;
        for queue in self.all_queues() {
            if queue.is_deleted() {
                continue;
            }
            next_us = next_us.min(expire(&queue, now));
            next_us = next_us.min(self.look_after_log(&queue, now, is_maintenance));
            if is_retention {
                self.sweep(&queue, now);
            }
        }
        if is_maintenance {
            self.shared.common.leases.sweep(now.steady_us).tell();
        }
        next_us
    }

    fn look_after_log(&self, queue: &Arc<Queue>, now: Now, is_maintenance: bool) -> u64 {
        let mut next_us = u64::MAX;
        let durability = queue.state().settings.durability;
        // Somebody commits right now: the next tick will do.
        let Some(mut committer) = queue.try_committer() else { return now.steady_us + 1_000 };
        if let Some(since_us) = committer.unsynced_since_us {
            let interval_us = match durability {
                // Parts of transactions that another queue's log holds, too.
                Durability::Sync => MAINTENANCE_US,
                Durability::Interval { milliseconds } => u64::from(milliseconds) * 1000,
                Durability::Os => OS_SYNC_US,
            };
            let due_us = since_us + interval_us;
            if now.steady_us >= due_us {
                // Commits go on while the disk works. A failure poisons the log, and every later push says so.
                let (file, end) = committer.writer.sync_handle();
                committer.unsynced_since_us = None;
                drop(committer);
                let outcome = file.sync_data();
                committer = queue.committer();
                let _ = committer.writer.synced(outcome, end);
                queue.state().stats.syncs += 1;
            } else {
                next_us = next_us.min(due_us);
            }
        }
        if !committer.is_frontier_marked {
            let due_us = committer.last_commit_us + FRONTIER_IDLE_US;
            if now.steady_us >= due_us {
                committer.is_frontier_marked = true;
                // Only a hint is lost if it cannot be written; the next append says what is wrong.
                let _ = committer.writer.mark_frontier(now.wall_us);
            } else {
                next_us = next_us.min(due_us);
            }
        }
        let wants_checkpoint = is_maintenance && committer.wants_checkpoint(CHECKPOINT_BYTES);
        drop(committer);
        if wants_checkpoint {
            // A checkpoint that fails is tried again; until then the log is kept, and a restart replays more of it.
            let _ = self.checkpoint(queue, now);
        }
        if is_maintenance {
            let _ = queue.log.maintain();
        }
        next_us
    }
}

/// Ends leases and delays that are over and wakes who waits for their messages. Returns when to look again.
pub(super) fn expire(queue: &Queue, now: Now) -> u64 {
    let mut woken = Vec::new();
    let next_us = {
        let mut state = queue.state();
        let state = &mut *state;
        while let Some((group, partition)) = state.timers.pop_due(now.steady_us) {
            let Some(found) = state.groups.get_mut(&group) else { continue };
            let Some(end) = state.partitions.get(partition).map(|known| known.end) else { continue };
            let has_more = match found.slot(partition) {
                Some(Slot::Plain { cursor, .. }) => cursor.next < end,
                Some(Slot::Active(active)) => active.delivery.staged().next() < end,
                _ => true,
            };
            if let Some(active) = found.existing_active(partition) {
                if active.delivery.expire(now) {
                    found.mark_dirty(partition);
                }
                let delivery = found.existing_active(partition).map(|active| &active.delivery);
                let later_us =
                    delivery.and_then(|found| [found.next_deadline(), found.remembers_until()].into_iter().flatten().min());
                if let Some(later_us) = later_us {
                    state.timers.set(later_us, group, partition);
                }
            }
            found.settle(partition);
            if has_more {
                found.push_ready(partition);
                found.wake(1, &mut woken);
            }
        }
        state.timers.next_us().unwrap_or(u64::MAX)
    };
    woken.iter().for_each(|wake| wake());
    next_us
}
