//! The compiled filter: a flat list of conditions, each with the step to go to when it holds and when it does not.
//!
//! `AND`, `OR` and `NOT` are in the jumps alone, so evaluating is a walk forward along conditions that never comes back, never
//! allocates and stops as soon as the answer is known. A [`FilterBank`] looks up each key once for all of its programs.

use crate::record::{AttributesRef, Decimal, RawValue};

use super::Filter;
use super::tree::{Condition, Literal, NumberLiteral, Order, Test, Tree};

#[derive(Debug, Clone)]
pub(super) struct Program {
    /// In reverse: the program starts at the last step and jumps go down.
    steps: Vec<Step>,
    start: Target,
}

#[derive(Debug, Clone)]
struct Step {
    key: Box<[u8]>,
    /// The key's place among those of a bank.
    slot: usize,
    check: Check,
    then: Target,
    otherwise: Target,
}

#[derive(Debug, Clone, Copy)]
enum Target {
    Done(bool),
    Step(usize),
}

/// A [`Test`] in the form in which it is evaluated; `!=` has become `=` with its jumps exchanged.
#[derive(Debug, Clone)]
enum Check {
    Present,
    Text(Box<[u8]>),
    Prefix(Box<[u8]>),
    Suffix(Box<[u8]>),
    Equal(NumberLiteral),
    Order(Order, NumberLiteral),
}

impl Program {
    pub(super) fn compile(tree: Option<&Tree>) -> Self {
        let mut program = Self { steps: Vec::new(), start: Target::Done(true) };
        if let Some(tree) = tree {
            program.start = program.add(tree, Target::Done(true), Target::Done(false));
        }
        program
    }

    pub(super) fn matches(&self, attributes: AttributesRef<'_>) -> bool {
        self.run(|step| attributes.find(&step.key))
    }

    fn run<'a>(&self, value_of: impl Fn(&Step) -> Option<RawValue<'a>>) -> bool {
        let mut target = self.start;
        loop {
            let step = match target {
                Target::Done(answer) => return answer,
                Target::Step(index) => &self.steps[index],
            };
            let holds = value_of(step).is_some_and(|value| step.check.holds(value));
            target = if holds { step.then } else { step.otherwise };
        }
    }

    /// Adds the steps of a tree, later parts first because earlier ones jump to them, and gives where it starts.
    fn add(&mut self, tree: &Tree, then: Target, otherwise: Target) -> Target {
        match tree {
            Tree::Condition(condition) => self.add_condition(condition, then, otherwise),
            Tree::Not(part) => self.add(part, otherwise, then),
            Tree::And(parts) => parts.iter().rev().fold(then, |next, part| self.add(part, next, otherwise)),
            Tree::Or(parts) => parts.iter().rev().fold(otherwise, |next, part| self.add(part, then, next)),
        }
    }

    fn add_condition(&mut self, condition: &Condition, then: Target, otherwise: Target) -> Target {
        let (then, otherwise) = match condition.test {
            Test::IsNot(_) => (otherwise, then),
            _ => (then, otherwise),
        };
        let check = match &condition.test {
            Test::Present => Check::Present,
            Test::Is(Literal::String(text)) | Test::IsNot(Literal::String(text)) => Check::Text(text.as_bytes().into()),
            Test::Is(Literal::Number(number)) | Test::IsNot(Literal::Number(number)) => Check::Equal(number.clone()),
            Test::Order(order, number) => Check::Order(*order, number.clone()),
            Test::HasPrefix(text) => Check::Prefix(text.as_bytes().into()),
            Test::HasSuffix(text) => Check::Suffix(text.as_bytes().into()),
        };
        self.steps.push(Step { key: condition.key.as_bytes().into(), slot: 0, check, then, otherwise });
        Target::Step(self.steps.len() - 1)
    }
}

/// Filters that judge the same messages: an attribute is looked up once, however many of them name it.
#[derive(Debug, Default)]
pub struct FilterBank {
    /// All keys that the programs name, ascending.
    keys: Vec<Box<[u8]>>,
    programs: Vec<Program>,
}

