//! A small HTTP client: one connection, kept alive, JSON in and out.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub text: String,
}

impl Answer {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("answer is not JSON ({error}): {self:?}"))
    }

    /// The body as JSON, if the status is the expected one.
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        if self.text.is_empty() { Value::Null } else { self.json() }
    }
}

/// A connection.
pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    /// From an address of this machine.
    pub fn connect_from(from: IpAddr, address: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let stream = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::new(from, 0)).unwrap();
            socket.connect(address).await.unwrap().into_std().unwrap()
        });
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub fn get(&mut self, path: &str) -> Answer {
        self.send("GET", path, None)
    }

    pub fn post(&mut self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, Some(body.to_string().as_bytes()))
    }

    pub fn delete(&mut self, path: &str) -> Answer {
        self.send("DELETE", path, None)
    }

    /// Sends a request and reads the answer.
    pub fn send(&mut self, method: &str, path: &str, body: Option<&[u8]>) -> Answer {
        self.request(method, path, body);
        self.answer()
    }

    /// Sends a request.
    pub fn request(&mut self, method: &str, path: &str, body: Option<&[u8]>) {
        let length = body.map_or(0, <[u8]>::len);
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        self.raw(head.as_bytes());
        self.raw(body.unwrap_or_default());
    }

    /// Sends bytes.
    pub fn raw(&mut self, bytes: &[u8]) {
        // A server that has refused already may have closed its side: its answer is still there to be read.
        let _ = self.stream.get_mut().write_all(bytes);
    }

    /// Waits until the server closes.
    pub fn is_closed(&mut self) -> bool {
        self.stream.read_to_end(&mut Vec::new()).is_ok()
    }

    /// Waits until an answer begins.
    pub fn await_answer(&mut self) {
        assert!(!self.stream.fill_buf().unwrap().is_empty(), "the server closed the connection");
    }

    /// Reads an answer, if the server has not closed the connection.
    pub fn try_answer(&mut self) -> Option<Answer> {
        self.stream.fill_buf().is_ok_and(|bytes| !bytes.is_empty()).then(|| self.answer())
    }

    /// Reads an answer.
    pub fn answer(&mut self) -> Answer {
        let mut head = String::new();
        loop {
            let mut line = String::new();
            assert!(self.stream.read_line(&mut line).unwrap() > 0, "the server closed the connection: {head}");
            if line == "\r\n" {
                break;
            }
            head.push_str(&line.to_lowercase());
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |text| text.parse().unwrap());
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).unwrap();
        Answer { status, head, text: String::from_utf8(body).unwrap() }
    }
}
