//! A run from its preparation to its report.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use fanlog::client::{Client, parse_address};
use fanlog::model::{Compression, ErrorCode, GroupDeclaration, QueueInfo, QueueStats};
use tokio::task::block_in_place;

use super::super::Context;
use super::super::exit::{EXIT_DONE, EXIT_SERVER};
use super::Kind;
use super::check::{Faults, GroupWatch, Layout, Ledger, Pushed, Takes, count_taken};
use super::consumer::{Clocking, ConsumePlan, Consumer};
use super::drive::{Crew, Run, Tally};
use super::link::Link;
use super::own_server::OwnServer;
use super::plan::Plan;
use super::process::{self, Sample};
use super::pusher::{PushPlan, Pusher};
use super::reader::Reader;
use super::report::{Drain, Measured, Report, ZstdAlone};
use super::stock::{Stock, StockOptions};

/// Time for threads to begin together.
const LEAD: Duration = Duration::from_millis(20);
/// Connections that read back.
const READERS: usize = 2;

/// Measures, writes the report, and gives the exit code: a server that lost or changed something has failed.
pub async fn run(plan: Plan, mut context: Context) -> Result<u8> {
    let own = plan.serve.then(|| OwnServer::start(plan.serve_in.clone())).transpose()?;
    let token = context.config.token()?;
    let (client, address) = match &own {
        Some(own) => {
            let builder = Client::builder(own.address()).name("fanlog-bench");
            let builder = token.iter().fold(builder, |builder, token| builder.token(token));
            (builder.connect().await?, own.address().to_owned())
        }
        None => (context.connect().await?, parse_address(context.config.text("server"))?),
    };
    let pid = match &own {
        Some(own) => Some(own.pid()),
        None => address.parse().ok().and_then(process::listener),
    };
    let (queue, is_alone) = prepare_queue(&client, &plan).await?;
    let number = run_number();
    let stage = Stage { address, token, pid, number, queue, is_alone, client, plan };
    let measured = stage.measure().await;
    stage.clean_up(measured.is_ok()).await?;
    let report = Report::new(&stage.plan, &stage.queue.settings, stage.pid, measured?);
    context.output.object(&report)?;
    if report.checks.ok {
        return Ok(EXIT_DONE);
    }
    eprintln!("error: the server lost, repeated, reordered or changed messages, see \"checks\"");
    Ok(EXIT_SERVER)
}

/// The queue as the plan wants it; whether it was made for this run.
async fn prepare_queue(client: &Client, plan: &Plan) -> Result<(QueueInfo, bool)> {
    match client.queue(&plan.queue).await {
        Ok(queue) if plan.settings == Default::default() => Ok((queue, false)),
        Ok(_) => Ok((client.update_queue(&plan.queue, plan.settings.clone()).await?, false)),
        Err(error) if error.code() == Some(ErrorCode::UnknownQueue) => {
            Ok((client.create_queue(&plan.queue, plan.settings.clone()).await?, true))
        }
        Err(error) => Err(error.into()),
    }
}

/// A number that no other run has, as far as that can be without asking anybody.
fn run_number() -> u32 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    let mixed = (time ^ u64::from(std::process::id()) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32
}

/// Where a run happens.
struct Stage {
    plan: Plan,
    client: Client,
    address: String,
    token: Option<String>,
    pid: Option<u32>,
    /// Tells this run's messages and groups from others.
    number: u32,
    queue: QueueInfo,
    /// Whether the queue was made for this run.
    is_alone: bool,
}

/// Connections that are ready to push.
struct Load {
    ready: Vec<(Link, Stock)>,
    /// What the filters take, one for each.
    takes: Vec<Takes>,
    zstd: Option<ZstdAlone>,
}

/// What was pushed.
struct Backlog {
    pushed: Vec<Pushed>,
    /// Where this run's messages begin in each partition.
    starts: Vec<(u32, u64)>,
}

/// Processor time around a part of a run.
pub struct Costs {
    pub measure_from: Instant,
    pub elapsed: Duration,
    pub server: Option<(Sample, Sample)>,
    pub client: Option<(Sample, Sample)>,
}

