//! Attributes: typed, exact, the same through every way in and out.

use fanlog::model::*;
use fanlog::record::{Attributes, BatchBuilder, Message};

use crate::support::*;

/// More digits than any binary number keeps, a decimal with a zero at its end, text that is no number, any letter.
const EXACT: &str = r#"{"Key":"v","big":12345678901234567890123456789012345678,"city":"Zürich","key":"V","n":1.50,"text":"40"}"#;

fn packed(messages: &[Message]) -> PushItem {
    let mut builder = BatchBuilder::new();
    messages.iter().for_each(|message| builder.push(message));
    PushItem::Packed(builder.finish(Compression::None))
}

fn json_of(message: &StoredMessage) -> String {
    let mut sorted: Vec<_> = message.attributes.iter().map(|(key, value)| format!("{key}={value:?}")).collect();
    sorted.sort();
    sorted.join(" ")
}

#[tokio::test]
async fn keys_values_and_types_are_kept_through_push_storage_sigkill_pop_fetch_and_show() {
    let server = Server::start().await;
    let sent = with_attributes(EXACT);
    server.push_messages("q", "a", vec![sent.clone()]).await;
    server.client.push(&PushRequest { items: packed(std::slice::from_ref(&sent)), ..push_of("q", "a", &[]) }).await.unwrap();
    let server = server.killed_and_started().await;
    let popped = server.pop("q", "g", 10).await.messages();
    let fetch =
        FetchRequest { queue: "q".into(), partition: "a".into(), from: 0, to: None, messages_max: 10, bytes_max: 1 << 20 };
    let fetched = fanlog::client::messages_of(server.client.fetch(&fetch, Default::default()).await.unwrap().batches).unwrap();
    let shown = [server.message("q", "a", 0).await.message, server.message("q", "a", 1).await.message];
    assert_eq!(popped.len() + fetched.len() + shown.len(), 6);
    for message in popped.iter().chain(&fetched).chain(&shown) {
        assert_eq!(message.attributes, sent.attributes, "{}", json_of(message));
    }
    server.client.release(server.cursor("q", "g", "a").await.lease_id.as_str()).await.unwrap();
    let rejected = server.pop("q", "g", 1).await;
    server.ack(&rejected, &[(0, AckVerb::Reject)]).await;
    assert_eq!(server.letters("q").await[0].attributes, sent.attributes, "also in a dead letter");
}

#[tokio::test]
async fn the_command_line_writes_and_prints_them_as_they_are() {
    let server = Server::start().await;
    let arguments = ["-a", "Key=v", "-a", "key=V", "-a", "city=Zürich", "-a", "n:=1.50", "-a", "text=40"];
    let big = ["-a", "big:=12345678901234567890123456789012345678", "--partition", "a"];
    server.json(&[&["push", "q", "m"], &arguments[..], &big[..]].concat());
    let output = server.run(&["pop", "q", "-o", "ndjson"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("\"attributes\":{EXACT}")), "{text}");
    assert_eq!(server.message("q", "a", 0).await.message.attributes, Attributes::from_json(EXACT).unwrap());
}

#[cfg(feature = "http")]
#[tokio::test]
async fn http_takes_and_gives_them_as_they_are() {
    let server = Server::start().await;
    let item = format!(r#"{{"items":[{{"queue":"q","partition":"a","payload":0,"attributes":{EXACT}}}]}}"#);
    let (status, text) = server.http("POST", "/api/v1/push", &item).await;
    assert_eq!(status, 201, "{text}");
    let (_, popped) = server.http("GET", "/api/v1/pop/queue/q", "").await;
    assert!(popped.contains(&format!("\"attributes\":{EXACT}")), "{popped}");
    assert_eq!(server.message("q", "a", 0).await.message.attributes, Attributes::from_json(EXACT).unwrap());
}

#[tokio::test]
async fn a_bad_attribute_refuses_the_whole_push_before_anything_is_stored() {
    let server = Server::start().await;
    let messages = [with_attributes(r#"{"a":1}"#), with_attributes(r#"{"fanlog.producer":"me"}"#)];
    let plain = PushRequest { items: PushItem::Messages(messages.to_vec()), ..push_of("q", "a", &[]) };
    let packed = PushRequest { items: packed(&messages), ..push_of("q", "a", &[]) };
    for request in [plain, packed] {
        let error = server.client.push(&request).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::BadAttribute));
        assert!(error.to_string().contains("message 1: attribute key \"fanlog.producer\" is reserved"), "{error}");
        let transaction = TransactionRequest { pushes: vec![request], ..TransactionRequest::default() };
        assert_eq!(refused(server.client.transact(&transaction).await), ErrorCode::BadAttribute);
    }
    for bad in ["n:=1e400000", "n:=abc", "=v", "n:=NaN"] {
        assert_eq!(server.run(&["push", "q", "m", "-a", bad]).status.code(), Some(1), "{bad}");
    }
    #[cfg(feature = "http")]
    for bad in [r#"{"a":true}"#, r#"{"a":null}"#, r#"{"a":[1]}"#, r#"{"":"x"}"#, r#"{"a":1,"a":2}"#] {
        let items = format!(r#"{{"items":[{{"queue":"q","payload":0}},{{"queue":"q","payload":1,"attributes":{bad}}}]}}"#);
        let (status, text) = server.http("POST", "/api/v1/push", &items).await;
        assert_eq!(status, 400, "{bad}: {text}");
    }
    let stored = server.client.stats().await.unwrap().total.messages_pushed;
    assert_eq!(stored, 0);
}

#[tokio::test]
async fn they_count_toward_the_size_of_a_message() {
    let server = Server::start_with(|launch| launch.setting("FANLOG_MESSAGE_BYTES_MAX", 100)).await;
    let of = |payload: usize| Message {
        attributes: Attributes::from_json(r#"{"city":"Zürich","n":1.50}"#).unwrap(),
        ..Message::new(vec![b'x'; payload])
    };
    assert_eq!(of(84).size(), 100);
    assert_eq!(server.push_messages("q", "a", vec![of(84)]).await, [PushResult::Stored(0)]);
    for items in [PushItem::Messages(vec![of(85)]), packed(&[of(85)])] {
        let error = server.client.push(&PushRequest { items, ..push_of("q", "a", &[]) }).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::TooLarge), "{error}");
    }
}
