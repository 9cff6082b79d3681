//! Every row of the acknowledgement table.

use super::*;

#[test]
fn completed_completes_everything_handed_out_before_it() {
    let mut lane = Lane::ordered(10);
    let token = lane.pop(5);
    let decision = lane.ack(token, &[(3, Completed)]);
    assert!(is_plain_success(&decision.outcomes[0]));
    assert_eq!((decision.next, decision.consumed, decision.is_lease_released), (4, 4, false));
    assert_eq!(decision.claimable_at_us, None);
    assert_eq!(lane.ready(), []);
}

#[test]
fn the_lowest_explicit_signal_stops_the_cursor_and_completed_ones_above_it_come_again() {
    for signal in [Failed, Retry] {
        let mut lane = Lane::ordered(10);
        let token = lane.pop(5);
        let decision = lane.ack(token, &[(4, Completed), (1, signal), (0, Completed), (2, Completed), (3, Failed)]);
        assert!(decision.outcomes.iter().all(is_plain_success));
        assert_eq!((decision.next, decision.consumed, decision.is_lease_released), (1, 1, true));
        assert_eq!(decision.claimable_at_us, Some(lane.now.steady_us));
        assert_eq!(lane.free(4), [1, 2, 3, 4]);
        assert_eq!(lane.delivery.staged().failures(1), u32::from(signal == Failed));
        assert_eq!(lane.delivery.staged().failures(3), 0);
    }
}

#[test]
fn on_one_offset_reject_beats_failed_beats_retry_beats_completed() {
    let mut lane = Lane::ordered(10);
    let token = lane.pop(2);
    let decision = lane.ack(token, &[(0, Completed), (0, Retry), (0, Failed), (0, Reject)]);
    assert_eq!((dead(&decision), decision.next), (vec![0], 1));
    assert!(decision.outcomes.iter().all(|outcome| outcome.is_dead_letter));
    let decision = lane.ack(token, &[(1, Completed), (1, Retry), (1, Failed)]);
    assert_eq!((decision.next, lane.delivery.staged().failures(1)), (1, 1));
    let token = lane.pop(1);
    let decision = lane.ack(token, &[(1, Completed), (1, Retry)]);
    assert_eq!((decision.next, lane.delivery.staged().failures(1)), (1, 1));
}

#[test]
fn failed_charges_once_a_call_and_frees_the_lane_at_once() {
    let mut lane = Lane::ordered(5);
    let token = lane.pop(5);
    let all = [(0, Failed), (1, Failed), (2, Failed), (0, Failed)];
    let decision = lane.ack(token, &all);
    assert_eq!((decision.next, decision.is_lease_released), (0, true));
    assert_eq!((0..3).map(|offset| lane.delivery.staged().failures(offset)).collect::<Vec<_>>(), [1, 0, 0]);
    assert_eq!(lane.free(1), [0]);
}

#[test]
fn the_limit_sends_to_the_dead_letters_or_drops() {
    for is_dead_letter in [true, false] {
        let mut lane = Lane::ordered(3);
        lane.limits = AckLimits { failures_max: 3, is_dead_letter };
        for attempt in 1..=3u32 {
            let (token, messages, claimed) = lane.pop_counted(3);
            assert_eq!((messages[0], claimed.delivery_count), (0, attempt));
            let reason = format!("try {attempt}");
            let decision = lane.ack_verdicts(token, &[verdict(0, Failed, &reason, 0)]);
            assert!(decision.is_lease_released);
            assert_eq!(decision.next, u64::from(attempt == 3));
            if attempt < 3 {
                assert_eq!((dead(&decision), decision.dropped), (vec![], vec![]));
            } else if is_dead_letter {
                let step = &decision.dead_letters[0];
                assert_eq!((step.offset, step.reason.as_str(), step.failures, step.delivery_count), (0, "try 3", 3, 3));
                assert!(decision.outcomes[0].is_dead_letter && decision.dropped.is_empty());
            } else {
                assert_eq!((dead(&decision), decision.dropped.as_slice()), (vec![], &[0][..]));
                assert!(is_plain_success(&decision.outcomes[0]));
            }
        }
        assert_eq!(lane.delivery.staged().total_consumed(), 1);
        assert_eq!(lane.free(2), [1, 2]);
    }
}

