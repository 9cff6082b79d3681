//! Groups: seeks, declarations, changes and their end.

use super::*;

impl Driver {
    pub(super) fn seek(&mut self, queue: usize, group: usize, lane: Option<usize>, target: Target) -> Result<(), Stop> {
        let (name, group_name) = (QUEUES[queue], GROUPS[group]);
        let Some(found) = self.model.queues.get(name) else { return Ok(()) };
        let Some(known) = found.groups.get(group_name) else { return Ok(()) };
        if known.start.is_none() || lane.is_some_and(|lane| !found.lanes.contains_key(LANES[lane])) {
            return Ok(());
        }
        let mut after = self.model.clone();
        let lanes: Vec<String> = match lane {
            Some(lane) => vec![LANES[lane].to_owned()],
            None => found.lanes.keys().cloned().collect(),
        };
        let mut refused = false;
        for lane in &lanes {
            let bounds = &found.lanes[lane];
            let place = match target {
                Target::Beginning => bounds.start,
                Target::End => bounds.end,
                Target::Back(by) => bounds.end.saturating_sub(by).max(bounds.start),
                Target::Offset(offset) => offset,
                Target::Ago(seconds) => found.first_at_or_after(lane, self.now.wall_us.saturating_sub(seconds * 1_000_000)),
            };
            refused |= place < bounds.start || place > bounds.end;
            after.queue(name).seek(group_name, lane, place);
        }
        let model_target = match target {
            Target::Beginning => SeekTarget::Beginning,
            Target::End => SeekTarget::End,
            Target::Offset(offset) => SeekTarget::Offset(offset),
            Target::Ago(seconds) => SeekTarget::Time(self.now.wall_us.saturating_sub(seconds * 1_000_000)),
            // Relative to the cursor, which is not modelled to the offset: so to the end first.
            Target::Back(_) => SeekTarget::End,
        };
        let request = SeekRequest {
            queue: name.to_owned(),
            group: Some(group_name.to_owned()),
            partition: lane.map(|lane| LANES[lane].to_owned()),
            target: model_target,
            is_preview: false,
        };
        if refused {
            let outcome = self.engine().seek(&request, self.now);
            return self.refused(outcome.map(drop), &[ErrorCode::BeyondEnd, ErrorCode::RangeRemoved]);
        }
        let mut candidates = Vec::new();
        if let Target::Back(by) = target {
            let mut at_end = self.model.clone();
            for lane in &lanes {
                let end = found.lanes[lane].end;
                at_end.queue(name).seek(group_name, lane, end);
            }
            let moved = self.engine().seek(&request, self.now);
            self.settle(moved, Vec::new(), at_end.clone())?;
            candidates.push(at_end);
            let back = SeekRequest { target: SeekTarget::Shift(-(by as i64)), ..request };
            let moved = self.engine().seek(&back, self.now);
            self.settle(moved, candidates, after)?;
            return Ok(());
        }
        let shown = self.engine().seek(&SeekRequest { is_preview: true, ..request.clone() }, self.now);
        let moved = self.engine().seek(&request, self.now);
        let moved = self.settle(moved, candidates, after)?;
        right(shown.as_ref() == Ok(&moved), || format!("the preview said {shown:?}, and {moved:?} was done"))
    }

    pub(super) fn declare(&mut self, queue: usize, group: usize, filter: Option<char>, is_earlier: bool) -> Result<(), Stop> {
        let (name, group_name) = (QUEUES[queue], GROUPS[group]);
        let start = if is_earlier { Start::Beginning } else { Start::New };
        let declaration = GroupDeclaration {
            filter: filter_text(filter),
            start: Some(start),
            shared: group == 3,
            ..GroupDeclaration::default()
        };
        let Some(found) = self.model.queues.get(name) else { return Ok(()) };
        if group == 0 {
            return Ok(());
        }
        let outcome = self.engine().declare_group(name, group_name, &declaration, self.now);
        if !found.has_groups {
            return self.refused(outcome.map(drop), &[ErrorCode::GroupsDisabled]);
        }
        if found.groups.contains_key(group_name) {
            return self.refused(outcome.map(drop), &[ErrorCode::GroupExists]);
        }
        let mut after = self.model.clone();
        after.queue(name).add_group(group_name, GroupModel::new(filter, Some(start), group == 3));
        self.settle(outcome, Vec::new(), after).map(drop)
    }

    pub(super) fn update(&mut self, queue: usize, group: usize, change: Change) -> Result<(), Stop> {
        let (name, group_name) = (QUEUES[queue], GROUPS[group]);
        let Some(found) = self.model.queues.get(name) else { return Ok(()) };
        let Some(known) = found.groups.get(group_name) else { return Ok(()) };
        let is_refused = group == 0 && matches!(change, Change::Filter(Some(_)) | Change::Limit(Some(_)));
        let mut patch = GroupPatch { expected_version: Some(known.version), ..GroupPatch::default() };
        let mut after = self.model.clone();
        if let Some(known) = after.queue(name).groups.get_mut(group_name) {
            known.version += 1;
            match change {
                Change::Filter(filter) => {
                    known.filter = filter;
                    patch.filter = Some(filter_text(filter));
                }
                Change::Enable(is_enabled) => {
                    known.is_enabled = is_enabled;
                    patch.is_enabled = Some(is_enabled);
                }
                Change::Pause(is_paused) => {
                    known.is_paused = is_paused;
                    patch.is_paused = Some(is_paused);
                }
                Change::Limit(limit) => {
                    known.limit = limit;
                    patch.delivery_limit = Some(limit);
                }
            }
        }
        let outcome = self.engine().update_group(name, group_name, &patch, self.now);
        if is_refused {
            return self.refused(outcome.map(drop), &[ErrorCode::PrimaryGroup]);
        }
        self.settle(outcome, Vec::new(), after).map(drop)
    }

    pub(super) fn remove(&mut self, queue: usize, group: usize) -> Result<(), Stop> {
        let (name, group_name) = (QUEUES[queue], GROUPS[group]);
        if group == 0 || !self.model.queues.contains_key(name) {
            return Ok(());
        }
        let mut after = self.model.clone();
        let existed = after.queue(name).groups.contains_key(group_name);
        after.queue(name).remove_group(group_name);
        let outcome = self.engine().delete_group(group_name, Some(name), self.now);
        let removed = self.settle(outcome, Vec::new(), after)?;
        right(removed.queues == u32::from(existed), || format!("removed from {} queues", removed.queues))
    }

    pub(super) fn remove_everywhere(&mut self, group: usize) -> Result<(), Stop> {
        if group == 0 {
            return Ok(());
        }
        let mut candidates = vec![self.model.clone()];
        let mut expected = 0;
        for name in QUEUES {
            if !self.model.queues.get(name).is_some_and(|queue| queue.groups.contains_key(GROUPS[group])) {
                continue;
            }
            expected += 1;
            for mut removed in candidates.clone() {
                removed.queue(name).remove_group(GROUPS[group]);
                candidates.push(removed);
            }
        }
        let after = candidates.pop().unwrap_or_default();
        let outcome = self.engine().delete_group(GROUPS[group], None, self.now);
        let removed = self.settle(outcome, candidates, after)?;
        right(removed.queues == expected, || format!("removed from {} queues, not {expected}", removed.queues))
    }
}
