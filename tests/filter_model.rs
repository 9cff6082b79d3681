//! Random filters and attributes against the model.
#![expect(clippy::expect_used, reason = "a test may fail")]

#[path = "support/filter_model.rs"]
mod model;

#[test]
fn the_library_judges_as_the_model_does() {
    let start = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    println!("seed {start}");
    let mut state = start;
    for _ in 0..20_000 {
        let mut bytes = [0; 160];
        for chunk in bytes.chunks_mut(8) {
            // SplitMix64.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = state;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            chunk.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes());
        }
        model::check(&mut model::Source::new(&bytes));
    }
}
