//! The word that was probably meant.

/// The candidate that is nearest to a word, if it is near enough to be a slip of the fingers.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = |candidate: &'a str| {
        let edits = distance(&word.to_lowercase(), &candidate.to_lowercase());
        (edits <= 1 + word.chars().count().max(candidate.chars().count()) / 3).then_some((edits, candidate))
    };
    candidates.into_iter().filter_map(near).min().map(|(_, candidate)| candidate)
}

/// "; did you mean ...?", or nothing.
pub fn suggestion<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, candidates).map(|candidate| format!("; did you mean {candidate:?}?")).unwrap_or_default()
}

/// Letters that must be inserted, removed or changed.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (index, letter) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, other) in right.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_named_unless_all_are_far() {
        let words = ["listen", "data", "leaseTime", "retryLimit"];
        assert_eq!(nearest("listn", words), Some("listen"));
        assert_eq!(nearest("leasetime", words), Some("leaseTime"));
        assert_eq!(nearest("date", words), Some("data"));
        assert_eq!(nearest("compression", words), None);
        assert_eq!(suggestion("listn", words), "; did you mean \"listen\"?");
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
