//! Bugs of other systems and invariants of ours, each as a short story.

use super::*;

/// NATS: the first holder's late ack removed the message while the second holder worked on it.
#[test]
fn a_late_ack_of_an_expired_lease_does_not_touch_the_next_holder() {
    for mode in [Mode::Ordered, Mode::Shared] {
        let mut lane = Lane::new(mode, 1);
        let a = lane.pop(1);
        lane.wait(LEASE);
        let b = lane.pop(1);
        assert_eq!(code(&lane.ack(a, &[(0, Completed)]).outcomes[0]), Some(ErrorCode::LeaseLost));
        assert_eq!(lane.delivery.extend(a, lane.now.steady_us + LEASE, lane.now), None);
        assert!(is_plain_success(&lane.ack(b, &[(0, Failed)]).outcomes[0]));
        assert_eq!(lane.free(1), [0]);
    }
}

/// The same with a restart of the server between the take and the ack: the old token must not name a new lease.
#[test]
fn a_token_of_before_a_restart_is_refused_after_it() {
    let mut lane = Lane::ordered(1);
    let a = lane.pop(1);
    lane.crash();
    assert_eq!(lane.free(1), [0], "leases are void after a restart");
    let b = lane.pop(1);
    assert!(b > a);
    assert_eq!(code(&lane.ack(a, &[(0, Completed)]).outcomes[0]), Some(ErrorCode::LeaseLost));
}

/// Jepsen on Queen: the answer of an ack was lost, the client repeated it and was told that the lease is invalid.
#[test]
fn an_ack_repeated_after_a_lost_reply_succeeds_without_effect() {
    for mode in [Mode::Ordered, Mode::Shared] {
        for signal in [Completed, Failed, Retry, Reject] {
            let mut lane = Lane::new(mode, 4);
            let token = lane.pop(4);
            let items = [(0, Completed), (1, Completed), (2, signal), (3, Completed)];
            let first = lane.ack(token, &items);
            assert!(first.is_lease_released);
            // In between, another consumer takes what came free.
            let free = lane.free(10);
            let other = lane.token();
            if !free.is_empty() {
                lane.claim_as(other, &free).unwrap();
            }
            let state = lane.delivery.staged().clone();
            let again = lane.ack(token, &items);
            assert!(again.outcomes.iter().all(is_noop), "{signal:?}");
            let flags = |decision: &AckDecision| decision.outcomes.iter().map(|item| item.is_dead_letter).collect::<Vec<_>>();
            assert_eq!(flags(&again), flags(&first));
            assert_eq!((again.next, again.is_lease_released, again.consumed, dead(&again)), (first.next, true, 0, vec![]));
            assert_eq!(*lane.delivery.staged(), state, "a repeat changes nothing, and charges nothing");
            assert_eq!(lane.delivery.in_flight(lane.now), free.len() as u64);
            // It is the call that is recognised, and not the token.
            let other_call = lane.ack(token, &[(3, Failed)]);
            assert!(other_call.outcomes[0].refused.is_some());
        }
    }
}

/// A repeat must not be answered before the ack that it repeats is durable.
#[test]
fn a_repeated_ack_waits_for_the_sync_of_the_first() {
    for (signal, next) in [(Completed, 4), (Failed, 3)] {
        let mut lane = Lane::ordered(4);
        let token = lane.pop(4);
        let items = [(2, Completed), (3, signal)];
        let first = lane.ack(token, &items);
        let change = lane.delivery.take_change().unwrap();
        assert!(!change.is_lazy);
        let again = lane.ack(token, &items);
        assert!(again.outcomes.iter().all(is_noop));
        assert_eq!(again.version, first.version);
        assert!(lane.delivery.visible().version() < again.version);
        assert_eq!((lane.delivery.visible().next(), lane.next()), (0, next));
        assert_eq!(lane.delivery.plain(), None, "what is not durable is not idle");
        lane.delivery.publish(change.cursor);
        assert!(lane.delivery.visible().version() >= again.version);
        assert_eq!(lane.delivery.visible().next(), next);
        assert_eq!(lane.delivery.plain().is_some(), signal == Completed);
    }
}

