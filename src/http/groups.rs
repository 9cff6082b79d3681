//! Declared groups: made, shown, changed and deleted by name, with filters.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::model::{GroupDeclaration, GroupInfo, GroupPatch, GroupState, Now, PRIMARY_GROUP, Start};
use crate::record::check_name;

use super::body::Raw;
use super::error::{ApiError, Result};
use super::params::{Names, Params};
use super::{Gateway, json, time};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Declaration {
    name: String,
    #[serde(default)]
    filter: Option<String>,
    #[serde(default = "yes")]
    enabled: bool,
    #[serde(default)]
    max_deliveries: Option<u32>,
    #[serde(default)]
    display_name: Option<String>,
    #[serde(default)]
    start: Option<String>,
    #[serde(default)]
    shared: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Change {
    #[serde(default)]
    version: Option<u64>,
    #[serde(default)]
    filter: Option<String>,
    #[serde(default)]
    enabled: Option<bool>,
    #[serde(default)]
    paused: Option<bool>,
    /// `null` goes back to the queue's limit.
    #[serde(default, deserialize_with = "present")]
    max_deliveries: Option<Option<u32>>,
    #[serde(default)]
    display_name: Option<String>,
}

fn yes() -> bool {
    true
}

/// Tells `null` from an absent field.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<Option<u32>>, D::Error> {
    Option::<u32>::deserialize(deserializer).map(Some)
}

/// `GET /api/v1/queues/{queue}/groups`
pub(super) async fn list(State(gateway): State<Arc<Gateway>>, Names(queue): Names<String>) -> Result<Response> {
    let groups = gateway.call(move |engine| engine.groups(&queue)).await?;
    Ok(json::ok(&json!({ "groups": groups.iter().map(group_json).collect::<Vec<_>>() })))
}

/// `POST /api/v1/queues/{queue}/groups`
pub(super) async fn create(State(gateway): State<Arc<Gateway>>, Names(queue): Names<String>, body: Raw) -> Result<Response> {
    let declared: Declaration = json::parse(&body.bytes)?;
    check_name(&declared.name)?;
    let declaration = GroupDeclaration {
        filter: declared.filter.unwrap_or_default(),
        is_disabled: !declared.enabled,
        delivery_limit: declared.max_deliveries,
        display_name: declared.display_name.unwrap_or_default(),
        start: declared.start.as_deref().map(start).transpose()?.flatten(),
        shared: declared.shared,
    };
    let group = gateway.call(move |engine| engine.declare_group(&queue, &declared.name, &declaration, Now::read())).await?;
    Ok(json::answer(StatusCode::CREATED, &group_json(&group)))
}

/// Where a declared group starts: at its creation unless an earlier start is asked for.
fn start(text: &str) -> Result<Option<Start>> {
    match text {
        "new" | "now" => Ok(None),
        "all" | "beginning" => Ok(Some(Start::Beginning)),
        _ => match time::parse_iso(text) {
            Some(time) => Ok(Some(Start::Time(time))),
            None => Err(ApiError::bad_request(format!("start is neither new, beginning nor an ISO 8601 time: {text}"))),
        },
    }
}

/// `GET /api/v1/queues/{queue}/groups/{group}`
pub(super) async fn get(State(gateway): State<Arc<Gateway>>, Names((queue, group)): Names<(String, String)>) -> Result<Response> {
    let found = gateway.call(move |engine| engine.group(&queue, &group)).await?;
    Ok(json::ok(&group_json(&found)))
}

/// `PATCH /api/v1/queues/{queue}/groups/{group}`: changes what is sent, for every push that starts afterwards.
pub(super) async fn update(
    State(gateway): State<Arc<Gateway>>,
    Names((queue, group)): Names<(String, String)>,
    body: Raw,
) -> Result<Response> {
    let change: Change = json::parse(&body.bytes)?;
    let patch = GroupPatch {
        expected_version: change.version,
        filter: change.filter,
        is_enabled: change.enabled,
        delivery_limit: change.max_deliveries,
        display_name: change.display_name,
        is_paused: change.paused,
    };
    apply(&gateway, queue, group, patch).await
}

/// `DELETE /api/v1/queues/{queue}/groups/{group}`
pub(super) async fn delete(
    State(gateway): State<Arc<Gateway>>,
    Names((queue, group)): Names<(String, String)>,
    params: Params,
) -> Result<Response> {
    let version = params.number("version")?;
    let (name, of) = (group.clone(), queue.clone());
    let removed = gateway
        .call(move |engine| {
            // Looked up first: deleting what is not there is an error here.
            engine.group(&of, &name)?;
            engine.delete_group_if(&name, Some(&of), version, Now::read())
        })
        .await?;
    Ok(json::ok(&json!({
        "success": true, "queue": queue, "name": group, "deletedPartitions": removed.deleted_partitions,
    })))
}

