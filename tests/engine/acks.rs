//! What an acknowledgement does: to the cursor, to the lease, to the counts.

use fanlog::model::*;
use fanlog::storage::disk::Errno;
use fanlog::storage::disk::sim::{Fault, Operation};

use crate::support::{World, ack_of, popped, refusals, texts};

use AckVerb::{Completed, Failed, Reject, Retry};

/// One message each in one partition, popped together.
fn world(seed: u64, count: usize) -> (World, PopReply) {
    let world = World::new(seed);
    let payloads: Vec<String> = (0..count).map(|index| index.to_string()).collect();
    world.push("q", "a", &payloads.iter().map(String::as_str).collect::<Vec<_>>());
    let reply = world.pop("q", "g", 100);
    (world, reply)
}

#[test]
fn completed_completes_what_was_handed_out_before_it() {
    let (world, reply) = world(1, 5);
    let acked = world.ack(&reply.claims[0], "g", &reply.lease_id, &[(2, Completed)]);
    assert_eq!((acked.next, acked.is_lease_released), (3, false));
    let acked = world.ack(&reply.claims[0], "g", &reply.lease_id, &[(4, Completed)]);
    assert_eq!((acked.next, acked.is_lease_released), (5, true));
    let world = world.power_loss();
    assert!(world.pop("q", "g", 10).claims.is_empty());
}

#[test]
fn the_cursor_stops_below_the_lowest_failed_retried_or_rejected_message() {
    for (verb, next, again) in [(Failed, 1, ["1", "2", "3"].as_slice()), (Retry, 1, &["1", "2", "3"]), (Reject, 4, &[])] {
        let (world, reply) = world(2, 4);
        let acked = world.ack(&reply.claims[0], "g", &reply.lease_id, &[(3, Completed), (1, verb), (0, Completed)]);
        assert_eq!((acked.next, acked.is_lease_released), (next, true), "{verb:?}");
        assert_eq!(texts(&world.drain("q", "g")), again, "{verb:?}");
    }
}

#[test]
fn failed_is_charged_once_a_call_and_retry_expiry_and_release_never() {
    let (mut world, mut reply) = world(3, 2);
    for round in 0..20 {
        match round % 3 {
            0 => drop(world.ack(&reply.claims[0], "g", &reply.lease_id, &[(0, Retry)])),
            1 => world.pass(61_000),
            _ => assert_eq!(world.engine.release(&reply.lease_id, world.now).unwrap(), 1),
        }
        reply = world.pop("q", "g", 10);
        assert_eq!(popped(&reply), ["0", "1"], "round {round}");
    }
    assert!(world.letters("q").is_empty());
    // Both fail in each call; only the lower one is charged.
    for attempt in 1..=4 {
        let acked = world.ack(&reply.claims[0], "g", &reply.lease_id, &[(0, Failed), (1, Failed)]);
        assert_eq!(acked.outcomes[0].is_dead_letter, attempt == 4);
        assert!(!acked.outcomes[1].is_dead_letter);
        reply = world.pop("q", "g", 10);
    }
    assert_eq!(popped(&reply), ["1"]);
}

#[test]
fn a_retry_may_ask_for_a_delay() {
    let (mut world, reply) = world(4, 1);
    let mut ack = ack_of(&reply.claims[0], "g", &reply.lease_id, &[(0, Retry)]);
    ack.items[0].delay_ms = 5_000;
    world.engine.ack(ack, world.now).unwrap();
    world.pass(4_900);
    assert!(world.pop("q", "g", 1).claims.is_empty());
    world.pass(100);
    assert_eq!(popped(&world.pop("q", "g", 1)), ["0"]);
}

#[test]
fn over_its_limit_a_message_is_a_dead_letter_or_dropped_as_the_queue_says() {
    for (dead_letter_queue, after_max_retries, letters) in [(true, false, 1), (false, true, 1), (false, false, 0)] {
        let world = World::new(5);
        let patch = SettingsPatch {
            retry_limit: Some(1),
            dead_letter_queue: Some(dead_letter_queue),
            dlq_after_max_retries: Some(after_max_retries),
            ..SettingsPatch::default()
        };
        world.create("q", patch);
        world.push("q", "a", &["poison", "fine"]);
        for _ in 0..2 {
            let reply = world.pop("q", "g", 1);
            assert_eq!(popped(&reply), ["poison"]);
            world.ack(&reply.claims[0], "g", &reply.lease_id, &[(0, Failed)]);
        }
        assert_eq!(world.letters("q").len(), letters);
        assert_eq!(texts(&world.drain("q", "g")), ["fine"]);
    }
}

