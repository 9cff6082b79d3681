use std::net::Ipv4Addr;

use super::*;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn create(directory: &std::path::Path, role: Role, expires_at_us: Option<u64>) -> (TokenId, String) {
    let new = NewToken { name: "test".into(), role, queue_prefixes: Vec::new(), expires_at_us };
    let (token, text) = create_token(directory, new, 1).unwrap();
    (token.id, text)
}

fn is_ended(grant: &Grant) -> bool {
    futures_now(grant.ended())
}

/// Whether the future is ready at once.
fn futures_now(future: impl Future) -> bool {
    let mut future = std::pin::pin!(future);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::ZERO, future.as_mut()).await.is_ok() })
}

#[test]
fn without_secrets_everybody_is_an_admin() {
    let access = Access::default();
    assert!(!access.is_required());
    for secret in ["", "anything"] {
        assert_eq!(access.authenticate(secret, HERE).unwrap().principal().role, Role::Admin);
    }
}

#[test]
fn the_one_secret_is_an_admins_and_nothing_else_opens() {
    let access = Access::with_secret("secret");
    assert!(access.is_required());
    assert_eq!(access.authenticate("secret", HERE).unwrap().principal().role, Role::Admin);
    for wrong in ["", "secre", "secret ", "Secret", "fl_00000000_"] {
        assert_eq!(access.authenticate(wrong, HERE).unwrap_err().code, ErrorCode::Unauthorized, "{wrong:?}");
    }
    assert!(!format!("{access:?}").contains("secret\""));
}

#[test]
fn tokens_of_a_directory_come_and_go_while_it_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let access = Access::default().and_tokens_of(dir.path()).unwrap();
    let anonymous = access.authenticate("", HERE).unwrap();
    assert!(!is_ended(&anonymous));
    let (id, text) = create(dir.path(), Role::ReadOnly, None);
    access.reload().unwrap();
    assert!(is_ended(&anonymous), "from now on one must prove who one is");
    assert!(access.authenticate("", HERE).is_err());
    let grant = access.authenticate(&text, HERE).unwrap();
    assert_eq!((grant.principal().role, grant.principal().name.as_str()), (Role::ReadOnly, "test"));
    let (_, other) = create(dir.path(), Role::Admin, None);
    access.reload().unwrap();
    assert!(!is_ended(&grant), "another token changes nothing for this one");
    assert!(revoke_token(dir.path(), &id).unwrap());
    access.reload().unwrap();
    assert!(is_ended(&grant));
    assert_eq!(access.authenticate(&text, HERE).unwrap_err().text, "token is wrong");
    assert!(access.authenticate(&other, HERE).is_ok());
}

#[test]
fn a_secret_of_another_token_or_an_expired_one_does_not_open() {
    let dir = tempfile::tempdir().unwrap();
    let (id, text) = create(dir.path(), Role::Admin, None);
    let (other, _) = create(dir.path(), Role::Admin, None);
    let (_, expired) = create(dir.path(), Role::Admin, Some(Now::read().wall_us));
    let access = Access::with_secret("x").and_tokens_of(dir.path()).unwrap();
    assert!(access.authenticate(&text, HERE).is_ok());
    assert!(access.authenticate(&text.replace(&id.to_string(), &other.to_string()), HERE).is_err());
    assert_eq!(access.authenticate(&expired, HERE).unwrap_err().text, "token has expired");
}

#[test]
fn a_file_that_vanishes_or_is_damaged_opens_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (_, text) = create(dir.path(), Role::Admin, None);
    let path = dir.path().join(TOKEN_FILE);
    let access = Access::default().and_tokens_of(dir.path()).unwrap();
    let grant = access.authenticate(&text, HERE).unwrap();
    std::fs::write(&path, "{}").unwrap();
    assert!(access.reload().is_err());
    assert!(access.authenticate(&text, HERE).is_ok(), "what was known stays");
    assert!(access.authenticate("", HERE).is_err());
    assert!(Access::default().and_tokens_of(dir.path()).is_err(), "a start with such a file is refused");
    std::fs::remove_file(&path).unwrap();
    access.reload().unwrap();
    assert!(access.is_required());
    assert!(access.authenticate("", HERE).is_err());
    assert!(access.authenticate(&text, HERE).is_err());
    assert!(is_ended(&grant));
}

#[test]
fn guesses_are_limited_and_keep_nobody_out_who_has_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let (_, text) = create(dir.path(), Role::ReadWrite, None);
    let access = Access::with_secret("secret").and_tokens_of(dir.path()).unwrap();
    let codes: Vec<ErrorCode> = (0..12).map(|_| access.authenticate("guess", HERE).unwrap_err().code).collect();
    assert_eq!(codes[..10], [ErrorCode::Unauthorized; 10]);
    assert_eq!(codes[10..], [ErrorCode::Busy; 2]);
    assert_eq!(access.authenticate("secret", HERE).unwrap_err().code, ErrorCode::Busy, "a right guess is not looked at either");
    assert!(access.authenticate(&text, HERE).is_ok());
    assert!(access.authenticate("secret", Ipv4Addr::new(10, 0, 0, 1).into()).is_ok());
}

#[test]
fn another_jwt_key_takes_the_place_of_the_old_one_and_a_bad_one_does_not() {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let sign = |key: &[u8]| {
        let claims = serde_json::json!({ "sub": "somebody", "role": "read-only", "exp": 4_000_000_000u64 }).to_string();
        let text = format!("{}.{}", URL_SAFE_NO_PAD.encode("{\"alg\":\"HS256\"}"), URL_SAFE_NO_PAD.encode(claims));
        let signature = ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key), text.as_bytes());
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
    };
    let (old, new) = (b"the old secret of thirty-two bytes", b"the new secret of thirty-two bytes");
    let access = Access::default().and_jwt(JwtRules::of(JwtAlgorithm::Hs256), old).unwrap();
    let grant = access.authenticate(&sign(old), HERE).unwrap();
    assert!(access.replace_jwt_key(b"short").is_err());
    assert!(!access.replace_jwt_key(b" the old secret of thirty-two bytes\n").unwrap(), "it is the same");
    assert!(!is_ended(&grant));
    assert!(access.authenticate(&sign(old), HERE).is_ok());

    assert!(access.replace_jwt_key(new).unwrap());
    assert!(is_ended(&grant), "the old key opens nothing any more");
    assert!(access.authenticate(&sign(old), HERE).is_err());
    let grant = access.authenticate(&sign(new), HERE).unwrap();
    assert!(!is_ended(&grant));
    assert!(!Access::default().replace_jwt_key(new).unwrap(), "none is asked for");
}
