//! Which group gets a message is decided when it is pushed, stored with it, and respected by everything else.

use fanlog::model::*;
use fanlog::record::Message;

use crate::support::*;

use AckVerb::{Completed, Failed, Retry};
use PushResult::{Dropped, Duplicate, Stored};

/// A queue whose primary group is disabled and whose group `g` takes only messages with `k = "a"`.
async fn only_a() -> Server {
    let server = Server::start().await;
    server.create("q", SettingsPatch::default()).await;
    server.declare("q", "g", ":k = \"a\"").await;
    server.set_enabled("q", PRIMARY_GROUP, false).await;
    server
}

async fn push(server: &Server, keys: &str) -> Vec<PushResult> {
    server.push_messages("q", "p", letters_of(keys)).await
}

async fn text(server: &Server, group: &str) -> String {
    server.drain("q", group).await.concat()
}

#[tokio::test]
async fn a_decision_is_kept_over_a_change_of_the_filter_and_sigkill_right_after_it() {
    let mut server = Server::start().await;
    server.create("q", SettingsPatch::default()).await;
    server.declare("q", "g", ":k = \"a\"").await;
    push(&server, "ab").await;
    server.set_filter("q", "g", ":k = \"b\"").await;
    server = server.killed_and_started().await;
    push(&server, "ab").await;
    server.set_enabled("q", "g", false).await;
    server = server.killed_and_started().await;
    push(&server, "ab").await;
    server.update("q", "g", GroupPatch { filter: Some(String::new()), is_enabled: Some(true), ..GroupPatch::default() }).await;
    server = server.killed_and_started().await;
    push(&server, "ab").await;
    assert_eq!(server.lag("q", "g").await, 4);
    assert_eq!(
        text(&server, "g").await,
        "abab",
        "of the first push a, of the second b, of the third nothing, of the fourth both"
    );
    assert_eq!(text(&server, "other").await, "abababab");
}

#[tokio::test]
async fn a_batch_in_which_a_group_has_nothing_is_skipped_and_of_a_mixed_one_only_its_messages_leave_the_server() {
    let server = Server::start().await;
    server.create("q", SettingsPatch::default()).await;
    server.declare("q", "g", ":k = \"a\"").await;
    for keys in ["aaa", "bbb", "aba", "ccc", "aa"] {
        push(&server, keys).await;
    }
    let server = server.killed_and_started().await;
    let taken = server.pop("q", "g", 100).await;
    let batches = taken.claim().batches.iter().map(|slice| match slice {
        BatchSlice::Whole(_) => None,
        BatchSlice::Messages(messages) => Some(messages.iter().map(|message| message.offset).collect::<Vec<_>>()),
    });
    let batches: Vec<_> = batches.collect();
    assert_eq!(batches, [None, Some(vec![6, 8]), None], "two batches are skipped, two go as they are stored");
    assert_eq!(taken.offsets(), [0, 1, 2, 6, 8, 12, 13]);
}

#[tokio::test]
async fn a_long_run_of_foreign_batches_is_passed_in_one_pop() {
    let server = Server::start().await;
    server.create("q", SettingsPatch { durability: Some(Durability::Os), ..SettingsPatch::default() }).await;
    server.declare("q", "g", ":k = \"a\"").await;
    push(&server, "a").await;
    for _ in 0..30 {
        push(&server, &"b".repeat(200)).await;
    }
    push(&server, "a").await;
    assert_eq!(server.lag("q", "g").await, 2);
    let taken = server.pop("q", "g", 10).await;
    assert_eq!(taken.offsets(), [0, 6_001]);
    let waiting = server.waiting(&pop_of("q", "g", 1)).await;
    server.ack(&taken, &[(6_001, Completed)]).await;
    push(&server, "b").await;
    push(&server, "a").await;
    assert_eq!(waiting.woken().await.claims[0].range.last, 6_003, "what is not for the group wakes nobody for long");
}

