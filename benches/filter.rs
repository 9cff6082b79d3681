//! Ten filters against a message with five attributes; the target is under one microsecond for all ten on one core.
#![expect(clippy::expect_used, reason = "the inputs are constants")]

use criterion::{Criterion, criterion_group, criterion_main};
use fanlog::filter::Filter;
use fanlog::record::{Attributes, AttributesRef};
use std::hint::black_box;

const MESSAGE: &str = r#"{"age":40.5,"location":"Chicago","name":"Bob","region":"us-ashburn-1","team":"exec-expenses"}"#;

const FILTERS: [&str; 10] = [
    ":region",
    "NOT :priority",
    r#":team = "exec-expenses""#,
    r#":region != "eu-frankfurt-1""#,
    r#"hasPrefix(:region, "us-")"#,
    r#"hasSuffix(:name, "ob")"#,
    ":age >= 40",
    r#":name = "Bob" AND :age = 40"#,
    r#":name = "Alice" OR :age < 18 OR :location = "Boston""#,
    r#":name = "Bob" AND NOT (:age > 40 OR :location = "Chicago")"#,
];

fn evaluate(criterion: &mut Criterion) {
    let filters = FILTERS.map(|text| Filter::parse(text).expect("a valid filter"));
    let attributes = Attributes::from_json(MESSAGE).expect("valid attributes");
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
