//! The server is driven from its own document: every operation is called as it is described and answers as it says.

use serde_json::{Map, Value, json};

use crate::client::Client;
use crate::server::{Server, ack, pop, push, unique};

/// What path parameters and the placeholders of bodies stand for.
struct Context {
    values: Map<String, Value>,
}

impl Context {
    /// A queue with messages, a group that holds one of them, a dead letter and a trace.
    fn prepare(client: &mut Client) -> Self {
        let queue = unique("documented");
        push(client, &queue, &[json!(1), json!(2), json!(3)]);
        let dead = pop(client, &queue, "billing", 1).remove(0);
        assert_eq!(ack(client, &dead, "dlq")["dlq"], true);
        let held = pop(client, &queue, "billing", 1).remove(0);
        let letter = client.get(&format!("/api/v1/dlq?queue={queue}")).expect(200)["messages"][0].clone();
        let mut values = Map::new();
        for (key, value) in [
            ("queue", json!(queue)),
            ("partition", json!("Default")),
            ("group", json!("billing")),
            ("lease", held["leaseId"].clone()),
            ("leaseId", held["leaseId"].clone()),
            ("partition_id", held["partitionId"].clone()),
            ("partitionId", held["partitionId"].clone()),
            ("transaction_id", held["transactionId"].clone()),
            ("transactionId", held["transactionId"].clone()),
            ("id", letter["id"].clone()),
            ("name", json!("checkout")),
        ] {
            values.insert(key.to_owned(), value);
        }
        values.insert("dead".to_owned(), dead["transactionId"].clone());
        Self { values }
    }

    fn path(&self, template: &str, operation: &Value) -> String {
        let mut path = template.to_owned();
        for parameter in operation["parameters"].as_array().unwrap() {
            let name = parameter["name"].as_str().unwrap();
            if parameter["in"] == "path" {
                let is_about_dead = operation["tags"][0] == "dead letters" && name == "transaction_id";
                let value = if is_about_dead { &self.values["dead"] } else { &self.values[name] };
                path = path.replace(&format!("{{{name}}}"), value.as_str().unwrap());
            } else if parameter["schema"]["type"] == "integer" {
                // Every documented number is accepted.
                let glue = if path.contains('?') { '&' } else { '?' };
                let value = if name == "timeout" { 10 } else { 1 };
                path.push_str(&format!("{glue}{name}={value}"));
            }
        }
        if template == "/api/v1/pop" {
            path.push_str("&namespace=nothing-has-this");
        }
        if template.contains("/seek") || template.ends_with("/messages") {
            path = path.split('?').next().unwrap().to_owned();
        }
        path
    }

    /// Empty strings in an example stand for ids that only a running server knows.
    fn fill(&self, example: &Value) -> Value {
        match example {
            Value::Object(object) => object
                .iter()
                .map(|(key, value)| match (value.as_str(), self.values.get(key)) {
                    (Some(text), Some(known)) if text.is_empty() || key == "queue" => (key.clone(), known.clone()),
                    _ => (key.clone(), self.fill(value)),
                })
                .collect(),
            Value::Array(array) => array.iter().map(|value| self.fill(value)).collect(),
            other => other.clone(),
        }
    }
}

/// Checks a value against the part of JSON schema that the document uses.
fn check(schema: &Value, value: &Value, at: &str) {
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().map(|kind| kind.as_str().unwrap()).collect(),
        other => panic!("{at}: no type in the schema: {other}"),
    };
    let fits = |kind: &&str| match *kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        other => panic!("{at}: unknown type {other}"),
    };
    assert!(kinds.iter().any(fits), "{at}: {value} is not {kinds:?}");
    for name in schema["required"].as_array().into_iter().flatten().map(|name| name.as_str().unwrap()) {
        let field = value.get(name).unwrap_or_else(|| panic!("{at}: {name} is missing in {value}"));
        check(&schema["properties"][name], field, &format!("{at}.{name}"));
    }
    if let (Some(items), Some(values)) = (schema.get("items"), value.as_array()) {
        for value in values {
            check(items, value, &format!("{at}[]"));
        }
    }
}

#[test]
fn the_document_is_true() {
    let server = Server::start();
    let mut client = server.client();
    let document = client.get("/openapi.json").expect(200);
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let mut called = 0;
    for (template, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let context = Context::prepare(&mut client);
            let at = format!("{method} {template}");
            let path = context.path(template, operation);
            let body = operation.get("requestBody").map(|body| context.fill(&body["content"]["application/json"]["example"]));
            let text = body.as_ref().map(Value::to_string);
            let answer = client.send(&method.to_uppercase(), &path, text.as_deref().map(str::as_bytes));
            let response = operation["responses"]
                .get(answer.status.to_string())
                .unwrap_or_else(|| panic!("{at} ({path}) answers {}, which is not documented: {}", answer.status, answer.text));
            match response["content"].as_object().and_then(|content| content.iter().next()) {
                None => assert!(answer.text.is_empty(), "{at}"),
                Some((media, content)) => {
                    assert!(answer.head.contains(&format!("content-type: {media}")), "{at}: {}", answer.head);
                    if media == "application/json" {
                        check(&content["schema"], &answer.json(), &at);
                    }
                }
            }
            called += 1;
        }
    }
    assert!(called > 60, "{called}");
}

#[test]
fn errors_have_the_documented_shape() {
    let server = Server::start();
    let mut client = server.client();
    let document = client.get("/openapi.json").expect(200);
    let schema = &document["components"]["responses"]["Error"]["content"]["application/json"]["schema"];
    for (method, path, body) in [
        ("GET", "/api/v1/nothing", None),
        ("POST", "/api/v1/push", Some("{")),
        ("GET", "/api/v1/pop", None),
        ("GET", "/api/v1/resources/queues/nowhere", None),
        ("DELETE", "/api/v1/dlq/x", None),
        ("GET", "/api/v1/push", None),
    ] {
        let answer = client.send(method, path, body.map(str::as_bytes));
        assert!(answer.status >= 400, "{method} {path}");
        check(schema, &answer.json(), path);
    }
}