#[tokio::test]
async fn what_no_group_takes_is_dropped_named_in_the_reply_has_no_offset_and_is_counted_over_sigkill() {
    let server = only_a().await;
    assert_eq!(push(&server, "baac").await, [Dropped, Stored(0), Stored(1), Dropped]);
    assert_eq!(push(&server, "bb").await, [Dropped, Dropped]);
    let counted = async |server: &Server| {
        let stats = server.stats("q").await;
        (stats.messages_dropped, stats.messages, stats.messages_pushed)
    };
    assert_eq!(counted(&server).await, (4, 2, 2));
    let server = server.killed_and_started().await;
    assert_eq!(counted(&server).await, (4, 2, 2));
    assert_eq!(push(&server, "c").await, [Dropped]);
    let server = server.killed_and_started().await;
    assert_eq!(counted(&server).await, (5, 2, 2));
    assert_eq!(server.client.stats().await.unwrap().total.messages_dropped, 5);
    #[cfg(feature = "http")]
    assert_eq!(server.metric("dropped_messages", "q").await, 5.0);
    assert_eq!(server.bounds("q", "p").await, (0, 2));
    server.set_enabled("q", PRIMARY_GROUP, true).await;
    assert_eq!(text(&server, PRIMARY_GROUP).await, "", "what was dropped, and what was not for it, does not come back");
}

#[tokio::test]
async fn the_lag_the_status_and_the_retention_count_only_what_a_group_takes() {
    let server = Server::start_sweeping().await;
    server.create("q", SettingsPatch::default()).await;
    server.declare("q", "a", ":k = \"a\"").await;
    server.declare("q", "b", ":k = \"b\"").await;
    for keys in ["aa", "ab", "bc"] {
        push(&server, keys).await;
    }
    assert_eq!((server.lag("q", "a").await, server.lag("q", "b").await), (3, 2));
    assert_eq!(server.cursor("q", "b", "p").await.lag, 2);
    assert_eq!(text(&server, "a").await, "aaa");
    let status = async |offset| {
        let view = server.message("q", "p", offset).await;
        let named = view.groups.iter().filter(|group| group.name != PRIMARY_GROUP && group.is_taken);
        (view.status, named.map(|group| group.name.clone()).collect::<Vec<_>>().concat())
    };
    assert_eq!(status(0).await, ("completed", "a".to_owned()));
    assert_eq!(status(3).await, ("pending", "b".to_owned()));
    assert_eq!(status(5).await, ("completed", String::new()), "no named group takes c");
    // The first batch is nothing to b, which holds back the second.
    let completed = SettingsPatch { retention_enabled: Some(true), completed_retention_s: Some(1), ..SettingsPatch::default() };
    server.client.update_queue("q", completed).await.unwrap();
    eventually(async || (server.bounds("q", "p").await == (2, 6)).then_some(())).await;
    assert_eq!(text(&server, "b").await, "bb");
    eventually(async || (server.bounds("q", "p").await == (6, 6)).then_some(())).await;
}

#[tokio::test]
async fn a_dead_letter_that_is_replayed_is_judged_as_any_push() {
    let server = only_a().await;
    server.declare("q", "rest", "NOT :k = \"a\"").await;
    push(&server, "ba").await;
    let held = server.pop("q", "g", 1).await;
    server.ack(&held, &[(1, AckVerb::Reject)]).await;
    let letter = server.letters("q").await.remove(0);
    assert_eq!((letter.offset, letter.group.as_str()), (1, "g"));
    server.set_filter("q", "rest", "").await;
    server.set_filter("q", "g", ":k = \"b\"").await;
    assert_eq!(results_of(&server.client.replay_dead_letter("q", letter.id).await.unwrap()), [Stored(2)]);
    assert_eq!((text(&server, "g").await, text(&server, "rest").await), (String::new(), "ba".to_owned()));
}

#[tokio::test]
async fn a_seek_back_gives_again_what_was_decided_then() {
    let server = Server::start().await;
    server.create("q", SettingsPatch::default()).await;
    server.declare("q", "g", ":k = \"a\"").await;
    push(&server, "ab").await;
    server.set_filter("q", "g", ":k = \"b\"").await;
    push(&server, "ab").await;
    assert_eq!(text(&server, "g").await, "ab");
    server.set_filter("q", "g", ":k = \"c\"").await;
    server.seek("q", "g", SeekTarget::Beginning).await;
    let server = server.killed_and_started().await;
    assert_eq!(text(&server, "g").await, "ab");
}

