//! Tokens, keys and names as the command line tells of them.

use std::process::Stdio;

use super::{Server, code, fanlog, json_of as json, stderr, write};

/// It said that the client is closed, which is no reason.
#[test]
fn a_tail_whose_token_is_revoked_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let token = |arguments: &[&str]| fanlog().arg("token").args(arguments).arg("--data").arg(&data).output().unwrap();
    let made = json(&token(&["create", "--name", "shop", "--role", "read-write"]));
    let (id, secret) = (made["id"].as_str().unwrap(), made["token"].as_str().unwrap());
    let server = Server::start_in(directory);
    let push = server.run(&["--token", secret, "push", "q", "x"]);
    assert_eq!(code(&push), 0, "{}", stderr(&push));
    let mut tail = server
        .program
        .command(&["--token", secret, "tail", "q", "-n", "1", "-o", "ndjson"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It is connected.
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(tail.stdout.take().unwrap()), &mut line).unwrap();
    assert!(line.contains("\"q\""), "{line}");
    json(&token(&["revoke", id]));
    let ended = tail.wait_with_output().unwrap();
    let said = stderr(&ended);
    assert!(code(&ended) == 1 && said.contains("token is wrong"), "{said}");
}

#[test]
fn a_table_of_groups_says_which_one_is_the_primary() {
    let server = Server::start();
    json(&server.run(&["push", "q", "x"]));
    json(&server.run(&["pop", "q"]));
    let table = server.run(&["group", "list", "q", "-o", "table"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("__QUEUE_MODE__ (primary)"), "{table}");
    assert_eq!(server.json(&["group", "list", "q"])[0]["group"], "__QUEUE_MODE__");
}

#[test]
fn a_hangup_reads_the_jwt_key_again_and_a_bad_one_changes_nothing() {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let sign = |key: &str| {
        let claims = serde_json::json!({ "role": "admin", "exp": 4_000_000_000u64 }).to_string();
        let text = format!("{}.{}", URL_SAFE_NO_PAD.encode("{\"alg\":\"HS256\"}"), URL_SAFE_NO_PAD.encode(claims));
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key.as_bytes());
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(ring::hmac::sign(&key, text.as_bytes())))
    };
    let keys = tempfile::tempdir().unwrap();
    let path = write(keys.path(), "key", "the old secret of thirty-two bytes");
    let (old, new) = (sign("the old secret of thirty-two bytes"), sign("the new secret of thirty-two bytes"));
    let server = Server::start_with(tempfile::tempdir().unwrap(), |launch| {
        launch.flag("--jwt-algorithm", "HS256").flag("--jwt-key-file", &path)
    });
    let is_let_in = |token: &str| code(&server.run(&["--token", token, "queue", "list"])) == 0;
    assert!(is_let_in(&old) && !is_let_in(&new));
    // Too short to be one.
    write(keys.path(), "key", "short");
    server.program.hang_up("not reloaded, what was read before stays in use: JWT key file");
    assert!(is_let_in(&old));
    write(keys.path(), "key", "the new secret of thirty-two bytes");
    server.program.hang_up("another JWT key is in use");
    assert!(is_let_in(&new));
    assert!(!is_let_in(&old));
}
