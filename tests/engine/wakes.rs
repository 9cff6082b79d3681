//! Whatever makes a message claimable wakes who waits for it, at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fanlog::engine::Watch;
use fanlog::model::*;

use crate::support::{World, ack_of, popped, seek_of};

/// A pop that waits for messages of a group, and how often it was woken.
struct Waiter {
    count: Arc<AtomicUsize>,
    _watch: Watch,
}

impl Waiter {
    /// As a waiting pop does: it watches, looks, and watches again if it was the first to look.
    fn of(world: &World, request: &PopRequest) -> Self {
        let waiter = Self::watch(world, request);
        assert!(world.pop_as(request).claims.is_empty());
        let waiter = if waiter._watch.is_complete() { waiter } else { Self::watch(world, request) };
        assert!(world.pop_as(request).claims.is_empty());
        waiter.is_woken();
        waiter
    }

    fn watch(world: &World, request: &PopRequest) -> Self {
        let count = Arc::new(AtomicUsize::new(0));
        let woken = Arc::clone(&count);
        let wake = Arc::new(move || {
            woken.fetch_add(1, Ordering::Relaxed);
        });
        let watch = world.engine.watch(request, wake).unwrap();
        Self { count, _watch: watch }
    }

    fn is_woken(&self) -> bool {
        self.count.swap(0, Ordering::Relaxed) > 0
    }
}

fn any() -> PopRequest {
    PopRequest::any("q", 10).group("g")
}

/// A queue with one message that the group has leased.
fn leased(seed: u64, patch: SettingsPatch) -> (World, PopReply) {
    let world = World::new(seed);
    world.create("q", patch);
    world.push("q", "a", &["0"]);
    let reply = world.pop_as(&any());
    (world, reply)
}

#[test]
fn a_commit() {
    let world = World::new(1);
    world.create("q", SettingsPatch::default());
    let waiter = Waiter::of(&world, &any());
    world.push("q", "a", &["0"]);
    assert!(waiter.is_woken());
    assert_eq!(popped(&world.pop_as(&any())), ["0"]);
}

#[test]
fn a_retry_a_failure_a_release_and_a_full_batch_with_more_behind() {
    for verb in [Some(AckVerb::Retry), Some(AckVerb::Failed), None, Some(AckVerb::Completed)] {
        let (world, reply) = leased(2, SettingsPatch::default());
        world.push("q", "a", &["1"]);
        let waiter = Waiter::of(&world, &any());
        match verb {
            Some(verb) => drop(world.ack(&reply.claims[0], "g", &reply.lease_id, &[(0, verb)])),
            None => assert_eq!(world.engine.release(&reply.lease_id, world.now).unwrap(), 1),
        }
        assert!(waiter.is_woken(), "{verb:?}");
        assert!(!world.pop_as(&any()).claims.is_empty(), "{verb:?}");
    }
}

#[test]
fn the_end_of_a_lease_of_a_delay_and_of_an_extension() {
    let (mut world, reply) = leased(3, SettingsPatch::default());
    let waiter = Waiter::of(&world, &any());
    world.pass(50_000);
    assert_eq!(world.engine.extend(&reply.lease_id, 30_000, world.now).unwrap().renewed, 1);
    world.pass(20_000);
    assert!(world.pop_as(&any()).claims.is_empty());
    waiter.is_woken();
    world.pass(10_000);
    assert!(waiter.is_woken());

    let reply = world.pop_as(&any());
    let mut later = ack_of(&reply.claims[0], "g", &reply.lease_id, &[(0, AckVerb::Retry)]);
    later.items[0].delay_ms = 7_000;
    world.engine.ack(later, world.now).unwrap();
    waiter.is_woken();
    world.pass(6_000);
    assert!(!waiter.is_woken());
    world.pass(1_000);
    assert!(waiter.is_woken());
    assert_eq!(popped(&world.pop_as(&any())), ["0"]);
}

