//! The exact value of a decimal text, compared digit by digit.

use std::cmp::Ordering;

use super::{NUMBER_EXPONENT_MAX, NumberError};

/// A value `0.d1d2d3… × 10^magnitude` whose digits still lie in the text they came from.
///
/// Neither the first nor the last digit is zero, and zero itself has no digits, so equal values have equal parts however they
/// were written, and two magnitudes decide before any digit is looked at. There is no bound on the digits and nothing is
/// rounded.
#[derive(Debug, Clone, Copy, Default)]
pub struct Decimal<'a> {
    negative: bool,
    magnitude: i64,
    /// The digits in two runs, because a point may lie between them.
    head: &'a [u8],
    tail: &'a [u8],
}

impl<'a> Decimal<'a> {
    /// Reads `-12.5` or `1e3`: an optional minus, digits, optionally a point with digits, optionally an exponent. Leading zeros
    /// are allowed here.
    pub fn parse(text: &'a [u8]) -> Result<Self, NumberError> {
        let malformed = |rest: &[u8]| NumberError::Malformed { position: text.len() - rest.len() };
        let (negative, rest) = match text {
            [b'-', rest @ ..] => (true, rest),
            _ => (false, text),
        };
        let (whole, mut rest) = split_digits(rest);
        if whole.is_empty() {
            return Err(malformed(rest));
        }
        let mut fraction: &[u8] = &[];
        if let [b'.', after @ ..] = rest {
            (fraction, rest) = split_digits(after);
            if fraction.is_empty() {
                return Err(malformed(rest));
            }
        }
        let mut exponent = 0;
        if let [b'e' | b'E', after @ ..] = rest {
            let (exponent_negative, after) = match after {
                [sign @ (b'+' | b'-'), after @ ..] => (*sign == b'-', after),
                _ => (false, after),
            };
            let digits;
            (digits, rest) = split_digits(after);
            if digits.is_empty() {
                return Err(malformed(rest));
            }
            exponent = small_integer(digits)?;
            if exponent_negative {
                exponent = -exponent;
            }
        }
        if !rest.is_empty() {
            return Err(malformed(rest));
        }
        Ok(Self::from_parts(negative, whole, fraction, exponent))
    }

    fn from_parts(negative: bool, whole: &'a [u8], fraction: &'a [u8], exponent: i64) -> Self {
        let mut head = trim_start(whole);
        let mut tail = fraction;
        let mut magnitude = exponent + head.len() as i64;
        if head.is_empty() {
            tail = trim_start(fraction);
            magnitude -= (fraction.len() - tail.len()) as i64;
        }
        tail = trim_end(tail);
        if tail.is_empty() {
            head = trim_end(head);
        }
        if head.is_empty() && tail.is_empty() { Self::default() } else { Self { negative, magnitude, head, tail } }
    }

    /// A value from its normal form, as [`digits`](Self::digits), [`magnitude`](Self::magnitude) and
    /// [`is_negative`](Self::is_negative) gave it.
    pub(crate) fn from_digits(negative: bool, magnitude: i64, digits: &'a [u8]) -> Self {
        Self { negative, magnitude, head: digits, tail: &[] }
    }

    /// Whether the value is below zero.
    pub fn is_negative(self) -> bool {
        self.negative
    }

    /// Where the point stands, counted in digits from before the first one.
    pub fn magnitude(self) -> i64 {
        self.magnitude
    }

    /// The significant digits as ASCII.
    pub fn digits(self) -> impl Iterator<Item = u8> + 'a {
        self.head.iter().chain(self.tail).copied()
    }

    /// How many significant digits there are.
    pub fn digit_count(self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Compares exact values.
    pub fn compare(self, other: Decimal<'_>) -> Ordering {
        let order = self.sign().cmp(&other.sign());
        if order.is_ne() || self.sign() == 0 {
            return order;
        }
        let order = self.magnitude.cmp(&other.magnitude).then_with(|| {
            if self.tail.is_empty() && other.tail.is_empty() {
                self.head.cmp(other.head)
            } else {
                self.digits().cmp(other.digits())
            }
        });
        if self.negative { order.reverse() } else { order }
    }

    fn sign(self) -> i8 {
        match (self.digit_count(), self.negative) {
            (0, _) => 0,
            (_, false) => 1,
            (_, true) => -1,
        }
    }
}

fn split_digits(text: &[u8]) -> (&[u8], &[u8]) {
    let length = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(length)
}

fn trim_start(digits: &[u8]) -> &[u8] {
    let zeros = digits.iter().take_while(|&&digit| digit == b'0').count();
    digits.split_at(zeros).1
}

fn trim_end(digits: &[u8]) -> &[u8] {
    let zeros = digits.iter().rev().take_while(|&&digit| digit == b'0').count();
    digits.split_at(digits.len() - zeros).0
}

fn small_integer(digits: &[u8]) -> Result<i64, NumberError> {
    let mut value = 0;
    for digit in digits {
        value = value * 10 + i64::from(digit - b'0');
        if value > NUMBER_EXPONENT_MAX {
            return Err(NumberError::ExponentTooLarge);
        }
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal<'_> {
        Decimal::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn one_value_has_one_form_however_it_is_written() {
        for (left, right) in [
            ("1", "1.0"),
            ("1", "1e0"),
            ("1", "0.1e1"),
            ("1", "0.001E+3"),
            ("1", "10e-1"),
            ("-0", "0"),
            ("0", "0.000e77"),
            ("007.50", "7.5"),
            ("1e9999", "10e9998"),
        ] {
            assert_eq!(decimal(left).compare(decimal(right)), Ordering::Equal, "{left} {right}");
        }
    }

    #[test]
    fn a_ladder_of_values_is_in_order() {
        let ladder = [
            "-1e9999",
            "-99999999999999999999999999999999999999",
            "-99999999999999999999999999999999999998",
            "-9007199254740993",
            "-9007199254740992",
            "-10",
            "-9.5",
            "-9.49",
            "-1e-9999",
            "0",
            "1e-9999",
            "0.1",
            "0.10000000000000000000000000000000000001",
            "0.2",
            "0.30000000000000000000000000000000000004",
            "1",
            "1.5",
            "2",
            "10",
            "11",
            "100",
            "9007199254740992",
            "9007199254740993",
            "1e20",
            "100000000000000000001",
            "99999999999999999999999999999999999998",
            "99999999999999999999999999999999999999",
            "1e38",
            "1e9999",
        ];
        for (left_index, left) in ladder.iter().enumerate() {
            for (right_index, right) in ladder.iter().enumerate() {
                assert_eq!(decimal(left).compare(decimal(right)), left_index.cmp(&right_index), "{left} {right}");
            }
        }
    }

    #[test]
    fn any_number_of_digits_is_compared_exactly() {
        let long = format!("0.{}1", "3".repeat(250));
        let longer = format!("0.{}2", "3".repeat(250));
        assert_eq!(decimal(&long).compare(decimal(&longer)), Ordering::Less);
        assert_eq!(decimal(&long).digit_count(), 251);
    }
}
