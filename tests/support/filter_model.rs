//! An obviously simple model of filters: expressions are made from arbitrary bytes, written as text in some of the many ways
//! there are, and evaluated by walking them. Numbers are whole multiples of 10^-16 in an `i128`.

use fanlog::filter::{FILTER_CHARACTERS_MAX, Filter};
use fanlog::record::{Attributes, Number, Value};

/// Arbitrary choices, read from bytes; the first choice over and over when they run out.
pub struct Source<'a> {
    bytes: &'a [u8],
}

impl<'a> Source<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    fn below(&mut self, count: usize) -> usize {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        usize::from(*first) % count
    }

    fn pick(&mut self, choices: &[&'static str]) -> &'static str {
        choices[self.below(choices.len())]
    }
}

const KEYS: [&str; 6] = ["a", "b", "_c-1", "AND", "two words", "q\"\\é"];
const TEXTS: [&str; 9] = ["", "x", "xy", "y", "40", "\"", "\\", "é\n", "x\u{301}"];
const SCALE: u32 = 16;

/// A filter as a tree.
#[derive(Debug)]
pub enum Expression {
    Present(&'static str),
    Compare(&'static str, &'static str, Literal),
    Function(&'static str, &'static str, &'static str),
    Not(Box<Expression>),
    Both(Box<Expression>, Box<Expression>),
    Either(Box<Expression>, Box<Expression>),
}

/// A value; a number also in units of 10^-16.
#[derive(Debug, Clone)]
pub enum Literal {
    Text(&'static str),
    Number(String, i128),
}

/// Makes one filter and one set of attributes, and panics if the library judges them in another way than the model.
pub fn check(source: &mut Source<'_>) {
    let expression = expression(source, 4);
    let mut text = String::new();
    write(&expression, 0, source, &mut text);
    let Ok(filter) = Filter::parse(&text) else {
        assert!(text.chars().count() > FILTER_CHARACTERS_MAX, "{text} was refused");
        return;
    };
    let canonical = filter.to_string();
    assert_eq!(Filter::parse(&canonical).as_ref(), Ok(&filter), "{text} became {canonical}");
    for _ in 0..4 {
        let pairs = pairs(source);
        let attributes = attributes(&pairs);
        let expected = evaluate(&expression, &pairs);
        let attributes = Attributes::decode(attributes.as_bytes()).expect("what was encoded decodes");
        assert_eq!(filter.matches(attributes.view()), expected, "{text} {attributes:?}");
        assert_eq!(filter.why(attributes.view()).matches, expected, "{text} {attributes:?}");
    }
}

/// Some keys with values.
pub fn pairs(source: &mut Source<'_>) -> Vec<(&'static str, Literal)> {
    KEYS.iter().filter_map(|key| Some((*key, value(source)?))).collect()
}

/// The same as a message has them.
pub fn attributes(pairs: &[(&str, Literal)]) -> Attributes {
    let mut attributes = Attributes::new();
    for (key, value) in pairs {
        let value = match value {
            Literal::Text(text) => Value::from(*text),
            Literal::Number(text, _) => Value::Number(Number::parse(text).expect("the model writes valid numbers")),
        };
        attributes.insert(key, value).expect("the model's keys are distinct");
    }
    attributes
}

/// An expression with up to `depth` operators one in the other.
pub fn expression(source: &mut Source<'_>, depth: usize) -> Expression {
    let kinds = if depth == 0 { 3 } else { 7 };
    let part = |source: &mut Source<'_>| Box::new(expression(source, depth.saturating_sub(1)));
    match source.below(kinds) {
        0 => Expression::Present(source.pick(&KEYS)),
        1 => match source.pick(&["=", "!=", "<", "<=", ">", ">="]) {
            operator @ ("=" | "!=") if source.below(2) == 0 => {
                Expression::Compare(source.pick(&KEYS), operator, Literal::Text(source.pick(&TEXTS)))
            }
            operator => Expression::Compare(source.pick(&KEYS), operator, number(source, false)),
        },
        2 => Expression::Function(source.pick(&["hasPrefix", "hasSuffix"]), source.pick(&KEYS), source.pick(&TEXTS)),
        3 => Expression::Not(part(source)),
        4 | 5 => Expression::Both(part(source), part(source)),
        _ => Expression::Either(part(source), part(source)),
    }
}

fn value(source: &mut Source<'_>) -> Option<Literal> {
    match source.below(3) {
        0 => None,
        1 => Some(Literal::Text(source.pick(&TEXTS))),
        _ => Some(number(source, true)),
    }
}

/// A number as text and in units of 10^-16. Few distinct values, so that equal ones meet.
fn number(source: &mut Source<'_>, in_message: bool) -> Literal {
    let sign = source.pick(&["", "-"]);
    let whole = source.pick(&["0", "1", "4", "40", "100", "12345678"]);
    let fraction = source.pick(&["", "0", "5", "05", "50", "00000001"]);
    let exponent = if in_message { source.pick(&["", "0", "1", "+2", "-1", "-8", "8"]) } else { "" };
    let mut text = format!("{sign}{whole}");
    if !in_message && source.below(4) == 0 {
        text = format!("{sign}00{whole}");
    }
    if !fraction.is_empty() {
        text.push('.');
        text.push_str(fraction);
    }
    if !exponent.is_empty() {
        text.push_str(source.pick(&["e", "E"]));
        text.push_str(exponent);
    }
    let digits: i128 = format!("{whole}{fraction}").parse().expect("digits");
    let power: i32 = exponent.parse().unwrap_or(0) - fraction.len() as i32 + SCALE as i32;
    let units = digits * 10_i128.pow(u32::try_from(power).expect("fractions and exponents are small"));
    Literal::Number(text, if sign == "-" { -units } else { units })
}

/// Whether a message with these attributes is taken.
pub fn evaluate(expression: &Expression, pairs: &[(&str, Literal)]) -> bool {
    let get = |key: &str| pairs.iter().find(|(name, _)| *name == key).map(|(_, value)| value);
    match expression {
        Expression::Present(key) => get(key).is_some(),
        Expression::Compare(key, operator, literal) => match (get(key), literal) {
            (Some(Literal::Text(text)), Literal::Text(literal)) => (*operator == "=") == (text == literal),
            (Some(Literal::Number(_, number)), Literal::Number(_, literal)) => match *operator {
                "=" => number == literal,
                "!=" => number != literal,
                "<" => number < literal,
                "<=" => number <= literal,
                ">" => number > literal,
                _ => number >= literal,
            },
            _ => *operator == "!=",
        },
        Expression::Function(name, key, part) => match get(key) {
            Some(Literal::Text(text)) if *name == "hasPrefix" => text.starts_with(part),
            Some(Literal::Text(text)) => text.ends_with(part),
            _ => false,
        },
        Expression::Not(part) => !evaluate(part, pairs),
        Expression::Both(left, right) => evaluate(left, pairs) && evaluate(right, pairs),
        Expression::Either(left, right) => evaluate(left, pairs) || evaluate(right, pairs),
    }
}

/// Writes an expression where an operator of at least the binding `least` (0 = `OR`, 1 = `AND`, 2 = `NOT`) is wanted.
pub fn write(expression: &Expression, least: usize, source: &mut Source<'_>, out: &mut String) {
    let binding = match expression {
        Expression::Either(..) => 0,
        Expression::Both(..) => 1,
        _ => 2,
    };
    let is_enclosed = binding < least || source.below(6) == 5;
    if is_enclosed {
        out.push('(');
        space(source, out);
    }
    match expression {
        Expression::Present(key) => write_key(key, source, out),
        Expression::Compare(key, operator, literal) => {
            write_key(key, source, out);
            space(source, out);
            out.push_str(operator);
            space(source, out);
            match literal {
                Literal::Text(text) => write_text(text, out),
                Literal::Number(text, _) => out.push_str(text),
            }
        }
        Expression::Function(name, key, text) => {
            out.push_str(name);
            space(source, out);
            out.push('(');
            write_key(key, source, out);
            space(source, out);
            out.push(',');
            space(source, out);
            write_text(text, out);
            space(source, out);
            out.push(')');
        }
        Expression::Not(part) => {
            out.push_str(source.pick(&["NOT ", "NOT\n", "NOT  "]));
            write(part, 2, source, out);
        }
        Expression::Both(left, right) => {
            write(left, 1, source, out);
            out.push_str(" AND ");
            write(right, 1, source, out);
        }
        Expression::Either(left, right) => {
            write(left, 0, source, out);
            out.push_str(" OR ");
            write(right, 0, source, out);
        }
    }
    if is_enclosed {
        space(source, out);
        out.push(')');
    }
}

fn space(source: &mut Source<'_>, out: &mut String) {
    out.push_str(source.pick(&["", " ", "\t", "\r\n"]));
}

fn write_key(key: &str, source: &mut Source<'_>, out: &mut String) {
    out.push(':');
    if key.contains([' ', '"']) || source.below(4) == 3 { write_text(key, out) } else { out.push_str(key) }
}

fn write_text(text: &str, out: &mut String) {
    out.push_str(&format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")));
}
