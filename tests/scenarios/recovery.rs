//! Segments, kills and damage.

use fanlog::model::*;
use fanlog::record::RecordHeader;
use fanlog::storage::disk::sim::SimDisk;

use super::support::{World, messages_of};
use super::{fetch_of, paths, read_all, seek_of, small_segments};

/// The last batch is cut at every byte; what comes next is readable, and so is everything before it.
#[test]
fn a_batch_cut_at_any_byte_is_gone_whole_and_the_log_goes_on() {
    let world = World::new(1);
    world.push("q", "p", &["one"]);
    world.push("q", "p", &["two"]);
    let path = paths(&world, ".segment").remove(0);
    let whole = world.disk.read_file(&path).unwrap();
    let before = whole.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    world.push("q", "p", &["three"]);
    let whole = world.disk.read_file(&path).unwrap();
    let after = whole.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    for cut in before..after {
        let disk = world.disk.crash_keep_all();
        let mut torn = whole.clone();
        torn[cut..].fill(0);
        disk.write_file(&path, &torn);
        let opened = World::on(disk, world.now);
        opened.push("q", "p", &["next"]);
        let texts: Vec<_> = read_all(&opened, "q", "p", 0).into_iter().map(|(_, text)| text).collect();
        assert_eq!(texts, ["one", "two", "next"], "cut at {cut}");
        let opened = opened.kill();
        let again: Vec<_> = read_all(&opened, "q", "p", 0).into_iter().map(|(_, text)| text).collect();
        assert_eq!(again, texts, "cut at {cut}, opened again");
    }
}

/// An unclean stop may leave a gap in the offsets; later starts accept it and number nothing anew.
#[test]
fn a_gap_in_the_offsets_is_kept_as_it_is() {
    let world = World::new(2);
    world.push("q", "p", &["one", "two"]);
    let path = paths(&world, ".segment").remove(0);
    let world = world.restart();
    // What was durable is gone from the end: the numbers that it had are not given again.
    let disk = world.disk.crash_keep_all();
    let mut bytes = disk.read_file(&path).unwrap();
    let used = bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    bytes[used - 4..].fill(0);
    disk.write_file(&path, &bytes);
    let world = World::on(disk, world.now);
    assert!(world.report.findings.iter().any(|finding| finding.is_loss), "{:?}", world.report.findings);
    let reply = world.push("q", "p", &["three"]);
    let Some(PushResult::Stored(offset)) = reply.results.get(0) else { panic!("{reply:?}") };
    assert!(offset >= 2, "offset {offset} was somebody else's");
    let mut world = world;
    for _ in 0..3 {
        world = world.kill();
        let (_, text) = read_all(&world, "q", "p", offset).remove(0);
        assert_eq!(text, "three");
        assert_eq!(world.engine.partition("q", "p").unwrap().end, offset + 1);
    }
}

#[test]
fn what_is_written_behind_a_kill_is_there_at_every_later_start() {
    let ten = |from: u32| (from..from + 10).map(|number| number.to_string()).collect::<Vec<_>>();
    let push = |world: &World, from| world.push("q", "p", &ten(from).iter().map(String::as_str).collect::<Vec<_>>());
    let world = World::new(3);
    push(&world, 0);
    let world = world.kill();
    push(&world, 10);
    assert_eq!(world.take("q", "g", 5).len(), 5);
    let mut world = world.restart();
    for _ in 0..3 {
        let texts: Vec<_> = read_all(&world, "q", "p", 0).into_iter().map(|(_, text)| text).collect();
        assert_eq!(texts, [ten(0), ten(10)].concat());
        let claims = world.pop("q", "g", 1).claims;
        assert_eq!(messages_of(&claims[0])[0].offset, 5);
        world = world.restart();
    }
}