impl Stage {
    async fn measure(&self) -> Result<Measured> {
        self.declare_groups().await?;
        let load = block_in_place(|| self.load())?;
        let before = self.stats().await?;
        match self.plan.kind {
            Kind::Push | Kind::Latency => {
                let (backlog, tally, costs) = block_in_place(|| self.push(load.ready, self.plan.warmup))?;
                let after = self.stats().await?;
                let (faults, checked) = block_in_place(|| self.read_back(&backlog))?;
                Ok(Measured { zstd: load.zstd, ..self.measured(tally, costs, faults, checked, &backlog, (before, after)) })
            }
            Kind::Pop | Kind::Fanout => {
                let (backlog, _, _) = block_in_place(|| self.push(load.ready, Duration::ZERO))?;
                let after = self.stats().await?;
                let groups = self.groups_to_read(&load.takes, Some(&backlog));
                let run = self.run_of(self.plan.warmup);
                let (tally, costs) = block_in_place(|| {
                    let crew = self.consume(&groups, &run)?;
                    let (costs, joined) = self.watch(&run, || crew.join())?;
                    let (_, tally) = joined;
                    Ok::<_, anyhow::Error>((tally, costs))
                })?;
                let read = self.stats().await?;
                let (mut faults, mut checked) = self.judge(&groups, &backlog);
                if self.plan.is_raw {
                    (faults, checked) = block_in_place(|| self.read_back(&backlog))?;
                    faults.lost += missing(&groups);
                }
                let measured = self.measured(tally, costs, faults, checked, &backlog, (before, after));
                let drains = self.drains(&groups, run.measure_from);
                Ok(Measured { zstd: load.zstd, reading: Some((after, read)), drains, ..measured })
            }
            Kind::E2e => {
                let groups = self.groups_to_read(&load.takes, None);
                let run = self.run_of(self.plan.warmup);
                let (backlog, push_tally, tally, costs) = block_in_place(|| {
                    let readers = self.consume(&groups, &run)?;
                    let pushers = Crew::start(self.pushers(load.ready, &run), self.plan.threads, &run)?;
                    let (costs, (backlog, push_tally, tally)) = self.watch(&run, || {
                        let (pushers, push_tally) = pushers.join()?;
                        let backlog = backlog_of(&pushers, self.layout());
                        for (group, takes) in groups.iter().zip(self.takes_of_groups(&load.takes)) {
                            group.expected.store(count_taken(&takes, &backlog.pushed), Relaxed);
                        }
                        Ok((backlog, push_tally, readers.join()?.1))
                    })?;
                    Ok::<_, anyhow::Error>((backlog, push_tally, tally, costs))
                })?;
                let after = self.stats().await?;
                let (faults, checked) = self.judge(&groups, &backlog);
                let measured = self.measured(tally, costs, faults, checked, &backlog, (before, after));
                Ok(Measured { zstd: load.zstd, push_latency: Some(push_tally.latency), ..measured })
            }
        }
    }

    fn measured(
        &self,
        tally: Tally,
        costs: Costs,
        faults: Faults,
        checked: u64,
        backlog: &Backlog,
        pushing: (QueueStats, QueueStats),
    ) -> Measured {
        let pushed = backlog.pushed.iter().map(|pushed| u64::from(pushed.count)).sum();
        Measured {
            tally,
            costs,
            faults,
            checked,
            pushed,
            pushing,
            reading: None,
            push_latency: None,
            zstd: None,
            drains: Vec::new(),
        }
    }

    async fn stats(&self) -> Result<QueueStats> {
        Ok(self.client.queue(&self.plan.queue).await?.stats)
    }

    fn layout(&self) -> Layout {
        Layout { connections: self.plan.push_connections, partitions: self.plan.partitions }
    }

    fn group_name(&self, index: usize) -> String {
        format!("bench-{:08x}-{index}", self.number)
    }

    /// Groups are declared before anything is pushed, so that filters are judged where they are judged in real life.
    async fn declare_groups(&self) -> Result<()> {
        for index in 0..self.plan.groups as usize {
            let filter = self.plan.filter_of(index).map(|(text, _)| text.clone()).unwrap_or_default();
            let declaration = GroupDeclaration { filter, ..GroupDeclaration::default() };
            self.client.declare_group(&self.plan.queue, &self.group_name(index), declaration).await?;
        }
        Ok(())
    }

