//! The state machine of one (partition, group): cursor, leases, delivery counts, acknowledgement, delays, seek.
//!
//! Pure: no I/O, no clock, no locks. The engine owns one [`Delivery`] for each lane with work in flight (an idle one is a
//! [`PlainCursor`]), gives it the time, and turns what it decides into log records. Leases and delays are memory and end with
//! the process; everything else is in the [`Cursor`].
//!
//! # Staged and visible
//!
//! Every decision is taken against the *staged* state, at once. [`Delivery::take_change`] gives the resulting cursor for the log:
//! physical, idempotent, versioned, one for each commit however many decisions it holds. After the sync
//! [`Delivery::publish`] makes it *visible*: what lag, listings and checkpoints show. A decision may be answered when the
//! visible version has reached its own ([`AckDecision::version`]); a no-op waits for the acknowledgement that it repeats in the
//! same way. A transaction clones the deliveries that it touches, decides, and puts the clones back if any part is refused.
//! A claim sees staged state: it may hand out what follows an acknowledgement that is not durable yet, since a crash then only
//! repeats messages.
//!
//! # Acknowledgement in ordered mode
//!
//! One lease at a time. The items of one call are taken in order of offset; of several on one offset the strongest counts
//! (reject > failed > retry > completed).
//!
//! - *completed* moves the cursor over everything that was handed out up to there, also what nobody spoke of.
//! - *retry* and *failed* hand their message back: the cursor stops below the lowest of them, the lease ends, and what lies
//!   above is handed out again, whatever this call said of it.
//! - *reject* is final and speaks of its own message only: a dead letter at once. The walk goes on above it, so that several
//!   rejects and completions in one call all count, and the lease stays for what is left.
//! - *failed* charges its message once a call (the first one in the walk). A charge that reaches the limit makes the message a
//!   dead letter, or drops it, and the walk goes on as after a reject; the lease ends, since the consumer cannot know.
//!
//! A final message may lie above messages that nobody spoke of. Queen passes the cursor over those, which loses them; here the
//! final message is marked done above the cursor ([`Cursor::done_above`]), its elders stay in the lease or are handed out again,
//! and the cursor passes it when it gets there. Charges belong to a message and not to the lane as in Queen, so a message is never
//! dead for the failures of its neighbours; passing a message forgets them, so that a batch acknowledged in full starts afresh.
//!
//! # Shared mode
//!
//! Many leases, each message for itself: nothing is implied, `failed` charges each message that it names, retry delays one
//! message. Messages up to [`WINDOW`] beyond the lowest unfinished one are handed out.
//!
//! # Both modes
//!
//! - Offsets below the cursor: completed is a no-op, anything else is refused ("already committed").
//! - A token that is not live is refused with `LeaseLost`, item by item. If its lease ended by the same call (compared by token
//!   and items), the repeat succeeds as a no-op. That memory does not survive a restart; completed items are no-ops by the
//!   cursor, so only a repeated failed / retry / reject is then refused, and its message is in the state that it asked for.
//! - An offset that the lease does not hold is refused with `NotLeased`.
//! - Without a token an ordered acknowledgement acts on the live lease if there is one, else on everything up to the end; a
//!   shared one on any message in the window, whoever holds it.
//! - Expiry and hand-back never charge. A delay ends with a restart: the message comes early rather than never.
//! - Delivery counts grow with each claim. They are part of the cursor, but a claim or expiry alone asks for no record
//!   ([`Change::is_lazy`]): the next acknowledgement, checkpoint or clean stop carries them. So a crash forgets deliveries since
//!   then, and never a charge.
//! - Tokens are never reused and a seek ends all leases, so nothing of before a seek can act after it; there is no separate
//!   epoch. A claim that was prepared before a seek is refused because it does not start at the cursor.

mod ack;
mod cursor;
mod deadlines;
mod encoding;
mod notes;
mod ordered;
mod recent;
mod runs;
mod shared;
mod state;
mod token;

pub use ack::{AckDecision, AckLimits, DeadLetterStep, Verdict};
pub use cursor::{Cursor, PlainCursor, WINDOW};
pub use encoding::CursorError;
pub use notes::ERROR_BYTES_MAX;
pub use runs::{OffsetSet, Runs};
pub use state::{Change, Claimed, Delivery, LeaseView, Mode, NotClaimable};
pub use token::LeaseToken;

#[cfg(test)]
mod tests;
