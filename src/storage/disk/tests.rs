//! One suite, asked of the real and of the simulated disk: the same answers and the same kinds of error.

use std::io::IoSlice;
use std::sync::Arc;

use super::sim::SimDisk;
use super::{Access, Dir, DiskErrorKind, Entry, Errno, RealDir, Result};

/// Makes two tests of each function here: one on a temporary directory, one on a simulated disk with short writes.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod real {
            $(#[test]
            fn $name() {
                let temporary = tempfile::tempdir().unwrap();
                super::$name(&super::RealDir::open(temporary.path()).unwrap());
            })*
        }
        mod simulated {
            $(#[test]
            fn $name() {
                let disk = super::SimDisk::new(1);
                disk.set_short_writes(true);
                super::$name(&*disk.root());
            })*
        }
    };
}

on_both!(
    a_file_is_created_once,
    what_is_missing_is_not_found,
    kinds_of_node_are_kept_apart,
    names_are_single_components,
    reads_end_with_the_file,
    writes_land_where_they_are_put,
    long_vectored_writes_are_whole,
    a_file_opened_for_reading_cannot_be_changed,
    lengths_cut_and_extend_with_zeros,
    allocation_extends_and_keeps_the_content,
    holes_read_as_zero,
    maps_show_later_writes,
    maps_are_bounded_by_the_file,
    a_file_cut_under_its_map_is_a_fault_of_the_map,
    a_rename_replaces,
    open_files_outlive_their_names,
    directories_nest,
    a_full_directory_is_not_removed_or_replaced,
    a_handle_does_not_follow_a_rename,
    lists_are_sorted_and_have_lengths,
    a_lock_has_one_holder,
    free_bytes_are_known,
    syncs_succeed,
);

fn kind<T>(result: Result<T>) -> DiskErrorKind {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(error) => error.kind,
    }
}

fn errno<T>(result: Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.errno)
}

fn put(dir: &dyn Dir, name: &str, bytes: &[u8]) {
    dir.create(name).unwrap().write_at(bytes, 0).unwrap();
}