/// After a restart a repeated ack that was durable is a no-op; one that was not is refused, and the messages come again.
#[test]
fn a_repeated_ack_after_a_crash_tells_the_truth() {
    let mut lane = Lane::ordered(4);
    let token = lane.pop(2);
    lane.ack(token, &[(1, Completed)]);
    lane.commit();
    let second = lane.pop(2);
    lane.ack(second, &[(3, Completed)]);
    lane.crash();
    assert!(is_noop(&lane.ack(token, &[(1, Completed)]).outcomes[0]));
    assert_eq!(code(&lane.ack(second, &[(3, Completed)]).outcomes[0]), Some(ErrorCode::LeaseLost));
    assert_eq!(lane.free(4), [2, 3]);
}

/// Queen #14: a partly acknowledged batch made the group handle the same messages again and again.
#[test]
fn a_partly_acknowledged_batch_makes_progress() {
    let mut lane = Lane::ordered(10);
    let token = lane.pop(10);
    for offset in [0, 4, 2, 7] {
        lane.ack(token, &[(offset, Completed)]);
        let until = lane.now.steady_us + LEASE;
        assert!(lane.delivery.extend(token, until, lane.now).is_some());
        lane.wait(SECOND);
    }
    lane.ack(token, &[(8, Failed)]);
    let (token, messages, claimed) = lane.pop_counted(10);
    assert_eq!((messages, claimed.delivery_count), (vec![8, 9], 2));
    assert!(lane.ack(token, &[(9, Completed)]).is_lease_released);
    assert_eq!(lane.next(), 10);
}

/// A group with a filter got message 8 of a range up to 10. It can never acknowledge 9 and 10, which are not its own: the
/// lease must end all the same.
#[test]
fn the_last_message_of_a_filtered_range_ends_the_lease() {
    let mut lane = Lane::ordered(20);
    let token = lane.token();
    let messages: OffsetSet = [2, 5, 8].into_iter().collect();
    let until = lane.now.steady_us + LEASE;
    lane.delivery.claim(token, until, 0, 10, messages, lane.now).unwrap();
    for foreign in [3, 9, 10] {
        assert_eq!(code(&lane.ack(token, &[(foreign, Completed)]).outcomes[0]), Some(ErrorCode::NotLeased));
    }
    let decision = lane.ack(token, &[(5, Completed)]);
    assert_eq!((decision.next, decision.consumed), (8, 2));
    let decision = lane.ack(token, &[(8, Completed)]);
    assert_eq!((decision.next, decision.consumed, decision.is_lease_released), (11, 1, true));
}

/// A filter that refuses everything must not hold the cursor, and what it refuses was not consumed.
#[test]
fn refused_messages_are_passed_uncounted() {
    let mut lane = Lane::ordered(100);
    lane.delivery.pass_over(range(0, 49));
    assert_eq!((lane.next(), lane.delivery.staged().total_consumed()), (50, 0));
    assert!(lane.commit().unwrap().is_lazy);
    // Not at the cursor (a seek came between): nothing happens.
    lane.delivery.pass_over(range(60, 70));
    lane.delivery.pass_over(range(0, 40));
    assert_eq!((lane.next(), lane.commit()), (50, None));
    lane.pop(2);
    lane.delivery.pass_over(range(50, 60));
    assert_eq!(lane.next(), 50, "leased messages are not refused");

    let mut lane = Lane::shared(100);
    let token = lane.pop(2);
    lane.delivery.pass_over(range(0, 9));
    assert_eq!((lane.next(), lane.ready()), (0, vec![(10, 99)]));
    lane.ack(token, &[(0, Completed), (1, Completed)]);
    assert_eq!((lane.next(), lane.delivery.staged().total_consumed()), (10, 2));
    lane.delivery.pass_over(range(10, 98));
    assert_eq!((lane.next(), lane.ready()), (99, vec![(99, 99)]));
}

/// What damage took shows as passed at once, but never together with a step that is not durable yet.
#[test]
fn damage_that_was_passed_shows_without_a_commit_but_not_before_one_that_is_under_way() {
    let mut lane = Lane::ordered(20);
    lane.delivery.pass_lost(range(0, 4));
    assert_eq!(lane.delivery.visible().next(), 5);
    // Nobody waits for a hand-out that ended by time.
    lane.pop(3);
    lane.wait(2 * LEASE);
    lane.delivery.expire(lane.now);
    lane.delivery.pass_lost(range(5, 6));
    assert_eq!(lane.delivery.visible().next(), 7);

    let token = lane.pop(3);
    assert!(lane.ack(token, &[(9, Completed)]).is_lease_released);
    let change = lane.delivery.take_change().unwrap();
    lane.delivery.pass_lost(range(10, 19));
    assert_eq!((lane.next(), lane.delivery.visible().next()), (20, 7), "the commit of the acknowledgement may fail");
    lane.delivery.publish(change.cursor);
    assert_eq!(lane.delivery.visible().next(), 20);
}

