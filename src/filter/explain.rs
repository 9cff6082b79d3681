//! A filter in words: its tree with the precedence made visible, and why it takes or refuses given attributes.

use std::fmt;

use crate::record::{AttributesRef, Value, ValueRef};

use super::format;
use super::tree::{Condition, Literal, Test, Tree};

/// Why a filter takes or refuses a message: every node of its tree with its result, in the order of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Why {
    /// Whether the filter takes the message.
    pub matches: bool,
    /// The nodes; the first is the whole filter. Empty for the filter that takes everything.
    pub nodes: Vec<Verdict>,
}

/// The result of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// How many nodes it lies under.
    pub depth: usize,
    /// `AND`, `OR`, `NOT` or the text of a condition.
    pub text: String,
    /// Its result.
    pub holds: bool,
    /// What a condition found; `None` for operators.
    pub actual: Option<Actual>,
}

/// What a condition found under its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Actual {
    /// The message has no such attribute.
    Absent,
    /// A value that the condition could judge.
    Value(Value),
    /// A value of the other type than the condition asks for.
    OtherType(Value),
}

/// The tree, one node in a line, parts indented under their operator.
pub(super) fn outline(tree: &Tree) -> String {
    let mut lines = String::new();
    walk(tree, 0, &mut |depth, node| {
        lines.extend(std::iter::repeat_n("  ", depth));
        lines.push_str(&label(node));
        lines.push('\n');
    });
    lines
}

pub(super) fn why(tree: Option<&Tree>, attributes: AttributesRef<'_>) -> Why {
    let mut nodes = Vec::new();
    if let Some(tree) = tree {
        walk(tree, 0, &mut |depth, node| {
            let actual = match node {
                Tree::Condition(condition) => Some(actual(condition, attributes)),
                _ => None,
            };
            nodes.push(Verdict { depth, text: label(node), holds: evaluate(node, attributes), actual });
        });
    }
    Why { matches: nodes.first().is_none_or(|whole| whole.holds), nodes }
}

fn walk(tree: &Tree, depth: usize, visit: &mut impl FnMut(usize, &Tree)) {
    visit(depth, tree);
    match tree {
        Tree::Condition(_) => {}
        Tree::Not(part) => walk(part, depth + 1, visit),
        Tree::And(parts) | Tree::Or(parts) => parts.iter().for_each(|part| walk(part, depth + 1, visit)),
    }
}

fn label(node: &Tree) -> String {
    match node {
        Tree::Condition(condition) => format::condition(condition),
        Tree::Not(_) => "NOT".to_owned(),
        Tree::And(_) => "AND".to_owned(),
        Tree::Or(_) => "OR".to_owned(),
    }
}

fn evaluate(tree: &Tree, attributes: AttributesRef<'_>) -> bool {
    match tree {
        Tree::Condition(condition) => holds(condition, attributes.get(&condition.key)),
        Tree::Not(part) => !evaluate(part, attributes),
        Tree::And(parts) => parts.iter().all(|part| evaluate(part, attributes)),
        Tree::Or(parts) => parts.iter().any(|part| evaluate(part, attributes)),
    }
}

fn holds(condition: &Condition, value: Option<ValueRef<'_>>) -> bool {
    match (&condition.test, value) {
        (Test::Present, value) => value.is_some(),
        (Test::Is(literal), value) => value.is_some_and(|value| is_equal(literal, value)),
        (Test::IsNot(literal), value) => !value.is_some_and(|value| is_equal(literal, value)),
        (Test::Order(order, literal), Some(ValueRef::Number(number))) => {
            order.allows(number.decimal().compare(literal.decimal()))
        }
        (Test::HasPrefix(prefix), Some(ValueRef::String(text))) => text.starts_with(prefix),
        (Test::HasSuffix(suffix), Some(ValueRef::String(text))) => text.ends_with(suffix),
        (Test::Order(..) | Test::HasPrefix(_) | Test::HasSuffix(_), _) => false,
    }
}

