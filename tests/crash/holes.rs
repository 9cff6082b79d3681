//! Room is given back inside segments that have to stay, and the power fails at any moment of it.

use fanlog::model::*;
use fanlog::storage::disk::Errno;
use fanlog::storage::disk::sim::{CrashModel, Fault, Operation, SimDisk, Times};
use fanlog::storage::verify::{Severity, verify};

use super::support::{World, messages_in, messages_of, push_of, text};

type Result<T> = std::result::Result<T, Error>;

const ROUNDS: u64 = 24;

/// Several segments in which everything of the partition `fast` is consumed, and something of `slow` is not, in each of them.
fn consumed(seed: u64) -> World {
    let world = World::new(seed);
    let patch = SettingsPatch {
        segment_bytes_max: Some(1 << 20),
        compression: Some(Compression::None),
        retention_enabled: Some(true),
        completed_retention_s: Some(10),
        dedup_window_s: Some(60),
        ..SettingsPatch::default()
    };
    world.engine.create_queue("q", &patch, world.now).unwrap();
    for round in 0..ROUNDS {
        world.push("q", "slow", &[&format!("slow {round}")]);
        let big = format!("fast {round} ").repeat(9_000);
        let mut request = push_of("q", "fast", &[&big]);
        if let PushItem::Messages(messages) = &mut request.items {
            messages[0].transaction_id = Some(format!("id-{round}"));
        }
        world.engine.push(request, world.now).unwrap();
    }
    let request = PopRequest {
        source: PopSource::Partition { queue: "q".into(), partition: "fast".into() },
        ..PopRequest::any("q", 100).group("g")
    };
    loop {
        let reply = world.engine.pop(&request, world.now).unwrap();
        let Some(claim) = reply.claims.first() else { break };
        let items: Vec<_> = messages_of(claim).iter().map(|message| (message.offset, AckVerb::Completed)).collect();
        world.ack(claim, "g", &reply.lease_id, &items);
    }
    world
}

fn fetch(world: &World, partition: &str, from: u64) -> Result<Vec<String>> {
    let request =
        FetchRequest { queue: "q".into(), partition: partition.into(), from, to: None, messages_max: 1000, bytes_max: 16 << 20 };
    Ok(messages_in(&world.engine.fetch(&request, world.now)?.batches).iter().map(text).collect())
}

fn log_bytes(world: &World) -> u64 {
    world.engine.stats().total.log_bytes
}

/// What must hold whenever nothing more is to be given back, or only a part of it was.
fn check(world: &World, tolerated: Severity, what: &str) {
    let slow: Vec<String> = (0..ROUNDS).map(|round| format!("slow {round}")).collect();
    assert_eq!(fetch(world, "slow", 0).unwrap(), slow, "{what}");
    let losses: Vec<_> = world.report.findings.iter().filter(|finding| finding.is_loss).collect();
    assert!(losses.is_empty(), "{what}: {losses:?}");
    let report = verify(&world.disk.root(), 7).unwrap();
    let bad: Vec<_> = report.findings.iter().filter(|finding| finding.severity > tolerated).collect();
    assert!(bad.is_empty(), "{what}: {bad:?}");
}

/// Lets the window of deduplication pass and sweeps once.
fn sweep(world: &mut World) {
    world.pass(61_000);
}

#[test]
fn what_is_consumed_gives_its_room_back_while_its_segment_stays() {
    let mut world = consumed(1);
    let free = || world.disk.root().free_bytes().unwrap();
    world.disk.set_capacity(Some(64 << 20));
    let (before, free_before) = (log_bytes(&world), free());
    let segments = world.engine.stats().total.segments;
    for _ in 0..4 {
        sweep(&mut world);
    }
    let given_back = before - log_bytes(&world);
    assert!(given_back > before * 2 / 5, "{given_back} of {before} bytes");
    let freed = world.disk.root().free_bytes().unwrap().saturating_sub(free_before);
    assert!(freed + (1 << 20) > given_back, "{freed} are free, {given_back} were told of");
    assert_eq!(world.engine.stats().total.segments, segments);
    check(&world, Severity::Info, "after the sweeps");
    let removed = fetch(&world, "fast", 3).unwrap_err();
    assert_eq!(removed.code, ErrorCode::RangeRemoved);
    assert!(removed.text.starts_with("offsets [3, "), "{}", removed.text);
    // The ids of what is gone are forgotten, and nothing stumbles over them.
    let mut request = push_of("q", "fast", &["again"]);
    if let PushItem::Messages(messages) = &mut request.items {
        messages[0].transaction_id = Some("id-3".to_owned());
    }
    assert_eq!(world.engine.push(request, world.now).unwrap().results, PushResults::Range { base: ROUNDS, count: 1 });
    // Nothing is done twice.
    let mutations = world.disk.mutations();
    let told = log_bytes(&world);
    world.pass(6_000);
    world.pass(6_000);
    assert!(world.disk.mutations() - mutations < 30, "{} changes of an idle queue", world.disk.mutations() - mutations);
    let mut world = world.kill();
    check(&world, Severity::Info, "after a kill");
    world.pass(6_000);
    assert_eq!(log_bytes(&world), told, "the figure is known again after a start");
    // An index that is lost is made again, around the holes.
    let mut world = world.restart();
    world.engine.close(world.now).unwrap();
    let indexes: Vec<_> = world.disk.paths().into_iter().filter(|path| path.ends_with(".index")).collect();
    assert!(!indexes.is_empty());
    indexes.iter().for_each(|path| world.disk.remove_file(path));
    world = world.kill();
    check(&world, Severity::Info, "without indexes");
    assert_eq!(world.drain("q", "g").len() as u64, ROUNDS + 1);
}

