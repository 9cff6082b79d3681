//! Rules of what groups get.

use fanlog::model::AckVerb::{Completed, Failed, Reject};

use crate::check::Rule::*;
use crate::history::{Call, Settled};

use super::story::*;

/// One message that a group takes.
fn pushed(group: usize) -> Story {
    Story::new().push(&[(0, 1)], &[group])
}

#[test]
fn a_group_gets_what_it_takes_and_nothing_else() {
    assert_eq!(pushed(ORDERED).pop(ORDERED, "1", &[(0, 1)]).broken(), []);
    assert_eq!(pushed(ORDERED).pop(ORDERED, "1", &[(0, 1)]).pop(SHARED, "2", &[(0, 1)]).broken(), [FilterDecision]);
    assert_eq!(pushed(ORDERED).pop(ORDERED, "1", &[(0, 1)]).letter(SHARED, 1).broken(), [FilterDecision]);
}

#[test]
fn every_message_arrives_or_is_a_dead_letter() {
    assert_eq!(pushed(SHARED).broken(), [Delivered]);
    assert_eq!(pushed(SHARED).pop(SHARED, "1", &[(0, 1)]).unknown().broken(), [Delivered]);
    assert_eq!(pushed(SHARED).letter(SHARED, 1).broken(), []);
    assert_eq!(pushed(SHARED).unknown().broken(), [], "nobody saw it");
    assert_eq!(pushed(SHARED).unknown().read("q", &[(0, 1)]).broken(), [Delivered], "somebody saw it");
    let moved = || pushed(SHARED).pop(SHARED, "1", &[(0, 1)]).seek(SHARED, true);
    assert_eq!(moved().broken(), [Delivered], "and again after a seek to the beginning");
    assert_eq!(moved().pop(SHARED, "2", &[(0, 1)]).broken(), []);
}

#[test]
fn at_most_once_is_not_twice_and_loses_only_what_was_on_its_way() {
    assert_eq!(pushed(ONCE).pop(ONCE, "", &[(0, 1)]).broken(), []);
    assert_eq!(pushed(ONCE).pop(ONCE, "", &[(0, 1)]).pop(ONCE, "", &[(0, 1)]).broken(), [AtMostOnce]);
    assert_eq!(pushed(ONCE).broken(), [Delivered]);
    assert_eq!(pushed(ONCE).pop(ONCE, "", &[(0, 1)]).unknown().broken(), []);
    let two = Story::new().push(&[(0, 1), (1, 2)], &[ONCE]).pop(ONCE, "", &[(0, 1)]).unknown();
    assert_eq!(two.broken(), [Delivered], "one was on its way and two are missing");
}

#[test]
fn an_ordered_group_gets_messages_in_order_the_first_time() {
    let two = || Story::new().push(&[(0, 1), (1, 2)], &[ORDERED, SHARED]).pop(SHARED, "s", &[(0, 1), (1, 2)]);
    let first = |story: Story| story.pop(ORDERED, "1", &[(0, 1)]);
    let second = |story: Story| story.pop(ORDERED, "2", &[(1, 2)]);
    assert_eq!(second(first(two())).broken(), []);
    assert_eq!(first(second(two())).broken(), [DeliveryOrder]);
    assert_eq!(two().pop(ORDERED, "1", &[(1, 2), (0, 1)]).broken(), [DeliveryOrder]);
    assert_eq!(two().pop(ORDERED, "2", &[(1, 2)]).at(5_000, 9_000).pop(ORDERED, "1", &[(0, 1)]).at(6_000, 8_000).broken(), []);
    let again = second(first(two())).pop(ORDERED, "3", &[(0, 1)]).at(2_000_000, 2_001_000);
    assert_eq!(again.broken(), [], "what comes again may come later");
    let parted = Story::new().push(&[(0, 1), (1, 2)], &[SHARED]).pop(SHARED, "1", &[(1, 2)]).pop(SHARED, "2", &[(0, 1)]);
    assert_eq!(parted.broken(), [], "a shared group has no order");
}

