//! Full disks, threads and names.

use std::sync::atomic::{AtomicBool, Ordering};

use fanlog::engine::{Engine, EngineOptions};
use fanlog::model::*;

use super::support::{World, push_of};
use super::{fetch_of, read_all, small_segments};

/// A thousand acknowledgements on a full disk leave no heap of half made files.
#[test]
fn a_full_disk_gathers_no_temporary_files() {
    let mut world = World::new(60);
    for number in 0..50 {
        world.push("q", &format!("p{number}"), &["a", "b", "c", "d"]);
    }
    world.pop("q", "g", 1);
    let before = world.disk.paths().len();
    world.disk.set_capacity(Some(0));
    for _ in 0..200 {
        let reply = world.engine.pop(&PopRequest::any("q", 1).group("g"), world.now);
        if let Ok(reply) = reply {
            for claim in &reply.claims {
                let items = [(claim.range.first, AckVerb::Completed)];
                let _ = world.engine.ack(super::support::ack_of(claim, "g", &reply.lease_id, &items), world.now);
            }
        }
        world.pass(1_000);
    }
    let during = world.disk.paths().len();
    assert!(during <= before + 60, "{before} files became {during}");
    world.disk.set_capacity(None);
    world.pass(10_000);
    let world = world.restart();
    assert!(!world.disk.paths().iter().any(|path| path.ends_with(".tmp")), "{:?}", world.disk.paths());
    assert!((0..50).all(|number| read_all(&world, "q", &format!("p{number}"), 0).len() == 4));
}

/// Queues are made, written, read and deleted under the same names by many threads, on real files.
#[test]
fn queues_that_are_deleted_under_use_cost_nothing_but_clean_errors() {
    let temporary = tempfile::tempdir().unwrap();
    let now = Now { wall_us: 1_700_000_000_000_000, steady_us: 1 };
    let (engine, _) = Engine::open_path(temporary.path(), EngineOptions::default(), now).unwrap();
    let rounds = if cfg!(debug_assertions) { 150 } else { 1_000 };
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let engine = &engine;
            scope.spawn(move || {
                for round in 0..rounds {
                    let queue = format!("q{}", (thread + round) % 3);
                    let outcome = match (thread + round) % 4 {
                        0 => engine.delete_queue(&queue, now).map(drop),
                        1 => engine.push(push_of(&queue, "p", &["x"]), now).map(drop),
                        2 => engine.pop(&PopRequest::any(&queue, 10).group("g"), now).map(drop),
                        _ => engine.fetch(&fetch_of(&queue, "p", 0), now).map(drop),
                    };
                    if let Err(error) = outcome {
                        let is_clean = matches!(
                            error.code,
                            ErrorCode::UnknownQueue
                                | ErrorCode::UnknownPartition
                                | ErrorCode::RangeRemoved
                                | ErrorCode::BeyondEnd
                        );
                        assert!(is_clean, "{error:?}");
                    }
                }
            });
        }
    });
    for queue in engine.queues() {
        engine.delete_queue(&queue.name, now).unwrap();
    }
    engine.close(now).unwrap();
    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("queue-")), "{left:?}");
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let path = temporary.path().to_string_lossy().into_owned();
    assert!(!maps.lines().any(|line| line.contains(&path)), "a deleted file is still mapped");
}

/// Readers at random places while retention lets segments go: only what is really below the start is out of range.
#[test]
fn a_reader_is_out_of_range_only_below_the_start() {
    let temporary = tempfile::tempdir().unwrap();
    let at = |milliseconds: u64| Now { wall_us: 1_700_000_000_000_000 + milliseconds * 1000, steady_us: 1 + milliseconds * 1000 };
    let (engine, _) = Engine::open_path(temporary.path(), EngineOptions::default(), at(0)).unwrap();
    let patch = SettingsPatch { retention_bytes: Some(2 << 20), ..small_segments() };
    engine.create_queue("q", &patch, at(0)).unwrap();
    engine.push(push_of("q", "p", &["first"]), at(0)).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..4u64 {
            let (engine, is_over) = (&engine, &is_over);
            scope.spawn(move || {
                let mut state = reader * 7 + 1;
                while !is_over.load(Ordering::Relaxed) {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let before = engine.partition("q", "p").unwrap();
                    let from = before.start.saturating_sub(3) + (state >> 33) % (before.end - before.start + 3);
                    match engine.fetch(&fetch_of("q", "p", from), at(0)) {
                        Ok(reply) => assert!(reply.next >= from),
                        Err(error) => {
                            let after = engine.partition("q", "p").unwrap();
                            let is_right = match error.code {
                                ErrorCode::RangeRemoved => from < after.start,
                                ErrorCode::BeyondEnd => from > before.end,
                                _ => false,
                            };
                            assert!(is_right, "fetch from {from}: {error:?}, start {} then {}", before.start, after.start);
                        }
                    }
                }
            });
        }
        let payload = "x".repeat(30_000);
        for round in 0..400 {
            engine.push(push_of("q", "p", &[&payload]), at(round * 100)).unwrap();
            engine.tick(at(round * 100));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(engine.partition("q", "p").unwrap().start > 100, "retention was at work");
}

/// Names are refused, or stored inside the directory; two that were taken never share anything.
#[test]
fn names_are_no_paths_and_no_aliases() {
    let world = World::new(61);
    let long = "n".repeat(255);
    let names = [
        "..",
        ".",
        "../x",
        "a/b",
        "/etc/passwd",
        "a\\b",
        "\0",
        "a\0b",
        "a\nb",
        ".hidden",
        "",
        " ",
        "CON",
        "q ",
        "Q",
        "q",
        "é",
        "e\u{301}",
        "😀",
        "start",
        "fanlog.lock",
        "queue-0000000000000001",
        &long,
        &"n".repeat(256),
        &"n".repeat(100_000),
    ];
    let mut taken = Vec::new();
    for name in names {
        match world.engine.push(push_of(name, name, &[name]), world.now) {
            Ok(_) => taken.push(name),
            Err(error) => assert_eq!(error.code, ErrorCode::BadName, "{name:?}"),
        }
    }
    assert!(["q", "Q", "é", "e\u{301}"].iter().all(|name| taken.contains(name)), "{taken:?}");
    let world = world.restart();
    for name in &taken {
        assert_eq!(read_all(&world, name, name, 0), [(0, (*name).to_owned())], "{name:?}");
    }
    assert!(world.disk.paths().iter().all(|path| !path.contains("..")), "{:?}", world.disk.paths());
    assert_eq!(world.engine.queues().len(), taken.len());
}
