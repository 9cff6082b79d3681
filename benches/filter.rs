//! Ten filters against a message with five attributes; the target is under one microsecond for all ten on one core.
#![expect(clippy::expect_used, reason = "the inputs are constants")]

#[path = "support/filters.rs"]
mod filters;

use criterion::{Criterion, criterion_group, criterion_main};
use fanlog::filter::Filter;
use fanlog::record::{Attributes, AttributesRef};
use std::hint::black_box;

use filters::{ATTRIBUTES, FILTERS};

fn evaluate(criterion: &mut Criterion) {
    let filters = FILTERS.map(|text| Filter::parse(text).expect("a valid filter"));
    let attributes = Attributes::from_json(ATTRIBUTES).expect("valid attributes");
    criterion.bench_function("evaluate_10_filters", |bencher| {
        bencher.iter(|| filters.iter().filter(|filter| filter.matches(black_box(attributes.view()))).count());
    });
    criterion.bench_function("check_attributes_and_evaluate_10_filters", |bencher| {
        bencher.iter(|| {
            let attributes = AttributesRef::parse(black_box(attributes.as_bytes())).expect("valid attributes");
            filters.iter().filter(|filter| filter.matches(attributes)).count()
        });
    });
    criterion.bench_function("parse_10_filters", |bencher| {
        bencher.iter(|| FILTERS.iter().filter(|text| Filter::parse(black_box(text)).is_ok()).count());
    });
}

criterion_group!(benches, evaluate);
criterion_main!(benches);
