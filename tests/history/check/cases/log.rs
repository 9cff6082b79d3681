//! Rules of what lies in the log.

use crate::check::Rule::*;
use crate::history::{Call, Stored};

use super::story::*;

/// One message is pushed, and the ordered group gets it.
fn one() -> Story {
    Story::new().push(&[(0, 1)], &[ORDERED]).pop(ORDERED, "1", &[(0, 1)])
}

#[test]
fn what_was_pushed_may_be_there_even_if_nobody_heard_so() {
    assert_eq!(one().broken(), []);
    let unknown = Story::new().push(&[(0, 1)], &[ORDERED]).unknown();
    assert_eq!(unknown.pop(ORDERED, "1", &[(0, 1)]).read("q", &[(0, 1)]).broken(), []);
    assert_eq!(Story::new().push(&[(0, 1)], &[ORDERED]).unknown().read("q", &[]).broken(), []);
    let while_pushed = Story::new().push(&[(0, 1)], &[ORDERED]).at(1_000, 9_000).pop(ORDERED, "1", &[(0, 1)]).at(2_000, 3_000);
    assert_eq!(while_pushed.broken(), []);
}

#[test]
fn what_was_never_pushed_or_elsewhere_or_later_or_otherwise_is_found() {
    assert_eq!(one().read("q", &[(0, 1), (1, 2)]).broken(), [OnlyWhatWasPushed]);
    assert_eq!(one().read("other", &[(0, 1)]).broken(), [OnlyWhatWasPushed, StoredOnce]);
    let early = Story::new().push(&[(0, 1)], &[ORDERED]).at(5_000, 6_000).pop(ORDERED, "1", &[(0, 1)]).at(1_000, 2_000);
    assert_eq!(early.broken(), [OnlyWhatWasPushed]);
    let mut changed = one();
    let Call::Pop { claims, .. } = &mut changed.0.events[1].call else { unreachable!() };
    claims[0].messages[0].1.digest += 1;
    assert_eq!(changed.broken(), [OnlyWhatWasPushed, OneMessageAtAnOffset]);
}

#[test]
fn a_refused_push_is_absent_unless_another_attempt_was_not_refused() {
    let refused = || Story::new().push(&[(0, 1)], &[ORDERED]).refused();
    assert_eq!(refused().read("q", &[]).broken(), []);
    assert_eq!(refused().pop(ORDERED, "1", &[(0, 1)]).broken(), [RefusedIsAbsent]);
    assert_eq!(refused().push(&[(0, 1)], &[ORDERED]).pop(ORDERED, "1", &[(0, 1)]).broken(), []);
}

#[test]
fn an_offset_that_is_used_again_is_found() {
    let again = one().push(&[(0, 2)], &[ORDERED]).pop(ORDERED, "2", &[(0, 2)]).at(2_000_000, 2_001_000);
    assert!(again.broken().contains(&OneMessageAtAnOffset));
    let next = one().push(&[(1, 2)], &[ORDERED]).pop(ORDERED, "2", &[(1, 2)]);
    assert_eq!(next.broken(), []);
}

#[test]
fn a_push_sent_again_is_stored_once() {
    let twice = |offset| one().push(&[(offset, 1)], &[ORDERED]);
    assert_eq!(twice(0).broken(), []);
    assert_eq!(twice(1).broken(), [StoredOnce]);
}

#[test]
fn what_was_seen_is_in_every_later_read() {
    assert_eq!(one().read("q", &[(0, 1)]).broken(), []);
    assert_eq!(one().read("q", &[]).broken(), [NothingLost]);
    let at_the_same_time = Story::new().push(&[(0, 1)], &[ORDERED]).at(1_000, 3_000).read("q", &[]).at(2_000, 4_000);
    assert_eq!(at_the_same_time.pop(ORDERED, "1", &[(0, 1)]).broken(), []);
    let hole = one().push(&[(1, 2)], &[ORDERED]).pop(ORDERED, "2", &[(1, 2)]).read("q", &[(1, 2)]);
    assert_eq!(hole.broken(), [NothingLost]);
}

#[test]
fn a_push_or_a_transaction_is_there_whole_or_not_at_all() {
    let batch = || Story::new().push(&[(0, 1), (1, 2)], &[ORDERED]).unknown();
    assert_eq!(batch().read("q", &[]).broken(), []);
    assert_eq!(batch().pop(ORDERED, "1", &[(0, 1), (1, 2)]).read("q", &[(0, 1), (1, 2)]).broken(), []);
    assert_eq!(batch().pop(ORDERED, "1", &[(0, 1)]).read("q", &[(0, 1)]).broken(), [AllOrNothing]);
    let parts = || vec![part("q", &[(0, 1)], &[ORDERED]), part("other", &[(0, 2)], &[SHARED])];
    let both = || Story::new().call(Call::Write { parts: parts(), acks: Vec::new() }).unknown();
    let seen = || both().pop(ORDERED, "1", &[(0, 1)]);
    assert_eq!(seen().read("other", &[]).broken(), [AllOrNothing]);
    assert_eq!(both().read("other", &[]).at(1_500, 2_500).pop(ORDERED, "1", &[(0, 1)]).broken(), [], "read too early to tell");
}

#[test]
fn pushes_that_follow_each_other_lie_in_that_order() {
    let second = |offset| Story::new().push(&[(1, 1)], &[]).push(&[(offset, 2)], &[]);
    let order = |story: Story| story.broken().contains(&PushOrder);
    assert!(!order(second(2)));
    assert!(order(second(0)));
    assert!(!order(second(0).at(1_500, 2_500)), "they overlap");
    assert!(order(second(0).unknown().read("q", &[(0, 2), (1, 1)])), "the later one was seen without an answer");
    assert!(!order(Story::new().push(&[(0, 1), (1, 2)], &[])));
    assert!(order(Story::new().push(&[(1, 1), (0, 2)], &[])));
}

#[test]
fn stored_is_what_some_group_takes() {
    let dropped = |takers: &[usize]| {
        let mut story = Story::new().push(&[(0, 1)], takers);
        let Call::Write { parts, .. } = &mut story.0.events[0].call else { unreachable!() };
        parts[0].results = vec![Stored::Dropped];
        story
    };
    assert_eq!(dropped(&[]).broken(), []);
    assert_eq!(dropped(&[ORDERED]).broken(), [DroppedOrStored]);
    assert_eq!(Story::new().push(&[(0, 1)], &[]).broken(), [DroppedOrStored]);
}