/// NATS, Pulsar: a message at its delivery limit vanished, or blocked the rest. Here with a crash after each step.
#[test]
fn a_poison_message_ends_in_the_dead_letters_and_the_rest_flows() {
    for mode in [Mode::Ordered, Mode::Shared] {
        let mut lane = Lane::new(mode, 3);
        lane.limits.failures_max = 3;
        for failures in 0..3 {
            let token = lane.pop(1);
            lane.wait(LEASE);
            assert_eq!(code(&lane.ack(token, &[(0, Failed)]).outcomes[0]), Some(ErrorCode::LeaseLost), "after expiry");
            let token = lane.pop(1);
            let decision = lane.ack(token, &[(0, Failed)]);
            assert_eq!(dead(&decision).len(), usize::from(failures == 2));
            let mut unwritten = lane.clone();
            unwritten.crash();
            assert_eq!(unwritten.delivery.staged().failures(0), failures, "a crash before the sync forgets the charge");
            assert_eq!(unwritten.free(1), [0], "and never the message");
            lane.commit();
            lane.crash();
            assert_eq!(lane.delivery.staged().failures(0), (failures + 1) % 3);
        }
        assert_eq!(lane.free(3), [1, 2]);
    }
}

#[test]
fn expiry_retry_and_hand_back_never_charge() {
    let mut lane = Lane::ordered(1);
    lane.limits.failures_max = 1;
    for round in 1..=5u32 {
        lane.pop(1);
        lane.wait(LEASE);
        let (token, _, claimed) = lane.pop_counted(1);
        assert_eq!(claimed.delivery_count, 2 * round, "a hand-back is not a delivery, an expiry and a retry are");
        lane.ack(token, &[(0, Retry)]);
        let token = lane.pop(1);
        assert!(lane.delivery.release(token, lane.now));
        assert!(!lane.delivery.release(token, lane.now));
    }
    assert_eq!(lane.delivery.staged().failures(0), 0);
    let token = lane.pop(1);
    assert_eq!(dead(&lane.ack(token, &[(0, Failed)])), [0]);
}

/// Queen 2.0.3: a pop whose reply never arrived counted as an attempt.
#[test]
fn a_hand_back_leaves_no_trace() {
    for mode in [Mode::Ordered, Mode::Shared] {
        let mut lane = Lane::new(mode, 10);
        lane.pop(2);
        lane.wait(LEASE);
        let before = lane.delivery.staged().clone();
        let token = lane.pop(5);
        assert_eq!(lane.delivery.staged().delivery_count(4), 1);
        assert!(lane.delivery.release(token, lane.now));
        assert_eq!((lane.delivery.staged().deliveries.clone(), lane.ready()), (before.deliveries, vec![(0, 9)]));
    }
}

/// All of an expired lease comes again, in order, none skipped, none twice.
#[test]
fn what_a_dead_consumer_held_comes_again_in_order() {
    let mut lane = Lane::shared(9);
    let (a, b) = (lane.pop(3), lane.pop(3));
    lane.ack(a, &[(1, Completed)]);
    lane.wait(LEASE / 2);
    lane.delivery.extend(b, lane.now.steady_us + LEASE, lane.now);
    lane.wait(LEASE / 2);
    assert_eq!(lane.ready(), [(0, 0), (2, 2), (6, 8)]);
    let (_, messages, claimed) = lane.pop_counted(3);
    assert_eq!((messages, claimed.delivery_count), (vec![0, 2, 6], 2));
    assert_eq!(lane.ready(), [(7, 8)]);
    assert_eq!(lane.delivery.in_flight(lane.now), 6);
}

