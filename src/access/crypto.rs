//! The algorithms of JSON web tokens by `ring`, for a crate that leaves them to its users. It checks signatures and makes none.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, EncodingKey};
use ring::hmac;
use ring::signature::{ED25519, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey, VerificationAlgorithm};

static PROVIDER: CryptoProvider = CryptoProvider { signer_factory, verifier_factory, key_utils: KeyUtils::new_unimplemented() };

/// Makes it known to the crate. A program that embeds us may have installed another one first, which does as well.
pub(super) fn install() {
    let _ = PROVIDER.install_default();
}

enum Check {
    Hmac(hmac::Key),
    Public(&'static dyn VerificationAlgorithm, Vec<u8>),
}

struct Signature {
    algorithm: Algorithm,
    check: Check,
}

fn signer_factory(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>, Error> {
    Err(ErrorKind::InvalidAlgorithm.into())
}

fn verifier_factory(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    let public = |algorithm| Ok::<_, Error>(Check::Public(algorithm, key.try_get_as_bytes()?.to_vec()));
    let check = match (algorithm, key.family()) {
        (Algorithm::HS256, AlgorithmFamily::Hmac) => Check::Hmac(hmac::Key::new(hmac::HMAC_SHA256, key.try_get_as_bytes()?)),
        (Algorithm::RS256, AlgorithmFamily::Rsa) => public(&RSA_PKCS1_2048_8192_SHA256)?,
        (Algorithm::EdDSA, AlgorithmFamily::Ed) => public(&ED25519)?,
        // A key of one kind never serves another.
        _ => return Err(ErrorKind::InvalidAlgorithm.into()),
    };
    Ok(Box::new(Signature { algorithm: *algorithm, check }))
}

impl Verifier<Vec<u8>> for Signature {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let verified = match &self.check {
            Check::Hmac(key) => hmac::verify(key, message, signature),
            Check::Public(algorithm, key) => UnparsedPublicKey::new(*algorithm, key).verify(message, signature),
        };
        verified.map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for Signature {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
