//! The meaning of a filter text as a tree.
//!
//! Parentheses leave no trace, and neighbours under the same operator share one node, so a level of the tree costs at least
//! four characters of text: with 256 characters, walking it recursively is safe.

use std::fmt;

use crate::record::Decimal;

/// A filter that is not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tree {
    /// One condition on one key.
    Condition(Condition),
    /// True when its part is false.
    Not(Box<Tree>),
    /// True when all of its two or more parts are; none of them is an `And`.
    And(Vec<Tree>),
    /// True when any of its two or more parts is; none of them is an `Or`.
    Or(Vec<Tree>),
}

/// A test of the value of one key. Every test but [`Test::IsNot`] is false on a missing key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The key, without colon and quotes.
    pub key: String,
    /// What its value must be.
    pub test: Test,
}

/// What a condition asks of a value. There is no conversion: a value of the other type is never equal, larger or smaller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    /// `:key`: there is one.
    Present,
    /// `=`.
    Is(Literal),
    /// `!=`, which is exactly the opposite of `=`, also on a missing key.
    IsNot(Literal),
    /// `<`, `<=`, `>` or `>=`.
    Order(Order, NumberLiteral),
    /// `hasPrefix`.
    HasPrefix(String),
    /// `hasSuffix`.
    HasSuffix(String),
}

/// An order comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
}

/// A value that a filter compares with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Literal {
    /// A quoted text, without quotes and escapes.
    String(String),
    /// A number.
    Number(NumberLiteral),
}

/// The exact value of a number in a filter; equal values are equal however they were written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumberLiteral {
    is_negative: bool,
    magnitude: i64,
    digits: Box<[u8]>,
}

impl Order {
    /// Whether `ordering` is one of those that the comparison allows.
    pub fn allows(self, ordering: std::cmp::Ordering) -> bool {
        match self {
            Self::Less => ordering.is_lt(),
            Self::LessOrEqual => ordering.is_le(),
            Self::Greater => ordering.is_gt(),
            Self::GreaterOrEqual => ordering.is_ge(),
        }
    }

    /// The operator as it is written.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
        }
    }
}

impl NumberLiteral {
    /// The value as something to compare with.
    pub fn decimal(&self) -> Decimal<'_> {
        Decimal::from_digits(self.is_negative, self.magnitude, &self.digits)
    }
}

impl From<Decimal<'_>> for NumberLiteral {
    fn from(decimal: Decimal<'_>) -> Self {
        Self { is_negative: decimal.is_negative(), magnitude: decimal.magnitude(), digits: decimal.digits().collect() }
    }
}

/// The shortest text without exponent that has this value.
impl fmt::Display for NumberLiteral {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.digits.is_empty() {
            return formatter.write_str("0");
        }
        let mut text = String::from(if self.is_negative { "-" } else { "" });
        if self.magnitude <= 0 {
            text.push_str("0.");
            text.extend((self.magnitude..0).map(|_| '0'));
        }
        let mut place = 0;
        for &digit in &self.digits {
            if place > 0 && place == self.magnitude {
                text.push('.');
            }
            text.push(char::from(digit));
            place += 1;
        }
        text.extend((place..self.magnitude).map(|_| '0'));
        formatter.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_written_in_its_shortest_form() {
        for (text, expected) in [
            ("0", "0"),
            ("-0.00", "0"),
            ("007", "7"),
            ("40", "40"),
            ("-40.50", "-40.5"),
            ("0.0010", "0.001"),
            ("1000.0", "1000"),
            ("1000.01", "1000.01"),
            ("10", "10"),
            ("-0.5", "-0.5"),
        ] {
            let literal = NumberLiteral::from(Decimal::parse(text.as_bytes()).unwrap());
            assert_eq!(literal.to_string(), expected);
            assert_eq!(literal.decimal().compare(Decimal::parse(expected.as_bytes()).unwrap()), std::cmp::Ordering::Equal);
        }
    }
}