#[test]
fn a_lease_lives_up_to_its_deadline_and_an_extension_never_shortens_it() {
    let mut lane = Lane::ordered(2);
    let token = lane.pop(2);
    let end = lane.now.steady_us + LEASE;
    assert_eq!(lane.delivery.extend(token, end - 1, lane.now), Some(end));
    assert_eq!(lane.delivery.extend(token, end + SECOND, lane.now), Some(end + SECOND));
    assert_eq!(lane.delivery.extend(token, end + SECOND, lane.now), Some(end + SECOND), "a repeat is harmless");
    assert_eq!(lane.delivery.next_deadline(), Some(end + SECOND));
    lane.wait(LEASE + SECOND - 1);
    assert_eq!((lane.ready(), lane.delivery.in_flight(lane.now)), (vec![], 2));
    assert!(!lane.delivery.expire(lane.now));
    lane.wait(1);
    assert_eq!(lane.delivery.in_flight(lane.now), 0);
    assert!(lane.delivery.expire(lane.now));
    assert_eq!((lane.delivery.extend(token, u64::MAX, lane.now), lane.delivery.next_deadline()), (None, None));
}

/// A timer that fires after the ack, the extension or the next claim finds nothing to do.
#[test]
fn a_late_timer_does_nothing() {
    let mut lane = Lane::ordered(4);
    let token = lane.pop(2);
    let timer = Now { steady_us: lane.now.steady_us + LEASE, ..lane.now };
    lane.wait(LEASE - 1);
    lane.ack(token, &[(1, Completed)]);
    let next = lane.pop(2);
    assert!(!lane.delivery.expire(timer));
    assert!(lane.ack(next, &[(3, Completed)]).is_lease_released);
}

#[test]
fn an_ordered_lane_has_one_lease_at_a_time() {
    let mut lane = Lane::ordered(10);
    lane.pop(2);
    let token = lane.token();
    assert_eq!(lane.claim_as(token, &[2, 3]), Err(NotClaimable { next: 0 }));
    assert_eq!(lane.claim_as(token, &[0]), Err(NotClaimable { next: 0 }));
    assert_eq!(lane.delivery.leases(lane.now).count(), 1);
}

/// A pop read its messages, then a seek moved the cursor, then the pop claimed: in between nothing may count as refused.
#[test]
fn a_claim_prepared_before_a_seek_is_refused() {
    let mut lane = Lane::ordered(100);
    lane.delivery.seek(50);
    let messages: OffsetSet = [50, 51].into_iter().collect();
    lane.delivery.seek(10);
    let (token, until) = (lane.token(), lane.now.steady_us + LEASE);
    let refused = lane.delivery.claim(token, until, 50, 51, messages, lane.now);
    assert_eq!(refused, Err(NotClaimable { next: 10 }));
    assert_eq!(lane.free(1), [10]);
}

#[test]
fn claims_that_make_no_sense_are_refused() {
    for mode in [Mode::Ordered, Mode::Shared] {
        let mut lane = Lane::new(mode, 10);
        lane.delivery.seek(3);
        let (token, until) = (lane.token(), lane.now.steady_us + LEASE);
        let set = |offsets: &[Offset]| offsets.iter().copied().collect::<OffsetSet>();
        let mut try_claim =
            |until, through, messages: &[Offset]| lane.delivery.claim(token, until, 3, through, set(messages), lane.now);
        assert!(try_claim(until, 5, &[]).is_err());
        assert!(try_claim(until, 5, &[2, 3]).is_err());
        assert!(try_claim(lane.now.steady_us, 5, &[3]).is_err(), "over before it begins");
        assert_eq!(try_claim(until, 4, &[3, 5]).is_err(), mode == Mode::Ordered);
        assert_eq!(try_claim(until, 5, &[4]).is_err(), mode == Mode::Shared, "a token names one claim");
    }
}