    /// Removes the groups, and the queue if that is asked for. After a failed run it is tried, and what fails is not news.
    async fn clean_up(&self, is_strict: bool) -> Result<()> {
        let mut outcome = Ok(());
        for index in 0..self.plan.groups as usize {
            outcome = outcome.and(self.client.delete_group(Some(&self.plan.queue), &self.group_name(index)).await.map(|_| ()));
        }
        if self.plan.delete {
            outcome = outcome.and(self.client.delete_queue(&self.plan.queue).await.map(|_| ()));
        }
        if is_strict { Ok(outcome?) } else { Ok(()) }
    }

    fn connect(&self) -> Result<Link> {
        Link::connect(&self.address, self.token.as_deref())
    }

    fn run_of(&self, warmup: Duration) -> Arc<Run> {
        let epoch = Instant::now();
        let start = epoch + LEAD;
        let measure_from = start + warmup;
        let end = self.plan.duration.map(|duration| measure_from + duration);
        Arc::new(Run { number: self.number, epoch, start, measure_from, end, is_aborted: AtomicBool::new(false) })
    }

    /// Makes everything that pushing needs before the clock starts.
    fn load(&self) -> Result<Load> {
        let plan = &self.plan;
        let compression = self.queue.settings.compression;
        let options = StockOptions {
            queue: plan.queue.clone(),
            batch: plan.batch as usize,
            size: plan.size,
            content: plan.content,
            has_attributes: plan.has_attributes,
            pack: plan.is_packed.then_some(compression),
        };
        let mut ready = Vec::new();
        let mut takes = vec![Vec::new(); plan.filters.len()];
        for connection in 0..plan.push_connections {
            let stock = Stock::new(u16::try_from(connection)?, options.clone())?;
            for (takes, (_, filter)) in takes.iter_mut().zip(&plan.filters) {
                takes.push(stock.takes(filter));
            }
            ready.push((self.connect()?, stock));
        }
        let zstd = match compression {
            Compression::Zstd { level } => {
                ready.first().and_then(|(_, stock)| ZstdAlone::measure(|| stock.sample_batch(), level))
            }
            Compression::None => None,
        };
        Ok(Load { ready, takes: takes.into_iter().map(Some).collect(), zstd })
    }

    fn pushers(&self, ready: Vec<(Link, Stock)>, run: &Arc<Run>) -> Vec<Pusher> {
        let interval = self.plan.interval();
        let layout = self.layout();
        let make = |((link, stock), connection): ((Link, Stock), u32)| {
            let part = f64::from(connection) / f64::from(self.plan.push_connections);
            let plan = PushPlan {
                batch: self.plan.batch,
                size: self.plan.size,
                in_flight: self.plan.push_in_flight,
                count: self.plan.share(connection),
                interval,
                delay: interval.unwrap_or_default().mul_f64(part),
                promise: self.queue.settings.durability.into(),
            };
            Pusher::new(link, stock, plan, run, connection as u16, layout.partitions_of(connection))
        };
        ready.into_iter().zip(0..).map(make).collect()
    }

    fn push(&self, ready: Vec<(Link, Stock)>, warmup: Duration) -> Result<(Backlog, Tally, Costs)> {
        let run = self.run_of(warmup);
        let crew = Crew::start(self.pushers(ready, &run), self.plan.threads, &run)?;
        let (costs, (pushers, tally)) = self.watch(&run, || crew.join())?;
        Ok((backlog_of(&pushers, self.layout()), tally, costs))
    }

    /// Takes samples of both processes when measuring begins and when the work is done.
    fn watch<T>(&self, run: &Run, work: impl FnOnce() -> Result<T>) -> Result<(Costs, T)> {
        std::thread::sleep(run.measure_from.saturating_duration_since(Instant::now()));
        let sample = || (self.pid.and_then(process::sample), process::sample(std::process::id()));
        let (server_before, client_before) = sample();
        let done = work()?;
        let (server_after, client_after) = sample();
        let costs = Costs {
            elapsed: run.measure_from.elapsed(),
            server: server_before.zip(server_after),
            client: client_before.zip(client_after),
            measure_from: run.measure_from,
        };
        Ok((costs, done))
    }

    fn takes_of_groups(&self, takes: &[Takes]) -> Vec<Takes> {
        let of = |index: usize| takes.get(index % takes.len().max(1)).cloned().flatten();
        (0..self.groups_read()).map(of).collect()
    }

    fn groups_read(&self) -> usize {
        if self.plan.kind == Kind::Pop { 1 } else { self.plan.groups as usize }
    }