fn get(dir: &dyn Dir, name: &str) -> Vec<u8> {
    let file = dir.open(name, Access::Read).unwrap();
    let mut bytes = vec![0; file.length().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn names(dir: &dyn Dir) -> Vec<String> {
    dir.list().unwrap().into_iter().map(|entry| entry.name).collect()
}

fn a_file_is_created_once(dir: &dyn Dir) {
    put(dir, "a", b"first");
    let error = dir.create("a").unwrap_err();
    assert_eq!(error.kind, DiskErrorKind::AlreadyExists);
    assert!(error.to_string().starts_with("create "), "{error}");
    assert!(error.to_string().ends_with("a: file exists"), "{error}");
    assert_eq!(get(dir, "a"), b"first");
}

fn what_is_missing_is_not_found(dir: &dyn Dir) {
    assert_eq!(kind(dir.open("a", Access::Read)), DiskErrorKind::NotFound);
    assert_eq!(kind(dir.open("a", Access::ReadWrite)), DiskErrorKind::NotFound);
    assert_eq!(kind(dir.rename("a", "b")), DiskErrorKind::NotFound);
    assert_eq!(kind(dir.remove("a")), DiskErrorKind::NotFound);
    assert_eq!(kind(dir.remove_dir("a")), DiskErrorKind::NotFound);
    assert_eq!(kind(dir.dir("a")), DiskErrorKind::NotFound);
    dir.create_dir("d").unwrap();
    let gone = dir.dir("d").unwrap();
    dir.remove_dir("d").unwrap();
    assert_eq!(kind(gone.list()), DiskErrorKind::NotFound);
    assert_eq!(kind(gone.create("x")), DiskErrorKind::NotFound);
    assert_eq!(kind(gone.sync()), DiskErrorKind::NotFound);
    assert_eq!(kind(gone.lock_file("x")), DiskErrorKind::NotFound);
}

fn kinds_of_node_are_kept_apart(dir: &dyn Dir) {
    put(dir, "file", b"");
    dir.create_dir("dir").unwrap();
    assert_eq!(errno(dir.open("dir", Access::Read)), Some(Errno::ISDIR.raw_os_error()));
    assert_eq!(errno(dir.open("dir", Access::ReadWrite)), Some(Errno::ISDIR.raw_os_error()));
    assert_eq!(errno(dir.dir("file")), Some(Errno::NOTDIR.raw_os_error()));
    assert_eq!(errno(dir.remove("dir")), Some(Errno::ISDIR.raw_os_error()));
    assert_eq!(errno(dir.remove_dir("file")), Some(Errno::NOTDIR.raw_os_error()));
    assert_eq!(errno(dir.rename("file", "dir")), Some(Errno::ISDIR.raw_os_error()));
    assert_eq!(errno(dir.rename("dir", "file")), Some(Errno::NOTDIR.raw_os_error()));
    assert_eq!(kind(dir.create("dir")), DiskErrorKind::AlreadyExists);
    assert_eq!(kind(dir.create_dir("file")), DiskErrorKind::AlreadyExists);
    assert_eq!(kind(dir.create_dir("dir")), DiskErrorKind::AlreadyExists);
}

fn names_are_single_components(dir: &dyn Dir) {
    dir.create_dir("d").unwrap();
    for name in ["", ".", "..", "d/x", "/x", "x\0y"] {
        assert_eq!(kind(dir.create(name)), DiskErrorKind::Other, "{name:?}");
        assert_eq!(kind(dir.open(name, Access::Read)), DiskErrorKind::Other, "{name:?}");
        assert_eq!(kind(dir.dir(name)), DiskErrorKind::Other, "{name:?}");
        assert_eq!(kind(dir.rename("d", name)), DiskErrorKind::Other, "{name:?}");
    }
    assert_eq!(names(dir), ["d"]);
}

fn reads_end_with_the_file(dir: &dyn Dir) {
    put(dir, "a", b"0123456789");
    let file = dir.open("a", Access::Read).unwrap();
    let mut buffer = [0; 6];
    assert_eq!(file.read_at(&mut buffer, 2), Ok(6));
    assert_eq!(&buffer, b"234567");
    assert_eq!(file.read_at(&mut buffer, 7), Ok(3));
    assert_eq!(&buffer[..3], b"789");
    assert_eq!(file.read_at(&mut buffer, 10), Ok(0));
    assert_eq!(file.read_at(&mut buffer, 1_000_000), Ok(0));
    assert_eq!(file.read_at(&mut [], 0), Ok(0));
    let error = file.read_exact_at(&mut buffer, 7).unwrap_err();
    assert_eq!(error.kind, DiskErrorKind::EndOfFile);
    assert!(error.to_string().ends_with("a: unexpected end of file"), "{error}");
}

fn writes_land_where_they_are_put(dir: &dyn Dir) {
    let file = dir.create("a").unwrap();
    file.write_at(b"world", 5000).unwrap();
    file.write_at(b"hello", 0).unwrap();
    file.write_vectored_at(&[IoSlice::new(b"12"), IoSlice::new(b""), IoSlice::new(b"345")], 4094).unwrap();
    file.write_at(b"", 9000).unwrap();
    let mut expected = vec![0; 5005];
    expected[..5].copy_from_slice(b"hello");
    expected[4094..4099].copy_from_slice(b"12345");
    expected[5000..].copy_from_slice(b"world");
    assert_eq!(get(dir, "a"), expected);
    file.write_at(b"W", 5000).unwrap();
    expected[5000] = b'W';
    assert_eq!(get(dir, "a"), expected);
}

fn long_vectored_writes_are_whole(dir: &dyn Dir) {
    let file = dir.create("a").unwrap();
    let bytes: Vec<u8> = (0..60_000u32).map(|number| (number % 251) as u8).collect();
    let slices: Vec<IoSlice<'_>> = bytes.chunks(17).map(IoSlice::new).collect();
    file.write_vectored_at(&slices, 100).unwrap();
    assert_eq!(&get(dir, "a")[100..], bytes);
}

fn a_file_opened_for_reading_cannot_be_changed(dir: &dyn Dir) {
    put(dir, "a", b"abc");
    let file = dir.open("a", Access::Read).unwrap();
    assert_eq!(kind(file.write_at(b"x", 0)), DiskErrorKind::ReadOnly);
    assert_eq!(kind(file.set_length(0)), DiskErrorKind::ReadOnly);
    assert_eq!(kind(file.allocate(0, 10)), DiskErrorKind::ReadOnly);
    assert_eq!(kind(file.punch_hole(0, 1)), DiskErrorKind::ReadOnly);
    assert_eq!(get(dir, "a"), b"abc");
}

fn lengths_cut_and_extend_with_zeros(dir: &dyn Dir) {
    put(dir, "a", &[7; 5000]);
    let file = dir.open("a", Access::ReadWrite).unwrap();
    file.set_length(10).unwrap();
    assert_eq!(file.length(), Ok(10));
    file.set_length(6000).unwrap();
    let mut expected = vec![0; 6000];
    expected[..10].fill(7);
    assert_eq!(get(dir, "a"), expected);
}

fn allocation_extends_and_keeps_the_content(dir: &dyn Dir) {
    put(dir, "a", b"abc");
    let file = dir.open("a", Access::ReadWrite).unwrap();
    file.allocate(0, 10_000).unwrap();
    assert_eq!(file.length(), Ok(10_000));
    let bytes = get(dir, "a");
    assert_eq!(&bytes[..3], b"abc");
    assert!(bytes[3..].iter().all(|&byte| byte == 0));
    file.allocate(10, 10).unwrap();
    assert_eq!(file.length(), Ok(10_000));
    assert_eq!(kind(file.allocate(0, 0)), DiskErrorKind::Other);
}

fn holes_read_as_zero(dir: &dyn Dir) {
    put(dir, "a", &[7; 20_000]);
    let file = dir.open("a", Access::ReadWrite).unwrap();
    file.punch_hole(1000, 10_000).unwrap();
    let mut expected = vec![7; 20_000];
    expected[1000..11_000].fill(0);
    assert_eq!(get(dir, "a"), expected);
    file.punch_hole(19_000, 100_000).unwrap();
    expected[19_000..].fill(0);
    assert_eq!(get(dir, "a"), expected);
    assert_eq!(kind(file.punch_hole(0, 0)), DiskErrorKind::Other);
}

fn maps_show_later_writes(dir: &dyn Dir) {
    let file = dir.create("a").unwrap();
    file.allocate(0, 8192).unwrap();
    let map = dir.open("a", Access::Read).unwrap().map(8192).unwrap();
    file.write_at(b"later", 4094).unwrap();
    drop(file);
    assert_eq!(map.slice(4094..4099).unwrap(), "later");
    assert_eq!(map.slice(4099..4100).unwrap(), &[0][..]);
    assert!(!map.is_faulted());
}

fn maps_are_bounded_by_the_file(dir: &dyn Dir) {
    put(dir, "a", b"abc");
    let file = dir.open("a", Access::Read).unwrap();
    assert_eq!(kind(file.map(4)), DiskErrorKind::EndOfFile);
    assert_eq!(kind(file.map(u64::MAX)), DiskErrorKind::EndOfFile);
    let map = file.map(3).unwrap();
    assert_eq!(map.slice(0..3).unwrap(), "abc");
    assert_eq!(map.slice(0..4), None);
    assert_eq!(file.map(0).unwrap().slice(0..0).unwrap(), "");
}

fn a_file_cut_under_its_map_is_a_fault_of_the_map(dir: &dyn Dir) {
    put(dir, "a", &[7; 20_000]);
    let file = dir.open("a", Access::ReadWrite).unwrap();
    let map = file.map(20_000).unwrap();
    file.set_length(100).unwrap();
    assert_eq!(map.slice(99..101).unwrap(), &[7, 0][..]);
    assert!(!map.is_faulted());
    assert_eq!(map.slice(15_000..15_001).unwrap(), &[0][..]);
    assert!(map.is_faulted());
}

fn a_rename_replaces(dir: &dyn Dir) {
    put(dir, "a", b"new");
    put(dir, "b", b"old");
    let old = dir.open("b", Access::Read).unwrap();
    dir.rename("a", "b").unwrap();
    assert_eq!(names(dir), ["b"]);
    assert_eq!(get(dir, "b"), b"new");
    let mut bytes = [0; 3];
    old.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"old");
    dir.rename("b", "b").unwrap();
    assert_eq!(get(dir, "b"), b"new");
}

fn open_files_outlive_their_names(dir: &dyn Dir) {
    put(dir, "a", &[7; 5000]);
    let file = dir.open("a", Access::ReadWrite).unwrap();
    let map = file.map(5000).unwrap();
    dir.remove("a").unwrap();
    assert!(names(dir).is_empty());
    put(dir, "a", b"another");
    let mut bytes = [0; 1];
    file.read_exact_at(&mut bytes, 4999).unwrap();
    assert_eq!(bytes, [7]);
    assert_eq!(map.slice(4999..5000).unwrap(), &[7][..]);
    file.sync_data().unwrap();
    assert_eq!(get(dir, "a"), b"another");
}

fn directories_nest(dir: &dyn Dir) {
    dir.create_dir("outer").unwrap();
    let outer = dir.dir("outer").unwrap();
    outer.create_dir("inner").unwrap();
    let inner = outer.dir("inner").unwrap();
    put(&*inner, "a", b"deep");
    assert!(inner.describe().ends_with("outer/inner"));
    assert!(inner.open("a", Access::Read).unwrap().describe().ends_with("outer/inner/a"));
    assert_eq!(get(&*dir.dir("outer").unwrap().dir("inner").unwrap(), "a"), b"deep");
    dir.rename("outer", "moved").unwrap();
    assert_eq!(get(&*dir.dir("moved").unwrap().dir("inner").unwrap(), "a"), b"deep");
}

fn a_full_directory_is_not_removed_or_replaced(dir: &dyn Dir) {
    dir.create_dir("full").unwrap();
    put(&*dir.dir("full").unwrap(), "a", b"");
    dir.create_dir("empty").unwrap();
    assert_eq!(errno(dir.remove_dir("full")), Some(Errno::NOTEMPTY.raw_os_error()));
    assert_eq!(errno(dir.rename("empty", "full")), Some(Errno::NOTEMPTY.raw_os_error()));
    dir.rename("full", "empty").unwrap();
    assert_eq!(names(dir), ["empty"]);
    assert_eq!(names(&*dir.dir("empty").unwrap()), ["a"]);
}

fn a_handle_does_not_follow_a_rename(dir: &dyn Dir) {
    dir.create_dir("a").unwrap();
    let handle = dir.dir("a").unwrap();
    put(&*handle, "x", b"");
    dir.rename("a", "b").unwrap();
    assert_eq!(kind(handle.open("x", Access::Read)), DiskErrorKind::NotFound);
    assert_eq!(kind(handle.list()), DiskErrorKind::NotFound);
}

fn lists_are_sorted_and_have_lengths(dir: &dyn Dir) {
    put(dir, "b", b"12345");
    dir.create_dir("c").unwrap();
    put(dir, "a", b"");
    let entry = |name: &str, is_directory, length| Entry { name: name.to_owned(), is_directory, length };
    assert_eq!(dir.list().unwrap(), [entry("a", false, 0), entry("b", false, 5), entry("c", true, 0)]);
}

fn a_lock_has_one_holder(dir: &dyn Dir) {
    let lock = dir.lock_file("lock").unwrap().unwrap();
    lock.write_at(b"me", 0).unwrap();
    assert!(dir.lock_file("lock").unwrap().is_none());
    assert_eq!(get(dir, "lock"), b"me");
    let shared = Arc::clone(&lock);
    drop(lock);
    assert!(dir.lock_file("lock").unwrap().is_none());
    drop(shared);
    assert!(dir.lock_file("lock").unwrap().is_some());
    assert_eq!(get(dir, "lock"), b"me");
}

fn free_bytes_are_known(dir: &dyn Dir) {
    assert!(dir.free_bytes().unwrap() > 0);
}

fn syncs_succeed(dir: &dyn Dir) {
    let file = dir.create("a").unwrap();
    file.write_at(b"abc", 0).unwrap();
    file.sync_data().unwrap();
    dir.sync().unwrap();
}

#[test]
fn missing_directories_are_made_with_those_above() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("one/two/three");
    for _ in 0..2 {
        RealDir::open_or_create(&path).unwrap().sync().unwrap();
    }
    assert_eq!(kind(RealDir::open(temporary.path().join("none"))), DiskErrorKind::NotFound);
    std::fs::write(temporary.path().join("file"), b"").unwrap();
    let file = temporary.path().join("file");
    assert_eq!(errno(RealDir::open(&file)), Some(Errno::NOTDIR.raw_os_error()));
    assert_eq!(errno(RealDir::open_or_create(&file)), Some(Errno::NOTDIR.raw_os_error()));
    assert_eq!(errno(RealDir::open_or_create(file.join("below"))), Some(Errno::NOTDIR.raw_os_error()));
}

#[test]
fn a_dangling_link_is_listed_and_not_found() {
    let temporary = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("nowhere", temporary.path().join("link")).unwrap();
    let dir = RealDir::open(temporary.path()).unwrap();
    assert_eq!(names(&dir), ["link"]);
    assert_eq!(kind(dir.open("link", Access::Read)), DiskErrorKind::NotFound);
}

#[test]
fn the_limit_on_file_sizes_is_an_error_and_not_a_signal() {
    const SIGXFSZ: u32 = 25;
    RealDir::open(tempfile::tempdir().unwrap().path()).unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    assert_ne!(u64::from_str_radix(ignored, 16).unwrap() & 1 << (SIGXFSZ - 1), 0);
}