/// Pulsar #18237, and Queen's rule that a seek fences: leases, delays, counts and what was done above all go, in both directions.
#[test]
fn a_seek_starts_afresh_and_fences_what_was_out() {
    for mode in [Mode::Ordered, Mode::Shared] {
        for target in [0, 4, 7, 10] {
            let mut lane = Lane::new(mode, 10);
            let token = lane.pop(8);
            lane.ack(token, &[(0, Completed), (5, Reject)]);
            lane.ack_verdicts(token, &[verdict(6, Retry, "", 1_000)]);
            let token = lane.token();
            let free = lane.free(1);
            let _ = lane.claim_as(token, &free);
            let consumed = lane.delivery.staged().total_consumed();
            lane.delivery.seek(target);
            let change = lane.commit().unwrap();
            assert!(!change.is_lazy);
            assert_eq!((change.cursor.next(), change.cursor.total_consumed()), (target, consumed));
            assert!(change.cursor.plain().is_some());
            assert_eq!(lane.ready(), if target < 10 { vec![(target, 9)] } else { vec![] });
            if target < 10 {
                let stale = lane.ack(token, &[(9, Completed)]);
                assert_eq!(code(&stale.outcomes[0]), Some(ErrorCode::LeaseLost));
                assert_eq!(lane.pop_counted(1).2, Claimed { delivery_count: 1, last_error: String::new() });
            }
            // The same seek again, after a lost reply.
            lane.delivery.seek(target);
            assert_eq!((lane.next(), lane.delivery.leases(lane.now).count(), lane.delivery.next_deadline()), (target, 0, None));
        }
    }
}

/// Redis #6199, RocketMQ #7724: messages went while leased; they stayed pending for ever, or a neighbour came in their stead.
#[test]
fn retention_takes_its_messages_out_of_leases() {
    for mode in [Mode::Ordered, Mode::Shared] {
        let mut lane = Lane::new(mode, 20);
        let token = lane.pop(10);
        assert_eq!(lane.delivery.skip_to(0), None);
        assert_eq!(lane.delivery.skip_to(6), Some(range(0, 5)));
        assert_eq!(lane.delivery.skip_to(6), None, "the notice is given once");
        assert_eq!((lane.next(), lane.delivery.in_flight(lane.now)), (6, 4));
        assert!(is_noop(&lane.ack(token, &[(5, Completed)]).outcomes[0]));
        assert!(lane.ack(token, &[(5, Failed)]).outcomes[0].refused.is_some());
        assert!(is_plain_success(&lane.ack(token, &[(6, Completed)]).outcomes[0]));
        assert_eq!(lane.delivery.skip_to(15), Some(range(7, 14)));
        assert_eq!((lane.delivery.in_flight(lane.now), lane.delivery.next_deadline()), (0, None));
        assert_eq!((lane.ready(), lane.delivery.staged().total_consumed()), (vec![(15, 19)], 1));
    }
}

/// NATS: cursors ahead of a log that lost its end. Nothing is handed out, nothing is moved back, and what comes later is.
#[test]
fn a_cursor_ahead_of_the_log_waits_and_is_not_reset() {
    let mut lane = Lane::ordered(10);
    lane.delivery.seek(10);
    lane.end = 4;
    assert_eq!(lane.ready(), []);
    assert_eq!(lane.next(), 10);
    lane.end = 12;
    assert_eq!(lane.ready(), [(10, 11)]);
}

/// The counts are for a consumer to see, each message its own, over expiry, partial progress and restart.
#[test]
fn delivery_counts_belong_to_messages_and_survive_with_the_cursor() {
    let mut lane = Lane::ordered(10);
    lane.pop(6);
    lane.wait(LEASE);
    lane.pop(2);
    lane.wait(LEASE);
    let token = lane.pop(4);
    let counts = |lane: &Lane| (0..7).map(|offset| lane.delivery.staged().delivery_count(offset)).collect::<Vec<_>>();
    assert_eq!(counts(&lane), [3, 3, 2, 2, 1, 1, 0]);
    lane.ack_verdicts(token, &[verdict(0, Completed, "", 0), verdict(1, Failed, "no", 0)]);
    assert_eq!(counts(&lane), [0, 3, 2, 2, 1, 1, 0]);
    lane.commit();
    lane.crash();
    assert_eq!(counts(&lane), [0, 3, 2, 2, 1, 1, 0]);
    assert_eq!(lane.pop_counted(1).2, Claimed { delivery_count: 4, last_error: "no".to_owned() });
    // A claim alone asks for no write, but what is written next carries it.
    assert_eq!(lane.delivery.has_change(), (true, false));
    let change = lane.commit().unwrap();
    assert!(change.is_lazy && change.cursor.delivery_count(1) == 4);
}