/// `POST .../enable`
pub(super) async fn enable(
    State(gateway): State<Arc<Gateway>>,
    names: Names<(String, String)>,
    params: Params,
) -> Result<Response> {
    switch(&gateway, names, &params, GroupPatch { is_enabled: Some(true), ..GroupPatch::default() }).await
}

/// `POST .../disable`
pub(super) async fn disable(
    State(gateway): State<Arc<Gateway>>,
    names: Names<(String, String)>,
    params: Params,
) -> Result<Response> {
    switch(&gateway, names, &params, GroupPatch { is_enabled: Some(false), ..GroupPatch::default() }).await
}

/// `POST .../pause`
pub(super) async fn pause(
    State(gateway): State<Arc<Gateway>>,
    names: Names<(String, String)>,
    params: Params,
) -> Result<Response> {
    switch(&gateway, names, &params, GroupPatch { is_paused: Some(true), ..GroupPatch::default() }).await
}

/// `POST .../resume`
pub(super) async fn resume(
    State(gateway): State<Arc<Gateway>>,
    names: Names<(String, String)>,
    params: Params,
) -> Result<Response> {
    switch(&gateway, names, &params, GroupPatch { is_paused: Some(false), ..GroupPatch::default() }).await
}

async fn switch(
    gateway: &Arc<Gateway>,
    Names((queue, group)): Names<(String, String)>,
    params: &Params,
    patch: GroupPatch,
) -> Result<Response> {
    apply(gateway, queue, group, GroupPatch { expected_version: params.number("version")?, ..patch }).await
}

async fn apply(gateway: &Arc<Gateway>, queue: String, group: String, patch: GroupPatch) -> Result<Response> {
    let updated = gateway.call(move |engine| engine.update_group(&queue, &group, &patch, Now::read())).await?;
    Ok(json::ok(&group_json(&updated)))
}

/// The words for a state.
pub(super) fn state_text(state: GroupState) -> &'static str {
    match state {
        GroupState::Active => "active",
        GroupState::Inactive => "inactive",
        GroupState::Paused => "paused",
    }
}

/// The subscription mode that a start stands for, in Queen's words.
pub(super) fn mode_text(start: Option<Start>) -> Option<&'static str> {
    match start? {
        Start::Beginning => Some("all"),
        Start::New => Some("new"),
        Start::Time(_) => Some("timestamp"),
        Start::Offset(_) => Some("offset"),
    }
}

fn group_json(group: &GroupInfo) -> Value {
    json!({
        "queue": group.queue, "name": group.name, "id": group.id, "primary": group.name == PRIMARY_GROUP,
        "declared": group.is_declared, "filter": group.filter, "state": state_text(group.state),
        "enabled": group.state != GroupState::Inactive, "paused": group.state == GroupState::Paused,
        "maxDeliveries": group.delivery_limit, "displayName": group.display_name, "shared": group.shared,
        "version": group.version, "subscriptionMode": mode_text(group.start),
        "createdAt": time::iso(group.created_at_us), "updatedAt": time::iso(group.updated_at_us),
        "judgesEarlier": group.judges_earlier,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_tells_null_from_absent_and_refuses_what_it_does_not_know() {
        let change: Change = json::parse(br#"{"maxDeliveries":null}"#).unwrap();
        assert_eq!(change.max_deliveries, Some(None));
        let change: Change = json::parse(br#"{"maxDeliveries":3,"filter":""}"#).unwrap();
        assert_eq!((change.max_deliveries, change.filter.as_deref()), (Some(Some(3)), Some("")));
        assert_eq!(json::parse::<Change>(b"{}").unwrap().max_deliveries, None);
        assert!(json::parse::<Change>(br#"{"filters":"x"}"#).is_err());
        assert!(json::parse::<Declaration>(br#"{"filter":""}"#).is_err());
        assert!(json::parse::<Declaration>(br#"{"name":"g"}"#).unwrap().enabled);
    }

    #[test]
    fn a_start_is_its_creation_the_beginning_or_a_time() {
        assert_eq!(start("new"), Ok(None));
        assert_eq!(start("beginning"), Ok(Some(Start::Beginning)));
        assert_eq!(start("1970-01-01"), Ok(Some(Start::Time(0))));
        assert!(start("later").is_err());
    }
}
