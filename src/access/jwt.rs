//! JSON web tokens: signed elsewhere, checked here.
//!
//! The algorithm is the configured one and never the token's choice; a key of another kind does not verify. What a token does not say
//! clearly it does not give.

use std::fmt;
use std::str::FromStr;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde_json::{Map, Value};

use super::crypto;
use super::{Principal, Role};

/// Clocks of issuers may be so far off.
const LEEWAY_S: u64 = 30;
/// A shorter secret can be guessed from one token.
const SECRET_BYTES_MIN: usize = 32;

/// How tokens are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JwtAlgorithm {
    /// HMAC with SHA-256: who can check a token can make one.
    Hs256,
    /// RSA (PKCS #1 v1.5) with SHA-256, keys of 2,048 to 8,192 bits.
    Rs256,
    /// Ed25519.
    EdDsa,
}

/// A word that names no algorithm.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no algorithm; the algorithms are HS256, RS256 and EdDSA")]
pub struct UnknownAlgorithm(pub String);

impl FromStr for JwtAlgorithm {
    type Err = UnknownAlgorithm;

    fn from_str(text: &str) -> Result<Self, UnknownAlgorithm> {
        match text {
            "HS256" => Ok(Self::Hs256),
            "RS256" => Ok(Self::Rs256),
            "EdDSA" => Ok(Self::EdDsa),
            other => Err(UnknownAlgorithm(other.to_owned())),
        }
    }
}

/// What tokens must be like.
#[derive(Debug, Clone)]
pub struct JwtRules {
    /// How they are signed.
    pub algorithm: JwtAlgorithm,
    /// What their `iss` must be; `None` does not look.
    pub issuer: Option<String>,
    /// What their `aud` must be or contain; `None` does not look.
    pub audience: Option<String>,
    /// The claim with the role or a list of roles, of which the strongest counts. If it is `role` and missing, `roles` is read.
    pub role_claim: String,
    /// The claim with the list of prefixes of queue names; a token without it may use all queues.
    pub prefixes_claim: String,
}

impl JwtRules {
    /// Only the algorithm matters; the claims have their usual names.
    pub fn of(algorithm: JwtAlgorithm) -> Self {
        let (role_claim, prefixes_claim) = ("role".to_owned(), "queue_prefixes".to_owned());
        Self { algorithm, issuer: None, audience: None, role_claim, prefixes_claim }
    }
}

/// Why a key cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("JWT key is not usable: {0}")]
pub struct BadJwtKey(String);

/// Checks tokens.
pub(super) struct Jwt {
    key: DecodingKey,
    /// The content of the key file, to tell another key from the same one.
    content: Box<[u8]>,
    validation: Validation,
    rules: JwtRules,
}

