//! Verification of what the engine writes.

use std::collections::BTreeMap;

use fanlog::model::*;
use fanlog::record::Message;
use fanlog::storage::disk::sim::{Random, SimDisk};
use fanlog::storage::verify::{Finding, Severity, VerifyReport, verify};

use super::support::World;

fn report(disk: &SimDisk) -> VerifyReport {
    verify(&disk.root(), 7).unwrap()
}

fn findings(disk: &SimDisk, at_least: Severity) -> Vec<Finding> {
    report(disk).findings.into_iter().filter(|finding| finding.severity >= at_least).collect()
}

fn files(disk: &SimDisk) -> BTreeMap<String, Vec<u8>> {
    disk.paths().into_iter().map(|path| (path.clone(), disk.read_file(&path).unwrap())).collect()
}

/// A directory with several segments, filtered and plain groups, producers, own ids, cursors in files and in the checkpoint, a dead
/// letter, a transaction over two queues.
pub fn busy(seed: u64) -> World {
    let mut world = World::new(seed);
    let patch =
        SettingsPatch { segment_bytes_max: Some(1 << 20), compression: Some(Compression::None), ..SettingsPatch::default() };
    world.engine.create_queue("orders", &patch, world.now).unwrap();
    for group in ["all", "some"] {
        world.pop("orders", group, 1);
    }
    for round in 0..30u32 {
        for partition in ["a", "b", "c"] {
            let messages = (0..20)
                .map(|number| {
                    let mut message = Message::new(format!("{partition}/{round}/{number} ").repeat(100));
                    message.transaction_id = (number % 2 == 0).then(|| format!("{partition}-{round}-{number}"));
                    message
                })
                .collect();
            let producer = Some((9, 1, round));
            let request = PushRequest {
                queue: "orders".to_owned(),
                partition: partition.to_owned(),
                items: PushItem::Messages(messages),
                producer,
            };
            world.engine.push(request, world.now).unwrap();
        }
        world.take("orders", "some", 10);
        world.pass(1000);
    }
    world.push("other", "p", &["x", "y"]);
    world
}

#[test]
fn a_directory_is_verified_while_in_use_and_when_closed_and_nothing_in_it_changes() {
    let world = busy(1);
    let before = files(&world.disk);
    let live = report(&world.disk);
    assert_eq!(files(&world.disk), before);
    assert_eq!(
        live.findings.iter().filter(|finding| finding.severity > Severity::Info).collect::<Vec<_>>(),
        Vec::<&Finding>::new()
    );
    assert_eq!((live.queues, live.messages), (2, 1802), "{live:?}");
    let world = world.restart();
    let report = report(&world.disk);
    assert_eq!(report.worst().unwrap_or(Severity::Info), Severity::Info, "{:?}", report.findings);
    assert_eq!((report.messages, report.verified_at_us), (1802, 7));
    assert!(report.segments >= 3 && report.indexes >= 1 && report.cursors >= 3, "{report:?}");
}

#[test]
fn a_killed_or_powerless_directory_has_no_loss() {
    for seed in 0..10 {
        let world = busy(seed);
        for disk in [world.disk.crash_keep_all(), world.disk.crash(seed)] {
            assert_eq!(findings(&disk, Severity::Loss), vec![], "seed {seed}");
        }
    }
}

#[test]
fn findings_are_lines_for_people_and_values_for_programs() {
    let world = busy(2).restart();
    let disk = world.disk.crash_keep_all();
    let path = disk.paths().into_iter().find(|path| path.ends_with("00000002.segment")).unwrap();
    let mut bytes = disk.read_file(&path).unwrap();
    bytes[4096 + 100] ^= 1;
    disk.write_file(&path, &bytes);
    let found = findings(&disk, Severity::Loss);
    let first = &found[0];
    assert_eq!((first.file.as_str(), first.position, first.queue.as_deref()), (path.as_str(), Some(4096), Some("orders")));
    assert!(
        first.to_string().starts_with(&format!("loss: {path} at 4096 (queue \"orders\"): damaged up to position ")),
        "{first}"
    );
    let json = serde_json::to_value(first).unwrap();
    assert_eq!(json["severity"], "loss");
    assert_eq!(json["position"], 4096);
}

