//! Out of file descriptors.

use std::time::{Duration, Instant};

use fanlog::record::Message;
use tokio::net::TcpStream;

use crate::hostile::push_of;
use crate::program::{Launch, PATIENCE, Program};

/// Time that the process has spent on a processor.
fn processor_time(program: &Program) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", program.pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_file_descriptors_it_serves_whom_it_has_and_recovers() {
    let directory = tempfile::tempdir().unwrap();
    let mut program = Launch::in_directory(directory.path()).ulimit("-n 64").start();
    let client = program.client().await;
    client.push(&push_of("q", "p", vec![b"before".to_vec()])).await.unwrap();
    let mut crowd = Vec::new();
    for _ in 0..200 {
        crowd.push(TcpStream::connect(&program.address).await.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (started, before) = (Instant::now(), processor_time(&program));
    let mut refused = 0;
    // Rolls need files; what there is no file for is refused and harms nothing else.
    for number in 0..40u8 {
        if client.push(&push_of("q", "p", vec![vec![number; 100 << 10]])).await.is_err() {
            refused += 1;
        }
    }
    let _ = client.push(&push_of("another", "p", vec![b"m".to_vec()])).await;
    assert!(program.is_running());
    client.ping().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1).saturating_sub(started.elapsed())).await;
    let idle_before = processor_time(&program);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let idle = processor_time(&program) - idle_before;
    assert!(idle < Duration::from_millis(500), "it spins: {idle:?} of a second");
    drop(crowd);
    let started = Instant::now();
    let newcomer = loop {
        match program.builder().connect_timeout(Duration::from_secs(2)).connect().await {
            Ok(newcomer) => break newcomer,
            Err(error) => assert!(started.elapsed() < PATIENCE, "nobody gets in: {error}"),
        }
    };
    let producer = newcomer.producer("q").build();
    producer.send_to("p", Message::new("after")).await.unwrap();
    newcomer.push(&push_of("another", "p", vec![b"m".to_vec()])).await.unwrap();
    println!("{refused} of 40 pushes refused without files, {:?} of processor time", idle_before - before);
    program.stop();
}