#[test]
fn a_limit_of_zero_is_never() {
    let mut lane = Lane::ordered(1);
    lane.limits = AckLimits { failures_max: 0, is_dead_letter: true };
    for _ in 0..100 {
        let token = lane.pop(1);
        assert!(dead(&lane.ack(token, &[(0, Failed)])).is_empty());
    }
    assert_eq!(lane.delivery.staged().failures(0), 100);
}

#[test]
fn retry_frees_without_a_charge_and_may_ask_for_a_delay() {
    let mut lane = Lane::ordered(3);
    let token = lane.pop(3);
    let decision = lane.ack_verdicts(token, &[verdict(0, Completed, "", 0), verdict(1, Retry, "later", 2_000)]);
    assert_eq!((decision.next, decision.is_lease_released), (1, true));
    assert_eq!(decision.claimable_at_us, Some(lane.now.steady_us + 2 * SECOND));
    assert_eq!(lane.delivery.next_deadline(), decision.claimable_at_us);
    assert_eq!((lane.delivery.staged().failures(1), lane.delivery.staged().last_error(1)), (0, "later"));
    lane.wait(2 * SECOND - 1);
    assert_eq!(lane.ready(), []);
    lane.wait(1);
    assert_eq!(lane.ready(), [(1, 2)]);
    let (_, _, claimed) = lane.pop_counted(1);
    assert_eq!(claimed, Claimed { delivery_count: 2, last_error: "later".to_owned() });
}

#[test]
fn reject_is_a_dead_letter_at_once_and_the_rest_of_the_call_counts() {
    let mut lane = Lane::ordered(10);
    let token = lane.pop(6);
    let items = [(0, Completed), (1, Reject), (2, Completed), (3, Reject), (4, Failed), (5, Completed)];
    let decision = lane.ack(token, &items);
    assert_eq!((dead(&decision), decision.next, decision.consumed), (vec![1, 3], 4, 4));
    assert_eq!(decision.dead_letters[0].failures, 0);
    assert_eq!(lane.free(2), [4, 5]);
}

#[test]
fn reject_alone_keeps_the_lease_for_what_is_left() {
    let mut lane = Lane::ordered(10);
    let token = lane.pop(3);
    let decision = lane.ack(token, &[(0, Reject)]);
    assert_eq!((decision.next, decision.is_lease_released), (1, false));
    let decision = lane.ack(token, &[(2, Completed)]);
    assert_eq!((decision.next, decision.is_lease_released), (3, true));
}

/// Queen passes the cursor over messages below a dead letter that the consumer said nothing of: they are lost.
#[test]
fn a_final_verdict_does_not_speak_for_its_elders() {
    let mut lane = Lane::ordered(6);
    lane.limits.failures_max = 1;
    let token = lane.pop(6);
    let decision = lane.ack(token, &[(2, Reject)]);
    assert_eq!((dead(&decision), decision.next, decision.consumed), (vec![2], 0, 1));
    let decision = lane.ack(token, &[(0, Completed), (4, Failed)]);
    assert_eq!((dead(&decision), decision.next, decision.is_lease_released), (vec![4], 1, true));
    assert_eq!(lane.ready(), [(1, 1), (3, 3), (5, 5)]);
    lane.commit();
    lane.crash();
    let (token, messages, _) = lane.pop_counted(10);
    assert_eq!(messages, [1, 3, 5]);
    let decision = lane.ack(token, &[(1, Completed)]);
    assert_eq!((decision.next, decision.consumed), (3, 1));
    let decision = lane.ack(token, &[(5, Completed)]);
    assert_eq!((decision.next, decision.consumed, decision.is_lease_released), (6, 2, true));
    assert_eq!(lane.delivery.staged().total_consumed(), 6);
}

#[test]
fn below_the_cursor_completed_is_a_noop_and_the_rest_is_refused() {
    for unfenced in [false, true] {
        let mut lane = Lane::ordered(10);
        let token = lane.pop(5);
        lane.ack(token, &[(2, Completed)]);
        let decision = lane.ack((!unfenced).then_some(token), &[(0, Completed), (1, Failed), (2, Retry), (0, Reject)]);
        assert!(is_noop(&decision.outcomes[0]));
        for outcome in &decision.outcomes[1..] {
            let error = outcome.refused.as_ref().unwrap();
            assert_eq!(error.code, ErrorCode::NotLeased);
            assert!(error.text.contains("already committed"), "{error}");
        }
        assert_eq!((decision.next, decision.consumed, dead(&decision)), (3, 0, vec![]));
    }
}