/// Each file of the directory is damaged, cut, removed or replaced by another: never a panic, and nothing that a start would serve
/// differently goes without a word.
#[test]
fn any_damage_to_any_file_is_found() {
    let world = busy(3).restart();
    world.engine.close(world.now).unwrap();
    let good = files(&world.disk);
    let mut random = Random::new(5);
    for (path, content) in &good {
        if path.ends_with("fanlog.lock") {
            continue;
        }
        let is_cache = path.ends_with(".index");
        let used = content.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        for round in 0..24 {
            let disk = world.disk.crash_keep_all();
            let mut bytes = content.clone();
            let what = match round {
                0 => {
                    disk.remove_file(path);
                    "removed".to_owned()
                }
                1..=4 => {
                    let length = random.index(used.max(1));
                    bytes.truncate(length);
                    disk.write_file(path, &bytes);
                    format!("cut to {length}")
                }
                _ => {
                    let at = random.index(used.max(1));
                    bytes[at] ^= 1 << random.index(8);
                    disk.write_file(path, &bytes);
                    format!("byte {at}")
                }
            };
            let report = report(&disk);
            let is_harmless = is_unread(path, content, &bytes) || (is_cache && round == 0);
            assert!(
                is_harmless || report.findings.iter().any(|finding| finding.severity >= Severity::Info),
                "{path} {what}: nothing found"
            );
            if is_cache {
                assert_eq!(
                    report.findings.iter().filter(|finding| finding.severity == Severity::Loss).count(),
                    0,
                    "{path} {what}"
                );
            }
        }
    }
}

/// Whether the flipped byte is one that nobody reads: padding between records, the rest of a header's page, a segment's zeros.
fn is_unread(path: &str, good: &[u8], bad: &[u8]) -> bool {
    let Some(at) = good.iter().zip(bad).position(|(good, bad)| good != bad) else { return good.len() == bad.len() };
    let is_header_page = path.ends_with(".segment") && (72..4096).contains(&at);
    let is_padding = path.ends_with(".segment") && good[at] == 0 && at + 8 < good.len() && {
        let next = (at + 1).next_multiple_of(8);
        good[at..next].iter().all(|&byte| byte == 0) && good[next..].starts_with(b"FLR1")
    };
    good.len() == bad.len() && (is_header_page || is_padding)
}

#[test]
fn files_of_others_are_named_and_left_alone() {
    let world = busy(4).restart();
    let disk = world.disk.crash_keep_all();
    let queue = disk.paths().into_iter().find(|path| path.ends_with("/table")).unwrap();
    let queue = queue.strip_suffix("/table").unwrap();
    for path in ["README".to_owned(), format!("{queue}/notes.txt"), format!("{queue}/0000000A.segment")] {
        disk.write_file(&path, b"hello");
        let found = findings(&disk, Severity::Info);
        assert!(found.iter().any(|finding| finding.file == path && finding.text == "none of our files"), "{path}: {found:?}");
    }
}

#[test]
fn a_cursor_beyond_the_end_of_the_log_is_a_loss() {
    let mut world = World::new(5);
    world.push("q", "p", &["a"]);
    world.pop("q", "g", 1);
    world = world.restart();
    let older = files(&world.disk);
    world.push("q", "p", &["b", "c"]);
    world.drain("q", "g");
    let world = world.restart();
    let disk = world.disk.crash_keep_all();
    // The log of before in the place of the log: what was acknowledged since is gone from it.
    for (path, content) in &older {
        if path.ends_with(".segment") {
            disk.write_file(path, content);
        }
    }
    let texts: Vec<_> = findings(&disk, Severity::Loss).into_iter().map(|finding| finding.text).collect();
    assert!(!texts.is_empty());
}