#[test]
fn each_message_has_its_own_result_and_below_the_cursor_nothing_happens() {
    let (world, reply) = world(6, 3);
    let claim = &reply.claims[0];
    world.ack(claim, "g", &reply.lease_id, &[(0, Completed)]);
    let mixed = world.ack(
        claim,
        "g",
        &reply.lease_id,
        &[(0, Completed), (0, Failed), (1, Completed), (2, Reject), (3, Completed), (u64::MAX, Failed)],
    );
    use ErrorCode::NotLeased;
    assert_eq!(refusals(&mixed), [None, Some(NotLeased), None, None, Some(NotLeased), Some(NotLeased)]);
    assert!(mixed.outcomes[0].is_noop && mixed.outcomes[3].is_dead_letter);
    assert_eq!(mixed.next, 3);
    let mut unknown = ack_of(claim, "g", &reply.lease_id, &[(0, Completed)]);
    unknown.items[0].target = AckTarget::TransactionId("nobody's".to_owned());
    assert_eq!(refusals(&world.engine.ack(unknown, world.now).unwrap()), [Some(ErrorCode::UnknownMessage)]);
}

#[test]
fn a_foreign_old_or_invented_lease_is_refused_and_none_moves_the_cursor_all_the_same() {
    let (world, reply) = world(7, 2);
    world.push("other", "a", &["x"]);
    let foreign = world.pop("other", "g", 1).lease_id;
    let claim = &reply.claims[0];
    for lease in [foreign.as_str(), "not-a-lease", "0-0", "18446744073709551615-18446744073709551615"] {
        let refused = world.ack(claim, "g", lease, &[(1, Completed)]);
        assert_eq!((refusals(&refused), refused.next), (vec![Some(ErrorCode::LeaseLost)], 0), "{lease}");
    }
    let unfenced = world.ack(claim, "g", "", &[(1, Completed)]);
    assert_eq!((refusals(&unfenced), unfenced.next), (vec![None], 2));
}

#[test]
fn an_acknowledgement_repeated_after_a_lost_reply_is_known() {
    let (world, reply) = world(8, 2);
    let items = [(0, Completed), (1, Reject)];
    let first = world.ack(&reply.claims[0], "g", &reply.lease_id, &items);
    let again = world.ack(&reply.claims[0], "g", &reply.lease_id, &items);
    assert_eq!((first.next, again.next), (2, 2));
    assert_eq!(refusals(&again), [None, None]);
    assert!(again.outcomes[1].is_dead_letter);
    assert_eq!(world.letters("q").len(), 1);
}

#[test]
fn an_answered_acknowledgement_survives_the_power_and_an_unanswered_lease_does_not_count() {
    let (world, reply) = world(9, 3);
    world.ack(&reply.claims[0], "g", &reply.lease_id, &[(1, Completed)]);
    let world = world.power_loss();
    assert_eq!(texts(&world.drain("q", "g")), ["2"]);
}

#[test]
fn the_delivery_count_and_the_last_error_survive_a_restart() {
    let (world, reply) = world(10, 1);
    let mut ack = ack_of(&reply.claims[0], "g", &reply.lease_id, &[(0, Failed)]);
    ack.items[0].reason = "the printer is on fire".to_owned();
    world.engine.ack(ack, world.now).unwrap();
    let world = world.restart();
    let reply = world.pop("q", "g", 1);
    assert_eq!((reply.claims[0].delivery_count, reply.claims[0].last_error.as_str()), (2, "the printer is on fire"));
    let world = world.power_loss();
    assert_eq!(world.pop("q", "g", 1).claims[0].last_error, "the printer is on fire");
}

