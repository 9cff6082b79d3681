//! The text of a token, and what is kept of it.
//!
//! `fl_`, an id of 8 hexadecimal digits, `_`, a secret of 64: 256 random bits. The id finds the token; only the hash of the secret is
//! kept. A secret that nobody can guess needs no slow hash.

use std::fmt;

use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

/// How every token begins.
pub const TOKEN_PREFIX: &str = "fl_";

const ID_DIGITS: usize = 8;
const SECRET_DIGITS: usize = 64;

/// The id of a token: 8 hexadecimal digits. No secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TokenId(String);

/// A text that is no id of a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no token id, which is 8 hexadecimal digits")]
pub struct BadTokenId(String);

impl TryFrom<String> for TokenId {
    type Error = BadTokenId;

    fn try_from(text: String) -> Result<Self, BadTokenId> {
        if is_hexadecimal(&text, ID_DIGITS) { Ok(Self(text)) } else { Err(BadTokenId(text)) }
    }
}

impl From<TokenId> for String {
    fn from(id: TokenId) -> Self {
        id.0
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// What is kept of a secret. Comparing takes the same time however much of a guess is right.
#[derive(Clone)]
pub struct SecretHash([u8; SHA256_OUTPUT_LEN]);

impl SecretHash {
    /// The hash of a secret.
    pub fn of(secret: &str) -> Self {
        let mut hash = [0; SHA256_OUTPUT_LEN];
        hash.copy_from_slice(digest(&SHA256, secret.as_bytes()).as_ref());
        Self(hash)
    }

    /// Whether it is the hash of this secret.
    pub fn is_of(&self, secret: &str) -> bool {
        bool::from(Self::of(secret).0.ct_eq(&self.0))
    }

    pub(super) fn to_hexadecimal(&self) -> String {
        hexadecimal(&self.0)
    }

    pub(super) fn from_hexadecimal(text: &str) -> Option<Self> {
        let mut hash = [0; SHA256_OUTPUT_LEN];
        if !is_hexadecimal(text, 2 * SHA256_OUTPUT_LEN) {
            return None;
        }
        for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Self(hash))
    }
}

/// Shows nothing.
impl fmt::Debug for SecretHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SecretHash")
    }
}

/// A new token: its id, its text to show once, and the hash to keep.
///
/// # Errors
///
/// If the operating system gives no random bytes.
pub(super) fn generate() -> std::io::Result<(TokenId, String, SecretHash)> {
    let mut random = [0; (ID_DIGITS + SECRET_DIGITS) / 2];
    SystemRandom::new().fill(&mut random).map_err(|_| std::io::Error::other("the system gives no random bytes"))?;
    let (id, secret) = random.split_at(ID_DIGITS / 2);
    let (id, secret) = (TokenId(hexadecimal(id)), hexadecimal(secret));
    let text = format!("{TOKEN_PREFIX}{id}_{secret}");
    Ok((id, text, SecretHash::of(&secret)))
}

/// The id and the secret of a token's text; `None` if it is no such text.
pub fn parse_token(text: &str) -> Option<(TokenId, &str)> {
    let (id, secret) = text.strip_prefix(TOKEN_PREFIX)?.split_once('_')?;
    (is_hexadecimal(id, ID_DIGITS) && is_hexadecimal(secret, SECRET_DIGITS)).then(|| (TokenId(id.to_owned()), secret))
}

fn is_hexadecimal(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_token_is_read_back_and_known_by_its_hash() {
        let (id, text, hash) = generate().unwrap();
        let (read, secret) = parse_token(&text).unwrap();
        assert_eq!((read, text.len()), (id, 76));
        assert!(hash.is_of(secret));
        for index in 0..secret.len() {
            let mut other = secret.to_owned().into_bytes();
            other[index] = if other[index] == b'0' { b'1' } else { b'0' };
            assert!(!hash.is_of(std::str::from_utf8(&other).unwrap()), "digit {index}");
        }
        assert!(!hash.is_of(""));
        let again = SecretHash::from_hexadecimal(&hash.to_hexadecimal()).unwrap();
        assert!(again.is_of(secret));
        assert_ne!(generate().unwrap().1, text);
        assert!(!format!("{hash:?}").contains(&hash.to_hexadecimal()));
    }

    #[test]
    fn the_hash_of_a_secret_is_its_sha_256() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(SecretHash::of("abc").to_hexadecimal(), expected);
    }

    #[test]
    fn nothing_shorter_longer_or_other_is_a_token() {
        let text = format!("fl_0123abcd_{}", "0123456789abcdef".repeat(4));
        assert_eq!(parse_token(&text).unwrap().0.to_string(), "0123abcd");
        for end in 0..text.len() {
            assert!(parse_token(&text[..end]).is_none(), "{end} bytes");
        }
        for index in 0..text.len() {
            for other in ["_", "g", "A", " ", "é", "\0"] {
                let mut changed = text.clone();
                changed.replace_range(index..=index, other);
                assert!(changed == text || parse_token(&changed).is_none(), "{changed}");
            }
        }
        assert!(parse_token(&format!("{text}0")).is_none());
        assert!(TokenId::try_from("0123ABCD".to_owned()).is_err());
        assert!(SecretHash::from_hexadecimal(&"0".repeat(63)).is_none());
    }
}
