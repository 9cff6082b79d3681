//! Connections of nobody known, on both ports.

use std::net::SocketAddr;

use fanlog::model::{Compression, SettingsPatch};
use tokio::net::TcpSocket;

use crate::hostile::push_of;
use crate::program::Launch;

/// Connections of nobody known used to take every file, and pushes of others that needed a new segment failed for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_leave_files_to_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let program = Launch::in_directory(directory.path()).ulimit("-n 200").http().start();
    let client = program.client().await;
    let settings = SettingsPatch { segment_bytes_max: Some(1 << 20), compression: Some(Compression::None), ..Default::default() };
    client.create_queue("q", settings).await.unwrap();
    let mut crowd = Vec::new();
    for address in [program.http.as_ref().unwrap(), &program.address] {
        for number in 0..100u8 {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::from(([127, 0, 0, 2 + number / 20], 0))).unwrap();
            crowd.push(socket.connect(address.parse().unwrap()).await.unwrap());
        }
    }
    for number in 0..40u8 {
        client.push(&push_of("q", "p", vec![vec![number; 100 << 10]])).await.unwrap();
    }
    let files = std::fs::read_dir(format!("/proc/{}/fd", program.pid())).unwrap().count();
    assert!((100..180).contains(&files), "{files} files");
    assert!(program.words().contains("the limit of open files, 200, leaves room for 50 connections to a port"));
    drop(crowd);
    program.stop();
}