fn is_equal(literal: &Literal, value: ValueRef<'_>) -> bool {
    match (literal, value) {
        (Literal::String(literal), ValueRef::String(text)) => literal == text,
        (Literal::Number(literal), ValueRef::Number(number)) => number.decimal().compare(literal.decimal()).is_eq(),
        _ => false,
    }
}

fn actual(condition: &Condition, attributes: AttributesRef<'_>) -> Actual {
    let Some(value) = attributes.get(&condition.key) else { return Actual::Absent };
    let wants_number = match &condition.test {
        Test::Present => return Actual::Value(value.to_owned()),
        Test::Is(literal) | Test::IsNot(literal) => matches!(literal, Literal::Number(_)),
        Test::Order(..) => true,
        Test::HasPrefix(_) | Test::HasSuffix(_) => false,
    };
    let is_number = matches!(value, ValueRef::Number(_));
    if is_number == wants_number { Actual::Value(value.to_owned()) } else { Actual::OtherType(value.to_owned()) }
}

impl fmt::Display for Actual {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => formatter.write_str("the attribute is absent"),
            Self::Value(Value::String(text)) => write!(formatter, "the attribute is {text:?}"),
            Self::Value(Value::Number(number)) => write!(formatter, "the attribute is {number}"),
            Self::OtherType(Value::String(text)) => {
                write!(formatter, "the attribute is the string {text:?}, the condition asks for a number")
            }
            Self::OtherType(Value::Number(number)) => {
                write!(formatter, "the attribute is the number {number}, the condition asks for a string")
            }
        }
    }
}

/// The answer in the first line, then a line for each node with its result and what it found.
impl fmt::Display for Why {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}", if self.matches { "match" } else { "no match" })?;
        for node in &self.nodes {
            write!(formatter, "  {:5}  {:indent$}{}", node.holds, "", node.text, indent = node.depth * 2)?;
            match &node.actual {
                Some(actual) => writeln!(formatter, "  ({actual})")?,
                None => writeln!(formatter)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Filter;
    use super::*;
    use crate::record::Attributes;

    const COMPLEX: &str = r#":name = "Bob" AND NOT (:age > 40 OR :location = "Chicago")"#;

    #[test]
    fn precedence_is_made_visible() {
        let filter = Filter::parse(COMPLEX).unwrap();
        assert_eq!(filter.parenthesised(), r#"(:name = "Bob" AND (NOT (:age > 40 OR :location = "Chicago")))"#);
        let expected = "AND\n  :name = \"Bob\"\n  NOT\n    OR\n      :age > 40\n      :location = \"Chicago\"\n";
        assert_eq!(filter.outline(), expected);
        let filter = Filter::parse(":a OR :b AND NOT :c = 1").unwrap();
        assert_eq!(filter.parenthesised(), "(:a OR (:b AND (NOT :c = 1)))");
        let everything = Filter::parse(" ").unwrap();
        assert_eq!((everything.parenthesised(), everything.outline()), (String::new(), "everything\n".to_owned()));
    }

    #[test]
    fn each_condition_says_what_it_found() {
        let attributes = Attributes::from_json(r#"{"name":7,"age":50.0,"zip":"1"}"#).unwrap();
        let why = Filter::parse(COMPLEX).unwrap().why(attributes.view());
        let expected = r#"no match
  false  AND
  false    :name = "Bob"  (the attribute is the number 7, the condition asks for a string)
  false    NOT
  true       OR
  true         :age > 40  (the attribute is 50.0)
  false        :location = "Chicago"  (the attribute is absent)
"#;
        assert_eq!(why.to_string(), expected);
        assert!(!why.matches);
        let why = Filter::parse(":zip < 2 OR :zip").unwrap().why(attributes.view());
        let expected = r#"match
  true   OR
  false    :zip < 2  (the attribute is the string "1", the condition asks for a number)
  true     :zip  (the attribute is "1")
"#;
        assert_eq!(why.to_string(), expected);
        assert_eq!(Filter::everything().why(attributes.view()), Why { matches: true, nodes: Vec::new() });
    }
}
