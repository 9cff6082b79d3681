//! What makes no sense is refused with a code of its own, and nothing changes.

use std::time::Duration;

use fanlog::model::*;
use fanlog::protocol::PartitionSelector;
use fanlog::record::NAME_BYTES_MAX;

use crate::support::*;

use ErrorCode::*;

async fn server() -> Server {
    let server = Server::start().await;
    server.push("q", "a", &["0", "1", "2"]).await;
    server.take("q", "g", 1).await;
    server
}

/// Everything that can be seen of the queue, for people.
async fn seen(server: &Server) -> String {
    let queues = server.client.queues().await.unwrap();
    let settings: Vec<_> = queues.iter().map(|queue| (&queue.name, &queue.settings, queue.stats.messages)).collect();
    let groups: Vec<_> = server.client.groups(Some("q")).await.unwrap().into_iter().map(|found| found.group).collect();
    let cursor = server.cursor("q", "g", "a").await;
    format!("{settings:?} {groups:?} {:?}", (cursor.next, cursor.lag, cursor.lease_id, cursor.total_consumed))
}

#[tokio::test]
async fn unknown_queues_groups_partitions_messages_leases_and_letters_are_told_apart() {
    let server = server().await;
    let before = seen(&server).await;
    let client = &server.client;
    assert_eq!(refused(client.pop(&pop_of("nowhere", "g", 1), Duration::ZERO).await), UnknownQueue);
    assert_eq!(refused(client.queue("nowhere").await), UnknownQueue);
    assert_eq!(refused(client.update_queue("nowhere", SettingsPatch::default()).await), UnknownQueue);
    assert_eq!(refused(client.delete_group(Some("nowhere"), "g").await), UnknownQueue);
    assert_eq!(refused(client.group("q", Some("nobody")).await), UnknownGroup);
    assert_eq!(refused(client.update_group("q", Some("nobody"), GroupPatch::default()).await), UnknownGroup);
    assert_eq!(refused(client.progress("q", Some("nobody"), None, 1).await), UnknownGroup);
    assert_eq!(refused(client.partition("q", "nowhere").await), UnknownPartition);
    let lane = SeekRequest { partition: Some("nowhere".into()), ..seek_of("q", "g", SeekTarget::End) };
    assert_eq!(refused(client.seek(lane, 1).await), UnknownPartition);
    assert_eq!(refused(client.seek(seek_of("q", "nobody", SeekTarget::End), 1).await), UnknownGroup);
    let name = || PartitionSelector::Name("a".to_owned());
    assert_eq!(refused(client.message("q", PartitionSelector::Id(77), AckTarget::Offset(0)).await), UnknownPartition);
    for target in [AckTarget::Offset(3), AckTarget::Offset(u64::MAX), AckTarget::TransactionId("nobody's".into())] {
        assert_eq!(refused(client.message("q", name(), target).await), UnknownMessage);
    }
    for (queue, partition_id, group, code) in
        [("nowhere", 0, "g", UnknownQueue), ("q", 77, "g", UnknownPartition), ("q", 0, "nobody", UnknownGroup)]
    {
        let ack = AckRequest {
            queue: queue.into(),
            partition_id,
            group: Some(group.into()),
            lease_id: String::new(),
            items: vec![AckItem { target: AckTarget::Offset(0), verb: AckVerb::Completed, reason: String::new(), delay_ms: 0 }],
        };
        assert_eq!(refused(client.ack(&ack).await), code, "{queue} {partition_id} {group}");
    }
    let query = DeadLetterQuery { queue: Some("nowhere".into()), limit: 1, ..DeadLetterQuery::default() };
    assert_eq!(refused(client.dead_letters(&query).await), UnknownQueue);
    assert_eq!(refused(client.replay_dead_letter("q", 77).await), UnknownDeadLetter);
    assert_eq!((client.extend("1-77", None).await.unwrap().renewed, client.release("1-77").await.unwrap()), (0, 0));
    // A partition that is not there yet has nothing; asking does not make it.
    assert!(server.pop_as(&pinned_pop_of("q", "nowhere", "g", 1)).await.is_empty());
    assert_eq!(seen(&server).await, before);
}

#[tokio::test]
async fn counts_and_times_of_zero_and_beyond_all_bounds() {
    let server = server().await;
    let before = seen(&server).await;
    let request = pop_of("q", "g", 1);
    for bad in [
        PopRequest { messages_max: 0, ..request.clone() },
        PopRequest { partitions_max: 0, ..request.clone() },
        PopRequest { partitions_max: 65, ..request.clone() },
        PopRequest { lease_ms: Some(0), ..request.clone() },
    ] {
        assert_eq!(refused(server.client.pop(&bad, Duration::ZERO).await), BadRequest, "{bad:?}");
    }
    assert_eq!(seen(&server).await, before);
    // As much and as long as anybody can ask for is no reason to fall over.
    let huge = PopRequest { messages_max: u32::MAX, bytes_max: u32::MAX, lease_ms: Some(u64::MAX), ..request.clone() };
    let taken = server.pop_as(&huge).await;
    assert_eq!(taken.payloads(), ["1", "2"]);
    assert_eq!(server.client.extend(taken.lease(), Some(Duration::MAX)).await.unwrap().renewed, 1);
    let mut later = taken.ack_of(&[(1, AckVerb::Retry)]);
    later.items[0].delay_ms = u64::MAX;
    server.client.ack(&later).await.unwrap();
    assert!(server.pop_as(&huge).await.is_empty(), "it comes in half a million years");
    server.seek("q", "g", SeekTarget::Beginning).await;
    assert_eq!(server.pop("q", "g", 10).await.payloads().len(), 3);
    for arguments in [
        ["pop", "q", "-n", "-1"].as_slice(),
        &["pop", "q", "-n", "99999999999"],
        &["pop", "q", "--lease", "-5s"],
        &["pop", "q", "--wait", "-1s"],
        &["group", "seek", "q", "g", "--to", "99999999999999999999999"],
    ] {
        assert_eq!(server.run(arguments).status.code(), Some(1), "{arguments:?}");
    }
}

#[tokio::test]
async fn a_bad_name_or_push_stores_nothing_and_makes_nothing() {
    let server = server().await;
    let before = seen(&server).await;
    let too_long = "x".repeat(NAME_BYTES_MAX + 1);
    for (queue, partition) in [("", "a"), ("a\u{7}b", "a"), (&too_long, "a"), ("q", "a\nb"), ("q", &too_long)] {
        assert_eq!(refused(server.client.push(&push_of(queue, partition, &["x"])).await), BadName, "{queue} {partition}");
    }
    for group in ["", "a\nb", &too_long] {
        let request = PopRequest { group: Some(group.to_owned()), ..pop_of("q", "g", 1) };
        assert_eq!(refused(server.client.pop(&request, Duration::ZERO).await), BadName, "{group}");
    }
    assert_eq!(seen(&server).await, before);
}
