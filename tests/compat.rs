//! Data directories that earlier versions wrote: `tests/fixtures/v1-killed` was killed, `tests/fixtures/v1-stopped` stopped. A format
//! change adds a directory here and leaves these as they are.

use std::path::{Path, PathBuf};

use fanlog::engine::{Engine, EngineOptions};
use fanlog::model::*;
use fanlog::record::StoredBatch;

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn fixture(name: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name), &data);
    (directory, data)
}

fn payloads(reply: &PopReply) -> Vec<String> {
    let mut found = Vec::new();
    for slice in reply.claims.iter().flat_map(|claim| &claim.batches) {
        let messages = match slice {
            BatchSlice::Whole(bytes) => StoredBatch::parse(bytes.clone()).unwrap().messages().unwrap(),
            BatchSlice::Messages(messages) => messages.clone(),
        };
        found.extend(messages.into_iter().map(|message| String::from_utf8(message.payload.to_vec()).unwrap()));
    }
    found
}

fn pop(engine: &Engine, group: &str) -> Vec<String> {
    let request = PopRequest { partitions_max: 10, ..PopRequest::any("orders", 10).group(group) };
    let mut found = payloads(&engine.pop(&request, Now::read()).unwrap());
    found.sort();
    found
}

#[test]
fn directories_of_version_1_open_with_everything_in_them() {
    for name in ["v1-killed", "v1-stopped"] {
        let (_keep, data) = fixture(name);
        let (engine, report) = Engine::open_path(&data, EngineOptions::default(), Now::read()).unwrap();
        assert_eq!(report.findings, vec![], "{name}");
        assert_eq!((report.queues, report.partitions, report.messages), (1, 2, 4), "{name}");
        assert_eq!(report.was_clean, name == "v1-stopped");
        // Two of four were acknowledged; the filter took three.
        assert_eq!(pop(&engine, "readers"), ["fourth", "third"], "{name}");
        assert_eq!(pop(&engine, "us"), ["first", "second", "third"], "{name}");
        let fetch =
            FetchRequest { queue: "orders".into(), partition: "b".into(), from: 0, to: None, messages_max: 9, bytes_max: 9999 };
        let reply = engine.fetch(&fetch, Now::read()).unwrap();
        let BatchSlice::Whole(bytes) = &reply.batches[0] else { panic!("a whole batch") };
        let message = StoredBatch::parse(bytes.clone()).unwrap().messages().unwrap().remove(0);
        assert_eq!(message.attributes.to_json(), r#"{"region":"eu","size":12.50}"#, "{name}");
        engine.close(Now::read()).unwrap();
    }
}

#[test]
fn a_directory_of_a_newer_format_is_refused_and_left_alone() {
    let (_keep, data) = fixture("v1-stopped");
    let path = data.join("start");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[19] |= 0x80;
    let end = bytes.len() - 4;
    let crc = crc32fast::hash(&bytes[..end]);
    bytes[end..].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&path, &bytes).unwrap();
    let error = Engine::open_path(&data, EngineOptions::default(), Now::read()).unwrap_err();
    assert_eq!(error.code, ErrorCode::NewerFormat, "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}
