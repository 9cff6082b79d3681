//! The filter language: which messages a group takes, judged by their attributes alone.
//!
//! Pure: text to tree to program, and attributes to yes or no. A text is refused at the first thing that is wrong, with its
//! position; it is never ignored in part. The logic has two values: a condition on a missing key, or on a value of the other
//! type, is false, and `!=` and `NOT` are exact opposites.
//!
//! ```
//! use fanlog::filter::Filter;
//! use fanlog::record::Attributes;
//!
//! let filter = Filter::parse(r#":region = "us" AND NOT :age > 40"#)?;
//! let attributes = Attributes::from_json(r#"{"region": "us", "age": 40.0}"#)?;
//! assert!(filter.matches(attributes.view()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod explain;
mod format;
mod lexer;
mod parser;
mod program;
mod tree;

use std::fmt;
use std::str::FromStr;

pub use error::{Expected, FilterError, Reason};
pub use explain::{Actual, Verdict, Why};
pub use tree::{Condition, Literal, NumberLiteral, Order, Test, Tree};

use crate::record::AttributesRef;
pub(crate) use program::FilterBank;
use program::Program;

/// The longest filter text, in Unicode code points, outer spaces included.
pub const FILTER_CHARACTERS_MAX: usize = 256;

/// A parsed and compiled filter. Two filters are equal when their trees are.
#[derive(Clone)]
pub struct Filter {
    tree: Option<Tree>,
    program: Program,
}

impl Filter {
    /// Parses and compiles a filter text. An empty one, or one of white space only, takes everything.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        parser::parse(text).map(Self::new)
    }

    /// The filter that takes everything.
    pub fn everything() -> Self {
        Self::new(None)
    }

    fn new(tree: Option<Tree>) -> Self {
        let program = Program::compile(tree.as_ref());
        Self { tree, program }
    }

    /// Whether the filter takes a message with these attributes. Does not allocate.
    pub fn matches(&self, attributes: AttributesRef<'_>) -> bool {
        self.program.matches(attributes)
    }

    /// Whether this is the empty filter.
    pub fn is_everything(&self) -> bool {
        self.tree.is_none()
    }

    /// The tree; `None` for the empty filter.
    pub fn tree(&self) -> Option<&Tree> {
        self.tree.as_ref()
    }

    /// The text with parentheses around every operator; for people, it may be over the length limit.
    pub fn parenthesised(&self) -> String {
        self.tree.as_ref().map(format::parenthesised).unwrap_or_default()
    }

    /// The tree, one node in a line, parts indented under their operator.
    pub fn outline(&self) -> String {
        self.tree.as_ref().map_or_else(|| "everything\n".to_owned(), explain::outline)
    }

    /// Why the filter takes or refuses these attributes.
    pub fn why(&self, attributes: AttributesRef<'_>) -> Why {
        explain::why(self.tree.as_ref(), attributes)
    }
}

/// The canonical text: parsing it gives an equal filter.
impl fmt::Display for Filter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.tree.as_ref().map(format::format).unwrap_or_default())
    }
}

impl fmt::Debug for Filter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Filter({self})")
    }
}

impl PartialEq for Filter {
    fn eq(&self, other: &Self) -> bool {
        self.tree == other.tree
    }
}

impl Eq for Filter {}

impl Default for Filter {
    fn default() -> Self {
        Self::everything()
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        Self::parse(text)
    }
}
