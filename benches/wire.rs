//! Frames of the hot path: a push of a hundred messages, plain and packed, and a reply with whole stored batches.
#![expect(clippy::expect_used, reason = "the inputs are constants")]

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use fanlog::model::{BatchSlice, Claim, Compression, OffsetRange, PopReply, PushItem, PushRequest};
use fanlog::protocol::{Operation, Request, Response};
use fanlog::record::{BatchBuilder, Message};

fn messages() -> Vec<Message> {
    (0..100).map(|number| Message::new(format!("{{\"order\":{number},\"text\":\"{}\"}}", "x".repeat(220)))).collect()
}

fn push(items: PushItem) -> Request {
    Request::Push(PushRequest { queue: "orders".to_owned(), partition: "p".to_owned(), items, producer: Some((1, 0, 0)) })
}

fn pushes(criterion: &mut Criterion) {
    let mut builder = BatchBuilder::new();
    messages().iter().for_each(|message| builder.push(message));
    let packed = push(PushItem::Packed(builder.finish(Compression::Zstd { level: 1 })));
    for (name, request) in [("plain", push(PushItem::Messages(messages()))), ("packed", packed)] {
        criterion.bench_function(&format!("encode_push_of_100_{name}"), |bencher| {
            bencher.iter(|| black_box(&request).encode(7).len());
        });
        // Length field and header stand before the body.
        let body: Bytes = request.encode(7).into_bytes().slice(12..);
        criterion.bench_function(&format!("decode_push_of_100_{name}"), |bencher| {
            bencher.iter(|| Request::decode(Operation::Push.number(), black_box(&body)).expect("a request"));
        });
    }
}

fn pops(criterion: &mut Criterion) {
    let batches = (0..50).map(|_| BatchSlice::Whole(Bytes::from(vec![7u8; 12 << 10]))).collect();
    let claim = Claim {
        queue: "orders".to_owned(),
        partition: "p".to_owned(),
        partition_id: 0,
        incarnation: 1,
        range: OffsetRange { first: 0, last: 4999 },
        delivery_count: 1,
        last_error: String::new(),
        lost: None,
        batches,
    };
    let reply = Response::Pop(PopReply { lease_id: "1-1".to_owned(), lease_expires_at_us: 1, claims: vec![claim] });
    criterion.bench_function("encode_pop_of_50_whole_batches", |bencher| {
        bencher.iter(|| black_box(&reply).encode(7, false).len());
    });
}

criterion_group!(benches, pushes, pops);
criterion_main!(benches);
