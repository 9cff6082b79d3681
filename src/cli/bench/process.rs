//! What a process costs: processor time and memory, from `/proc`.

use std::net::SocketAddr;

use serde::Serialize;

/// Processor time so far, and memory now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Seconds of processor time, in user and system mode.
    pub cpu_seconds: f64,
    /// Memory.
    pub memory: Memory,
}

/// Memory of a process, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// All that is resident: the sum of the next two, and shared memory.
    pub rss_bytes: u64,
    /// Its own.
    pub rss_anon_bytes: u64,
    /// Pages of mapped files, which the system may take back at any time.
    pub rss_file_bytes: u64,
    /// The most that ever was resident.
    pub rss_peak_bytes: u64,
}

/// What a process has used and uses.
pub fn sample(pid: u32) -> Option<Sample> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(Sample { cpu_seconds: cpu_seconds(&stat, rustix::param::clock_ticks_per_second())?, memory: memory(&status)? })
}

/// The fields behind the name, which may have spaces and parentheses in it: user time is the 12th of them, system time the next.
fn cpu_seconds(stat: &str, ticks_per_second: u64) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((user + system) as f64 / ticks_per_second as f64)
}

fn memory(status: &str) -> Option<Memory> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kibibytes * 1024)
    };
    Some(Memory {
        rss_bytes: field("VmRSS")?,
        rss_anon_bytes: field("RssAnon")?,
        rss_file_bytes: field("RssFile")?,
        rss_peak_bytes: field("VmHWM")?,
    })
}

/// The process of this machine that listens on an address, if it can be told.
pub fn listener(address: SocketAddr) -> Option<u32> {
    if !address.ip().is_loopback() {
        return None;
    }
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let inode = tables.iter().find_map(|table| listening_inode(table, address.port()))?;
    let link = format!("socket:[{inode}]");
    let pids = std::fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.into_iter().find(|pid| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.into_iter().any(|file| std::fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == link.as_str()))
    })
}

/// The inode of the listening socket on a port.
fn listening_inode(table: &str, port: u16) -> Option<u64> {
    const LISTEN: &str = "0A";
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (_, found) = fields.get(1)?.rsplit_once(':')?;
        let is_it = u16::from_str_radix(found, 16) == Ok(port) && *fields.get(3)? == LISTEN;
        is_it.then(|| fields.get(9)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let stat = "12 (a) (b c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1 0 100";
        assert_eq!(cpu_seconds(stat, 100), Some(2.0));
        assert_eq!(cpu_seconds("12 (a) S 1", 100), None);
        let status = "Name:\tx\nVmHWM:\t  40 kB\nVmRSS:\t  30 kB\nRssAnon:\t  10 kB\nRssFile:\t  20 kB\n";
        let expected =
            Memory { rss_bytes: 30 << 10, rss_anon_bytes: 10 << 10, rss_file_bytes: 20 << 10, rss_peak_bytes: 40 << 10 };
        assert_eq!(memory(status), Some(expected));
        assert_eq!(memory("VmRSS: many"), None);
        assert!(sample(std::process::id()).unwrap().memory.rss_bytes > 0);
    }

    #[test]
    fn the_listener_of_an_address_is_found() {
        let listening = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(listener(listening.local_addr().unwrap()), Some(std::process::id()));
        assert_eq!(listener("192.0.2.1:1".parse().unwrap()), None);
        let table = "head\n 0: 0100007F:19E9 00000000:0000 0A 0:0 0:0 0 1000 0 77 1\n 1: 0100007F:0001 0:0 01 0:0 0:0 0 0 0 78 1";
        assert_eq!(listening_inode(table, 6633), Some(77));
        assert_eq!(listening_inode(table, 1), None);
    }
}
