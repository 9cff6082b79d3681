//! Both halves over in-memory streams, with paused time.

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use crate::model::{PushItem, PushRequest};
use crate::protocol::{Chunks, FRAME_BYTES_MAX, HELLO_FRAME_BYTES_MAX, Ping, Request, encode_call};
use crate::record::Message;

use super::*;

const STALL: Duration = Duration::from_secs(5);

fn reader(stream: DuplexStream) -> FrameReader<DuplexStream> {
    FrameReader::new(stream, ReadPace::default())
}

fn ping(nonce: u64) -> Chunks {
    encode_call(&Ping { nonce }, nonce as u32)
}

fn push(payload_bytes: usize) -> (Request, Bytes) {
    let payload = Bytes::from((0..payload_bytes).map(|index| index as u8).collect::<Vec<u8>>());
    let items = PushItem::Messages(vec![Message::new(payload)]);
    let request = Request::Push(PushRequest { queue: "q".into(), partition: "p".into(), items, producer: None });
    let bytes = request.encode(9).into_bytes();
    (request, bytes)
}

#[tokio::test]
async fn frames_arrive_in_order_however_they_are_cut() {
    for piece in [1, 3, 7, 1000] {
        let (mut near, far) = duplex(64);
        let mut reader = reader(far);
        let sender = tokio::spawn(async move {
            let bytes = [ping(1).into_bytes(), ping(2).into_bytes(), ping(3).into_bytes()].concat();
            for piece in bytes.chunks(piece) {
                near.write_all(piece).await.unwrap();
            }
        });
        for nonce in 1..=3 {
            assert_eq!(reader.read().await.unwrap().unwrap().correlation_id, nonce);
        }
        assert!(reader.read().await.unwrap().is_none());
        sender.await.unwrap();
    }
}

#[tokio::test]
async fn an_end_between_frames_is_clean_and_inside_a_frame_an_error() {
    let bytes = ping(1).into_bytes();
    for cut in 1..bytes.len() {
        let (mut near, far) = duplex(64);
        near.write_all(&bytes[..cut]).await.unwrap();
        drop(near);
        let error = reader(far).read().await.unwrap_err();
        assert!(matches!(error, NetError::ClosedInsideFrame { received } if received == cut), "cut at {cut}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_length_is_told_before_the_frame_has_come_and_time_spent_elsewhere_can_be_given_back() {
    let (mut near, far) = duplex(64);
    let mut reader = reader(far);
    let bytes = ping(1).into_bytes();
    near.write_all(&bytes[..4]).await.unwrap();
    assert_eq!(reader.frame_length().await.unwrap(), Some(bytes.len()));
    assert!(!reader.has_frame());
    let elsewhere = ReadPace::default().grace * 2;
    tokio::time::advance(elsewhere).await;
    reader.restart_pace();
    near.write_all(&bytes[4..6]).await.unwrap();
    tokio::time::timeout(Duration::from_secs(1), reader.read()).await.unwrap_err();
    near.write_all(&bytes[6..]).await.unwrap();
    assert_eq!(reader.read().await.unwrap().unwrap().correlation_id, 1);
    drop(near);
    assert_eq!(reader.frame_length().await.unwrap(), None);
}

#[tokio::test]
async fn a_length_over_the_limit_is_refused_before_its_bytes_come() {
    let (mut near, far) = duplex(64);
    near.write_all(&(HELLO_FRAME_BYTES_MAX as u32 + 1).to_le_bytes()).await.unwrap();
    let error = reader(far).read().await.unwrap_err();
    assert!(matches!(error, NetError::Protocol(ProtocolError::FrameTooLarge { .. })), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_claimed_length_costs_no_memory_and_ends_at_the_deadline() {
    let (mut near, far) = duplex(64);
    let mut reader = reader(far);
    reader.set_frame_bytes_max(FRAME_BYTES_MAX);
    near.write_all(&(FRAME_BYTES_MAX as u32).to_le_bytes()).await.unwrap();
    near.write_all(&[0; 8]).await.unwrap();
    let error = reader.read().await.unwrap_err();
    assert!(matches!(error, NetError::FrameTimeout { elapsed } if elapsed >= ReadPace::default().grace), "{error}");
    assert!(reader.buffer.capacity() <= 2 * super::reader::READ_BYTES_MIN, "{} bytes", reader.buffer.capacity());
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_has_no_deadline_and_a_slow_frame_does() {
    let (mut near, far) = duplex(64);
    let mut reader = reader(far);
    let sender = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        near.write_all(&ping(1).into_bytes()).await.unwrap();
        for byte in ping(2).into_bytes() {
            tokio::time::sleep(Duration::from_secs(3)).await;
            near.write_all(&[byte]).await.unwrap();
        }
    });
    assert_eq!(reader.read().await.unwrap().unwrap().correlation_id, 1);
    assert!(matches!(reader.read().await, Err(NetError::FrameTimeout { .. })));
    sender.abort();
}

#[tokio::test(start_paused = true)]
async fn a_large_frame_at_a_fair_rate_outlives_the_grace() {
    let (_, bytes) = push(4 << 20);
    let (mut near, far) = duplex(256 << 10);
    let mut reader = reader(far);
    reader.set_frame_bytes_max(FRAME_BYTES_MAX);
    let sent = bytes.clone();
    let sender = tokio::spawn(async move {
        for piece in sent.chunks(128 << 10) {
            tokio::time::sleep(Duration::from_secs(1)).await;
            near.write_all(piece).await.unwrap();
        }
    });
    let frame = reader.read().await.unwrap().unwrap();
    sender.await.unwrap();
    assert_eq!(frame.body, bytes.slice(12..));
}

#[tokio::test]
async fn a_cancelled_read_or_write_goes_on_where_it_was() {
    let (near, far) = duplex(16);
    let mut reader = reader(far);
    let mut writer = FrameWriter::new(near, STALL);
    reader.set_frame_bytes_max(FRAME_BYTES_MAX);
    let (request, bytes) = push(5000);
    writer.queue(request.encode(9));
    let frame = loop {
        tokio::select! {
            biased;
            frame = reader.read() => break frame.unwrap().unwrap(),
            _ = async { tokio::select! { biased; flushed = writer.flush() => flushed.unwrap(), () = tokio::task::yield_now() => () } } => (),
        }
    };
    assert_eq!(frame.body, bytes.slice(12..));
    assert_eq!(writer.queued_bytes(), 0);
}

#[tokio::test]
async fn many_pieces_are_written_as_one_string() {
    let (near, mut far) = duplex(1 << 10);
    let mut writer = FrameWriter::new(near, STALL);
    let mut expected = Vec::new();
    for size in [0, 1, 4096, 10_000, 8192] {
        let (request, bytes) = push(size);
        (0..40).for_each(|_| {
            writer.queue(request.encode(9));
            expected.extend_from_slice(&bytes);
        });
    }
    assert_eq!(writer.queued_bytes(), expected.len());
    let sender = tokio::spawn(writer.close());
    let mut received = Vec::new();
    far.read_to_end(&mut received).await.unwrap();
    sender.await.unwrap().unwrap();
    assert!(received == expected);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_nothing_is_given_up() {
    let (near, _far) = duplex(64);
    let mut writer = FrameWriter::new(near, STALL);
    let error = writer.send(push(5000).0.encode(9)).await.unwrap_err();
    assert!(matches!(error, NetError::WriteStalled { .. }), "{error}");
}