/// Verification runs beside an engine that pushes, acknowledges, rolls and lets segments go.
#[test]
fn verification_of_a_directory_in_use_reports_no_loss() {
    let temporary = tempfile::tempdir().unwrap();
    let now = || Now { wall_us: 1_700_000_000_000_000, steady_us: 1 };
    let options = fanlog::engine::EngineOptions { default_start: Start::Beginning, ..Default::default() };
    let (engine, _) = fanlog::engine::Engine::open_path(temporary.path(), options, now()).unwrap();
    let patch =
        SettingsPatch { segment_bytes_max: Some(1 << 20), compression: Some(Compression::None), ..SettingsPatch::default() };
    engine.create_queue("q", &patch, now()).unwrap();
    let dir: std::sync::Arc<dyn fanlog::storage::disk::Dir> =
        std::sync::Arc::new(fanlog::storage::disk::RealDir::open(temporary.path()).unwrap());
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut time = now();
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                engine.push(super::support::push_of("q", "p", &[&"x".repeat(20_000)]), time).unwrap();
                time.wall_us += 100_000;
                time.steady_us += 100_000;
                engine.tick(time);
            }
        });
        let _stop = stop;
        for _ in 0..20 {
            let report = verify(&dir, 1).unwrap();
            let losses: Vec<_> = report.findings.iter().filter(|finding| finding.severity == Severity::Loss).collect();
            assert!(losses.is_empty(), "{losses:?}");
        }
    });
}

/// Segments that retention took were counted as missing after a kill: the checkpoint did not know yet that they were to go.
#[test]
fn what_retention_took_is_not_missing() {
    let mut world = World::new(6);
    let patch = SettingsPatch {
        segment_bytes_max: Some(1 << 20),
        compression: Some(Compression::None),
        retention_bytes: Some(1 << 20),
        ..SettingsPatch::default()
    };
    world.engine.create_queue("q", &patch, world.now).unwrap();
    for _ in 0..200 {
        world.push("q", "p", &[&"x".repeat(20_000)]);
        world.pass(1000);
    }
    assert!(!world.disk.paths().iter().any(|path| path.ends_with("00000001.segment")), "retention let segments go");
    assert_eq!(findings(&world.disk, Severity::Warning), vec![]);
    let world = world.kill();
    assert_eq!(world.report.findings, vec![]);
}

/// The last segment is cut between two records and its header spoilt, so that a start finds no damage in it, only that the checkpoint
/// had seen more. The index that it makes then lists that range, which was called wrong.
#[test]
fn a_tail_that_was_lost_is_told_for_ever_and_its_index_is_right() {
    let world = World::new(8);
    let patch = SettingsPatch { compression: Some(Compression::None), ..SettingsPatch::default() };
    world.engine.create_queue("q", &patch, world.now).unwrap();
    world.push("q", "p", &["kept"]);
    let path = world.disk.paths().into_iter().find(|path| path.ends_with("00000001.segment")).unwrap();
    let mut older = world.disk.read_file(&path).unwrap();
    let used = older.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    older.truncate(used.next_multiple_of(8));
    older[0] ^= 1;
    world.push("q", "p", &["lost"]);
    let world = world.restart();
    let disk = world.disk.crash_keep_all();
    disk.write_file(&path, &older);
    let mut world = World::on(disk, world.now);
    world.push("q", "p", &["next"]);
    world.pass(1000);
    let index = path.replace(".segment", ".index");
    assert!(world.disk.paths().contains(&index), "{:?}", world.disk.paths());
    let losses = findings(&world.restart().disk, Severity::Loss);
    let texts: Vec<_> = losses.iter().map(|finding| finding.text.as_str()).collect();
    assert!(matches!(texts[..], [one] if one.starts_with("the log lost what was here, up to position ")), "{losses:?}");
}
