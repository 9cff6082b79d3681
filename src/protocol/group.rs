//! Administration of groups: declaring, listing, changing, deleting.

use crate::model::{GroupDeclaration, GroupInfo, GroupPatch, GroupProgress, GroupState, RemovedGroup, Start};

use super::wire::{wire_enum, wire_struct, wire_type};

wire_struct!(GroupDeclaration {
    filter: String,
    is_disabled: bool,
    delivery_limit: Option<u32>,
    display_name: String,
    start: Option<Start>,
    shared: bool,
});

wire_struct!(GroupPatch {
    expected_version: Option<u64>,
    filter: Option<String>,
    is_enabled: Option<bool>,
    delivery_limit: Option<Option<u32>>,
    display_name: Option<String>,
    is_paused: Option<bool>,
});

wire_enum!(GroupState, "the state of a group" { 0 => Active, 1 => Inactive, 2 => Paused });

wire_struct!(GroupInfo {
    queue: String,
    name: String,
    id: u32,
    is_declared: bool,
    filter: String,
    state: GroupState,
    delivery_limit: Option<u32>,
    display_name: String,
    shared: bool,
    version: u64,
    start: Option<Start>,
    created_at_us: u64,
    updated_at_us: u64,
    judges_earlier: bool,
});

wire_struct!(GroupProgress { group: GroupInfo, cursors: u64, partitions_with_lag: u64, lag: u64, lag_time_us: u64, leases: u64 });

wire_struct!(RemovedGroup { queues: u32, deleted_partitions: u64 });

wire_type!(
    /// Declares a group. Fails with `GroupExists` if there is one.
    GroupDeclare {
        /// The queue.
        queue: String,
        /// The group's name.
        group: String,
        /// What it is.
        declaration: GroupDeclaration,
    }
);

wire_type!(
    /// One group with its progress.
    GroupGet {
        /// The queue.
        queue: String,
        /// The group; `None` is the primary group.
        group: Option<String>,
    }
);

wire_type!(
    /// Groups with their progress, in order of queue and name.
    GroupList {
        /// Only of this queue; `None` is all queues.
        queue: Option<String>,
        /// Only of this name; `None` is all.
        group: Option<String>,
        /// Only those whose oldest unread message is at least so many seconds old; `None` is all.
        lag_min_s: Option<u64>,
    }
);

wire_type!(
    /// Groups.
    GroupPage {
        /// The groups.
        groups: Vec<GroupProgress>,
    }
);

wire_type!(
    /// Changes what is named of a group and nothing else.
    GroupUpdate {
        /// The queue.
        queue: String,
        /// The group; `None` is the primary group.
        group: Option<String>,
        /// What changes.
        patch: GroupPatch,
    }
);

wire_type!(
    /// Deletes a group: cursors, registration, declaration. The name may start again.
    GroupDelete {
        /// Only in this queue; `None` is everywhere.
        queue: Option<String>,
        /// The group.
        group: String,
        /// Only if this is still its version in that queue.
        expected_version: Option<u64>,
    }
);

wire_type!(
    /// Changes where a group starts in partitions that it has not been in, in every queue that has it. Cursors do not move.
    GroupStart {
        /// The group.
        group: String,
        /// Where it starts.
        start: Start,
    }
);

wire_type!(
    /// Where a group starts was changed.
    GroupStarted {
        /// In how many queues.
        queues: u64,
    }
);
