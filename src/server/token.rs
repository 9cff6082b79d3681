//! Comparing secrets.

use std::hint::black_box;

/// Whether both are the same, in a time that depends only on their lengths: how far a guess is right cannot be measured.
pub(super) fn is_same_secret(given: &str, expected: &str) -> bool {
    let (given, expected) = (given.as_bytes(), expected.as_bytes());
    let difference = (0..given.len().max(expected.len())).fold(0, |difference, index| {
        let (left, right) = (given.get(index).copied().unwrap_or(0), expected.get(index).copied().unwrap_or(0));
        black_box(difference | (left ^ right))
    });
    difference == 0 && given.len() == expected.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_text_is_the_same_secret() {
        assert!(is_same_secret("", ""));
        assert!(is_same_secret("secret", "secret"));
        for other in ["", "secre", "secret ", "secret\0", "Secret", "terces"] {
            assert!(!is_same_secret(other, "secret"), "{other:?}");
        }
    }
}
