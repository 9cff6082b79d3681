//! Encryption of payloads at the gateway: AES-256-GCM, a fresh nonce for each message, in Queen's JSON envelope.
//!
//! A queue with `encryptionEnabled` stores only envelopes of what comes over HTTP. Without a key such a queue takes and gives
//! nothing: there is no silent plaintext.

use aes_gcm::aead::{Aead, AeadCore, OsRng};
use aes_gcm::{Aes256Gcm, Key, KeyInit, Nonce};
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::error::{ApiError, Result};

/// Environment variables that may hold the key, in order of preference.
pub const KEY_VARIABLES: [&str; 2] = ["FANLOG_ENCRYPTION_KEY", "QUEEN_ENCRYPTION_KEY"];

const NONCE_BYTES: usize = 12;
const TAG_BYTES: usize = 16;

/// A key for payloads.
#[derive(Clone)]
pub struct EncryptionKey([u8; 32]);

impl EncryptionKey {
    /// Reads 64 hexadecimal digits. The error says what is wrong and never shows the text.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let text = text.trim();
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(format!("encryption key must be 64 hexadecimal digits, found {} characters", text.chars().count()));
        }
        let mut key = [0; 32];
        for (byte, at) in key.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|error| error.to_string())?;
        }
        Ok(Self(key))
    }

    /// The key of the environment, if one of [`KEY_VARIABLES`] is set and not empty.
    pub fn from_environment() -> std::result::Result<Option<Self>, String> {
        let text = KEY_VARIABLES.iter().find_map(|name| std::env::var(name).ok().filter(|text| !text.is_empty()));
        text.map(|text| Self::parse(&text)).transpose()
    }
}

/// Never shows the key.
impl std::fmt::Debug for EncryptionKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("EncryptionKey(..)")
    }
}

/// What is stored in place of the payload; each field in base64.
#[derive(Serialize, Deserialize)]
struct Envelope {
    encrypted: String,
    iv: String,
    #[serde(rename = "authTag")]
    auth_tag: String,
}

/// Seals and opens payloads, if it has a key.
#[derive(Clone)]
pub(super) struct Cipher(Option<Aes256Gcm>);

impl Cipher {
    pub(super) fn new(key: Option<&EncryptionKey>) -> Self {
        Self(key.map(|key| Aes256Gcm::new(Key::<Aes256Gcm>::from_slice(&key.0))))
    }

    /// Whether there is a key.
    pub(super) fn check(&self) -> Result<()> {
        self.key().map(|_| ())
    }

    /// The envelope of a payload.
    pub(super) fn seal(&self, payload: &[u8]) -> Result<Bytes> {
        let nonce = Aes256Gcm::generate_nonce(&mut OsRng);
        let sealed = self.key()?.encrypt(&nonce, payload).map_err(|_| ApiError::internal("payload does not encrypt"))?;
        let (text, tag) = sealed.split_at(sealed.len().saturating_sub(TAG_BYTES));
        let envelope = Envelope { encrypted: BASE64.encode(text), iv: BASE64.encode(nonce), auth_tag: BASE64.encode(tag) };
        serde_json::to_vec(&envelope).map(Bytes::from).map_err(|error| ApiError::internal(error.to_string()))
    }

    /// The payload of an envelope. Fails if it was made with another key or changed since.
    pub(super) fn open(&self, envelope: &[u8]) -> Result<Bytes> {
        let key = self.key()?;
        let failed =
            || ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "decryption_failed", "a stored payload does not decrypt");
        let envelope: Envelope = serde_json::from_slice(envelope).map_err(|_| failed())?;
        let nonce = BASE64.decode(envelope.iv).map_err(|_| failed())?;
        if nonce.len() != NONCE_BYTES {
            return Err(failed());
        }
        let mut sealed = BASE64.decode(envelope.encrypted).map_err(|_| failed())?;
        sealed.extend(BASE64.decode(envelope.auth_tag).map_err(|_| failed())?);
        key.decrypt(Nonce::from_slice(&nonce), sealed.as_slice()).map(Bytes::from).map_err(|_| failed())
    }

    fn key(&self) -> Result<&Aes256Gcm> {
        self.0.as_ref().ok_or_else(|| {
            ApiError::new(
                StatusCode::BAD_REQUEST,
                "encryption_key_missing",
                format!("the queue is encrypted and the server has no key: set {}", KEY_VARIABLES.join(" or ")),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cipher(digit: char) -> Cipher {
        Cipher::new(Some(&EncryptionKey::parse(&digit.to_string().repeat(64)).unwrap()))
    }

    #[test]
    fn sealed_payloads_open_with_their_key_only_and_unchanged_only() {
        let cipher_a = cipher('a');
        for payload in [&b""[..], b"null", &[0xff; 1000]] {
            let envelope = cipher_a.seal(payload).unwrap();
            assert!(payload.is_empty() || !envelope.windows(payload.len()).any(|window| window == payload));
            assert_ne!(envelope, cipher_a.seal(payload).unwrap(), "a nonce was used twice");
            assert_eq!(cipher_a.open(&envelope).unwrap(), payload);
            assert_eq!(cipher('b').open(&envelope).unwrap_err().code, "decryption_failed");
            for cut in 0..envelope.len() {
                assert!(cipher_a.open(&envelope[..cut]).is_err());
            }
        }
        let envelope = String::from_utf8(cipher_a.seal(b"secret").unwrap().to_vec()).unwrap();
        let flipped = envelope.replacen("\"encrypted\":\"", "\"encrypted\":\"AAAA", 1);
        assert!(cipher_a.open(flipped.as_bytes()).is_err());
        assert!(cipher_a.open(br#"{"encrypted":"","iv":"AAAA","authTag":""}"#).is_err());
    }

    #[test]
    fn without_a_key_nothing_is_sealed_or_opened() {
        let none = Cipher::new(None);
        assert_eq!(none.check().unwrap_err().code, "encryption_key_missing");
        assert_eq!(none.seal(b"x").unwrap_err().code, "encryption_key_missing");
        assert_eq!(none.open(b"x").unwrap_err().code, "encryption_key_missing");
    }

    #[test]
    fn a_key_is_64_hexadecimal_digits() {
        for bad in ["", "abc", &"g".repeat(64), &"a".repeat(63), &"é".repeat(32)] {
            assert!(EncryptionKey::parse(bad).is_err());
        }
        let key = EncryptionKey::parse(&format!("{}\n", "0F".repeat(32))).unwrap();
        assert_eq!(key.0, [15; 32]);
        assert_eq!(format!("{key:?}"), "EncryptionKey(..)");
    }
}
