//! What this machine can do without us: the numbers that a log can come near to and not pass.
//!
//! ```text
//! limits DIRECTORY [BYTES [CONNECTIONS [SIZE BATCH]]]
//! ```
//!
//! Prints one JSON object: `fdatasync` of BYTES in a file that was written before, writing one file from front to back, round trips
//! of 64 bytes over loopback with CONNECTIONS connections, `sendfile` of a file in memory over loopback, and zstd level 1 on batches
//! of BATCH messages of SIZE bytes as `fanlog bench` pushes them, on one processor and on all. The file lies in DIRECTORY and is
//! removed.

// What `fanlog bench` pushes, without what proves it.
#[allow(dead_code)]
#[path = "../src/cli/bench/payload.rs"]
mod payload;

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use fanlog::model::Compression;
use fanlog::record::BatchBuilder;
use hdrhistogram::Histogram;
use payload::{Content, Samples};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Time for each measurement.
const TIME: Duration = Duration::from_millis(500);
/// The file that is synced in turn, and sent.
const FILE_BYTES: u64 = 256 << 20;
/// Bytes of batches that zstd goes through in turn.
const BATCH_BYTES: usize = 8 << 20;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("usage: limits DIRECTORY [BYTES [CONNECTIONS [SIZE BATCH]]]")?;
    let bytes = arguments.next().map_or(Ok(4096), |text| text.parse::<usize>())?.max(1);
    let connections = arguments.next().map_or(Ok(1), |text| text.parse::<usize>())?.max(1);
    let size = arguments.next().map_or(Ok(1024), |text| text.parse::<usize>())?.max(payload::PAYLOAD_BYTES_MIN);
    let batch = arguments.next().map_or(Ok(100), |text| text.parse::<usize>())?.max(1);
    let path = Path::new(&directory).join(format!("limits-{}.tmp", std::process::id()));
    let measured = measure(&path, bytes, connections, &batches(size, batch));
    std::fs::remove_file(&path)?;
    println!("{}", measured?);
    Ok(())
}

fn measure(path: &Path, bytes: usize, connections: usize, batches: &Batches) -> Result<Value> {
    let file = OpenOptions::new().create_new(true).read(true).write(true).open(path)?;
    let sequential = write_through(&file)?;
    let (syncs_per_second, sync_latency) = sync_in_turn(&file, bytes)?;
    let (echoes_per_second, echo_latency) = echo(connections)?;
    Ok(json!({
        "sync_bytes": bytes,
        "syncs_per_second": syncs_per_second.round(),
        "sync_us": percentiles(&sync_latency),
        "write_bytes_per_second": sequential.round(),
        "connections": connections,
        "echoes_per_second": echoes_per_second.round(),
        "echo_us": percentiles(&echo_latency),
        "sendfile_bytes_per_second": send_file(path)?.round(),
        "zstd_one_core": zstd_alone(batches, 1)?,
        "zstd_all_cores": zstd_alone(batches, thread::available_parallelism()?.get())?,
    }))
}

/// Batches as the log stores them, before and after zstd.
struct Batches {
    messages: usize,
    plain: Vec<Vec<u8>>,
    packed: Vec<Vec<u8>>,
    /// Whether they shrink enough to be stored compressed.
    is_worth_it: bool,
}

fn batches(size: usize, messages: usize) -> Batches {
    let mut samples = Samples::new(1, size, Content::Json);
    let mut batches = Batches { messages, plain: Vec::new(), packed: Vec::new(), is_worth_it: true };
    for _ in 0..(BATCH_BYTES / (size * messages)).max(1) {
        let (mut plain, mut packed) = (BatchBuilder::new(), BatchBuilder::new());
        for _ in 0..messages {
            let payload = samples.sample().payload;
            plain.push_parts(None, None, &payload);
            packed.push_parts(None, None, &payload);
        }
        batches.plain.push(plain.finish(Compression::None).payload.to_vec());
        let packed = packed.finish(Compression::Zstd { level: 1 });
        batches.is_worth_it &= packed.codec != 0;
        batches.packed.push(packed.payload.to_vec());
    }
    batches
}

/// Messages a second that so many threads compress and decompress with nothing else to do, and bytes of a message afterwards; null if
/// such batches are stored as they are.
fn zstd_alone(batches: &Batches, threads: usize) -> Result<Value> {
    if !batches.is_worth_it {
        return Ok(Value::Null);
    }
    let room = batches.plain.iter().map(Vec::len).max().unwrap_or(0);
    let compress = || {
        let mut context = zstd_safe::CCtx::create();
        let mut target = Vec::with_capacity(zstd_safe::compress_bound(room));
        move |batch: usize| context.compress(&mut target, &batches.plain[batch], 1).is_ok()
    };
    let decompress = || {
        let mut context = zstd_safe::DCtx::create();
        let mut target = Vec::with_capacity(room);
        move |batch: usize| context.decompress(&mut target, &batches.packed[batch]).is_ok()
    };
    let bytes: usize = batches.packed.iter().map(Vec::len).sum();
    let messages = batches.messages * batches.packed.len();
    Ok(json!({
        "compress_messages_per_second": (in_turn(batches, threads, compress)?).round(),
        "decompress_messages_per_second": (in_turn(batches, threads, decompress)?).round(),
        "bytes_per_message": (bytes as f64 / messages as f64 * 100.0).round() / 100.0,
    }))
}

