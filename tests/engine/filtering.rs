//! Attributes and filters as the engine keeps them: what is refused, what a group gets, and when that is decided.

use fanlog::model::*;
use fanlog::record::{Attributes, BatchBuilder, Message};

use crate::support::{World, ack_of, messages_of, push_of, text};

fn message(json: &str) -> Message {
    Message { attributes: Attributes::from_json(json).unwrap(), ..Message::new(json.as_bytes().to_vec()) }
}

fn push_to(queue: &str, messages: &[Message]) -> PushRequest {
    PushRequest { items: PushItem::Messages(messages.to_vec()), ..push_of(queue, "a", &[]) }
}

/// Messages with the attribute `k`, one for each letter, which is the payload too.
fn letters(keys: &str) -> PushRequest {
    let message = |key: char| {
        let mut attributes = Attributes::new();
        attributes.insert("k", key.to_string().as_str()).unwrap();
        Message { attributes, ..Message::new(key.to_string()) }
    };
    push_to("q", &keys.chars().map(message).collect::<Vec<_>>())
}

fn declare(world: &World, group: &str, filter: &str, start: Option<Start>) -> GroupInfo {
    let declaration = GroupDeclaration { filter: filter.to_owned(), start, ..GroupDeclaration::default() };
    world.engine.declare_group("q", group, &declaration, world.now).unwrap()
}

fn update(world: &World, group: &str, patch: GroupPatch) -> GroupInfo {
    world.engine.update_group("q", group, &patch, world.now).unwrap()
}

fn filter(text: &str) -> GroupPatch {
    GroupPatch { filter: Some(text.to_owned()), ..GroupPatch::default() }
}

fn enabled(is_enabled: bool) -> GroupPatch {
    GroupPatch { is_enabled: Some(is_enabled), ..GroupPatch::default() }
}

/// A queue with a first push, so that there is something before any group.
fn world(seed: u64) -> World {
    let world = World::new(seed);
    world.engine.create_queue("q", &SettingsPatch::default(), world.now).unwrap();
    world
}

fn push(world: &World, keys: &str) -> Vec<Option<u64>> {
    let reply = world.engine.push(letters(keys), world.now).unwrap();
    let offset = |index| match reply.results.get(index) {
        Some(PushResult::Stored(offset)) => Some(offset),
        _ => None,
    };
    (0..keys.len()).map(offset).collect()
}

/// All that a group takes, from the beginning or from where it is.
fn drain(world: &World, group: &str) -> String {
    world.drain("q", group).into_iter().map(|entry| entry.2).collect()
}

fn lag(world: &World, group: &str) -> u64 {
    let all = world.engine.progress("q", world.now).unwrap();
    all.iter().find(|progress| progress.group.name == group).unwrap().lag
}

fn packed(messages: &[Message]) -> PushItem {
    let mut builder = BatchBuilder::new();
    messages.iter().for_each(|message| builder.push(message));
    PushItem::Packed(builder.finish(Compression::None))
}