/// Changes a batch's time until the checksum of its header is 0; the checksum is linear in the time's bits.
#[test]
fn a_batch_whose_checksum_is_zero_is_no_empty_space() {
    let record_of = |world: &World| {
        let bytes = world.disk.read_file(&paths(world, ".segment")[0]).unwrap();
        let is_batch = |at: &usize| matches!(RecordHeader::decode(&bytes[*at..]), Ok((_, Some(_), _)));
        let start = (4096..bytes.len()).step_by(8).rfind(is_batch);
        bytes[start.unwrap()..].to_vec()
    };
    // Bits that are added to this time only make it later: a log's times never go down.
    let now = Now { wall_us: 1_700_000_000_000_000 >> 40 << 40, steady_us: 1 };
    let base = World::on(SimDisk::new(4), now);
    base.engine.create_queue("q", &small_segments(), now).unwrap();
    base.push("q", "p", &["first"]);
    // The queue's incarnation is random, so one directory is used for all pushes.
    let empty = base.disk.crash_keep_all();
    let opened = |at: Now| {
        let world = World::on(empty.crash_keep_all(), now);
        let request = super::support::push_of("q", "p", &["payload"]);
        world.engine.push(request, at).unwrap();
        world
    };
    let header_bytes = fanlog::record::BATCH_HEADER_BYTES;
    let header = record_of(&opened(now))[..header_bytes].to_vec();
    let crc_of = |time: u64| {
        let mut header = header.clone();
        header[48..56].copy_from_slice(&time.to_le_bytes());
        crc32fast::hash(&header[8..])
    };
    assert_eq!(crc_of(now.wall_us), u32::from_le_bytes(header[4..8].try_into().unwrap()), "the time stands at byte 48");
    // Solves for the bits of the time that turn the checksum into 0.
    let base_crc = crc_of(now.wall_us);
    let mut rows: Vec<(u32, u64)> = Vec::new();
    for bit in 0..40 {
        let mut row = (crc_of(now.wall_us ^ (1 << bit)) ^ base_crc, 1u64 << bit);
        for &(value, bits) in &rows {
            if row.0 & (1 << (31 - value.leading_zeros())) != 0 {
                row = (row.0 ^ value, row.1 ^ bits);
            }
        }
        if row.0 != 0 {
            rows.push(row);
        }
    }
    let mut wanted = (base_crc, 0u64);
    for &(value, bits) in &rows {
        if wanted.0 & (1 << (31 - value.leading_zeros())) != 0 {
            wanted = (wanted.0 ^ value, wanted.1 ^ bits);
        }
    }
    assert_eq!(wanted.0, 0, "forty bits of time reach every checksum");
    let at = Now { wall_us: now.wall_us ^ wanted.1, ..now };
    let world = opened(at);
    assert_eq!(record_of(&world)[4..8], [0; 4], "the checksum is zero");
    let world = World::on(world.kill().disk.crash_keep_all(), at);
    assert_eq!(read_all(&world, "q", "p", 1), [(1, "payload".to_owned())]);
}

/// A hole in the middle of the log is no end: readers are told which offsets are gone, and no number is given twice.
#[test]
fn zeros_over_a_batch_in_the_middle_are_named_and_passed() {
    let world = World::new(5);
    for text in ["one", "two", "three"] {
        world.push("q", "p", &[text]);
    }
    let path = paths(&world, ".segment").remove(0);
    let disk = world.disk.crash_keep_all();
    let mut bytes = disk.read_file(&path).unwrap();
    let batches: Vec<usize> =
        (4096..bytes.len()).step_by(8).filter(|&at| matches!(RecordHeader::decode(&bytes[at..]), Ok((_, Some(_), _)))).collect();
    bytes[batches[1]..batches[1] + 64].fill(0);
    disk.write_file(&path, &bytes);
    let world = World::on(disk, world.now);
    assert!(world.report.findings.iter().any(|finding| finding.is_loss), "{:?}", world.report.findings);
    let mut fetched = world.engine.fetch(&fetch_of("q", "p", 0), world.now).unwrap();
    assert_eq!((fetched.batches.len(), fetched.next), (1, 1));
    let error = world.engine.fetch(&fetch_of("q", "p", 1), world.now).unwrap_err();
    assert_eq!((error.code, error.text.contains("[1, 2)")), (ErrorCode::Corrupt, true), "{error:?}");
    fetched = world.engine.fetch(&fetch_of("q", "p", 2), world.now).unwrap();
    assert_eq!(fetched.batches.len(), 1);
    let claims = world.pop("q", "g", 10).claims;
    assert_eq!(claims[0].lost, Some(OffsetRange { first: 1, last: 1 }));
    let reply = world.push("q", "p", &["four"]);
    assert!(matches!(reply.results.get(0), Some(PushResult::Stored(offset)) if offset >= 3), "{reply:?}");
}