#[test]
fn the_end_of_a_processing_delay_and_of_a_window() {
    let delay = SettingsPatch { delayed_processing_s: Some(5), ..SettingsPatch::default() };
    let window = SettingsPatch { window_buffer_s: Some(5), ..SettingsPatch::default() };
    for patch in [delay, window] {
        let mut world = World::new(4);
        world.create("q", patch);
        world.push("q", "a", &["0"]);
        let waiter = Waiter::of(&world, &any());
        world.pass(4_000);
        assert!(!waiter.is_woken());
        assert!(world.pop_as(&any()).claims.is_empty());
        world.pass(1_000);
        assert!(waiter.is_woken());
        assert_eq!(popped(&world.pop_as(&any())), ["0"]);
    }
}

/// The window closes when the partition has been quiet for long enough, and not before.
#[test]
fn every_push_keeps_a_window_open() {
    let mut world = World::new(5);
    world.create("q", SettingsPatch { window_buffer_s: Some(5), ..SettingsPatch::default() });
    for payload in ["0", "1", "2"] {
        world.push("q", "a", &[payload]);
        world.pass(4_000);
        assert!(world.pop_as(&any()).claims.is_empty());
    }
    world.pass(1_000);
    assert_eq!(popped(&world.pop_as(&any())), ["0", "1", "2"]);
}

#[test]
fn a_seek() {
    let world = World::new(6);
    world.push("q", "a", &["0"]);
    world.drain("q", "g");
    for partition in [None, Some("a".to_owned())] {
        let waiter = Waiter::of(&world, &any());
        let seek = SeekRequest { partition, ..seek_of("q", "g", SeekTarget::Beginning) };
        world.engine.seek(&seek, world.now).unwrap();
        assert!(waiter.is_woken());
        assert_eq!(world.take("q", "g", 1).len(), 1);
    }
}

#[test]
fn a_resumed_or_enabled_group_and_changed_settings() {
    let world = World::new(7);
    world.create("q", SettingsPatch::default());
    world.push("q", "a", &["0"]);
    world.pop_as(&PopRequest::any("q", 1).group("g"));
    world.seek("q", "g", SeekTarget::Beginning);
    let group = |is_paused| GroupPatch { is_paused: Some(is_paused), ..GroupPatch::default() };
    world.engine.update_group("q", "g", &group(true), world.now).unwrap();
    let waiter = Waiter::of(&world, &any());
    world.engine.update_group("q", "g", &group(false), world.now).unwrap();
    assert!(waiter.is_woken());

    let delay = |seconds| SettingsPatch { delayed_processing_s: Some(seconds), ..SettingsPatch::default() };
    let window = |seconds| SettingsPatch { window_buffer_s: Some(seconds), ..SettingsPatch::default() };
    for (long, none) in [(delay(3_600), delay(0)), (window(3_600), window(0))] {
        world.engine.update_queue("q", &long, world.now).unwrap();
        let waiter = Waiter::of(&world, &any());
        world.engine.update_queue("q", &none, world.now).unwrap();
        assert!(waiter.is_woken());
        let reply = world.pop_as(&any());
        assert_eq!(popped(&reply), ["0"]);
        world.engine.release(&reply.lease_id, world.now).unwrap();
    }
}

#[test]
fn a_start_of_the_server_frees_what_was_leased() {
    let (world, _) = leased(8, SettingsPatch::default());
    let world = world.kill();
    assert_eq!(popped(&world.pop_as(&any())), ["0"]);
}

#[test]
fn the_end_of_its_queue_or_group() {
    let (world, _) = leased(9, SettingsPatch::default());
    let waiter = Waiter::of(&world, &any());
    world.engine.delete_group("g", Some("q"), world.now).unwrap();
    assert!(waiter.is_woken());
    let waiter = {
        let _ = world.pop_as(&any());
        Waiter::of(&world, &any())
    };
    world.engine.delete_queue("q", world.now).unwrap();
    assert!(waiter.is_woken());
}

/// A pop of a namespace waits for queues that are not there yet, too.
#[test]
fn a_new_queue_of_the_namespace() {
    let world = World::new(10);
    world.push("shop.old", "a", &["0"]);
    let source = PopSource::Discover { namespace: Some("shop".to_owned()), task: None };
    let request = PopRequest { source, auto_ack: true, ..any() };
    assert_eq!(popped(&world.pop_as(&request)), ["0"]);
    let waiter = Waiter::of(&world, &request);
    world.push("shop.new", "a", &["1"]);
    assert!(waiter.is_woken());
    assert_eq!(popped(&world.pop_as(&request)), ["1"]);
}