#[test]
fn an_unknown_wrong_or_expired_lease_is_refused_item_by_item() {
    let mut lane = Lane::ordered(10);
    let token = lane.pop(3);
    lane.ack(token, &[(0, Completed)]);
    let foreign = lane.token();
    let decision = lane.ack(foreign, &[(0, Completed), (1, Completed), (2, Failed), (0, Failed)]);
    assert!(is_noop(&decision.outcomes[0]));
    for outcome in &decision.outcomes[1..] {
        assert_eq!(code(outcome), Some(ErrorCode::LeaseLost));
    }
    lane.wait(LEASE);
    let decision = lane.ack(token, &[(1, Completed)]);
    assert_eq!(code(&decision.outcomes[0]), Some(ErrorCode::LeaseLost));
    assert!(decision.outcomes[0].refused.as_ref().unwrap().text.contains("lease"));
    assert_eq!(lane.next(), 1);
}

#[test]
fn without_a_lease_id_the_cursor_still_moves() {
    let mut lane = Lane::ordered(10);
    lane.pop(3);
    lane.wait(LEASE);
    let decision = lane.ack(None, &[(2, Completed)]);
    assert_eq!((decision.next, decision.consumed), (3, 3));
    // Nothing leased: up to the end, and signals count too.
    let decision = lane.ack(None, &[(5, Completed), (7, Reject), (8, Failed), (9, Completed)]);
    assert_eq!((dead(&decision), decision.next, decision.consumed), (vec![7], 6, 4));
    assert_eq!((lane.ready(), lane.delivery.staged().failures(8)), (vec![(6, 6), (8, 9)], 1));
    let decision = lane.ack(None, &[(8, Completed)]);
    assert_eq!((decision.next, decision.consumed), (9, 2));
}

#[test]
fn without_a_lease_id_a_live_lease_sets_the_bounds() {
    let mut lane = Lane::ordered(10);
    let token = lane.pop(3);
    let decision = lane.ack(None, &[(5, Completed)]);
    assert_eq!((code(&decision.outcomes[0]), decision.next), (Some(ErrorCode::NotLeased), 0));
    let decision = lane.ack(None, &[(2, Completed)]);
    assert_eq!((decision.next, decision.is_lease_released), (3, true));
    assert!(is_noop(&lane.ack(token, &[(2, Completed)]).outcomes[0]));
}

#[test]
fn a_full_batch_ends_the_lease_and_resets_the_counters() {
    let mut lane = Lane::ordered(4);
    let token = lane.pop(4);
    lane.ack_verdicts(token, &[verdict(0, Failed, "boom", 0)]);
    let (token, _, claimed) = lane.pop_counted(4);
    assert_eq!(claimed, Claimed { delivery_count: 2, last_error: "boom".to_owned() });
    let decision = lane.ack(token, &[(3, Completed)]);
    assert!(decision.is_lease_released);
    assert_eq!(decision.claimable_at_us, Some(lane.now.steady_us));
    lane.commit();
    let plain = lane.delivery.plain().expect("nothing is in flight");
    assert_eq!((plain.next, plain.total_consumed, plain.last_consumed_at_us), (4, 4, lane.now.wall_us));
    assert_eq!((lane.delivery.leases(lane.now).count(), lane.delivery.in_flight(lane.now)), (0, 0));
}

#[test]
fn an_offset_that_the_lease_does_not_hold_is_refused_and_nothing_moves() {
    let mut lane = Lane::ordered(10);
    let token = lane.pop(3);
    for offset in [3, 9, 10, 11, 1010, 1 << 63, u64::MAX] {
        for verb in [Completed, Failed, Retry, Reject] {
            let decision = lane.ack(token, &[(offset, verb)]);
            assert_eq!(code(&decision.outcomes[0]), Some(ErrorCode::NotLeased));
        }
    }
    lane.delivery.release(token, lane.now);
    for offset in [10, 11, 1010, 1 << 63, u64::MAX] {
        let decision = lane.ack(None, &[(offset, Completed)]);
        assert_eq!(code(&decision.outcomes[0]), Some(ErrorCode::NotLeased));
    }
    assert_eq!((lane.next(), lane.ready()), (0, vec![(0, 9)]));
}