#[tokio::test]
async fn deduplication_remembers_what_was_stored_and_not_what_was_dropped() {
    let server = only_a().await;
    let message = |key: &str, id: &str| Message { transaction_id: Some(id.to_owned()), ..letters_of(key).remove(0) };
    let send = async |messages: &[Message], sequence| {
        let producer = Some((9, 0, sequence));
        let items = PushItem::Messages(messages.to_vec());
        results_of(&server.client.push(&PushRequest { items, producer, ..push_of("q", "p", &[]) }).await.unwrap())
    };
    assert_eq!(send(&[message("b", "x"), message("a", "y")], 0).await, [Dropped, Stored(0)]);
    let push = [message("a", "x"), message("a", "y"), message("b", "z"), message("a", "x")];
    assert_eq!(send(&push, 1).await, [Stored(1), Duplicate(0), Dropped, Duplicate(1)]);
    assert_eq!(send(&push, 1).await, [Duplicate(1), Duplicate(0), Dropped, Duplicate(1)], "sent again it is answered as it was");
    assert_eq!(server.bounds("q", "p").await, (0, 2));
}

#[tokio::test]
async fn a_transaction_is_filtered_as_any_push_and_its_dropped_messages_are_named() {
    let server = only_a().await;
    let items = |keys: &str| PushItem::Messages(letters_of(keys));
    let pushes = vec![
        PushRequest { items: items("bab"), ..push_of("q", "p", &[]) },
        PushRequest { items: items("xy"), ..push_of("elsewhere", "p", &[]) },
    ];
    let reply = server.client.transact(&TransactionRequest { pushes, ..TransactionRequest::default() }).await.unwrap();
    assert_eq!(results_of(&reply.pushes[0]), [Dropped, Stored(0), Dropped]);
    assert_eq!(results_of(&reply.pushes[1]), [Stored(0), Stored(1)]);
    let server = server.killed_and_started().await;
    assert_eq!((text(&server, "g").await, server.stats("q").await.messages_dropped), ("a".to_owned(), 2));
}

#[tokio::test]
async fn a_work_queue_sees_and_is_asked_only_what_its_filter_takes() {
    let server = Server::start().await;
    server.create("q", SettingsPatch::default()).await;
    let declaration = GroupDeclaration { filter: ":k = \"a\"".to_owned(), shared: true, ..GroupDeclaration::default() };
    server.client.declare_group("q", "g", declaration).await.unwrap();
    push(&server, "abcab").await;
    push(&server, "ba").await;
    let (first, second) = (server.pop("q", "g", 1).await, server.pop("q", "g", 10).await);
    assert_eq!((first.offsets(), second.offsets()), (vec![0], vec![3, 6]));
    server.ack(&second, &[(3, Completed), (6, Retry)]).await;
    assert_eq!(server.pop("q", "g", 10).await.offsets(), [6]);
    let server = server.killed_and_started().await;
    let rest = server.pop("q", "g", 10).await;
    assert_eq!(rest.offsets(), [0, 6]);
    server.ack(&rest, &[(0, Failed), (6, Completed)]).await;
    assert_eq!(server.pop("q", "g", 10).await.offsets(), [0]);
}

#[tokio::test]
async fn a_lease_of_another_group_is_refused_message_by_message() {
    let server = Server::start().await;
    server.create("q", SettingsPatch::default()).await;
    server.declare("q", "a", ":k = \"a\"").await;
    server.declare("q", "b", "").await;
    push(&server, "ab").await;
    let held = server.pop("q", "a", 10).await;
    assert_eq!(server.pop("q", "b", 10).await.payloads(), ["a", "b"]);
    let wrong = ack_of(held.claim(), &Some("b".to_owned()), held.lease(), &[(0, Completed), (1, Completed)]);
    let reply = server.client.ack(&wrong).await.unwrap();
    assert_eq!(refusals(&reply), [Some(ErrorCode::LeaseLost); 2]);
    assert_eq!(refusals(&server.ack(&held, &[(0, Completed)]).await), [None]);
}