impl FilterBank {
    /// A bank of filters, in their order; `None` takes nothing.
    pub fn new<'f>(filters: impl IntoIterator<Item = Option<&'f Filter>>) -> Self {
        let nothing = Program { steps: Vec::new(), start: Target::Done(false) };
        let mut programs: Vec<Program> =
            filters.into_iter().map(|filter| filter.map_or_else(|| nothing.clone(), |filter| filter.program.clone())).collect();
        let mut keys: Vec<_> = programs.iter().flat_map(|program| &program.steps).map(|step| step.key.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        for step in programs.iter_mut().flat_map(|program| &mut program.steps) {
            step.slot = keys.partition_point(|key| *key < step.key);
        }
        Self { keys, programs }
    }

    /// Calls `taken` with the number of each filter that takes a message with these attributes. `found` is memory to work in.
    pub fn judge<'a>(&self, attributes: AttributesRef<'a>, found: &mut Vec<Option<RawValue<'a>>>, mut taken: impl FnMut(usize)) {
        attributes.find_all(&self.keys, found);
        for (number, program) in self.programs.iter().enumerate() {
            if program.run(|step| found.get(step.slot).copied().flatten()) {
                taken(number);
            }
        }
    }
}

impl Check {
    /// A value of the other type fails every check but presence. Both sides are valid UTF-8, where bytes start or end a text
    /// exactly when code points do.
    fn holds(&self, value: RawValue<'_>) -> bool {
        match self {
            Self::Present => true,
            Self::Text(text) => !value.is_number && *value.bytes == **text,
            Self::Prefix(text) => !value.is_number && value.bytes.starts_with(text),
            Self::Suffix(text) => !value.is_number && value.bytes.ends_with(text),
            Self::Equal(number) => compare(value, number).is_some_and(std::cmp::Ordering::is_eq),
            Self::Order(order, number) => compare(value, number).is_some_and(|ordering| order.allows(ordering)),
        }
    }
}

fn compare(value: RawValue<'_>, literal: &NumberLiteral) -> Option<std::cmp::Ordering> {
    if !value.is_number {
        return None;
    }
    Decimal::parse(value.bytes).ok().map(|decimal| decimal.compare(literal.decimal()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Attributes;

    #[test]
    fn a_bank_judges_as_each_of_its_filters_does() {
        let texts = [
            "",
            ":b",
            "NOT :b",
            ":a = 1 OR :c = \"x\"",
            ":a > 1 AND :a < 3",
            "NOT (:a = 1 AND :b = \"y\")",
            "hasPrefix(:c, \"x\") AND NOT hasSuffix(:c, \"z\")",
            ":missing OR :B",
            ":a != 1 AND :b != \"y\" AND :c != 2",
        ];
        let filters = texts.map(|text| Filter::parse(text).unwrap());
        let disabled = [None].into_iter();
        let bank = FilterBank::new(disabled.chain(filters.iter().map(Some)));
        for json in [
            "{}",
            r#"{"a":1}"#,
            r#"{"a":2,"b":"y"}"#,
            r#"{"a":"1","b":0,"c":"xyz"}"#,
            r#"{"A":1,"aa":1,"c":"x"}"#,
            r#"{"B":1,"zz":"last"}"#,
        ] {
            let attributes = Attributes::from_json(json).unwrap();
            let (mut found, mut taken) = (Vec::new(), Vec::new());
            bank.judge(attributes.view(), &mut found, |number| taken.push(number));
            let expected = (1..).zip(&filters).filter(|(_, filter)| filter.matches(attributes.view()));
            assert_eq!(taken, expected.map(|(number, _)| number).collect::<Vec<usize>>(), "{json}");
        }
        let empty = FilterBank::default();
        empty.judge(Attributes::new().view(), &mut Vec::new(), |number| panic!("filter {number} of none"));
    }
}
