//! Tokens to a tree, with an explicit stack: how deep a text nests is nothing to the machine's stack.
//!
//! ```text
//! filter = [ or ] ;                       or  = and , { "OR" , and } ;
//! and    = not , { "AND" , not } ;        not = "NOT" , not | atom ;
//! atom   = "(" , or , ")" | func , "(" , key , "," , string , ")" | key , [ test ] ;
//! test   = ( "=" | "!=" ) , ( string | number ) | ( ">" | ">=" | "<" | "<=" ) , number ;
//! func   = "hasPrefix" | "hasSuffix" ;    key = ":" , ( ident | string ) ;
//! ident  = ( letter | "_" ) , { letter | digit | "_" | "-" } ;
//! string = '"' , { any character except '"' and '\' | '\"' | '\\' } , '"' ;
//! number = [ "-" ] , digit , { digit } , [ "." , digit , { digit } ] ;
//! ```

use super::FILTER_CHARACTERS_MAX;
use super::error::{Expected, FilterError, Reason};
use super::lexer::{Lexeme, Lexer, Token};
use super::tree::{Condition, Literal, NumberLiteral, Order, Test, Tree};

/// Parses a filter text; `None` is the filter that takes everything.
pub(super) fn parse(text: &str) -> Result<Option<Tree>, FilterError> {
    let length = text.chars().count();
    if length > FILTER_CHARACTERS_MAX {
        return Err(FilterError::new(FILTER_CHARACTERS_MAX, Reason::TooLong { length }));
    }
    let mut parser = Parser::new(text)?;
    if parser.current.token == Token::End {
        return Ok(None);
    }
    loop {
        parser.prefixes()?;
        let condition = parser.condition()?;
        parser.operands.push(Tree::Condition(condition));
        parser.apply_not();
        parser.closings()?;
        if !parser.join()? {
            return Ok(parser.operands.pop());
        }
    }
}

struct Parser {
    lexer: Lexer,
    current: Lexeme,
    operands: Vec<Tree>,
    pending: Vec<Pending>,
}

/// An operator that waits for its right side.
enum Pending {
    Parenthesis { position: usize },
    Not,
    And,
    Or,
}

impl Parser {
    fn new(text: &str) -> Result<Self, FilterError> {
        let mut lexer = Lexer::new(text);
        let current = lexer.next()?;
        Ok(Self { lexer, current, operands: Vec::new(), pending: Vec::new() })
    }

    /// Takes what may stand in front of a condition: any number of `NOT` and `(`.
    fn prefixes(&mut self) -> Result<(), FilterError> {
        loop {
            match self.current.token {
                Token::Not => self.pending.push(Pending::Not),
                Token::Open => self.pending.push(Pending::Parenthesis { position: self.current.position }),
                _ => return Ok(()),
            }
            self.advance()?;
        }
    }

    /// Takes what may stand behind a condition: any number of `)`.
    fn closings(&mut self) -> Result<(), FilterError> {
        while self.current.token == Token::Close {
            self.apply_binary(|pending| matches!(pending, Pending::And | Pending::Or));
            if self.pending.pop().is_none() {
                return Err(self.error(Reason::ParenthesisUnopened));
            }
            self.apply_not();
            self.advance()?;
        }
        Ok(())
    }

    /// Takes `AND`, `OR` or the end; false at the end.
    fn join(&mut self) -> Result<bool, FilterError> {
        match self.current.token {
            Token::And => {
                self.apply_binary(|pending| matches!(pending, Pending::And));
                self.pending.push(Pending::And);
            }
            Token::Or => {
                self.apply_binary(|pending| matches!(pending, Pending::And | Pending::Or));
                self.pending.push(Pending::Or);
            }
            Token::End => {
                self.apply_binary(|pending| matches!(pending, Pending::And | Pending::Or));
                return match self.pending.pop() {
                    Some(Pending::Parenthesis { position }) => Err(FilterError::new(position, Reason::ParenthesisUnclosed)),
                    _ => Ok(false),
                };
            }
            _ => return Err(self.expected(Expected::Continuation)),
        }
        self.advance()?;
        Ok(true)
    }

    /// `NOT` binds tightest: it takes the operand that has just been completed.
    fn apply_not(&mut self) {
        while let Some(Pending::Not) = self.pending.last() {
            self.pending.pop();
            if let Some(operand) = self.operands.pop() {
                self.operands.push(Tree::Not(Box::new(operand)));
            }
        }
    }