/// The group in front of the damage passes it, its floor moves, and retention can take what is behind it.
#[test]
fn a_damaged_range_holds_up_neither_its_group_nor_retention() {
    let mut world = World::new(6);
    let patch = SettingsPatch { retention_enabled: Some(true), completed_retention_s: Some(60), ..SettingsPatch::default() };
    world.engine.create_queue("q", &patch, world.now).unwrap();
    for text in ["one", "two", "three"] {
        world.push("q", "p", &[text]);
    }
    let path = paths(&world, ".segment").remove(0);
    let disk = world.disk.crash_keep_all();
    let mut bytes = disk.read_file(&path).unwrap();
    let two = (0..bytes.len() - 3).rfind(|&at| &bytes[at..at + 3] == b"two").unwrap();
    bytes[two] ^= 1;
    disk.write_file(&path, &bytes);
    world = World::on(disk, world.now);
    let taken: Vec<_> = world.drain("q", "g").into_iter().map(|(_, offset, _)| offset).collect();
    assert_eq!(taken, [0, 2]);
    assert_eq!(world.engine.cursors("q", "g", 0, 10, world.now).unwrap()[0].lag, 0);
    world.pass(120_000);
    world.push("q", "p", &["four"]);
    world.pass(10_000);
    assert_eq!(world.engine.partition("q", "p").unwrap().start, 3);
}

/// The only segment is cut to every short length: the loss is told, the log goes on, and offsets do not begin anew.
#[test]
fn a_log_whose_only_segment_holds_nothing_goes_on_behind_its_checkpoint() {
    let world = World::new(7);
    world.push("q", "p", &["one", "two", "three"]);
    let world = world.restart();
    let path = paths(&world, ".segment").remove(0);
    let whole = world.disk.read_file(&path).unwrap();
    for length in [0, 1, 17, 71, 72, 73, 4095, 4096, 4097, 4160] {
        let disk = world.disk.crash_keep_all();
        disk.write_file(&path, &whole[..length]);
        let opened = World::on(disk, world.now);
        assert!(opened.report.findings.iter().any(|finding| finding.is_loss), "cut to {length}");
        let reply = opened.push("q", "p", &["next"]);
        assert!(matches!(reply.results.get(0), Some(PushResult::Stored(offset)) if offset >= 3), "cut to {length}: {reply:?}");
        let opened = opened.kill();
        let Some(PushResult::Stored(offset)) = reply.results.get(0) else { panic!() };
        assert_eq!(read_all(&opened, "q", "p", offset)[0].1, "next", "cut to {length}");
    }
}

/// The index of neither segment was written when the process was killed right behind a roll: offset, time and filter find all.
#[test]
fn what_no_index_had_yet_is_found_by_offset_time_and_filter() {
    let mut world = World::new(8);
    world.engine.create_queue("q", &small_segments(), world.now).unwrap();
    let declaration = GroupDeclaration { filter: "NOT :never".to_owned(), ..GroupDeclaration::default() };
    world.engine.declare_group("q", "filtered", &declaration, world.now).unwrap();
    let mut times = Vec::new();
    while paths(&world, ".segment").len() < 3 {
        world.now.wall_us += 1_000_000;
        times.push(world.now.wall_us);
        world.push("q", "p", &[&format!("{} {}", times.len() - 1, "x".repeat(20_000))]);
    }
    assert_eq!(paths(&world, ".index"), Vec::<String>::new());
    let world = world.kill();
    let number = |text: &str| text.split(' ').next().unwrap().parse::<usize>().unwrap();
    let read: Vec<_> = read_all(&world, "q", "p", 0).iter().map(|(_, text)| number(text)).collect();
    assert_eq!(read, (0..times.len()).collect::<Vec<_>>());
    let filtered: Vec<_> = world.drain("q", "filtered").iter().map(|(_, _, text)| number(text)).collect();
    assert_eq!(filtered, read);
    world.pop("q", "timed", 1);
    for (at, &time) in times.iter().enumerate() {
        let moved = world.engine.seek(&seek_of("q", "timed", SeekTarget::Time(time)), world.now).unwrap();
        assert_eq!(moved[0].after, at as u64);
    }
}

