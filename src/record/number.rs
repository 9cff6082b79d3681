//! Numbers of attributes: exact decimals that keep the text they were given as.
//!
//! The text follows the grammar of JSON numbers, so that every number can be written to JSON as it came. No value ever goes
//! through binary floating point; comparing is the business of [`Decimal`].

mod decimal;

use std::{cmp::Ordering, fmt, str::FromStr};

pub use decimal::Decimal;

/// The longest text of a number, in bytes.
pub const NUMBER_BYTES_MAX: usize = 128;

/// Most significant digits of a number: those that are left without leading and trailing zeros.
pub const NUMBER_DIGITS_MAX: usize = 38;

/// The largest exponent a number may be written with, of either sign.
pub const NUMBER_EXPONENT_MAX: i64 = 9_999;

/// Why a text is not a number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NumberError {
    /// The text has no characters.
    #[error("number is empty")]
    Empty,
    /// NaN or an infinity.
    #[error("number is not finite")]
    NotFinite,
    /// The text leaves the grammar.
    #[error("number is malformed at byte {position}, it is written as -12.5 or 1e3")]
    Malformed {
        /// The first byte that does not belong, or the length if more was expected.
        position: usize,
    },
    /// A zero stands before other digits of the whole part.
    #[error("number starts with a needless zero")]
    LeadingZero,
    /// The text is over [`NUMBER_BYTES_MAX`].
    #[error("number is {length} bytes long, at most {NUMBER_BYTES_MAX} are allowed")]
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// More significant digits than [`NUMBER_DIGITS_MAX`].
    #[error("number has {digits} significant digits, at most {NUMBER_DIGITS_MAX} are allowed")]
    TooManyDigits {
        /// How many it has.
        digits: usize,
    },
    /// The exponent is over [`NUMBER_EXPONENT_MAX`].
    #[error("number has an exponent over {NUMBER_EXPONENT_MAX}")]
    ExponentTooLarge,
}

/// A number with the text it was given as.
///
/// `==` compares texts, so that a round trip can be checked; [`Number::compare`] compares values (1 = 1.0 = 1e0, -0 = 0).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Number {
    text: String,
}

/// A number inside other bytes: a checked text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NumberRef<'a> {
    text: &'a str,
}

impl Number {
    /// Takes a text of the form `-12.5` or `1e3` within the limits of this module.
    pub fn parse(text: &str) -> Result<Self, NumberError> {
        NumberRef::parse(text).map(NumberRef::to_owned)
    }

    /// The number without its own memory.
    pub fn view(&self) -> NumberRef<'_> {
        NumberRef { text: &self.text }
    }

    /// The text as it was given.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Compares exact values.
    pub fn compare(&self, other: &Self) -> Ordering {
        self.view().compare(other.view())
    }
}

impl<'a> NumberRef<'a> {
    /// Takes a text of the form `-12.5` or `1e3` within the limits of this module.
    pub fn parse(text: &'a str) -> Result<Self, NumberError> {
        check(text)?;
        Ok(Self { text })
    }

    /// A text that [`check`] has accepted before.
    pub(super) fn checked(text: &'a str) -> Self {
        Self { text }
    }

    /// The text as it was given.
    pub fn as_str(self) -> &'a str {
        self.text
    }

    /// The number with its own memory.
    pub fn to_owned(self) -> Number {
        Number { text: self.text.to_owned() }
    }

    /// The exact value.
    pub fn decimal(self) -> Decimal<'a> {
        Decimal::parse(self.text.as_bytes()).unwrap_or_default()
    }

    /// Compares exact values.
    pub fn compare(self, other: NumberRef<'_>) -> Ordering {
        self.decimal().compare(other.decimal())
    }
}

/// Checks grammar and limits. The length comes first: nothing below it sees a long text.
pub(super) fn check(text: &str) -> Result<(), NumberError> {
    if text.is_empty() {
        return Err(NumberError::Empty);
    }
    if text.len() > NUMBER_BYTES_MAX {
        return Err(NumberError::TooLong { length: text.len() });
    }
    let unsigned = text.trim_start_matches(['-', '+']);
    if ["nan", "inf", "infinity"].iter().any(|name| unsigned.eq_ignore_ascii_case(name)) {
        return Err(NumberError::NotFinite);
    }
    let digits = Decimal::parse(text.as_bytes())?.digit_count();
    if matches!(unsigned.as_bytes(), [b'0', b'0'..=b'9', ..]) {
        return Err(NumberError::LeadingZero);
    }
    if digits > NUMBER_DIGITS_MAX {
        return Err(NumberError::TooManyDigits { digits });
    }
    Ok(())
}

impl fmt::Display for Number {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl fmt::Display for NumberRef<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.text)
    }
}

impl FromStr for Number {
    type Err = NumberError;

    fn from_str(text: &str) -> Result<Self, NumberError> {
        Self::parse(text)
    }
}

impl From<i64> for Number {
    fn from(value: i64) -> Self {
        Self { text: value.to_string() }
    }
}

impl From<u64> for Number {
    fn from(value: u64) -> Self {
        Self { text: value.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_comes_back_as_it_was_given() {
        for text in ["0", "-0", "1", "1.0", "1e0", "1E+3", "-12.50", "1e-9999", "99999999999999999999999999999999999999"] {
            assert_eq!(Number::parse(text).map(|number| number.to_string()).as_deref(), Ok(text));
        }
        assert_eq!(Number::from(i64::MIN), Number::parse("-9223372036854775808").unwrap());
        assert_eq!(Number::from(u64::MAX), Number::parse("18446744073709551615").unwrap());
    }

    #[test]
    fn what_json_does_not_allow_is_refused_at_its_position() {
        let malformed = |position| Err(NumberError::Malformed { position });
        for (text, expected) in [
            ("", Err(NumberError::Empty)),
            ("-", malformed(1)),
            ("+1", malformed(0)),
            (".5", malformed(0)),
            ("5.", malformed(2)),
            ("1.e3", malformed(2)),
            ("1e", malformed(2)),
            ("1e+", malformed(3)),
            ("1 ", malformed(1)),
            (" 1", malformed(0)),
            ("1_000", malformed(1)),
            ("0x10", malformed(1)),
            ("1,5", malformed(1)),
            ("--1", malformed(1)),
            ("1٣", malformed(1)),
            ("NaN", Err(NumberError::NotFinite)),
            ("-Infinity", Err(NumberError::NotFinite)),
            ("inf", Err(NumberError::NotFinite)),
            ("007", Err(NumberError::LeadingZero)),
            ("-00", Err(NumberError::LeadingZero)),
        ] {
            assert_eq!(Number::parse(text), expected, "{text:?}");
        }
    }

    #[test]
    fn each_limit_has_its_own_error() {
        assert!(Number::parse(&"9".repeat(38)).is_ok());
        assert_eq!(Number::parse(&"9".repeat(39)), Err(NumberError::TooManyDigits { digits: 39 }));
        assert_eq!(Number::parse(&format!("0.{}1", "9".repeat(38))), Err(NumberError::TooManyDigits { digits: 39 }));
        assert!(Number::parse(&format!("1{}", "0".repeat(127))).is_ok());
        assert_eq!(Number::parse(&format!("1{}", "0".repeat(128))), Err(NumberError::TooLong { length: 129 }));
        assert!(Number::parse("1e0009999").is_ok());
        assert_eq!(Number::parse("1e10000"), Err(NumberError::ExponentTooLarge));
        assert_eq!(Number::parse("0e-99999999999999999999"), Err(NumberError::ExponentTooLarge));
    }
}
