//! Threads that each drive some connections: one wait for all of them, no tasks, no locks between connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use fanlog::protocol::Frame;
use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use super::super::exit::ServerFault;
use super::link::Link;

/// A run in which nothing comes from the server for so long is over.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a thread looks up when nothing happens: other threads may have ended the run.
const TICK: Duration = Duration::from_millis(20);
/// Marks the event of the alarm among those of connections.
const ALARM: u64 = u64::MAX;
/// The longest latency that is told from longer ones.
const LATENCY_NS_MAX: u64 = 600_000_000_000;

/// What all threads of a run share.
#[derive(Debug)]
pub struct Run {
    /// Tells this run's messages from others.
    pub number: u32,
    /// Zero of the stamps' times.
    pub epoch: Instant,
    /// When the load begins.
    pub start: Instant,
    /// When measuring begins: after the warm-up.
    pub measure_from: Instant,
    /// When the load ends, if it is bounded by time.
    pub end: Option<Instant>,
    /// A thread failed, and the others need not go on.
    pub is_aborted: AtomicBool,
}

impl Run {
    /// Nanoseconds since the epoch, as stamps have them.
    pub fn nanoseconds(&self, moment: Instant) -> u64 {
        u64::try_from(moment.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// What was measured.
#[derive(Debug)]
pub struct Tally {
    /// Nanoseconds.
    pub latency: Histogram<u64>,
    /// Messages that were answered for, or delivered.
    pub messages: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Bytes of batches that came as they are stored.
    pub stored_bytes: u64,
    /// Requests or deliveries that they took.
    pub requests: u64,
    /// When the last one came.
    pub last: Option<Instant>,
}

impl Tally {
    fn new() -> Result<Self> {
        let latency = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)?;
        Ok(Self { latency, messages: 0, bytes: 0, stored_bytes: 0, requests: 0, last: None })
    }

    /// Notes a latency.
    pub fn record(&mut self, latency: Duration) {
        self.latency.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    fn add(&mut self, other: &Self) -> Result<()> {
        self.latency.add(&other.latency)?;
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.stored_bytes += other.stored_bytes;
        self.requests += other.requests;
        self.last = self.last.max(other.last);
        Ok(())
    }
}

/// When an actor wants to be asked again, if nothing comes for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// When something comes.
    Wait,
    /// Then.
    At(Instant),
    /// Never.
    Done,
}

/// What is done over one connection.
pub trait Actor: Send + 'static {
    /// Whether silence of the server ends the work; otherwise it is an error.
    const ENDS_IN_SILENCE: bool = false;

    /// The connection.
    fn link(&mut self) -> &mut Link;
    /// A frame came; whether it brought the work forward.
    fn take(&mut self, frame: Frame, tally: &mut Tally) -> Result<bool>;
    /// Whether something must come soon.
    fn is_owed(&self) -> bool {
        true
    }
    /// Does what is due.
    fn advance(&mut self, now: Instant, tally: &mut Tally) -> Result<Next>;
}

/// A connection's task: what it answered, and what it counted.
type Driver<A> = JoinHandle<Result<(Vec<A>, Tally)>>;

/// Threads at work.
#[derive(Debug)]
pub struct Crew<A> {
    handles: Vec<Driver<A>>,
}

impl<A: Actor> Crew<A> {
    /// Starts threads that share the actors.
    pub fn start(actors: Vec<A>, threads: usize, run: &Arc<Run>) -> Result<Self> {
        let threads = threads.clamp(1, actors.len().max(1));
        let mut shares: Vec<Vec<A>> = (0..threads).map(|_| Vec::new()).collect();
        for (index, actor) in actors.into_iter().enumerate() {
            shares[index % threads].push(actor);
        }
        let mut handles = Vec::new();
        for share in shares {
            let run = Arc::clone(run);
            handles.push(std::thread::Builder::new().name("bench".to_owned()).spawn(move || {
                let driven = drive(share, &run);
                if driven.is_err() {
                    run.is_aborted.store(true, Relaxed);
                }
                driven
            })?);
        }
        Ok(Self { handles })
    }

