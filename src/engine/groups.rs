//! Registering, declaring, changing and removing groups.

use crate::filter::Filter;
use crate::format::control::{ControlOp, GroupRecord};
use crate::model::{Error, ErrorCode, GroupDeclaration, GroupInfo, GroupPatch, Now, PRIMARY_GROUP, RemovedGroup, Start};
use crate::record::{GroupId, check_name};

use super::group::PRIMARY;
use super::queue::Queue;
use super::stage::Stage;
use super::{Engine, Result};

impl Engine {
    /// Declares a group. It starts with what is pushed from now on, or earlier if the declaration says so; then what was stored before
    /// is judged by the filter given here. Durable when it returns.
    ///
    /// # Errors
    ///
    /// `GroupExists`, `BadFilter` with the position, `BadName`, `PrimaryGroup`, `GroupsDisabled`, or that the commit failed.
    pub fn declare_group(&self, queue: &str, name: &str, declaration: &GroupDeclaration, now: Now) -> Result<GroupInfo> {
        check_name(name)?;
        if name == PRIMARY_GROUP {
            return Err(primary("is in every queue already"));
        }
        Filter::parse(&declaration.filter)?;
        let queue = self.find_queue(queue)?;
        let limit = self.shared.options.groups_max;
        let (name, declaration) = (name.to_owned(), declaration.clone());
        let id = queue.run(now, move |stage| {
            if !stage.state.settings.consumer_groups {
                return Err(Error::new(ErrorCode::GroupsDisabled, "the queue has its consumer groups switched off"));
            }
            if stage.state.group_id(Some(&name)).is_some() {
                return Err(Error::new(ErrorCode::GroupExists, format!("there is a group {name:?} already")));
            }
            check_count(stage, limit)?;
            let id = stage.state.next_group_id;
            let record = GroupRecord {
                id,
                name,
                is_declared: true,
                is_enabled: !declaration.is_disabled,
                is_paused: false,
                is_unfiltered: !declaration.is_disabled && declaration.filter.is_empty(),
                shared: declaration.shared,
                filter: declaration.filter.clone(),
                first_filter: declaration.filter,
                delivery_limit: declaration.delivery_limit,
                display_name: declaration.display_name,
                version: 1,
                start: Some(declaration.start.unwrap_or(Start::New)),
                created_at_us: stage.now.wall_us,
                updated_at_us: stage.now.wall_us,
                created_lsn: stage.at,
            };
            stage.plan.operations.push(ControlOp::Group(record));
            Ok(id)
        })?;
        group_info(&queue, id)
    }

    /// What is known of a group.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`, `UnknownGroup`.
    pub fn group(&self, queue: &str, name: &str) -> Result<GroupInfo> {
        let queue = self.find_queue(queue)?;
        let id = queue.state().require_group(Some(name))?;
        group_info(&queue, id)
    }

    /// All groups of a queue, the primary one first.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`.
    pub fn groups(&self, queue: &str) -> Result<Vec<GroupInfo>> {
        let queue = self.find_queue(queue)?;
        let state = queue.state();
        Ok(state.groups.values().map(|group| group.info(&queue.name)).collect())
    }

