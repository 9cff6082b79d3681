//! What the system says of this process. Where it does not say, the answer is 0.

use rustix::process::{Resource, getrlimit};

/// Processor time that the process used, microseconds.
pub(super) fn cpu_us() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000
}

/// Memory of the process that is in use, bytes.
pub(super) fn memory_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let resident = pages.as_deref().and_then(|text| text.split(' ').nth(1)).and_then(|text| text.parse::<u64>().ok());
    resident.unwrap_or(0) * rustix::param::page_size() as u64
}

/// Open file descriptors, connections included.
pub(super) fn open_files() -> u64 {
    // The directory that is read here is one of them.
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| (entries.count() as u64).saturating_sub(1))
}

/// Descriptors that the process may open; 0 is no limit.
pub(super) fn open_files_max() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(0)
}

/// Maps that the system allows a process.
pub(super) fn maps_max() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_says_what_the_process_uses() {
        assert!(cpu_us() > 0 && memory_bytes() > 0 && maps_max() > 0);
        let before = open_files();
        let files: Vec<_> = (0..100).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        // Other tests open and close files meanwhile.
        assert!(open_files() >= before.saturating_sub(50) + files.len() as u64, "{before}");
        assert!(open_files_max() >= 100);
    }
}