/// A message is not dead for the failures of its neighbours, as it would be with one counter for the lane.
#[test]
fn charges_belong_to_messages() {
    let mut lane = Lane::ordered(5);
    lane.limits.failures_max = 2;
    for offset in [2, 3, 1] {
        let token = lane.pop(5);
        assert!(dead(&lane.ack(token, &[(offset, Failed)])).is_empty());
    }
    let token = lane.pop(5);
    let decision = lane.ack(token, &[(0, Completed), (1, Completed), (2, Failed)]);
    assert_eq!((dead(&decision), decision.next), (vec![2], 3));
}

/// Replay of the log meets records in any order and more than once; only a greater version counts.
#[test]
fn an_older_change_never_overwrites_a_newer_one() {
    let mut lane = Lane::ordered(4);
    let token = lane.pop(4);
    lane.ack(token, &[(0, Completed)]);
    let older = lane.delivery.take_change().unwrap().cursor;
    lane.ack(token, &[(2, Completed)]);
    let newer = lane.delivery.take_change().unwrap().cursor;
    assert!(newer.version() > older.version());
    lane.delivery.publish(newer.clone());
    lane.delivery.publish(newer.clone());
    lane.delivery.publish(older);
    assert_eq!(*lane.delivery.visible(), newer);
}

/// A transaction whose push was a duplicate takes its acks back.
#[test]
fn a_clone_put_back_undoes_a_decision() {
    let mut lane = Lane::ordered(4);
    let token = lane.pop(4);
    let kept = lane.delivery.clone();
    assert!(lane.ack(token, &[(3, Completed)]).is_lease_released);
    lane.delivery = kept;
    assert_eq!((lane.next(), lane.delivery.in_flight(lane.now)), (0, 4));
    let decision = lane.ack(token, &[(3, Completed)]);
    assert!(is_plain_success(&decision.outcomes[0]) && decision.next == 4);
}

#[test]
fn at_most_once_is_a_claim_and_its_ack_in_one_step() {
    let mut lane = Lane::ordered(4);
    let (token, messages, _) = lane.pop_counted(3);
    assert!(lane.ack(token, &[(messages[2], Completed)]).is_lease_released);
    assert!(!lane.commit().unwrap().is_lazy);
    lane.crash();
    assert_eq!(lane.free(4), [3]);
}

/// A delay is memory: the message comes early after a restart rather than never. A delay for ever is ended by a seek.
#[test]
fn delays_end_with_the_process_and_may_be_huge() {
    let mut lane = Lane::ordered(2);
    let token = lane.pop(2);
    let decision = lane.ack_verdicts(token, &[verdict(0, Retry, "x", u64::MAX)]);
    assert_eq!(decision.claimable_at_us, Some(u64::MAX));
    lane.wait(1 << 60);
    assert_eq!(lane.ready(), []);
    lane.commit();
    let mut other = lane.clone();
    other.crash();
    assert_eq!(other.ready(), [(0, 1)]);
    lane.delivery.seek(0);
    assert_eq!(lane.ready(), [(0, 1)]);
}

#[test]
fn a_lane_with_a_delay_is_not_idle() {
    for mode in [Mode::Ordered, Mode::Shared] {
        let mut lane = Lane::new(mode, 2);
        lane.ack_verdicts(None, &[verdict(0, Retry, "", 1_000)]);
        assert_eq!((lane.commit(), lane.delivery.plain()), (None, None));
        lane.wait(SECOND);
        lane.delivery.expire(lane.now);
        assert!(lane.delivery.plain().is_some());
    }
}

/// A message that holds the lane by its delay is rejected without a lease: the lane must not go on waiting for it.
#[test]
fn a_dead_message_no_longer_holds_the_lane() {
    let mut lane = Lane::ordered(4);
    let token = lane.pop(4);
    lane.ack_verdicts(token, &[verdict(2, Retry, "busy", 1_000)]);
    assert_eq!(lane.ready(), []);
    let decision = lane.ack(None, &[(2, Reject)]);
    assert_eq!(decision.dead_letters[0].reason, "busy", "no reason given: the last one known");
    assert_eq!((lane.ready(), lane.delivery.next_deadline()), (vec![(0, 1), (3, 3)], None));
    let token = lane.token();
    assert!(lane.claim_as(token, &[0, 1, 2, 3]).is_err(), "what is done cannot be claimed");
}