    /// Joins operands while the operator that waits last is one of those.
    fn apply_binary(&mut self, is_tighter: impl Fn(&Pending) -> bool) {
        while self.pending.last().is_some_and(&is_tighter) {
            let (Some(operator), Some(right), Some(left)) = (self.pending.pop(), self.operands.pop(), self.operands.pop()) else {
                return;
            };
            self.operands.push(match operator {
                Pending::And => join_and(left, right),
                _ => join_or(left, right),
            });
        }
    }

    fn condition(&mut self) -> Result<Condition, FilterError> {
        match self.current.token {
            Token::Key(_) => {
                let key = self.key()?;
                Ok(Condition { key, test: self.test()? })
            }
            Token::HasPrefix => self.function(Test::HasPrefix),
            Token::HasSuffix => self.function(Test::HasSuffix),
            _ => Err(self.expected(Expected::Condition)),
        }
    }

    fn test(&mut self) -> Result<Test, FilterError> {
        match self.current.token {
            Token::Equal => self.literal().map(Test::Is),
            Token::NotEqual => self.literal().map(Test::IsNot),
            Token::Less => self.order(Order::Less),
            Token::LessOrEqual => self.order(Order::LessOrEqual),
            Token::Greater => self.order(Order::Greater),
            Token::GreaterOrEqual => self.order(Order::GreaterOrEqual),
            _ => Ok(Test::Present),
        }
    }

    fn literal(&mut self) -> Result<Literal, FilterError> {
        self.advance()?;
        match &self.current.token {
            Token::Text(_) => self.text().map(Literal::String),
            Token::Number(_) => self.number().map(Literal::Number),
            _ => Err(self.expected(Expected::Literal)),
        }
    }

    fn order(&mut self, order: Order) -> Result<Test, FilterError> {
        self.advance()?;
        if let Token::Number(_) = self.current.token {
            return Ok(Test::Order(order, self.number()?));
        }
        let found = self.found();
        Err(self.error(Reason::OrderNeedsNumber { operator: order.symbol(), found }))
    }

    fn function(&mut self, test: fn(String) -> Test) -> Result<Condition, FilterError> {
        self.advance()?;
        self.expect(Token::Open, Expected::Opening)?;
        let key = self.key()?;
        self.expect(Token::Comma, Expected::Comma)?;
        let text = self.text()?;
        self.expect(Token::Close, Expected::Closing)?;
        Ok(Condition { key, test: test(text) })
    }

    fn key(&mut self) -> Result<String, FilterError> {
        match &mut self.current.token {
            Token::Key(key) => {
                let key = std::mem::take(key);
                self.advance()?;
                Ok(key)
            }
            _ => Err(self.expected(Expected::Key)),
        }
    }

    fn text(&mut self) -> Result<String, FilterError> {
        match &mut self.current.token {
            Token::Text(text) => {
                let text = std::mem::take(text);
                self.advance()?;
                Ok(text)
            }
            _ => Err(self.expected(Expected::Text)),
        }
    }

    fn number(&mut self) -> Result<NumberLiteral, FilterError> {
        match &self.current.token {
            Token::Number(number) => {
                let number = number.clone();
                self.advance()?;
                Ok(number)
            }
            _ => Err(self.expected(Expected::Literal)),
        }
    }

    fn expect(&mut self, token: Token, expected: Expected) -> Result<(), FilterError> {
        if self.current.token == token { self.advance() } else { Err(self.expected(expected)) }
    }

    fn advance(&mut self) -> Result<(), FilterError> {
        self.current = self.lexer.next()?;
        Ok(())
    }

    fn found(&self) -> String {
        self.lexer.text_since(self.current.position)
    }

    fn expected(&self, expected: Expected) -> FilterError {
        self.error(Reason::Expected { expected, found: self.found() })
    }

    fn error(&self, reason: Reason) -> FilterError {
        FilterError::new(self.current.position, reason)
    }
}

/// `AND` and `OR` are associative, so parts of the same operator become parts of one node.
fn join_and(left: Tree, right: Tree) -> Tree {
    let mut parts = if let Tree::And(parts) = left { parts } else { vec![left] };
    if let Tree::And(more) = right {
        parts.extend(more)
    } else {
        parts.push(right)
    }
    Tree::And(parts)
}

fn join_or(left: Tree, right: Tree) -> Tree {
    let mut parts = if let Tree::Or(parts) = left { parts } else { vec![left] };
    if let Tree::Or(more) = right {
        parts.extend(more)
    } else {
        parts.push(right)
    }
    Tree::Or(parts)
}
