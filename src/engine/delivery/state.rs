//! One (partition, group) with work in flight: claims, leases, time, seeks, and the step from staged to visible.

use std::collections::BTreeMap;

use crate::model::{Now, OffsetRange};
use crate::record::Offset;

use super::cursor::{Cursor, WINDOW};
use super::deadlines::Deadlines;
use super::recent::RecentAcks;
use super::runs::OffsetSet;
use super::token::LeaseToken;

/// Runs of delivery counts that an ordered cursor keeps, the lowest first. Claims begin at the cursor, so more runs than this
/// take as many claims of growing or shrinking size without progress.
const ORDERED_DELIVERY_RUNS_MAX: usize = 64;

/// How a group hands out one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// One lease at a time; messages in order.
    Ordered,
    /// Many leases; each message for itself.
    Shared,
}

/// The state machine of one (partition, group). See the module.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub(super) mode: Mode,
    pub(super) staged: Cursor,
    visible: Cursor,
    /// What `staged` has that no change has taken yet.
    pending: Pending,
    /// The version of the last step that a reply waits for.
    pub(super) decided: u64,
    pub(super) leases: BTreeMap<LeaseToken, Lease>,
    pub(super) lease_ends: Deadlines<LeaseToken>,
    /// Messages that a retry put off. In ordered mode any of them holds the whole lane.
    pub(super) delays: Deadlines<Offset>,
    /// Shared mode: offsets from `next` on that are done, leased or put off, so that finding free ones costs by what is found.
    pub(super) busy: OffsetSet,
    /// It passed what damage took, and that does not show yet.
    has_passed_lost: bool,
    pub(super) recent: RecentAcks,
}

/// What one hand-out holds.
#[derive(Debug, Clone)]
pub(super) struct Lease {
    /// Handed out and not finished; never empty.
    pub(super) outstanding: OffsetSet,
    /// Ordered mode: the last offset that the claim looked at. What follows the last message up to here was refused by the
    /// group's filter and is passed with it.
    pub(super) through: Offset,
    /// Ordered mode: where the cursor stood, and all that was handed out from there.
    handed_out: (Offset, OffsetSet),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Pending {
    Nothing,
    Lazy,
    Durable,
}

/// The resulting cursor of one or more decisions, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The cursor to write, and to publish once the write is durable.
    pub cursor: Cursor,
    /// Nobody waits for it, and losing it costs no more than a delivery count or a skip that is found again: it may be left
    /// for the next commit, checkpoint or clean stop.
    pub is_lazy: bool,
}

/// What a claim handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// Which delivery of the first message this is, from 1. Those of the others: [`Cursor::delivery_count`] of the staged cursor.
    pub delivery_count: u32,
    /// Why the first message was last handed back; empty if it never was.
    pub last_error: String,
}

/// Why a claim is refused: something came between finding messages and claiming them, or the engine gave a claim that makes
/// no sense. Nothing changed; look again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("messages from offset {next} on are not free to claim as asked")]
pub struct NotClaimable {
    /// The cursor's next offset.
    pub next: Offset,
}

/// A live lease, for listings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseView {
    /// Its token.
    pub token: LeaseToken,
    /// When it ends, microseconds of the steady clock.
    pub until_us: u64,
}

impl Delivery {
    /// A lane as it is after a start: nothing leased, nothing put off. `cursor` is durable.
    pub fn new(mode: Mode, cursor: Cursor) -> Self {
        let busy = if mode == Mode::Shared { cursor.done.clone() } else { OffsetSet::default() };
        Self {
            mode,
            visible: cursor.clone(),
            pending: Pending::Nothing,
            decided: cursor.version,
            leases: BTreeMap::new(),
            lease_ends: Deadlines::default(),
            delays: Deadlines::default(),
            busy,
            has_passed_lost: false,
            recent: RecentAcks::default(),
            staged: cursor,
        }
    }

    /// How it hands out.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What later decisions see.
    pub fn staged(&self) -> &Cursor {
        &self.staged
    }

    /// What is durable: for lag, listings, checkpoints and retention.
    pub fn visible(&self) -> &Cursor {
        &self.visible
    }

    /// The lane in its small form, if nothing is leased, put off, in flight or not yet published. Whoever lets the delivery go
    /// for it also lets go of the memory of repeated acknowledgements: see [`Self::remembers_until`].
    pub fn plain(&self) -> Option<super::PlainCursor> {
        let is_settled = self.staged.version == self.visible.version;
        let is_idle = is_settled && self.leases.is_empty() && self.delays.is_empty();
        if is_idle { self.visible.plain() } else { None }
    }

