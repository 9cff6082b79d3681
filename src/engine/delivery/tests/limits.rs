//! Bounds: what is kept stays small, and nothing is lost when a bound is met.

use super::super::WINDOW;
use super::*;

#[test]
fn a_stuck_message_holds_a_shared_group_at_the_window() {
    let end = 3 * WINDOW;
    let mut lane = Lane::shared(end);
    let stuck = lane.pop(1);
    let ready = lane.delivery.ready(end, 10, lane.now);
    assert_eq!(ready, [range(1, WINDOW - 1)]);
    let (token, until) = (lane.token(), lane.now.steady_us + LEASE);
    let beyond = OffsetSet::from_range(range(1, WINDOW));
    assert!(lane.delivery.claim(token, until, 0, 0, beyond, lane.now).is_err());
    lane.delivery.claim(token, until, 0, 0, OffsetSet::from_range(range(1, WINDOW - 1)), lane.now).unwrap();
    for offset in (1..WINDOW).step_by(2) {
        lane.ack(token, &[(offset, Completed)]);
    }
    assert_eq!(code(&lane.ack(None, &[(WINDOW, Completed)]).outcomes[0]), Some(ErrorCode::NotLeased));
    let mut bytes = Vec::new();
    lane.commit().unwrap().cursor.encode(&mut bytes);
    assert!(bytes.len() < 6_000, "{}", bytes.len());
    let decoded = Cursor::decode(&bytes).unwrap();
    assert_eq!(decoded.done_above().count(), WINDOW / 2);
    for offset in (2..WINDOW).step_by(2) {
        lane.ack(token, &[(offset, Completed)]);
    }
    assert_eq!((lane.ready(), lane.next()), (vec![], 0));
    let decision = lane.ack(stuck, &[(0, Completed)]);
    assert_eq!((decision.next, decision.claimable_at_us), (WINDOW, Some(lane.now.steady_us)));
    assert_eq!(lane.ready(), [(WINDOW, 2 * WINDOW - 1)]);
}

#[test]
fn too_many_final_verdicts_above_silent_elders_wait_and_are_not_lost() {
    let mut lane = Lane::ordered(5_000);
    let token = lane.pop(5_000);
    // Every other message rejected, and the first never spoken of.
    let items: Vec<_> = (0..2_000).map(|index| (1 + 2 * index, Reject)).collect();
    let decision = lane.ack(token, &items);
    assert_eq!((decision.dead_letters.len(), decision.next, decision.is_lease_released), (1_024, 0, true));
    let (token, messages, _) = lane.pop_counted(5_000);
    assert_eq!(messages.len(), 5_000 - 1_024);
    assert!(messages.contains(&2_049), "the first one that had to wait comes again");
    lane.ack(token, &[(2_048, Completed)]);
    let decision = lane.ack(token, &[(2_049, Reject)]);
    assert_eq!((decision.next, dead(&decision)), (2_050, vec![2_049]));
}

#[test]
fn an_ordered_cursor_keeps_few_notes_and_counts() {
    let mut lane = Lane::ordered(1_000);
    lane.limits.failures_max = 0;
    for offset in (0..200).rev() {
        let token = lane.pop(500 - offset as usize);
        lane.ack(token, &[(offset, Failed)]);
    }
    let staged = lane.delivery.staged();
    assert!((0..63).all(|offset| staged.failures(offset) == 1));
    assert!(staged.deliveries.run_count() <= 64 && staged.notes.len() <= 64);
    assert_eq!(staged.delivery_count(0), 200);
    let mut bytes = Vec::new();
    staged.encode(&mut bytes);
    assert!(bytes.len() < 1_024, "{}", bytes.len());
}

#[test]
fn a_shared_claim_of_many_runs_costs_by_the_runs() {
    let mut lane = Lane::shared(1_000);
    let token = lane.pop(1_000);
    let odd: Vec<_> = (0..500).map(|index| (2 * index + 1, Failed)).collect();
    lane.ack(token, &odd);
    let (_, messages, claimed) = lane.pop_counted(10);
    assert_eq!((messages[9], claimed.delivery_count), (19, 2));
    assert_eq!(lane.delivery.lease_of(0, lane.now).map(|view| view.token), Some(token));
    assert_eq!(lane.delivery.lease_of(21, lane.now), None);
}