#[test]
fn keys_of_the_server_are_refused_from_clients_and_nothing_of_the_push_is_stored() {
    let world = World::new(40);
    let messages = [message(r#"{"a":1}"#), message(r#"{"fanlog.producer":"me"}"#)];
    let refused = |request: PushRequest| {
        let error = world.engine.push(request.clone(), world.now).unwrap_err();
        let text = "message 1: attribute key \"fanlog.producer\" is reserved: \
                    keys that begin with \"fanlog.\" are set by the server alone";
        assert_eq!((error.code, error.text.as_str()), (ErrorCode::BadAttribute, text));
        let transaction = TransactionRequest { pushes: vec![request], ..TransactionRequest::default() };
        assert_eq!(world.engine.transact(transaction, world.now).unwrap_err().code, ErrorCode::BadAttribute);
    };
    refused(push_to("q", &messages));
    refused(PushRequest { items: packed(&messages), ..push_of("q", "a", &[]) });
    assert_eq!(world.engine.queue("q").unwrap().stats.messages, 0);
    let near = [message(r#"{"fanlog":1,"fanlog-x":1,"Fanlog.x":1}"#)];
    assert_eq!(world.engine.push(push_to("q", &near), world.now).unwrap().results.len(), 1);
}

/// Each of 64 attributes with a key of one byte and an empty value counts as one byte and takes four.
#[test]
fn a_push_that_outgrows_its_block_by_lengths_alone_is_refused_and_others_go_on() {
    let world = World::new(41);
    let mut tiny = Message::default();
    for key in b'0'..b'0' + 64 {
        tiny.attributes.insert(&char::from(key).to_string(), "").unwrap();
    }
    assert_eq!((tiny.size(), BatchBuilder::bytes_of(&tiny)), (64, 260));
    let messages = vec![tiny; 260_000];
    assert!(messages.iter().map(Message::size).sum::<usize>() < world.options.push_bytes_max);
    let (sender, answers) = std::sync::mpsc::channel();
    world.engine.start_threads(1).unwrap();
    for request in [push_of("q", "a", &["before"]), push_to("q", &messages), push_of("q", "a", &["behind"])] {
        let sender = sender.clone();
        let done = Box::new(move |answer: Result<PushReply>| sender.send(answer).unwrap());
        world.engine.submit_push(request, world.now, done);
    }
    let (stored, refused): (Vec<_>, Vec<_>) = answers.iter().take(3).partition(Result::is_ok);
    assert_eq!(stored.len(), 2, "what comes in the same commit is stored");
    let error = refused[0].as_ref().unwrap_err();
    assert_eq!(error.code, ErrorCode::TooLarge);
    assert_eq!(error.text, "push takes 67600000 bytes when it is packed, at most 67108864 are allowed");
}

#[test]
fn a_change_holds_for_later_pushes_and_never_for_stored_messages() {
    let world = world(42);
    declare(&world, "g", ":k = \"a\"", None);
    push(&world, "ab");
    update(&world, "g", filter(":k = \"b\""));
    push(&world, "ab");
    update(&world, "g", enabled(false));
    push(&world, "ab");
    update(&world, "g", GroupPatch { filter: Some(String::new()), ..enabled(true) });
    push(&world, "ab");
    assert_eq!(lag(&world, "g"), 4);
    let world = world.kill();
    assert_eq!(lag(&world, "g"), 4);
    let world = world.power_loss().restart();
    assert_eq!(drain(&world, "g"), "abab", "of the first push a, of the second b, of the third nothing, of the fourth both");
    assert_eq!(drain(&world, "other"), "abababab");
}

#[test]
fn a_disabled_group_keeps_what_it_holds_and_its_leases_can_be_acknowledged() {
    let world = world(43);
    declare(&world, "g", "", None);
    push(&world, "abc");
    let popped = world.pop("q", "g", 2);
    update(&world, "g", enabled(false));
    let inactive = world.engine.pop(&PopRequest::any("q", 1).group("g"), world.now).unwrap_err();
    assert_eq!((inactive.code, inactive.text.as_str()), (ErrorCode::GroupInactive, "group \"g\" of queue \"q\" is inactive"));
    let reply = world.ack(&popped.claims[0], "g", &popped.lease_id, &[(0, AckVerb::Completed)]);
    assert!(reply.outcomes[0].refused.is_none(), "{reply:?}");
    push(&world, "de");
    let world = world.kill();
    update(&world, "g", enabled(true));
    push(&world, "f");
    assert_eq!(drain(&world, "g"), "bcf");
}

#[test]
fn the_primary_group_takes_everything_while_it_is_enabled_and_cannot_be_more() {
    let world = world(44);
    declare(&world, "g", ":k = \"a\"", None);
    let primary = |patch| world.engine.update_group("q", PRIMARY_GROUP, &patch, world.now).map(|info| info.state);
    let refused = |outcome: Result<GroupState>| outcome.unwrap_err().code;
    assert_eq!(refused(primary(filter(":k"))), ErrorCode::PrimaryGroup);
    let limit = GroupPatch { delivery_limit: Some(Some(3)), ..GroupPatch::default() };
    assert_eq!(refused(primary(limit)), ErrorCode::PrimaryGroup);
    let deleted = world.engine.delete_group(PRIMARY_GROUP, Some("q"), world.now).unwrap_err();
    assert_eq!(deleted.code, ErrorCode::PrimaryGroup);
    let declared = world.engine.declare_group("q", PRIMARY_GROUP, &GroupDeclaration::default(), world.now).unwrap_err();
    assert_eq!(declared.code, ErrorCode::PrimaryGroup);
    assert_eq!(push(&world, "ab"), [Some(0), Some(1)], "stored for the primary group alone, whatever filters say");
    assert_eq!(primary(enabled(false)).unwrap(), GroupState::Inactive);
    assert_eq!(push(&world, "ab"), [Some(2), None]);
    assert_eq!(primary(enabled(true)).unwrap(), GroupState::Active);
    push(&world, "b");
    let reply = world.engine.pop(&PopRequest::any("q", 10), world.now).unwrap();
    assert_eq!(messages_of(&reply.claims[0]).iter().map(text).collect::<String>(), "abb");
    assert_eq!(world.engine.queue("q").unwrap().stats.messages_dropped, 1);
}

#[test]
fn with_groups_switched_off_only_the_primary_group_is_there_and_keeps_the_backlog() {
    let world = World::new(45);
    let off = SettingsPatch { consumer_groups: Some(false), ..SettingsPatch::default() };
    world.engine.create_queue("q", &off, world.now).unwrap();
    push(&world, "ab");
    let popped = world.engine.pop(&PopRequest::any("q", 1).group("g"), world.now).unwrap_err();
    let declared = world.engine.declare_group("q", "g", &GroupDeclaration::default(), world.now).unwrap_err();
    assert_eq!((popped.code, declared.code), (ErrorCode::GroupsDisabled, ErrorCode::GroupsDisabled));
    let on = SettingsPatch { consumer_groups: Some(true), ..SettingsPatch::default() };
    world.engine.update_queue("q", &on, world.now).unwrap();
    declare(&world, "g", "", None);
    push(&world, "c");
    assert_eq!(drain(&world, "g"), "c");
    let reply = world.engine.pop(&PopRequest::any("q", 10), world.now).unwrap();
    assert_eq!(messages_of(&reply.claims[0]).len(), 3);
}

#[test]
fn a_declared_group_starts_at_its_creation_or_earlier_and_then_judges_by_its_first_filter() {
    let mut world = world(46);
    push(&world, "ab");
    world.pass(10_000);
    let middle = world.now.wall_us;
    push(&world, "abc");
    world.pass(10_000);
    let new = declare(&world, "new", ":k = \"a\"", None);
    let beginning = declare(&world, "beginning", ":k = \"a\"", Some(Start::Beginning));
    let time = declare(&world, "time", "NOT :k = \"a\"", Some(Start::Time(middle)));
    let all = declare(&world, "all", "", Some(Start::Beginning));
    let said = [&new, &beginning, &time, &all].map(|info| info.judges_earlier);
    assert_eq!(said, [false, true, true, false], "the reply says so");
    for group in ["new", "beginning", "time", "all"] {
        update(&world, group, filter(":k = \"b\""));
    }
    push(&world, "ab");
    let world = world.kill();
    let groups = ["new", "beginning", "time", "all"];
    assert_eq!(groups.map(|group| lag(&world, group)), [1, 3, 3, 6]);
    assert_eq!(groups.map(|group| drain(&world, group)), ["b", "aab", "bcb", "ababcb"]);
}

#[test]
fn a_deleted_group_is_gone_and_its_name_starts_anew() {
    let world = world(47);
    let first = declare(&world, "g", ":k = \"a\"", None);
    push(&world, "aab");
    assert_eq!(world.take("q", "g", 1).len(), 1);
    let stale = world.engine.delete_group_if("g", Some("q"), Some(first.version + 1), world.now).unwrap_err();
    assert_eq!((stale.code, stale.text.as_str()), (ErrorCode::VersionConflict, "group \"g\" has version 1, not 2"));
    let everywhere = world.engine.delete_group_if("g", None, Some(first.version), world.now).unwrap_err();
    assert_eq!(everywhere.code, ErrorCode::BadRequest);
    let removed = world.engine.delete_group_if("g", Some("q"), Some(first.version), world.now).unwrap();
    assert_eq!((removed.queues, removed.deleted_partitions), (1, 1));
    assert_eq!(world.engine.group("q", "g").unwrap_err().code, ErrorCode::UnknownGroup);
    let world = world.kill();
    let again = declare(&world, "g", ":k = \"b\"", None);
    assert!(again.id > first.id && again.version == 1);
    push(&world, "ab");
    assert_eq!(drain(&world, "g"), "b");
}

#[test]
fn a_batch_goes_as_it_is_stored_if_all_of_it_is_for_the_group_and_else_only_what_is() {
    let world = world(48);
    declare(&world, "g", ":k = \"a\"", None);
    for keys in ["aaa", "bbb", "aba", "ccc", "aa"] {
        push(&world, keys);
    }
    let reply = world.pop("q", "g", 100);
    let batches: Vec<_> = reply.claims[0]
        .batches
        .iter()
        .map(|slice| match slice {
            BatchSlice::Whole(_) => None,
            BatchSlice::Messages(messages) => Some(messages.iter().map(|message| message.offset).collect::<Vec<_>>()),
        })
        .collect();
    assert_eq!(batches, [None, Some(vec![6, 8]), None], "two batches are skipped, two are whole");
    assert_eq!(reply.claims[0].range, OffsetRange { first: 0, last: 13 });
}

#[test]
fn progress_status_and_retention_count_only_what_a_group_takes() {
    let mut world = World::new(49);
    let completed = SettingsPatch { retention_enabled: Some(true), completed_retention_s: Some(60), ..SettingsPatch::default() };
    world.engine.create_queue("q", &completed, world.now).unwrap();
    declare(&world, "a", ":k = \"a\"", None);
    declare(&world, "b", ":k = \"b\"", None);
    push(&world, "aa");
    push(&world, "ab");
    push(&world, "bc");
    assert_eq!((lag(&world, "a"), lag(&world, "b")), (3, 2));
    let cursors = world.engine.cursors("q", "b", 0, 10, world.now).unwrap();
    assert_eq!(cursors[0].lag, 2);
    assert_eq!(drain(&world, "a"), "aaa");
    let status = |offset| {
        let view = world.engine.message("q", 0, &AckTarget::Offset(offset), world.now).unwrap();
        let taken: Vec<_> = view.groups.iter().filter(|group| group.is_taken).map(|group| group.name.clone()).collect();
        (view.status, taken)
    };
    assert_eq!(status(0), ("completed", vec!["a".to_owned()]));
    assert_eq!(status(3).0, "pending");
    assert_eq!(status(5), ("completed", vec![]), "no named group takes c");
    // The first batch is nothing to b, which holds back the second.
    world.pass(120_000);
    assert_eq!(world.engine.partition("q", "a").unwrap().start, 2);
    assert_eq!(drain(&world, "b"), "bb");
    world.pass(10_000);
    assert_eq!(world.engine.partition("q", "a").unwrap().start, 6);
}

#[test]
fn a_lease_of_another_group_is_refused_message_by_message() {
    let world = world(50);
    declare(&world, "a", ":k = \"a\"", None);
    declare(&world, "b", "", None);
    push(&world, "ab");
    let popped = world.pop("q", "a", 10);
    assert_eq!(world.pop("q", "b", 10).claims.len(), 1);
    let wrong = ack_of(&popped.claims[0], "b", &popped.lease_id, &[(0, AckVerb::Completed)]);
    let reply = world.engine.ack(wrong, world.now).unwrap();
    assert_eq!(reply.outcomes[0].refused.as_ref().map(|error| error.code), Some(ErrorCode::LeaseLost));
    let right = world.ack(&popped.claims[0], "a", &popped.lease_id, &[(0, AckVerb::Completed)]);
    assert!(right.outcomes[0].refused.is_none());
}

#[test]
fn the_delivery_limit_in_force_when_a_delivery_ends_decides() {
    let world = world(51);
    declare(&world, "g", ":k = \"a\"", None);
    push(&world, "ba");
    let popped = world.pop("q", "g", 1);
    update(&world, "g", GroupPatch { delivery_limit: Some(Some(1)), ..GroupPatch::default() });
    let reply = world.ack(&popped.claims[0], "g", &popped.lease_id, &[(1, AckVerb::Failed)]);
    assert!(reply.outcomes[0].is_dead_letter, "handed out under the queue's limit of 3, it ends under the group's of 1");
    let (letters, _) = world.engine.dead_letters(&DeadLetterQuery { limit: 10, ..DeadLetterQuery::default() }).unwrap();
    assert_eq!((letters.len(), letters[0].offset, letters[0].attributes.len()), (1, 1, 1));
    // Pushed again it is judged as any push.
    update(&world, "g", filter(":k = \"b\""));
    world.engine.replay_dead_letter("q", letters[0].id, world.now).unwrap();
    assert_eq!(drain(&world, "g"), "");
    assert_eq!(drain(&world, "other"), "baa");
}

#[test]
fn a_transaction_is_filtered_as_any_push_and_dropped_messages_are_named() {
    let world = world(52);
    declare(&world, "g", ":k = \"a\"", None);
    update(&world, PRIMARY_GROUP, enabled(false));
    let other = PushRequest { queue: "elsewhere".to_owned(), ..letters("xy") };
    let request = TransactionRequest { pushes: vec![letters("bab"), other], ..TransactionRequest::default() };
    let reply = world.engine.transact(request, world.now).unwrap();
    use PushResult::{Dropped, Stored};
    assert_eq!(reply.pushes[0].results, PushResults::Each(vec![Dropped, Stored(0), Dropped]));
    assert_eq!(reply.pushes[1].results.len(), 2);
    let world = world.power_loss();
    assert_eq!((drain(&world, "g"), world.engine.queue("q").unwrap().stats.messages_dropped), ("a".to_owned(), 2));
}

#[test]
fn attributes_count_toward_the_size_of_a_message() {
    let mut world = World::new(53);
    world.options.message_bytes_max = 100;
    let world = world.restart();
    let sized = |payload: usize| {
        let message = Message {
            attributes: Attributes::from_json(r#"{"city":"Z\u00fcrich","n":1.50}"#).unwrap(),
            ..Message::new(vec![b'x'; payload])
        };
        assert_eq!(message.size(), payload + 4 + 7 + 1 + 4);
        [push_to("q", std::slice::from_ref(&message)), PushRequest { items: packed(&[message]), ..push_of("q", "a", &[]) }]
    };
    for request in sized(84) {
        world.engine.push(request, world.now).unwrap();
    }
    for request in sized(85) {
        let error = world.engine.push(request, world.now).unwrap_err();
        assert_eq!((error.code, error.text.as_str()), (ErrorCode::TooLarge, "message 0 has 101 bytes, at most 100 are allowed"));
    }
}

#[test]
fn a_work_queue_sees_only_what_its_filter_takes() {
    let world = world(54);
    let declaration = GroupDeclaration { filter: ":k = \"a\"".to_owned(), shared: true, ..GroupDeclaration::default() };
    world.engine.declare_group("q", "g", &declaration, world.now).unwrap();
    push(&world, "abcab");
    push(&world, "ba");
    let (first, second) = (world.pop("q", "g", 1), world.pop("q", "g", 10));
    let offsets = |reply: &PopReply| messages_of(&reply.claims[0]).iter().map(|message| message.offset).collect::<Vec<_>>();
    assert_eq!((offsets(&first), offsets(&second)), (vec![0], vec![3, 6]));
    world.ack(&second.claims[0], "g", &second.lease_id, &[(3, AckVerb::Completed), (6, AckVerb::Retry)]);
    assert_eq!(offsets(&world.pop("q", "g", 10)), [6]);
}

#[test]
fn a_seek_back_gives_again_what_was_decided_then() {
    let world = world(55);
    push(&world, "ab");
    declare(&world, "g", ":k = \"a\"", None);
    push(&world, "ab");
    update(&world, "g", filter(":k = \"b\""));
    push(&world, "ab");
    assert_eq!(drain(&world, "g"), "ab");
    let target = SeekTarget::Beginning;
    let request = SeekRequest { queue: "q".into(), group: Some("g".into()), partition: None, target, is_preview: false };
    world.engine.seek(&request, world.now).unwrap();
    assert_eq!(drain(&world, "g"), "aab", "what is older than the group is judged by its first filter");
}

#[test]
fn a_group_made_by_its_first_pop_has_no_filter_and_is_not_started_again() {
    let world = world(56);
    push(&world, "ab");
    let new = PopRequest { start: Some(Start::New), ..PopRequest::any("q", 10).group("g") };
    assert!(world.engine.pop(&new, world.now).unwrap().claims.is_empty());
    let info = world.engine.group("q", "g").unwrap();
    assert_eq!((info.is_declared, info.filter.as_str(), info.state), (false, "", GroupState::Active));
    push(&world, "c");
    let world = world.restart();
    let beginning = PopRequest { start: Some(Start::Beginning), ..new };
    let reply = world.engine.pop(&beginning, world.now).unwrap();
    assert_eq!(messages_of(&reply.claims[0]).iter().map(text).collect::<String>(), "c");
}

#[test]
fn a_push_that_is_sent_again_is_answered_as_it_was_where_some_of_it_was_known_or_dropped() {
    let world = world(57);
    declare(&world, "g", "NOT :drop", None);
    update(&world, PRIMARY_GROUP, enabled(false));
    let with_id = |id: &str| Message { transaction_id: Some(id.to_owned()), ..message("{}") };
    let send = |sequence: u32, messages: &[Message]| {
        let request = PushRequest { producer: Some((9, 0, sequence)), ..push_to("q", messages) };
        world.engine.push(request, world.now).unwrap().results
    };
    send(0, &[with_id("x")]);
    let push = [message(r#"{"drop":1}"#), with_id("x"), with_id("y"), message("{}"), with_id("y")];
    use PushResult::{Dropped, Duplicate, Stored};
    let first = send(1, &push);
    assert_eq!(first, PushResults::Each(vec![Dropped, Duplicate(0), Stored(1), Stored(2), Duplicate(1)]));
    let again = send(1, &push);
    assert_eq!(again, PushResults::Each(vec![Dropped, Duplicate(0), Duplicate(1), Duplicate(2), Duplicate(1)]));
}

#[test]
fn a_queue_has_as_many_groups_as_the_options_say() {
    let mut world = world(58);
    world.options.groups_max = 4;
    let world = world.restart();
    for group in ["a", "b", "c"] {
        declare(&world, group, ":k", None);
    }
    let error = world.engine.declare_group("q", "d", &GroupDeclaration::default(), world.now).unwrap_err();
    assert_eq!(error.code, ErrorCode::TooLarge, "{error}");
    assert_eq!(world.engine.pop(&PopRequest::any("q", 1).group("d"), world.now).unwrap_err().code, ErrorCode::TooLarge);
}