    /// The resulting cursor of all decisions since the last call, if there were any. Changes are published in the order taken.
    pub fn take_change(&mut self) -> Option<Change> {
        let pending = std::mem::replace(&mut self.pending, Pending::Nothing);
        (pending > Pending::Nothing).then(|| Change { cursor: self.staged.clone(), is_lazy: pending == Pending::Lazy })
    }

    /// Whether [`Self::take_change`] would give a change, and whether anyone waits for it.
    pub fn has_change(&self) -> (bool, bool) {
        (self.pending > Pending::Nothing, self.pending == Pending::Durable)
    }

    /// Makes a durable cursor visible; an older one than the visible is ignored.
    pub fn publish(&mut self, cursor: Cursor) {
        if cursor.version > self.visible.version {
            self.visible = cursor;
        }
        self.show_passed();
    }

    /// Ends the leases and delays whose time has come; returns whether messages came free. Every call that decides does this
    /// first, so a late timer changes nothing.
    pub fn expire(&mut self, now: Now) -> bool {
        let mut has_freed = false;
        while let Some(token) = self.lease_ends.pop_due(now.steady_us) {
            self.end_lease(token);
            has_freed = true;
        }
        while let Some(offset) = self.delays.pop_due(now.steady_us) {
            self.busy.remove(offset);
            has_freed = true;
        }
        self.recent.expire(now);
        has_freed
    }

    /// When [`Self::expire`] has work next, microseconds of the steady clock.
    pub fn next_deadline(&self) -> Option<u64> {
        [self.lease_ends.earliest(), self.delays.earliest()].into_iter().flatten().min()
    }

    /// Until when an acknowledgement that is repeated has to be recognised, if there is one; it is forgotten by [`Self::expire`].
    pub fn remembers_until(&self) -> Option<u64> {
        self.recent.earliest()
    }

    /// The stretches of offsets below `end` that may be claimed now, ascending, at most `ranges_max` of them. Messages in them
    /// that the group's filter refuses are for the engine to leave out (see [`Self::claim`] and [`Self::pass_over`]).
    pub fn ready(&mut self, end: Offset, ranges_max: usize, now: Now) -> Vec<OffsetRange> {
        self.expire(now);
        let next = self.staged.next;
        match self.mode {
            Mode::Ordered if !self.leases.is_empty() || !self.delays.is_empty() => Vec::new(),
            Mode::Ordered => self.staged.done.gaps(next, end).take(ranges_max).collect(),
            Mode::Shared => self.busy.gaps(next, end.min(next.saturating_add(WINDOW))).take(ranges_max).collect(),
        }
    }

    /// Hands out `messages` under `token` until `until_us` of the steady clock.
    ///
    /// In ordered mode `from` must be the staged cursor's next offset, `messages` what the group takes of the free offsets
    /// between it and `through`, both inclusive: whatever lies between and is not in `messages` counts as refused by the
    /// filter, and is passed with the messages around it. In shared mode neither is looked at, and every message must be free.
    ///
    /// For delivery at most once, claim and acknowledge in the same step.
    ///
    /// # Errors
    ///
    /// If a lease, delay, seek, acknowledgement or retention came between; look again with [`Self::ready`].
    pub fn claim(
        &mut self,
        token: LeaseToken,
        until_us: u64,
        from: Offset,
        through: Offset,
        messages: OffsetSet,
        now: Now,
    ) -> Result<Claimed, NotClaimable> {
        self.expire(now);
        let refused = NotClaimable { next: self.staged.next };
        let (Some(first), Some(last)) = (messages.first(), messages.last()) else { return Err(refused) };
        let is_live = until_us > now.steady_us && !self.leases.contains_key(&token);
        let is_free = match self.mode {
            Mode::Ordered => {
                let is_lane_free = self.leases.is_empty() && self.delays.is_empty();
                is_lane_free && from == self.staged.next && last <= through && is_disjoint(&messages, &self.staged.done)
            }
            Mode::Shared => last - self.staged.next.min(last) < WINDOW && is_disjoint(&messages, &self.busy),
        };
        if !is_live || !is_free || first < self.staged.next {
            return Err(refused);
        }
        for (range, ()) in messages.iter() {
            self.staged.deliveries.increment(range);
            if self.mode == Mode::Shared {
                self.busy.set(range, ());
            }
        }
        if self.mode == Mode::Ordered {
            self.staged.deliveries.truncate(ORDERED_DELIVERY_RUNS_MAX);
        }
        let claimed = Claimed {
            delivery_count: self.staged.delivery_count(first).max(1),
            last_error: self.staged.last_error(first).to_owned(),
        };
        let handed_out = match self.mode {
            Mode::Ordered => (from, messages.clone()),
            Mode::Shared => Default::default(),
        };
        self.leases.insert(token, Lease { outstanding: messages, through, handed_out });
        self.lease_ends.set(token, until_us);
        self.touch_lazily();
        Ok(claimed)
    }

