//! Whether a text is JSON: asked of every payload that leaves over HTTP, where it is most of what the gateway itself does.
//!
//! Says what `serde_json` says of `IgnoredAny`, in less time: strings are looked through by vector instructions, and nothing is
//! built.

use serde::de::IgnoredAny;

/// Deeper nesting is left to `serde_json`: the levels here are the bits of a word.
const LEVELS_MAX: u32 = 64;

/// Whether all of a text is one JSON value.
pub(super) fn is_json(text: &str) -> bool {
    let mut reader = Reader { rest: text.as_bytes(), levels: 0, depth: 0 };
    match reader.read_all() {
        Some(()) => true,
        None if reader.is_too_deep() => serde_json::from_str::<IgnoredAny>(text).is_ok(),
        None => false,
    }
}

/// Reads one value; every function returns `None` where the text is not JSON.
struct Reader<'a> {
    rest: &'a [u8],
    /// The innermost level in the lowest bit; 1 is an object, 0 an array.
    levels: u64,
    depth: u32,
}

impl Reader<'_> {
    fn read_all(&mut self) -> Option<()> {
        loop {
            self.value_begins()?;
            // Behind a value: the ends of what is around it, then the next value.
            loop {
                self.skip_space();
                if self.depth == 0 {
                    return self.rest.is_empty().then_some(());
                }
                let is_object = self.levels & 1 == 1;
                match (self.next()?, is_object) {
                    (b',', true) => {
                        self.key()?;
                        break;
                    }
                    (b',', false) => break,
                    (b'}', true) | (b']', false) => self.leave(),
                    _ => return None,
                }
            }
        }
    }

    /// Reads up to the end of the first value that has no others in it, or is empty.
    fn value_begins(&mut self) -> Option<()> {
        loop {
            self.skip_space();
            match self.next()? {
                b'"' => return self.string(),
                b'{' => {
                    self.enter(true)?;
                    if self.ends(b'}') {
                        return Some(());
                    }
                    self.key()?;
                }
                b'[' => {
                    self.enter(false)?;
                    if self.ends(b']') {
                        return Some(());
                    }
                }
                b't' => return self.word(b"rue"),
                b'f' => return self.word(b"alse"),
                b'n' => return self.word(b"ull"),
                first => return self.number(first),
            }
        }
    }

    fn enter(&mut self, is_object: bool) -> Option<()> {
        self.depth += 1;
        self.levels = self.levels << 1 | u64::from(is_object);
        (!self.is_too_deep()).then_some(())
    }

    fn leave(&mut self) {
        self.depth -= 1;
        self.levels >>= 1;
    }

    fn is_too_deep(&self) -> bool {
        self.depth > LEVELS_MAX
    }

    /// Whether the object or array that just began ends at once; then it is left.
    fn ends(&mut self, end: u8) -> bool {
        self.skip_space();
        let is_end = self.rest.first() == Some(&end);
        if is_end {
            self.rest = &self.rest[1..];
            self.leave();
        }
        is_end
    }

    /// A member's name and the colon behind it.
    fn key(&mut self) -> Option<()> {
        self.skip_space();
        (self.next()? == b'"').then_some(())?;
        self.string()?;
        self.skip_space();
        (self.next()? == b':').then_some(())
    }

    /// The rest of a string, up to its closing quote.
    fn string(&mut self) -> Option<()> {
        loop {
            let end = memchr::memchr2(b'"', b'\\', self.rest)?;
            let (plain, rest) = self.rest.split_at(end);
            if plain.iter().fold(false, |has_control, &byte| has_control | (byte < 0x20)) {
                return None;
            }
            self.rest = &rest[1..];
            if rest[0] == b'"' {
                return Some(());
            }
            self.escape()?;
        }
    }

    /// What stands behind a backslash. Whether surrogates make pairs is not asked.
    fn escape(&mut self) -> Option<()> {
        match self.next()? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(()),
            b'u' => {
                let (digits, rest) = self.rest.split_at_checked(4)?;
                self.rest = rest;
                digits.iter().all(u8::is_ascii_hexdigit).then_some(())
            }
            _ => None,
        }
    }

    fn word(&mut self, rest_of_word: &[u8]) -> Option<()> {
        self.rest = self.rest.strip_prefix(rest_of_word)?;
        Some(())
    }

    fn number(&mut self, first: u8) -> Option<()> {
        let digit = if first == b'-' { self.next()? } else { first };
        match digit {
            b'0' => {}
            b'1'..=b'9' => self.skip_digits(),
            _ => return None,
        }
        if self.rest.first() == Some(&b'.') {
            self.rest = &self.rest[1..];
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.rest.first() {
            self.rest = &self.rest[1..];
            if let Some(b'+' | b'-') = self.rest.first() {
                self.rest = &self.rest[1..];
            }
            self.digits()?;
        }
        Some(())
    }

    /// One digit at least.
    fn digits(&mut self) -> Option<()> {
        self.next()?.is_ascii_digit().then_some(())?;
        self.skip_digits();
        Some(())
    }

    fn skip_digits(&mut self) {
        self.skip(|byte| byte.is_ascii_digit());
    }

    fn skip_space(&mut self) {
        self.skip(|byte| matches!(byte, b' ' | b'\n' | b'\t' | b'\r'));
    }

    fn skip(&mut self, is_skipped: impl Fn(u8) -> bool) {
        while let Some((&first, rest)) = self.rest.split_first()
            && is_skipped(first)
        {
            self.rest = rest;
        }
    }

    fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(text: &str) {
        assert_eq!(is_json(text), serde_json::from_str::<IgnoredAny>(text).is_ok(), "{text:?}");
    }

    #[test]
    fn every_kind_of_value_is_known_and_every_slip_is_seen() {
        for text in [
            "null",
            "true",
            "false",
            "0",
            "-0",
            "12",
            "1.5",
            "1e5",
            "1E+5",
            "-1.0e-09",
            "\"\"",
            "\"a\\u00e9\\n\\ud800\"",
            "[]",
            "{}",
            " [ ] ",
            "{ \"a\" : [ 1 , { } , [ ] ] , \"b\" : null }\n",
            "\"é🐝\u{7f}\u{2028}\"",
            "1e400",
            "[[],{}]",
        ] {
            assert!(is_json(text), "{text}");
            compare(text);
        }
        for text in [
            "",
            " ",
            "nul",
            "nulll",
            "01",
            "-",
            "+1",
            "1.",
            ".5",
            "1e",
            "1e+",
            "0x1",
            "\"",
            "\"\n\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"\\u123",
            "[",
            "]",
            "[1,]",
            "[,1]",
            "[1 2]",
            "{",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "{1:1}",
            "[}",
            "{]",
            "{\"a\":1]",
            "[1}",
            "1 2",
            "[] []",
            "NaN",
            "'a'",
            "\u{feff}1",
            "tru e",
            "\"\\",
            "[1]]",
            "\u{b}1",
        ] {
            assert!(!is_json(text), "{text}");
            compare(text);
        }
    }

    #[test]
    fn depth_is_no_bound() {
        for depth in [1, 63, 64, 65, 100, 5_000] {
            let deep = "[".repeat(depth) + &"]".repeat(depth);
            let mixed = "{\"a\":[".repeat(depth) + &"]}".repeat(depth);
            assert!(is_json(&deep) && is_json(&mixed), "{depth}");
            assert!(
                !is_json(&deep[1..]) && !is_json(&deep[..deep.len() - 1]) && !is_json(&mixed.replacen(']', "}", 1)),
                "{depth}"
            );
        }
    }

    /// Random words of JSON in random order, and valid texts with one byte changed.
    #[test]
    fn it_says_what_serde_json_says() {
        const WORDS: [&str; 26] = [
            "{", "}", "[", "]", ",", ":", "\"", "\"a\"", "\"key\":", "\\", "\\u00e9", "\\n", " ", "\n", "0", "12", "-", ".5",
            "e9", "E+1", "true", "false", "null", "é", "\u{1}", "x",
        ];
        let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1u64);
        println!("SEED={seed}");
        let mut state = seed;
        let mut below = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % bound
        };
        for _ in 0..200_000 {
            let text: String = (0..=below(8)).map(|_| WORDS[below(WORDS.len())]).collect();
            compare(&text);
        }
        let valid = r#"{"id": 17, "list": [1, -2.5e3, "a\"b\\", {"x": null}, []], "é": {"t": true, "f": false}, "u": "\u00e9"}"#;
        for _ in 0..100_000 {
            let mut bytes = valid.as_bytes().to_vec();
            for _ in 0..=below(2) {
                let at = below(bytes.len());
                bytes[at] = match below(3) {
                    0 => b"{}[],:\"\\ 0e-.x\n"[below(15)],
                    1 => below(128) as u8,
                    _ => bytes[below(bytes.len())],
                };
            }
            if let Ok(text) = std::str::from_utf8(&bytes) {
                compare(text);
            }
        }
    }
}
