//! Threads that push and pop over one side's connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::server::{self, Server};
use super::side::{Binary, Side};

/// Different requests that a connection has in stock, so that not every batch is the same.
const STOCK: usize = 8;

/// What was measured.
pub struct Outcome {
    pub messages: usize,
    pub seconds: f64,
    pub server_cpu: f64,
    pub own_cpu: f64,
}

impl Outcome {
    /// Messages a second.
    pub fn rate(&self) -> f64 {
        self.messages as f64 / self.seconds
    }
}

/// Runs one thread for each connection; what they return is added up.
fn measure(server: &Server, workers: Vec<Box<dyn FnOnce() -> usize + Send>>) -> Outcome {
    let (server_before, own_before, start) = (server.cpu(), server::cpu("self"), Instant::now());
    let threads: Vec<_> = workers.into_iter().map(std::thread::spawn).collect();
    let messages = threads.into_iter().map(|thread| thread.join().expect("a connection")).sum();
    Outcome {
        messages,
        seconds: start.elapsed().as_secs_f64(),
        server_cpu: server.cpu() - server_before,
        own_cpu: server::cpu("self") - own_before,
    }
}

/// Pushes until a moment, each connection to a partition of its own.
pub fn push(
    server: &Server,
    side: &Arc<dyn Side>,
    queue: &str,
    connections: usize,
    batch: usize,
    size: usize,
    until: Instant,
) -> Outcome {
    let workers = (0..connections).map(|connection| {
        let mut link = side.connect();
        let stock = stock(&**side, queue, connection, batch, size);
        let work = move || {
            let mut messages = 0;
            for request in stock.iter().cycle() {
                if Instant::now() >= until {
                    break;
                }
                link.push(request, batch);
                messages += batch;
            }
            messages
        };
        Box::new(work) as Box<dyn FnOnce() -> usize + Send>
    });
    let workers = workers.collect();
    measure(server, workers)
}

/// Pops and acknowledges all of a backlog in a group of the side's own.
pub fn pop(server: &Server, side: &Arc<dyn Side>, queue: &str, connections: usize, batch: usize, backlog: usize) -> Outcome {
    let done = Arc::new(AtomicUsize::new(0));
    let workers = (0..connections).map(|_| {
        let mut link = side.connect();
        link.prepare_pop(queue, side.name(), batch);
        let done = Arc::clone(&done);
        let work = move || {
            let mut own = 0;
            while done.load(Ordering::Relaxed) < backlog {
                let messages = link.pop();
                done.fetch_add(messages, Ordering::Relaxed);
                own += messages;
            }
            own
        };
        Box::new(work) as Box<dyn FnOnce() -> usize + Send>
    });
    let workers = workers.collect();
    let outcome = measure(server, workers);
    assert_eq!(outcome.messages, backlog, "messages of the backlog came once each");
    outcome
}

/// Messages that wait to be popped.
pub struct Backlog {
    pub messages: usize,
    pub batch: usize,
    pub size: usize,
}

impl Backlog {
    /// Pushes them over the binary protocol into one partition for each connection.
    pub fn push(&self, tcp: &str, queue: &str, connections: usize) {
        let side = Binary::new(tcp, false);
        let each = self.messages / connections / self.batch;
        assert_eq!(each * connections * self.batch, self.messages, "the backlog is whole batches of each connection");
        let threads: Vec<_> = (0..connections)
            .map(|connection| {
                let mut link = side.connect();
                let stock = stock(&side, queue, connection, self.batch, self.size);
                let batch = self.batch;
                std::thread::spawn(move || stock.iter().cycle().take(each).for_each(|request| link.push(request, batch)))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("a connection"));
    }
}

fn stock(side: &dyn Side, queue: &str, connection: usize, batch: usize, size: usize) -> Vec<Vec<u8>> {
    let partition = format!("p{connection}");
    (0..STOCK)
        .map(|number| {
            let payloads: Vec<String> =
                (0..batch).map(|index| payload((connection * STOCK + number) * batch + index, size)).collect();
            side.push_request(queue, &partition, &payloads)
        })
        .collect()
}

/// An object of exactly so many bytes that looks like an event: some fields, and words that compress as text does.
fn payload(number: usize, size: usize) -> String {
    const WORDS: [&str; 8] = ["order", "created", "customer", "amount", "berlin", "pending", "express", "invoice"];
    let mut state = number as u64 + 1;
    let mut text = format!("{{\"id\":{number},\"note\":\"");
    while text.len() < size {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(WORDS[(state >> 61) as usize]);
        text.push_str(&format!("-{:04x} ", state >> 40 & 0xffff));
    }
    text.truncate(size - 2);
    text.push_str("\"}");
    text
}