/// A work queue: each message is leased, acknowledged, retried and counted by itself.
#[test]
fn many_consumers_of_a_shared_group_hold_messages_of_one_partition() {
    let mut world = World::new(11);
    world.push("q", "a", &["0", "1", "2", "3", "4", "5"]);
    let request = PopRequest { shared: true, ..PopRequest::any("q", 2).group("work") };
    let [first, second, third] = [0; 3].map(|_| world.pop_as(&request));
    assert_eq!([popped(&first), popped(&second), popped(&third)], [["0", "1"], ["2", "3"], ["4", "5"]]);
    assert!(world.pop_as(&request).claims.is_empty());
    let acked = world.ack(&third.claims[0], "work", &third.lease_id, &[(5, Completed)]);
    assert_eq!(acked.next, 0, "what is done above an open message stays above");
    world.ack(&second.claims[0], "work", &second.lease_id, &[(2, Failed), (3, Completed)]);
    let again = world.pop_as(&request);
    assert_eq!((popped(&again), again.claims[0].delivery_count), (vec!["2".to_owned()], 2));
    world.pass(30_000);
    assert_eq!(world.engine.extend(&third.lease_id, 60_000, world.now).unwrap().renewed, 1);
    world.pass(31_000);
    // The first and the one that was taken later ran out; the extended one did not.
    assert_eq!(popped(&world.pop_as(&request)), ["0", "1"]);
    let world = world.power_loss();
    let left: Vec<String> = popped(&world.pop_as(&PopRequest { messages_max: 10, ..request }));
    assert_eq!(left, ["0", "1", "2", "4"], "what was acknowledged above the cursor is remembered");
}

/// Every second message stays open: the space that the cursor takes has a bound, and what is beyond it waits.
#[test]
fn a_shared_group_with_holes_takes_bounded_space() {
    let world = World::new(12);
    for _ in 0..20 {
        world.push("q", "a", &["x"; 1_000]);
    }
    let request = PopRequest { shared: true, bytes_max: 1 << 30, ..PopRequest::any("q", 20_000).group("work") };
    let reply = world.pop_as(&request);
    let held: Vec<u64> = reply.claims.iter().flat_map(crate::support::messages_of).map(|message| message.offset).collect();
    assert_eq!(held, (0..16_384).collect::<Vec<_>>());
    let odd: Vec<_> = held.iter().filter(|offset| *offset % 2 == 1).map(|&offset| (offset, Completed)).collect();
    world.ack(&reply.claims[0], "work", &reply.lease_id, &odd);
    assert!(world.pop_as(&request).claims.is_empty());
    let before = world.engine.queue("q").unwrap().stats.bytes_written;
    world.ack(&reply.claims[0], "work", &reply.lease_id, &[(16_382, Completed)]);
    let written = world.engine.queue("q").unwrap().stats.bytes_written - before;
    assert!(written < 8_192, "an acknowledgement wrote {written} bytes");
    let world = world.restart();
    assert_eq!(world.lag("q", "work"), 20_000 - 8_192 - 1);
}

/// Only the steady clock counts for leases and delays, whatever the wall clock does meanwhile.
#[test]
fn a_wall_clock_that_went_back_revives_no_lease_and_shortens_no_delay() {
    let (mut world, reply) = world(13, 2);
    world.now.wall_us -= 3_600_000_000;
    world.now.steady_us += 61_000_000;
    let late = world.ack(&reply.claims[0], "g", &reply.lease_id, &[(0, Completed)]);
    assert_eq!(refusals(&late), [Some(ErrorCode::LeaseLost)]);
    let reply = world.pop("q", "g", 2);
    let mut ack = ack_of(&reply.claims[0], "g", &reply.lease_id, &[(0, Retry)]);
    ack.items[0].delay_ms = 5_000;
    world.engine.ack(ack, world.now).unwrap();
    world.pass(4_999);
    assert!(world.pop("q", "g", 1).claims.is_empty());
    world.pass(1);
    assert_eq!(popped(&world.pop("q", "g", 2)), ["0", "1"]);
}

/// One consumer's acknowledgement that could not be written ended the leases of all, and their messages went to others while they were
/// worked on.
#[test]
fn an_acknowledgement_that_cannot_be_written_ends_no_lease_of_others() {
    let world = World::new(14);
    world.push("q", "p", &["0", "1", "2", "3"]);
    let work = |count| PopRequest { shared: true, start: Some(Start::Beginning), ..PopRequest::any("q", count).group("work") };
    let (one, other) = (world.pop_as(&work(2)), world.pop_as(&work(1)));
    world.disk.fail(Fault::new(Errno::IO).on(Operation::Write));
    let items = [(0, Completed)];
    let error = world.engine.ack(ack_of(&one.claims[0], "work", &one.lease_id, &items), world.now).unwrap_err();
    assert_eq!(error.code, ErrorCode::Io);
    world.disk.clear_faults();
    assert_eq!(popped(&world.pop_as(&work(4))), ["0", "3"], "1 and 2 are held, 0 is not settled");
    assert_eq!(refusals(&world.ack(&other.claims[0], "work", &other.lease_id, &[(2, Completed)])), [None]);
    assert_eq!(refusals(&world.ack(&one.claims[0], "work", &one.lease_id, &[(1, Completed)])), [None]);
}
