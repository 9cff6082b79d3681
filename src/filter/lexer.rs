//! Characters to tokens, one at a time, so that the first thing that is wrong is what the error names.

use crate::record::Decimal;

use super::error::{FilterError, Reason};
use super::tree::NumberLiteral;

/// What a filter text is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    Key(String),
    Text(String),
    Number(NumberLiteral),
    And,
    Or,
    Not,
    HasPrefix,
    HasSuffix,
    Open,
    Close,
    Comma,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    End,
}

/// A token and where it starts, in characters.
#[derive(Debug)]
pub(super) struct Lexeme {
    pub(super) token: Token,
    pub(super) position: usize,
}

/// Reads tokens from the front of a text.
pub(super) struct Lexer {
    characters: Vec<char>,
    position: usize,
}

/// The words of the language, in the only case they are written in.
const WORDS: [(&str, Token); 5] = [
    ("AND", Token::And),
    ("OR", Token::Or),
    ("NOT", Token::Not),
    ("hasPrefix", Token::HasPrefix),
    ("hasSuffix", Token::HasSuffix),
];

/// Words of the language's relatives; the error says so instead of taking them for keys without colon.
const FOREIGN_WORDS: [&str; 9] = ["IN", "LIKE", "IS", "NULL", "BETWEEN", "EXISTS", "ESCAPE", "TRUE", "FALSE"];

impl Lexer {
    pub(super) fn new(text: &str) -> Self {
        Self { characters: text.chars().collect(), position: 0 }
    }

    /// The next token; [`Token::End`] at the end, again and again.
    pub(super) fn next(&mut self) -> Result<Lexeme, FilterError> {
        while matches!(self.peek(), Some(' ' | '\t' | '\r' | '\n')) {
            self.position += 1;
        }
        let position = self.position;
        let token = match self.peek() {
            None => Token::End,
            Some(first) => self.token(first)?,
        };
        Ok(Lexeme { token, position })
    }

    /// The text of a token that starts at `position` and has been read last; for errors.
    pub(super) fn text_since(&self, position: usize) -> String {
        match self.characters.get(position..self.position) {
            None | Some([]) => "the end".to_owned(),
            Some(characters) => characters.iter().collect(),
        }
    }

    fn token(&mut self, first: char) -> Result<Token, FilterError> {
        match first {
            ':' => self.key(),
            '"' => self.quoted().map(Token::Text),
            '-' | '0'..='9' => self.number(),
            'a'..='z' | 'A'..='Z' | '_' => self.word(),
            '(' => Ok(self.symbol(1, Token::Open)),
            ')' => Ok(self.symbol(1, Token::Close)),
            ',' => Ok(self.symbol(1, Token::Comma)),
            '=' | '!' | '<' | '>' => self.operator(first),
            '\'' => Err(self.error(Reason::SingleQuote)),
            '+' => Err(self.error(Reason::PlusSign)),
            '.' if self.peek_at(1).is_some_and(|next| next.is_ascii_digit()) => Err(self.error(Reason::PointWithoutDigits)),
            found if found.is_whitespace() || is_invisible_space(found) => Err(self.error(Reason::UnsupportedSpace { found })),
            found => Err(self.error(Reason::UnexpectedCharacter { found })),
        }
    }

    fn operator(&mut self, first: char) -> Result<Token, FilterError> {
        let unsupported = |found: &str, instead| Reason::Unsupported { found: found.to_owned(), instead: Some(instead) };
        match (first, self.peek_at(1)) {
            ('=', Some('=')) => Err(self.error(unsupported("==", "="))),
            ('=', Some('>')) => Err(self.error(unsupported("=>", ">="))),
            ('=', Some('<')) => Err(self.error(unsupported("=<", "<="))),
            ('<', Some('>')) => Err(self.error(unsupported("<>", "!="))),
            ('=', _) => Ok(self.symbol(1, Token::Equal)),
            ('!', Some('=')) => Ok(self.symbol(2, Token::NotEqual)),
            ('!', _) => Err(self.error(unsupported("!", "NOT"))),
            ('<', Some('=')) => Ok(self.symbol(2, Token::LessOrEqual)),
            ('<', _) => Ok(self.symbol(1, Token::Less)),
            ('>', Some('=')) => Ok(self.symbol(2, Token::GreaterOrEqual)),
            (_, _) => Ok(self.symbol(1, Token::Greater)),
        }
    }