#[test]
fn real_damage_beside_a_hole_is_still_seen_and_ends_where_the_hole_begins() {
    let mut world = consumed(2);
    for _ in 0..4 {
        sweep(&mut world);
    }
    world.engine.close(world.now).unwrap();
    let path = world.disk.paths().into_iter().filter(|path| path.ends_with(".segment")).nth(1).unwrap();
    let mut bytes = world.disk.read_file(&path).unwrap();
    let at = bytes.windows(5).position(|window| window == b"slow ").unwrap();
    bytes[at] ^= 1;
    world.disk.write_file(&path, &bytes);
    world.disk.remove_file(&path.replace(".segment", ".index"));
    let report = verify(&world.disk.root(), 7).unwrap();
    let losses: Vec<_> = report.findings.iter().filter(|finding| finding.severity == Severity::Loss).collect();
    assert_eq!(losses.len(), 1, "{losses:?}");
    let end: usize = losses[0].text.split(' ').find_map(|word| word.trim_end_matches(';').parse().ok()).unwrap();
    let start = losses[0].position.unwrap() as usize;
    assert!(start < at && at < end && end - start < 1000, "{losses:?}");
    let world = world.kill();
    assert_eq!(world.report.findings.iter().filter(|finding| finding.is_loss).count(), 1, "{:?}", world.report.findings);
    // Without its list, a hole reads as the damage that it then is.
    world.disk.remove_file(&path.replace(".segment", ".holes"));
    let report = verify(&world.disk.root(), 7).unwrap();
    assert!(report.findings.iter().filter(|finding| finding.severity == Severity::Loss).count() > 1);
}

#[test]
fn the_power_may_fail_at_any_moment_of_giving_room_back() {
    let (mut cuts, mut states) = (0, 0);
    for cut in 0.. {
        let mut world = consumed(3);
        world.disk.set_crash_model(CrashModel { tears_sectors: cut % 2 == 0, leaves_garbage: false });
        let before = world.disk.mutations();
        world.disk.power_off_after(before + cut);
        sweep(&mut world);
        if !world.disk.is_off() {
            break;
        }
        cuts += 1;
        let seeds = if super::wants_all() { 40 } else { 3 };
        let outcomes = [world.disk.crash_drop_unsynced(), world.disk.crash_keep_all()]
            .into_iter()
            .chain((0..seeds).map(|seed| world.disk.crash(cut * 100 + seed)))
            .collect::<Vec<SimDisk>>();
        for (at, disk) in outcomes.into_iter().enumerate() {
            let what = format!("cut {cut}, outcome {at}");
            let mut after = World::on(disk, world.now);
            // A checkpoint may not have been finished.
            check(&after, Severity::Warning, &what);
            states += 1;
            for _ in 0..4 {
                sweep(&mut after);
            }
            assert!(log_bytes(&after) < 1_500_000, "{what}: {} bytes stay", log_bytes(&after));
            check(&after, Severity::Info, &what);
        }
    }
    assert!(cuts > 20, "{cuts}");
    println!("{cuts} cuts, {states} states");
}

#[test]
fn a_disk_that_cannot_give_room_back_costs_nothing_but_the_room() {
    let mut world = consumed(4);
    world.disk.fail(Fault::new(Errno::OPNOTSUPP).on(Operation::PunchHole).times(Times::Forever));
    let before = log_bytes(&world);
    for _ in 0..4 {
        sweep(&mut world);
    }
    assert_eq!(log_bytes(&world), before);
    check(&world, Severity::Info, "without holes");
    world.disk.clear_faults();
    sweep(&mut world);
    assert_eq!(log_bytes(&world), before, "it is not asked again before the next start");
    let mut world = world.restart();
    world.pass(6_000);
    assert!(log_bytes(&world) < before * 3 / 5);
    check(&world, Severity::Info, "with holes");
}
