//! `GET /openapi.json`: what the server can do, made from one table of operations. A test drives a server from it.

mod groups;
mod messages;
mod queues;
mod server;

use std::collections::BTreeMap;

use axum::response::Response;
use serde_json::{Map, Value, json};

use super::{health, json};

/// A route and what it takes and answers.
struct Operation {
    method: &'static str,
    path: &'static str,
    tag: &'static str,
    summary: &'static str,
    query: &'static [(&'static str, &'static str, &'static str)],
    body: Option<Value>,
    answers: Vec<(u16, Answer)>,
}

/// What an answer looks like. Fields are written `name:type`, with `?` behind a type that may be null.
enum Answer {
    /// An object that has at least these fields.
    Object(&'static str),
    /// An array of objects that have at least these fields.
    Rows(&'static str),
    /// Any object.
    Any,
    /// Text.
    Text(&'static str),
    /// No body.
    Nothing,
}

impl Operation {
    fn new(method: &'static str, path: &'static str, tag: &'static str, summary: &'static str) -> Self {
        Self { method, path, tag, summary, query: &[], body: None, answers: Vec::new() }
    }

    /// Query parameters: name, type, description.
    fn query(mut self, query: &'static [(&'static str, &'static str, &'static str)]) -> Self {
        self.query = query;
        self
    }

    /// An example of the body.
    fn body(mut self, body: Value) -> Self {
        self.body = Some(body);
        self
    }

    fn answers(mut self, status: u16, answer: Answer) -> Self {
        self.answers.push((status, answer));
        self
    }

    /// Answers 200 with an object.
    fn object(self, fields: &'static str) -> Self {
        self.answers(200, Answer::Object(fields))
    }

    fn json(&self) -> Value {
        let mut operation = json!({
            "operationId": self.id(), "tags": [self.tag], "summary": self.summary,
            "parameters": self.parameters(), "responses": self.responses(),
        });
        if let Some(body) = &self.body {
            operation["requestBody"] = json!({
                "required": true,
                "content": { "application/json": { "schema": { "type": "object" }, "example": body } },
            });
        }
        operation
    }

    /// `get_api_v1_pop` and the like: stable as long as the path is.
    fn id(&self) -> String {
        let path: String = self.path.chars().filter(|character| !"{}".contains(*character)).collect();
        format!("{}{}", self.method, path.replace(['/', '-', '.'], "_"))
    }

    fn parameters(&self) -> Vec<Value> {
        let names = self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        let path = names.map(|name| {
            json!({ "name": name, "in": "path", "required": true, "description": path_help(name), "schema": { "type": "string" } })
        });
        let query = self.query.iter().map(|(name, kind, help)| {
            json!({ "name": name, "in": "query", "required": false, "description": help, "schema": { "type": kind } })
        });
        path.chain(query).collect()
    }

    fn responses(&self) -> Value {
        let mut responses = Map::new();
        for (status, answer) in &self.answers {
            let (media, schema) = match answer {
                Answer::Object(fields) => ("application/json", object(fields)),
                Answer::Rows(fields) => ("application/json", json!({ "type": "array", "items": object(fields) })),
                Answer::Any => ("application/json", json!({ "type": "object" })),
                Answer::Text(media) => (*media, json!({ "type": "string" })),
                Answer::Nothing => {
                    responses.insert(status.to_string(), json!({ "description": "nothing" }));
                    continue;
                }
            };
            let content = json!({ media: { "schema": schema } });
            responses.insert(status.to_string(), json!({ "description": "success", "content": content }));
        }
        responses.insert("default".to_owned(), json!({ "$ref": "#/components/responses/Error" }));
        responses.into()
    }
}

fn object(fields: &str) -> Value {
    let mut properties = Map::new();
    for field in fields.split_whitespace() {
        let (name, kind) = field.split_once(':').unwrap_or((field, "string"));
        let schema = match kind.strip_suffix('?') {
            Some(kind) => json!({ "type": [kind, "null"] }),
            None => json!({ "type": kind }),
        };
        properties.insert(name.to_owned(), schema);
    }
    let required: Vec<_> = properties.keys().cloned().collect();
    json!({ "type": "object", "required": required, "properties": properties })
}

fn path_help(name: &str) -> &'static str {
    match name {
        "queue" => "A queue's name",
        "partition" => "A partition's name",
        "group" => "A group's name; __QUEUE_MODE__ is the primary group",
        "partition_id" => "A partition's opaque id, from a message",
        "transaction_id" => "A message's transaction id",
        "lease" => "A lease's id, from a pop",
        "id" => "A dead letter's id, from the list",
        _ => "A name",
    }
}

