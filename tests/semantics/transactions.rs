//! Pushes, acknowledgements and dead letters of any queues: all or none.

use fanlog::model::*;

use crate::support::*;

use AckVerb::{Completed, Reject};

fn transaction(pushes: Vec<PushRequest>, acks: Vec<AckRequest>) -> TransactionRequest {
    TransactionRequest { pushes, acks, required_leases: Vec::new() }
}

fn identified(queue: &str, id: &str) -> PushRequest {
    PushRequest { items: PushItem::Messages(vec![with_id(id)]), ..push_of(queue, "a", &[]) }
}

#[tokio::test]
async fn pushes_acknowledgements_and_dead_letters_of_several_queues_are_one_and_last() {
    let server = Server::start().await;
    server.push("in", "a", &["good", "bad"]).await;
    let taken = server.pop("in", "g", 2).await;
    let ack = taken.ack_of(&[(0, Completed), (1, Reject)]);
    let pushes = vec![push_of("out", "a", &["1"]), push_of("out", "b", &["2"]), push_of("log", "a", &["3"])];
    let done = server.client.transact(&transaction(pushes, vec![ack])).await.unwrap();
    assert_eq!((done.pushes.len(), done.acks[0].next, done.acks[0].is_lease_released), (3, 2, true));
    assert!(done.pushes.iter().all(|push| push.promise == Promise::Durable));
    let server = server.killed_and_started().await;
    assert_eq!((server.letters("in").await.len(), server.lag("in", "g").await), (1, 0));
    assert_eq!(server.drain("out", "g").await.len(), 2);
    assert_eq!(server.drain("log", "g").await, ["3"]);
}

#[tokio::test]
async fn a_duplicate_or_a_refused_acknowledgement_rolls_all_back_and_says_why() {
    let server = Server::start().await;
    server.push("in", "a", &["job", "next"]).await;
    server.client.push(&identified("out", "known")).await.unwrap();
    let taken = server.pop("in", "g", 2).await;
    let good = taken.ack_of(&[(0, Completed)]);
    let new = || push_of("out", "a", &["x"]);
    let stale = AckRequest { lease_id: "1-999".to_owned(), ..good.clone() };
    let leased = TransactionRequest { required_leases: vec!["1-999".to_owned()], ..transaction(vec![new()], vec![good.clone()]) };
    for (request, code, reason) in [
        (transaction(vec![new(), identified("out", "known")], vec![good.clone()]), ErrorCode::Duplicate, "push 1"),
        (transaction(vec![new()], vec![taken.ack_of(&[(0, Reject), (7, Completed)])]), ErrorCode::AckRejected, "7"),
        (transaction(vec![new()], vec![stale]), ErrorCode::AckRejected, "1-999"),
        (leased, ErrorCode::LeaseLost, "1-999"),
    ] {
        let error = server.client.transact(&request).await.unwrap_err();
        assert_eq!(error.code(), Some(code), "{error}");
        assert!(error.to_string().contains(reason), "{error} does not say {reason}");
        assert_eq!(server.bounds("out", "a").await, (0, 1));
        let cursor = server.cursor("in", "g", "a").await;
        assert_eq!((cursor.next, cursor.lease_id.as_str()), (0, taken.lease()));
        assert!(server.letters("in").await.is_empty());
    }
    let server = server.killed_and_started().await;
    assert_eq!(server.bounds("out", "a").await, (0, 1));
    assert_eq!(server.drain("in", "g").await, ["job", "next"]);
}

#[tokio::test]
async fn a_transaction_sent_again_happens_once() {
    let server = Server::start().await;
    server.push("in", "a", &["job"]).await;
    let taken = server.pop("in", "g", 1).await;
    let request = TransactionRequest {
        required_leases: vec![taken.lease().to_owned()],
        ..transaction(vec![push_of("out", "a", &["x"])], vec![taken.ack_of(&[(0, Completed)])])
    };
    server.client.transact(&request).await.unwrap();
    assert_eq!(refused(server.client.transact(&request).await), ErrorCode::LeaseLost);
    assert_eq!(server.bounds("out", "a").await, (0, 1));
}

/// Acknowledge here, push there, on a server that does nothing else: one of the two logs is synced for it. A frontier mark of an idle
/// log is no sync, and what the weaker of the two logs owes is written down later, so that the count is taken right after the reply.
#[tokio::test]
async fn the_usual_transaction_costs_one_sync() {
    const ROUNDS: u64 = 6;
    let server = Server::start().await;
    let payloads = vec!["job"; ROUNDS as usize];
    server.push("in", "a", &payloads).await;
    server.push("out", "a", &["first"]).await;
    let mut counts = Vec::new();
    for offset in 0..ROUNDS {
        let taken = server.pop("in", "g", 1).await;
        let request = transaction(vec![push_of("out", "a", &["x"])], vec![taken.ack_of(&[(offset, Completed)])]);
        let before = server.client.stats().await.unwrap().total.syncs;
        server.client.transact(&request).await.unwrap();
        counts.push(server.client.stats().await.unwrap().total.syncs - before);
    }
    counts.sort_unstable();
    assert_eq!(counts[ROUNDS as usize / 2], 1, "{counts:?} syncs");
    let server = server.killed_and_started().await;
    assert_eq!((server.lag("in", "g").await, server.bounds("out", "a").await.1), (0, 1 + ROUNDS));
}

/// Killed while transactions are on their way: what is there of each is all of it or nothing, and what was answered is there.
#[tokio::test]
async fn a_transaction_is_whole_or_absent_whenever_the_server_is_killed() {
    const JOBS: usize = 400;
    let server = Server::start().await;
    server.push("in", "a", &vec!["job"; JOBS]).await;
    let taken = server.pop("in", "g", JOBS as u32).await;
    let client = server.client.clone();
    let working = tokio::spawn(async move {
        let mut answered = 0;
        for offset in 0..JOBS as u64 {
            let id = format!("result-{offset}");
            let pushes = vec![identified("out", &id), identified("log", &id)];
            match client.transact(&transaction(pushes, vec![taken.ack_of(&[(offset, Completed)])])).await {
                Ok(_) => answered += 1,
                Err(_) => break,
            }
        }
        answered
    });
    eventually(async || server.client.partition("log", "a").await.is_ok_and(|found| found.end > 5).then_some(())).await;
    let server = server.killed_and_started().await;
    let answered: u64 = working.await.unwrap();
    let next = server.cursor("in", "g", "a").await.next;
    assert_eq!((server.bounds("out", "a").await, server.bounds("log", "a").await), ((0, next), (0, next)));
    assert!((answered..=answered + 1).contains(&next), "{answered} answered, {next} there");
}