#[test]
fn what_was_settled_does_not_come_again() {
    for group in [ORDERED, SHARED] {
        let taken = || pushed(group).pop(group, "1", &[(0, 1)]);
        let settled = || taken().complete(group, "1");
        let again = |story: Story| story.pop(group, "2", &[(0, 1)]);
        assert_eq!(again(settled()).broken(), [NotAfterSettled]);
        assert_eq!(again(taken().complete(group, "1").unknown()).broken(), [], "no answer, no promise");
        assert_eq!(settled().pop(group, "2", &[(0, 1)]).at(4_500, 7_000).broken(), [], "asked before the answer");
        let failed = taken().ack(group, "1", &[(0, Failed, Settled::Now)], 0);
        assert_eq!(again(failed).broken(), []);
        let dead = taken().ack(group, "1", &[(0, Reject, Settled::DeadLetter)], 0);
        assert_eq!(again(dead).broken(), [NotAfterSettled]);
    }
}

#[test]
fn a_seek_back_gives_again_what_was_settled_before_it() {
    let settled = || pushed(ORDERED).pop(ORDERED, "1", &[(0, 1)]).complete(ORDERED, "1");
    let again = |story: Story| story.pop(ORDERED, "2", &[(0, 1)]);
    assert_eq!(again(settled().seek(ORDERED, true)).broken(), []);
    assert_eq!(again(settled().seek(SHARED, true)).broken(), [NotAfterSettled], "it was another group");
    assert_eq!(again(settled().seek(ORDERED, true).refused()).broken(), [NotAfterSettled]);
    let before = || pushed(ORDERED).seek(ORDERED, false);
    let settled = |story: Story| story.pop(ORDERED, "1", &[(0, 1)]).complete(ORDERED, "1");
    assert_eq!(again(settled(before())).broken(), [NotAfterSettled], "the seek was before");
    assert_eq!(again(settled(before().unknown())).broken(), [], "the seek may still come");
    assert_eq!(again(settled(before().unknown().killed())).broken(), [NotAfterSettled], "it died with the server");
}

#[test]
fn one_transaction_moves_each_message() {
    let taken = || pushed(MOVER).pop(MOVER, "1", &[(0, 1)]);
    let moved = |story: Story, id| {
        let acks = vec![ack(MOVER, "1", &[(0, Completed, Settled::Now)], 1)];
        story.call(Call::Write { parts: vec![part("target", &[(id, id)], &[SHARED])], acks })
    };
    let seen = |story: Story, ids: &[u64]| {
        let messages: Vec<_> = ids.iter().map(|&id| (id, id)).collect();
        let mut story = story.read("target", &messages);
        story = ids.iter().fold(story, |story, &id| story.call(target_pop(id)));
        story.broken()
    };
    assert_eq!(seen(moved(taken(), 7), &[7]), []);
    assert_eq!(seen(moved(taken(), 7).unknown(), &[7]), [], "what it pushed is there, so it happened");
    assert_eq!(seen(moved(taken(), 7).unknown(), &[]), [MovedOnce], "it did not happen, and nothing else moved it");
    assert_eq!(seen(moved(moved(taken(), 7), 8), &[7, 8]), [MovedOnce]);
    let again = moved(taken(), 7).unknown().read("target", &[(7, 7)]).pop(MOVER, "2", &[(0, 1)]);
    assert_eq!(seen(again, &[7]), [NotAfterSettled], "what was seen of it settles it");
}

/// The shared group gets a message of the queue `target`.
fn target_pop(id: u64) -> Call {
    let claims = vec![crate::history::Claim { lane: lane("target"), messages: vec![(id, content(id))] }];
    Call::Pop { group: SHARED, most: 1, lease: format!("t{id}"), lease_us: LEASE_US, claims }
}
