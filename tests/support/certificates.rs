//! Certificates for tests: an authority and what it signs, in files.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};

/// An authority with its certificate in a file.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: tempfile::TempDir,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, directory }
    }

    /// The file with the authority's certificate.
    pub fn ca(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// Writes a server's certificate for these names and its key into files.
    pub fn server(&self, names: &[&str], into: &Path) -> (PathBuf, PathBuf) {
        self.sign(names, ExtendedKeyUsagePurpose::ServerAuth, into)
    }

    /// Writes a client's certificate and its key into files.
    pub fn client(&self, into: &Path) -> (PathBuf, PathBuf) {
        self.sign(&["client"], ExtendedKeyUsagePurpose::ClientAuth, into)
    }

    fn sign(&self, names: &[&str], purpose: ExtendedKeyUsagePurpose, into: &Path) -> (PathBuf, PathBuf) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let paths = (into.join("certificate.pem"), into.join("key.pem"));
        std::fs::write(&paths.0, certificate.pem()).unwrap();
        std::fs::write(&paths.1, key.serialize_pem()).unwrap();
        paths
    }
}