impl fmt::Debug for Jwt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Jwt").field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl Jwt {
    /// `key` is the content of the key file: the secret (with HS256; spaces around it do not count) or a public key in PEM.
    pub(super) fn new(rules: JwtRules, key: &[u8]) -> Result<Self, BadJwtKey> {
        crypto::install();
        let key = key.trim_ascii();
        let content = key.into();
        let (algorithm, key) = match rules.algorithm {
            JwtAlgorithm::Hs256 if key.starts_with(b"-----BEGIN") => {
                // Everybody knows a public key: as a secret it would let everybody in.
                return Err(BadJwtKey("HS256 takes a secret, and this is PEM".to_owned()));
            }
            JwtAlgorithm::Hs256 if key.len() < SECRET_BYTES_MIN => {
                return Err(BadJwtKey(format!("a secret has at least {SECRET_BYTES_MIN} bytes, this has {}", key.len())));
            }
            JwtAlgorithm::Hs256 => (Algorithm::HS256, Ok(DecodingKey::from_secret(key).map_err(bad)?)),
            JwtAlgorithm::Rs256 => (Algorithm::RS256, DecodingKey::from_rsa_pem(key)),
            JwtAlgorithm::EdDsa => (Algorithm::EdDSA, DecodingKey::from_ed_pem(key)),
        };
        let mut validation = Validation::new(algorithm);
        validation.leeway = LEEWAY_S;
        validation.validate_nbf = true;
        validation.validate_aud = rules.audience.is_some();
        let mut required = vec!["exp"];
        if let Some(issuer) = &rules.issuer {
            validation.set_issuer(&[issuer]);
            required.push("iss");
        }
        if let Some(audience) = &rules.audience {
            validation.set_audience(&[audience]);
            required.push("aud");
        }
        validation.set_required_spec_claims(&required);
        Ok(Self { key: key.map_err(bad)?, content, validation, rules })
    }

    /// The same rules with another key; `None` if it is the one in use.
    pub(super) fn with_key(&self, key: &[u8]) -> Result<Option<Self>, BadJwtKey> {
        if key.trim_ascii() == &*self.content { Ok(None) } else { Self::new(self.rules.clone(), key).map(Some) }
    }

    /// Who the token is for and until when, microseconds since the Unix epoch; or what is wrong with it.
    pub(super) fn check(&self, text: &str) -> Result<(Principal, u64), String> {
        let claims = match decode::<Map<String, Value>>(text, &self.key, &self.validation) {
            Ok(decoded) => decoded.claims,
            Err(error) => return Err(format!("JWT is refused: {}", word_of(error.kind()))),
        };
        let subject = match claims.get("sub") {
            None | Some(Value::Null) => None,
            Some(Value::String(subject)) => Some(subject.clone()),
            Some(_) => return Err("JWT is refused: its subject is no text".to_owned()),
        };
        let name = subject.clone().unwrap_or_else(|| "a JWT without a subject".to_owned());
        let principal = Principal { subject, ..Principal::new(name, self.role(&claims)?, self.prefixes(&claims)?) };
        // It was checked to be there and to be a number; a strange one is over at once.
        let expires_s = claims.get("exp").and_then(Value::as_f64).map_or(0, |seconds| seconds as u64);
        Ok((principal, expires_s.saturating_add(LEEWAY_S).saturating_mul(1_000_000)))
    }

    fn role(&self, claims: &Map<String, Value>) -> Result<Role, String> {
        let name = self.rules.role_claim.as_str();
        let found = claims.get(name).or_else(|| claims.get("roles").filter(|_| name == "role"));
        let words: Vec<&str> = match found {
            Some(Value::String(word)) => vec![word],
            Some(Value::Array(words)) => words.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let strongest = Role::ALL.into_iter().find(|role| words.contains(&role.name()));
        strongest.ok_or_else(|| format!("JWT is refused: its claim {name:?} names no role"))
    }

    fn prefixes(&self, claims: &Map<String, Value>) -> Result<Option<Vec<String>>, String> {
        let name = self.rules.prefixes_claim.as_str();
        let Some(found) = claims.get(name) else { return Ok(None) };
        // Null or a text may have been meant as a bound: not understood, it must not become none.
        let prefixes = found.as_array().and_then(|list| list.iter().map(|prefix| prefix.as_str().map(str::to_owned)).collect());
        prefixes.map(Some).ok_or_else(|| format!("JWT is refused: its claim {name:?} is no list of texts"))
    }
}

/// What is wrong with a token, in words of ours: the library's text has parts of the token, and nobody has signed that yet.
fn word_of(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::ExpiredSignature => "ExpiredSignature",
        ErrorKind::ImmatureSignature => "ImmatureSignature",
        ErrorKind::InvalidSignature => "InvalidSignature",
        ErrorKind::InvalidAlgorithm | ErrorKind::InvalidAlgorithmName => "InvalidAlgorithm",
        ErrorKind::InvalidIssuer => "InvalidIssuer",
        ErrorKind::InvalidAudience => "InvalidAudience",
        ErrorKind::InvalidSubject => "InvalidSubject",
        // Only names that are asked for here can be missing.
        ErrorKind::MissingRequiredClaim(_) => "MissingRequiredClaim",
        _ => "InvalidToken",
    }
}

