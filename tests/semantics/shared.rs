//! Work queues (shared mode): many consumers hold messages of one partition, and each message goes its own way.

use std::time::Duration;

use fanlog::client::Client;
use fanlog::model::*;

use crate::support::*;

use AckVerb::{Completed, Failed, Reject, Retry};

fn work(count: u32) -> PopRequest {
    PopRequest { shared: true, ..pop_of("q", "work", count) }
}

async fn pop(client: &Client, count: u32) -> Taken {
    taken(client, &work(count), Duration::ZERO).await
}

/// Six messages of one partition, held two by two by three consumers.
async fn three_consumers() -> (Server, [Client; 3], [Taken; 3]) {
    let server = Server::start().await;
    server.push("q", "a", &["0", "1", "2", "3", "4", "5"]).await;
    let consumers = [server.other_client().await, server.other_client().await, server.other_client().await];
    let held = [pop(&consumers[0], 2).await, pop(&consumers[1], 2).await, pop(&consumers[2], 2).await];
    (server, consumers, held)
}

#[tokio::test]
async fn many_consumers_hold_messages_of_one_partition_at_the_same_time() {
    let (server, _, held) = three_consumers().await;
    assert_eq!(held.each_ref().map(Taken::payloads), [["0", "1"], ["2", "3"], ["4", "5"]]);
    assert!(server.pop_as(&work(10)).await.is_empty());
    assert_eq!(server.cursor("q", "work", "a").await.in_flight, 6);
}

#[tokio::test]
async fn each_message_is_acknowledged_retried_rejected_and_counted_by_itself() {
    let (server, consumers, held) = three_consumers().await;
    let acked = consumers[2].ack(&held[2].ack_of(&[(5, Completed)])).await.unwrap();
    assert_eq!((acked.next, refusals(&acked)), (0, vec![None]), "what is done above an open message stays above");
    let acked = consumers[1].ack(&held[1].ack_of(&[(2, Failed), (3, Completed)])).await.unwrap();
    assert_eq!(refusals(&acked), [None, None]);
    let again = pop(&consumers[1], 10).await;
    assert_eq!((again.payloads(), again.messages()[0].delivery_count), (vec!["2".to_owned()], 2));
    consumers[0].ack(&held[0].ack_of(&[(0, Retry), (1, Reject)])).await.unwrap();
    assert_eq!(pop(&consumers[0], 10).await.payloads(), ["0"]);
    assert_eq!(server.letters("q").await.iter().map(|letter| letter.offset).collect::<Vec<_>>(), [1]);
    let stranger = ack_of(held[0].claim(), &held[0].group, held[0].lease(), &[(4, Completed)]);
    let outcome = consumers[0].ack(&stranger).await.unwrap();
    assert!(refusals(&outcome)[0].is_some(), "message 4 is another consumer's: {outcome:?}");
}

#[tokio::test]
async fn each_lease_ends_and_is_extended_by_itself() {
    let server = Server::start().await;
    server.push("q", "a", &["0", "1"]).await;
    let short = PopRequest { lease_ms: Some(300), ..work(1) };
    let (first, second) = (server.pop_as(&short).await, server.pop_as(&short).await);
    assert_eq!(server.client.extend(second.lease(), Some(Duration::from_secs(600))).await.unwrap().renewed, 1);
    let again = taken(&server.client, &work(10), Duration::from_secs(20)).await;
    assert_eq!(again.payloads(), first.payloads(), "only the lease that was not extended ran out");
    assert_eq!(refusals(&server.ack(&second, &[(1, Completed)]).await), [None]);
}

#[tokio::test]
async fn what_is_acknowledged_above_the_cursor_and_what_failed_survives_sigkill() {
    let (server, consumers, held) = three_consumers().await;
    consumers[1].ack(&held[1].ack_of(&[(2, Failed), (3, Completed)])).await.unwrap();
    consumers[2].ack(&held[2].ack_of(&[(5, Completed)])).await.unwrap();
    let server = server.killed_and_started().await;
    assert_eq!(server.lag("q", "work").await, 4);
    let rest = server.pop_as(&work(10)).await;
    assert_eq!(rest.payloads(), ["0", "1", "2", "4"]);
    server.ack(&rest, &[(0, Completed), (1, Completed), (2, Completed)]).await;
    let server = server.killed_and_started().await;
    assert_eq!(server.cursor("q", "work", "a").await.next, 4);
    let last = server.pop_as(&work(10)).await;
    assert_eq!(last.payloads(), ["4"]);
    assert_eq!(server.ack(&last, &[(4, Completed)]).await.next, 6);
}

/// Work is split between consumers that come and go, one of them while the server is killed: each message is done.
#[tokio::test]
async fn four_consumers_finish_everything_also_over_sigkill() {
    const MESSAGES: u64 = 200;
    let mut server = Server::start().await;
    let payloads: Vec<String> = (0..MESSAGES).map(|index| index.to_string()).collect();
    server.push("q", "a", &payloads.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut done = Vec::new();
    for round in 0..2 {
        let mut workers = Vec::new();
        for _ in 0..4 {
            let client = server.other_client().await;
            workers.push(tokio::spawn(async move {
                let mut done = Vec::new();
                // In the first round each worker leaves with messages in its hands.
                for turn in 0.. {
                    let held = pop(&client, 7).await;
                    if held.is_empty() || round == 0 && turn == 3 {
                        break;
                    }
                    let items: Vec<_> = held.offsets().into_iter().map(|offset| (offset, Completed)).collect();
                    let acked = client.ack(&held.ack_of(&items)).await.unwrap();
                    assert!(refusals(&acked).iter().all(Option::is_none));
                    done.extend(held.offsets());
                }
                done
            }));
        }
        for worker in workers {
            done.extend(worker.await.unwrap());
        }
        server = server.killed_and_started().await;
    }
    done.sort_unstable();
    assert_eq!(done, (0..MESSAGES).collect::<Vec<_>>(), "each once");
    assert_eq!(server.lag("q", "work").await, 0);
}

/// Every second message stays open: the space that the cursor takes has a bound, and what is beyond it waits.
#[tokio::test]
async fn a_group_with_holes_takes_bounded_space() {
    let server = Server::start().await;
    for _ in 0..20 {
        server.push("q", "a", &["x"; 1_000]).await;
    }
    let mut held: Vec<Taken> = Vec::new();
    loop {
        let taken = server.pop_as(&work(20_000)).await;
        if taken.is_empty() {
            break;
        }
        held.push(taken);
    }
    assert_eq!(held.iter().map(|taken| taken.offsets().len()).sum::<usize>(), 16_384);
    for taken in &held {
        let odd: Vec<_> =
            taken.offsets().into_iter().filter(|offset| offset % 2 == 1).map(|offset| (offset, Completed)).collect();
        server.ack(taken, &odd).await;
    }
    assert!(server.pop_as(&work(1)).await.is_empty());
    let before = server.stats("q").await.bytes_written;
    server.ack(held.last().unwrap(), &[(16_382, Completed)]).await;
    let written = server.stats("q").await.bytes_written - before;
    assert!(written < 16_384, "an acknowledgement wrote {written} bytes");
    let server = server.killed_and_started().await;
    assert_eq!(server.lag("q", "work").await, 20_000 - 8_192 - 1);
}
