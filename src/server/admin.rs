//! Administration: requests that are answered by a call or two of the engine, which may wait for the disk.

use crate::engine::Engine;
use crate::filter::Filter;
use crate::model::{DeadLetterQuery, Error, ErrorCode, ExtendReply, GroupProgress, Now, PRIMARY_GROUP, Result};
use crate::protocol::{
    DeadLetterPage, Deleted, Done, Extend, FilterResult, FilterTest, GroupList, GroupPage, GroupStart, GroupStarted, MessageGet,
    PartitionList, PartitionPage, PartitionSelector, Progress, ProgressPage, QueueList, QueuePage, Request, Response, Seek,
    SeekReply, TraceByMessage, TraceByName, TraceName, TraceNamePage, TracePage, TraceRecord,
};
use crate::record::PartitionId;

/// The most that a page of queues holds, whatever the request says.
const QUEUES_MAX: u32 = 1_000;
/// The most that a page of partitions, cursors, dead letters or remarks holds.
const PAGE_MAX: u32 = 10_000;

/// Serves a request; blocks as long as the engine does.
pub(super) fn answer(engine: &Engine, request: Request, now: Now) -> Result<Response> {
    match request {
        Request::Transaction(request) => engine.transact(request, now).map(Response::Transaction),

        Request::QueueCreate(request) => engine.create_queue(&request.queue, &request.settings, now).map(Response::QueueCreate),
        Request::QueueGet(request) => engine.queue(&request.queue).map(Response::QueueGet),
        Request::QueueList(request) => Ok(Response::QueueList(queues(engine, &request))),
        Request::QueueUpdate(request) => engine.update_queue(&request.queue, &request.settings, now).map(Response::QueueUpdate),
        Request::QueueDelete(request) => {
            engine.delete_queue(&request.queue, now).map(|existed| Response::QueueDelete(Deleted { existed }))
        }
        Request::PartitionList(request) => partitions(engine, &request).map(Response::PartitionList),
        Request::PartitionGet(request) => engine.partition(&request.queue, &request.partition).map(Response::PartitionGet),

        Request::GroupDeclare(request) => {
            engine.declare_group(&request.queue, &request.group, &request.declaration, now).map(Response::GroupDeclare)
        }
        Request::GroupGet(request) => engine.group_progress(&request.queue, name_of(&request.group), now).map(Response::GroupGet),
        Request::GroupList(request) => groups(engine, &request, now).map(Response::GroupList),
        Request::GroupUpdate(request) => {
            engine.update_group(&request.queue, name_of(&request.group), &request.patch, now).map(Response::GroupUpdate)
        }
        Request::GroupDelete(request) => {
            let removed = engine.delete_group_if(&request.group, request.queue.as_deref(), request.expected_version, now);
            removed.map(Response::GroupDelete)
        }
        Request::GroupStart(GroupStart { group, start }) => {
            engine.set_start(&group, start, now).map(|queues| Response::GroupStart(GroupStarted { queues }))
        }

        Request::Progress(request) => cursors(engine, &request, now).map(Response::Progress),
        Request::Seek(request) => seek(engine, &request, now).map(Response::Seek),
        Request::MessageGet(request) => {
            let partition = partition_id(engine, &request)?;
            engine.message(&request.queue, partition, &request.target, now).map(Response::MessageGet)
        }

        Request::DeadLetterList(query) => dead_letters(engine, query).map(Response::DeadLetterList),
        Request::DeadLetterGet(request) => engine.dead_letter(&request.queue, request.id).map(Response::DeadLetterGet),
        Request::DeadLetterReplay(request) => {
            engine.replay_dead_letter(&request.queue, request.id, now).map(Response::DeadLetterReplay)
        }
        Request::DeadLetterDelete(request) => engine
            .delete_dead_letter(&request.queue, request.id, now)
            .map(|existed| Response::DeadLetterDelete(Deleted { existed })),

        Request::TraceWrite(request) => engine.trace(&request.queue, request.event, now).map(|_| Response::TraceWrite(Done {})),
        Request::TraceByName(request) => traces_by_name(engine, &request).map(Response::TraceByName),
        Request::TraceByMessage(request) => traces_of_message(engine, &request).map(Response::TraceByMessage),
        Request::TraceNames(_) => Ok(Response::TraceNames(trace_names(engine))),

        Request::Stats(_) => Ok(Response::Stats(engine.stats())),
        Request::LossesGet(request) => engine.losses(request.queue.as_deref()).map(Response::LossesGet),
        Request::FilterTest(request) => filter_test(&request).map(Response::FilterTest),
        request => {
            let text = format!("operation {} is not administration", request.operation().name());
            Err(Error::new(ErrorCode::Internal, text))
        }
    }
}

/// Makes a lease last longer: quick, no disk.
pub(super) fn extend(engine: &Engine, request: &Extend, now: Now) -> Result<ExtendReply> {
    match request.lease_ms {
        Some(milliseconds) => engine.extend(&request.lease_id, milliseconds, now),
        None => engine.extend_by_lease_time(&request.lease_id, now),
    }
}

