//! Why a filter text is refused, and where.

use std::fmt;

use super::FILTER_CHARACTERS_MAX;

/// A filter text is refused: the first thing that is wrong with it, and where that stands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("filter is not valid at character {position}: {reason}")]
pub struct FilterError {
    /// The character's index from 0, counted in Unicode code points of the text as it was given.
    pub position: usize,
    /// What is wrong there.
    pub reason: Reason,
}

/// What is wrong with a filter text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The text is over [`FILTER_CHARACTERS_MAX`].
    #[error("the filter has {length} characters, at most {FILTER_CHARACTERS_MAX} are allowed")]
    TooLong {
        /// Its length in code points.
        length: usize,
    },
    /// A character that starts nothing.
    #[error("unexpected character {found:?}")]
    UnexpectedCharacter {
        /// The character.
        found: char,
    },
    /// A space other than space, tab, carriage return and line feed; also a byte order mark.
    #[error("the character U+{:04X} is not allowed as a space", u32::from(*found))]
    UnsupportedSpace {
        /// The character.
        found: char,
    },
    /// A single quote.
    #[error("text stands in double quotes, not in single quotes")]
    SingleQuote,
    /// An operator or literal of other languages.
    #[error("{found} is not supported{}", Instead(*instead))]
    Unsupported {
        /// As it is written.
        found: String,
        /// What to write.
        instead: Option<&'static str>,
    },
    /// A keyword or function in the wrong case.
    #[error("{found} must be written as {expected}")]
    WordCase {
        /// As it is written.
        found: String,
        /// As it must be written.
        expected: &'static str,
    },
    /// A word that is neither keyword nor function.
    #[error("unknown word {found}, a key is written with a colon as in :region")]
    UnknownWord {
        /// The word.
        found: String,
    },
    /// A colon without a key right behind it.
    #[error("the key must follow the colon at once")]
    KeyMissing,
    /// A key that starts with a character that only quoted keys may have.
    #[error("a key that starts with {found:?} must be quoted as in :\"any text\"")]
    KeyNeedsQuotes {
        /// The character.
        found: char,
    },
    /// `:""`.
    #[error("the key is empty")]
    KeyEmpty,
    /// A quoted text without its end.
    #[error("the quoted text has no end")]
    StringUnclosed,
    /// A backslash in front of something that is neither quote nor backslash.
    #[error("unknown escape \\{}, only \\\" and \\\\ are allowed", found.escape_debug())]
    UnknownEscape {
        /// The character behind the backslash.
        found: char,
    },
    /// `1e3`.
    #[error("a number has no exponent in a filter")]
    Exponent,
    /// `+1`.
    #[error("a number has no plus sign in a filter")]
    PlusSign,
    /// `.5` or `5.`.
    #[error("a decimal point needs digits on both sides")]
    PointWithoutDigits,
    /// A minus without a digit right behind it.
    #[error("a minus sign needs a digit behind it")]
    MinusWithoutDigits,
    /// `40AND`.
    #[error("a space is missing between the number and {found:?}")]
    WordTouchesNumber {
        /// The first character of the word.
        found: char,
    },
    /// `>`, `>=`, `<` or `<=` with something else than a number.
    #[error("{operator} takes a number, found {found}")]
    OrderNeedsNumber {
        /// The operator.
        operator: &'static str,
        /// What stands there.
        found: String,
    },
    /// Something else should stand there.
    #[error("expected {expected}, found {found}")]
    Expected {
        /// What should.
        expected: Expected,
        /// What does.
        found: String,
    },
    /// A closing parenthesis that nothing opened.
    #[error("the parenthesis was never opened")]
    ParenthesisUnopened,
    /// An opening parenthesis that nothing closes.
    #[error("the parenthesis is never closed")]
    ParenthesisUnclosed,
}

/// What the grammar allows at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// The start of a condition: a key, `NOT`, a function or an opening parenthesis.
    Condition,
    /// What follows a complete condition: an operator or the end.
    Continuation,
    /// A quoted text or a number, behind `=` and `!=`.
    Literal,
    /// The opening parenthesis of a function.
    Opening,
    /// The key of a function.
    Key,
    /// The comma of a function.
    Comma,
    /// The quoted text of a function.
    Text,
    /// The closing parenthesis of a function.
    Closing,
}

impl fmt::Display for Expected {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Condition => "a condition",
            Self::Continuation => "AND, OR or the end",
            Self::Literal => "a quoted text or a number",
            Self::Opening => "(",
            Self::Key => "a key",
            Self::Comma => "a comma",
            Self::Text => "a quoted text",
            Self::Closing => ")",
        })
    }
}

/// A suggestion at the end of a sentence.
struct Instead(Option<&'static str>);

impl fmt::Display for Instead {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(instead) => write!(formatter, ", write {instead}"),
            None => Ok(()),
        }
    }
}

impl FilterError {
    pub(super) fn new(position: usize, reason: Reason) -> Self {
        Self { position, reason }
    }

    /// Two lines: the text that was refused and a caret under the position. Control characters are shown as one space each, so
    /// that the caret stands right; a text that is too long is cut.
    pub fn caret(&self, text: &str) -> String {
        let shown = text.chars().take(FILTER_CHARACTERS_MAX + 1);
        let mut lines: String = shown.map(|character| if character.is_control() { ' ' } else { character }).collect();
        lines.push('\n');
        lines.extend(std::iter::repeat_n(' ', self.position));
        lines.push('^');
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caret_stands_under_the_position() {
        let text = ":name = 'Bob'";
        let error = super::super::Filter::parse(text).unwrap_err();
        assert_eq!(error.caret(text), ":name = 'Bob'\n        ^");
        assert_eq!(error.to_string(), "filter is not valid at character 8: text stands in double quotes, not in single quotes");
        let text = ":a\n\t<> 1";
        let error = super::super::Filter::parse(text).unwrap_err();
        assert_eq!(error.caret(text), ":a  <> 1\n    ^");
        assert_eq!(error.to_string(), "filter is not valid at character 4: <> is not supported, write !=");
    }

    #[test]
    fn a_text_of_any_length_has_a_short_caret() {
        let text = "x".repeat(100_000);
        let error = super::super::Filter::parse(&text).unwrap_err();
        assert_eq!(error, FilterError::new(256, Reason::TooLong { length: 100_000 }));
        assert_eq!(error.caret(&text), format!("{}\n{}^", "x".repeat(257), " ".repeat(256)));
    }
}
