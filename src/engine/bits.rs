//! A growing set of small numbers, one bit each.

/// A set of partition numbers.
#[derive(Debug, Default)]
pub(super) struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// Whether `at` is in the set.
    pub fn contains(&self, at: u32) -> bool {
        self.words.get(at as usize / 64).is_some_and(|word| word & (1 << (at % 64)) != 0)
    }

    /// Puts `at` in; whether it was not in before.
    pub fn insert(&mut self, at: u32) -> bool {
        let word = at as usize / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let before = self.words[word];
        self.words[word] |= 1 << (at % 64);
        before != self.words[word]
    }

    /// Takes `at` out; whether it was in.
    pub fn remove(&mut self, at: u32) -> bool {
        let was_in = self.contains(at);
        if was_in {
            self.words[at as usize / 64] &= !(1 << (at % 64));
        }
        was_in
    }
}