    /// Changes a group. Holds for every push that starts after it returns, and touches no message stored before. Durable when it
    /// returns.
    ///
    /// # Errors
    ///
    /// `UnknownGroup`, `VersionConflict`, `BadFilter` with the position (nothing changes then), `PrimaryGroup` for what the primary
    /// group cannot have, or that the commit failed.
    pub fn update_group(&self, queue: &str, name: &str, patch: &GroupPatch, now: Now) -> Result<GroupInfo> {
        if let Some(filter) = &patch.filter {
            Filter::parse(filter)?;
        }
        let queue = self.find_queue(queue)?;
        let (name, patch) = (name.to_owned(), patch.clone());
        let id = queue.run(now, move |stage| {
            let id = stage.state.require_group(Some(&name))?;
            let Some(group) = stage.state.groups.get(&id) else {
                return Err(Error::new(ErrorCode::UnknownGroup, format!("there is no group {name:?}")));
            };
            let mut record = group.record.clone();
            check_version(&name, &record, patch.expected_version)?;
            let was_unfiltered = group.is_unfiltered();
            let is_primary = id == PRIMARY;
            if is_primary && patch.filter.as_ref().is_some_and(|filter| !filter.trim().is_empty()) {
                return Err(primary("cannot have a filter"));
            }
            if is_primary && patch.delivery_limit.is_some_and(|limit| limit.is_some()) {
                return Err(primary("cannot have a delivery limit of its own"));
            }
            record.filter = patch.filter.unwrap_or(record.filter);
            record.is_enabled = patch.is_enabled.unwrap_or(record.is_enabled);
            record.is_paused = patch.is_paused.unwrap_or(record.is_paused);
            record.delivery_limit = patch.delivery_limit.unwrap_or(record.delivery_limit);
            record.display_name = patch.display_name.unwrap_or(record.display_name);
            record.is_unfiltered = was_unfiltered && record.is_enabled && record.filter.is_empty();
            record.version += 1;
            record.updated_at_us = stage.now.wall_us;
            stage.plan.operations.push(ControlOp::Group(record));
            Ok(id)
        })?;
        wake_group(&queue, id);
        group_info(&queue, id)
    }

    /// Changes where a group starts in partitions that it has not been in, in every queue that has it; cursors that exist do not move.
    /// Says in how many queues. Durable when it returns.
    ///
    /// # Errors
    ///
    /// `PrimaryGroup`, or that a commit failed.
    pub fn set_start(&self, name: &str, start: Start, now: Now) -> Result<u64> {
        if name == PRIMARY_GROUP {
            return Err(primary("always starts at the beginning"));
        }
        self.check_open()?;
        let mut changed = 0;
        for queue in self.all_queues() {
            if queue.state().group_id(Some(name)).is_none() {
                continue;
            }
            let name = name.to_owned();
            changed += queue.run(now, move |stage| {
                let Some(group) = stage.state.group_id(Some(&name)).and_then(|id| stage.state.groups.get(&id)) else {
                    return Ok(0);
                };
                let mut record = group.record.clone();
                record.is_unfiltered = group.is_unfiltered();
                record.start = Some(start);
                record.version += 1;
                record.updated_at_us = stage.now.wall_us;
                stage.plan.operations.push(ControlOp::Group(record));
                Ok(1)
            })?;
        }
        Ok(changed)
    }

    /// Removes a group from one queue or from all: its cursors, its registration, what it knew of activity. The same name may start
    /// again. A group that is nowhere gives a result of zeros. Durable when it returns.
    ///
    /// # Errors
    ///
    /// `PrimaryGroup`, `UnknownQueue`, or that a commit failed.
    pub fn delete_group(&self, name: &str, queue: Option<&str>, now: Now) -> Result<RemovedGroup> {
        self.delete_group_if(name, queue, None, now)
    }

    /// As [`Engine::delete_group`], but with `expected_version`, which needs a queue, only if that is still its version.
    ///
    /// # Errors
    ///
    /// `VersionConflict`, `BadRequest` for a version without a queue, and those of [`Engine::delete_group`].
    pub fn delete_group_if(
        &self,
        name: &str,
        queue: Option<&str>,
        expected_version: Option<u64>,
        now: Now,
    ) -> Result<RemovedGroup> {
        if name == PRIMARY_GROUP {
            return Err(primary("cannot be deleted"));
        }
        if expected_version.is_some() && queue.is_none() {
            return Err(Error::new(ErrorCode::BadRequest, "a version is that of a group in one queue, and no queue is named"));
        }
        let queues = match queue {
            Some(queue) => vec![self.find_queue(queue)?],
            None => {
                self.check_open()?;
                self.all_queues()
            }
        };
        let mut removed = RemovedGroup::default();
        for queue in queues {
            if queue.state().group_id(Some(name)).is_none() {
                continue;
            }
            let name = name.to_owned();
            let cursors = queue.run(now, move |stage| {
                let found = stage.state.group_id(Some(&name)).and_then(|id| stage.state.groups.get(&id));
                let Some(group) = found else { return Ok(None) };
                check_version(&name, &group.record, expected_version)?;
                stage.plan.operations.push(ControlOp::GroupRemoved(group.record.id));
                Ok(Some(group.cursor_count()))
            })?;
            if let Some(cursors) = cursors {
                removed.queues += 1;
                removed.deleted_partitions += cursors;
            }
        }
        Ok(removed)
    }