    /// Makes a live lease last until `until_us` of the steady clock, or longer if it lasts longer already. Returns when it ends,
    /// or `None` if the lease is over.
    pub fn extend(&mut self, token: LeaseToken, until_us: u64, now: Now) -> Option<u64> {
        self.expire(now);
        let until_us = self.lease_ends.get(token)?.max(until_us);
        self.lease_ends.set(token, until_us);
        Some(until_us)
    }

    /// Takes back what never reached its consumer: uncharged, and the delivery does not count. Returns whether the lease was
    /// live.
    pub fn release(&mut self, token: LeaseToken, now: Now) -> bool {
        self.expire(now);
        let Some(lease) = self.end_lease(token) else { return false };
        for (range, ()) in lease.outstanding.iter() {
            self.staged.deliveries.decrement(range);
        }
        self.touch_lazily();
        true
    }

    /// Goes to `target`, forward or back: ends all leases and delays, forgets counts and what was done above the cursor. The
    /// caller has checked `target` against start and end.
    pub fn seek(&mut self, target: Offset) {
        self.leases.clear();
        self.lease_ends.clear();
        self.delays.clear();
        self.busy = OffsetSet::default();
        self.recent.clear();
        self.staged.go_to(target);
        self.touch();
    }

    /// Takes back the decisions that are not durable, since they cannot be made so: what they settled is wanted again. A consumer that
    /// was told how long it holds its messages goes on holding them, and others stay away: in ordered mode all that it has not
    /// durably settled, in shared mode what nobody spoke of. Delays end, as with a restart.
    pub fn take_back(&mut self) {
        if self.decided <= self.visible.version() {
            // Nothing but counts and skips, which the next commit carries.
            self.pending = self.pending.max(Pending::Lazy);
            return;
        }
        let cursor = self.visible.clone();
        let next = cursor.next();
        let mut taken_back = Self::new(self.mode, cursor);
        for (token, mut lease) in std::mem::take(&mut self.leases) {
            let Some(until_us) = self.lease_ends.get(token) else { continue };
            let is_reachable = match self.mode {
                Mode::Ordered => {
                    let (from, messages) = &lease.handed_out;
                    lease.outstanding = messages.clone();
                    // Otherwise it was handed out behind what is taken back, and would pass that.
                    *from <= next
                }
                Mode::Shared => lease.outstanding.last().is_some_and(|last| last < next.saturating_add(WINDOW)),
            };
            lease.outstanding.clear_below(next);
            for (range, ()) in taken_back.staged.done.iter() {
                lease.outstanding.clear(range);
            }
            if is_reachable && !lease.outstanding.is_empty() {
                for (range, ()) in lease.outstanding.iter() {
                    if self.mode == Mode::Shared {
                        taken_back.busy.set(range, ());
                    }
                    for (part, count) in self.staged.deliveries.overlapping(range) {
                        taken_back.staged.deliveries.set(part, count);
                    }
                }
                taken_back.lease_ends.set(token, until_us);
                taken_back.leases.insert(token, lease);
                taken_back.touch_lazily();
            }
        }
        *self = taken_back;
    }

    /// Goes back to what it was before decisions that do not come about. Where others took messages since, only the decisions are taken
    /// back, and what was taken stays with them.
    pub fn put_back(&mut self, mut before: Self) {
        if self.leases.keys().any(|token| !before.leases.contains_key(token)) {
            return self.take_back();
        }
        for &token in self.leases.keys() {
            // It may have been extended.
            if let Some(until_us) = self.lease_ends.get(token).max(before.lease_ends.get(token)) {
                before.lease_ends.set(token, until_us);
            }
        }
        *self = before;
    }

    /// Retention (or damage) took everything below `start`: moves the cursor there and takes the lost messages out of leases.
    /// Returns what was skipped, for the notice, if the cursor was below.
    pub fn skip_to(&mut self, start: Offset) -> Option<OffsetRange> {
        let lost = OffsetRange { first: self.staged.next, last: start.checked_sub(1)? };
        if lost.first > lost.last {
            return None;
        }
        for lease in self.leases.values_mut() {
            lease.outstanding.clear_below(start);
        }
        self.end_finished_leases();
        self.staged.pass_to(start);
        self.forget_below_next();
        self.touch_lazily();
        Some(lost)
    }

