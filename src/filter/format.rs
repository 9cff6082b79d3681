//! A tree to its canonical text.
//!
//! The text has one space around operators and the fewest parentheses. A filter whose text would then be over the limit, which
//! only one written without spaces can be, is written without spaces too: that form is never longer than what was parsed, so
//! formatting and parsing always gives the same filter.

use std::borrow::Cow;

use super::FILTER_CHARACTERS_MAX;
use super::tree::{Condition, Literal, Test, Tree};

/// The canonical text.
pub(super) fn format(tree: &Tree) -> String {
    let pieces = pieces(tree, Parentheses::Needed);
    let spaced = spaced(&pieces);
    if spaced.chars().count() > FILTER_CHARACTERS_MAX { tight(&pieces) } else { spaced }
}

/// The text with parentheses around every operator, whether the precedence needs them or not.
pub(super) fn parenthesised(tree: &Tree) -> String {
    spaced(&pieces(tree, Parentheses::All))
}

/// The text of one condition.
pub(super) fn condition(condition: &Condition) -> String {
    let mut pieces = Vec::new();
    push_condition(condition, &mut pieces);
    spaced(&pieces)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Parentheses {
    Needed,
    All,
}

/// How tightly an operator binds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Binding {
    Or,
    And,
    Not,
}

type Piece = Cow<'static, str>;

fn pieces(tree: &Tree, parentheses: Parentheses) -> Vec<Piece> {
    let mut pieces = Vec::new();
    push_tree(tree, Binding::Or, parentheses, &mut pieces);
    pieces
}

fn push_tree(tree: &Tree, least: Binding, parentheses: Parentheses, pieces: &mut Vec<Piece>) {
    let (binding, operator, parts) = match tree {
        Tree::Condition(condition) => return push_condition(condition, pieces),
        Tree::Not(part) => (Binding::Not, "NOT", std::slice::from_ref(&**part)),
        Tree::And(parts) => (Binding::And, "AND", parts.as_slice()),
        Tree::Or(parts) => (Binding::Or, "OR", parts.as_slice()),
    };
    let is_enclosed = binding < least || parentheses == Parentheses::All;
    if is_enclosed {
        pieces.push("(".into());
    }
    for (index, part) in parts.iter().enumerate() {
        if index > 0 || binding == Binding::Not {
            pieces.push(operator.into());
        }
        push_tree(part, binding, parentheses, pieces);
    }
    if is_enclosed {
        pieces.push(")".into());
    }
}

fn push_condition(condition: &Condition, pieces: &mut Vec<Piece>) {
    let mut comparison = |operator: &'static str, literal: String| {
        pieces.extend([key(&condition.key).into(), Piece::from(operator), literal.into()]);
    };
    match &condition.test {
        Test::Present => pieces.push(key(&condition.key).into()),
        Test::Is(value) => comparison("=", literal(value)),
        Test::IsNot(value) => comparison("!=", literal(value)),
        Test::Order(order, number) => comparison(order.symbol(), number.to_string()),
        Test::HasPrefix(text) => push_function("hasPrefix(", &condition.key, text, pieces),
        Test::HasSuffix(text) => push_function("hasSuffix(", &condition.key, text, pieces),
    }
}

fn push_function(name: &'static str, name_of_key: &str, text: &str, pieces: &mut Vec<Piece>) {
    pieces.extend([name.into(), key(name_of_key).into(), ",".into(), quoted(text).into(), Piece::from(")")]);
}

fn literal(literal: &Literal) -> String {
    match literal {
        Literal::String(text) => quoted(text),
        Literal::Number(number) => number.to_string(),
    }
}

fn key(key: &str) -> String {
    let is_plain = key.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') && key.chars().all(is_word);
    if is_plain { format!(":{key}") } else { format!(":{}", quoted(key)) }
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        if matches!(character, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(character);
    }
    quoted.push('"');
    quoted
}

fn spaced(pieces: &[Piece]) -> String {
    join(pieces, |left, right| !left.ends_with('(') && right != ")" && right != ",")
}

/// A space only where two words, or a word and a number, would run into one.
fn tight(pieces: &[Piece]) -> String {
    join(pieces, |left, right| left.ends_with(is_word) && right.starts_with(is_word))
}

fn join(pieces: &[Piece], needs_space: impl Fn(&str, &str) -> bool) -> String {
    let mut text = String::new();
    for (index, piece) in pieces.iter().enumerate() {
        let left = index.checked_sub(1).and_then(|before| pieces.get(before));
        if left.is_some_and(|left| needs_space(left, piece)) {
            text.push(' ');
        }
        text.push_str(piece);
    }
    text
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '-')
}
