//! Time, retention with it, and starts after an orderly end or none.

use super::*;

impl Driver {
    pub(super) fn pass(&mut self, is_long: bool) -> Result<(), Stop> {
        let time_us = if is_long { 2 * RETENTION_S * 1_000_000 } else { 2_000_000 };
        self.now.wall_us += time_us;
        self.now.steady_us += time_us;
        self.model.expire(self.now.steady_us);
        let before = self.model.clone();
        self.engine().tick(self.now);
        if self.disk.is_off() {
            // Any of the queues may have been swept.
            let mut candidates = vec![before];
            for name in QUEUES {
                for candidate in candidates.clone() {
                    let swept = candidate.queues.get(name).map(|queue| queue.sweeps(self.now.wall_us)).unwrap_or_default();
                    candidates.extend(swept.into_iter().map(|queue| {
                        let mut after = candidate.clone();
                        after.queues.insert(name.to_owned(), queue);
                        after
                    }));
                }
            }
            return Err(Stop::Failed(candidates, cut()));
        }
        for name in QUEUES {
            self.take_starts(name)?;
        }
        Ok(())
    }

    /// Looks whether a sweep left what it may leave, and takes it over.
    pub(super) fn take_starts(&mut self, name: &str) -> Result<(), Stop> {
        if !self.model.queues.contains_key(name) {
            return Ok(());
        }
        let wrong = |error: Error| Stop::Wrong(error.to_string());
        let lanes = self.engine().partitions(name, 0, usize::MAX).map_err(wrong)?;
        let starts: BTreeMap<String, u64> = lanes.into_iter().map(|lane| (lane.name, lane.start)).collect();
        let queue = &self.model.queues[name];
        // A sweep that the disk refuses is done later.
        let is_put_off = self.may_fall_short && starts.iter().all(|(lane, &start)| start == queue.lanes[lane].start);
        right(is_put_off || queue.is_legal_sweep(&starts, self.now.wall_us), || {
            let cursors = |group: &String| {
                let cursors = self.engine().cursors(name, group, 0, usize::MAX, self.now).unwrap_or_default();
                let places: Vec<_> = cursors.into_iter().map(|cursor| (cursor.partition, cursor.next, cursor.lag)).collect();
                format!("{group} at {places:?}, {:?}", queue.groups[group].start)
            };
            let seen: Vec<_> = queue.groups.keys().map(cursors).collect();
            let (ages, bounds) = ((queue.retention_s, queue.max_wait_s, queue.completed_s), queue.sweep_bounds(self.now.wall_us));
            format!("a sweep of {name} left {starts:?}, not {bounds:?}, by {ages:?}: {}", seen.join("; "))
        })?;
        let stats = self.engine().queue(name).map_err(wrong)?.stats;
        let is_small =
            self.may_fall_short || queue.retention_bytes == 0 || stats.log_bytes <= queue.retention_bytes || stats.segments <= 1;
        right(is_small, || format!("{name} keeps {} bytes of log, the limit is {}", stats.log_bytes, queue.retention_bytes))?;
        self.model.queue(name).move_starts(&starts);
        Ok(())
    }

    /// Leases do not care. Where messages are held back by the wall clock their timers would be late, as they may be; and what time a
    /// message has after a crash is not known.
    pub(super) fn clock_back(&mut self, seconds: u64) -> Result<(), Stop> {
        if self.has_waiter && self.model.queues.values().all(|queue| queue.delay_s == 0 && queue.window_s == 0) {
            self.now.wall_us -= seconds * 1_000_000;
        }
        Ok(())
    }

    pub(super) fn restart(&mut self) -> Result<(), Stop> {
        if let Err(error) = self.engine().close(self.now) {
            return Err(Stop::Failed(Vec::new(), error));
        }
        if self.disk.is_off() {
            return Err(Stop::Failed(Vec::new(), cut()));
        }
        self.engine = None;
        self.reopen(self.disk.clone())
    }

    pub(super) fn kill(&mut self) -> Result<(), Stop> {
        self.are_counts_known = false;
        self.model.forget_deliveries();
        let disk = self.disk.crash_keep_all();
        self.engine = None;
        self.reopen(disk)
    }

    pub(super) fn reopen(&mut self, disk: SimDisk) -> Result<(), Stop> {
        self.disk = disk;
        self.model.restart();
        let (engine, report) = match Engine::open(self.disk.root(), options(), self.now) {
            Ok(opened) => opened,
            Err(error) => return Err(Stop::Failed(Vec::new(), error)),
        };
        self.engine = Some(engine);
        self.report = report;
        if self.disk.is_off() {
            return Err(Stop::Failed(Vec::new(), cut()));
        }
        let losses: Vec<_> = self.report.findings.iter().filter(|finding| finding.is_loss).collect();
        right(losses.is_empty(), || format!("recovery reports a loss: {losses:?}"))
    }
}
