//! Rules of leases.

use fanlog::model::AckVerb::{Completed, Retry};

use crate::check::Rule::*;
use crate::history::Settled;

use super::story::*;

/// The lease `1` of one of two messages, from 4,000 microseconds to a second after 3,000.
fn taken() -> Story {
    let story = Story::new().push(&[(0, 1), (1, 2)], &[SHARED]).at(0, 1_000).pop(SHARED, "0", &[(1, 2)]).at(0, 2_000);
    story.pop(SHARED, "1", &[(0, 1)]).at(3_000, 4_000)
}

fn other(story: Story) -> Story {
    story.pop(SHARED, "2", &[(0, 1)])
}

#[test]
fn nobody_else_gets_a_message_while_its_lease_is_live() {
    assert_eq!(taken().broken(), []);
    assert_eq!(other(taken()).broken(), [OneLease]);
    assert_eq!(other(taken()).at(979_000, 980_000).broken(), [OneLease]);
    assert_eq!(other(taken()).at(979_000, 984_000).broken(), [], "it may have been given after the end");
    assert_eq!(other(taken()).at(1_003_000, 1_004_000).broken(), []);
    let asked_together = other(taken()).at(3_000, 4_000);
    assert_eq!(asked_together.broken(), [OneLease], "both hold it then, whoever was the first");
    let of_another_group =
        Story::new().push(&[(0, 1)], &[ORDERED, SHARED]).pop(SHARED, "1", &[(0, 1)]).pop(ORDERED, "2", &[(0, 1)]);
    assert_eq!(of_another_group.broken(), []);
}

#[test]
fn a_lease_is_given_once() {
    assert_eq!(taken().release("1").pop(SHARED, "1", &[(0, 1)]).broken(), [OneLease]);
}

#[test]
fn an_extension_makes_it_longer_if_it_is_said_to_have() {
    let extended = |renewed| taken().extend("1", renewed).at(900_000, 901_000);
    let late = |story: Story| other(story).at(1_500_000, 1_501_000);
    assert_eq!(late(taken()).broken(), []);
    assert_eq!(late(extended(1)).broken(), [OneLease]);
    assert_eq!(late(extended(0)).broken(), []);
    assert_eq!(late(extended(1).unknown()).broken(), []);
    assert_eq!(other(extended(1)).at(1_899_000, 1_901_000).broken(), []);
}

#[test]
fn whatever_may_end_it_ends_it() {
    assert_eq!(other(taken().release("1")).broken(), []);
    assert_eq!(other(taken().release("1").unknown()).broken(), []);
    assert_eq!(other(taken().release("1").refused()).broken(), [OneLease]);
    assert_eq!(other(taken().release("3")).broken(), [OneLease]);
    assert_eq!(other(taken().killed()).broken(), []);
    assert_eq!(other(taken().seek(SHARED, false)).pop(SHARED, "3", &[(1, 2)]).broken(), []);
    assert_eq!(other(taken().seek(ORDERED, false)).broken(), [OneLease]);
    assert_eq!(other(taken().ack(SHARED, "1", &[(0, Retry, Settled::Now)], 0)).broken(), []);
    assert_eq!(other(taken().ack(SHARED, "1", &[(1, Retry, Settled::Refused)], 0)).broken(), [OneLease], "another message");
}

#[test]
fn in_an_ordered_group_a_message_given_back_gives_back_all_behind_it() {
    let taken = || Story::new().push(&[(0, 1), (1, 2)], &[ORDERED]).pop(ORDERED, "1", &[(0, 1), (1, 2)]);
    let second = |story: Story| story.pop(ORDERED, "2", &[(1, 2)]);
    assert_eq!(second(taken().complete(ORDERED, "1")).broken(), [OneLease]);
    assert_eq!(second(taken().ack(ORDERED, "1", &[(0, Retry, Settled::Now)], 0)).broken(), []);
    assert_eq!(second(taken().ack(ORDERED, "1", &[(1, Completed, Settled::Now)], 1)).broken(), []);
}

#[test]
fn who_comes_too_late_settles_nothing() {
    let late = |settled| {
        let story = other(taken()).at(1_003_000, 1_004_000);
        story.ack(SHARED, "1", &[(0, Completed, settled)], 0).broken()
    };
    assert_eq!(late(Settled::Now), [StaleAck]);
    assert_eq!(late(Settled::Refused), []);
    assert_eq!(late(Settled::Before), []);
    let in_time = taken().ack(SHARED, "1", &[(0, Completed, Settled::Now)], 0).broken();
    assert_eq!(in_time, []);
}
