//! PostgreSQL: a table with a growing number; a batch is one prepared INSERT of an array, a pop one statement that moves a cursor
//! row and returns the messages that it passed.

use std::io::Write;
use std::net::TcpStream;

use super::{Frames, Order, Outcome, Peer, Work, big_endian_u32, group, payload, read_until};

const INSERT: &str = "INSERT INTO bench(payload) SELECT unnest($1::bytea[])";

pub struct Postgres {
    work: Work,
    request: Vec<u8>,
    frames: Frames,
    rows: usize,
    batch: usize,
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

fn is_ready(answer: &[u8]) -> bool {
    answer.ends_with(b"Z\0\0\0\x05I")
}

impl Postgres {
    pub fn open(mut stream: &TcpStream, order: &Order) -> Outcome<Self> {
        let user = b"\0\x03\0\0user\0bench\0database\0postgres\0\0";
        stream.write_all(&(user.len() as u32 + 4).to_be_bytes())?;
        stream.write_all(user)?;
        read_until(stream, is_ready)?;
        let statement = match order.work {
            Work::Push => INSERT.to_owned(),
            _ => format!(
                "WITH moved AS (UPDATE cursors SET next = next + {0} WHERE name = '{1}' RETURNING next) \
                 SELECT bench.payload FROM moved, bench WHERE bench.id > moved.next - {0} AND bench.id <= moved.next ORDER BY bench.id",
                order.batch,
                group()
            ),
        };
        if order.work != Work::Push {
            let cursor = format!("INSERT INTO cursors VALUES ('{}', 0) ON CONFLICT DO NOTHING\0", group());
            stream.write_all(&message(b'Q', cursor.as_bytes()))?;
            read_until(stream, is_ready)?;
        }
        let parse = message(b'P', format!("s\0{statement}\0\0\0").as_bytes());
        stream.write_all(&[parse, message(b'S', b"")].concat())?;
        let answer = read_until(stream, is_ready)?;
        if answer.first() == Some(&b'E') {
            return Err(String::from_utf8_lossy(&answer).into());
        }
        let request = [bind(order), message(b'E', b"\0\0\0\0\0"), message(b'S', b"")].concat();
        Ok(Self { work: order.work, request, frames: Frames::default(), rows: 0, batch: order.batch })
    }
}

/// The parameters in binary: one array of byte strings for a push, none for a pop. The result is binary too.
fn bind(order: &Order) -> Vec<u8> {
    let mut body = b"\0s\0\0\x01\0\x01".to_vec();
    match order.work {
        Work::Push => {
            const BYTEA: u32 = 17;
            let mut array = Vec::new();
            for number in [1, 0, BYTEA, order.batch as u32, 1] {
                array.extend_from_slice(&number.to_be_bytes());
            }
            let payload = payload(order.size);
            for _ in 0..order.batch {
                array.extend_from_slice(&(payload.len() as u32).to_be_bytes());
                array.extend_from_slice(&payload);
            }
            body.extend_from_slice(b"\0\x01");
            body.extend_from_slice(&(array.len() as u32).to_be_bytes());
            body.extend_from_slice(&array);
        }
        _ => body.extend_from_slice(b"\0\0"),
    }
    body.extend_from_slice(b"\0\x01\0\x01");
    message(b'B', &body)
}

impl Peer for Postgres {
    fn request(&mut self) -> &[u8] {
        &self.request
    }

    fn take(&mut self, bytes: &[u8]) -> Outcome<usize> {
        let (mut done, work, batch) = (0, self.work, self.batch);
        let rows = &mut self.rows;
        self.frames.take(
            bytes,
            |bytes| Some(big_endian_u32(bytes, 1)? + 1),
            |frame| {
                match frame[0] {
                    b'E' => return Err(String::from_utf8_lossy(frame).into()),
                    b'D' => *rows += 1,
                    // Nothing more comes of this request.
                    b'Z' => {
                        done += if work == Work::Push { batch } else { *rows };
                        *rows = 0;
                    }
                    _ => (),
                }
                Ok(())
            },
        )?;
        Ok(done)
    }
}