    fn groups_to_read(&self, takes: &[Takes], backlog: Option<&Backlog>) -> Vec<Arc<GroupWatch>> {
        let watch = |(index, takes): (usize, Takes)| {
            let expected = backlog.map_or(u64::MAX, |backlog| count_taken(&takes, &backlog.pushed));
            let ledger = Ledger::new(self.number, self.layout(), takes, self.is_alone);
            Arc::new(GroupWatch::new(self.group_name(index), ledger, expected))
        };
        self.takes_of_groups(takes).into_iter().enumerate().map(watch).collect()
    }

    fn consume(&self, groups: &[Arc<GroupWatch>], run: &Arc<Run>) -> Result<Crew<Consumer>> {
        let plan = &self.plan;
        let consume = ConsumePlan {
            queue: plan.queue.clone(),
            way: plan.way,
            ack: plan.ack,
            is_raw: plan.is_raw,
            is_dense: plan.filters.is_empty() && plan.read_connections == 1,
            bytes_max: plan.pop_bytes,
            messages_max: plan.pop_messages,
            partitions_max: plan.pop_partitions,
            in_flight: plan.read_in_flight,
            size: plan.size,
            clocking: if plan.kind == Kind::E2e { Clocking::Messages } else { Clocking::Requests },
        };
        let mut consumers = Vec::new();
        for _ in 0..plan.read_connections {
            for group in groups {
                consumers.push(Consumer::new(self.connect()?, consume.clone(), run, group, self.layout()));
            }
        }
        Crew::start(consumers, plan.threads, run)
    }

    /// How long each group took to read what is its own.
    fn drains(&self, groups: &[Arc<GroupWatch>], from: Instant) -> Vec<Drain> {
        let drain = |(index, group): (usize, &Arc<GroupWatch>)| Drain {
            filter: self.plan.filter_of(index).map(|(text, _)| text.clone()).unwrap_or_default(),
            messages: group.received.load(Relaxed),
            seconds: group.completed_at.get().map(|at| at.saturating_duration_since(from).as_secs_f64()),
        };
        groups.iter().enumerate().map(drain).collect()
    }

    fn judge(&self, groups: &[Arc<GroupWatch>], backlog: &Backlog) -> (Faults, u64) {
        let mut total = Faults::default();
        let mut checked = 0;
        for group in groups {
            let ledger = group.ledger.lock().unwrap_or_else(PoisonError::into_inner);
            total.add(&ledger.faults(&backlog.pushed));
            checked += ledger.checked();
        }
        (total, checked)
    }

    /// Reads everything that was pushed without a group.
    fn read_back(&self, backlog: &Backlog) -> Result<(Faults, u64)> {
        let ledger = Arc::new(Mutex::new(Ledger::new(self.number, self.layout(), None, self.is_alone)));
        let mut shares = vec![Vec::new(); READERS.min(backlog.starts.len())];
        for (index, start) in backlog.starts.iter().enumerate() {
            let count = shares.len();
            if let Some(share) = shares.get_mut(index % count) {
                share.push(*start);
            }
        }
        let reader = |share| Ok(Reader::new(self.connect()?, self.plan.queue.clone(), share, &ledger));
        let readers = shares.into_iter().map(reader).collect::<Result<Vec<_>>>()?;
        Crew::start(readers, READERS, &self.run_of(Duration::ZERO))?.join()?;
        let ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((ledger.faults(&backlog.pushed), ledger.checked()))
    }
}

/// What groups whose batches were not opened should have had and had not.
fn missing(groups: &[Arc<GroupWatch>]) -> u64 {
    groups.iter().map(|group| group.expected.load(Relaxed).saturating_sub(group.received.load(Relaxed))).sum()
}

fn backlog_of(pushers: &[Pusher], layout: Layout) -> Backlog {
    let mut pushed = vec![Pushed::default(); layout.connections as usize];
    let mut starts = std::collections::BTreeMap::new();
    for pusher in pushers {
        if let Some(place) = pushed.get_mut(usize::from(pusher.connection())) {
            *place = pusher.pushed().clone();
        }
        for (partition, offset) in pusher.first_offsets() {
            let start = starts.entry(partition).or_insert(offset);
            *start = offset.min(*start);
        }
    }
    Backlog { pushed, starts: starts.into_iter().collect() }
}