/// The whole document.
pub(super) fn document() -> Value {
    let operations = [messages::operations(), queues::operations(), groups::operations(), server::operations()];
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for operation in operations.iter().flatten() {
        paths.entry(operation.path).or_default().insert(operation.method.to_owned(), operation.json());
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "fanlog",
            "version": health::VERSION,
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": "A log engine for fan-out. The routes under /api/v1 are those of Queen MQ, and more in the same style. \
                Payloads are stored as the bytes that came; one that is not JSON comes back in base64 with dataEncoding: base64. \
                Times are ISO 8601 in UTC with microseconds. Ids are opaque.",
        },
        "paths": paths,
        // Whether it is asked for is the server's choice.
        "security": [{}, { "token": [] }],
        "components": {
            "responses": { "Error": {
                "description": "Any other status: what went wrong, for people and for programs. 401: the token is missing, wrong, \
                    expired or revoked; 403: its role does not allow this, or not on this queue",
                "content": { "application/json": { "schema": object("error:string code:string") } },
            } },
            "securitySchemes": { "token": {
                "type": "http", "scheme": "bearer",
                "description": "A token of fanlog token create, a JSON web token, or the secret of the server",
            } },
        },
    })
}

/// `GET /openapi.json`
pub(super) async fn serve() -> Response {
    json::ok(&document())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The routes, read out of the router's source: axum does not list them.
    fn routed() -> BTreeSet<(String, String)> {
        let source = include_str!("../router.rs");
        let mut routes = BTreeSet::new();
        let mut prefix = "";
        for line in source.lines().map(str::trim) {
            if line.starts_with("fn ") {
                prefix = if line.contains("server_routes") { "" } else { "/api/v1" };
            }
            let Some((path, methods)) = line.strip_prefix(".route(\"").and_then(|rest| rest.split_once("\", ")) else { continue };
            for method in ["get", "post", "put", "patch", "delete"] {
                let is_call = |(at, _): (usize, _)| {
                    !methods[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_')
                        && methods[at + method.len()..].starts_with('(')
                };
                if methods.match_indices(method).any(is_call) {
                    routes.insert((method.to_owned(), format!("{prefix}{path}")));
                }
            }
        }
        routes
    }

    #[test]
    fn every_route_is_documented_and_nothing_else_is() {
        let document = document();
        let documented: BTreeSet<_> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, item)| item.as_object().unwrap().keys().map(move |method| (method.clone(), path.clone())))
            .collect();
        let routed = routed();
        assert!(routed.len() > 60, "{routed:?}");
        assert_eq!(documented, routed);
    }

    #[test]
    fn ids_are_unique_and_every_operation_answers() {
        let document = document();
        let mut ids = BTreeSet::new();
        for item in document["paths"].as_object().unwrap().values() {
            for operation in item.as_object().unwrap().values() {
                assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()));
                assert!(operation["responses"].as_object().unwrap().len() > 1, "{operation}");
            }
        }
    }

    #[test]
    fn fields_become_a_schema() {
        let schema = object("a:string b:integer?");
        assert_eq!(schema["required"], json!(["a", "b"]));
        assert_eq!(schema["properties"]["b"], json!({ "type": ["integer", "null"] }));
    }
}