fn bad(error: jsonwebtoken::errors::Error) -> BadJwtKey {
    BadJwtKey(error.to_string())
}

/// Whether a secret looks like a token of this kind: three parts with dots between.
pub(super) fn is_jwt(secret: &str) -> bool {
    secret.bytes().filter(|&byte| byte == b'.').count() == 2
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use ring::hmac;
    use ring::signature::{Ed25519KeyPair, KeyPair};
    use serde_json::json;

    use super::*;

    const SECRET: &[u8] = b"a secret that nobody guesses soon";

    fn now_s() -> u64 {
        jsonwebtoken::get_current_timestamp()
    }

    fn unsigned(header: &Value, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}", part(header), part(claims))
    }

    fn hs256(secret: &[u8], claims: &Value) -> String {
        let message = unsigned(&json!({ "alg": "HS256", "typ": "JWT" }), claims);
        let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message.as_bytes());
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    fn jwt(change: impl FnOnce(&mut JwtRules)) -> Jwt {
        let mut rules = JwtRules::of(JwtAlgorithm::Hs256);
        change(&mut rules);
        Jwt::new(rules, SECRET).unwrap()
    }

    fn claims() -> Value {
        json!({ "sub": "shop", "role": "read-write", "exp": now_s() + 60 })
    }

    fn with(key: &str, value: Value) -> Value {
        let mut claims = claims();
        claims[key] = value;
        claims
    }

    #[test]
    fn a_good_token_says_who_and_until_when() {
        let exp = now_s() + 60;
        let (principal, until_us) = jwt(|_| ()).check(&hs256(SECRET, &with("exp", exp.into()))).unwrap();
        assert_eq!((principal.name.as_str(), principal.role, principal.scope), ("shop", Role::ReadWrite, None));
        assert_eq!(principal.subject.as_deref(), Some("shop"));
        assert_eq!(until_us, (exp + LEEWAY_S) * 1_000_000);
    }

    /// The library's words for a header that it does not understand have that header in them, and refusals are logged.
    #[test]
    fn nothing_of_a_token_is_repeated_in_its_refusal() {
        let loose = jwt(|_| ());
        for alg in ["x`\n2030-01-01T00:00:00Z  INFO a token is revoked\u{1b}[31m".to_owned(), "A".repeat(10_000)] {
            let forged = format!("{}.AAAA", unsigned(&json!({ "alg": alg }), &claims()));
            assert_eq!(loose.check(&forged).unwrap_err(), "JWT is refused: InvalidToken");
        }
        let other = format!("{}.AAAA", unsigned(&json!({ "alg": "RS256" }), &claims()));
        assert_eq!(loose.check(&other).unwrap_err(), "JWT is refused: InvalidAlgorithm");
    }

    #[test]
    fn times_issuer_and_audience_are_looked_at() {
        let strict = jwt(|rules| (rules.issuer, rules.audience) = (Some("us".into()), Some("fanlog".into())));
        let with_both = |iss: Value, aud: Value| {
            let mut claims = claims();
            (claims["iss"], claims["aud"]) = (iss, aud);
            hs256(SECRET, &claims)
        };
        assert!(strict.check(&with_both("us".into(), "fanlog".into())).is_ok());
        assert!(strict.check(&with_both("us".into(), json!(["x", "fanlog"]))).is_ok());
        for (iss, aud) in [(json!("them"), json!("fanlog")), (json!("us"), json!("x")), (json!(null), json!("fanlog"))] {
            assert!(strict.check(&with_both(iss, aud)).is_err());
        }
        assert!(strict.check(&hs256(SECRET, &claims())).is_err(), "both are missing");
        let loose = jwt(|_| ());
        assert!(loose.check(&with_both("them".into(), "x".into())).is_ok());
        for (key, value) in [
            ("exp", json!(now_s() - LEEWAY_S - 5)),
            ("exp", json!("soon")),
            ("exp", json!(null)),
            ("nbf", json!(now_s() + LEEWAY_S + 5)),
            ("sub", json!(7)),
        ] {
            assert!(loose.check(&hs256(SECRET, &with(key, value.clone()))).is_err(), "{key} {value}");
        }
        assert!(loose.check(&hs256(SECRET, &with("nbf", json!(now_s() + 5)))).is_ok(), "clocks differ a little");
    }

    #[test]
    fn roles_and_prefixes_are_what_the_claims_say_clearly() {
        let loose = jwt(|_| ());
        let role = |value: Value| loose.check(&hs256(SECRET, &with("role", value))).map(|(principal, _)| principal.role);
        assert_eq!(role(json!("admin")), Ok(Role::Admin));
        assert_eq!(role(json!(["other", "read-only", "read-write"])), Ok(Role::ReadWrite));
        for nothing in [json!("root"), json!([]), json!(null), json!({}), json!(["x"]), json!(1), json!("Admin")] {
            assert!(role(nothing.clone()).is_err(), "{nothing}");
        }
        let mut plural = claims();
        plural.as_object_mut().unwrap().remove("role");
        assert!(loose.check(&hs256(SECRET, &plural)).is_err());
        plural["roles"] = json!(["write-only"]);
        assert_eq!(loose.check(&hs256(SECRET, &plural)).unwrap().0.role, Role::WriteOnly);
        let named = jwt(|rules| rules.role_claim = "fanlog".into());
        assert!(named.check(&hs256(SECRET, &plural)).is_err(), "another claim was named");

        let scope =
            |value: Value| loose.check(&hs256(SECRET, &with("queue_prefixes", value))).map(|(principal, _)| principal.scope);
        let bound = scope(json!(["orders."])).unwrap().unwrap();
        assert!(bound.contains("orders.a") && !bound.contains("other"));
        assert!(!scope(json!([])).unwrap().unwrap().contains("orders.a"), "an empty list is no queue");
        for unclear in [json!(null), json!("orders."), json!([1]), json!(["a", null]), json!({})] {
            assert!(scope(unclear.clone()).is_err(), "{unclear}");
        }
    }

    #[test]
    fn nothing_but_the_right_signature_by_the_configured_algorithm_counts() {
        let loose = jwt(|_| ());
        let good = hs256(SECRET, &claims());
        assert!(loose.check(&good).is_ok());
        assert!(loose.check(&hs256(b"another secret of the same length", &claims())).is_err());
        for alg in ["none", "None", "NONE", "", "HS384", "HS512", "RS256", "EdDSA", "ES256", "hs256"] {
            let message = unsigned(&json!({ "alg": alg }), &claims());
            let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), message.as_bytes());
            for signature in [String::new(), URL_SAFE_NO_PAD.encode(signature)] {
                assert!(loose.check(&format!("{message}.{signature}")).is_err(), "{alg}");
            }
        }
        for end in 0..good.len() {
            assert!(loose.check(&good[..end]).is_err(), "{end} bytes");
        }
        for index in (0..good.len()).filter(|&index| good.as_bytes()[index] != b'.') {
            let mut changed = good.clone();
            let other = if good.as_bytes()[index] == b'A' { "B" } else { "A" };
            changed.replace_range(index..=index, other);
            // The last digit has bits that do not count.
            assert!(loose.check(&changed).is_err() || index == good.len() - 1, "byte {index}");
        }
    }

    const RSA_PUBLIC: &[u8] = include_bytes!("../../tests/fixtures/jwt/rs256.public.pem");

    fn rs256(claims: &Value) -> String {
        use rustls::pki_types::PrivateKeyDer;
        use rustls::pki_types::pem::PemObject;
        let key = PrivateKeyDer::from_pem_slice(include_bytes!("../../tests/fixtures/jwt/rs256.key.pem")).unwrap();
        let pair = ring::signature::RsaKeyPair::from_pkcs8(key.secret_der()).unwrap();
        let message = unsigned(&json!({ "alg": "RS256" }), claims);
        let mut signature = vec![0; pair.public().modulus_len()];
        let random = ring::rand::SystemRandom::new();
        pair.sign(&ring::signature::RSA_PKCS1_SHA256, &random, message.as_bytes(), &mut signature).unwrap();
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    #[test]
    fn an_rsa_signature_is_checked_and_the_public_key_is_no_secret() {
        let jwt = Jwt::new(JwtRules::of(JwtAlgorithm::Rs256), RSA_PUBLIC).unwrap();
        let good = rs256(&claims());
        assert_eq!(jwt.check(&good).unwrap().0.name, "shop");
        let (message, signature) = good.rsplit_once('.').unwrap();
        let other = unsigned(&json!({ "alg": "RS256" }), &with("role", json!("admin")));
        assert!(jwt.check(&format!("{other}.{signature}")).is_err());
        assert!(jwt.check(&format!("{message}.")).is_err());
        for secret in [RSA_PUBLIC, RSA_PUBLIC.trim_ascii()] {
            assert!(jwt.check(&hs256(secret, &claims())).is_err());
        }
        assert!(Jwt::new(JwtRules::of(JwtAlgorithm::Hs256), RSA_PUBLIC).is_err());
        let pinned = Jwt::new(JwtRules::of(JwtAlgorithm::Hs256), SECRET).unwrap();
        assert!(pinned.check(&good).is_err(), "another algorithm than the configured one");
    }

    /// The public key of an asymmetric pair, used as a secret by whoever makes a token.
    #[test]
    fn a_public_key_is_no_secret() {
        let pem = public_pem(&Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap());
        let asymmetric = Jwt::new(JwtRules::of(JwtAlgorithm::EdDsa), pem.as_bytes()).unwrap();
        let raw = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap().public_key().as_ref().to_vec();
        for secret in [pem.as_bytes(), pem.trim().as_bytes(), &raw] {
            assert!(asymmetric.check(&hs256(secret, &claims())).is_err());
        }
        assert!(Jwt::new(JwtRules::of(JwtAlgorithm::Hs256), pem.as_bytes()).is_err());
        assert!(Jwt::new(JwtRules::of(JwtAlgorithm::Rs256), pem.as_bytes()).is_err());
    }

    #[test]
    fn an_ed25519_signature_is_checked() {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let jwt = Jwt::new(JwtRules::of(JwtAlgorithm::EdDsa), public_pem(&pair).as_bytes()).unwrap();
        let message = unsigned(&json!({ "alg": "EdDSA" }), &claims());
        let sign = |pair: &Ed25519KeyPair| format!("{message}.{}", URL_SAFE_NO_PAD.encode(pair.sign(message.as_bytes())));
        assert_eq!(jwt.check(&sign(&pair)).unwrap().0.name, "shop");
        assert!(jwt.check(&sign(&Ed25519KeyPair::from_seed_unchecked(&[8; 32]).unwrap())).is_err());
    }

    #[test]
    fn weak_and_foreign_keys_are_refused() {
        let new = |algorithm, key: &[u8]| Jwt::new(JwtRules::of(algorithm), key).map(|_| ());
        for short in [&b""[..], b"  \n", &SECRET[..31], b"0123456789012345678901234567890 "] {
            assert!(new(JwtAlgorithm::Hs256, short).is_err(), "{short:?}");
        }
        assert!(new(JwtAlgorithm::Hs256, &SECRET[..32]).is_ok());
        for algorithm in [JwtAlgorithm::Rs256, JwtAlgorithm::EdDsa] {
            assert!(new(algorithm, SECRET).is_err());
            assert!(new(algorithm, b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n").is_err());
        }
        for word in ["none", "hs256", "", "auto"] {
            assert!(word.parse::<JwtAlgorithm>().is_err());
        }
    }

    fn public_pem(pair: &Ed25519KeyPair) -> String {
        // The header of a public key of Ed25519 in X.509, 12 bytes.
        let mut der = vec![0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
        der.extend_from_slice(pair.public_key().as_ref());
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
    }
}