#[test]
fn an_empty_call_decides_nothing() {
    let mut lane = Lane::ordered(10);
    let token = lane.pop(3);
    lane.commit();
    let decision = lane.ack(token, &[]);
    assert_eq!((decision.outcomes.len(), decision.next, decision.is_lease_released), (0, 0, false));
    assert_eq!(lane.commit(), None);
}

#[test]
fn in_shared_mode_each_message_speaks_for_itself() {
    let mut lane = Lane::shared(10);
    lane.limits.failures_max = 2;
    let (a, b) = (lane.pop(4), lane.pop(3));
    let items = [(3, Completed), (1, Failed), (2, Reject)];
    let decision = lane.ack(a, &items);
    assert_eq!((decision.next, decision.consumed, dead(&decision), decision.is_lease_released), (0, 2, vec![2], false));
    assert_eq!(decision.claimable_at_us, Some(lane.now.steady_us));
    assert_eq!(lane.ready(), [(1, 1), (7, 9)]);
    // Another's messages, a message given back, a message never handed out.
    for offset in [4, 7, 10, u64::MAX] {
        assert_eq!(code(&lane.ack(a, &[(offset, Completed)]).outcomes[0]), Some(ErrorCode::NotLeased));
    }
    assert_eq!(code(&lane.ack(a, &[(1, Completed)]).outcomes[0]), Some(ErrorCode::NotLeased));
    assert!(is_noop(&lane.ack(b, &[(3, Completed)]).outcomes[0]));
    assert!(lane.ack(b, &[(3, Failed)]).outcomes[0].refused.as_ref().unwrap().text.contains("already committed"));
    let (c, messages, claimed) = lane.pop_counted(1);
    assert_eq!((messages[0], claimed.delivery_count), (1, 2));
    let decision = lane.ack(c, &[(1, Failed)]);
    assert_eq!((dead(&decision), decision.dead_letters[0].failures, decision.is_lease_released), (vec![1], 2, true));
    let decision = lane.ack(a, &[(0, Completed)]);
    assert_eq!((decision.next, decision.is_lease_released), (4, true));
    assert!(lane.ack(b, &[(4, Completed), (5, Completed), (6, Completed)]).is_lease_released);
    assert_eq!((lane.next(), lane.delivery.staged().total_consumed()), (7, 7));
}

#[test]
fn in_shared_mode_failed_charges_each_message_and_retry_delays_only_its_own() {
    let mut lane = Lane::shared(3);
    let token = lane.pop(3);
    let verdicts = [verdict(0, Failed, "a", 0), verdict(1, Failed, "b", 0), verdict(2, Retry, "c", 1_000)];
    let decision = lane.ack_verdicts(token, &verdicts);
    assert!(decision.is_lease_released);
    let failures = |lane: &Lane| (0..3).map(|offset| lane.delivery.staged().failures(offset)).collect::<Vec<_>>();
    assert_eq!((failures(&lane), lane.ready()), (vec![1, 1, 0], vec![(0, 1)]));
    lane.wait(SECOND);
    assert_eq!(lane.ready(), [(0, 2)]);
    assert_eq!(lane.delivery.staged().last_error(2), "c");
}

#[test]
fn in_shared_mode_an_unfenced_acknowledgement_acts_whoever_holds_the_message() {
    let mut lane = Lane::shared(6);
    let token = lane.pop(2);
    let decision = lane.ack(None, &[(0, Completed), (1, Retry), (4, Completed), (6, Completed)]);
    assert_eq!((decision.next, decision.consumed), (1, 2));
    assert_eq!(code(&decision.outcomes[3]), Some(ErrorCode::NotLeased));
    assert_eq!((lane.ready(), lane.delivery.in_flight(lane.now)), (vec![(1, 3), (5, 5)], 0));
    assert_eq!(code(&lane.ack(token, &[(1, Completed)]).outcomes[0]), Some(ErrorCode::LeaseLost));
}