/// A message put off, then answered without a lease, then taken: the old delay must not free it under its holder.
#[test]
fn a_delay_that_was_overtaken_frees_nothing() {
    let mut lane = Lane::shared(2);
    let token = lane.pop(2);
    lane.ack_verdicts(token, &[verdict(0, Retry, "", 1_000)]);
    lane.ack(None, &[(0, Failed)]);
    lane.pop(1);
    lane.wait(SECOND);
    assert_eq!(lane.ready(), []);
    assert_eq!(lane.delivery.in_flight(lane.now), 2);
}

/// A commit that failed, for want of a file to roll to, ended every lease of its lanes: what one consumer worked on was handed to
/// another, long before the time that the first was told.
#[test]
fn an_ack_that_is_taken_back_leaves_the_leases_of_others_in_shared_mode() {
    let mut lane = Lane::shared(5);
    let (a, b) = (lane.pop(2), lane.pop(2));
    lane.ack(a, &[(0, Completed)]);
    lane.delivery.take_back();
    assert_eq!((lane.next(), lane.free(5)), (0, vec![0, 4]), "1 is still held by the one, 2 and 3 by the other");
    assert_eq!(code(&lane.ack(a, &[(0, Completed)]).outcomes[0]), Some(ErrorCode::NotLeased));
    assert!(is_plain_success(&lane.ack(b, &[(2, Completed)]).outcomes[0]));
    lane.wait(LEASE);
    assert_eq!(lane.free(5), [0, 1, 3, 4], "and no longer than was agreed");
}

#[test]
fn an_ack_that_is_taken_back_can_be_made_again_in_ordered_mode_as_long_as_the_lease_lasts() {
    let mut lane = Lane::ordered(5);
    let a = lane.pop(4);
    lane.ack(a, &[(0, Reject)]);
    lane.commit();
    lane.ack(a, &[(1, Completed), (2, Reject)]);
    lane.delivery.take_back();
    assert_eq!((lane.next(), lane.free(5)), (1, vec![]));
    let again = lane.ack(a, &[(1, Completed), (2, Reject)]);
    assert_eq!((again.next, dead(&again), again.is_lease_released), (3, vec![2], false));
    assert_eq!(lane.ack(a, &[(3, Completed)]).next, 4);
}

/// What was handed out behind an acknowledgement that did not happen would pass its messages.
#[test]
fn a_lease_that_begins_behind_what_is_taken_back_ends_with_it_in_ordered_mode() {
    let mut lane = Lane::ordered(4);
    let a = lane.pop(2);
    lane.ack(a, &[(1, Completed)]);
    let b = lane.pop(2);
    lane.delivery.take_back();
    assert_eq!(lane.free(4), [0, 1, 2, 3]);
    assert_eq!(code(&lane.ack(b, &[(3, Completed)]).outcomes[0]), Some(ErrorCode::LeaseLost));
}

#[test]
fn counts_that_were_not_written_are_no_decision_to_take_back() {
    for mode in [Mode::Ordered, Mode::Shared] {
        let mut lane = Lane::new(mode, 2);
        let a = lane.pop(2);
        assert!(lane.delivery.take_change().is_some_and(|change| change.is_lazy));
        lane.delivery.take_back();
        assert_eq!((lane.free(2), lane.delivery.has_change()), (vec![], (true, false)));
        assert!(is_plain_success(&lane.ack(a, &[(0, Completed)]).outcomes[0]));
    }
}

#[test]
fn what_is_put_back_is_as_it_was_but_for_what_others_took_or_extended_since() {
    for mode in [Mode::Ordered, Mode::Shared] {
        let mut lane = Lane::new(mode, 4);
        let a = lane.pop(2);
        lane.commit();
        let before = lane.delivery.clone();
        lane.ack(a, &[(0, Completed)]);
        let longer_us = lane.now.steady_us + 3 * LEASE;
        lane.delivery.extend(a, longer_us, lane.now);
        lane.delivery.put_back(before.clone());
        assert_eq!((lane.next(), lane.delivery.extend(a, 0, lane.now)), (0, Some(longer_us)));
        lane.ack(a, &[(0, Completed), (1, Completed)]);
        let b = lane.pop(2);
        lane.delivery.put_back(before);
        let is_held = is_plain_success(&lane.ack(b, &[(3, Completed)]).outcomes[0]);
        assert_eq!((lane.next(), is_held), (0, mode == Mode::Shared), "{mode:?}");
    }
}