#[test]
fn a_hundred_rolls_hide_nothing_from_readers_who_begin_at_the_beginning() {
    let mut world = World::new(9);
    world.engine.create_queue("q", &small_segments(), world.now).unwrap();
    let payload = "x".repeat(200_000);
    let mut pushed = 0;
    let mut segments = 1;
    while segments < 100 {
        world.push("q", "p", &[&payload]);
        pushed += 1;
        let now = paths(&world, ".segment").len();
        if now > segments {
            segments = now;
            if segments.is_multiple_of(10) {
                world.pass(1_000);
                assert_eq!(read_all(&world, "q", "p", 0).len(), pushed, "{segments} segments");
            }
        }
    }
    assert_eq!(read_all(&world.kill(), "q", "p", 0).len(), pushed);
}

/// A queue whose files are spoilt in every way can be deleted through the engine, and its room comes back.
#[test]
fn a_spoilt_queue_can_be_deleted() {
    let world = World::new(10);
    world.push("bad", "p", &["one", "two"]);
    world.push("good", "p", &["three"]);
    let world = world.restart();
    let bad = world.engine.queue("bad").unwrap().incarnation;
    let disk = world.disk.crash_keep_all();
    for path in disk.paths().into_iter().filter(|path| path.contains(&format!("{bad:016x}")) && path.ends_with(".segment")) {
        let mut bytes = disk.read_file(&path).unwrap();
        bytes[..8000].fill(0xa5);
        disk.write_file(&path, &bytes);
    }
    let world = World::on(disk, world.now);
    assert!(world.engine.delete_queue("bad", world.now).unwrap());
    assert!(!world.disk.paths().iter().any(|path| path.contains(&format!("{bad:016x}"))), "{:?}", world.disk.paths());
    assert_eq!(read_all(&world.restart(), "good", "p", 0).len(), 1);
}

/// A deleted queue does not come back with a kill, and one made again under its name is empty.
#[test]
fn what_was_deleted_stays_deleted() {
    let mut world = World::new(11);
    world.push("q", "p", &["old"]);
    world.pop("q", "g", 1);
    world.pass(1_000);
    assert!(world.engine.delete_queue("q", world.now).unwrap());
    let world = world.power_loss();
    assert_eq!(world.engine.queue("q").unwrap_err().code, ErrorCode::UnknownQueue);
    world.push("q", "p", &["new"]);
    let world = world.kill();
    assert_eq!(world.drain("q", "g"), [("p".to_owned(), 0, "new".to_owned())]);
}

/// The newest segment is removed after a clean stop, and the mark of the clean stop is believed by nobody.
#[test]
fn a_clean_stop_does_not_hide_a_missing_segment() {
    let world = World::new(12);
    world.engine.create_queue("q", &small_segments(), world.now).unwrap();
    for _ in 0..30 {
        world.push("q", "p", &[&"x".repeat(20_000)]);
    }
    let world = world.restart();
    world.engine.close(world.now).unwrap();
    let newest = paths(&world, ".segment").pop().unwrap();
    let end = world.disk.crash_keep_all();
    end.remove_file(&newest);
    let opened = World::on(end, world.now);
    assert!(opened.report.findings.iter().any(|finding| finding.is_loss), "{:?}", opened.report.findings);
    let reply = opened.push("q", "p", &["next"]);
    assert!(matches!(reply.results.get(0), Some(PushResult::Stored(offset)) if offset >= 30), "{reply:?}");
}

/// The start file of another run, with its clean mark, is put beside files of a killed one.
#[test]
fn a_clean_mark_of_another_run_changes_nothing() {
    let world = World::new(13);
    world.push("q", "p", &["one"]);
    let lease = world.pop("q", "g", 1).lease_id;
    let world = world.restart();
    world.engine.close(world.now).unwrap();
    let clean = world.disk.read_file("start").unwrap();
    let world = World::on(world.disk.crash_keep_all(), world.now);
    world.push("q", "p", &["two"]);
    let disk: SimDisk = world.disk.crash_keep_all();
    disk.write_file("start", &clean);
    let world = World::on(disk, world.now);
    assert_eq!(read_all(&world, "q", "p", 0).len(), 2);
    let reply = world.pop("q", "g", 1);
    assert_ne!(reply.lease_id, lease);
    assert_eq!(messages_of(&reply.claims[0])[0].offset, 0);
}