    /// Registers a group at its first pop: where it starts is decided and durable before anything is handed out.
    pub(super) fn register_group(
        &self,
        queue: &Queue,
        name: Option<&str>,
        start: Option<Start>,
        shared: bool,
        now: Now,
    ) -> Result<GroupId> {
        let limit = self.shared.options.groups_max;
        let start = start.unwrap_or(self.shared.options.default_start);
        let name = name.filter(|&name| name != PRIMARY_GROUP).map(str::to_owned);
        queue.run(now, move |stage| {
            let (at, wall_us) = (stage.at, stage.now.wall_us);
            let Some(name) = name else {
                // The primary group always starts at the beginning.
                if let Some(group) = stage.state.groups.get(&PRIMARY)
                    && group.record.start.is_none()
                {
                    let record = GroupRecord { start: Some(Start::Beginning), ..group.record.clone() };
                    stage.plan.operations.push(ControlOp::Group(record));
                }
                return Ok(PRIMARY);
            };
            if let Some(id) = stage.state.group_id(Some(&name)) {
                return Ok(id);
            }
            check_count(stage, limit)?;
            let id = stage.state.next_group_id;
            let record = GroupRecord {
                id,
                name,
                is_declared: false,
                is_enabled: true,
                is_paused: false,
                is_unfiltered: true,
                shared,
                filter: String::new(),
                first_filter: String::new(),
                delivery_limit: None,
                display_name: String::new(),
                version: 1,
                start: Some(start),
                created_at_us: wall_us,
                updated_at_us: wall_us,
                created_lsn: at,
            };
            stage.plan.operations.push(ControlOp::Group(record));
            Ok(id)
        })
    }
}

fn check_version(name: &str, record: &GroupRecord, expected: Option<u64>) -> Result<()> {
    match expected {
        Some(expected) if expected != record.version => {
            let text = format!("group {name:?} has version {}, not {expected}", record.version);
            Err(Error::new(ErrorCode::VersionConflict, text))
        }
        _ => Ok(()),
    }
}

fn check_count(stage: &Stage<'_>, limit: usize) -> Result<()> {
    if stage.state.groups.len() >= limit {
        let text = format!("the queue has {limit} groups already, the most that are allowed");
        return Err(Error::new(ErrorCode::TooLarge, text));
    }
    Ok(())
}

fn group_info(queue: &Queue, id: GroupId) -> Result<GroupInfo> {
    let state = queue.state();
    let group = state.groups.get(&id).ok_or_else(|| Error::new(ErrorCode::UnknownGroup, "the group is gone"))?;
    Ok(group.info(&queue.name))
}

/// A group that was enabled or resumed may have messages waiting.
fn wake_group(queue: &Queue, id: GroupId) {
    let mut woken = Vec::new();
    if let Some(group) = queue.state().groups.get_mut(&id) {
        group.look_again();
        group.wake_all(&mut woken);
    }
    woken.iter().for_each(|wake| wake());
}

fn primary(text: &str) -> Error {
    Error::new(ErrorCode::PrimaryGroup, format!("the primary group {text}"))
}