fn in_turn<W: FnMut(usize) -> bool>(batches: &Batches, threads: usize, make: impl Fn() -> W + Sync) -> Result<f64> {
    let start = Instant::now();
    let done = thread::scope(|scope| {
        let work = || {
            let mut work = make();
            let mut done = 0;
            while start.elapsed() < TIME {
                if !work(done % batches.plain.len()) {
                    return Err("zstd failed");
                }
                done += 1;
            }
            Ok(done)
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or(Err("zstd failed"))).sum::<std::result::Result<usize, _>>()
    })?;
    Ok((done * batches.messages) as f64 / start.elapsed().as_secs_f64())
}

/// Writes the whole file and syncs it once.
fn write_through(file: &File) -> Result<f64> {
    let block = noise(1 << 20);
    let start = Instant::now();
    for number in 0..FILE_BYTES / block.len() as u64 {
        file.write_all_at(&block, number * block.len() as u64)?;
    }
    file.sync_data()?;
    Ok(FILE_BYTES as f64 / start.elapsed().as_secs_f64())
}

/// Writes `bytes` behind each other and syncs each time; all blocks of the file exist and were written before.
fn sync_in_turn(file: &File, bytes: usize) -> Result<(f64, Histogram<u64>)> {
    let block = noise(bytes);
    let mut latency = histogram()?;
    let mut position = 0;
    let start = Instant::now();
    while start.elapsed() < TIME {
        let before = Instant::now();
        file.write_all_at(&block, position)?;
        file.sync_data()?;
        latency.saturating_record(before.elapsed().as_nanos() as u64);
        position += bytes as u64;
        if position + bytes as u64 > FILE_BYTES {
            position = 0;
        }
    }
    Ok((latency.len() as f64 / start.elapsed().as_secs_f64(), latency))
}

/// Round trips of one small request, one in flight on each connection; a thread at each end serves all connections.
fn echo(connections: usize) -> Result<(f64, Histogram<u64>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = thread::spawn(move || -> Result<()> {
        let streams = (0..connections).map(|_| Ok(listener.accept()?.0)).collect::<Result<Vec<_>>>()?;
        each_ready(&streams, || true, |mut stream, bytes| Ok(stream.write_all(bytes)?))
    });
    let streams = (0..connections).map(|_| Ok(TcpStream::connect(address)?)).collect::<Result<Vec<_>>>()?;
    for stream in &streams {
        stream.set_nodelay(true)?;
    }
    let mut latency = histogram()?;
    let mut sent: Vec<Instant> = Vec::new();
    let start = Instant::now();
    for mut stream in &streams {
        sent.push(Instant::now());
        stream.write_all(&[1; 64])?;
    }
    let places: std::collections::HashMap<_, _> = streams.iter().zip(0..).map(|(stream, place)| (key(stream), place)).collect();
    each_ready(
        &streams,
        || start.elapsed() < TIME,
        |mut stream, bytes| {
            let place: usize = places[&key(stream)];
            latency.saturating_record(sent[place].elapsed().as_nanos() as u64);
            sent[place] = Instant::now();
            Ok(stream.write_all(bytes)?)
        },
    )?;
    let rate = latency.len() as f64 / start.elapsed().as_secs_f64();
    drop(streams);
    server.join().map_err(|_| "the echo failed")??;
    Ok((rate, latency))
}

fn key(stream: &TcpStream) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(stream)
}

/// Reads what comes on any of the streams and hands it over, until that is enough or all are closed.
fn each_ready(
    streams: &[TcpStream],
    mut goes_on: impl FnMut() -> bool,
    mut each: impl FnMut(&TcpStream, &[u8]) -> Result<()>,
) -> Result<()> {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    for (stream, index) in streams.iter().zip(0..) {
        stream.set_nodelay(true)?;
        epoll::add(&epoll, stream, EventData::new_u64(index), EventFlags::IN)?;
    }
    let mut open = streams.len();
    let mut events = Vec::with_capacity(256);
    let mut buffer = [0; 4096];
    while open > 0 && goes_on() {
        events.clear();
        epoll::wait(&epoll, spare_capacity(&mut events), None)?;
        for event in &events {
            let mut stream = &streams[event.data.u64() as usize];
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => {
                    epoll::delete(&epoll, stream)?;
                    open -= 1;
                }
                Ok(read) => each(stream, &buffer[..read])?,
            }
        }
    }
    Ok(())
}

/// Sends the file, which is in memory, again and again to one reader.
fn send_file(path: &Path) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let file = File::open(path)?;
    let sender = thread::spawn(move || -> Result<()> {
        let (stream, _) = listener.accept()?;
        let start = Instant::now();
        while start.elapsed() < TIME {
            let mut offset = 0;
            while offset < FILE_BYTES && start.elapsed() < TIME {
                rustix::fs::sendfile(&stream, &file, Some(&mut offset), 1 << 20)?;
            }
        }
        Ok(())
    });
    let mut stream = TcpStream::connect(address)?;
    let mut buffer = vec![0; 1 << 20];
    let (mut total, start) = (0u64, Instant::now());
    loop {
        match stream.read(&mut buffer)? {
            0 => break,
            read => total += read as u64,
        }
    }
    let rate = total as f64 / start.elapsed().as_secs_f64();
    sender.join().map_err(|_| "sending failed")??;
    Ok(rate)
}

fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 60_000_000_000, 3)?)
}

fn percentiles(latency: &Histogram<u64>) -> Value {
    let at = |quantile: f64| latency.value_at_quantile(quantile) as f64 / 1000.0;
    json!({ "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p999": at(0.999), "max": latency.max() as f64 / 1000.0 })
}

/// Bytes that no disk or file system shortens.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