    /// Passes offsets that the group's filter refused, without counting them as consumed. In ordered mode this moves the cursor if
    /// it stands inside `range` and nothing is leased; in shared mode free offsets of the window are marked done.
    pub fn pass_over(&mut self, range: OffsetRange) {
        let next = self.staged.next;
        if range.last < next || range.first > range.last || (self.mode == Mode::Ordered && !self.leases.is_empty()) {
            return;
        }
        let is_at_cursor = range.first <= next && !self.busy.overlapping(range).any(|(part, ())| part.last >= next);
        if is_at_cursor {
            self.staged.pass_to(range.last.saturating_add(1));
        } else if self.mode == Mode::Shared {
            let limit = next.saturating_add(WINDOW).min(range.last.saturating_add(1));
            let free: Vec<_> = self.busy.gaps(range.first.max(next), limit).collect();
            for gap in free {
                self.staged.mark_done(gap);
                self.busy.set(gap, ());
            }
            self.staged.pass_to(next);
        } else {
            return;
        }
        self.forget_below_next();
        self.touch_lazily();
    }

    /// As [`Self::pass_over`], for offsets that damage took. It shows at once and not with the next change that is durable: nobody will
    /// ever acknowledge them, so no change may come, and a crash costs no more than finding them again.
    pub fn pass_lost(&mut self, range: OffsetRange) {
        self.pass_over(range);
        self.has_passed_lost = true;
        self.show_passed();
    }

    /// Shows what was passed, as soon as no step that a reply waits for would show with it.
    fn show_passed(&mut self) {
        if self.has_passed_lost && self.decided <= self.visible.version() {
            self.visible = self.staged.clone();
            self.has_passed_lost = false;
        }
    }

    /// The lease that holds `offset`, if one is live.
    pub fn lease_of(&self, offset: Offset, now: Now) -> Option<LeaseView> {
        self.leases(now).find(|view| self.leases.get(&view.token).is_some_and(|lease| lease.outstanding.contains(offset)))
    }

    /// The live leases.
    pub fn leases(&self, now: Now) -> impl Iterator<Item = LeaseView> + '_ {
        let views = self.leases.keys().filter_map(|&token| Some(LeaseView { token, until_us: self.lease_ends.get(token)? }));
        views.filter(move |view| view.until_us > now.steady_us)
    }

    /// Messages handed out under live leases and not finished.
    pub fn in_flight(&self, now: Now) -> u64 {
        let live = self.leases(now).filter_map(|view| self.leases.get(&view.token));
        live.map(|lease| lease.outstanding.count()).sum()
    }

    /// Takes a lease out and frees what it holds.
    pub(super) fn end_lease(&mut self, token: LeaseToken) -> Option<Lease> {
        let lease = self.leases.remove(&token)?;
        self.lease_ends.remove(token);
        if self.mode == Mode::Shared {
            for (range, ()) in lease.outstanding.iter() {
                self.busy.clear(range);
            }
        }
        Some(lease)
    }

    /// Takes out the leases that hold nothing any more.
    pub(super) fn end_finished_leases(&mut self) {
        let finished: Vec<_> =
            self.leases.iter().filter(|(_, lease)| lease.outstanding.is_empty()).map(|(&token, _)| token).collect();
        finished.into_iter().for_each(|token| drop(self.end_lease(token)));
    }

    /// After the cursor moved: what lies below it is no longer put off or looked for.
    pub(super) fn forget_below_next(&mut self) {
        self.busy.clear_below(self.staged.next);
        self.delays.remove_below(self.staged.next);
    }

    /// The staged state changed in a way that a reply waits for.
    pub(super) fn touch(&mut self) {
        self.staged.version = self.staged.version.saturating_add(1);
        self.decided = self.staged.version;
        self.pending = Pending::Durable;
    }

    /// The staged state changed, and nobody waits.
    pub(super) fn touch_lazily(&mut self) {
        self.staged.version = self.staged.version.saturating_add(1);
        self.pending = self.pending.max(Pending::Lazy);
    }
}

fn is_disjoint(a: &OffsetSet, b: &OffsetSet) -> bool {
    a.iter().all(|(range, ())| b.overlapping(range).next().is_none())
}