    /// Waits for the end, and gives the actors back.
    pub fn join(self) -> Result<(Vec<A>, Tally)> {
        let mut actors = Vec::new();
        let mut total = Tally::new()?;
        for handle in self.handles {
            let Ok(driven) = handle.join() else { bail!("a thread of the measurement failed") };
            let (some, tally) = driven?;
            actors.extend(some);
            total.add(&tally)?;
        }
        Ok((actors, total))
    }
}

fn drive<A: Actor>(mut actors: Vec<A>, run: &Run) -> Result<(Vec<A>, Tally)> {
    // The system wakes threads up to 50 microseconds late to save power; a fixed rate needs better. Not all systems let us ask.
    let _ = std::fs::write("/proc/thread-self/timerslack_ns", "1");
    let mut tally = Tally::new()?;
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    for (actor, index) in actors.iter_mut().zip(0u64..) {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        epoll::add(&epoll, actor.link().stream(), EventData::new_u64(index), flags)?;
    }
    // Waiting for events itself ends in whole milliseconds only.
    let alarm = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    epoll::add(&epoll, &alarm, EventData::new_u64(ALARM), EventFlags::IN | EventFlags::ET)?;
    std::thread::sleep(run.start.saturating_duration_since(Instant::now()));
    let mut plans: Vec<Next> = Vec::with_capacity(actors.len());
    for actor in &mut actors {
        plans.push(actor.advance(Instant::now(), &mut tally)?);
    }
    let mut events = Vec::with_capacity(actors.len().min(256));
    let mut last_forward = Instant::now();
    let mut last_tick = last_forward;
    while plans.iter().any(|plan| *plan != Next::Done) {
        if let Some(left) = until_due(&plans) {
            // No time at all would turn the alarm off.
            timerfd_settime(&alarm, TimerfdTimerFlags::empty(), &once(left.max(Duration::from_nanos(1))))?;
        }
        events.clear();
        match epoll::wait(&epoll, spare_capacity(&mut events), Some(&timespec(TICK))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => (),
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
        for event in &events {
            if event.data.u64() == ALARM {
                continue;
            }
            let index = event.data.u64() as usize;
            if serve(&mut actors[index], &mut tally)? {
                last_forward = Instant::now();
            }
            if plans[index] != Next::Done {
                plans[index] = actors[index].advance(Instant::now(), &mut tally)?;
            }
        }
        let now = Instant::now();
        let is_tick = now >= last_tick + TICK;
        for (actor, plan) in actors.iter_mut().zip(&mut plans) {
            let is_due = matches!(plan, Next::At(time) if *time <= now) || (is_tick && *plan != Next::Done);
            if is_due {
                *plan = actor.advance(now, &mut tally)?;
            }
        }
        if is_tick {
            last_tick = now;
            if run.is_aborted.load(Relaxed) {
                break;
            }
            let is_owed = actors.iter().zip(&plans).any(|(actor, plan)| *plan == Next::Wait && actor.is_owed());
            if !is_owed {
                last_forward = now;
            }
            if now > last_forward + PATIENCE {
                if A::ENDS_IN_SILENCE {
                    break;
                }
                bail!(ServerFault(format!("nothing came from the server for {} seconds", PATIENCE.as_secs())));
            }
        }
    }
    Ok((actors, tally))
}

/// Moves bytes in both directions. Whether something came that brought the work forward.
fn serve<A: Actor>(actor: &mut A, tally: &mut Tally) -> Result<bool> {
    let link = actor.link();
    if !link.is_clear() {
        link.flush()?;
    }
    let mut frames = Vec::new();
    let mut is_forward = false;
    loop {
        let goes_on = actor.link().fill()?;
        actor.link().hand_over(&mut frames)?;
        for frame in frames.drain(..) {
            is_forward |= actor.take(frame, tally)?;
        }
        actor.link().take_back();
        if !goes_on {
            return Ok(is_forward);
        }
    }
}

/// Time until the first of the actors has something to do by itself.
fn until_due(plans: &[Next]) -> Option<Duration> {
    let due = plans.iter().filter_map(|plan| match plan {
        Next::At(time) => Some(*time),
        _ => None,
    });
    due.min().map(|time| time.saturating_duration_since(Instant::now()))
}

fn once(duration: Duration) -> Itimerspec {
    Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(duration) }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: duration.subsec_nanos().into() }
}