fn name_of(group: &Option<String>) -> &str {
    group.as_deref().unwrap_or(PRIMARY_GROUP)
}

fn queues(engine: &Engine, request: &QueueList) -> QueuePage {
    let limit = request.limit.clamp(1, QUEUES_MAX) as usize;
    let is_after = |name: &str| request.after.as_ref().is_none_or(|after| name > after.as_str());
    let queues = engine.queues().into_iter().filter(|queue| is_after(&queue.name)).take(limit).collect();
    QueuePage { queues }
}

/// The first number after `after`; `None` if there can be none.
fn first_after(after: Option<PartitionId>) -> Option<PartitionId> {
    after.map_or(Some(0), |after| after.checked_add(1))
}

fn partitions(engine: &Engine, request: &PartitionList) -> Result<PartitionPage> {
    let limit = request.limit.clamp(1, PAGE_MAX) as usize;
    let partitions = match first_after(request.after) {
        Some(from) => engine.partitions(&request.queue, from, limit)?,
        None => Vec::new(),
    };
    Ok(PartitionPage { partitions })
}

fn groups(engine: &Engine, request: &GroupList, now: Now) -> Result<GroupPage> {
    let lag_min_us = request.lag_min_s.map(|seconds| seconds.saturating_mul(1_000_000));
    let is_wanted = |progress: &GroupProgress| {
        request.group.as_ref().is_none_or(|name| progress.group.name == *name)
            && lag_min_us.is_none_or(|lag_min_us| progress.lag > 0 && progress.lag_time_us >= lag_min_us)
    };
    let mut groups = Vec::new();
    match &request.queue {
        Some(queue) => groups.extend(engine.progress(queue, now)?),
        None => {
            for queue in engine.queues() {
                match engine.progress(&queue.name, now) {
                    Ok(progress) => groups.extend(progress),
                    // Deleted since the list was made.
                    Err(error) if error.code == ErrorCode::UnknownQueue => (),
                    Err(error) => return Err(error),
                }
            }
        }
    }
    groups.retain(is_wanted);
    Ok(GroupPage { groups })
}

fn cursors(engine: &Engine, request: &Progress, now: Now) -> Result<ProgressPage> {
    let limit = request.limit.clamp(1, PAGE_MAX) as usize;
    let cursors = match first_after(request.after) {
        Some(from) => engine.cursors(&request.queue, name_of(&request.group), from, limit, now)?,
        None => Vec::new(),
    };
    Ok(ProgressPage { cursors })
}

fn seek(engine: &Engine, request: &Seek, now: Now) -> Result<SeekReply> {
    let mut cursors = engine.seek(&request.request, now)?;
    let total = cursors.len() as u64;
    cursors.truncate(request.limit.min(PAGE_MAX) as usize);
    Ok(SeekReply { total, cursors })
}

fn partition_id(engine: &Engine, request: &MessageGet) -> Result<PartitionId> {
    match &request.partition {
        PartitionSelector::Id(id) => Ok(*id),
        PartitionSelector::Name(name) => engine.partition(&request.queue, name).map(|partition| partition.id),
    }
}

fn dead_letters(engine: &Engine, query: DeadLetterQuery) -> Result<DeadLetterPage> {
    let limit = query.limit.clamp(1, PAGE_MAX);
    let (letters, total) = engine.dead_letters(&DeadLetterQuery { limit, ..query })?;
    Ok(DeadLetterPage { total, letters })
}

fn traces_by_name(engine: &Engine, request: &TraceByName) -> Result<TracePage> {
    let (skip, limit) = (request.skip as usize, request.limit.clamp(1, PAGE_MAX) as usize);
    let traces = match &request.queue {
        Some(queue) => match engine.traces_by_name_in(queue, &request.name, skip, limit) {
            Ok(events) => events.into_iter().map(|event| (queue.clone(), event)).collect(),
            // Nothing is there under the name.
            Err(error) if error.code == ErrorCode::UnknownQueue => Vec::new(),
            Err(error) => return Err(error),
        },
        None => engine.traces_by_name(&request.name, skip.saturating_add(limit)).into_iter().skip(skip).collect(),
    };
    Ok(TracePage { traces: traces.into_iter().map(|(queue, event)| TraceRecord { queue, event }).collect() })
}

fn traces_of_message(engine: &Engine, request: &TraceByMessage) -> Result<TracePage> {
    let events = engine.traces_of_message(&request.queue, request.partition_id, &request.transaction_id)?;
    let record = |event| TraceRecord { queue: request.queue.clone(), event };
    Ok(TracePage { traces: events.into_iter().map(record).collect() })
}

fn trace_names(engine: &Engine) -> TraceNamePage {
    let names = engine.trace_names();
    TraceNamePage { names: names.into_iter().map(|(name, count)| TraceName { name, count }).collect() }
}

fn filter_test(request: &FilterTest) -> Result<FilterResult> {
    let filter = Filter::parse(&request.filter)?;
    Ok(FilterResult { is_match: filter.matches(request.attributes.view()) })
}