    fn key(&mut self) -> Result<Token, FilterError> {
        self.position += 1;
        match self.peek() {
            Some('"') => {
                let position = self.position;
                let key = self.quoted()?;
                if key.is_empty() {
                    return Err(FilterError::new(position, Reason::KeyEmpty));
                }
                Ok(Token::Key(key))
            }
            Some('a'..='z' | 'A'..='Z' | '_') => Ok(Token::Key(self.identifier())),
            None | Some(' ' | '\t' | '\r' | '\n' | '(' | ')' | ',' | ':') => Err(self.error(Reason::KeyMissing)),
            Some(found) if found.is_whitespace() => Err(self.error(Reason::UnsupportedSpace { found })),
            Some('\'') => Err(self.error(Reason::SingleQuote)),
            Some(found) => Err(self.error(Reason::KeyNeedsQuotes { found })),
        }
    }

    fn quoted(&mut self) -> Result<String, FilterError> {
        let opening = self.position;
        let mut text = String::new();
        loop {
            self.position += 1;
            match (self.peek(), self.peek_at(1)) {
                (Some('"'), _) => {
                    self.position += 1;
                    return Ok(text);
                }
                (Some('\\'), Some(escaped @ ('"' | '\\'))) => {
                    self.position += 1;
                    text.push(escaped);
                }
                (Some('\\'), Some(found)) => return Err(self.error(Reason::UnknownEscape { found })),
                (None, _) | (Some('\\'), None) => return Err(FilterError::new(opening, Reason::StringUnclosed)),
                (Some(character), _) => text.push(character),
            }
        }
    }

    fn number(&mut self) -> Result<Token, FilterError> {
        let start = self.position;
        if self.peek() == Some('-') {
            self.position += 1;
            match self.peek() {
                Some('0'..='9') => {}
                Some('.') => return Err(self.error(Reason::PointWithoutDigits)),
                _ => return Err(FilterError::new(start, Reason::MinusWithoutDigits)),
            }
        }
        self.digits();
        if self.peek() == Some('.') {
            if !self.peek_at(1).is_some_and(|next| next.is_ascii_digit()) {
                return Err(self.error(Reason::PointWithoutDigits));
            }
            self.position += 1;
            self.digits();
        }
        match self.peek() {
            Some('e' | 'E') if self.exponent_follows() => return Err(self.error(Reason::Exponent)),
            Some(found @ ('a'..='z' | 'A'..='Z' | '_')) => return Err(self.error(Reason::WordTouchesNumber { found })),
            _ => {}
        }
        let text = self.text_since(start);
        // The text is a minus and digits with an inner point, which always has a value.
        Ok(Token::Number(Decimal::parse(text.as_bytes()).unwrap_or_default().into()))
    }

    fn exponent_follows(&self) -> bool {
        match self.peek_at(1) {
            Some('+' | '-') => self.peek_at(2).is_some_and(|next| next.is_ascii_digit()),
            next => next.is_some_and(|next| next.is_ascii_digit()),
        }
    }

    fn word(&mut self) -> Result<Token, FilterError> {
        let position = self.position;
        let found = self.identifier();
        if let Some((_, token)) = WORDS.iter().find(|(word, _)| *word == found) {
            return Ok(token.clone());
        }
        let reason = if let Some((expected, _)) = WORDS.iter().find(|(word, _)| word.eq_ignore_ascii_case(&found)) {
            Reason::WordCase { found, expected }
        } else if FOREIGN_WORDS.iter().any(|word| word.eq_ignore_ascii_case(&found)) {
            Reason::Unsupported { found, instead: None }
        } else {
            Reason::UnknownWord { found }
        };
        Err(FilterError::new(position, reason))
    }

    fn identifier(&mut self) -> String {
        let start = self.position;
        while matches!(self.peek(), Some('a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-')) {
            self.position += 1;
        }
        self.text_since(start)
    }

    fn digits(&mut self) {
        while matches!(self.peek(), Some('0'..='9')) {
            self.position += 1;
        }
    }

    fn symbol(&mut self, length: usize, token: Token) -> Token {
        self.position += length;
        token
    }

    fn peek(&self) -> Option<char> {
        self.peek_at(0)
    }

    fn peek_at(&self, distance: usize) -> Option<char> {
        self.characters.get(self.position + distance).copied()
    }

    fn error(&self, reason: Reason) -> FilterError {
        FilterError::new(self.position, reason)
    }
}

/// Characters that look like nothing at all but are not white space to Unicode: zero-width ones and the byte order mark.
fn is_invisible_space(character: char) -> bool {
    matches!(character, '\u{180e}' | '\u{200b}'..='\u{200d}' | '\u{2060}' | '\u{feff}')
}
